"""Checks that a part of your own must pass before records depend on it; usable from a notebook."""

from noisewise.testing.auditcheck import check_audit
from noisewise.testing.checks import check_clip, check_support, reveal
from noisewise.testing.modelcheck import ModelCheck, check_model

__all__ = ["ModelCheck", "check_audit", "check_clip", "check_model", "check_support", "reveal"]

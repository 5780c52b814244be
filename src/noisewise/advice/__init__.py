"""Advice: what a run's audits say about what to do next. Pure rules; `noisewise.workflow.suggest` gathers what they read."""

from noisewise.advice.advice import Advice
from noisewise.advice.evidence import AUDITS, Evidence
from noisewise.advice.rules import RULES, advise

__all__ = ["AUDITS", "Advice", "Evidence", "RULES", "advise"]

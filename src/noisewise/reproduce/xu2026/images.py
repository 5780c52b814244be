"""Experiments of Xu, Chen 2026 on images: padding, rotation, class size, freezing, hard digits."""

from __future__ import annotations

from noisewise.reproduce.experiment import Experiment, Unrun

IMAGES: tuple[Experiment, ...] = ()
NOT_RUN: tuple[Unrun, ...] = ()

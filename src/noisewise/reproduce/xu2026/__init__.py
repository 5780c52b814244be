"""Xu, Chen 2026, arXiv:2603.04881, and the questions of the Blog that summarises it.

Formulas and numbers in mathematics of the paper are not known to us: settings are ours, and directions are checked.
"""

from __future__ import annotations

from noisewise.reproduce.experiment import Paper
from noisewise.reproduce.xu2026.noise import FIGURE1, FIGURE3
from noisewise.reproduce.xu2026.padding import PADDING, PADDING_CIFAR, VIT_PADDING
from noisewise.reproduce.xu2026.people import CLASS_SIZE, FREEZING, HARD, NOISIER
from noisewise.reproduce.xu2026.rotation import ROTATION, ROTATION_CIFAR
from noisewise.reproduce.xu2026.theory import ANGLES, BLOG, GENERALISATION, STEPS

PAPER = Paper(
    name="xu2026",
    title="Differential Privacy in Two-Layer Networks: How DP-SGD Harms Fairness and Robustness",
    reference="Xu, Chen 2026, arXiv:2603.04881",
    experiments=(
        FIGURE3,
        FIGURE1,
        GENERALISATION,
        STEPS,
        ANGLES,
        BLOG,
        PADDING,
        PADDING_CIFAR,
        ROTATION,
        ROTATION_CIFAR,
        CLASS_SIZE,
        VIT_PADDING,
        FREEZING,
        NOISIER,
        HARD,
    ),
    errata=(
        "Section 5 says twice that remedies reduce the feature-to-noise ratio; they raise it.",
        "The adversarial result on synthetic data is credited to Theorem 3.4; it is Theorem 3.7.",
        "The tables have no runs without privacy beside them, so drops by padding, rotation and class size are "
        "not due to privacy by the paper's own data; controls stand beside ours.",
        "Expected loss is not monotone in the noise: a little noise lowers it (random filters become active).",
        "Stage-wise freezing leaves the noise on each coordinate as it is; what falls is its sum.",
    ),
)

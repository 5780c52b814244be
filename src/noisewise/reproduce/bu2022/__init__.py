"""Bu et al. 2022 (ICLR submission of arXiv:2106.07830): global clipping, the tangent kernel, calibration."""

from __future__ import annotations

from noisewise.reproduce.bu2022.theory import EPSILONS, REGRESSION, TABLES
from noisewise.reproduce.experiment import Paper

PAPER = Paper(
    name="bu2022",
    title="On the Convergence and Calibration of Deep Learning with Differential Privacy",
    reference="Bu et al. 2022, ICLR submission of arXiv:2106.07830",
    experiments=(TABLES, EPSILONS, REGRESSION),
)

"""Bu et al. 2022 (ICLR submission of arXiv:2106.07830): global clipping, the tangent kernel, calibration.

Our text has the main part; appendices A to G are missing.
"""

from __future__ import annotations

from noisewise.reproduce.bu2022.images import CIFAR, MNIST, UNSTATED
from noisewise.reproduce.bu2022.protocols import FLOW, MIX
from noisewise.reproduce.bu2022.text import SNLI, TEXT
from noisewise.reproduce.bu2022.theory import EPSILONS, REGRESSION, TABLES
from noisewise.reproduce.experiment import Paper

PAPER = Paper(
    name="bu2022",
    title="On the Convergence and Calibration of Deep Learning with Differential Privacy",
    reference="Bu et al. 2022, ICLR submission of arXiv:2106.07830",
    experiments=(TABLES, EPSILONS, MNIST, CIFAR, UNSTATED, MIX, TEXT, SNLI, REGRESSION, FLOW),
    errata=(
        "Sums are divided by the realised batch size, which depends on the data under Poisson sampling; ours by the expected.",
        "Neighbours are defined by replacing a record, the sensitivity R belongs to adding or removing one.",
        "Epsilons are GDP-CLT approximations and no bounds: on SNLI 1.25 where PLD gives 5.16; 1.25 covers 51,500"
        " steps, not the 54,076 of the run; 1.96 on CIFAR-10 is 60 epochs, the figure shows 50.",
        "Footnote 5 overstates for flat clipping: screening leaves eigenvalues at or above 0.",
        "Fact 4.1 holds at fixed sigma and vanishing steps, not at a fixed budget.",
        "Global clipping is a smaller step with larger relative noise, so its calibration needs a control of the step size.",
        "The text says DP-SGD for the stages of SNLI, the optimiser is DP-AdamW.",
    ),
)

"""Watson et al. 2023, arXiv:2311.06839: clipping against noise, landscapes, pruning."""

from __future__ import annotations

from noisewise.reproduce.experiment import Paper
from noisewise.reproduce.watson2023.gradients import FEW_STEPS, TURNING
from noisewise.reproduce.watson2023.landscapes import BASINS, PHASES, PHASES_RESNET
from noisewise.reproduce.watson2023.pruned import PRUNED, SHARES, SHARES_CIFAR, SHARES_HALVES, SHARES_RESNET
from noisewise.reproduce.watson2023.theory import BALANCE, THEORY
from noisewise.reproduce.watson2023.training import ABLATION, PRUNING

PAPER = Paper(
    name="watson2023",
    title="Inference and Interference: The Role of Clipping, Pruning and Loss Landscapes in DP-SGD",
    reference="Watson et al. 2023, arXiv:2311.06839",
    experiments=(
        THEORY,
        BALANCE,
        TURNING,
        PHASES,
        PHASES_RESNET,
        BASINS,
        FEW_STEPS,
        ABLATION,
        PRUNED,
        PRUNING,
        SHARES,
        SHARES_HALVES,
        SHARES_RESNET,
        SHARES_CIFAR,
    ),
    errata=(
        "Theorem 3.2 is false as printed; (1 - R) / (1 + R) holds, and is sharp.",
        "Noise is written N(0, C sigma^2 I); the deviation must be C sigma. Gradients, not per-sample ones, are clipped there.",
        "sigma 2.4 fits a batch of 512, not 1024, for epsilon 1; sigma 0.55 fits 64 for epsilon 7.",
        "The pruning level p is once the kept share and otherwise the pruned one; masks from the private data are not private.",
    ),
)

"""Zhu, Blaschko 2023, TMLR, arXiv:2112.00845: random sparsification."""

from __future__ import annotations

from noisewise.reproduce.experiment import Paper, Unrun
from noisewise.reproduce.zhu2023.grids import BATCHES, GRID, MOMENTUM
from noisewise.reproduce.zhu2023.looks import INVERSION, MASKS, SYMMETRY
from noisewise.reproduce.zhu2023.theory import THEORY
from noisewise.reproduce.zhu2023.training import HCNN, HCNN_CIFAR, SVHN, SWEEP, TABLE2, TABLE2_CIFAR

PAPER = Paper(
    name="zhu2023",
    title="Improving Differentially Private SGD via Randomly Sparsified Gradients",
    reference="Zhu, Blaschko 2023, TMLR, arXiv:2112.00845",
    experiments=(
        *(THEORY, TABLE2, TABLE2_CIFAR, HCNN, HCNN_CIFAR, SVHN),
        *(SWEEP, GRID, MOMENTUM, BATCHES, MASKS, SYMMETRY, INVERSION),
    ),
    unrun=(Unrun("Z10", "no gain for linear probing", "appendix J", "the pretrained weights were not available"),),
    errata=(
        "r* misses the learning rate: Eq. (114) drops what Eq. (113) has.",
        "Corollary C.1.1 takes q as constant though B = sqrt T: its noise term grows with T.",
        "Algorithm 4, line 20, uses the gradient without noise; it must be the released one.",
        "Eq. (2) and (3) print S_f^2 for S_f; appendix H adds noise linearly, and once prints C (1 - mu) for C / (1 - mu).",
        "Shuffled batches are accounted as Poisson; the search over settings is not accounted.",
    ),
)

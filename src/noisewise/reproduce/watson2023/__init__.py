"""Watson et al. 2023, arXiv:2311.06839: clipping against noise, landscapes, pruning."""

from __future__ import annotations

from noisewise.reproduce.experiment import Paper, Unrun
from noisewise.reproduce.watson2023.theory import THEORY
from noisewise.reproduce.watson2023.training import ABLATION, PRUNING

LANDSCAPE = "waits for the audit of landscapes and for phases with another batch size"

PAPER = Paper(
    name="watson2023",
    title="Inference and Interference: The Role of Clipping, Pruning and Loss Landscapes in DP-SGD",
    reference="Watson et al. 2023, arXiv:2311.06839",
    experiments=(THEORY, PRUNING, ABLATION),
    unrun=(
        Unrun("W1", "the final loss is set by the second phase", "Figures 2, 20", LANDSCAPE),
        Unrun("W2", "two SGD runs end in different basins", "Figure 3", LANDSCAPE),
        Unrun("W3", "a basin is flat, random directions are steep", "Figure 4", LANDSCAPE),
        Unrun("W4", "SGD is stable early, DP-SGD is not", "Figure 5", LANDSCAPE),
        Unrun("W5", "only SGD after SGD stays in its basin", "Figures 6 to 8", LANDSCAPE),
        Unrun("W6", "over five steps DP is worse than clipping or noise", "Figure 9", "not written yet"),
        Unrun("W8", "pruning helps clipped SGD, not noisy SGD", "Figure 12", "not written yet"),
        Unrun("W9", "pruning gains 23 points for ResNet-18", "Figures 13 to 15", "not written yet"),
        Unrun("W9.cifar100", "a mask from CIFAR-100 gains", "Figure 13", "CIFAR-100 cannot be had here"),
        Unrun("W10", "norms of weights 86, 142 and 100", "Figures 16, 17", "not written yet"),
    ),
    errata=(
        "Theorem 3.2 is false as printed; (1 - R) / (1 + R) holds, and is sharp.",
        "Noise is written N(0, C sigma^2 I); the deviation must be C sigma. Gradients, not per-sample ones, are clipped there.",
        "sigma 2.4 fits a batch of 512, not 1024, for epsilon 1; sigma 0.55 fits 64 for epsilon 7.",
        "The pruning level p is once the kept share and otherwise the pruned one; masks from the private data are not private.",
    ),
)

"""Repairs: changes of a recipe that give back what privacy took, alone or combined, at the same epsilon. One file each.

`repaired(recipe, RandomSparsification(0.9), MovingAverage())` gives a recipe for `noisewise.recipe.fit`.
"""

from __future__ import annotations

from noisewise.repairs.augmentation import Augmentation
from noisewise.repairs.averaging import MovingAverage
from noisewise.repairs.base import Cost, Repair, check_compatible, repaired
from noisewise.repairs.freezing import StagewiseFreezing
from noisewise.repairs.global_adapt import GlobalAdapt
from noisewise.repairs.global_clipping import GlobalClipping, LocalThenGlobal
from noisewise.repairs.group_bounds import GroupBounds
from noisewise.repairs.lora import LoRA, merged
from noisewise.repairs.phases import FirstPhase
from noisewise.repairs.pretraining import FineTuning, Pretraining
from noisewise.repairs.pruning import AtRandom, EarlierEpochs, MagnitudePruning, PrivateModel, PrivateRecords
from noisewise.repairs.public import PublicTraining
from noisewise.repairs.random_sparsification import RandomSparsification
from noisewise.repairs.ranked_sparsification import RankedSparsification
from noisewise.repairs.temperature import Scaled, Temperature, temperature
from noisewise.theory.zhu2023 import best_sparsity, bound_at_sparsity, bound_for_momentum, noise_term

__all__ = [
    "AtRandom", "Augmentation", "Cost", "EarlierEpochs", "FineTuning", "FirstPhase", "GlobalAdapt",
    "GlobalClipping", "GroupBounds", "LoRA", "LocalThenGlobal", "MagnitudePruning", "MovingAverage", "Pretraining",
    "PrivateModel", "PrivateRecords", "PublicTraining", "REPAIRS", "RandomSparsification", "RankedSparsification", "Repair",
    "Scaled", "StagewiseFreezing", "Temperature", "best_sparsity", "bound_at_sparsity", "bound_for_momentum",
    "check_compatible", "merged", "noise_term", "repaired", "temperature",
]  # fmt: skip

REPAIRS: dict[str, type[Repair]] = {
    repair.name: repair
    for repair in (
        GlobalClipping, LocalThenGlobal, GlobalAdapt, GroupBounds, RandomSparsification, RankedSparsification,
        StagewiseFreezing, MagnitudePruning, Augmentation, MovingAverage, Pretraining, FineTuning, LoRA, FirstPhase,
    )
}  # fmt: skip
"""Every repair by its name."""

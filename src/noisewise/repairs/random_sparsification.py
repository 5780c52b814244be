"""Random sparsification: only a random part of the coordinates learns in each epoch."""

from __future__ import annotations

import importlib
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, ClassVar

import numpy as np

from noisewise.errors import ConfigError
from noisewise.persample import kernels
from noisewise.recipe import Recipe, with_support
from noisewise.repairs.base import Repair
from noisewise.support import Masked, Plan, Released, kept, learning

STEP, MIXED = 0x9E3779B97F4A7C15, ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB), (31, 1))  # of SplitMix64

if TYPE_CHECKING:
    from collections.abc import Callable

    import torch
    from torch import Tensor

    from noisewise.support import Support


def sparsity(period: int, periods: int, final: float, cooling: bool) -> float:
    """`r_e = r* e / (E - 1)`: from 0 to the final rate; always the final rate without cooling."""
    return final * period / (periods - 1) if cooling and periods > 1 else final


def masks_from_flat(keep: Tensor, weights: dict[str, Tensor]) -> dict[str, Tensor]:
    """Masks by parameter from one flat mask over all of them."""
    parts = keep.split([weight.numel() for weight in weights.values()])
    return {name: part.view(weight.shape) for (name, weight), part in zip(weights.items(), parts, strict=True)}


def check_rate(plan: str, final: float, periods: int, steps: int) -> None:
    """A share in [0, 1), and no more masks than steps."""
    if not 0 <= final < 1:
        raise ConfigError(f"{plan}(final={final!r}): a share of masked coordinates in [0, 1), e.g. 0.7.")
    if type(periods) is not int or type(steps) is not int or not 1 <= periods <= steps:
        raise ConfigError(f"{plan}(periods={periods!r}, steps={steps!r}): from 1 to as many masks as steps.")


def random_subset(among: Tensor, count: int, start: int) -> Tensor:
    """A mask of exactly `count` of the places where `among [size]` is True, every subset equally likely; same on any device.

    The places with the smallest of 64-bit keys, SplitMix64 of `start` and the place's number: whole numbers, so that a GPU
    finds the same ones, and no two are equal, since the map is one to one. Reference: Steele, Lea & Flood 2014.
    """
    import torch

    if count == 0:
        return torch.zeros_like(among)
    if among.is_cuda:
        return subset_on_gpu(among, count, start)
    numbers = keys_of(len(among), start).view(np.int64)  # compared with a sign there too
    numbers[~among.numpy()] = np.iinfo(np.int64).max
    return torch.from_numpy(numbers <= np.partition(numbers, count - 1)[count - 1])


def subset_on_gpu(among: Tensor, count: int, start: int) -> Tensor:
    """`random_subset` without a question that a GPU would have to answer on the way: by kernels, or with keys in memory."""
    import torch

    if kernels.usable(among, kind=torch.bool):
        found = importlib.import_module("noisewise.repairs.triton_subset")  # only where Triton is
        last = key_at(partial(found.counts, among, start), count, among.device)
        chosen: Tensor = found.up_to(among, start, last)
        return chosen
    keys = keys_on_gpu(len(among), start, among.device)
    return (keys <= key_at(partial(counts, keys, among), count, among.device)) & among


def key_at(counts_of: Callable[[int, Tensor], Tensor], count: int, device: torch.device) -> Tensor:
    """The `count`-th smallest of some keys, `[1]`, found digit by digit of 16 bits.

    `counts_of(shift, low)` says how many keys there are to each digit: those that are `low` and a digit, cut by `shift` bits.
    """
    import torch

    place = torch.full((1,), count, device=device)
    low = torch.full((1,), -(1 << 15), device=device)  # of the first digit, which has the sign
    for shift in (48, 32, 16, 0):
        found = counts_of(shift, low)
        up_to = found.cumsum(0)
        digit = torch.searchsorted(up_to, place)
        place = place - (up_to - found)[digit]
        key = low + digit
        low = key << 16
    return key


def counts(keys: Tensor, among: Tensor, shift: int, low: Tensor) -> Tensor:
    """How many keys at some places are `low` and a digit, for each of its values, when `shift` bits are cut off."""
    import torch

    digits = (keys >> shift).sub_(low)
    here = (digits >> 16 == 0).logical_and_(among).to(torch.int32)
    return torch.zeros(1 << 16, dtype=torch.int32, device=keys.device).scatter_add_(
        0, digits.bitwise_and_((1 << 16) - 1), here
    )


def keys_of(size: int, start: int) -> np.ndarray:
    """SplitMix64 from a start: its first numbers, all different."""
    keys = np.arange(1, size + 1, dtype=np.uint64)
    keys *= np.uint64(STEP)
    keys += np.uint64(start % 2**64)
    for shift, factor in MIXED:
        keys ^= keys >> np.uint64(shift)
        keys *= np.uint64(factor)
    return keys


def keys_on_gpu(size: int, start: int, device: torch.device) -> Tensor:
    """The same as signed numbers, whose products wrap alike; a shift brings the sign along, which is cut off."""
    import torch

    keys = torch.arange(1, size + 1, device=device).mul_(_signed(STEP)).add_(_signed(start % 2**64))
    for shift, factor in MIXED:
        keys.bitwise_xor_((keys >> shift).bitwise_and_((1 << (64 - shift)) - 1))
        if factor != 1:
            keys.mul_(_signed(factor))
    return keys


def _signed(number: int) -> int:
    return number - 2**64 if number >= 2**63 else number


@dataclass(frozen=True)
class RandomMasks(Plan):
    """Exactly `round(r P)` of the P coordinates that are left are masked, anew in each of `periods` periods.

    Masks are a function of the public seed and the period: they never see data or weights.
    """

    final: float
    steps: int
    periods: int
    cooling: bool = True
    masked: ClassVar[Masked] = "drift"
    seeded: ClassVar[bool] = True
    order: ClassVar[int] = 3

    def __post_init__(self) -> None:
        """Numbers in range."""
        check_rate("RandomMasks", self.final, self.periods, self.steps)

    def period(self, step: int) -> int:
        """Number of the mask."""
        return min(step * self.periods // self.steps, self.periods - 1)

    def at(self, step: int, released: Released, generator: torch.Generator) -> Support:
        """A random mask over all coordinates that are left, jointly."""
        import torch

        weights = dict(released.weights)
        device = next(iter(weights.values())).device
        keep = torch.cat(list(learning(weights, released.within, device).values()))
        rate = sparsity(self.period(step), self.periods, self.final, self.cooling)
        start = int(torch.randint(-(2**63), 2**63 - 1, (), generator=generator))
        count = round(rate * kept(released.within, weights))
        return masks_from_flat(keep & ~random_subset(keep, count, start), weights)


@dataclass(frozen=True)
class RandomSparsification(Repair):
    """A share of all coordinates, growing from 0 to `final` (gradual cooling), is masked; a new mask every epoch.

    `g_i <- m * g_i`, clipped, `+ m * N(0, (C sigma / B)^2)`: less noise in all, and what is kept gets more of the bound.
    `refreshes` masks per epoch. With momentum, masked coordinates go on by their old velocity, as in the paper. Its two
    ablations are `train(..., ablation="noise-only")` (Algorithm 2; noise std sigma C) and `"clip-only"` (Algorithm 3) with
    this plan. Cost: free. Reference: Zhu & Blaschko 2023, TMLR, Algorithm 1, arXiv:2112.00845. Deviation: counts are
    rounded, not cut off. The default rate was chosen on held-out Fashion-MNIST images (docs/repairs_measured.md)
    among 0.5, 0.7 and 0.9.
    """

    final: float = 0.9
    cooling: bool = True
    refreshes: int = 1
    name = "random sparsification"
    changes = "the support: random masks"
    reference = "Zhu & Blaschko 2023, arXiv:2112.00845"
    claims = ("draw",)
    order = 6

    def apply(self, recipe: Recipe) -> Recipe:
        """The plan of masks, as long as the recipe's mechanism."""
        periods = epochs_of(recipe) * self.refreshes
        return with_support(recipe, RandomMasks(self.final, recipe.mechanism.steps, periods, self.cooling))


def epochs_of(recipe: Recipe) -> int:
    """Whole passes over the data that the mechanism makes, at least one."""
    return max(1, round(recipe.mechanism.steps * recipe.mechanism.sampler.rate))

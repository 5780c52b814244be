"""Likeness to patches of made-up images: what is looked for was found in no record, so it costs no privacy."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache
from typing import ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor

from noisewise.data import made_up
from noisewise.errors import ConfigError, DataError
from noisewise.recipes.features import Features
from noisewise.recipes.scattered import MADE_UP, SEED, Scattering, apart, covariance_of, levels_of
from noisewise.recipes.views import check_shape

FLAT = 0.01  # added to a patch's variance: noise of a flat one is not enlarged
SEEN = 50_000  # patches that show which pixels go together
ROWS = {"cpu": 4, "cuda": 256}  # images at a time: maps of all patches are large, those of four stay in a CPU's cache


@dataclass(frozen=True, kw_only=True)
class Patches(Features):
    """`max(0, r_k - threshold)` and `max(0, -r_k - threshold)`, averaged onto a grid, at equal scale by channel.

    r_k is the product of patch k of made-up images with a patch of the image, both centred, divided by their deviation and
    with pixels pulled apart (`apart`); in units of its deviation. count: how many k. side: of a patch, in pixels. kind: of
    made-up images. grid: places on a side. whiten: channels that go together over made-up images are pulled apart, as in
    `Scattering`. scattering: above 0, scattering features at two scales stand beside, multiplied by it. The others:
    see `Features`.

    Guarantee: patches, means, deviations and what goes together follow from made-up images alone: row i of the result is a
    function of public numbers and record i. Reference: Coates, Ng, Lee 2011, An analysis of single-layer networks in
    unsupervised feature learning. Deviation: patches and whitening of made-up images in place of the records'; channels are
    pulled apart as well.
    """

    count: int = 512
    side: int = 6
    kind: str = "patchwork"
    threshold: float = 0.5
    grid: int = 4
    scattering: float = 0.0
    whiten: float = 0.0
    version: ClassVar[str] = "patches 1"

    def __post_init__(self) -> None:
        """Known names, numbers in range."""
        super().__post_init__()
        for name, least in (("count", 1), ("side", 2), ("grid", 1)):
            value = getattr(self, name)
            if type(value) is not int or value < least:
                raise ConfigError(f"{name}={value!r}: must be a whole number of at least {least}.")
        if self.kind not in made_up.KINDS:
            raise ConfigError(f"kind={self.kind!r}: must be one of {', '.join(made_up.KINDS)}.")
        for name in ("threshold", "scattering"):
            if not 0 <= getattr(self, name) <= 100:
                raise ConfigError(f"{name}={getattr(self, name)!r}: must be in [0, 100].")
        if not 0 <= self.whiten <= 1:
            raise ConfigError(f"whiten={self.whiten!r}: must be in [0, 1], e.g. 0.5.")

    def check(self, shape: tuple[int, ...]) -> None:
        """Images that hold a patch for each place of the grid, of the shape that is known."""
        check_shape(self.shape, shape)
        least = self.side + self.grid - 1
        if len(shape) != 3 or min(shape[1:]) < least:
            raise DataError(
                f"inputs of shape {list(shape)}: patches with side={self.side} for grid={self.grid} need images [channels, "
                f"height, width] of at least {least}x{least} pixels. Use a smaller side or grid, or another recipe."
            )
        if self.scattering:
            Scattering().check(shape)

    def maps(self, images: Tensor) -> list[Tensor]:
        """Features `[n, 2 count, grid, grid]` of images, on their device, and scattering maps beside them if wanted."""
        shape = (int(images.shape[1]), int(images.shape[2]), int(images.shape[3]))
        look = (self.kind, self.count, self.side, self.threshold, self.grid)
        mean, deviation = (value.to(images) for value in _levels(*look, shape))
        made = (_alike(images, *look) - mean) / deviation
        if self.whiten:
            made = torch.einsum("kc,nchw->nkhw", _pulling(*look, shape, self.whiten).to(made), made)
        beside = [self.scattering * part for part in Scattering(whiten=1.0).maps(images)] if self.scattering else []
        return [made, *beside]


def _alike(images: Tensor, kind: str, count: int, side: int, threshold: float, grid: int) -> Tensor:
    """Likeness above the threshold to each patch and to its opposite, on the grid."""
    kernels, shift = (value.to(images) for value in _kernels(kind, count, side, int(images.shape[1])))
    made = []
    for rows in images.split(ROWS.get(images.device.type, 4)):
        mean, square = (F.avg_pool2d(part.mean(1, keepdim=True), side, 1) for part in (rows, rows.square()))
        variance = (square - mean.square()).clamp(min=0)
        alike = F.conv2d(rows, kernels).mul_((variance + FLAT).rsqrt()).sub_(shift[:, None, None])
        above = F.adaptive_avg_pool2d((alike - threshold).clamp_(min=0), grid)
        below = F.adaptive_avg_pool2d(alike.neg_().sub_(threshold).clamp_(min=0), grid)
        made.append(torch.cat([above, below], 1))
    return torch.cat(made)


def _standard(patches: Tensor) -> Tensor:
    """Each row centred and divided by its deviation."""
    centred = patches - patches.mean(1, keepdim=True)
    return centred * (centred.square().mean(1, keepdim=True) + FLAT).rsqrt()


@lru_cache(maxsize=8)
def _kernels(kind: str, count: int, side: int, channels: int) -> tuple[Tensor, Tensor]:
    """Kernels `[count, channels, side, side]` and numbers `[count]`: r of a patch p is `<kernel, p> / deviation - number`.

    Kernels are made of centred patches and are centred themselves, so that a patch's own mean does not count.
    """
    generator = torch.Generator().manual_seed(SEED)
    images = made_up.images(kind, 2 * MADE_UP, (channels, 32, 32), seed=SEED)
    rows = F.unfold(images, side).movedim(1, 2).flatten(0, 1)
    rows = _standard(rows[torch.randperm(len(rows), generator=generator)[: max(SEEN, count)]].double())
    mean = rows.mean(0)
    pulling = apart(torch.cov(rows.T), 1.0)
    pulled = (rows - mean) @ pulling
    found = F.normalize(pulled[:count], dim=1)
    kernels = found @ pulling / (pulled[: SEEN // 10] @ found.T).std()
    return kernels.float().view(len(found), channels, side, side), (kernels @ mean).float()


@lru_cache(maxsize=8)
def _levels(
    kind: str, count: int, side: int, threshold: float, grid: int, shape: tuple[int, int, int]
) -> tuple[Tensor, Tensor]:
    """Mean and deviation of each channel over made-up images, on the CPU."""
    images = made_up.images(kind, MADE_UP, shape, seed=SEED + 1)
    return levels_of(_alike(images, kind, count, side, threshold, grid))[:2]


@lru_cache(maxsize=8)
def _pulling(
    kind: str, count: int, side: int, threshold: float, grid: int, shape: tuple[int, int, int], share: float
) -> Tensor:
    """What pulls channels apart: more channels are seen on more made-up images, eight places of the grid or more for each."""
    look = (kind, count, side, threshold, grid)
    mean, deviation = _levels(*look, shape)
    images = made_up.images(kind, max(MADE_UP, math.ceil(16 * count / grid**2)), shape, seed=SEED + 1)
    return apart(covariance_of((_alike(images, *look).double() - mean) / deviation), share)

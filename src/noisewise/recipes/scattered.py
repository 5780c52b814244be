"""Scattering features at equal scale: what is divided by is read off made-up images, so it costs no privacy."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import ClassVar

import torch
from torch import Tensor

from noisewise.data import made_up
from noisewise.data.scatter import scatter
from noisewise.errors import ConfigError, DataError
from noisewise.recipes.features import Features
from noisewise.recipes.views import check_shape

MADE_UP, SEED = 200, 0  # made-up images that show each channel's mean and deviation; constants of the method
FLOOR = 0.01  # of a variance, when channels are pulled apart
LEAST = 1e-6  # a deviation below it is taken for it
OPPONENT = (
    (3**-0.5,) * 3,
    (2**-0.5, 0.0, -(2**-0.5)),
    (6**-0.5, -2 * 6**-0.5, 6**-0.5),
)  # grey, red-blue, green-violet


@dataclass(frozen=True, kw_only=True)
class Scattering(Features):
    """`((S x)^power - mean) / deviation` by channel, for one or several numbers of scales, side by side.

    scales: one transform for each number, J in `data.scatter`. scaling: the kind of made-up images whose means and
    deviations are used, or `none`. power: of moduli; 0.5 makes the largest less large. whiten: channels that go together over
    made-up images are pulled apart, by `(C + 0.01)^(-whiten / 2)` with C the covariance of scaled channels. chroma: 0 leaves
    colours as they are; above, they become grey, red-blue and green-violet (orthonormal), the latter two multiplied by it:
    photographs are mostly grey. The others: see `Features`.

    Guarantee: `mean` and `deviation` are functions of (settings, shape of an image) alone: made-up images are drawn from a
    constant seed, and no record enters. So row i of the result is a function of public numbers and record i: neighbouring
    data sets have neighbouring features, and what is private for every data set of features is as private for images.
    Reference: Oyallon, Mallat 2015, arXiv:1412.8659; for private learning Tramer, Boneh 2021, arXiv:2011.11660, who take
    statistics of the private records with noise instead.
    """

    scales: tuple[int, ...] = (2,)
    angles: int = 8
    scaling: str = "spectrum"
    power: float = 1.0
    whiten: float = 0.0
    chroma: float = 0.0
    version: ClassVar[str] = "scattering 1"

    def __post_init__(self) -> None:
        """Known names, numbers in range."""
        super().__post_init__()
        if not self.scales or any(type(scale) is not int or scale < 1 for scale in self.scales):
            raise ConfigError(f"scales={self.scales!r}: must be whole numbers of at least 1, e.g. 2 or 2/3.")
        if type(self.angles) is not int or self.angles < 1:
            raise ConfigError(f"angles={self.angles!r}: must be a whole number of at least 1, e.g. 8.")
        if self.scaling not in (*made_up.KINDS, "none"):
            raise ConfigError(f"scaling={self.scaling!r}: must be one of {', '.join(made_up.KINDS)}, none.")
        if not 0 <= self.whiten <= 1 or (self.whiten and self.scaling == "none"):
            raise ConfigError(f"whiten={self.whiten!r}: must be in [0, 1], e.g. 0.5, and needs a scaling.")
        if not 0 < self.power <= 1:
            raise ConfigError(f"power={self.power!r}: must be in (0, 1], e.g. 0.5.")
        if not 0 <= self.chroma <= 100:
            raise ConfigError(f"chroma={self.chroma!r}: must be in [0, 100], e.g. 2, or 0 for colours as they are.")

    def check(self, shape: tuple[int, ...]) -> None:
        """Are these images that can be scattered, and of the shape that is known?"""
        check_shape(self.shape, shape)
        least = 2 ** max(self.scales) + 1
        if len(shape) != 3 or min(shape[1:]) < least:
            raise DataError(
                f"inputs of shape {list(shape)}: scattering at {max(self.scales)} scales needs images [channels, height, "
                f"width] of at least {least}x{least} pixels. Use fewer scales, or another recipe."
            )
        if self.chroma and shape[0] != 3:
            raise ConfigError(
                f"chroma={self.chroma:g} of images with {shape[0]} channels: it needs three colours. Use 0."
            )

    def maps(self, images: Tensor) -> list[Tensor]:
        """For each number of scales, features `[n, channels, height, width]` of images, on their device."""
        shape = (int(images.shape[1]), int(images.shape[2]), int(images.shape[3]))
        seen = _colours(images, self.chroma)
        parts = []
        for scale in self.scales:
            part = _bent(scatter(seen, scales=scale, angles=self.angles), self.power)
            if self.scaling != "none":
                made_of = (self.scaling, scale, self.angles, self.power, bool(self.chroma), shape)
                mean, deviation = (value.to(part) for value in constants(*made_of)[:2])
                part = part.sub_(mean).div_(deviation)
                if self.whiten:
                    part = torch.einsum("kc,nchw->nkhw", _pulling(*made_of, self.whiten).to(part), part)
            parts.append(part)
        return parts


@lru_cache(maxsize=32)
def constants(
    kind: str, scale: int, angles: int, power: float, opponent: bool, shape: tuple[int, int, int]
) -> tuple[Tensor, Tensor, Tensor]:
    """Mean and deviation of each channel `[channels, 1, 1]` over made-up images, and the covariance of scaled channels.

    Functions of the arguments alone.

    Made on the CPU, so that every device divides by the same numbers.
    """
    images = made_up.images(kind, MADE_UP, shape, seed=SEED)
    return levels_of(_bent(scatter(_colours(images, 1.0 if opponent else 0.0), scales=scale, angles=angles), power))


@lru_cache(maxsize=32)
def _pulling(
    kind: str, scale: int, angles: int, power: float, opponent: bool, shape: tuple[int, int, int], share: float
) -> Tensor:
    """What pulls channels apart: made once, since it takes longer than the features of some images."""
    return apart(constants(kind, scale, angles, power, opponent, shape)[2], share)


def levels_of(maps: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Mean and deviation of each channel of maps `[n, channels, height, width]`, and the covariance of scaled channels."""
    features = maps.double()
    mean, deviation = features.mean((0, 2, 3)), features.std((0, 2, 3)).clamp(min=LEAST)
    mean, deviation = mean[:, None, None], deviation[:, None, None]
    return mean, deviation, covariance_of((features - mean) / deviation)


def covariance_of(maps: Tensor) -> Tensor:
    """Of centred channels, over images and places."""
    flat = maps.movedim(1, 3).flatten(0, 2)
    return flat.T @ flat / len(flat)


def apart(covariance: Tensor, share: float) -> Tensor:
    """`(C + 0.01)^(-share / 2)`, symmetric."""
    values, vectors = torch.linalg.eigh(covariance.double())
    return (vectors * (values.clamp(min=0) + FLOOR).pow(-share / 2)) @ vectors.T


def _bent(features: Tensor, power: float) -> Tensor:
    return features if power == 1 else features.sign() * features.abs().pow(power)


def _colours(images: Tensor, chroma: float) -> Tensor:
    if not chroma:
        return images
    turn = torch.tensor(OPPONENT, dtype=images.dtype, device=images.device)
    turn = turn * torch.tensor([1.0, chroma, chroma], dtype=images.dtype, device=images.device)[:, None]
    return torch.einsum("kc,nchw->nkhw", turn, images)

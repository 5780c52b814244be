"""Features of an encoder that learned on made-up images."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor

from noisewise.data import made_up
from noisewise.errors import ConfigError, DataError
from noisewise.recipes.encoder import WIDTHS, Encoder
from noisewise.recipes.features import Features
from noisewise.recipes.patches import Patches
from noisewise.recipes.pretraining import read_encoder
from noisewise.recipes.scattered import MADE_UP, SEED, apart, levels_of
from noisewise.recipes.views import check_shape

INCLUDED = "included"  # the library's own encoder, of colour images
ROWS = 16  # images at a time on a CPU: their maps stay in its cache


@dataclass(frozen=True, kw_only=True)
class Learned(Features):
    """`(map - mean) / deviation` by channel of an encoder's stages, each averaged onto a grid.

    weights: a file that `noisewise pretrain` wrote, or `included`: the library's own, made by it as well. digest: its SHA-256,
    once it is known; another file is then refused.
    stages: which, from 1. grid: places on a side. Means and deviations are those over made-up images of the kind that it
    learned on, of several the first. late: of several stages the one named last is multiplied by it. patches: above 0, likeness
    to `count` patches of made-up images with a `side` (`Patches`, half whitened) stands beside, multiplied by it. whiten: as
    in `Scattering`. The others: see `Features`.

    Guarantee: weights, means and deviations follow from made-up images alone, and batch norm is frozen: row i of the result
    is a function of public numbers and record i. Reference: Tang et al. 2023, arXiv:2306.06076.
    """

    weights: str = INCLUDED
    digest: str = ""
    stages: tuple[int, ...] = (2, 3)
    grid: int = 4
    whiten: float = 0.0
    late: float = 1.0
    patches: float = 0.0
    count: int = 512
    side: int = 6
    version: ClassVar[str] = "learned 1"
    unmarked: ClassVar[Mapping[str, Any]] = {"stages": (3, 4)}

    def __post_init__(self) -> None:
        """Known stages and views; the very file."""
        super().__post_init__()
        if not self.stages or not set(self.stages) <= set(range(1, len(WIDTHS) + 1)):
            raise ConfigError(f"stages={self.stages!r}: must be some of 1 to {len(WIDTHS)}, e.g. 2/3.")
        if type(self.grid) is not int or self.grid < 1:
            raise ConfigError(f"grid={self.grid!r}: must be a whole number of at least 1, e.g. 4.")
        if not 0 <= self.whiten <= 1:
            raise ConfigError(f"whiten={self.whiten!r}: must be in [0, 1], e.g. 0.5.")
        if not 0 <= self.patches <= 100:
            raise ConfigError(f"patches={self.patches!r}: must be in [0, 100], e.g. 1, or 0 for none.")
        if not 0 < self.late <= 100:
            raise ConfigError(
                f"late={self.late!r}: must be above 0 and at most 100, e.g. 0.5; leave a stage out by stages=."
            )
        _ = self.beside  # which looks at its numbers
        digest = digest_of(self.weights)
        if self.digest and self.digest != digest:
            raise DataError(
                f"the encoder {self.weights} has the digest {digest[:16]}..., not {self.digest[:16]}..., with which the model "
                "was trained. Give the file back as it was; for the included one, use the version of noisewise that trained it."
            )
        object.__setattr__(self, "digest", digest)
        there = len(_loaded(self.weights, digest)[0].parts)
        if max(self.stages) > there:
            raise ConfigError(
                f"stages={'/'.join(map(str, self.stages))}: the encoder {self.weights} holds the first {there} alone. Name "
                "those, or learn one with more of them (noisewise pretrain)."
            )

    def check(self, shape: tuple[int, ...]) -> None:
        """Images with the encoder's channels, of the shape that is known."""
        check_shape(self.shape, shape)
        channels = _loaded(self.weights, self.digest)[1]["shape"][0]
        if len(shape) != 3 or shape[0] != channels or min(shape[1:]) < 8:
            raise DataError(
                f"inputs of shape {list(shape)}: the encoder {self.weights} makes features of images with {channels} channels "
                "and at least 8x8 pixels. Learn one on made-up images of your shape with noisewise pretrain, or use another "
                "recipe."
            )
        if self.patches:
            self.beside.check(shape)

    @property
    def beside(self) -> Patches:
        """What stands beside."""
        return Patches(count=self.count, side=self.side, whiten=0.5)

    def maps(self, images: Tensor) -> list[Tensor]:
        """For each stage, features `[n, channels, grid, grid]` of images, on their device; then likeness to patches."""
        shape = (int(images.shape[1]), int(images.shape[2]), int(images.shape[3]))
        parts = _mapped(_encoder(self.weights, self.digest, images.device), images, self.stages, self.grid)
        levels = _levels(self.weights, self.digest, self.stages, self.grid, shape, self.whiten)
        made = []
        for part, (mean, deviation, pulling) in zip(parts, levels, strict=True):
            part = (part - mean.to(part)) / deviation.to(part)
            made.append(torch.einsum("kc,nchw->nkhw", pulling.to(part), part) if self.whiten else part)
        if len(made) > 1:
            made[-1] = self.late * made[-1]
        beside = [self.patches * part for part in self.beside.maps(images)] if self.patches else []
        return [*made, *beside]


def file_of(weights: str) -> Path:
    """Where an encoder lies: the library's own beside this module."""
    return Path(__file__).with_name("encoder.safetensors") if weights == INCLUDED else Path(weights)


def digest_of(weights: str) -> str:
    """SHA-256 of a file of weights."""
    path = file_of(weights)
    if not path.is_file():
        read_encoder(path)  # says what is missing
    return hashlib.sha256(path.read_bytes()).hexdigest()


@lru_cache(maxsize=4)
def _loaded(weights: str, digest: str) -> tuple[Encoder, dict[str, Any]]:
    return read_encoder(file_of(weights))


@lru_cache(maxsize=4)
def _encoder(weights: str, digest: str, device: torch.device) -> Encoder:
    return read_encoder(file_of(weights))[0].to(device)


def _mapped(encoder: Encoder, images: Tensor, stages: tuple[int, ...], grid: int) -> list[Tensor]:
    """Maps of some stages, averaged onto a grid; on a CPU with channels last and a few images at a time, which is faster."""
    few = images.device.type == "cpu"
    parts = []
    with torch.no_grad():
        for rows in images.float().split(ROWS if few else max(1, len(images))):
            made = encoder.stages(rows.contiguous(memory_format=torch.channels_last) if few else rows, max(stages))
            parts.append([F.adaptive_avg_pool2d(made[stage - 1], grid).contiguous() for stage in stages])
    return [torch.cat(part) for part in zip(*parts, strict=True)]


@lru_cache(maxsize=8)
def _levels(
    weights: str, digest: str, stages: tuple[int, ...], grid: int, shape: tuple[int, int, int], whiten: float
) -> list[tuple[Tensor, Tensor, Tensor]]:
    """Mean and deviation of each channel over made-up images, and what pulls channels apart, on the CPU."""
    encoder, about = _loaded(weights, digest)
    kind = str(about["kind"]).partition("/")[0]
    images = made_up.images(kind, MADE_UP, shape, seed=SEED)
    levels = [levels_of(part) for part in _mapped(encoder, images, stages, grid)]
    return [(mean, deviation, apart(covariance, whiten)) for mean, deviation, covariance in levels]

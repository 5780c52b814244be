"""Images become features once, before training: each row by itself, its versions averaged or side by side.

Guarantee: row i of the result is a function of row i and of public numbers, so training on it has the epsilon of training
on images. It is as private as the images: it stays in memory, and its mark is that of the images it was made of.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from dataclasses import fields, replace
from typing import Any, cast

import torch
from torch import Tensor

from noisewise.data import Data, Splits
from noisewise.data.cached import kept
from noisewise.data.marks import digest, remember
from noisewise.errors import ConfigError, DataError
from noisewise.models.heads import LENGTH
from noisewise.progress import tracked
from noisewise.recipes.features import Features
from noisewise.recipes.views import view
from noisewise.recipes.waves import on_waves

ROWS = {"cpu": 256, "cuda": 4096}  # at a time
MANY = 2000  # images whose features are worth keeping: seconds on a CPU


def features_of(
    images: Tensor,
    features: Features,
    *,
    flat: bool = True,
    device: torch.device | str | None = None,
    keep: torch.device | str | None = None,
    progress: bool = False,
) -> Tensor:
    """Features of images: `[n, coordinates]`, or `[n, channels, height, width]` if not `flat`; each row centred, length 100.

    With several views that are not averaged a dimension of views follows the first. device: where it is computed. keep: where
    the result lies, by default where the images are.
    """
    features.check(tuple(images.shape[1:]))
    if features.waves and not flat:
        raise ConfigError(
            f"waves={features.waves}: are made of rows, and this model learns on maps. Use 0, or a recipe with a linear layer."
        )
    if not images.is_floating_point():
        raise DataError(f"images of type {images.dtype}: must be real numbers, e.g. x.float() / 255.")
    where = torch.device(device or images.device)
    made: Tensor | None = None
    for rows in _chunks(len(images), ROWS.get(where.type, 256), progress):
        part = _made(images[rows].to(where), features, flat)
        if made is None:
            made = torch.empty(len(images), *part.shape[1:], dtype=part.dtype, device=keep or images.device)
        made[rows] = part
    if made is None:
        blank = _made(torch.zeros(1, *images.shape[1:], dtype=images.dtype, device=where), features, flat)
        made = blank[:0].to(keep or images.device)
    return made


def _made(images: Tensor, features: Features, flat: bool) -> Tensor:
    """All views of some images, brought to one length."""
    seen = [_joined(features.maps(view(images, name)), flat) for name in features.views]
    if features.average and len(seen) > 1:
        seen = [torch.stack(seen).mean(0)]
    rows = [_levelled(one) for one in seen]
    if features.waves:
        rows = [_levelled(on_waves(one, features.waves, features.pitch)) for one in rows]
    return rows[0] if len(rows) == 1 else torch.stack(rows, 1)


def _joined(parts: list[Tensor], flat: bool) -> Tensor:
    if flat:
        return torch.cat([part.flatten(1) for part in parts], 1)
    if len({part.shape[2:] for part in parts}) > 1:
        raise DataError("scales of several sizes do not lie on one map: use one number of scales, e.g. scales=2.")
    return torch.cat(parts, 1)


def _levelled(rows: Tensor) -> Tensor:
    """Each row centred and scaled to `LENGTH`; a blank row stays blank."""
    numbers = rows.flatten(1)
    numbers = numbers - numbers.mean(1, keepdim=True)
    lengths = numbers.norm(dim=1, keepdim=True)
    return (numbers * (LENGTH / lengths.clamp(min=1e-12))).view_as(rows)


def featured(
    data: Data,
    features: Features,
    *,
    flat: bool = True,
    device: torch.device | str | None = None,
    keep: torch.device | str | None = None,
    progress: bool = False,
) -> Data:
    """The same units with features in place of images; targets, groups and units stay.

    Their mark is made of the images' mark and the settings, so that features computed on another device, equal up to rounding,
    are known as the same people's. Of many public images a CPU computes them once, and keeps them in the user's cache
    (`data.cached`); those of private images are written nowhere.
    """

    def made() -> Tensor:
        return features_of(data.x, features, flat=flat, device=device, keep=keep, progress=progress)

    settings = told(features, flat)
    slow = torch.device(device or data.x.device).type == "cpu" and len(data) >= MANY
    values = kept(data.x, settings, made, public=True) if slow and data.public else made()
    remember(values, hashlib.sha256(settings.encode() + digest(data.x)).hexdigest())
    return replace(data, x=values)


ELSEWHERE = ("shape", "centre", "weights")  # what does not change a row: images have a shape, an encoder its digest


def told(features: Features, flat: bool) -> str:
    """What makes features other features: their settings, as far as they are not the usual ones.

    A setting that a later version adds changes nothing here until somebody sets it.
    """
    known = fields(cast(Any, features))
    chosen = {field.name: getattr(features, field.name) for field in known if field.name not in ELSEWHERE}
    unusual = {
        field.name: chosen[field.name]
        for field in known
        if field.name in chosen and chosen[field.name] != features.unmarked.get(field.name, field.default)
    }
    return f"{features.version} {sorted(unusual.items())} {flat}"


def featured_parts(
    parts: Splits,
    features: Features,
    *,
    flat: bool = True,
    device: torch.device | str | None = None,
    progress: bool = False,
) -> Splits:
    """`featured` for every part."""
    return Splits(*(featured(part, features, flat=flat, device=device, progress=progress) for part in parts))


def _chunks(count: int, size: int, progress: bool) -> Iterator[slice]:
    parts = [slice(first, first + size) for first in range(0, count, size)]
    return tracked(parts, "features", len(parts), show=progress)

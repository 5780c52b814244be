"""Changes of images `[n, channels, height, width]`, of a `Data` that holds them, and random ones for augmentation.

Every function changes each image on its own, so units stay independent. `fill` is the value of pixels from outside the
image, one number or one for each channel: in normalised images black is not 0 (`noisewise.data.images.black`).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TypeVar

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from noisewise.batches import Nest
from noisewise.data.base import Data, check_seed
from noisewise.errors import ConfigError, DataError

Images = TypeVar("Images", Tensor, Data)
Fill = float | Sequence[float] | Tensor

CHUNK = 1024  # images at a time: padded sets of images would not fit in memory


def normalize(images: Images, mean: Fill, std: Fill) -> Images:
    """(pixel - mean)/std, for each channel."""
    return _mapped(images, lambda x: (x - _by_channel(mean, x, "mean")).div_(_by_channel(std, x, "std")))


def pad_and_resize(images: Images, ratio: float, fill: Fill = 0.0, *, antialias: bool = True) -> Images:
    """A border of `fill` around each image, which is then made as small as it was: the object shrinks.

    k pixels are added on each side of a square image, with k = `padding(side, ratio)`; bilinear resize back.

    Args:
        images: square ones.
        ratio: share of the side that is border, in [0, 1); met as nearly as whole pixels allow.
        fill: value of the border, e.g. `black("mnist")`.
        antialias: average over all the pixels that become one (as Pillow does); False: only the two nearest ones.

    Reference: Xu, Chen 2026, arXiv:2603.04881, padding experiment. They do not say how they resize.
    """

    def change(x: Tensor) -> Tensor:
        height, width = x.shape[-2:]
        if height != width:
            raise DataError(f"images of {height}x{width} pixels: the ratio speaks of one side, so they must be square.")
        k = padding(height, ratio)
        if not k:
            return x.clone()
        small = torch.empty_like(x)
        for rows in _chunks(x):
            wide = _padded(x[rows], k, fill)
            small[rows] = F.interpolate(
                wide, (height, width), mode="bilinear", align_corners=False, antialias=antialias
            )
        return small

    return _mapped(images, change)


def padding(side: int, ratio: float) -> int:
    """The whole number k whose 2k/(side + 2k) is nearest the ratio.

    >>> [padding(28, ratio) for ratio in (0, 0.26, 0.5, 0.62, 0.75)]
    [0, 5, 14, 23, 42]
    """
    if not 0 <= ratio < 1:
        raise ConfigError(f"ratio={ratio!r}: the border's share of the side, at least 0 and below 1.")
    below = math.floor(ratio * side / (2 * (1 - ratio)))
    return min((below, below + 1), key=lambda k: abs(2 * k / (side + 2 * k) - ratio))


def rotate(images: Images, degrees: float, fill: Fill = 0.0) -> Images:
    """Each image turned counter-clockwise about its centre, bilinear; corners from outside become `fill`.

    Pixel (r, c), seen from the centre, is read at (r cos t + c sin t, c cos t - r sin t); 90 degrees is torch.rot90.
    Reference: Xu, Chen 2026, arXiv:2603.04881, rotation experiment.
    """
    if not math.isfinite(degrees):
        raise ConfigError(f"degrees={degrees!r}: must be a finite number.")
    cos, sin = math.cos(math.radians(degrees)), math.sin(math.radians(degrees))

    def change(x: Tensor) -> Tensor:
        height, width = x.shape[-2:]
        rows = torch.arange(height, dtype=torch.float64).unsqueeze(1) - (height - 1) / 2
        columns = torch.arange(width, dtype=torch.float64) - (width - 1) / 2
        # grid_sample counts from -1 to 1 between the outer edges of the image
        across, down = (columns * cos - rows * sin) * 2 / width, (rows * cos + columns * sin) * 2 / height
        grid = torch.stack([across, down], -1).to(x)
        outside, turned = _by_channel(fill, x, "fill"), torch.empty_like(x)
        for part in _chunks(x):
            chunk = x[part] - outside
            places = grid.expand(len(chunk), -1, -1, -1)
            turned[part] = F.grid_sample(chunk, places, "bilinear", "zeros", align_corners=False) + outside
        return turned

    return _mapped(images, change)


def flip(images: Images, which: Tensor) -> Images:
    """The images in the mask `which [n]`, left and right exchanged; the others as they are."""
    return _mapped(images, lambda x: torch.where(which.to(x.device).view(-1, 1, 1, 1), x.flip(-1), x))


def crop(images: Images, top: Tensor, left: Tensor, pad: int, fill: Fill | None = None) -> Images:
    """A window of the image's own size, from `top [n]`, `left [n]` in 0..2 pad of the image with a border of `pad` pixels.

    The border repeats the image in a mirror, or is `fill`; top = left = pad gives the image itself.
    """

    def change(x: Tensor) -> Tensor:
        for name, offset in (("top", top), ("left", left)):
            if offset.shape != x.shape[:1] or (len(x) and not 0 <= int(offset.min()) <= int(offset.max()) <= 2 * pad):
                raise DataError(f"{name}: must be one whole number from 0 to {2 * pad} for each of {len(x)} images.")
        return _window(x, top, left, pad, fill)

    return _mapped(images, change)


def _window(x: Tensor, top: Tensor, left: Tensor, pad: int, fill: Fill | None) -> Tensor:
    """`crop` with offsets that are known to be in range: nothing is read but what each image needs."""
    height, width = x.shape[-2:]
    if fill is None and not 0 <= pad < min(height, width):
        raise ConfigError(f"pad={pad}: a mirrored border must be smaller than the image of {height}x{width} pixels.")
    wide = _padded(x, pad, fill)
    rows = (top.to(x.device).unsqueeze(1) + torch.arange(height, device=x.device)).view(-1, 1, height, 1)
    columns = (left.to(x.device).unsqueeze(1) + torch.arange(width, device=x.device)).view(-1, 1, 1, width)
    images = torch.arange(len(x), device=x.device).view(-1, 1, 1, 1)
    channels = torch.arange(x.shape[1], device=x.device).view(1, -1, 1, 1)
    return wide[images, channels, rows, columns]


def flip_and_crop(
    pad: int = 4, fill: Fill | None = None, *, flips: bool = True
) -> Callable[[Nest, torch.Generator], Nest]:
    """For `noisewise.training.Augment`: each image moved by up to `pad` pixels each way and flipped or not, at random.

    `rows` is the images, or a tuple or list whose first entry is the images (such as (x, y)); the rest is kept.
    Guarantee: each row is changed on its own, by draws that are independent of each other and alike for all rows, so units
    stay independent.
    Reference: De et al. 2022, arXiv:2204.13650: flips, and crops of 4 pixels with a mirrored border.
    """
    if not isinstance(pad, int) or pad < 0:
        raise ConfigError(f"pad={pad!r}: must be a whole number >= 0.")

    def change(rows: Nest, generator: torch.Generator) -> Nest:
        if isinstance(rows, Tensor):
            n = len(rows)
            top, left = torch.randint(0, 2 * pad + 1, (2, n), generator=generator, device=generator.device)
            mirrored = torch.randint(0, 2, (n,), generator=generator, device=generator.device).bool()
            moved = _mapped(rows, lambda x: _window(x, top, left, pad, fill))
            return flip(moved, mirrored) if flips else moved
        if type(rows) in (tuple, list) and rows and isinstance(rows[0], Tensor):
            return type(rows)([change(rows[0], generator), *rows[1:]])
        raise DataError(f"rows are a {type(rows).__name__}: must be images, or a tuple or list that begins with them.")

    return change


def subsample_class(data: Data, sizes: Mapping[int | str, int], seed: int = 0) -> Data:
    """So many rows of each class in `sizes` (label or name), chosen by a public seed; other classes and the order stay.

    Guarantee: who was not chosen is not used; what is trained on afterwards protects those who were. An exact size is not
    stable (one person more may change who is chosen), so this is for experiments and public sets, not a private step.
    Reference: Xu, Chen 2026, arXiv:2603.04881, appendix E.1.
    """
    if data.task != "classification":
        raise DataError("subsample_class on real-valued targets: there are no classes.")
    check_seed(seed)
    wanted = {_label(data, name): size for name, size in sizes.items()}
    if len(wanted) < len(sizes):
        raise ConfigError(f"sizes {dict(sizes)}: a class is named twice.")
    keep = torch.ones(len(data), dtype=torch.bool)
    for label, size in wanted.items():
        rows = torch.nonzero(data.y == label).flatten().cpu()
        if type(size) is not int or not 0 <= size <= len(rows):
            raise ConfigError(f"{size!r} rows of class {label}: must be a whole number from 0 to {len(rows)}.")
        # a stream for each class, so that the size of one does not change who is chosen of another
        order = np.random.default_rng((seed, label)).permutation(len(rows))
        keep[rows[torch.from_numpy(order[size:])]] = False
    return data.take(torch.nonzero(keep).flatten())


def only_classes(data: Data, names: Sequence[int | str]) -> Data:
    """The rows of some classes (labels or names), which are numbered anew in that order; for experiments and public sets."""
    if data.task != "classification":
        raise DataError("only_classes on real-valued targets: there are no classes.")
    labels = [_label(data, name) for name in names]
    if len(labels) < 2 or len(set(labels)) < len(labels):
        raise ConfigError(f"classes {list(names)}: must be at least two, and each once.")
    numbers = torch.full((len(data.classes),), -1, device=data.y.device, dtype=data.y.dtype)
    numbers[labels] = torch.arange(len(labels), device=data.y.device, dtype=data.y.dtype)
    rows = data.take(torch.nonzero(numbers[data.y] >= 0).flatten())
    return replace(rows, y=numbers[rows.y], classes=tuple(data.classes[label] for label in labels))


def _label(data: Data, name: int | str) -> int:
    if isinstance(name, str):
        if name not in data.classes:
            raise ConfigError(f"class {name!r}: unknown. The classes are {', '.join(data.classes) or 'not named'}.")
        return data.classes.index(name)
    if not bool((data.y == name).any()):
        raise ConfigError(f"class {name!r}: no row has this label.")
    return int(name)


def _mapped(images: Images, change: Callable[[Tensor], Tensor]) -> Images:
    """The change of a tensor of images, or of a `Data`'s."""
    if isinstance(images, Data):
        return replace(images, x=_mapped(images.x, change))
    if images.dim() != 4 or not images.is_floating_point():
        raise DataError(
            f"images of shape {list(images.shape)} and type {images.dtype}: must be real-valued [n, channels, height, width]."
        )
    return change(images)


def _by_channel(value: Fill, images: Tensor, name: str) -> Tensor:
    """`[channels, 1, 1]`, or a single number."""
    values = torch.as_tensor(value, dtype=images.dtype, device=images.device)
    if values.dim() and values.shape not in (torch.Size([1]), images.shape[1:2]):
        raise ConfigError(
            f"{name} of shape {list(values.shape)}: one number, or one for each of {images.shape[1]} channels."
        )
    return values.view(-1, 1, 1) if values.dim() else values


def _padded(images: Tensor, k: int, fill: Fill | None) -> Tensor:
    if fill is None:
        return F.pad(images, (k, k, k, k), mode="reflect") if len(images) else F.pad(images, (k, k, k, k))
    n, channels, height, width = images.shape
    wide = _by_channel(fill, images, "fill").expand(n, channels, height + 2 * k, width + 2 * k).clone()
    wide[..., k : k + height, k : k + width] = images
    return wide


def _chunks(images: Tensor) -> Iterator[slice]:
    return (slice(first, first + CHUNK) for first in range(0, len(images), CHUNK))

"""Scattering features: fixed wavelets and moduli, which learn nothing and so cost no privacy.

With low pass phi_J and Morlet wavelets psi_{j,theta}, at J scales and L angles:
`S x = [x * phi, |x * psi_1| * phi, ||x * psi_1| * psi_2| * phi]`, the second wavelet coarser than the first, sampled
every 2^J pixels. With J = 2 and L = 8 that is 1 + 16 + 64 = 81 channels for each channel of an image, and
`[n, c, h, w]` becomes `[n, 81 c, h/4, w/4]`.

Guarantee: a row's features are a fixed function of that row, so training on them has the epsilon of training on images.
They are as private as the images: a cache of them is readable by its owner only.
Normalisation: Tramer and Boneh normalise features by noised statistics of the private records (`statistics`, paid for), or
each unit by itself with GroupNorm, which is free; the models `h-cnn` and `h-cnn-s` do the latter, or take constants.
Reference: Oyallon, Mallat 2015, arXiv:1412.8659; filters, padding and order of channels as in kymatio 0.3 (Andreux et al.
2020, arXiv:1812.11214); features for private learning: Tramer, Boneh 2021, arXiv:2011.11660.
"""

from __future__ import annotations

import math
import os
from collections.abc import Iterator
from dataclasses import replace
from functools import lru_cache
from typing import NamedTuple

import torch
from torch import Tensor

from noisewise.data.base import Data
from noisewise.data.cached import kept
from noisewise.errors import ConfigError, DataError
from noisewise.progress import tracked

VERSION = 1  # of the numbers: another one makes cached features be computed again
WIDTH = 0.8  # of a wavelet's Gaussian at the finest scale, in pixels
FREQUENCY = 0.75 * math.pi  # of a wavelet at the finest scale
HALF_TURN = 3.1415  # kymatio's constant in the norm of a Gaussian; with pi the second order would differ by 9e-5
WORK_BYTES = {"cpu": 2**22, "cuda": 2**28}  # of the largest tensor of a chunk: a CPU's stays in cache, a GPU's fills it


def channels(scales: int = 2, angles: int = 8) -> int:
    """Features for each channel of an image: `1 + J L + L^2 J (J - 1) / 2`."""
    return 1 + scales * angles + angles**2 * scales * (scales - 1) // 2


def scatter(
    x: Tensor, *, scales: int = 2, angles: int = 8, device: torch.device | str | None = None, progress: bool = False
) -> Tensor:
    """Scattering features `[n, c * channels(), h // 2^J, w // 2^J]` of images `[n, c, h, w]`, in the images' precision.

    Channels: for each channel of the image order 0, order 1 by (scale, angle), order 2 by (scale, angle, coarser scale,
    angle). Borders are reflected. Works in chunks, on `device` if given (results come back to the images' own).

    Guarantee: deterministic, and row i of the result depends on row i of x only.
    Reference: see the module; equal to kymatio's `Scattering2D(J, shape, L)` up to rounding.
    """
    _check(x, scales, angles)
    count, colours, height, width = x.shape
    places = [size // 2**scales for size in (height, width)]
    features = x.new_empty(count * colours, channels(scales, angles), *places)
    bank = _bank(height, width, scales, angles).to(device or x.device, x.dtype)
    pad = (*_padding(width, scales), *_padding(height, scales))
    images = x.reshape(-1, height, width)
    for rows in _chunks(len(images), _chunk(bank), progress):
        part = torch.nn.functional.pad(images[rows].to(device or x.device), pad, mode="reflect")
        features[rows] = _transform(part, bank).to(x.device)
    return features.reshape(count, colours * channels(scales, angles), *places)


def _check(x: Tensor, scales: int, angles: int) -> None:
    for name, value in {"scales": scales, "angles": angles}.items():
        if not isinstance(value, int) or isinstance(value, bool) or value < 1:
            raise ConfigError(f"scattering: {name}={value!r} must be a whole number of at least 1.")
    if x.dim() != 4 or min(x.shape[2:]) <= 2**scales:
        least = 2**scales + 1
        raise DataError(
            f"scattering of inputs {list(x.shape)}: needs images [n, channels, height, width] of at least {least}x{least} "
            f"pixels for {scales} scales."
        )
    if x.dtype not in (torch.float32, torch.float64):
        raise DataError(f"scattering of {x.dtype}: needs float32 or float64 images, e.g. x.float() / 255.")


# ------------------------------------------------------------------------------------------------------- the filters


class Bank(NamedTuple):
    """Filters for padded images: wavelets by scale and resolution, `[angles, h, w]`, and low passes by resolution.

    A low pass followed by sampling is linear and acts on rows and columns alike: a pair of matrices.
    """

    wavelets: tuple[tuple[Tensor, ...], ...]
    smooth: tuple[tuple[Tensor, Tensor], ...]

    def to(self, device: torch.device | str, dtype: torch.dtype) -> Bank:
        """The same filters elsewhere."""
        return Bank(
            tuple(tuple(level.to(device, dtype.to_complex()) for level in levels) for levels in self.wavelets),
            tuple((rows.to(device, dtype), columns.to(device, dtype)) for rows, columns in self.smooth),
        )


def _padding(size: int, scales: int) -> tuple[int, int]:
    """Pixels before and after: the padded side is a multiple of 2^J, with at least 2^J / 2 on each side."""
    step = 2**scales
    extra = ((size + step) // step + 1) * step - size
    return extra // 2, extra - extra // 2


@lru_cache(maxsize=8)
def _bank(height: int, width: int, scales: int, angles: int) -> Bank:
    sides = [size + sum(_padding(size, scales)) for size in (height, width)]
    wavelets = []
    for scale in range(scales):
        turned = torch.stack([_wavelet(sides, scale, angle, angles) for angle in range(angles)])
        wavelets.append(tuple(_coarser(turned, level, (1, 2)) for level in range(max(1, scale))))
    smooth = tuple(
        (_smoothing(sides[0], level, scales), _smoothing(sides[1], level, scales)) for level in range(scales)
    )
    return Bank(tuple(wavelets), smooth)


def _wavelet(sides: list[int], scale: int, angle: int, angles: int) -> Tensor:
    """Fourier transform of `g(u) (exp(i xi <u, e>) - beta)`, a Gaussian g of slant 4/L, beta such that the sum is 0."""
    sigma, slant, frequency = WIDTH * 2**scale, 4 / angles, FREQUENCY / 2**scale
    theta = (int(angles - angles / 2 - 1) - angle) * math.pi / angles
    rows, columns = (torch.arange(-2 * side, 3 * side, dtype=torch.float64) for side in sides)
    along = math.cos(theta) * rows[:, None] + math.sin(theta) * columns
    across = -math.sin(theta) * rows[:, None] + math.cos(theta) * columns
    envelope = torch.exp(-(along**2 + (slant * across) ** 2) / (2 * sigma**2)) * slant / (2 * HALF_TURN * sigma**2)

    def periodic(values: Tensor) -> Tensor:
        return values.reshape(5, sides[0], 5, sides[1]).sum((0, 2))

    gaussian, wave = periodic(envelope), periodic(torch.polar(envelope, frequency * along))
    return torch.fft.fft2(wave - wave.sum() / gaussian.sum() * gaussian).real


def _smoothing(side: int, level: int, scales: int) -> Tensor:
    """Matrix `[places, side / 2^level]`: the Gaussian low pass of scale 2^J, every 2^(J - level)-th place, no border."""
    sigma = WIDTH * 2 ** (scales - 1)
    places = torch.arange(-2 * side, 3 * side, dtype=torch.float64)
    gaussian = torch.exp(-(places**2) / (2 * sigma**2)) / (math.sqrt(2 * HALF_TURN) * sigma)
    spectrum = _coarser(torch.fft.fft(gaussian.reshape(5, side).sum(0)).real, level, (0,))
    kernel, size = torch.fft.ifft(spectrum).real, side // 2**level
    taken = torch.arange(1, side // 2**scales - 1) * 2 ** (scales - level)
    return kernel[(taken[:, None] - torch.arange(size)) % size]


def _coarser(spectrum: Tensor, level: int, axes: tuple[int, ...]) -> Tensor:
    """A filter for signals sampled every 2^level pixels: frequencies they cannot hold are dropped, the rest folded."""
    for axis in axes:
        side = spectrum.shape[axis]
        first, dropped = side // 2 ** (level + 1), side - side // 2**level
        keep = torch.ones(side, dtype=spectrum.dtype)
        keep[first : first + dropped] = 0
        shape = [-1 if place == axis else 1 for place in range(spectrum.dim())]
        spectrum = (spectrum * keep.reshape(shape)).unflatten(axis, (2**level, -1)).sum(axis)
    return spectrum


# ----------------------------------------------------------------------------------------------------- the transform


def _transform(images: Tensor, bank: Bank) -> Tensor:
    """Features `[n, channels, h, w]` of padded images `[n, H, W]`."""
    spectrum = torch.fft.fft2(images)
    second: list[Tensor] = []
    first: list[Tensor] = []
    for scale, wavelets in enumerate(bank.wavelets):
        moduli = _modulus(spectrum.unsqueeze(1), wavelets[0], scale)  # [n, angles, H / 2^scale, ...]
        first.append(_smooth(moduli, bank, scale))
        coarser = range(scale + 1, len(bank.wavelets))
        if not coarser:
            continue
        spectra = torch.fft.fft2(moduli).unsqueeze(2)
        pairs = [  # each [n, angles, angles, h, w]
            _smooth(_modulus(spectra, bank.wavelets[other][scale], other - scale), bank, other) for other in coarser
        ]
        second.append(torch.cat(pairs, 2).flatten(1, 2))
    return torch.cat([_smooth(images.unsqueeze(1), bank, 0), *first, *second], 1)


def _modulus(spectra: Tensor, wavelets: Tensor, halvings: int) -> Tensor:
    """`|x * psi|` sampled every 2^halvings places, from the spectrum of x: sampling is folding in frequency."""
    step = 2**halvings
    high, wide = (size // step for size in spectra.shape[-2:])
    blocks = [
        (..., slice(row * high, (row + 1) * high), slice(column * wide, (column + 1) * wide))
        for row in range(step)
        for column in range(step)
    ]
    folded = spectra[blocks[0]] * wavelets[blocks[0]]
    for block in blocks[1:]:
        folded.addcmul_(spectra[block], wavelets[block])
    return torch.fft.ifft2(folded).abs() / step**2


def _smooth(values: Tensor, bank: Bank, level: int) -> Tensor:
    rows, columns = bank.smooth[level]
    return rows @ values @ columns.T


def _chunk(bank: Bank) -> int:
    """How many images at a time keep the largest tensor, the first or second moduli, within `WORK_BYTES`."""
    first = bank.wavelets[0][0]
    angles, height, width = first.shape
    numbers = max(1, angles / 4) * angles * height * width  # the second moduli have at most a quarter of the places
    return max(1, int(WORK_BYTES.get(first.device.type, 2**22) / (first.dtype.itemsize * numbers)))


def _chunks(count: int, size: int, progress: bool) -> Iterator[slice]:
    parts = [slice(first, first + size) for first in range(0, count, size)]
    return tracked(parts, "scattering", len(parts), show=progress)


# --------------------------------------------------------------------------------------------------------- the cache


def features(
    data: Data,
    folder: str | os.PathLike[str] | None = None,
    *,
    scales: int = 2,
    angles: int = 8,
    device: torch.device | str | None = None,
    progress: bool = False,
) -> Data:
    """The same units with scattering features as inputs; computed once, then read from a cache.

    The cache is `folder`, else `$NOISEWISE_CACHE/scattering`, else the user's cache folder. Its files are named by a
    SHA-256 digest of the images, the settings and the version of the transform, and hold the digest of their contents:
    a damaged file is noticed, said so (`NoisewiseWarning`), and computed again.

    Guarantee: as `scatter`. Files are readable by their owner only; they are as private as the images. Of images that are
    not public not even the digest is shown: a folder that others can look into is refused.
    """
    _check(data.x, scales, angles)

    def made() -> Tensor:
        return scatter(data.x, scales=scales, angles=angles, device=device, progress=progress)

    about = f"scattering {VERSION} {scales} {angles}"
    return replace(data, x=kept(data.x, about, made, public=data.public, folder=folder, name="scattering"))

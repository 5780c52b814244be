"""Images of nothing: noise with the spectrum of photographs, and shapes that cover each other.

They show which scale features have, and can teach what edges are. No record was used to make them: they cost no privacy.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor

from noisewise.errors import ConfigError


def images(
    kind: str, count: int, shape: tuple[int, int, int], *, seed: int = 0, device: torch.device | str = "cpu"
) -> Tensor:
    """`count` made-up images `[count, channels, height, width]`, each channel of each image with mean 0 and deviation 1.

    kind: `spectrum`, `leaves`, `textured`, `woven` or `patchwork`.
    Guarantee: a function of its arguments alone, so that anything learned from them is free.
    The numbers of a seed are drawn on a CPU and are the same for every device, up to rounding.
    """
    if kind not in KINDS:
        raise ConfigError(f"made-up images of kind {kind!r}: must be one of {', '.join(KINDS)}.")
    if type(count) is not int or count < 1 or len(shape) != 3 or min(shape) < 1 or min(shape[1:]) < 4:
        raise ConfigError(
            f"{count!r} made-up images of shape {shape!r}: needs at least one, [channels, height, width]."
        )
    generator = torch.Generator().manual_seed(seed)
    drawn = KINDS[kind](count, shape, generator, torch.device(device))
    drawn = drawn - drawn.mean((2, 3), keepdim=True)
    return drawn / drawn.square().mean((2, 3), keepdim=True).sqrt().clamp(min=1e-6)


def _spectrum(
    count: int, shape: tuple[int, int, int], generator: torch.Generator, device: torch.device, exponent: float = 1.0
) -> Tensor:
    """White noise whose amplitude at frequency f is multiplied by `|f|^-1`, as that of photographs falls.

    Reference: Field 1987, Relations between the statistics of natural images and the response properties of cortical cells.
    """
    white = torch.randn((count, *shape), generator=generator).to(device)
    rows, columns = (torch.fft.fftfreq(side, device=device) for side in shape[1:])
    frequency = (rows[:, None].square() + columns.square()).sqrt()
    frequency[0, 0] = math.inf
    return torch.fft.ifft2(torch.fft.fft2(white) * frequency.pow(-exponent)).real


SHAPES = 120  # in an image of dead leaves, the last ones in front
LARGEST = 0.5  # radius of a shape, as a share of the side


TEXTURES = 4  # in an image of textured leaves, among which each shape draws
ROUGHNESS = (0.5, 2.0)  # exponents of their spectra


def _textured(count: int, shape: tuple[int, int, int], generator: torch.Generator, device: torch.device) -> Tensor:
    """Dead leaves whose shapes have textures: noise whose amplitude falls as `|f|^-a`, with another a for each texture.

    Reference: Baradad et al. 2021, arXiv:2106.05963 (dead leaves with textures). Deviation: textures are spectra alone.
    """
    low, high = ROUGHNESS
    textures = []
    for place in range(TEXTURES):
        exponent = low + (high - low) * place / (TEXTURES - 1)
        made = _spectrum(count, shape, generator, device, exponent)
        textures.append(made / made.std((1, 2, 3), keepdim=True).clamp(min=1e-6))
    return _leaves(count, shape, generator, device, torch.stack(textures))


def _leaves(
    count: int,
    shape: tuple[int, int, int],
    generator: torch.Generator,
    device: torch.device,
    textures: Tensor | None = None,
) -> Tensor:
    """Discs and turned squares of random colours that cover each other; radii have density `r^-3` from one pixel on.

    Reference: Lee, Mumford, Huang 2001, Occlusion models for natural images; for learning: Baradad et al. 2021,
    arXiv:2106.05963. Deviation: colours are drawn around one colour for each image, so that its shapes go together.
    """
    channels, height, width = shape
    painted = torch.rand((count, channels, 1, 1), generator=generator).to(device).expand(-1, -1, height, width).clone()
    common = torch.rand((count, channels), generator=generator)
    for _ in range(SHAPES):
        inside = _outlines(count, shape, generator, device)
        colour = (common + 0.5 * torch.randn((count, channels), generator=generator)).to(device)
        fill = colour[:, :, None, None]
        if textures is not None:
            which = torch.randint(len(textures), (count,), generator=generator)
            strength = torch.rand((count, 1, 1, 1), generator=generator).to(device)
            fill = fill + 0.5 * strength * textures[which.to(device), torch.arange(count, device=device)]
        painted = torch.where(inside, fill, painted)
    return painted


def _outlines(
    count: int, shape: tuple[int, int, int], generator: torch.Generator, device: torch.device, least: float = 1.0
) -> Tensor:
    """For each image the inside `[count, 1, height, width]` of a disc or a turned square; radii have density `r^-3`."""
    height, width = shape[1:]
    most = LARGEST * max(height, width)
    rows, columns = torch.arange(height, device=device)[:, None] + 0.5, torch.arange(width, device=device) + 0.5
    u, angle, *place = torch.rand((4, count, 1, 1), generator=generator).to(device)
    radius = (least**-2 - u * (least**-2 - most**-2)).rsqrt()
    down, right = rows - place[0] * height, columns - place[1] * width
    turn = angle * math.pi
    along, across = torch.cos(turn) * down + torch.sin(turn) * right, torch.cos(turn) * right - torch.sin(turn) * down
    round_one = down.square() + right.square() < radius.square()
    square = torch.maximum(along.abs(), across.abs()) < radius * math.sqrt(math.pi) / 2
    return torch.where(angle < 0.5, round_one, square).unsqueeze(1)


WOVEN = 50  # images that one drawn network makes
THREADS, FIBRE = 32, 5  # channels of such a network; side of its kernels
ALIKE = 0.25  # how much the angles of a network's kernels differ, in half turns


def _woven(count: int, shape: tuple[int, int, int], generator: torch.Generator, device: torch.device) -> Tensor:
    """What a network with drawn weights paints: oriented waves, at each size from 4 pixels on, shaped by an image's style.

    Reference: Baradad et al. 2021, arXiv:2106.05963 (StyleGAN with drawn, oriented weights), whose images Tang et al. 2023,
    arXiv:2306.06076, learned features for private training on. Deviation: a network of 32 channels in place of StyleGAN2,
    another for every 50 images.
    """
    groups = [min(WOVEN, count - first) for first in range(0, count, WOVEN)]
    return torch.cat([_weave(several, shape, generator, device) for several in groups])


def _weave(count: int, shape: tuple[int, int, int], generator: torch.Generator, device: torch.device) -> Tensor:
    """Images of one network."""

    def drawn(*size: int) -> Tensor:
        return torch.randn(size, generator=generator).to(device)

    channels, height, width = shape
    x, painted, side = drawn(1, THREADS, 4, 4).expand(count, -1, -1, -1), torch.zeros((), device=device), 4
    while True:
        for _ in range(2):
            x = F.conv2d(x * (1 + drawn(count, THREADS, 1, 1)), _waves(generator).to(device), padding="same")
            x = x / x.square().mean((1, 2, 3), keepdim=True).sqrt().clamp(min=1e-6)
            x = x + 0.5 * drawn(THREADS, 1, 1) * drawn(count, 1, side, side) - 0.5 * drawn(THREADS, 1, 1).abs()
            x = F.leaky_relu(x, 0.2)
        colours = (drawn(1, THREADS) + 0.5 * drawn(channels, THREADS)) / math.sqrt(THREADS)  # mostly grey
        painted = painted + torch.einsum("kc,nchw->nkhw", colours, x * (1 + drawn(count, THREADS, 1, 1)))
        if side >= max(height, width):
            return painted[:, :, :height, :width]
        side *= 2
        x, painted = (F.interpolate(part, scale_factor=2, mode="bilinear") for part in (x, painted))


def _waves(generator: torch.Generator) -> Tensor:
    """Kernels `[out, in, side, side]` under a Gaussian: waves of about one angle, which each network draws, and any phase."""
    angle = math.pi * (
        torch.rand(1, generator=generator) + ALIKE * torch.randn((THREADS, 1, 1, 1), generator=generator)
    )
    length, phase, size = torch.rand((3, THREADS, THREADS, 1, 1), generator=generator)
    place = torch.arange(FIBRE) - FIBRE // 2
    along = torch.cos(angle) * place[:, None] + torch.sin(angle) * place
    made = torch.cos(along * math.pi * (0.2 + 0.8 * length) + 2 * math.pi * phase) * (size - 0.5)
    made = made * torch.exp(-(place[:, None].square() + place.square()) / 4)
    return made


PATCHES = 12  # shapes of a patchwork, the last ones in front


def _patchwork(count: int, shape: tuple[int, int, int], generator: torch.Generator, device: torch.device) -> Tensor:
    """Woven images with large shapes cut out of other ones: surfaces that end at edges. Reference: ours."""
    woven = _woven(count, shape, generator, device)
    made, side = woven, max(shape[1:])
    for _ in range(PATCHES):
        other = torch.randint(count, (count,), generator=generator).to(device)
        inside = _outlines(count, shape, generator, device, least=side / 10)
        shift = 0.5 * woven.std() * torch.randn((count, shape[0], 1, 1), generator=generator).to(device)
        made = torch.where(inside, woven[other] + shift, made)
    return made


KINDS: dict[str, Callable[[int, tuple[int, int, int], torch.Generator, torch.device], Tensor]] = {
    "spectrum": _spectrum,
    "leaves": _leaves,
    "textured": _textured,
    "woven": _woven,
    "patchwork": _patchwork,
}

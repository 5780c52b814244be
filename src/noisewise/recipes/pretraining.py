"""Features learned on made-up images: no record takes part, so whatever is made with them costs no privacy.

Two random versions of the same made-up image shall be mapped close together, those of different images apart.
Reference: Baradad et al. 2021, arXiv:2106.05963 (images of noise); the loss: Chen et al. 2020, arXiv:2002.05709 (InfoNCE); for
private learning: Tang et al. 2023, arXiv:2306.06076. Deviation: the smaller encoder of `recipes.encoder`, and fewer images.
"""

from __future__ import annotations

import json
import math
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor, nn

from noisewise import __version__
from noisewise.data import made_up
from noisewise.errors import ConfigError, DataError
from noisewise.progress import Bar
from noisewise.recipes.encoder import WIDTHS, Encoder

FORMAT = "1"
TEMPERATURE = 0.2
PROJECTED = 128  # coordinates in which versions are compared; not kept
CHUNK = 2000  # images made at a time


@dataclass(frozen=True, kw_only=True)
class Pretraining:
    """How an encoder learns; the file of its weights says all of it.

    kind: of made-up images, or several, `leaves/textured`, in equal shares. shape: of an image. stages: of the encoder that
    learns. kept: so many of them are written (None: all). seed: of images, versions and initial weights.
    """

    kind: str = "textured"
    shape: tuple[int, int, int] = (3, 32, 32)
    images: int = 50_000
    steps: int = 5_000
    batch: int = 512
    width: int = 64
    stages: int = len(WIDTHS)
    kept: int | None = None
    lr: float = 0.12
    seed: int = 0

    def __post_init__(self) -> None:
        """Known kinds, numbers in range."""
        for kind in self.kind.split("/"):
            if kind not in made_up.KINDS:
                raise ConfigError(f"made-up images of kind {kind!r}: must be one of {', '.join(made_up.KINDS)}.")
        for name, least in {"images": 2, "steps": 1, "batch": 2, "width": 1}.items():
            value = getattr(self, name)
            if type(value) is not int or value < least:
                raise ConfigError(f"{name}={value!r}: must be a whole number >= {least}.")
        for name, value, most in (("stages", self.stages, len(WIDTHS)), ("kept", self.kept, self.stages)):
            if (name == "stages" or value is not None) and (type(value) is not int or not 1 <= value <= most):
                raise ConfigError(f"{name}={value!r}: must be a whole number from 1 to {most}.")
        if self.batch > self.images:
            raise ConfigError(f"batch={self.batch} of {self.images} images: give a smaller batch, or more images.")
        if len(self.shape) != 3 or min(self.shape) < 1 or min(self.shape[1:]) < 8:
            raise ConfigError(f"shape={self.shape!r}: must be channels, height and width, of at least 8x8 pixels.")
        if not 0 < self.lr < math.inf:
            raise ConfigError(f"lr={self.lr!r}: must be a number above 0, e.g. 0.12.")


def pretrain(
    how: Pretraining, *, device: torch.device | str = "cpu", progress: bool = False, seconds: float | None = None
) -> tuple[Encoder, int]:
    """An encoder that learned on made-up images, in evaluation mode and cut to what is kept, and how many steps it made.

    `seconds`: stop there; the learning rate then follows the time. Guarantee: a function of `how` (and of the time) alone.
    """
    pictures = _pictures(how, torch.device(device), progress)
    generator = torch.Generator(pictures.device).manual_seed(how.seed)
    with torch.random.fork_rng([]):
        torch.default_generator.manual_seed(how.seed)
        encoder, last = Encoder(how.shape[0], how.width, how.stages), how.width * WIDTHS[how.stages - 1]
        head = nn.Sequential(nn.Linear(last, last), nn.ReLU(), nn.Linear(last, PROJECTED))
    encoder.to(device).train()
    for weight in encoder.parameters():
        if weight.dim() == 4:  # as images lie: convolutions need not turn them
            weight.data = weight.data.contiguous(memory_format=torch.channels_last)
    head.to(device).train()
    optimizer = torch.optim.SGD(
        [*encoder.parameters(), *head.parameters()], lr=how.lr, momentum=0.9, weight_decay=5e-4, nesterov=True
    )
    began, made = time.monotonic(), 0
    with _one_size(), Bar("learning on made-up images", how.steps, show=progress) as bar:
        for step in range(how.steps):
            done = step / how.steps if seconds is None else min(1.0, (time.monotonic() - began) / seconds)
            if done >= 1:
                break
            for group in optimizer.param_groups:
                group["lr"] = how.lr * min(1.0, (step + 1) / 100) * (1 + math.cos(math.pi * done)) / 2
            rows = torch.randint(len(pictures), (how.batch,), device=pictures.device, generator=generator)
            both = torch.cat([versions(pictures[rows].float(), generator) for _ in range(2)])
            with torch.autocast("cuda", torch.bfloat16, enabled=pictures.is_cuda):
                placed = head(encoder(both.contiguous(memory_format=torch.channels_last)))
            loss = contrast(placed.float())
            optimizer.zero_grad(set_to_none=True)
            loss.backward()
            optimizer.step()
            made += 1
            bar.advance(extra=f"loss {float(loss.detach()):.2f}" if step % 50 == 0 else None)
    encoder.parts = encoder.parts[: how.kept]  # None: all
    return encoder.eval().float(), made


@contextmanager
def _one_size() -> Iterator[None]:
    """Batches have one size, for which cuDNN may look for the quickest way."""
    before = torch.backends.cudnn.benchmark
    torch.backends.cudnn.benchmark = True
    try:
        yield
    finally:
        torch.backends.cudnn.benchmark = before


def _pictures(how: Pretraining, device: torch.device, progress: bool) -> Tensor:
    """Made-up images of the wanted kinds, half precision on a GPU."""
    kinds = how.kind.split("/")
    turns = math.ceil(how.images / (len(kinds) * CHUNK))
    chunk = math.ceil(how.images / (len(kinds) * turns))  # kinds take turns, each equally often
    parts, first = [], 0
    with Bar("making images", how.images, show=progress) as bar:
        while first < how.images:
            count = min(chunk, how.images - first)
            kind = kinds[(first // chunk) % len(kinds)]
            part = made_up.images(kind, count, how.shape, seed=how.seed * 1_000_003 + first, device=device)
            parts.append(part.half() if device.type == "cuda" else part)
            first += count
            bar.advance(count)
    return torch.cat(parts)


def contrast(placed: Tensor) -> Tensor:
    """InfoNCE of two versions of each image, `[2 n, d]`: row i and row n + i belong together."""
    units = F.normalize(placed, dim=1)
    count = len(units) // 2
    alike = units @ units.T / TEMPERATURE
    alike = alike.masked_fill(torch.eye(2 * count, dtype=torch.bool, device=placed.device), -math.inf)
    partner = (torch.arange(2 * count, device=placed.device) + count) % (2 * count)
    return F.cross_entropy(alike, partner)


def versions(images: Tensor, generator: torch.Generator) -> Tensor:
    """A random version of each image: a piece of a fifth to all of it, perhaps mirrored, in other colours, perhaps grey."""
    count, channels, height, width = images.shape

    def drawn(*size: int) -> Tensor:
        return torch.rand(count, *size, device=images.device, generator=generator)

    side = (0.2 + 0.8 * drawn()).sqrt()
    stretch = torch.exp((drawn() - 0.5) * math.log(16 / 9))
    wide, high = (side * stretch).clamp(max=1), (side / stretch).clamp(max=1)
    mirrored = torch.where(drawn() < 0.5, -1.0, 1.0)
    moves = torch.zeros(count, 2, 3, device=images.device)
    moves[:, 0, 0], moves[:, 0, 2] = wide * mirrored, (1 - wide) * (2 * drawn() - 1)
    moves[:, 1, 1], moves[:, 1, 2] = high, (1 - high) * (2 * drawn() - 1)
    grid = F.affine_grid(moves, [count, channels, height, width], align_corners=False)
    piece = F.grid_sample(images, grid, mode="bilinear", padding_mode="reflection", align_corners=False)
    if channels == 3:
        mixing = torch.eye(3, device=images.device) + 0.3 * torch.randn(
            count, 3, 3, device=images.device, generator=generator
        )
        changed = torch.einsum("nkc,nchw->nkhw", mixing, piece)
        piece = torch.where(drawn(1, 1, 1) < 0.8, changed, piece)
        piece = torch.where(drawn(1, 1, 1) < 0.2, piece.mean(1, keepdim=True).expand_as(piece), piece)
    contrast_factor = 0.6 + 0.8 * drawn(1, 1, 1)
    return piece * contrast_factor + 0.4 * (2 * drawn(1, 1, 1) - 1)


# ------------------------------------------------------------------------------------------------------------ files


def save_encoder(
    encoder: Encoder, how: Pretraining, steps: int, path: str | os.PathLike[str], seconds: float | None = None
) -> None:
    """Weights in half precision, with everything that they follow from: settings, steps made, time allowed, versions."""
    about: dict[str, Any] = {
        **asdict(how), "made_steps": steps, "seconds": seconds, "noisewise": __version__, "torch": torch.__version__,
    }  # fmt: skip
    weights = {name: value.detach().cpu().contiguous() for name, value in encoder.state_dict().items()}
    weights = {name: value.half() if value.is_floating_point() else value for name, value in weights.items()}
    save_file(weights, Path(path), metadata={"format": FORMAT, "pretraining": json.dumps(about)})


def read_encoder(path: str | os.PathLike[str]) -> tuple[Encoder, dict[str, Any]]:
    """An encoder from its file, in evaluation mode, and how it learned."""
    place = Path(path)
    if not place.is_file():
        raise DataError(
            f"{place} does not exist: `noisewise pretrain --out {place.name}` learns features on made-up images, and writes it."
        )
    try:
        with safe_open(place, framework="pt") as file:
            metadata = file.metadata() or {}
            weights = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
        about = json.loads(metadata["pretraining"])
        stages = about.get("kept") or about.get("stages", len(WIDTHS))  # files of earlier versions say neither
        encoder = Encoder(about["shape"][0], about["width"], stages)
        encoder.load_state_dict(
            {name: value.float() if value.is_floating_point() else value for name, value in weights.items()}
        )
    except (SafetensorError, OSError, ValueError, KeyError, TypeError, RuntimeError) as error:
        raise DataError(f"{place} holds no encoder that noisewise pretrain wrote ({error}).") from None
    return encoder.eval(), about

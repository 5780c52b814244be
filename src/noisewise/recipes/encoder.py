"""A small residual network that makes features of images; it learns on made-up images and is frozen then."""

from __future__ import annotations

from typing import cast

from torch import Tensor, nn

WIDTHS = (1, 2, 4, 8)  # of the stages, in units of the first; each stage halves the sides but the first


class Block(nn.Module):
    """Two 3x3 convolutions with batch norm beside a shortcut."""

    def __init__(self, before: int, after: int, stride: int):
        super().__init__()
        self.first = nn.Conv2d(before, after, 3, stride=stride, padding=1, bias=False)
        self.second = nn.Conv2d(after, after, 3, padding=1, bias=False)
        self.norms = nn.ModuleList([nn.BatchNorm2d(after), nn.BatchNorm2d(after)])
        self.short = nn.Conv2d(before, after, 1, stride=stride, bias=False) if (before, stride) != (after, 1) else None

    def forward(self, x: Tensor) -> Tensor:
        """The sum of both ways, made positive."""
        made = self.norms[1](self.second(self.norms[0](self.first(x)).relu()))
        return cast(Tensor, (made + (x if self.short is None else self.short(x))).relu())


class Encoder(nn.Module):
    """`stages` stages of two blocks; `stages(x)` gives the map of each, `[n, width 2^k, side / 2^k, ...]`.

    In evaluation mode batch norm divides by constants, so that each image is mapped by itself.
    """

    def __init__(self, channels: int, width: int = 64, stages: int = len(WIDTHS)):
        super().__init__()
        self.channels, self.width = channels, width
        self.stem = nn.Sequential(
            nn.Conv2d(channels, width, 3, padding=1, bias=False), nn.BatchNorm2d(width), nn.ReLU()
        )
        parts, before = [], width
        for place, times in enumerate(WIDTHS[:stages]):
            after = width * times
            parts.append(nn.Sequential(Block(before, after, 2 if place else 1), Block(after, after, 1)))
            before = after
        self.parts = nn.ModuleList(parts)

    def stages(self, x: Tensor, last: int = len(WIDTHS)) -> list[Tensor]:
        """The map after each stage, up to the last one wanted."""
        made, x = [], self.stem(x)
        for stage in list(self.parts)[:last]:
            x = stage(x)
            made.append(x)
        return made

    def forward(self, x: Tensor) -> Tensor:
        """The mean of the last map."""
        return self.stages(x)[-1].mean((2, 3))

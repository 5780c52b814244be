"""A model whose calibration is known: it says what it is told, and labels are drawn from that."""

import torch
from torch import Tensor, nn

from noisewise.data import Data


class Told(nn.Module):
    """Says what it is told, times `sharpness`."""

    def __init__(self, sharpness: float = 1.0):
        super().__init__()
        self.sharpness = nn.Parameter(torch.tensor(sharpness, dtype=torch.float64))

    def forward(self, x: Tensor) -> Tensor:
        return x * self.sharpness


def honest(n: int = 2000, classes: int = 4, seed: int = 0, spread: float = 1.5, **extra) -> Data:
    """Inputs are outputs, and labels are drawn from their softmax: `Told()` is perfectly calibrated on them."""
    generator = torch.Generator().manual_seed(seed)
    z = spread * torch.randn(n, classes, generator=generator, dtype=torch.float64)
    return Data(z, torch.multinomial(z.softmax(1), 1, generator=generator).flatten(), **extra)

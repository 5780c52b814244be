"""Models that answer by a table, and people to ask them about."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from noisewise.data import Data


class Table(nn.Module):
    """Logits by heart: row i of the data, given as its number, has the i-th logits."""

    def __init__(self, logits: Tensor):
        super().__init__()
        self.logits = nn.Parameter(logits)

    def forward(self, x: Tensor) -> Tensor:
        return self.logits[x.long().flatten()]


def people(sizes: list[int], **extra) -> Data:
    y = torch.cat([torch.full((size,), label) for label, size in enumerate(sizes)])
    return Data(torch.arange(len(y)).float().unsqueeze(1), y, classes=tuple("abcdef"[: len(sizes)]), **extra)


def model_with(data: Data, wrong: dict[int, float], seed: int = 0) -> Table:
    """Right but for a share of each class."""
    generator = torch.Generator().manual_seed(seed)
    classes = int(data.y.max()) + 1
    said = data.y.clone()
    for label, share in wrong.items():
        rows = (data.y == label).nonzero().flatten()
        said[rows[: round(share * len(rows))]] = (label + 1) % classes
    return Table(torch.nn.functional.one_hot(said, classes) * 4.0 + torch.rand(len(said), classes, generator=generator))


def random_people(classes: int, seed: int = 0, rows: int = 900) -> tuple[Data, Table, Table]:
    """People in three groups of different size, and two models that are right more often in some groups."""
    generator = torch.Generator().manual_seed(seed)
    y = torch.randint(classes, (rows,), generator=generator)
    group = torch.multinomial(torch.tensor([0.5, 0.3, 0.2]), rows, replacement=True, generator=generator)
    names = {"origin": ("north", "south", "east")}
    data = Data(torch.arange(rows).float().unsqueeze(1), y, groups={"origin": group}, group_names=names)

    def says(strength: Tensor) -> Table:
        sure = torch.nn.functional.one_hot(y, classes) * strength[group].unsqueeze(1)
        return Table(sure + torch.randn(rows, classes, generator=generator))

    return data, says(torch.tensor([2.0, 1.0, 0.3])), says(torch.tensor([2.0, 1.9, 1.8]))

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn

from noisewise.audits.part_gradients import part_gradients
from noisewise.clipping import Flat
from noisewise.data import Data
from noisewise.losses import cross_entropy


def test_parts_that_overlap_have_the_products_of_gradients_taken_one_by_one() -> None:
    generator = torch.Generator().manual_seed(0)
    data = Data(torch.randn(30, 4, generator=generator), torch.arange(30) % 3, classes=("a", "b", "c"))
    with torch.random.fork_rng([]):
        torch.manual_seed(1)
        model = nn.Linear(4, 3)
    mask = torch.rand(3, 4, generator=generator) < 0.5
    rows = []
    for k in range(30):
        loss = cross_entropy(model, (data.x[k : k + 1], data.y[k : k + 1])).sum()
        weight, bias = torch.autograd.grad(loss, list(model.parameters()))
        rows.append(torch.cat([(weight * mask).flatten(), bias]).numpy())
    raw = np.stack(rows).astype(np.float64)
    lengths = np.linalg.norm(raw, axis=1)
    bound = float(np.median(lengths))
    short = raw * np.minimum(1, bound / lengths)[:, None]
    parts = [np.arange(30), np.arange(5, 25), np.arange(0, 30, 2)]
    seen: list[int] = []
    found = part_gradients(
        model, data, torch.arange(30), parts, cross_entropy, Flat(bound), {"weight": mask}, seen.append
    )
    assert found.coordinates == int(mask.sum()) + 3
    assert found.clipped.mean() == pytest.approx(0.5)
    assert found.factor == pytest.approx(np.minimum(1, bound / lengths), rel=1e-5)
    for place, part in enumerate(parts):
        for (squares, along), rows_of in ((found.raw[place], raw), (found.shortened[place], short)):
            assert squares == pytest.approx((rows_of[part] ** 2).sum(1), rel=1e-4)
            assert along == pytest.approx(rows_of[part] @ rows_of[part].mean(0), rel=1e-3, abs=1e-6)
    assert sum(seen) == 2 * 30

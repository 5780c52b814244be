"""Outputs and losses of rows, and who may see them."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from noisewise.audits.outputs import outputs, row_losses, status_of
from noisewise.data import Data


class Halves(nn.Module):
    """No parameters."""

    def forward(self, x: Tensor) -> Tensor:
        return x / 2


@pytest.mark.parametrize("batch_size", [1, 7, 256, 5000])
def test_the_batch_size_changes_nothing(batch_size: int) -> None:
    with torch.random.fork_rng([]):
        torch.manual_seed(0)
        model, x = (
            nn.Sequential(nn.Linear(5, 4), nn.Dropout(0.5), nn.Linear(4, 3)).double(),
            torch.randn(600, 5).double(),
        )
    data = Data(x, torch.arange(600) % 3)
    expected = model[2](model[0](x))  # no dropout: evaluation mode

    def loss_fn(model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
        return nn.functional.cross_entropy(model(batch[0]), batch[1], reduction="none")

    assert torch.allclose(outputs(model, x, batch_size), expected)
    found = row_losses(model, data, loss_fn, batch_size)
    assert torch.allclose(found, -expected.log_softmax(1)[torch.arange(600), data.y])
    assert not found.requires_grad
    assert model.training


@pytest.mark.parametrize(("public", "twin", "word"), [(True, None, "private"), (False, None, "not-private"),
                                                      (True, Halves(), "not-private")])  # fmt: skip
def test_only_a_released_model_on_public_data_may_be_shown(public: bool, twin: nn.Module | None, word: str) -> None:
    assert status_of(Data(torch.zeros(4, 2), torch.zeros(4), public=public), twin).status == word

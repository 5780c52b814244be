from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from noisewise.audits.outputs import device_of, evaluating, logits, outputs, row_losses, status_of
from noisewise.data import Data
from noisewise.errors import DataError


class Halves(nn.Module):
    """No parameters."""

    def forward(self, x: Tensor) -> Tensor:
        return x / 2


def test_a_model_without_parameters_is_asked_on_the_cpu() -> None:
    x = torch.randn(1000, 3, generator=torch.Generator().manual_seed(0))
    assert device_of(Halves()) == torch.device("cpu")
    assert torch.equal(outputs(Halves(), x), x.double() / 2)
    assert torch.equal(logits(Halves(), Data(x, torch.arange(1000) % 3)), x.double() / 2)


def test_a_model_is_where_its_parameters_or_buffers_are() -> None:
    assert device_of(nn.Linear(2, 2, device="meta")).type == "meta"
    assert device_of(nn.BatchNorm1d(2, affine=False, device="meta")).type == "meta"


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


def test_evaluation_leaves_every_mode_as_it_was() -> None:
    model = nn.Sequential(nn.Dropout(), nn.Sequential(nn.Dropout()))
    model[1].eval()
    seen = []

    def fail() -> None:
        with evaluating(model):
            seen.extend(module.training for module in model.modules())
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail()
    assert seen == [False] * 4
    assert [module.training for module in model.modules()] == [True, True, False, False]


def test_what_has_no_classes_is_refused() -> None:
    x = torch.zeros(4, 2)
    with pytest.raises(DataError, match="whole-number class"):
        logits(Halves(), Data(x, torch.zeros(4)))
    with pytest.raises(DataError, match="one per class"):
        logits(Halves(), Data(x, torch.tensor([0, 1, 2, 0])))


@pytest.mark.parametrize(("public", "twin", "word"), [(True, None, "private"), (False, None, "not-private"),
                                                      (True, Halves(), "not-private")])  # fmt: skip
def test_only_a_released_model_on_public_data_may_be_shown(public: bool, twin: nn.Module | None, word: str) -> None:
    assert status_of(Data(torch.zeros(4, 2), torch.zeros(4), public=public), twin).status == word

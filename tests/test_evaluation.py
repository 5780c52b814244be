"""A model in evaluation: where it is, as it was, in classes."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from noisewise.audits.outputs import device_of, evaluating, logits, outputs
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

from __future__ import annotations

import json

import numpy as np
import pytest
import torch
from matplotlib.figure import Figure
from torch import Tensor, nn
from torchmetrics.functional.classification import multiclass_calibration_error

from noisewise.audits.over_steps import OverSteps, over_steps
from noisewise.audits.states import projected_gradients
from noisewise.data import Data
from noisewise.errors import ConfigError
from noisewise.estimates.intervals import share_difference
from noisewise.theory.zhu2023 import energy_asymmetry


def small_net(seed: int = 0) -> nn.Module:
    with torch.random.fork_rng([]):
        torch.manual_seed(seed)
        return nn.Sequential(nn.Linear(3, 5), nn.Tanh(), nn.Linear(5, 4))


def labelled(rows: int = 60, seed: int = 0) -> Data:
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(rows, 3, generator=generator)
    return Data(x, torch.randint(4, (rows,), generator=generator))


def cross_entropy(model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
    return nn.functional.cross_entropy(model(batch[0]), batch[1], reduction="none")


class Memory(nn.Module):
    """Logits by heart."""

    def __init__(self, logits: Tensor):
        super().__init__()
        self.logits = nn.Parameter(logits)

    def forward(self, x: Tensor) -> Tensor:
        return self.logits[x.long().flatten()]


@pytest.fixture
def switched() -> tuple[Data, list[tuple[int, dict[str, Tensor]]], OverSteps]:
    """Too sure of itself until step 20; then the same answers, said with less certainty."""
    generator = torch.Generator().manual_seed(0)
    y = torch.randint(4, (400,), generator=generator)
    data = Data(torch.arange(400).float().unsqueeze(1), y)
    raw = nn.functional.one_hot(y, 4) + torch.randn(400, 4, generator=generator)
    states = [(step, {"logits": raw * scale}) for step, scale in ((10, 8.0), (20, 9.0), (30, 1.2))]
    return data, states, over_steps(Memory(raw), data, states[::-1], change=20)


def test_states_around_a_change_are_measured_as_torchmetrics_and_numpy_do(switched) -> None:
    data, states, result = switched
    for (step, state), found in zip(states, result.states, strict=True):
        shares = state["logits"].double().softmax(1)
        theirs = multiclass_calibration_error(shares, data.y, num_classes=4, n_bins=15, norm="l1")
        assert found.step == step
        assert found.ece == pytest.approx(float(theirs), abs=1e-6)
        assert found.accuracy.value == pytest.approx(float((shares.argmax(1) == data.y).double().mean()))
        expected = float(nn.functional.cross_entropy(state["logits"].double(), data.y))
        assert found.loss.value == pytest.approx(expected, rel=1e-6)
        assert found.weight_norm == pytest.approx(float(state["logits"].double().norm()))


def test_asymmetry_over_steps_is_that_of_the_gradients_in_one_plane() -> None:
    data, models = labelled(40), [small_net(seed) for seed in (0, 1)]
    states = [(step, model.state_dict()) for step, model in enumerate(models)]
    result = over_steps(small_net(5), data, states, change=0, generator=np.random.default_rng(3))
    plane = int(np.random.default_rng(3).integers(1 << 32))
    for model, found in zip(models, result.states, strict=True):
        cloud = projected_gradients(model, (data.x, data.y), cross_entropy, np.random.default_rng(plane))
        assert found.asymmetry == pytest.approx(energy_asymmetry(cloud - cloud.mean(0))[1], rel=1e-6)
    assert result.states[0].asymmetry != result.states[1].asymmetry


def test_a_change_that_calms_the_model_is_seen(switched) -> None:
    data, states, result = switched
    loss, right, wrong = (
        result.headline[f"{name} after − before"] for name in ("loss", "accuracy", "calibration error")
    )
    assert loss.value == pytest.approx(result.states[2].loss.value - result.states[1].loss.value)
    assert loss.high < 0
    hits = [(state["logits"].argmax(1) == data.y).numpy() for _, state in states]
    assert (right.value, right.low) == (0, share_difference(hits[2], hits[1]).low)
    assert wrong.value == pytest.approx(result.states[2].ece - result.states[1].ece)
    assert wrong.high < 0
    same = over_steps(Memory(states[0][1]["logits"]), data, [(1, states[0][1]), (2, states[0][1])], change=1)
    assert not any(e.excludes_zero for e in same.headline.values())
    again = OverSteps.from_dict(json.loads(json.dumps(result.to_dict())))
    assert again == result
    for figure in again.figures():
        assert len(figure.draw(Figure().add_subplot()).lines) >= 2
    assert len(again.tables()[0].rows) == 3
    assert "After step 20 the loss changed by" in again.sentences()[0]


@pytest.mark.parametrize("change", [5, 30, 31])
def test_a_change_outside_the_states_is_refused(switched, change: int) -> None:
    data, states, _ = switched
    with pytest.raises(ConfigError, match="both before and after"):
        over_steps(Memory(states[0][1]["logits"]), data, states, change=change)


def test_states_must_fit_and_be_of_different_steps(switched) -> None:
    data, states, _ = switched
    with pytest.raises(ConfigError, match="once only"):
        over_steps(Memory(states[0][1]["logits"]), data, [states[0], states[0]], change=10)
    with pytest.raises(ConfigError, match="does not fit"):
        over_steps(Memory(torch.zeros(400, 3)), data, states, change=20)

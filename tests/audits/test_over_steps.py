from __future__ import annotations

import json

import numpy as np
import pytest
import torch
from matplotlib.figure import Figure
from torch import Tensor, nn
from torchmetrics.functional.classification import multiclass_calibration_error

from noisewise.audits.calibration import calibration
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


# People with several rows ----------------------------------------------------------------------------------------------


def first_output(model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
    return model(batch[0])[:, 2]


def of_people(generator: np.random.Generator, people: int, each: int) -> tuple[Data, list[tuple[int, dict]]]:
    """Two states between which nothing changes on average, but much for single people: loss, accuracy and certainty."""
    owner = np.repeat(np.arange(people), each)
    right = [generator.random(people) < 0.7 for _ in range(2)]  # all rows of a person alike
    change = generator.standard_normal(people)
    states = []
    for step, hits in enumerate(right):
        logits = np.zeros((people * each, 3))
        logits[:, 0] = np.where(hits[owner], 2.0, -2.0)
        logits[:, 2] = step * change[owner] - 9
        states.append((step, {"logits": torch.from_numpy(logits)}))
    x = torch.arange(people * each, dtype=torch.float64).unsqueeze(1)
    return Data(x, torch.zeros(people * each, dtype=torch.int64), unit=torch.from_numpy(owner)), states


def test_changes_hold_for_people_with_many_rows() -> None:
    """As if each had one row: rows that all say the same add nothing."""
    data, states = of_people(np.random.default_rng(0), 60, 20)
    model = Memory(states[0][1]["logits"])
    seen = over_steps(model, data, states, change=0, loss_fn=first_output, resamples=400)
    once = data.take(torch.arange(0, 1200, 20))
    alone = over_steps(model, once, states, change=0, loss_fn=first_output, resamples=400)
    for name, e in seen.headline.items():
        assert e.n == 60
        width = (e.high - e.low) / (alone.headline[name].high - alone.headline[name].low)
        assert width == pytest.approx(1, abs=0.1), name
    for found, expected in zip(seen.states, alone.states, strict=True):
        assert (found.loss.n, found.accuracy.n) == (60, 60)
        assert found.accuracy.high == pytest.approx(expected.accuracy.high, abs=0.01)
    assert (seen.settings["rows"], seen.settings["people"]) == (1200, 60)


@pytest.mark.slow
def test_intervals_of_changes_cover_for_people_with_many_rows() -> None:
    """95 % intervals of no change in 300 draws; rows counted as people would cover 27 % (loss, accuracy)."""
    generator, covered = np.random.default_rng(1), {}
    for _ in range(300):
        data, states = of_people(generator, 60, 20)
        model = Memory(states[0][1]["logits"])
        result = over_steps(model, data, states, change=0, loss_fn=first_output, resamples=200, generator=generator)
        for name, e in result.headline.items():
            covered[name] = covered.get(name, 0) + (e.low <= 0 <= e.high) / 300
    assert all(share >= 0.92 for share in covered.values()), covered
    assert covered["loss after − before"] <= 0.98


def with_gap(
    generator: np.random.Generator, rows: int, *gaps: float
) -> tuple[Data, list[tuple[int, dict]], list[float]]:
    """States whose confidence is so much above how often they are right; of each the calibration error in the long run."""
    sure = generator.uniform(0.55, 0.95, rows)
    states = []
    for step, gap in enumerate(gaps):
        right = generator.random(rows) < sure - gap
        logits = np.zeros((rows, 2))
        logits[:, 0] = np.where(right, 1, -1) * np.log(sure / (1 - sure))
        states.append((step, {"logits": torch.from_numpy(logits)}))
    data = Data(torch.arange(rows, dtype=torch.float64).unsqueeze(1), torch.zeros(rows, dtype=torch.int64))
    return data, states, [abs(gap) for gap in gaps]


def test_the_change_of_calibration_error_is_that_of_calibration() -> None:
    """The last state as the model, the one before as its twin: the same estimate."""
    for gaps in ((0.1, 0.0), (0.15, 0.08)):
        data, states, _ = with_gap(np.random.default_rng(3), 300, *gaps)
        before, after = (Memory(state["logits"]) for _, state in states)
        found = over_steps(after, data, states, change=0, generator=np.random.default_rng(5), resamples=500)
        theirs = calibration(after, data, twin=before, generator=np.random.default_rng(6), resamples=500)
        ece, excess = found.headline["calibration error after − before"], theirs.headline["excess ECE"]
        assert (ece.value, ece.n, ece.method) == (pytest.approx(excess.value), excess.n, excess.method)
        assert (ece.low, ece.high) == (pytest.approx(excess.low, abs=0.01), pytest.approx(excess.high, abs=0.01))


def test_a_change_to_perfect_calibration_reaches_as_far_as_both_intervals_do() -> None:
    """The error after is nothing but bias: its interval starts at 0, so the change may be all of the error before."""
    data, states, _ = with_gap(np.random.default_rng(3), 300, 0.1, 0.0)
    result = over_steps(Memory(states[0][1]["logits"]), data, states, change=0, resamples=300)
    before = calibration(Memory(states[0][1]["logits"]), data, resamples=300).headline["ECE"]
    assert result.headline["calibration error after − before"].low <= -before.high + 0.005


@pytest.mark.slow
@pytest.mark.parametrize("gaps", [(0.1, 0.0), (0.0, 0.0), (0.0, 0.1), (0.15, 0.05)])
def test_intervals_of_changes_of_calibration_cover(gaps: tuple[float, float]) -> None:
    generator, covered = np.random.default_rng(2), 0
    for _ in range(200):
        data, states, (before, after) = with_gap(generator, 400, *gaps)
        result = over_steps(Memory(states[0][1]["logits"]), data, states, change=0, resamples=200, generator=generator)
        e = result.headline["calibration error after − before"]
        covered += e.low <= after - before <= e.high
    assert covered / 200 >= 0.93

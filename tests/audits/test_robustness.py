"""Robustness: the attacks' numbers by class and group, and checks that show a weak attack."""

from __future__ import annotations

import json
import os
import time
import warnings
from dataclasses import replace

import numpy as np
import pytest
import torch
from matplotlib.figure import Figure
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from helpers.attacked import BOTH, draws, exact, linear, points
from helpers.digits_network import trained_on_digits
from noisewise.attacks import campaign
from noisewise.attacks.pgd import Space, pgd
from noisewise.audits.people import Extremes
from noisewise.audits.robustness import ROWS, TAKES, Robustness, robustness
from noisewise.data import Data, mnist
from noisewise.errors import ConfigError, DataError
from noisewise.models import build


@pytest.fixture(scope="module")
def trained():
    return trained_on_digits()


UNIT = {"box": (0.0, 1.0), "scale": 1.0}


@BOTH
def test_the_audit_reports_it_and_a_scale_per_channel_counts(norm: str) -> None:
    model = linear()
    data = points(model)
    scale = [0.5, 2.0] * 6
    result = robustness(
        model, data, norms=[norm], radius={norm: 0.3}, factors=[0.5, 1], box=(-100.0, 100.0), scale=scale, rows=None
    )
    for point in result.sweep():
        truth = exact(model, data, point.radius, norm, torch.tensor(scale))
        assert point.accuracy["private"].value == pytest.approx(float(truth.float().mean()))
    assert result.headline["robust accuracy"] == result.sweep()[-1].accuracy["private"]
    assert all(check.passed for check in result.checks if "limit" not in check.check)


class Louder(nn.Module):
    """The same decisions with outputs a thousand times as large."""

    def __init__(self, model: nn.Module, factor: float = 1000.0):
        super().__init__()
        self.model, self.factor = model, factor

    def forward(self, x: Tensor) -> Tensor:
        return self.factor * self.model(x)


def test_loud_outputs_do_not_hide_the_gradient(trained) -> None:
    """Cross-entropy in single precision has no gradient there; a private model's outputs can be this large."""
    model, data = trained
    x, y = data.x[:300], data.y[:300]
    loud, space = Louder(model), Space.of(x, (0.0, 1.0), 1.0)
    leaf = x.clone().requires_grad_()
    (hidden,) = torch.autograd.grad(cross_entropy(loud(leaf), y, reduction="sum"), leaf)
    assert float((hidden == 0).flatten(1).all(1).float().mean()) > 0.5
    quiet, also = (pgd(m, x, y, 0.1, "linf", space, draws()).right.float().mean() for m in (model, loud))
    # not equal: of loud outputs only the nearest wrong class counts, of quiet ones all of them a little
    assert float(also) == pytest.approx(float(quiet), abs=0.06)
    answers = robustness(loud, data, norms=["linf"], radius={"linf": 0.1}, factors=[1], rows=200, **UNIT).checks
    assert next(check for check in answers if "masked" in check.check).passed


# --- against foolbox
def foolbox_accuracy(model: nn.Module, data: Data, attack, radius: float) -> float:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        import foolbox

        wrapped = foolbox.PyTorchModel(model.eval(), bounds=(0, 1), device="cpu")
        with torch.random.fork_rng([]):
            torch.manual_seed(0)
            _, _, success = attack(foolbox.attacks)(wrapped, data.x, data.y, epsilons=[radius])
    return 1 - float(success[0].float().mean())


@pytest.mark.parametrize(
    ("norm", "radius", "many", "one"),
    [("linf", 0.05, "LinfPGD", "FGSM"), ("linf", 0.1, "LinfPGD", "FGSM"), ("l2", 0.4, "L2PGD", "FGM"),
     ("l2", 0.8, "L2PGD", "FGM")],
)  # fmt: skip
def test_the_attack_is_within_a_point_of_foolbox(trained, norm: str, radius: float, many: str, one: str) -> None:
    model, data = trained
    result = robustness(model, data, norms=[norm], radius={norm: radius}, factors=[1], rows=None, **UNIT)
    ours = result.sweep()[1]
    theirs = foolbox_accuracy(model, data, lambda a: getattr(a, many)(rel_stepsize=0.25, steps=20), radius)
    step = foolbox_accuracy(model, data, lambda a: getattr(a, one)(), radius)
    assert 0.02 < theirs < 0.97
    assert ours.accuracy["private"].value == pytest.approx(theirs, abs=0.01)
    assert ours.fgsm["private"].value == pytest.approx(step, abs=0.01)


# --- checks of the attack
def failed(result: Robustness) -> set[str]:
    return {check.check for check in result.checks if not check.passed}


def test_an_attack_that_works_passes_its_checks(trained) -> None:
    model, data = trained
    result = robustness(model, data, rows=300, radius={"linf": 0.08, "l2": 0.5}, **UNIT)
    assert failed(result) == set()
    assert len(result.checks) == 2 * 5
    assert any("passes its checks" in sentence for sentence in result.sentences())
    accuracy = [point.accuracy["private"].value for point in result.sweep()]
    assert accuracy == sorted(accuracy, reverse=True)
    assert accuracy[0] - accuracy[-1] > 0.5


class Coarse(nn.Module):
    """Rounds its inputs: no gradient passes."""

    def __init__(self, model: nn.Module, *, cut: bool = False):
        super().__init__()
        self.model, self.cut = model, cut

    def forward(self, x: Tensor) -> Tensor:
        return self.model(x.detach() if self.cut else (8 * x).round() / 8)


@pytest.mark.parametrize("cut", [False, True])
def test_masked_gradients_are_found(trained, cut: bool) -> None:
    model, data = trained
    result = robustness(
        Coarse(model, cut=cut), data, norms=["linf"], radius={"linf": 0.1}, factors=[1, 2], rows=200, **UNIT
    )
    assert {"gradients are not masked", "stronger than random noise"} <= failed(result)
    assert any("100.0 % of rows have no gradient" in check.found for check in result.checks)
    assert any(
        sentence.startswith("Warning") and "weaker than these figures say" in sentence
        for sentence in result.sentences()
    )


def test_a_weak_attack_fails_its_checks(trained) -> None:
    model, data = trained
    weak = robustness(
        model, data, norms=["linf"], radius={"linf": 0.1}, factors=[1, 2], steps=1, step=1e-4, rows=200, **UNIT
    )
    assert {"at least as strong as one step", "stronger than random noise"} <= failed(weak)


def test_a_model_that_does_not_look_fails_the_unbounded_check(trained) -> None:
    _, data = trained
    model = nn.Sequential(nn.Flatten(), nn.Linear(64, 10))
    with torch.no_grad():
        model[1].weight.mul_(1e-6)
        model[1].bias.copy_(torch.tensor([5.0] + [0.0] * 9))
    zeros = data.take((data.y == 0).nonzero().flatten())
    found = robustness(model, zeros, norms=["linf"], radius={"linf": 0.1}, factors=[1], **UNIT)
    assert "without a limit hardly anyone stays right" in failed(found)


# --- units, rows, comparisons
class Normalised(nn.Module):
    """The model as it is for normalised inputs."""

    def __init__(self, model: nn.Module, mean: float, std: float):
        super().__init__()
        self.model, self.mean, self.std = model, mean, std

    def forward(self, x: Tensor) -> Tensor:
        return self.model(x * self.std + self.mean)


def test_a_radius_means_the_same_for_raw_and_normalised_inputs(trained) -> None:
    model, data = trained
    x = (data.x - 0.3) / 0.25
    other, settings = Normalised(model, 0.3, 0.25), {"rows": 300, "radius": {"linf": 0.1, "l2": 0.5}, "factors": [1]}
    raw = robustness(model, data, **settings, **UNIT)
    given = robustness(other, replace(data, x=x), box=(-0.3 / 0.25, 0.7 / 0.25), scale=1 / 0.25, **settings)
    default = robustness(other, replace(data, x=x), **settings)
    for norm in ("linf", "l2"):
        expected = raw.sweep(norm)[1].accuracy["private"].value
        assert given.sweep(norm)[1].accuracy["private"].value == pytest.approx(expected, abs=0.01)
        assert default.sweep(norm)[1].accuracy["private"].value == pytest.approx(expected, abs=0.01)
    assert default.settings["box_is_range_of_data"]
    assert default.settings["scale"][0] == pytest.approx(4.0)


def test_a_planted_weakness_is_found_and_equal_models_are_equal() -> None:
    model = linear()
    fragile = linear()
    with torch.no_grad():  # same decisions where the last input is 0, but a small change of it decides
        fragile.weight[:, -1] = torch.tensor([-40.0, 40.0])
    data = points(model, 600)
    data = replace(data, x=torch.cat([data.x[:, :-1], torch.zeros(600, 1)], 1))
    with torch.no_grad():
        data = replace(data, y=model(data.x).argmax(1))
    settings = {"norms": ["linf"], "radius": {"linf": 0.05}, "factors": [1], "box": (-9.0, 9.0), "scale": 1.0}
    result = robustness(fragile, data, twin=model, **settings)
    assert result.sweep()[0].accuracy["difference"].value == 0
    assert result.headline["cost"].high < -0.1
    assert result.headline["excess lost"].low > 0.1
    assert result.headline["cost"].value == pytest.approx(
        float(exact(fragile, data, 0.05, "linf").float().mean() - exact(model, data, 0.05, "linf").float().mean())
    )
    assert any("privacy cost" in sentence for sentence in result.sentences())
    same = robustness(model, data, twin=model, **settings)
    assert same.headline["cost"].value == 0
    assert any("chance can explain" in sentence for sentence in same.sentences())


def test_classes_and_groups_are_reported_and_small_ones_hidden(trained) -> None:
    model, data = trained
    ward = torch.zeros(len(data), dtype=torch.long)
    ward[:300], ward[300:310] = 1, 2
    data = replace(data, groups={"ward": ward})
    result = robustness(model, data, norms=["linf"], radius={"linf": 0.08}, factors=[1], rows=None, **UNIT)
    assert [part.name for part in result.parts()] == list("0123456789")
    assert [(part.name, part.n) for part in result.parts("ward")] == [("0", 690), ("1", 300)]
    right = pgd(model, data.x[:500], data.y[:500], 0.08, "linf", Space.of(data.x, (0.0, 1.0), 1.0), draws()).right
    ours = result.parts("ward")[1].accuracy["private"].value
    assert ours == pytest.approx(float(right[:300].float().mean()), abs=0.02)
    assert any("One of the groups by ward has fewer than 20 people" in sentence for sentence in result.sentences())
    mean = sum(part.n * part.accuracy["private"].value for part in result.parts()) / len(data)
    assert mean == pytest.approx(result.headline["robust accuracy"].value)


def test_saved_and_drawn_without_the_model(trained) -> None:
    model, data = trained
    original = robustness(model, data, twin=Louder(model, 0.5), rows=100, steps=3, factors=[0.5, 1])
    result = Robustness.from_dict(json.loads(json.dumps(original.to_dict())))
    assert result == original
    assert result.status.status == "not-private"
    assert any("100 of 1,000 rows, drawn at random" in sentence for sentence in result.sentences())
    for table in result.tables():
        assert {len(row) for row in table.rows} <= {len(table.columns)}
    assert len(result.figures()) == 2  # classes have fewer than 20 of the 100 rows each
    for figure in result.figures():
        axes = Figure().add_subplot()
        assert figure.draw(axes) is axes
    assert {text.get_text() for text in axes.get_legend().get_texts()} == {
        "private model",
        "twin",
        "private, random noise",
    }
    assert [label.get_text() for label in result.plot(Figure().add_subplot()).get_xticklabels()] == [
        "0",
        "4/255",
        "8/255",
    ]


def test_figures_of_classes(trained) -> None:
    model, data = trained
    result = robustness(model, data, norms=["linf"], rows=None, steps=2, factors=[1])
    axes = result.figures()[1].draw(Figure().add_subplot())
    assert len(axes.get_yticklabels()) == 10
    assert result.status.status == "private"
    assert set(result.headline) == {"robust accuracy", "lost to the attack"}


def test_same_seed_same_result_nothing_else_changes(trained) -> None:
    model, data = trained
    model.train()
    weights, state = [p.clone() for p in model.parameters()], torch.random.get_rng_state()
    settings = {"norms": ["l2"], "rows": 150, "steps": 3, "factors": [1]}
    first, second, other = (robustness(model, data, generator=np.random.default_rng(s), **settings) for s in (1, 1, 2))
    assert first == second
    assert first.sweep()[1].loss != other.sweep()[1].loss
    assert torch.equal(state, torch.random.get_rng_state())
    assert model.training
    for before, parameter in zip(weights, model.parameters(), strict=True):
        assert torch.equal(before, parameter)
        assert parameter.requires_grad
    model.eval()


def test_all_chunks_are_attacked_as_the_first_one_is(trained, monkeypatch) -> None:
    """Chunks of 100, of which nine stop early, against one of 1000, which does not; and what each radius finds is kept."""
    model, data = trained
    settings = {"norms": ["linf"], "radius": {"linf": 0.05}, "factors": [0.5, 1, 2], "rows": None, **UNIT}
    whole = {}
    for size in (100, 1000):
        monkeypatch.setattr(campaign, "CHUNK", size)
        whole[size] = robustness(model, data, **settings)
    for ours, theirs in zip(whole[100].sweep(), whole[1000].sweep(), strict=True):
        assert ours.accuracy["private"].value == pytest.approx(theirs.accuracy["private"].value, abs=0.01)
        assert ours.fgsm == theirs.fgsm
        assert (ours.loss["private"].n, theirs.loss["private"].n) == (100, 1000)
        assert ours.loss["private"].low < theirs.loss["private"].value < ours.loss["private"].high
    kept = [point.accuracy["private"].value for point in whole[100].sweep()]
    assert kept == sorted(kept, reverse=True)


def test_people_are_counted_not_rows(trained) -> None:
    model, data = trained
    data = replace(data, groups={"ward": torch.arange(len(data)) % 2}, unit=torch.arange(len(data)) // 2 // 30)
    result = robustness(model, data, norms=["linf"], steps=1, factors=[1], rows=None, **UNIT)
    assert result.parts("ward") == []  # 500 rows each, of 17 people
    assert result.values.extremes["linf"]["ward"] == Extremes(hidden_parts=2, hidden_people=17)


def test_rows_of_one_person_are_not_taken_for_several_people(trained) -> None:
    model, data = trained
    settings = {"norms": ["linf"], "steps": 1, "factors": [1], "rows": 600, **UNIT}
    owned = replace(data, unit=torch.arange(len(data)) // 5)
    rows, people = (robustness(model, each, twin=model, **settings) for each in (data, owned))
    assert people.headline["robust accuracy"].n == people.parts("everyone")[0].n < 201
    assert f"of 600 test rows of {people.headline['robust accuracy'].n} people" in people.sentences()[0]
    assert people.headline["lost to the attack"].method == "Wilson, by person"
    assert people.sweep()[1].loss["private"].n < people.headline["robust accuracy"].n
    for name, mine in people.headline.items():
        assert mine.value == rows.headline[name].value
        assert mine.high - mine.low > 0.99 * (rows.headline[name].high - rows.headline[name].low)


def test_of_many_classes_the_worst_are_drawn() -> None:
    """30 classes of 20 rows: 24 rows in the figure, all in the table."""
    x = torch.eye(30).repeat(20, 1)
    model = nn.Linear(30, 30)
    with torch.no_grad():
        model.weight.copy_(torch.eye(30))
    result = robustness(model, Data(x, torch.arange(30).repeat(20)), norms=["linf"], steps=1, factors=[1])
    figure = next(figure for figure in result.figures() if "classes" in figure.caption)
    assert "the lowest 24 of 30" in figure.caption
    assert figure.rows == len(figure.draw(Figure().add_subplot()).get_yticklabels()) == 24
    assert len(result.parts("class")) == 30


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"norms": "linf"}, "norms 'linf'"),
        ({"norms": ["l1"]}, "l1"),
        ({"radius": {"linf": 0.1}}, "needs a number above 0 for the norm 'l2'"),
        ({"factors": [2.0]}, "with 1"),
        ({"steps": 0}, "steps 0"),
        ({"rows": 0}, "rows 0"),
        ({"step": 0.0}, "step 0.0"),
        ({"box": (0.2, 1.0)}, "beyond it"),
        ({"box": (1.0, 0.0)}, "below its high end"),
        ({"scale": 0.0}, "scale 0.0"),
        ({"scale": [1.0, 2.0]}, r"shape \[2\]"),
    ],
)
def test_mistakes_are_named(trained, settings: dict, message: str) -> None:
    model, data = trained
    with pytest.raises(ConfigError, match=message):
        robustness(model, data, **settings)


def test_inputs_and_models_that_cannot_be_attacked_are_refused(trained) -> None:
    model, data = trained
    with pytest.raises(DataError, match="real numbers"):
        robustness(model, replace(data, x=data.x.long()))
    with pytest.raises(DataError, match="not finite"):
        robustness(Louder(model, float("nan")), data)
    with pytest.raises(DataError, match="it takes two"):
        robustness(nn.Linear(3, 1), Data(torch.rand(30, 3), torch.zeros(30, dtype=torch.long)))
    assert "retrain" in TAKES


@pytest.mark.slow
@pytest.mark.skipif("NOISEWISE_DATA" not in os.environ, reason="needs the official MNIST files")
def test_the_default_takes_less_than_a_minute_of_processor_time_with_a_twin() -> None:
    data, (model, twin) = mnist().test, (build("lenet", (1, 28, 28), 10, seed) for seed in (0, 1))
    start = time.process_time()
    result = robustness(model, data, twin=twin)
    assert time.process_time() - start < 60
    assert result.headline["robust accuracy"].n == ROWS

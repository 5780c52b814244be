from __future__ import annotations

import json

import pytest
import torch
from matplotlib.figure import Figure
from sklearn.metrics import accuracy_score, log_loss
from torch import Tensor, nn

from noisewise.audits import Disparity, disparity
from noisewise.data import Data
from noisewise.errors import DataError


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


@pytest.fixture
def planted() -> tuple[Data, Disparity]:
    """100 people per class; the private model fails on half of class c, the twin on a tenth of it."""
    data = people([100, 100, 100, 100], groups={"sex": torch.arange(400) % 2})
    return data, disparity(model_with(data, {2: 0.5, 0: 0.05}), data, twin=model_with(data, {2: 0.1, 0: 0.05}))


def test_numbers_are_scikit_learns(planted) -> None:
    data, result = planted
    logits = model_with(data, {2: 0.5, 0: 0.05}).logits.detach().double()
    shares = torch.softmax(logits, 1).numpy()
    everyone = result.everyone
    assert everyone.accuracy["private"].value == pytest.approx(accuracy_score(data.y, logits.argmax(1)))
    assert everyone.loss["private"].value == pytest.approx(log_loss(data.y, shares))
    for label, part in enumerate(result.parts()):
        rows = data.y == label
        assert part.accuracy["private"].value == pytest.approx(accuracy_score(data.y[rows], logits.argmax(1)[rows]))
        assert part.loss["private"].value == pytest.approx(log_loss(data.y[rows], shares[rows], labels=range(4)))


def test_a_planted_victim_is_found(planted) -> None:
    _, result = planted
    extremes = result.extremes()
    assert (extremes["worst"], extremes["pays_most"]) == ("c", "c")
    assert result.headline["worst class"].value == pytest.approx(0.5)
    assert result.headline["gap"].value == pytest.approx(0.5)
    assert result.headline["gap"].low > 0.2
    assert result.headline["largest cost"].value == pytest.approx(-0.4)
    assert result.headline["largest cost"].high < -0.1
    assert result.headline["excess gap"].value == pytest.approx(0.4)
    assert result.headline["excess gap"].low > 0
    assert result.headline["cost"].excludes_zero
    assert any("Class c pays most: −40.0 points" in sentence for sentence in result.sentences())
    harmless = next(part for part in result.parts() if part.name == "b")
    assert not harmless.accuracy["difference"].excludes_zero


def test_two_equal_models_have_no_victim() -> None:
    data = people([60, 60, 60])
    model = model_with(data, {0: 0.1, 1: 0.1})
    result = disparity(model, data, twin=model)
    assert not result.headline["cost"].excludes_zero
    assert result.headline["largest cost"].high > 0
    assert result.headline["excess gap"].low < 0 < result.headline["excess gap"].high
    assert any("chance can" in sentence for sentence in result.sentences())


def test_groups_are_reported_like_classes(planted) -> None:
    _, result = planted
    assert result.partitions == ["class", "sex"]
    assert [(part.name, part.n) for part in result.parts("sex")] == [("0", 200), ("1", 200)]
    assert any(row[0] == "sex 1" for row in result.tables()[0].rows)


def test_small_classes_are_counted_not_shown() -> None:
    data = people([50, 19, 20, 7])
    result = disparity(model_with(data, {1: 1.0}), data)
    assert [part.name for part in result.parts()] == ["a", "c"]
    assert result.extremes()["hidden_parts"] == 2
    assert result.extremes()["hidden_people"] == 26
    assert any("2 classes with fewer than 20 people each (26 people in all)" in s for s in result.sentences())
    assert '"b"' not in json.dumps(result.to_dict())
    assert result.everyone.n == 96


def test_one_class_only_has_no_extremes() -> None:
    data = people([30])
    result = disparity(model_with(data, {}), data, twin=model_with(data, {}))
    assert set(result.headline) == {"accuracy", "twin accuracy", "cost"}
    assert result.sentences()


def test_without_a_twin_there_is_no_cost(planted) -> None:
    data, _ = planted
    result = disparity(model_with(data, {2: 0.5}), data)
    assert set(result.headline) == {"accuracy", "worst class", "gap"}
    assert len(result.tables()[0].columns) == 3
    with pytest.raises(DataError, match="no twin"):
        result.plot_cost(Figure().add_subplot())


@pytest.mark.parametrize(
    ("public", "with_twin", "status"),
    [
        (True, False, "private"),
        (False, False, "not-private"),
        (True, True, "not-private"),
        (False, True, "not-private"),
    ],
)
def test_only_public_rows_without_twin_may_be_shown(public: bool, with_twin: bool, status: str) -> None:
    data = people([30, 30], public=public)
    model = model_with(data, {})
    assert disparity(model, data, twin=model if with_twin else None).status.status == status


def test_a_result_is_reloaded_and_drawn_without_the_model(planted) -> None:
    _, result = planted
    again = Disparity.from_dict(json.loads(json.dumps(result.to_dict())))
    assert again == result
    for figure in again.figures():
        axes = figure.draw(Figure().add_subplot())
        assert len(axes.lines) >= figure.rows
        assert figure.words
    labels = [label.get_text() for label in again.plot(Figure().add_subplot()).get_yticklabels()]
    assert labels[-1] == "c"  # the worst one on top


def test_models_are_left_as_they_were(planted) -> None:
    data, _ = planted
    model = nn.Sequential(nn.Dropout(0.5), Table(torch.zeros(len(data), 4)))
    state = torch.get_rng_state()
    disparity(model, data)
    assert model.training
    assert torch.equal(torch.get_rng_state(), state)
    assert all(p.grad is None for p in model.parameters())


def test_labels_must_be_classes_of_the_model() -> None:
    data = people([30, 30])
    with pytest.raises(DataError, match="one per class"):
        disparity(Table(torch.zeros(60, 1)), data)
    with pytest.raises(DataError, match="whole-number class"):
        disparity(Table(torch.zeros(60, 1)), Data(data.x, data.y.float()))

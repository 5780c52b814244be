"""Who pays for privacy: shares by class and group, with a twin."""

from __future__ import annotations

import json

import pytest
import torch
from matplotlib.figure import Figure
from sklearn.metrics import accuracy_score, log_loss
from torch import Tensor, nn

from helpers.tables_of_answers import Table, model_with, people, random_people
from noisewise.audits.disparity import Disparity, disparity
from noisewise.data import Data
from noisewise.errors import DataError


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
    assert (extremes.worst.name, extremes.cost.name) == ("c", "c")
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
    assert result.extremes().hidden_parts == 2
    assert result.extremes().hidden_people == 26
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
        disparity(Table(torch.zeros(60, 1)), Data(data.x, data.y.float().unsqueeze(1)))
    with pytest.raises(DataError, match="rename it"):
        disparity(model_with(data, {}), people([30, 30], groups={"class": data.y}))


def test_people_are_counted_not_rows() -> None:
    data = people([40, 40], groups={"g": torch.arange(80) // 40})
    crowded = people([40, 40], groups=data.groups, unit=torch.arange(80) // 4)
    model = model_with(data, {})
    assert len(disparity(model, data).parts("g")) == 2
    assert disparity(model, crowded).parts("g") == []  # 10 people each


def test_a_person_with_rows_of_both_classes_is_counted_in_both_and_that_is_said() -> None:
    """60 people: the first 40 have rows of the first class, the last 40 of the second, so 20 of both."""
    first, last = torch.arange(60) % 40, 20 + torch.arange(60) % 40
    both = people([60, 60], unit=torch.cat([first, last]))
    result = disparity(model_with(both, {}), both)
    assert (result.everyone.n, [part.n for part in result.parts()]) == (60, [40, 40])
    alone = people([60, 60], unit=torch.arange(120) // 2)
    words = "A person with rows of more than one class counts in each of them"
    assert any(words in text and "20 more people" in text for text in result.sentences())
    assert not any(words in text for text in disparity(model_with(alone, {}), alone).sentences())


def test_training_with_privacy_is_paid_for_by_a_tenth_that_follows_another_rule() -> None:
    """Two features decide for nine tenths, their negation for the rest; a bound and noise let only the majority through."""
    from noisewise import Mechanism, Poisson, train
    from noisewise.clipping import Flat

    generator = torch.Generator().manual_seed(0)
    x, minority = torch.randn(1200, 2, generator=generator), (torch.arange(1200) % 10 == 0).long()
    y = ((x.sum(1) > 0).long() + minority) % 2
    features = torch.cat([x, x * minority.unsqueeze(1)], 1)
    data = Data(features, y, groups={"rule": minority}, group_names={"rule": ("majority", "minority")})
    first, test = data.take(torch.arange(600)), data.take(torch.arange(600, 1200))

    def loss_fn(model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
        return torch.nn.functional.cross_entropy(model(batch[0]), batch[1], reduction="none")

    models = {}
    for ablation in ("private", "plain"):
        model = nn.Linear(4, 2)
        nn.init.zeros_(model.weight)
        nn.init.zeros_(model.bias)
        mechanism = Mechanism(sampler=Poisson(600, 60), clip=Flat(0.05), noise_multiplier=2.0, steps=60)
        optimizer = torch.optim.SGD(model.parameters(), lr=2.0)
        train(model, first, loss_fn, mechanism, optimizer, insecure_seed=0, ablation=ablation, progress=False)
        models[ablation] = model
    result = disparity(models["private"], test, twin=models["plain"])
    found = result.extremes("rule")
    assert (found.worst.name, found.cost.name) == ("minority", "minority")
    assert found.cost.largest.high < -0.2
    assert found.cost.excess_gap.low > 0.2
    assert result.parts("rule")[0].accuracy["difference"].value > -0.1  # the majority pays little
    assert any("rule minority pays most" in sentence for sentence in result.sentences())


def test_many_cells_are_drawn_up_to_a_limit_and_all_in_tables() -> None:
    data, model, twin = random_people(10, rows=3000)
    result = disparity(model, data, twin=twin)
    figures = {figure.caption: figure for figure in result.figures()}
    drawn = next(figure for caption, figure in figures.items() if "the lowest 24 of 30" in caption)
    assert len(drawn.draw(Figure().add_subplot()).get_yticklabels()) == drawn.rows == 24
    assert len(next(table for table in result.tables() if "by class and origin" in table.caption).rows) == 30
    assert Disparity.from_dict(json.loads(json.dumps(result.to_dict()))) == result


def test_rows_of_one_person_are_not_taken_for_several_people() -> None:
    """Every row four times over: values stay, people are counted, and no interval shrinks."""
    data = people([60, 60], groups={"g": torch.arange(120) % 2})
    four = torch.arange(120).repeat_interleave(4)
    crowd = Data(data.x[four], data.y[four], groups={"g": data.groups["g"][four]}, unit=four, classes=data.classes)
    model, twin = model_with(data, {0: 0.3, 1: 0.1}), model_with(data, {0: 0.1})
    once, often = (disparity(model, part, twin=twin) for part in (data, crowd))
    assert often.tables()[0].rows[0][:2] == ["everyone", "120"]
    assert "of 480 test rows of 120 people right" in often.sentences()[0]
    assert "of 120 test rows right" in once.sentences()[0]
    for by in ("everyone", "class", "g", "class × g"):
        for mine, theirs in zip(often.parts(by), once.parts(by), strict=True):
            assert mine.n == theirs.n
            for which in ("private", "twin", "difference"):
                assert mine.loss[which].low == pytest.approx(theirs.loss[which].low)
                assert mine.accuracy[which].value == pytest.approx(theirs.accuracy[which].value)
                assert mine.accuracy[which].low <= theirs.accuracy[which].low + 1e-9
    mine, theirs = often.extremes("g"), once.extremes("g")
    for one, other in (
        (mine.worst.served, theirs.worst.served),
        (mine.worst.gap, theirs.worst.gap),
        (mine.cost.largest, theirs.cost.largest),
        (mine.cost.excess_gap, theirs.cost.excess_gap),
    ):
        assert one.high - one.low >= other.high - other.low - 1e-9
    for measure in ("demographic parity difference", "equalised odds difference"):
        mine, theirs = (result.fairness("g").measures()[measure]["private"] for result in (often, once))
        assert mine.high > theirs.high


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_a_model_that_diverged_decides_nothing(value: float) -> None:
    data = people([40, 40])
    with pytest.raises(DataError, match="not finite"):
        disparity(Table(torch.full((80, 2), value)), data)
    with pytest.raises(DataError, match="not finite"):
        disparity(model_with(data, {}), data, twin=Table(torch.full((80, 2), value)))
    with pytest.raises(DataError, match="not finite"):
        disparity(Table(torch.full((80, 1), value)), Data(data.x, torch.zeros(80)))


class Overflowing(torch.nn.Module):
    """Its weights are finite, what it says is not."""

    def __init__(self, value: float) -> None:
        super().__init__()
        self.weight, self.value = torch.nn.Parameter(torch.ones(1, 2)), value

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.weight.expand(len(x), 2) * self.value


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_a_model_whose_outputs_are_not_finite_decides_nothing(value: float) -> None:
    data = people([40, 40])
    with pytest.raises(DataError, match="decides nothing"):
        disparity(Overflowing(value), data)


def test_nobody_is_worst_where_all_are_alike() -> None:
    data = people([40, 40])
    said = disparity(model_with(data, {}), data).sentences()
    assert "All classes are served alike, 100.0 %." in said
    assert not any("served worst" in sentence for sentence in said)

from __future__ import annotations

import json

import pytest
import torch
from matplotlib.figure import Figure
from sklearn.metrics import accuracy_score, log_loss
from torch import Tensor, nn

from noisewise.audits.disparity import Disparity, ErrorDisparity, disparity
from noisewise.data import Data
from noisewise.errors import ConfigError, DataError


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


@pytest.mark.parametrize("classes", [2, 4])
def test_fairness_measures_are_fairlearns(classes: int) -> None:
    import numpy as np
    from fairlearn import metrics

    data, model, twin = random_people(classes)
    result = disparity(model, data, twin=twin)
    found = result.fairness("origin")
    columns = {"sensitive_features": data.groups["origin"].numpy()}
    for which, asked in (("private", model), ("twin", twin)):
        said = asked.logits.argmax(1)
        # theirs is for two classes: label 1 then, otherwise each class against the rest and the worst of them
        pairs = [((data.y == c).numpy(), (said == c).numpy()) for c in ([1] if classes == 2 else range(classes))]
        worst_difference = max(metrics.demographic_parity_difference(*pair, **columns) for pair in pairs)
        worst_ratio = min(metrics.demographic_parity_ratio(*pair, **columns) for pair in pairs)
        worst_odds = max(metrics.equalized_odds_difference(*pair, **columns) for pair in pairs)
        assert found.parity[which].value == pytest.approx(worst_difference)
        assert found.parity_ratio[which].value == pytest.approx(worst_ratio)
        assert found.odds[which].value == pytest.approx(worst_odds)
        frame = metrics.MetricFrame(metrics=accuracy_score, y_true=data.y.numpy(), y_pred=said.numpy(), **columns)
        assert [part.accuracy[which].value for part in result.parts("origin")] == pytest.approx(list(frame.by_group))
        if which == "private":
            assert result.extremes("origin").worst.gap.value == pytest.approx(frame.difference())
            assert result.extremes("origin").worst.ratio.value == pytest.approx(frame.ratio())
            assert result.extremes("origin").worst.served.value == pytest.approx(frame.group_min())
    odds = found.odds
    assert odds["excess"].value == pytest.approx(odds["private"].value - odds["twin"].value)
    assert odds["private"].low > 0.1  # the planted injustice
    assert found.hidden == 0
    by_cell = metrics.MetricFrame(
        metrics=accuracy_score,
        y_true=data.y.numpy(),
        y_pred=model.logits.argmax(1).numpy(),
        sensitive_features=np.stack([data.y.numpy(), data.groups["origin"].numpy()], 1),
    ).by_group
    names = ("north", "south", "east")
    assert [part.name for part in result.cells("origin")] == [f"{c}, {g}" for c in range(classes) for g in names]
    assert [part.accuracy["private"].value for part in result.cells("origin")] == pytest.approx(list(by_cell))


@pytest.mark.parametrize("wrong", [0, 1])
def test_odds_look_at_false_and_at_right_predictions(wrong: int) -> None:
    """One group's members of one class are called the other: only its rate of false or only of right ones is off."""
    from fairlearn.metrics import equalized_odds_difference

    y, group = torch.arange(200) % 2, torch.arange(200) // 100
    data = Data(torch.arange(200).float().unsqueeze(1), y, groups={"g": group})
    said = torch.where((group == 1) & (y == wrong) & (torch.arange(200) % 3 > 0), 1 - y, y)
    found = disparity(Table(torch.nn.functional.one_hot(said, 2) * 3.0), data).fairness("g").odds
    theirs = equalized_odds_difference(y.numpy(), said.numpy(), sensitive_features=group.numpy())
    assert theirs > 0.6
    assert found["private"].value == pytest.approx(theirs)


def test_equal_groups_differ_by_no_more_than_chance() -> None:
    """Fifty data sets without injustice: intervals of measures that look for the worst must still hold 0."""
    told = {"demographic parity difference": 0, "equalised odds difference": 0}
    for seed in range(50):
        generator = torch.Generator().manual_seed(seed)
        y, group = torch.randint(2, (300,), generator=generator), torch.randint(3, (300,), generator=generator)
        data = Data(torch.arange(300).float().unsqueeze(1), y, groups={"g": group})
        found = disparity(Table(torch.randn(300, 2, generator=generator)), data).fairness("g")
        for measure in told:
            told[measure] += found.measures()[measure]["private"].low > 0
    assert max(told.values()) <= 7  # 0.05 each: P(more than 7) < 0.01


def test_small_cells_are_not_shown_and_not_compared() -> None:
    y, group = torch.arange(200) % 2, (torch.arange(200) >= 170).long()  # 15 people of each class in group 1
    data = Data(torch.arange(200).float().unsqueeze(1), y, groups={"g": group}, classes=("no", "yes"))
    result = disparity(model_with(data, {0: 0.2}), data)
    assert [part.name for part in result.cells("g")] == ["no, 0", "yes, 0"]
    assert result.cell_extremes("g").hidden_parts == 2
    assert result.fairness("g").hidden == 2
    assert set(result.fairness("g").measures()) == {"demographic parity difference", "demographic parity ratio"}
    assert any("2 cells, class × g, with fewer than 20" in sentence for sentence in result.sentences())


def test_people_are_counted_not_rows() -> None:
    data = people([40, 40], groups={"g": torch.arange(80) // 40})
    crowded = people([40, 40], groups=data.groups, unit=torch.arange(80) // 4)
    model = model_with(data, {})
    assert len(disparity(model, data).parts("g")) == 2
    assert disparity(model, crowded).parts("g") == []  # 10 people each


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
    assert any("Rule minority pays most" in sentence for sentence in result.sentences())


def test_difficulty_is_the_reference_ensembles_and_hard_rows_pay() -> None:
    """Reference losses rise with the row's number; the private model fails on the last tenth, the twin does not."""
    data = people([200, 200])
    rows = torch.arange(400.0)
    hard = Table(torch.nn.functional.one_hot(data.y, 2) * (8 - rows / 50).unsqueeze(1))
    noisy = Table(hard.logits.detach() + 0.3)
    wrong = torch.where(rows.long() >= 360, 1 - data.y, data.y)
    model, twin = Table(torch.nn.functional.one_hot(wrong, 2) * 3.0), model_with(data, {})
    result = disparity(model, data, twin=twin, reference=[hard, noisy])
    assert [part.n for part in result.deciles] == [40] * 10
    assert [part.accuracy["private"].value for part in result.deciles] == [1.0] * 9 + [0.0]
    assert [part.accuracy["twin"].value for part in result.deciles] == [1.0] * 10
    assert result.difficulty.drop.value == -1
    assert result.difficulty.largest_rise.value == 0
    extra = result.headline["extra cost of the hardest tenth"]
    assert (extra.value, extra.excludes_zero) == (-1, True)
    easiest = result.deciles[0].accuracy["difference"]
    hardest = result.deciles[-1].accuracy["difference"]
    assert extra.high == pytest.approx(-1 + ((hardest.high + 1) ** 2 + easiest.low**2) ** 0.5)
    assert any("hard rows pay more" in sentence for sentence in result.sentences())
    assert result.status.status == "not-private"
    # the same failures among the easy rows: no extra cost of the hard ones
    easy = Table(torch.nn.functional.one_hot(torch.where(rows.long() < 40, 1 - data.y, data.y), 2) * 3.0)
    other = disparity(easy, data, twin=twin, reference=[hard])
    assert other.difficulty.extra_cost.low > 0
    assert other.difficulty.largest_rise.low > 0


def test_a_reference_must_be_apart_and_the_tenths_large() -> None:
    data = people([150, 150])
    model, twin = model_with(data, {}), model_with(data, {0: 0.1})
    with pytest.raises(ConfigError, match="one of the audited"):
        disparity(model, data, twin=twin, reference=[twin])
    small = people([60, 60])
    with pytest.raises(DataError, match="tenths of fewer than 20"):
        disparity(model_with(small, {}), small, reference=[model_with(small, {})])
    with pytest.raises(ConfigError, match="real-valued"):
        disparity(model, Data(data.x, data.y.float()), reference=[twin])


def test_many_cells_are_drawn_up_to_a_limit_and_all_in_tables() -> None:
    data, model, twin = random_people(10, rows=3000)
    result = disparity(model, data, twin=twin)
    figures = {figure.caption: figure for figure in result.figures()}
    drawn = next(figure for caption, figure in figures.items() if "the lowest 24 of 30" in caption)
    assert len(drawn.draw(Figure().add_subplot()).get_yticklabels()) == drawn.rows == 24
    assert len(next(table for table in result.tables() if "by class and origin" in table.caption).rows) == 30
    assert Disparity.from_dict(json.loads(json.dumps(result.to_dict()))) == result


@pytest.mark.parametrize("width", [0, 1])
def test_errors_of_a_regression_are_scikit_learns(width: int) -> None:
    from fairlearn.metrics import MetricFrame
    from sklearn.metrics import mean_absolute_error, mean_squared_error

    generator = torch.Generator().manual_seed(0)
    y, group = torch.randn(400, generator=generator), torch.arange(400) % 3
    data = Data(torch.arange(400).float().unsqueeze(1), y, groups={"site": group}, group_names={"site": tuple("abc")})
    noise = torch.randn(400, generator=generator)
    said = {"private": y + noise * (0.5 + group) + 0.3, "twin": y + noise * 0.5}
    models = {which: Table(values.unsqueeze(1) if width else values) for which, values in said.items()}
    result = disparity(models["private"], data, twin=models["twin"])
    assert isinstance(result, ErrorDisparity)
    for which in said:
        values = said[which].double().numpy()
        for measure, theirs in (("mse", mean_squared_error), ("mae", mean_absolute_error)):
            frame = MetricFrame(
                metrics=theirs, y_true=y.double().numpy(), y_pred=values, sensitive_features=group.numpy()
            )
            assert getattr(result.everyone, measure)[which].value == pytest.approx(frame.overall)
            found = [getattr(part, measure)[which].value for part in result.parts("site")]
            assert found == pytest.approx(list(frame.by_group))
        assert result.everyone.bias[which].value == pytest.approx((values - y.double().numpy()).mean())
    extremes = result.extremes("site")
    assert (extremes.worst.name, extremes.cost.name) == ("c", "c")
    values = [part.mse["private"].value for part in result.parts("site")]
    assert extremes.worst.gap.value == pytest.approx(max(values) - min(values))
    assert extremes.worst.ratio.value == pytest.approx(min(values) / max(values))
    assert extremes.cost.largest.low > 1
    assert extremes.cost.excess_gap.low > 0
    assert result.headline["cost"].low > 0
    assert result.headline["bias"].low > 0
    assert "accuracy" not in json.dumps(result.to_dict())
    assert ErrorDisparity.from_dict(json.loads(json.dumps(result.to_dict()))) == result
    (figure,) = result.figures()
    assert len(figure.draw(Figure().add_subplot()).lines) == 16
    assert len(result.tables()) == 3
    assert any("Site c pays most" in sentence for sentence in result.sentences())


def test_a_regression_needs_one_number_per_row() -> None:
    data = Data(torch.arange(30.0).unsqueeze(1), torch.randn(30, generator=torch.Generator().manual_seed(0)))
    with pytest.raises(DataError, match="one number per row"):
        disparity(Table(torch.zeros(30, 2)), data)


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


def test_tenths_of_many_rows_but_few_people() -> None:
    """1,200 rows, five of each person side by side in difficulty: the rise allows for it; 19 people a tenth are refused."""
    data = people([600, 600])
    judge, model = model_with(data, {0: 0.2}, seed=1), model_with(data, {0: 0.2, 1: 0.3})
    owned = Data(data.x, data.y, unit=torch.arange(1200) // 5, classes=data.classes)
    rows, own = (disparity(model, part, reference=[judge]).difficulty.largest_rise for part in (data, owned))
    assert own.value == rows.value
    assert own.high - own.low > rows.high - rows.low
    few = Data(data.x, data.y, unit=torch.arange(1200) % 200 + 200 * (torch.arange(1200) < 600), classes=data.classes)
    assert disparity(model, few, reference=[judge]).deciles
    with pytest.raises(DataError, match="fewer than 20"):
        disparity(model, Data(data.x, data.y, unit=torch.arange(1200) // 7, classes=data.classes), reference=[judge])


def test_a_regression_counts_people_too() -> None:
    generator = torch.Generator().manual_seed(0)
    x, y = torch.randn(90, 1, generator=generator), torch.randn(90, generator=generator)
    three = torch.arange(90).repeat_interleave(3)
    model = nn.Linear(1, 1)
    once = disparity(model, Data(x, y, groups={"g": torch.arange(90) % 2}))
    often = disparity(model, Data(x[three], y[three], groups={"g": three % 2}, unit=three))
    for by in ("everyone", "g"):
        for mine, theirs in zip(often.parts(by), once.parts(by), strict=True):
            assert (mine.n, mine.mse["private"].high) == (theirs.n, pytest.approx(theirs.mse["private"].high))
    assert often.extremes("g").worst.gap.high == pytest.approx(once.extremes("g").worst.gap.high)
    assert "on 270 test rows of 90 people" in often.sentences()[0]


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_a_model_that_diverged_decides_nothing(value: float) -> None:
    data = people([40, 40])
    with pytest.raises(DataError, match="not finite"):
        disparity(Table(torch.full((80, 2), value)), data)
    with pytest.raises(DataError, match="not finite"):
        disparity(model_with(data, {}), data, twin=Table(torch.full((80, 2), value)))
    with pytest.raises(DataError, match="not finite"):
        disparity(Table(torch.full((80, 1), value)), Data(data.x, torch.zeros(80)))


def test_a_group_without_anybody_of_a_class_has_no_rate_of_it() -> None:
    """Group 0 is of one class only: a perfect model is not unequal because of that, where fairlearn takes 0 / 0 for 0."""
    from fairlearn.metrics import equalized_odds_difference

    y = torch.cat([torch.zeros(40, dtype=torch.long), torch.arange(80) % 2])
    group = (torch.arange(120) >= 40).long()
    data = Data(torch.arange(120).float().unsqueeze(1), y, groups={"g": group}, classes=("no", "yes"))
    found = disparity(model_with(data, {}), data).fairness("g")
    assert found.odds["private"].value == 0
    assert found.hidden == 1
    theirs = equalized_odds_difference(y.numpy(), y.numpy(), sensitive_features=group.numpy())
    assert theirs == 1


def test_nobody_is_worst_where_all_are_alike() -> None:
    data = people([40, 40])
    said = disparity(model_with(data, {}), data).sentences()
    assert "All classes are served alike, 100.0 %." in said
    assert not any("served worst" in sentence for sentence in said)

"""Measures of fairness between groups: fairlearn's numbers, told from chance."""

from __future__ import annotations

import pytest
import torch
from sklearn.metrics import accuracy_score

from helpers.tables_of_answers import Table, model_with, random_people
from noisewise.audits.disparity import disparity
from noisewise.data import Data


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
    assert any("class × g" in sentence and "fewer than 20 people" in sentence for sentence in result.sentences())


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

"""Cards on who pays."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest
import torch
from torch import nn

from noisewise.audits.disparity import disparity
from noisewise.audits.people import POOR_TWIN, Cost, Extremes, WorstError
from noisewise.audits.price import CHANGED, GAIN, LEAST, cards_of_errors
from noisewise.data import Data
from noisewise.estimates.estimate import Estimate
from noisewise.wording import points_interval


@pytest.mark.parametrize("order", [("age", "sex"), ("sex", "age")])
def test_whoever_pays_most_among_all_columns_is_named(order):
    """In a regression there are no classes: the card compares the group columns."""

    def estimate(value):
        return Estimate(value, value - 0.05, value + 0.05, 100, 0.95, "paired t")

    costs = {"sex": ("women", 0.1), "age": ("over 60", 0.5)}
    found = SimpleNamespace(
        headline={"mse": estimate(2.0), "twin mse": estimate(1.5), "cost": estimate(0.5)},
        settings={"rows": 100},
        everyone=SimpleNamespace(n=100),
        partitions=list(order),
        extremes=lambda by: Extremes(
            0,
            0,
            WorstError(costs[by][0], estimate(3.0), estimate(1.0), None),
            Cost(costs[by][0], estimate(costs[by][1]), estimate(1.0), estimate(0.0)),
        ),
        cost_of=lambda by, name: dict([costs[by]]).get(name) and estimate(costs[by][1]),
    )
    _, pays = cards_of_errors(found)
    assert (pays.place, pays.value) == ("pays", "age over 60")
    assert "0.50 above the twin's (interval 0.45 to 0.55" in pays.lines[0]


def twins(offset: float) -> tuple[Data, nn.Module, nn.Module]:
    """A private model that is right, and a twin that is wrong by `offset` (or decides by a coin)."""
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(400, 2, generator=generator)
    right, wrong = nn.Linear(2, 1), nn.Linear(2, 1)
    with torch.no_grad():
        for model, bias in ((right, 0.0), (wrong, offset)):
            model.weight.copy_(torch.tensor([[1.0, 0.0]]))
            model.bias.fill_(bias)
    noise = 0.1 * torch.randn(400, generator=generator)
    return Data(x, x[:, 0] + noise), right, wrong


def test_a_twin_that_is_behind_is_no_gain_of_privacy():
    data, right, wrong = twins(2.0)
    for private, twin, flagged in ((right, wrong, True), (wrong, right, False)):
        found = disparity(private, data, twin=twin)
        assert (POOR_TWIN in found.sentences()) == flagged
        assert (POOR_TWIN in found.cards()[0].note) == flagged
    classes = Data(data.x, (data.x[:, 0] > 0).long(), classes=("no", "yes"))
    sure, coin = nn.Linear(2, 2), nn.Linear(2, 2)
    with torch.no_grad():
        sure.weight.copy_(torch.tensor([[-1.0, 0.0], [1.0, 0.0]]))
        coin.weight.copy_(torch.tensor([[0.0, -1.0], [0.0, 1.0]]))
        sure.bias.zero_(), coin.bias.zero_()
    for private, twin, flagged in ((sure, coin, True), (coin, sure, False)):
        found = disparity(private, classes, twin=twin)
        assert (POOR_TWIN in " ".join(found.sentences())) == flagged
        assert (POOR_TWIN in found.cards()[0].note) == flagged
        assert "gained" not in " ".join(found.sentences())


class Says(nn.Module):
    """Row i of the data is said to be `answers[i]`."""

    def __init__(self, answers: np.ndarray):
        super().__init__()
        self.answers = torch.from_numpy(answers)

    def forward(self, x):
        return nn.functional.one_hot(self.answers[x[:, 0].long()], 4).float()


def judged(seed: int):
    """Four classes of 60 rows in two groups; privacy costs the first class a little, by a chance of its own."""
    generator = np.random.default_rng(seed)
    truth = np.arange(240) % 4
    private, twin = truth.copy(), truth.copy()
    for answers, rate in ((private, 0.08 + 0.14 * (truth == 0)), (twin, 0.08)):
        wrong = generator.random(240) < rate
        answers[wrong] = (answers[wrong] + 1) % 4
    side = torch.from_numpy(generator.integers(0, 2, 240))
    data = Data(torch.arange(240.0).unsqueeze(1), torch.from_numpy(truth), groups={"side": side}, classes=tuple("abcd"))
    return disparity(Says(private), data, twin=Says(twin))


def answered(*rates: tuple[float, float]):
    """As many classes of 100 rows as there are pairs: the shares that the private model and the twin get right."""
    truth = np.repeat(np.arange(len(rates)), 100)
    models = []
    for which in (0, 1):
        answers = truth.copy()
        for place, shares in enumerate(rates):
            wrong = slice(100 * place + round(100 * shares[which]), 100 * (place + 1))
            answers[wrong] = (answers[wrong] + 1) % 4
        models.append(Says(answers))
    rows = torch.arange(float(len(truth))).unsqueeze(1)
    data = Data(rows, torch.from_numpy(truth), classes=tuple("abcd"[: len(rates)]))
    return disparity(models[0], data, twin=models[1])


def test_whoever_gains_does_not_pay():
    result = answered((0.9, 0.5), (0.9, 0.6))
    cost, pays = result.cards()
    assert (cost.title, pays.title, pays.value) == (GAIN, LEAST, "class b")
    assert not any("chance" in line for line in pays.lines)
    assert any(s.startswith("Nobody pays; class b gains least: +30.0 points") for s in result.sentences())
    assert not any("pays most" in text for text in (*result.sentences(), *pays.lines, pays.note))
    cost, pays = answered((0.5, 0.9), (0.9, 0.9)).cards()
    assert (cost.title, pays.title) == ("", "")


def test_a_cost_that_others_gains_hide_is_told():
    cost, pays = answered((0.5, 0.9), (0.9, 0.5)).cards()
    assert cost.lines == ("It evens out, but not for all alike: class a pays 40.0 points, class b gained 40.0.",)
    assert (cost.title, pays.title) == ("", "")
    cost, _ = answered((0.5, 0.9), (0.9, 0.9)).cards()
    assert cost.lines == ()


def test_a_lead_that_chance_explains_is_none():
    cost, _ = answered((0.51, 0.5), (0.9, 0.9)).cards()
    assert cost.title == CHANGED
    assert "Chance can explain" in cost.note


def test_card_table_figure_and_sentence_agree_about_chance():
    """One interval for each class: what the card calls chance is an open dot, and its interval in the table holds 0."""
    from matplotlib.colors import to_rgba
    from matplotlib.figure import Figure

    verdicts, alone = set(), set()
    for seed in range(40):
        found = judged(seed)
        _, pays = found.cards()
        payer = pays.value.removeprefix("class ")
        shown = found.cost_of("class", payer)
        by_chance = any("chance can still explain" in line for line in pays.lines)
        assert by_chance == (not shown.excludes_zero or shown.value > 0)
        cells = next(row for row in found.tables()[0].rows if row[0] == f"class {payer}")
        for text in (pays.lines[0], cells[-1]):
            assert points_interval(shown) in text
        (said,) = [s for s in found.sentences() if s.startswith(f"Class {payer} pays most")]
        assert ("chance can still explain" in said) == by_chance
        axes = Figure().add_subplot()
        found.plot_cost(axes)
        place = [label.get_text() for label in axes.get_yticklabels()].index(payer)
        dot = next(line for line in axes.lines if line.get_marker() == "o" and line.get_ydata()[0] == place)
        assert (dot.get_markerfacecolor() != to_rgba(axes.get_facecolor())) == shown.excludes_zero
        verdicts.add(by_chance)
        part = next(part for part in found.parts() if part.name == payer).accuracy["difference"]
        alone.add(part.method.endswith("Bonferroni"))
    assert verdicts == {True, False}
    assert alone == {True}

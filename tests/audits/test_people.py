"""People and their parts: counted by owner, small ones hidden."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from scipy.stats import binomtest

from noisewise.audits.people import (
    ERROR,
    MODELS,
    Extremes,
    Hidden,
    Worst,
    WorstError,
    divided,
    extremes,
    hidden,
    large_enough,
    means,
    named_parts,
    pairs,
    part_of,
    people,
    rows_in_words,
    shares,
)
from noisewise.data import Data
from noisewise.errors import DataError

NONE = Hidden(0, 0)


def crowd(**extra) -> Data:
    """90 rows of two classes in three wards of 50, 25 and 15."""
    ward = torch.repeat_interleave(torch.arange(3), torch.tensor([50, 25, 15]))
    return Data(torch.zeros(90, 1), torch.arange(90) % 2, groups={"ward": ward}, classes=("no", "yes"),
                group_names={"ward": ("a", "b")}, **extra)  # fmt: skip


# --- people
def test_parts_have_their_names_and_their_rows() -> None:
    found = named_parts(crowd())
    assert list(found) == ["class", "ward"]
    assert list(found["class"]) == ["no", "yes"]
    assert list(found["ward"]) == ["a", "b", "2"]  # without a name: its number
    assert found["class"]["yes"].tolist() == list(range(1, 90, 2))
    assert found["ward"]["b"].tolist() == list(range(50, 75))
    regression = Data(torch.zeros(90, 1), torch.zeros(90), groups=crowd().groups)
    assert list(named_parts(regression)) == ["ward"]


def test_places_may_be_people() -> None:
    firsts = torch.arange(0, 90, 3)
    assert named_parts(crowd(), lambda labels: labels[firsts])["ward"]["b"].tolist() == list(range(17, 25))


@pytest.mark.parametrize("name", ["class", "everyone", "difficulty"])
def test_a_name_with_a_meaning_is_refused(name: str) -> None:
    with pytest.raises(DataError, match=f"'{name}', which has a meaning"):
        named_parts(Data(torch.zeros(4, 1), torch.zeros(4).long(), groups={name: torch.zeros(4).long()}))


def test_people_are_counted_not_rows() -> None:
    rows = named_parts(crowd())["ward"]
    assert list(large_enough(crowd(), rows)) == ["a", "b"]
    assert hidden(crowd(), rows) == Hidden(1, 15)
    twos = crowd(unit=torch.arange(90) // 2)  # 25, 13 and 8 people, one of them in two wards
    assert [people(twos, index) for index in rows.values()] == [25, 13, 8]
    assert list(large_enough(twos, rows)) == ["a"]
    assert hidden(twos, rows) == Hidden(2, 20)
    assert hidden(twos, {"a": rows["a"]}) == Hidden(0, 0)


def test_what_is_hidden_is_said() -> None:
    assert Hidden(0, 0).hidden_in_words("classes") == []
    (said,) = Hidden(2, 20).hidden_in_words("classes")
    assert said == "2 classes with fewer than 20 people each (20 people in all) are not shown."
    assert Hidden(1, 7).hidden_in_words("classes") == [
        "One of the classes has fewer than 20 people (7) and is not shown."
    ]


def test_every_part_is_described_once_and_small_ones_are_only_counted() -> None:
    seen = []

    def part(by: str, name: str, rows: np.ndarray, parts: int) -> str:
        seen.append((by, name, len(rows), parts))
        return name

    parts, found = divided(
        crowd(), named_parts(crowd()), part, lambda hidden, parts, shown: (hidden, list(parts), list(shown))
    )
    assert seen == [("class", "no", 45, 2), ("class", "yes", 45, 2), ("ward", "a", 50, 2), ("ward", "b", 25, 2)]
    assert parts == ["no", "yes", "a", "b"]
    assert found["ward"] == (Hidden(1, 15), ["a", "b"], ["a", "b"])


# --- private model and twin
def test_models_are_compared_where_both_are_there() -> None:
    assert pairs(["private"]) == {}
    assert pairs(["private", "twin"]) == {"difference": ("private", "twin")}
    assert pairs(["private", "scaled"]) == {"gain": ("scaled", "private")}
    columns = {name: np.random.default_rng(seed).random(50) for seed, name in enumerate(("private", "twin", "scaled"))}
    found = means(columns, 0.9)
    assert found["difference"].value == pytest.approx((columns["private"] - columns["twin"]).mean())
    assert found["gain"].value == pytest.approx((columns["scaled"] - columns["private"]).mean())
    assert set(shares({name: column > 0.5 for name, column in columns.items()}, 0.9)) == set(found)


def test_a_part_without_losses_has_none() -> None:
    hits, losses = np.arange(40) % 4 > 0, np.arange(40) / 10
    rows = np.arange(20)
    part = part_of("class", "1", rows, outcomes={"private": {"hits": hits}}, level=0.95)
    assert (part.n, part.accuracy["private"].value, part.loss) == (20, 0.75, {})
    outcomes = {m: {"hits": hits, "losses": losses} for m in MODELS}
    full = part_of("class", "1", rows, outcomes=outcomes, level=0.95)
    assert full.accuracy["private"] == part.accuracy["private"]
    assert full.loss["twin"].value == pytest.approx(0.95)
    assert full.loss["difference"].value == 0


def test_people_with_several_rows_are_described_as_people() -> None:
    """Three equal rows of each of 40 people: the mean is that of 40, a share is known less well than from 40."""
    hits, losses, owner = np.arange(40) % 4 > 0, np.arange(40) / 10, np.arange(40).repeat(3)
    outcomes = {m: {"hits": hits, "losses": losses} for m in MODELS}
    often = {m: {"hits": hits[owner], "losses": losses[owner]} for m in MODELS}
    one = part_of("g", "1", np.arange(40), outcomes=outcomes, level=0.95)
    part = part_of("g", "1", np.arange(120), outcomes=often, level=0.95, owner=owner)
    assert (part.n, part.accuracy["twin"].n) == (40, 40)
    assert part.loss["private"].high == pytest.approx(one.loss["private"].high)
    assert part.accuracy["private"].high > one.accuracy["private"].high
    rows = {"a": np.arange(60), "b": np.arange(60, 120)}
    narrow, wide = (
        extremes(NONE, {m: of["hits"] for m, of in often.items()}, rows, 0.95, owner=who) for who in (None, owner)
    )
    for first, second in (
        (wide.worst.served, narrow.worst.served),
        (wide.worst.gap, narrow.worst.gap),
        (wide.cost.largest, narrow.cost.largest),
        (wide.cost.twin_gap, narrow.cost.twin_gap),
        (wide.cost.excess_gap, narrow.cost.excess_gap),
    ):
        assert first.high - first.low > second.high - second.low
    assert wide.worst.served.n == 20
    assert [rows_in_words(rows, people) for rows, people in ((1200, 1200), (1200, 40))] == [
        "1,200 test rows", "1,200 test rows of 40 people"]  # fmt: skip


def test_extremes_hold_for_all_parts_together() -> None:
    """Against intervals of SciPy at the levels of Bonferroni, and hulls written out."""
    generator = np.random.default_rng(0)
    rows = {"a": np.arange(0, 40), "b": np.arange(40, 100), "c": np.arange(100, 130)}
    hits = {which: generator.random(130) < 0.7 for which in MODELS}
    found = extremes(NONE, hits, rows, 0.95)

    def wilson(which: str, level: float) -> list[tuple[float, float, float]]:
        ends = []
        for index in rows.values():
            test = binomtest(int(hits[which][index].sum()), len(index))
            interval = test.proportion_ci(level, method="wilson")
            ends.append((test.statistic, interval.low, interval.high))
        return ends

    values, lows, highs = zip(*wilson("private", 1 - 0.05 / 3), strict=True)
    assert found.worst.name == list(rows)[int(np.argmin(values))]
    assert (found.worst.served.value, found.worst.served.low) == (pytest.approx(min(values)), pytest.approx(min(lows)))
    assert found.worst.gap.high == pytest.approx(max(highs) - min(lows))
    assert found.worst.ratio.value == pytest.approx(min(values) / max(values))
    costs = {name: hits["private"][i].mean() - hits["twin"][i].mean() for name, i in rows.items()}
    assert found.cost.name == min(costs, key=lambda name: costs[name])
    assert found.cost.largest.value == pytest.approx(min(costs.values()))
    wide, narrow = (np.array(wilson(which, 1 - 0.05 / 6)) for which in MODELS)
    most = (wide[:, 2].max() - wide[:, 1].min()) - max(narrow[:, 1].max() - narrow[:, 2].min(), 0)
    assert found.cost.excess_gap.high == pytest.approx(most)
    assert (type(found.worst), found.hidden_parts, found.hidden_people) == (Worst, 0, 0)
    assert extremes(NONE, {"private": hits["private"]}, rows, 0.95) == replace(found, cost=None)
    assert extremes(Hidden(2, 9), hits, {"a": rows["a"]}, 0.95) == Extremes(2, 9)


def test_of_errors_the_highest_is_the_worst() -> None:
    rows = {"a": np.arange(30), "b": np.arange(30, 60)}
    errors = {
        "private": np.repeat([1.0, 3.0], 30) + np.arange(60) % 2,
        "twin": np.repeat([1.0, 1.0], 30) + np.arange(60) % 2,
    }
    found = extremes(NONE, errors, rows, 0.95, ERROR)
    assert (type(found.worst), found.worst.name, found.cost.name) == (WorstError, "b", "b")
    assert found.worst.served.value == pytest.approx(3.5)
    assert found.cost.largest.value == pytest.approx(2.0)
    assert found.cost.excess_gap.value == pytest.approx(2.0)


@pytest.mark.parametrize("rows_each", [1, 3])
@pytest.mark.parametrize(("persons", "shown"), [(1, False), (19, False), (20, True), (21, True)])
def test_parts_of_fewer_than_twenty_people_are_hidden(persons, shown, rows_each):
    """People are counted, not their rows."""
    count = persons * rows_each
    data = Data(torch.zeros(count, 1), torch.zeros(count).long(), unit=torch.arange(count) % persons)
    rows = {"part": np.arange(count)}
    assert list(large_enough(data, rows)) == (["part"] if shown else [])
    assert hidden(data, rows) == (NONE if shown else Hidden(1, persons))


def test_differences_that_are_compared_hold_together() -> None:
    """Of eight parts each difference has the interval of level 1 - 0.05/8; what is not compared keeps its own."""
    from noisewise.estimates import intervals

    generator = np.random.default_rng(0)
    hits = {"private": generator.random(200) < 0.6, "twin": generator.random(200) < 0.7}
    alone, one_of_eight = shares(hits, 0.95), shares(hits, 0.95, together=8)
    sharper = intervals.share_difference(hits["private"], hits["twin"], 1 - 0.05 / 8)
    assert one_of_eight["private"] == alone["private"]
    found = one_of_eight["difference"]
    assert (found.low, found.high) == (sharper.low, sharper.high)
    assert (found.level, found.method) == (0.95, f"{sharper.method}, Bonferroni")
    losses = {which: flags * 1.0 for which, flags in hits.items()}
    wide, narrow = means(losses, 0.95, together=8)["difference"], means(losses, 0.95)["difference"]
    assert wide.low < narrow.low < narrow.high < wide.high


def test_a_column_is_called_as_its_table_calls_it() -> None:
    from noisewise.audits.people import crossing, titled

    assert [titled(by) for by in ("class", "Marital STATUS", crossing("SEX"))] == [
        "Class",
        "Marital STATUS",
        "Class × SEX",
    ]

"""Data and their parts: lengths agree, names are given once, nobody is in two parts."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch

from noisewise.data import Data, digits, split
from noisewise.errors import ConfigError, DataError


def test_the_seed_is_the_split() -> None:
    assert torch.equal(digits(3).test.x, digits(3).test.x)
    assert not torch.equal(digits(3).test.y, digits(4).test.y)


@pytest.mark.parametrize("sizes", [(10,), (6, 4), (-1,), (2.5,)])
def test_impossible_parts_are_refused(sizes: tuple[int, ...]) -> None:
    with pytest.raises(ConfigError, match="rows"):
        split(Data(torch.zeros(10, 2), torch.zeros(10)), 0, *sizes)


TAKEN = (("a", "b"), {"sex": ("f", "m")}, "the schema")


def test_take_keeps_groups_and_flags() -> None:
    data = Data(
        torch.arange(4.0),
        torch.arange(4) % 2,
        {"sex": torch.tensor([0, 1, 0, 1])},
        ("a", "b"),
        public=True,
        unit=torch.tensor([7, 7, 8, 9]),
        group_names={"sex": ("f", "m")},
        schema="the schema",
    )
    part = data.take(torch.tensor([3, 1]))
    assert part.x.tolist() == [3, 1]
    assert part.groups["sex"].tolist() == [1, 1]
    assert part.unit.tolist() == [9, 7]
    assert (part.public, part.classes, part.group_names, part.schema) == (True, *TAKEN)
    assert not replace(data, public=False).take(torch.tensor([3])).public


@pytest.mark.parametrize("wrong", [{"y": torch.zeros(3)}, {"groups": {"sex": torch.zeros(5)}}])
def test_lengths_must_agree(wrong: dict) -> None:
    with pytest.raises(DataError, match="same length"):
        Data(**({"x": torch.zeros(4, 1), "y": torch.zeros(4)} | wrong))


@pytest.mark.parametrize("wrong", [torch.full((4,), math.nan), torch.zeros(4), torch.zeros(4, 2).long()])
def test_owners_and_groups_are_whole_numbers(wrong: torch.Tensor) -> None:
    """A NaN equals no other one: everybody would be a person of one row."""
    for place in ({"unit": wrong}, {"groups": {"sex": wrong}}):
        with pytest.raises(DataError, match="must be one whole number for each row"):
            Data(torch.zeros(4, 1), torch.zeros(4), **place)


def test_no_name_is_given_twice() -> None:
    rows = {"x": torch.zeros(2, 1), "y": torch.tensor([0, 1])}
    with pytest.raises(DataError, match=r"classes .*'a', 'a'.*twice"):
        Data(**rows, classes=("a", "a"))
    with pytest.raises(DataError, match=r"sex .*'f', 'f'.*twice"):
        Data(**rows, groups={"sex": rows["y"]}, group_names={"sex": ("f", "f")})


def test_a_group_may_be_called_as_it_likes() -> None:
    for name in ("unit", "x", "y"):
        assert (
            Data(torch.zeros(2, 1), torch.zeros(2), {name: torch.zeros(2).long()}, unit=torch.tensor([3, 4])).units == 2
        )
        with pytest.raises(DataError, match="same length"):
            Data(torch.zeros(2, 1), torch.zeros(2), {name: torch.zeros(5).long()}, unit=torch.tensor([3, 4]))
    with pytest.raises(DataError, match="first dimension is the unit"):
        Data(torch.zeros(()), torch.zeros(()))


@pytest.mark.parametrize("label", [-100, -1, 3])
def test_a_class_without_a_name_is_refused(label: int) -> None:
    with pytest.raises(DataError, match=f"y holds the class {label}, the 3 named classes are 0 to 2"):
        Data(torch.zeros(4, 1), torch.tensor([0, 1, label, 2]), classes=("a", "b", "c"))


def test_nobody_is_in_two_parts() -> None:
    """Sizes count people; the order of their rows stays."""
    owner = torch.tensor([5, 3, 5, 9, 3, 5, 8, 1, 1, 6])
    parts = split(Data(torch.arange(10.0), torch.zeros(10), unit=owner), 0, 2, 1)
    assert [part.units for part in parts] == [2, 1, 3]
    owners = [set(part.unit.tolist()) for part in parts]
    assert len(set.union(*owners)) == sum(map(len, owners)) == 6
    assert sorted(torch.cat([part.x for part in parts]).tolist()) == list(range(10))
    assert all(part.x.tolist() == sorted(part.x.tolist()) for part in parts)
    assert [set(p.unit.tolist()) for p in split(Data(owner, torch.zeros(10), unit=owner), 1, 2, 1)] != owners
    with pytest.raises(ConfigError, match="leave none of 6"):
        split(Data(torch.arange(10.0), torch.zeros(10), unit=owner), 0, 6)


def test_what_is_printed_of_data_holds_no_record() -> None:
    data = Data(
        torch.full((3, 2), 0.12345), torch.tensor([0, 1, 1]), {"sex": torch.tensor([0, 1, 0])}, classes=("a", "b")
    )
    assert repr(data) == "Data(3 rows [2], 2 classes, groups sex, not public)"
    owned = Data(data.x, torch.tensor([0.5, 1.5, 2.5]), unit=torch.tensor([4, 4, 9]), public=True)
    assert repr(owned) == "Data(3 rows [2] of 2 units, float32 targets, public)"

from __future__ import annotations

import inspect
import subprocess
import sys

import pytest
import torch

import noisewise
from noisewise.data import DATASETS, Data, digits, load, split
from noisewise.errors import ConfigError, DataError


def test_the_seed_is_the_split() -> None:
    assert torch.equal(digits(3).test.x, digits(3).test.x)
    assert not torch.equal(digits(3).test.y, digits(4).test.y)


def test_the_held_out_part_leaves_the_test_part_alone() -> None:
    assert torch.equal(digits(0, valid=0).test.x, digits(0).test.x)
    assert len(load("digits", valid=0).train) == 1438
    assert len(load("digits", valid=0).valid) == 0


@pytest.mark.parametrize("sizes", [(10,), (6, 4), (-1,), (2.5,)])
def test_impossible_parts_are_refused(sizes: tuple[int, ...]) -> None:
    with pytest.raises(ConfigError, match="rows"):
        split(Data(torch.zeros(10, 2), torch.zeros(10)), 0, *sizes)


def test_unknown_names_are_refused_with_all_known_ones() -> None:
    with pytest.raises(ConfigError, match="'imagenet': unknown") as error:
        load("imagenet")
    assert len(DATASETS) >= 11
    for name in DATASETS:
        assert name in str(error.value)


def test_sets_are_found_by_name_and_as_attributes() -> None:
    assert torch.equal(load("digits", 3, 10).train.x, digits(3, valid=10).train.x)
    assert noisewise.data.digits is digits
    assert set(DATASETS) <= set(dir(noisewise.data))
    assert noisewise.data.images.digits is digits
    with pytest.raises(AttributeError, match="no attribute 'imagenet'"):
        noisewise.data.imagenet  # noqa: B018


@pytest.mark.parametrize("name", DATASETS)
def test_every_set_is_split_by_a_seed_and_a_held_out_part(name: str) -> None:
    assert list(inspect.signature(getattr(noisewise.data, name)).parameters)[:2] == ["seed", "valid"]


def test_loaders_are_imported_when_used() -> None:
    code = (
        "import sys, noisewise.data; "
        "print([m for m in sys.modules if m in ('pandas', 'pooch', 'sklearn', 'scipy', 'noisewise.data.images')])"
    )
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert found.stdout.strip() == "[]"


def test_take_keeps_groups_and_flags() -> None:
    data = Data(torch.arange(4.0), torch.arange(4), {"sex": torch.tensor([0, 1, 0, 1])}, ("a", "b"), public=True)
    part = data.take(torch.tensor([1, 3]))
    assert part.groups["sex"].tolist() == [1, 1]
    assert part.public
    assert part.classes == ("a", "b")


@pytest.mark.parametrize("wrong", [{"y": torch.zeros(3)}, {"groups": {"sex": torch.zeros(5)}}])
def test_lengths_must_agree(wrong: dict) -> None:
    with pytest.raises(DataError, match="same length"):
        Data(**({"x": torch.zeros(4, 1), "y": torch.zeros(4)} | wrong))

"""Sets by name: loaded when used, split by a seed."""

from __future__ import annotations

import inspect
import subprocess
import sys

import pytest
import torch

import noisewise
from noisewise.data import DATASETS, digits, load
from noisewise.errors import ConfigError


def test_the_held_out_part_leaves_the_test_part_alone() -> None:
    assert torch.equal(digits(0, valid=0).test.x, digits(0).test.x)
    assert len(load("digits", valid=0).train) == 1438
    assert len(load("digits", valid=0).valid) == 0


@pytest.mark.parametrize("seed", [-1, None, 0.5, "0", True])
@pytest.mark.parametrize("name", ["digits", "two_patch"])
def test_a_seed_is_a_number(name: str, seed: object) -> None:
    with pytest.raises(ConfigError, match=r"seed=.*whole number"):
        load(name, seed)


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

"""Rows that hold extremes, against NumPy on whole arrays."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from noisewise.data import extremes as module
from noisewise.data.extremes import extremes


@settings(max_examples=25, deadline=None)
@given(st.lists(st.integers(-1000, 1000), min_size=1, max_size=40), st.integers(1, 9))
def test_of_whole_numbers_the_smallest_and_the_largest(values, chunk):
    before, module.CHUNK = module.CHUNK, chunk
    try:
        several = extremes(torch.tensor(values))
    finally:
        module.CHUNK = before
    assert {value for _, value in several} == {min(values), max(values)}
    assert all(values[row] == value for row, value in several)


@settings(max_examples=25, deadline=None)
@given(st.integers(0, 11), st.integers(0, 2), st.sampled_from([math.nan, math.inf, -math.inf]))
def test_of_other_numbers_the_first_that_is_none(row, column, value):
    numbers = np.random.default_rng(0).normal(size=(12, 3))
    numbers[row, column] = value
    numbers[11, 2] = math.nan
    ((first, odd),) = extremes(torch.from_numpy(numbers))
    assert first == int(np.flatnonzero(~np.isfinite(numbers).all(1))[0])
    assert odd == pytest.approx(numbers[first][~np.isfinite(numbers[first])][0], nan_ok=True)


@pytest.mark.parametrize("tensor", [torch.randn(5, 2), torch.zeros(0, 3), torch.zeros(4) == 0, torch.zeros(3).cfloat()])
def test_nothing_stands_out(tensor):
    assert extremes(tensor) == ()


@pytest.mark.parametrize("kind", [torch.uint8, torch.uint16, torch.uint32, torch.uint64, torch.int8, torch.int16])
def test_whole_numbers_of_every_type(kind):
    assert extremes(torch.tensor([3, 1, 9, 4]).to(kind)) == ((1, 1), (2, 9))


@pytest.mark.parametrize("kind", [torch.float16, torch.bfloat16, torch.float8_e5m2])
def test_numbers_of_every_type(kind):
    assert extremes(torch.tensor([3.0, math.inf]).to(kind)) == ((1, math.inf),)


@pytest.mark.parametrize("kind", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
def test_numbers_whose_sum_is_not_finite_are_looked_at_one_by_one(kind):
    most = torch.finfo(kind).max
    assert extremes(torch.full((9,), most, dtype=kind)) == ()
    assert extremes(torch.tensor([0.0, math.inf, -math.inf], dtype=kind)) == ((1, math.inf),)
    assert extremes(torch.tensor([most, most, -math.inf], dtype=kind)) == ((2, -math.inf),)


def test_a_tensor_that_was_written_is_looked_at_again():
    numbers = torch.zeros(3)
    assert extremes(numbers) == ()
    numbers[1] = math.inf
    assert extremes(numbers) == ((1, math.inf),)

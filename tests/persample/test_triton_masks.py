"""Masks laid on whole vectors by kernels, against plain selection; Triton's interpreter runs them without a GPU."""

import pytest
import torch

from helpers.interpreted import interpret
from noisewise.persample import kernels

pytest.importorskip("triton")


@pytest.fixture(autouse=True)
def interpreted(monkeypatch):
    """Kernels on a CPU."""
    interpret(monkeypatch)


@pytest.mark.parametrize("size", [4, 1020, 1024, 5012])
@pytest.mark.parametrize("share", [0.0, 0.5, 1.0])
def test_what_is_masked_is_zero_whatever_was_there_and_the_rest_is_what_it_was(size, share):
    torch.manual_seed(0)
    mask, values, noise = torch.rand(size) < share, torch.randn(size), torch.randn(size)
    values[~mask] = float("nan")
    before, drawn = values.clone(), noise.clone()
    assert kernels.lays(values, mask)
    kernels.noised(values, noise, 1.5, mask)
    assert torch.equal(values.nan_to_num(), before.nan_to_num())
    torch.testing.assert_close(noise[mask], before[mask] + 1.5 * drawn[mask])
    assert (noise[~mask] == 0).all()
    kernels.cleared(values, mask)
    assert torch.equal(values, before.nan_to_num() * mask)


def test_what_lies_behind_a_vector_is_left_alone():
    memory = torch.full((1032,), 2.0)
    kernels.cleared(memory[:1028], torch.zeros(1028, dtype=torch.bool))
    kernels.noised(memory[:1028], memory[:1028], 1.0, torch.zeros(1028, dtype=torch.bool))
    assert memory.tolist() == [0.0] * 1028 + [2.0] * 4


def test_vectors_that_are_not_of_pieces_are_not_for_kernels():
    mask = torch.zeros(8, dtype=torch.bool)
    assert not kernels.lays(torch.zeros(7), mask[:7])
    assert not kernels.lays(torch.zeros(4), mask)
    assert not kernels.lays(torch.zeros(8, dtype=torch.float64), mask)
    assert not kernels.lays(torch.zeros(8), torch.zeros(8))

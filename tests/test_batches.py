"""Batches as nests of tensors."""

from typing import NamedTuple

import pytest
import torch
from torch.utils.data import DataLoader, TensorDataset

from noisewise.batches import Padded, Views, leaves, length, map_tensors, take
from noisewise.errors import DataError


class Pair(NamedTuple):
    x: torch.Tensor
    y: torch.Tensor


A, B = torch.arange(6.0).view(3, 2), torch.tensor([7, 8, 9])
NESTS = {
    "tensor": A,
    "tuple": (A, B),
    "list": [A, B],
    "dict": {"a": A, "b": B},
    "named": Pair(A, B),
    "deep": {"x": [(A,), Pair(B, A)], "y": B},
    "padded": Padded((A, B), torch.ones(3)),
}
EACH = pytest.mark.parametrize("name", NESTS)


def equal(one, other):
    if isinstance(one, torch.Tensor):
        return torch.equal(one, other)
    keys = one.keys() if isinstance(one, dict) else range(len(one))
    return type(one) is type(other) and len(one) == len(other) and all(equal(one[k], other[k]) for k in keys)


@EACH
def test_length_is_the_number_of_units(name):
    assert length(NESTS[name]) == 3


@EACH
def test_map_keeps_the_form(name):
    same = map_tensors(lambda tensor: tensor.clone(), NESTS[name])
    assert equal(same, NESTS[name])
    assert all(a is not b for a, b in zip(leaves(same), leaves(NESTS[name]), strict=True))


@EACH
@pytest.mark.parametrize("index", [slice(1, 3), torch.tensor([2, 0]), torch.tensor([], dtype=torch.long), slice(0, 0)])
def test_take_chooses_units_everywhere(name, index):
    for taken, tensor in zip(leaves(take(NESTS[name], index)), leaves(NESTS[name]), strict=True):
        assert torch.equal(taken, tensor[index])


def test_what_is_no_tensor_stays():
    nest = {"x": A, "name": "row", "none": None, "number": 3}
    assert take(nest, slice(0, 1)) | {"x": None} == {"x": None, "name": "row", "none": None, "number": 3}
    assert length(nest) == 3


@pytest.mark.parametrize(
    "nest", [(A, B[:2]), {"x": A, "y": torch.ones(4)}, (), {}, None, 5, torch.tensor(1.0), (A, torch.tensor(1.0))]
)
def test_tensors_that_do_not_share_the_units_are_refused(nest):
    with pytest.raises(DataError, match=r"first dimensions .*needs the unit as first dimension"):
        length(nest)


def test_a_loader_is_refused_with_the_remedy():
    loader = DataLoader(TensorDataset(A, B), batch_size=2)
    with pytest.raises(DataError, match=r"DataLoader.*loader\.dataset\.tensors"):
        length(loader)


def test_views_weigh_the_rows_that_count_alike_and_nobody_by_nothing():
    mask = torch.tensor([[1, 1, 0], [0, 0, 0], [1, 1, 1], [0, 1, 0]]).bool()
    weights = Views.mean(torch.zeros(4, 3, 2), mask).weights
    assert weights.tolist() == [[0.5, 0.5, 0], [0, 0, 0], [1 / 3] * 3, [0, 1, 0]]
    assert torch.equal(Views.mean(torch.zeros(4, 3, 2)).weights, torch.full((4, 3), 1 / 3))

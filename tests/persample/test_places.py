"""Where units lie in memory: `locate` against an owner number for every byte, through random chains of views."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from noisewise.persample.places import FRONT, Place, Rows, locate, rows_of

DTYPES = [torch.uint8, torch.float16, torch.float32, torch.float64, torch.complex64]


def owners(tensor, rows, units):
    """The definition: for every entry the unit that each of its bytes belongs to; -1 outside, -2 if bytes disagree."""
    size = tensor.element_size()
    bytes_ = np.arange(tensor.untyped_storage().nbytes())
    unit = (bytes_ - rows.base) // rows.stride % units
    unit[(bytes_ < rows.base) | (bytes_ >= rows.end)] = -1
    strides = [step * size for step in tensor.stride()]
    found = np.lib.stride_tricks.as_strided(
        unit[tensor.storage_offset() * size :], (*tensor.shape, size), [8 * step for step in (*strides, 1)]
    )
    return np.where((found == found[..., :1]).all(-1), found[..., 0], -2)


def expected(shape, place, units):
    """Owner numbers that a place promises."""
    along = np.arange(shape[place.dim]) // place.inner % units
    return np.broadcast_to(along.reshape([-1 if dim == place.dim else 1 for dim in range(len(shape))]), shape)


def brute_force(tensor, rows, units):
    """The place by trial, or None: all dimensions, all multiplicities."""
    owner = owners(tensor, rows, units)
    for dim, size in enumerate(tensor.shape):
        for inner in range(1, size // units + 1):
            if size % (inner * units) == 0:
                place = Place(dim, size // (inner * units), inner)
                if np.array_equal(owner, expected(tensor.shape, place, units)):
                    return place
    return None


def transposed(data, x):
    return x.transpose(data.draw(st.integers(0, x.dim() - 1)), data.draw(st.integers(0, x.dim() - 1)))


def sliced(data, x):
    dim = data.draw(st.integers(0, x.dim() - 1))
    start, step = data.draw(st.integers(0, 2)), data.draw(st.integers(1, 2))
    return x[(slice(None),) * dim + (slice(start, data.draw(st.sampled_from([None, 5, -1])), step),)]


def selected(data, x):
    dim = data.draw(st.integers(0, x.dim() - 1))
    return x.select(dim, data.draw(st.integers(0, x.shape[dim] - 1))) if x.dim() > 1 else x


def flattened(data, x):
    dim = data.draw(st.integers(0, x.dim() - 1))
    last = min(dim + 1, x.dim() - 1)
    if x.shape[dim] > 1 and x.shape[last] > 1 and x.stride(dim) != x.stride(last) * x.shape[last]:
        return x  # would be a copy
    return x.flatten(dim, last)


def unflattened(data, x):
    dim, by = data.draw(st.integers(0, x.dim() - 1)), data.draw(st.sampled_from([2, 3, 5]))
    return x.unflatten(dim, (-1, by)) if x.shape[dim] % by == 0 else x


def expanded(data, x):
    return x.unsqueeze(0).expand(data.draw(st.sampled_from([1, 2, 5])), *x.shape)


def unfolded(data, x):
    dim = data.draw(st.integers(0, x.dim() - 1))
    return x.unfold(dim, 2, data.draw(st.integers(1, 2))) if x.shape[dim] >= 2 else x


def diagonal(data, x):
    return x.diagonal(data.draw(st.integers(-1, 1)), 0, 1) if x.dim() > 1 else x


def retyped(data, x):
    if x.dim() == 0 or x.stride(-1) != 1 or x.dtype.is_complex:
        return x
    smaller = {4: torch.int16, 8: torch.int32, 2: torch.uint8}.get(x.element_size())
    return x.view(smaller) if smaller is not None else x


def as_real(data, x):
    return torch.view_as_real(x) if x.is_complex() else x


VIEWS = [transposed, sliced, selected, flattened, unflattened, expanded, unfolded, diagonal, retyped, as_real]


@settings(max_examples=400, deadline=None)
@given(st.data())
def test_a_place_that_is_found_is_right(data):
    units = data.draw(st.sampled_from([2, 3, 5]))
    outer, inner = data.draw(st.integers(1, 2)), data.draw(st.integers(1, 3))
    before, behind = data.draw(st.sampled_from([(), (2,), (3,)])), data.draw(st.sampled_from([(), (2,), (4,), (2, 3)]))
    dtype = data.draw(st.sampled_from(DTYPES))
    spare = data.draw(st.integers(0, 3))
    shape = (*before, outer * units * inner, *behind)
    whole = torch.zeros(spare + int(np.prod(shape)), dtype=dtype)
    tensor = whole[spare:].view(shape)
    place = Place(len(before), outer, inner)
    rows = rows_of(tensor, place)
    if spare == 0:
        assert locate(tensor, rows, units) == place == brute_force(tensor, rows, units)
    for view in data.draw(st.lists(st.sampled_from(VIEWS), max_size=4)):
        tensor = view(data, tensor)
        if tensor.numel() == 0 or tensor.numel() > 5000:
            return
        found = locate(tensor, rows, units)
        if found is not None:
            assert np.array_equal(owners(tensor, rows, units), expected(tensor.shape, found, units))


UNITS = 5
X = torch.zeros(UNITS, 3, 4)
ORDINARY = {
    "itself": (X, FRONT),
    "transposed": (X.transpose(0, 1), Place(1)),
    "last": (X.movedim(0, 2), Place(2)),
    "flattened": (X.flatten(1), FRONT),
    "rows of positions": (X.flatten(0, 1), Place(0, 1, 3)),
    "all in one": (X.flatten(), Place(0, 1, 12)),
    "heads": (X.view(UNITS, 3, 2, 2).transpose(1, 2), FRONT),
    "heads and units in one": (X.view(UNITS, 3, 2, 2).transpose(1, 2)[:, :, :, None], FRONT),
    "a chunk": (X.chunk(2, -1)[1], FRONT),
    "a column": (X[:, 1, 2], FRONT),
    "every second column": (X[:, :, ::2], FRONT),
    "widened": (X[:, None].expand(UNITS, 7, 3, 4), FRONT),
    "windows": (X.unfold(2, 2, 1), FRONT),
    "diagonals": (X.diagonal(0, 1, 2), FRONT),
    "bytes": (X.view(torch.uint8), FRONT),
    "halves": (X.view(torch.int16), FRONT),
}
TIME = torch.zeros(3, UNITS, 4)
TIME_FIRST = {
    "itself": (TIME, Place(1)),
    "units first": (TIME.transpose(0, 1), FRONT),
    "time and units in one": (TIME.flatten(0, 1), Place(0, 3)),
    "one moment": (TIME[1], FRONT),
    "later moments": (TIME[1:], Place(1)),
}
MIXED = {
    "one row": X[0],
    "some rows": X[:3],
    "rows but the first": X[1:],
    "every second row": X[::2],
    "rows mixed with columns": X.view(3, UNITS, 4),
    "windows over rows": X.unfold(0, 2, 1),
    "a diagonal over rows": X.diagonal(0, 0, 1),
    "shifted": X.as_strided((4, 3, 4), (12, 4, 1), 2),
    "one row widened": X[:1].expand(UNITS, 3, 4),
}


@pytest.mark.parametrize("name", ORDINARY)
def test_ordinary_views_are_found(name):
    view, place = ORDINARY[name]
    assert locate(view, rows_of(X, FRONT), UNITS) == place


@pytest.mark.parametrize("name", TIME_FIRST)
def test_time_first_is_found(name):
    view, place = TIME_FIRST[name]
    assert locate(view, rows_of(TIME, Place(1)), UNITS) == place


@pytest.mark.parametrize("name", MIXED)
def test_views_without_all_units_in_their_order_have_no_place(name):
    assert locate(MIXED[name], rows_of(X, FRONT), UNITS) is None


@pytest.mark.parametrize("view", ["from the second row on", "along two dimensions", "backwards by periods"])
def test_units_that_do_not_count_from_the_first_on_have_no_place(view):
    twice = torch.zeros(2 * UNITS, 3, 4)
    found = {
        "from the second row on": twice[1 : 1 + UNITS],
        "along two dimensions": twice.as_strided((UNITS, UNITS), (12, 12)),
        "backwards by periods": twice[2::2],
    }[view]
    assert locate(found, rows_of(twice, Place(0, 2)), UNITS) is None


def test_channels_last_has_its_units_in_front():
    images = torch.zeros(UNITS, 3, 4, 4).contiguous(memory_format=torch.channels_last)
    assert locate(images, rows_of(images, FRONT), UNITS) == FRONT
    assert locate(images.permute(0, 2, 3, 1).flatten(1), rows_of(images, FRONT), UNITS) == FRONT


def test_units_last_in_memory_are_found():
    fortran = torch.zeros(4, UNITS).t()
    assert locate(fortran, rows_of(fortran, FRONT), UNITS) == FRONT


def test_memory_before_and_behind_the_units_is_not_theirs():
    table = torch.zeros(12, 4)
    batch = table[2:7]
    rows = rows_of(batch, FRONT)
    assert locate(batch, rows, UNITS) == FRONT
    assert locate(table[:5], rows, UNITS) is None
    assert locate(batch, Rows(rows.base, rows.stride, rows.end - 64 * 3), UNITS) is None


def test_rows_without_length_have_no_place():
    assert locate(X, Rows(0, 0, 240), UNITS) is None

"""Marks of data: every part counts, wherever the numbers lie."""

from dataclasses import replace

import pytest
import torch

from helpers import tiny
from noisewise.data import Data, disk
from noisewise.data.marks import digest, mark_of


# --- marks of data ----------------------------------------------------------------------------------------------------
def with_parts():
    x, y = tiny.data()
    return Data(x, y, unit=torch.arange(40) // 2, groups={"a": torch.zeros(40).long(), "b": torch.ones(40).long()})


def edited(part, at=0):
    changed = part.clone()
    changed.view(-1)[at] += 1
    return changed


OTHERS = {
    "x": lambda d: replace(d, x=edited(d.x, -1)),
    "y": lambda d: replace(d, y=edited(d.y)),
    "unit": lambda d: replace(d, unit=edited(d.unit, 7)),
    "a group": lambda d: replace(d, groups={**d.groups, "b": edited(d.groups["b"])}),
    "groups exchanged": lambda d: replace(d, groups={"a": d.groups["b"], "b": d.groups["a"]}),
    "a group less": lambda d: replace(d, groups={"a": d.groups["a"]}),
    "no unit": lambda d: replace(d, unit=None),
    "a group by another name": lambda d: replace(d, groups={"a": d.groups["a"], "c": d.groups["b"]}),
    "another type": lambda d: replace(d, x=d.x.double()),
    "the same bytes as another type": lambda d: replace(d, x=d.x.view(torch.int32)),
    "another shape": lambda d: replace(d, x=d.x.unsqueeze(1)),
    "another order": lambda d: d.take(torch.arange(39, -1, -1)),
    "a row less": lambda d: d.take(torch.arange(39)),
    "the smallest change": lambda d: replace(d, x=torch.nextafter(d.x, d.x + 1)),
}


@pytest.mark.parametrize("other", OTHERS.values(), ids=OTHERS)
def test_every_part_of_the_data_is_in_its_mark(other):
    assert mark_of(other(with_parts())) != mark_of(with_parts())


def test_equal_data_have_equal_marks_wherever_they_lie(tmp_path):
    data = with_parts()
    disk.save(data, tmp_path / "data")
    strided = torch.empty(5, 40).t()
    strided.copy_(data.x)
    same = [
        with_parts(),
        disk.open(tmp_path / "data"),
        disk.open(tmp_path / "data", verify=False),
        replace(data, x=strided),
    ]
    assert {mark_of(other) for other in same} == {mark_of(data)}
    assert mark_of(Data(*tiny.data())) == mark_of(tiny.data()) == mark_of(list(tiny.data()))
    assert mark_of({"x": data.x, "y": data.y}) == mark_of({"y": data.y, "x": data.x})


def test_large_tensors_are_read_in_chunks_to_the_same_mark(monkeypatch):
    tensor = torch.arange(1000.0).view(50, 20)
    whole = digest(tensor)
    monkeypatch.setattr("noisewise.data.marks.CHUNK", 7)
    assert digest(tensor.clone()) == whole
    assert digest(tensor.flip(0)) != whole
    kinds = [torch.bfloat16, torch.float16, torch.bool, torch.int8, torch.complex64]
    assert len({digest(tensor.to(kind)) for kind in kinds}) == len(kinds)
    assert digest(torch.tensor(1.0)) != digest(torch.tensor(2.0))
    assert digest(torch.zeros(0, 3)) != digest(torch.zeros(0, 2))


def test_a_tensor_that_was_changed_in_place_has_another_mark():
    x, y = tiny.data()
    before = mark_of((x, y))
    assert mark_of((x, y)) == before
    x[0, 0] += 1
    assert mark_of((x, y)) != before

from __future__ import annotations

import json
import os
import stat
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from helpers import tiny
from noisewise.data import Data, Splits, digits, disk
from noisewise.errors import ConfigError, DataError


def everything(n: int = 7, *, public: bool = False) -> Data:
    """Every field that a Data has, but the schema."""
    generator = torch.Generator().manual_seed(n)
    return Data(
        torch.randn(n, 2, 3, generator=generator),
        torch.arange(n) % 2,
        {"sex": torch.arange(n) % 2, "../odd name": torch.arange(n).to(torch.int16)},
        ("no", "yes"),
        public,
        torch.arange(n) // 2,
        {"sex": ("f", "m")},
    )


def equal(first: Data, second: Data) -> bool:
    pairs = zip(disk._tensors(first).values(), disk._tensors(second).values(), strict=True)
    same = all(a.dtype == b.dtype and torch.equal(a, b) for a, b in pairs)
    return same and disk._description(first) == disk._description(second)


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def test_what_is_saved_comes_back(tmp_path) -> None:
    data = everything()
    disk.save(data, tmp_path / "data")
    back = disk.open(tmp_path / "data")
    assert isinstance(back, Data)
    assert equal(back, data)
    assert list(back.groups) == ["sex", "../odd name"]
    assert (back.classes, back.public, back.group_names) == (data.classes, data.public, data.group_names)


def test_splits_come_back_with_empty_parts(tmp_path) -> None:
    splits = digits(valid=0)
    disk.save(splits, tmp_path / "deep" / "digits")
    back = disk.open(tmp_path / "deep" / "digits")
    assert isinstance(back, Splits)
    assert all(equal(a, b) for a, b in zip(back, splits, strict=True))
    assert len(back.valid) == 0


@pytest.mark.parametrize("kind", disk.TYPES.values(), ids=disk.TYPES.keys())
def test_every_type_of_number(tmp_path, kind) -> None:
    x = torch.tensor([[0, 1], [2, 3]]).to(kind)
    disk.save(Data(x.t(), torch.zeros(2)), tmp_path / "data")  # not contiguous
    back = disk.open(tmp_path / "data").x
    assert back.dtype == kind
    assert torch.equal(back, x.t())


def test_other_types_are_refused(tmp_path) -> None:
    with pytest.raises(DataError, match="complex64"):
        disk.save(Data(torch.zeros(2, dtype=torch.complex64), torch.zeros(2)), tmp_path / "data")
    assert list(tmp_path.iterdir()) == []


def test_a_schema_comes_back_and_anything_else_is_refused(tmp_path) -> None:
    from noisewise.data.tables.kinds import Classes, Number
    from noisewise.data.tables.schema import Schema

    schema = Schema(columns={"age": Number(0, 100)}, label="rich", target=Classes(("no", "yes")))
    disk.save(replace(everything(), schema=schema), tmp_path / "data")
    assert disk.open(tmp_path / "data").schema == schema
    with pytest.raises(DataError, match="the schema is a object"):
        disk.save(replace(everything(), schema=object()), tmp_path / "other")


def test_parts_are_joined_and_taken_one_at_a_time(tmp_path) -> None:
    data, taken = everything(20), []

    def parts():
        for first in range(0, 20, 6):
            taken.append((first, sorted(path.stat().st_size for path in tmp_path.rglob("data.x.bin"))))
            yield data.take(torch.arange(first, min(first + 6, 20)))

    disk.write(parts(), tmp_path / "data")
    assert equal(disk.open(tmp_path / "data"), data)
    assert [first for first, _ in taken] == [0, 6, 12, 18]


def test_parts_of_splits(tmp_path) -> None:
    splits = Splits(everything(9), everything(4), everything(5))
    halves = {name: [part.take(torch.arange(2)), part.take(torch.arange(2, len(part)))]
              for name, part in splits._asdict().items()}  # fmt: skip
    disk.write(halves, tmp_path / "data")
    assert all(equal(a, b) for a, b in zip(disk.open(tmp_path / "data"), splits, strict=True))
    with pytest.raises(ConfigError, match="must be exactly"):
        disk.write({"train": [everything()]}, tmp_path / "other")


@pytest.mark.parametrize(
    "change",
    [
        {"x": torch.zeros(7, 2, 4)},
        {"x": torch.zeros(7, 2, 3, dtype=torch.float64)},
        {"y": torch.zeros(7)},
        {"public": True},
        {"unit": None},
        {"groups": {}},
        {"classes": ("yes", "no")},
        {"group_names": {}},
    ],
    ids=lambda change: next(iter(change)),
)
def test_parts_that_do_not_fit_are_refused(tmp_path, change: dict) -> None:
    with pytest.raises(DataError, match="all parts must have the same"):
        disk.write([everything(), replace(everything(), **change)], tmp_path / "data")
    assert list(tmp_path.iterdir()) == []


def test_failures_leave_nothing_behind(tmp_path) -> None:
    def parts():
        yield everything()
        raise KeyError("the source broke")

    with pytest.raises(KeyError, match="the source broke"):
        disk.write(parts(), tmp_path / "data")
    with pytest.raises(DataError, match="no parts"):
        disk.write([], tmp_path / "data")
    with pytest.raises(DataError, match="is a tuple"):
        disk.write([(1, 2)], tmp_path / "data")
    assert list(tmp_path.iterdir()) == []


def test_nothing_is_overwritten(tmp_path) -> None:
    disk.save(everything(), tmp_path / "data")
    with pytest.raises(DataError, match="exists already"):
        disk.save(everything(9), tmp_path / "data")
    assert equal(disk.open(tmp_path / "data"), everything())
    (tmp_path / "file").write_text("")
    with pytest.raises(DataError, match="could not be written"):
        disk.save(everything(), tmp_path / "file" / "data")


def test_private_data_is_for_its_owner_only(tmp_path) -> None:
    private, public = everything(), everything(public=True)
    disk.save(private, tmp_path / "private")
    disk.save(Splits(private, public, public), tmp_path / "mixed")
    disk.save(Splits(public, public, public), tmp_path / "public")
    assert [mode(tmp_path / name) for name in ("private", "mixed", "public")] == [0o700, 0o700, 0o755]


def test_writing_into_the_tensors_leaves_the_files_alone(tmp_path) -> None:
    disk.save(everything(), tmp_path / "data")
    for path in (tmp_path / "data").iterdir():
        path.chmod(0o400)
    back = disk.open(tmp_path / "data")
    back.x.add_(1)
    assert torch.equal(back.x, everything().x + 1)
    assert equal(disk.open(tmp_path / "data"), everything())


FILES = ["data.json", "data.x.bin", "data.y.bin", "data.unit.bin", "data.group-0.bin", "data.group-1.bin"]


def test_the_files_are_these(tmp_path) -> None:
    disk.save(everything(), tmp_path / "data")
    assert sorted(path.name for path in (tmp_path / "data").iterdir()) == sorted(FILES)


@pytest.mark.parametrize("name", FILES)
@pytest.mark.parametrize("damage", ["flip", "cut", "longer", "empty", "gone", "folder"])
def test_damage_is_refused(tmp_path, name: str, damage: str) -> None:
    disk.save(everything(), tmp_path / "data")
    path = tmp_path / "data" / name
    raw = bytearray(path.read_bytes())
    if damage in ("gone", "folder"):
        path.unlink()
        if damage == "folder":
            path.mkdir()
    else:
        flipped = bytes([*raw[:9], raw[9] ^ 1, *raw[10:]])
        changed = {"flip": flipped, "cut": raw[:-2], "longer": raw + b"}", "empty": b""}[damage]
        path.write_bytes(changed)
    with pytest.raises(DataError, match=rf"{name}|data.json"):
        disk.open(tmp_path / "data")
    if damage != "flip":
        with pytest.raises(DataError, match=rf"{name}|data.json"):
            disk.open(tmp_path / "data", verify=False)


def test_every_flipped_bit_of_the_description_is_refused(tmp_path) -> None:
    disk.save(everything(2), tmp_path / "data")
    path = tmp_path / "data" / "data.json"
    raw = path.read_bytes()
    same, accepted = disk._about(tmp_path / "data"), 0
    for place in range(0, len(raw), 5):
        path.write_bytes(bytes([*raw[:place], raw[place] ^ 1 << place % 7, *raw[place + 1 :]]))
        try:
            assert disk._about(tmp_path / "data") == same  # white space became other white space
            accepted += 1
        except DataError:
            continue
    assert accepted < len(raw) / 5 / 4


@pytest.mark.parametrize(
    "change",
    [
        {"rows": -1},
        {"rows": "7"},
        {"groups": None},
        {"tensors": {}},
        {"tensors": {"x": 1, "y": 1, "group-0": 1, "group-1": 1}},
        {"tensors": {"/../../x": {}}},
        {"schema": 3},
        {"classes": None},
    ],
    ids=lambda change: json.dumps(change),
)
def test_a_description_that_fits_its_checksum_but_makes_no_sense_is_refused(tmp_path, change: dict) -> None:
    disk.save(everything(), tmp_path / "data")
    path = tmp_path / "data" / "data.json"
    content = json.loads(path.read_text())
    del content["sha256"]
    content["parts"]["data"] |= change
    path.write_text(json.dumps({**content, "sha256": disk._digest(content)}))
    with pytest.raises((DataError, ConfigError)):
        disk.open(tmp_path / "data")


def test_a_folder_of_something_else_is_named(tmp_path) -> None:
    with pytest.raises(DataError, match=r"data.json does not exist"):
        disk.open(tmp_path)


@pytest.mark.parametrize("unit", [False, True])
def test_training_from_disk_is_training_from_memory(tmp_path, unit: bool) -> None:
    x, y = tiny.data(2 * tiny.N if unit else tiny.N)
    data = Data(x, y, unit=torch.arange(2 * tiny.N) % tiny.N if unit else None)
    plan = tiny.mechanism(unit="person" if unit else "row")
    disk.save(data, tmp_path / "data")
    memory = tiny.run(plan=plan, units=data, insecure_seed=3)
    mapped = tiny.run(plan=plan, units=disk.open(tmp_path / "data"), insecure_seed=3)
    assert tiny.same(memory.model, mapped.model)
    changed = replace(data, x=data.x + 1e-3)
    assert not tiny.same(memory.model, tiny.run(plan=plan, units=changed, insecure_seed=3).model)


LARGE = """
import os, pathlib, sys, torch
from torch import nn
from noisewise.clipping import Flat
from noisewise.data import Data, disk
from noisewise.mechanism import Mechanism
from noisewise.sampling import Poisson
from noisewise.training.loop import train

torch.set_num_threads(1)
PARTS, ROWS, WIDTH = 40, 100, 12_800  # 40 parts of 5 MB

def parts(count):
    for number in range(count):
        yield Data(torch.full((ROWS, WIDTH), float(number)), torch.zeros(ROWS))

def run(count, folder):
    disk.write(parts(count), folder)
    data = disk.open(folder)
    for path in pathlib.Path(folder).glob("*.bin"):  # as if it had been written long ago: nothing of it in memory
        with path.open("rb") as file:
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
    model = nn.Linear(WIDTH, 1)
    plan = Mechanism(sampler=Poisson(len(data), 20), clip=Flat(1.0), noise_multiplier=9.0, steps=10)
    loss = lambda model, batch: (model(batch[0]).squeeze(-1) - batch[1]).square()
    before = read()
    train(model, data, loss, plan, torch.optim.SGD(model.parameters(), lr=0.1), progress=False, delta=1e-5)
    return data, read() - before

def told(file, name):
    lines = dict(line.split(":", 1) for line in pathlib.Path("/proc/self", file).read_text().splitlines())
    return int(lines[name].split()[0])

def read():
    return told("io", "read_bytes")

def peak():  # not ru_maxrss: a child's begins with what its parent had
    return told("status", "VmHWM") * 1024

run(2, sys.argv[1] + "/small")  # whatever is needed once
before = peak()
data, fetched = run(PARTS, sys.argv[1] + "/large")
streamed = peak()
copy = data.x.clone()
print(data.x.nbytes, fetched, streamed - before, peak() - before)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="/proc is Linux's")
def test_data_larger_than_memory_is_streamed(tmp_path) -> None:
    """Written, verified and trained on in far less memory than it has; reading it whole would be seen."""
    child = subprocess.run(
        [sys.executable, "-c", LARGE, str(tmp_path)],
        capture_output=True, text=True, check=False, env={**os.environ, "OMP_NUM_THREADS": "1"},
    )  # fmt: skip
    for path in tmp_path.rglob("*.bin"):
        path.unlink()
    assert child.returncode == 0, child.stderr
    size, fetched, streamed, whole = map(int, child.stdout.split())
    assert size > 200_000_000
    assert streamed < size / 4
    assert fetched < size / 4  # from the disk while training: the rows of 10 batches, not their surroundings
    assert whole > 0.9 * size  # less what the first run had and gave back

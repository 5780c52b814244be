"""Data larger than memory: tensors in files that are mapped, so that only the rows of a batch are read.

A folder holds `data.json` (what the tensors are, their checksums) and one file of plain little-endian values for each
tensor. `write` takes parts, so that nothing ever holds the whole; what `open` gives back is an ordinary `Data` or
`Splits`, whose `x[index]` reads the rows in `index`.
"""

from __future__ import annotations

import hashlib
import json
import math
import mmap
import os
import shutil
import sys
import tempfile
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any

import torch
from torch import Tensor

from noisewise.data import marks
from noisewise.data.base import Data, Splits
from noisewise.data.extremes import Extreme, in_part, joined, not_read, remember
from noisewise.data.tables.schema import Schema
from noisewise.errors import ConfigError, DataError
from noisewise.runs.files import settle

FORMAT = 1
BLOCK = 1 << 24  # bytes written at a time
PIECE = 1 << 20  # bytes verified at a time
TYPES = {
    str(kind).removeprefix("torch."): kind
    for kind in (
        torch.float64, torch.float32, torch.float16, torch.bfloat16,
        torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8, torch.bool,
    )
}  # fmt: skip
NORESERVE = getattr(mmap, "MAP_NORESERVE", 0x4000 if sys.platform == "linux" else 0)
Folder = str | os.PathLike[str]


def save(data: Data | Splits, folder: Folder) -> None:
    """Write data that is in memory (or mapped); `open(folder)` gives it back. As `write`."""
    write({part: [getattr(data, part)] for part in Splits._fields} if isinstance(data, Splits) else [data], folder)


def write(parts: Iterable[Data] | Mapping[str, Iterable[Data]], folder: Folder) -> None:
    """Write data that comes in parts, one after the other; only one part is in memory at a time.

    Args:
        parts: of one `Data`, or `{"train": parts, "valid": parts, "test": parts}` for `Splits`. All parts of a `Data` must
            agree in everything but the number of rows; a person's rows may be in several parts.
        folder: must not exist yet; it appears when it is complete. Mode 700 unless all of the data is public.
    """
    target = Path(folder)
    if os.path.lexists(target):
        raise DataError(f"{target} exists already: choose another folder, so that no data is overwritten.")
    whole = parts if isinstance(parts, Mapping) else {"data": parts}
    if isinstance(parts, Mapping) and set(whole) != set(Splits._fields):
        raise ConfigError(f"parts of {sorted(whole)}: must be exactly {sorted(Splits._fields)}.")
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        new = Path(tempfile.mkdtemp(prefix=f".{target.name}.", dir=target.parent))  # mode 700
        try:
            about = {name: _write(name, whole[name], new) for name in whole}
            content = {"format": FORMAT, "parts": about}
            (new / "data.json").write_text(json.dumps({**content, "sha256": _digest(content)}, indent=2) + "\n")
            if all(part["public"] for part in about.values()):
                new.chmod(0o755)
            settle(new, target)
        finally:
            shutil.rmtree(new, ignore_errors=True)
    except OSError as error:
        raise DataError(
            f"{target} could not be written ({error.strerror}). Free space or choose another folder."
        ) from error


def open(folder: Folder, *, verify: bool = True) -> Data | Splits:
    """What `save` or `write` wrote, mapped: a row is read when it is used. Writing into its tensors leaves the files alone.

    Guarantee: damage is an error. With `verify=False` only `data.json` and the sizes of files are checked, which saves
    reading everything once; a changed value then goes unnoticed, and one that a loss cannot take is refused when a step takes
    it instead of before the first.
    """
    root = Path(folder)
    parts = {name: _read(root, name, about, verify) for name, about in _about(root).items()}
    return parts["data"] if "data" in parts else Splits(**parts)


@dataclass
class _Column:
    """One tensor on its way to disk."""

    kind: str
    shape: list[int]
    file: IO[bytes]
    digest: Any = field(default_factory=hashlib.sha256)

    def append(self, values: Tensor) -> None:
        rows = max(1, BLOCK // max(1, values[:1].nbytes))
        for block in values.detach().split(rows) if len(values) else ():
            raw = block.cpu().contiguous().view(-1).view(torch.uint8).numpy()
            self.digest.update(raw)
            self.file.write(raw)

    def close(self) -> dict[str, Any]:
        self.file.flush()
        os.fsync(self.file.fileno())
        self.file.close()
        return {"type": self.kind, "shape": self.shape, "sha256": self.digest.hexdigest()}


def _write(name: str, parts: Iterable[Data], folder: Path) -> dict[str, Any]:
    """The tensors of one `Data`, and what data.json says of it."""
    if sys.byteorder != "little":
        raise DataError("this machine stores numbers with the high byte first: the format is little-endian.")
    columns: dict[str, _Column] = {}
    common: dict[str, Any] = {}
    rows = 0
    try:
        for part in parts:
            if not isinstance(part, Data):
                raise DataError(f"a part of {name} is a {type(part).__name__}: must be a noisewise.Data.")
            tensors, about = _tensors(part), _description(part)
            if not columns:
                common = about
                columns = {
                    key: _Column(_kind(values), list(values.shape[1:]), (folder / f"{name}.{key}.bin").open("wb"))
                    for key, values in tensors.items()
                }
            forms = {key: (_kind(values), list(values.shape[1:])) for key, values in tensors.items()}
            if about != common or forms != {key: (column.kind, column.shape) for key, column in columns.items()}:
                raise DataError(
                    f"a part of {name} has {forms} and {about}, the first one has "
                    f"{ {key: (column.kind, column.shape) for key, column in columns.items()} } and {common}: all parts must "
                    "have the same tensors, types, shapes of a row, classes, groups, schema and `public`."
                )
            for key, values in tensors.items():
                columns[key].append(values)
            rows += len(part)
        if not columns:
            raise DataError(f"{name} has no parts: give at least one, of no rows if need be.")
        return {"rows": rows, **common, "tensors": {key: column.close() for key, column in columns.items()}}
    finally:
        for column in columns.values():
            column.file.close()


def _tensors(data: Data) -> dict[str, Tensor]:
    """By the name of their file; group columns are numbered, since their names may be anything."""
    owner = {} if data.unit is None else {"unit": data.unit}
    groups = {f"group-{place}": labels for place, labels in enumerate(data.groups.values())}
    return {"x": data.x, "y": data.y, **owner, **groups}


def _description(data: Data) -> dict[str, Any]:
    """Everything but the tensors, as JSON."""
    if data.schema is not None and not isinstance(data.schema, Schema):
        raise DataError(
            f"the schema is a {type(data.schema).__name__}, which cannot be written: must be a noisewise Schema, or None."
        )
    return {
        "public": data.public,
        "classes": list(data.classes),
        "groups": list(data.groups),
        "group_names": {name: list(labels) for name, labels in data.group_names.items()},
        "schema": None if data.schema is None else data.schema.to_dict(),
    }


def _kind(values: Tensor) -> str:
    kind = str(values.dtype).removeprefix("torch.")
    if kind not in TYPES or values.layout != torch.strided:
        raise DataError(f"a tensor of {values.dtype}, {values.layout}: must be dense and one of {', '.join(TYPES)}.")
    return kind


def _about(root: Path) -> dict[str, Any]:
    """The content of data.json, whole."""
    path = root / "data.json"
    try:
        content = json.loads(path.read_text())
        digest = content.pop("sha256")
        if digest != _digest(content):
            raise ValueError("its content does not fit its checksum")
        if content["format"] != FORMAT:
            raise ValueError(f"format {content['format']!r}, known is {FORMAT}")
        if set(content["parts"]) not in ({"data"}, set(Splits._fields)):
            raise ValueError(f"parts {sorted(content['parts'])}")
        return content["parts"]
    except FileNotFoundError:
        raise DataError(f"{path} does not exist: is this a folder that noisewise.data.disk.save wrote?") from None
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise DataError(f"{path} is damaged ({error}): it cannot be used. Restore a copy or write it anew.") from None


def _read(root: Path, name: str, about: Mapping[str, Any], verify: bool) -> Data:
    """One `Data`; data.json names no files, so that it can point nowhere else."""
    try:
        known = {"x", "y", *(f"group-{place}" for place in range(len(about["groups"])))}
        if set(about["tensors"]) - {"unit"} != known:
            raise KeyError(*about["tensors"])
        tensors = {
            key: _mapped(root / f"{name}.{key}.bin", TYPES[form["type"]], (about["rows"], *form["shape"]))
            for key, form in about["tensors"].items()
        }
        for key, form in about["tensors"].items() if verify else ():
            remember(tensors[key], _verify(root / f"{name}.{key}.bin", form["sha256"], tensors[key]))
            marks.remember(tensors[key], form["sha256"])
        return Data(
            tensors.pop("x"),
            tensors.pop("y"),
            unit=tensors.pop("unit", None),
            groups={group: tensors.pop(f"group-{place}") for place, group in enumerate(about["groups"])},
            classes=tuple(about["classes"]),
            public=about["public"],
            group_names={group: tuple(labels) for group, labels in about["group_names"].items()},
            schema=None if about["schema"] is None else Schema.from_dict(about["schema"]),
        )
    except (KeyError, TypeError, AttributeError) as error:
        raise DataError(f"{root / 'data.json'} is damaged ({error!r}). Restore a copy or write it anew.") from None


def _mapped(path: Path, kind: torch.dtype, shape: tuple[int, ...]) -> Tensor:
    """A tensor over the file's bytes.

    A private, writable mapping: whoever writes into the tensor gets an own copy of that page (a read-only one would
    crash the process), and without a reservation it may be larger than memory.
    """
    expected = math.prod(shape) * kind.itemsize
    if min(shape) < 0:
        raise TypeError(shape)
    try:
        with path.open("rb") as file:
            size = os.fstat(file.fileno()).st_size
            if size != expected:
                raise DataError(
                    f"{path} is damaged: it has {size} bytes, expected {expected}. Restore or write it anew."
                )
            if not size:
                return torch.empty(shape, dtype=kind)
            flags, access = mmap.MAP_PRIVATE | NORESERVE, mmap.PROT_READ | mmap.PROT_WRITE
            content = mmap.mmap(file.fileno(), size, flags, access)
            content.madvise(mmap.MADV_RANDOM)  # else many times the sampled rows are read, in case neighbours are next
            tensor = torch.frombuffer(content, dtype=kind).view(shape)
            not_read(tensor)
            return tensor
    except OSError as error:
        raise DataError(f"{path} cannot be read ({error.strerror}). Restore a copy or write it anew.") from None


def _verify(path: Path, expected: str, tensor: Tensor) -> tuple[Extreme, ...]:
    """Read a file once: damage is an error; the extremes of what it holds are given back."""
    width = tensor[:1].nbytes
    block = bytearray(width * max(1, PIECE // max(1, width)) if len(tensor) else 0)
    digest, several, first = hashlib.sha256(), list[Extreme](), 0
    with path.open("rb") as file:
        while size := file.readinto(block):
            digest.update(memoryview(block)[:size])
            part = torch.frombuffer(block, dtype=tensor.dtype, count=size // tensor.itemsize).view(
                -1, *tensor.shape[1:]
            )
            several += in_part(part, first)
            first += len(part)
    if digest.hexdigest() != expected:
        raise DataError(
            f"{path} is damaged: its sha256 is {digest.hexdigest()}, expected {expected}. Restore a copy or write it anew."
        )
    return joined(several)


def _digest(content: Any) -> str:
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()

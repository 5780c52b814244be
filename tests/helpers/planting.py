"""A fault, how it is planted, and all that lie beside the tests of the packages that they break."""

from __future__ import annotations

import importlib.util
from dataclasses import dataclass
from pathlib import Path

TESTS = Path(__file__).resolve().parent.parent


@dataclass(frozen=True)
class Mutant:
    """A fault: in `file` under src/noisewise, `old` becomes `new`; `tests` (node ids under tests/) should fail."""

    name: str
    file: str
    old: str
    new: str
    tests: tuple[str, ...]


def plant(source: Path, mutant: Mutant) -> None:
    """Write the fault into a copy of the package."""
    path = source / "noisewise" / mutant.file
    text = path.read_text(encoding="utf-8")
    if text.count(mutant.old) != 1:
        raise ValueError(f"{mutant.old!r} occurs {text.count(mutant.old)} times in {mutant.file}, not once")
    path.write_text(text.replace(mutant.old, mutant.new), encoding="utf-8")


def _faults_of(path: Path) -> list[Mutant]:
    """FAULTS of one file."""
    name = "_".join(["planted", *path.relative_to(TESTS).with_suffix("").parts])
    spec = importlib.util.spec_from_file_location(name, path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.FAULTS


def planted() -> dict[str, list[Mutant]]:
    """The faults of each folder under tests/ that has some; "." for the modules at the root."""
    files = sorted(TESTS.rglob("faults.py"), key=lambda path: path.parts)
    return {path.parent.relative_to(TESTS).as_posix(): _faults_of(path) for path in files}

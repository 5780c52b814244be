"""Plant one deliberate fault after another into a copy of the package and see whether the tests notice.

    python tests/mutants.py [--jobs 2] [--only WORD]...

The faults lie in `faults.py` beside the tests of the package that they break. First the chosen tests run on an
unchanged copy and must pass. Then each fault is one replacement of a text that occurs exactly once; a fault is caught
if its tests fail. Exit code 0: all caught; 1: one survived, or could not be judged.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import shutil
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console

from helpers.planting import Mutant, plant, planted

ROOT = Path(__file__).resolve().parent.parent
SECONDS = 300
if shutil.which("nvidia-smi") is None:
    os.environ.setdefault("TRITON_INTERPRET", "1")  # asked for when Triton is imported, with what takes long
FORKS = multiprocessing.get_context("forkserver")
SLOW_IMPORTS = [
    "torch._dynamo",
    "scipy.stats",
    "sklearn.linear_model",
    "pandas",
    "matplotlib.pyplot",
    "hypothesis",
    "pytest",
]


@dataclass(frozen=True)
class Outcome:
    """What became of a fault."""

    verdict: str
    seconds: float
    output: str = ""

    @property
    def failed(self) -> str:
        """The test that failed, without its folder."""
        lines = [line.split(" - ")[0] for line in self.output.splitlines() if line.startswith("FAILED ")]
        return lines[0].rpartition("/")[2] if lines else ""


def copy_of_the_package(folder: Path) -> Path:
    """With what is compiled already, which holds for all files but the one with the fault."""
    return shutil.copytree(ROOT / "src", folder / "src")


def check_import(source: Path) -> None:
    """The copy must be what is imported, or every fault would survive."""
    import noisewise
    import noisewise.bounded

    for path in (noisewise.__file__, noisewise.bounded.__file__):
        if not Path(path or "").resolve().is_relative_to(source.resolve()):
            raise SystemExit(f"{path} is imported instead of the copy in {source}: no fault would be seen.")


def _test(source: str, output: str, arguments: list[str]) -> None:
    """In a process of its own: the copy comes first on the path, before the installed package."""
    import pytest

    descriptor = os.open(output, os.O_WRONLY | os.O_CREAT)
    os.dup2(descriptor, 1)
    os.dup2(descriptor, 2)
    os.environ |= {"PYTHONPATH": source, "PYTHONDONTWRITEBYTECODE": "1"}
    sys.path.insert(0, source)
    sys.dont_write_bytecode = True
    os.chdir(ROOT)
    check_import(Path(source))
    quiet = ["-p", "no:cacheprovider", "-W", "ignore::pytest.PytestAssertRewriteWarning"]
    status = pytest.main([*quiet, "-x", "-q", "--tb=line", *arguments])
    sys.stdout.flush()
    os._exit(int(status))


def run(source: Path, tests: tuple[str, ...], seconds: float = SECONDS) -> tuple[int, str]:
    """pytest's exit code and what it printed; forked from a process that has imported what takes long."""
    output = source.parent / "output"
    arguments = [str(ROOT / "tests" / test) for test in tests]
    process = FORKS.Process(target=_test, args=(str(source), str(output), arguments))
    process.start()
    process.join(seconds)
    if process.exitcode is None:
        process.kill()
        process.join()
        return 1, f"stopped after {seconds:g} s"
    return process.exitcode, output.read_text(encoding="utf-8", errors="replace")


def judge(mutant: Mutant) -> Outcome:
    """Plant the fault in a fresh copy and run its tests: pytest's exit code 1 means that a test failed."""
    start = time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        source = copy_of_the_package(Path(folder))
        try:
            plant(source, mutant)
        except ValueError as error:
            return Outcome("not planted", 0.0, str(error))
        status, output = run(source, mutant.tests)
    verdict = {0: "survived", 1: "caught"}.get(status, f"not judged (pytest exit code {status})")
    return Outcome(verdict, time.monotonic() - start, output)


def unchanged(mutants: list[Mutant], console: Console) -> bool:
    """All chosen tests pass on a copy without a fault."""
    tests = tuple(sorted({test for mutant in mutants for test in mutant.tests}))
    with tempfile.TemporaryDirectory() as folder:
        status, output = run(copy_of_the_package(Path(folder)), tests, seconds=3600)
    if status:
        console.print(output[-3000:], markup=False)
    return status == 0


def main() -> int:
    parser = argparse.ArgumentParser(description="Plant deliberate faults and see whether the tests notice.")
    parser.add_argument("--jobs", type=int, default=2, help="faults judged at a time")
    parser.add_argument("--only", action="append", help="faults whose name contains this; may be repeated")
    options = parser.parse_args()
    console = Console() if sys.stdout.isatty() else Console(width=160)
    words = options.only or [""]
    chosen = [
        mutant for faults in planted().values() for mutant in faults if any(word in mutant.name for word in words)
    ]
    os.environ["OMP_NUM_THREADS"] = "1"
    FORKS.set_forkserver_preload(SLOW_IMPORTS)
    console.print(f"{len(chosen)} faults; their tests on the unchanged package first")
    if not unchanged(chosen, console):
        console.print("the tests fail without any fault: nothing can be judged")
        return 1
    outcomes = []
    with ThreadPoolExecutor(options.jobs) as pool:
        for mutant, outcome in zip(chosen, pool.map(judge, chosen), strict=True):
            outcomes.append(outcome)
            style = "dim" if outcome.verdict == "caught" else "bold red"
            line = f"{outcome.verdict:9} {outcome.seconds:5.1f} s  {mutant.file}: {mutant.name}  {outcome.failed}"
            console.print(line, style=style, markup=False, highlight=False)
    missed = [(m, o) for m, o in zip(chosen, outcomes, strict=True) if o.verdict != "caught"]
    for mutant, outcome in missed:
        console.print(f"\n{mutant.name}: {outcome.verdict}\n{outcome.output[-1500:]}", markup=False)
    console.print(f"{len(chosen) - len(missed)} of {len(chosen)} caught")
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())

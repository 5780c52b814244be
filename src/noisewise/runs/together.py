"""Several runs read together: which of them are about the same people, and what those people have paid in all. No torch."""

from __future__ import annotations

import math
import os
import tomllib
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from noisewise.accounting import Ledger, pld_epsilon
from noisewise.accounting.accountants import check_delta
from noisewise.errors import RunError
from noisewise.runs.files import read_json
from noisewise.runs.folder import RunFolder
from noisewise.runs.scores import read_score
from noisewise.runs.summary import read_ledger, read_summary
from noisewise.wording import Promise, promise

NAMELESS = "data without a name"  # of runs made in Python that say nothing about it


@dataclass(frozen=True)
class Finished:
    """A finished run: its summary and ledger, and its data as its config names them."""

    folder: RunFolder
    summary: dict[str, Any]
    ledger: Ledger
    source: str

    @property
    def privacy(self) -> dict[str, Any]:
        """What was promised, of summary.json."""
        return self.summary["privacy"]

    @property
    def epsilon(self) -> float:
        """Of this run alone; infinite where the run is not private."""
        return float(self.privacy["epsilon"])

    @property
    def data(self) -> str:
        """Name of the data set."""
        return self.summary["data"].get("name") or NAMELESS


@dataclass(frozen=True)
class Group:
    """Runs whose epsilons add up: on data of one name (or of people said to be the same), with one unit and adjacency."""

    runs: tuple[Finished, ...]

    @property
    def data(self) -> str:
        """Names of the data sets."""
        return ", ".join(dict.fromkeys(run.data for run in self.runs))

    @property
    def unit(self) -> str:
        """What one of the protected is."""
        return self.runs[0].privacy["unit"]

    @property
    def adjacency(self) -> str:
        """What neighbours differ by."""
        return self.runs[0].privacy["adjacency"]

    @property
    def n(self) -> int:
        """Most units that one of the runs was trained on."""
        return max(run.summary["data"]["n"] for run in self.runs)

    @property
    def public(self) -> bool:
        """Are all runs on rows that were declared public?"""
        return all(run.summary["data"].get("public") for run in self.runs)

    def delta(self, given: float | None = None) -> float:
        """The one that is given, else the smallest of the runs'."""
        return min(run.privacy["delta"] for run in self.runs) if given is None else given

    def ledger(self) -> Ledger:
        """One ledger of all that the runs released; who is held out in one of several may be trained on in another."""
        whole = Ledger(self.adjacency, unit=self.unit)
        held_out = self._of_held_out() if len(self.runs) > 1 else []
        for ledger in [*(run.ledger for run in self.runs), *self._of_sweeps(), *held_out]:
            whole = whole.composed(ledger)
        return whole

    def _of_sweeps(self) -> list[Ledger]:
        """What sweeps released to choose among their runs, each once."""
        paths = dict.fromkeys(run.folder.path.parent / "scores.json" for run in self.runs)
        return [_ledger_beside(path) for path in paths if path.exists() and (path.parent / "sweep.toml").exists()]

    def _of_held_out(self) -> list[Ledger]:
        """What held-out people paid for readings on the way, run by run."""
        paths = [run.folder.valid_ledger for run in self.runs]
        return [_ledger_of(path, read_json(path)) for path in paths if path.exists()]

    def _adds_up(self, ledger: Ledger) -> bool:
        return (ledger.adjacency, ledger.unit) == (self.adjacency, self.unit)

    def epsilon(self, given: float | None = None) -> float:
        """Of everything together by PLD; infinite as soon as one run is not private, or what it released does not add up.

        Every run counts as if all of its people were in all the others, which bounds what anybody paid from above.
        """
        delta = self.delta(given)
        check_delta(delta)
        if any(run.privacy["status"] != "private" for run in self.runs):
            return math.inf
        held_out = self._of_held_out() if len(self.runs) > 1 else []
        if any(ledger.reproducible or not self._adds_up(ledger) for ledger in [*held_out, *self._of_sweeps()]):
            return math.inf
        counts: Counter[Any] = Counter()
        for event, count in self.ledger().events():
            counts[event] += count
        return pld_epsilon(list(counts.items()), delta, self.adjacency)

    def promise(self, epsilon: float, given: float | None = None) -> Promise:
        """What the total is in words."""
        return promise(epsilon, self.delta(given), self.n, adjacency=self.adjacency, unit=self.unit)

    def notes(self) -> list[str]:
        """What the total takes for granted, and where it counts more than was spent."""
        notes = []
        if self.public:
            notes.append(
                "These rows were declared public: the numbers say what it would cost people whose rows are not."
            )
        open_runs = [f"{run.folder.path} ({run.privacy['reason']})" for run in self.runs
                     if run.privacy["status"] != "private"]  # fmt: skip
        if open_runs:
            notes.append(f"No total, since nothing bounds what these released: {', '.join(open_runs)}.")
        places = list(dict.fromkeys(run.source for run in self.runs))
        if len(places) > 1 and len({run.data for run in self.runs}) == 1:
            notes.append(f"Data of one name in several places count as the same people: {', '.join(places)}.")
        if any(run.folder.scores.exists() for run in self.runs) or self._of_sweeps():
            notes.append(
                "Noised scores were released too (scores.json of a run or of its sweep): they are in the total."
            )
        if held_out := self._of_held_out():
            seeded = any(ledger.reproducible for ledger in held_out)
            notes.append(_about_held_out(len(self.runs) > 1, all(map(self._adds_up, held_out)), seeded))
        if len({run.privacy["delta"] for run in self.runs}) > 1:
            notes.append("The runs state several deltas: the total is at the smallest unless --delta is given.")
        if _one_goes_on(self.runs):
            notes.append("A run that goes on from another holds its releases too: they are counted in both, at most.")
        if sum(_noised_schema(run) for run in self.runs) > 1:
            notes.append(
                "Several runs hold a schema chosen with noise, counted in each: runs that share one file (train --seeds) "
                "paid it once, and a little less in all."
            )
        return notes


def _about_held_out(several: bool, adds_up: bool, seeded: bool) -> str:
    """What is said of readings that held-out people paid for."""
    if several and seeded:
        return "No total, since readings of held-out people (valid_ledger.json) have noise from a seed, which hides nobody."
    if not several:
        return (
            "Held-out people paid for readings on the way (valid_ledger.json): they are others than those trained on."
        )
    if adds_up:
        return (
            "Held-out people paid for readings on the way (valid_ledger.json): whoever is held out in one run may be trained "
            "on in another, so these are in the total."
        )
    return (
        "No total, since readings that held-out people paid for (valid_ledger.json) protect another unit than training."
    )


def _ledger_beside(path: Path) -> Ledger:
    return _ledger_of(path, read_json(path).get("ledger"))


def _ledger_of(path: Path, raw: Any) -> Ledger:
    try:
        return Ledger.from_dict(raw)
    except (KeyError, TypeError) as error:
        raise RunError(f"{path} is damaged ({error!r}): restore it from a copy.") from None


def _one_goes_on(runs: Iterable[Finished]) -> bool:
    """Do two ledgers have one secret key? It is drawn when a ledger begins, and handed on."""
    keys = [run.ledger.identity.key for run in runs if run.ledger.identity is not None]
    return len(set(keys)) < len(keys)


def _noised_schema(run: Finished) -> bool:
    return any(line.purpose.startswith("schema") for line in run.ledger.lines)


def run_folders(paths: Sequence[str | os.PathLike[str]]) -> list[RunFolder]:
    """The run folders among `paths` and below them, in order, each once; a path without any is refused."""
    folders: dict[Path, RunFolder] = {}
    for path in map(Path, paths):
        if not path.is_dir():
            raise RunError(f"{path} is no folder: name run folders, or a folder of them, e.g. runs/.")
        below = sorted(file.parent for file in path.rglob("run.json") if "sensitive" not in file.parts)
        if not below:
            raise RunError(f"{path} holds no run: `noisewise train --out {path}` makes one.")
        for place in below:
            folders.setdefault(place.resolve(), RunFolder(place))
    return list(folders.values())


def read_run(folder: RunFolder) -> Finished:
    """A finished run, with its numbers computed anew from its ledger."""
    summary = read_summary(folder)
    ledger = read_ledger(folder, unit=summary["privacy"]["unit"])
    if (score := read_score(folder)) is not None:
        ledger = ledger.composed(score.ledger)
    try:
        name = summary["data"].get("name") or NAMELESS
        settings = tomllib.loads(folder.config.read_text()) if folder.config.exists() else {}
        return Finished(folder, summary, ledger, str(settings.get("data", name)))
    except (KeyError, AttributeError, ValueError, OSError) as error:
        raise RunError(f"{folder.path}: a file is damaged ({error}): restore it from a copy.") from None


def read_runs(folders: Iterable[RunFolder]) -> tuple[list[Finished], list[RunFolder]]:
    """The finished runs, and the folders of those that are not: these have released nothing yet."""
    complete, begun = [], []
    for folder in folders:
        if folder.complete:
            complete.append(read_run(folder))
        else:
            begun.append(folder)
    return complete, begun


def grouped(runs: Iterable[Finished], *, same_people: bool = False) -> list[Group]:
    """Runs that add up. `same_people`: whatever their data are called."""
    groups: dict[tuple[str, ...], list[Finished]] = {}
    for run in runs:
        name = "" if same_people else run.data
        groups.setdefault((name, run.privacy["unit"], run.privacy["adjacency"]), []).append(run)
    return [Group(tuple(members)) for members in groups.values()]


def apart(groups: Sequence[Group]) -> list[str]:
    """Why groups are not added to each other."""
    reasons = []
    if len({group.data for group in groups}) > 1:
        reasons.append(
            "Data of several names are taken for other people. If they are not, say so: --same-people adds them up."
        )
    if len({group.unit for group in groups}) > 1:
        reasons.append("What protects a row and what protects a person cannot be added.")
    if len({group.adjacency for group in groups}) > 1:
        reasons.append("Epsilons for neighbours of several kinds (adjacency) cannot be added.")
    return reasons

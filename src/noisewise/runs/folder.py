"""The run folder (format 1): where everything lies, and the rules for writing it; one process at a time.

run.json, config.toml, schema.json, mechanism.json, model.safetensors, ledger.json, metrics.jsonl, summary.json and README.md
may be shown; `sensitive/` (mode 700) holds the data's identity, the twin, the checkpoint, recorders and audits on private data.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
import platform
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import IO, Any

from noisewise import __version__
from noisewise.errors import ConfigError, RunError
from noisewise.runs.files import finite, hold, read_json, temporary, write_atomically, write_json

FORMAT = 1
RELEASED = (  # files outside of `sensitive/`, beside run.json
    "config.toml", "schema.json", "mechanism.json", "model.safetensors", "states.safetensors", "model.py",
    "features.safetensors", "ledger.json", "valid_ledger.json", "metrics.jsonl", "summary.json", "scores.json", "README.md",
)  # fmt: skip


@dataclass(frozen=True)
class Status:
    """private (covered by the ledger), not-proven (no accountant covers it) or not-private, and why."""

    status: str
    reason: str


class RunFolder:
    """Every path of a run, and the rules for writing them."""

    def __init__(self, path: str | os.PathLike[str]):
        if not isinstance(path, str | os.PathLike):
            raise ConfigError(f"out={path!r}: must be the path of a run folder, e.g. out='runs/first'.")
        self.path = Path(path)
        self.sensitive = self.path / "sensitive"
        self.checkpoint = self.sensitive / "checkpoint.safetensors"
        self.identity = self.sensitive / "identity.json"
        self.lock = self.sensitive / "lock"
        self.private_metrics = self.sensitive / "metrics.jsonl"
        self.twin_weights = self.sensitive / "twin.safetensors"  # no ledger covers them
        self.twin = self.sensitive / "twin"  # the twin's own run, while it lasts
        self.audits = self.sensitive / "audits"
        self.recorders = self.sensitive / "recorders"
        self.report = self.sensitive / "report.html"
        self.suggestions = self.sensitive / "suggestions.json"  # drawn from audits
        self.kept = self.sensitive / "states.safetensors"  # of a run that is not private, or not finished
        self.model = self.path / "model.safetensors"
        self.states = self.path / "states.safetensors"  # along a private run, where somebody asked for them
        self.ledger = self.path / "ledger.json"
        self.valid_ledger = self.path / "valid_ledger.json"  # of readings that held-out people paid for
        self.summary = self.path / "summary.json"
        self.config = self.path / "config.toml"
        self.run = self.path / "run.json"
        self.metrics = self.path / "metrics.jsonl"
        self.schema = self.path / "schema.json"
        self.mechanism = self.path / "mechanism.json"
        self.scores = (
            self.path / "scores.json"
        )  # noised, with a ledger of their own; only where somebody asked for them
        self.readme = self.path / "README.md"
        self.code = self.path / "model.py"
        self.centre = self.sensitive / "centre.safetensors"  # released before training; a later twin needs it too
        self.features = self.path / "features.safetensors"  # of an encoder that learned on made-up images

    def audit(self, name: str) -> Path:
        """Where the result of an audit lies."""
        return self.audits / f"{name}.json"

    def phase(self, number: int) -> RunFolder:
        """The run of one of a recipe's phases, while the whole is not finished."""
        return RunFolder(self.sensitive / f"phase-{number}")

    def create(self) -> None:
        """Make the folders; `sensitive/` for the owner only."""
        try:
            self.path.mkdir(parents=True, exist_ok=True)
            self.sensitive.mkdir(mode=0o700, exist_ok=True)
            self.sensitive.chmod(0o700)
        except OSError as error:
            raise RunError(
                f"{self.path} cannot be used as a run folder ({error.strerror}): choose another --out."
            ) from None

    @contextmanager
    def locked(self) -> Iterator[None]:
        """One process at a time."""
        self.create()
        try:
            held = hold(self.lock)
        except TimeoutError:
            raise RunError(f"{self.path} is in use by another process: wait for it, or choose another --out.") from None
        except OSError as error:
            raise _cannot_be_opened(self.lock, error) from None
        with held:
            yield

    def forget_checkpoint(self) -> None:
        """Delete the secrets that only resuming needs, also those of a checkpoint that a kill left half written."""
        self.checkpoint.unlink(missing_ok=True)
        temporary(self.checkpoint).unlink(missing_ok=True)

    @property
    def begun(self) -> bool:
        """Is there a checkpoint to go on from?"""
        return os.path.exists(self.checkpoint)  # unlike Path.exists, no error where a name is too long

    @property
    def complete(self) -> bool:
        """Has a run ended here?"""
        about = read_json(self.run) if self.run.exists() else None
        return isinstance(about, dict) and about.get("state") == "complete"

    def write_run(self, state: str, status: Status) -> None:
        """run.json: format, status, versions and hardware; no paths, no host names. Of a complete run also digests."""
        write_json(
            self.run,
            {
                "format": FORMAT,
                "state": state,
                "status": status.status,
                "reason": status.reason,
                "versions": versions(),
                "hardware": hardware(),
                **({"files": self.digests()} if state == "complete" else {}),
            },
        )

    def digests(self) -> dict[str, str]:
        """SHA-256 of each released file that is there: whoever has run.json sees what was changed later."""
        paths = {name: self.path / name for name in RELEASED}
        return {name: hashlib.sha256(path.read_bytes()).hexdigest() for name, path in paths.items() if path.is_file()}

    def changed(self, path: Path) -> bool:
        """Is a released file another one than run.json says? Of what it says nothing about, nothing is known."""
        sealed = read_json(self.run).get("files", {}).get(path.name)
        return sealed is not None and sealed != self.digests().get(path.name)

    def seal(self, *paths: Path) -> None:
        """Put files that were written after run.json under its digests; the others stay as they were sealed."""
        about, digests = read_json(self.run), self.digests()
        if "files" in about:  # an older version wrote none, and some of them would look like all
            later = {path.name: digests[path.name] for path in paths if path.name in digests}
            write_json(self.run, {**about, "files": {**about["files"], **later}})

    def append_metrics(self, line: Mapping[str, Any], *, public: bool) -> None:
        """One line of metrics.jsonl, or of sensitive/metrics.jsonl."""
        path = self.metrics if public else self.private_metrics
        try:
            with _opened(path, "a") as file:
                file.write(json.dumps(finite(line)) + "\n")
        except OSError as error:
            raise RunError(
                f"{path.name} could not be written ({error.strerror}): free space or choose another folder, then resume."
            ) from error

    def truncate_metrics(self, step: int) -> None:
        """Forget lines of steps that a resumed run will do again."""
        for path in (self.metrics, self.private_metrics):
            if path.exists():
                lines = [line for line in path.read_text().splitlines() if _step_of(line) <= step]
                write_atomically(path, "".join(f"{line}\n" for line in lines).encode())


def _opened(path: Path, mode: str) -> IO[str]:
    try:
        return path.open(mode)
    except OSError as error:
        raise _cannot_be_opened(path, error) from None


def _cannot_be_opened(path: Path, error: OSError) -> RunError:
    return RunError(f"{path} cannot be opened ({error.strerror}): choose another --out.")


def _step_of(line: str) -> float:
    try:
        return json.loads(line)["step"]
    except (json.JSONDecodeError, KeyError, TypeError):
        return math.inf  # a line that a kill cut short


def versions() -> dict[str, str]:
    """Versions that results depend on."""
    packages = ("torch", "numpy", "dp-accounting")
    return {"noisewise": __version__, "python": platform.python_version(), **{name: version(name) for name in packages}}


def hardware() -> dict[str, Any]:
    """What the run was computed on."""
    import torch

    devices = [torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count())]
    return {"machine": platform.machine(), "cores": os.cpu_count(), "threads": torch.get_num_threads(), "gpus": devices}

"""The run folder (format 1): atomic files, one process at a time, never pickle.

run.json, config.toml, model.safetensors, ledger.json, metrics.jsonl and summary.json may be shown; `sensitive/` (mode 700)
holds the data's identity, the twin, the checkpoint, recorders and audits on private data.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import math
import os
import platform
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

from noisewise import __version__
from noisewise.errors import RunError
from noisewise.wording import promised

if TYPE_CHECKING:
    from noisewise.accounting import Ledger

FORMAT = 1


@dataclass(frozen=True)
class Status:
    """private (covered by the ledger), not-proven (no accountant covers it) or not-private, and why."""

    status: str
    reason: str


def write_atomically(path: Path, content: bytes) -> None:
    """Whoever reads `path` sees the old file or the new one, also after a kill or a power cut."""
    temporary = _temporary(path)
    try:
        with temporary.open("wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
        folder = os.open(path.parent, os.O_RDONLY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)
    except OSError as error:
        temporary.unlink(missing_ok=True)
        raise RunError(
            f"{path.name} could not be written ({error.strerror}): the last good version is kept. "
            "Free space or choose another folder, then resume."
        ) from error


def _temporary(path: Path) -> Path:
    return path.with_name(f".{path.name}.tmp")


def write_json(path: Path, content: Any) -> None:
    """Readable JSON; infinite numbers as the string 'inf'."""
    write_atomically(path, (json.dumps(_finite(content), indent=2, allow_nan=False) + "\n").encode())


def _finite(value: Any) -> Any:
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    if isinstance(value, Mapping):
        return {str(key): _finite(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(item) for item in value]
    return value


def read_json(path: Path) -> Any:
    """JSON of a run folder, or an error that names the file."""
    try:
        return json.loads(path.read_text())
    except FileNotFoundError:
        raise RunError(f"{path} does not exist: is this a run folder that `noisewise train --out` finished?") from None
    except (json.JSONDecodeError, UnicodeDecodeError, OSError) as error:
        raise RunError(f"{path} cannot be read ({error}): restore it from a copy.") from None


STATUSES = ("private", "not-proven", "not-private")
READINGS = ("epsilon", "rdp_epsilon", "gdp_epsilon")
SHARED = ("delta", "adjacency", "sampler", "noise_multiplier", "steps")  # said by summary.json and config.toml


def read_status(folder: RunFolder) -> Status:
    """What a finished run says it is: run.json and summary.json must say the same."""
    about, summary = read_json(folder.run), read_json(folder.summary)
    try:
        found = [(source["status"], source["reason"]) for source in (about, summary["privacy"])]
        status, reason = found[0]
        agree = found[0] == found[1] and status in STATUSES and isinstance(reason, str)
    except (KeyError, TypeError, IndexError):
        agree = False
    if not agree:
        raise RunError(
            f"{folder.path}: run.json and summary.json do not say the same about whether the run is private. One of them "
            "was edited or damaged: restore it from a copy."
        )
    return Status(status, reason)


def read_ledger(folder: RunFolder, *, unit: str | None = None) -> Ledger:
    """ledger.json, with the data's identity where `sensitive/` is still beside it. `unit`: where format 1 says none."""
    from noisewise.accounting import Identity, Ledger

    ledger = Ledger.from_dict(read_json(folder.ledger), unit=unit)
    if folder.identity.exists():
        ledger.identity = Identity.from_dict(read_json(folder.identity))
    return ledger


def read_summary(folder: RunFolder) -> dict[str, Any]:
    """summary.json of a finished run.

    Guarantee: its epsilons are those of ledger.json, computed anew, its strength (where it says one) is what these are
    called, and its plan is that of config.toml (where there is one); files that disagree are refused, so that no edited
    number is shown.
    """
    status, summary = read_status(folder), read_json(folder.summary)
    ledger = read_ledger(folder)
    try:
        privacy = summary["privacy"]
        if privacy["adjacency"] != ledger.adjacency:
            raise ValueError(f"adjacency {privacy['adjacency']!r} is not {ledger.adjacency!r}")
        if ledger.unit is not None and privacy["unit"] != ledger.unit:
            raise ValueError(f"unit {privacy['unit']!r} is not {ledger.unit!r}")
        if ledger.reproducible and status.status != "not-private":
            raise ValueError("its noise is reproducible, and the status does not say so")
        for name, expected in _readings(ledger, status, privacy["delta"]).items():
            if not _same_reading(privacy[name], expected):
                raise ValueError(f"{name} is {privacy[name]!r}, by the ledger {expected!r}")
        _check_settings(folder, privacy)
        _check_strength(summary)
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise RunError(
            f"{folder.path}: summary.json does not fit ledger.json and config.toml ({error}). One of them was edited or "
            "damaged: restore it from a copy."
        ) from None
    return summary


def _readings(ledger: Any, status: Status, delta: float) -> dict[str, float | None]:
    """Epsilon by every accountant, as a summary holds it."""
    import dp_accounting

    from noisewise.accounting import spent

    nothing = [(dp_accounting.NonPrivateDpEvent(), 1)]
    found = spent(nothing if status.status == "not-private" else ledger.events(), delta, ledger.adjacency)
    return {name: getattr(found, name) for name in READINGS}


def _same_reading(written: Any, expected: float | None) -> bool:
    """Equal up to what another version of the accountant may change; infinite numbers are written as text."""
    if written is None or expected is None or isinstance(written, bool):
        return written is expected
    return math.isclose(float(written), expected, rel_tol=1e-3)


def _check_settings(folder: RunFolder, privacy: Mapping[str, Any]) -> None:
    """The plan in summary.json is the plan in config.toml."""
    import tomllib

    if not folder.config.exists():
        return
    try:
        settings = tomllib.loads(folder.config.read_text())
    except OSError as error:
        raise ValueError(f"config.toml cannot be read: {error}") from None
    for name in SHARED:
        if settings.get(name) != privacy[name]:
            raise ValueError(f"{name} is {privacy[name]!r}, in config.toml {settings.get(name)!r}")
    budget, cost = settings.get("epsilon"), privacy.get("plan_epsilon")
    if budget is not None and cost is not None and not float(cost) <= budget:
        raise ValueError(f"plan_epsilon {cost!r} is above epsilon {budget!r} in config.toml")


def _check_strength(summary: Mapping[str, Any]) -> None:
    """The word in summary.json follows its numbers; summaries of earlier versions have none."""
    privacy = summary["privacy"]
    if "strength" in privacy and privacy["strength"] != (expected := promised(summary).strength):
        raise ValueError(f"strength is {privacy['strength']!r}, by its epsilon and delta {expected!r}")


def save_tensors(path: Path, tree: Any) -> None:
    """A nest of tensors, numbers, strings, lists, tuples and dicts in one safetensors file."""
    from safetensors.torch import save

    tensors: dict[str, Any] = {}
    skeleton = json.dumps(_pack(tree, tensors))
    write_atomically(path, save(tensors, metadata={"tree": skeleton, "digest": _digest(skeleton, tensors)}))


def load_tensors(path: Path) -> Any:
    """Inverse of `save_tensors`; a damaged file is an error, and nothing in it is executed."""
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(path, framework="pt") as file:
            tensors = {key: file.get_tensor(key) for key in file.keys()}  # noqa: SIM118  not a dict
            metadata = file.metadata() or {}
        if metadata["digest"] != _digest(metadata["tree"], tensors):
            raise ValueError("its content does not fit its digest")
        return _unpack(json.loads(metadata["tree"]), tensors)
    except FileNotFoundError:
        raise RunError(f"{path} does not exist.") from None
    except (SafetensorError, json.JSONDecodeError, KeyError, TypeError, OSError, ValueError) as error:
        raise RunError(
            f"{path} is damaged ({error}): it cannot be used. Start the run anew, or restore a copy."
        ) from None


def _digest(skeleton: str, tensors: Mapping[str, Any]) -> str:
    """Shows damage, such as a flipped bit that would go unnoticed in the weights."""
    import torch

    digest = hashlib.sha256(skeleton.encode())
    for key in sorted(tensors):
        digest.update(f"{key} {tensors[key].dtype} {list(tensors[key].shape)}".encode())
        digest.update(tensors[key].reshape(-1).view(torch.uint8).numpy())
    return digest.hexdigest()


def _pack(tree: Any, tensors: dict[str, Any]) -> Any:
    import torch

    match tree:
        case torch.Tensor():
            key = str(len(tensors))
            tensors[key] = tree.detach().cpu().contiguous().clone()
            return {"tensor": key}
        case dict():
            return {"dict": [[_pack(key, tensors), _pack(value, tensors)] for key, value in tree.items()]}
        case list() | tuple():
            return {type(tree).__name__: [_pack(value, tensors) for value in tree]}
        case None | bool() | int() | float() | str():
            return {"value": tree}
    raise RunError(
        f"a {type(tree).__name__} cannot be saved in a checkpoint: only tensors, numbers, text and containers."
    )


def _unpack(skeleton: Any, tensors: Mapping[str, Any]) -> Any:
    ((kind, content),) = skeleton.items()
    match kind:
        case "tensor":
            return tensors[content]
        case "dict":
            return {_unpack(key, tensors): _unpack(value, tensors) for key, value in content}
        case "list":
            return [_unpack(value, tensors) for value in content]
        case "tuple":
            return tuple(_unpack(value, tensors) for value in content)
        case "value":
            return content
    raise KeyError(kind)


class RunFolder:
    """Paths of a run and the rules for writing them."""

    def __init__(self, path: str | os.PathLike[str]):
        self.path = Path(path)
        self.sensitive = self.path / "sensitive"
        self.checkpoint = self.sensitive / "checkpoint.safetensors"
        self.identity = self.sensitive / "identity.json"
        self.model = self.path / "model.safetensors"
        self.ledger = self.path / "ledger.json"
        self.summary = self.path / "summary.json"
        self.config = self.path / "config.toml"
        self.run = self.path / "run.json"
        self.metrics = self.path / "metrics.jsonl"
        self.schema = self.path / "schema.json"

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
        with self._opened(self.sensitive / "lock", "w") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError:
                raise RunError(
                    f"{self.path} is in use by another process: wait for it, or choose another --out."
                ) from None
            yield

    def _opened(self, path: Path, mode: str) -> IO[str]:
        try:
            return path.open(mode)
        except OSError as error:
            raise RunError(f"{path} cannot be opened ({error.strerror}): choose another --out.") from None

    def forget_checkpoint(self) -> None:
        """Delete the secrets that only resuming needs, also those of a checkpoint that a kill left half written."""
        self.checkpoint.unlink(missing_ok=True)
        _temporary(self.checkpoint).unlink(missing_ok=True)

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
        """run.json: format, status, versions and hardware; no paths, no host names."""
        write_json(
            self.run,
            {
                "format": FORMAT,
                "state": state,
                "status": status.status,
                "reason": status.reason,
                "versions": versions(),
                "hardware": hardware(),
            },
        )

    def append_metrics(self, line: Mapping[str, Any], *, public: bool) -> None:
        """One line of metrics.jsonl, or of sensitive/metrics.jsonl."""
        path = self.metrics if public else self.sensitive / "metrics.jsonl"
        try:
            with self._opened(path, "a") as file:
                file.write(json.dumps(_finite(line)) + "\n")
        except OSError as error:
            raise RunError(
                f"{path.name} could not be written ({error.strerror}): free space or choose another folder, then resume."
            ) from error

    def truncate_metrics(self, step: int) -> None:
        """Forget lines of steps that a resumed run will do again."""
        for path in (self.metrics, self.sensitive / "metrics.jsonl"):
            if path.exists():
                lines = [line for line in path.read_text().splitlines() if _step_of(line) <= step]
                write_atomically(path, "".join(f"{line}\n" for line in lines).encode())


def _step_of(line: str) -> float:
    try:
        return json.loads(line)["step"]
    except (json.JSONDecodeError, KeyError, TypeError):
        return math.inf  # a line that a kill cut short


def versions() -> dict[str, str]:
    """Versions that results depend on."""
    from importlib.metadata import version

    packages = ("torch", "numpy", "dp-accounting")
    return {"noisewise": __version__, "python": platform.python_version(), **{name: version(name) for name in packages}}


def hardware() -> dict[str, Any]:
    """What the run was computed on."""
    import torch

    devices = [torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count())]
    return {"machine": platform.machine(), "cores": os.cpu_count(), "threads": torch.get_num_threads(), "gpus": devices}

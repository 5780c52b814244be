"""The file of a sweep: which settings are tried, on which rows, and how the best is chosen. No torch here."""

from __future__ import annotations

import itertools
import os
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from noisewise.data.catalog import CATALOG
from noisewise.errors import ConfigError, RunError
from noisewise.workflow.checks import check_recipe, check_settings

MOST = 1000
SETTINGS = (  # names of `Config`, without importing it
    "data", "valid", "model", "seed", "epsilon", "noise_multiplier", "delta", "adjacency", "sampler", "batch_size", "steps",
    "clip", "bound", "screen", "optimizer", "lr", "momentum", "ema", "schedule", "keep_states", "twin", "twin_lr", "engine",
    "microbatch", "memory", "insecure_seed", "test", "drop_unlabelled", "public", "device", "secure", "recipe",
    "repairs",
)  # fmt: skip
BESIDE = ("epochs", "schema")  # said to a run, and not in its config
EXACT, NOISED = "valid", "noised-valid"
TABLES = ("train", "sweep", "runs", "stand_in", "choose")
EXAMPLE = '[train]\ndata = "digits"\nepsilon = 3\n\n[sweep]\nlr = [0.25, 0.5, 1.0]\nbound = [0.1, 0.5]'


@dataclass(frozen=True)
class Choose:
    """How the best run is found: by its score on held-out rows, exact (public rows only) or noised for `epsilon` in all."""

    by: str
    epsilon: float | None = None

    def __post_init__(self) -> None:
        """A known way; what noise costs, where there is noise."""
        if self.by not in (EXACT, NOISED):
            raise ConfigError(
                f"[choose] by = {self.by!r}: must be {EXACT!r} (public rows only) or {NOISED!r}, which is paid for."
            )
        if self.by == NOISED and (type(self.epsilon) not in (int, float) or not 0 < self.epsilon < 100):  # type: ignore[operator]
            raise ConfigError(
                f"[choose] epsilon = {self.epsilon!r}: say what the noised scores of all runs may cost together, e.g. 0.1."
            )
        if self.by == EXACT and self.epsilon is not None:
            raise ConfigError(f"[choose] epsilon with by = {EXACT!r}: exact scores take no noise. Use by = {NOISED!r}.")


@dataclass(frozen=True)
class Sweep:
    """What a sweep's file says: settings of each run (those that all share included), and those that differ.

    wanted: the settings of the final run, where the sweep itself trains on a stand-in.
    """

    text: str
    runs: tuple[dict[str, Any], ...]
    tried: tuple[dict[str, Any], ...]
    shared: dict[str, Any]
    stand_in: dict[str, Any] | None
    choose: Choose | None

    @classmethod
    def read(cls, path: str | os.PathLike[str]) -> Sweep:
        """From a TOML file."""
        try:
            text = Path(path).read_text()
        except (OSError, UnicodeDecodeError) as error:
            raise ConfigError(f"{path} cannot be read ({error}): name a TOML file, e.g. with\n{EXAMPLE}") from None
        return cls.from_toml(text, Path(path).name)

    @classmethod
    def from_toml(cls, text: str, name: str = "the file") -> Sweep:
        """From TOML; unknown entries, settings that can mean nothing and runs that are alike stop."""
        try:
            raw = tomllib.loads(text)
        except tomllib.TOMLDecodeError as error:
            raise ConfigError(f"{name} is not valid TOML: {error}.") from None
        if unknown := sorted(set(raw) - set(TABLES)):
            raise ConfigError(
                f"{name}: unknown entries {', '.join(unknown)}. Known are the tables {', '.join(TABLES)}; settings that all "
                "runs share stand in [train]."
            )
        if ("sweep" in raw) == ("runs" in raw):
            raise ConfigError(
                f"{name}: give [sweep] (every combination) or [[runs]] (one by one), one of them, e.g.\n{EXAMPLE}"
            )
        shared, stand_in = _table(raw, "train", name), _table(raw, "stand_in", name) if "stand_in" in raw else None
        tried = _grid(_table(raw, "sweep", name), name) if "sweep" in raw else _listed(raw["runs"], name)
        twice = [one for place, one in enumerate(tried) if one in tried[:place]]
        if twice:
            raise ConfigError(f"{name}: {said(twice[0])} occurs twice; it would be paid for twice.")
        if both := sorted(set(shared) & {key for one in tried for key in one}):
            raise ConfigError(f"{name}: {both[0]} stands in [train] and is tried too. Leave it in one place.")
        runs = tuple({**shared, **(stand_in or {}), **one} for one in tried)
        for one in runs:
            _check_run(one, name)
        choose = raw.get("choose")
        if choose is not None and (
            not isinstance(choose, dict) or not set(choose) <= {"by", "epsilon"} or "by" not in choose
        ):
            raise ConfigError(f"{name}: [choose] holds `by` ({EXACT!r} or {NOISED!r}) and `epsilon`, and nothing else.")
        return cls(text, runs, tried, shared, stand_in, None if choose is None else Choose(**choose))


def _table(raw: Mapping[str, Any], table: str, name: str) -> dict[str, Any]:
    entries = raw.get(table, {})
    if not isinstance(entries, dict):
        raise ConfigError(f"{name}: [{table}] must be a table of settings.")
    if unknown := sorted(set(entries) - {*SETTINGS, *BESIDE}):
        raise ConfigError(f"{name}: [{table}] has unknown settings {', '.join(unknown)}. Known are {_known()}.")
    return entries


def _known() -> str:
    return ", ".join((*SETTINGS, *BESIDE))


def _grid(entries: Mapping[str, Any], name: str) -> tuple[dict[str, Any], ...]:
    """Every combination, the last setting changing fastest."""
    if not entries:
        raise ConfigError(f"{name}: [sweep] tries nothing. Give lists, e.g. lr = [0.25, 0.5].")
    for key, values in entries.items():
        if not isinstance(values, list) or not values:
            raise ConfigError(
                f"{name}: [sweep] {key} = {values!r} must be a list; what all runs share stands in [train]."
            )
    if (count := _product(len(values) for values in entries.values())) > MOST:
        raise ConfigError(
            f"{name}: {count:,} combinations; at most {MOST:,} are tried. List single runs with [[runs]]."
        )
    return tuple(dict(zip(entries, values, strict=True)) for values in itertools.product(*entries.values()))


def _product(numbers: Any) -> int:
    product = 1
    for number in numbers:
        product *= number
    return product


def _listed(runs: Any, name: str) -> tuple[dict[str, Any], ...]:
    if not isinstance(runs, list) or not runs or not all(isinstance(one, dict) and one for one in runs):
        raise ConfigError(f"{name}: [[runs]] must be tables of settings, each with at least one.")
    return tuple(_table({"runs": one}, "runs", name) for one in runs)


def _check_run(settings: Mapping[str, Any], name: str) -> None:
    check_settings(settings)
    check_recipe(settings)
    if "epsilon" in settings and "noise_multiplier" in settings:
        raise ConfigError(
            f"{name}: epsilon and noise_multiplier in one run: one follows from the other. Give one of them."
        )
    if "epsilon" not in settings and "noise_multiplier" not in settings:
        raise ConfigError(f"{name}: how private? Give epsilon (e.g. 3; smaller is more private) in [train].")
    if "epochs" in settings and "steps" in settings:
        raise ConfigError(f"{name}: epochs and steps in one run: give one of them.")
    data = settings.get("data")
    if data is None:
        raise ConfigError(
            f"{name}: which data? Say data in [train]: a name (noisewise datasets), a CSV file or a folder."
        )
    if not isinstance(data, str) or (data not in CATALOG and not Path(data).exists()):
        raise ConfigError(f"data {data!r}: neither a data set by name (noisewise datasets) nor a file nor a folder.")
    schema = settings.get("schema")
    if Path(data).is_file() and schema is None:
        raise ConfigError(
            f"{data} without a schema: `noisewise schema {data} --label COLUMN` writes one; say schema = FILE in {name}."
        )
    if schema is not None and not Path(str(schema)).is_file():
        raise ConfigError(f"schema = {schema!r}: there is no such file.")


def said(settings: Mapping[str, Any]) -> str:
    """Settings in one line.

    >>> said({"lr": 0.5, "repairs": ["lora:rank=2"]})
    'lr=0.5 repairs=lora:rank=2'
    """
    return " ".join(f"{key}={_text(value)}" for key, value in settings.items())


def _text(value: Any) -> str:
    if isinstance(value, list | tuple):
        return " ".join(map(str, value))
    return str(value).lower() if isinstance(value, bool) else str(value)


def command(settings: Mapping[str, Any], out: str) -> str:
    """The command line that trains with these settings."""
    words = ["noisewise train"]
    for key, value in settings.items():
        if key in ("data", "epsilon", "schema", "epochs"):
            words.append(f"--{key} {value}")
        elif key == "repairs":
            words += [f"--repair '{text}'" for text in value]
        elif key == "public":
            words += ["--public"] * bool(value)
        else:
            words.append(f"--set {key}={_text(value)}")
    return " ".join([*words, f"--out {out}"])


def check_same(sweep: Sweep, folder: Path) -> None:
    """A folder belongs to one sweep."""
    path = folder / "sweep.toml"
    if folder.is_file():
        raise RunError(f"{folder} is a file: --out must be a folder.")
    if path.exists() and path.read_text() != sweep.text:
        raise RunError(
            f"{folder} belongs to a sweep of another file ({path}): choose another --out, or restore the file."
        )
    if not path.exists() and folder.is_dir() and any(folder.iterdir()):
        raise RunError(f"{folder} holds something else: choose another --out.")

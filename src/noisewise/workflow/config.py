"""From what a user says to a complete config: `Config` (what config.toml holds) and `configure`, which fills in defaults."""

from __future__ import annotations

import os
import tomllib
from collections.abc import Sequence
from dataclasses import MISSING, asdict, dataclass, fields, replace
from pathlib import Path
from typing import Any, cast, get_args, get_type_hints

from noisewise.data import Splits
from noisewise.data.tables.schema import Schema
from noisewise.errors import ConfigError
from noisewise.randomness import Entropy
from noisewise.runtime import Engine, Runtime
from noisewise.sampling import steps_for
from noisewise.workflow.checks import check_settings
from noisewise.workflow.choices import takes
from noisewise.workflow.defaults import filled_in
from noisewise.workflow.plan import Planned, splits_of
from noisewise.workflow.repair_specs import converted


@dataclass(frozen=True, kw_only=True)
class Config:
    """Every setting of a run, defaults filled in; config.toml holds exactly these.

    Guarantee: equal configs are equal plans. With `epsilon`, the noise multiplier was calibrated to it, and a config
    whose noise multiplier costs more than its epsilon is refused. Only `insecure_seed` makes the noise repeat.
    """

    data: str
    valid: int
    model: str
    seed: int
    epsilon: float | None = None
    noise_multiplier: float | None = None
    delta: float
    adjacency: str
    sampler: str
    batch_size: int
    steps: int
    clip: str
    bound: float
    screen: float | None = None
    optimizer: str
    lr: float
    momentum: float
    ema: float | None = None
    twin: bool
    twin_lr: float
    engine: str
    microbatch: int | None = None
    insecure_seed: int | None = None
    test: float | str | None = None
    drop_unlabelled: bool = False
    public: bool = False
    device: str | None = None
    secure: bool = False
    repairs: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        """Right types, known names, numbers in range; what is in the mechanism is checked there."""
        object.__setattr__(self, "repairs", tuple(self.repairs))
        hints = get_type_hints(type(self))
        for field in fields(self):
            _check_type(field.name, getattr(self, field.name), hints[field.name])
        check_settings(vars(self))
        if self.insecure_seed is not None:
            Entropy.insecure(self.insecure_seed)
        self.runtime()

    def runtime(self) -> Runtime:
        """How steps are computed."""
        return Runtime(engine=cast(Engine, self.engine), microbatch=self.microbatch)

    def to_toml(self) -> str:
        """Text of config.toml; settings that are off are left out."""
        import tomli_w

        later = {field.name: field.default for field in fields(self) if field.default is not MISSING}
        said = {name: value for name, value in asdict(self).items() if name not in later or value != later[name]}
        return tomli_w.dumps({"format": 1, **said})

    @classmethod
    def from_toml(cls, text: str, name: str = "config.toml") -> Config:
        """Inverse of `to_toml`; unknown and missing entries stop, with their names."""
        try:
            raw = tomllib.loads(text)
        except tomllib.TOMLDecodeError as error:
            raise ConfigError(f"{name} is not valid TOML: {error}.") from None
        if raw.pop("format", None) != 1:
            raise ConfigError(f"{name}: this version reads `format = 1`.")
        unknown = set(raw) - {field.name for field in fields(cls)}
        if unknown:
            known = ", ".join(field.name for field in fields(cls))
            raise ConfigError(f"{name}: unknown entries {', '.join(sorted(unknown))}. Known are {known}.")
        missing = {field.name for field in fields(cls) if field.default is MISSING} - set(raw)
        if missing:
            raise ConfigError(
                f"{name}: {', '.join(sorted(missing))} missing; a config is complete. Start from a run's."
            )
        return cls(**raw)

    @classmethod
    def read(cls, path: str | os.PathLike[str]) -> Config:
        """A config file."""
        path = Path(path)
        try:
            return cls.from_toml(path.read_text(), path.name)
        except FileNotFoundError:
            raise ConfigError(f"{path} does not exist: `noisewise train` writes one into every run folder.") from None
        except (OSError, UnicodeDecodeError) as error:
            raise ConfigError(f"{path} cannot be read: {error}.") from None


def _check_type(name: str, value: Any, hint: Any) -> None:
    if name == "repairs":
        if not all(isinstance(text, str) for text in value):
            raise ConfigError(f"repairs={value!r}: must be a list of texts, e.g. ['moving-average:decay=0.99'].")
        return
    kinds = get_args(hint) or (hint,)
    whole_as_float = float in kinds and type(value) is int
    if type(value) not in kinds and not whole_as_float:
        wanted = " or ".join(kind.__name__ for kind in kinds if kind is not type(None))
        raise ConfigError(f"{name}={value!r}: must be of type {wanted}.")


def parsed_settings(texts: Sequence[str]) -> dict[str, Any]:
    """Settings as `key=value`, with the types that a config has."""
    hints, given = get_type_hints(Config), dict[str, Any]()
    for text in texts:
        key, equals, value = text.partition("=")
        name = key.strip().replace("-", "_")
        if not equals or name not in hints:
            raise ConfigError(f"--set {text}: must be KEY=VALUE with one of {', '.join(hints)}.")
        given[name] = tuple(value.split()) if name == "repairs" else converted(name, value.strip(), hints[name])
    return given


PLAN = (
    "data", "valid", "test", "drop_unlabelled", "epsilon", "delta", "adjacency", "sampler", "batch_size", "steps", "clip",
    "repairs",
)  # fmt: skip


def configure(
    base: Config | None = None, *, epochs: float | None = None, schema: Schema | None = None, **given: Any
) -> Config:
    """A complete config from what the user gave: over `base`, else over the defaults of the data set.

    Gives a noise multiplier to a config that has only an epsilon (a few seconds); keeps it where the plan is unchanged.
    """
    return plan(base, epochs=epochs, schema=schema, **given).config


def plan(
    base: Config | None = None, *, epochs: float | None = None, schema: Schema | None = None, **given: Any
) -> Planned:
    """As `configure`, with the data that were loaded and the recipe that was built for it. `schema`: of a table."""
    given = {name: value for name, value in given.items() if value is not None}
    unknown = set(given) - {field.name for field in fields(Config)}
    if unknown:
        raise ConfigError(f"unknown settings {', '.join(sorted(unknown))}.")
    if "steps" in given and epochs is not None:
        raise ConfigError(f"epochs={epochs} and steps={given['steps']}: give one of them.")
    if "epsilon" in given and "noise_multiplier" in given:
        raise ConfigError(
            f"epsilon={given['epsilon']} and noise_multiplier={given['noise_multiplier']}: one follows from the other; "
            "give one of them."
        )
    splits: Splits | None = None
    if base is None:
        settings, splits = filled_in(given, epochs, schema)
    else:
        settings = asdict(base) | given
        if not takes(settings["clip"], "screen") and "screen" not in given:
            settings["screen"] = None
        if epochs is not None:
            splits = splits_of(settings, schema)
            settings["steps"] = steps_for(epochs, splits.train.units, settings["batch_size"])
        if "noise_multiplier" in given:
            settings["epsilon"] = None
        elif settings["epsilon"] is not None and any(settings[name] != getattr(base, name) for name in PLAN):
            settings["noise_multiplier"] = None
    config = Config(**settings)
    planned = Planned(config, splits_of(asdict(config), schema) if splits is None else splits)
    recipe = planned.recipe  # refuses what cannot be planned
    if config.noise_multiplier is None:
        config = replace(config, noise_multiplier=recipe.mechanism.noise_at(0))
    return Planned(config, planned.data, recipe)

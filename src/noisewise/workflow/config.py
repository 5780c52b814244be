"""From what a user says to a complete config: `Config` (what config.toml holds) and `configure`, which fills in defaults."""

from __future__ import annotations

import os
import tomllib
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import Any, cast, get_args, get_type_hints

from noisewise.accounting.accountants import check_delta
from noisewise.data import Splits, load
from noisewise.errors import ConfigError
from noisewise.models import MODELS
from noisewise.randomness import Entropy
from noisewise.runtime import Engine, Runtime
from noisewise.sampling import SAMPLERS, steps_for
from noisewise.workflow.choices import CLIPS, OPTIMIZERS, takes
from noisewise.workflow.defaults import filled_in
from noisewise.workflow.plan import Planned


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

    def __post_init__(self) -> None:
        """Right types, known names, numbers in range; what is in the mechanism is checked there."""
        hints = get_type_hints(type(self))
        for field in fields(self):
            _check_type(field.name, getattr(self, field.name), hints[field.name])
        if self.model not in MODELS:
            raise ConfigError(f"model {self.model!r}: unknown. Known models: {', '.join(MODELS)}.")
        if self.clip not in CLIPS:
            raise ConfigError(f"clip={self.clip!r}: must be one of {', '.join(CLIPS)}.")
        if self.screen is not None and not takes(self.clip, "screen"):
            raise ConfigError(f"screen={self.screen} with clip={self.clip!r}: only global clipping screens.")
        if self.optimizer not in OPTIMIZERS:
            raise ConfigError(f"optimizer={self.optimizer!r}: must be one of {', '.join(OPTIMIZERS)}.")
        if self.sampler not in SAMPLERS:
            raise ConfigError(f"sampler={self.sampler!r}: must be one of {', '.join(SAMPLERS)}.")
        for name in ("lr", "twin_lr"):
            if not 0 < getattr(self, name) < float("inf"):
                raise ConfigError(f"{name}={getattr(self, name)}: must be a number above 0, e.g. 0.1.")
        if not 0 <= self.momentum < 1:
            raise ConfigError(f"momentum={self.momentum}: must be in [0, 1), e.g. 0.9, or 0 for none.")
        if self.seed < 0:
            raise ConfigError(f"seed={self.seed}: must be a whole number >= 0.")
        if self.ema is not None and not 0 < self.ema < 1:
            raise ConfigError(f"ema={self.ema}: a decay in (0, 1), e.g. 0.9999, or none.")
        if self.insecure_seed is not None:
            Entropy.insecure(self.insecure_seed)
        check_delta(self.delta)
        self.runtime()

    def runtime(self) -> Runtime:
        """How steps are computed."""
        return Runtime(engine=cast(Engine, self.engine), microbatch=self.microbatch)

    def to_toml(self) -> str:
        """Text of config.toml; settings that are off are left out."""
        import tomli_w

        return tomli_w.dumps({"format": 1, **{k: v for k, v in asdict(self).items() if v is not None}})

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
        needed = {field for field, hint in get_type_hints(cls).items() if type(None) not in get_args(hint)}
        missing = needed - set(raw)
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
    kinds = get_args(hint) or (hint,)
    whole_as_float = float in kinds and type(value) is int
    if type(value) not in kinds and not whole_as_float:
        wanted = " or ".join(kind.__name__ for kind in kinds if kind is not type(None))
        raise ConfigError(f"{name}={value!r}: must be of type {wanted}.")


PLAN = ("data", "valid", "epsilon", "delta", "adjacency", "sampler", "batch_size", "steps", "clip")


def configure(base: Config | None = None, *, epochs: float | None = None, **given: Any) -> Config:
    """A complete config from what the user gave: over `base`, else over the defaults of the data set.

    Gives a noise multiplier to a config that has only an epsilon (a few seconds); keeps it where the plan is unchanged.
    """
    return plan(base, epochs=epochs, **given).config


def plan(base: Config | None = None, *, epochs: float | None = None, **given: Any) -> Planned:
    """As `configure`, with the data that were loaded and the mechanism that was built for it."""
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
        settings, splits = filled_in(given, epochs)
    else:
        settings = asdict(base) | given
        if not takes(settings["clip"], "screen") and "screen" not in given:
            settings["screen"] = None
        if epochs is not None:
            splits = load(settings["data"], settings["seed"], settings["valid"])
            settings["steps"] = steps_for(epochs, len(splits.train), settings["batch_size"])
        if "noise_multiplier" in given:
            settings["epsilon"] = None
        elif settings["epsilon"] is not None and any(settings[name] != getattr(base, name) for name in PLAN):
            settings["noise_multiplier"] = None
    config = Config(**settings)
    planned = Planned.of(config) if splits is None else Planned(config, splits)
    mechanism = planned.plan  # refuses what cannot be planned
    if config.noise_multiplier is None and config.epsilon is not None:
        mechanism = mechanism.calibrated(config.epsilon, config.delta)
        config = replace(config, noise_multiplier=mechanism.noise_at(0))
    return Planned(config, planned.data, mechanism)

"""Every setting of a run: `Config`, what config.toml holds. No torch here, so that mistakes are said at once."""

from __future__ import annotations

import os
import tomllib
from collections.abc import Sequence
from dataclasses import MISSING, asdict, dataclass, fields, replace
from pathlib import Path
from typing import Any, cast, get_args, get_type_hints

from noisewise.errors import ConfigError
from noisewise.runtime import Engine, Memory, Runtime
from noisewise.workflow.checks import check_settings
from noisewise.workflow.written import converted


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
    schedule: str | None = None
    keep_states: int | None = None
    twin: bool
    twin_lr: float
    engine: str
    microbatch: int | None = None
    memory: str | None = None
    insecure_seed: int | None = None
    test: float | str | None = None
    drop_unlabelled: bool = False
    public: bool = False
    device: str | None = None
    secure: bool = False
    recipe: str | None = None
    repairs: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        """Right types, known names, numbers in range; what is in the mechanism is checked there."""
        if not isinstance(self.repairs, list | tuple):
            raise ConfigError(f"repairs={self.repairs!r}: must be a list of texts, e.g. ['moving-average'].")
        object.__setattr__(self, "repairs", tuple(self.repairs))
        hints = get_type_hints(type(self))
        for field in fields(self):
            _check_type(field.name, getattr(self, field.name), hints[field.name])
        check_settings(vars(self))
        self.runtime()

    def runtime(self) -> Runtime:
        """How steps are computed."""
        runtime = Runtime(engine=cast(Engine, self.engine), microbatch=self.microbatch)
        return replace(runtime, memory=cast(Memory, self.memory)) if self.memory is not None else runtime

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
            raise ConfigError(
                f"{name}: this version reads `format = 1`. Add that line at the top; config.toml of a run shows the others."
            )
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

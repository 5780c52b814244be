"""An experiment of a paper: typed settings in three tiers, the runs they ask for, the claims, the figure. No torch here."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import TYPE_CHECKING, Any

from noisewise import __version__
from noisewise.errors import ConfigError
from noisewise.reproduce.claims import Claim
from noisewise.reproduce.measured import Measured
from noisewise.reproduce.tiers import Tier

if TYPE_CHECKING:
    from matplotlib.figure import Figure

TOLD = ("seeds", "first_seed", "device")
TUNING_SEED = 1000  # first seed of runs that choose settings; their numbers are no evidence


@dataclass(frozen=True, kw_only=True)
class Config:
    """What every experiment is told: how many seeds, from which on, and where it runs.

    `first_seed`: above 0 where earlier seeds were a pilot that chose how many are needed.
    """

    seeds: int = 5
    first_seed: int = 0
    device: str = "cpu"

    def __post_init__(self) -> None:
        """At least one seed."""
        most = TUNING_SEED - self.first_seed
        if type(self.seeds) is not int or not 1 <= self.seeds <= most:
            raise ConfigError(f"seeds={self.seeds!r}: must be a whole number from 1 to {most}.")

    def to_dict(self) -> dict[str, Any]:
        """JSON form."""
        return asdict(self)

    def given(self, *names: str) -> dict[str, Any]:
        """Settings by name, to hand to a run; without names all but those that every experiment is told."""
        everything = {name: list(v) if isinstance(v, tuple) else v for name, v in self.to_dict().items()}
        return {name: everything[name] for name in names or everything if names or name not in TOLD}


def config_from(kind: type[Config], raw: Mapping[str, Any]) -> Config:
    """Read the JSON form; lists are tuples."""
    return kind(**{name: _frozen(value) for name, value in raw.items()})


def _frozen(value: Any) -> Any:
    return tuple(map(_frozen, value)) if isinstance(value, list) else value


@dataclass(frozen=True)
class Cell:
    """One run: the arm it belongs to, its seed, the function that makes it (see `running`) and its settings."""

    arm: str
    seed: int
    function: str
    settings: Mapping[str, Any] = field(default_factory=dict)
    tuning: bool = False

    def arguments(self, device: str) -> dict[str, Any]:
        """All that the function is called with."""
        return {**self.settings, "seed": self.seed, "device": device}

    def key(self, device: str) -> str:
        """Equal settings have equal keys, whichever experiment asks: nothing is trained twice."""
        text = json.dumps([__version__, self.function, self.arguments(device)], sort_keys=True)
        return f"{self.function.rpartition(':')[2]}-{self.seed}-{hashlib.sha256(text.encode()).hexdigest()[:20]}"


Stage = Callable[[Any, Measured], Sequence[Cell]]


@dataclass(frozen=True)
class Experiment:
    """One experiment.

    Args:
        name: within its paper, such as `figure3`.
        title: what it shows.
        where: in the paper.
        tiers: settings of quick (seconds, for tests), standard (minutes on two cores) and full (a GPU).
        stages: `(config, measured so far)` -> runs; a later stage may use what an earlier one chose.
        claims: the paper's, and controls.
        draw: the figure, `(config, measured)`.
        settings: those that the paper does not state, and how they were chosen.
        left_out: what the paper has and this has not.
        cannot: why nothing of it can be run here, if so.
        minutes: about how long each tier takes, on two cores, or on one GPU with 8 jobs for `full`.
    """

    name: str
    title: str
    where: str
    tiers: Mapping[Tier, Config]
    stages: tuple[Stage, ...]
    claims: tuple[Claim, ...]
    draw: Callable[[Any, Measured], Figure]
    settings: str
    left_out: str = ""
    cannot: str = ""
    minutes: Mapping[Tier, float] = field(default_factory=dict)

    def config(self, tier: Tier, seeds: int | None = None, device: str | None = None) -> Config:
        """The settings of a tier, with other seeds or another device if these are given."""
        if tier not in self.tiers:
            raise ConfigError(f"tier={tier!r}: {self.name} has {', '.join(self.tiers)}.")
        config = self.tiers[tier]
        return replace(
            config,
            seeds=config.seeds if seeds is None else seeds,
            device=config.device if device is None else device,
        )


@dataclass(frozen=True)
class Unrun:
    """A claim that nothing here can check, and why."""

    name: str
    says: str
    published: str
    reason: str


@dataclass(frozen=True)
class Paper:
    """A paper: its experiments, what cannot be run, and what is wrong in it. `ours`: questions of our own, counted apart."""

    name: str
    title: str
    reference: str
    experiments: tuple[Experiment, ...]
    unrun: tuple[Unrun, ...] = ()
    errata: tuple[str, ...] = ()
    ours: bool = False


def seeds_of(config: Config) -> range:
    """Seeds of the runs that count."""
    return range(config.first_seed, config.first_seed + config.seeds)


def grid(config: Config, function: str, arms: Mapping[str, Mapping[str, Any]], *, seeds: Sequence[int] | None = None,
         tuning: bool = False) -> list[Cell]:  # fmt: skip
    """All arms for all seeds, the seeds one after another, so that what is stopped has complete ones."""
    return [
        Cell(arm, seed, function, settings, tuning)
        for seed in (seeds_of(config) if seeds is None else seeds)
        for arm, settings in arms.items()
    ]

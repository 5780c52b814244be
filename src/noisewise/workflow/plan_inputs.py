"""What `noisewise plan` is asked, checked before anything heavy is imported: mistakes are said at once."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from noisewise.accounting.accountants import check_delta
from noisewise.data.catalog import CATALOG
from noisewise.errors import ConfigError, RunError
from noisewise.runs.folder import RunFolder
from noisewise.runs.replaced import check_picture
from noisewise.workflow.checks import check_model_name

BREAST_CANCER = "breast_cancer"
EPSILONS = (0.5, 1.0, 3.0, 10.0)
TABLES = (".csv", ".tsv", ".txt", ".parquet")


@dataclass(frozen=True, kw_only=True)
class Asked:
    """What epsilon buys, for whom: n people, whose records look like a number of columns, a schema, a stand-in or runs."""

    n: int
    epsilons: tuple[float, ...] = EPSILONS
    features: int | None = None
    classes: int | None = None
    schema: Path | None = None
    model: str | None = None
    delta: float | None = None
    batch_size: int | None = None
    epochs: float | None = None
    stand_in: str | None = None
    runs: tuple[Path, ...] = ()
    seeds: int = 3
    plot: Path | None = None

    def __post_init__(self) -> None:
        """Numbers in range, known names, files that exist; enough to know what is asked."""
        for name, least in {"n": 2, "features": 1, "classes": 2, "batch_size": 1, "seeds": 1}.items():
            value = getattr(self, name)
            if value is not None and (type(value) is not int or value < least):
                raise ConfigError(f"--{name.replace('_', '-')} {value}: must be a whole number >= {least}.")
        if not self.epsilons or not all(0 < epsilon < math.inf for epsilon in self.epsilons):
            raise ConfigError(
                f"--epsilon {_listed(self.epsilons)}: must be numbers above 0, e.g. --epsilon 1 --epsilon 3."
            )
        if self.epochs is not None and not 0 < self.epochs < math.inf:
            raise ConfigError(f"--epochs {self.epochs}: must be a number above 0, e.g. 20.")
        if self.batch_size is not None and self.batch_size > self.n:
            raise ConfigError(f"--batch-size {self.batch_size}: there are only {self.n} people.")
        if self.delta is not None:
            check_delta(self.delta)
        if self.model is not None:
            check_model_name(self.model)
        if self.stand_in is not None and self.stand_in not in (BREAST_CANCER, *CATALOG):
            raise ConfigError(
                f"--stand-in {self.stand_in}: unknown. Embedded are digits and {BREAST_CANCER}; by name also "
                f"{', '.join(name for name in CATALOG if name != 'digits')}."
            )
        if self.plot is not None:
            check_picture(self.plot)
        for run in self.runs:
            if not RunFolder(run).complete:
                raise RunError(f"--runs {run}: is no folder of a finished run. Check the name.")
        self._check_shape()

    def _check_shape(self) -> None:
        if self.schema is not None and (self.features is not None or self.classes is not None):
            raise ConfigError("--data says how many columns and classes there are: leave out --features and --classes.")
        if self.stand_in is not None and self.runs:
            raise ConfigError("--stand-in and --runs: accuracy comes from one of them; give one.")
        if self.classes is not None and self.features is None:
            raise ConfigError("--classes without --features: how many encoded columns are there?")
        if self.features is None and self.schema is None and self.stand_in is None and not self.runs:
            raise ConfigError(
                "what do the records look like? Give --features (and --classes), --data SCHEMA, --stand-in NAME or --runs DIR."
            )
        if self.schema is not None and self.schema.suffix.lower() in TABLES:
            name = self.schema
            raise ConfigError(
                f"--data {name} is a table, and no row is read here: give its schema. `noisewise schema {name} --label "
                f"COLUMN=A,B --header-only --out {name.with_suffix('.toml')}` writes one without reading rows; then --data "
                f"{name.with_suffix('.toml')}. Or say --features and --classes."
            )
        if self.schema is not None and not self.schema.is_file():
            raise ConfigError(
                f"--data {self.schema} does not exist: `noisewise schema FILE.csv --label NAME` writes one."
            )


def _listed(values: Sequence[float]) -> str:
    return ", ".join(f"{value:g}" for value in values) or "none"

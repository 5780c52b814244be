"""Small changes of a table's rows: numbers move by a share of their declared range, everything else stays."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from noisewise.attacks.pgd import Space
from noisewise.data.tables.kinds import Number
from noisewise.errors import DataError
from noisewise.wording import number

if TYPE_CHECKING:
    from torch import Tensor

    from noisewise.data.tables.schema import Schema

NORMS, RADIUS = ("linf",), {"linf": 0.05}  # each number by at most a twentieth of its range
RESTARTS = 8  # of the attack: models of tables bend sharply, and are quick to ask
NAMED = 4  # columns that a sentence names; the table has all


@dataclass(frozen=True)
class Column:
    """A number of a table, with its declared range; `log`: a share is one of the range of log(1 + |value|)."""

    name: str
    low: float
    high: float
    log: bool

    def moved(self, share: float) -> str:
        """How far a share of the range is, in the units of the column: `± 6`, on a logarithmic scale `× 1.78`.

        >>> Column("age", 0, 120, False).moved(0.05), Column("gain", 0, 1e5, True).moved(0.05)
        ('± 6.00', '× or ÷ 1.78')
        """
        if not self.log:
            return f"± {number(share * (self.high - self.low))}"
        low, high = (math.copysign(math.log1p(abs(end)), end) for end in (self.low, self.high))
        return f"× or ÷ {number(math.exp(share * (high - low)))}"

    def range(self) -> str:
        """The declared range."""
        return f"{number(self.low)} to {number(self.high)}{', logarithmic' if self.log else ''}"


def numbers_of(schema: Schema) -> list[Column]:
    """The columns that are numbers."""
    return [
        Column(name, kind.low, kind.high, kind.log) for name, kind in schema.columns.items() if isinstance(kind, Number)
    ]


def space_of(x: Tensor, schema: Schema) -> Space:
    """Numbers move in their range, which the encoding makes [-1, 1]; a radius is a share of it. The rest stays as it is."""
    import torch

    columns = {column.name for column in numbers_of(schema)}
    if not columns:
        raise DataError(
            "no column of this table is a number: there is nothing to change a little, so robustness cannot be asked."
        )
    moving = torch.tensor([name in columns for name in schema.feature_names])
    ends = torch.where(moving, 1.0, math.inf).to(x)
    return Space(-ends, ends, torch.where(moving, 2.0, 0.0).to(x))


def columns_in_words(declared: list[dict[str, Any]], share: float) -> str:
    """`age ± 6.00, hours ± 5.00` of the first columns, and how many there are beside them."""
    columns = [Column(**column) for column in declared]
    named = ", ".join(f"{column.name} {column.moved(share)}" for column in columns[:NAMED])
    return named if len(columns) <= NAMED else f"{named} and {len(columns) - NAMED} more"

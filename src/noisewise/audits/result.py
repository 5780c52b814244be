"""What an audit gives back: numbers with intervals, saved, reloaded and drawn without the model or the data."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Literal, NamedTuple, Self, get_type_hints

from noisewise._moved import old_names
from noisewise.audits.codec import decode, encode
from noisewise.errors import ConfigError, RunError
from noisewise.estimates.estimate import Estimate
from noisewise.estimates.intervals import independent_difference
from noisewise.runs.folder import Status

if TYPE_CHECKING:
    from matplotlib.axes import Axes

PRIVATE, TWIN, INK, FAINT = "#1668a8", "#b35f0c", "#22303c", "#d9dfe5"  # the colours of every figure


class Table(NamedTuple):
    """Text in rows and columns, for a terminal or a page; the first column names the row."""

    caption: str
    columns: list[str]
    rows: list[list[str]]


class Figure(NamedTuple):
    """A drawing, its caption, and the same in words for whoever does not see it; `rows` says how high it is."""

    caption: str
    words: str
    draw: Callable[[Axes], Axes]
    rows: int


Row = tuple[str, str, str]  # of a card: name, value, interval


@dataclass(frozen=True)
class Card:
    """A card of the report's first screen: `cost`, what privacy cost overall, or `pays`, who pays most.

    `title` where it is another than usual; value, unit and interval stand large; rows are name, value and interval; lines
    are sentences; the note is small.
    """

    place: Literal["cost", "pays"]
    value: str
    unit: str = ""
    interval: str = ""
    rows: tuple[Row, ...] = ()
    lines: tuple[str, ...] = ()
    note: str = ""
    title: str = ""


@dataclass(frozen=True, kw_only=True)
class Result(ABC):
    """Two or three numbers to remember (`headline`), everything else (`values`), how it was made, and its status.

    `values` is a dataclass of the audit's own (`audits.codec` says what it may hold), `settings` a dict of text, numbers,
    lists and dicts. An audit adds a `kind`, a `title`, a `plot` and what is to be said and shown, and gets saving, loading,
    comparing, a table in the terminal and a place in the report from here.
    """

    kind: ClassVar[str]
    title: ClassVar[str]
    version: ClassVar[int] = 1

    headline: dict[str, Estimate]
    values: Any
    settings: dict[str, Any]
    status: Status

    def to_dict(self) -> dict[str, Any]:
        """JSON form."""
        return {
            "kind": self.kind,
            "version": self.version,
            "headline": encode(self.headline),
            "values": encode(self.values),
            "settings": encode(self.settings),
            "status": asdict(self.status),
        }

    @classmethod
    def from_dict(cls, raw: Any) -> Self:
        """Inverse of `to_dict`; another kind, another version or a damaged entry stops."""
        try:
            if (raw["kind"], raw["version"]) != (cls.kind, cls.version):
                raise RunError(
                    f"a result of kind {raw['kind']!r}, version {raw['version']!r}: this reads {cls.kind!r}, version "
                    f"{cls.version}. Run the audit again."
                )
            return cls(
                headline=decode(raw["headline"], dict[str, Estimate]),
                values=decode(raw["values"], get_type_hints(cls)["values"]),
                settings=decode(raw["settings"], dict[str, Any]),
                status=Status(raw["status"]["status"], raw["status"]["reason"]),
            )
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise RunError(f"the result of an audit is damaged ({error!r}): run the audit again.") from None

    @abstractmethod
    def plot(self, ax: Axes) -> Axes:
        """Draw the result on given axes."""

    @abstractmethod
    def sentences(self) -> list[str]:
        """What was found, in plain words."""

    @abstractmethod
    def tables(self) -> list[Table]:
        """All numbers, written out."""

    def figures(self) -> list[Figure]:
        """What the report draws: `plot`, unless an audit says otherwise."""
        return [Figure(self.title, " ".join(self.sentences()), self.plot, 8)]

    def cards(self) -> list[Card]:
        """What the first screen of the report shows of it: nothing, unless an audit says otherwise."""
        return []

    def compare(self, other: Self) -> dict[str, Estimate]:
        """This result's headline minus another's, number by number, for results on *different* people or runs.

        Interval by recovery of variances: `d - sqrt((a - a_low)^2 + (b_high - b)^2)` and so on; for two models on the
        same people an audit with `twin=` is sharper. Reference: Zou, Donner 2008, Statistics in Medicine 27:1693.
        """
        if type(other) is not type(self):
            raise ConfigError(f"{self.kind} compared with {type(other).__name__}: compare results of the same audit.")
        return {
            name: independent_difference(estimate, other.headline[name])
            for name, estimate in self.headline.items()
            if name in other.headline
        }


if not TYPE_CHECKING:
    __getattr__ = old_names(__name__)

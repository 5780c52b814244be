"""The ledger: one line for each run of equal releases, append-only; and the one protected thing that it belongs to."""

from __future__ import annotations

import hashlib
import hmac
import json
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from noisewise.accounting.accountants import ADJACENCIES, pld_epsilon
from noisewise.accounting.events import check_keys, event_from_dict, event_to_dict
from noisewise.errors import ConfigError, PrivacyError, RunError

if TYPE_CHECKING:
    from dp_accounting import DpEvent

FORMAT = 2


@dataclass(frozen=True)
class Line:
    """`count` equal releases from `first_step` on, and what they were for."""

    event: DpEvent
    purpose: str
    count: int
    first_step: int

    @property
    def event_is_private(self) -> bool:
        """False for a release without noise."""
        import dp_accounting

        return not isinstance(self.event, dp_accounting.NonPrivateDpEvent)

    def to_dict(self) -> dict[str, Any]:
        """JSON form."""
        return {
            "event": event_to_dict(self.event),
            "purpose": self.purpose,
            "count": self.count,
            "first_step": self.first_step,
        }

    @classmethod
    def from_dict(cls, raw: dict[str, Any]) -> Line:
        """Read the JSON form; anything unexpected stops."""
        check_keys(raw, "event", "purpose", "count", "first_step")
        purpose, count, first = raw["purpose"], raw["count"], raw["first_step"]
        if type(count) is not int or type(first) is not int or count <= 0 or first < 0:
            raise RunError(f"ledger line with count {count!r}, first_step {first!r}: not whole numbers in range.")
        if type(purpose) is not str:
            raise RunError(f"ledger line with purpose {purpose!r}: not a text.")
        return cls(event_from_dict(raw["event"]), purpose, count, first)


@dataclass(frozen=True)
class Identity:
    """Which data a ledger counts, for whoever holds the data: `digest = BLAKE2b(key, mark of the whole set)`.

    Guarantee: without the key a digest tells nothing; with it, a guess of the whole set can be confirmed. So both stay
    under `sensitive/`. Limit: one changed value makes another set, so overlapping sets cannot be seen. `others`: keys of the
    ledgers that were added to this one; what was drawn anew has another key, however alike its lines are. `lost`: lines
    that it had before it had a key, as a ledger that was read from JSON alone; of these no key is known.
    """

    key: bytes = field(repr=False)
    digest: bytes = field(repr=False)
    others: frozenset[bytes] = field(default=frozenset(), repr=False)
    lost: tuple[Line, ...] = field(default=(), repr=False)

    @property
    def keys(self) -> frozenset[bytes]:
        """Of all ledgers that are in this one."""
        return self.others | {self.key}

    @classmethod
    def of(cls, mark: bytes, key: bytes) -> Identity:
        """Of the data with this mark (`noisewise.data.marks.mark_of`)."""
        return cls(key, hashlib.blake2b(mark, key=key, digest_size=32).digest())

    def fits(self, mark: bytes) -> bool:
        """Is this the data with that mark?"""
        return hmac.compare_digest(Identity.of(mark, self.key).digest, self.digest)

    def to_dict(self) -> dict[str, str]:
        """JSON form, for `sensitive/` only."""
        others = {"others": " ".join(sorted(key.hex() for key in self.others))} if self.others else {}
        lost = {"lost": json.dumps([line.to_dict() for line in self.lost])} if self.lost else {}
        return {"key": self.key.hex(), "digest": self.digest.hex(), **others, **lost}

    @classmethod
    def from_dict(cls, raw: Any) -> Identity:
        """Inverse of `to_dict`."""
        try:
            check_keys(raw, "key", "digest", *(name for name in ("others", "lost") if name in raw))
            others = frozenset(map(bytes.fromhex, raw.get("others", "").split()))
            lost = tuple(map(Line.from_dict, json.loads(raw.get("lost", "[]"))))
            identity = cls(bytes.fromhex(raw["key"]), bytes.fromhex(raw["digest"]), others, lost)
            if {len(identity.digest), *map(len, identity.keys)} != {32}:
                raise ValueError("a key and a digest have 32 bytes")
            return identity
        except (KeyError, TypeError, AttributeError, ValueError) as error:
            raise RunError(f"the data's identity is damaged ({error}): restore it from a copy.") from None


@dataclass
class Ledger:
    """Every release of private data, in order; epsilon is read off it, never remembered.

    It belongs to one protected thing: neighbours (`adjacency`), what counts as one of them (`unit`) and the data
    (`identity`, which is secret: in no text and no JSON form of the ledger). What does not add up is refused. A ledger
    that is new adopts all three from the run that begins it. `reproducible`: some release's noise can be drawn again.
    Runs on the same people add up: two runs with ledgers of their own cost, together, what one ledger of both lines says.
    """

    adjacency: str = "add-remove"
    lines: list[Line] = field(default_factory=list)
    unit: str | None = None  # not said, as in format 1
    reproducible: bool = False
    identity: Identity | None = field(default=None, repr=False, compare=False)

    def __post_init__(self) -> None:
        """Known adjacency only; a unit that is named."""
        if self.adjacency not in ADJACENCIES:
            raise ConfigError(f"adjacency={self.adjacency!r}: must be one of {list(ADJACENCIES)}.")
        if self.unit is not None and (not isinstance(self.unit, str) or not self.unit):
            raise ConfigError(f"unit={self.unit!r}: must say in a word what is protected, e.g. 'row' or 'person'.")

    def record(self, event: DpEvent, purpose: str, step: int, *, reproducible: bool = False) -> None:
        """Append one release."""
        import dp_accounting

        if not isinstance(event, dp_accounting.DpEvent):
            raise ConfigError(
                f"event {event!r}: must be a dp_accounting.DpEvent, e.g. dp_accounting.GaussianDpEvent(1.0), or of "
                "noisewise.accounting.events."
            )
        self.reproducible = self.reproducible or reproducible
        last = self.lines[-1] if self.lines else None
        if last and (last.event, last.purpose) == (event, purpose):
            self.lines[-1] = replace(last, count=last.count + 1)
        else:
            self.lines.append(Line(event, purpose, 1, step))

    def claim(self, adjacency: str, unit: str) -> None:
        """Whoever continues this ledger protects this: the same as before, or the first."""
        if self.adjacency != adjacency:
            raise PrivacyError(
                f"what was released before counts {self.adjacency} neighbours, the mechanism {adjacency}: their epsilons "
                f"cannot be added. Give the mechanism adjacency={self.adjacency!r}."
            )
        if self.unit is None and self.lines:
            raise PrivacyError(
                "the ledger does not say what it protects (older versions did not write it down), so nothing can be added "
                f"to it. If it counts one {unit}, say so: ledger.unit = {unit!r}."
            )
        if self.unit is not None and self.unit != unit:
            raise PrivacyError(
                f"what was released before protects one {self.unit}, the mechanism one {unit}: their epsilons cannot be "
                f"added. Give the mechanism unit={self.unit!r}, and a sampler whose n counts those."
            )
        self.unit = unit

    def claim_data(self, mark: bytes, key: bytes) -> None:
        """Whoever continues this ledger trains on this data: the same as before, or the first (then `key` is kept)."""
        if self.identity is None:
            self.identity = replace(Identity.of(mark, key), lost=tuple(self.lines))
        elif not self.identity.fits(mark):
            raise PrivacyError(
                "this is not the data that the ledger counts: some value, type, order or owner differs, and what is "
                "released about other people does not add up with it. Pass the same data, or begin a ledger of its own "
                "(ledger=None). If these are the same people in another form, say so: ledger.identity = None; it then adds up."
            )

    def holds(self, other: Ledger) -> bool:
        """Is all that the other ledger counts counted here too? Lines of another run that are only alike are not."""
        if other.lines and not _knows(self, other):
            return False
        ours, theirs = _counts(self.lines), _counts(other.lines)
        return theirs <= ours and (self.reproducible or not other.reproducible)

    def composed(self, other: Ledger) -> Ledger:
        """A ledger of what this one and another one count about the same people."""
        if (self.adjacency, self.unit) != (other.adjacency, other.unit):
            raise PrivacyError(
                f"one ledger protects one {self.unit} ({self.adjacency}), the other one {other.unit} ({other.adjacency}): "
                "their epsilons cannot be added. Use one adjacency and one unit for all."
            )
        return replace(
            self,
            lines=[*self.lines, *other.lines],
            reproducible=self.reproducible or other.reproducible,
            identity=_both(self.identity, other.identity),
        )

    @property
    def releases(self) -> int:
        """Number of releases recorded."""
        return sum(line.count for line in self.lines)

    def epsilon(self, delta: float) -> float:
        """Epsilon of all lines together by PLD; infinite as soon as one release was not private."""
        return pld_epsilon(self.events(), delta, self.adjacency)

    def events(self) -> list[tuple[DpEvent, int]]:
        """(event, count) of each line."""
        return [(line.event, line.count) for line in self.lines]

    def begins_with(self, earlier: Ledger) -> bool:
        """Are the earlier releases the first of these? Not such as are only alike: what is drawn anew has another key."""
        if not earlier.lines:
            return True
        if not _knows(self, earlier):
            return False
        *first, last = joined(earlier.lines)
        lines = joined(self.lines)
        ours = lines[len(first) : len(first) + 1]  # may count more: equal releases share a line
        return lines[: len(first)] == first and any(
            replace(one, count=last.count) == last and one.count >= last.count for one in ours
        )

    def to_dict(self) -> dict[str, Any]:
        """JSON form, `ledger.json`: everything but the data's identity."""
        return {
            "format": FORMAT,
            "adjacency": self.adjacency,
            "unit": self.unit,
            "reproducible": self.reproducible,
            "lines": [line.to_dict() for line in self.lines],
        }

    @classmethod
    def from_dict(cls, raw: Any, *, unit: str | None = None) -> Ledger:
        """Read the JSON form; anything unexpected stops, since a misread ledger is a wrong epsilon.

        `unit`: what the ledger protects, by whoever knows it, where format 1 does not say.
        """
        try:
            if type(raw["format"]) is not int or raw["format"] not in (1, FORMAT):
                raise RunError(f"ledger format {raw['format']!r}: this version reads formats 1 and {FORMAT}.")
            later_keys = ("unit", "reproducible") if raw["format"] > 1 else ()
            check_keys(raw, "format", "adjacency", "lines", *later_keys)
            if type(raw["lines"]) is not list:
                raise RunError(f"ledger lines {raw['lines']!r}: not a list.")
            lines = [Line.from_dict(line) for line in raw["lines"]]
            if not later_keys:
                return cls(raw["adjacency"], lines, unit)
            if type(raw["reproducible"]) is not bool:
                raise RunError(f"ledger with reproducible {raw['reproducible']!r}: must be true or false.")
            return cls(raw["adjacency"], lines, unit if raw["unit"] is None else raw["unit"], raw["reproducible"])
        except (KeyError, TypeError, AttributeError, ConfigError) as error:
            raise RunError(
                f"the ledger is damaged ({error!r}): restore it from a copy; it cannot be guessed."
            ) from None


def _knows(whole: Ledger, part: Ledger) -> bool:
    """May one ledger be in the other by its keys? Where keys are not known, lines must do."""
    ours, theirs = whole.identity, part.identity
    known = ours is None or theirs is None or theirs.keys <= ours.keys
    return known or (ours is not None and _counts(part.lines) <= _counts(ours.lost))


def _both(one: Identity | None, other: Identity | None) -> Identity | None:
    if one is None or other is None:
        return one or other
    return replace(one, others=(one.keys | other.keys) - {one.key}, lost=(*one.lost, *other.lost))


def _counts(lines: Iterable[Line]) -> Counter[tuple[DpEvent, str]]:
    counts: Counter[tuple[DpEvent, str]] = Counter()
    for line in lines:
        counts[line.event, line.purpose] += line.count
    return counts


def joined(lines: Iterable[Line]) -> list[Line]:
    """Lines with neighbours of equal event and purpose joined: the canonical form for comparing."""
    ledger: list[Line] = []
    for line in lines:
        if ledger and (ledger[-1].event, ledger[-1].purpose) == (line.event, line.purpose):
            ledger[-1] = replace(ledger[-1], count=ledger[-1].count + line.count)
        else:
            ledger.append(line)
    return ledger

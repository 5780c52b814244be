"""The ledger: one line for each run of equal releases, append-only."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from noisewise.accounting.accountants import ADJACENCIES, pld_epsilon
from noisewise.errors import ConfigError, RunError

if TYPE_CHECKING:
    from dp_accounting import DpEvent

FORMAT = 1


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
        _check_keys(raw, "event", "purpose", "count", "first_step")
        purpose, count, first = raw["purpose"], raw["count"], raw["first_step"]
        if type(count) is not int or type(first) is not int or count <= 0 or first < 0:
            raise RunError(f"ledger line with count {count!r}, first_step {first!r}: not whole numbers in range.")
        if type(purpose) is not str:
            raise RunError(f"ledger line with purpose {purpose!r}: not a text.")
        return cls(event_from_dict(raw["event"]), purpose, count, first)


@dataclass
class Ledger:
    """Every release of private data, in order; epsilon is read off it, never remembered."""

    adjacency: str = "add-remove"
    lines: list[Line] = field(default_factory=list)

    def __post_init__(self) -> None:
        """Known adjacency only."""
        if self.adjacency not in ADJACENCIES:
            raise ConfigError(f"adjacency={self.adjacency!r}: must be one of {list(ADJACENCIES)}.")

    def record(self, event: DpEvent, purpose: str, step: int) -> None:
        """Append one release."""
        last = self.lines[-1] if self.lines else None
        if last and (last.event, last.purpose) == (event, purpose):
            self.lines[-1] = replace(last, count=last.count + 1)
        else:
            self.lines.append(Line(event, purpose, 1, step))

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

    def to_dict(self) -> dict[str, Any]:
        """JSON form, `ledger.json`."""
        return {"format": FORMAT, "adjacency": self.adjacency, "lines": [line.to_dict() for line in self.lines]}

    @classmethod
    def from_dict(cls, raw: Any) -> Ledger:
        """Read the JSON form; anything unexpected stops, since a misread ledger is a wrong epsilon."""
        try:
            if type(raw["format"]) is not int or raw["format"] != FORMAT:
                raise RunError(f"ledger format {raw['format']!r}: this version reads format {FORMAT}.")
            _check_keys(raw, "format", "adjacency", "lines")
            if type(raw["lines"]) is not list:
                raise RunError(f"ledger lines {raw['lines']!r}: not a list.")
            return cls(raw["adjacency"], [Line.from_dict(line) for line in raw["lines"]])
        except (KeyError, TypeError, AttributeError, ConfigError) as error:
            raise RunError(
                f"the ledger is damaged ({error!r}): restore it from a copy; it cannot be guessed."
            ) from None


def _check_keys(raw: dict[str, Any], *keys: str) -> None:
    if set(raw) != set(keys):
        raise RunError(f"ledger entry with {sorted(raw)}: expected exactly {sorted(keys)}.")


def event_to_dict(event: DpEvent) -> dict[str, Any]:
    """The events noisewise releases, as JSON."""
    import dp_accounting as dp

    if isinstance(event, dp.PoissonSampledDpEvent) and isinstance(event.event, dp.GaussianDpEvent):
        return {
            "kind": "poisson-gaussian",
            "rate": event.sampling_probability,
            "noise_multiplier": event.event.noise_multiplier,
        }
    if isinstance(event, dp.TruncatedSubsampledGaussianDpEvent):
        return {
            "kind": "truncated-poisson-gaussian",
            "n": event.dataset_size,
            "rate": event.sampling_probability,
            "max_batch": event.truncated_batch_size,
            "noise_multiplier": event.noise_multiplier,
        }
    if isinstance(event, dp.GaussianDpEvent):
        return {"kind": "gaussian", "noise_multiplier": event.noise_multiplier}
    if isinstance(event, dp.NonPrivateDpEvent):
        return {"kind": "not-private"}
    raise RunError(f"{event!r}: the ledger has no form for this event.")


def event_from_dict(raw: dict[str, Any]) -> DpEvent:
    """Inverse of `event_to_dict`."""
    import dp_accounting as dp

    def number(key: str, high: float) -> float:
        value = raw[key]
        if type(value) not in (int, float) or not 0 < value <= high:
            raise RunError(f"ledger event {raw!r}: {key} must be a number in (0, {high:g}].")
        return value

    match raw["kind"]:
        case "poisson-gaussian":
            _check_keys(raw, "kind", "rate", "noise_multiplier")
            return dp.PoissonSampledDpEvent(number("rate", 1.0), dp.GaussianDpEvent(number("noise_multiplier", 1e12)))
        case "truncated-poisson-gaussian":
            _check_keys(raw, "kind", "n", "rate", "max_batch", "noise_multiplier")
            if type(raw["n"]) is not int or type(raw["max_batch"]) is not int:
                raise RunError(f"ledger event {raw!r}: n and max_batch must be whole numbers.")
            n, cap = int(number("n", 1e15)), int(number("max_batch", 1e15))
            return dp.TruncatedSubsampledGaussianDpEvent(n, number("rate", 1.0), cap, number("noise_multiplier", 1e12))
        case "gaussian":
            _check_keys(raw, "kind", "noise_multiplier")
            return dp.GaussianDpEvent(number("noise_multiplier", 1e12))
        case "not-private":
            _check_keys(raw, "kind")
            return dp.NonPrivateDpEvent()
        case kind:
            raise RunError(f"ledger event of kind {kind!r}: unknown to this version.")


def joined(lines: Iterable[Line]) -> list[Line]:
    """Lines with neighbours of equal event and purpose joined: the canonical form for comparing."""
    ledger: list[Line] = []
    for line in lines:
        if ledger and (ledger[-1].event, ledger[-1].purpose) == (line.event, line.purpose):
            ledger[-1] = replace(ledger[-1], count=ledger[-1].count + line.count)
        else:
            ledger.append(line)
    return ledger

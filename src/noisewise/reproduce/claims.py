"""Claims as statements that numbers can decide: what is measured, on which side of a limit it must lie, and the verdict.

A `Finding` is a number with its interval and a limit. A claim is *reproduced* if all of its findings hold, *not reproduced*
if one is on the wrong side or cannot be told, and the reason says which.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, Literal

from noisewise.errors import ConfigError
from noisewise.estimates.estimate import LEVEL, Estimate
from noisewise.estimates.intervals import each
from noisewise.wording import number

if TYPE_CHECKING:
    from noisewise.reproduce.measured import Measured

Verdict = Literal["reproduced", "not-reproduced", "not-comparable", "not-run"]
VERDICTS: tuple[Verdict, ...] = ("reproduced", "not-reproduced", "not-comparable", "not-run")
Side = Literal["above", "below", "within"]
LEAST_SEEDS = 5  # for a verdict about what chance decides
EXACT = "exact"


@dataclass(frozen=True)
class Finding:
    """A number of ours and where it must lie: above or below `low`, or within `low` to `high`."""

    what: str
    ours: Estimate
    side: Side
    low: float
    high: float | None = None

    def __post_init__(self) -> None:
        """A second end for `within`, and only there."""
        if self.side not in ("above", "below", "within") or (self.high is not None) != (self.side == "within"):
            raise ConfigError(f"finding {self.what!r}: side {self.side!r} with ends {self.low!r} and {self.high!r}.")

    @property
    def holds(self) -> bool:
        """Is the whole interval where the claim says?"""
        if self.high is not None:
            return self.low <= self.ours.low and self.ours.high <= self.high
        return self.ours.low > self.low if self.side == "above" else self.ours.high < self.low

    @property
    def contradicted(self) -> bool:
        """Is the whole interval where the claim says it is not?"""
        if self.high is not None:
            return self.ours.high < self.low or self.ours.low > self.high
        return self.ours.high < self.low if self.side == "above" else self.ours.low > self.low

    @property
    def wanted(self) -> str:
        """`above 0`."""
        return f"{self.side} {number(self.low)}" + ("" if self.high is None else f" to {number(self.high)}")

    @property
    def value(self) -> str:
        """`0.21 (0.12, 0.30)`; without an interval where chance has no part."""
        ours = self.ours
        return number(ours.value) + ("" if ours.method == EXACT else f" ({number(ours.low)}, {number(ours.high)})")

    @property
    def words(self) -> str:
        """`gap 0.21 (0.12, 0.30), claimed above 0`."""
        return f"{self.what} {self.value}, claimed {self.wanted}"

    def to_dict(self) -> dict[str, Any]:
        """JSON form."""
        return {**asdict(self), "holds": self.holds}


def above(what: str, ours: Estimate, limit: float = 0.0) -> Finding:
    """Claimed to be above a limit."""
    return Finding(what, ours, "above", limit)


def below(what: str, ours: Estimate, limit: float = 0.0) -> Finding:
    """Claimed to be below a limit."""
    return Finding(what, ours, "below", limit)


def within(what: str, ours: Estimate, low: float, high: float) -> Finding:
    """Claimed to be within two limits."""
    return Finding(what, ours, "within", low, high)


def exact(value: float) -> Estimate:
    """A number that chance has no part in."""
    return Estimate(value, value, value, 1, LEVEL, EXACT)


Check = Callable[[Any, "Measured", float], Sequence[Finding]]


def more(first: str, second: str, *path: str | int, words: str = "accuracy") -> Check:
    """A check that a number of the first arm, accuracy unless a path is given, is above that of the second."""

    def check(config: Any, measured: Measured, level: float) -> list[Finding]:
        return [
            above(f"{words}, {first} - {second}", measured.difference(level, first, second, *(path or ("accuracy",))))
        ]

    return check


@dataclass(frozen=True)
class Claim:
    """A statement of a paper.

    Args:
        name: such as `X1.a`.
        says: the statement, as it is checked.
        published: the paper's number, or where it says so.
        check: `(config, measured, level)` -> findings whose intervals have that level; all must hold.
        theory: fixed by mathematics, so that small sizes and few seeds decide it too.
        incomparable: why our number and the published one do not speak of the same thing; then nothing is judged.
        control: not the paper's; what its reader would ask next. Controls are judged alike and counted apart.
        needs: what must hold in our runs for the claim to mean anything, such as that the private model has learnt something;
            where it does not, nothing is judged.
    """

    name: str
    says: str
    published: str
    check: Check
    theory: bool = False
    incomparable: str = ""
    control: bool = False
    needs: Check | None = None


@dataclass(frozen=True)
class Judged:
    """A claim, its verdict and reason, and the findings that it rests on."""

    claim: Claim
    verdict: Verdict
    reason: str
    findings: tuple[Finding, ...]

    def to_dict(self) -> dict[str, Any]:
        """JSON form, as in the contract."""
        claim = self.claim
        return {
            "claim": claim.name,
            "says": claim.says,
            "published": claim.published,
            "verdict": self.verdict,
            "reason": self.reason,
            "control": claim.control,
            "findings": [finding.to_dict() for finding in self.findings],
        }


def judge(claims: Sequence[Claim], config: Any, measured: Measured, *, smoke: bool = False) -> list[Judged]:
    """Verdicts on all claims of one experiment, corrected together (Bonferroni).

    With k claims each is judged at level 1 - 0.05/k. All findings of a claim must hold, which needs no further correction
    (an intersection-union test); that *one* of m is on the wrong side is said at level 1 - 0.05/(k m) only.
    `smoke`: sizes too small to say anything but what mathematics fixes. Reference: Berger 1982, Technometrics 24:295.
    """
    level = each(LEVEL, max(1, len(claims)))
    return [_judged(claim, config, measured, level, smoke) for claim in claims]


def _judged(claim: Claim, config: Any, measured: Measured, level: float, smoke: bool) -> Judged:
    findings = tuple(claim.check(config, measured, level))
    if not findings:
        return Judged(claim, "not-run", "this tier leaves its runs out", findings)
    if claim.incomparable:
        return Judged(claim, "not-comparable", claim.incomparable, findings)
    if smoke and not claim.theory:
        return Judged(claim, "not-run", "the quick tier only shows that it runs", findings)
    seeds = len(measured.seeds)
    if seeds < LEAST_SEEDS and not claim.theory:
        return Judged(claim, "not-run", f"{seeds} of at least {LEAST_SEEDS} seeds are complete", findings)
    needed = () if claim.needs is None else claim.needs(config, measured, level)
    if lacking := [finding for finding in needed if not finding.holds]:
        words = lacking[0].words.replace("claimed", "needed", 1)
        return Judged(claim, "not-comparable", f"these runs cannot show it: {words}", findings)
    stricter = claim.check(config, measured, each(level, len(findings)))
    if wrong := [finding for finding in stricter if finding.contradicted]:
        return Judged(claim, "not-reproduced", f"contradicted: {wrong[0].words}", findings)
    if missed := [finding for finding in findings if not finding.holds]:
        return Judged(claim, "not-reproduced", f"undecided: {missed[0].words}", findings)
    count = "its finding holds" if len(findings) == 1 else f"all {len(findings)} findings hold"
    return Judged(claim, "reproduced", count, findings)

"""Numbers in words: what an epsilon means, and how shares and intervals are written. No torch here."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from noisewise.audits.result import Estimate

NEIGHBOURS = {
    "add-remove": "whether or not any one {unit} was in the data",
    "zero-out": "whether any one {unit} was in the data or had been left blank",
    "replace-one": "whether any one {unit} was in the data or another one in its place",
}


def certainty(epsilon: float, delta: float) -> float:
    """How often a guess at one unit can be right at most, from even odds and knowing all other units.

    `(e^eps + delta) / (e^eps + 1)`. Reference: Kairouz, Oh, Viswanath 2015, arXiv:1311.0776, Theorem 2.1.

    >>> round(certainty(3, 1e-5), 4), certainty(0, 0), certainty(math.inf, 0)
    (0.9526, 0.5, 1.0)
    """
    shrink = math.exp(-epsilon)
    return min((1 + delta * shrink) / (1 + shrink), 1.0)


def strength(epsilon: float) -> str:
    """A word for an epsilon. Reference: Ponomareva et al. 2023, arXiv:2303.00654 (tiers)."""
    return "strong" if epsilon <= 1 else "reasonable" if epsilon <= 10 else "weak" if math.isfinite(epsilon) else "none"


def meaning(epsilon: float, delta: float, adjacency: str, unit: str = "row") -> str:
    """What (epsilon, delta) promises, in one sentence."""
    either = NEIGHBOURS[adjacency].format(unit=unit)
    if not math.isfinite(epsilon):
        return f"Nothing is promised: the model may show {either}."
    sure = certainty(epsilon, delta)
    often = (
        "practically always" if sure > 0.9999 else f"at most {100 * sure:.{1 if sure < 0.999 else 2}f} % of the time"
    )
    return (
        f"Anyone who sees the model learns almost the same {either}: guessing which, from even odds and knowing every "
        f"other {unit}, they can be right {often} (50 % is no knowledge at all)."
    )


def number(value: float | None, digits: int = 3) -> str:
    """A few significant digits; infinity as a sign, nothing as a dash.

    >>> number(2.99912), number(0.00427), number(1e-5), number(14063.0), number(math.inf), number(None)
    ('3.00', '0.00427', '1e-05', '14,063', '∞', '–')
    """
    if value is None or math.isnan(value):
        return "–"
    if math.isinf(value):
        return "∞" if value > 0 else "−∞"
    if abs(value) < 1:
        return minus(f"{value:.{digits}g}")
    whole = len(str(int(abs(value))))
    return minus(f"{value:,.0f}" if float(value).is_integer() and whole > 1 else f"{value:,.{max(digits - whole, 0)}f}")


def fixed(value: float, places: int = 2) -> str:
    """A number with a fixed number of decimals, so that columns line up.

    >>> fixed(0.2159), fixed(-0.001), fixed(math.inf)
    ('0.22', '0.00', '∞')
    """
    if not math.isfinite(value):
        return number(value)
    text = f"{value:.{places}f}"
    return minus(text) if float(text) else text.lstrip("-")


def minus(text: str) -> str:
    """A real minus sign in front of negative numbers; the exponent keeps its hyphen."""
    return f"−{text[1:]}" if text.startswith("-") else text


def _decimals(people: int) -> int:
    return 1 if people < 20_000 else 2


def percent(estimate: Estimate) -> str:
    """A share, with more decimals where there are very many people: `94.1 %`."""
    return f"{100 * estimate.value:.{_decimals(estimate.n)}f} %"


def percent_interval(estimate: Estimate) -> str:
    """Ends of a share's interval: `86.4–98.0 %`."""
    places = _decimals(estimate.n)
    return f"{100 * estimate.low:.{places}f}–{100 * estimate.high:.{places}f} %"


def points(estimate: Estimate) -> str:
    """A difference of shares in percentage points, signed: `−2.8`."""
    return _signed(100 * estimate.value, _decimals(estimate.n))


def points_interval(estimate: Estimate) -> str:
    """Ends of a difference's interval: `−5.4 to −0.7`."""
    places = _decimals(estimate.n)
    return f"{_signed(100 * estimate.low, places)} to {_signed(100 * estimate.high, places)}"


def _signed(value: float, places: int) -> str:
    text = f"{value:+.{places}f}"
    return "0" + text[2:] if not float(text) else minus(text)


def level(estimate: Estimate) -> str:
    """`95 %`."""
    return f"{100 * estimate.level:.4g} %"

"""Numbers in words: what a guarantee means and how good it is, how shares and intervals are written. No torch here.

Every word about how private a run is comes from `promise`: words follow the number.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from decimal import ROUND_CEILING, ROUND_DOWN, ROUND_FLOOR, Decimal
from typing import TYPE_CHECKING, Any, NamedTuple

from noisewise.accounting.defaults import large_delta

if TYPE_CHECKING:
    from noisewise.estimates.estimate import Estimate

NEIGHBOURS = {
    "add-remove": "whether or not any one {unit} was in the data",
    "zero-out": "whether any one {unit} was in the data or had been left blank",
    "replace-one": "whether any one {unit} was in the data or another one in its place",
}
STRENGTHS = ("strong", "reasonable", "weak", "none")  # from the best to the worst
PUBLISHABLE = ("strong", "reasonable")
GUARANTEE = {
    "strong": "the guarantee",
    "reasonable": "the guarantee",
    "weak": "the guarantee, a weak one",
    "none": "no guarantee",
}
UNCOVERED = "audits on people that no ledger covers"
KEEP_INTERNAL = f"Internal: {UNCOVERED}. Do not publish these numbers."
RDP, GDP = "second opinion: proven too, looser", "approximation, no guarantee"


class Promise(NamedTuple):
    """What is said of a guarantee, wherever it is shown.

    strength: one of `STRENGTHS`. badge: status and strength in one. guess: how often somebody can be right about one unit.
    verdict: what the strength is, and why. meaning: the whole in sentences. publishable: may anything be called so?
    """

    strength: str
    badge: str
    guess: str
    verdict: str
    meaning: str
    publishable: bool


def certainty(epsilon: float, delta: float) -> float:
    """How often a guess at one unit can be right at most, from even odds and knowing all other units.

    `(e^eps + delta) / (e^eps + 1)`. Reference: Kairouz, Oh, Viswanath 2015, arXiv:1311.0776, Theorem 2.1.

    >>> round(certainty(3, 1e-5), 4), certainty(0, 0), certainty(math.inf, 0)
    (0.9526, 0.5, 1.0)
    """
    return 1 - _doubt(epsilon, delta)


def _doubt(epsilon: float, delta: float) -> float:
    """How often a guess must be wrong at least, `(1 - delta) / (e^eps + 1)`: exact also where `certainty` is almost 1."""
    shrink = math.exp(-epsilon)
    return (1 - delta) * shrink / (1 + shrink)


def percent_at_most(epsilon: float, delta: float) -> str:
    """`certainty` in percent, rounded up, with as many decimals as tell it from 100.

    >>> percent_at_most(3, 1e-5), percent_at_most(10, 1e-5), percent_at_most(20, 0), percent_at_most(1e6, 0)
    ('95.3', '99.996', '99.9999998', '100')
    """
    if certainty(epsilon, delta) == 1:
        return "100"
    left = 100 * Decimal(_doubt(epsilon, delta))
    places = max(1, -left.adjusted())
    return f"{100 - left.quantize(Decimal(1).scaleb(-places), ROUND_DOWN):f}"


def strength(epsilon: float, delta: float, n: int, status: str = "private") -> str:
    """A word for a guarantee about `n` units: strong (epsilon <= 1), reasonable (<= 10), weak (above) or none.

    None is where nothing is ruled out: a status other than private; an epsilon at which a guess may be right every time
    (`certainty` is 1 in double precision, beyond 37); and a delta of at least 1/n, since publishing each unit in full
    with probability delta would pass. Reference: Ponomareva et al. 2023, arXiv:2303.00654 (tiers); Dwork, Roth 2014,
    section 2.3 (delta). Deviation: the paper calls all above 10 weak to no guarantee; where weak ends is ours.

    >>> [strength(epsilon, 1e-5, 1_000) for epsilon in (1, 10, 20, 1_506_280)], strength(1, 0.001, 1_000)
    (['strong', 'reasonable', 'weak', 'none'], 'none')
    """
    if status != "private" or not certainty(epsilon, delta) < 1 or large_delta(delta, n):
        return "none"
    return "strong" if epsilon <= 1 else "reasonable" if epsilon <= 10 else "weak"


def badge(status: str, strength: str) -> str:
    """Status and strength in one; nothing is called private that is only weakly so.

    >>> badge("private", "strong"), badge("private", "weak"), badge("private", "none"), badge("not-private", "none")
    ('private', 'private, weakly', 'no guarantee', 'not-private')
    """
    if status != "private" or strength in PUBLISHABLE:
        return status
    return "private, weakly" if strength == "weak" else "no guarantee"


def reason(status: str, strength: str, why: str) -> str:
    """Why a run has its status, to be put behind the badge; a good reason does not make up for a bad number."""
    return why if status != "private" or strength in PUBLISHABLE else f"although {why}"


def promise(
    epsilon: float, delta: float, n: int, status: str = "private", *, adjacency: str = "add-remove", unit: str = "row"
) -> Promise:
    """What (epsilon, delta) promises `n` units: the number first, the judgement by `strength`."""
    word, either = strength(epsilon, delta, n, status), NEIGHBOURS[adjacency].format(unit=unit)
    guess, verdict = "every time", "No guarantee"
    if status != "private" or math.isinf(epsilon):
        meaning = f"Nothing is promised: the model may show {either}."
        return Promise(word, badge(status, word), guess, f"{verdict}.", meaning, publishable=False)
    if certainty(epsilon, delta) < 1:
        guess = f"at most {percent_at_most(epsilon, delta)} % of the time"
    if word == "none":
        verdict += f": {large_delta(delta, n) or f'an epsilon of {at_most(epsilon)} rules nothing out.'}"
    else:
        limits = {"strong": "at most 1.", "reasonable": "above 1 and at most 10.", "weak": "above 10."}
        verdict = f"A {word} guarantee: epsilon is {limits[word]}"
    meaning = (
        f"Whoever sees the model and guesses {either}, from even odds and knowing every other {unit}, can be right {guess} "
        f"(50 % is no knowledge at all). {verdict}"
    )
    return Promise(word, badge(status, word), guess, verdict, meaning, word in PUBLISHABLE)


def promised(summary: Mapping[str, Any]) -> Promise:
    """What a run promises, by its summary.json."""
    privacy = summary["privacy"]
    return promise(
        float(privacy["epsilon"]),
        privacy["delta"],
        summary["data"]["n"],
        privacy["status"],
        adjacency=privacy["adjacency"],
        unit=privacy["unit"],
    )


def several_units(unit: str) -> str:
    """More than one of what is protected.

    >>> several_units("row"), several_units("person")
    ('rows', 'people')
    """
    return "people" if unit == "person" else f"{unit}s"


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


def rounded_up(value: float, digits: int = 3) -> float:
    """The next number of so many digits that is not below; as `number` writes it, whole numbers keep all digits.

    >>> rounded_up(3.0012), rounded_up(2.99912), rounded_up(3.0), rounded_up(1.0000012e-05, 6), rounded_up(14063.2)
    (3.01, 3.0, 3.0, 1.00001e-05, 14064.0)
    """
    return _rounded(value, digits, ROUND_CEILING)


def _rounded(value: float, digits: int, way: str) -> float:
    if not math.isfinite(value) or float(value).is_integer():
        return value
    exact = Decimal(repr(float(value)))
    return float(exact.quantize(Decimal(1).scaleb(min(0, exact.adjusted() - digits + 1)), way))


def at_most(value: float | None, digits: int = 3) -> str:
    """An upper bound, such as a promised epsilon or delta: `number`, never below what it stands for.

    >>> at_most(3.0012), at_most(2.99912), at_most(1e-5), at_most(1 / 70_000), at_most(math.inf), at_most(None)
    ('3.01', '3.00', '1e-05', '1.43e-05', '∞', '–')
    """
    return number(None if value is None else rounded_up(value, digits), digits)


def at_least(value: float | None, digits: int = 3) -> str:
    """A lower bound, such as an epsilon that an attack has proven: `number`, never above what it stands for.

    >>> at_least(2.9999), at_least(0.123456), at_least(3.0)
    ('2.99', '0.123', '3.00')
    """
    return number(None if value is None else _rounded(value, digits, ROUND_FLOOR), digits)


def fixed(value: float, places: int = 2) -> str:
    """A number with a fixed number of decimals, so that columns line up.

    >>> fixed(0.2159), fixed(-0.001), fixed(math.inf), fixed(-3866329.268)
    ('0.22', '0.00', '∞', '−3,866,329.27')
    """
    if not math.isfinite(value):
        return number(value)
    text = f"{value:,.{places}f}"
    return minus(text) if any(digit in "123456789" for digit in text) else text.lstrip("-")


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


FILES_BY = ("source", "weights")  # settings of repairs and recipes that name a file or a folder


def without_folders(text: str, *, path: bool = False) -> str:
    """A setting with files by their names alone: folders tell of a machine and of who uses it. `path`: it is one for sure.

    >>> without_folders("/home/ann/nets.py:small"), without_folders("stage-wise-freezing:shares=0.39/0.63/0.77")
    ('nets.py:small', 'stage-wise-freezing:shares=0.39/0.63/0.77')
    """
    if path:
        return re.split(r"[/\\]", text.rstrip("/\\"))[-1]
    key, shown = "", []
    for part in re.split(r"([=,:])", text):
        names = re.split(r"[/\\]", part)
        is_path = key in FILES_BY or "\\" in part or part.startswith(("/", "~/", "./", "../"))
        is_path = is_path or bool(re.search(r"\.[A-Za-z]\w*$", names[-1]))
        shown.append(names[-1] if is_path else part)
        key = key if part == "=" else part
    return "".join(shown)

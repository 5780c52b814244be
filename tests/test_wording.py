"""Words follow the number: percentages, tiers and promises on a grid."""

from __future__ import annotations

import itertools
import math
import random
import re
from decimal import Decimal, localcontext

import pytest

from helpers import tiny
from noisewise.accounting.defaults import large_delta
from noisewise.runs.folder import RunFolder
from noisewise.runs.summary import STATUSES
from noisewise.wording import (
    GUARANTEE,
    NEIGHBOURS,
    PUBLISHABLE,
    STRENGTHS,
    at_least,
    at_most,
    badge,
    certainty,
    fixed,
    number,
    percent_at_most,
    promise,
    reason,
    rounded_up,
    strength,
)

EPSILONS = (
    0.0,
    1e-9,
    0.1,
    0.5,
    1.0,
    1.0001,
    3.0,
    9.99,
    10.0,
    10.01,
    12.0,
    20.0,
    37.0,
    38.0,
    100.0,
    1e3,
    1_506_280.0,
    math.inf,
)

DELTAS = (1e-15, 1e-6, 1e-5, 9.99e-4, 1e-3, 0.1, 0.5, 0.999)

SIZES = (1, 10, 1_000, 60_000, 10**7)

GRID = list(itertools.product(EPSILONS, DELTAS, SIZES, STATUSES))

FLATTERY = re.compile(r"(?i)may be published|publishable|almost the same|hardly|strong|reasonable|\bsafe|harmless")


def said(epsilon: float, delta: float, n: int, status: str, adjacency: str = "add-remove") -> str:
    """All that may be shown of a guarantee, in one text."""
    words = promise(epsilon, delta, n, status, adjacency=adjacency, unit="row")
    return " | ".join([words.badge, words.guess, words.verdict, words.meaning, GUARANTEE[words.strength]])


# --- the number
def exactly(epsilon: float, delta: float) -> Decimal:
    """100 (e^eps + delta) / (e^eps + 1) with 400 digits."""
    with localcontext() as context:
        context.prec = 400
        grown = Decimal(epsilon).exp()
        return 100 * (grown + Decimal(delta)) / (grown + 1)


@pytest.mark.parametrize("delta", [0.0, *DELTAS])
@pytest.mark.parametrize("epsilon", [*EPSILONS[:14], math.log(3), 5.3, 6.9, 7.6, 9.21, 9.22, 30.0])
def test_the_percentage_is_rounded_up_and_told_from_100(epsilon: float, delta: float) -> None:
    shown, true = percent_at_most(epsilon, delta), exactly(epsilon, delta)
    left = 100 - true
    with localcontext() as context:
        context.prec = 400
        if certainty(epsilon, delta) == 1:
            assert shown == "100"
            assert left < Decimal("1.2e-14")
            return
        assert Decimal(shown) >= true - left * Decimal("1e-12")  # up to the last bits of a double
        assert Decimal(shown) < 100
        assert Decimal(shown) - true < min(Decimal("0.1"), left / 2 + Decimal("1e-20"))
    assert "E" not in shown


def test_the_bound_is_met_by_randomised_response() -> None:
    """A guesser of a mechanism that is exactly (epsilon, delta)-private: right as often as is said, and no more."""
    for epsilon, delta in itertools.product((0.0, 0.5, 3.0, 12.0), (0.0, 1e-5, 0.5)):
        tells, truth = delta, (1 - delta) * math.exp(epsilon) / (1 + math.exp(epsilon))
        assert certainty(epsilon, delta) == pytest.approx(tells + truth, rel=1e-12)


def test_no_number_falls_where_a_budget_grows() -> None:
    for delta in DELTAS:
        shown = [float(percent_at_most(epsilon, delta)) for epsilon in EPSILONS]
        assert shown == sorted(shown)
    for epsilon in EPSILONS:
        shown = [float(percent_at_most(epsilon, delta)) for delta in DELTAS]
        assert shown == sorted(shown)


# --- the tier
@pytest.mark.parametrize(
    ("epsilon", "delta", "n", "status", "expected"),
    [
        (0.0, 1e-5, 1_000, "private", "strong"),
        (1.0, 1e-5, 1_000, "private", "strong"),
        (1.0001, 1e-5, 1_000, "private", "reasonable"),
        (10.0, 1e-5, 1_000, "private", "reasonable"),
        (10.0001, 1e-5, 1_000, "private", "weak"),
        (37.0, 1e-5, 1_000, "private", "weak"),
        (38.0, 1e-5, 1_000, "private", "none"),
        (1_506_280.0, 1e-5, 1_000, "private", "none"),
        (math.inf, 1e-5, 1_000, "private", "none"),
        (math.nan, 1e-5, 1_000, "private", "none"),
        (0.5, math.nan, 1_000, "private", "none"),
        (0.5, 0.000999, 1_000, "private", "strong"),
        (0.5, 0.001, 1_000, "private", "none"),
        (0.5, 0.5, 1_000, "private", "none"),
        (0.5, 1e-5, 1_000, "not-private", "none"),
        (0.5, 1e-5, 1_000, "not-proven", "none"),
        (0.5, 1e-5, 1_000, "unheard-of", "none"),
    ],
)
def test_tiers(epsilon: float, delta: float, n: int, status: str, expected: str) -> None:
    assert strength(epsilon, delta, n, status) == expected
    assert promise(epsilon, delta, n, status).strength == expected


def test_the_word_never_gets_better_where_the_number_gets_worse() -> None:
    place = {word: k for k, word in enumerate(STRENGTHS)}
    for held in range(3):
        axes: list[tuple] = [EPSILONS, DELTAS, SIZES]
        growing = axes.pop(held)
        for others in itertools.product(*axes):
            words = [strength(*others[:held], value, *others[held:]) for value in growing]
            assert [place[word] for word in words] == sorted(place[word] for word in words), (held, others)


@pytest.mark.parametrize("adjacency", NEIGHBOURS)
def test_no_flattery_above_epsilon_10_at_a_large_delta_or_without_privacy(adjacency: str) -> None:
    for epsilon, delta, n, status in GRID:
        text, words = said(epsilon, delta, n, status, adjacency), promise(epsilon, delta, n, status)
        good = status == "private" and epsilon <= 10 and delta < 1 / n
        assert words.publishable == good == (words.strength in PUBLISHABLE)
        assert (words.badge == "private") == good
        assert "almost the same" not in text
        if not good:
            assert not FLATTERY.search(text), text
            assert words.badge != status or status != "private"
            assert status != "private" or words.badge in ("private, weakly", "no guarantee")
        else:
            assert words.strength in text
        if status == "private" and math.isfinite(epsilon):
            assert f"can be right {words.guess} (" in words.meaning
            assert words.meaning.endswith(words.verdict)
            limit = "every time" if certainty(epsilon, delta) == 1 else f"{percent_at_most(epsilon, delta)} %"
            assert limit in words.guess
        else:
            assert words.meaning.startswith("Nothing is promised: the model may show whether")
        if not good and status == "private" and delta >= 1 / n and math.isfinite(epsilon):
            assert f"delta {delta:g} is not below 1/n" in words.meaning


def test_a_reason_does_not_make_up_for_a_bad_number() -> None:
    assert reason("private", "strong", "covered") == "covered"
    assert reason("private", "weak", "covered") == "although covered"
    assert reason("not-private", "none", "no noise") == "no noise"
    assert badge("not-proven", "none") == "not-proven"


def test_the_warning_and_the_word_draw_the_line_at_the_same_delta() -> None:
    for delta, n in itertools.product(DELTAS, SIZES):
        assert (large_delta(delta, n) is not None) == (strength(0.5, delta, n) == "none")


# --- bounds
def read(text: str) -> Decimal:
    """The number that a text shows."""
    return Decimal(text.replace(",", "").replace("−", "-"))


def test_a_bound_is_shown_on_its_safe_side_and_within_one_digit() -> None:
    drawn = random.Random(0)
    values = [10 ** drawn.uniform(-9, 5) for _ in range(2_000)] + [
        0.0,
        0.1,
        0.9996,
        1.0,
        2.675,
        3.0,
        9.999,
        10.0,
        99.95,
    ]
    wrong = 0
    for value in values:
        true = Decimal(repr(value))
        unit = Decimal(1).scaleb(min(0, true.adjusted() - 2)) if value else Decimal(0)
        assert read(at_least(value)) <= true <= read(at_most(value)), value
        assert max(read(at_most(value)) - true, true - read(at_least(value))) <= unit, value
        assert true <= Decimal(repr(rounded_up(value, 6)))
        wrong += read(number(value)) < true
    assert wrong > 500  # the nearest number would not have done
    for exact in (0.1, 1.0, 3.0, 1e-5, 0.001, 1e30, 7e300):
        assert at_most(exact) == at_least(exact) == number(exact)


# --- summary.json
@pytest.fixture(scope="module")
def weak(tmp_path_factory) -> RunFolder:
    """A finished run with epsilon above 10."""
    folder = tmp_path_factory.mktemp("weak") / "run"
    tiny.run(plan=tiny.mechanism(noise_multiplier=0.4), out=folder, delta=1e-3)
    return RunFolder(folder)


@pytest.mark.parametrize(
    ("value", "text"), [(3866329.268, "3,866,329.27"), (-1234.5, "−1,234.50"), (-0.001, "0.00"), (999.994, "999.99")]
)
def test_long_numbers_are_grouped_by_thousands(value, text):
    assert fixed(value) == text

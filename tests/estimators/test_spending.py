"""Fits on the same rows add up: against composing by hand."""

import math
import warnings

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from helpers import tiny
from noisewise.accounting import Ledger
from noisewise.errors import PrivacyWarning
from noisewise.estimators import spending
from noisewise.estimators.spending import Fit, counted, digests, histories, owner_digests, together
from noisewise.wording import number

DELTA = 1e-3


@pytest.fixture(autouse=True)
def nothing_yet(monkeypatch):
    monkeypatch.setattr(spending, "_FITS", [])


def ledger(noise=20.0, unit="row"):
    return Ledger("add-remove", tiny.mechanism(noise_multiplier=noise, unit=unit).lines(), unit=unit)


LEDGER = ledger()


def rows(*numbers):
    return digests({"a": np.array(numbers)})


def test_equal_rows_have_equal_digests_whatever_holds_them():
    frame = pd.DataFrame({"a": [1, 2], "b": ["x", "y"]})
    as_floats = {"p": np.array([1.0, 2.0]), "q": np.array(["x", "y"], dtype=object)}
    assert (digests(dict(frame)) == digests(as_floats)).all()
    assert not set(digests({"p": [1.0], "q": ["y"]})) & set(digests(as_floats))


@given(st.lists(st.sets(st.integers(0, 5), min_size=1), min_size=2, max_size=4))
def test_the_row_that_was_in_most_fits_counts(fits):
    *earlier, last = fits
    shared = [Fit(rows(*sorted(fit)), LEDGER) for fit in earlier if fit & last]
    if shared:
        most = max(sum(row in fit for fit in earlier) for row in last)
        assert max(map(len, histories(Fit(rows(*sorted(last)), LEDGER), shared))) == most


def test_many_histories_are_counted_as_one_that_has_all(monkeypatch):
    monkeypatch.setattr(spending, "MOST", 1)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        counted(rows(1), ledger(), DELTA)
        counted(rows(2), ledger(), DELTA)
        assert [len(ledgers) for ledgers in counted(rows(1, 2), ledger(), DELTA)] == [2]


def test_every_further_fit_says_the_total():
    counted(rows(1, 2), ledger(), DELTA)
    with pytest.warns(PrivacyWarning) as said:
        counted(rows(2, 3), ledger(30.0), DELTA)
    total = ledger().composed(ledger(30.0)).epsilon(DELTA)
    assert f"so far to {number(total)} at delta 0.001" in str(said[0].message)
    with pytest.warns(PrivacyWarning, match="fit again, fit 2 on some of these") as said:
        counted(rows(3, 4), ledger(), DELTA)
    assert f"so far to {number(total)} at delta 0.001" in str(said[0].message)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        counted(rows(8, 9), ledger(), DELTA)


def test_people_are_known_by_their_unit_whatever_their_rows_hold():
    """Each person once in the first fit and once in the second, by other rows."""
    owners, person = owner_digests(["p1", "p2"]), ledger(unit="person")
    counted(rows(1, 2), person, DELTA, owners)
    with pytest.warns(PrivacyWarning, match="people that were trained on before"):
        assert counted(rows(3, 4), person, DELTA, owners) == [[person]]
    assert counted(rows(1, 2), person, DELTA, owner_digests(["q1", "q2"])) == [[]]  # others with equal rows
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        (history,) = counted(rows(3), ledger(), DELTA)  # by rows: whose they are is not known
    assert together([ledger(), *history], DELTA) == math.inf


def test_an_owner_is_the_same_as_number_and_as_text():
    numbers, texts = owner_digests(np.array([7, 8])), owner_digests([" 7", "8.0"])
    assert (numbers == texts).all()
    assert len(set(owner_digests(["7", "p7", "p8"]))) == 3


def test_rows_and_people_do_not_add_up():
    assert together([ledger(), ledger(unit="person")], DELTA) == math.inf
    assert together([ledger()], DELTA) == ledger().epsilon(DELTA)

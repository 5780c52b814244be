"""What the loss was seen to take."""

import math

from noisewise.training.taken import Taken


def test_numbers_between_those_that_were_taken_are_no_news():
    taken = Taken()
    assert not taken.covers("1", 2)
    for value in (2, 5):
        taken.add("1", value)
    assert [taken.covers("1", value) for value in (1, 2, 3, 5, 6)] == [False, True, True, True, False]
    assert not taken.covers("0", 3)


def test_what_is_no_number_is_known_by_its_kind():
    taken = Taken()
    taken.add("0", math.nan)
    assert taken.covers("0", math.nan)
    assert not taken.covers("0", math.inf)
    taken.add("0", math.inf)
    assert taken.covers("0", math.inf)
    assert not taken.covers("0", -math.inf)
    assert not taken.covers("0", 0.0)

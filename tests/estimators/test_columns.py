"""Arrays and frames as tables, and what users say of their columns."""

import numpy as np
import pandas as pd
import pytest

from noisewise.data.tables.kinds import Category, Classes, Hashed, Ignore, Number
from noisewise.errors import ConfigError, DataError
from noisewise.estimators.columns import PUBLIC, declarations, free_name, schema_for, share_of, table_of
from noisewise.randomness import Entropy

FRAME = pd.DataFrame({"age": [20, 30, 40], "city": ["A", "B", None], "who": ["p", "q", "q"]})
LABEL = Classes(("0", "1"))


def test_groups_and_owners_are_no_features():
    table = table_of(FRAME, "city", "who")
    assert list(table.columns) == ["age"]
    assert (table.unit, list(table.owners), len(table)) == ("who", ["p", "q", "q"], 3)
    assert table.names == ("age", "city", "who")
    assert list(table.with_label("y", [0, 1, 0])) == ["age", "who", "y"]


def test_owners_may_be_given_beside():
    table = table_of(FRAME.rename(columns={"who": "unit"}), unit=[1, 2, 2])
    assert table.unit == "unit (2)"


def test_arrays_have_numbered_columns():
    assert list(table_of(np.zeros((2, 3))).columns) == ["x0", "x1", "x2"]
    assert list(table_of([[1, "a"], [2, "b"]]).columns) == ["x0", "x1"]


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: table_of(np.zeros(3)), "1D array"),
        (lambda: table_of(np.zeros((2, 2), complex)), "Complex"),
        (lambda: table_of(np.array([[1.0, np.inf]])), "row 0, column 1"),
        (lambda: table_of(pd.DataFrame([[1, 2]], columns=["a", "a"])), "'a' occurs twice"),
        (lambda: table_of(FRAME, groups=["sex"]), "no column 'sex'"),
        (lambda: table_of(FRAME, unit="id"), "'id'"),
        (lambda: table_of(FRAME, unit=[1, 2]), "2 entries, X 3 rows"),
        (lambda: table_of(FRAME, unit=3), "unit=3"),
        (lambda: table_of(FRAME[["age"]], groups="age"), "no column is left"),
    ],
)
def test_tables_that_are_none(make, words):
    with pytest.raises(DataError, match=words):
        make()


def test_what_users_say_of_columns():
    said = declarations({"age": (0, 120), 1: ["A", "B"], "who": "ignore"}, list(FRAME))
    assert said["age"] == Number(0.0, 120.0, fill=60.0)
    assert said["city"] == Category(("A", "B"))
    assert said["who"] == Ignore()
    assert declarations({"city": "text"}, ["city"])["city"] == Hashed(64)
    assert declarations((0, 1), ["a", "b"]).keys() == {"a", "b"}
    assert declarations({"a": Hashed(8)}, ["a"])["a"] == Hashed(8)


@pytest.mark.parametrize(
    ("ranges", "words"),
    [
        ("wide", "wide"),
        (3, "ranges=3"),
        ({"b": (0, 1)}, "'b'"),
        ({"a": 3}, "=3"),
        ({"a": (1, 0)}, "lower one first"),
        ({9: (0, 1)}, "9"),
    ],
)
def test_what_means_nothing_is_refused(ranges, words):
    with pytest.raises(ConfigError, match=words):
        declarations(ranges, ["a"])


def test_what_everybody_may_know_is_read_off_the_rows_and_confirmed():
    schema = schema_for(table_of(FRAME[["age", "city"]]), "y", LABEL, PUBLIC, 1.0, 1e-3, None)
    assert (schema.origin, schema.confirmed) == ("rows", True)
    assert isinstance(schema.columns["age"], Number)


def test_only_what_is_not_declared_is_chosen_with_noise():
    """The same choice as from a CSV file: cells, noise and ledger are those of `noised_kinds`."""
    rng = np.random.default_rng(0)
    frame = pd.DataFrame({"age": rng.integers(18, 90, 20_000), "income": rng.uniform(0, 1000, 20_000)})
    schema = schema_for(
        table_of(frame), "y", LABEL, {"age": (18, 90)}, 0.5, 1e-6, Entropy.insecure(3)
    )  # fmt: skip
    assert schema.columns["age"] == Number(18.0, 90.0, fill=54.0)
    income = schema.columns["income"]
    assert isinstance(income, Number)
    assert income.low <= 50
    assert income.high >= 950
    assert schema.ledger is not None
    assert schema.ledger.epsilon(1e-6) <= 0.5
    assert list(schema.columns) == ["age", "income"]


def test_free_names_are_taken_by_nobody():
    assert free_name("y", ["x"]) == "y"
    assert free_name("y", ["y", "y (2)"]) == "y (3)"


def test_a_tenth_of_epsilon_unless_said():
    assert share_of(3.0, None) == pytest.approx(0.3)
    assert share_of(3.0, 1) == 1.0
    for wanted in (3, 0, "1", True):
        with pytest.raises(ConfigError, match="schema_epsilon="):
            share_of(3.0, wanted)

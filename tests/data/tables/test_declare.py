"""Values with commas and quotes, as written on the command line."""

import csv
import io

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from noisewise.data.tables.declare import declared
from noisewise.data.tables.kinds import Category
from noisewise.errors import ConfigError

TEXTS = st.text(st.characters(exclude_categories=["C", "Z"]) | st.sampled_from(' ,"=:'), min_size=1).filter(
    lambda text: text.strip() == text
)


@pytest.mark.parametrize(
    ("text", "values"),
    [
        ('city="Paris, France",Lyon', ("Paris, France", "Lyon")),
        ('city=Lyon, "Paris, France"', ("Lyon", "Paris, France")),
        ('city="say ""yes""",no', ('say "yes"', "no")),
        ('city="text"', ("text",)),
        ('city="1:2"', ("1:2",)),
        ("city=A, B", ("A", "B")),
        ("city=5' tall,6' tall", ("5' tall", "6' tall")),
    ],
)
def test_lists_follow_the_rules_of_csv(text, values):
    assert declared(text, ["city"]) == ("city", Category(values))


@pytest.mark.parametrize("text", ['city="A,B', 'city="A"B,C', 'city=A,"B'])
def test_quotes_that_do_not_match_are_refused(text):
    with pytest.raises(ConfigError, match=r"the quotes do not match.*city=\"Paris, France\",Lyon"):
        declared(text, ["city"])


@settings(max_examples=100, deadline=None)
@given(st.lists(TEXTS, min_size=2, max_size=4, unique=True))
def test_whatever_a_csv_writer_writes_is_read(values):
    written = io.StringIO()
    csv.writer(written, quoting=csv.QUOTE_ALL, lineterminator="").writerow(values)
    assert declared(f"a={written.getvalue()}", ["a"]) == ("a", Category(tuple(values)))


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("a=0-120", "a range of numbers"), ("a=0:120:lgo", "a range of numbers"), ("a=0:120:foo", "a range of numbers"),
        ("a=abc:def", "a kind with settings"), ("a=ignor", "'ignore'"), ("a=boolen", "'boolean'"), ("a=word", "'words'"),
    ],
)  # fmt: skip
def test_what_was_perhaps_meant_otherwise_is_no_list_of_one_value(text, words):
    with pytest.raises(ConfigError, match=words):
        declared(text, ["a"])
    name, _, value = text.partition("=")
    assert declared(f'{name}="{value}"', ["a"]) == ("a", Category((value,)))  # in quotes it is


def test_one_plain_value_is_a_list():
    assert declared("a=Paris", ["a"]) == ("a", Category(("Paris",)))

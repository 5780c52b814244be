"""Dates: read alike in every country, parts by hand, and what is missing or outside."""

from __future__ import annotations

import math
from dataclasses import replace
from datetime import datetime, timedelta

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from noisewise.data.tables.dates import FORMATS, ISO, Date, reader
from noisewise.data.tables.kinds import Target
from noisewise.data.tables.schema import Schema
from noisewise.errors import ConfigError, DataError

EVERY = ("position", "year", "month", "weekday", "hour")


def schema(kind: Date) -> Schema:
    return Schema(label="y", target=Target(0, 1), columns={"d": kind}, missing=("", "?"))


def encoded(kind: Date, *texts: str) -> np.ndarray:
    return schema(kind).inputs({"d": list(texts)}).numpy()


def test_every_part_by_hand() -> None:
    kind = Date("2020-01-01", "2021-12-31", parts=EVERY, indicator=True)
    x = encoded(kind, "2020-01-01", "2021-12-31", "2020-04-05 18:00", "")
    assert schema(kind).feature_names == (
        "d", "d year=2020", "d year=2021", "d month sin", "d month cos", "d weekday=Mon", "d weekday=Tue", "d weekday=Wed",
        "d weekday=Thu", "d weekday=Fri", "d weekday=Sat", "d weekday=Sun", "d hour sin", "d hour cos", "d missing",
    )  # fmt: skip
    days = (datetime(2020, 4, 5, 18) - datetime(2020, 1, 1)) / timedelta(days=730)
    expected = [
        [-1, 1, 0, 0, 1, 0, 0, 1, 0, 0, 0, 0, 0, 1, 0],  # a Wednesday
        [1, 0, 1, math.sin(2 * math.pi * 11 / 12), math.cos(2 * math.pi * 11 / 12), 0, 0, 0, 0, 1, 0, 0, 0, 1, 0],
        [2 * days - 1, 1, 0, 1, 0, 0, 0, 0, 0, 0, 0, 1, -1, 0, 0],  # April, a Sunday
        [0] * 14 + [1],
    ]
    np.testing.assert_allclose(x, np.array(expected), atol=1e-6)


@pytest.mark.parametrize(
    ("format", "text"),
    [
        (ISO, "2024-05-31"), (ISO, "2024-05-31T00:00"), (ISO, "2024-05-31 02:00:00+02:00"), ("%d.%m.%Y", "31.5.2024"),
        ("%m/%d/%Y", "05/31/2024"), ("%d %b %Y", "31 MAY 2024"), ("%b %d, %Y", "May 31, 2024"), ("%Y%m%d", "20240531"),
        ("%d.%m.%Y %H:%M:%S", "31.05.2024 00:00:00"),
    ],
)  # fmt: skip
def test_usual_formats(format, text) -> None:
    assert reader(format)(text) == datetime(2024, 5, 31)


@pytest.mark.parametrize(
    ("format", "text"),
    [
        (ISO, "20240531"), (ISO, "2024-02-30"), (ISO, "2024"), (ISO, "today"), (ISO, "٢٠٢٤-05-31"), (ISO, "2024-W10-1"),
        ("%d.%m.%Y", "31.06.2024"), ("%d.%m.%Y", "31.5.24"), ("%d %b %Y", "31 mai 2024"), ("%d/%m/%Y", "05/31/2024"),
        (ISO, "0001-01-01T00:00+10:00"),
    ],
)  # fmt: skip
def test_everything_else_is_no_date(format, text) -> None:
    assert reader(format)(text) is None


@settings(max_examples=60, deadline=None)
@given(st.datetimes(datetime(1800, 1, 1), datetime(2200, 1, 1)), st.sampled_from([f for f in FORMATS if f != ISO]))
def test_what_strftime_wrote_is_read_by_pandas_and_here_alike(when, format) -> None:
    text = when.strftime(format)
    assert reader(format)(text) == pd.to_datetime(text, format=format).to_pydatetime()


def test_dates_outside_are_clipped_and_the_last_day_is_inside() -> None:
    kind = Date("2020-01-01", "2020-12-31")
    assert encoded(kind, "1999-01-01", "2020-12-31 23:59", "2030-01-01")[:, 0].tolist() == [-1, 1, 1]
    dates = kind.read(["1999-01-01", "2020-12-31 23:59", "2021-01-01", "2020-01-01"])
    assert kind.outside(dates).tolist() == [True, False, True, False]


def test_a_missing_or_wrong_date_stops_unless_there_is_a_way() -> None:
    bare, gaps = Date("2020-01-01", "2020-12-31"), Date("2020-01-01", "2020-12-31", indicator=True)
    with pytest.raises(DataError, match=r"row 1, column 'd': '\?': .*missing\. Give the column `indicator = true`"):
        encoded(bare, "?")
    with pytest.raises(DataError, match=r"row 2, column 'd': 'soon': not a date of the declared format"):
        encoded(gaps, "2020-05-01", "soon")
    with pytest.raises(DataError) as caught:
        encoded(bare, "31.05.2020")
    assert "Write it like 2024-05-31, declare how dates are written" in str(caught.value)
    assert "--column d=date:FIRST:LAST:%d.%m.%Y" in str(caught.value)
    assert '`indicator = true` and `invalid = "missing"`' in str(caught.value)
    assert "1234.5" not in str(caught.value)
    with pytest.raises(DataError, match=r"Write it as %d/%m/%Y, let it count as missing \(in a schema file `invalid"):
        encoded(replace(gaps, format="%d/%m/%Y"), "soon")
    lenient = Date("2020-01-01", "2020-12-31", indicator=True, invalid="missing")
    assert encoded(lenient, "soon").tolist() == [[0, 1]]


@pytest.mark.parametrize(
    "wrong",
    [
        lambda: Date("2020-01-01", "2020-01-01"),
        lambda: Date("2021-01-01", "2020-01-01"),
        lambda: Date("yesterday", "2020-01-01"),
        lambda: Date(1, 2),  # type: ignore[arg-type]
        lambda: Date("2020-01-01", "2021-01-01", parts=("day",)),
        lambda: Date("2020-01-01", "2021-01-01", parts=()),
        lambda: Date("2020-01-01", "2021-01-01", parts=("year", "year")),
        lambda: Date("1800-01-01", "2021-01-01", parts=("year",)),
        lambda: Date("2020-01-01", "2021-01-01", format="%d.%m"),
        lambda: Date("2020-01-01", "2021-01-01", format="%x"),
        lambda: Date("2020-01-01", "2021-01-01", invalid="missing"),
        lambda: Date("2020-01-01", "2021-01-01", indicator=True, invalid="zero"),
    ],
)
def test_impossible_dates_are_refused(wrong) -> None:
    with pytest.raises(ConfigError):
        wrong()

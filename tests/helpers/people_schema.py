"""People in a table and their schema."""

from __future__ import annotations

import csv

from hypothesis import HealthCheck, settings

from noisewise.data.tables.kinds import Category, Classes, Hashed, Ignore, Number
from noisewise.data.tables.schema import Schema

FUZZ = settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])

PEOPLE = {
    "id": ["p1", "p2", "p1", "p3"],
    "age": ["17", "90", "120", ""],
    "income": ["0", "1", "3", "-7"],
    "colour": ["red", "blue", "green", ""],
    "town": ["Ulm", "Köln", "Ulm", "東京"],
    "note": ["x", "y", "z", "w"],
    "sex": ["f", "m", "f", "?"],
    "hired": ["no", "yes", "yes", "no"],
}

SCHEMA = Schema(
    label="hired",
    target=Classes(("no", "yes")),
    groups={"sex": Category(("m", "f"))},
    unit="id",
    columns={
        "age": Number(10, 90, fill=50, indicator=True),
        "income": Number(-3, 3, log=True),
        "colour": Category(("red", "blue")),
        "town": Hashed(16),
        "note": Ignore(),
    },
)


def written(path, table, separator=","):
    with path.open("w", encoding="utf-8", newline="") as file:
        csv.writer(file, delimiter=separator).writerows([list(table), *zip(*table.values(), strict=True)])
    return path

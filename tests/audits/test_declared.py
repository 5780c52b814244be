"""Changes of a table in its declared units."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from torch import nn

from noisewise.attacks.pgd import pgd
from noisewise.audits import robustness
from noisewise.audits.declared import Column, columns_in_words, numbers_of, space_of
from noisewise.data.tables.schema import Category, Classes, Number, Schema
from noisewise.errors import DataError

SCHEMA = Schema(
    label="Risk",
    target=Classes(("low", "high")),
    columns={
        "Age": Number(0, 120),
        "City": Category(("Ulm", "Rom"), other=False),
        "Income EUR": Number(0, 1e5, log=True, fill=0.0, indicator=True),
    },
)


def people(n: int = 120):
    generator = np.random.default_rng(0)
    age = generator.integers(20, 90, n)
    return {
        "Age": [str(a) for a in age],
        "City": [("Ulm", "Rom")[i % 2] for i in range(n)],
        "Income EUR": [str(i) if i % 10 else "" for i in generator.integers(0, 50_000, n)],
        "Risk": ["high" if a > 55 else "low" for a in age],
    }


class Threshold(nn.Module):
    """High from an age of 56 on, whatever the rest says."""

    def forward(self, x):
        age = 60 * (x[:, :1] + 1) - 55.5
        return torch.cat([-age, age], 1)


def test_only_numbers_move_and_only_within_their_range():
    data = SCHEMA.encode(people())
    space = space_of(data.x, SCHEMA)
    assert [name for name, scale in zip(SCHEMA.feature_names, space.scale, strict=True) if scale] == [
        "Age",
        "Income EUR",
    ]
    seen = pgd(Threshold(), data.x, data.y, 0.5, "linf", space, torch.Generator().manual_seed(0))
    moved = (seen.x - data.x).abs()
    fixed = [SCHEMA.feature_names.index(name) for name in ("City=Ulm", "City=Rom", "Income EUR missing")]
    assert float(moved[:, fixed].max()) == 0
    assert 0 < float(moved.max()) <= 1.0 + 1e-6  # half of a range that the encoding makes 2 wide
    assert float(seen.x[:, [0, 3]].abs().max()) <= 1
    assert torch.isfinite(seen.x).all()


def test_a_threshold_misleads_exactly_those_within_the_share_of_the_range():
    """5 % of [0, 120] is 6 years: people between 50 and 61 can be misled, and nobody else."""
    data = SCHEMA.encode(people())
    found = robustness(Threshold(), data, twin=Threshold())
    age = np.array([float(a) for a in people()["Age"]])
    assert found.norms == ["linf"]
    assert found.settings["radius"] == {"linf": 0.05}
    for point in found.sweep():
        safe = np.abs(age - 55.5) > 120 * point.radius
        assert point.accuracy["private"].value == pytest.approx(float(safe.mean()), abs=1e-9)
    assert not any(check.check.startswith("without a limit") for check in found.checks)


def test_the_audit_speaks_in_the_units_of_the_table():
    data = SCHEMA.encode(people())
    found = robustness(Threshold(), data)
    words = " ".join(found.sentences())
    assert "5 % of each number's declared range (Age ± 6.00, Income EUR × or ÷ 1.78)" in words
    everything = words + " ".join(f.caption + f.words for f in found.figures())
    everything += " ".join(str(table) for table in found.tables()[:-1])
    for pixels in ("255", "L∞", "L2", "radius"):
        assert pixels not in everything, pixels
    (moved,) = [table for table in found.tables() if table.caption.startswith("How far each number")]
    assert moved.rows == [["Age", "0 to 120", "± 6.00"], ["Income EUR", "0 to 100,000, logarithmic", "× or ÷ 1.78"]]
    assert type(found).from_dict(found.to_dict()) == found


def test_a_factor_is_that_of_the_encoding():
    """On the logarithmic scale 5 % of the range multiplies 1 + value by the factor that is said."""
    column = numbers_of(SCHEMA)[1]
    scaled = SCHEMA.columns["Income EUR"].scaled
    factor = math.exp(0.05 * math.log1p(1e5))
    assert scaled(np.array([100 * factor + factor - 1]))[0] - scaled(np.array([100.0]))[0] == pytest.approx(2 * 0.05)
    assert column.moved(0.05) == f"× or ÷ {factor:.2f}"


def test_many_columns_are_counted():
    many = [{"name": f"c{i}", "low": 0.0, "high": 10.0, "log": False} for i in range(6)]
    assert columns_in_words(many, 0.1) == "c0 ± 1.00, c1 ± 1.00, c2 ± 1.00, c3 ± 1.00 and 2 more"
    assert Column("t", -5, 5, False).moved(0.5) == "± 5.00"


def test_a_table_without_numbers_is_refused():
    schema = Schema(label="y", target=Classes(("a", "b")), columns={"c": Category(("u", "v"), other=False)})
    data = schema.encode({"c": ["u", "v"] * 20, "y": ["a", "b"] * 20})
    with pytest.raises(DataError, match="no column of this table is a number"):
        robustness(nn.Linear(2, 2), data)

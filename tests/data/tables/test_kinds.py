"""Kinds of columns: numbers in range, categories, public hashes."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from helpers.people_schema import FUZZ
from noisewise.data.tables.kinds import Hashed, Number, Target, bucket
from noisewise.data.tables.schema import Schema
from noisewise.errors import ConfigError


def test_the_public_hash_is_fixed_for_good() -> None:
    assert [bucket(text, 64) for text in ("", "Ulm", "東京")] == [36, 25, 46]  # coreutils: b2sum -l 64


def test_kept_buckets_have_a_place_each_and_the_rest_share_one() -> None:
    kept = (bucket("b", 1024), bucket("a", 1024))
    schema = Schema(label="y", target=Target(0, 1), columns={"t": Hashed(1024, kept)})
    x = schema.encode({"t": ["a", "b", "c"], "y": [0, 0, 1]}).x
    assert x.tolist() == [[0, 1, 0], [1, 0, 0], [0, 0, 1]]
    assert schema.feature_names == (f"t#{kept[0]}", f"t#{kept[1]}", "t=other")


@FUZZ
@given(
    st.lists(st.floats(allow_nan=False, allow_infinity=False), min_size=1, max_size=20),
    st.tuples(st.floats(-1e308, 1e308), st.floats(-1e308, 1e308)).filter(lambda r: r[0] < r[1]),
    st.booleans(),
)
def test_numbers_keep_their_order_and_stay_in_range(values, limits, log) -> None:
    message = "too narrow"
    try:
        kind = Number(*limits, log=log)
    except ConfigError as error:
        kind, message = Number(-1, 1, log=log), str(error)
    assert "too narrow" in message
    schema = Schema(label="y", target=Target(0, 1), columns={"a": kind})
    x = schema.inputs({"a": sorted(values)})[:, 0]
    assert torch.isfinite(x).all()
    assert ((x >= -1) & (x <= 1)).all()
    assert (x.diff() >= 0).all()


def test_huge_numbers_are_clipped() -> None:
    schema = Schema(label="y", target=Target(0, 1), columns={"a": Number(-1, 1), "b": Number(-1, 1, log=True)})
    data = schema.encode({"a": ["1e999", "-" + "9" * 400], "b": ["-1e308", "1e400"], "y": ["1e99", "-5"]})
    assert data.x.tolist() == [[1, -1], [-1, 1]]
    assert data.y.tolist() == [1, 0]


def test_whole_numbers_beyond_every_float_are_refused():
    with pytest.raises(ConfigError, match="number"):
        Number(0, 10**400)

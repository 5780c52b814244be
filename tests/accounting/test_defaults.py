"""What is assumed of delta and neighbours where nobody says."""

from __future__ import annotations

import pytest

from noisewise.accounting.defaults import default_adjacency, default_delta
from noisewise.errors import ConfigError


def test_defaults_for_people() -> None:
    assert [default_delta(n) for n in (1, 10, 999, 1000, 1001, 60_000)] == [0.1, 1e-2, 1e-4, 1e-4, 1e-5, 1e-6]
    assert [default_adjacency(kind) for kind in ("poisson", "full-batch", "shuffle")] == [
        "add-remove", "add-remove", "zero-out",
    ]  # fmt: skip
    with pytest.raises(ConfigError, match="n=0"):
        default_delta(0)

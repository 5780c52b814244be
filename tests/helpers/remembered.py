"""Accountants that answer a question they have answered before from memory: many small runs of one plan cost one of them."""

from __future__ import annotations

from functools import cache

import pytest

from noisewise.accounting import accountants, ledger

REAL = {name: getattr(accountants, name) for name in ("pld_epsilon", "rdp_epsilon", "gdp_epsilon")}


@cache
def answer(name, events, delta, adjacency):
    return REAL[name](list(events), delta, adjacency)


def asked(name):
    return lambda events, delta, adjacency: answer(name, tuple(events), delta, adjacency)


@pytest.fixture(autouse=True, scope="module")
def remembered():
    """For a test file that imports it."""
    with pytest.MonkeyPatch.context() as patch:
        for name in REAL:
            patch.setattr(accountants, name, asked(name))
        patch.setattr(ledger, "pld_epsilon", asked("pld_epsilon"))
        yield

"""`check_audit` passes an audit of one's own and shows one that breaks a promise."""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import numpy as np
import pytest
import torch
from torch import nn

from helpers.audited import network, people
from noisewise.audits.audit import Audit
from noisewise.audits.outputs import logits, status_of
from noisewise.audits.people import large_enough, named_parts
from noisewise.audits.result import Card, Figure, Result, Table
from noisewise.audits.show import dress
from noisewise.errors import ConfigError, PrivacyError
from noisewise.estimates import intervals
from noisewise.estimates.estimate import Estimate
from noisewise.runs.folder import Status
from noisewise.testing import check_audit


# an audit of one's own, and what can be wrong with it
@dataclass(frozen=True)
class Shares:
    """Share of rows that are right, by part."""

    parts: dict[str, Estimate]


@dataclass(frozen=True, kw_only=True)
class Right(Result):
    """How often a model is right."""

    kind: ClassVar[str] = "right"
    title: ClassVar[str] = "How often it is right"

    values: Shares

    def plot(self, ax):
        ax.plot([e.value for e in self.values.parts.values()])
        return dress(ax, "part")

    def sentences(self) -> list[str]:
        return [f"{self.headline['right'].value:.2f} are right."]

    def tables(self) -> list[Table]:
        return [Table("By part", ["", "right"], [[name, f"{e.value:.2f}"] for name, e in self.values.parts.items()])]


def right(model, data, *, twin=None, generator=None, progress=False) -> Right:
    """How often is it right?"""
    hits = (logits(model, data).argmax(1) == data.y).numpy()
    shown = {name: rows for column in named_parts(data).values() for name, rows in large_enough(data, column).items()}
    return Right(
        headline={"right": intervals.share(hits, 0.95)},
        values=Shares({name: intervals.share(hits[rows], 0.95) for name, rows in shown.items()}),
        settings={},
        status=status_of(data, twin),
    )


def changed(**how):
    def run(*args, **kwargs):
        """As `right`, with a fault."""
        return replace(right(*args, **kwargs), **how)

    return run


def with_everybody(model, data, **how) -> Right:
    """Small groups too."""
    result = right(model, data, **how)
    parts = {name: result.headline["right"] for column in named_parts(data).values() for name in column}
    return replace(result, values=Shares(parts))


def by_chance(model, data, *, generator, **how) -> Right:
    """Draws from elsewhere."""
    value = float(np.random.default_rng().random())
    return replace(right(model, data, **how), headline={"right": Estimate(value, 0, 1, 9, 0.95, "x")})


def that_leaves_traces(model, data, **how) -> Right:
    """Leaves the model in training mode."""
    model.train()
    torch.rand(1)
    return right(model, data, **how)


class Forgetful(Right):
    """Saves less than it holds."""

    @classmethod
    def from_dict(cls, raw):
        return replace(super().from_dict(raw), values=Shares({}))


class Untyped(Right):
    """Reads whatever version."""

    @classmethod
    def from_dict(cls, raw):
        return super().from_dict(raw | {"version": cls.version})


class Undeclared(Right):
    """Does not say what its values are."""

    values: Any


class Empty(Right):
    """Draws nothing."""

    def plot(self, ax):
        return ax


class Silent(Right):
    """Says nothing."""

    def sentences(self) -> list[str]:
        return []


class Ragged(Right):
    """A table with a cell too few."""

    def tables(self) -> list[Table]:
        return [Table("By part", ["", "right"], [["a"]])]


class Wordless(Right):
    """A figure without words."""

    def figures(self) -> list[Figure]:
        return [Figure("caption", "", self.plot, 3)]


class Cardless(Right):
    """Cards of another kind."""

    def cards(self) -> list[Card]:
        return [{"value": "1"}]


def of(kind):
    def run(*args, **kwargs):
        """Another result."""
        return kind(**vars(right(*args, **kwargs)))

    return run


def undescribed(model, data, **how):
    return right(model, data, **how)


FREE = Status("private", "I think so")

OUTSIDE = {"right": Estimate(0.5, 0.6, 0.7, 9, 0.95, "x")}

FAULTS = {
    "small groups": (with_everybody, PrivacyError, "three people"),
    "status": (changed(status=FREE), PrivacyError, "private people"),
    "unknown status": (changed(status=Status("fine", "x")), ConfigError, "must be one of"),
    "chance": (by_chance, ConfigError, "same generator"),
    "traces": (that_leaves_traces, ConfigError, "changes the model"),
    "headline": (changed(headline=OUTSIDE), ConfigError, "in its interval"),
    "no headline": (changed(headline={}), ConfigError, "headline is empty"),
    "loading": (of(Forgetful), ConfigError, "saving and loading"),
    "version": (of(Untyped), ConfigError, "another version"),
    "dict": (changed(values={"parts": {}}), ConfigError, "`values` of its Right is a dict: must be a dataclass"),
    "undeclared": (of(Undeclared), ConfigError, "declare `values: Shares` in the class"),
    "other values": (changed(values=FREE), ConfigError, "declare `values: Status` in the class"),
    "types": (changed(values=Shares({"a": 3})), ConfigError, "read back"),
    "drawing": (of(Empty), ConfigError, "axes empty"),
    "words": (of(Silent), ConfigError, "says nothing"),
    "table": (of(Ragged), ConfigError, "cells as columns"),
    "figure": (of(Wordless), ConfigError, "no words"),
    "cards": (of(Cardless), ConfigError, "no Cards"),
    "docstring": (undescribed, ConfigError, "docstring"),
}


def test_an_audit_of_ones_own_passes() -> None:
    assert check_audit(Audit("right", right, takes="Does not retrain; seconds."), network(), people()) is None


@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_is_shown(fault: str) -> None:
    run, error, words = FAULTS[fault]
    model = nn.Sequential(nn.Linear(6, 3)).eval()
    with pytest.raises(error, match=words):
        check_audit(Audit("right", run, takes="Seconds."), model, people())


def test_a_twin_that_is_called_private_is_seen() -> None:
    def run(model, data, *, twin=None, **how):
        """Forgets the twin."""
        return replace(right(model, data, **how), status=status_of(data, None) if twin is None else FREE)

    with pytest.raises(PrivacyError, match="of a twin"):
        check_audit(Audit("right", run, takes="Seconds."), network(), people())


def test_too_few_people_and_missing_words_are_refused() -> None:
    with pytest.raises(ConfigError, match="at least 40"):
        check_audit(Audit("right", right, takes="Seconds."), network(), people().take(torch.arange(30)))
    with pytest.raises(ConfigError, match="its takes is empty"):
        check_audit(Audit("right", right, takes=" "), network(), people())
    assert json.dumps(right(network(), people()).to_dict())

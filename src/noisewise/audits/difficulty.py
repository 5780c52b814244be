"""Accuracy by difficulty: rows ranked by a reference ensemble and cut into tenths, easiest first."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import TYPE_CHECKING

import numpy as np

from noisewise.audits.people import SMALLEST, Part, of_rows, people
from noisewise.errors import ConfigError, DataError
from noisewise.estimates import intervals
from noisewise.estimates.estimate import Estimate

if TYPE_CHECKING:
    from torch import nn

    from noisewise.data import Data

DECILES = 10


@dataclass(frozen=True)
class Difficulty:
    """Over tenths of the rows: hardest - easiest, the largest rise between neighbours, with a twin the hardest's extra cost.

    All None without a reference ensemble.
    """

    drop: Estimate | None = field(default=None, metadata={"absent": True})
    largest_rise: Estimate | None = field(default=None, metadata={"absent": True})
    extra_cost: Estimate | None = field(default=None, metadata={"absent": True})


def tenths_of(
    data: Data, audited: Sequence[nn.Module | None], reference: Sequence[nn.Module], losses: Callable[..., np.ndarray]
) -> list[np.ndarray]:
    """Ten equal parts of the rows, easiest first for the reference ensemble, by its mean `losses(model, data)`."""
    if any(judge is model for judge in reference for model in audited):
        raise ConfigError(
            "a reference model is one of the audited models: rows would be called hard because that model fails on them. "
            "Train the reference ensemble apart, from other seeds."
        )
    if people(data, np.arange(len(data))) < DECILES * SMALLEST:
        raise DataError(
            f"{len(data)} rows make tenths of fewer than {SMALLEST} people: difficulty needs more test data."
        )
    difficulty = np.mean([losses(judge, data) for judge in reference], axis=0)
    order = np.argsort(difficulty, kind="stable")
    tenths = [np.sort(rows) for rows in np.array_split(order, DECILES)]
    if min(people(data, rows) for rows in tenths) < SMALLEST:
        raise DataError(f"a tenth of the {len(data)} rows is of fewer than {SMALLEST} people: needs more test data.")
    return tenths


def difficulty_of(deciles: Sequence[Part], rise: Estimate) -> Difficulty:
    """Falls and rises of accuracy over the deciles, which are different rows."""
    hardest, easiest = deciles[-1].accuracy, deciles[0].accuracy

    def drop(which: str) -> Estimate:
        return intervals.independent_difference(hardest[which], easiest[which])

    return Difficulty(drop("private"), rise, drop("difference") if "difference" in easiest else None)


def largest_rise(hits: np.ndarray, tenths: Sequence[np.ndarray], owner: np.ndarray | None, level: float) -> Estimate:
    """Largest step up between neighbours, from intervals that hold together."""
    single = intervals.each(level, len(tenths) - 1)
    shares = [intervals.share(hits[rows], single, of_rows(owner, rows)) for rows in tenths]
    steps = [intervals.independent_difference(after, before) for before, after in pairwise(shares)]
    return intervals.largest(steps, level)

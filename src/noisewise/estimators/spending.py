"""What several fits on the same rows have spent together, within one process.

Cross-validation, searches and repeated calls of `fit` train on the same people again and again; each costs its own epsilon.
People are recognised by their unit where fits have one, else by their rows: by digests with a secret key, which never leave
memory.
"""

from __future__ import annotations

import contextlib
import math
import multiprocessing
import secrets
import warnings
from collections.abc import Mapping
from dataclasses import dataclass, field
from numbers import Number
from typing import Any

import numpy as np
import pandas as pd

from noisewise.accounting import Ledger
from noisewise.errors import PrivacyWarning
from noisewise.wording import at_most

KEY = secrets.token_hex(8)  # 16 characters, as pandas asks for
MOST = 8  # different histories of rows that are looked at one by one


@dataclass
class Fit:
    """One fit of this process: the digests of its rows and, where they are known, of whose they are; and what it spent."""

    rows: np.ndarray = field(repr=False)
    ledger: Ledger
    warned: bool = False
    owners: np.ndarray | None = field(default=None, repr=False)

    def shares(self, other: Fit) -> np.ndarray:
        """Which rows of this fit are in another: by their owners where both know them, else by what they hold."""
        if self.owners is not None and other.owners is not None:
            return np.isin(self.owners, other.owners)
        return np.isin(self.rows, other.rows)


_FITS: list[Fit] = []
_TOLD: list[bool] = []  # that other processes are not seen


def digests(columns: Mapping[str, Any]) -> np.ndarray:
    """One number for each row; the same for equal values, whatever the columns are called."""
    frame = pd.concat([part for values in columns.values() for part in _plain(values)], axis=1)
    return pd.util.hash_pandas_object(frame, index=False, hash_key=KEY).to_numpy()


def owner_digests(owners: Any) -> np.ndarray:
    """One number for each row, the same for the same owner, whether it is written as a number or as a text."""
    series = pd.Series(np.asarray(owners))
    numbers = pd.to_numeric(series, errors="coerce").astype(np.float64)
    texts = series.map(str).str.strip().where(numbers.isna(), numbers.map(repr))
    return digests({"owner": texts})


def _plain(values: Any) -> tuple[Any, Any]:
    """Numbers, and texts of what is none: the same for a value in a list, an array or a frame."""
    series = pd.Series(np.asarray(values))
    if series.dtype.kind in "biuf":
        return series.astype(np.float64), pd.Series("", index=series.index)
    numbers = series.map(lambda value: isinstance(value, Number) and not isinstance(value, complex))
    values = [_float(value) if number else math.nan for value, number in zip(series, numbers, strict=True)]
    return pd.Series(values, index=series.index), series.map(str).where(~numbers, "")


def _float(value: Any) -> float:
    with contextlib.suppress(OverflowError):
        return float(value)
    return math.inf


def counted(rows: np.ndarray, ledger: Ledger, delta: float, owners: np.ndarray | None = None) -> list[list[Ledger]]:
    """Remember a fit; gives, for each history that its rows may have, the ledgers of earlier fits they were part of.

    With `owners`, those of earlier fits that knew theirs are fits that the same people were part of, by whichever rows.

    Warns at every fit on rows that were trained on before, with the sum so far; the total of this and all earlier ones is
    the estimator's `composed_epsilon_`. Limits: other processes, and rows that were changed in between.
    """
    _warn_of_other_processes()
    fit = Fit(rows, ledger, owners=owners)
    earlier = [other for other in _FITS if fit.shares(other).any()]
    _FITS.append(fit)
    if not earlier:
        return [[]]
    several = histories(fit, earlier)
    total = max(together([ledger, *ledgers], delta) for ledgers in several)
    sum_so_far = f"so far to {at_most(total)} at delta {at_most(delta)}"
    if not any(other.warned for other in earlier):
        words = (
            f"fit again on {'rows' if owners is None else 'people'} that were trained on before in this process: every fit "
            f"spends its own epsilon (this one {at_most(together([ledger], delta))}), and they add up, {sum_so_far}. "
            "Cross-validation and searches do this for every fold and setting: try settings on public data, or divide epsilon "
            "by the number of fits. composed_epsilon_ has the total after each fit (keep it to yourself)."
        )
    else:
        words = f"fit again, fit {len(earlier) + 1} on some of these: epsilons add up, {sum_so_far}."
    warnings.warn(words, PrivacyWarning, stacklevel=3)
    for other in (*earlier, fit):
        other.warned = True
    return several


def _warn_of_other_processes() -> None:
    """Said once in a process that joblib started, as `n_jobs=2` does."""
    if not multiprocessing.current_process().name.startswith("Loky") or _TOLD:
        return
    _TOLD.append(True)
    warnings.warn(
        "fit in a process that another one started (n_jobs): fits of other processes on the same rows are not seen here, so "
        "that composed_epsilon_ leaves them out. Search with n_jobs=1, or add the epsilons of all fits up.",
        PrivacyWarning,
        stacklevel=4,
    )


def trained_on(ledger: Ledger, owners: np.ndarray) -> int:
    """How many of these people the fit of this process that wrote the ledger was trained on; 0 where that is not known."""
    known = next((fit.owners for fit in _FITS if fit.ledger is ledger), None)
    return 0 if known is None else int(np.isin(np.unique(owners), known).sum())


def histories(fit: Fit, earlier: list[Fit]) -> list[list[Ledger]]:
    """The ledgers of the earlier fits that rows were part of; all of them together where there are many histories."""
    was_in = np.stack([fit.shares(other) for other in earlier])
    patterns = np.unique(was_in, axis=1).T
    largest = [p for p in patterns if not any((p < q).any() and (p <= q).all() for q in patterns)]
    if len(largest) > MOST:
        largest = [was_in.any(1)]
    return [[other.ledger for other, inside in zip(earlier, pattern, strict=True) if inside] for pattern in largest]


def together(ledgers: list[Ledger], delta: float) -> float:
    """Epsilon of several fits on the same people; infinite where some protect rows and others people.

    So it is where noise follows from a seed, and whoever has that can take it away.
    """
    first, *others = ledgers
    if any(ledger.reproducible for ledger in ledgers) or any(
        (other.unit, other.adjacency) != (first.unit, first.adjacency) for other in others
    ):
        return math.inf
    for other in others:
        first = first.composed(other)
    return first.epsilon(delta)

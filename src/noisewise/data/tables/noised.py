"""A schema released with noise: kinds, ranges and common texts from noised counts over public cells."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from noisewise.accounting import Ledger
from noisewise.accounting.accountants import pld_epsilon
from noisewise.accounting.calibrate import TOLERANCE
from noisewise.accounting.defaults import default_delta
from noisewise.bounded import Bounded, release
from noisewise.data.tables.kinds import (
    BUCKETS,
    WIDE,
    Hashed,
    Kind,
    filled,
)
from noisewise.data.tables.rows import CHUNK, UTF8, Rows, name_of, parsed, parts_of
from noisewise.data.tables.schema import MISSING, protected
from noisewise.data.tables.ways import PROPOSE, Ways
from noisewise.data.tables.words import bucket
from noisewise.errors import ConfigError, DataError
from noisewise.mechanism import Mechanism
from noisewise.randomness import Entropy
from noisewise.sampling import FullBatch
from noisewise.wording import at_most

PUBLIC_BUCKETS = 1 << 16
SMALLEST, GREATEST = -10, 40  # powers of two that magnitudes are told apart by
CELLS = 64
FALSE_CELL = 0.01
FALSE_END = 0.001  # an empty cell far off would be the end of a range: rarer still, and in all columns together
ROWS_PER_NOISE = 64  # rows for each unit of noise on a count: then the sum over all magnitudes tells numbers from texts
COVERED = 0.9  # share of a column's values that its range must hold
ALLOWED = 2.0  # standard deviations of noise that a sum may be wrong by
MAGNITUDES = GREATEST - SMALLEST + 1
FIRST = 1 + 2 * MAGNITUDES + 1  # missing, then negative powers, zero, positive powers


def noised_kinds(
    source: Any,
    separator: str,
    names: Sequence[str],
    unit: str | None,
    epsilon: float,
    delta: float | None,
    n: int | None,
    adjacency: str,
    entropy: Entropy,
    encoding: str = UTF8,
    ways: Ways = PROPOSE,
) -> tuple[dict[str, Kind], Ledger, float]:
    """Kinds, ranges and common texts from noised counts over public cells: two Gaussian releases, both in the ledger.

    First, each value falls into one public cell of its column: missing, one of the signed powers of two (a number), or one
    of 2^16 hash buckets (any other text). One row moves one count in each of k columns by 1, so the L2 sensitivity of all
    counts together is sqrt(k). Second, within the range so found, at most 64 equal cells for each number column; the ledger
    holds this release also where no column looks like numbers.
    A bucket counts as filled where its noised count exceeds `std * ndtri(1 - 0.01 / buckets)`: an empty column shows a
    filled one with probability of at most 1 %; a cell of numbers likewise, with 0.1 % for all columns together. A range
    goes from the first filled cell to the last one, and is used only if its noised count, less two standard deviations, is
    at least 90 % of the column's; else the one of the first look is, and if that falls short too the public default `WIDE`.
    Everything else is post-processing.

    Fewer than 64 rows for each unit of noise, `n < 64 sigma sqrt(k)`, are refused before anything is released: by n, k,
    epsilon and delta alone; `ways` is what the caller can do then.

    Guarantee: (epsilon, delta) for one row; with a unit column, for one person, of whom only the first row is counted. The
    cells are public, so no text is released because somebody holds it, and no further delta is needed (as it is where
    observed texts are released above a threshold: Korolova et al. 2009; Desfontaines et al. 2020, arXiv:2006.03684).
    Reference: Dwork & Roth 2014, section 3 (histograms, post-processing).
    """
    from scipy.special import ndtri

    rows = _count(source, separator, unit, encoding)
    n = rows if n is None else n
    delta = default_delta(n) if delta is None else delta
    sampler = FullBatch(n)
    plan = Mechanism(sampler=sampler, steps=2, adjacency=adjacency, unit=protected(unit)).calibrated(epsilon, delta)
    _check_enough(plan, n, len(names), epsilon, delta, ways)
    sigma, ledger = plan.noise_at(0), Ledger(adjacency, unit=plan.unit)

    def noised(counts: dict[str, Tensor], columns: int, purpose: str, step: int) -> tuple[dict[str, np.ndarray], float]:
        bounded = Bounded(counts, math.sqrt(columns))
        purpose += " (noise reproducible: do not publish)" if entropy.reproducible else ""
        answer = release({purpose: (bounded, sigma)}, sampler=sampler, ledger=ledger, entropy=entropy, step=step)[
            purpose
        ]
        return {key: value.numpy() for key, value in answer.items()}, sigma * bounded.sensitivity

    counts = _counted(source, separator, unit, dict.fromkeys(names, (_first_cells, FIRST + PUBLIC_BUCKETS)), encoding)
    answers, std = noised(counts, len(names), "schema: kinds, magnitudes and texts", 0)
    kinds: dict[str, Kind] = {}
    ranges: dict[str, tuple[float, float]] = {}
    given: dict[str, float] = {}
    gaps: dict[str, bool] = {}
    for name in names:
        missing, magnitudes, texts = np.split(answers[name], [1, FIRST])
        if missing[0] + magnitudes.sum() < n / 2:
            heavy = np.flatnonzero(texts > std * ndtri(1 - FALSE_CELL / PUBLIC_BUCKETS))
            kinds[name] = Hashed(PUBLIC_BUCKETS, tuple(heavy.tolist())) if heavy.size else Hashed(BUCKETS)
            continue
        gaps[name] = bool(missing[0] > std * ndtri(1 - FALSE_CELL))
        given[name] = n - max(0.0, float(missing[0]))
        cells_held = _holding(magnitudes, given[name], std, FALSE_END / len(names))
        if cells_held is None:
            kinds[name] = replace(WIDE, indicator=gaps[name], invalid="missing")
        else:
            ranges[name] = _magnitude_range(np.array(cells_held))
    count = _cells(n, sigma * math.sqrt(max(1, len(ranges))))
    cells = {name: (_equal_cells(*limits, count), count) for name, limits in ranges.items()}
    # Also where nothing is asked: that no column looks like numbers is seen in the first answer, and a cost that depends
    # on an answer is not what was promised.
    answers, std = noised(_counted(source, separator, unit, cells, encoding), max(1, len(ranges)), "schema: ranges", 1)
    for name, (low, high) in ranges.items():
        edges = np.linspace(low, high, count + 1)
        first, last = _holding(answers[name], given[name], std, FALSE_END / len(ranges)) or (0, count - 1)
        kinds[name] = filled(float(edges[first]), float(edges[last + 1]), indicator=gaps[name], invalid="missing")
    return kinds, ledger, delta


def _check_enough(plan: Mechanism, n: int, columns: int, epsilon: float, delta: float, ways: Ways) -> None:
    """Enough rows for the noise, by public numbers alone."""
    sigma = plan.noise_at(0)
    std = sigma * math.sqrt(columns)
    if n >= ROWS_PER_NOISE * std:
        return
    who = "people" if plan.unit == "person" else "rows"
    quieter = replace(plan, noise_multiplier=n / (ROWS_PER_NOISE * math.sqrt(columns)))
    enough = pld_epsilon(quieter.events(), delta, plan.adjacency)
    asked = at_most(enough / (1 - 2 * TOLERANCE), 2)  # what is calibrated stays a little below what it is asked for
    most = int((n / (ROWS_PER_NOISE * sigma)) ** 2)
    fewer = f", or at most {most} undeclared column{'s' if most > 1 else ''}" if most else ""
    raise ConfigError(
        f"epsilon {epsilon:g} for choosing {columns} columns from {n:,} {who}: the noise, {std:.3g} on each count, would drown "
        f"what it should show. Nothing was released, nothing is spent. It takes about {math.ceil(ROWS_PER_NOISE * std):,} "
        f"{who}, or {ways.epsilon.format(asked)}{fewer}. Declare what is public knowledge: {ways.declare}; "
        f"{ways.blind}."
    )


def _cells(n: int, std: float) -> int:
    """Into how many equal cells a range is cut: so many that each of them, and the sum of all, stands out of the noise."""
    most = min(CELLS, n / (7 * std), ((1 - COVERED) * n / (2.5 * std)) ** 2)
    return max(4, 1 << int(math.log2(max(most, 1)) + 1e-9))


def _holding(answers: np.ndarray, given: float, std: float, false: float) -> tuple[int, int] | None:
    """First and last cell of the range that surely holds 90 % of the values, or None.

    An empty cell is taken for a filled one with probability of at most `false`. Counts are never negative: a range holds
    at least what any choice of its cells does.
    """
    from scipy.special import ndtri

    heavy = np.flatnonzero(answers > std * ndtri(1 - false / answers.size))
    if not heavy.size:
        return None
    for wider in range(3):
        first, last = max(int(heavy[0]) - wider, 0), min(int(heavy[-1]) + wider, answers.size - 1)
        every, filled_ones = answers[first : last + 1], answers[heavy]
        surely = max(some.sum() - ALLOWED * std * math.sqrt(some.size) for some in (every, filled_ones))
        if surely >= COVERED * given:
            return first, last
    return None


def _first_cells(texts: list[str]) -> np.ndarray:
    """The cell of each value: missing, a magnitude, or a hash bucket."""
    values = parsed(texts)
    numeric = ~np.isnan(values)
    place = {text: 0 if text in MISSING else FIRST + bucket(text, PUBLIC_BUCKETS) for text in set(texts)}
    cells = np.array([place[text] for text in texts], np.int64)
    power = np.clip(np.frexp(np.where(numeric, values, 0.0))[1] - 1, SMALLEST, GREATEST) - SMALLEST + 1
    return np.where(numeric, 1 + MAGNITUDES + np.sign(np.where(numeric, values, 0.0)).astype(np.int64) * power, cells)


def _magnitude_range(filled: np.ndarray) -> tuple[float, float]:
    """Lowest and highest number of the filled magnitude cells; the outermost cells also hold what is beyond them."""

    def edges(cell: int) -> tuple[float, float]:
        power = abs(cell - MAGNITUDES)
        inner = 0.0 if power <= 1 else 2.0 ** (power - 1 + SMALLEST)
        outer = 0.0 if power == 0 else 2.0 ** (power + SMALLEST)
        return (inner, outer) if cell >= MAGNITUDES else (-outer, -inner)

    low, high = edges(int(filled[0]))[0], edges(int(filled[-1]))[1]
    return (low, high) if low < high else (low, low + 1)


def _equal_cells(low: float, high: float, count: int = CELLS) -> Callable[[list[str]], np.ndarray]:
    """The cell of each number among equal ones; -1, none, for everything else."""

    def cells(texts: list[str]) -> np.ndarray:
        values = parsed(texts)
        share = (np.clip(np.where(np.isnan(values), low, values), low, high) - low) / (high - low)
        return np.where(np.isnan(values), -1, np.minimum((share * count).astype(np.int64), count - 1))

    return cells


def _counted(
    source: Any,
    separator: str,
    unit: str | None,
    cells: Mapping[str, tuple[Callable[[list[str]], np.ndarray], int]],
    encoding: str = UTF8,
) -> dict[str, Tensor]:
    """How many rows fall into each cell of each column; one row per person."""
    counts = {name: np.zeros(size) for name, (_, size) in cells.items()}
    for part, first_rows in _first_rows(source, separator, unit, encoding):
        for name, (cell_of, size) in cells.items():
            cell = cell_of([part.columns[name][row] for row in first_rows])
            counts[name] += np.bincount(cell[cell >= 0], minlength=size)
    return {name: torch.from_numpy(values) for name, values in counts.items()}


def _count(source: Any, separator: str, unit: str | None, encoding: str) -> int:
    rows = sum(len(first_rows) for _, first_rows in _first_rows(source, separator, unit, encoding))
    if not rows:
        raise DataError(f"{name_of(source)}: no rows below the header. Give a file with at least one row.")
    return rows


def _first_rows(source: Any, separator: str, unit: str | None, encoding: str) -> Iterator[tuple[Rows, Sequence[int]]]:
    """Each part, and which of its rows are the first of their person; without units, all."""
    known: set[str] = set()
    for part in parts_of(source, separator, CHUNK, encoding):
        if unit is None:
            yield part, range(len(part))
            continue
        fresh = []
        for row, owner in enumerate(part.columns[unit]):
            if owner not in known:
                known.add(owner)
                fresh.append(row)
        yield part, fresh

"""A schema released with noise: kinds, ranges and common texts from noised counts over public cells."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from noisewise.accounting import Ledger
from noisewise.accounting.defaults import default_delta
from noisewise.bounded import Bounded, release
from noisewise.data.tables.kinds import (
    BUCKETS,
    WIDE,
    Hashed,
    Kind,
    bucket,
    filled,
)
from noisewise.data.tables.rows import CHUNK, Rows, csv_parts, parsed
from noisewise.data.tables.schema import MISSING, protected
from noisewise.errors import DataError
from noisewise.mechanism import Mechanism
from noisewise.randomness import Entropy
from noisewise.sampling import FullBatch

PUBLIC_BUCKETS = 1 << 16
SMALLEST, GREATEST = -10, 40  # powers of two that magnitudes are told apart by
CELLS = 64
FALSE_CELL = 0.01
MAGNITUDES = GREATEST - SMALLEST + 1
FIRST = 1 + 2 * MAGNITUDES + 1  # missing, then negative powers, zero, positive powers


def noised_kinds(
    path: Path,
    separator: str,
    names: Sequence[str],
    unit: str | None,
    epsilon: float,
    delta: float | None,
    n: int | None,
    adjacency: str,
    entropy: Entropy,
) -> tuple[dict[str, Kind], Ledger, float]:
    """Kinds, ranges and common texts from noised counts over public cells: two Gaussian releases, both in the ledger.

    First, each value falls into one public cell of its column: missing, one of the signed powers of two (a number), or one
    of 2^16 hash buckets (any other text). One row moves one count in each of k columns by 1, so the L2 sensitivity of all
    counts together is sqrt(k). Second, within the range so found, 64 equal cells for each number column; the ledger holds
    this release also where no column looks like numbers.
    A cell counts as filled where its noised count exceeds `std * ndtri(1 - 0.01 / cells)`: an empty column shows a filled
    cell with probability of at most 1 %. Everything else is post-processing.

    Guarantee: (epsilon, delta) for one row; with a unit column, for one person, of whom only the first row is counted. The
    cells are public, so no text is released because somebody holds it, and no further delta is needed (as it is where
    observed texts are released above a threshold: Korolova et al. 2009; Desfontaines et al. 2020, arXiv:2006.03684).
    Reference: Dwork & Roth 2014, section 3 (histograms, post-processing).
    """
    from scipy.special import ndtri

    rows = _count(path, separator, unit)
    n = rows if n is None else n
    delta = default_delta(n) if delta is None else delta
    sampler = FullBatch(n)
    plan = Mechanism(sampler=sampler, steps=2, adjacency=adjacency, unit=protected(unit)).calibrated(epsilon, delta)
    sigma, ledger = plan.noise_at(0), Ledger(adjacency, unit=plan.unit)

    def noised(counts: dict[str, Tensor], columns: int, purpose: str, step: int) -> tuple[dict[str, np.ndarray], float]:
        bounded = Bounded(counts, math.sqrt(columns))
        purpose += " (noise reproducible: do not publish)" if entropy.reproducible else ""
        answer = release({purpose: (bounded, sigma)}, sampler=sampler, ledger=ledger, entropy=entropy, step=step)[
            purpose
        ]
        return {key: value.numpy() for key, value in answer.items()}, sigma * bounded.sensitivity

    counts = _counted(path, separator, unit, dict.fromkeys(names, (_first_cells, FIRST + PUBLIC_BUCKETS)))
    answers, std = noised(counts, len(names), "schema: kinds, magnitudes and texts", 0)
    kinds: dict[str, Kind] = {}
    ranges: dict[str, tuple[float, float]] = {}
    gaps: dict[str, bool] = {}
    for name in names:
        missing, magnitudes, texts = np.split(answers[name], [1, FIRST])
        if missing[0] + magnitudes.sum() < n / 2:
            heavy = np.flatnonzero(texts > std * ndtri(1 - FALSE_CELL / PUBLIC_BUCKETS))
            kinds[name] = Hashed(PUBLIC_BUCKETS, tuple(heavy.tolist())) if heavy.size else Hashed(BUCKETS)
            continue
        heavy = np.flatnonzero(magnitudes > std * ndtri(1 - FALSE_CELL / magnitudes.size))
        gaps[name] = bool(missing[0] > std * ndtri(1 - FALSE_CELL))
        if heavy.size:
            ranges[name] = _magnitude_range(heavy)
        else:
            kinds[name] = WIDE
    cells = {name: (_equal_cells(*limits), CELLS) for name, limits in ranges.items()}
    # Also where nothing is asked: that no column looks like numbers is seen in the first answer, and a cost that depends
    # on an answer is not what was promised.
    answers, std = noised(_counted(path, separator, unit, cells), max(1, len(ranges)), "schema: ranges", 1)
    for name, (low, high) in ranges.items():
        heavy = np.flatnonzero(answers[name] > std * ndtri(1 - FALSE_CELL / CELLS))
        edges = np.linspace(low, high, CELLS + 1)
        narrow = (float(edges[heavy[0]]), float(edges[heavy[-1] + 1])) if heavy.size else (low, high)
        kinds[name] = filled(*narrow, indicator=gaps[name])
    return kinds, ledger, delta


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


def _equal_cells(low: float, high: float) -> Callable[[list[str]], np.ndarray]:
    """The cell of each number among equal ones; -1, none, for everything else."""

    def cells(texts: list[str]) -> np.ndarray:
        values = parsed(texts)
        share = (np.clip(np.where(np.isnan(values), low, values), low, high) - low) / (high - low)
        return np.where(np.isnan(values), -1, np.minimum((share * CELLS).astype(np.int64), CELLS - 1))

    return cells


def _counted(
    path: Path, separator: str, unit: str | None, cells: Mapping[str, tuple[Callable[[list[str]], np.ndarray], int]]
) -> dict[str, Tensor]:
    """How many rows fall into each cell of each column; one row per person."""
    counts = {name: np.zeros(size) for name, (_, size) in cells.items()}
    for part, first_rows in _first_rows(path, separator, unit):
        for name, (cell_of, size) in cells.items():
            cell = cell_of([part.columns[name][row] for row in first_rows])
            counts[name] += np.bincount(cell[cell >= 0], minlength=size)
    return {name: torch.from_numpy(values) for name, values in counts.items()}


def _count(path: Path, separator: str, unit: str | None) -> int:
    rows = sum(len(first_rows) for _, first_rows in _first_rows(path, separator, unit))
    if not rows:
        raise DataError(f"{path.name}: no rows below the header. Give a file with at least one row.")
    return rows


def _first_rows(path: Path, separator: str, unit: str | None) -> Iterator[tuple[Rows, Sequence[int]]]:
    """Each part, and which of its rows are the first of their person; without units, all."""
    known: set[str] = set()
    for part in csv_parts(path, separator, CHUNK):
        if unit is None:
            yield part, range(len(part))
            continue
        fresh = []
        for row, owner in enumerate(part.columns[unit]):
            if owner not in known:
                known.add(owner)
                fresh.append(row)
        yield part, fresh

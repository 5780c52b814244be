from __future__ import annotations

import numpy as np
import pytest
import torch

from noisewise.audits.states import moved
from noisewise.estimates.intervals import mean_difference
from noisewise.theory.watson2023 import instability, largest_cosine


def test_the_interval_of_instability_allows_for_the_choice_of_the_highest_point() -> None:
    """Flat in truth, noisy rows: the highest of 30 points looks high; the interval must hold 0 and the naive one does not."""
    generator, at = np.random.default_rng(0), np.linspace(0, 1, 30)
    covered = naive = 0
    for _ in range(100):
        losses = generator.normal(size=(30, 50))
        covered += instability(losses, at).instability.low <= 0
        best = losses[losses.mean(1).argmax()]
        naive += mean_difference(best, (losses[0] + losses[-1]) / 2).low <= 0
    assert covered >= 91
    assert naive < 91


def test_instability_and_barrier_by_hand() -> None:
    """Two rows on three points: 1 to 3 with 5 between, so 3 above the mean of the ends and above the line between them."""
    losses = np.array([[1.0, 1.0], [5.0, 5.0], [3.0, 3.0]])
    found = instability(losses, np.array([0.0, 0.5, 1.0]))
    assert (found.instability.value, found.barrier.value) == (3.0, 3.0)
    assert found.losses == [1.0, 5.0, 3.0]
    early = instability(losses, np.array([0.0, 0.25, 1.0]))
    assert (early.instability.value, early.barrier.value) == (3.0, 3.5)


def test_the_largest_cosine_is_that_of_the_directions_that_were_gone() -> None:
    """Directions taken from `moved` and compared in pairs, against the figure made chunk by chunk."""
    state = {"a": torch.zeros(3, dtype=torch.float64), "b": torch.zeros(2, 2, dtype=torch.float64)}
    steps = [moved(state, ["a", "b"], 5.0, np.random.default_rng(seed)) for seed in range(6)]
    directions = [np.concatenate([step["a"].numpy(), step["b"].numpy().ravel()]) / 5 for step in steps]
    pairs = [float(directions[i] @ directions[j]) for i in range(6) for j in range(i)]
    found = largest_cosine(7, [np.random.default_rng(seed) for seed in range(6)], chunk=4)
    assert found == pytest.approx(max(pairs))
    assert largest_cosine(7, [np.random.default_rng(0)]) is None


def test_instability_covers_for_people_with_many_rows() -> None:
    """A bump 2 high, the same in all 20 rows of each of 60 people: rows counted as people would cover a third."""
    generator, at, owner = np.random.default_rng(1), np.array([0.0, 0.5, 1.0]), np.repeat(np.arange(60), 20)
    covered = {"people": 0, "rows": 0}
    for _ in range(300):
        bump = (2 + generator.standard_normal(60))[owner]
        losses = np.stack([0 * bump, bump, 0 * bump])
        for name, whose in (("people", owner), ("rows", None)):
            e = instability(losses, at, owner=whose).barrier
            covered[name] += e.low <= 2 <= e.high
    assert 0.95 <= covered["people"] / 300 <= 1  # Bonferroni over three points, two of which cannot differ
    assert covered["rows"] / 300 < 0.6

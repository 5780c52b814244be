"""Where a unit falls follows from that unit alone, by the share that was asked for."""

import numpy as np
import pytest
import torch

from noisewise.data import Data
from noisewise.data.cut import marks_of, parts_of

N = 200


def rows(n=N, **more):
    generator = torch.Generator().manual_seed(0)
    return Data(torch.randn(n, 3, generator=generator), torch.arange(n) % 2, **more)


def test_chance_decides_by_the_share() -> None:
    """Which side a row falls on is a fair coin of that share, over rows and over seeds."""
    marks = marks_of(rows())
    held = torch.zeros(2, 500, N)
    for seed in range(500):
        for number, part in enumerate(parts_of(marks, seed, 0.3, 0.4)[:2]):
            held[number, seed, torch.from_numpy(part)] = 1
    for drawn, share in zip(held, (0.3, 0.7 * 0.4), strict=True):
        variance = share * (1 - share)
        assert abs(drawn.mean().item() - share) < 4 * (variance / drawn.numel()) ** 0.5
        assert (drawn.mean(0) - share).abs().max() < 5 * (variance / 500) ** 0.5
        assert abs(drawn.sum(1).var().item() / (N * variance) - 1) < 0.3  # independent of each other


def test_marks_tell_rows_apart_by_all_that_they_hold():
    data = rows(groups={"sex": torch.arange(N) % 3})
    marks = marks_of(data)
    assert len(np.unique(marks)) == N
    twice = data.take(torch.tensor([4, 4, 7]))
    assert marks_of(twice).tolist() == marks[[4, 4, 7]].tolist()
    for name, other in (("y", 1 - data.y), ("groups", {"sex": data.groups["sex"] + 1}), ("x", data.x + 1)):
        changed = Data(**{"x": data.x, "y": data.y, "groups": data.groups, name: other})
        assert not np.isin(marks_of(changed), marks).any()
    people = rows(unit=torch.arange(N) // 4)
    assert marks_of(people).tolist() == people.unit.tolist()


@pytest.mark.parametrize("sizes", [(0.2,), (40,), (0.2, 0.3), (40, 30), (0.2, 30), (40, 0.3), (0.1, 5, 0.1)])
@pytest.mark.parametrize("people", [True, False])
def test_of_neighbours_the_rest_are_neighbours(sizes, people):
    """Over many seeds: whoever is new, at most one more is left over, and nobody else leaves."""
    marks = np.random.default_rng(0).integers(0, 60, N + 1).astype(np.uint64)
    for seed in range(40):
        kept = np.delete(np.arange(N + 1), seed)
        one, two = marks[kept], marks
        rest = [parts_of(known, seed, *sizes, people=people)[-1] for known in (one, two)]
        names = [known[part] for known, part in zip((one, two), rest, strict=True)]
        if people:
            before, after = (set(part.tolist()) for part in names)
            assert len(after ^ before) <= (marks[seed] not in one)
        else:
            counts = [np.bincount(part.astype(int), minlength=60) for part in names]
            assert (counts[1] - counts[0]).min() >= 0
            assert (counts[1] - counts[0]).sum() <= 1


def test_parts_are_disjoint_and_complete():
    marks = np.arange(N, dtype=np.uint64)
    parts = parts_of(marks, 3, 0.3, 20, 0.5)
    assert sorted(np.concatenate(parts).tolist()) == list(range(N))
    assert len(parts[1]) == 20

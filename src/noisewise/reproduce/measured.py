"""What the runs of an experiment measured: numbers by arm and seed, and their means and differences over seeds."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from noisewise.errors import ConfigError
from noisewise.estimates import intervals
from noisewise.estimates.estimate import Estimate

Values = Mapping[str, Any]
FURTHER = 4  # settings that are tried beyond the ends of a grid, at most


@dataclass(frozen=True)
class Measured:
    """Values by arm and seed. Claims look at the seeds that every arm has, so that differences are paired.

    `tuning`: what settings were chosen by, by arm and seed; no claim may look at it.
    """

    arms: Mapping[str, Mapping[int, Values]]
    tuning: Mapping[str, Mapping[int, Values]]

    @property
    def seeds(self) -> list[int]:
        """Seeds that are complete."""
        of_arms = [set(runs) for runs in self.arms.values()]
        return sorted(set.intersection(*of_arms)) if of_arms else []

    def column(self, arm: str | int, *path: str | int) -> np.ndarray:
        """A number of an arm, by seed; `path` leads to it: `column("sigma 0.2", "groups", 3, "loss")`."""
        if not isinstance(arm, str) or arm not in self.arms:
            raise ConfigError(f"arm {arm!r}: there is none; there are {', '.join(self.arms)}.")
        return np.array([_at(self.arms[arm][seed], path) for seed in self.seeds], dtype=np.float64)

    def mean(self, level: float, arm: str, *path: str | int) -> Estimate:
        """Mean over seeds, Student's t."""
        return intervals.mean(self.column(arm, *path), level)

    def difference(self, level: float, first: str, second: str, *path: str | int) -> Estimate:
        """Mean over seeds of first - second, paired t."""
        return intervals.mean_difference(self.column(first, *path), self.column(second, *path), level)

    def contrast(self, level: float, first: tuple[str | int, ...], second: tuple[str | int, ...]) -> Estimate:
        """Mean over seeds of one number minus another, each an arm and a path; paired t."""
        return intervals.mean_difference(self.column(*first), self.column(*second), level)

    def each_seed(self, level: float, number: Callable[..., float], *given: Any) -> Estimate:
        """Mean over seeds of `number(values of all arms in one seed, *given)`, Student's t."""
        rows = ({arm: runs[seed] for arm, runs in self.arms.items()} for seed in self.seeds)
        return intervals.mean([number(row, *given) for row in rows], level)

    def to_dict(self) -> dict[str, Any]:
        """JSON form."""
        return {
            kind: {arm: {str(seed): dict(values) for seed, values in sorted(runs.items())} for arm, runs in of.items()}
            for kind, of in (("arms", self.arms), ("tuning", self.tuning))
        }

    @classmethod
    def from_dict(cls, raw: Mapping[str, Any]) -> Measured:
        """Read the JSON form."""
        arms, tuning = (
            {arm: {int(seed): values for seed, values in runs.items()} for arm, runs in raw[kind].items()}
            for kind in ("arms", "tuning")
        )
        return cls(arms, tuning)

    def best(self, choices: Mapping[float, str], *path: str | int) -> float:
        """The setting whose tuning arm has the largest mean: `choices` says which arm tried which setting.

        A run that ended in numbers that are none is the worst.
        """
        means = {
            setting: float(np.mean([_at(values, path) for values in self.tuning[arm].values()]))
            for setting, arm in choices.items()
        }
        return max(means, key=lambda setting: -np.inf if np.isnan(means[setting]) else means[setting])

    def tried(self, grid: Sequence[float], arm: Callable[[float], str], *path: str | int) -> dict[float, str]:
        """Settings to choose from, with the arms that try them: a grid, and beyond it as long as the best lies at an end.

        Each further setting is one step of the grid away, at most `FURTHER` of them. A grid of one or two stays as it is.
        """
        settings = sorted(grid)
        while 2 < len(settings) < len(grid) + FURTHER and all(self.tuning.get(arm(s)) for s in settings):
            best = self.best({setting: arm(setting) for setting in settings}, *path)
            if best == settings[-1]:
                settings.append(_rounded(best * best / settings[-2]))
            elif best == settings[0]:
                settings.insert(0, _rounded(best * best / settings[1]))
            else:
                break
        return {setting: arm(setting) for setting in settings}


def _rounded(setting: float) -> float:
    return float(f"{setting:.3g}")


def _at(values: Any, path: Iterable[str | int]) -> float:
    for key in path:
        values = values[key]
    return float(values)


def slope(x: Iterable[float], y: Iterable[float]) -> float:
    """Of the least-squares line.

    >>> slope([0, 1, 2], [1, 3, 5])
    2.0
    """
    across, up = np.asarray(list(x), dtype=np.float64), np.asarray(list(y), dtype=np.float64)
    across = across - across.mean()
    return float(across @ (up - up.mean()) / (across @ across))


def rank_correlation(first: list[float], second: list[float]) -> float:
    """Spearman's; 0 where one of them is constant.

    >>> round(rank_correlation([1, 2, 3], [10, 30, 20]), 9)
    0.5
    """
    from scipy.stats import rankdata

    ranks = [rankdata(values) - (len(values) + 1) / 2 for values in (first, second)]
    lengths = float(np.linalg.norm(ranks[0]) * np.linalg.norm(ranks[1]))
    return float(ranks[0] @ ranks[1]) / lengths if lengths > 0 else 0.0


def crossing(x: Iterable[float], y: Iterable[float], level: float) -> float:
    """Where a curve first falls to a level, between its points by straight lines; the last point if it never does.

    >>> crossing([0, 1, 2], [1.0, 0.8, 0.2], 0.5)
    1.5
    """
    across, up = list(x), list(y)
    if up[0] <= level:
        return across[0]
    for place in range(1, len(up)):
        if up[place] <= level:
            share = (up[place - 1] - level) / (up[place - 1] - up[place])
            return across[place - 1] + share * (across[place] - across[place - 1])
    return across[-1]

"""Fairness between groups: demographic parity and equalised odds, from what a model says of each row."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from noisewise.audits.people import MODELS, SMALLEST, Estimates, Outcomes, large_enough, of_rows, owners, people
from noisewise.estimates import intervals

if TYPE_CHECKING:
    from noisewise.data import Data

PARITY, PARITY_RATIO, ODDS = "demographic parity difference", "demographic parity ratio", "equalised odds difference"


@dataclass(frozen=True)
class Fairness:
    """Estimates under `private`, with a twin `twin` and `excess`; None where fewer than two groups can be compared.

    hidden: shares of fewer than 20 people that were left out; None with fewer than two groups that can be shown.
    """

    parity: Estimates | None = field(default=None, metadata={"key": PARITY, "absent": True})
    parity_ratio: Estimates | None = field(default=None, metadata={"key": PARITY_RATIO, "absent": True})
    odds: Estimates | None = field(default=None, metadata={"key": ODDS, "absent": True})
    hidden: int | None = field(default=None, metadata={"absent": True})

    def measures(self) -> dict[str, Estimates]:
        """What could be compared, by its name."""
        named = {PARITY: self.parity, PARITY_RATIO: self.parity_ratio, ODDS: self.odds}
        return {name: estimates for name, estimates in named.items() if estimates is not None}


def between_groups(data: Data, groups: Mapping[str, np.ndarray], outcomes: Outcomes, level: float) -> Fairness:
    """Demographic parity and equalised odds between groups, as `disparity` defines them."""
    if len(groups) < 2:
        return Fairness()
    truth, width, owner = data.y.numpy(), int(outcomes["private"]["classes"][0]), owners(data)
    labels = [1] if width == 2 else list(range(width))
    conditions = [index[truth[index] == label] for label in labels for index in groups.values()]
    conditions += [index[truth[index] != label] for label in labels for index in groups.values()]
    hidden = sum(people(data, index) < SMALLEST for index in conditions)
    measured: dict[str, Estimates] = {PARITY: {}, PARITY_RATIO: {}, ODDS: {}}

    def compared(which: str, among: Sequence[Mapping[str, np.ndarray]], chosen: Sequence[int], models: int) -> Any:
        """Spreads and ratios over groups of the share that is said to be each class, holding together."""
        kept = [
            (label, shown)
            for label, rows in zip(chosen, among, strict=True)
            if len(shown := large_enough(data, rows)) > 1
        ]
        if not kept:
            return [], []
        answers, single = outcomes[which]["said"], intervals.each(level, models * sum(len(rows) for _, rows in kept))
        shares = [
            [intervals.share(answers[index] == label, single, of_rows(owner, index)) for index in rows.values()]
            for label, rows in kept
        ]
        return [intervals.spread(of, level) for of in shares], [intervals.ratio(of, level) for of in shares]

    everyone = [groups for _ in labels]
    odds = [
        {name: index[(truth[index] == label) == right] for name, index in groups.items()}
        for right in (True, False)
        for label in labels
    ]
    for measure, among, chosen in ((PARITY, everyone, labels), (ODDS, odds, labels * 2)):
        for which in outcomes:
            spreads, ratios = compared(which, among, chosen, 1)
            if spreads:
                measured[measure][which] = intervals.largest(spreads, level)
            if measure == PARITY and any(ratios):
                measured[PARITY_RATIO][which] = intervals.smallest([r for r in ratios if r is not None], level)
        if "twin" in measured[measure]:
            private, twin = (intervals.largest(compared(m, among, chosen, 2)[0], level) for m in MODELS)
            measured[measure]["excess"] = intervals.difference(private, twin, level)
    return Fairness(measured[PARITY] or None, measured[PARITY_RATIO] or None, measured[ODDS] or None, hidden)

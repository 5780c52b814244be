"""Epsilon along a run: at which steps it is read, computed beside the steps, or later when somebody asks for it."""

from __future__ import annotations

import math
import threading
from collections.abc import Sequence
from concurrent.futures import Future
from dataclasses import dataclass, replace
from typing import Any

from noisewise.accounting import Ledger
from noisewise.accounting.along import epsilons_along
from noisewise.accounting.ledger import Line
from noisewise.mechanism import Mechanism

READINGS = 20  # of epsilon in a run's metrics


def readings_of(mechanism: Mechanism, before: Sequence[Line], delta: float) -> dict[int, float]:
    """Step -> epsilon after it by the plan, for the steps whose epsilon a run writes down."""
    steps = reading_steps(mechanism)
    counts = [-(-step // mechanism.sampler.steps_per_event) for step in steps]
    spent = [(line.event, line.count) for line in before]
    return dict(zip(steps, epsilons_along(spent, mechanism.events(), counts, delta, mechanism.adjacency), strict=True))


def reading_steps(mechanism: Mechanism) -> list[int]:
    """The steps after which epsilon is read, the last one of the plan among them."""
    interval = reading_interval(mechanism)
    return [*range(interval, mechanism.steps, interval), mechanism.steps]


def reading_interval(mechanism: Mechanism) -> int:
    """Whole epochs between two readings of epsilon."""
    per_epoch = max(1, round(1 / mechanism.sampler.rate))
    return per_epoch * math.ceil(mechanism.steps / per_epoch / READINGS)


class Beside:
    """Readings of a run that is watched, computed in a thread while it trains; whoever needs one earlier waits for it.

    The plan's own epsilon is computed on the way and remembered by the accountant, so that it is there when the run ends.
    """

    def __init__(self, mechanism: Mechanism, before: Sequence[Line], delta: float):
        self._found: Future[dict[int, float]] = Future()
        self._given = mechanism, tuple(before), delta
        self._thread = threading.Thread(
            target=self._compute, name="epsilon", daemon=True
        )  # an error does not wait for it
        self._thread.start()

    def _compute(self) -> None:
        try:
            self._found.set_result(readings_of(*self._given))
        except BaseException as error:  # raised where a reading is asked for
            self._found.set_exception(error)

    @property
    def known(self) -> bool:
        """Would nobody have to wait?"""
        return not self._thread.is_alive()

    def after(self, step: int) -> float:
        """The first reading at or behind a step."""
        self._thread.join()
        return next(epsilon for at, epsilon in self._found.result().items() if at >= step)


@dataclass(frozen=True)
class Later:
    """Readings of a run that is over and that nobody has asked for: they follow from its plan and its ledger.

    `ledger`: a copy as it was at the end of the run, since a later run may go on with the run's own.
    """

    mechanism: Mechanism
    before: tuple[Line, ...]
    ledger: Ledger
    delta: float

    @classmethod
    def of(cls, mechanism: Mechanism, before: Sequence[Line], ledger: Ledger, delta: float) -> Later:
        """Of a run that has just ended."""
        return cls(mechanism, tuple(before), replace(ledger, lines=list(ledger.lines), identity=None), delta)

    def filled(self, lines: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
        """The run's lines with the epsilon of each: the same numbers as if they had been read on the way."""
        readings = readings_of(self.mechanism, self.before, self.delta)
        readings[self.mechanism.steps] = self.ledger.epsilon(self.delta)
        return [{**line, "epsilon": readings.get(line["step"])} for line in lines]

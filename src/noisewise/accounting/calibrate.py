"""The least noise that meets a budget."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from typing import TYPE_CHECKING

from noisewise.accounting.accountants import check_delta, pld_epsilon, rdp_epsilon
from noisewise.errors import ConfigError

if TYPE_CHECKING:
    from noisewise.accounting.accountants import Events

SMALLEST, LARGEST = 1e-3, 1e5  # noise multipliers that are tried
TOLERANCE = 1e-3


def check_epsilon(epsilon: float) -> None:
    """A budget: a finite number above 0."""
    if isinstance(epsilon, bool) or not isinstance(epsilon, int | float) or not 0 < epsilon < math.inf:
        raise ConfigError(f"epsilon={epsilon!r}: must be a finite number above 0; 1 to 8 is customary.")


def smallest_noise(events: Callable[[float], Events], epsilon: float, delta: float, adjacency: str) -> float:
    """Smallest x (within 0.1 % of epsilon) such that `events(x)` costs at most `epsilon` at `delta` by PLD.

    RDP says cheaply where to start, a few PLD evaluations finish by secants of log epsilon against log x, kept within
    what is already known. Guarantee: the returned x was evaluated by PLD and its epsilon is at most the target.
    """
    check_delta(delta)
    check_epsilon(epsilon)
    enough, aim = math.log(epsilon * (1 - TOLERANCE)), math.log(epsilon * (1 - TOLERANCE / 2))
    low, high = -math.inf, math.inf  # log noise that costs too much, and that costs less than needed
    x, slope, last = _rdp_start(events, epsilon, delta), -2.0, None
    for attempt in itertools.count():
        spent = pld_epsilon(events(math.exp(x)), delta, adjacency)
        y = math.log(min(max(spent, 1e-12), 1e12))
        if spent <= epsilon:
            if y >= enough or x <= math.log(SMALLEST) or x - low < 1e-6:
                break
            high = x
        elif x >= math.log(LARGEST):
            raise ConfigError(
                f"epsilon={epsilon} at delta={delta} is out of reach: even noise multiplier {LARGEST:g} costs more. "
                "Train for fewer steps, use a smaller batch size, or allow a larger epsilon."
            )
        else:
            low = x
        if last:
            slope = min((y - last[1]) / (x - last[0]), -0.2)
        last, step = (x, y), min(max((aim - y) / slope, -1.0), 1.0)
        x = min(max(x + step, math.log(SMALLEST)), math.log(LARGEST))
        if not low < x < high or (attempt > 8 and math.isfinite(high - low)):
            x = (low + high) / 2
    return math.exp(x)


def _rdp_start(events: Callable[[float], Events], epsilon: float, delta: float) -> float:
    """Log of about the noise that meets the budget by RDP for add/remove neighbours: a start, no answer."""
    low, high = math.log(SMALLEST), math.log(LARGEST)
    for _ in range(12):
        middle = (low + high) / 2
        reading = rdp_epsilon(events(math.exp(middle)), delta, "add-remove")[0]
        if reading is None:
            return 0.0
        low, high = (low, middle) if reading <= epsilon else (middle, high)
    return high

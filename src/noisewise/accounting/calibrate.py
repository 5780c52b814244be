"""The least noise that meets a budget."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TYPE_CHECKING

from noisewise.accounting.accountants import check_delta, pld_epsilon, rdp_epsilon
from noisewise.errors import ConfigError

if TYPE_CHECKING:
    from noisewise.accounting.accountants import Events

LARGEST = 1e5
TOLERANCE = 1e-3


def smallest_noise(events: Callable[[float], Events], epsilon: float, delta: float, adjacency: str) -> float:
    """Smallest x (within 0.1 % of epsilon) such that `events(x)` costs at most `epsilon` at `delta` by PLD.

    RDP brackets cheaply, a few PLD evaluations finish by regula falsi in log-log coordinates.
    Guarantee: the returned x was evaluated by PLD and its epsilon is at most the target.
    """
    check_delta(delta)
    if not isinstance(epsilon, int | float) or not math.isfinite(epsilon) or epsilon <= 0:
        raise ConfigError(f"epsilon={epsilon!r}: must be a finite number above 0; 1 to 8 is customary.")

    def pld(log_noise: float) -> float:
        return pld_epsilon(events(math.exp(log_noise)), delta, adjacency)

    def unreachable() -> ConfigError:
        return ConfigError(
            f"epsilon={epsilon} at delta={delta} is out of reach: even noise multiplier {LARGEST:g} costs more. "
            "Train for fewer steps, use a smaller batch size, or allow a larger epsilon."
        )

    high = _rdp_bracket(events, epsilon, delta, adjacency)
    if high is None:
        high = 0.0
    high_epsilon = pld(high)
    while high_epsilon > epsilon:  # RDP is almost always the looser one; if not, look further up
        high += 0.3
        if high > math.log(LARGEST):
            raise unreachable()
        high_epsilon = pld(high)
    low, low_epsilon = high, high_epsilon
    while low_epsilon <= epsilon:
        if low_epsilon >= epsilon * (1 - TOLERANCE):
            return math.exp(low)
        high, high_epsilon = low, low_epsilon
        low -= 0.1
        if low < math.log(1e-3):
            return math.exp(high)
        low_epsilon = pld(low)
    while high_epsilon < epsilon * (1 - TOLERANCE) and high - low > 1e-6:
        aim = math.log(epsilon * (1 - TOLERANCE / 2))
        share = (math.log(low_epsilon) - aim) / (math.log(low_epsilon) - math.log(max(high_epsilon, 1e-12)))
        middle = low + min(max(share, 0.05), 0.95) * (high - low)
        middle_epsilon = pld(middle)
        if middle_epsilon <= epsilon:
            high, high_epsilon = middle, middle_epsilon
        else:
            low, low_epsilon = middle, middle_epsilon
    return math.exp(high)


def _rdp_bracket(events: Callable[[float], Events], epsilon: float, delta: float, adjacency: str) -> float | None:
    """Log of a noise that meets the budget by RDP, by bisection; None where RDP does not apply or never gets there."""
    low, high = math.log(1e-2), math.log(LARGEST)
    reading = rdp_epsilon(events(math.exp(high)), delta, adjacency)[0]
    if reading is None or reading > epsilon:
        return None
    for _ in range(14):
        middle = (low + high) / 2
        reading = rdp_epsilon(events(math.exp(middle)), delta, adjacency)[0]
        if reading is not None and reading <= epsilon:
            high = middle
        else:
            low = middle
    return high

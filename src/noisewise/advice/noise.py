"""How far noise alone carries the weights of a run, and how many people it takes to be heard over it. No torch import."""

from __future__ import annotations

import math

from noisewise.errors import ConfigError


def gathered_noise(step_noise: float, lr: float, momentum: float, steps: int, ema: float | None = None) -> float:
    """Standard deviation of what noise of `step_noise` on every step's mean gradient leaves in a released weight.

    SGD with momentum m moves a weight by `-lr (1 - m^j) / (1 - m)` times the noise of a step that is j steps from the end:
    `lr step_noise sqrt(sum_j ((1 - m^j) / (1 - m))^2)`. A moving average of weights (`ema`) weighs these once more.
    The pull of the loss is left out, so a flat direction is meant, where noise is gathered undisturbed.
    """
    if type(steps) is not int or steps < 1 or not 0 <= momentum < 1:
        raise ConfigError(f"steps={steps!r}, momentum={momentum!r}: a whole number above 0, and a number in [0, 1).")
    shares = [0.0] * steps  # of each state of the weights in what is released
    left = 1.0
    for step in range(steps - 1, -1, -1):
        kept = 0.0 if ema is None else min(ema, (2 + step) / (11 + step))
        shares[step], left = left * (1 - kept), left * kept
    total = later = fading = 0.0
    for share in reversed(shares):
        later, fading = later + share, momentum * (share + fading)
        total += ((later - fading) / (1 - momentum)) ** 2
    return lr * step_noise * math.sqrt(total)


def voice(people: float, rate: float, steps: int, noise_multiplier: float, coordinates: int) -> float:
    """How loud a class of so many people can be over a whole run: its clipped gradients against the noise.

    In each of T steps m people are drawn with rate q and bring at most C each, all in one direction at best: `m q T C`
    over the run. The noise of T steps is `sigma C sqrt(T)` on each of d coordinates, so `sigma C sqrt(T d)` long. The
    quotient is `m q sqrt(T) / (sigma sqrt(d))`; C and the learning rate cancel.
    """
    if noise_multiplier == 0:
        return math.inf
    return people * rate * math.sqrt(steps) / (noise_multiplier * math.sqrt(coordinates))


def smallest_class(rate: float, steps: int, noise_multiplier: float, coordinates: int) -> float:
    """People of a class whose clipped gradients are together as long as the noise of all steps: `voice` 1.

    A rule of thumb, not a theorem: on MNIST, where a class was cut to 100, 500, 1,000 and 3,000 people, those below it were
    lost and those above it learned (docs/advice.md).
    """
    return math.inf if noise_multiplier == math.inf else 1 / voice(1, rate, steps, noise_multiplier, coordinates)

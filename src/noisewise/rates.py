"""The learning rate over a run: constant, linear or cosine, with a warm-up, known before training. No torch import."""

from __future__ import annotations

import math
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any, Literal, get_args

from noisewise.errors import ConfigError

if TYPE_CHECKING:
    import torch

Shape = Literal["constant", "linear", "cosine"]
SHAPES: tuple[str, ...] = get_args(Shape)


@dataclass(frozen=True)
class LearningRate:
    """What the learning rate is multiplied by at each step of a run, its phases included.

    Of T steps the first W = ceil(warmup T) rise, `(t + 1) / W`; then, with `p = (t - W) / (T - W)`, it is 1 (constant),
    `1 - (1 - last) p` (linear) or `last + (1 - last) (1 + cos(pi p)) / 2` (cosine), as torch's LinearLR and CosineAnnealingLR
    have it: `last` would be reached at step T. Depends on no data, so it costs no privacy; a run that is resumed goes on with
    the rate, and draws the noise, that it would have had. Reference for cosine: Loshchilov, Hutter 2017, arXiv:1608.03983.

    >>> [round(LearningRate("cosine").factor(step, 4), 3) for step in range(4)]
    [1.0, 0.854, 0.5, 0.146]
    """

    shape: Shape = "constant"
    last: float = 0.0
    warmup: float = 0.0

    def __post_init__(self) -> None:
        """Known shapes, shares in range."""
        if self.shape not in SHAPES:
            raise ConfigError(f"schedule {self.shape!r}: must be one of {', '.join(SHAPES)}, e.g. cosine:warmup=0.05.")
        for name, value in (("last", self.last), ("warmup", self.warmup)):
            if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < 1:
                raise ConfigError(f"schedule {self.shape}: {name}={value!r} must be a share in [0, 1), e.g. 0.05.")
        if self.shape == "constant" and self.last:
            raise ConfigError(f"schedule constant: last={self.last!r} has no meaning here. Use linear or cosine.")

    def factor(self, step: int, steps: int) -> float:
        """What the learning rate is multiplied by at a step (from 0) of so many."""
        rising = math.ceil(self.warmup * steps)
        if step < rising:
            return (step + 1) / rising
        done = min((step - rising) / max(steps - rising, 1), 1.0)
        if self.shape == "constant":
            return 1.0
        left = 1 - done if self.shape == "linear" else (1 + math.cos(math.pi * done)) / 2
        return self.last + (1 - self.last) * left

    def on(self, optimizer: torch.optim.Optimizer, steps: int, first: int = 0) -> torch.optim.lr_scheduler.LambdaLR:
        """A torch scheduler for the part of a run of so many steps that begins with step `first`."""
        from torch.optim.lr_scheduler import LambdaLR

        return LambdaLR(optimizer, lambda step: self.factor(first + step, steps))

    @classmethod
    def parse(cls, text: str) -> LearningRate:
        """From a config's text, `SHAPE[:KEY=VALUE,...]`.

        >>> LearningRate.parse("cosine:last=0.1,warmup=0.05")
        LearningRate(shape='cosine', last=0.1, warmup=0.05)
        """
        shape, _, rest = text.partition(":")
        known, settings = [field.name for field in fields(cls) if field.name != "shape"], dict[str, Any]()
        for part in rest.split(",") if rest else []:
            key, equals, value = part.partition("=")
            if not equals or key not in known or key in settings:
                raise ConfigError(
                    f"schedule {text!r}: {part!r} must be KEY=VALUE, each once, with {' or '.join(known)}."
                )
            try:
                settings[key] = float(value)
            except ValueError:
                raise ConfigError(f"schedule {text!r}: {key}={value!r} is not a number.") from None
        return cls(shape, **settings)  # type: ignore[arg-type]

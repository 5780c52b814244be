"""Adversarial examples: small changes of an input, made to mislead, by projected gradient ascent, by one step, by chance.

Radii are in units of `scale`, so that 8/255 means the same for raw and for normalised pixels.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from noisewise.errors import ConfigError, DataError
from noisewise.evaluation import evaluating
from noisewise.wording import number

if TYPE_CHECKING:
    import torch
    from torch import Tensor, nn

NOISE_DRAWS = 5

Numbers = float | Sequence[float]


class Norm(NamedTuple):
    """What PGD needs of a norm: steepest direction, projection on a ball, points in and on it, size of a box."""

    direction: Callable[[Tensor], Tensor]
    project: Callable[[Tensor, float], Tensor]
    inside: Callable[[Tensor, torch.Generator], Tensor]
    surface: Callable[[Tensor, torch.Generator], Tensor]
    size: Callable[[Tensor], Tensor]


def _linf_inside(like: Tensor, generator: torch.Generator) -> Tensor:
    import torch

    return (2 * torch.rand(like.shape, generator=generator) - 1).to(like)


def _linf_surface(like: Tensor, generator: torch.Generator) -> Tensor:
    import torch

    return (2 * torch.randint(0, 2, like.shape, generator=generator) - 1).to(like)


def _l2_surface(like: Tensor, generator: torch.Generator) -> Tensor:
    import torch

    return _l2_direction(torch.randn(like.shape, generator=generator).to(like))


def _l2_inside(like: Tensor, generator: torch.Generator) -> Tensor:
    """Uniform in the ball: a direction times U^(1/d)."""
    import torch

    length = torch.rand(len(like), generator=generator).to(like) ** (1 / like[0].numel())
    return _l2_surface(like, generator) * _per_row(length, like)


def _l2_direction(gradient: Tensor) -> Tensor:
    import torch

    # the largest entry first: squares of small gradients would vanish
    largest = gradient.flatten(1).abs().amax(1)
    level = gradient / _per_row(torch.where(largest > 0, largest, 1.0), gradient)
    length = level.flatten(1).norm(dim=1)
    return level / _per_row(torch.where(length > 0, length, 1.0), gradient)


def _l2_project(change: Tensor, radius: float) -> Tensor:
    length = change.flatten(1).norm(dim=1)
    return change * _per_row((radius / length.clamp(min=1e-30)).clamp(max=1.0), change)


def _per_row(values: Tensor, like: Tensor) -> Tensor:
    return values.reshape(-1, *[1] * (like.dim() - 1))


NORMS: dict[str, Norm] = {
    "linf": Norm(
        lambda gradient: gradient.sign(),
        lambda change, radius: change.clamp(-radius, radius),
        _linf_inside,
        _linf_surface,
        lambda change: change.flatten(1).abs().amax(1),
    ),
    "l2": Norm(_l2_direction, _l2_project, _l2_inside, _l2_surface, lambda change: change.flatten(1).norm(dim=1)),
}


@dataclass(frozen=True)
class Space:
    """Inputs that can occur (`low` to `high`), and how many model-input units one unit of radius is (`scale`).

    Each is one number or one per channel (the first dimension of a row). A change `d` moves `x` to
    `clamp(x + scale d, low, high)`, and its size is the norm of `d`. Where the scale is 0 an input stays as it is.
    """

    low: Tensor
    high: Tensor
    scale: Tensor

    @classmethod
    def of(cls, x: Tensor, box: tuple[Numbers, Numbers] | None, scale: Numbers | None) -> Space:
        """Defaults: the box is the range of `x`, the scale its width, so that radii are shares of that range."""
        import torch

        if not x.is_floating_point():
            raise DataError(
                f"inputs of type {x.dtype}: an attack changes inputs a little, so they must be real numbers."
            )
        ends = box if box is not None else (float(x.min()), float(x.max()))
        low, high = (_per_channel(end, x, "box") for end in ends)
        if not bool((low < high).all()):
            raise ConfigError(f"box {ends!r}: every low end must be below its high end.")
        slack = 1e-5 * (high - low)  # what rounding does to normalised pixels
        if bool(((x < low - slack) | (x > high + slack)).any()):
            raise ConfigError(
                f"box {ends!r}: the data reach from {number(float(x.min()))} to {number(float(x.max()))}, beyond it. "
                "Give the range of the inputs as the model sees them (after normalisation)."
            )
        unit = high - low if scale is None else _per_channel(scale, x, "scale")
        if not bool((unit > 0).all()) or not bool(torch.isfinite(unit).all()):
            raise ConfigError(f"scale {scale!r}: must be above 0, e.g. 1 / 0.3081 for pixels divided by 0.3081.")
        return cls(low, high, unit)

    def to(self, x: Tensor) -> Space:
        """On the device and in the precision of `x`."""
        return Space(self.low.to(x), self.high.to(x), self.scale.to(x))

    def move(self, x: Tensor, change: Tensor) -> Tensor:
        """`clamp(x + scale change, low, high)`."""
        import torch

        return torch.minimum(torch.maximum(x + self.scale * change, self.low), self.high)

    def change(self, x: Tensor, moved: Tensor) -> Tensor:
        """What moved `x`, in units of radius."""
        return self._in_radii(moved - x)

    @property
    def width(self) -> Tensor:
        """The largest change that there is, in units of radius."""
        return self._in_radii(self.high - self.low)

    @property
    def whole(self) -> bool:
        """May every input move?"""
        return bool((self.scale > 0).all())

    def _in_radii(self, way: Tensor) -> Tensor:
        import torch

        return torch.where(self.scale > 0, way / self.scale, 0.0)


def _per_channel(value: Numbers, x: Tensor, name: str) -> Tensor:
    import torch

    given = torch.as_tensor(value, dtype=x.dtype, device=x.device)
    if given.dim() > 1 or (given.dim() == 1 and (x.dim() < 2 or len(given) != x.shape[1])):
        raise ConfigError(
            f"{name} of shape {list(given.shape)} for inputs {list(x.shape)}: one number, or one for each of the "
            "first dimension of a row."
        )
    return given if not given.dim() else given.reshape(-1, *[1] * (x.dim() - 2))


class Attacked(NamedTuple):
    """Of every row: was it right wherever the attack looked, the largest loss seen, and where that was."""

    right: Tensor
    loss: Tensor
    x: Tensor


def margin(outputs: Tensor, y: Tensor) -> Tensor:
    """`m = logsumexp of the wrong classes' outputs - output of the right class`, in double precision.

    Guarantee: cross-entropy is `log(1 + e^m)`, which rises with m: both have the same direction of steepest ascent, but
    m does not flatten where the model is sure, so large outputs alone cannot hide the gradient.
    """
    import torch

    outputs = outputs.double()
    right = outputs.gather(1, y.unsqueeze(1))
    return torch.scatter(outputs, 1, y.unsqueeze(1), -math.inf).logsumexp(1) - right.squeeze(1)


def _look(model: nn.Module, x: Tensor, y: Tensor) -> Attacked:
    """The model's answer at `x`."""
    import torch
    from torch.nn.functional import softplus

    with torch.no_grad():
        outputs = model(x)
        return Attacked(outputs.argmax(1) == y, softplus(margin(outputs, y)), x)


def look_and_climb(model: nn.Module, x: Tensor, y: Tensor) -> tuple[Attacked, Tensor]:
    """The model's answer at `x` and the gradient of the margin there; zero where it is not finite: no direction."""
    import torch
    from torch.nn.functional import softplus

    with torch.enable_grad():
        leaf = x.detach().requires_grad_()
        outputs = model(leaf)
        height = margin(outputs, y)
        # a model that quantises its inputs may not be connected to them at all
        gradient = torch.autograd.grad(height.sum(), leaf, allow_unused=True)[0] if height.requires_grad else None
    seen = Attacked(outputs.argmax(1) == y, softplus(height.detach()), x)
    if gradient is None:
        return seen, torch.zeros_like(x)
    finite = torch.isfinite(gradient).flatten(1).all(1)
    return seen, torch.where(_per_row(finite, x), gradient, 0.0)


def _worse(first: Attacked, second: Attacked, rows: Tensor | None = None) -> Attacked:
    """The worse of two answers for every row; `second` may be that of some `rows` only."""
    import torch

    if rows is not None and len(rows) < len(first.right):
        worst = Attacked(*(values.clone() for values in first))
        some = _worse(Attacked(*(values[rows] for values in first)), second)
        for values, new in zip(worst, some, strict=True):
            values[rows] = new
        return worst
    larger = second.loss > first.loss
    return Attacked(
        first.right & second.right,
        torch.maximum(first.loss, second.loss),
        torch.where(_per_row(larger, first.x), second.x, first.x),
    )


def pgd(
    model: nn.Module,
    x: Tensor,
    y: Tensor,
    radius: float,
    norm: str,
    space: Space,
    generator: torch.Generator,
    *,
    steps: int = 20,
    step: float = 0.25,
    restarts: int = 1,
    known: Attacked | None = None,
    stop: bool = False,
) -> Attacked:
    """Projected gradient ascent from a random start in the ball: `d <- P(d + step r u)`, u the steepest direction.

    u is the sign of the gradient (linf) or the gradient over its length (l2), P the projection on the ball of radius r
    and the box. A row is right if it is at `x` and at every point visited in every restart. `known`: what is known of these
    rows already, by default their answer at `x`. `stop`: leave a row alone once it is misled, which changes no row's
    `right`, only its `loss`, that then is the largest until it was misled. Reference: Madry et al. 2018,
    arXiv:1706.06083. Deviation: climbs `margin`, the same direction as cross-entropy; all points count, not only the last.
    """
    rule, space = NORMS[norm], space.to(x)
    with evaluating(model):
        worst = _look(model, x, y) if known is None else known
        for _ in range(restarts):
            # drawn for all rows: a row's start does not depend on what happens to others
            moved = space.move(x, radius * rule.inside(x, generator))
            rows = _left(worst.right, stop)
            start, label, moved = x[rows], y[rows], moved[rows]
            for _ in range(steps):
                if not len(rows):
                    break
                seen, gradient = look_and_climb(model, moved, label)
                worst = _worse(worst, seen, rows)
                if stop and not bool(seen.right.all()):
                    left = _left(seen.right, stop)
                    rows, start, label = rows[left], start[left], label[left]
                    moved, gradient = moved[left], gradient[left]
                change = space.change(start, moved) + step * radius * rule.direction(gradient * space.scale)
                moved = space.move(start, rule.project(change, radius))
            if len(rows):
                worst = _worse(worst, _look(model, moved, label), rows)
    return worst


def _left(right: Tensor, stop: bool) -> Tensor:
    """Rows that are still attacked."""
    import torch

    return right.nonzero().squeeze(1) if stop else torch.arange(len(right), device=right.device)


def fgsm(
    model: nn.Module,
    x: Tensor,
    y: Tensor,
    radius: float,
    norm: str,
    space: Space,
    *,
    known: tuple[Attacked, Tensor] | None = None,
) -> Attacked:
    """One step of length r in the steepest direction at `x`. Reference: Goodfellow et al. 2015, arXiv:1412.6572.

    `known`: answer and gradient at `x`, if they are. Deviation: for l2 the step is the gradient over its length; the
    answer at `x` counts as well.
    """
    space = space.to(x)
    with evaluating(model):
        clean, gradient = look_and_climb(model, x, y) if known is None else known
        moved = space.move(x, radius * NORMS[norm].direction(gradient * space.scale))
        return _worse(clean, _look(model, moved, y))


def noise(
    model: nn.Module,
    x: Tensor,
    y: Tensor,
    radius: float,
    norm: str,
    space: Space,
    generator: torch.Generator,
    *,
    known: Attacked | None = None,
) -> Attacked:
    """The worst of `NOISE_DRAWS` random changes of full radius: what a blind attack of the same size does.

    `known`: the answer at `x`, if it is.
    """
    space = space.to(x)
    with evaluating(model):
        worst = _look(model, x, y) if known is None else known
        for _ in range(NOISE_DRAWS):
            moved = space.move(x, radius * NORMS[norm].surface(x, generator))
            worst = _worse(worst, _look(model, moved, y))
    return worst

"""Canaries: units that are made to be seen, in steps of the engine or in a whole training, each in or out by a coin.

A canary that is out is there with a loss of weight 0: it has no gradient, as if it were not there.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from noisewise.accounting import Ledger
from noisewise.adaptive import Adaptive
from noisewise.batches import map_tensors, take
from noisewise.clipping import PerLayer, Samples
from noisewise.errors import ConfigError, DataError
from noisewise.evaluation import BATCH, device_of, evaluating
from noisewise.losses import cross_entropy
from noisewise.randomness import Entropy
from noisewise.schedule import Schedule

if TYPE_CHECKING:
    import torch
    from torch import Tensor, nn

    from noisewise.batches import Nest
    from noisewise.clipping import Clip
    from noisewise.data import Data
    from noisewise.losses import LossFn
    from noisewise.mechanism import Mechanism
    from noisewise.training.state import State

    Engine = Callable[[nn.Module, Nest, LossFn, torch.optim.Optimizer, State], None]

BUILT_IN = 256  # canaries of the built-in model, each in a coordinate of its own
CANARIES = ("gradient", "mislabelled", "blank")
COORDINATES = "canary_coordinates"


def weighted(loss_fn: LossFn) -> LossFn:
    """The loss of units `(*rows, weight)`: a unit of weight 0 has no gradient, as if it were not there."""

    def loss(model: Any, batch: Nest) -> Tensor:
        *rows, weight = batch
        return loss_fn(model, tuple(rows)) * weight

    return loss


def loudest(clip: Clip, norms: dict[str, float]) -> float:
    """Factor on a gradient that makes most of it pass the rule; the largest of several, so that it *must* be clipped."""
    import torch

    blocks = clip.blocks(norms)
    squares = torch.zeros(max(blocks.values()) + 1, dtype=torch.float64)
    for name, norm in norms.items():
        squares[blocks[name]] += norm**2
    length = squares.sum().sqrt()
    factors = torch.logspace(-2, 2, 801, dtype=torch.float64) * clip.sensitivity / length
    scaled = squares.sqrt().unsqueeze(1) * factors
    groups = torch.zeros(len(factors), dtype=torch.long)
    passed = (clip.factors(Samples(scaled, groups)) * scaled).square().sum(0).sqrt()
    return float(factors[passed >= 0.999 * passed.max()].max())


# Steps of the engine --------------------------------------------------------------------------------------------------


class Target(NamedTuple):
    """A model, units some of which are canaries, and the direction `[canaries, ...]` of each canary's gradient."""

    model: nn.Module
    units: tuple[Tensor, Tensor]
    loss_fn: LossFn
    weights: Tensor  # of every unit's loss
    canaries: Tensor  # which of the units
    directions: dict[str, Tensor]
    words: str


def built_in(clip: Clip) -> Target:
    """A linear model on one-hot inputs: canary i moves column i alone."""
    import torch
    from torch import nn

    model = nn.utils.skip_init(nn.Linear, BUILT_IN, 2, bias=False)
    nn.init.zeros_(model.weight)
    return _aimed(
        model,
        (torch.eye(BUILT_IN), torch.arange(BUILT_IN) % 2),
        cross_entropy,
        torch.arange(BUILT_IN),
        clip,
        f"a built-in linear model with {BUILT_IN} canaries in orthogonal directions",
    )


def canary_of(
    model: nn.Module, data: Data, loss_fn: LossFn, units: int, clip: Clip, rng: np.random.Generator
) -> Target:
    """Some rows of the user's data on a copy of the model; the first of them is the canary."""
    import torch

    if type(units) is not int or not 1 <= units <= len(data):
        raise ConfigError(f"units={units!r} of {len(data)} rows: must be a whole number from 1 to that.")
    rows = torch.from_numpy(rng.choice(len(data), units, replace=False))
    copied, device = copy.deepcopy(model).eval(), device_of(model)
    batch = (data.x[rows].to(device), data.y[rows].to(device))
    weights = sum(parameter.numel() for parameter in copied.parameters())
    return _aimed(copied, batch, loss_fn, torch.tensor([0]), clip, f"your model ({weights:,} weights) with one canary")


def _aimed(
    model: nn.Module, units: tuple[Tensor, Tensor], loss_fn: LossFn, canaries: Tensor, clip: Clip, words: str
) -> Target:
    """Directions by plain autograd (not by the engine that is audited), and weights that use the whole bound."""
    import torch

    learning = {name: p for name, p in model.named_parameters() if p.requires_grad}
    weights, directions = torch.ones(len(units[1]), device=units[0].device), []
    for canary in canaries.tolist():
        loss = loss_fn(model, tuple(part[canary : canary + 1] for part in units)).sum()
        grads = torch.autograd.grad(loss, list(learning.values()), materialize_grads=True)
        direction = dict(zip(learning, (grad.detach() for grad in grads), strict=True))
        length = math.sqrt(sum(float(grad.square().sum()) for grad in direction.values()))
        if not length:
            raise DataError("the canary has no gradient on this model: draw another one, or use other data.")
        weights[canary] = loudest(clip, {name: float(grad.norm()) for name, grad in direction.items()})
        directions.append({name: grad / length for name, grad in direction.items()})
    stacked = {name: torch.stack([direction[name] for direction in directions]) for name in learning}
    return Target(model, units, weighted(loss_fn), weights, canaries, stacked, words)


def play(
    target: Target,
    plan: Mechanism,
    releases: int,
    rng: np.random.Generator,
    reproducible: bool,
    engine: Engine,
    advance: Callable[[], Any] = lambda: None,
) -> tuple[np.ndarray, np.ndarray]:
    """Coins `[trials]`, and the two releases along the canary's direction `[2, trials]`."""
    import torch

    from noisewise.persample import examine
    from noisewise.training.state import State

    model, canaries = target.model, target.canaries
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
    layout = examine(model, target.loss_fn, (*target.units, target.weights))
    absent = target.weights.clone()
    absent[canaries] = 0.0
    flat = torch.cat([target.directions[name].flatten(1) for name in target.directions], 1)
    coins = rng.integers(0, 2, (releases, len(canaries)))
    seen = np.empty((2, releases, len(canaries)))
    for trial in range(releases):
        entropy = Entropy.insecure(int(rng.integers(2**62))) if reproducible else Entropy.fresh()
        state = State(plan, Ledger(plan.adjacency), entropy, layout=layout)
        present = absent.clone()
        present[canaries] = target.weights[canaries] * torch.from_numpy(coins[trial]).to(absent)
        for step, weights in enumerate((present, absent)):
            state.ledger.identity = None  # the canary comes and goes on purpose
            engine(model, (*target.units, weights), target.loss_fn, optimizer, state)
            seen[step, trial] = (flat @ _gradient(model, target.directions)).cpu().numpy()
        advance()
    return coins.reshape(-1), seen.reshape(2, -1)


def _gradient(model: nn.Module, names: Iterable[str]) -> Tensor:
    """What the step left for the optimizer, in one vector."""
    import torch

    parameters = dict(model.named_parameters())
    grads = ((parameters[name], parameters[name].grad) for name in names)
    return torch.cat([(torch.zeros_like(p) if grad is None else grad).flatten() for p, grad in grads])


# A whole training -----------------------------------------------------------------------------------------------------


def check_canaries(data: Data, mechanism: Mechanism, canaries: int, canary: str) -> None:
    """Stop where canaries of this kind cannot be put in place of rows, or in and out would differ by more than one unit."""
    if canary not in CANARIES:
        raise ConfigError(f"canary={canary!r}: must be one of {list(CANARIES)}.")
    if data.unit is not None:
        raise DataError("the data says which rows belong to one person: the one-run audit is for rows only.")
    if isinstance(mechanism.clip, Adaptive):
        raise ConfigError(
            f"clip={mechanism.clip!r}: its question counts every unit, so that a canary that is out would still be asked, "
            "and in and out would be further apart than the claim allows. Audit a rule that asks nothing, e.g. Flat."
        )
    if mechanism.sampler.n != len(data):
        raise ConfigError(
            f"the data has {len(data)} rows, the mechanism was planned for n={mechanism.sampler.n}: give the part that is "
            "trained on."
        )
    if type(canaries) is not int or not 4 <= canaries <= len(data):
        raise ConfigError(f"canaries={canaries!r} of {len(data)} rows: must be a whole number from 4 to that.")
    if canary == "mislabelled" and (data.task != "classification" or len(data.y.unique()) < 2):
        raise DataError("mislabelled canaries need data with at least two classes: use canary='gradient'.")
    if canary == "blank" and (not data.x.is_floating_point() or canaries > data.x[0].numel()):
        raise ConfigError(
            f"canaries={canaries} blank inputs of shape {list(data.x.shape[1:])}, {data.x.dtype}: each needs a real-valued "
            "entry of its own. Use fewer, or canary='gradient'."
        )


def with_canaries(data: Data, rows: Tensor, coins: np.ndarray, canary: str, rng: np.random.Generator) -> Nest:
    """Units `((x, y), (number, is Dirac), weight)`: `rows` are canaries, of weight 0 where the coin says out."""
    import torch

    x, y, count = data.x.clone(), data.y.clone(), len(rows)
    numbers, dirac = torch.zeros(len(data), dtype=torch.long), torch.zeros(len(data), dtype=torch.bool)
    numbers[rows] = torch.arange(count)
    dirac[rows] = canary == "gradient"
    if canary == "mislabelled":
        classes = int(data.y.max()) + 1
        y[rows] = (y[rows] + torch.from_numpy(rng.integers(1, classes, count))) % classes
    if canary == "blank":
        empty = torch.full((count, x[0].numel()), float(data.x.min()), dtype=x.dtype)
        empty[torch.arange(count), torch.arange(count)] = float(data.x.max())
        x[rows] = empty.view(count, *x.shape[1:])
    weight = torch.ones(len(data))
    weight[rows] = torch.from_numpy(coins).float()
    return (x, y), (numbers, dirac), weight


def canary_loss(
    model: nn.Module, loss_fn: LossFn, canary: str, count: int, mechanism: Mechanism
) -> tuple[LossFn, Mechanism]:
    """The units' loss, and the plan that trains with it.

    Dirac canaries have `sum over blocks of scale * coordinate`, where each block of the clipping rule has a parameter of its
    own that is put on the model for them: so a canary may move as far as the rule allows in all blocks together. The plan's
    rule knows these parameters; its bounds, noise and epsilon are as they were.
    """
    import torch
    import torch.nn.functional as F

    if canary != "gradient":
        return weighted(lambda trained, batch: loss_fn(trained, batch[0])), mechanism
    rule = mechanism.clip_at(0)
    rules = rule.rules if isinstance(rule, PerLayer) else {"": rule}
    names = [COORDINATES if len(rules) == 1 else f"{COORDINATES}_{number}" for number in range(len(rules))]
    taken = [name for name in names if name in dict(model.named_parameters())]
    if taken:
        raise ConfigError(f"the model has a parameter {taken[0]!r} already: rename it.")
    device = device_of(model)
    others = {other: 0.0 for other, p in model.named_parameters() if p.requires_grad}
    for name in names:
        model.register_parameter(name, torch.nn.Parameter(torch.zeros(count, 1, device=device)))
    if isinstance(rule, PerLayer):
        scales = [loudest(of_block, {name: 1.0}) for name, of_block in zip(names, rules.values(), strict=True)]
    else:
        scales = [loudest(rule, {**others, names[0]: 1.0})]

    def loss(trained: Any, batch: Nest) -> Tensor:
        rows, (numbers, dirac) = batch
        moved = [
            scale * F.embedding(numbers, trained.get_parameter(name)).squeeze(1)
            for name, scale in zip(names, scales, strict=True)
        ]
        return torch.where(dirac, torch.stack(moved).sum(0), loss_fn(trained, rows))

    clip = mechanism.clip
    known = (
        clip.map(lambda each: _with_members(each, names)) if isinstance(clip, Schedule) else _with_members(clip, names)
    )
    return weighted(loss), replace(mechanism, clip=known)


def _with_members(clip: Clip, names: list[str]) -> Clip:
    """The rule with the canaries' parameters in its blocks: one in each, or all in the largest where these are others."""
    if not isinstance(clip, PerLayer):
        return clip
    blocks = list(clip.rules)
    largest = max(blocks, key=lambda block: clip.rules[block].sensitivity)
    members = {name: name for name in blocks} if clip.members is None else dict(clip.members)
    of_canaries = blocks if len(blocks) == len(names) else [largest] * len(names)
    return PerLayer(clip.rules, members | dict(zip(names, of_canaries, strict=True)))


def scores_of(model: nn.Module, loss_fn: LossFn, units: Nest, rows: Tensor) -> np.ndarray:
    """The canaries' losses, each of weight 1, whether it was in or out."""
    import torch

    device, losses = device_of(model), []
    with evaluating(model), torch.no_grad():
        for part in rows.split(BATCH):
            pairs, kinds, _ = map_tensors(lambda tensor: tensor.to(device), take(units, part))
            losses.append(loss_fn(model, (pairs, kinds, torch.ones(len(part), device=device))).double().cpu())
    return torch.cat(losses).numpy()

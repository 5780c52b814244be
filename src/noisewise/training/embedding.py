"""Gradient embedding perturbation (GEP): gradients in a subspace of public gradients and what is left, each clipped apart.

With an orthonormal basis B of a subspace that public gradients span: `e_i = B^T g_i`, `r_i = g_i - B e_i`. Released is
`B (sum clip_C0(e_i) + noise) + sum clip_C1(r_i) + noise`, with noise of `sigma sqrt(2) C0` on the few coordinates of the
first and of `sigma sqrt(2) C1` on the others. Most of a gradient lies in the subspace, so C1 may be small.

Guarantee: one Gaussian mechanism with multiplier sigma: the vector `(e_i / C0, r_i / C1)` of a unit is no longer than sqrt(2),
whatever B is. B follows from released weights, public data and a public seed, so it is free.
Reference: Yu, Zhang, Chen, Liu 2021, arXiv:2102.12677. Deviation: bases are orthogonalised by QR; the expected batch divides.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from noisewise.batches import Nest, Padded, Views, length, map_tensors, take
from noisewise.bounded import Bounded, release
from noisewise.clipping import Clip, Flat, PerLayer, Samples
from noisewise.data import Data
from noisewise.errors import ConfigError, PrivacyError
from noisewise.losses import LossFn
from noisewise.mechanism import PURPOSE
from noisewise.persample import Layout, engines, examine
from noisewise.persample.chance import random_state
from noisewise.persample.clipped_sum import nothing_kept
from noisewise.persample.examine import Versions
from noisewise.promises import factors_of
from noisewise.runtime import Runtime
from noisewise.support import live_parameters
from noisewise.training.batches import draw
from noisewise.training.start import check_start, enter
from noisewise.training.state import State
from noisewise.training.values import looking

EMBEDDING, RESIDUAL = "embedding", "residual"
AT_ONCE = 64  # public units whose gradients are computed together
ROUNDING = 1e-6  # by how much norms are lengthened: sums are rounded, and none may exceed its bound


def embedding_bounds(embedding: float = 5.0, residual: float = 2.0) -> PerLayer:
    """The clipping rule of a mechanism for `embedded_step`: a bound for each part."""
    return PerLayer({EMBEDDING: Flat(embedding), RESIDUAL: Flat(residual)})


@dataclass(frozen=True)
class Anchors:
    """Public data whose gradients span the subspace, and its size.

    dimension: of the subspace. groups: the weights are cut into so many pieces of equal size, each with a basis of its own
    and a share of the dimension by the root of its size. rounds: of the power method. seed: public.
    """

    public: Data
    dimension: int = 1000
    groups: int = 3
    rounds: int = 1
    seed: int = 0

    def __post_init__(self) -> None:
        """Data that anybody may see; whole numbers."""
        if not self.public.public:
            raise PrivacyError(
                "anchors from data that are not declared public: no ledger would cover what they tell. If anyone may see them, "
                "say so: Data(..., public=True)."
            )
        for name in ("dimension", "groups", "rounds"):
            value = getattr(self, name)
            if type(value) is not int or value < 1:
                raise ConfigError(f"anchors: {name}={value!r} must be a whole number above 0.")
        if self.dimension < self.groups:
            raise ConfigError(f"anchors: dimension={self.dimension} for {self.groups} groups: at least 1 for each.")

    def bases(self, model: nn.Module, loss_fn: LossFn, layout: Layout, step: int) -> list[Tensor]:
        """An orthonormal basis `[weights, dimension]` for each group, at the model's weights."""
        live = live_parameters(model, {})
        device = next(iter(live.values())).device
        rows: Nest = (self.public.x, self.public.y)
        seed = self.seed * 1_000_003 + step
        gradients = torch.cat(
            [
                unit_gradients(model, loss_fn, map_tensors(lambda t: t.to(device), take(rows, part)), seed, layout)
                for part in torch.arange(len(self.public)).split(AT_ONCE)
            ]
        )
        generator = torch.Generator().manual_seed(seed)
        sizes = _cut(gradients.shape[1], self.groups)
        shares = _dimensions(sizes, self.dimension)
        return [
            basis_of(part, min(share, *part.shape), self.rounds, generator)
            for part, share in zip(gradients.split(sizes, 1), shares, strict=True)
        ]


def embedded_step(
    model: nn.Module,
    data: Data | Nest,
    loss_fn: LossFn,
    optimizer: torch.optim.Optimizer,
    state: State,
    anchors: Anchors,
    runtime: Runtime | None = None,
) -> None:
    """One step of the plan as `private_step`, with the gradient in two parts; the mechanism's rule is `embedding_bounds`.

    `mechanism = Mechanism(sampler=..., clip=embedding_bounds(5.0, 2.0), steps=..., ...)`, `state = State.start(mechanism)`,
    then `mechanism.steps` times this. Needs memory for the gradients of a batch, one by one, and for those of all anchors.
    """
    check_start(model, data, loss_fn, optimizer, state, None, None)
    enter(model, data, state)
    mechanism, weights = state.mechanism, dict(model.named_parameters())
    rule = mechanism.clip_at(state.step)
    if not isinstance(rule, PerLayer) or set(rule.rules) != {EMBEDDING, RESIDUAL} or mechanism.beside():
        raise ConfigError(
            f"clip={rule!r}: an embedded step needs embedding_bounds(C0, C1), and nothing else is released."
        )
    if state.team.several or state.course.begin(state.step, weights):
        raise ConfigError("an embedded step is of one process, and all parameters learn: leave team and support out.")
    assert state.layout is not None
    bases = anchors.bases(model, loss_fn, state.layout, state.step)
    device, step = next(model.parameters()).device, state.step
    drawn = draw(data, state, None, runtime, device, looking(model, loss_fn, data, None, state.taken, step))
    asked = embedded_sum(model, loss_fn, drawn.rows, rule, bases, state.layout, drawn.seed)
    state.step += 1  # whatever happens next, this step's noise is not drawn again
    answers = release(
        {PURPOSE: (asked, mechanism.noise_at(step))},
        sampler=mechanism.sampler, ledger=state.ledger, entropy=drawn.noise, step=step, first_step=state.first_step,
    )  # fmt: skip
    gradient = rebuilt(answers[PURPOSE], rule, bases, live_parameters(model, {}))
    state.moves.move(weights, {PURPOSE: gradient}, mechanism.expected_batch_size, optimizer)
    state.observe(step, rule, mechanism.noise_at(step), {PURPOSE: gradient})
    state.moved(model, optimizer)


def embedded_sum(
    model: nn.Module, loss_fn: LossFn, batch: Nest, rule: PerLayer, bases: Sequence[Tensor], layout: Layout, seed: int
) -> Bounded:
    """`sum clip(e_i) / C0` and `sum clip(r_i) / C1` over a batch: together a unit adds at most sqrt(2).

    `seed`: of random layers, secret as in `clipped_sum`, or a unit's draws would follow from its place among others.
    """
    rows, present = batch if isinstance(batch, Padded) else (batch, None)
    width, device = sum(len(basis) for basis in bases), next(model.parameters()).device
    if length(rows):
        gradients = unit_gradients(model, loss_fn, rows, seed, layout).double()
    else:
        gradients = torch.zeros(0, width, dtype=torch.float64, device=device)
    keep = gradients.isfinite().all(1)
    if present is not None:
        keep = keep & present.to(device).bool()
    gradients = torch.where(keep.unsqueeze(1), gradients, 0.0)
    embedding, residual = embedded(gradients, bases)
    sums = {
        name: clipped_share(part, rule.rules[name]).float()
        for name, part in ((EMBEDDING, embedding), (RESIDUAL, residual))
    }
    return Bounded(sums, math.sqrt(2))


def clipped_share(gradients: Tensor, rule: Clip) -> Tensor:
    """`sum_i clip(g_i) / C` of gradients `[n, weights]`: no unit adds more than 1."""
    norms = gradients.norm(dim=1).unsqueeze(0) * (1 + ROUNDING)
    return (factors_of(rule, Samples(norms, None))[0].unsqueeze(1) * gradients).sum(0) / rule.sensitivity


def embedded(gradients: Tensor, bases: Sequence[Tensor]) -> tuple[Tensor, Tensor]:
    """Coordinates in the subspace `[n, dimension]`, and what is left `[n, weights]`, of gradients `[n, weights]`."""
    parts = gradients.split([len(basis) for basis in bases], 1)
    inside = [part @ basis.to(part) for part, basis in zip(parts, bases, strict=True)]
    rest = [part - e @ basis.to(part).T for part, e, basis in zip(parts, inside, bases, strict=True)]
    return torch.cat(inside, 1), torch.cat(rest, 1)


def rebuilt(
    answers: Mapping[str, Tensor], rule: PerLayer, bases: Sequence[Tensor], live: Mapping[str, nn.Parameter]
) -> dict[str, Tensor]:
    """What was released as a gradient of each parameter: `C0 B e + C1 r`."""
    coordinates = answers[EMBEDDING].split([basis.shape[1] for basis in bases])
    inside = torch.cat([basis.to(e) @ e for basis, e in zip(bases, coordinates, strict=True)])
    whole = rule.rules[EMBEDDING].sensitivity * inside + rule.rules[RESIDUAL].sensitivity * answers[RESIDUAL]
    parts = whole.split([parameter.numel() for parameter in live.values()])
    return {name: part.view_as(live[name]) for name, part in zip(live, parts, strict=True)}


def unit_gradients(model: nn.Module, loss_fn: LossFn, rows: Nest, seed: int, layout: Layout | None = None) -> Tensor:
    """Gradients `[n, weights]` of each unit, parameters one after another: as private as the units.

    `seed`: of random layers; the state of the generators is put back. A model that keeps the rows, or changes, is refused.
    """
    layout = examine(model, loss_fn, rows) if layout is None else layout
    live, versions = live_parameters(model, {}), Versions(model)
    views = rows if isinstance(rows, Views) else Views.single(rows)
    with random_state(seed), torch.enable_grad(), nothing_kept(views) as proofs:
        measured = engines.measure(model, loss_fn, views, live, {}, layout, "auto", proofs)
        gradients = torch.cat([measured[name][1].formed().reshape(len(views.weights), -1) for name in live], 1)
        del measured
    versions.check(model)
    return gradients


@torch.no_grad()
def basis_of(gradients: Tensor, dimension: int, rounds: int, generator: torch.Generator) -> Tensor:
    """An orthonormal basis `[weights, dimension]` near the span of the largest singular vectors, by the power method."""
    start = torch.randn(gradients.shape[1], dimension, generator=generator, dtype=torch.float64)
    basis, rows = start.to(gradients.device), gradients.double()
    for _ in range(rounds):
        basis = torch.linalg.qr(rows.T @ (rows @ basis))[0]
    return basis


def _cut(weights: int, groups: int) -> list[int]:
    """Sizes of the groups: equal, the last one takes what is over."""
    size = weights // groups
    if not size:
        raise ConfigError(f"anchors: groups={groups} for a model of {weights} weights: at most one group for each.")
    return [*[size] * (groups - 1), weights - size * (groups - 1)]


def _dimensions(sizes: Sequence[int], dimension: int) -> list[int]:
    """Shares of the dimension by the root of a group's size.

    >>> _dimensions([100, 100, 400], 40)
    [10, 10, 20]
    """
    roots = [math.sqrt(size) for size in sizes]
    return [max(1, int(dimension * root / sum(roots) + 1e-9)) for root in roots]

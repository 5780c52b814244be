"""Steps that leave out clipping, noise or both, to see what each of them costs. None of them is private."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Literal, get_args

import torch
from torch import Tensor, nn

from noisewise.batches import Nest, Padded, Views, length, take
from noisewise.bounded import expose, release
from noisewise.data import Data
from noisewise.data.indexed import readable
from noisewise.distributed.joining import join, total
from noisewise.errors import ConfigError
from noisewise.losses import LossFn, unit_losses
from noisewise.mechanism import PURPOSE, RANKING
from noisewise.runtime import Runtime
from noisewise.support import live_parameters
from noisewise.training.augmentation import Augment
from noisewise.training.batches import Drawn, draw
from noisewise.training.memory import in_memory
from noisewise.training.moves import write_gradients
from noisewise.training.start import check_start, enter
from noisewise.training.state import State
from noisewise.training.step import Observation, Recorder, clipped_part, private_step, questions
from noisewise.training.values import looking

if TYPE_CHECKING:
    from noisewise.support import Support

Ablation = Literal["private", "plain", "clip-only", "noise-only"]
ABLATIONS: tuple[str, ...] = get_args(Ablation)


def step_of(ablation: Ablation) -> Callable[..., None]:
    """What makes a step of a run: `private_step`, or `ablated_step`, which takes the same arguments."""
    if ablation not in ABLATIONS:
        raise ConfigError(f"ablation={ablation!r}: must be one of {list(ABLATIONS)}.")
    return private_step if ablation == "private" else partial(ablated_step, ablation=ablation)


def ablated_step(
    model: nn.Module,
    data: Data | Nest,
    loss_fn: LossFn,
    optimizer: torch.optim.Optimizer,
    state: State,
    runtime: Runtime | None = None,
    *,
    ablation: Literal["plain", "clip-only", "noise-only"],
    recorders: Sequence[Recorder] = (),
    example: Nest = None,
    augment: Augment | None = None,
) -> None:
    """A step as `private_step` makes it, from the same randomness, but without clipping, without noise or without both.

    Not private: the ledger says so, and its epsilon is infinite from here on. Recorders see steps that clip.
    """
    if ablation not in ABLATIONS[1:]:
        raise ConfigError(f"ablation={ablation!r}: must be one of {list(ABLATIONS[1:])}.")
    data = readable(data)
    check_start(model, data, loss_fn, optimizer, state, example, augment)
    if state.sharded is not None:
        raise ConfigError(
            f"ablation={ablation!r} with parameters that are spread over processes: only private steps are made so. Train this "
            "one with whole parameters on every process, without fully_shard."
        )
    enter(model, data, state, promised=False)
    weights = dict(model.named_parameters())
    look = looking(model, loss_fn, data, augment, state.taken, state.step)
    drawn = draw(data, state, augment, runtime, next(model.parameters()).device, look)
    sigma = state.mechanism.noise_at(drawn.step) if ablation == "noise-only" else 0.0
    support = state.course.begin(drawn.step, weights)
    if ablation == "clip-only":
        answers = _clipped(model, data, loss_fn, drawn, support, state, runtime, recorders)
    else:
        answers = _unclipped(model, loss_fn, drawn, support, state, runtime, sigma, ablation)
    write_gradients(weights, answers, state.mechanism.expected_batch_size)
    state.observe(drawn.step, drawn.clip, sigma, answers)
    optimizer.step()
    state.moved(model, optimizer)


def _clipped(
    model: nn.Module,
    data: Data | Nest,
    loss_fn: LossFn,
    drawn: Drawn,
    support: Support,
    state: State,
    runtime: Runtime | None,
    recorders: Sequence[Recorder],
) -> dict[str, dict[str, Tensor]]:
    """Clipped, without noise."""
    part = clipped_part(model, data, loss_fn, drawn, support, state, runtime)
    clipped = join(part, state.team, drawn.occasion, norms=bool(recorders))
    for recorder in recorders:
        recorder(Observation(drawn.step, drawn.units, clipped.norms, drawn.clip, support))
    purpose = "clip-only (not private)"
    asked = questions(clipped, state, purpose, 0.0)
    state.step += 1
    answers = release(
        asked, sampler=state.mechanism.sampler, ledger=state.ledger, entropy=drawn.noise, step=drawn.step,
        first_step=state.first_step,
    )  # fmt: skip
    return answers | {PURPOSE: answers[purpose]}


def _unclipped(
    model: nn.Module,
    loss_fn: LossFn,
    drawn: Drawn,
    support: Support,
    state: State,
    runtime: Runtime | None,
    sigma: float,
    purpose: str,
) -> dict[str, dict[str, Tensor]]:
    """Not clipped, with noise of sigma times the bound that there would be."""
    compute = partial(unclipped_sum, model, loss_fn, drawn.rows, support, drawn.seed)
    sums = total(in_memory(compute, state, runtime, length(drawn.rows)), support, state.team)
    std, at_step = sigma * drawn.clip.sensitivity, state.first_step + drawn.step
    state.step += 1
    clear = {RANKING: {name: total.clone() for name, total in sums.items()}} if state.course.unnoised else {}
    grads = expose(sums, std, support, ledger=state.ledger, entropy=drawn.noise, step=at_step, purpose=purpose)
    return {PURPOSE: grads, **clear}


def unclipped_sum(
    model: nn.Module, loss_fn: LossFn, batch: Nest, support: Support, seed: int, runtime: Runtime
) -> dict[str, Tensor]:
    """Sum of unclipped gradients, where nothing is clipped."""
    live = live_parameters(model, support)
    sums = {name: torch.zeros_like(parameter) for name, parameter in live.items()}
    if isinstance(batch, Padded):
        batch = take(batch.batch, batch.present)
    views = batch if isinstance(batch, Views) else Views.single(batch)
    units = length(batch)
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        size = runtime.units_at_once(units)
        for first in range(0, units, size):
            part = take(views, slice(first, first + size))
            losses = unit_losses(model, loss_fn, part.rows())
            total = (losses * part.weights.flatten().to(losses.dtype)).sum()
            grads = torch.autograd.grad(total, list(live.values()), allow_unused=True)
            for (name, _), grad in zip(live.items(), grads, strict=True):
                if grad is not None:
                    sums[name] += grad
    for name, mask in support.items():
        if isinstance(mask, Tensor) and name in sums:
            sums[name] *= mask.to(sums[name].device)
    return sums

"""One private step, from the batch to the weights. It is meant to be read.

sampler -> clipped_sum -> join -> release (which writes the ledger) -> p.grad -> any torch optimizer.
Where several processes train together, each computes a part of the batch, and `join` makes them one; otherwise it does nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

import torch
from torch import Tensor, nn

from noisewise.batches import Nest, length
from noisewise.bounded import Bounded, release
from noisewise.clipping import Clip
from noisewise.data import Data
from noisewise.data.indexed import readable
from noisewise.distributed.joining import Part, agree_on_step, join
from noisewise.distributed.sharding import lent
from noisewise.losses import LossFn
from noisewise.mechanism import PURPOSE, QUESTION, RANKING
from noisewise.persample import ClippedBatch, clipped_sum
from noisewise.persample.steady import NotSteady
from noisewise.runtime import Runtime
from noisewise.training.augmentation import Augment
from noisewise.training.batches import Drawn, draw, groups_of, read_ahead
from noisewise.training.captured import most_for, refused, wanted
from noisewise.training.memory import in_memory
from noisewise.training.start import check_start, enter
from noisewise.training.state import State
from noisewise.training.values import looking

if TYPE_CHECKING:
    from noisewise.support import Support


class Observation(NamedTuple):
    """What a recorder sees of a step: all of it private."""

    step: int
    units: Tensor  # indices of the batch
    norms: Tensor  # [blocks, batch]
    clip: Clip | None = None  # the rule in force
    support: Support | None = None  # what learns at this step


Recorder = Callable[[Observation], None]


def private_step(
    model: nn.Module,
    data: Data | Nest,
    loss_fn: LossFn,
    optimizer: torch.optim.Optimizer,
    state: State,
    runtime: Runtime | None = None,
    *,
    recorders: Sequence[Recorder] = (),
    example: Nest = None,
    augment: Augment | None = None,
) -> None:
    """One step of the plan: draw the batch, clip, add noise, write the ledger, let the optimizer move the weights.

    The batch is drawn here, so sampling and accounting cannot disagree. Stops when the plan is used up.
    """
    data = readable(data)
    check_start(model, data, loss_fn, optimizer, state, example, augment)
    enter(model, data, state)
    mechanism, weights = state.mechanism, dict(model.named_parameters())
    look = looking(model, loss_fn, data, augment, state.taken, state.step)
    drawn = draw(data, state, augment, runtime, next(model.parameters()).device, look)
    read_ahead(data, state, optimizer)
    step, clip, sigma = drawn.step, drawn.clip, mechanism.noise_at(drawn.step)
    support = state.course.begin(step, weights)
    if runtime is not None and runtime.memory == "small":
        optimizer.zero_grad()  # the last step's gradient would be in memory beside this one's
    part = clipped_part(model, data, loss_fn, drawn, support, state, runtime, norms=bool(recorders))
    clipped = join(part, state.team, drawn.occasion, norms=bool(recorders))
    for recorder in recorders:
        recorder(Observation(step, drawn.units, clipped.norms, clip, support))
    asked = questions(clipped, state, PURPOSE, sigma)
    state.step += 1  # whatever happens next, this step's noise is not drawn again
    answers = release(
        asked, sampler=mechanism.sampler, ledger=state.ledger, entropy=drawn.noise, step=step,
        first_step=state.first_step, owned=not state.captured.replays,  # whose sums are the next step's too
    )  # fmt: skip
    state.moves.move(weights, answers, mechanism.expected_batch_size, optimizer, observed=state.course.remembers)
    state.observe(step, clip, sigma, answers)
    state.moved(model, optimizer)


def clipped_part(
    model: nn.Module,
    data: Data | Nest,
    loss_fn: LossFn,
    drawn: Drawn,
    support: Support,
    state: State,
    runtime: Runtime | None,
    *,
    norms: bool = True,
) -> Part:
    """The clipped sum of this process's part of a batch, and what its rule asks of the same units, for `join` to open.

    In micro-batches that fit in memory.

    By captured steps where they are wanted and possible; those hand out `norms` only if somebody looks at them.
    """
    units = length(drawn.rows)
    if state.sharded is not None:
        how = runtime or Runtime()
        agree_on_step(state.team, drawn.occasion, units, how, repr(drawn.clip))
    if wanted(runtime, next(model.parameters()).device) and state.captured.reason is None:
        assert state.layout is not None
        expected = state.team.largest_part(state.mechanism.expected_batch_size)
        replay = partial(
            state.captured.clipped, model, loss_fn, drawn.rows, drawn.clip, support,
            layout=state.layout, expected=expected, seed=drawn.seed, norms=norms,
            fixed=not isinstance(data, Data) or data.unit is None,
            most=most_for(expected, runtime.microbatch if runtime else None), known=state.seen,
        )  # fmt: skip
        try:
            return Part(in_memory(replay, state, runtime, units))
        except NotSteady as error:
            if runtime is not None and runtime.capture:
                raise refused(error) from None
            state.captured.reason = str(error)
    compute = partial(
        clipped_sum, model, loss_fn, drawn.rows, drawn.clip, support,
        layout=state.layout, groups=groups_of(data, drawn.clip, drawn.part, units), seed=drawn.seed,
    )  # fmt: skip
    with lent(state.sharded):
        return Part(in_memory(compute, state, runtime, units))


def questions(clipped: ClippedBatch, state: State, purpose: str, sigma: float) -> dict[str, tuple[Bounded, float]]:
    """All that a step asks of one batch, each with its noise multiplier: the gradient, the rule's question, the ranking."""
    asked = {purpose: (clipped.grads, sigma)}
    if clipped.query is not None:
        asked[QUESTION] = (clipped.query, state.mechanism.question if sigma and state.mechanism.question else 0.0)
    if state.course.unnoised:
        asked[RANKING] = (clipped.grads, 0.0)
    return asked

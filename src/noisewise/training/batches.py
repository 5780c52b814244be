"""The batch of a step: drawn by the plan's sampler, changed by the augmentation, filled up, and its groups."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from noisewise.adaptive import GroupBounds
from noisewise.batches import Nest, Padded, Views, leaves, length, map_tensors, take
from noisewise.clipping import Clip
from noisewise.data import Data
from noisewise.data.indexed import Indexed
from noisewise.distributed import ALONE, Team
from noisewise.distributed.joining import Occasion
from noisewise.errors import ConfigError
from noisewise.mechanism import Mechanism
from noisewise.persample.trace import Trace
from noisewise.randomness import Entropy
from noisewise.runtime import Runtime
from noisewise.sampling import Poisson
from noisewise.training.augmentation import Augment, augmented
from noisewise.training.captured import wanted
from noisewise.training.resident import sent
from noisewise.training.state import State

Look = Callable[[Nest, Tensor], None]  # (rows of a batch, their numbers): refuses values that the loss cannot take


class Drawn(NamedTuple):
    """What a step is computed from: all of it private but the number of the step and the rule in force."""

    step: int
    clip: Clip
    units: Tensor  # indices of the batch
    part: Tensor  # those of them that this process computes
    rows: Nest  # what the model is given, of its part
    seed: int  # of the forward pass and the augmentation
    noise: Entropy  # where the step's noise is drawn from

    @property
    def occasion(self) -> Occasion:
        """What all processes must agree on."""
        return Occasion(self.step, self.units, self.noise)


def draw(
    data: Data | Indexed | Nest,
    state: State,
    augment: Augment | None,
    runtime: Runtime | None,
    device: torch.device,
    look: Look | None = None,
) -> Drawn:
    """The batch of the state's step, as the sampler draws it and on the model's device; `look` sees its rows."""
    step, mechanism = state.step, state.mechanism
    drawn_from, noise = state.draws()
    units = torch.from_numpy(state.ahead.draw(mechanism.sampler, drawn_from, step))
    part, seed = state.team.part(units), _seed(state, noise, step)
    at_rest = augment is not None or isinstance(data, Indexed)
    near = units_of(data) if at_rest else state.resident.of(units_of(data), device)
    rows = batch_of(data, part, augment, seed, state.versions, near, look)
    captured = wanted(runtime, device) and state.captured.reason is None
    if not captured:  # a captured step fills up by itself
        rows = pad(rows, mechanism, runtime, state.team)
    if state.sharded is not None:
        rows = as_many(rows, state.team.largest_part(len(units)))
    return Drawn(step, state.rule(), units, part, map_tensors(lambda tensor: sent(tensor, device), rows), seed, noise)


def _seed(state: State, noise: Entropy, step: int) -> int:
    """Of what is drawn in a step's passes; ranks draw apart, or units at one place of their parts would share draws."""
    position = (state.first_step + step, *([state.team.rank] if state.team.several else []))
    return noise.integer("forward", *position)


def read_ahead(data: Data | Indexed | Nest, state: State, optimizer: torch.optim.Optimizer) -> None:
    """Begin to read the next step's batch, where workers read: it follows from this step, unless somebody changes the plan."""
    if not isinstance(data, Indexed) or not data.num_workers or state.step + 1 >= state.mechanism.steps:
        return
    step = state.step + 1
    drawn_from, noise = state.next_draws(optimizer)
    units = torch.from_numpy(next(state.mechanism.sampler.batches(drawn_from, step, step + 1)))
    data.ahead(state.team.part(units), _seed(state, noise, step))


def units_of(data: Data | Indexed | Nest) -> Nest:
    """The tensors of the data, with the unit (or row) as first dimension; of what is read by index, an empty batch."""
    if isinstance(data, Indexed):
        return data.like
    return (data.x, data.y) if isinstance(data, Data) else data


def rows_at(data: Data | Indexed | Nest, index: Tensor, seed: int = 0) -> Nest:
    """Some of the rows."""
    return data.rows(index, seed) if isinstance(data, Indexed) else take(units_of(data), index)


def count_of(data: Data | Indexed | Nest) -> int:
    """Number of units that are protected."""
    if isinstance(data, Indexed):
        return len(data)
    return data.units if isinstance(data, Data) else length(data)


def batch_of(
    data: Data | Indexed | Nest,
    index: Tensor,
    augment: Augment | None,
    seed: int,
    proof: Trace | None = None,
    near: Nest = None,
    look: Look | None = None,
) -> Nest:
    """The sampled units, from `near`, where a copy of the data lies; `Views` where they own several rows or have versions.

    `look`: is given the rows before they are changed.
    """
    near = units_of(data) if near is None else near
    device = next(leaves(near)).device
    if isinstance(data, Data) and data.unit is not None:
        rows, mask = data.rows_of(index)
        taken = take(near, sent(rows, device))
        batch: Nest = Views.mean(taken, sent(mask, device))
    else:
        rows = index
        batch = taken = data.rows(index, seed) if isinstance(data, Indexed) else take(near, sent(index, device))
    if look is not None:
        look(taken, rows)
    if augment is None:
        return batch
    views = batch if isinstance(batch, Views) else Views.single(batch)
    owned = views.weights.shape[1]
    repeated = map_tensors(lambda tensor: tensor.repeat_interleave(augment.views, 0), views.rows())
    seen = augmented(augment.function, repeated, owned * augment.views, seed, proof)
    weights = views.weights.repeat_interleave(augment.views, 1) / augment.views
    return Views(map_tensors(lambda tensor: tensor.reshape(*weights.shape, *tensor.shape[1:]), seen), weights)


def pad(batch: Nest, mechanism: Mechanism, runtime: Runtime | None, team: Team = ALONE) -> Nest:
    """A batch (of a rank: its part) filled up with empty rows to the largest that can be drawn, if the runtime asks for it."""
    if runtime is None or not runtime.padded:
        return batch
    cap = mechanism.sampler.batch_size
    if isinstance(mechanism.sampler, Poisson):
        if mechanism.sampler.max_batch is None:
            raise ConfigError("Runtime(padded=True) with unlimited Poisson batches: give the sampler a max_batch.")
        cap = mechanism.sampler.max_batch
    cap = team.largest_part(cap)
    return _filled(batch, cap)


def as_many(batch: Nest, size: int) -> Nest:
    """A rank's part filled up to the largest part: where parameters are spread, all ranks make the same passes.

    At least two units, since a batch of one takes another way; nothing if the whole batch is empty.
    """
    if isinstance(batch, Padded) or not size:
        return batch
    if isinstance(batch, Views) and not batch.weights.shape[1]:  # nobody is here who has rows
        batch = map_tensors(lambda t: t.new_zeros(0, 1, *t.shape[2:]), batch)
    return _filled(batch, max(size, 2))


def _filled(batch: Nest, size: int) -> Padded:
    units = length(batch)
    filled = map_tensors(lambda t: torch.cat([t, t.new_zeros(size - units, *t.shape[1:])]), batch)
    return Padded(filled, torch.arange(size) < units)


def groups_of(data: Data | Indexed | Nest, clip: Clip, units: Tensor, size: int) -> Tensor | None:
    """Group labels of the units, where the rule asks for them; padding up to `size` has any."""
    if not isinstance(clip, GroupBounds):
        return None
    if not isinstance(data, Data) or clip.group not in data.groups:
        known = list(data.groups) if isinstance(data, Data) else "none, since it is no noisewise.Data"
        raise ConfigError(f"GroupBounds(group={clip.group!r}): the data has no such groups; it has {known}.")
    labels = data.groups[clip.group][units if data.unit is None else data.rows_of(units)[0][:, 0]]
    return torch.cat([labels, labels.new_zeros(size - len(labels))])

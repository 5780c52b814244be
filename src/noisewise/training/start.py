"""Before the first step and before every other: is this what was planned for, and whose noise is it?"""

from __future__ import annotations

import warnings
from dataclasses import replace
from typing import Any

import torch
from torch import nn

from noisewise.accounting import Ledger
from noisewise.batches import Nest, map_tensors, take
from noisewise.data import Data
from noisewise.data.indexed import Indexed
from noisewise.data.marks import mark_of
from noisewise.distributed import Sharded
from noisewise.distributed.sharding import is_sharded, lent, settle
from noisewise.errors import BudgetSpent, ConfigError, PrivacyError, PrivacyWarning
from noisewise.losses import LossFn
from noisewise.persample import examine
from noisewise.persample.layout import situation
from noisewise.persample.made_up import synthetic
from noisewise.persample.seen import Seen
from noisewise.runtime import Runtime
from noisewise.support import Fixed, live_parameters, plans_of
from noisewise.training import lineage
from noisewise.training.augmentation import Augment, check_augment
from noisewise.training.batches import count_of, units_of
from noisewise.training.given import (
    check_data,
    check_extras,
    check_loss,
    check_model,
    check_optimizer,
    kind,
    warn_of_mode,
)
from noisewise.training.state import State
from noisewise.training.together import agree_at_start
from noisewise.training.values import check_values


def check_start(
    model: nn.Module,
    data: Data | Nest,
    loss_fn: LossFn,
    optimizer: torch.optim.Optimizer,
    state: State,
    example: Nest,
    augment: Augment | None,
) -> None:
    """Is the data what was planned for, and (asked once) are units independent, in the model and where they are changed?

    Stops when the plan is used up.
    """
    if not isinstance(state, State):
        raise ConfigError(
            f"state is {kind(state)}: must be a noisewise.State, State.start(mechanism), made once before the loop. "
            "Arguments are private_step(model, data, loss_fn, optimizer, state)."
        )
    if state.origin is None or (state.sharded is not None and state.sharded.model is not model):
        state.sharded = spread_of(model, state)
    elif state.sharded is not None:
        settle(model)
    if state.origin is None:
        check_model(model)
        warn_of_mode(model)
        check_data(data)
        check_loss(loss_fn)
        check_optimizer(optimizer)
        check_extras(None, None, (), augment)
    if state.step >= state.mechanism.steps:
        raise BudgetSpent(
            f"all {state.mechanism.steps} planned steps are done: one more would exceed the stated epsilon. "
            "Plan more steps before training, or start a second phase with the same ledger."
        )
    planned = state.mechanism.sampler.n
    chosen = schema_ledger(data)
    if chosen is not None and not replace(state.ledger, lines=state.before).holds(chosen):
        raise PrivacyError(
            "ranges and categories of this data were chosen from its rows with noise, and the ledger does not hold what that "
            "spent. Start from it: State.start(mechanism, data.schema.ledger), or train(..., ledger=None)."
        )
    if isinstance(data, Data) and data.unit is not None and state.mechanism.unit == "row":
        raise PrivacyError(
            "the data says which rows belong to one person, but the mechanism protects single rows. Say what is protected: "
            "Mechanism(unit='person', ...), with the sampler's n the number of people."
        )
    if count_of(data) != planned:
        raise PrivacyError(
            f"the data has {count_of(data)} units, the mechanism was planned for n={planned}: the sampling rate, and so "
            "epsilon, would be wrong. Build the sampler with the data's own (public) number of units."
        )
    if state.origin is None:
        _check_optimizer(model, optimizer, state.course.at(state.step, dict(model.named_parameters())))
    with lent(state.sharded):
        _check_isolation(model, data, loss_fn, state, example, augment)
        if state.origin is None:
            if isinstance(data, Indexed):
                data.check_steady()
            check_values(model, loss_fn, data, augment)


def spread_of(model: nn.Module, state: State) -> Sharded | None:
    """The model's parameters that are spread over the ranks, if some are; what does not go with that is refused."""
    sharded = Sharded.of(model, state.team)
    if sharded is not None:
        state.captured.reason = "parameters are spread over processes"
        plans = plans_of(state.mechanism.support)
        if not all(isinstance(plan, Fixed) and all(map(_of_whole, plan.support.values())) for plan in plans):
            raise ConfigError(
                f"{state.mechanism.support!r} with parameters that are spread over processes: masks are of whole parameters, "
                "and their rows lie elsewhere. Freeze parameters as a whole (Fixed({name: False})), or train without "
                "fully_shard (--sharded)."
            )
    return sharded


def check_spread(runtime: Runtime | None, ablation: str, paid: Any) -> None:
    """What `train` cannot do where parameters are spread over processes."""
    how = runtime or Runtime()
    for asked, what in (
        (ablation != "private", f"ablation={ablation!r}"),
        (how.engine not in ("auto", "ghost"), f"Runtime(engine={how.engine!r})"),
        (how.capture is True, "Runtime(capture=True)"),
        (paid is not None, "paid="),
    ):
        if asked:
            raise ConfigError(
                f"{what} with parameters that are spread over processes: it needs all of them at once. Leave it out, or train "
                "with whole parameters on every process, without fully_shard (--sharded)."
            )


def _of_whole(mask: Any) -> bool:
    return isinstance(mask, bool)


def _check_isolation(
    model: nn.Module, data: Data | Nest, loss_fn: LossFn, state: State, example: Nest, augment: Augment | None
) -> None:
    """Are units separate, in the model and where they are changed? Asked once for each mode, shape, type and loss."""
    units = units_of(data)
    if state.layout is not None and state.seen is not None and state.seen.still(model, loss_fn, units):
        return
    learning = [name for name, parameter in model.named_parameters() if parameter.requires_grad]
    if state.sharded is None and any(map(is_sharded, model.parameters())):
        raise ConfigError(
            "the model's parameters were spread over processes after the first step of this state: shard it first, and begin "
            "with another state."
        )
    if state.layout is None:
        state.course.at(state.step, dict(model.named_parameters()))  # masks that do not fit stop here
    like = map_tensors(lambda tensor: tensor[:0], units)
    if augment is not None:
        if state.layout is None:
            state.versions = check_augment(augment.function, like if example is None else example)
        made = synthetic(like, 2) if example is None else take(example, slice(0, 2))
        like = map_tensors(lambda tensor: tensor[:0], augment.function(made, torch.Generator().manual_seed(0)))
    device = next(model.parameters()).device
    like = map_tensors(lambda tensor: tensor.to(device), like)
    if state.layout is None or not state.layout.covers(learning, situation(model, loss_fn, like)):
        classes = len(data.classes) if isinstance(data, Data) and data.task == "classification" else 0
        state.layout = examine(
            model, loss_fn, like, example, size=state.mechanism.sampler.batch_size, classes=classes or None
        )
    state.seen = Seen(model, loss_fn, units) if augment is None else None


def _check_optimizer(model: nn.Module, optimizer: torch.optim.Optimizer, support: Any) -> None:
    """An optimizer that moves something else, or nothing that learns, would spend the budget on nothing."""
    parameters = {id(parameter) for parameter in model.parameters()}
    moved = {id(parameter) for group in optimizer.param_groups for parameter in group["params"]}
    learning = live_parameters(model, support)
    left_out = [name for name, parameter in learning.items() if id(parameter) not in moved]
    if moved - parameters or len(left_out) == len(learning):
        others = len(moved - parameters)
        what = f"{others} parameters that are not the model's" if others else "none of those that learn"
        raise ConfigError(
            f"the optimizer holds {what}: what is released would move nothing, and be spent all the same. Build it on this "
            "very model, after every change to it: e.g. torch.optim.SGD(model.parameters(), lr=0.1)."
        )
    if left_out:
        warnings.warn(
            f"the optimizer does not hold {left_out}, so they stay as they are while their gradients take part in clipping. "
            "If that is meant, say so: support=Fixed({name: False}), or requires_grad_(False); else give it all parameters.",
            PrivacyWarning,
            stacklevel=4,
        )


def enter(model: nn.Module, data: Data | Nest, state: State, *, promised: bool = True) -> None:
    """The data is the ledger's; at the start, weights that came out of a run on it bring its ledger, and noise is bound.

    Where nothing is `promised`, in an ablation, weights may come from anywhere.
    """
    mark = mark_of(data)
    state.ledger.claim_data(mark, state.entropy.key(b"identity"))
    if state.origin is not None:
        return
    marks = lineage.marks_of(model, state.team)
    agree_at_start(state.team, state, mark, lineage.together(marks))
    if promised:
        lineage.check_origin(marks, mark, state.ledger)
    assert state.ledger.identity is not None
    state.origin = state.ledger.identity.digest + lineage.together(marks)
    state.outcome = lineage.begin(marks, state.ledger)


def schema_ledger(data: Data | Nest) -> Ledger | None:
    """What choosing the data's ranges and categories has spent."""
    return data.schema.ledger if isinstance(data, Data) and data.schema is not None else None

"""Private training: `private_step` for one's own loop, `train` for everybody else. Both are meant to be read.

sampler -> clipped_sum -> release (which writes the ledger) -> p.grad -> any torch optimizer.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
import signal
import threading
import time
import types
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import asdict, dataclass, field, replace
from typing import Any, Literal, NamedTuple, TypeVar, cast

import dp_accounting
import torch
from torch import Tensor, nn

from noisewise.accounting import Identity, Ledger, Line, spent
from noisewise.accounting.accountants import check_delta
from noisewise.accounting.defaults import default_delta as default_delta
from noisewise.accounting.defaults import large_delta
from noisewise.accounting.ledger import joined
from noisewise.adaptive import Adaptive, GroupBounds
from noisewise.batches import Nest, Padded, Views, length, map_tensors, take
from noisewise.bounded import expose, release
from noisewise.clipping import Clip
from noisewise.data import Data
from noisewise.data.marks import mark_of
from noisewise.errors import (
    BudgetSpent,
    ConfigError,
    DataError,
    Interrupted,
    MemoryWarning,
    PrivacyError,
    PrivacyWarning,
    RunError,
)
from noisewise.mechanism import PURPOSE, QUESTION, RANKING, Mechanism
from noisewise.persample import ClippedBatch, Layout, LossFn, clipped_sum, examine, live_parameters
from noisewise.persample.engines import memory_ran_out
from noisewise.persample.examine import situation, synthetic
from noisewise.persample.losses import unit_losses
from noisewise.persample.proof import Trace
from noisewise.randomness import Entropy
from noisewise.runs.files import write_json
from noisewise.runs.folder import RunFolder, Status
from noisewise.runs.tensors import load_tensors, save_tensors, save_weights
from noisewise.runtime import Runtime
from noisewise.sampling import Poisson
from noisewise.support import Course, Fixed
from noisewise.training import lineage
from noisewise.training.augmentation import Augment as Augment
from noisewise.training.augmentation import augmented, check_augment
from noisewise.training.communication import payload
from noisewise.wording import strength

Ablation = Literal["private", "plain", "clip-only", "noise-only"]
T = TypeVar("T")
ABLATIONS = ("private", "plain", "clip-only", "noise-only")
READINGS = 20  # of epsilon in a run's metrics
CHECKPOINT = 2  # format
_ROOTS: set[int] = set()  # secret roots that a state of this process draws from
BINDINGS = ("origin", "chain", "event_chain")  # of a state's noise


class Observation(NamedTuple):
    """What a recorder sees of a step: all of it private."""

    step: int
    units: Tensor  # indices of the batch
    norms: Tensor  # [blocks, batch]
    clip: Clip | None = None  # the rule in force
    support: Any = None  # what learns at this step


Recorder = Callable[[Observation], None]


@dataclass
class State:
    """Where a run stands: the plan, what was released, the secret randomness, the next step.

    `seed` fixes public randomness (masks) only. A ledger with lines in it is continued: its releases add up with these.

    A state serves one course of training. Its batches and noise follow from
    `BLAKE2b(root, data, weights at the start, chain)`, where `chain` is hashed with the optimizer's numbers (learning
    rate, momentum, ...) after each step. Guarantee: courses that differ in data, start or learning rates share no noise,
    and one that is resumed draws what it would have drawn. A copy (copy, deepcopy, pickle, dataclasses.replace, another state
    made of its root, the same state in a forked process) has a secret root of its own;
    within an epoch of shuffled batches, which is one release, there is none. A reproducible root is neither bound nor
    renewed, and never private.
    """

    mechanism: Mechanism
    ledger: Ledger
    entropy: Entropy = field(default_factory=Entropy.fresh)
    step: int = 0
    seed: int = 0
    layout: Layout | None = None
    versions: Trace | None = None  # proof of the augmentation, if there is one
    before: list[Line] = field(default_factory=list)
    clip: Clip | None = None  # what an adaptive rule has become
    microbatch: int | None = None  # what fitted in memory, if the runtime's did not
    course: Course = field(init=False)  # where the support's plans stand
    outcome: lineage.Outcome | None = field(default=None, init=False, repr=False)  # where its weights come from
    origin: bytes | None = field(default=None, init=False, repr=False)  # data and weights at the start
    chain: bytes = field(default=b"", init=False, repr=False)  # the optimizer's numbers so far
    event_chain: bytes = field(default=b"", init=False, repr=False)  # the same when the current release began
    process: int = field(default_factory=os.getpid, init=False, repr=False)  # the one that draws

    def __post_init__(self) -> None:
        """The ledger's unit and neighbours are the plan's; no mask is chosen yet; no other state draws from the same root."""
        if self.entropy.root in _ROOTS:
            self.entropy = self.entropy.renewed()
        _ROOTS.add(self.entropy.root)
        self.ledger.claim(self.mechanism.adjacency, self.mechanism.unit)
        self.course = Course(self.mechanism.support, self.seed)

    def __getstate__(self) -> dict[str, Any]:
        """What a copy takes over: not the secret root."""
        parts = vars(self) | {"layout": None, "versions": None}  # the copy's model is looked at anew
        if self.entropy.reproducible:
            return parts
        if self.step % self.mechanism.sampler.steps_per_event:
            raise PrivacyError(
                f"a copy of a state at step {self.step}, within an epoch of shuffled batches: the epoch is one release, and "
                "two courses would share it. Copy it after the epoch's last batch."
            )
        return parts | {"entropy": replace(self.entropy, root=0)}

    def __setstate__(self, parts: dict[str, Any]) -> None:
        """A copy draws its own noise, each time one is made."""
        vars(self).update(parts, entropy=parts["entropy"].renewed(), process=os.getpid())
        _ROOTS.add(self.entropy.root)

    def rule(self) -> Clip:
        """The clipping rule of the state's step."""
        return self.mechanism.clip_at(self.step) if self.clip is None else self.clip

    def draws(self) -> tuple[Entropy, Entropy]:
        """Where the step's batch, and where its noise, is drawn from."""
        assert self.origin is not None
        if self.process != os.getpid():  # a fork is a copy
            self.__setstate__(self.__getstate__())
        if self.step % self.mechanism.sampler.steps_per_event == 0:
            self.event_chain = self.chain
        return self.entropy.bound(self.origin, self.event_chain), self.entropy.bound(self.origin, self.chain)

    def moved(self, optimizer: torch.optim.Optimizer) -> None:
        """The optimizer has made a step with its present numbers."""
        numbers = [
            {key: _number(group[key]) for key in sorted(group) if key != "params"} for group in optimizer.param_groups
        ]
        self.chain = hashlib.blake2b(self.chain + json.dumps(numbers).encode(), digest_size=32).digest()

    @property
    def first_step(self) -> int:
        """Ledger step of the plan's step 0."""
        return max((line.first_step + line.count for line in self.before), default=0)

    @classmethod
    def start(
        cls,
        mechanism: Mechanism,
        ledger: Ledger | None = None,
        *,
        seed: int = 0,
        insecure_seed: int | None = None,
        secure: bool = False,
    ) -> State:
        """Step 0 of a plan, after whatever the ledger already holds."""
        ledger = Ledger(mechanism.adjacency, unit=mechanism.unit) if ledger is None else ledger
        if insecure_seed is None:
            entropy = Entropy.fresh(secure=secure)
        else:
            entropy = Entropy.insecure(insecure_seed, ledger.releases, secure=secure)
        return cls(mechanism, ledger, entropy, seed=seed, before=list(ledger.lines))


def _number(value: Any) -> Any:
    """A setting of an optimizer as JSON; what is no number says nothing."""
    if isinstance(value, Tensor):
        return value.tolist()
    if isinstance(value, tuple | list):
        return [_number(item) for item in value]
    return value if isinstance(value, int | float | str) else None


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
    ablation: Ablation = "private",
) -> None:
    """One step of the plan: draw the batch, clip, add noise, write the ledger, let the optimizer move the weights.

    The batch is drawn here, so sampling and accounting cannot disagree. Stops when the plan is used up.
    """
    mechanism, step = state.mechanism, state.step
    if step >= mechanism.steps:
        raise BudgetSpent(
            f"all {mechanism.steps} planned steps are done: one more would exceed the stated epsilon. "
            "Plan more steps before training, or start a second phase with the same ledger."
        )
    _check_start(model, data, loss_fn, optimizer, state, example, augment)
    _enter(model, data, state, ablation)
    device = next(model.parameters()).device
    drawn_from, noise = state.draws()
    index = torch.from_numpy(next(mechanism.sampler.batches(drawn_from, step, step + 1)))
    forward_seed = noise.integer("forward", state.first_step + step)
    batch = _batch(data, index, augment, forward_seed, state.versions)
    batch = map_tensors(lambda tensor: tensor.to(device), _pad(batch, mechanism, runtime))
    weights = dict(model.named_parameters())
    support = state.course.at(step, weights)
    held = state.course.settle(weights)
    clip, sigma = state.rule(), mechanism.noise_at(step) if ablation in ("private", "noise-only") else 0.0
    if ablation in ("private", "clip-only"):
        groups = _groups(data, clip, index, length(batch))

        def clipped_in(parts: Runtime) -> ClippedBatch:
            return clipped_sum(
                model, loss_fn, batch, clip, support, parts, layout=state.layout, groups=groups, seed=forward_seed
            )

        clipped = _fitting(clipped_in, state, runtime, length(batch))
        for recorder in recorders:
            recorder(Observation(step, index, clipped.norms, clip, support))
        state.step += 1  # whatever happens next, this step's noise is not drawn again
        purpose = PURPOSE if ablation == "private" else f"{ablation} (not private)"
        parts = {purpose: (clipped.grads, sigma)}
        if clipped.query is not None:
            parts[QUESTION] = (clipped.query, mechanism.question if sigma and mechanism.question else 0.0)
        if state.course.unnoised:
            parts[RANKING] = (clipped.grads, 0.0)
        answers = release(
            parts,
            sampler=mechanism.sampler,
            ledger=state.ledger,
            entropy=noise,
            step=step,
            first_step=state.first_step,
        )
        grads, clear = answers[purpose], answers.get(RANKING)
        if isinstance(clip, Adaptive):
            state.clip = clip.update(answers[QUESTION], mechanism.expected_batch_size)
    else:

        def summed_in(parts: Runtime) -> dict[str, Tensor]:
            return _plain_sum(model, loss_fn, batch, support, parts, forward_seed)

        sums = _fitting(summed_in, state, runtime, length(batch))
        std, at_step = sigma * clip.sensitivity, state.first_step + step
        state.step += 1
        clear = {name: total.clone() for name, total in sums.items()} if state.course.unnoised else None
        grads = expose(sums, std, support, ledger=state.ledger, entropy=noise, step=at_step, purpose=ablation)
    size = mechanism.expected_batch_size
    for name, parameter in weights.items():
        parameter.grad = grads[name].div_(size).to(parameter.dtype) if name in grads else None
    for total in (clear or {}).values():
        total.div_(size)
    state.course.observe(step, grads, clear, sigma * clip.sensitivity / size)
    optimizer.step()
    state.moved(optimizer)
    state.course.hold(weights, held)
    if state.step == mechanism.steps:
        lineage.end(model)


def _fitting(compute: Callable[[Runtime], T], state: State, runtime: Runtime | None, units: int) -> T:
    """`compute` with the runtime's micro-batches, halved until they fit in memory; the state keeps that size.

    What is said about it names no size: the number of units in a batch is private.
    """
    runtime = runtime or Runtime()
    while True:
        size = state.microbatch or runtime.microbatch
        try:
            return compute(replace(runtime, microbatch=size))
        except Exception as error:
            if not memory_ran_out(error):
                raise
        # here, behind the handler, the failed attempt's tensors are free again
        tried = min(size or units, units)
        if tried <= 1:
            raise RunError(
                "the gradient of one single unit does not fit in memory, so micro-batches cannot be made smaller. Use a "
                "smaller model or inputs, freeze parameters with support=, or a device with more memory; then resume."
            )
        if state.microbatch is None:
            warnings.warn(
                "a batch did not fit in memory: from here on it is computed in micro-batches, halved until they fit. The "
                "result is the same. Runtime(microbatch=...) (--microbatch) sets their size from the start.",
                MemoryWarning,
                stacklevel=2,
            )
        state.microbatch = tried // 2


def _units(data: Data | Nest) -> Nest:
    return (data.x, data.y) if isinstance(data, Data) else data


def _schema_ledger(data: Data | Nest) -> Ledger | None:
    """What choosing the data's ranges and categories has spent."""
    return data.schema.ledger if isinstance(data, Data) and data.schema is not None else None


def _count(data: Data | Nest) -> int:
    """Number of units that are protected."""
    return data.units if isinstance(data, Data) else length(data)


def _batch(data: Data | Nest, index: Tensor, augment: Augment | None, seed: int, proof: Trace | None = None) -> Nest:
    """The sampled units; `Views` where they own several rows or are seen in several ways."""
    if isinstance(data, Data) and data.unit is not None:
        rows, mask = data.rows_of(index)
        batch: Nest = Views.mean(take(_units(data), rows), mask)
    else:
        batch = take(_units(data), index)
    if augment is None:
        return batch
    views = batch if isinstance(batch, Views) else Views.single(batch)
    owned = views.weights.shape[1]
    repeated = map_tensors(lambda tensor: tensor.repeat_interleave(augment.views, 0), views.rows())
    seen = augmented(augment.function, repeated, owned * augment.views, seed, proof)
    weights = views.weights.repeat_interleave(augment.views, 1) / augment.views
    return Views(map_tensors(lambda tensor: tensor.unflatten(0, weights.shape), seen), weights)


def _pad(batch: Nest, mechanism: Mechanism, runtime: Runtime | None) -> Nest:
    """A batch filled up with empty rows to the largest size the sampler draws, if the runtime asks for it."""
    if runtime is None or not runtime.padded:
        return batch
    size, cap = length(batch), mechanism.sampler.batch_size
    if isinstance(mechanism.sampler, Poisson):
        if mechanism.sampler.max_batch is None:
            raise ConfigError("Runtime(padded=True) with unlimited Poisson batches: give the sampler a max_batch.")
        cap = mechanism.sampler.max_batch
    filled = map_tensors(lambda t: torch.cat([t, t.new_zeros(cap - size, *t.shape[1:])]), batch)
    return Padded(filled, torch.arange(cap) < size)


def _groups(data: Data | Nest, clip: Clip, units: Tensor, size: int) -> Tensor | None:
    """Group labels of the units, where the rule asks for them; padding up to `size` has any."""
    if not isinstance(clip, GroupBounds):
        return None
    if not isinstance(data, Data) or clip.group not in data.groups:
        known = list(data.groups) if isinstance(data, Data) else "none, since it is no noisewise.Data"
        raise ConfigError(f"GroupBounds(group={clip.group!r}): the data has no such groups; it has {known}.")
    labels = data.groups[clip.group][units if data.unit is None else data.rows_of(units)[0][:, 0]]
    return torch.cat([labels, labels.new_zeros(size - len(labels))])


def _enter(model: nn.Module, data: Data | Nest, state: State, ablation: Ablation) -> None:
    """The data is the ledger's; at the start, weights that came out of a run on it bring its ledger, and noise is bound."""
    mark = mark_of(data)
    state.ledger.claim_data(mark, state.entropy.key(b"identity"))
    if state.origin is not None:
        return
    marks = lineage.marks_of(model)
    if ablation == "private":  # nothing else promises anything
        lineage.check_origin(marks, mark, state.ledger)
    assert state.ledger.identity is not None
    state.origin = state.ledger.identity.digest + lineage.together(marks)
    state.outcome = lineage.begin(marks, state.ledger)


def _check_optimizer(model: nn.Module, optimizer: torch.optim.Optimizer, support: Any) -> None:
    """An optimizer that moves something else, or nothing that learns, would spend the budget on nothing."""
    own = {id(parameter) for parameter in model.parameters()}
    held = {id(parameter) for group in optimizer.param_groups for parameter in group["params"]}
    learning = live_parameters(model, support)
    left_out = [name for name, parameter in learning.items() if id(parameter) not in held]
    if held - own or len(left_out) == len(learning):
        what = f"{len(held - own)} parameters that are not the model's" if held - own else "none of those that learn"
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


def _check_start(
    model: nn.Module,
    data: Data | Nest,
    loss_fn: LossFn,
    optimizer: torch.optim.Optimizer,
    state: State,
    example: Nest,
    augment: Augment | None,
) -> None:
    """Is the data what was planned for, and (asked once) are units independent, in the model and where they are changed?"""
    planned = state.mechanism.sampler.n
    spent = _schema_ledger(data)
    if spent is not None and not replace(state.ledger, lines=state.before).holds(spent):
        raise PrivacyError(
            "ranges and categories of this data were chosen from its rows with noise, and the ledger does not hold what that "
            "spent. Start from it: State.start(mechanism, data.schema.ledger), or train(..., ledger=None)."
        )
    if isinstance(data, Data) and data.unit is not None and state.mechanism.unit == "row":
        raise PrivacyError(
            "the data says which rows belong to one person, but the mechanism protects single rows. Say what is protected: "
            "Mechanism(unit='person', ...), with the sampler's n the number of people."
        )
    if _count(data) != planned:
        raise PrivacyError(
            f"the data has {_count(data)} units, the mechanism was planned for n={planned}: the sampling rate, and so "
            "epsilon, would be wrong. Build the sampler with the data's own (public) number of units."
        )
    if state.origin is None:
        _check_optimizer(model, optimizer, state.course.at(state.step, dict(model.named_parameters())))
    _check_isolation(model, data, loss_fn, state, example, augment)


def _check_isolation(
    model: nn.Module, data: Data | Nest, loss_fn: LossFn, state: State, example: Nest, augment: Augment | None
) -> None:
    """Are units separate, in the model and where they are changed? Asked once for each mode, shape, type and loss."""
    learning = [name for name, parameter in model.named_parameters() if parameter.requires_grad]
    if state.layout is None:
        state.course.at(state.step, dict(model.named_parameters()))  # masks that do not fit stop here
    like = map_tensors(lambda tensor: tensor[:0], _units(data))
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


def _plain_sum(
    model: nn.Module, loss_fn: LossFn, batch: Nest, support: Any, runtime: Runtime, seed: int
) -> dict[str, Tensor]:
    """Sum of unclipped gradients, for the ablations."""
    live = live_parameters(model, support)
    sums = {name: torch.zeros_like(parameter) for name, parameter in live.items()}
    if isinstance(batch, Padded):
        batch = take(batch.batch, batch.present)
    views = batch if isinstance(batch, Views) else Views.single(batch)
    units = length(batch)
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        for first in range(0, units, runtime.microbatch or max(units, 1)):
            part = take(views, slice(first, first + (runtime.microbatch or units)))
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


@dataclass(frozen=True)
class Trained:
    """What training gives back. `model` is the user's own object; `averaged` its moving average, if asked for."""

    model: nn.Module
    ledger: Ledger
    history: list[dict[str, Any]]
    status: Status
    averaged: dict[str, Tensor] | None = None


def train(
    model: nn.Module,
    data: Data | Nest,
    loss_fn: LossFn,
    mechanism: Mechanism,
    optimizer: torch.optim.Optimizer,
    *,
    scheduler: Any = None,
    runtime: Runtime | None = None,
    valid: Data | Nest = None,
    delta: float | None = None,
    seed: int = 0,
    insecure_seed: int | None = None,
    secure: bool = False,
    out: Any = None,
    resume: bool = False,
    recorders: Sequence[Recorder] = (),
    ledger: Ledger | None = None,
    ablation: Ablation = "private",
    ema: float | None = None,
    example: Nest = None,
    augment: Augment | None = None,
    about: Mapping[str, Any] | None = None,
    progress: bool = True,
    checkpoint_seconds: float = 30.0,
) -> Trained:
    """Train `model` by the plan of `mechanism` with any torch optimizer; afterwards the ledger equals the plan.

    Args:
        model: any module whose units are independent; left on its device and in its mode.
        data: `Data`, or a nest of tensors with the unit as first dimension.
        loss_fn: `(model, batch) -> [batch]`, one loss per unit.
        mechanism: sampler, clip, noise, steps, support; what it says it spends is spent.
        optimizer: built on the model's parameters; used as it is.
        scheduler: any torch scheduler, stepped after each step.
        runtime: engine and micro-batch size (halved where it does not fit in memory); does not change the result.
        valid: held-out data whose mean loss is logged once per epoch; in `sensitive/` unless it is public `Data`.
        delta: for the epsilon shown; the largest power of ten at most 1/(10 n) by default, with a warning from 1/n on.
        seed: public randomness (masks). Noise and sampling come from the operating system.
        insecure_seed: makes everything reproducible and the run not private; for tests.
        secure: batches and noise from a cryptographic generator, noise on a grid; slower (`bounded._secure_answer`).
        out: run folder; enables checkpoints and Ctrl-C without loss.
        resume: go on from the checkpoint in `out`: bit for bit the run that was interrupted, on the same data and with the
            same code; anything else is refused.
        recorders: called with an `Observation` of every private step.
        ledger: of an earlier phase on the same data; continued. A model that came out of a run on it needs that run's.
            A fresh model without one is a new run, whose epsilon adds to those of all other runs on the same people.
        ablation: private, or plain, clip-only, noise-only (not private, and marked so).
        ema: decay of a moving average of the weights, e.g. 0.9999; post-processing, free.
        example: made-up batch for the check of the model, if random inputs do not fit it.
        augment: random versions of each row, averaged before clipping; mixing rows would couple units.
        about: what summary.json says of the task, the data and the model: public facts only.
        progress: show a bar with the epsilon so far and the time left.
        checkpoint_seconds: least time between checkpoints.
    """
    if ablation not in ABLATIONS:
        raise ConfigError(f"ablation={ablation!r}: must be one of {list(ABLATIONS)}.")
    if ema is not None and not 0 < ema < 1:
        raise ConfigError(f"ema={ema!r}: a decay in (0, 1), e.g. 0.9999, or None.")
    if isinstance(scheduler, torch.optim.lr_scheduler.ReduceLROnPlateau):
        raise ConfigError(
            "scheduler=ReduceLROnPlateau: it follows a metric, which no ledger covers. Use a schedule that is known "
            "before training, e.g. CosineAnnealingLR."
        )
    if resume and out is None:
        raise ConfigError("resume=True without out=: name the run folder to go on from.")
    delta = default_delta(mechanism.sampler.n) if delta is None else delta
    check_delta(delta)
    if ablation == "private" and (concern := large_delta(delta, mechanism.sampler.n)):
        warnings.warn(concern, PrivacyWarning, stacklevel=2)
    folder = None if out is None else RunFolder(out)
    ledger = _schema_ledger(data) if ledger is None else ledger
    state = State.start(mechanism, ledger, seed=seed, insecure_seed=insecure_seed, secure=secure)
    run = _Run(model, optimizer, scheduler, state, folder, ablation, ema, checkpoint_seconds)
    status = status_of(state, ablation)
    _check_start(model, data, loss_fn, optimizer, state, example, augment)
    if folder is None or not folder.begun:
        _enter(model, data, state, ablation)
    if folder:
        run.data = mark_of(data)
        run.behaviour = lineage.behaviour(model, loss_fn, _units(data), example, augment and augment.function)
    with folder.locked() if folder else nullcontext():
        if folder:
            status = _open(folder, run, resume)
        with _interrupts() as interrupted, _Bar(progress, state, delta, ablation, status) as bar:
            per_epoch = max(1, round(1 / mechanism.sampler.rate))
            per_reading = per_epoch * math.ceil(mechanism.steps / per_epoch / READINGS)
            while state.step < mechanism.steps:
                private_step(
                    model, data, loss_fn, optimizer, state, runtime,
                    recorders=recorders, example=example, augment=augment, ablation=ablation,
                )  # fmt: skip
                if scheduler is not None:
                    scheduler.step()
                run.average()
                bar.advance()
                last = state.step == mechanism.steps
                if state.step % per_epoch == 0 or last:
                    run.log(valid, loss_fn, bar.epsilon() if state.step % per_reading == 0 or last else None)
                run.checkpoint(force=bool(interrupted))
                if interrupted:
                    _stop(folder, state, status)
        _check_plan(state, ablation)
        if run.averaged is not None:
            lineage.end(model, run.averaged)
        if folder:
            run.finish(status, delta, about or {})
    return Trained(model, state.ledger, run.history, status, run.averaged)


def status_of(state: State, ablation: Ablation) -> Status:
    """Is what this run releases private, and if not, why?"""
    if ablation != "private":
        return Status("not-private", f"ablation {ablation}: gradients without clipping or without noise")
    if RANKING in state.mechanism.beside():
        return Status("not-private", "masks are ranked by gradients without noise")
    if any(not line.event_is_private for line in state.mechanism.lines()):
        return Status("not-private", "a noise multiplier of 0 adds no noise")
    open_lines = [line for line in state.before if not line.event_is_private]
    if open_lines:
        return Status("not-private", f"released before on the same data, without privacy: {open_lines[0].purpose}")
    if state.entropy.reproducible or state.ledger.reproducible:  # now, or in an earlier phase
        return Status("not-private", "noise reproducible: do not publish")
    return Status("private", "every release is in the ledger")


def _planned(state: State) -> list[Line]:
    """What the ledger holds if all steps before the state's went by the plan."""
    done = replace(state.mechanism, steps=state.step).lines(state.first_step) if state.step else []
    return joined([*state.before, *done])


def _check_plan(state: State, ablation: Ablation) -> None:
    if ablation != "private":
        return
    written, planned = joined(state.ledger.lines), _planned(state)
    if written != planned:
        raise PrivacyError(f"the ledger {written} is not the plan {planned}: do not release this model; report a bug.")


def _open(folder: RunFolder, run: _Run, resume: bool) -> Status:
    """Begin a run in the folder or take up the one that is there; says whether it is private."""
    if folder.begun:
        if not resume:
            raise RunError(
                f"{folder.path} holds an unfinished run: go on with resume=True (--resume), or choose another."
            )
        run.load()
    elif folder.run.exists():
        raise RunError(f"{folder.path} holds a finished run: choose another folder, so that no release is overwritten.")
    elif resume:
        raise RunError(
            f"{folder.path} holds no run to go on with: check the path, or begin one without resume (--resume)."
        )
    else:
        run.save()  # the secret root is on disk before anything depends on it
    status = status_of(run.state, run.ablation)
    folder.write_run("running", status)
    return status


def _stop(folder: RunFolder | None, state: State, status: Status) -> None:
    if folder is None:
        raise KeyboardInterrupt
    folder.write_run("interrupted", status)
    raise Interrupted(
        f"stopped after step {state.step} of {state.mechanism.steps}; nothing is lost. Resume with resume=True "
        f"(command line: the same command with --resume), folder {folder.path}."
    )


@dataclass
class _Run:
    """The mutable parts of a run and how they are saved."""

    model: nn.Module
    optimizer: torch.optim.Optimizer
    scheduler: Any
    state: State
    folder: RunFolder | None
    ablation: Ablation
    ema: float | None
    checkpoint_seconds: float
    history: list[dict[str, Any]] = field(default_factory=list)
    averaged: dict[str, Tensor] | None = None
    saved_at: float = field(default_factory=time.monotonic)
    data: bytes = field(default=b"", repr=False)  # the data's mark
    behaviour: dict[str, Any] = field(default_factory=dict)  # what model and loss say of made-up units

    def __post_init__(self) -> None:
        if self.ema is not None:
            self.averaged = {name: p.detach().clone() for name, p in self.model.named_parameters()}

    def average(self) -> None:
        """Moving average with warm-up: decay min(ema, (1 + t)/(10 + t)). De et al. 2022, arXiv:2204.13650."""
        if self.averaged is None or self.ema is None:
            return
        decay = min(self.ema, (1 + self.state.step) / (10 + self.state.step))
        with torch.no_grad():
            for name, parameter in self.model.named_parameters():
                self.averaged[name].lerp_(parameter, 1 - decay)
            self.state.course.prune(self.averaged)

    def log(self, valid: Data | Nest, loss_fn: LossFn, epsilon: float | None) -> None:
        """One line per epoch: public by default, validation loss only where its people agreed."""
        spent: dict[str, Any] = {"step": self.state.step, "epsilon": epsilon}
        line = spent if valid is None else {**spent, "valid_loss": _mean_loss(self.model, loss_fn, _units(valid))}
        self.history.append(line)
        if self.folder:
            public = valid is None or (isinstance(valid, Data) and valid.public)
            self.folder.append_metrics(line if public else spent, public=True)
            if not public:
                self.folder.append_metrics(line, public=False)

    def checkpoint(self, *, force: bool) -> None:
        """Save if the last time was long enough ago."""
        if self.folder and (force or time.monotonic() - self.saved_at >= self.checkpoint_seconds):
            self.save()

    def save(self) -> None:
        """Everything that the next step depends on, in one atomic file."""
        assert self.folder is not None
        state = self.state
        assert state.ledger.identity is not None
        assert state.origin is not None
        tree = {
            "format": CHECKPOINT,
            "step": state.step,
            "mechanism": state.mechanism.to_dict(),
            "ablation": self.ablation,
            "seed": state.seed,
            "ledger": state.ledger.to_dict(),
            "before": Ledger(state.ledger.adjacency, state.before, state.ledger.unit).to_dict(),
            "identity": state.ledger.identity.to_dict(),
            "entropy": {
                "root": str(state.entropy.root),
                "reproducible": state.entropy.reproducible,
                "secure": state.entropy.secure,
                **{name: getattr(state, name).hex() for name in BINDINGS},
            },
            "weights": {name: sorted(m.hex() for m in getattr(state.outcome, name)) for name in ("fresh", "begun")},
            "behaviour": self.behaviour,
            "model": dict(self.model.state_dict()),
            "optimizer": self.optimizer.state_dict(),
            "scheduler": None if self.scheduler is None else _plain_state(self.scheduler),
            "kinds": self.kinds(),
            "ema": self.ema,
            "averaged": self.averaged,
            "clip": None if state.clip is None else dict(vars(state.clip)),
            "microbatch": state.microbatch,
            "course": state.course.save(),
            "history": self.history,
        }
        save_tensors(self.folder.checkpoint, tree)
        self.saved_at = time.monotonic()

    def kinds(self) -> dict[str, str]:
        """Classes whose saved state fits no other class."""
        return {"optimizer": type(self.optimizer).__name__, "scheduler": type(self.scheduler).__name__}

    def load(self) -> None:
        """Take up a checkpoint of the same plan; anything else is refused."""
        assert self.folder is not None
        tree, state = load_tensors(self.folder.checkpoint), self.state
        try:
            self._check_same_run(tree)
            state.step, state.before = tree["step"], Ledger.from_dict(tree["before"]).lines
            saved, secret = Ledger.from_dict(tree["ledger"]), tree["entropy"]
            state.ledger.lines[:], state.ledger.reproducible = saved.lines, saved.reproducible
            state.ledger.identity = Identity.from_dict(tree["identity"])
            for name in BINDINGS:
                setattr(state, name, bytes.fromhex(secret[name]))
            begun = {name: frozenset(map(bytes.fromhex, tree["weights"][name])) for name in ("fresh", "begun")}
            state.outcome = lineage.Outcome(state.ledger, **begun)
            state.entropy = Entropy(int(secret["root"]), secret["reproducible"], secret["secure"])
            state.microbatch = Runtime(microbatch=tree["microbatch"]).microbatch
            state.clip = None if tree["clip"] is None else replace(cast(Any, state.rule()), **tree["clip"])
            self.model.load_state_dict(tree["model"])
            state.course.load(tree["course"], dict(self.model.named_parameters()), state.step)
            self.optimizer.load_state_dict(tree["optimizer"])
            if self.scheduler is not None:
                self.scheduler.load_state_dict(tree["scheduler"])
            for name, average in (self.averaged or {}).items():
                average.copy_(tree["averaged"][name])
            self.history[:] = tree["history"]
            same_code = lineage.same_behaviour(tree["behaviour"], self.behaviour, self.model)
        except (KeyError, TypeError, AttributeError, ValueError, RuntimeError, OverflowError) as error:
            raise RunError(f"the checkpoint in {self.folder.path} does not fit this run ({error}).") from None
        if type(state.step) is not int or not 0 <= state.step <= state.mechanism.steps:
            raise RunError(f"the checkpoint in {self.folder.path} is damaged: it stands at step {state.step!r}.")
        if self.ablation == "private" and joined(state.ledger.lines) != _planned(state):
            raise RunError(f"the checkpoint in {self.folder.path} is damaged: step {state.step} and ledger disagree.")
        if not same_code:
            raise RunError(
                f"the checkpoint in {self.folder.path} belongs to a run of another model, loss_fn or augment: they answer "
                "made-up units otherwise. The same noise on other sums would give them away: resume with the same code, or "
                "begin in another folder."
            )
        lineage.resumed(self.model, state.outcome)
        self.folder.truncate_metrics(state.step)

    def _check_same_run(self, tree: Mapping[str, Any]) -> None:
        """The same settings, the same insecure seed and the same earlier phases."""
        assert self.folder is not None
        for key, mine in (
            ("format", CHECKPOINT),
            ("mechanism", self.state.mechanism.to_dict()),
            ("ablation", self.ablation),
            ("seed", self.state.seed),
            ("ema", self.ema),
            ("kinds", self.kinds()),
        ):
            if tree[key] != mine:
                raise RunError(
                    f"the checkpoint in {self.folder.path} belongs to another run: its {key} is {tree[key]}, this "
                    f"one's {mine}. Use the same settings, or another folder."
                )
        lines = self.state.ledger.to_dict()["lines"]
        if lines and lines not in (tree["before"]["lines"], tree["ledger"]["lines"]):
            raise RunError(
                f"the checkpoint in {self.folder.path} does not continue this ledger, whose releases would be lost. "
                "Pass the ledger that the run began with, of the earlier phase."
            )
        entropy, begun = self.state.entropy, tree["entropy"]
        same_seed = begun["reproducible"] and int(begun["root"]) % (1 << 128) == entropy.root % (1 << 128)  # any phase
        if entropy.reproducible and not same_seed:
            raise RunError(f"the checkpoint in {self.folder.path} was not made with this insecure_seed.")
        if entropy.secure != begun["secure"]:
            raise RunError(
                f"the checkpoint in {self.folder.path} was made with secure={begun['secure']}, this run with "
                f"secure={entropy.secure}: its noise cannot change its kind. Resume with secure={begun['secure']}."
            )
        if not Identity.from_dict(tree["identity"]).fits(self.data):
            raise RunError(
                f"the checkpoint in {self.folder.path} belongs to a run on other data (some value, type, order or owner "
                "differs). The same noise on two data sets would give both away: resume with the same data, or begin in "
                "another folder."
            )

    def finish(self, status: Status, delta: float, about: Mapping[str, Any]) -> None:
        """Write what may be published, then forget the secrets."""
        assert self.folder is not None
        weights = self.model.state_dict()
        if self.averaged is not None:
            averages = {id(p): self.averaged[name] for name, p in self.model.named_parameters()}
            tied = self.model.named_parameters(remove_duplicate=False)  # one tensor, several names
            weights |= {name: averages[id(parameter)] for name, parameter in tied}
        save_weights(self.folder.model, weights)
        assert self.state.ledger.identity is not None
        write_json(self.folder.identity, self.state.ledger.identity.to_dict())
        write_json(self.folder.ledger, self.state.ledger.to_dict())
        coordinates = sum(parameter.numel() for parameter in self.model.parameters())
        write_json(self.folder.summary, summary(self.state, status, delta, about, coordinates))
        self.folder.write_run("complete", status)
        self.folder.forget_checkpoint()


def summary(state: State, status: Status, delta: float, about: Mapping[str, Any], coordinates: int) -> dict[str, Any]:
    """summary.json, format 1: what was spent, and what the caller says `about` the task, the data and the model.

    Its epsilon is that of this run's ledger; other runs on the same people add to it.
    """
    mechanism, sigma = state.mechanism, state.mechanism.noise_multiplier
    open_before = any(not line.event_is_private for line in state.before)  # no plan makes up for it
    plan_epsilon = None if sigma is None else math.inf if open_before else mechanism.epsilon(delta)
    nothing = [(dp_accounting.NonPrivateDpEvent(), 1)]
    readings = spent(nothing if status.status == "not-private" else state.ledger.events(), delta, mechanism.adjacency)
    return {
        "format": 1,
        "privacy": {
            "epsilon": readings.epsilon,
            "plan_epsilon": plan_epsilon,
            "delta": delta,
            "adjacency": mechanism.adjacency,
            "unit": mechanism.unit,
            "sampler": mechanism.sampler.kind,
            "accountant": "pld",
            "noise_multiplier": sigma if isinstance(sigma, float | int) else mechanism.to_dict()["noise_multiplier"],
            "steps": mechanism.steps,
            "rate": mechanism.sampler.rate,
            "rdp_epsilon": readings.rdp_epsilon,
            "gdp_epsilon": readings.gdp_epsilon,
            "status": status.status,
            "reason": status.reason,
            "strength": strength(readings.epsilon, delta, mechanism.sampler.n, status.status),
        },
        "task": about.get("task"),
        "data": {**about.get("data", {}), "n": mechanism.sampler.n},
        "model": about.get("model"),
        "repairs": list(about.get("repairs", [])),
        "communication": _communication(state, coordinates),
        "seed": state.seed,
    }


def _communication(state: State, coordinates: int) -> dict[str, Any]:
    """What the run's updates weigh on the wire."""
    course = state.course
    whole = [
        isinstance(plan, Fixed) and all(isinstance(mask, bool) for mask in plan.support.values())
        for plan in course.plans
    ]
    seeded = all(plan.seeded or known for plan, known in zip(course.plans, whole, strict=True))
    return asdict(
        payload(
            coordinates, state.step, values=course.values, indices=course.indices, masks=course.masks, seeded=seeded
        )
    )


def _plain_state(scheduler: Any) -> dict[str, Any]:
    """A scheduler's state without functions: those come with the code again."""
    return {key: value for key, value in scheduler.state_dict().items() if not callable(value)}


@torch.no_grad()
def _mean_loss(model: nn.Module, loss_fn: LossFn, units: Nest) -> float:
    modes, device = {module: module.training for module in model.modules()}, next(model.parameters()).device
    total, count = 0.0, length(units)
    if not count:
        raise DataError("valid has no units: pass held-out data, or None.")
    model.eval()
    try:
        for first in range(0, count, 1024):
            batch = map_tensors(lambda tensor: tensor.to(device), take(units, slice(first, first + 1024)))
            total += unit_losses(model, loss_fn, batch).double().sum().item()
    finally:
        for module, training in modes.items():  # parts of the model may have been in another mode than the whole
            module.training = training
    return total / count


@contextmanager
def _interrupts() -> Iterator[list[int]]:
    """Collect Ctrl-C and SIGTERM until the step is done; a second one stops at once."""
    received: list[int] = []
    if threading.current_thread() is not threading.main_thread():
        yield received
        return

    def handle(number: int, frame: types.FrameType | None) -> None:
        if received:
            raise KeyboardInterrupt
        received.append(number)

    before = {number: signal.signal(number, handle) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield received
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


class _Bar:
    """Progress: steps, epsilon so far (PLD, recomputed when that costs under 5 % of the time), time left."""

    def __init__(self, show: bool, state: State, delta: float, ablation: Ablation, status: Status):
        from rich.console import Console
        from rich.progress import (
            BarColumn,
            MofNCompleteColumn,
            Progress,
            TextColumn,
            TimeElapsedColumn,
            TimeRemainingColumn,
        )

        self.state, self.delta, self.private = state, delta, status.status == "private"
        self._label = "training" if ablation == "private" else f"training ({ablation})"
        self._show, self._next = show, 0.0
        self._reading: tuple[int, float] = (0, math.nan)
        self._progress = Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TextColumn("{task.fields[epsilon]}"),
            TimeElapsedColumn(),
            TextColumn("left"),
            TimeRemainingColumn(),
            console=Console(stderr=True),
            disable=not show,
        )

    def __enter__(self) -> _Bar:
        self._progress.start()
        self._task = self._progress.add_task(
            self._label, total=self.state.mechanism.steps, completed=self.state.step, epsilon=""
        )
        return self

    def __exit__(self, *_: object) -> None:
        self._progress.stop()

    def epsilon(self) -> float:
        """Epsilon of the steps so far."""
        if not self.private:
            return math.inf
        if self._reading[0] != self.state.step:
            start = time.monotonic()
            self._reading = self.state.step, self.state.ledger.epsilon(self.delta)
            self._next = time.monotonic() + 20 * (time.monotonic() - start)
        return self._reading[1]

    def advance(self) -> None:
        """Show the step; refresh epsilon now and then, and at the end."""
        if self._show and (time.monotonic() >= self._next or self.state.step == self.state.mechanism.steps):
            self.epsilon()
        shown = f"epsilon {self._reading[1]:.2f}" if self.private else "not private"
        self._progress.update(self._task, completed=self.state.step, epsilon=shown)

"""Training by a plan: every step private, checkpoints and Ctrl-C without loss, and a bar with the epsilon so far."""

from __future__ import annotations

import math
import signal
import threading
import types
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import torch
from torch import Tensor, nn

from noisewise.accounting import Ledger
from noisewise.accounting.accountants import check_delta
from noisewise.accounting.defaults import default_delta, large_delta
from noisewise.accounting.ledger import joined
from noisewise.batches import Nest
from noisewise.data import Data
from noisewise.data.indexed import Indexed, readable
from noisewise.data.marks import mark_of
from noisewise.distributed import Team
from noisewise.distributed.sharding import lent
from noisewise.distributed.team import chosen_team
from noisewise.errors import ConfigError, Interrupted, PrivacyError, PrivacyWarning
from noisewise.losses import LossFn
from noisewise.mechanism import Mechanism
from noisewise.progress import Bar
from noisewise.runs.folder import RunFolder, Status
from noisewise.runs.states import Keep, read_states
from noisewise.runtime import Runtime
from noisewise.training import lineage, readings
from noisewise.training.ablation import Ablation, step_of
from noisewise.training.augmentation import Augment
from noisewise.training.batches import units_of
from noisewise.training.callbacks import Callback, check_callbacks
from noisewise.training.captured import wanted
from noisewise.training.checkpoint import contents_of, open_folder, save_agreed, take_part
from noisewise.training.given import (
    check_about,
    check_data,
    check_extras,
    check_loss,
    check_mechanism,
    check_model,
    check_number,
    check_optimizer,
    check_scheduler,
)
from noisewise.training.paid import PaidAccuracy
from noisewise.training.run import Run
from noisewise.training.start import check_spread, check_start, enter, schema_ledger
from noisewise.training.state import State
from noisewise.training.step import Recorder
from noisewise.training.summary import status_of
from noisewise.training.together import agree_on_course, agree_on_run
from noisewise.training.way import way_of
from noisewise.wording import at_most


@dataclass(frozen=True)
class Trained:
    """What training gives back. `model` is the user's own object; `averaged` its moving average, if asked for.

    `lines`: one for each epoch, as they were when it ended; `later`: their epsilons, where nobody has asked for them so far.
    `stopped`: the step at which a callback stopped it; None where the plan was carried out. `states`: those that were kept,
    `(step, state_dict)`, as released as the model.
    """

    model: nn.Module
    ledger: Ledger
    lines: list[dict[str, Any]] = field(repr=False)
    status: Status
    averaged: dict[str, Tensor] | None = None
    stopped: int | None = None
    states: tuple[tuple[int, dict[str, Tensor]], ...] = ()
    later: readings.Later | None = field(default=None, repr=False)

    @cached_property
    def history(self) -> list[dict[str, Any]]:
        """One line for each epoch: its last step, epsilon so far (of twenty lines at most), held-out loss if there is one."""
        return self.lines if self.later is None else self.later.filled(self.lines)


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
    callbacks: Sequence[Callback] = (),
    paid: PaidAccuracy | None = None,
    ledger: Ledger | None = None,
    ablation: Ablation = "private",
    ema: float | None = None,
    example: Nest = None,
    augment: Augment | None = None,
    team: Team | None = None,
    about: Mapping[str, Any] | None = None,
    keep: Keep | None = None,
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
        callbacks: called with a `Released` once per epoch and at the end; one that returns True stops the run, and the
            ledger then counts the whole plan all the same. A resumed run tells them the past again.
        paid: `PaidAccuracy` of private held-out people, read once per epoch; its own ledger says what it costs them.
        ledger: of an earlier phase on the same data; continued. A model that came out of a run on it needs that run's.
            A fresh model without one is a new run, whose epsilon adds to those of all other runs on the same people.
        ablation: private, or plain, clip-only, noise-only (not private, and marked so).
        ema: decay of a moving average of the weights, e.g. 0.9999; post-processing, free.
        example: made-up batch for the check of the model, if random inputs do not fit it.
        augment: random versions of each row, averaged before clipping; mixing rows would couple units.
        team: the processes that train this model together, `noisewise.distributed.begin()` under torchrun: each computes a
            part of every batch, there is one release and one ledger, and the first of them writes `out`.
        about: what summary.json says of `task`, `data` (its name, by which runs are added up), `model` and `repairs`: public
            facts only, e.g. {"task": "classification", "data": {"name": "clinic"}}.
        keep: after which steps the weights are kept for audits, `Keep.evenly(10, steps)`: beside the model if the run is
            private, since the ledger covers every step, else in `sensitive/`.
        progress: show a bar with the epsilon so far and the time left.
        checkpoint_seconds: least time between checkpoints.
    """
    make_step = step_of(ablation)
    data, valid = readable(data), readable(valid)
    if isinstance(data, Indexed):
        data.look_again()
    check_model(model)
    check_data(data)
    check_loss(loss_fn)
    check_mechanism(mechanism)
    check_optimizer(optimizer)
    check_scheduler(scheduler, optimizer)
    check_extras(runtime, ledger, recorders, augment)
    check_about(about)
    check_number("checkpoint_seconds", checkpoint_seconds, "30")
    if keep is not None and not isinstance(keep, Keep):
        raise ConfigError(f"keep={keep!r}: must be noisewise.runs.states.Keep.evenly({keep!r}, steps), or None.")
    if ema is not None and (isinstance(ema, bool | str) or not 0 < ema < 1):
        raise ConfigError(f"ema={ema!r}: a decay in (0, 1), e.g. 0.9999, or None.")
    per_epoch = max(1, round(1 / mechanism.sampler.rate))
    callbacks = check_callbacks(callbacks, valid, paid, -(-mechanism.steps // per_epoch), resume)
    if resume and out is None:
        raise ConfigError("resume=True without out=: name the run folder to go on from.")
    delta = default_delta(mechanism.sampler.n) if delta is None else delta
    check_delta(delta)
    if ablation == "private" and (concern := large_delta(delta, mechanism.sampler.n)):
        warnings.warn(concern, PrivacyWarning, stacklevel=2)
    team = chosen_team(team)
    folder = None if out is None or not team.first else RunFolder(out)
    ledger = schema_ledger(data) if ledger is None else ledger
    state = State.start(mechanism, ledger, seed=seed, insecure_seed=insecure_seed, secure=secure, team=team)
    run = Run(
        model, optimizer, scheduler, state, folder, ablation, ema, keep=Keep() if keep is None else keep, where=out
    )
    run.valid_is_public = isinstance(valid, Data) and valid.public
    status = status_of(state, ablation)
    check_start(model, data, loss_fn, optimizer, state, example, augment)
    captured = wanted(runtime, next(model.parameters()).device)  # refuses before a folder is made
    if state.sharded is not None:
        captured = False
        check_spread(runtime, ablation, paid)
    fresh = team.said(folder is None or not folder.begun)
    if fresh:
        enter(model, data, state, promised=ablation == "private")
    if out is not None or team.several:
        run.data, run.captured = mark_of(data), captured
        with lent(state.sharded):
            run.behaviour = lineage.behaviour(model, loss_fn, units_of(data), example, augment and augment.function)
        run.way = team.said(way_of(model, mechanism, runtime, augment, lineage.draws(run.behaviour)))
    beginning = contents_of(run) if fresh else {}
    with folder.locked() if folder else nullcontext():
        if folder:
            status = open_folder(folder, run, resume, beginning)
        if take_part(run):
            status = status_of(state, ablation)
        agree_on_run(
            team, run.behaviour, {"ablation": ablation, "ema": ema, "recorders": len(recorders), "delta": delta}
        )
        shown_to = _Epsilon(progress and team.first, state, delta, ablation, status)
        with _known_if_broken_off(model, state), _interrupts() as interrupted, shown_to as shown:
            read_at, (told,) = set(readings.reading_steps(mechanism)), team.any(bool(callbacks))
            waits = status.status == "private" and out is None and not told and not team.several
            stopped = run.tell(callbacks, run.history)
            run.keep_state()
            while state.step < mechanism.steps and not stopped:
                make_step(
                    model, data, loss_fn, optimizer, state, runtime,
                    recorders=recorders, example=example, augment=augment,
                )  # fmt: skip
                if scheduler is not None:
                    scheduler.step()
                run.average()
                run.keep_state()
                shown.advance()
                last = state.step == mechanism.steps
                if state.step % per_epoch == 0 or last:
                    read = team.first and state.step in read_at and not waits
                    run.log(valid, loss_fn, shown.reading() if read else None, paid)
                    if told:
                        save_agreed(run)  # on another number of ranks, later steps are drawn anew: nobody heard of them
                    stopped = run.tell(callbacks, run.history[-1:])
                due, stop = team.any(run.due(checkpoint_seconds), bool(interrupted))
                if due or stop:
                    save_agreed(run)
                if stop:
                    _stop(run, status)
        state.captured.settle()
        if stopped:
            if ablation == "private":
                state.give_up()
            lineage.end(model, team=team)  # copies of it are known, as those of a run that went to its end
        _check_plan(state, ablation)
        agree_on_course(model, state)
        if run.averaged is not None:
            lineage.end(model, run.averaged, team)
        weights = run.released()
        if folder:
            run.finish(weights, status, delta, about or {})
    ended = run.history[-1]["step"] if stopped else None
    states = read_states(folder) if folder else sorted(run.states.items())
    later = readings.Later.of(mechanism, state.before, state.ledger, delta) if waits else None
    return Trained(model, state.ledger, run.history, status, run.averaged, ended, tuple(states), later)


def _check_plan(state: State, ablation: Ablation) -> None:
    if ablation != "private":
        return
    written, planned = joined(state.ledger.lines), state.planned()
    if written != planned:
        raise PrivacyError(f"the ledger {written} is not the plan {planned}: do not release this model; report a bug.")


def _stop(run: Run, status: Status) -> None:
    state = run.state
    state.captured.settle()
    if run.where is None:
        raise KeyboardInterrupt
    if run.folder:
        run.folder.write_run("interrupted", status)
    raise Interrupted(
        f"stopped after step {state.step} of {state.mechanism.steps}; nothing is lost. Resume with resume=True "
        f"(command line: the same command with --resume), folder {run.where}."
    )


@contextmanager
def _known_if_broken_off(model: nn.Module, state: State) -> Iterator[None]:
    """Copies of a model whose run an error has broken off are known too: what it has released is out, and in it."""
    try:
        yield
    except BaseException:
        if state.step and not state.team.several:  # several processes do not break off together, and must read as one
            lineage.end(model)
        raise


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


class _Epsilon:
    """Progress: steps, epsilon so far, time left. Readings along the run cost one composition for all of them together."""

    def __init__(self, show: bool, state: State, delta: float, ablation: Ablation, status: Status):
        self.state, self.delta, self.private = state, delta, status.status == "private"
        self._readings: dict[int, float] | None = None
        label = "training" if ablation == "private" else f"training ({ablation})"
        self._bar = Bar(label, state.mechanism.steps, done=state.step, show=show)

    def __enter__(self) -> _Epsilon:
        self._bar.__enter__()
        return self

    def __exit__(self, *_: object) -> None:
        self._bar.__exit__()

    def reading(self) -> float:
        """Epsilon of the steps so far: never below the ledger's, at the end exactly that."""
        if not self.private:
            return math.inf
        if self.state.step == self.state.mechanism.steps:
            return self.state.ledger.epsilon(self.delta)
        return self._after(self.state.step)

    def _after(self, step: int) -> float:
        """The first reading at or behind a step."""
        if self._readings is None:
            self._readings = readings.readings_of(self.state.mechanism, self.state.before, self.delta)
        return next(epsilon for at, epsilon in self._readings.items() if at >= step)

    def advance(self) -> None:
        """Show the step, with the epsilon that the next reading will have: it is not exceeded until then."""
        if not self._bar.show:
            return
        self._bar.advance(extra=f"epsilon ≤ {at_most(self._after(self.state.step))}" if self.private else "not private")

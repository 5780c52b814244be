"""The recipe of a run: all that a repair may change, and carrying it out in one phase or several."""

from __future__ import annotations

import copy
import math
import shutil
import tempfile
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import nn

from noisewise.accounting import Ledger, Line, smallest_noise
from noisewise.accounting.calibrate import check_epsilon
from noisewise.accounting.events import not_private
from noisewise.accounting.ledger import joined
from noisewise.data import Data, Splits
from noisewise.distributed import ALONE, Team, shard
from noisewise.distributed.sharding import check_layers
from noisewise.distributed.team import chosen_team
from noisewise.errors import ConfigError, Interrupted, PrivacyError, RunError
from noisewise.losses import LossFn
from noisewise.mechanism import Mechanism
from noisewise.rates import LearningRate
from noisewise.runs.files import write_atomically
from noisewise.runs.folder import RunFolder
from noisewise.runs.states import Keep, forget_states, join_states
from noisewise.runs.summary import read_ledger
from noisewise.runs.tensors import read_weights
from noisewise.sampling import Poisson, steps_for
from noisewise.schedule import Schedule
from noisewise.support import Fixed, Plan, plans_of, together
from noisewise.training.ablation import Ablation
from noisewise.training.augmentation import Augment
from noisewise.training.given import check_loss, check_mechanism, check_model, kind
from noisewise.training.lineage import loaded
from noisewise.training.loop import Trained, train
from noisewise.wording import at_most

MakeOptimizer = Callable[[Iterable[nn.Parameter]], torch.optim.Optimizer]


@dataclass(frozen=True, kw_only=True)
class Phase:
    """A part of a run before its last one: a plan of its own, or an ablation without privacy.

    `after(recipe, model)` gives the recipe of what follows, from the recipe so far and the model that this phase trained;
    by default the same recipe that goes on from that model. `optimizer`: the recipe's, if None.
    """

    mechanism: Mechanism
    ablation: Ablation = "private"
    optimizer: MakeOptimizer | None = None
    after: Callable[[Recipe, nn.Module], Recipe] | None = None

    def lines(self, first_step: int = 0) -> list[Line]:
        """What this phase writes into the ledger."""
        if self.ablation == "private":
            return _known(self.mechanism).lines(first_step)
        return [Line(not_private(), f"{self.ablation} (not private)", self.mechanism.steps, first_step)]


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """Everything that decides what training does; `fit` carries it out and changes none of it.

    `optimizer` builds one from a model's parameters; `schedule` multiplies its learning rate over the steps of all phases
    together. `ledger`: what was already released about the same people; it adds up
    with this run. `phases` come before the `mechanism`. `repairs`: those that were applied, for summary.json.
    """

    model: nn.Module
    data: Splits
    loss_fn: LossFn
    mechanism: Mechanism
    optimizer: MakeOptimizer
    augment: Augment | None = None
    ema: float | None = None
    schedule: LearningRate | None = None
    ledger: Ledger | None = None
    phases: tuple[Phase, ...] = ()
    repairs: tuple[Any, ...] = ()

    def __post_init__(self) -> None:
        """One kind of neighbours and of units throughout; things of the right kinds."""
        check_model(self.model)
        check_loss(self.loss_fn)
        check_mechanism(self.mechanism)
        if not isinstance(self.data, Splits):
            raise ConfigError(
                f"data is {kind(self.data)}: must be train, valid and test, noisewise.data.Splits(train, valid, test)."
            )
        if isinstance(self.optimizer, torch.optim.Optimizer) or not callable(self.optimizer):
            raise ConfigError(
                f"optimizer is {kind(self.optimizer)}: must be a function that makes one, e.g. "
                "lambda parameters: torch.optim.SGD(parameters, lr=0.1), since each phase needs its own."
            )
        if self.schedule is not None and not isinstance(self.schedule, LearningRate):
            raise ConfigError(
                f"schedule is {kind(self.schedule)}: must be noisewise.LearningRate('cosine'), or None. A torch scheduler "
                "belongs to one optimizer, and each phase has its own."
            )
        for mechanism in [self.mechanism, *(phase.mechanism for phase in self.phases)]:
            Ledger(mechanism.adjacency, unit=mechanism.unit).claim(self.mechanism.adjacency, self.mechanism.unit)
        chosen = None if self.data.train.schema is None else self.data.train.schema.ledger
        if self.ledger is None and chosen is not None:  # `train` begins with what choosing ranges has spent
            object.__setattr__(self, "ledger", copy.deepcopy(chosen))
        if self.ledger is not None:
            self.ledger.claim(self.mechanism.adjacency, self.mechanism.unit)

    def lines(self) -> list[Line]:
        """All that is released: before this run, in its phases, and by its last plan."""
        lines = [] if self.ledger is None else list(self.ledger.lines)
        for part in [*self.phases, Phase(mechanism=self.mechanism)]:
            lines += part.lines(max((line.first_step + line.count for line in lines), default=0))
        return joined(lines)

    @property
    def private(self) -> bool:
        """Does every release carry noise?"""
        return all(line.event_is_private for line in self.lines())

    def epsilon(self, delta: float) -> float:
        """Epsilon of everything together by PLD; infinite as soon as one release is not private."""
        return Ledger(self.mechanism.adjacency, self.lines()).epsilon(delta)

    @property
    def steps(self) -> int:
        """Of all phases and the last plan."""
        return sum(phase.mechanism.steps for phase in self.phases) + self.mechanism.steps

    @property
    def steps_per_epoch(self) -> int:
        """Steps in which each unit is expected once."""
        return max(1, round(1 / self.mechanism.sampler.rate))


def _known(mechanism: Mechanism) -> Mechanism:
    """With some noise where none is chosen yet, so that plans can be compared."""
    return replace(mechanism, noise_multiplier=1.0) if mechanism.noise_multiplier is None else mechanism


def with_support(recipe: Recipe, plan: Plan) -> Recipe:
    """The recipe with one more plan of what learns: a fixed one holds in all phases, any other runs over the last."""
    everywhere = isinstance(plan, Fixed)
    phases = tuple(replace(phase, mechanism=_and(phase.mechanism, plan)) for phase in recipe.phases)
    return replace(recipe, phases=phases if everywhere else recipe.phases, mechanism=_and(recipe.mechanism, plan))


def _and(mechanism: Mechanism, plan: Plan) -> Mechanism:
    return replace(mechanism, support=together(mechanism.support, plan))


def cut(mechanism: Mechanism, epochs: float, name: str) -> tuple[Mechanism, Mechanism]:
    """The first epochs of a plan and the rest; schedules go on where they were. `name`: who asks, for errors."""
    steps = steps_for(epochs, mechanism.sampler.n, mechanism.sampler.batch_size)
    if steps >= mechanism.steps:
        raise ConfigError(
            f"{name}: {epochs} epochs are {steps} of {mechanism.steps} steps; leave some for what follows."
        )
    planned = [plan for plan in plans_of(mechanism.support) if not isinstance(plan, Fixed)]
    if planned:
        raise ConfigError(
            f"{name}: {planned[0]!r} is planned over the whole run, and would begin anew in each part. Divide the recipe "
            "first: give all repairs in one call of `repaired`."
        )
    rest: dict[str, Any] = {
        key: _from(getattr(mechanism, key), steps, mechanism.steps)
        for key in ("clip", "noise_multiplier")
        if isinstance(getattr(mechanism, key), Schedule)
    }
    return replace(mechanism, steps=steps), replace(mechanism, steps=mechanism.steps - steps, **rest)


def _from(schedule: Schedule[Any], first: int, steps: int) -> Schedule[Any]:
    return Schedule(
        tuple((max(start - first, 0), value) for start, count, value in schedule.runs(steps) if start + count > first)
    )


def at_noise(recipe: Recipe, noise_multiplier: float) -> Recipe:
    """The recipe with this noise in its last phase; noise that differs between phases, or over a schedule, in proportion."""
    shares = [_proportion(phase.mechanism, recipe.mechanism) for phase in recipe.phases]
    phases = tuple(
        replace(phase, mechanism=phase.mechanism.scaled(noise_multiplier * share))
        for phase, share in zip(recipe.phases, shares, strict=True)
    )
    return replace(recipe, phases=phases, mechanism=recipe.mechanism.scaled(noise_multiplier))


def at_epsilon(recipe: Recipe, epsilon: float, delta: float) -> Recipe:
    """The recipe with the least noise such that everything it releases costs at most `epsilon` at `delta` (PLD).

    One common factor for all phases (`at_noise`), on top of what `recipe.ledger` already spent.
    """
    if not at_noise(recipe, 1.0).private:
        raise ConfigError(
            f"epsilon={epsilon}: no noise can meet it, since a part of this recipe is not private (a phase without DP, a mask "
            "from private records, a ranking without noise, a 0 in a schedule). Take that part out, or leave the epsilon out."
        )

    check_epsilon(epsilon)
    _check_left(recipe, epsilon, delta)

    def events(factor: float) -> list[Any]:
        return [(line.event, line.count) for line in at_noise(recipe, factor).lines()]

    return at_noise(recipe, smallest_noise(events, epsilon, delta, recipe.mechanism.adjacency))


def _check_left(recipe: Recipe, epsilon: float, delta: float) -> None:
    """What was released before leaves something of epsilon."""
    if recipe.ledger is None or not recipe.ledger.lines:
        return
    spent = Ledger(recipe.mechanism.adjacency, recipe.ledger.lines).epsilon(delta)
    if spent >= epsilon:
        purposes = ", ".join(repr(purpose) for purpose in dict.fromkeys(line.purpose for line in recipe.ledger.lines))
        raise ConfigError(
            f"epsilon={epsilon:g} at delta={at_most(delta)} is the total, and what was released about these people before "
            f"({purposes}) has spent {at_most(spent)} already: nothing is left for training, and what is spent cannot be "
            f"taken back. Give an epsilon above {at_most(spent)}."
        )


def _proportion(mechanism: Mechanism, last: Mechanism) -> float:
    """Noise of a phase in units of the last one's; schedules carry their own proportions."""
    noise, unit = mechanism.noise_multiplier, last.noise_multiplier
    if noise == unit or (isinstance(noise, Schedule) and isinstance(unit, Schedule)):
        return 1.0
    if not noise or not unit:
        raise ConfigError(
            f"a phase has noise multiplier {noise!r}, the last one {unit!r}: what is calibrated keeps proportions, and these "
            "have none. Give both a number above 0."
        )
    if isinstance(noise, Schedule):
        return 1 / unit  # type: ignore[operator]
    return noise if isinstance(unit, Schedule) else noise / unit


def fit(
    recipe: Recipe,
    *,
    out: Any = None,
    resume: bool = False,
    about: Any = None,
    team: Team | None = None,
    ablation: Ablation = "private",
    keep_states: int = 0,
    sharded: bool = False,
    **settings: Any,
) -> Trained:
    """Train by a recipe: its phases, then its mechanism, with one ledger; the recipe and its model stay as they are.

    `ablation`: how everything is trained that the recipe would train privately; phases without privacy stay as they are.
    `keep_states`: so many states at equal distances over the whole run, the start first, for audits (`Trained.states`).
    `sharded`: spread the parameters over the processes of the `team` (`distributed.shard`), for recipes of one phase.
    `settings` are those of `train` (seed, insecure_seed, secure, delta, runtime, valid, recorders, progress, ...). With
    `out`, a run that was interrupted in any phase goes on with `resume=True`.
    """
    if not isinstance(recipe, Recipe):
        raise ConfigError(f"recipe is {kind(recipe)}: must be a noisewise.Recipe; train(model, ...) takes its parts.")
    ledger = None if recipe.ledger is None else copy.deepcopy(recipe.ledger)
    team = chosen_team(team)
    if sharded:
        check_sharded(recipe, team)
    folder = None if out is None or not team.first else RunFolder(out)
    if folder is not None and folder.complete and not folder.checkpoint.exists():
        raise RunError(f"{folder.path} holds a finished run: choose another folder, so that no release is overwritten.")
    if resume and folder is not None and not (_begun(folder) or folder.run.exists() or folder.phase(1).path.exists()):
        raise RunError(f"{folder.path} holds no run to go on with: check the path, or begin one without resume.")
    if (paid := settings.get("paid")) is not None and recipe.phases:
        _check_paid(recipe, paid, resume)
    if recipe.schedule is not None and settings.get("scheduler") is not None:
        raise ConfigError("scheduler= of a recipe that has a schedule: leave one of them out.")
    course, total, first = recipe.schedule, recipe.steps, 0
    keep, states = Keep.evenly(keep_states, total), dict[int, Any]()
    if folder is not None and not resume and not folder.begun:
        forget_states(folder)
    for number, phase in enumerate(recipe.phases, 1):
        model, make = copy.deepcopy(recipe.model), phase.optimizer or recipe.optimizer
        work = None if folder is None else _phase_folder(folder, number, resume)
        if team.said(work is not None and work.complete):
            ledger = _taken_over(model, work, phase.mechanism.unit, team, recipe.ledger)
        else:
            moves = make(model.parameters())
            how = ablation if phase.ablation == "private" else phase.ablation
            try:
                part = train(
                    model, recipe.data.train, recipe.loss_fn, phase.mechanism, moves,
                    out=None if out is None else RunFolder(out).phase(number).path,
                    resume=team.said(resume and _begun(work)), ledger=ledger, ablation=how,
                    augment=recipe.augment, about=about, team=team, keep=keep.part(first, phase.mechanism.steps),
                    **_scheduled(course, moves, total, first), **settings,
                )  # fmt: skip
                ledger = part.ledger
                states |= dict(part.states)
            except Interrupted:
                raise Interrupted(
                    f"stopped in phase {number} of {len(recipe.phases) + 1}; nothing is lost. Resume with resume=True "
                    f"(command line: the same command with --resume), folder {out}."
                ) from None
        first += phase.mechanism.steps
        if folder is not None and work is not None:
            join_states(folder, work)
            if work.valid_ledger.exists():  # readings of held-out people that were told in this phase
                write_atomically(folder.valid_ledger, work.valid_ledger.read_bytes())
        recipe, ledger = _after(phase, recipe, model, ledger)
    _check_repairs(recipe, ledger)
    model = copy.deepcopy(recipe.model)
    if sharded:
        shard(model, team)
    moves = recipe.optimizer(model.parameters())
    trained = train(
        model, recipe.data.train, recipe.loss_fn, recipe.mechanism, moves, out=out,
        resume=team.said(resume and _begun(folder)), ledger=ledger, ablation=ablation, augment=recipe.augment,
        ema=recipe.ema, team=team, about={**(about or {}), "repairs": [repair.describe() for repair in recipe.repairs]},
        keep=keep.part(first, recipe.mechanism.steps), **_scheduled(course, moves, total, first), **settings,
    )  # fmt: skip
    for path in [] if folder is None else folder.sensitive.glob("phase-*"):
        shutil.rmtree(path)
    return replace(trained, states=tuple(sorted((states | dict(trained.states)).items()))) if states else trained


def _after(phase: Phase, recipe: Recipe, model: nn.Module, ledger: Ledger) -> tuple[Recipe, Ledger]:
    """The recipe after a phase, and the ledger with what has been released between the two."""
    if phase.after is None:
        return replace(recipe, model=model), ledger
    made = phase.after(recipe, model)
    if len(made.phases) != len(recipe.phases):
        raise ConfigError("a phase's `after` gave other phases: they are planned before the first one.")
    before = [] if recipe.ledger is None else recipe.ledger.lines
    if made.ledger is None or made.ledger.lines[: len(before)] != before:
        if made.ledger is None and not before:
            return made, ledger
        raise PrivacyError(
            "a phase's `after` gives a recipe without what was released before the phase: its ledger must go on from the "
            "recipe's. Add releases to it with `recipe.ledger.composed(other)`."
        )
    news = replace(made.ledger, lines=made.ledger.lines[len(before) :])
    return made, ledger.composed(news) if news.lines else ledger


def _check_paid(recipe: Recipe, paid: Any, resume: bool) -> None:
    """Readings of held-out people suffice for all phases, and are not told twice: said before the first one."""
    if resume:
        raise ConfigError(
            "resume=True with paid=: readings that were released before the interruption would be paid for twice, and counted "
            "once. Resume without paid, or begin anew."
        )
    plans = [*(phase.mechanism for phase in recipe.phases), recipe.mechanism]
    readings = sum(math.ceil(plan.steps / max(1, round(1 / plan.sampler.rate))) for plan in plans)
    left = getattr(paid, "left", readings)
    if left < readings:
        raise ConfigError(
            f"paid has {left} readings left, this recipe takes {readings}, one per epoch of each phase: build "
            f"PaidAccuracy(..., readings={readings}), or train for fewer epochs."
        )


def _check_repairs(recipe: Recipe, ledger: Ledger | None) -> None:
    """What a repair has looked at openly is in the ledger: a second look, beside what each repair does."""
    open_ones = [repair.name for repair in recipe.repairs if getattr(repair, "cost", None) == "not-private"]
    lines = [*([] if ledger is None else ledger.lines), *Phase(mechanism=recipe.mechanism).lines(0)]
    if open_ones and all(line.event_is_private for line in lines):
        raise PrivacyError(
            f"repair {open_ones[0]!r} is not private, and the ledger does not hold it: the run would seem private. Pass the "
            "recipe that `repaired` gave, with its ledger."
        )


def check_sharded(recipe: Recipe, team: Team) -> None:
    """Can this recipe be carried out with parameters that are spread over the team's processes?"""
    check_layers(recipe.model)
    if not team.several:
        raise ConfigError("sharded=True in one process: start several, with torchrun or --processes 2 (or more).")
    if recipe.phases:
        raise ConfigError(
            "sharded=True with a recipe of several phases: what follows a phase needs the whole model. Leave out the repair "
            "that makes phases, or train with whole parameters on every process."
        )


def _scheduled(course: LearningRate | None, moves: torch.optim.Optimizer, steps: int, first: int) -> dict[str, Any]:
    return {} if course is None else {"scheduler": course.on(moves, steps, first)}


def _taken_over(model: nn.Module, work: RunFolder | None, unit: str, team: Team, before: Ledger | None) -> Ledger:
    """The weights and the ledger of a phase that is finished; the first process sends its files to the others.

    `before`: what the recipe has released for it; released anew, it would be in the model, and counted once.
    """
    with tempfile.TemporaryDirectory() as copied:
        mirror = RunFolder(copied)
        for path in ("model", "ledger", "identity") if team.several else ():
            content = team.said_bytes(b"" if work is None else getattr(work, path).read_bytes())
            if work is None:
                mirror.create()
                getattr(mirror, path).write_bytes(content)
        load_weights(model, (work or mirror).model)
        ledger = read_ledger(work or mirror, unit=unit)
    if before is not None and not ledger.begins_with(before):
        what = ", ".join(line.purpose for line in before.lines)
        raise RunError(
            f"the recipe's ledger holds a release ({what}) that the phase which is finished did not begin with: drawn anew, it "
            "would be in the model and not be counted. Resume with what was released then, from where it was kept, or begin "
            "in another folder."
        )
    return ledger


def _phase_folder(folder: RunFolder, number: int, resume: bool) -> RunFolder:
    folder.create()
    work = folder.phase(number)
    if work.run.exists() and not resume:
        raise RunError(f"{folder.path} holds an unfinished run: go on with resume=True (--resume), or choose another.")
    return work


def _begun(folder: RunFolder | None) -> bool:
    """Is there something to go on with? Without a folder, `train` says that one is needed."""
    return folder is None or folder.begun


def continued(recipe: Recipe, trained: Trained) -> Recipe:
    """A recipe that goes on from a trained model with everything that its ledger holds: a second phase, from a copy.

    Several recipes may go on from one model: each has its own copy of the weights and of the ledger. What the recipe itself
    has released before, such as the choice of a mask, adds up with it, unless the model was trained after that.
    """
    ledger = copy.deepcopy(trained.ledger)
    if recipe.ledger is not None and not ledger.begins_with(recipe.ledger):
        ledger = ledger.composed(recipe.ledger)
    return replace(recipe, model=copy.deepcopy(trained.model), ledger=ledger)


def load_weights(model: nn.Module, path: Path) -> nn.Module:
    """The model with the weights of a safetensors file; a file of another model is an error.

    Weights from a run folder are known as that run's: training them further on its data needs its ledger, which
    `runs.read_ledger(RunFolder(path))` gives.
    """
    try:
        model.load_state_dict(read_weights(path))
    except RuntimeError as error:
        raise RunError(f"{path} does not hold the weights of this run's model ({error}).") from None
    if ledger := _ledger_of(path):
        loaded(model, ledger)
    return model


def _ledger_of(path: Path) -> Ledger | None:
    """What weights in a run folder were trained with; those under `sensitive/`, without privacy on the same data."""
    folder = RunFolder(path.parent.parent if path.parent.name == "sensitive" else path.parent)
    if not folder.ledger.exists():
        return None
    ledger = read_ledger(folder)
    if path.parent == folder.sensitive:
        ledger.lines = [Line(not_private(), "plain (not private)", 1, 0)]
    return ledger


def train_openly(
    model: nn.Module,
    data: Data,
    loss_fn: LossFn,
    *,
    epochs: float,
    batch_size: int,
    lr: float,
    momentum: float = 0.0,
    augment: Augment | None = None,
    seed: int = 0,
    progress: bool = False,
) -> nn.Module:
    """A trained copy of a model, by ordinary SGD without any privacy: for public data, and for controls."""
    trained, n = copy.deepcopy(model), len(data)
    size = min(batch_size, n)
    plan = Mechanism(sampler=Poisson(n, size), steps=steps_for(epochs, n, size), noise_multiplier=0.0)
    optimizer = torch.optim.SGD(trained.parameters(), lr=lr, momentum=momentum)
    whole = replace(data, unit=None)
    train(
        trained, whole, loss_fn, plan, optimizer, ablation="plain", insecure_seed=seed, seed=seed, augment=augment,
        progress=progress, team=ALONE,
    )  # fmt: skip
    return trained

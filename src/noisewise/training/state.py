"""Where a run stands: the plan, what was released, the secret randomness, the next step."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor, nn

from noisewise.accounting import Ledger, Line
from noisewise.accounting.ledger import joined
from noisewise.adaptive import Adaptive
from noisewise.clipping import Clip
from noisewise.data.base import check_seed
from noisewise.distributed import ALONE, Sharded, Team
from noisewise.distributed.team import chosen_team
from noisewise.errors import PrivacyError
from noisewise.mechanism import PURPOSE, QUESTION, RANKING, Mechanism
from noisewise.persample import Layout
from noisewise.persample.seen import Seen
from noisewise.persample.trace import Trace
from noisewise.randomness import Entropy
from noisewise.training import lineage
from noisewise.training.ahead import Ahead
from noisewise.training.captured import Captured
from noisewise.training.course import Course
from noisewise.training.given import check_extras, check_mechanism
from noisewise.training.moves import Moves
from noisewise.training.resident import Resident
from noisewise.training.taken import Taken

_ROOTS: set[int] = set()  # secret roots that a state of this process draws from


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
    team: Team = field(default=ALONE, repr=False, compare=False)  # the processes that train together
    sharded: Sharded | None = field(default=None, init=False, repr=False, compare=False)  # parameters on all of them
    course: Course = field(init=False)  # where the support's plans stand
    captured: Captured = field(default_factory=Captured, init=False, repr=False, compare=False)
    moves: Moves = field(default_factory=Moves, init=False, repr=False, compare=False)
    ahead: Ahead = field(default_factory=Ahead, init=False, repr=False, compare=False)
    seen: Seen | None = field(default=None, init=False, repr=False, compare=False)  # when the layout was found
    taken: Taken = field(default_factory=Taken, init=False, repr=False, compare=False)
    resident: Resident = field(default_factory=Resident, init=False, repr=False, compare=False)
    outcome: lineage.Outcome | None = field(default=None, init=False, repr=False)  # where its weights come from
    origin: bytes | None = field(default=None, init=False, repr=False)  # data and weights at the start
    chain: bytes = field(default=b"", init=False, repr=False)  # the optimizer's numbers so far
    event_chain: bytes = field(default=b"", init=False, repr=False)  # the same when the current release began
    process: int = field(default_factory=os.getpid, init=False, repr=False)  # the one that draws

    def __post_init__(self) -> None:
        """The ledger's unit and neighbours are the plan's; no mask is chosen yet; no other state draws from the same root."""
        check_mechanism(self.mechanism)
        check_seed(self.seed)
        if self.entropy.root in _ROOTS:
            self.entropy = self.entropy.renewed()
        _ROOTS.add(self.entropy.root)
        self.ledger.claim(self.mechanism.adjacency, self.mechanism.unit)
        self.course = Course(self.mechanism.support, self.seed)

    def __getstate__(self) -> dict[str, Any]:
        """What a copy takes over: not the secret root."""
        anew: dict[str, Any] = {
            "layout": None,
            "versions": None,
            "captured": Captured(),
            "moves": Moves(),
            "resident": Resident(),
            "seen": None,
            "sharded": None,
            "taken": Taken(),
        }
        anew["ahead"] = Ahead()
        parts = vars(self) | anew  # the copy's model is looked at anew
        if self.team.several:
            raise PrivacyError(
                f"a copy of a state that {self.team.size} processes train with: each of them would draw other noise for it. "
                "Make another one on all of them, State.start(mechanism, ledger, team=team)."
            )
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

    def next_draws(self, optimizer: torch.optim.Optimizer) -> tuple[Entropy, Entropy]:
        """What `draws` will be at the next step, if the optimizer's numbers are at this one's end what they are now."""
        assert self.origin is not None
        chain = _linked(self.chain, _numbers_of(optimizer))
        begins = (self.step + 1) % self.mechanism.sampler.steps_per_event == 0
        first = chain if begins else self.event_chain
        return self.entropy.bound(self.origin, first), self.entropy.bound(self.origin, chain)

    def on_other_ranks(self) -> None:
        """Draw anew from here on: sums of another number of processes are rounded, and chance in passes drawn, otherwise."""
        spread = "" if self.sharded is None else ", sharded"
        self.chain = _linked(self.chain, f"{self.team.size} ranks{spread}".encode())

    def by_another_way(self, way: str) -> None:
        """Draw anew from here on: the same noise on sums that are made otherwise (`way.way_of`) would give them away."""
        self.chain = _linked(self.chain, way.encode())

    def observe(self, step: int, clip: Clip, sigma: float, answers: Mapping[str, Mapping[str, Tensor]]) -> None:
        """What a step has released makes the next rule, if that adapts, and is what plans remember."""
        size = self.mechanism.expected_batch_size
        if QUESTION in answers and isinstance(clip, Adaptive):
            self.clip = clip.update(answers[QUESTION], size)
        self.course.observe(step, answers[PURPOSE], answers.get(RANKING), sigma * clip.sensitivity / size)

    def moved(self, model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
        """The optimizer has made a step with its present numbers; what must hold is put back."""
        said = _numbers_of(optimizer)
        self.chain = _linked(self.chain, said)
        if model_on_gpu(model) and self.origin is not None and self.step + 1 < self.mechanism.steps:
            next_but_one = self.entropy.bound(self.origin, _linked(self.chain, said))  # if the numbers stay
            self.ahead.begin(self.mechanism.sampler, next_but_one, self.step + 1)
        self.course.hold(dict(model.named_parameters()))
        if self.step == self.mechanism.steps:
            lineage.end(model, team=self.team)

    @property
    def first_step(self) -> int:
        """Ledger step of the plan's step 0."""
        return max((line.first_step + line.count for line in self.before), default=0)

    def planned(self) -> list[Line]:
        """What the ledger holds if all steps before this one went by the plan."""
        done = replace(self.mechanism, steps=self.step).lines(self.first_step) if self.step else []
        return joined([*self.before, *done])

    def give_up(self) -> None:
        """Stop before the plan is carried out; it counts as spent, since when a run stops may follow what it released."""
        self.ledger.lines[:] = joined([*self.before, *self.mechanism.lines(self.first_step)])
        self.step = self.mechanism.steps

    @classmethod
    def start(
        cls,
        mechanism: Mechanism,
        ledger: Ledger | None = None,
        *,
        seed: int = 0,
        insecure_seed: int | None = None,
        secure: bool = False,
        team: Team | None = None,
    ) -> State:
        """Step 0 of a plan, after whatever the ledger already holds; in a `team`, with the first rank's secret root."""
        check_mechanism(mechanism)
        check_extras(None, ledger, (), None)
        ledger = Ledger(mechanism.adjacency, unit=mechanism.unit) if ledger is None else ledger
        if insecure_seed is None:
            entropy = Entropy.fresh(secure=secure)
        else:
            entropy = Entropy.insecure(insecure_seed, ledger.releases, secure=secure)
        team = chosen_team(team)
        if insecure_seed is not None:
            team.agree({"insecure_seed": str(insecure_seed)}, "Give all ranks the same one.")
        root = int.from_bytes(team.said_bytes(entropy.root.to_bytes(64, "little")), "little")
        entropy = replace(entropy, root=root)
        return cls(mechanism, ledger, entropy, seed=seed, before=list(ledger.lines), team=team)


def _linked(chain: bytes, said: bytes) -> bytes:
    return hashlib.blake2b(chain + said, digest_size=32).digest()


def _numbers_of(optimizer: torch.optim.Optimizer) -> bytes:
    """With what numbers a step is made."""
    numbers = [
        {key: _number(group[key]) for key in sorted(group) if key != "params"} for group in optimizer.param_groups
    ]
    return json.dumps(numbers).encode()


def model_on_gpu(model: nn.Module) -> bool:
    """Is the processor free to draw ahead?"""
    return next(model.parameters()).is_cuda


def _number(value: Any) -> Any:
    """A setting of an optimizer as JSON; what is no number says nothing."""
    if isinstance(value, Tensor):
        return value.tolist()
    if isinstance(value, tuple | list):
        return [_number(item) for item in value]
    return value if isinstance(value, int | float | str) else None

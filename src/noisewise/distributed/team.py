"""The processes that train one model together: who they are, and how they speak to each other.

`begin()` makes a team of the processes that torchrun (or `noisewise train --processes`) has started; `ALONE` is the team of a
process by itself, for which everything here is nothing to do. What is said goes over torch.distributed: gloo for what lies
in the memory of a machine, nccl for GPUs. Nothing is pickled.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import timedelta
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from noisewise.errors import ConfigError, RankLost, RunError
from noisewise.runtime import MEETING

TIMEOUT = 600.0  # seconds that a process waits for the others
_REDUCE_SCATTER: Any = getattr(dist, "reduce_scatter_single", None) or getattr(dist, "reduce_scatter_tensor", None)
_ALL_GATHER: Any = getattr(dist, "all_gather_single", None) or getattr(dist, "all_gather_into_tensor", None)
RESUME = "Nothing of this step was released: go on with resume=True (--resume)."


@dataclass(eq=False)
class Team:
    """Ranks 0 to size - 1, of which each is one process; the first one writes what a run leaves behind.

    All of them call the same functions in the same order. A rank that is gone, or silent for too long, is an error on all
    others, and after it the team can do nothing more.
    """

    rank: int = 0
    size: int = 1
    group: Any = None  # of torch.distributed; None is the one that torch takes by default
    words: Any = field(default=None, repr=False)  # the group for numbers in the memory of the machine
    sent: int = field(default=0, init=False)  # bytes of sums that this rank has given away, before any protocol
    broken: str | None = field(default=None, init=False)
    packed: Any = field(default=None, init=False, repr=False)  # see `joining`

    @property
    def first(self) -> bool:
        """Is this the rank that writes?"""
        return self.rank == 0

    @property
    def several(self) -> bool:
        """Are there others?"""
        return self.size > 1

    def part(self, units: Tensor) -> Tensor:
        """This rank's units of a batch: parts are disjoint, together the whole in its order, and differ by one at most."""
        return units.tensor_split(self.size)[self.rank]

    def largest_part(self, count: int) -> int:
        """The most units of `count` that a rank gets."""
        return -(-count // self.size)

    def add(self, tensor: Tensor) -> None:
        """The tensor becomes the sum over all ranks, in place, with the same bits on all of them."""
        if self.several:
            self.sent += tensor.nbytes
            with self._speaking():
                dist.all_reduce(tensor, group=self.group)

    def add_in_parts(self, tensor: Tensor) -> Tensor:
        """The sum over all ranks of a tensor whose first dimension is a multiple of their number: this rank's rows of it."""
        return self.add_in_parts_later(tensor)()

    def add_in_parts_later(self, tensor: Tensor) -> Callable[[], Tensor]:
        """The same without waiting: a function that does, and gives the rows."""
        if not self.several:
            return lambda: tensor
        part = torch.empty_like(tensor[: len(tensor) // self.size])
        self.sent += tensor.nbytes - part.nbytes
        with self._speaking():
            work = _REDUCE_SCATTER(part, tensor, group=self.group, async_op=True)
        return partial(self._arrived, work, part)

    def all_parts(self, part: Tensor) -> Tensor:
        """The rows of all ranks, one behind the other; each has as many."""
        return self.all_parts_later(part)()

    def all_parts_later(self, part: Tensor) -> Callable[[], Tensor]:
        """The same without waiting: a function that does, and gives the rows."""
        if not self.several:
            return lambda: part
        whole = part.new_empty((self.size * len(part), *part.shape[1:]))
        self.sent += (self.size - 1) * part.nbytes
        with self._speaking():
            work = _ALL_GATHER(whole, part, group=self.group, async_op=True)
        return partial(self._arrived, work, whole)

    def _arrived(self, work: Any, tensor: Tensor) -> Tensor:
        with self._speaking():
            work.wait()
        return tensor

    def any(self, *flags: bool) -> tuple[bool, ...]:
        """Which flags does some rank raise? The same answer on all."""
        if not self.several:
            return flags
        return tuple(bool(count) for count in self._largest([int(flag) for flag in flags]))

    def same(self, number: int) -> bool:
        """Do all ranks hold the same number (below 2^63)?"""
        if not self.several:
            return True
        largest, negative = self._largest([number, -number])
        return largest == -negative

    def least(self, number: int) -> int:
        """The smallest of all ranks' numbers."""
        return -self._largest([-number])[0] if self.several else number

    def said(self, value: Any) -> Any:
        """What the first rank says, of the kinds that JSON knows; the others' values are not looked at."""
        return json.loads(self.said_bytes(json.dumps(value).encode())) if self.several else value

    def said_bytes(self, content: bytes) -> bytes:
        """The same for bytes of any length."""
        if not self.several:
            return content
        count = torch.tensor([len(content) if self.first else 0])
        with self._speaking():
            dist.broadcast(count, self._global(0), group=self.words)
            message = torch.empty(int(count), dtype=torch.uint8)
            if self.first:
                message.copy_(torch.frombuffer(bytearray(content), dtype=torch.uint8) if content else message)
            dist.broadcast(message, self._global(0), group=self.words)
        return message.numpy().tobytes()

    def gathered(self, content: bytes) -> list[bytes]:
        """What each rank says, by rank."""
        if not self.several:
            return [content]
        most = self._largest([len(content)])[0]
        padded = torch.zeros(8 + most, dtype=torch.uint8)
        filled = len(content).to_bytes(8, "little") + content
        padded[: len(filled)] = torch.frombuffer(bytearray(filled), dtype=torch.uint8)
        everybody = [torch.empty_like(padded) for _ in range(self.size)]
        with self._speaking():
            dist.all_gather(everybody, padded, group=self.words)
        texts = [tensor.numpy().tobytes() for tensor in everybody]
        return [text[8 : 8 + int.from_bytes(text[:8], "little")] for text in texts]

    def agree(self, facts: Mapping[str, str], remedy: str) -> None:
        """Refuse, on all ranks, what is not the same on all of them; says which fact, and on which rank."""
        known = [json.loads(text) for text in self.gathered(json.dumps(dict(facts)).encode())]
        for rank, other in enumerate(known):
            for name in {**known[0], **other}:
                if other.get(name) != known[0].get(name):
                    raise RunError(f"rank {rank} has another {name} than rank 0, of {self.size} ranks. {remedy}")

    def _largest(self, numbers: Sequence[int]) -> list[int]:
        together = torch.tensor(numbers)
        with self._speaking():
            dist.all_reduce(together, dist.ReduceOp.MAX, group=self.words)
        largest: list[int] = together.tolist()
        return largest

    def _global(self, rank: int) -> int:
        return rank if self.group is None else dist.get_global_rank(self.group, rank)

    @contextmanager
    def _speaking(self) -> Iterator[None]:
        """Errors of the network become one that says what to do."""
        if self.broken is not None:
            raise RankLost(self.broken)
        try:
            yield
        except RuntimeError as error:
            reason = " ".join(str(error).split()).rpartition("] ")[2][:100]
            self.broken = (
                f"rank {self.rank} of {self.size}: another process of this run has stopped, or did not answer in time; its own "
                f"message says why. {RESUME} (torch.distributed: {reason})"
            )
            raise RankLost(self.broken) from None

    def __deepcopy__(self, memo: Any) -> Team:
        """A team is not copied: it is the processes themselves."""
        return self


ALONE = Team()
_TEAMS: dict[int, tuple[Any, Team]] = {}  # by the identity of a group, which is kept


def begin(timeout: float = TIMEOUT) -> Team:
    """The team of all processes that torchrun started; a process that nobody started so is alone.

    Each rank takes its own GPU, where there is one for each rank of the machine. `timeout`: seconds that ranks wait.
    """
    if not dist.is_initialized():
        if int(os.environ.get("WORLD_SIZE", "1")) <= 1:
            return ALONE
        meeting = os.environ.get(MEETING)
        missing = [name for name in ("RANK", "MASTER_ADDR", "MASTER_PORT") if name not in os.environ]
        if missing and not meeting:
            raise ConfigError(
                f"WORLD_SIZE={os.environ['WORLD_SIZE']} without {', '.join(missing)}: torchrun sets all of them. Start with "
                "`torchrun --nproc-per-node 4 -m noisewise train ...` or `noisewise train --processes 4 ...`."
            )
        local = int(os.environ.get("LOCAL_RANK", os.environ["RANK"]))
        gpus = torch.cuda.device_count() if torch.cuda.is_available() else 0
        if gpus > local:
            torch.cuda.set_device(local)
        enough = gpus >= int(os.environ.get("LOCAL_WORLD_SIZE", os.environ["WORLD_SIZE"]))
        try:
            dist.init_process_group(
                "cpu:gloo,cuda:nccl" if enough else "gloo",
                f"file://{meeting}" if meeting else "env://",
                timedelta(seconds=timeout),
                int(os.environ["WORLD_SIZE"]),
                int(os.environ["RANK"]),
            )
        except RuntimeError as error:
            reason = " ".join(str(error).split())[:200]
            where = meeting or f"{os.environ['MASTER_ADDR']}:{os.environ['MASTER_PORT']}"
            raise RunError(
                f"the {os.environ['WORLD_SIZE']} processes of this run did not find each other at {where} within {timeout:g} s "
                f"({reason}). Start all of them, with one address that all can reach."
            ) from None
    return team_of()


def team_of(group: Any = None) -> Team:
    """The team of a process group of one's own (all of them: of the default one), made once by all of its ranks together."""
    if not dist.is_initialized():
        return ALONE
    chosen = dist.group.WORLD if group is None else group
    kept, team = _TEAMS.get(id(chosen), (None, ALONE))
    if kept is not chosen:
        size = dist.get_world_size(chosen)
        words = group
        if size > 1 and "gloo" not in dist.get_backend_config(chosen):
            words = dist.new_group(dist.get_process_group_ranks(chosen), backend="gloo")
        team = Team(dist.get_rank(chosen), size, group, words)
        _TEAMS[id(chosen)] = chosen, team
    return team


def end() -> None:
    """Take leave of the others, at the end of a program."""
    _TEAMS.clear()
    if dist.is_initialized():
        dist.destroy_process_group()


def chosen_team(team: Team | None) -> Team:
    """The team that was asked for; who does not say it, in a process that is one of several, must."""
    if team is None and dist.is_available() and dist.is_initialized() and dist.get_world_size() > 1:
        raise ConfigError(
            f"this is one of {dist.get_world_size()} processes (torch.distributed), and nobody said whether they train one "
            "model together. team=noisewise.distributed.begin(): together, with one ledger; team=noisewise.distributed.ALONE: "
            "each process its own run, whose epsilons add up."
        )
    if team is not None and not isinstance(team, Team):
        raise ConfigError(f"team={team!r}: must be noisewise.distributed.begin() or ALONE.")
    return ALONE if team is None else team

"""States along a run that were kept for audits: in `states.safetensors`, released where the run is private, else secret."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from noisewise.errors import ConfigError
from noisewise.runs.folder import RunFolder, Status
from noisewise.runs.tensors import load_tensors, save_tensors

if TYPE_CHECKING:
    from torch import Tensor

    State = tuple[int, dict[str, Tensor]]


@dataclass(frozen=True)
class Keep:
    """After which steps of a plan the weights are kept (0: before the first); `first`: what step 0 is called in the run.

    `others`: what is kept of the run's other phases, as the run calls those steps.
    """

    steps: frozenset[int] = frozenset()
    first: int = 0
    others: frozenset[int] = frozenset()

    @classmethod
    def evenly(cls, count: int, steps: int) -> Keep:
        """So many states at equal distances, the start first; the end is the model itself.

        >>> sorted(Keep.evenly(4, 10).steps)
        [0, 2, 5, 8]
        """
        if type(count) is not int or not 0 <= count <= steps:
            raise ConfigError(f"keep_states={count!r} of {steps} steps: must be a whole number from 0 to that.")
        return cls(frozenset(round(number * steps / count) for number in range(count)))

    def part(self, first: int, steps: int) -> Keep:
        """Of these, those of a phase that begins with step `first` of the run."""
        here = frozenset(step - first for step in self.steps if first <= step < first + steps)
        return Keep(here, first, self.steps)

    @property
    def asked(self) -> frozenset[int]:
        """Steps of the whole run whose states somebody asked for."""
        return frozenset(self.first + step for step in self.steps) | self.others


def keep_state(folder: RunFolder, step: int, weights: Mapping[str, Tensor]) -> None:
    """Add a state to those of an unfinished run, among its secrets: whether they may be seen is known at its end."""
    _write(folder.kept, {**_read(folder.kept), step: dict(weights)})


def join_states(folder: RunFolder, phase: RunFolder) -> None:
    """Take over the states that one of a run's phases has kept."""
    if states := dict(read_states(phase)):
        _write(folder.kept, {**_read(folder.kept), **states})


def forget_states(folder: RunFolder) -> None:
    """What a run left that broke off before it began is none of the next one's, whose ledger does not cover it."""
    folder.kept.unlink(missing_ok=True)


def release_states(folder: RunFolder, status: Status, asked: frozenset[int]) -> None:
    """Put the states of a run that ends beside its model: the ledger covers every step of a private one, and no other.

    `asked`: the steps that the run was asked to keep; nothing else is released, wherever it came from.
    """
    if status.status == "private" and folder.kept.exists():
        states = {step: state for step, state in _read(folder.kept).items() if step in asked}
        if not states:
            folder.kept.unlink()
            return
        _write(folder.kept, states)
        os.replace(folder.kept, folder.states)


def read_states(folder: RunFolder) -> list[State]:
    """`(step, state_dict)` of every state that a run has kept, in order: what `over_steps` takes.

    To train on from one of them, pass the run's ledger: its weights come from the same people.
    """
    return sorted((_read(folder.kept) | _read(folder.states)).items())


def _read(path: Path) -> dict[int, Any]:
    return load_tensors(path) if path.exists() else {}


def _write(path: Path, states: Mapping[int, Any]) -> None:
    save_tensors(path, dict(sorted(states.items())))

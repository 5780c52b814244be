"""The mutable parts of a run, and what it leaves behind."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from noisewise.batches import Nest, map_tensors
from noisewise.data import Data
from noisewise.data.indexed import Indexed
from noisewise.distributed.sharding import lent, whole_of
from noisewise.errors import ConfigError, DataError
from noisewise.losses import LossFn, unit_losses
from noisewise.runs.files import write_json
from noisewise.runs.folder import RunFolder, Status
from noisewise.runs.states import Keep, keep_state, release_states
from noisewise.runs.tensors import save_weights
from noisewise.training.ablation import Ablation
from noisewise.training.batches import count_of, rows_at
from noisewise.training.callbacks import PAID_ACCURACY, Callback, released
from noisewise.training.paid import PaidAccuracy
from noisewise.training.state import State
from noisewise.training.summary import summary


@dataclass
class Run:
    """What changes in the course of a run besides its state, and where it is written."""

    model: nn.Module
    optimizer: torch.optim.Optimizer
    scheduler: Any
    state: State
    folder: RunFolder | None
    ablation: Ablation
    ema: float | None
    history: list[dict[str, Any]] = field(default_factory=list)
    averaged: dict[str, Tensor] | None = None
    saved_at: float = field(default_factory=time.monotonic)
    data: bytes = field(default=b"", repr=False)  # the data's mark
    behaviour: dict[str, Any] = field(default_factory=dict)  # what model and loss say of made-up units
    valid_is_public: bool = False
    captured: bool = False  # are its steps?
    way: dict[str, Any] = field(default_factory=dict)  # what else its sums depend on, beside plan, model and data
    resumed: bool = False  # has it taken up a checkpoint?
    where: Any = None  # the folder's path, also on ranks that do not write
    keep: Keep = field(default_factory=Keep)
    states: dict[int, dict[str, Tensor]] = field(default_factory=dict, repr=False)  # kept, where there is no folder

    def __post_init__(self) -> None:
        """The average begins where the weights do."""
        if self.ema is not None:
            self.averaged = {name: p.detach().clone() for name, p in self.model.named_parameters()}

    def due(self, seconds: float) -> bool:
        """Is it time for a checkpoint?"""
        return self.folder is not None and time.monotonic() - self.saved_at >= seconds

    def average(self) -> None:
        """Moving average with warm-up: decay min(ema, (1 + t)/(10 + t)). De et al. 2022, arXiv:2204.13650."""
        if self.averaged is None or self.ema is None:
            return
        decay = min(self.ema, (1 + self.state.step) / (10 + self.state.step))
        with torch.no_grad():
            for name, parameter in self.model.named_parameters():
                self.averaged[name].lerp_(parameter, 1 - decay)
            self.state.course.prune(self.averaged)

    def keep_state(self) -> None:
        """Keep the weights as they are, if somebody asked for those of this step."""
        step = self.state.step
        if step not in self.keep.steps or not (self.writes or self.state.sharded):
            return
        self.state.captured.settle()
        weights = self.whole(self.model.state_dict())
        if self.folder:
            keep_state(self.folder, self.keep.first + step, weights)
        elif self.writes:
            self.states[self.keep.first + step] = weights

    @property
    def writes(self) -> bool:
        """Does this process keep what the run leaves behind? Of several the first one, if there is a folder."""
        return self.where is None or self.state.team.first

    def whole(self, tree: Any) -> Any:
        """A copy of a tree of tensors, those that are spread over the ranks as a whole, for the rank that writes.

        All ranks ask for the same; the others keep nothing of it.
        """
        if isinstance(tree, Tensor):
            whole = whole_of(tree, self.state.team)
            return whole.cpu().clone() if self.writes else None
        if isinstance(tree, Mapping):
            return {key: self.whole(value) for key, value in tree.items()}
        return type(tree)(map(self.whole, tree)) if type(tree) in (list, tuple) else tree

    def log(
        self, valid: Data | Indexed | Nest, loss_fn: LossFn, epsilon: float | None, paid: PaidAccuracy | None = None
    ) -> None:
        """One line per epoch: public by default, validation loss only where its people agreed, or paid for it.

        Of several processes the first one looks, and tells the others; where parameters are spread, all look.
        """
        asked = valid is not None and (self.state.team.first or self.state.sharded is not None)
        with lent(self.state.sharded if asked else None):
            loss = _mean_loss(self.model, loss_fn, valid) if asked else None
        if not self.state.team.first:
            self.history.append(self.state.team.said(None))
            return
        spent: dict[str, Any] = {"step": self.state.step, "epsilon": epsilon}
        if paid is not None:
            spent[PAID_ACCURACY] = paid(self.model)
            if self.folder:  # what was paid is there before what it was paid for
                write_json(self.folder.valid_ledger, paid.ledger.to_dict())
        line = spent if valid is None else {**spent, "valid_loss": loss}
        self.history.append(self.state.team.said(line))
        if self.folder:
            public = valid is None or self.valid_is_public
            self.folder.append_metrics(line if public else spent, public=True)
            if not public:
                self.folder.append_metrics(line, public=False)

    def tell(self, callbacks: Sequence[Callback], lines: Sequence[Mapping[str, Any]]) -> bool:
        """Tell callbacks what may be known of some lines of the history; does one of them stop the run?

        Of several processes the first one's are told.
        """
        team = self.state.team
        if not team.first:
            return bool(team.said(None))
        plan, steps = self.state.mechanism.to_dict(), self.state.mechanism.steps
        told = [released(line, steps, self.valid_is_public, plan) for line in lines]
        with _as_it_was(self.model):
            answers = [callback(line) is True for line in told for callback in callbacks]
        return bool(team.said(any(answers)))

    def released(self) -> dict[str, Tensor]:
        """The weights that the run gives out: the last ones, or their averages; as a whole."""
        weights = self.model.state_dict()
        if self.averaged is not None:
            averages = {id(p): self.averaged[name] for name, p in self.model.named_parameters()}
            tied = self.model.named_parameters(remove_duplicate=False)  # one tensor, several names
            weights |= {name: averages[id(parameter)] for name, parameter in tied}
        return dict(weights) if self.state.sharded is None else self.whole(weights)

    def finish(self, weights: Mapping[str, Tensor], status: Status, delta: float, about: Mapping[str, Any]) -> None:
        """Write what may be published, then forget the secrets."""
        assert self.folder is not None
        save_weights(self.folder.model, weights)
        release_states(self.folder, status, self.keep.asked)
        assert self.state.ledger.identity is not None
        write_json(self.folder.identity, self.state.ledger.identity.to_dict())
        write_json(self.folder.ledger, self.state.ledger.to_dict())
        write_json(self.folder.mechanism, self.state.mechanism.to_dict())
        coordinates = sum(parameter.numel() for parameter in self.model.parameters())
        write_json(self.folder.summary, summary(self.state, status, delta, about, coordinates))
        self.folder.write_run("complete", status)
        self.folder.forget_checkpoint()


@torch.no_grad()
def _mean_loss(model: nn.Module, loss_fn: LossFn, valid: Data | Indexed | Nest) -> float:
    modes, device = {module: module.training for module in model.modules()}, next(model.parameters()).device
    total, count = 0.0, len(valid) if isinstance(valid, Data) else count_of(valid)
    if not count:
        raise DataError("valid has no units: pass held-out data, or None.")
    model.eval()
    try:
        for first in range(0, count, 1024):
            rows = rows_at(valid, torch.arange(first, min(first + 1024, count)))
            batch = map_tensors(lambda tensor: tensor.to(device), rows)
            total += unit_losses(model, loss_fn, batch).double().sum().item()
    finally:
        for module, training in modes.items():  # parts of the model may have been in another mode than the whole
            module.training = training
    return total / count


@contextmanager
def _as_it_was(model: nn.Module) -> Iterator[None]:
    """Whoever looks at a model in evaluation mode leaves it as it was; one with other parameters would not learn any more."""
    modes = {module: module.training for module in model.modules()}
    before = [id(parameter) for parameter in model.parameters()]
    yield
    for module, training in modes.items():
        module.training = training
    if [id(parameter) for parameter in model.parameters()] != before:
        raise ConfigError(
            "a callback has replaced parameters of the model: the optimizer would go on with the old ones, and what is "
            "released be spent on nothing. Change their values in place, or build the model before training."
        )

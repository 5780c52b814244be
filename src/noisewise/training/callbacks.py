"""Functions of one's own that training calls with released values only, and those that stop early or log elsewhere.

A callback is any function of a `Released`. What it is told may leave: it follows from the weights of private steps, from
public data or from readings that were paid for, so whatever it does with that costs nothing more. One that returns True
stops the run.
"""

from __future__ import annotations

import importlib
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from noisewise.data import Data
from noisewise.errors import ConfigError, PrivacyError
from noisewise.training.given import check_functions
from noisewise.training.paid import PaidAccuracy

VALID_LOSS, PAID_ACCURACY = "valid_loss", "paid_accuracy"


class Released(NamedTuple):
    """Where a run stands, as everybody may know: once per epoch and at the end.

    epsilon: so far, or None between readings. values: `valid_loss` on public data, `paid_accuracy`. plan: the mechanism.
    """

    step: int
    steps: int
    epsilon: float | None
    values: Mapping[str, float]
    plan: Mapping[str, Any]


Callback = Callable[[Released], Any]


def released(line: Mapping[str, Any], steps: int, public: bool, plan: Mapping[str, Any]) -> Released:
    """What may be told of a line of a run's history."""
    known = (*([VALID_LOSS] if public else []), PAID_ACCURACY)
    values = {name: line[name] for name in known if name in line}
    return Released(line["step"], steps, line["epsilon"], values, plan)


@dataclass
class StopEarly:
    """Stops when a released value has not become better for `patience` epochs.

    metric: `valid_loss`, for `valid` that is public, or `paid_accuracy`, for `paid`. least: by how much it must become
    better to count.

    Guarantee: none of its own; the ledger counts the whole plan. When a run stops follows from noise and data, so the
    smaller epsilon of the steps that were made is no guarantee. Reference: Rogers et al. 2016, arXiv:1605.08294.
    """

    metric: str = VALID_LOSS
    patience: int = 3
    least: float = 0.0
    best: float = field(default=math.inf, init=False)
    waited: int = field(default=0, init=False)
    last: int = field(default=0, init=False)  # step of what it was told last

    def __post_init__(self) -> None:
        """A metric that can be released."""
        if self.metric not in (VALID_LOSS, PAID_ACCURACY):
            raise ConfigError(
                f"StopEarly(metric={self.metric!r}): must be {VALID_LOSS!r} (of public data) or {PAID_ACCURACY!r} (paid "
                "for); training loss and metrics on private rows may not decide anything that is seen."
            )
        if type(self.patience) is not int or self.patience < 1:
            raise ConfigError(
                f"StopEarly(patience={self.patience!r}): must be a whole number of epochs above 0, e.g. 3."
            )
        if isinstance(self.least, bool) or not isinstance(self.least, int | float) or not 0 <= self.least < math.inf:
            raise ConfigError(f"StopEarly(least={self.least!r}): must be a number >= 0, e.g. 0.001.")

    def __call__(self, told: Released) -> bool:
        """Is it time to stop?"""
        if told.step <= self.last:  # another run, or the past of a resumed one
            self.best, self.waited = math.inf, 0
        self.last = told.step
        if told.step == told.steps:
            return False
        cost = told.values[self.metric] * (-1 if self.metric == PAID_ACCURACY else 1)
        if cost < self.best - self.least:
            self.best, self.waited = cost, 0
        else:
            self.waited += 1
        return self.waited >= self.patience


def check_callbacks(
    callbacks: Any, valid: Any, paid: PaidAccuracy | None, readings: int, resume: bool
) -> Sequence[Callback]:
    """Functions, and for early stopping a value that may be released."""
    check_functions("callbacks", callbacks)
    for callback in callbacks:
        if not isinstance(callback, StopEarly):
            continue
        if callback.metric == VALID_LOSS and not _is_public(valid):
            given = "there is none" if valid is None else "it is private"
            raise PrivacyError(
                f"StopEarly on valid_loss, and {given}: when a run stops is seen by everybody, so it may follow public data "
                "only. Give valid=Data(..., public=True), or pay for a metric: paid=PaidAccuracy(valid, epsilon=1, "
                "readings=...) with StopEarly('paid_accuracy')."
            )
        if callback.metric == PAID_ACCURACY and paid is None:
            raise ConfigError(
                "StopEarly('paid_accuracy') without paid=: give PaidAccuracy(valid, epsilon=1, readings=...)."
            )
    if paid is None:
        return tuple(callbacks)
    if not isinstance(paid, PaidAccuracy):
        raise ConfigError(f"paid={paid!r}: must be PaidAccuracy(valid, epsilon=1, readings=...), or None.")
    if resume:
        raise ConfigError(
            "resume=True with paid=: readings that were released before the interruption would be paid for twice, and counted "
            "once. Resume without paid, or begin anew."
        )
    if paid.left < readings:
        raise ConfigError(
            f"paid has {paid.left} readings left, this run takes {readings}, one per epoch: build "
            f"PaidAccuracy(..., readings={readings}), or train for fewer epochs."
        )
    return tuple(callbacks)


def _is_public(valid: Any) -> bool:
    return isinstance(valid, Data) and valid.public


# --- elsewhere --------------------------------------------------------------------------------------------------------


def tensorboard(where: Any) -> Callback:
    """Logs epsilon and released values to TensorBoard: a folder, or a writer of one's own (anything with `add_scalar`)."""
    if isinstance(where, str | Path):
        writer = _needed("torch.utils.tensorboard", "tensorboard").SummaryWriter(str(where))
    else:
        writer = where
    if not callable(getattr(writer, "add_scalar", None)):
        raise ConfigError(f"tensorboard({where!r}): must be a folder, or a SummaryWriter.")

    def log(told: Released) -> None:
        for name, value in _scalars(told).items():
            writer.add_scalar(f"noisewise/{name}", value, told.step)
        if hasattr(writer, "flush"):
            writer.flush()

    return log


def mlflow(client: Any = None) -> Callback:
    """Logs the plan, epsilon and released values to the active run of MLflow (or to `client`, with its functions)."""
    client = _needed("mlflow", "mlflow") if client is None else client
    begun = False

    def log(told: Released) -> None:
        nonlocal begun
        if not begun:
            client.log_params({f"noisewise.{name}": value for name, value in _flat(told.plan)})
            begun = True
        for name, value in _scalars(told).items():
            client.log_metric(f"noisewise.{name}", value, step=told.step)

    return log


def _scalars(told: Released) -> dict[str, float]:
    epsilon = {} if told.epsilon is None else {"epsilon": told.epsilon}
    return {**epsilon, **told.values}


def _flat(plan: Mapping[str, Any], path: str = "") -> list[tuple[str, Any]]:
    entries: list[tuple[str, Any]] = []
    for key, value in plan.items():
        entries += _flat(value, f"{path}{key}.") if isinstance(value, Mapping) else [(f"{path}{key}", value)]
    return entries


def _needed(module: str, package: str) -> Any:
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise ConfigError(
            f"{package} is not installed ({error}): pip install 'noisewise[{package}]', or leave this callback out."
        ) from None

"""A metric on private held-out people that may be shown: noised, and in a ledger of theirs."""

from __future__ import annotations

import os
from typing import Any, NoReturn

import torch
from torch import Tensor, nn

from noisewise.accounting import Ledger
from noisewise.accounting.accountants import check_delta
from noisewise.accounting.defaults import default_delta
from noisewise.bounded import Bounded, release
from noisewise.data import Data
from noisewise.errors import BudgetSpent, ConfigError, DataError, PrivacyError
from noisewise.evaluation import logits
from noisewise.mechanism import Mechanism
from noisewise.randomness import Entropy
from noisewise.sampling import FullBatch
from noisewise.wording import several_units

PURPOSE = "accuracy of held-out people"


class PaidAccuracy:
    """Accuracy on held-out people, so many times: the count of those who are right, with Gaussian noise.

    `(sum_i share_i + sigma N(0, 1)) / n`, where `share_i` is the share of person i's rows (1 or 0 for a row) that the model
    gets right. Each row goes through the model alone, and a model that its own pass changes is refused, so that no answer
    depends on another person and one of them moves the sum by at most 1; a reading takes as many passes as rows.

    Guarantee: all readings together cost the held-out people at most `epsilon` at `delta`; `ledger` says so. It counts them
    only: whoever is in the training part too pays both.

    It belongs to the process that built it and is not copied: two of them would take readings with the same noise, whose
    difference has none, and each ledger would say half of what was spent.
    """

    def __init__(
        self,
        valid: Data,
        *,
        epsilon: float,
        readings: int,
        delta: float | None = None,
        insecure_seed: int | None = None,
        secure: bool = False,
    ):
        if not isinstance(valid, Data) or valid.task != "classification":
            raise DataError(
                f"PaidAccuracy of a {type(valid).__name__}: must be noisewise.Data with whole-number classes, Data(x, y)."
            )
        if type(readings) is not int or readings < 1:
            raise ConfigError(f"readings={readings!r}: must be a whole number above 0, e.g. the number of epochs.")
        if not len(valid):
            raise DataError("PaidAccuracy of no rows: give at least one held-out person.")
        self.valid, self.n = valid, valid.units
        self.delta = default_delta(self.n) if delta is None else delta
        check_delta(self.delta)
        unit = "row" if valid.unit is None else "person"
        self.mechanism = Mechanism(sampler=FullBatch(self.n), steps=readings, unit=unit).calibrated(epsilon, self.delta)
        self.ledger = Ledger(self.mechanism.adjacency, unit=unit)
        self._entropy = (
            Entropy.fresh(secure=secure) if insecure_seed is None else Entropy.insecure(insecure_seed, secure=secure)
        )
        self._taken, self._process = 0, os.getpid()

    def __getstate__(self) -> NoReturn:
        """Copies and pickles are refused."""
        raise _second("a copy of")

    def __repr__(self) -> str:
        """What is left."""
        many = several_units(self.mechanism.unit)
        return f"PaidAccuracy({self.n} {many}, {self.left} of {self.mechanism.steps} readings left)"

    @property
    def left(self) -> int:
        """Readings that are not taken yet."""
        return self.mechanism.steps - self._taken

    @property
    def std(self) -> float:
        """Standard deviation of a reading."""
        return self.mechanism.noise_at(0) / self.n

    def __call__(self, model: nn.Module) -> float:
        """One reading; it may lie a little outside of [0, 1]."""
        if self._process != os.getpid():  # a fork is a copy
            raise _second("another process has")
        if not self.left:
            raise BudgetSpent(
                f"all {self.mechanism.steps} readings are taken: another one would exceed the stated epsilon. Build a "
                "PaidAccuracy with more readings before training."
            )
        right = (one_by_one(model, self.valid).argmax(1) == self.valid.y.cpu()).double()
        if self.valid.unit is not None:
            owner = torch.unique(self.valid.unit, return_inverse=True)[1]
            rows = torch.bincount(owner, minlength=self.n)
            right = torch.bincount(owner, right, minlength=self.n) / rows
        step, self._taken = self._taken, self._taken + 1
        asked: Any = {PURPOSE: (Bounded({"right": right.sum().reshape(1)}, 1.0), self.mechanism.noise_at(0))}
        answer = release(
            asked, sampler=self.mechanism.sampler, ledger=self.ledger, entropy=self._entropy, step=step
        )  # fmt: skip
        return float(answer[PURPOSE]["right"]) / self.n


def one_by_one(model: nn.Module, valid: Data) -> Tensor:
    """What the model says of each row, asked alone; a model that remembers rows is refused."""
    before = [tensor.detach().clone() for tensor in (*model.parameters(), *model.buffers())]
    said = logits(model, valid, batch_size=1)
    after = [*model.parameters(), *model.buffers()]
    if len(before) != len(after) or not all(map(_same, before, after)):
        raise PrivacyError(
            "a paid accuracy of a model that changes when it is asked (a parameter or buffer is another one afterwards): one "
            "person's answer would depend on others. Keep it as it is in evaluation mode."
        )
    return said


def _same(one: Tensor, other: Tensor) -> bool:
    return one.shape == other.shape and torch.equal(one.nan_to_num(), other.nan_to_num())


def _second(what: str) -> PrivacyError:
    return PrivacyError(
        f"{what} a PaidAccuracy: both would take readings with the same noise, and neither ledger would hold all of them. "
        "Build one for each run, PaidAccuracy(valid, epsilon=..., readings=...), in the process that trains; their epsilons "
        "add up."
    )

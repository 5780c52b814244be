"""How good runs are on held-out people: exact where these are public, else noised, released and in a ledger."""

from __future__ import annotations

import copy
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import dp_accounting
import torch
from torch import nn

from noisewise.accounting import Ledger, smallest_noise
from noisewise.bounded import Bounded, release
from noisewise.data import Data
from noisewise.errors import ConfigError, DataError, PrivacyError
from noisewise.randomness import Entropy
from noisewise.recipe import load_weights
from noisewise.runs.folder import RunFolder
from noisewise.sampling import FullBatch
from noisewise.training.paid import one_by_one
from noisewise.workflow.plan import Planned

PURPOSE = "scores"
NOT_A_SHARE = "a noised score is the share of right answers, which a regression does not have: choose by public rows."


@dataclass(frozen=True)
class Scores:
    """Noised shares of right answers, the deviation of their noise, and the ledger of their one release."""

    shares: list[float]
    deviation: float
    ledger: Ledger


def trained_model(planned: Planned, folder: RunFolder) -> nn.Module:
    """The released model of a run, ready to be asked."""
    return load_weights(copy.deepcopy(planned.recipe.model).cpu(), folder.model).eval()


def right_answers(model: nn.Module, data: Data) -> float:
    """Sum over units of the share of their rows that a classifier gets right: one unit moves it by at most 1.

    Guarantee: rows that are not public are asked one at a time, so that nobody's answer depends on others.
    """
    if data.task != "classification":
        raise ConfigError(NOT_A_SHARE)
    if not len(data):
        return 0.0
    with torch.no_grad():
        said = model(data.x) if data.public else one_by_one(model, data)
    hits = (said.argmax(1) == data.y).double()
    if data.unit is None:
        return float(hits.sum())
    _, owner, rows = data.unit.unique(return_inverse=True, return_counts=True)
    return float((torch.zeros(len(rows), dtype=torch.float64).index_add(0, owner, hits) / rows).sum())


def exact_score(model: nn.Module, data: Data) -> float:
    """Share of right answers, or minus the mean squared error: the larger the better. Public rows only."""
    if not data.public:
        raise PrivacyError("an exact score on people whose rows are not public would be released: use noised scores.")
    if not len(data):
        raise DataError("no rows are held out to score on: set valid, e.g. valid = 500.")
    if data.task == "classification":
        return right_answers(model, data) / data.units
    with torch.no_grad():
        return -float((model(data.x).reshape(len(data)) - data.y).double().square().mean())


def score_event(epsilon: float, delta: float, adjacency: str) -> Any:
    """The release of all scores at once: one Gaussian mechanism that costs at most `epsilon`."""
    return dp_accounting.GaussianDpEvent(
        smallest_noise(lambda sigma: [(dp_accounting.GaussianDpEvent(sigma), 1)], epsilon, delta, adjacency)
    )


def price_of_scores(
    models: int, units: int, *, epsilon: float, delta: float, adjacency: str, unit: str
) -> tuple[Ledger, float]:
    """What one release of scores would leave in a ledger, and the deviation of its noise on a share; nothing is drawn."""
    if units < 1:
        raise DataError("no people are held out to score on: set valid, e.g. valid = 500.")
    event = score_event(epsilon, delta, adjacency)
    ledger = Ledger(adjacency, unit=unit)
    ledger.record(event, PURPOSE, 0)
    return ledger, event.noise_multiplier * math.sqrt(models) / units


def noised_scores(
    sums: Sequence[float], units: Sequence[int], *, epsilon: float, delta: float, adjacency: str, unit: str,
    insecure_seed: int | None = None, secure: bool = False,
) -> Scores:  # fmt: skip
    """Shares of right answers of several models, released together with the least noise that costs at most `epsilon`.

    One unit moves each of K sums by at most 1, and so all of them by at most sqrt(K). `units`: how many were asked of each.
    `secure`: noise of a cryptographic generator, on a grid.
    """
    if not sums or min(units) < 1:
        raise DataError("no people are held out to score on: set valid, e.g. valid = 500.")
    sigma: float = score_event(epsilon, delta, adjacency).noise_multiplier
    ledger, sensitivity = Ledger(adjacency, unit=unit), math.sqrt(len(sums))
    entropy = Entropy.fresh(secure=secure) if insecure_seed is None else Entropy.insecure(insecure_seed, secure=secure)
    question = Bounded({PURPOSE: torch.tensor(sums, dtype=torch.float64)}, sensitivity)
    answer = release(
        {PURPOSE: (question, sigma)}, sampler=FullBatch(max(units)), ledger=ledger, entropy=entropy, step=0
    )[PURPOSE][PURPOSE]
    shares = [value / count for value, count in zip(answer.tolist(), units, strict=True)]
    return Scores(shares, sigma * sensitivity / min(units), ledger)

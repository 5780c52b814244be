"""Recognising members by what a model says of them: scores by loss and by regression, and people on whom both are fair."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from noisewise.errors import DataError, NoisewiseWarning

if TYPE_CHECKING:
    from torch import Tensor

    from noisewise.data import Data

SMALLEST = 40  # of each kind, so that a half has 20 people
EDGE = 1e-12  # probabilities are kept this far from 0 and 1 before LiRA fits Gaussians to their logits
SHIFT = 0.001  # p-value below which members and others do not look like one distribution


class Scores(NamedTuple):
    """How strongly an attack takes members and others for members, higher is surer; others in random order.

    Guarantee: the others who set a threshold (`setting`) are not those on whom its false alarms are counted (`fresh`).
    """

    inside: np.ndarray
    outside: np.ndarray

    @property
    def setting(self) -> np.ndarray:
        """The first half of the others."""
        return self.outside[: len(self.outside) // 2]

    @property
    def fresh(self) -> np.ndarray:
        """The second half of the others."""
        return self.outside[len(self.outside) // 2 :]


def phi(outputs: Tensor, y: Tensor) -> np.ndarray:
    """`log(p_y / (1 - p_y))` of each row, as `z_y - log sum_{j != y} e^{z_j}`: exact where p_y is 0 or 1 in rounding."""
    import torch

    right = outputs.gather(1, y.unsqueeze(1))
    others = outputs.scatter(1, y.unsqueeze(1), -math.inf)
    odds = (right.squeeze(1) - torch.logsumexp(others, 1)).numpy()
    if not np.isfinite(odds).all():
        raise DataError(
            f"outputs of shape {list(outputs.shape)}, {int((~np.isfinite(odds)).sum())} rows without a probability: needs "
            "finite outputs of at least two classes. Did training diverge?"
        )
    return odds


def bounded(odds: np.ndarray) -> np.ndarray:
    """phi of probabilities that keep `EDGE` away from 0 and 1."""
    edge = math.log((1 - EDGE) / EDGE)
    return odds.clip(-edge, edge)


def sigmoid(values: np.ndarray) -> np.ndarray:
    """The probability of a phi."""
    from scipy.special import expit

    return expit(values)


class Rows(NamedTuple):
    """What a model says of some rows, their labels, and which are members."""

    logits: Tensor
    y: Tensor
    inside: np.ndarray


def fitted_and_judged(outputs: Sequence[Tensor], labels: Sequence[Tensor], half: int) -> tuple[Rows, Rows]:
    """The first `half` of members and others, and the rest of both; `outputs` and `labels` are those of members, others."""
    import torch

    parts = []
    for which in (slice(half), slice(half, None)):
        y = [side[which] for side in labels]
        flags = np.repeat([True, False], [len(side) for side in y])
        parts.append(Rows(torch.cat([side[which] for side in outputs]), torch.cat(y), flags))
    return parts[0], parts[1]


def _loss_threshold(first: Rows, second: Rows, folds: int) -> np.ndarray:
    """phi orders rows as -loss does, `-loss = -log(1 + e^-phi)`, but does not round to ties where p_y is almost 1."""
    return phi(second.logits, second.y)


def _logistic_regression(first: Rows, second: Rows, folds: int) -> np.ndarray:
    from sklearn.linear_model import LogisticRegression
    from sklearn.model_selection import GridSearchCV, StratifiedKFold
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import StandardScaler

    parts = StratifiedKFold(3, shuffle=True, random_state=folds)
    grid = {"logisticregression__C": np.logspace(-4, 2, 10)}
    pipeline = make_pipeline(StandardScaler(), LogisticRegression(max_iter=2000))
    search = GridSearchCV(pipeline, grid, scoring="roc_auc", cv=parts).fit(_features(first), first.inside)
    return search.decision_function(_features(second))


def _features(rows: Rows) -> np.ndarray:
    """Logits, label (one-hot), logit of the label, loss."""
    right = rows.logits.gather(1, rows.y.unsqueeze(1)).numpy()
    labels = np.eye(rows.logits.shape[1])[rows.y.numpy()]
    loss = np.logaddexp(0, -phi(rows.logits, rows.y))
    return np.column_stack([rows.logits.numpy(), labels, right, loss])


ATTACKS: dict[str, Callable[[Rows, Rows, int], np.ndarray]] = {
    "loss threshold": _loss_threshold,
    "logistic regression": _logistic_regression,
}


# People ----------------------------------------------------------------------------------------------------------------


def balanced(members: Data, others: Data, rows: int, generator: np.random.Generator) -> tuple[Data, Data]:
    """As many members as others, one row per person, at random."""
    import torch

    if members.x is others.x or (members.x.shape == others.x.shape and torch.equal(members.x, others.x)):
        raise DataError("members and non-members are the same rows: pass training rows as members, and held-out rows.")
    if members.unit is not None and others.unit is not None:
        shared = np.intersect1d(members.unit.numpy(), others.unit.numpy())
        if len(shared):
            raise DataError(
                f"{len(shared)} people have rows among the members and among the others: whoever was trained on in part is no "
                "non-member. Leave them out of one side; if they only have the same numbers, number everyone differently."
            )
    picked = [_one_each(part, generator) for part in (members, others)]
    size = min(len(picked[0]), len(picked[1]), rows)
    if size < SMALLEST:
        raise DataError(
            f"{len(picked[0])} members, {len(picked[1])} others, at most {rows} of each: needs at least {SMALLEST} people "
            "of each kind, half to fit the attack and half to judge it."
        )
    inside, outside = (
        part.take(torch.from_numpy(generator.permutation(index)[:size]))
        for part, index in zip((members, others), picked, strict=True)
    )
    return inside, outside


def _one_each(data: Data, generator: np.random.Generator) -> np.ndarray:
    """A random row of every person: rows of one person are not independent."""
    order = generator.permutation(len(data))
    if data.unit is None:
        return order
    return order[np.unique(data.unit.numpy()[order], return_index=True)[1]]


def class_shift(inside: Tensor, outside: Tensor) -> float:
    """p-value of equal class shares among members and others (chi-square), with a warning where they differ."""
    from scipy.stats import chi2_contingency

    labels = np.concatenate([inside.numpy(), outside.numpy()])
    known = np.unique(labels)
    if len(known) < 2:
        return 1.0
    counts = [[int((part.numpy() == label).sum()) for label in known] for part in (inside, outside)]
    chance = float(chi2_contingency(counts).pvalue)
    if chance < SHIFT:
        warnings.warn(
            f"members and non-members differ in their shares of classes (chi-square p = {chance:.1e}): an attack can use "
            "that without any memory of the model. Draw both from one distribution.",
            NoisewiseWarning,
            stacklevel=3,
        )
    return chance

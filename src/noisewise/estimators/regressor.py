"""`PrivateRegressor`: a number for each row of a table, learnt with differential privacy."""

from __future__ import annotations

from dataclasses import field
from typing import Any

import numpy as np
import torch
from sklearn.base import RegressorMixin

from noisewise.data.tables.kinds import Target, centred
from noisewise.data.tables.rows import short
from noisewise.data.tables.schema import Schema
from noisewise.errors import ConfigError, DataError
from noisewise.estimators.base import Private, learns_slowly, settings_only, vector
from noisewise.estimators.columns import PUBLIC


@settings_only
class PrivateRegressor(RegressorMixin, Private):
    """A regressor for tables, trained with differential privacy: everything that `fit` publishes costs at most `epsilon`.

    As `PrivateClassifier`, with `target` instead of `classes`: (low, high), the range in which labels are learnt and
    predicted, which is published; or "public" if everybody may know the smallest and the largest in `y`. Labels beyond it
    are taken as its ends.
    """

    task = "regression"

    target: Any = field(default=None, kw_only=True)

    def __sklearn_tags__(self) -> Any:
        """As any private estimator."""
        tags = super().__sklearn_tags__()
        learns_slowly(tags.regressor_tags)
        return tags

    def predict(self, X: Any) -> np.ndarray:
        """A number for each row, in the units of `y`."""
        said = self._outputs(X)[:, 0]
        assert isinstance(self.schema_.target, Target)
        numbers: np.ndarray = self.schema_.target.unscaled(said)
        return numbers

    def _labels(self, y: Any, rows: int) -> Any:
        labels = vector(y, rows)
        if labels.dtype.kind not in "biuf":
            try:
                labels = labels.astype(np.float64)
            except (ValueError, TypeError):
                raise DataError(
                    f"y holds {short(labels[0])}: must be numbers. PrivateClassifier learns classes."
                ) from None
        labels = labels.astype(np.float64)
        if (odd := ~np.isfinite(labels)).any():
            row = int(np.argmax(odd))
            raise DataError(
                f"y: Input y contains NaN or infinity, in row {row}: {labels[row]}. Leave out rows without a label."
            )
        return labels

    def _target(self, y: Any, labels: Any) -> Target:
        if isinstance(self.target, str) and self.target == PUBLIC:
            low, high = float(labels.min()), float(labels.max())
            return centred(low, high if high > low else low + 1.0)
        if self.target is None:
            raise ConfigError(
                "target=None: the range of the label is published with the model, and is not read off private rows. Say what "
                "is public knowledge, e.g. PrivateRegressor(target=(0, 100)), or target='public' if everybody may know the "
                "smallest and the largest label."
            )
        if isinstance(self.target, str) or not isinstance(self.target, tuple | list) or len(self.target) != 2:
            raise ConfigError(f"target={short(self.target)}: must be (low, high), e.g. (0, 100), or 'public'.")
        return centred(*self.target)

    def _texts(self, labels: Any, schema: Schema) -> list[float]:
        numbers: list[float] = labels.tolist()
        return numbers

    def _codes(self, labels: Any) -> torch.Tensor:
        assert isinstance(self.schema_.target, Target)
        return torch.from_numpy(self.schema_.target.scaled(labels).astype(np.float32))

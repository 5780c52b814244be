"""Private training behind scikit-learn's interface: `PrivateClassifier(epsilon=3).fit(X, y)`, pandas in."""

from __future__ import annotations

from noisewise.estimators.base import NotFitted
from noisewise.estimators.classifier import PrivateClassifier
from noisewise.estimators.regressor import PrivateRegressor

__all__ = ["NotFitted", "PrivateClassifier", "PrivateRegressor"]

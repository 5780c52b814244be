"""Private training behind scikit-learn's interface: `PrivateClassifier(epsilon=3).fit(X, y)`, pandas in."""

from __future__ import annotations

from noisewise.estimators.private import NotFitted, PrivateClassifier, PrivateRegressor

__all__ = ["NotFitted", "PrivateClassifier", "PrivateRegressor"]

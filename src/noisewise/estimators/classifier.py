"""`PrivateClassifier`: classes of the rows of a table, learnt with differential privacy."""

from __future__ import annotations

from dataclasses import field
from typing import Any

import numpy as np
import pandas as pd
import torch
from sklearn.base import ClassifierMixin
from sklearn.metrics import accuracy_score
from sklearn.utils.multiclass import check_classification_targets, unique_labels

from noisewise.data.tables.kinds import Classes
from noisewise.data.tables.rows import listed, short
from noisewise.data.tables.schema import Schema
from noisewise.errors import ConfigError, DataError
from noisewise.estimators.base import Private, learns_slowly, settings_only, vector
from noisewise.estimators.columns import PUBLIC

OBJECTS = {"integer": np.int64, "boolean": np.bool_}  # what may stand in an array of objects, beside texts


@settings_only
class PrivateClassifier(ClassifierMixin, Private):
    """A classifier for tables, trained with differential privacy: everything that `fit` publishes costs at most `epsilon`.

    Settings follow from the number of rows and columns and epsilon (`workflow.recommended`); any can be given. The number of
    rows (people, with `unit`) counts as public.

    Args:
        epsilon: the total, ranges that are chosen with noise included.
        classes: the labels that there are, which are published: a list; or "public" if everybody may know which occur in `y`.
            A pandas categorical or a `y` of truth values says it by its type.
        delta: the largest power of ten at most 1/(10 n) by default.
        ranges: what columns may hold, which is published too: (low, high) for all of them; by name what each holds, e.g.
            {"age": (0, 120), "city": ["A", "B"], "note": "words"}; "public" if everybody may know which values occur.
            What is not declared is chosen with noise, for `schema_epsilon` of epsilon.
        schema_epsilon: a tenth of epsilon by default.
        model: name, e.g. "mlp", or a function (shape, outputs) that makes a module.
        batch_size: expected number of rows (people) in a batch.
        steps: number of steps; with it, no moving average.
        lr: learning rate of SGD with momentum 0.9.
        bound: of clipping.
        seed: public, for the first weights.
        insecure_seed: makes the noise repeatable and the model not private; for tests.
        device: e.g. "cuda".
        progress: show a bar.

    After `fit`: `classes_`, `epsilon_` (what was spent), `delta_`, `ledger_`, `status_`, `composed_epsilon_` (of all fits of
    this process on these rows; internal, not to be published), `schema_`, `settings_`, `model_`, `n_features_in_`,
    `feature_names_in_`.
    """

    task = "classification"

    classes: Any = field(default=None, kw_only=True)

    def predict(self, X: Any) -> np.ndarray:
        """The likeliest class of each row."""
        said = self._outputs(X)
        best: np.ndarray = self.classes_[said.argmax(1)]
        return best

    def __sklearn_tags__(self) -> Any:
        """As any private estimator."""
        tags = super().__sklearn_tags__()
        learns_slowly(tags.classifier_tags)
        return tags

    def predict_proba(self, X: Any) -> np.ndarray:
        """The chance of each class `[rows, classes]`, in the order of `classes_`."""
        logits = self._outputs(X)
        shares = np.exp(logits - logits.max(1, keepdims=True))
        chances: np.ndarray = shares / shares.sum(1, keepdims=True)
        return chances

    def score(self, X: Any, y: Any, sample_weight: Any = None) -> float:
        """The share of rows whose class is predicted."""
        said = self.predict(X)
        return float(accuracy_score(self._labels(y, len(said)), said, sample_weight=sample_weight))

    def _labels(self, y: Any, rows: int) -> Any:
        if isinstance(getattr(y, "dtype", None), pd.api.extensions.ExtensionDtype) and y.dtype.kind in "iub":
            y = np.asarray(y, dtype=object)  # a nullable type, which scikit-learn would turn into fractions
        labels = vector(y, rows)
        if (gone := pd.isna(labels)).any():
            raise DataError(
                f"y: Input y contains NaN, in row {int(np.argmax(gone))}. Leave out rows without a label, or label them."
            )
        if labels.dtype.kind == "O" and (kind := OBJECTS.get(pd.api.types.infer_dtype(labels))):
            labels = labels.astype(kind)
        try:
            check_classification_targets(labels)
        except ValueError as error:
            raise DataError(f"y: {error} PrivateRegressor learns numbers.") from None
        return labels

    def _classes_of(self, y: Any, labels: np.ndarray) -> np.ndarray:
        """The classes that there are, in the order of the model's outputs."""
        if isinstance(self.classes, str):
            if self.classes != PUBLIC:
                raise ConfigError(f"classes={self.classes!r}: the only text is 'public'; else a list of the labels.")
            return unique_labels(labels)
        if self.classes is not None:
            try:
                listed_ones = list(self.classes)
            except TypeError:
                raise ConfigError(
                    f"classes={self.classes!r}: must be a list of the labels, e.g. [0, 1], or 'public'."
                ) from None
            if len(listed_ones) < 2 or len(set(map(str, listed_ones))) < len(listed_ones):
                raise ConfigError(f"classes={short(listed_ones)}: must list at least two different labels, each once.")
            classes = np.sort(np.array(listed_ones))
            if (unknown := ~np.isin(labels, classes)).any():
                row = int(np.argmax(unknown))
                raise DataError(
                    f"y: row {row} has the label {short(labels[row])}, which is not in classes={short(listed_ones)}. "
                    "Correct the row, or list every class."
                )
            return classes
        if isinstance(getattr(y, "dtype", None), pd.CategoricalDtype):
            return np.sort(np.asarray(y.dtype.categories))
        if labels.dtype.kind == "b":
            return np.array([False, True])
        seen = unique_labels(labels)
        raise ConfigError(
            f"classes=None: which classes there are is published with the model, and is not read off private rows. If it is "
            f"public knowledge that they are those in y, say so: {type(self).__name__}(classes={short(seen.tolist())}), or "
            "classes='public'."
        )

    def _target(self, y: Any, labels: Any) -> Classes:
        return Classes(tuple(label_text(value) for value in self._classes_of(y, labels).tolist()))

    def _texts(self, labels: Any, schema: Schema) -> list[str]:
        texts = [label_text(value) for value in labels.tolist()]
        assert isinstance(schema.target, Classes)
        if lost := sorted(set(texts) - set(schema.target.values)):
            raise DataError(
                f"y holds {listed(lost)}, the schema's classes are {listed(schema.target.values)}. List every class there."
            )
        return texts

    def _codes(self, labels: Any) -> torch.Tensor:
        codes = {text: code for code, text in enumerate(self.schema_.target.values)}  # type: ignore[union-attr]
        texts = [label_text(value) for value in labels.tolist()]
        if unknown := [row for row, text in enumerate(texts) if text not in codes]:
            row = unknown[0]
            raise DataError(
                f"y: row {row} has the label {short(labels[row])}, which is none of {short(self.classes_)}."
            )
        return torch.tensor([codes[text] for text in texts])

    def _set_outcome(self, schema: Schema, y: Any, labels: Any) -> None:
        """The classes in the order of the model's outputs, as `classes`, the categories or the type of `y` write them.

        Guarantee: how a single label is written, and whether a class occurs, makes no difference.
        """
        assert isinstance(schema.target, Classes)
        texts = schema.target.values
        spelled = self._spelled(y, labels)
        known = {label_text(value): value for value in spelled.tolist()}
        if set(texts) == set(known):
            kind = object if labels.dtype.kind == "O" else spelled.dtype
            self.classes_ = np.array([known[text] for text in texts], dtype=kind)
        elif labels.dtype.kind == "b":
            self.classes_ = np.array([text == "True" for text in texts])
        elif labels.dtype.kind in "USO":
            self.classes_ = np.array(texts, dtype=object if labels.dtype.kind == "O" else None)
        else:
            numbers = np.array(texts).astype(np.float64)
            whole = bool((numbers % 1 == 0).all())
            own = isinstance(getattr(y, "dtype", None), np.dtype) and y.dtype.kind in "iuf"
            self.classes_ = numbers.astype(y.dtype if own else np.int64 if whole else np.float64)

    def _spelled(self, y: Any, labels: np.ndarray) -> np.ndarray:
        """Classes that are public as they are written; none where only a schema lists them."""
        if isinstance(self.classes, str):
            return unique_labels(labels)
        if self.classes is not None:
            return np.array(list(self.classes))
        if isinstance(getattr(y, "dtype", None), pd.CategoricalDtype):
            return np.asarray(y.dtype.categories)
        return np.array([], dtype=labels.dtype)


def label_text(value: Any) -> str:
    """A label as a schema holds it."""
    if isinstance(value, float) and value.is_integer():
        return str(int(value))
    return str(value).strip()

"""What private classifiers and regressors share: fitting, asking, auditing.

What a fitted estimator holds may be published as its epsilon allows: weights, ledger, schema, settings. No row, no twin and
no metric on training rows is kept. Which earlier fits of the process shared its people is kept in that process only.
"""

from __future__ import annotations

import copy
import json
import math
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, replace
from typing import Any, ClassVar, Self, TypeVar, dataclass_transform

import numpy as np
import torch
from sklearn.base import BaseEstimator
from sklearn.exceptions import NotFittedError
from sklearn.utils import column_or_1d
from sklearn.utils.validation import validate_data
from torch import nn

from noisewise.accounting.accountants import check_delta
from noisewise.accounting.defaults import default_delta
from noisewise.audits import AUDITS, Result
from noisewise.clipping import Flat
from noisewise.data.base import Data, Splits, check_seed
from noisewise.data.table_parts import load_table
from noisewise.data.tables.encode import encoded_inputs
from noisewise.data.tables.kinds import Classes, Target
from noisewise.data.tables.rows import short
from noisewise.data.tables.schema import Schema, protected
from noisewise.errors import ConfigError, DataError, OddRows, RunError
from noisewise.estimators.columns import (
    PUBLIC,
    Table,
    declarations,
    free_name,
    given_schema,
    schema_for,
    share_of,
    table_of,
    without,
)
from noisewise.estimators.spending import counted, digests, owner_digests, together, trained_on
from noisewise.evaluation import outputs as outputs_of
from noisewise.losses import loss_for
from noisewise.mechanism import Mechanism
from noisewise.randomness import Entropy
from noisewise.recipe import Recipe, at_epsilon, at_noise, fit
from noisewise.sampling import Poisson
from noisewise.workflow.checks import check_settings
from noisewise.workflow.model_specs import build_model, named
from noisewise.workflow.plan import device_named
from noisewise.workflow.recommended import Settings, recommended

Kind = TypeVar("Kind")


class NotFitted(RunError, NotFittedError):
    """An estimator was asked before `fit`."""


@dataclass_transform()
def settings_only(kind: type[Kind]) -> type[Kind]:
    """An estimator whose `__init__` takes its fields as they are and does nothing else, as scikit-learn asks."""
    return dataclass(eq=False, repr=False)(kind)


@settings_only
class Private(BaseEstimator):
    """What classifier and regressor share."""

    task: ClassVar[str]

    epsilon: float = 3.0
    _: KW_ONLY
    delta: float | None = None
    ranges: Any = None
    schema_epsilon: float | None = None
    model: Any = None
    batch_size: int | None = None
    steps: int | None = None
    lr: float | None = None
    bound: float | None = None
    seed: int = 0
    insecure_seed: int | None = None
    device: str = "cpu"
    progress: bool = False

    # ----------------------------------------------------------------------------------------------- fitting

    def fit(self, X: Any, y: Any, groups: Any = None, unit: Any = None, schema: Any = None) -> Self:
        """Train on the rows of `X`; everything together costs at most `epsilon`.

        Args:
            X: pandas DataFrame, or 2-d array; numbers, texts, dates. NaN is a missing value.
            y: one label for each row.
            groups: name, or names, of columns of `X` that `audit` splits people by; they are no features.
            unit: name of the column of `X`, or one entry for each row, that says whose row it is: people are then protected.
                The column is no feature. What is asked later may hold the columns of `groups` and `unit`, or leave them out.
            schema: `Schema`, or the path of a schema file; instead of `ranges` and of what is said of the label.
        """
        self._check_settings()
        table = table_of(X, groups, unit)
        labels = self._labels(y, len(table))
        validate_data(self, X=without(X, table.left_out), skip_check_array=True)
        n = len(table) if table.unit is None else len(set(map(str, table.owners)))
        if len(table) < 2 or n < 2:
            raise DataError(f"n_samples={len(table)}, of {n} units: nobody is hidden among 1 sample. Give more rows.")
        self.delta_ = default_delta(n) if self.delta is None else self.delta
        chosen = self._schema(table, y, labels, schema)
        source = table.with_label(chosen.label, self._texts(labels, chosen))
        parts = load_table(source, chosen, test=0)
        for sentence in parts.sentences():
            warnings.warn(sentence, OddRows, stacklevel=2)
        rows = digests(table.columns)  # before anything is spent
        owners = None if table.unit is None else owner_digests(table.owners)
        recipe, self.settings_ = self._recipe(parts.train)
        recipe = at_noise(recipe, noise_for(recipe, float(self.epsilon), self.delta_))
        trained = fit(
            recipe, delta=self.delta_, seed=self.seed, insecure_seed=self.insecure_seed, progress=self.progress
        )
        self.model_ = _averaged(trained.model, trained.averaged)
        self.schema_ = chosen
        self.ledger_ = replace(trained.ledger, identity=None)  # which data it was is for whoever holds the data
        self.epsilon_ = together([self.ledger_], self.delta_)
        self.status_ = trained.status
        self.groups_ = [groups] if isinstance(groups, str) else list(groups or ())
        self.unit_ = table.unit
        self._columns, self._left_out = tuple(table.columns), table.left_out
        self._histories = counted(rows, self.ledger_, self.delta_, owners)
        self._set_outcome(chosen, y, labels)
        return self

    def _check_settings(self) -> None:
        """Numbers in range, before anything is read."""
        if (
            isinstance(self.epsilon, bool)
            or not isinstance(self.epsilon, int | float)
            or not 0 < self.epsilon < math.inf
        ):
            raise ConfigError(f"epsilon={self.epsilon!r}: must be a number above 0, e.g. 3; smaller is more private.")
        for name in ("lr", "bound"):
            value = getattr(self, name)
            if value is not None and (isinstance(value, bool) or not isinstance(value, int | float)):
                raise ConfigError(f"{name}={value!r}: must be a number above 0, e.g. 0.1, or None.")
        check_settings({name: getattr(self, name) for name in ("batch_size", "steps", "lr", "bound")})
        if self.delta is not None:
            check_delta(self.delta)
        check_seed(self.seed)
        if isinstance(self.model, nn.Module):
            raise ConfigError(
                f"model is a {type(self.model).__name__}: must be a function (shape, outputs) that makes one, or a name, "
                "since every fit starts anew."
            )
        if self.model is not None and not isinstance(self.model, str) and not callable(self.model):
            raise ConfigError(f"model={self.model!r}: must be a name, e.g. 'mlp', or a function (shape, outputs).")
        device_named(self.device)
        share_of(float(self.epsilon), self.schema_epsilon)

    def _schema(self, table: Table, y: Any, labels: Any, given: Any) -> Schema:
        if given is not None:
            if self.ranges is not None:
                raise ConfigError("ranges and schema: what columns are is said in the schema. Leave ranges out.")
            return given_schema(given, table, self.task)
        entropy = None if self.insecure_seed is None else Entropy.insecure(self.insecure_seed)
        if not isinstance(self.ranges, str):
            declarations(self.ranges, table.names)
        elif self.ranges != PUBLIC:
            raise ConfigError(f"ranges={self.ranges!r}: the only text is 'public'; else (low, high), a dict, or None.")
        name = free_name("y", table.source)
        share = share_of(float(self.epsilon), self.schema_epsilon)
        return schema_for(table, name, self._target(y, labels), self.ranges, share, self.delta_, entropy)

    def _recipe(self, data: Data) -> tuple[Recipe, Settings]:
        outputs = len(data.classes) if self.task == "classification" else 1
        usual = recommended(data.units, data.x.shape[1], float(self.epsilon), self.task, outputs)
        wanted = {name: getattr(self, name) for name in ("batch_size", "steps", "lr", "bound")}
        settings = replace(usual, **{name: value for name, value in wanted.items() if value is not None})
        if self.steps is not None:
            settings = replace(settings, ema=None)
        shape = tuple(data.x.shape[1:])
        if callable(self.model):
            model = self.model(shape, outputs)
        else:
            model = build_model(self.model or named(settings.model, settings.options), shape, outputs, self.seed)
        mechanism = Mechanism(
            sampler=Poisson(data.units, settings.batch_size),
            clip=Flat(settings.bound),
            steps=settings.steps,
            noise_multiplier=1.0,
            unit=protected(None if data.unit is None else "unit"),
        )
        recipe = Recipe(
            model=model.to(device_named(self.device)) if isinstance(model, nn.Module) else model,
            data=Splits(data, data, data),
            loss_fn=loss_for(data),
            mechanism=mechanism,
            optimizer=lambda parameters: torch.optim.SGD(parameters, lr=settings.lr, momentum=settings.momentum),
            ema=settings.ema,
            ledger=None if data.schema is None else data.schema.ledger,
        )
        return recipe, settings

    @property
    def composed_epsilon_(self) -> float:
        """Epsilon of all fits of this process, up to this one, that a row (a person, with `unit`) of this one was part of.

        Internal, not to be published: who was in which fit is an exact function of private rows. It stays in the process that
        fitted, and no pickle or copy holds it.
        """
        self._check_fitted()
        if not hasattr(self, "_histories"):
            raise RunError(
                "composed_epsilon_: is known only in the process that fitted, since it tells who was in which fit. Add up "
                "what fits on the same people cost: `ledger_.composed(other.ledger_).epsilon(delta)`."
            )
        return max(together([self.ledger_, *ledgers], self.delta_) for ledgers in self._histories)

    def __getstate__(self) -> dict[str, Any]:
        """What a pickle holds: everything but which earlier fits shared people."""
        return {name: value for name, value in super().__getstate__().items() if name != "_histories"}

    # ----------------------------------------------------------------------------------------------- asking

    def _check_fitted(self) -> None:
        if not hasattr(self, "model_"):
            raise NotFitted(f"This {type(self).__name__} instance is not fitted yet. Call 'fit' with X and y first.")

    def _outputs(self, X: Any) -> np.ndarray:
        """What the model says of every row."""
        columns = self._asked(X)
        x, counts = encoded_inputs(self.schema_, columns)
        for sentence in counts.sentences():
            warnings.warn(sentence, OddRows, stacklevel=3)
        return outputs_of(self.model_, x).numpy()

    def _asked(self, X: Any) -> dict[str, Any]:
        """The columns of rows that are asked about; those of `groups` and `unit` may be there or not."""
        self._check_fitted()
        columns = table_of(X).columns
        if not hasattr(X, "columns") and len(columns) == len(self._columns):  # an array of the features alone
            columns = dict(zip(self._columns, columns.values(), strict=True))
        there = tuple(name for name in self._left_out if name in columns)
        try:
            validate_data(self, X=without(X, there), reset=False, skip_check_array=True)
        except ValueError as error:
            raise DataError(f"{error}") from None
        return columns

    def audit(
        self,
        X: Any,
        y: Any,
        groups: Any = None,
        unit: Any = None,
        *,
        train: tuple[Any, Any] | None = None,
        names: Sequence[str] | None = None,
        progress: bool = False,
    ) -> dict[str, Result]:
        """Audits of the model on held-out rows, by name; what they say of private rows is private.

        Args:
            X: rows that were not trained on. Rows of people whom `fit` was told of, by `unit`, are refused as far as they
                are known: in the process that fitted, or with `train`.
            y: their labels.
            groups: columns of `X`, or `{name: one label for each row}`; by default those of `fit`.
            unit: column of `X`, or one entry for each row; by default the column of `fit`. Where `fit` was told, people are
                counted here too.
            train: the rows that it was trained on, (X, y), or (X, y, unit) where `unit` is no column: a twin is trained on
                them without privacy to compare with, and membership is asked. Neither is kept.
            names: which audits; by default those of seconds, `disparity`, `calibration` and, with `train`, `membership`.
            progress: show bars.
        """
        people: dict[str, int] = {}  # whoever is on both sides has one number
        data = self._encoded(X, y, people, unit, groups)
        usual = ["disparity", *(["calibration"] if self.task == "classification" else [])]
        usual += ["membership"] if train is not None and self.task == "classification" else []
        chosen = usual if names is None else [names] if isinstance(names, str) else list(names)
        members = None
        if train is not None:
            rows, labels, owners = _rows_of(train)
            members = self._encoded(rows, labels, people, owners)
        self._check_others(X, unit, data, members)
        possible = {"members": members}
        for name in chosen:
            if name not in AUDITS:
                raise ConfigError(f"audit {name!r}: unknown. Known audits: {', '.join(AUDITS)}.")
            if AUDITS[name].classes and self.task != "classification":
                raise ConfigError(f"audit {name!r}: needs classes, this is a {self.task}. Ask 'disparity'.")
            if lost := [need for need in AUDITS[name].needs if possible.get(need) is None]:
                remedy = "give train=(X, y)" if lost == ["members"] else "ask it in Python, noisewise.audits"
                raise ConfigError(f"audit {name!r}: needs {', '.join(lost)}; {remedy}.")
        twin = None if members is None else self._twin(members, progress)
        results = {}
        for name in chosen:
            asked = AUDITS[name]
            extra = {need: possible[need] for need in asked.needs}
            subject = (self.model_, data) if asked.model else (None, None)
            generator = np.random.default_rng(self.seed)
            results[name] = asked.run(
                *subject, twin=twin if asked.twin else None, generator=generator, progress=progress, **extra
            )
        return results

    def _encoded(self, X: Any, y: Any, people: dict[str, int], unit: Any = None, groups: Any = None) -> Data:
        """Rows as the model sees them, with their labels, owners (numbered by `people`, which grows) and groups."""
        columns = self._asked(X)
        x = encoded_inputs(self.schema_, columns).x
        owners = self._owners(X, columns, unit)
        labels = self._labels(y, len(x))
        codes = self._codes(labels)
        chosen = self.groups_ if groups is None else [groups] if isinstance(groups, str) else groups
        named_groups = chosen if isinstance(chosen, Mapping) else {name: columns.get(name) for name in chosen}
        coded, names = {}, {}
        for name, values in named_groups.items():
            if values is None or len(values) != len(x):
                raise DataError(f"groups: {name!r} has no label for each of the {len(x)} rows of X. Give one for each.")
            texts, places = np.unique(np.asarray(values).astype(str), return_inverse=True)
            coded[name], names[name] = torch.from_numpy(places.astype(np.int64)), tuple(texts.tolist())
        numbers = None if owners is None else [people.setdefault(str(owner), len(people)) for owner in owners]
        who = None if numbers is None else torch.tensor(numbers)
        classes = self.schema_.target.values if isinstance(self.schema_.target, Classes) else ()
        return Data(x, codes, coded, classes, unit=who, group_names=names, schema=self.schema_)

    def _owners(self, X: Any, columns: Mapping[str, Any], unit: Any) -> Any:
        """Whose row each is: said here, or in the column that `fit` was told."""
        if unit is not None:
            return table_of(X, None, unit).owners
        if self.unit_ is None:
            return None
        if self.unit_ in self._left_out and self.unit_ in columns:
            return columns[self.unit_]
        raise DataError(
            f"unit=None: `fit` was told whose row each is ({self.unit_!r}), and these rows do not say it. Give one entry for "
            "each row, unit=[...] (with train: (X, y, unit)), or range(len(X)) if each is of somebody else."
        )

    def _check_others(self, X: Any, unit: Any, data: Data, members: Data | None) -> None:
        """Nobody to audit on is known to have been trained on; a `range` numbers rows, and names nobody."""
        if data.unit is None or self.unit_ is None or isinstance(unit, range):
            return
        shared = trained_on(self.ledger_, owner_digests(self._owners(X, table_of(X).columns, unit)))
        if members is not None and members.unit is not None:
            shared = max(shared, len(np.intersect1d(data.unit.numpy(), members.unit.numpy())))
        if shared:
            raise DataError(
                f"{shared:,} of the people to audit on, by {self.unit_!r}, were trained on: whoever was trained on in part is "
                "not held out. Leave their rows out of X; if they only have the same numbers as others, number everyone "
                "differently."
            )

    def _twin(self, members: Data, progress: bool) -> nn.Module:
        """Trained on the same rows from the same start, without privacy and by itself: no ledger counts it."""
        recipe, settings = self._recipe(replace(members, schema=None))
        plain = replace(recipe, optimizer=lambda p: torch.optim.SGD(p, settings.twin_lr, settings.momentum))
        trained = fit(plain, delta=self.delta_, seed=self.seed, insecure_seed=0, progress=progress, ablation="plain")
        return _averaged(trained.model, trained.averaged)

    # ----------------------------------------------------------------------------------------------- of each task

    def _labels(self, y: Any, rows: int) -> Any:
        raise NotImplementedError

    def _target(self, y: Any, labels: Any) -> Classes | Target:
        raise NotImplementedError

    def _texts(self, labels: Any, schema: Schema) -> list[Any]:
        raise NotImplementedError

    def _codes(self, labels: Any) -> torch.Tensor:
        raise NotImplementedError

    def _set_outcome(self, schema: Schema, y: Any, labels: Any) -> None:
        """What else a fitted estimator says."""

    def __sklearn_tags__(self) -> Any:
        """What scikit-learn may expect: noise makes every fit another one."""
        tags = super().__sklearn_tags__()
        tags.input_tags.allow_nan = True
        tags.input_tags.string = True
        tags.non_deterministic = self.insecure_seed is None
        tags.target_tags.required = True
        return tags


def learns_slowly(kind: Any) -> None:
    """On tables as small as those of scikit-learn's checks, noise is louder than what there is to learn."""
    kind.poor_score = True


_NOISE: dict[str, float] = {}  # by what it was found for: folds of one size need it once


def noise_for(recipe: Recipe, epsilon: float, delta: float) -> float:
    """The least noise with which everything that the recipe releases costs at most epsilon."""
    lines = [line.to_dict() for line in at_noise(recipe, 1.0).lines()]
    key = json.dumps([lines, recipe.mechanism.adjacency, epsilon, delta])
    if key not in _NOISE:
        sigma = at_epsilon(recipe, epsilon, delta).mechanism.noise_multiplier
        assert isinstance(sigma, float)
        _NOISE[key] = sigma
    return _NOISE[key]


def _rows_of(train: Any) -> tuple[Any, Any, Any]:
    if not isinstance(train, tuple | list) or len(train) not in (2, 3):
        raise ConfigError(
            f"train={short(train)}: must be (X, y), the rows that the model was trained on, or (X, y, unit)."
        )
    return train[0], train[1], train[2] if len(train) == 3 else None


def _averaged(model: nn.Module, averages: Mapping[str, torch.Tensor] | None) -> nn.Module:
    """The model as it is used: with the moving average of its weights, in evaluation mode, on the CPU."""
    model = copy.deepcopy(model)
    with torch.no_grad():
        for name, parameter in model.named_parameters() if averages is not None else ():
            parameter.copy_(averages[name])  # type: ignore[index]
    return model.cpu().eval()


def vector(y: Any, rows: int) -> np.ndarray:
    """One label for each row."""
    if y is None:
        raise DataError("y is None: requires y to be passed, but the target y is None. Give one label for each row.")
    try:
        labels = column_or_1d(y, warn=True)
    except (ValueError, TypeError) as error:
        raise DataError(f"y: {error} Give one label for each row.") from None
    if len(labels) != rows:
        raise DataError(
            f"y has {len(labels)} labels, X {rows} rows: inconsistent numbers of samples. Give one for each."
        )
    return labels

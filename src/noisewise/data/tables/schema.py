"""How the columns of a table become tensors: a `Schema` that is public, and proposals for one.

Ranges and categories are part of what a model reveals, so they must not be read off private rows in passing. They are
declared from public knowledge, or released with noise that the ledger carries (`propose(..., epsilon=...)`), or read off
the rows and refused until the user has confirmed each of them as public knowledge.
"""

from __future__ import annotations

import hashlib
import json
import os
import tomllib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, fields
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from noisewise.accounting import Ledger
from noisewise.data.base import Data
from noisewise.data.tables.rows import CHUNK, LARGEST, Rows, check_separator, listed, name_of, parsed, parts_of, short
from noisewise.errors import ConfigError, DataError, PrivacyError, RunError

FORMAT = 1
OTHER = "other"
MISSING = ("", "?", "NA", "N/A", "NaN", "nan", "null")
ORIGINS = ("declared", "rows", "noised")


# ------------------------------------------------------------------------------------------- kinds of columns


@dataclass(frozen=True)
class Number:
    """A number, clipped to a public range and scaled to [-1, 1].

    `2 (v - low) / (high - low) - 1`, with `log` on the scale `sign(v) log(1 + |v|)`, which needs no narrow range. `fill`
    stands for a missing number (None: a missing number stops); `indicator` adds a column that is 1 where it was missing.
    """

    low: float
    high: float
    log: bool = False
    fill: float | None = None
    indicator: bool = False

    def __post_init__(self) -> None:
        """A range with room in it; a fill value inside."""
        check_range("number", self.low, self.high)
        _check_type("log", self.log, bool)
        _check_type("indicator", self.indicator, bool)
        low, high = self._bent(np.array([self.low, self.high], np.float64))
        if not low < high:
            raise ConfigError(
                f"number with range [{self.low!r}, {self.high!r}]: too narrow for floating point. Widen it."
            )
        if self.fill is not None and not (_is_number(self.fill) and self.low <= self.fill <= self.high):
            raise ConfigError(f"fill={self.fill!r}: must lie in the column's range [{self.low:g}, {self.high:g}].")
        if self.indicator and self.fill is None:
            raise ConfigError("indicator without fill: say which number stands for a missing one, e.g. fill=0.")

    def labels(self, name: str) -> tuple[str, ...]:
        """Names of the encoded columns."""
        return (name, f"{name} missing") if self.indicator else (name,)

    def words(self) -> str:
        """For people."""
        scale = ", logarithmic" if self.log else ""
        gaps = f", {self.fill:g} where missing" if self.fill is not None else ""
        return f"number in [{self.low:g}, {self.high:g}]{scale}{gaps}"

    def scaled(self, values: np.ndarray) -> np.ndarray:
        """Numbers to [-1, 1]."""
        low, high = self._bent(np.array([self.low, self.high]))
        share = (self._bent(np.clip(values, self.low, self.high)) - low) / (high - low)
        return np.clip(2 * share - 1, -1, 1)

    def _bent(self, values: np.ndarray) -> np.ndarray:
        """On the column's scale, halved: the length of a range may exceed the largest float."""
        return (np.sign(values) * np.log1p(np.abs(values)) if self.log else values) / 2


@dataclass(frozen=True)
class Category:
    """One of the listed texts, one-hot; with `other` one more place for everything that is not listed, else that stops."""

    values: tuple[str, ...]
    other: bool = True

    def __post_init__(self) -> None:
        """Different texts, at least one."""
        object.__setattr__(self, "values", _texts("category", self.values, 1))
        _check_type("other", self.other, bool)

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the codes 0, 1, ..., all different: audits tell groups apart by them."""
        rest = OTHER
        while rest in self.values:
            rest = f"any {rest}"
        return (*self.values, rest) if self.other else self.values

    def labels(self, name: str) -> tuple[str, ...]:
        """Names of the encoded columns."""
        return tuple(f"{name}={value}" for value in self.names)

    def words(self) -> str:
        """For people."""
        return f"one of {listed(self.values)}{', or other' if self.other else ''}"


@dataclass(frozen=True)
class Hashed:
    """Texts that nobody listed, one-hot by a public hash; with `kept` only those buckets, and one place for all others.

    `bucket = blake2b(text) mod buckets`. Two texts may share a bucket.
    """

    buckets: int
    kept: tuple[int, ...] | None = None

    def __post_init__(self) -> None:
        """A sensible number of buckets."""
        if type(self.buckets) is not int or not 2 <= self.buckets <= 1 << 20:
            raise ConfigError(f"buckets={self.buckets!r}: must be a whole number from 2 to {1 << 20}.")
        if self.kept is None:
            return
        if not isinstance(self.kept, Iterable):
            raise ConfigError(f"kept={short(self.kept)}: must be a list of buckets.")
        object.__setattr__(self, "kept", tuple(self.kept))
        if any(type(bucket) is not int or not 0 <= bucket < self.buckets for bucket in self.kept):
            raise ConfigError(f"kept={short(self.kept)}: must be buckets from 0 to {self.buckets - 1}.")
        if len(set(self.kept)) < len(self.kept) or not self.kept:
            raise ConfigError(f"kept={short(self.kept)}: name at least one bucket, and each only once.")

    def labels(self, name: str) -> tuple[str, ...]:
        """Names of the encoded columns."""
        if self.kept is None:
            return tuple(f"{name}#{bucket}" for bucket in range(self.buckets))
        return (*(f"{name}#{bucket}" for bucket in self.kept), f"{name}={OTHER}")

    def words(self) -> str:
        """For people."""
        kept = "" if self.kept is None else f", {len(self.kept)} common ones kept"
        return f"text, hashed into {self.buckets} buckets{kept}"


@dataclass(frozen=True)
class Ignore:
    """A column that is not looked at."""

    def labels(self, name: str) -> tuple[str, ...]:
        """No encoded columns."""
        return ()

    def words(self) -> str:
        """For people."""
        return "not used"


@dataclass(frozen=True)
class Classes:
    """A label that is one of the listed texts: class 0, 1, ... in this order; any other text stops."""

    values: tuple[str, ...]

    def __post_init__(self) -> None:
        """At least two different texts."""
        object.__setattr__(self, "values", _texts("classes", self.values, 2))

    def words(self) -> str:
        """For people."""
        return f"classes {listed(self.values)}"


@dataclass(frozen=True)
class Target:
    """A real-valued label: `y = clip(v, low, high) / scale`. One row's loss is bounded by the range."""

    low: float
    high: float
    scale: float = 1.0

    def __post_init__(self) -> None:
        """A range with room in it."""
        check_range("target", self.low, self.high)
        if not _is_number(self.scale) or self.scale <= 0:
            raise ConfigError(f"scale={self.scale!r}: must be a number above 0.")

    def words(self) -> str:
        """For people."""
        return f"number in [{self.low:g}, {self.high:g}]"


Feature = Number | Category | Hashed | Ignore
Kind = Feature | Classes | Target
KINDS: dict[str, type] = {
    "number": Number,
    "category": Category,
    "hashed": Hashed,
    "ignore": Ignore,
    "classes": Classes,
    "target": Target,
}


# ------------------------------------------------------------------------------------------- schema


@dataclass(frozen=True, kw_only=True, eq=False)
class Schema:
    """What each column of a table is, and so how a row becomes tensors: public, and the same for every row.

    label: column to be predicted, and `target`, its kind. groups: columns that audits split people by; they are features
    only where `columns` names them too. unit: column that says whose row it is. columns: every other column, in the
    order of the encoded features. missing: texts that mean "no number here". origin: where ranges and categories come
    from: `declared` (public knowledge), `noised` (released; `ledger` holds it) or `rows` (read off the rows: needs
    `confirmed`). counted: of a noised choice, the unit column of which each person was counted once; None: every row was.

    Guarantee: the encoding of a row depends on the schema and on that row only; every row is encoded or an error names
    it; an encoding of private rows by a schema read off them is refused until it is confirmed as public knowledge.
    """

    label: str
    target: Classes | Target
    columns: Mapping[str, Feature]
    groups: Mapping[str, Category] = field(default_factory=dict)
    unit: str | None = None
    separator: str = ","
    missing: tuple[str, ...] = ("",)
    origin: str = "declared"
    confirmed: bool = False
    spent: Mapping[str, Any] | None = None
    counted: str | None = None

    def __post_init__(self) -> None:
        """Columns that fit together."""
        object.__setattr__(self, "columns", dict(self.columns))
        object.__setattr__(self, "groups", dict(self.groups))
        object.__setattr__(self, "missing", _texts("missing", self.missing, 0))
        for name in (self.label, *self.columns, *self.groups, *(() if self.unit is None else (self.unit,))):
            _check_name(name)
        for what, kinds, given in (
            ("label", (Classes, Target), {self.label: self.target}),
            ("column", (Number, Category, Hashed, Ignore), self.columns),
            ("group", (Category,), self.groups),
        ):
            for name, kind in given.items():
                if not isinstance(kind, kinds):
                    known = ", ".join(k.__name__ for k in kinds)
                    raise ConfigError(f"{what} {name!r} is {short(kind)}: must be one of {known}.")
        if self.label in self.columns or self.label in self.groups or self.label == self.unit:
            raise ConfigError(f"column {self.label!r} is the label and something else too: a label predicts itself.")
        if self.unit is not None and (self.unit in self.columns or self.unit in self.groups):
            raise ConfigError(f"column {self.unit!r} says whose row it is: it cannot be a feature or a group.")
        check_separator(self.separator)
        if self.origin not in ORIGINS:
            raise ConfigError(f"origin={self.origin!r}: must be one of {', '.join(ORIGINS)}.")
        _check_type("confirmed", self.confirmed, bool)
        if (self.origin == "noised") != (self.spent is not None):
            raise ConfigError(f"origin={self.origin!r} and its ledger: a noised schema, and no other, carries one.")
        if self.spent is not None:
            ledger = Ledger.from_dict(self.spent, unit=protected(self.counted))
            if not ledger.lines:
                raise ConfigError("a noised schema with an empty ledger: keep the one that was written with it.")
            if ledger.unit != protected(self.counted):
                raise PrivacyError(
                    f"a schema that counted {_whom(self.counted)} with a ledger that protects one {ledger.unit}: one of them "
                    "was edited. Restore the file from a copy, or choose anew."
                )
            object.__setattr__(self, "spent", ledger.to_dict())
        if self.counted is not None and self.spent is None:
            raise ConfigError(f"counted={self.counted!r} without a noised choice: leave it out.")
        if self.spent is not None and self.counted != self.unit:
            raise PrivacyError(
                f"unit {self.unit!r} in a schema whose noised choice counted {_whom(self.counted)}: its ledger does not "
                f"hold for {_whom(self.unit)}. Choose anew with this unit: `noisewise schema ... --unit NAME --epsilon E`."
            )
        if not self.width:
            raise ConfigError("no column is a feature: give at least one a kind other than ignore.")

    def __eq__(self, other: object) -> bool:
        """Equal if they encode alike, the order of columns included."""
        return isinstance(other, Schema) and json.dumps(self.to_dict()) == json.dumps(other.to_dict())

    def __hash__(self) -> int:
        return hash(json.dumps(self.to_dict()))

    @property
    def ledger(self) -> Ledger | None:
        """What choosing this schema has spent, to be continued: `train(..., ledger=schema.ledger)`."""
        return None if self.spent is None else Ledger.from_dict(self.spent)

    @cached_property
    def feature_names(self) -> tuple[str, ...]:
        """Names of the columns of `x`."""
        return tuple(label for name, kind in self.columns.items() for label in kind.labels(name))

    @property
    def width(self) -> int:
        """Number of columns of `x`."""
        return len(self.feature_names)

    @property
    def used(self) -> tuple[str, ...]:
        """Columns that a table must have, the ignored ones included."""
        owner = () if self.unit is None else (self.unit,)
        return tuple(dict.fromkeys((*self.columns, *self.groups, *owner, self.label)))

    # ------------------------------------------------------------------------------- rows to tensors

    def encode(self, source: Any, *, public: bool = False) -> Data:
        """All rows of a CSV file, or of a table (a pandas DataFrame, or a dict of columns), as tensors.

        `public`: the rows are published, so that metrics on them may be too.
        """
        return _joined(list(self.parts(source, public=public)))

    def parts(self, source: Any, *, rows: int = CHUNK, public: bool = False) -> Iterator[Data]:
        """The same in parts of at most `rows` rows: a CSV file of any size is read once, and never held whole."""
        self._check_confirmed(public)
        empty = True
        for part in parts_of(source, self.separator, rows):
            self._check_columns(part, self.used, exactly=True)
            empty = False
            yield self._encoded(part, public)
        if empty:
            raise DataError(f"{name_of(source)}: no rows below the header. Give a file with at least one row.")

    def inputs(self, source: Any) -> Tensor:
        """Only `x`, for predicting: label, groups and unit need not be there, and further columns are not looked at."""
        needed = tuple(name for name, kind in self.columns.items() if not isinstance(kind, Ignore))
        found = []
        for part in parts_of(source, self.separator, CHUNK):
            self._check_columns(part, needed, exactly=False)
            found.append(self._features(part))
        return torch.cat(found) if found else torch.zeros(0, self.width)

    def _check_confirmed(self, public: bool) -> None:
        if self.origin == "rows" and not self.confirmed and not public:
            raise PrivacyError(
                "this schema's ranges and categories were read off the rows, and are not confirmed: a model trained with "
                "them would reveal, e.g., the largest value of a column. Check each entry against public knowledge and set "
                "`confirmed = true`; or make a schema with `noisewise schema FILE.csv --header-only` (nothing is read) or "
                "`--epsilon 0.5` (noised, and in the ledger). If the rows are published, pass public=True."
            )

    def _check_columns(self, part: Rows, needed: tuple[str, ...], *, exactly: bool) -> None:
        if lost := [name for name in needed if name not in part.columns]:
            raise DataError(
                f"{part.source}: no column {listed(lost)}. Its header has {listed(part.columns)}; the schema separates "
                f"columns by {self.separator!r}. Correct the header or the schema."
            )
        if exactly and (extra := [name for name in part.columns if name not in needed]):
            raise DataError(
                f'{part.source}: column {listed(extra)} is not in the schema. Add it there, with kind = "ignore" if it '
                "shall not be used."
            )

    def _encoded(self, part: Rows, public: bool) -> Data:
        names = {name: kind.names for name, kind in self.groups.items()}
        groups = {name: torch.from_numpy(_codes(part, name, kind)) for name, kind in self.groups.items()}
        return Data(
            self._features(part),
            self._labels(part),
            groups,
            self.target.values if isinstance(self.target, Classes) else (),
            public=public,
            unit=None if self.unit is None else _owners(part, self.unit),
            group_names=names,
            schema=self,
        )

    def _labels(self, part: Rows) -> Tensor:
        if isinstance(self.target, Classes):
            return torch.from_numpy(_codes(part, self.label, Category(self.target.values, other=False)))
        values, absent = _numbers(part, self.label, self.missing)
        if absent.any():
            raise part.error(self.label, int(absent.argmax()), "a label is missing", "Fill it in or remove the row.")
        clipped = np.clip(values, self.target.low, self.target.high) / self.target.scale
        return torch.from_numpy(clipped.astype(np.float32))

    def _features(self, part: Rows) -> Tensor:
        x = np.zeros((len(part), self.width), np.float32)
        at, every = 0, np.arange(len(part))
        for name, kind in self.columns.items():
            match kind:
                case Number():
                    values, absent = _numbers(part, name, self.missing)
                    if kind.fill is None and absent.any():
                        remedy = "Give the column `fill` in the schema (what stands for a missing number)."
                        raise part.error(name, int(absent.argmax()), "a number is missing", remedy)
                    x[:, at] = kind.scaled(np.where(absent, 0.0 if kind.fill is None else kind.fill, values))
                    if kind.indicator:
                        x[:, at + 1] = absent
                case Category():
                    x[every, at + _codes(part, name, kind)] = 1
                case Hashed():
                    x[every, at + _places(part.columns[name], kind)] = 1
            at += len(kind.labels(name))
        return torch.from_numpy(x)

    # ------------------------------------------------------------------------------- files

    def to_dict(self) -> dict[str, Any]:
        """JSON form, `schema.json` of a run folder; what is not set is left out."""
        return {
            "format": FORMAT,
            "origin": self.origin,
            "confirmed": self.confirmed,
            "separator": self.separator,
            "missing": list(self.missing),
            **({} if self.unit is None else {"unit": self.unit}),
            "label": _kind_to_dict(self.label, self.target),
            "groups": [_kind_to_dict(name, kind) for name, kind in self.groups.items()],
            "columns": [_kind_to_dict(name, kind) for name, kind in self.columns.items()],
            **({} if self.counted is None else {"counted": self.counted}),
            **({} if self.spent is None else {"ledger": dict(self.spent)}),
        }

    @classmethod
    def from_dict(cls, raw: Any, name: str = "schema") -> Schema:
        """Inverse of `to_dict`; unknown and missing entries stop, with their names."""
        try:
            return cls._from_dict(raw)
        except (ConfigError, RunError) as error:
            raise ConfigError(f"{name}: {error}") from None
        except PrivacyError as error:
            raise PrivacyError(f"{name}: {error}") from None

    @classmethod
    def _from_dict(cls, raw: Any) -> Schema:
        needed = ("format", "origin", "confirmed", "separator", "missing", "label", "groups", "columns")
        _check_entries("the schema", raw, needed, ("unit", "counted", "ledger"))
        if raw["format"] != FORMAT or type(raw["format"]) is not int:
            raise ConfigError(f"format {raw['format']!r}: this version reads `format = {FORMAT}`.")
        label, target = _kind_from_dict(raw["label"])
        return cls(
            label=label,
            target=target,
            columns=_kinds_from_list("columns", raw["columns"]),
            groups=_kinds_from_list("groups", raw["groups"]),
            unit=raw.get("unit"),
            separator=raw["separator"],
            missing=raw["missing"],
            origin=raw["origin"],
            confirmed=raw["confirmed"],
            spent=raw.get("ledger"),
            counted=raw.get("counted"),
        )

    def to_toml(self, remarks: Mapping[str, str] | None = None) -> str:
        """The same for people, with a comment for each column in `remarks`."""
        import tomli_w

        raw = self.to_dict()
        remarks = remarks or {}
        single = {key: raw.pop(key) for key in tuple(raw) if not isinstance(raw[key], dict | list) or key == "missing"}
        text = [HEADING, tomli_w.dumps(single)]
        for section, entries in (
            ("[label]", [raw["label"]]),
            ("[[groups]]", raw["groups"]),
            ("[[columns]]", raw["columns"]),
        ):
            for entry in entries:
                remark = remarks.get(entry["name"], "")
                text.append(f"{section}{'  # ' + remark if remark else ''}\n{tomli_w.dumps(entry)}")
            if not entries:
                text[1] += f"{section.strip('[]')} = []\n"
        if "ledger" in raw:
            text.append(
                f"# What choosing this schema has spent. Do not edit.\n{tomli_w.dumps({'ledger': raw['ledger']})}"
            )
        return "\n".join(text)


HEADING = """\
# How the columns of a table become numbers. This file is published with a model: it must hold public knowledge only.
#   number    clipped to [low, high], scaled to [-1, 1]; log = true: on a logarithmic scale. fill: stands for a missing
#             number (without it a missing number stops); indicator = true: one more column that says it was missing.
#   category  one column for each of `values`; other = true: one more for everything else.
#   hashed    texts that nobody listed, by a public hash into `buckets` columns; kept: only these, and one for the rest.
#   ignore    not used.
#   label     classes (the listed texts) or target (a number, clipped to [low, high], divided by scale).
#   groups    columns that audits split people by; list one under [[columns]] too if the model shall use it.
# origin: declared (public knowledge), noised (released; the ledger below adds to the cost of training) or rows (read off
#   the rows: set confirmed = true when you have checked every range and every list against public knowledge).
# counted: of a noised choice, the unit column that it was made with; another unit needs another choice.
"""


def read(path: str | os.PathLike[str]) -> Schema:
    """A schema file, TOML or JSON by its ending."""
    path = Path(path)
    try:
        text = path.read_text("utf-8")
    except FileNotFoundError:
        raise ConfigError(f"{path} does not exist: `noisewise schema FILE.csv --label NAME` writes one.") from None
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path} cannot be read: {error}.") from None
    try:
        raw = json.loads(text) if path.suffix == ".json" else tomllib.loads(text)
    except (json.JSONDecodeError, tomllib.TOMLDecodeError, RecursionError) as error:
        kind = "JSON" if path.suffix == ".json" else "TOML"
        raise ConfigError(f"{path.name} is not valid {kind}: {error}.") from None
    return Schema.from_dict(raw, path.name)


def _kind_to_dict(name: str, kind: Kind) -> dict[str, Any]:
    word = next(word for word, known in KINDS.items() if known is type(kind))
    given = {entry.name: getattr(kind, entry.name) for entry in fields(kind)}
    floats = ("low", "high", "fill", "scale")
    plain: dict[str, Any] = {
        key: list(value) if isinstance(value, tuple) else float(value) if key in floats else value
        for key, value in given.items()
        if value is not None
    }
    return {"name": name, "kind": word, **plain}


def _kind_from_dict(raw: Any) -> tuple[str, Any]:
    _check_entries("an entry", raw, ("name", "kind"), None)
    name = raw["name"]
    if type(raw["kind"]) is not str or raw["kind"] not in KINDS:
        raise ConfigError(f"column {name!r}: kind {raw['kind']!r} is none of {', '.join(KINDS)}.")
    kind = KINDS[raw["kind"]]
    known = [entry.name for entry in fields(kind)]
    unset = [key for key in known if key in ("fill", "kept")]
    needed = ("name", "kind", *(key for key in known if key not in unset))
    _check_entries(f"column {name!r}", raw, needed, unset)
    given = {key: tuple(value) if isinstance(value, list) else value for key, value in raw.items()}
    try:
        return name, kind(**{key: given[key] for key in known if key in given})
    except ConfigError as error:
        raise ConfigError(f"column {name!r}: {error}") from None


def _kinds_from_list(what: str, raw: Any) -> dict[str, Any]:
    if not isinstance(raw, list):
        raise ConfigError(f"{what} is {short(raw)}: must be a list with an entry [[{what}]] for each column.")
    pairs = [_kind_from_dict(entry) for entry in raw]
    for name, _ in pairs:
        _check_name(name)
    if twice := {name for name, _ in pairs if [other for other, _ in pairs].count(name) > 1}:
        raise ConfigError(f"{what}: {listed(sorted(twice))} occurs twice. Name each column once.")
    return dict(pairs)


def _check_entries(what: str, raw: Any, needed: Iterable[str], optional: Iterable[str] | None) -> None:
    """Exactly these entries; `optional=None`: further ones are checked elsewhere."""
    if not isinstance(raw, Mapping):
        raise ConfigError(f"{what} is {short(raw)}: must be a table of named entries.")
    if lost := [key for key in needed if key not in raw]:
        raise ConfigError(f"{what} lacks {listed(lost)}; a schema is complete.")
    if optional is not None and (extra := sorted(set(raw) - {*needed, *optional})):
        raise ConfigError(f"{what} has unknown entries {listed(extra)}. Known are {listed((*needed, *optional))}.")


def protected(unit: str | None) -> str:
    """What is protected where rows, or the people that a column names, are counted."""
    return "row" if unit is None else "person"


def _whom(unit: str | None) -> str:
    return "single rows" if unit is None else f"people by {short(unit)}"


def _check_name(name: Any) -> None:
    if type(name) is not str or not name or name != name.strip() or not _storable(name):
        raise ConfigError(f"column name {name!r}: must be a text that is not empty, without spaces around it.")


def _texts(what: str, values: Any, least: int) -> tuple[str, ...]:
    if isinstance(values, str) or not isinstance(values, Iterable):
        raise ConfigError(f"{what}: {short(values)} must be a list of texts.")
    values = tuple(values)
    for value in values:
        if type(value) is not str or value != value.strip() or not _storable(value):
            raise ConfigError(f"{what}: {short(value)} must be a text without spaces around it.")
    if len(set(values)) < len(values) or len(values) < least:
        raise ConfigError(f"{what}: {short(values)} must list at least {least} different texts, each once.")
    return values


def _storable(text: str) -> bool:
    return not any("\ud800" <= character <= "\udfff" for character in text)


def check_range(what: str, low: Any, high: Any) -> None:
    """Two finite numbers, the lower one first."""
    if not _is_number(low) or not _is_number(high) or not low < high:
        raise ConfigError(f"{what} with range [{low!r}, {high!r}]: needs two finite numbers, the lower one first.")


def _check_type(name: str, value: Any, kind: type) -> None:
    if type(value) is not kind:
        raise ConfigError(f"{name}={value!r}: must be {'true or false' if kind is bool else kind.__name__}.")


def _is_number(value: Any) -> bool:
    return type(value) in (int, float) and abs(value) <= LARGEST


# ------------------------------------------------------------------------------------------- values to numbers


def _numbers(part: Rows, name: str, missing: Iterable[str]) -> tuple[np.ndarray, np.ndarray]:
    """Numbers of a column, and where one is missing."""
    texts, absent_texts = part.columns[name], set(missing)
    values = parsed(texts)
    absent = np.array([text in absent_texts for text in texts], bool)
    wrong = np.isnan(values) & ~absent
    if wrong.any():
        index = int(wrong.argmax())
        remedy = f"Write it like 1234.5, list it in the schema's `missing` {short(tuple(absent_texts))}, or correct the kind."
        raise part.error(name, index, "not a decimal number", remedy)
    return values, absent


def _codes(part: Rows, name: str, kind: Category) -> np.ndarray:
    places = {value: code for code, value in enumerate(kind.values)}
    beyond = len(kind.values)
    codes = np.array([places.get(text, beyond) for text in part.columns[name]], np.int64)
    if not kind.other and (codes == beyond).any():
        index = int((codes == beyond).argmax())
        raise part.error(name, index, f"not one of {listed(kind.values)}", "Add it to the schema, or correct the row.")
    return codes


def bucket(text: str, buckets: int) -> int:
    """Public hash of a text: the same on every machine."""
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "little") % buckets


def _places(texts: list[str], kind: Hashed) -> np.ndarray:
    place = {text: bucket(text, kind.buckets) for text in set(texts)}
    if kind.kept is not None:
        where = {kept: index for index, kept in enumerate(kind.kept)}
        place = {text: where.get(found, len(kind.kept)) for text, found in place.items()}
    return np.array([place[text] for text in texts], np.int64)


def _owners(part: Rows, name: str) -> Tensor:
    """One number for each person, the same in every part and file."""
    texts = part.columns[name]
    if "" in texts:
        raise part.error(name, texts.index(""), "nobody owns this row", "Say whose row it is.")
    number = {text: bucket(text, 1 << 63) for text in set(texts)}
    return torch.tensor([number[text] for text in texts])


def _joined(parts: list[Data]) -> Data:
    first = parts[0]
    if len(parts) == 1:
        return first
    return Data(
        torch.cat([part.x for part in parts]),
        torch.cat([part.y for part in parts]),
        {name: torch.cat([part.groups[name] for part in parts]) for name in first.groups},
        first.classes,
        public=first.public,
        unit=None if first.unit is None else torch.cat([part.unit for part in parts if part.unit is not None]),
        group_names=first.group_names,
        schema=first.schema,
    )

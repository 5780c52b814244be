"""How the columns of a table become tensors: a `Schema` that is public, and proposals for one.

Ranges and categories are part of what a model reveals, so they must not be read off private rows in passing. They are
declared from public knowledge, or released with noise that the ledger carries (`propose(..., epsilon=...)`), or read off
the rows and refused until the user has confirmed each of them as public knowledge.
"""

from __future__ import annotations

import json
import os
import tomllib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, fields
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, get_args

from noisewise.accounting import Ledger
from noisewise.data.tables.checks import check_range, check_type, checked_texts, storable
from noisewise.data.tables.dates import Date
from noisewise.data.tables.header import beside
from noisewise.data.tables.kinds import (
    KINDS,
    OTHER,
    Boolean,
    Category,
    Classes,
    Feature,
    Hashed,
    Ignore,
    Kind,
    Number,
    Target,
)
from noisewise.data.tables.rows import CHUNK, UTF8, check_encoding, check_separator, listed, short
from noisewise.data.tables.words import Words, bucket
from noisewise.errors import ConfigError, PrivacyError, RunError

if TYPE_CHECKING:
    from torch import Tensor

    from noisewise.data.base import Data

__all__ = ["KINDS", "MISSING", "OTHER", "Boolean", "Category", "Classes", "Date", "Feature", "Hashed", "Ignore", "Kind",
           "Number", "Schema", "Target", "Words", "bucket", "check_range", "protected", "read"]  # fmt: skip

FORMAT = 1
MISSING = ("", "?", "NA", "N/A", "NaN", "nan", "null")
ORIGINS = ("declared", "rows", "noised")


@dataclass(frozen=True, kw_only=True, eq=False)
class Schema:
    """What each column of a table is, and so how a row becomes tensors: public, and the same for every row.

    label: column to be predicted, and `target`, its kind. groups: columns that audits split people by; they are features
    only where `columns` names them too. unit: column that says whose row it is. columns: every other column, in the
    order of the encoded features. separator, encoding: how a CSV file is written; encoding_seen: nobody said the encoding,
    it was seen in the file to train on, so that files to test on or to predict for may be written otherwise. missing: texts
    that mean "nothing here", beside the empty one. origin: where ranges and categories come from: `declared` (public
    knowledge), `noised` (released; `ledger` holds it) or `rows` (read off the rows: needs `confirmed`). counted: of a noised
    choice, the unit column of which each person was counted once; None: every row was.

    Guarantee: the encoding of a row depends on the schema and on that row only; every row is encoded or an error names
    it; an encoding of private rows by a schema read off them is refused until it is confirmed as public knowledge.
    """

    label: str
    target: Classes | Target
    columns: Mapping[str, Feature]
    groups: Mapping[str, Category] = field(default_factory=dict)
    unit: str | None = None
    separator: str = ","
    encoding: str = UTF8
    encoding_seen: bool = False
    missing: tuple[str, ...] = ("",)
    origin: str = "declared"
    confirmed: bool = False
    spent: Mapping[str, Any] | None = None
    counted: str | None = None

    def __post_init__(self) -> None:
        """Columns that fit together."""
        object.__setattr__(self, "columns", dict(self.columns))
        object.__setattr__(self, "groups", dict(self.groups))
        object.__setattr__(self, "missing", checked_texts("missing", self.missing, 0))
        for name in (self.label, *self.columns, *self.groups, *(() if self.unit is None else (self.unit,))):
            _check_name(name)
        for what, kinds, given in (
            ("label", (Classes, Target), {self.label: self.target}),
            ("column", get_args(Feature), self.columns),
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
        check_encoding(self.encoding)
        check_type("encoding_seen", self.encoding_seen, bool)
        if self.origin not in ORIGINS:
            raise ConfigError(f"origin={self.origin!r}: must be one of {', '.join(ORIGINS)}.")
        check_type("confirmed", self.confirmed, bool)
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

    def encoding_of(self, source: Any) -> str:
        """The encoding of a file to test on or to predict for: the schema's where its user said it, else as the file shows."""
        said = not self.encoding_seen and self.encoding != UTF8
        return self.encoding if said or not isinstance(source, str | os.PathLike) else beside(source, self.encoding)

    def encode(self, source: Any, *, public: bool = False) -> Data:
        """All rows of a CSV file, or of a table (a pandas DataFrame, or a dict of columns), as tensors.

        `public`: the rows are published, so that metrics on them may be too.
        """
        from noisewise.data.tables.encode import joined

        return joined(list(self.parts(source, public=public)))

    def parts(self, source: Any, *, rows: int = CHUNK, public: bool = False) -> Iterator[Data]:
        """The same in parts of at most `rows` rows: a CSV file of any size is read once, and never held whole."""
        from noisewise.data.tables.encode import encoded_parts

        return encoded_parts(self, source, rows=rows, public=public)

    def inputs(self, source: Any) -> Tensor:
        """Only `x`, for predicting: label, groups and unit need not be there, and further columns are not looked at."""
        from noisewise.data.tables.encode import encoded_inputs

        return encoded_inputs(self, source).x

    # ------------------------------------------------------------------------------- files

    def to_dict(self) -> dict[str, Any]:
        """JSON form, `schema.json` of a run folder; what is not set is left out."""
        return {
            "format": FORMAT,
            "origin": self.origin,
            "confirmed": self.confirmed,
            "separator": self.separator,
            **({} if self.encoding == UTF8 else {"encoding": self.encoding}),
            **({"encoding_seen": True} if self.encoding_seen else {}),
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
        _check_entries("the schema", raw, needed, ("encoding", "encoding_seen", "unit", "counted", "ledger"))
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
            encoding=raw.get("encoding", UTF8),
            encoding_seen=raw.get("encoding_seen", False),
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
#             invalid = "missing": what is no number counts as missing (without it, it stops).
#   category  one column for each of `values`; other = true: one more for everything else.
#   hashed    texts that nobody listed, by a public hash into `buckets` columns; kept: only these, and one for the rest.
#   words     free text: its words by a public hash into `buckets` columns, as a vector of length 1.
#   date      in [first, last]: position, year, month, weekday, hour. format: iso, or e.g. "%d.%m.%Y"; indicator, invalid
#             as above.
#   boolean   true yes y t 1, or false no n f 0.
#   ignore    not used.
#   label     classes (the listed texts) or target (a number, clipped to [low, high], less offset, divided by scale).
#   groups    columns that audits split people by; list one under [[columns]] too if the model shall use it.
# origin: declared (public knowledge), noised (released; the ledger below adds to the cost of training) or rows (read off
#   the rows: set confirmed = true when you have checked every range and every list against public knowledge).
# encoding: of all files. encoding_seen = true: it was seen in one file, not said; others may be UTF-8 or UTF-16 as well.
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
    floats = ("low", "high", "fill", "scale", "offset")
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
    unset = [key for key in known if key in ("fill", "kept", "invalid", "offset")]
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
    if type(name) is not str or not name or name != name.strip() or not storable(name):
        raise ConfigError(f"column name {name!r}: must be a text that is not empty, without spaces around it.")

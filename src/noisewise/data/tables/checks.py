"""Checks of what a schema says of a column: ranges, texts, whole numbers."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import Any

from noisewise.data.tables.rows import LARGEST, short
from noisewise.errors import ConfigError

INVALID = (None, "missing")


def check_range(what: str, low: Any, high: Any) -> None:
    """Two finite numbers, the lower one first."""
    if not is_number(low) or not is_number(high):
        raise ConfigError(f"{what} with range [{low!r}, {high!r}]: needs two finite numbers, the lower one first.")
    if not low < high:
        why = "are equal" if low == high else "are the wrong way round, low above high"
        raise ConfigError(f"{what} with range [{low:g}, {high:g}]: its ends {why}. Write the lower one first.")


def check_type(name: str, value: Any, kind: type) -> None:
    """Exactly this type: 1 is not true."""
    if type(value) is not kind:
        raise ConfigError(f"{name}={value!r}: must be {'true or false' if kind is bool else kind.__name__}.")


def checked_texts(what: str, values: Any, least: int) -> tuple[str, ...]:
    """At least so many different texts, without spaces around them."""
    if isinstance(values, str) or not isinstance(values, Iterable):
        raise ConfigError(f"{what}: {short(values)} must be a list of texts.")
    values = tuple(values)
    for value in values:
        if type(value) is not str or value != value.strip() or not storable(value):
            raise ConfigError(f"{what}: {short(value)} must be a text without spaces around it.")
    if twice := [value for value, count in Counter(values).items() if count > 1]:
        raise ConfigError(f"{what}: {short(twice[0])} is listed more than once. List each text once.")
    if len(values) < least:
        raise ConfigError(f"{what}: {short(values)} lists {len(values)} of them, and needs at least {least}.")
    return values


def storable(text: str) -> bool:
    """Can the text be written to a file?"""
    return not any("\ud800" <= character <= "\udfff" for character in text)


def is_number(value: Any) -> bool:
    """A finite int or float, and no bool."""
    return type(value) in (int, float) and abs(value) <= LARGEST


def check_buckets(buckets: Any) -> None:
    """A sensible number of buckets."""
    if type(buckets) is not int or not 2 <= buckets <= 1 << 20:
        raise ConfigError(f"buckets={buckets!r}: must be a whole number from 2 to {1 << 20}.")


def check_invalid(invalid: Any, has_a_way: bool, way: str) -> None:
    """What becomes of values that cannot be read: they stop, or count as missing where the column has a way for that."""
    if invalid not in INVALID:
        raise ConfigError(f'invalid={short(invalid)}: must be "missing", or left out (then such a value stops).')
    if invalid is not None and not has_a_way:
        raise ConfigError(f'invalid = "missing" without {way}: say what a missing value becomes.')

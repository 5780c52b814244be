"""Texts become what a type hint asks for."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import pytest

from noisewise.errors import ConfigError
from noisewise.workflow.written import converted


@pytest.mark.parametrize(
    ("text", "hint", "value"),
    [
        ("3", int, 3),
        ("3", float, 3.0),
        ("1e-5", float, 1e-5),
        ("none", int | None, None),
        ("none", str, "none"),
        ("Yes", bool, True),
        ("0", bool, False),
        ("flat", Literal["flat", "global"], "flat"),
        ("0.2/0.4", tuple[float, ...], (0.2, 0.4)),
        ("a/b", Sequence[str], ("a", "b")),
        ("0.2", float | str, 0.2),
        ("test.csv", float | str, "test.csv"),
    ],
)
def test_a_text_becomes_a_value(text, hint, value):
    made = converted("name", text, hint)
    assert made == value
    assert type(made) is type(value)


@pytest.mark.parametrize(
    ("text", "hint", "words"),
    [
        ("x", int, "name=x: must be a whole number"),
        ("2.5", int, "a whole number"),
        ("x", int | float, "a whole number or a number"),
        ("perhaps", bool, "true or false"),
        ("round", Literal["flat", "global"], "one of flat, global"),
        ("0.2/x", tuple[float, ...], "name=x: must be a number"),
        ("x", dict, "written in code"),
    ],
)
def test_what_it_cannot_be_is_said(text, hint, words):
    with pytest.raises(ConfigError, match=words):
        converted("name", text, hint)

"""Results: written, read back by kind, compared."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from typing import Any

import pytest

from noisewise.audits import Disparity, Estimate, read
from noisewise.audits.difficulty import Difficulty
from noisewise.audits.disparity import Values
from noisewise.audits.result import Result
from noisewise.errors import ConfigError, RunError
from noisewise.runs.files import read_json, write_json
from noisewise.runs.folder import Status

NOTHING = Values(parts=[], extremes={}, cells={}, fairness={}, difficulty=Difficulty())

E = Estimate(0.5, 0.4, 0.65, 30, 0.95, "Wilson")


class Plain(Disparity):
    """A result without anything of disparity's."""

    values: Any


def plain(**values) -> Plain:
    return Plain(headline={"share": E}, values=values, settings={"k": 1}, status=Status("private", "public data"))


def test_a_result_survives_json() -> None:
    result = plain(nested=[{"e": E, "name": "x"}, None, 3, True], endless=replace(E, high=math.inf))
    again = Plain.from_dict(json.loads(json.dumps(result.to_dict()).replace("Infinity", '"inf"')))
    assert again == result


def test_a_result_is_written_and_read_back_by_kind(tmp_path) -> None:
    path = tmp_path / "disparity.json"
    result = Disparity(headline={"a": E}, values=NOTHING, settings={}, status=Status("private", "x"))
    write_json(path, result.to_dict())
    assert read(path) == result


@pytest.mark.parametrize(
    "raw",
    [
        [],
        {},
        {"kind": "astrology"},
        {"kind": "disparity", "version": 99},
        {"kind": "disparity", "version": 1, "headline": {}},
        {"kind": "disparity", "version": 1, "headline": {"a": 3}, "values": 1, "settings": {}, "status": None},
    ],
)
def test_what_is_no_result_is_refused(tmp_path, raw) -> None:
    path = tmp_path / "x.json"
    write_json(path, raw)
    with pytest.raises(RunError):
        read(path)


def test_only_what_can_be_read_back_is_saved() -> None:
    with pytest.raises(ConfigError, match="a set in a result"):
        plain(x={1, 2}).to_dict()


def test_compare_is_the_difference_with_both_uncertainties() -> None:
    other = plain()
    found = plain().compare(replace(other, headline={"share": replace(E, value=0.2, low=0.1, high=0.24)}))["share"]
    assert found.value == pytest.approx(0.3)
    assert found.low == pytest.approx(0.3 - math.hypot(0.1, 0.04))
    assert found.high == pytest.approx(0.3 + math.hypot(0.15, 0.1))
    with pytest.raises(ConfigError, match="same audit"):
        plain().compare(Disparity(headline={}, values=NOTHING, settings={}, status=other.status))  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="equal levels"):
        plain().compare(replace(other, headline={"share": replace(E, level=0.9)}))


def test_results_have_no_cards_unless_they_say_so() -> None:
    assert Result.cards(plain()) == []


def test_numbers_that_are_not_finite_survive_and_names_stay_names(tmp_path) -> None:
    values = {"far": math.inf, "below": [-math.inf, 1.5], "name": "inf", "undefined": math.nan}
    path = tmp_path / "result.json"
    write_json(path, replace(plain(), values=values).to_dict())
    again = type(plain()).from_dict(read_json(path)).values
    assert math.isnan(again.pop("undefined"))
    assert again == {"far": math.inf, "below": [-math.inf, 1.5], "name": "inf"}

"""docs/defaults.md is written from committed results, not by hand, and they are of the settings that are recommended."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path

from noisewise.workflow.recommended import recommended

PROJECT = Path(__file__).parent.parent.parent
SPEC = importlib.util.spec_from_file_location("defaults_page", PROJECT / "benchmarks" / "defaults_page.py")
page = importlib.util.module_from_spec(SPEC)
SPEC.loader.exec_module(page)
RESULTS = json.loads((PROJECT / "benchmarks" / "results" / "defaults.json").read_text())
OUTPUTS = {"digits": 10}


def test_the_page_says_what_was_measured() -> None:
    assert page.page(RESULTS) == (PROJECT / "docs" / "defaults.md").read_text()


def test_what_was_measured_is_what_is_recommended() -> None:
    runs = [run for run in RESULTS["runs"] if run["method"] in ("noisewise", "twin")]
    assert {run["table"] for run in runs} == set(page.TABLES)
    for run in runs:
        task = "regression" if run["table"] in page.REGRESSIONS else "classification"
        settings = recommended(run["n"], page.WIDTHS[run["table"]], run["epsilon"], task, OUTPUTS.get(run["table"], 2))
        assert run["settings"] == settings.config() | {"options": dict(settings.options)}


def test_no_run_spent_more_than_its_epsilon() -> None:
    private = [run for run in RESULTS["runs"] if run["method"] == "noisewise"]
    assert private
    assert all(run["spent"] <= run["epsilon"] for run in private)

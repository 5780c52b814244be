"""What the page about many runs says was measured, and that its example is of functions that exist."""

import importlib.util
import inspect
import json
import re
from pathlib import Path

import noisewise.jobs
from noisewise.audits import attribution, train_shadows

PROJECT = Path(__file__).parents[2]
PAGE = (PROJECT / "docs" / "many_runs.md").read_text()


def test_the_page_shows_what_was_measured():
    spec = importlib.util.spec_from_file_location("many_runs_benchmark", PROJECT / "benchmarks" / "many_runs.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    content = json.loads((PROJECT / "benchmarks" / "results" / "many_runs.json").read_text())
    assert module.table(content) in PAGE
    assert [row["where"] for row in content["rows"]] == list(module.PLACES)


def test_the_examples_call_what_there_is():
    (code,) = re.findall(r"^```python\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL)
    compile(code, "many_runs.md", "exec")
    for function in (train_shadows, attribution):
        (line,) = re.findall(rf"= {function.__name__}\(([^=]*?,)", code)
        assert line
        assert "where" in inspect.signature(function).parameters
    for name in ("Job", "Local", "Ray", "carry_out"):
        assert name in noisewise.jobs.__all__
        assert f"{name}(" in code

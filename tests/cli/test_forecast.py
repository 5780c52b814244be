"""plan: what epsilon buys, as a table, a picture and JSON; mistakes before torch."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import replace

import pytest

from noisewise.advice.noise import smallest_class
from noisewise.estimates.estimate import Estimate
from noisewise.jobs import Local, Ray
from noisewise.workflow import forecast as module
from noisewise.workflow.forecast import Forecast, Row

SCORE = Estimate(0.81, 0.79, 0.83, 3, 0.95, "t")
ROWS = [Row(0.5, 12.61, 0.0101, 402, 1250, 50, 143.4, SCORE), Row(10.0, 2.6, 0.001, 3000, 1250, 400, 50.6, None)]
RESULT = Forecast(
    5000, 1e-5, ROWS, Estimate(0.9, 0.89, 0.91, 3, 0.95, "t"), "digits, a public stand-in", "accuracy", []
)


@pytest.fixture
def asked(monkeypatch):
    """What reaches the library."""
    seen = []
    monkeypatch.setattr(
        module, "forecast", lambda asked, where, progress: seen.append((asked, progress, where)) or RESULT
    )
    return seen


def test_every_option_reaches_the_library(noisewise, asked, tmp_path) -> None:
    (tmp_path / "s.json").write_text("{}")
    options = {
        "--epsilon": ("2", "epsilons", (2.0,)), "--delta": ("1e-7", "delta", 1e-7), "--batch-size": ("9", "batch_size", 9),
        "--epochs": ("3", "epochs", 3.0), "--classes": ("4", "classes", 4), "--model": ("mlp", "model", "mlp"),
        "--stand-in": ("digits", "stand_in", "digits"), "--seeds": ("5", "seeds", 5), "--features": ("6", "features", 6),
    }  # fmt: skip
    assert noisewise("plan", "--n", "500", "--features", "3").code == 0
    plain = asked[-1][0]
    for option, (text, name, value) in options.items():
        assert noisewise("plan", "--n", "500", "--features", "3", option, text).code == 0
        changed = {key: entry for key, entry in vars(asked[-1][0]).items() if entry != vars(plain)[key]}
        assert changed == {name: value}
    for given, where in ((("--jobs", "2"), Local(2)), (("--ray", "local", "--per-gpu", "3"), Ray("local", None, 3))):
        assert noisewise("plan", "--n", "500", "--stand-in", "digits", *given).code == 0
        assert asked[-1][2] == where
    assert noisewise("plan", "--n", "500", "--data", "s.json").code == 0
    assert str(asked[-1][0].schema) == "s.json"


def test_the_table_says_all_of_it_in_eighty_columns(noisewise, asked, monkeypatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    printed = noisewise("plan", "--n", "5000", "--stand-in", "digits")
    for text in (
        "62.3 %",
        "99.996 %",
        "12.6",
        "0.01",
        "402",
        "143",
        "81.0 (79.0–83.0)",
        "not measured",
        "90.0 (89.0–91.0)",
        "50 to 400",
    ):
        assert text in printed.words, text
    assert all(len(line) <= 80 for line in printed.out.splitlines())
    assert asked[0][1]
    alike = [smallest_class(0.25, row.steps, row.noise_multiplier, 402) for row in ROWS]
    for text in (
        "A class needs:", "At epsilon 0.5 one of fewer than 143 (a rare illness, say) is not learned", "several models",
        f"With the smallest, 402 weights, throughout: {alike[0]:.0f} at 0.5, {alike[1]:.0f} at 10.",
    ):  # fmt: skip
        assert text in printed.words, text


def test_rows_of_one_model_need_no_comparison(noisewise, monkeypatch) -> None:
    one = replace(RESULT, rows=[replace(row, coordinates=402) for row in ROWS])
    monkeypatch.setattr(module, "forecast", lambda asked, where, progress: one)
    words = noisewise("plan", "--n", "5000", "--stand-in", "digits").words
    assert "A class needs:" in words
    assert "several models" not in words


def test_json_and_a_picture(noisewise, asked, tmp_path) -> None:
    printed = noisewise("plan", "--n", "5000", "--stand-in", "digits", "--json", "--plot", "a.png")
    assert json.loads(printed.out)["rows"][0]["smallest_class"] == 143.4
    assert (tmp_path / "a.png").stat().st_size > 1000
    assert not asked[0][1]
    assert noisewise("plan", "--n", "5000", "--stand-in", "digits", "--plot", "a.png").code == 0  # drawn again
    (tmp_path / "b.png").write_bytes(b"mine")
    refused = noisewise("plan", "--n", "5000", "--stand-in", "digits", "--plot", "b.png")
    assert (refused.code, "b.png: exists and is no picture that noisewise drew" in refused.words) == (2, True)
    assert (tmp_path / "b.png").read_bytes() == b"mine"


def test_a_run_that_is_none_is_said(noisewise) -> None:
    refused = noisewise("plan", "--n", "500", "--runs", "nowhere")
    assert (refused.code, "nowhere: is no folder of a finished run" in refused.words) == (2, True)


def test_mistakes_are_said_before_torch_is_imported() -> None:
    code = (
        "import sys; from noisewise import cli; sys.argv = ['noisewise', 'plan', '--n', '0', '--features', '3']\n"
        "try:\n    cli.main()\nexcept SystemExit as stopped:\n    print(stopped.code, 'torch' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["2", "False"]
    assert "--n 0" in done.stderr

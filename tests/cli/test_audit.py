"""audit: what it asks, what it lacks, and tables that are never cut."""

from __future__ import annotations

import io
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import pytest
import torch
from rich.console import Console

from noisewise.audits import AUDITS, audit_of
from noisewise.audits.result import Table
from noisewise.cli.audit import _print_result
from noisewise.errors import ConfigError
from noisewise.losses import loss_for
from noisewise.runs.files import read_json
from noisewise.runs.folder import Status
from noisewise.workflow.execution import prepare
from noisewise.workflow.opened import audit as ask
from noisewise.workflow.opened import open_run

QUICK = ("--data", "digits", "--noise-multiplier", "4", "--steps", "3", "--batch-size", "64")


def test_without_a_twin_the_audit_says_what_is_missing(noisewise) -> None:
    assert noisewise("train", *QUICK, "--out", "a", "--no-twin", "--quiet").code == 0
    found = noisewise("audit", "a", "--only", "disparity")
    assert "has no twin" in found.words
    assert not (Path("a") / "sensitive" / "twin.safetensors").exists()


PAGE = Path(__file__).parents[2] / "CONTRIBUTING.md"


def written(heading: str, name: str) -> None:
    """The example of CONTRIBUTING.md under a heading, as a file."""
    section = PAGE.read_text().split(f"\n## {heading}\n")[1].split("\n## ")[0]
    Path(name).write_text(section.split("```python\n")[1].split("```")[0])


def test_an_audit_of_ones_own_is_asked_kept_and_reported(noisewise) -> None:
    assert noisewise("train", *QUICK, "--out", "a", "--no-twin", "--quiet").code == 0
    written("Adding an audit", "sureness.py")
    asked = noisewise("audit", "a", "--only", "sureness.py:AUDIT")
    assert (asked.code, "The private model is" in asked.words) == (0, True)
    assert read_json(Path("a/sensitive/audits/sureness.json"))["own"] == "sureness.py:AUDIT"
    assert noisewise("report", "a", "--out", "page.html").code == 0
    assert "How sure is the model?" in Path("page.html").read_text()
    Path("sureness.py").unlink()
    lost = noisewise("report", "a", "--out", "page.html")
    assert (lost.code != 0, "result of an audit of your own" in lost.words) == (True, True)
    for wrong, words in (("sureness.py:AUDIT", "no file"), ("sureness", "or FILE.py:NAME")):
        assert words in noisewise("audit", "a", "--only", wrong).words
    Path("nothing.py").write_text(
        "from noisewise.audits import Audit\ndef look(*_, **__):\n    ...\nAUDIT = Audit('nothing', look, takes='Seconds.')\n"
    )
    found = noisewise("audit", "a", "--only", "nothing.py:AUDIT")
    assert (found.code, "gives a NoneType: must be a noisewise.audits.Result" in found.words) == (2, True)


def test_what_is_no_audit_or_has_a_known_name_is_refused(noisewise) -> None:
    Path("own.py").write_text(
        "from dataclasses import replace\nfrom noisewise.audits import AUDITS\nCOPY = AUDITS['calibration']\n"
        "def function(): ...\nOUTSIDE = replace(COPY, name='../x')\nMINE = replace(COPY, name='mine')\n"
        "def look(model, data, twin): ...\nSHORT = replace(MINE, run=look, needs=('lr',))\n"
        "from functools import wraps\n@wraps(look)\ndef whole(*given, **more): return look(*given, more['twin'])\n"
        "WHOLE = replace(MINE, run=whole)\nUNKNOWN = replace(MINE, run=max)\n"
    )
    assert [audit_of(f"own.py:{name}").name for name in ("WHOLE", "UNKNOWN")] == [
        "mine"
    ] * 2  # they are called and seen
    for name, words in (
        ("own.py:COPY", "Give it another name"),
        ("own.py:function", "must be a noisewise.audits.Audit"),
        ("own.py:SHORT", r"called with \(model, data, twin=, generator=, progress=, lr=\), and does not take that"),
    ):
        with pytest.raises(ConfigError, match=words):
            audit_of(name)


def test_audits_say_what_they_ask_and_how_long_they_take(noisewise) -> None:
    found = noisewise("audit", "--list")
    assert found.code == 0
    for name, audit in AUDITS.items():
        assert name in found.words
        assert audit.takes.split(";")[0] in found.words
    assert "which run?" in noisewise("audit").words
    assert "give one of them" in noisewise("audit", "a", "--all", "--only", "disparity").words


def test_an_audit_that_a_run_does_not_allow_is_named_and_the_others_go_on(noisewise, monkeypatch) -> None:
    """The bound of quantile clipping moved, so what clipping did at the end is not known; who gets how much is."""
    wanted = {name: AUDITS[name] for name in ("clipping-bias", "disparity")}
    monkeypatch.setattr("noisewise.audits.AUDITS", wanted)
    assert noisewise("train", *QUICK, "--clip", "quantile", "--out", "a", "--no-twin", "--quiet").code == 0
    found = noisewise("audit", "a")
    assert found.code == 0
    assert "clipping-bias cannot be asked of this run: the bound of Quantile" in found.words
    assert "test rows right" in found.words
    named = noisewise("audit", "a", "--only", "clipping-bias")
    assert named.code == 2
    assert "moved during training" in named.words


def test_convergence_is_about_gradient_steps_from_the_start(noisewise) -> None:
    assert noisewise("train", *QUICK, "--out", "a", "--no-twin", "--insecure-seed", "1", "--quiet").code == 0
    found = noisewise("audit", "a", "--only", "convergence", "--only", "convergence")
    assert found.code == 0
    assert found.out.count("Where they were measured") == 1
    result = read_json(Path("a/sensitive/audits/convergence.json"))
    assert result["values"]["names"] == ["start", "model"]
    run = open_run("a")
    test, models = run.data.test, (prepare(run.config).model, run.model)
    with torch.no_grad():
        losses = [loss_for(test)(model, (test.x, test.y)).mean().item() for model in models]
    assert [point["loss"] for point in result["values"]["points"]] == pytest.approx(losses, rel=1e-5)
    assert losses[0] != pytest.approx(losses[1], rel=1e-4)
    assert result["values"]["constants"]["lr"] == pytest.approx(0.5 / (1 - 0.9))
    with pytest.raises(ConfigError, match="optimizer='adam'"):
        ask(replace(run, config=replace(run.config, optimizer="adam")), "convergence")


@pytest.mark.parametrize("width", [40, 80, 120])
def test_tables_are_never_cut(width: int) -> None:
    """Every word of every cell is there, no line is too long, and each part of a table names its rows."""
    columns = ["", "people", "clipped, %", "own, clipped", "instability", "random steep [x]"]
    rows = [
        [f"row {k}", "1,001", "97.3 (94.8–98.6)", "0.21 (0.19, 0.23)", "0.943 (0.728, 1.16)", "100.0 %"] for k in (1, 2)
    ]
    shown = io.StringIO()
    console = Console(file=shown, width=width, highlight=False)
    _print_result(
        console, Shown([Table("A caption that is longer than the table", columns, rows)]), "strong", tables=True
    )
    text = shown.getvalue()
    assert "…" not in text
    assert all(len(line) <= width for line in text.splitlines())
    for word in " ".join([*columns, *rows[0]]).split():
        assert word in text.split(), word
    groups = text.count("row 1")
    assert groups == text.count("row 2")
    assert groups == {40: 2, 80: 1, 120: 1}[width]


class Shown(NamedTuple):
    """As much of a result as is printed."""

    content: list[Table]
    status: Status = Status("private", "every release is in the ledger")

    def tables(self) -> list[Table]:
        return self.content

    def sentences(self) -> list[str]:
        return ["Said."]


# --- schema
@pytest.fixture
def people(tmp_path) -> Path:
    """A CSV file of 600 rows with numbers, texts, gaps and brackets that are no markup."""
    path = tmp_path / "people.csv"
    rows = [
        f"{20 + k % 50},{'[red]Ulm' if k % 3 else 'Bonn'},{'f' if k % 2 else 'm'},{'yes' if k % 5 else 'no'}"
        for k in range(600)
    ]
    path.write_text("\n".join(["age,town,sex,hired", *rows]))
    return path

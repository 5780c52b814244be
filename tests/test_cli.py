from __future__ import annotations

import io
import json
import os
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import pytest
import torch
from rich.console import Console

from noisewise import cli
from noisewise.accounting.defaults import default_adjacency, default_delta
from noisewise.audits import AUDITS
from noisewise.audits.result import Table
from noisewise.cli.audit import _print_result
from noisewise.data import DATASETS
from noisewise.errors import ConfigError
from noisewise.losses import loss_for
from noisewise.mechanism import Mechanism
from noisewise.models import build
from noisewise.runs.files import read_json
from noisewise.runs.folder import RunFolder, Status
from noisewise.sampling import Poisson, Shuffle
from noisewise.wording import number
from noisewise.workflow.config import Config, configure, plan
from noisewise.workflow.execution import execute, prepare
from noisewise.workflow.opened import audit as ask
from noisewise.workflow.opened import open_run
from noisewise.workflow.plan import plan_of

KEYS = {
    "epsilon", "delta", "noise_multiplier", "steps", "rate", "accountant", "adjacency", "sampler", "rdp_epsilon",
    "gdp_epsilon", "rdp_reason", "gdp_reason",
}  # fmt: skip
QUICK = ("--data", "digits", "--noise-multiplier", "4", "--steps", "3", "--batch-size", "64")


class Outcome:
    def __init__(self, code: int, out: str, err: str):
        self.code, self.out, self.err = code, out, err

    @property
    def words(self) -> str:
        """Both streams in one line, however they were wrapped."""
        return " ".join((self.out + self.err).split())


@pytest.fixture
def noisewise(monkeypatch, capsys, tmp_path):
    """Runs the command line in this process, in an empty folder."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("OMP_WAIT_POLICY", "passive")
    monkeypatch.setenv("COLUMNS", "120")

    def call(*arguments: str) -> Outcome:
        monkeypatch.setattr(sys, "argv", ["noisewise", *arguments])
        with pytest.raises(SystemExit) as stopped:
            cli.main()
        captured = capsys.readouterr()
        return Outcome(int(stopped.value.code or 0), captured.out, captured.err)

    return call


# --- epsilon and calibrate


def test_epsilon_prints_what_the_mechanism_says(noisewise) -> None:
    found = noisewise(
        "epsilon", "--n", "60000", "--batch-size", "256", "--epochs", "60", "--noise-multiplier", "1.1", "--delta",
        "1e-5", "--json",
    )  # fmt: skip
    facts = json.loads(found.out)
    assert found.code == 0
    assert found.err == ""
    assert set(facts) == KEYS
    plan = Mechanism(sampler=Poisson(60_000, 256), steps=14_063, noise_multiplier=1.1)
    spent = plan.spent(1e-5)
    assert facts["steps"] == 14_063
    assert facts["epsilon"] == spent.epsilon == pytest.approx(2.38, abs=0.01)
    assert (facts["rdp_epsilon"], facts["gdp_epsilon"]) == (spent.rdp_epsilon, spent.gdp_epsilon)
    assert (facts["accountant"], facts["adjacency"], facts["sampler"]) == ("pld", "add-remove", "poisson")
    assert facts["rate"] == 256 / 60_000


def test_calibrate_meets_the_budget(noisewise) -> None:
    found = noisewise("calibrate", "--n", "1000", "--batch-size", "100", "--steps", "20", "--epsilon", "3", "--json")
    facts = json.loads(found.out)
    assert set(facts) == KEYS
    assert 2.99 < facts["epsilon"] <= 3
    assert facts["delta"] == 1e-4
    plan = Mechanism(sampler=Poisson(1000, 100), steps=20, noise_multiplier=facts["noise_multiplier"])
    assert plan.epsilon(1e-4) == facts["epsilon"]


def test_three_accountants_side_by_side_with_steps_and_words(noisewise) -> None:
    found = noisewise("epsilon", "--n", "1000", "--batch-size", "100", "--epochs", "2.5", "--noise-multiplier", "2")
    for text in ("PLD", "the guarantee", "RDP", "GDP-CLT", "approximation, no guarantee", "steps 25", "rate 0.1"):
        assert text in found.words
    assert "whether or not any one row was in the data" in found.words


def test_shuffle_says_which_neighbours_it_protects(noisewise) -> None:
    plan = ("--n", "1000", "--batch-size", "100", "--epochs", "2", "--noise-multiplier", "2", "--sampler", "shuffle")
    found = noisewise("epsilon", *plan)
    assert "zero-out (the shuffle sampler is proven for these only)" in found.words
    facts = json.loads(noisewise("epsilon", *plan, "--json").out)
    expected = Mechanism(sampler=Shuffle(1000, 100), steps=20, noise_multiplier=2.0, adjacency="zero-out")
    assert facts["epsilon"] == expected.epsilon(1e-4)


def test_an_accountant_that_does_not_cover_a_mechanism_says_why(noisewise) -> None:
    found = noisewise(
        "epsilon", "--n", "1000", "--batch-size", "100", "--steps", "2", "--noise-multiplier", "2", "--adjacency",
        "replace-one", "--json",
    )  # fmt: skip
    facts = json.loads(found.out)
    assert (facts["rdp_epsilon"], facts["gdp_epsilon"]) == (None, None)
    assert "RDP" in facts["rdp_reason"]
    assert "GDP" in facts["gdp_reason"]


def test_no_noise_is_valid_json_too(noisewise) -> None:
    found = noisewise(
        "epsilon", "--n", "1000", "--sampler", "full-batch", "--steps", "2", "--noise-multiplier", "0", "--json"
    )
    assert json.loads(found.out)["epsilon"] == "inf"


def test_a_large_delta_is_noted(noisewise) -> None:
    found = noisewise(
        "epsilon", "--n", "1000", "--sampler", "full-batch", "--steps", "1", "--noise-multiplier", "5", "--delta",
        "0.01", "--json",
    )  # fmt: skip
    json.loads(found.out)
    assert "not below 1/n" in found.err


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ("epsilon --n 10 --batch-size 5 --noise-multiplier 1", "--epochs or --steps"),
        ("epsilon --n 10 --batch-size 5 --noise-multiplier 1 --epochs 1 --steps 2", "--epochs or --steps"),
        ("epsilon --n 10 --epochs 1 --noise-multiplier 1", "--batch-size"),
        ("epsilon --n 10 --batch-size 50 --epochs 1 --noise-multiplier 1", "outside (0, 1]"),
        ("epsilon --n 10 --batch-size 5 --epochs 0 --noise-multiplier 1", "above 0"),
        ("epsilon --n 10 --batch-size 5 --epochs 1 --noise-multiplier nan", "noise_multiplier=nan"),
        ("epsilon --n 10 --batch-size 5 --epochs 1 --noise-multiplier 1 --delta 1", "delta=1.0: must be in (0, 1)"),
        ("epsilon --n 10 --sampler full-batch --batch-size 5 --epochs 1 --noise-multiplier 1", "sees all 10"),
        ("epsilon --n ten", "--n"),
        ("calibrate --n 10 --batch-size 5 --epochs 1 --epsilon -3", "epsilon=-3.0: must be a finite number above 0"),
        ("calibrate --n 0 --batch-size 5 --epochs 1 --epsilon 3", "n=0"),
        ("calibrate --n 0 --batch-size 5 --epochs 1 --epsilon 3 --delta 1e-5", "n=0"),
        ("train --out a", "how private?"),
        ("train --out a --epsilon 3 --data nope", "Known data sets: digits"),
        ("train --out a --epsilon 3 --model nope", "Known models: cnn"),
        ("train --out a --epsilon 3 --noise-multiplier 1", "one follows from the other"),
        ("train --out a --resume", "no run to go on with"),
        ("train --out a --config nowhere.toml", "nowhere.toml does not exist"),
        ("train --out a --noise-multiplier 1 --steps 0", "steps=0"),
        ("train --out a --noise-multiplier 1 --steps 2 --delta 2", "delta=2.0: must be in (0, 1)"),
        ("train --out a --noise-multiplier 1 --steps 2 --ema 1", "ema=1.0"),
        ("train --out a --noise-multiplier 1 --steps 2 --microbatch 0", "microbatch=0"),
        ("train --out a --noise-multiplier 1 --steps 2 --insecure-seed -1", "insecure_seed=-1"),
        ("train --out a --noise-multiplier 1 --steps 2 --clip oval", "oval"),
        ("audit a", "is no run folder"),
        ("audit a --only astrology", "unknown audit"),
        ("report a", "no finished run"),
        ("frobnicate", "No such command"),
    ],
)
def test_mistakes_end_with_2_and_a_remedy(noisewise, arguments: str, message: str) -> None:
    found = noisewise(*arguments.split())
    assert found.code == 2
    assert message in found.words
    assert "Traceback" not in found.err
    assert found.out == ""
    assert list(Path.cwd().iterdir()) == []


def test_refusals_for_privacy_end_with_3(noisewise, tmp_path) -> None:
    config = configure(data="digits", noise_multiplier=4.0, steps=3, batch_size=64)
    text = config.to_toml() + "epsilon = 0.01\n"
    (tmp_path / "c.toml").write_text(text)
    found = noisewise("train", "--config", "c.toml", "--out", "a")
    assert found.code == 3
    assert "more than the epsilon=0.01" in found.words


def test_a_bug_ends_with_1_and_says_so(noisewise, monkeypatch) -> None:
    monkeypatch.setattr("noisewise.cli.audit.ask", lambda *_, **__: 1 / 0)
    found = noisewise("audit", "a")
    assert found.code == 1
    assert "ZeroDivisionError" in found.err
    assert "bug in noisewise" in found.words


def test_defaults_for_people() -> None:
    assert [default_delta(n) for n in (1, 10, 999, 1000, 1001, 60_000)] == [0.1, 1e-2, 1e-4, 1e-4, 1e-5, 1e-6]
    assert [default_adjacency(kind) for kind in ("poisson", "full-batch", "shuffle")] == [
        "add-remove", "add-remove", "zero-out",
    ]  # fmt: skip
    with pytest.raises(ConfigError, match="n=0"):
        default_delta(0)


# --- help


@pytest.mark.parametrize("command", ["epsilon", "calibrate", "train", "audit", "report", "demo"])
def test_help_teaches_by_example(noisewise, command: str) -> None:
    found = noisewise(command, "--help")
    assert found.code == 0
    assert f"Example: noisewise {command}" in found.words


def test_help_lists_commands_and_exit_codes(noisewise) -> None:
    found = noisewise("--help")
    for text in ("epsilon", "calibrate", "train", "audit", "report", "demo", "130 interrupted", "3 refused"):
        assert text in found.words
    assert noisewise("--version").out.startswith("noisewise ")


@pytest.mark.parametrize(
    "arguments",
    [
        ["--help"],
        ["train", "--help"],
        ["epsilon", "--n", "100", "--sampler", "full-batch", "--steps", "2", "--noise-multiplier", "5"],
        ["calibrate", "--n", "100", "--sampler", "full-batch", "--steps", "2", "--epsilon", "5", "--json"],
    ],
)
def test_planning_needs_no_torch(arguments: list[str]) -> None:
    code = (
        "import sys; from noisewise import cli\n"
        f"sys.argv = ['noisewise', *{arguments!r}]\n"
        "try: cli.main()\n"
        "except SystemExit as stopped: assert not stopped.code, stopped.code\n"
        "heavy = {'torch', 'matplotlib', 'sklearn', 'noisewise.audits', 'noisewise.workflow.config'} & set(sys.modules)\n"
        "assert not heavy, heavy\n"
        "assert '--help' not in sys.argv or not {'numpy', 'scipy', 'dp_accounting'} & set(sys.modules)\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, timeout=60)


# --- train, audit, report, demo


def test_train_audit_report(noisewise, tmp_path) -> None:
    trained = noisewise("train", *QUICK, "--out", "runs/a")
    assert trained.code == 0, trained.err
    privacy = read_json(tmp_path / "runs/a/summary.json")["privacy"]
    for text in (
        f"epsilon {number(privacy['epsilon'])} (PLD)", "delta 1e-05", "add-remove, unit: one row", "private: every release",
        "runs/a/", "never publish this folder", "3 steps", "Next: noisewise audit runs/a",
    ):  # fmt: skip
        assert text in trained.words
    audited = noisewise("audit", "runs/a", "--only", "disparity", "--only", "calibration")
    assert audited.code == 0
    for text in ("everyone", "class 9", "private − twin", "pays most", "not-private", "Mean loss"):
        assert text in audited.words
    assert all(len(line) <= 120 for line in audited.out.splitlines())
    reported = noisewise("report", "runs/a", "--out", "page.html")
    assert reported.code == 0
    assert "page.html" in reported.words
    assert "Do not publish" in reported.words
    assert (tmp_path / "page.html").stat().st_size > 10_000
    inside = noisewise("report", "runs/a", "--out", "runs/a/page.html")
    assert "better move it out" in inside.words
    again = noisewise("train", *QUICK, "--out", "runs/a")
    assert again.code == 2
    assert "finished run" in again.words


def test_config_reruns_the_same_plan_and_takes_changes(noisewise, tmp_path) -> None:
    assert noisewise("train", *QUICK, "--out", "a", "--no-twin", "--quiet").out == ""
    assert noisewise("train", "--config", "a/config.toml", "--out", "b", "--quiet").code == 0
    assert (tmp_path / "a/config.toml").read_text() == (tmp_path / "b/config.toml").read_text()
    assert noisewise("train", "--config", "a/config.toml", "--out", "c", "--lr", "0.125", "--quiet").code == 0
    assert Config.read(tmp_path / "c/config.toml").lr == 0.125
    text = (tmp_path / "a/config.toml").read_text()
    (tmp_path / "d.toml").write_text(f"{text}learning_rate = 3\n")
    found = noisewise("train", "--config", "d.toml", "--out", "d")
    assert found.code == 2
    assert "unknown entries learning_rate" in found.words


def test_without_a_twin_the_audit_says_what_is_missing(noisewise) -> None:
    assert noisewise("train", *QUICK, "--out", "a", "--no-twin", "--quiet").code == 0
    found = noisewise("audit", "a", "--only", "disparity")
    assert "has no twin" in found.words
    assert not (Path("a") / "sensitive" / "twin.safetensors").exists()


def test_audits_say_what_they_ask_and_how_long_they_take(noisewise) -> None:
    found = noisewise("audit", "--list")
    assert found.code == 0
    for name, audit in AUDITS.items():
        assert name in found.words
        assert audit.takes.split(";")[0] in found.words
    assert "which run?" in noisewise("audit").words
    assert "give one of them" in noisewise("audit", "a", "--all", "--only", "disparity").words


def test_an_insecure_seed_is_shown_as_not_private(noisewise) -> None:
    found = noisewise("train", *QUICK, "--out", "a", "--no-twin", "--insecure-seed", "1")
    assert "not-private: noise reproducible: do not publish" in found.words
    assert "epsilon ∞" in found.words
    assert "may be published" not in found.words


def test_an_audit_that_a_run_does_not_allow_is_named_and_the_others_go_on(noisewise, monkeypatch) -> None:
    """The bound of quantile clipping moved, so what clipping did at the end is not known; who gets how much is."""
    wanted = {name: AUDITS[name] for name in ("clipping-bias", "disparity")}
    monkeypatch.setattr("noisewise.audits.AUDITS", wanted)
    monkeypatch.setattr("noisewise.workflow.opened.AUDITS", wanted)
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


def test_a_twin_that_is_still_missing_is_asked_for(noisewise) -> None:
    assert noisewise("train", *QUICK, "--out", "a", "--quiet").code == 0
    (Path("a") / "sensitive" / "twin.safetensors").unlink()
    found = noisewise("audit", "a", "--only", "disparity")
    assert "finish it with noisewise train --resume --out a" in found.words


def stopped_when(condition, out: Path, *arguments: str, by: signal.Signals) -> int:
    """Start the command in a process of its own, stop it as soon as the condition holds, return its exit code."""
    process = subprocess.Popen(
        [sys.executable, "-m", "noisewise", "train", "--out", str(out), "--quiet", *arguments],
        env=os.environ | {"OMP_NUM_THREADS": "1"},
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        deadline = time.monotonic() + 120
        while not condition() and process.poll() is None and time.monotonic() < deadline:
            time.sleep(0.01)
        assert process.poll() is None, f"it was over before it could be stopped: {process.communicate()}"
        process.send_signal(by)
        _, err = process.communicate(timeout=120)
    finally:
        process.kill()
    if by is signal.SIGINT:
        assert f"Go on with: noisewise train --resume --out {out}" in err
        assert "Traceback" not in err
    return process.returncode


def test_stopped_twice_and_resumed_a_run_ends_as_if_nothing_had_happened(noisewise, tmp_path) -> None:
    """Ctrl-C while the private model trains, SIGKILL while its twin does."""
    settings = (
        "--data",
        "digits",
        "--noise-multiplier",
        "4",
        "--steps",
        "240",
        "--batch-size",
        "32",
        "--insecure-seed",
        "1",
    )
    out = RunFolder(tmp_path / "a")
    assert stopped_when(out.metrics.exists, out.path, *settings, by=signal.SIGINT) == 130
    assert read_json(out.run)["state"] == "interrupted"
    twin = RunFolder(out.sensitive / "twin")
    code = stopped_when(twin.metrics.exists, out.path, "--resume", *settings, by=signal.SIGKILL)
    assert code == -signal.SIGKILL
    assert out.complete
    assert not twin.complete
    refused = noisewise("train", "--out", "a", "--resume", "--lr", "0.25")
    assert refused.code == 2
    assert "lr was 0.5, now 0.25" in refused.words
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        assert noisewise("train", "--out", "a", "--resume", "--quiet").code == 0
        whole = execute(Config.read(out.config), tmp_path / "whole", progress=False)
    finally:
        torch.set_num_threads(threads)
    for path in (out.model, out.ledger, out.summary, out.metrics, out.twin_weights):
        assert path.read_bytes() == (whole.path / path.relative_to(out.path)).read_bytes(), path.name
    assert not twin.path.exists()
    assert not out.checkpoint.exists()
    assert (
        "status" in noisewise("train", "--out", "a", "--resume").words
    )  # nothing left to do, and it says where things are


def test_demo_takes_a_new_folder_and_takes_up_an_unfinished_one(noisewise, monkeypatch, tmp_path) -> None:
    small = plan(data="digits", noise_multiplier=4.0, steps=3, batch_size=64)
    monkeypatch.setattr("noisewise.workflow.config.plan", lambda **_: small)
    wanted = {"disparity": AUDITS["disparity"]}
    monkeypatch.setattr("noisewise.audits.AUDITS", wanted)
    monkeypatch.setattr("noisewise.workflow.opened.AUDITS", wanted)
    first = noisewise("demo", "--out", "runs/demo")
    assert first.code == 0
    assert "Report: runs/demo/sensitive/report.html" in first.words
    assert (tmp_path / "runs/demo/sensitive/report.html").exists()
    assert "Report: runs/demo-2/sensitive/report.html" in noisewise("demo", "--out", "runs/demo").words
    RunFolder("runs/demo").twin_weights.unlink()
    assert "Report: runs/demo/sensitive/report.html" in noisewise("demo", "--out", "runs/demo").words


@pytest.fixture
def counted(monkeypatch) -> dict[str, int]:
    """How often the digits are loaded, a plan is built and a model is initialised."""
    counts = dict.fromkeys(("data", "plan", "model"), 0)

    def counting(what, real):
        def call(*arguments, **settings):
            counts[what] += 1
            return real(*arguments, **settings)

        return call

    monkeypatch.setitem(DATASETS, "digits", counting("data", DATASETS["digits"]))
    monkeypatch.setattr("noisewise.workflow.plan.plan_of", counting("plan", plan_of))
    monkeypatch.setattr("noisewise.workflow.execution.build", counting("model", build))
    return counts


def test_a_command_loads_data_once_and_builds_its_plan_once(noisewise, counted, monkeypatch) -> None:
    assert noisewise("train", *QUICK, "--out", "a").code == 0
    assert counted == {"data": 1, "plan": 1, "model": 3}  # trained; rebuilt with its weights, and its twin's
    counted.update(data=0, plan=0)
    assert noisewise("train", "--resume", "--epochs", "1", "--out", "a", "--quiet").code == 2  # other settings
    assert (counted["data"], counted["plan"]) == (1, 1)
    wanted = {
        name: AUDITS[name] for name in ("disparity", "clipping-bias", "landscape", "convergence", "feature-noise")
    }
    asked = [need for audit in wanted.values() for need in audit.needs]
    assert min(asked.count("mechanism"), asked.count("start") + asked.count("path")) > 1
    light = {name: replace(audit, run=lambda *_, **__: Silent()) for name, audit in wanted.items()}
    monkeypatch.setattr("noisewise.audits.AUDITS", light)
    monkeypatch.setattr("noisewise.workflow.opened.AUDITS", light)
    counted.update(data=0, plan=0, model=0)
    assert noisewise("audit", "a", "--all").code == 0
    assert counted == {"data": 1, "plan": 1, "model": 3}  # the model, its twin, the start


class Silent:
    """A result that says nothing."""

    status = Status("not-private", "none")

    def sentences(self) -> list[str]:
        return []

    def to_dict(self) -> dict[str, str]:
        return {}


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


def test_schema_is_written_for_the_user_to_confirm(noisewise, people) -> None:
    from noisewise.data.tables.kinds import Classes, Number
    from noisewise.data.tables.schema import read
    from noisewise.errors import PrivacyError

    found = noisewise("schema", "people.csv", "--label", "hired", "--group", "sex", "--out", "s.toml")
    assert found.code == 0
    for text in (
        "label: classes 'no', 'yes'",
        "group: one of 'f', 'm'",
        "[red]Ulm",
        "from the data: confirm",
        "confirmed = true",
    ):
        assert text in found.words
    schema = read("s.toml")
    assert Path("s.toml").stat().st_mode & 0o777 == 0o600
    assert (schema.target, schema.columns["age"]) == (Classes(("no", "yes")), Number(20, 70, fill=45))
    with pytest.raises(PrivacyError):
        schema.encode(people)
    text = Path("s.toml").read_text()
    Path("s.toml").write_text(text.replace("confirmed = false", "confirmed = true"))
    assert len(read("s.toml").encode(people)) == 600


def test_schema_of_the_header_only_and_with_noise(noisewise, people) -> None:
    from noisewise.data.tables.kinds import Number
    from noisewise.data.tables.schema import read

    known = ("--label", "hired=no,yes", "--group", "sex=f,m")
    found = noisewise("schema", "people.csv", *known, "--column", "age=0:120", "--header-only")
    assert found.code == 0
    assert "Nothing below the header was looked at" in found.words
    assert read("people.schema.toml").columns["age"] == Number(0, 120, fill=60)
    found = noisewise("schema", "people.csv", *known, "--epsilon", "3", "--delta", "1e-5", "--out", "noised.toml")
    assert found.code == 0
    assert "released with noise" in found.words
    ledger = read("noised.toml").ledger
    assert ledger is not None
    spent = ledger.epsilon(1e-5)
    assert 2.9 < spent <= 3
    assert f"epsilon {spent:.4g} at delta 1e-05" in found.words


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("none.csv", "--label", "hired"), "none.csv does not exist"),
        (("people.csv", "--label", "salary"), "'salary': no such column"),
        (("people.csv", "--label", "hired", "--column", "age"), "--column age: say what it is"),
        (("people.csv", "--label", "hired", "--column", "age=1:2", "--column", "age=ignore"), "named twice"),
        (("people.csv", "--label", "hired", "--column", "sex=f", "--group", "sex=f,m"), "named twice"),
        (("people.csv", "--label", "hired", "--epsilon", "1"), "must be declared"),
        (("people.csv", "--label", "hired=no,yes", "--epsilon", "0"), "epsilon"),
        (("people.csv", "--label", "hired", "--out", "people.csv"), "exists"),
        (("people.csv", "--label", "hired", "--out", "no/s.toml"), "is no folder"),
        (("people.csv", "--label", "hired", "--separator", ";;"), "one character"),
    ],
)
def test_schema_says_what_is_wrong_and_writes_nothing(noisewise, people, arguments, message) -> None:
    before = people.read_bytes()
    found = noisewise("schema", *arguments)
    assert found.code == 2
    assert message in found.words
    assert "Traceback" not in found.words
    assert people.read_bytes() == before
    assert [path.name for path in people.parent.iterdir()] == ["people.csv"]

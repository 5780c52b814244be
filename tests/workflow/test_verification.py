"""A run folder is checked without its data: each file changed in turn, and files changed together."""

import json
import math
import shutil
import tomllib
from dataclasses import dataclass

import pytest
import tomli_w
import torch
from safetensors.torch import load_file, save_file

from helpers import tiny
from helpers.remembered import remembered  # noqa: F401  accountants with a memory
from noisewise.accounting import Ledger, spent
from noisewise.adaptive import rule_for
from noisewise.clipping import OneBlock
from noisewise.data import Data
from noisewise.errors import ConfigError, RunError
from noisewise.runs.files import read_json, write_json
from noisewise.runs.folder import RunFolder
from noisewise.runs.states import read_states
from noisewise.runs.tensors import save_tensors
from noisewise.training import step
from noisewise.training.paid import PaidAccuracy
from noisewise.wording import at_most, number
from noisewise.workflow.config import configure
from noisewise.workflow.execution import execute
from noisewise.workflow.verification import FAILS, NAMES, OK, OPEN, verified

TRIALS = 512  # of the engine, which one test asks in earnest


@pytest.fixture(scope="module")
def original(tmp_path_factory):
    """A run as `noisewise train` writes it, without its secrets."""
    config = configure(data="digits", model="logistic", epsilon=3.0, steps=4, batch_size=64, twin=False)
    folder = execute(config, tmp_path_factory.mktemp("run") / "a", progress=False)
    shutil.rmtree(folder.sensitive)
    return folder


@pytest.fixture
def run(original, tmp_path):
    return RunFolder(shutil.copytree(original.path, tmp_path / "copy"))


def verdicts(folder, names=NAMES):
    return {check.name: check.verdict for check in verified(folder.path, names=names, trials=TRIALS)}


def failing(folder, names=NAMES[:-1]):
    """Checks that fail, the engine's left out."""
    return {name for name, verdict in verdicts(folder, names).items() if verdict == FAILS}


def edit(path, **changes):
    """Entries of a JSON file, by dotted names."""
    content = read_json(path)
    for name, value in changes.items():
        *way, last = name.split("__")
        place = content
        for key in way:
            place = place[int(key) if key.isdigit() else key]
        place[last] = value
    write_json(path, content)


def sealed(run):
    """All digests made anew, as a forger would."""
    write_json(run.run, read_json(run.run) | {"files": run.digests()})


def edit_toml(path, **changes):
    path.write_text(tomli_w.dumps({**tomllib.loads(path.read_text()), **changes}))


def test_states_along_a_run_are_those_that_were_asked_for(tmp_path):
    wanted = configure(
        data="digits", noise_multiplier=1.0, steps=6, batch_size=64, model="logistic", twin=False, keep_states=2
    )
    run = execute(wanted, tmp_path / "run", progress=False)
    shutil.rmtree(run.sensitive)
    assert verdicts(run, ("states",)) == {"states": OK}
    states = dict(read_states(run))
    save_tensors(run.states, {**states, 5: states[0]})
    sealed(run)
    assert failing(run) == {"states"}


def test_a_run_without_its_data_and_secrets_holds(run):
    assert set(verdicts(run).values()) == {OK}


@pytest.mark.parametrize(
    "name",
    ["config.toml", "mechanism.json", "model.safetensors", "ledger.json", "metrics.jsonl", "summary.json", "README.md"],
)
def test_every_changed_file_is_seen(name, run):
    path = run.path / name
    path.write_bytes(path.read_bytes() + b"\n")
    assert failing(run, ["files"]) == {"files"}
    path.unlink()
    assert failing(run, ["files"]) == {"files"}


def test_a_file_that_came_later_is_seen_or_named(run):
    (run.path / "notes.txt").write_text("mine")
    assert "notes.txt" in verified(run.path, names=["files"])[0].why
    run.code.write_text("import os")
    assert failing(run, ["files"]) == {"files"}


EDITS = {  # what is changed, digests included, and who sees it
    "a line of the ledger is dropped": (lambda run: edit(run.ledger, lines=[]), {"epsilon", "plan"}),
    "fewer releases": (lambda run: edit(run.ledger, lines__0__count=3), {"epsilon", "plan"}),
    "more noise in the ledger": (
        lambda run: edit(run.ledger, lines__0__event__noise_multiplier=40.0),
        {"epsilon", "plan"},
    ),
    "a smaller epsilon": (lambda run: edit(run.summary, privacy__epsilon=0.1), {"epsilon", "metrics"}),
    "a better word": (lambda run: edit(run.summary, privacy__strength="strong"), {"epsilon"}),
    "another status": (lambda run: edit(run.run, status="not-private"), {"epsilon"}),
    "more people": (lambda run: edit(run.summary, data__n=2_000), {"plan", "mechanism"}),
    "another unit": (lambda run: edit(run.summary, privacy__unit="person"), {"epsilon", "mechanism"}),
    "other steps planned": (
        lambda run: edit_toml(run.config, steps=3),
        {"epsilon", "plan", "mechanism"},
    ),
    "another batch size planned": (lambda run: edit_toml(run.config, batch_size=32), {"plan", "mechanism"}),
    "a smaller budget": (lambda run: edit_toml(run.config, epsilon=2.0), {"epsilon", "plan"}),
    "another model": (lambda run: edit_toml(run.config, model="mlp"), {"weights"}),
    "another clipping rule": (lambda run: edit_toml(run.config, clip="automatic"), {"mechanism"}),
    "a rule that asks": (lambda run: edit_toml(run.config, clip="quantile"), {"plan", "mechanism"}),
    "another mechanism": (lambda run: edit(run.mechanism, noise_multiplier=40.0), {"mechanism"}),
    "metrics end early": (
        lambda run: run.metrics.write_text('{"step": 1, "epsilon": 0.5}\n'),
        {"metrics"},
    ),
    "a config that is none": (lambda run: run.config.write_text("lr = "), None),
    "an unknown setting": (lambda run: edit_toml(run.config, colour="blue"), None),
}


@pytest.mark.parametrize("name", EDITS)
def test_files_changed_with_their_digests_are_seen_by_what_they_contradict(name, run):
    change, seen_by = EDITS[name]
    change(run)
    sealed(run)
    seen = failing(run)
    assert "files" not in seen
    if seen_by is None:
        assert "plan" in seen
    else:
        assert seen == seen_by


def test_a_ledger_changed_with_epsilon_and_digests_is_seen_by_the_plan(run):
    """More noise is claimed, and every number that follows from it."""
    edit(run.ledger, lines__0__event__noise_multiplier=40.0)
    ledger = Ledger.from_dict(read_json(run.ledger))
    readings = spent(ledger.events(), 1e-5, "add-remove")
    changes = {f"privacy__{key}": getattr(readings, key) for key in ("epsilon", "rdp_epsilon", "gdp_epsilon")}
    edit(run.summary, **changes, privacy__strength="strong")
    lines = [json.loads(line) for line in run.metrics.read_text().splitlines()]
    lines = [line | {"epsilon": readings.epsilon} for line in lines[-1:]]
    run.metrics.write_text("".join(json.dumps(line) + "\n" for line in lines))
    sealed(run)
    assert failing(run) == {"plan"}


def test_weights_of_another_form_and_broken_ones_are_seen(run):
    weights = load_file(run.model)
    name = next(iter(weights))
    save_file({**weights, "extra": torch.zeros(2)}, run.model)
    sealed(run)
    assert failing(run) == {"weights"}
    save_file({**weights, name: torch.full_like(weights[name], math.nan)}, run.model)
    sealed(run)
    assert failing(run) == {"weights"}


def test_what_is_sealed_later_does_not_bless_what_was_changed_before(run):
    run.readme.write_text("other words")
    run.scores.write_text("{}")
    assert failing(run, ["files"]) == {"files"}
    run.seal(run.scores)
    (check,) = verified(run.path, names=["files"])
    assert check.why == "changed since the run ended: README.md. Restore the files from a copy."


def test_older_folders_say_what_they_lack(run):
    about, summary = read_json(run.run), read_json(run.summary)
    del about["files"], summary["data"]["shape"]
    write_json(run.run, about)
    write_json(run.summary, summary)
    run.mechanism.unlink()
    found = verdicts(run)
    assert {name for name, verdict in found.items() if verdict == OPEN} == {"files", "weights", "mechanism"}
    assert FAILS not in found.values()


def test_a_run_of_python_is_held_against_its_mechanism(tmp_path):
    tiny.run(out=tmp_path, delta=1e-3, about={"task": "classification", "data": {"classes": 3}})
    found = verdicts(RunFolder(tmp_path))
    assert (found["plan"], found["epsilon"], found["weights"]) == (OK, OK, OPEN)
    edit(tmp_path / "mechanism.json", steps=3)
    sealed(RunFolder(tmp_path))
    assert failing(RunFolder(tmp_path)) == {"plan"}


@pytest.fixture
def paid_run(tmp_path):
    """A run of Python whose held-out people paid for a reading after each epoch."""
    paid = PaidAccuracy(Data(*tiny.data(30)), epsilon=1, readings=3)
    tiny.run(out=tmp_path / "paid", paid=paid, delta=1e-3)
    return RunFolder(tmp_path / "paid")


def test_a_run_with_paid_readings_holds(paid_run):
    checks = {check.name: check for check in verified(paid_run.path, names=NAMES[:-1])}
    assert checks["files"].verdict == checks["metrics"].verdict == checks["epsilon"].verdict == OK
    assert "Not of the run" not in checks["files"].why
    ledger = Ledger.from_dict(read_json(paid_run.valid_ledger))
    assert f"3 readings of held-out people cost these epsilon {number(ledger.epsilon(1e-3))}" in checks["metrics"].why


PAID = {  # what is changed, digests made anew or not, and who sees it
    "more noise": (lambda path: edit(path, lines__0__event__noise_multiplier=40.0), False, {"files"}),
    "missing": (lambda path: path.unlink(), False, {"files", "metrics"}),
    "missing, with digests": (lambda path: path.unlink(), True, {"metrics"}),
    "fewer readings, with digests": (lambda path: edit(path, lines__0__count=2), True, {"metrics"}),
    "no readings, with digests": (lambda path: edit(path, lines=[]), True, {"metrics"}),
    "damaged, with digests": (lambda path: path.write_text("{}"), True, {"metrics"}),
}


@pytest.mark.parametrize("name", PAID)
def test_a_changed_ledger_of_held_out_people_is_seen(name, paid_run):
    change, forged, seen_by = PAID[name]
    change(paid_run.valid_ledger)
    if forged:
        sealed(paid_run)
    assert failing(paid_run) == seen_by


def test_what_was_paid_may_be_more_than_what_is_shown(paid_run):
    """A run that was interrupted after a reading, and resumed without: the reading is paid for, and shown nowhere."""
    edit(paid_run.valid_ledger, lines__0__count=4)
    sealed(paid_run)
    assert failing(paid_run) == set()


def test_a_run_without_noise_claims_nothing(tmp_path):
    config = configure(data="digits", model="logistic", noise_multiplier=0.0, steps=2, batch_size=64, twin=False)
    folder = execute(config, tmp_path / "a", progress=False)
    found = verdicts(folder)
    assert (found["engine"], found["plan"], found["epsilon"]) == (OPEN, OK, OK)


@pytest.mark.parametrize(
    "repairs",
    [("random-sparsification:final=0.5",), ("first-phase:epochs=0.1,noise_multiplier=8", "moving-average:decay=0.9"),
     pytest.param(("lora:rank=1", "global-adapt"), marks=pytest.mark.slow)],
)  # fmt: skip
def test_repairs_are_planned_anew(repairs, tmp_path):
    config = configure(
        data="digits", model="logistic", noise_multiplier=6.0, steps=6, batch_size=64, twin=False, repairs=repairs
    )
    folder = execute(config, tmp_path / "a", progress=False)
    found = verdicts(folder)
    assert FAILS not in found.values()
    assert found["plan"] == OK
    edit_toml(folder.config, batch_size=32)
    assert "plan" in failing(folder)


def test_somebody_elses_code_is_not_run(run, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "bad.py").write_text("raise SystemExit('ran')\n")
    edit_toml(run.config, model="bad.py:make", repairs=["bad.py:repair"])
    sealed(run)
    found = verdicts(run)
    assert {found[name] for name in ("plan", "mechanism", "weights")} == {OPEN}


def test_the_engine_is_asked_at_the_delta_of_the_run(run):
    (check,) = verified(run.path, names=["engine"], trials=4_000)
    assert f"claims at delta {at_most(read_json(run.summary)['privacy']['delta'])}" in check.why


def test_an_engine_that_adds_too_little_noise_fails(run, monkeypatch):
    real = step.release

    def little(parts, **how):
        return real({name: (bounded, sigma / 50) for name, (bounded, sigma) in parts.items()}, **how)

    monkeypatch.setattr(step, "release", little)
    (check,) = verified(run.path, names=["engine"], trials=4_000)
    assert check.verdict == FAILS
    assert "Do not publish" in check.why


def test_what_is_no_finished_run_is_refused(tmp_path):
    with pytest.raises(RunError, match="no finished run"):
        verified(tmp_path)


@dataclass(frozen=True)
class Mine(OneBlock):
    """Somebody's own rule."""

    bound: float = 1.0

    def factors(self, samples):
        return self.bound / (samples.norms + self.bound)


def test_a_rule_of_ones_own_cannot_be_read_back_which_is_no_failure(tmp_path):
    tiny.run(plan=tiny.mechanism(clip=Mine()), out=tmp_path / "run", delta=1e-3)
    found = verdicts(RunFolder(tmp_path / "run"))
    assert {name for name, verdict in found.items() if verdict == OPEN} >= {"plan", "engine"}
    assert FAILS not in found.values()
    edit(tmp_path / "run" / "mechanism.json", noise_multiplier=-1.0)
    assert "files" in failing(RunFolder(tmp_path / "run"))


def test_a_rule_of_ones_own_by_the_command_line(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "own_rule.py").write_text(
        "from dataclasses import dataclass\nfrom noisewise.clipping import Flat, OneBlock\n"
        "@dataclass(frozen=True)\nclass Mine(OneBlock):\n    bound: float = 1.0\n"
        "    def factors(self, samples):\n        return self.bound / (samples.norms + self.bound)\n"
        "MADE = Flat(0.5)\ndef number(bound):\n    return bound\n"
    )
    assert rule_for("own_rule.py:Mine", 2.0).sensitivity == 2.0
    assert rule_for("own_rule.py:MADE", 2.0).sensitivity == 0.5
    with pytest.raises(ConfigError, match=r"gives a float: a rule needs blocks"):
        rule_for("own_rule.py:number", 2.0)
    wanted = configure(
        data="digits", model="logistic", epsilon=3.0, steps=4, batch_size=64, twin=False, clip="own_rule.py:Mine"
    )
    run = execute(wanted, tmp_path / "run", progress=False)
    assert read_json(run.mechanism)["clip"]["rule"].endswith(":Mine")
    found = verdicts(run)
    assert FAILS not in found.values()
    assert found["plan"] == OPEN
    with pytest.raises(ConfigError, match=r"or FILE\.py:NAME"):
        configure(data="digits", epsilon=3.0, clip="smoth")

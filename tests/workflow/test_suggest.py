"""What is gathered of a run, and where advice goes."""

from __future__ import annotations

import math
import os
import shlex
from dataclasses import replace

import pytest
import torch

from noisewise.accounting import Ledger
from noisewise.advice import rules
from noisewise.audits import AUDITS as KNOWN
from noisewise.runs.files import read_json
from noisewise.runs.folder import RunFolder
from noisewise.runs.summary import read_ledger, read_summary
from noisewise.workflow import opened
from noisewise.workflow import suggest as module
from noisewise.workflow.config import Config, plan
from noisewise.workflow.opened import open_run
from noisewise.workflow.settings import parsed_settings
from noisewise.workflow.suggest import gathered, suggest


@pytest.fixture(scope="module")
def asked(run: RunFolder):
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(rules, "FEWEST", 1)  # the run is as short as tests are
        return suggest(run.path)


def test_the_run_is_described_as_it_is(run: RunFolder, asked) -> None:
    evidence, _ = asked
    assert (evidence.n, evidence.rate, evidence.coordinates) == (1258, 64 / 1258, 9930)
    assert set(evidence.results) == {"disparity", "calibration", "clipping-bias", "feature-noise"}
    labels = open_run(run.path).data.train.y
    assert evidence.class_sizes == {str(label): int((labels == label).sum()) for label in range(10)}


def test_two_runs_are_composed_by_the_ledger(run: RunFolder, asked) -> None:
    ledger, privacy = read_ledger(run), read_summary(run)["privacy"]
    both = Ledger(ledger.adjacency, [*ledger.lines, *ledger.lines], ledger.unit).epsilon(privacy["delta"])
    assert (asked[0].epsilon, asked[0].twice) == (pytest.approx(float(privacy["epsilon"])), pytest.approx(both))


def test_advice_lies_among_the_secrets_and_nowhere_else(run: RunFolder, asked) -> None:
    assert read_json(run.sensitive / "suggestions.json") == [one.to_dict() for one in asked[1]]
    assert "suggestions.json" not in {path.name for path in run.path.iterdir()}
    assert asked[1][0].diagnosis == "noise-bound"


def test_the_command_can_be_planned_and_costs_what_the_run_cost(run: RunFolder, asked) -> None:
    words = shlex.split(asked[1][0].command)
    assert words[:4] == ["noisewise", "train", "--config", f"{run.path}/config.toml"]
    changes = parsed_settings([words[place + 1] for place, word in enumerate(words) if word == "--set"])
    budget = float(words[words.index("--epsilon") + 1])
    planned = plan(Config.read(run.config), epsilon=budget, **changes)
    assert (planned.config.batch_size, planned.config.steps) == (256, 1)
    assert planned.recipe.epsilon(planned.config.delta) <= budget


def test_audits_are_asked_once(run: RunFolder, asked, monkeypatch) -> None:
    monkeypatch.setattr(module, "audit", lambda *_: pytest.fail("asked again"))
    assert set(gathered(open_run(run.path), "a").results) == set(asked[0].results)


def test_audits_of_other_weights_or_damaged_ones_are_asked_anew(run: RunFolder, asked, monkeypatch) -> None:
    again = []
    monkeypatch.setattr(module, "audit", lambda opened, name: again.append(name) or asked[0].results[name])
    written = run.audit("calibration").read_bytes()
    run.audit("calibration").write_text("{}")
    disparity = run.audit("disparity")
    os.utime(disparity, (0, 0))
    try:
        gathered(open_run(run.path), "a")
    finally:
        run.audit("calibration").write_bytes(written)
        os.utime(disparity)
    assert again == ["disparity", "calibration"]


def test_what_cannot_be_asked_is_said(run: RunFolder, asked) -> None:
    opened_run = open_run(run.path)
    broken = replace(opened_run, data=opened_run.data._replace(test=opened_run.data.test.take(torch.arange(0))))
    os.utime(run.audit("calibration"), (0, 0))
    try:
        evidence = gathered(broken, "a")
    finally:
        os.utime(run.audit("calibration"))
    assert "calibration" in evidence.unasked
    assert evidence.calibration is None


def test_a_run_that_is_not_private_has_no_epsilon(run: RunFolder, monkeypatch) -> None:
    privacy = {**read_summary(run)["privacy"], "status": "not-private"}
    monkeypatch.setattr(module, "read_summary", lambda folder: {"privacy": privacy})
    assert module._spent(run) == (math.inf, math.inf)


def test_the_audits_that_rules_read_are_cheap() -> None:
    assert all(
        name in KNOWN and "train" not in KNOWN[name].takes.removeprefix("Does not retrain") for name in module.AUDITS
    )
    assert opened.audit is module.audit

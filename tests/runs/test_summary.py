"""summary.json is the contract, and what the numbers contradict is not read."""

import shutil

import pytest
import tomli_w

from helpers import tiny
from noisewise.accounting import pld_epsilon
from noisewise.errors import RunError
from noisewise.runs.files import read_json, write_json
from noisewise.runs.folder import RunFolder
from noisewise.runs.summary import read_summary

DELTA = 1e-3

SUMMARY = {"format", "privacy", "task", "data", "model", "repairs", "seed"}

PRIVACY = {
    "epsilon", "delta", "adjacency", "unit", "sampler", "accountant", "noise_multiplier", "steps", "rate", "rdp_epsilon",
    "gdp_epsilon", "status", "reason",
}  # fmt: skip


def test_summary_json_is_the_contract(tmp_path):
    plan = tiny.mechanism(unit="person")
    tiny.run(plan=plan, out=tmp_path, delta=DELTA, seed=9, about={"task": "toy", "model": "mlp", "data": {"name": "x"}})
    summary = read_json(tmp_path / "summary.json")
    privacy = summary["privacy"]
    assert summary.keys() >= SUMMARY
    assert privacy.keys() >= PRIVACY
    readings = plan.spent(DELTA)
    assert {key: privacy[key] for key in PRIVACY} == {
        "epsilon": readings.epsilon,
        "delta": DELTA,
        "adjacency": "add-remove",
        "unit": "person",
        "sampler": "poisson",
        "accountant": "pld",
        "noise_multiplier": plan.noise_multiplier,
        "steps": tiny.STEPS,
        "rate": tiny.BATCH / tiny.N,
        "rdp_epsilon": readings.rdp_epsilon,
        "gdp_epsilon": readings.gdp_epsilon,
        "status": "private",
        "reason": "every release is in the ledger",
    }
    assert (summary["task"], summary["model"], summary["seed"]) == ("toy", "mlp", 9)
    assert summary["data"] == {"name": "x", "n": tiny.N}


def test_summary_of_a_second_phase_counts_both(tmp_path):
    first, second = tiny.mechanism(steps=3), tiny.mechanism(steps=4, noise_multiplier=30.0)
    ledger = tiny.run(plan=first).ledger
    tiny.run(plan=second, ledger=ledger, out=tmp_path, delta=DELTA)
    privacy = read_json(tmp_path / "summary.json")["privacy"]
    assert privacy["epsilon"] == pld_epsilon([*first.events(), *second.events()], DELTA, "add-remove")
    assert privacy["epsilon"] > privacy["plan_epsilon"]
    assert privacy["rdp_epsilon"] > privacy["epsilon"]


def test_replace_one_has_no_rdp_reading(tmp_path):
    tiny.run(plan=tiny.mechanism(adjacency="replace-one"), out=tmp_path)
    privacy = read_json(tmp_path / "summary.json")["privacy"]
    assert (privacy["rdp_epsilon"], privacy["gdp_epsilon"]) == (None, None)
    assert privacy["epsilon"] > 0


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """A private run with the config.toml that the command line would write."""
    folder = RunFolder(tmp_path_factory.mktemp("finished"))
    tiny.run(out=folder.path, delta=1e-3)
    privacy = read_json(folder.summary)["privacy"]
    settings = {key: privacy[key] for key in ("delta", "adjacency", "sampler", "noise_multiplier", "steps")}
    folder.config.write_text(tomli_w.dumps({**settings, "epsilon": 1.001 * privacy["plan_epsilon"]}))
    return folder


EDITS = {
    "epsilon": lambda value: 0.95 * value,
    "rdp_epsilon": lambda value: 0.95 * value,
    "gdp_epsilon": lambda value: 0.95 * value,
    "plan_epsilon": lambda value: 1.01 * value,
    "delta": lambda value: value / 2,
    "adjacency": lambda value: "zero-out",
    "unit": lambda value: "person",
    "sampler": lambda value: "shuffle",
    "noise_multiplier": lambda value: 2 * value,
    "steps": lambda value: value + 1,
    "strength": lambda value: "none",
    "status": lambda value: "not-proven",
}


@pytest.mark.parametrize("entry", EDITS)
def test_an_edited_figure_of_a_summary_is_not_shown(entry, finished, tmp_path):
    shutil.copytree(finished.path, tmp_path / "run")
    folder = RunFolder(tmp_path / "run")
    summary = read_summary(folder)
    summary["privacy"][entry] = EDITS[entry](summary["privacy"][entry])
    write_json(folder.summary, summary)
    with pytest.raises(RunError, match=r"edited or\s+damaged"):
        read_summary(folder)

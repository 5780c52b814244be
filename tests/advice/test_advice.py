"""A piece of advice: its command, and what it costs."""

from __future__ import annotations

import math
import shlex

from helpers.evidence import evidence
from noisewise.advice.advice import another_run, rerun
from noisewise.advice.rules import noise_bound


def test_a_rerun_keeps_the_budget() -> None:
    assert rerun(evidence(folder="my runs/a/"), "x", "--set", "lr=1") == shlex.join(
        ["noisewise", "train", "--config", "my runs/a/config.toml", "--set", "lr=1", "--out", "my runs/a-x"]
    )
    fixed = shlex.split(rerun(evidence(settings={"epsilon": None}, epsilon=2.5), "x"))
    assert fixed[fixed.index("--epsilon") + 1] == "2.5"


def test_what_another_run_costs_is_said() -> None:
    text = another_run(evidence())
    assert "epsilon 3.00 each" in text
    assert "4.50 for both" in text
    assert "not private" in another_run(evidence(epsilon=math.inf))


def test_the_json_form_has_what_the_report_reads() -> None:
    advice = noise_bound(evidence(settings={"batch_size": 50, "steps": 1000}))
    assert advice is not None
    raw = advice.to_dict()
    assert {"advice", "evidence", "gain", "command"} <= set(raw)
    assert all(isinstance(text, str) and text for text in raw.values())

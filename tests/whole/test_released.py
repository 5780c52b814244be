"""Released files tell nothing of the drawn batches: no time, no batch size, no number of micro-batches, no memory use."""

from __future__ import annotations

import json
import tomllib
from typing import Any

import pytest

from helpers import tiny
from noisewise.runs.folder import RunFolder
from noisewise.runtime import Runtime
from noisewise.workflow.config import configure
from noisewise.workflow.execution import execute

FILES = ("run.json", "summary.json", "ledger.json", "metrics.jsonl", "mechanism.json")
ENTRIES = {  # adding one is a decision: it must not depend on what was drawn
    "run.json": "format state status reason versions noisewise python torch numpy dp-accounting "
    "hardware machine cores threads gpus files config.toml mechanism.json model.safetensors ledger.json metrics.jsonl "
    "summary.json README.md",
    "metrics.jsonl": "step epsilon valid_loss",
    "ledger.json": "format adjacency unit reproducible lines event kind rate noise_multiplier purpose count first_step",
    "summary.json": "format privacy epsilon plan_epsilon delta adjacency unit sampler accountant noise_multiplier steps rate "
    "rdp_epsilon gdp_epsilon status reason strength task data name public test classes shape n model repairs communication "
    "seed dense values indices seeds share",
    "config.toml": "format data valid model seed epsilon noise_multiplier delta adjacency sampler batch_size steps clip bound "
    "screen optimizer lr momentum ema twin twin_lr engine microbatch insecure_seed test drop_unlabelled public device secure "
    "repairs",
    "mechanism.json": "sampler kind n batch_size clip rule bound noise_multiplier steps support fixed adjacency unit",
}


def names(content: Any) -> set[str]:
    """All keys of a nest."""
    if isinstance(content, dict):
        return set(content).union(*map(names, content.values()))
    return set().union(*map(names, content)) if isinstance(content, list) else set()


def test_two_runs_of_a_plan_release_the_same_files_but_for_the_weights(tmp_path) -> None:
    """Their batches and noise are drawn anew: what is equal does not depend on them. Micro-batches are not told either."""
    drawn: dict[str, list[int]] = {}
    for name, runtime in (("a", Runtime()), ("b", Runtime(microbatch=3))):
        watch = [lambda seen, sizes=drawn.setdefault(name, []): sizes.append(len(seen.units))]
        tiny.run(out=tmp_path / name, runtime=runtime, delta=1e-3, recorders=watch)
    assert drawn["a"] != drawn["b"]
    for file in FILES[1:]:
        assert (tmp_path / "a" / file).read_bytes() == (tmp_path / "b" / file).read_bytes(), file
    about = [json.loads((tmp_path / name / "run.json").read_text()) for name in "ab"]
    digests = [one["files"].pop("model.safetensors") for one in about]  # follow from the weights, which are released
    assert about[0] == about[1]
    assert digests[0] != digests[1]
    assert (tmp_path / "a/model.safetensors").read_bytes() != (tmp_path / "b/model.safetensors").read_bytes()


@pytest.mark.parametrize("file", ENTRIES)
def test_released_files_have_these_entries_only(file: str, run: RunFolder) -> None:
    text = (run.path / file).read_text()
    reading = {
        "toml": tomllib.loads,
        "json": json.loads,
        "jsonl": lambda lines: list(map(json.loads, lines.splitlines())),
    }
    assert names(reading[file.partition(".")[2]](text)) <= set(ENTRIES[file].split())


@pytest.fixture(scope="module")
def run(tmp_path_factory) -> RunFolder:
    config = configure(data="digits", model="logistic", noise_multiplier=4.0, steps=2, batch_size=64, twin=False)
    return execute(config, tmp_path_factory.mktemp("run") / "a", progress=False)


def test_nothing_else_lies_outside_the_secrets(run: RunFolder) -> None:
    outside = {path.name for path in run.path.iterdir()}
    assert outside == {*ENTRIES, "README.md", "model.safetensors", "sensitive"}
    assert run.sensitive.stat().st_mode & 0o777 == 0o700

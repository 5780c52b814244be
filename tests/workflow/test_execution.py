"""A config carried out: its folder, its twin, resuming."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from helpers.ranks import on_ranks
from noisewise.data import load
from noisewise.data.marks import mark_of
from noisewise.distributed import ALONE
from noisewise.errors import ConfigError, RunError
from noisewise.runs.files import read_json
from noisewise.runs.folder import RunFolder
from noisewise.runs.states import read_states
from noisewise.support import EVERYTHING
from noisewise.workflow import execution
from noisewise.workflow.config import Config, configure, plan
from noisewise.workflow.execution import execute, finished, prepare
from noisewise.workflow.opened import open_run
from noisewise.workflow.plan import Planned


def quick(**given) -> Config:
    return configure(**({"data": "digits", "noise_multiplier": 4.0, "steps": 3, "batch_size": 64} | given))


# --- running
def test_a_run_holds_what_the_contract_says(run: RunFolder) -> None:
    assert {path.name for path in run.path.iterdir()} == {
        "run.json", "config.toml", "model.safetensors", "ledger.json", "metrics.jsonl", "summary.json", "mechanism.json",
        "README.md", "sensitive",
    }  # fmt: skip
    assert {path.name for path in run.sensitive.iterdir()} == {"twin.safetensors", "identity.json", "lock"}
    assert run.sensitive.stat().st_mode & 0o777 == 0o700
    summary = read_json(run.summary)
    assert set(summary["privacy"]) >= {
        "epsilon", "delta", "adjacency", "unit", "sampler", "accountant", "noise_multiplier", "steps", "rate",
        "rdp_epsilon", "gdp_epsilon", "status", "reason",
    }  # fmt: skip
    assert (summary["task"], summary["model"], summary["repairs"]) == ("classification", "cnn", [])
    about = {"name": "digits", "public": True, "classes": 10, "shape": [1, 8, 8], "n": 1258}
    assert summary["data"] == {**about, "test": mark_of(load("digits").test).hex()}  # rows that are public
    assert Config.read(run.config) == quick()
    text = "".join(path.read_text() for path in run.path.glob("*.json*"))
    assert str(run.path) not in text


def test_the_twin_starts_where_the_private_model_starts(tmp_path) -> None:
    config = quick(lr=1e-12, twin_lr=1e-12, steps=1)
    found = open_run(execute(config, tmp_path / "a", progress=False).path)
    start = prepare(config).model
    assert found.twin is not None
    for model in (found.model, found.twin):
        for mine, initial in zip(model.parameters(), start.parameters(), strict=True):
            torch.testing.assert_close(mine, initial, rtol=0, atol=1e-6)


def test_the_twin_is_not_repaired(tmp_path, monkeypatch) -> None:
    """Same start, data and steps; no masks, no phases, no averaged views."""
    seen = []
    monkeypatch.setattr(
        "noisewise.workflow.execution._fit", lambda config, recipe, *_, **how: seen.append((recipe, how)) or 1 / 0
    )
    planned = plan(
        data="digits", noise_multiplier=4.0, batch_size=64, epochs=4, model="cnn",
        repairs=("first-phase:epochs=1", "stage-wise-freezing:at=0.5,shares=0.4", "augmentation:views=2"),
    )  # fmt: skip
    with pytest.raises(ZeroDivisionError):
        execute(planned, tmp_path / "a", progress=False)
    (private, _), twin = seen[0], execution._twin(planned.config, planned.recipe)
    assert len(private.phases) == 1
    assert private.augment.views == 2
    assert (twin.phases, twin.repairs, twin.augment, twin.mechanism.support) == ((), (), None, EVERYTHING)
    assert twin.mechanism.steps == planned.config.steps == private.mechanism.steps + private.phases[0].mechanism.steps
    assert twin.model is private.model


@pytest.mark.parametrize(
    "repairs",
    [
        ("lora:rank=2",), ("first-phase:epochs=1,clip=global", "fine-tuning-of-a-part"), ("global-adapt",),
        *(
            pytest.param(texts, marks=pytest.mark.slow)
            for texts in (
                ("moving-average:decay=0.5",), ("random-sparsification:final=0.5", "global-clipping"),
                ("magnitude-pruning:source=random",), ("local-then-global-clipping:share=0.5",),
            )
        ),
    ],
    ids=" and ".join,
)  # fmt: skip
def test_repairs_by_name_keep_the_budget_and_can_be_opened(repairs, tmp_path) -> None:
    planned = plan(data="digits", epsilon=2.0, batch_size=200, epochs=2, model="cnn", twin=False, repairs=repairs)
    spent = planned.recipe.epsilon(planned.config.delta)
    assert 1.9 < spent <= 2.0
    again = Planned.of(planned.config).recipe  # from config.toml alone
    assert again.lines() == planned.recipe.lines()
    folder = execute(planned, tmp_path / "a", progress=False)
    summary = read_json(folder.summary)
    assert summary["privacy"]["epsilon"] == pytest.approx(spent, rel=1e-3)
    assert len(summary["repairs"]) == len(repairs)
    opened = open_run(folder.path)
    assert opened.model(opened.data.test.x[:3]).shape == (3, 10)
    assert Config.read(folder.config) == planned.config


def test_an_interrupted_phase_is_resumed(tmp_path, monkeypatch) -> None:
    wanted = {"data": "digits", "noise_multiplier": 4.0, "batch_size": 200, "epochs": 2, "model": "mlp", "twin": False}
    planned = plan(**wanted, insecure_seed=3, repairs=("first-phase:epochs=1,clip=automatic",))
    whole = execute(planned, tmp_path / "whole", progress=False)
    from noisewise import recipe

    genuine, calls = recipe.train, []

    def stopping(*args, **how):
        calls.append(1)
        return genuine(*args, **how) if len(calls) == 1 else 1 / 0

    monkeypatch.setattr(recipe, "train", stopping)
    with pytest.raises(ZeroDivisionError):
        execute(planned, tmp_path / "part", progress=False)
    monkeypatch.undo()
    part = execute(planned, tmp_path / "part", resume=True, progress=False)
    assert part.model.read_bytes() == whole.model.read_bytes()
    assert part.ledger.read_text() == whole.ledger.read_text()


def test_the_same_plan_again_has_fresh_noise(run: RunFolder, tmp_path) -> None:
    again = open_run(execute(Config.read(run.config), tmp_path / "b", progress=False).path)
    first = open_run(run.path)
    assert again.config == first.config
    assert read_json(again.folder.ledger) == read_json(run.ledger)
    assert not torch.equal(next(first.model.parameters()), next(again.model.parameters()))


def test_a_taken_folder_is_not_overwritten(run: RunFolder) -> None:
    with pytest.raises(RunError, match="holds a finished run"):
        execute(quick(), run.path, progress=False)
    with pytest.raises(ConfigError, match=r"other settings: lr was 0.5, now 0.25"):
        execute(quick(lr=0.25), run.path, resume=True, progress=False)


def test_resume_does_only_what_is_missing(tmp_path) -> None:
    config = quick(insecure_seed=1)
    folder = execute(config, tmp_path / "a", progress=False)
    model, twin = folder.model.read_bytes(), folder.twin_weights.read_bytes()
    assert finished(config, folder.path)
    folder.twin_weights.unlink()
    folder.checkpoint.write_bytes(b"left by a kill between the last two acts")
    assert not finished(config, folder.path)
    with pytest.raises(RunError, match="unfinished"):
        execute(config, folder.path, progress=False)
    execute(config, folder.path, resume=True, progress=False)
    assert not folder.checkpoint.exists()
    assert (folder.model.read_bytes(), folder.twin_weights.read_bytes()) == (model, twin)


def test_all_rows_can_be_trained_on(tmp_path) -> None:
    folder = execute(quick(valid=0, twin=False, steps=1), tmp_path / "a", progress=False)
    assert read_json(folder.summary)["data"]["n"] == 1438


# --- another twin
def test_a_finished_run_gets_another_twin_and_nothing_else(tmp_path) -> None:
    config = quick()
    folder = execute(config, tmp_path / "a", progress=False)
    model, twin, ledger = (path.read_bytes() for path in (folder.model, folder.twin_weights, folder.ledger))
    folder.audits.mkdir()
    for name in ("disparity", "engine-epsilon"):  # the second compares with no twin
        folder.audit(name).write_text("{}")
    execute(replace(config, twin_lr=config.twin_lr / 3), folder.path, resume=True, progress=False)
    assert (folder.model.read_bytes(), folder.ledger.read_bytes()) == (model, ledger)
    assert folder.twin_weights.read_bytes() != twin
    assert Config.read(folder.config).twin_lr == config.twin_lr / 3
    assert not folder.changed(folder.config)
    assert not folder.audit("disparity").exists()
    assert folder.audit("engine-epsilon").exists()
    with pytest.raises(ConfigError, match="lr was"):
        execute(replace(config, lr=config.lr / 3), folder.path, resume=True, progress=False)
    edited = replace(config, momentum=0.1, twin_lr=config.twin_lr / 3)
    folder.config.write_text(edited.to_toml())
    with pytest.raises(RunError, match="is not what the run wrote"):
        execute(replace(edited, twin_lr=1.0), folder.path, resume=True, progress=False)


def test_a_finished_run_gets_a_twin_later_and_nothing_else(tmp_path) -> None:
    config = quick(twin=False)
    folder = execute(config, tmp_path / "a", progress=False)
    released = (folder.model.read_bytes(), folder.ledger.read_bytes())
    execute(replace(config, twin=True), folder.path, resume=True, progress=False)
    assert (folder.model.read_bytes(), folder.ledger.read_bytes()) == released
    assert folder.twin_weights.exists()
    assert Config.read(folder.config).twin
    assert not folder.changed(folder.config)
    execute(config, folder.path, resume=True, progress=False)  # nobody's twin is deleted by not asking for one
    assert folder.twin_weights.exists()
    assert not folder.changed(folder.config)
    folder.config.write_text(replace(config, momentum=0.1).to_toml())
    with pytest.raises(RunError, match="is not what the run wrote"):
        execute(replace(config, momentum=0.1, twin=True), folder.path, resume=True, progress=False)


# --- several processes
def shared(team, out, sharded, config) -> None:
    execute(config, out, progress=False, team=team, sharded=sharded)


@pytest.mark.filterwarnings("ignore:FSDP2-wrapped module:UserWarning")
def test_a_schedule_and_kept_states_on_two_processes_are_those_of_one(tmp_path) -> None:
    given = {"model": "mlp", "steps": 6, "keep_states": 3, "insecure_seed": 1, "twin": False, "lr": 0.5}
    config = quick(schedule="cosine:last=0.1,warmup=0.3", **given)
    shared(ALONE, tmp_path / "one", False, config)
    shared(ALONE, tmp_path / "constant", False, quick(**given))
    ways = {"two": False, "spread": True}
    for name, sharded in ways.items():
        on_ranks(2, shared, tmp_path / name, sharded, config)
    one, constant, *several = (RunFolder(tmp_path / name) for name in ("one", "constant", *ways))
    expected = read_states(one)
    assert [step for step, _ in expected] == [0, 2, 4]
    for folder in several:
        states = read_states(folder)
        assert [step for step, _ in states] == [0, 2, 4]
        for (_, state), (_, other) in zip(expected, states, strict=True):
            assert state.keys() == other.keys()
            for name in state:
                torch.testing.assert_close(state[name], other[name], rtol=0, atol=1e-6)
        for path in ("ledger.json", "mechanism.json", "config.toml"):
            assert (folder.path / path).read_bytes() == (one.path / path).read_bytes()
    late, without = expected[-1][1], read_states(constant)[-1][1]
    assert max(float((late[name] - without[name]).abs().max()) for name in late) > 1e-3  # the schedule does something

from __future__ import annotations

import json
from dataclasses import replace

import pytest
import torch

from noisewise import clipping
from noisewise.audits import AUDITS, read
from noisewise.errors import ConfigError, PrivacyError, RunError
from noisewise.mechanism import Mechanism
from noisewise.runs.files import read_json
from noisewise.runs.folder import RunFolder
from noisewise.sampling import SAMPLERS, Poisson
from noisewise.workflow.choices import CLIPS, OPTIMIZERS
from noisewise.workflow.config import Config, configure
from noisewise.workflow.execution import execute, finished, prepare
from noisewise.workflow.opened import NEEDS, accuracy, audit, open_run
from noisewise.workflow.plan import Planned


def quick(**given) -> Config:
    return configure(**({"data": "digits", "noise_multiplier": 4.0, "steps": 3, "batch_size": 64} | given))


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    return execute(quick(), tmp_path_factory.mktemp("run") / "a", progress=False)


# --- config


def test_defaults_are_filled_in_and_the_budget_is_met() -> None:
    config = configure(data="digits", epsilon=3.0)
    assert (config.model, config.delta, config.adjacency, config.sampler) == ("cnn", 1e-5, "add-remove", "poisson")
    plan = Mechanism(
        sampler=Poisson(1258, config.batch_size), steps=config.steps, noise_multiplier=config.noise_multiplier
    )
    spent = plan.epsilon(config.delta)
    assert spent is not None
    assert 2.98 < spent <= 3


@pytest.mark.parametrize("given", [{}, {"ema": 0.9, "microbatch": 16, "insecure_seed": 3, "twin": False}])
def test_a_config_survives_toml(given) -> None:
    config = quick(**given)
    assert Config.from_toml(config.to_toml()) == config


def test_a_global_clip_survives_toml() -> None:
    config = quick(clip="global", screen=3.0)
    assert Config.from_toml(config.to_toml()) == config
    assert prepare(config).mechanism.clip == clipping.Global(0.5, 3.0)


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("epsilom = 3", "unknown entries epsilom"),
        ("lr = 'fast'", "lr='fast': must be of type float"),
        ("steps = 2.5", "steps=2.5: must be of type int"),
        ("twin = 1", "twin=1: must be of type bool"),
        ("clip = 'round'", "clip='round': must be one of flat"),
        ("optimizer = 'lion'", "optimizer='lion': must be one of sgd"),
        ("sampler = 'any'", "sampler='any'"),
        ("model = 'gpt'", "Known models"),
        ("momentum = 1.5", r"momentum=1.5: must be in \[0, 1\)"),
        ("seed = -1", "seed=-1"),
        ("screen = 2", "only global clipping screens"),
        ("format = 2", "reads `format = 1`"),
        ("lr = ", "not valid TOML"),
        ("# lr", "lr missing; a config is complete"),
    ],
)
def test_damaged_configs_are_refused_with_the_entry(line: str, message: str) -> None:
    key = line.removeprefix("# ").partition(" ")[0]
    kept = [entry for entry in quick().to_toml().splitlines() if entry.partition(" ")[0] != key]
    with pytest.raises(ConfigError, match=message):
        Config.from_toml("\n".join([*kept, line]))


def test_a_config_that_understates_its_epsilon_is_refused() -> None:
    config = replace(quick(), epsilon=0.01)
    with pytest.raises(PrivacyError, match=r"more than the epsilon=0.01"):
        prepare(config)


def test_changes_over_a_config_recalibrate_only_where_the_plan_changes() -> None:
    base = configure(data="digits", epsilon=3.0, steps=5)
    assert configure(base, lr=0.1).noise_multiplier == base.noise_multiplier
    assert configure(base, epsilon=3.0) == base
    stricter = configure(base, epsilon=1.0)
    assert stricter.noise_multiplier > 2 * base.noise_multiplier
    assert configure(base, epochs=2.0).steps == 5  # ceil(2 * 1258 / 512)
    for change in ({"steps": 10}, {"batch_size": 256}):
        other = configure(base, **change)
        assert other.noise_multiplier != base.noise_multiplier, change
        assert prepare(other).mechanism.epsilon(other.delta) <= 3.0
    free = configure(base, noise_multiplier=1.0)
    assert (free.epsilon, free.noise_multiplier) == (None, 1.0)


def test_a_rule_without_screen_replaces_one_with() -> None:
    assert configure(quick(clip="global", screen=3.0), clip="flat").screen is None


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"noise_multiplier": None}, "how private"),
        ({"epsilon": 1.0}, "one follows from the other"),
        ({"epochs": 1.0}, "give one of them"),
        ({"colour": "red"}, "unknown settings colour"),
        ({"data": "nope"}, "Known data sets"),
        ({"batch_size": 5000}, "outside"),
        ({"sampler": "full-batch"}, "leave it out"),
    ],
)
def test_contradictions_are_refused(given, message) -> None:
    with pytest.raises(ConfigError, match=message):
        prepare(quick(**given))


def test_samplers_have_their_own_defaults() -> None:
    assert quick(sampler="shuffle").adjacency == "zero-out"
    full = configure(data="digits", noise_multiplier=4.0, epochs=3.0, sampler="full-batch")
    assert (full.batch_size, full.steps) == (1258, 3)
    assert prepare(full).mechanism.sampler.rate == 1


@pytest.mark.parametrize("clip", CLIPS)
def test_every_rule_can_be_named_and_keeps_the_stated_epsilon(clip):
    config = configure(data="digits", epsilon=3.0, steps=5, clip=clip)
    recipe = prepare(config)
    assert recipe.mechanism.epsilon(config.delta) <= 3.0
    assert recipe.mechanism.epsilon(config.delta) > 2.99


def test_a_rule_that_asks_something_leaves_the_gradient_more_noise():
    flat, asking = (configure(data="digits", epsilon=3.0, steps=5, clip=clip) for clip in ("flat", "quantile"))
    assert asking.noise_multiplier > flat.noise_multiplier
    changed = configure(flat, clip="quantile")
    assert changed.noise_multiplier == pytest.approx(asking.noise_multiplier)


def test_per_layer_clipping_keeps_the_bound_in_total() -> None:
    mechanism = prepare(quick(clip="per-layer", bound=0.7)).mechanism
    assert mechanism.clip_at(0).sensitivity == pytest.approx(0.7)


@pytest.mark.parametrize("name", list(OPTIMIZERS))
def test_every_optimizer_takes_a_step(name: str, tmp_path) -> None:
    folder = execute(quick(optimizer=name, steps=1, twin=False), tmp_path / name, progress=False)
    assert folder.complete


# --- running


def test_a_run_holds_what_the_contract_says(run: RunFolder) -> None:
    assert {path.name for path in run.path.iterdir()} == {
        "run.json", "config.toml", "model.safetensors", "ledger.json", "metrics.jsonl", "summary.json", "sensitive",
    }  # fmt: skip
    assert {path.name for path in run.sensitive.iterdir()} == {"twin.safetensors", "identity.json", "lock"}
    assert run.sensitive.stat().st_mode & 0o777 == 0o700
    summary = read_json(run.summary)
    assert set(summary["privacy"]) >= {
        "epsilon", "delta", "adjacency", "unit", "sampler", "accountant", "noise_multiplier", "steps", "rate",
        "rdp_epsilon", "gdp_epsilon", "status", "reason",
    }  # fmt: skip
    assert (summary["task"], summary["model"], summary["repairs"]) == ("classification", "cnn", [])
    assert summary["data"] == {"name": "digits", "public": True, "classes": 10, "n": 1258}
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


def test_a_run_is_rebuilt_in_evaluation_mode(run: RunFolder) -> None:
    found = open_run(run.path)
    assert found.status.status == "private"
    assert not found.model.training
    assert found.twin is not None
    assert not torch.equal(next(found.model.parameters()), next(found.twin.parameters()))
    assert 0 <= accuracy(found.model, found.data.valid) <= 1


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


def test_unfinished_and_foreign_folders_are_refused(run: RunFolder, tmp_path) -> None:
    with pytest.raises(RunError, match="is no run folder"):
        open_run(tmp_path)
    (tmp_path / "run.json").write_text('{"state": "interrupted"}')
    with pytest.raises(RunError, match=f"unfinished run.*--resume --out {tmp_path}"):
        open_run(tmp_path)
    other = execute(quick(twin=False), tmp_path / "c", progress=False)
    other.model.write_bytes(b"not weights")
    with pytest.raises(RunError, match="does not hold the weights"):
        open_run(other.path)


def test_all_rows_can_be_trained_on(tmp_path) -> None:
    folder = execute(quick(valid=0, twin=False, steps=1), tmp_path / "a", progress=False)
    assert read_json(folder.summary)["data"]["n"] == 1438


# --- audits of runs


def test_an_audit_is_saved_among_the_secrets(run: RunFolder) -> None:
    result = audit(open_run(run.path), "disparity")
    saved = json.loads((run.sensitive / "audits" / "disparity.json").read_text())
    assert saved["settings"]["rows"] == 359
    assert saved["status"]["status"] == result.status.status == "not-private"
    with pytest.raises(ConfigError, match="audit 'x': unknown"):
        audit(open_run(run.path), "x")


def test_an_audit_is_no_more_private_than_its_model(tmp_path) -> None:
    folder = execute(quick(twin=False, insecure_seed=1), tmp_path / "a", progress=False)
    assert audit(open_run(folder.path), "disparity").status.reason == "noise reproducible: do not publish"


# --- audits of a finished run


@pytest.fixture(scope="module")
def audited(tmp_path_factory):
    folder = tmp_path_factory.mktemp("audited") / "run"
    execute(configure(data="digits", noise_multiplier=4.0, steps=3, batch_size=64), folder, progress=False)
    return open_run(folder)


@pytest.mark.parametrize("name", [name for name in AUDITS if name not in ("engine-epsilon", "reconstruction")])
def test_every_audit_of_a_run_can_be_asked_by_name(audited, name):
    result = audit(audited, name)
    stored = audited.folder.sensitive / "audits" / f"{name}.json"
    assert read(stored).to_dict() == result.to_dict()
    assert result.sentences()


def test_a_regression_is_trained_and_audited(tmp_path):
    config = configure(data="signal_noise", noise_multiplier=4.0, steps=3, batch_size=64)
    assert config.model == "mlp"
    execute(config, tmp_path / "run", progress=False)
    run = open_run(tmp_path / "run")
    assert audit(run, "disparity").kind == "disparity-regression"
    with pytest.raises(ConfigError, match="needs classes, this run is a regression"):
        audit(run, "calibration")


def test_an_opened_run_uses_what_is_loaded_only_for_the_same_settings(run) -> None:
    known, other = Planned.of(Config.read(run.config)), Planned.of(quick(seed=1))
    assert open_run(run.path, known).data is known.data
    opened = open_run(run.path, other)
    assert opened.config == known.config
    assert torch.equal(opened.data.test.x, known.data.test.x)
    assert not torch.equal(opened.data.test.x, other.data.test.x)


def test_what_audits_need_is_made_once_and_nothing_else_is_known(run) -> None:
    opened = open_run(run.path)
    assert {need for audit in AUDITS.values() for need in audit.needs} == set(NEEDS)
    for need in ("mechanism", "loss_fn", "start"):
        assert opened.needed(need) is opened.needed(need)
    assert opened.needed("path") == (opened.start,)
    with pytest.raises(ConfigError, match="an audit needs 'folder', which a run does not have"):
        opened.needed("folder")


def test_rules_and_optimizers_are_offered_in_their_order() -> None:
    words = "flat global automatic normalized per-sample per-layer quantile global-adapt"
    assert list(CLIPS) == words.split()
    assert list(OPTIMIZERS) == ["sgd", "adam", "adamw", "rmsprop"]
    for option, known in {"clip": CLIPS, "optimizer": OPTIMIZERS, "sampler": SAMPLERS}.items():
        with pytest.raises(ConfigError, match=f"{option}='no': must be one of {', '.join(known)}."):
            replace(quick(), **{option: "no"})

"""Every setting of a config acts: two runs that differ in it alone, and what of their folders must differ."""

import inspect
import json
from dataclasses import replace

import pytest
import torch

from noisewise.data.tables.kinds import Classes, Number
from noisewise.data.tables.schema import Schema
from noisewise.errors import ConfigError, DataError
from noisewise.runs.folder import RunFolder
from noisewise.runs.states import read_states
from noisewise.workflow.config import Config, configure, plan
from noisewise.workflow.execution import execute, prepare
from noisewise.workflow.opened import audit, open_run

BASE = {
    "data": "digits", "model": "mlp", "noise_multiplier": 40.0, "steps": 2, "batch_size": 300, "valid": 50, "twin": False,
    "insecure_seed": 1, "ema": None, "lr": 0.5, "delta": 1e-4,
}  # fmt: skip


def ran(tmp_path, **given):
    """A run of two steps: its public files, and the names of its secret ones."""
    folder = execute(configure(**{**BASE, **given}), tmp_path / str(len(list(tmp_path.iterdir()))), progress=False)
    secrets = sorted(path.name for path in folder.sensitive.iterdir())
    return {
        "weights": folder.model.read_bytes(),
        "ledger": folder.ledger.read_text(),
        "summary": json.loads(folder.summary.read_text()),
        "metrics": folder.metrics.read_text(),
        "secrets": secrets,
        "twin": (folder.sensitive / "twin.safetensors").read_bytes() if "twin.safetensors" in secrets else None,
    }


# setting: another value (with what goes with it in both runs), and what must differ
SETTINGS = {
    "data": ({"data": "two_patch", "model": "two-layer-cnn"}, {}, "weights"),
    "valid": ({"valid": 60}, {}, "weights"),
    "model": ({"model": "cnn"}, {}, "weights"),
    "seed": ({"seed": 3}, {}, "weights"),
    "epsilon": ({"epsilon": 0.1}, {"epsilon": 0.2, "noise_multiplier": None, "insecure_seed": None}, "summary"),
    "noise_multiplier": ({"noise_multiplier": 50.0}, {}, "ledger"),
    "delta": ({"delta": 1e-5}, {"insecure_seed": None}, "summary"),
    "adjacency": ({"adjacency": "replace-one"}, {}, "ledger"),
    "sampler": ({"sampler": "shuffle", "adjacency": "zero-out"}, {}, "weights"),
    "batch_size": ({"batch_size": 310}, {}, "ledger"),
    "steps": ({"steps": 3}, {}, "ledger"),
    "clip": ({"clip": "automatic"}, {}, "weights"),
    "bound": ({"bound": 0.1}, {}, "weights"),
    "screen": ({"screen": 3.0}, {"clip": "global-adapt", "screen": 5.0}, "weights"),
    "optimizer": ({"optimizer": "adam"}, {}, "weights"),
    "lr": ({"lr": 0.1}, {}, "weights"),
    "momentum": ({"momentum": 0.1}, {}, "weights"),
    "ema": ({"ema": 0.15}, {"ema": 0.1}, "weights"),
    "schedule": ({"schedule": "linear:last=0.1"}, {}, "weights"),
    "keep_states": ({"keep_states": 2}, {}, "secrets"),
    "twin": ({"twin": True}, {}, "secrets"),
    "twin_lr": ({"twin_lr": 0.2}, {"twin": True, "twin_lr": 0.1}, "twin"),
    "engine": ({"engine": "loop"}, {}, "weights"),  # by rounding
    "microbatch": ({"microbatch": 7}, {}, "weights"),  # by rounding
    "memory": ({"memory": "small"}, {}, "weights"),  # by rounding
    "insecure_seed": ({"insecure_seed": 2}, {}, "weights"),
    "device": ({"device": "nowhere"}, {}, None),
    "secure": ({"secure": True}, {}, "weights"),
    "recipe": (
        {"recipe": "scattering-linear:scales=1,angles=2,power=0.5"},
        {"recipe": "scattering-linear:scales=1,angles=2", "model": None},
        "weights",
    ),
    "repairs": ({"repairs": ("moving-average:decay=0.2",)}, {}, "weights"),
}
OF_TABLES = ("test", "drop_unlabelled", "public")


@pytest.mark.parametrize("setting", SETTINGS)
def test_every_setting_of_a_config_acts(setting, tmp_path):
    other, common, differs = SETTINGS[setting]
    if differs is None:  # there is only one that can be used everywhere
        with pytest.raises(ConfigError, match="nowhere"):
            ran(tmp_path, **other)
        return
    one, second = ran(tmp_path, **common), ran(tmp_path, **{**common, **other})
    assert one[differs] != second[differs], f"{setting} changes nothing of {differs}"


def test_without_another_setting_nothing_differs(tmp_path):
    assert ran(tmp_path, twin=True) == ran(tmp_path, twin=True)


def test_no_setting_is_without_a_proof():
    assert set(inspect.signature(Config).parameters) == {*SETTINGS, *OF_TABLES}


@pytest.mark.filterwarnings("ignore:30 of 300 rows have no label")
def test_settings_of_tables_act(tmp_path):
    """Which rows are looked at, what becomes of rows without a label, and whether metrics may be shown."""
    rows = [f"{k % 70},{'' if k % 10 == 9 else 'yes' if k % 4 else 'no'}" for k in range(300)]
    (tmp_path / "t.csv").write_text("\n".join(["age,hired", *rows]) + "\n")
    schema = Schema(label="hired", target=Classes(("no", "yes")), columns={"age": Number(0, 100)})
    base = {"data": str(tmp_path / "t.csv"), "noise_multiplier": 4.0, "steps": 1, "batch_size": 50, "valid": 0}

    def parts(**given):
        return plan(schema=schema, **{**base, "drop_unlabelled": True, **given}).data

    assert [len(parts(test=number).test) for number in (54, 135)] == [54, 135]
    assert [len(parts(test=share).test) for share in (0.2, 0.5)] == pytest.approx([54, 135], abs=30)
    assert [parts(public=public).test.public for public in (False, True)] == [False, True]
    with pytest.raises(DataError, match="label"):
        parts(drop_unlabelled=False)


def test_the_seed_is_that_of_the_split_the_model_and_the_masks(tmp_path):
    """Each of them on its own: another seed changes all three."""
    recipes = [prepare(configure(**{**BASE, "seed": seed})) for seed in (0, 0, 3)]
    for of in (lambda recipe: recipe.data.train.x, lambda recipe: next(recipe.model.parameters())):
        assert torch.equal(of(recipes[0]), of(recipes[1]))
        assert not torch.equal(of(recipes[0]), of(recipes[2]))
    assert ran(tmp_path, seed=3)["summary"]["seed"] == 3  # of `train`, which draws masks by it


def test_momentum_is_that_of_every_optimizer_that_has_one(tmp_path):
    for optimizer in ("sgd", "rmsprop"):
        runs = [ran(tmp_path, optimizer=optimizer, momentum=momentum)["weights"] for momentum in (0.0, 0.9)]
        assert runs[0] != runs[1]


def test_kept_states_are_the_path_of_a_run(tmp_path):
    """The start, then what was kept: audits along the run get models that differ."""
    run = open_run(execute(configure(**{**BASE, "keep_states": 2}), tmp_path / "run", progress=False).path)
    states = read_states(run.folder)
    assert [step for step, _ in states] == [0, 1]
    assert run.status.status == "not-private"  # so they are among the secrets
    assert run.folder.kept.exists()
    for model, (_, state) in zip(run.path, states, strict=True):
        assert all(torch.equal(weight, state[name]) for name, weight in model.state_dict().items())
    assert not torch.equal(states[0][1]["1.weight"], states[1][1]["1.weight"])
    with pytest.raises(ConfigError, match="keep_states=3 of 2 steps"):
        configure(**{**BASE, "keep_states": 3})


def test_a_schedule_has_no_single_learning_rate(tmp_path):
    run = open_run(execute(configure(**{**BASE, "schedule": "cosine"}), tmp_path / "run", progress=False).path)
    with pytest.raises(ConfigError, match="one learning rate for all steps"):
        audit(run, "convergence")


def test_held_out_rows_are_measured(tmp_path):
    assert "valid_loss" in ran(tmp_path)["metrics"]
    assert "valid_loss" not in ran(tmp_path, valid=0)["metrics"]


def test_an_audit_draws_by_the_seed_of_its_run(tmp_path):
    run = open_run(execute(configure(**{**BASE, "seed": 0}), tmp_path / "run", progress=False).path)
    found = [
        audit(replace(run, config=replace(run.config, seed=seed)), "robustness").values.sweep for seed in (0, 0, 1)
    ]
    assert found[0] == found[1]
    assert found[0] != found[2]
    assert RunFolder(tmp_path / "run").complete

"""A finished run, opened again and audited."""

from __future__ import annotations

import json
from dataclasses import replace
from functools import partial

import pytest
import torch

from helpers.people_schema import written
from noisewise.audits import AUDITS, read
from noisewise.data.tables.kinds import Classes, Number
from noisewise.data.tables.schema import Schema
from noisewise.errors import ConfigError, DataError, RunError
from noisewise.runs.folder import RunFolder
from noisewise.workflow.config import Config, configure, plan
from noisewise.workflow.execution import execute
from noisewise.workflow.opened import NEEDS, accuracy, audit, open_run
from noisewise.workflow.plan import Planned
from noisewise.workflow.released_score import release_score


def quick(**given) -> Config:
    return configure(**({"data": "digits", "noise_multiplier": 4.0, "steps": 3, "batch_size": 64} | given))


def test_a_run_is_rebuilt_in_evaluation_mode(run: RunFolder) -> None:
    found = open_run(run.path)
    assert found.status.status == "private"
    assert not found.model.training
    assert found.twin is not None
    assert not torch.equal(next(found.model.parameters()), next(found.twin.parameters()))
    assert 0 <= accuracy(found.model, found.data.valid) <= 1


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


def test_other_data_than_it_was_trained_on_are_refused(tmp_path) -> None:
    """A row more, or another cut: people of the training part would be taken for new ones."""
    path, schema = tmp_path / "t.csv", Schema(label="y", target=Classes(("no", "yes")), columns={"a": Number(0, 100)})
    rows = [f"{k % 97},{'yes' if k % 3 else 'no'}" for k in range(200)]
    path.write_text("\n".join(["a,y", *rows]) + "\n")
    settings = quick(data=str(path), model="logistic", twin=False, schema=schema)
    folder = execute(Planned.of(settings, schema), tmp_path / "run", progress=False)
    before = open_run(folder.path)
    assert before.data.train.units == before.mechanism.sampler.n
    path.write_text("\n".join(["a,y", *rows[1:]]) + "\n")
    for ask in (lambda: open_run(folder.path), lambda: release_score(folder.path, 1.0)):
        with pytest.raises(DataError, match=r"t\.csv is not what .* was trained on.*give the data back"):
            ask()


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
    config = configure(data="digits", model="logistic", noise_multiplier=4.0, steps=3, batch_size=64)
    execute(config, folder, progress=False)
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


def test_the_engine_is_asked_at_the_delta_of_the_run(tmp_path, monkeypatch) -> None:
    folder = execute(quick(twin=False, delta=1e-4), tmp_path / "run", progress=False)
    opened, asked = open_run(folder.path), AUDITS["engine-epsilon"]
    monkeypatch.setitem(AUDITS, asked.name, replace(asked, run=partial(asked.run, trials=200)))
    assert opened.needed("delta") == 1e-4
    found = audit(opened, asked.name)
    assert found.settings["delta"] == 1e-4
    assert "at delta 1e-04" in found.sentences()[0] or "at delta 0.0001" in found.sentences()[0]


def test_what_audits_need_is_made_once_and_nothing_else_is_known(run) -> None:
    opened = open_run(run.path)
    assert {need for audit in AUDITS.values() for need in audit.needs} == set(NEEDS)
    for need in ("mechanism", "loss_fn", "start"):
        assert opened.needed(need) is opened.needed(need)
    assert opened.needed("path") == (opened.start,)
    with pytest.raises(ConfigError, match="an audit needs 'folder', which a run does not have"):
        opened.needed("folder")


def test_other_rows_are_noticed_before_anything_is_planned_on_them(tmp_path) -> None:
    """Fewer of them would seem to cost more."""
    rows = {"age": [str(age) for age in range(100)] * 3, "ill": ["no", "yes"] * 150}
    written(tmp_path / "people.csv", rows)
    schema = Schema(label="ill", target=Classes(("no", "yes")), columns={"age": Number(0, 100)})
    given = {"epsilon": 3.0, "steps": 3, "batch_size": 50, "model": "logistic", "twin": False}
    planned = plan(data=str(tmp_path / "people.csv"), schema=schema, **given)
    folder = execute(planned, tmp_path / "run", progress=False)
    written(tmp_path / "people.csv", {name: values[:80] for name, values in rows.items()})
    with pytest.raises(DataError, match="is not what"):
        open_run(folder.path)


def test_a_model_with_another_number_of_outputs_is_refused(tmp_path) -> None:
    (tmp_path / "mine.py").write_text(
        "from torch import nn\ndef three(shape, outputs): return nn.Linear(shape[0], 3)\n"
    )
    written(tmp_path / "people.csv", {"age": ["3", "5"] * 50, "ill": ["no", "yes"] * 50})
    schema = Schema(label="ill", target=Classes(("no", "yes")), columns={"age": Number(0, 100)})
    with pytest.raises(ConfigError, match="gives 3 outputs for a row, and the data has 2 classes"):
        plan(
            data=str(tmp_path / "people.csv"), schema=schema, noise_multiplier=4.0, steps=3, batch_size=20,
            model=f"{tmp_path / 'mine.py'}:three",
        )  # fmt: skip

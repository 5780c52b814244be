"""A sweep: what it costs, that nothing is lost, and that only what is public or paid for decides."""

import json
import math

import numpy as np
import pytest

from helpers.people_schema import written
from helpers.remembered import remembered  # noqa: F401  accountants with a memory
from noisewise.accounting import Ledger, pld_epsilon
from noisewise.data.tables.kinds import Classes, Number
from noisewise.data.tables.schema import Schema
from noisewise.errors import ConfigError, Interrupted, PrivacyError, RunError
from noisewise.runs.files import read_json, write_json
from noisewise.runs.folder import RunFolder
from noisewise.runs.together import grouped, read_runs, run_folders
from noisewise.workflow import sweep as module
from noisewise.workflow.sweep import carry_out_sweep, plan_sweep
from noisewise.workflow.sweep_file import Sweep

SETTINGS = 'model = "logistic"\nsteps = 3\nbatch_size = 32\nnoise_multiplier = 4.0\nvalid = 60\n'


@pytest.fixture(scope="module")
def table(tmp_path_factory):
    """300 people of one column that says which class they are of, and their schema."""
    folder, generator = tmp_path_factory.mktemp("table"), np.random.default_rng(0)
    ages = generator.integers(0, 100, 300)
    rows = {"age": list(map(str, ages)), "ill": ["yes" if age > 50 else "no" for age in ages]}
    written(folder / "people.csv", rows)
    schema = Schema(label="ill", target=Classes(("no", "yes")), columns={"age": Number(0, 100)})
    (folder / "people.json").write_text(json.dumps(schema.to_dict()))
    return f'data = "{folder / "people.csv"}"\nschema = "{folder / "people.json"}"\n'


def private(table, more="", grid="lr = [0.01, 4.0]", settings=SETTINGS):
    return Sweep.from_toml(f"[train]\n{table}{settings}[sweep]\n{grid}\n{more}")


def planned(*args, **how):
    return plan_sweep(private(*args, **how), progress=False)


def test_the_price_is_that_of_all_runs_together_before_and_after(table, tmp_path):
    whole = planned(table)
    lines = [line for plan in whole.plans for line in plan.recipe.lines()]
    expected = pld_epsilon([(line.event, line.count) for line in lines], whole.delta, "add-remove")
    assert whole.together() == pytest.approx(expected, rel=1e-6)
    assert max(whole.epsilons) < whole.together() < sum(whole.epsilons)
    content = carry_out_sweep(whole, tmp_path / "out", progress=False)
    assert content["epsilon"] == pytest.approx(expected, rel=1e-6)
    assert (content["public"], content["score"], content["chosen"]) == (False, None, None)
    assert all(row["score"] is None for row in content["runs"])
    assert "score" not in (tmp_path / "out" / "jobs" / "run-01.json").read_text()


@pytest.mark.slow
def test_runs_of_a_schema_that_was_chosen_anew_are_not_added_as_if_it_were_the_same(table, tmp_path):
    whole = planned(table)
    carry_out_sweep(whole, tmp_path / "out", progress=False)
    schema = RunFolder(tmp_path / "out" / "run-01").schema
    write_json(schema, {**read_json(schema), "label": "other"})
    with pytest.raises(RunError, match="under another schema"):
        carry_out_sweep(whole, tmp_path / "out", progress=False)


def test_equal_rows_lie_in_memory_once():
    text = (
        '[train]\ndata = "digits"\nnoise_multiplier = 4\nsteps = 3\n'
        '[sweep]\nlr = [0.25, 0.5]\nrecipe = ["scattering-linear:scales=1,angles=2", "scattering-linear:scales=1,angles=4"]\n'
    )
    rows = [plan.data.train.x for plan in plan_sweep(Sweep.from_toml(text), progress=False).plans]
    assert rows[0] is rows[2]
    assert rows[1] is rows[3]
    assert rows[0].shape != rows[1].shape


def test_epsilon_is_calibrated_once_for_plans_that_are_alike(table, monkeypatch):
    calls = []
    real = module.Planned.recipe.func

    def counted(self):
        calls.append(self.config.noise_multiplier)
        return real(self)

    monkeypatch.setattr(module.Planned.recipe, "func", counted)
    whole = planned(table, settings=SETTINGS.replace("noise_multiplier = 4.0", "epsilon = 2.0"), grid="lr = [1, 2, 3]")
    assert calls[0] is None
    assert None not in calls[1:]
    assert len({plan.config.noise_multiplier for plan in whole.plans}) == 1
    assert max(whole.epsilons) <= 2


def test_public_rows_choose_by_exact_scores(table, tmp_path):
    whole = planned(f"{table}public = true\n")
    content = carry_out_sweep(whole, tmp_path / "out", progress=False)
    scores = {row["run"]: row["score"] for row in content["runs"]}
    assert content["score"] == "exact"
    assert content["chosen"] == max(scores, key=scores.get)
    assert all(0 <= score <= 1 for score in scores.values())


def test_choosing_by_private_rows_is_refused_with_the_ways_out(table):
    with pytest.raises(PrivacyError, match=r"noised-valid.*\[stand_in\].*leave \[choose\] out"):
        planned(table, '[choose]\nby = "valid"\n')
    with pytest.raises(PrivacyError, match="not public"):
        plan_sweep(
            Sweep.from_toml(f'[train]\ndata = "x"\n{SETTINGS}[sweep]\nlr = [1]\n[stand_in]\n{table}'), progress=False
        )
    with pytest.raises(ConfigError, match="held-out"):
        planned(table, '[choose]\nby = "noised-valid"\nepsilon = 1.0\n', settings=SETTINGS.replace("60", "0"))
    with pytest.raises(PrivacyError, match="protect different things"):
        planned(table, grid='adjacency = ["add-remove", "zero-out"]')


def test_noised_scores_are_paid_for_and_drawn_once(table, tmp_path, monkeypatch):
    whole = planned(table, '[choose]\nby = "noised-valid"\nepsilon = 0.5\n')
    content = carry_out_sweep(whole, tmp_path / "out", progress=False)
    stored = read_json(tmp_path / "out" / "scores.json")
    ledger = Ledger.from_dict(stored["ledger"])
    assert (content["score"], len(ledger.lines), ledger.releases) == ("noised", 1, 1)
    assert 0.49 < ledger.epsilon(whole.delta) <= 0.5
    runs = [line for plan in whole.plans for line in plan.recipe.lines()]
    events = [(line.event, line.count) for line in [*runs, *ledger.lines]]
    assert content["epsilon"] == pytest.approx(pld_epsilon(events, whole.delta, "add-remove"), rel=1e-6)
    assert content["epsilon"] > whole.together()
    assert content["epsilon"] == pytest.approx(whole.together(whole.score_lines()), rel=1e-6)
    (group,) = grouped(read_runs(run_folders([tmp_path / "out"]))[0])
    assert group.epsilon(whole.delta) == pytest.approx(content["epsilon"], rel=1e-6)  # the budget counts them too
    assert any("Noised scores" in note for note in group.notes())
    monkeypatch.setattr(module, "noised_scores", None)  # what is released already is not drawn again
    assert carry_out_sweep(whole, tmp_path / "out", progress=False) == content


def test_a_stopped_sweep_goes_on(table, tmp_path, monkeypatch):
    whole, real, calls = planned(table), module.execute, []

    def stopping(*args, **how):
        calls.append(args[1])
        if len(calls) == 2:
            raise Interrupted("stopped after step 1; nothing is lost.")
        return real(*args, **how)

    monkeypatch.setattr(module, "execute", stopping)
    with pytest.raises(Interrupted, match="1 of 2 done"):
        carry_out_sweep(whole, tmp_path / "out", progress=False)
    weights = (tmp_path / "out" / "run-01" / "model.safetensors").read_bytes()
    content = carry_out_sweep(whole, tmp_path / "out", progress=False)
    assert len(content["runs"]) == 2
    assert [path.rpartition("/")[2] for path in calls] == ["run-01", "run-02", "run-02"]
    assert (tmp_path / "out" / "run-01" / "model.safetensors").read_bytes() == weights


def test_a_run_that_is_not_private_leaves_no_total(table, tmp_path):
    content = carry_out_sweep(planned(f"{table}insecure_seed = 1\n", grid="lr = [1]"), tmp_path / "out", progress=False)
    assert content["epsilon"] == math.inf

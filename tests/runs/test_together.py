"""Runs on the same people add up; what does not is told apart, with the reason."""

import math
import shutil

import pytest

from helpers import tiny
from helpers.remembered import remembered  # noqa: F401  accountants with a memory
from noisewise.accounting import Ledger, pld_epsilon
from noisewise.data import Data
from noisewise.errors import ConfigError, RunError
from noisewise.runs.files import read_json, write_json
from noisewise.runs.folder import RunFolder
from noisewise.runs.together import apart, grouped, read_runs, run_folders
from noisewise.training.paid import PaidAccuracy

DELTA = 1e-3


def about(name, **more):
    return {"task": "classification", "data": {"name": name, **more}, "model": "mlp"}


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """Two runs on people, one on others, one with other neighbours, one of persons, one that is not private."""
    folder = tmp_path_factory.mktemp("runs")
    kinds = {
        "a": ({}, {"about": about("people")}),
        "b": ({"noise_multiplier": 30.0}, {"about": about("people")}),
        "others": ({}, {"about": about("others", public=True)}),
        "replaced": ({"adjacency": "replace-one"}, {"about": about("people")}),
        "persons": ({"unit": "person"}, {"about": about("people")}),
        "open": ({}, {"about": about("shown"), "insecure_seed": 1}),
    }
    for name, (plan, how) in kinds.items():
        tiny.run(plan=tiny.mechanism(**plan), out=folder / name, delta=DELTA, **how)
    return folder


def groups_of(*paths, **how):
    return grouped(read_runs(run_folders(paths))[0], **how)


def test_two_runs_cost_what_one_ledger_of_both_costs(runs):
    """By dp-accounting, called by hand, and between the larger one and the sum."""
    (group,) = groups_of(runs / "a", runs / "b")
    events = [*tiny.mechanism().events(), *tiny.mechanism(noise_multiplier=30.0).events()]
    each = [run.epsilon for run in group.runs]
    assert group.epsilon() == pytest.approx(pld_epsilon(events, DELTA, "add-remove"), rel=1e-6)
    assert max(each) < group.epsilon() < sum(each)
    assert group.ledger().releases == 2 * tiny.STEPS
    assert group.promise(group.epsilon()).strength == "strong"


def test_whoever_is_held_out_in_one_run_may_be_trained_on_in_another(tmp_path):
    valid = Data(tiny.data()[0], tiny.data()[1], classes=("a", "b", "c"))
    alone = []
    for name in ("a", "b"):
        paid = PaidAccuracy(valid, epsilon=5.0, readings=3, delta=DELTA)
        tiny.run(out=tmp_path / name, delta=DELTA, about=about("people"), paid=paid)
        (group,) = groups_of(tmp_path / name)
        assert "are others than those trained on" in " ".join(group.notes())
        alone.append(group.epsilon())
    (both,) = groups_of(tmp_path / "a", tmp_path / "b")
    readings = [event for name in "ab" for event in read_ledger_of(tmp_path / name).events()]
    trained = [*tiny.mechanism().events(), *tiny.mechanism().events()]
    assert both.epsilon() == pytest.approx(pld_epsilon([*trained, *readings], DELTA, "add-remove"), rel=1e-6)
    assert both.epsilon() > 5 > max(alone)
    assert "so these are in the total" in " ".join(both.notes())
    write_json(
        tmp_path / "b" / "valid_ledger.json", read_json(tmp_path / "b" / "valid_ledger.json") | {"unit": "person"}
    )
    (both,) = groups_of(tmp_path / "a", tmp_path / "b")
    assert both.epsilon() == math.inf
    assert "protect another unit" in " ".join(both.notes())


def read_ledger_of(path):
    return Ledger.from_dict(read_json(path / "valid_ledger.json"))


def test_a_smaller_delta_costs_more_and_a_wrong_one_is_refused(runs):
    (group,) = groups_of(runs / "a", runs / "b")
    assert group.delta() == DELTA
    assert group.epsilon(1e-5) > group.epsilon()
    with pytest.raises(ConfigError, match="delta=0"):
        group.epsilon(0)


def test_the_smallest_delta_counts_where_runs_differ(runs, tmp_path):
    tiny.run(out=tmp_path / "c", delta=1e-4, about=about("people"))
    (group,) = groups_of(runs / "a", tmp_path / "c")
    assert group.delta() == 1e-4
    assert any("several deltas" in note for note in group.notes())


def test_other_people_units_and_neighbours_are_apart_with_the_reason(runs):
    groups = groups_of(runs)
    assert sorted((group.data, group.unit, group.adjacency, len(group.runs)) for group in groups) == [
        ("others", "row", "add-remove", 1),
        ("people", "person", "add-remove", 1),
        ("people", "row", "add-remove", 2),
        ("people", "row", "replace-one", 1),
        ("shown", "row", "add-remove", 1),
    ]
    reasons = " ".join(apart(groups))
    assert "several names" in reasons
    assert "a person cannot be added" in reasons
    assert "adjacency" in reasons
    assert apart(groups_of(runs / "a", runs / "b")) == []


def test_people_said_to_be_the_same_are_added_up(runs):
    (group,) = groups_of(runs / "a", runs / "others", same_people=True)
    assert (group.data, len(group.runs)) == ("people, others", 2)
    assert group.epsilon() > group.runs[0].epsilon


def test_one_run_that_is_not_private_leaves_no_total(runs):
    (group,) = groups_of(runs / "a", runs / "open", same_people=True)
    assert group.epsilon() == math.inf
    assert any("noise reproducible" in note for note in group.notes())
    assert group.promise(math.inf).strength == "none"


def test_public_rows_and_shared_ledgers_are_noted(runs, tmp_path):
    assert any("declared public" in note for note in groups_of(runs / "others")[0].notes())
    first = tiny.run(out=tmp_path / "1", delta=DELTA, about=about("people"))
    tiny.run(first.model, out=tmp_path / "2", delta=DELTA, about=about("people"), ledger=first.ledger)
    (group,) = groups_of(tmp_path)
    assert any("goes on from another" in note for note in group.notes())
    assert group.ledger().releases == 3 * tiny.STEPS  # counted in both: never too little
    assert not any("goes on" in note for note in groups_of(runs / "a", runs / "b")[0].notes())


def test_folders_of_runs_are_searched_but_for_secrets_and_each_is_counted_once(runs):
    names = [folder.path.name for folder in run_folders([runs / "a", runs, runs])]
    assert sorted(names) == ["a", "b", "open", "others", "persons", "replaced"]
    twin = runs / "a" / "sensitive" / "twin"
    shutil.copytree(runs / "b", twin)
    assert len(run_folders([runs])) == 6
    shutil.rmtree(twin)


def test_unfinished_runs_are_told_apart(runs, tmp_path):
    copy = RunFolder(shutil.copytree(runs / "a", tmp_path / "a"))
    write_json(copy.run, read_json(copy.run) | {"state": "interrupted"})
    assert [folder.path for folder in read_runs([copy])[1]] == [copy.path]


def test_what_is_no_run_and_what_was_edited_is_refused(runs, tmp_path):
    for path in (tmp_path, tmp_path / "nowhere"):
        with pytest.raises(RunError, match=r"noisewise train|no folder"):
            run_folders([path])
    copy = RunFolder(shutil.copytree(runs / "a", tmp_path / "a"))
    ledger = read_json(copy.ledger)
    write_json(copy.ledger, ledger | {"lines": []})
    with pytest.raises(RunError, match="does not fit"):
        read_runs([copy])

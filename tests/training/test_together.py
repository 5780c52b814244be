"""Ranks that have something else are refused; a killed rank loses nothing, on as many ranks or on others."""

import os
import shutil
import signal

import pytest
import torch
from safetensors.torch import load_file

import rank_kills
from helpers import tiny
from helpers.ranks import Gone, on_ranks, outcomes
from kills import results
from noisewise.data import Data, Splits
from noisewise.errors import Interrupted, NoisewiseError, RankLost, RunError
from noisewise.recipe import Phase, Recipe, fit
from noisewise.runs.folder import RunFolder
from noisewise.runs.tensors import load_tensors
from noisewise.training import together
from noisewise.training.paid import PaidAccuracy
from noisewise.training.state import State


def told(act, *arguments, **settings):
    try:
        act(*arguments, **settings)
    except NoisewiseError as error:
        return f"{type(error).__name__}: {error}"
    return None


def with_one_rank_astray(team):
    """What each rank is told when rank 1 differs in one thing, thing by thing."""
    x, y = tiny.data()
    astray = team.rank == 1
    changed = x.clone()
    changed[3, 2] += 1e-6
    other = tiny.model()
    with torch.no_grad():
        next(other.parameters())[0, 0] += 1e-6
    wrong = {
        "mechanism": lambda: tiny.run(plan=tiny.mechanism(noise_multiplier=19.0 if astray else 20.0), team=team),
        "set of data": lambda: tiny.run(units=(changed if astray else x, y), team=team),
        "set of initial weights": lambda: tiny.run(other if astray else tiny.model(), team=team),
        "seed": lambda: tiny.run(seed=int(astray), team=team),
        "kind of noise": lambda: tiny.run(secure=astray, team=team),
        "insecure_seed": lambda: tiny.run(insecure_seed=int(astray), team=team),
        "ema": lambda: tiny.run(ema=0.9 if astray else 0.8, team=team),
        "model, loss or augment": lambda: tiny.run(tiny.model(dropout=0.3 if astray else 0.2), team=team),
    }
    answers = {name: told(act) for name, act in wrong.items()}
    together._code = lambda: f"code of rank {team.rank}"
    return answers | {"version of noisewise's code": told(tiny.run, team=team)}


def test_a_rank_with_other_code_data_or_settings_is_refused_on_all():
    for answers in on_ranks(2, with_one_rank_astray):
        for name, message in answers.items():
            assert message is not None, f"{name} was not noticed"
            assert message.startswith(f"RunError: rank 1 has another {name}"), f"{name}: {message}"


def copied(team):
    return told(tiny_copy, team)


def tiny_copy(team):
    import copy

    copy.deepcopy(State.start(tiny.mechanism(), team=team))


def test_a_state_of_several_processes_is_not_copied():
    for message in on_ranks(2, copied):
        assert message.startswith("PrivacyError: a copy of a state that 2 processes train with")


@pytest.mark.parametrize("victim", [0, pytest.param(1, marks=pytest.mark.slow)])
def test_a_killed_rank_stops_the_run_which_resumes_bit_for_bit(tmp_path, victim):
    begun = started(tmp_path)
    whole, struck = begun("whole"), begun("struck")
    on_ranks(2, rank_kills.resume, whole, (), SHORT)
    ends = outcomes(2, rank_kills.resume, struck, (victim, 3), SHORT)
    assert isinstance(ends[victim], Gone)
    assert isinstance(ends[1 - victim], RankLost)
    assert "go on with resume=True" in str(ends[1 - victim])
    on_ranks(2, rank_kills.resume, struck, (), SHORT)
    assert results(struck) == results(whole)


SHORT = 6


def started(folder, dropout=0.3):
    """A function that makes copies of a run that two processes began."""
    rank_kills.begin(folder / "start", 2, SHORT, dropout)

    def begun(name):
        return shutil.copytree(folder / "start", folder / name)

    return begun


def test_on_another_number_of_ranks_the_ledger_is_the_same_and_noise_is_drawn_anew(tmp_path):
    """The same noise on sums that are rounded otherwise would give the difference away."""
    begun, ends, weights = started(tmp_path, 0.0), {}, {}
    for size in (1, 2, 3):
        on_ranks(size, rank_kills.resume, begun(str(size)), (), SHORT, 0.0)
        ends[size] = results(tmp_path / str(size))
        weights[size] = load_file(tmp_path / str(size) / "model.safetensors")["0.weight"]
    for name in ("ledger.json", "mechanism.json"):
        assert ends[1][name] == ends[2][name] == ends[3][name]
    for one, other in ((1, 2), (2, 3), (1, 3)):
        assert float((weights[one] - weights[other]).abs().max()) > 1e-3  # no rounding


def test_steps_that_were_told_are_on_disk_before(tmp_path):
    """On another number of ranks steps since the checkpoint are drawn anew: of those, nobody may have heard."""
    seen = []

    def callback(released):
        seen.append((released.step, load_tensors(RunFolder(tmp_path / "run").checkpoint)["step"]))

    tiny.run(out=tmp_path / "run", callbacks=[callback], checkpoint_seconds=1e6)
    assert seen == [(step, step) for step in (5, 10, 12)]


def interrupted(team, folder):
    def recorder(told_of):
        if told_of.step == 4 and team.rank == 1:
            os.kill(os.getpid(), signal.SIGINT)

    tiny.run(out=folder, team=team, recorders=[recorder])


def test_an_interrupt_of_one_rank_stops_all_and_nothing_is_lost(tmp_path):
    ends = outcomes(2, interrupted, tmp_path / "run")
    assert [type(end) for end in ends] == [Interrupted, Interrupted]
    assert load_tensors(RunFolder(tmp_path / "run").checkpoint)["step"] == 5


def paying(team):
    valid = Data(*tiny.data(n=20))
    paid = PaidAccuracy(valid, epsilon=1.0, readings=3)
    return tiny.run(team=team, paid=paid, valid=valid).history, paid.left


def test_readings_are_paid_once_and_told_to_all():
    (first, left), (second, others) = on_ranks(2, paying)
    assert first == second
    assert (left, others) == (0, 3)


def recipe():
    data = Data(*tiny.data())
    plan = tiny.mechanism(steps=SHORT)
    return Recipe(
        model=tiny.model(),
        data=Splits(data, data, data),
        loss_fn=tiny.loss_fn,
        mechanism=plan,
        optimizer=lambda parameters: torch.optim.SGD(parameters, lr=0.1),
        phases=(Phase(mechanism=plan),),
    )


def in_two_phases(team, folder, strike):
    def kill(told_of):
        count[0] += 1
        if count[0] == strike and team.rank == 1:
            os.kill(os.getpid(), signal.SIGKILL)

    count = [0]
    begun = folder.exists()
    trained = fit(recipe(), out=folder, resume=begun, insecure_seed=1, progress=False, team=team, recorders=[kill])
    return tiny.weights(trained.model)


def test_phases_go_on_where_they_were(tmp_path):
    """Killed in the second phase: the other rank gets the first one's weights and ledger from the first process."""
    whole = on_ranks(2, in_two_phases, tmp_path / "whole", 0)
    assert isinstance(outcomes(2, in_two_phases, tmp_path / "struck", 9)[0], RankLost)
    ends = on_ranks(2, in_two_phases, tmp_path / "struck", 0)
    assert torch.equal(ends[0], whole[0])
    assert torch.equal(ends[1], whole[0])


def gone_apart(team):
    """A rank whose weights are moved by hand."""
    model = tiny.model()

    def move(told_of):
        if team.rank == 1 and told_of.step == 3:
            with torch.no_grad():
                next(model.parameters())[0, 0] += 1e-3

    tiny.run(model, team=team, recorders=[move])


def test_ranks_that_go_apart_are_told_before_anything_is_written():
    for end in outcomes(2, gone_apart):
        assert isinstance(end, RunError)
        assert "another set of weights" in str(end)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:FSDP2-wrapped module:UserWarning")
@pytest.mark.parametrize("sharded", [False, True])
def test_a_campaign_of_killed_ranks(sharded):
    assert rank_kills.campaign(20, seed=0, sharded=sharded) == 20

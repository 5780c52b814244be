"""Recipes: values that are carried out in phases, at an epsilon for everything together, and go on where they stopped."""

import copy
import math
import os
import shutil
import signal
from dataclasses import replace

import dp_accounting as dp
import pytest
import torch

from helpers import tiny
from noisewise.accounting import Identity, Ledger, Line
from noisewise.clipping import Flat
from noisewise.data import Data, Splits
from noisewise.data.statistics import noised_statistics
from noisewise.errors import ConfigError, Interrupted, PrivacyError, RunError
from noisewise.rates import LearningRate
from noisewise.recipe import Phase, Recipe, at_epsilon, continued, cut, fit, load_weights, train_openly, with_support
from noisewise.repairs import MagnitudePruning, PrivateModel, PrivateRecords, repaired
from noisewise.runs.files import read_json
from noisewise.runs.folder import RunFolder
from noisewise.runs.states import Keep, read_states
from noisewise.schedule import Schedule
from noisewise.support import Fixed, Plan
from noisewise.training.paid import PaidAccuracy
from noisewise.wording import at_most

DELTA, EPSILON = 1e-3, 0.05


def recipe(*phases, **settings):
    data, ledger = Data(*tiny.data()), settings.pop("ledger", None)
    return Recipe(
        model=tiny.model(), data=Splits(data, data, data), loss_fn=tiny.loss_fn,
        mechanism=tiny.mechanism(**{"noise_multiplier": 50.0, **settings}), phases=phases, ledger=ledger,
        optimizer=lambda parameters: torch.optim.SGD(parameters, lr=0.2, momentum=0.9),
    )  # fmt: skip


def phase(**settings):
    return Phase(
        mechanism=tiny.mechanism(**{"noise_multiplier": 50.0, "steps": 6, **settings.pop("plan", {})}), **settings
    )


def composed(*plans):
    """By dp-accounting alone: (noise multiplier, steps) of Poisson batches of 8 of 40."""
    accountant = dp.pld.PLDAccountant()
    for sigma, steps in plans:
        accountant.compose(dp.PoissonSampledDpEvent(0.2, dp.GaussianDpEvent(sigma)), steps)
    return accountant.get_epsilon(DELTA)


def test_everything_adds_up():
    before = Ledger("add-remove", tiny.mechanism(noise_multiplier=80.0).lines(), "row")
    whole = recipe(phase(plan={"noise_multiplier": 60.0}), ledger=before)
    assert whole.epsilon(DELTA) == pytest.approx(composed((80.0, 12), (60.0, 6), (50.0, 12)), rel=1e-9)
    assert fit(whole, insecure_seed=0, progress=False).ledger.lines == whole.lines()
    assert before.lines == tiny.mechanism(noise_multiplier=80.0).lines()  # the recipe's ledger stays as it is


@pytest.mark.parametrize("ablation", ["plain", "clip-only", "noise-only"])
def test_one_open_phase_makes_epsilon_infinite(ablation):
    whole = recipe(phase(ablation=ablation))
    assert math.isinf(whole.epsilon(DELTA))
    assert not whole.private
    assert recipe(phase()).private


@pytest.mark.parametrize("spent", [None, 200.0])
@pytest.mark.parametrize("phases", [0, 1, 2])
def test_calibration_meets_the_budget_for_everything_together(phases, spent):
    before = None if spent is None else Ledger("add-remove", tiny.mechanism(noise_multiplier=spent).lines(), "row")
    found = at_epsilon(recipe(*[phase()] * phases, ledger=before), EPSILON, DELTA)
    sigma = found.mechanism.noise_multiplier
    assert all(part.mechanism.noise_multiplier == sigma for part in found.phases)
    total = composed(*([] if spent is None else [(spent, 12)]), *[(sigma, 6)] * phases, (sigma, 12))
    assert 0.995 * EPSILON < total <= EPSILON
    assert found.epsilon(DELTA) == pytest.approx(total, rel=1e-9)


def test_a_budget_that_was_spent_before_is_said():
    before = Ledger("add-remove", tiny.mechanism(noise_multiplier=80.0).lines(), "row")
    spent = before.epsilon(DELTA)
    for wanted in (spent / 2, spent):
        with pytest.raises(ConfigError) as caught:
            at_epsilon(recipe(ledger=before), wanted, DELTA)
        said = str(caught.value)
        assert f"epsilon={wanted:g} at delta=0.001 is the total" in said
        assert f"({before.lines[0].purpose!r}) has spent {at_most(spent)} already" in said
        assert f"Give an epsilon above {at_most(spent)}" in said
    assert at_epsilon(recipe(ledger=before), 2 * spent, DELTA).epsilon(DELTA) <= 2 * spent
    with pytest.raises(ConfigError, match="epsilon=-1: must be a finite number above 0"):
        at_epsilon(recipe(ledger=before), -1, DELTA)


def test_noise_keeps_its_proportions():
    louder = at_epsilon(recipe(phase(plan={"noise_multiplier": 100.0})), EPSILON, DELTA)
    assert louder.phases[0].mechanism.noise_multiplier == pytest.approx(2 * louder.mechanism.noise_multiplier)
    assert 0.995 * EPSILON < louder.epsilon(DELTA) <= EPSILON
    shape = Schedule(((0, 1.0), (6, 3.0)))
    mixed = at_epsilon(recipe(phase(plan={"noise_multiplier": 2.0}), noise_multiplier=shape), EPSILON, DELTA)
    first, later = (mixed.mechanism.noise_at(step) for step in (0, 6))
    assert [later / first, mixed.phases[0].mechanism.noise_at(0) / first] == pytest.approx([3.0, 2.0])
    assert 0.995 * EPSILON < mixed.epsilon(DELTA) <= EPSILON
    turned = at_epsilon(recipe(phase(plan={"noise_multiplier": shape}), noise_multiplier=2.0), EPSILON, DELTA)
    assert turned.phases[0].mechanism.noise_at(6) / turned.mechanism.noise_multiplier == pytest.approx(1.5)
    for one, other in ((None, 50.0), (50.0, None), (0.0, 50.0)):
        with pytest.raises(ConfigError, match="what is calibrated keeps proportions, and these"):
            at_epsilon(recipe(phase(plan={"noise_multiplier": one}), noise_multiplier=other), EPSILON, DELTA)
    open_noise = at_epsilon(recipe(phase(plan={"noise_multiplier": None}), noise_multiplier=None), EPSILON, DELTA)
    assert open_noise.phases[0].mechanism.noise_multiplier == open_noise.mechanism.noise_multiplier


def test_no_noise_meets_an_epsilon_if_a_part_is_open():
    open_line = Line(dp.NonPrivateDpEvent(), "a mask", 1, 0)
    zero = Schedule(((0, 0.0), (3, 1.0)))
    wrong = (
        recipe(phase(ablation="plain")),
        recipe(ledger=Ledger("add-remove", [open_line], "row")),
        recipe(noise_multiplier=zero),
    )
    for whole in wrong:
        with pytest.raises(ConfigError, match="no noise can meet it, since a part of this recipe is not private"):
            at_epsilon(whole, EPSILON, DELTA)


def test_neighbours_of_one_kind_only():
    with pytest.raises(PrivacyError, match="counts zero-out neighbours, the mechanism add-remove"):
        recipe(ledger=Ledger("zero-out"))
    with pytest.raises(PrivacyError, match="their epsilons cannot be added"):
        recipe(phase(plan={"adjacency": "zero-out"}))


def test_phases_begin_where_the_one_before_ended_and_may_change_what_follows():
    seen = []

    def after(before, model):
        seen.append(copy.deepcopy(model.state_dict()))
        return replace(
            before, model=model, mechanism=replace(before.mechanism, steps=1, support=Fixed({"0.bias": False}))
        )

    base = recipe(phase(after=after))
    end = fit(base, insecure_seed=0, progress=False)
    assert torch.equal(end.model[0].bias, seen[0]["0.bias"])
    assert not torch.equal(end.model[0].bias, tiny.model()[0].bias)
    assert [line.count for line in end.ledger.lines] == [7]


def test_a_phase_may_have_an_optimizer_of_its_own():
    def frozen(parameters):
        return torch.optim.SGD(parameters, lr=0.0)

    base = recipe(
        phase(optimizer=frozen, after=lambda before, model: replace(before, model=seen.append(model) or model))
    )
    seen = []
    fit(base, insecure_seed=0, progress=False)
    assert tiny.same(seen[0], tiny.model())


def test_several_recipes_go_on_from_one_model():
    first = fit(recipe(), insecure_seed=0, progress=False)
    begun = copy.deepcopy(first.model)
    ends = [
        fit(continued(recipe(clip=Flat(bound)), first), insecure_seed=1, progress=False) for bound in (1.0, 1.0, 0.5)
    ]
    assert tiny.same(first.model, begun)
    assert first.ledger.releases == 12
    assert tiny.same(ends[0].model, ends[1].model)
    assert not tiny.same(ends[0].model, ends[2].model)
    assert all(end.ledger.releases == 24 for end in ends)


# --- stopping ---------------------------------------------------------------------------------------------------------


class StopAt:
    """Ctrl-C in the middle of a step, as a terminal sends it."""

    def __init__(self, observation):
        self.left = observation

    def __call__(self, observation):
        self.left -= 1
        if self.left == 0:
            os.kill(os.getpid(), signal.SIGINT)


@pytest.mark.parametrize("at", [1, 6, 7, 12, 18])
def test_a_run_that_was_stopped_between_or_inside_phases_goes_on_as_it_was(at, tmp_path):
    """Two phases of 6 steps, then 12: stopped at their first, last and middle steps."""
    settings = {"insecure_seed": 3, "progress": False, "checkpoint_seconds": 1000}
    whole = fit(recipe(phase(), phase(plan={"clip": Flat(0.5)})), out=tmp_path / "whole", **settings)
    out = tmp_path / "parts"
    with pytest.raises(Interrupted, match=str(out)) as stopped:
        fit(recipe(phase(), phase(plan={"clip": Flat(0.5)})), out=out, recorders=[StopAt(at)], **settings)
    assert "sensitive" not in str(stopped.value)
    with pytest.raises(RunError, match="holds an unfinished run"):
        fit(recipe(phase(), phase(plan={"clip": Flat(0.5)})), out=out, **settings)
    resumed = fit(recipe(phase(), phase(plan={"clip": Flat(0.5)})), out=out, resume=True, **settings)
    assert tiny.same(resumed.model, whole.model)
    for name in ("model.safetensors", "ledger.json", "summary.json", "metrics.jsonl"):
        assert (out / name).read_bytes() == (tmp_path / "whole" / name).read_bytes(), name
    assert {path.name for path in (out / "sensitive").iterdir()} == {"identity.json", "lock"}


@pytest.mark.parametrize("secret", [True, False])
def test_states_are_kept_over_all_phases_and_released_only_if_private(secret, tmp_path):
    """6 + 12 steps, 4 states: beside the model of a private run, else among the secrets; the same after a stop."""
    settings = {"progress": False, "checkpoint_seconds": 1000, "keep_states": 4}
    settings |= {"insecure_seed": 3} if secret else {}
    folder = RunFolder(tmp_path / "run")
    with pytest.raises(Interrupted):
        fit(recipe(phase()), out=folder.path, recorders=[StopAt(10)], **settings)
    assert folder.kept.exists()
    assert not folder.states.exists()  # nothing is released before the run has ended
    trained = fit(recipe(phase()), out=folder.path, resume=True, **settings)
    assert (folder.kept.exists(), folder.states.exists()) == (secret, not secret)
    assert trained.status.status == ("not-private" if secret else "private")
    states = read_states(folder)
    assert [step for step, _ in states] == [step for step, _ in trained.states] == [0, 4, 9, 14]
    assert all(torch.equal(states[0][1][name], weight) for name, weight in tiny.model().state_dict().items())
    if secret:
        whole = fit(recipe(phase()), **settings)  # without a folder
        for (step, kept), (other, expected) in zip(states, whole.states, strict=True):
            assert step == other
            assert all(torch.equal(kept[name], expected[name]) for name in expected)
        short = fit(recipe(phase(), steps=3), **settings | {"keep_states": 0})  # 9 steps: as far as the third state
        assert all(torch.equal(states[2][1][name], weight) for name, weight in short.model.state_dict().items())
        assert short.states == ()


def test_more_states_than_steps_are_refused():
    with pytest.raises(ConfigError, match="keep_states=13 of 12 steps"):
        fit(recipe(), keep_states=13, progress=False)


COSINE = LearningRate("cosine", last=0.1, warmup=0.2)


def test_a_schedule_runs_over_all_phases_and_a_resumed_run_follows_it(tmp_path):
    """6 + 6 + 12 steps; secret noise too is what it would have been, since the chain hashes the learning rates."""
    settings = {"insecure_seed": 3, "progress": False, "checkpoint_seconds": 1000}

    def planned():
        return replace(recipe(phase(), phase(plan={"clip": Flat(0.5)})), schedule=COSINE)

    rates = []

    class Noting(torch.optim.SGD):
        def step(self, closure=None):
            rates.append(self.param_groups[0]["lr"])
            return super().step(closure)

    noted = replace(planned(), optimizer=lambda parameters: Noting(parameters, lr=0.5))
    fit(noted, **settings)
    assert rates == pytest.approx([0.5 * COSINE.factor(step, 24) for step in range(24)])
    whole = fit(planned(), out=tmp_path / "whole", **settings)
    constant = fit(recipe(phase(), phase(plan={"clip": Flat(0.5)})), **settings)
    assert not tiny.same(whole.model, constant.model)
    for at in (3, 6, 9, 18):
        out = tmp_path / f"parts {at}"
        with pytest.raises(Interrupted):
            fit(planned(), out=out, recorders=[StopAt(at)], **settings)
        assert tiny.same(fit(planned(), out=out, resume=True, **settings).model, whole.model)


def test_a_schedule_is_a_learning_rate_and_the_only_one():
    with pytest.raises(ConfigError, match=r"must be noisewise\.LearningRate"):
        replace(recipe(), schedule="cosine")
    with pytest.raises(ConfigError, match="leave one of them out"):
        fit(replace(recipe(), schedule=COSINE), scheduler=object(), progress=False)


@pytest.mark.parametrize("ablation", ["plain", "clip-only", "noise-only"])
def test_phases_can_be_ablated(ablation):
    """What the recipe would train privately is trained in that way; the same as its phases one by one."""
    trained = fit(recipe(phase()), ablation=ablation, insecure_seed=1, progress=False)
    assert trained.status.status == "not-private"
    assert {line.purpose for line in trained.ledger.lines} == {f"{ablation} (not private)"}
    assert sum(line.count for line in trained.ledger.lines) == 18
    by_hand = fit(recipe(phase(ablation=ablation)), ablation=ablation, insecure_seed=1, progress=False)
    assert tiny.same(trained.model, by_hand.model)
    private = fit(recipe(phase()), insecure_seed=1, progress=False)
    assert not tiny.same(trained.model, private.model)


def test_a_run_killed_before_it_forgot_its_secrets_is_taken_up(tmp_path):
    """run.json says complete, but the checkpoint and the phase are still there."""
    settings = {"insecure_seed": 3, "progress": False, "checkpoint_seconds": 1000}
    out, kept = tmp_path / "run", tmp_path / "kept"
    with pytest.raises(Interrupted):
        fit(recipe(phase()), out=out, recorders=[StopAt(10)], **settings)
    shutil.copytree(out / "sensitive", kept)
    whole = fit(recipe(phase()), out=out, resume=True, **settings)
    shutil.copytree(kept, out / "sensitive", dirs_exist_ok=True)
    assert tiny.same(fit(recipe(phase()), out=out, resume=True, **settings).model, whole.model)
    assert {path.name for path in (out / "sensitive").iterdir()} == {"identity.json", "lock"}


def test_a_finished_run_is_not_touched(tmp_path):
    fit(recipe(phase()), out=tmp_path / "run", insecure_seed=0, progress=False)
    files = {path: path.read_bytes() for path in (tmp_path / "run").rglob("*") if path.is_file()}
    for resume in (False, True):
        with pytest.raises(RunError, match="holds a finished run"):
            fit(recipe(phase()), out=tmp_path / "run", resume=resume, insecure_seed=0, progress=False)
    assert {path: path.read_bytes() for path in (tmp_path / "run").rglob("*") if path.is_file()} == files


def test_states_of_a_run_that_broke_off_between_its_phases_are_not_released(tmp_path):
    """They may be of plain steps; the next run in the folder has no such phase, and its ledger knows nothing of them."""
    made = [0]

    def optimizer(parameters):
        made[0] += 1
        if made[0] == 2:
            raise MemoryError("between the phases")
        return torch.optim.SGD(parameters, lr=0.1)

    with pytest.raises(MemoryError):
        fit(replace(recipe(phase(ablation="plain")), optimizer=optimizer), out=tmp_path, keep_states=18, progress=False)
    folder = RunFolder(tmp_path)
    assert len(read_states(folder)) > 2
    trained = fit(recipe(), out=tmp_path, keep_states=2, progress=False)
    assert trained.status.status == "private"
    steps = Keep.evenly(2, recipe().steps).steps
    assert {step for step, _ in read_states(folder)} == {step for step, _ in trained.states} == steps


@pytest.mark.parametrize("when", ["between the phases", "in the last one"])
def test_what_was_released_before_is_not_released_again_on_the_way(tmp_path, when):
    """A script that draws its statistics anew and goes on would put two releases into the model and count one."""

    def released(noise=50.0):
        return noised_statistics(Data(*tiny.data()), (10.0, 100.0), noise_multiplier=noise).ledger

    def optimizer(parameters):
        made[0] += 1
        if made[0] == 2 and when == "between the phases":
            raise MemoryError(when)
        return torch.optim.SGD(parameters, lr=0.1)

    first, made = released(), [0]
    recorders = [] if when == "between the phases" else [StopAt(8)]
    with pytest.raises((MemoryError, Interrupted)):
        fit(
            replace(recipe(phase(), ledger=first), optimizer=optimizer),
            out=tmp_path, recorders=recorders, progress=False, checkpoint_seconds=0,
        )  # fmt: skip
    for another in (released(), released(60.0)):
        with pytest.raises(RunError, match=r"did not begin with: drawn anew|does not continue this ledger"):
            fit(recipe(phase(), ledger=another), out=tmp_path, resume=True, progress=False)
    ledger = fit(recipe(phase(), ledger=first), out=tmp_path, resume=True, progress=False).ledger
    assert ledger.lines[0].purpose == "feature means + feature squares"
    assert ledger.begins_with(first)


def test_a_ledger_begins_with_what_it_goes_on_from():
    one = Ledger("add-remove", unit="row")
    for event in (dp.GaussianDpEvent(2.0), dp.GaussianDpEvent(3.0)):
        one.record(event, "gradient", 0)
    longer = copy.deepcopy(one)
    longer.record(dp.GaussianDpEvent(3.0), "gradient", 1)
    assert longer.begins_with(one)
    assert not one.begins_with(longer)
    apart = replace(one, lines=[replace(line, count=1) for line in one.lines for _ in range(line.count)])
    assert longer.begins_with(apart)
    assert one.begins_with(Ledger("add-remove"))
    for ledger, key in ((one, b"1" * 32), (longer, b"2" * 32)):
        ledger.identity = Identity.of(b"mark", key)
    assert not longer.begins_with(one)


@pytest.mark.parametrize("name", ["model.safetensors", "ledger.json", "metrics.jsonl"])
def test_a_file_of_somebody_else_is_not_replaced(tmp_path, name):
    (tmp_path / name).write_text("not of a run")
    (tmp_path / "notes.txt").write_text("stays")
    with pytest.raises(RunError, match=f"a {name} that this run would replace"):
        fit(recipe(), out=tmp_path, insecure_seed=0, progress=False)
    assert (tmp_path / name).read_text() == "not of a run"
    assert not (tmp_path / "run.json").exists()


def test_the_summary_counts_all_phases(tmp_path):
    trained = fit(recipe(phase()), out=tmp_path / "run", delta=DELTA, progress=False)
    summary = read_json(RunFolder(tmp_path / "run").summary)
    assert summary["privacy"]["epsilon"] == pytest.approx(composed((50.0, 18)), rel=1e-9)
    assert summary["privacy"]["plan_epsilon"] == pytest.approx(composed((50.0, 12)), rel=1e-9)
    assert trained.status.status == "private"


# --- parts ------------------------------------------------------------------------------------------------------------


class Every(Plan):
    """Everything learns."""

    def at(self, step, released, generator):
        """Everything."""
        return {}


def test_fixed_supports_hold_in_all_phases_and_plans_in_the_last():
    base = recipe(phase())
    fixed, plan = Fixed({"0.bias": False}), Every()
    changed = with_support(with_support(base, fixed), plan)
    assert changed.phases[0].mechanism.support == fixed
    assert changed.mechanism.support.plans == (fixed, plan)
    assert base.mechanism.support == base.phases[0].mechanism.support == Fixed()


def test_a_cut_plan_is_the_plan():
    noise = Schedule(((0, 30.0), (4, 20.0), (9, 10.0)))
    whole = tiny.mechanism(noise_multiplier=noise)
    for epochs, steps in ((1, 5), (2, 10), (0.8, 4)):
        first, rest = cut(whole, epochs, "test")
        assert (first.steps, rest.steps) == (steps, 12 - steps)
        values = [first.noise_at(k) for k in range(steps)] + [rest.noise_at(k) for k in range(12 - steps)]
        assert values == [noise.at(step) for step in range(12)]


def test_open_training_leaves_its_model_and_the_random_state_alone():
    model, state = tiny.model(), torch.get_rng_state()
    data = Data(*tiny.data())
    trained = train_openly(model, data, tiny.loss_fn, epochs=60, batch_size=8, lr=0.3, momentum=0.9)
    assert tiny.same(model, tiny.model())
    assert torch.equal(torch.get_rng_state(), state)
    losses = [tiny.loss_fn(own, tiny.data()).mean().item() for own in (model, trained)]
    assert losses[1] < 0.7 * losses[0]
    again = train_openly(model, data, tiny.loss_fn, epochs=60, batch_size=8, lr=0.3, momentum=0.9)
    assert tiny.same(trained, again)


def test_weights_of_another_model_are_refused(tmp_path):
    fit(recipe(), out=tmp_path / "run", insecure_seed=0, progress=False)
    loaded = load_weights(tiny.model(), tmp_path / "run" / "model.safetensors")
    assert not tiny.same(loaded, tiny.model())
    with pytest.raises(RunError, match="does not hold the weights of this run's model"):
        load_weights(torch.nn.Linear(2, 2), tmp_path / "run" / "model.safetensors")
    with pytest.raises(RunError, match="does not exist"):
        load_weights(tiny.model(), tmp_path / "nothing")


def test_a_first_phase_leaves_steps_for_what_follows():
    plan = tiny.mechanism()  # 12 steps, 5 to an epoch
    first, rest = cut(plan, 2.2, "somebody")
    assert (first.steps, rest.steps) == (11, 1)
    for epochs in (2.4, 3):
        with pytest.raises(ConfigError, match=r"somebody.*leave some"):
            cut(plan, epochs, "somebody")


def test_open_training_takes_batches_of_at_most_all_rows():
    data, network = Data(*tiny.data()), tiny.model()
    settings = {"epochs": 2, "lr": 0.1, "seed": 3}
    most, all_rows = (
        train_openly(network, data, tiny.loss_fn, batch_size=size, **settings) for size in (10 * tiny.N, tiny.N)
    )
    assert tiny.same(most, all_rows)
    assert not tiny.same(most, network)


# --- nothing that was released is forgotten ----------------------------------------------------------------------------


def test_a_second_phase_keeps_what_its_recipe_has_released():
    first, other = (fit(recipe(), progress=False) for _ in range(2))
    mask = MagnitudePruning(PrivateModel(dict(other.model.named_parameters()), other.ledger), share=0.5)
    second = continued(repaired(recipe(), mask), first)
    assert second.ledger.releases == 24  # of both runs
    assert fit(second, progress=False).ledger.releases == 36
    again = continued(replace(second, ledger=second.ledger), fit(second, progress=False))
    assert again.ledger.releases == 36  # what the model was trained after is not counted twice
    open_mask = MagnitudePruning(PrivateRecords(accept_not_private=True, epochs=1), share=0.5)
    assert math.isinf(continued(repaired(recipe(), open_mask), first).epsilon(DELTA))


@pytest.mark.parametrize("open_source", [True, False])
def test_what_is_released_after_a_phase_counts(open_source):
    other = fit(recipe(), progress=False)

    def after(before, model):
        source = PrivateRecords(accept_not_private=True, epochs=1)
        if not open_source:
            source = PrivateModel(dict(other.model.named_parameters()), other.ledger)
        return repaired(replace(before, model=model), MagnitudePruning(source, share=0.5))

    end = fit(recipe(phase(after=after)), progress=False)
    assert end.status.status == ("not-private" if open_source else "private")
    assert end.ledger.releases == 6 + 12 + (1 if open_source else 12)


def test_after_a_phase_nothing_released_is_taken_back_and_no_phase_is_added():
    before = Ledger("add-remove", tiny.mechanism(noise_multiplier=80.0).lines(), "row")
    for given, error, words in (
        ({"ledger": None}, PrivacyError, "without what was released before"),
        ({"phases": ()}, ConfigError, "gave other phases"),
    ):
        changed = recipe(phase(after=lambda old, model, given=given: replace(old, model=model, **given)), ledger=before)
        with pytest.raises(error, match=words):
            fit(changed, progress=False)


def test_a_repair_that_is_not_private_is_in_the_ledger_or_refused():
    mask = MagnitudePruning(PrivateRecords(accept_not_private=True, epochs=1), share=0.5)
    pruned = repaired(recipe(), mask)
    assert fit(pruned, progress=False).status.status == "not-private"
    with pytest.raises(PrivacyError, match="would seem private"):
        fit(replace(pruned, ledger=None), progress=False)


def test_runs_of_equal_plans_are_two_runs():
    one, other = (fit(recipe(), progress=False) for _ in range(2))
    assert one.ledger.lines == other.ledger.lines
    source = PrivateModel(dict(other.model.named_parameters()), other.ledger)
    with pytest.raises(PrivacyError, match="came out of a run on the same data"):
        fit(repaired(replace(recipe(), model=one.model), MagnitudePruning(source, share=0.5)), progress=False)
    mixed = copy.deepcopy(one.model)
    with torch.no_grad():
        mixed[0].bias.copy_(other.model[0].bias)
    with pytest.raises(PrivacyError, match="came out of a run on the same data"):
        fit(replace(recipe(), model=mixed, ledger=one.ledger), progress=False)
    assert (
        fit(replace(recipe(), model=mixed, ledger=one.ledger.composed(other.ledger)), progress=False).ledger.releases
        == 36
    )


@pytest.mark.parametrize("ablation", ["private", "plain"])
def test_copies_of_a_run_that_stopped_early_are_known(ablation):
    first = fit(recipe(), callbacks=[lambda told: told.step >= 5], ablation=ablation, progress=False)
    for model in (first.model, copy.deepcopy(first.model)):
        with pytest.raises(PrivacyError, match="came out of a run on the same data"):
            fit(replace(recipe(), model=model), progress=False)


def test_copies_of_a_run_that_an_error_broke_off_are_known():
    seen = []

    def breaks(told):
        seen.append(told.step)
        if told.step >= 5:
            raise ZeroDivisionError

    whole = recipe()
    with pytest.raises(ZeroDivisionError):
        tiny.run(whole.model, callbacks=[breaks], units=whole.data.train, delta=DELTA)
    assert max(seen) == 5
    for model in (whole.model, copy.deepcopy(whole.model)):
        with pytest.raises(PrivacyError, match="came out of a run on the same data"):
            fit(replace(recipe(), model=model), progress=False)


def test_a_ledger_read_from_json_holds_what_was_in_it_and_no_other_run():
    one, other = (fit(recipe(), progress=False) for _ in range(2))
    read = Ledger.from_dict(one.ledger.to_dict())
    further = fit(replace(recipe(), model=one.model, ledger=read), progress=False)
    assert further.ledger.holds(one.ledger)
    assert Identity.from_dict(further.ledger.identity.to_dict()) == further.ledger.identity
    longer = fit(continued(recipe(), other), progress=False)  # as many releases, all of them others
    assert longer.ledger.lines == further.ledger.lines
    assert not further.ledger.holds(longer.ledger)


def test_readings_suffice_for_all_phases_and_are_told_once(tmp_path):
    data = Data(*tiny.data())
    whole = recipe(phase())
    needed = 2 + 3  # epochs of five steps: 6 and 12 of them
    paid = PaidAccuracy(data, epsilon=1.0, readings=needed - 1, delta=DELTA)
    with pytest.raises(ConfigError, match=f"4 readings left, this recipe takes {needed}"):
        fit(whole, paid=paid, out=tmp_path / "few", progress=False)
    assert paid.left == needed - 1
    assert not (tmp_path / "few").exists()
    paid = PaidAccuracy(data, epsilon=1.0, readings=needed, delta=DELTA)
    out = tmp_path / "run"
    with pytest.raises(Interrupted):
        fit(whole, paid=paid, out=out, recorders=[StopAt(7)], checkpoint_seconds=1000, progress=False)
    told = needed - paid.left
    assert told > 0
    with pytest.raises(ConfigError, match="paid for twice"):
        fit(whole, paid=PaidAccuracy(data, epsilon=1.0, readings=9), out=out, resume=True, progress=False)
    fit(whole, out=out, resume=True, progress=False)
    assert Ledger.from_dict(read_json(RunFolder(out).valid_ledger)).releases == told

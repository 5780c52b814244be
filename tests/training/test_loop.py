"""Training: it is DP-SGD as written by hand, the ledger is the plan, and nothing private passes for private."""

import copy
import math
import threading

import dp_accounting as dp
import numpy as np
import pytest
import torch
from torch import nn
from torch.optim import lr_scheduler

from helpers import tiny
from helpers.loops import DELTA, SEED, assert_equal, by_hand, ours
from noisewise.accounting import Ledger, Line, pld_epsilon
from noisewise.clipping import Flat, Global, per_layer
from noisewise.data import Data
from noisewise.errors import BudgetSpent, ConfigError, CoupledSamples, DataError, PrivacyError
from noisewise.mechanism import PURPOSE
from noisewise.randomness import Entropy
from noisewise.runtime import Runtime
from noisewise.sampling import FullBatch, Poisson, Shuffle
from noisewise.schedule import Schedule
from noisewise.support import Fixed, Plan
from noisewise.training.loop import train
from noisewise.training.state import State
from noisewise.training.step import private_step

OPTIMIZERS = {
    "SGD": lambda network: torch.optim.SGD(network.parameters(), lr=0.3),
    "SGD momentum": lambda network: torch.optim.SGD(network.parameters(), lr=0.2, momentum=0.9, nesterov=True),
    "Adam": lambda network: torch.optim.Adam(network.parameters(), lr=0.05),
    "AdamW": lambda network: torch.optim.AdamW(network.parameters(), lr=0.05, weight_decay=0.1),
    "RMSprop": lambda network: torch.optim.RMSprop(network.parameters(), lr=0.01, momentum=0.5),
}

SCHEDULERS = {
    "StepLR": lambda optimizer: lr_scheduler.StepLR(optimizer, step_size=3, gamma=0.5),
    "CosineAnnealingLR": lambda optimizer: lr_scheduler.CosineAnnealingLR(optimizer, T_max=tiny.STEPS),
    "LambdaLR": lambda optimizer: lr_scheduler.LambdaLR(optimizer, lambda step: 1 / (1 + step)),
    "OneCycleLR": lambda optimizer: lr_scheduler.OneCycleLR(optimizer, max_lr=0.5, total_steps=tiny.STEPS + 1),
    "SequentialLR": lambda optimizer: lr_scheduler.SequentialLR(
        optimizer, [lr_scheduler.LinearLR(optimizer), lr_scheduler.ExponentialLR(optimizer, 0.9)], milestones=[4]
    ),
}


@pytest.mark.parametrize("optimizer", OPTIMIZERS.values(), ids=OPTIMIZERS)
def test_any_optimizer_gives_the_loop_written_by_hand(optimizer):
    reference = tiny.model(torch.float64)
    by_hand(reference, tiny.mechanism(), optimizer(reference))
    assert_equal(ours(optimizer=optimizer).model, reference)


@pytest.mark.parametrize("scheduler", SCHEDULERS.values(), ids=SCHEDULERS)
def test_schedulers_step_once_per_step(scheduler):
    reference = tiny.model(torch.float64)
    optimizer = tiny.sgd(reference)
    by_hand(reference, tiny.mechanism(), optimizer, scheduler(optimizer))
    assert_equal(ours(scheduler=scheduler).model, reference)


def test_schedules_of_noise_and_bound():
    plan = tiny.mechanism(
        clip=Schedule(((0, Flat(1.0)), (4, Flat(0.5)))), noise_multiplier=Schedule(((0, 30.0), (7, 20.0)))
    )
    reference = tiny.model(torch.float64)
    by_hand(reference, plan, tiny.sgd(reference))
    assert_equal(ours(plan).model, reference)


@pytest.mark.parametrize("microbatch", [None, 1, 3])
@pytest.mark.parametrize("engine", ["auto", "ghost", "dense", "loop"])
def test_engine_and_micro_batches_do_not_change_the_result(engine, microbatch):
    assert_equal(ours(runtime=Runtime(engine=engine, microbatch=microbatch)).model, ours().model)


def test_private_needs_a_noise_multiplier_before_anything_happens(tmp_path):
    with pytest.raises(ConfigError, match="calibrated"):
        tiny.run(plan=tiny.mechanism(noise_multiplier=None), out=tmp_path / "run")
    assert not (tmp_path / "run").exists()


# --- ledger and plan --------------------------------------------------------------------------------------------------
PLANS = {
    "poisson": tiny.mechanism(),
    "full batch": tiny.mechanism(sampler=FullBatch(tiny.N)),
    "shuffle, begun epoch": tiny.mechanism(sampler=Shuffle(tiny.N, tiny.BATCH), adjacency="zero-out"),
    "replace-one": tiny.mechanism(adjacency="replace-one"),
    "noise schedule": tiny.mechanism(noise_multiplier=Schedule(((0, 20.0), (4, 20.0), (6, 30.0)))),
    "empty batches": tiny.mechanism(sampler=Poisson(tiny.N, 1), steps=6),
}


@pytest.mark.parametrize("plan", PLANS.values(), ids=PLANS)
def test_the_ledger_is_the_plan(plan):
    ledger = tiny.run(plan=plan).ledger
    assert [(line.event, line.count) for line in ledger.lines] == merged(plan.events())
    assert ledger.adjacency == plan.adjacency
    assert ledger.epsilon(DELTA) == pytest.approx(plan.epsilon(DELTA), rel=1e-9)


def merged(events):
    counts = []
    for event, count in events:
        if counts and counts[-1][0] == event:
            counts[-1] = (event, counts[-1][1] + count)
        else:
            counts.append((event, count))
    return counts


def test_one_step_past_the_plan_is_refused_and_moves_nothing():
    network, plan = tiny.model(), tiny.mechanism(steps=3)
    optimizer, state = tiny.sgd(network), State.start(plan)
    for _ in range(3):
        private_step(network, tiny.data(), tiny.loss_fn, optimizer, state)
    before = tiny.weights(network)
    with pytest.raises(BudgetSpent, match=r"all 3 planned steps.*same ledger") as caught:
        private_step(network, tiny.data(), tiny.loss_fn, optimizer, state)
    assert caught.value.exit_code == 3
    assert torch.equal(tiny.weights(network), before)
    assert state.ledger.releases == 3


def test_a_ledger_that_is_not_the_plan_stops_the_run():
    def smuggle(observation):
        if observation.step == 4:
            ledger.record(dp.GaussianDpEvent(1.0), "smuggled", 4)

    ledger = Ledger("add-remove")
    with pytest.raises(PrivacyError, match="do not release this model"):
        tiny.run(ledger=ledger, recorders=[smuggle])


def test_a_step_that_failed_after_its_release_does_not_use_its_noise_again(monkeypatch):
    network, state = tiny.model(), State.start(tiny.mechanism(), insecure_seed=SEED)
    optimizer = tiny.sgd(network)
    monkeypatch.setattr(optimizer, "step", lambda: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        private_step(network, tiny.data(), tiny.loss_fn, optimizer, state)
    assert (state.step, state.ledger.releases) == (1, 1)


def test_two_phases_through_one_ledger_compose():
    first, second = tiny.mechanism(steps=5), tiny.mechanism(steps=7, noise_multiplier=30.0)
    phase = tiny.run(plan=first)
    both = tiny.run(phase.model, plan=second, ledger=phase.ledger).ledger
    assert both.lines == [
        Line(first.events()[0][0], PURPOSE, 5, 0),
        Line(second.events()[0][0], PURPOSE, 7, 5),
    ]
    assert both.epsilon(DELTA) == pld_epsilon([*first.events(), *second.events()], DELTA, "add-remove")


def test_equal_phases_are_one_long_one():
    phase = tiny.run(plan=tiny.mechanism(steps=5))
    both = tiny.run(phase.model, plan=tiny.mechanism(steps=7), ledger=phase.ledger)
    assert both.ledger.events() == tiny.mechanism(steps=12).events()


def test_phases_do_not_share_noise_even_with_an_insecure_seed():
    start, frozen = tiny.model(), tiny.mechanism(steps=1, clip=Flat(1e-9), noise_multiplier=1e9)
    ledger, moves = Ledger("add-remove"), []
    for _ in range(2):
        network = copy.deepcopy(start)
        tiny.run(network, plan=frozen, ledger=ledger, insecure_seed=SEED)
        moves.append(tiny.weights(network) - tiny.weights(start))
    assert not torch.allclose(moves[0], moves[1])


def test_phases_of_different_adjacency_are_refused():
    phase = tiny.run(plan=tiny.mechanism(steps=2))
    with pytest.raises(PrivacyError, match="adjacency='add-remove'"):
        tiny.run(plan=tiny.mechanism(adjacency="zero-out"), ledger=phase.ledger)


def test_a_phase_after_one_without_privacy_is_not_private():
    phase = tiny.run(ablation="plain")
    trained = tiny.run(phase.model, ledger=phase.ledger)
    assert trained.status.status == "not-private"
    assert "released before on the same data" in trained.status.reason
    assert trained.ledger.epsilon(DELTA) == math.inf
    assert trained.history[-1]["epsilon"] == math.inf


def test_noise_of_zero_is_not_private():
    trained = tiny.run(plan=tiny.mechanism(noise_multiplier=0.0))
    assert (trained.status.status, trained.ledger.epsilon(DELTA)) == ("not-private", math.inf)


# --- secrets ----------------------------------------------------------------------------------------------------------
def test_an_insecure_seed_repeats_everything_and_is_stamped():
    first, second = (tiny.run(tiny.model(dropout=0.5), insecure_seed=SEED) for _ in range(2))
    assert tiny.same(first.model, second.model)
    assert first.status == second.status
    assert (first.status.status, first.status.reason) == ("not-private", "noise reproducible: do not publish")
    assert not tiny.same(first.model, tiny.run(tiny.model(dropout=0.5), insecure_seed=SEED + 1).model)


def test_without_it_runs_differ_whatever_the_seed():
    first, second = (tiny.run(seed=3) for _ in range(2))
    assert not tiny.same(first.model, second.model)
    assert first.status.status == "private"


def test_the_seed_determines_neither_sampling_nor_noise():
    batches = []
    for _ in range(2):
        torch.manual_seed(0)
        np.random.seed(0)
        tiny.run(seed=0, recorders=[lambda observation: batches.append(observation.units.tolist())])
    assert batches[: tiny.STEPS] != batches[tiny.STEPS :]


def test_the_seed_chooses_public_masks():
    class RandomMask(Plan):
        def __init__(self, seen):
            self.seen = seen

        def at(self, step, released, generator):
            mask = torch.rand(6, 5, generator=generator) < 0.5
            self.seen.append(mask)
            return {"0.weight": mask}

    def masks(seed):
        seen = []
        tiny.run(plan=tiny.mechanism(support=RandomMask(seen), steps=4), seed=seed)
        return torch.stack(seen[-4:])

    assert torch.equal(masks(1), masks(1))
    assert not torch.equal(masks(1), masks(2))
    assert not torch.equal(masks(1)[0], masks(1)[1])


def test_training_leaves_the_global_random_state_alone():
    torch.manual_seed(7)
    expected = torch.rand(3)
    torch.manual_seed(7)
    tiny.run(tiny.model(dropout=0.5), valid=tiny.data())
    assert torch.equal(torch.rand(3), expected)


def test_recorders_see_every_step():
    seen = []
    trained = tiny.run(recorders=[seen.append], insecure_seed=SEED)
    expected = list(Poisson(tiny.N, tiny.BATCH).batches(Entropy.insecure(SEED), 0, tiny.STEPS))
    assert [observation.step for observation in seen] == list(range(tiny.STEPS))
    assert [observation.units.tolist() for observation in seen] == [batch.tolist() for batch in expected]
    assert all(observation.norms.shape == (1, len(observation.units)) for observation in seen)
    assert trained.ledger.releases == tiny.STEPS


def test_recorders_see_a_norm_per_block():
    names = [name for name, _ in tiny.model().named_parameters()]
    seen = []
    tiny.run(plan=tiny.mechanism(clip=per_layer(names, Global(1.0, 5.0))), recorders=[seen.append])
    assert {observation.norms.shape[0] for observation in seen} == {4}


def test_frozen_parameters_stay_and_lose_stale_gradients():
    network = tiny.model()
    frozen = network[0].weight
    frozen.grad = torch.ones_like(frozen)
    before = frozen.detach().clone()
    tiny.run(network, plan=tiny.mechanism(support=Fixed({"0.weight": False})))
    assert torch.equal(frozen, before)
    assert frozen.grad is None


def test_data_objects_and_dicts_are_data_too():
    x, y = tiny.data()
    plain = tiny.run(insecure_seed=SEED).model
    assert tiny.same(tiny.run(units=Data(x, y), insecure_seed=SEED).model, plain)
    network = tiny.model()

    def loss_fn(model, batch):
        return tiny.loss_fn(model, (batch["x"], batch["y"]))

    train(network, {"x": x, "y": y}, loss_fn, tiny.mechanism(), tiny.sgd(network), insecure_seed=SEED, progress=False)
    assert tiny.same(network, plain)


def test_training_works_outside_the_main_thread():
    results = []
    thread = threading.Thread(target=lambda: results.append(tiny.run(insecure_seed=SEED)))
    thread.start()
    thread.join()
    assert tiny.same(results[0].model, tiny.run(insecure_seed=SEED).model)


def test_the_bar_shows_epsilon_and_steps(capsys):
    network = tiny.model()
    train(network, tiny.data(), tiny.loss_fn, tiny.mechanism(), tiny.sgd(network), delta=DELTA)
    shown = capsys.readouterr().err
    assert f"epsilon ≤ {tiny.mechanism().epsilon(DELTA):.2f}" in shown
    assert f"{tiny.STEPS}/{tiny.STEPS}" in shown


@pytest.mark.parametrize("how", [{"ablation": "plain"}, {"insecure_seed": SEED}])
def test_the_bar_of_a_run_that_is_not_private_shows_no_epsilon(how, capsys):
    network = tiny.model()
    train(network, tiny.data(), tiny.loss_fn, tiny.mechanism(), tiny.sgd(network), **how)
    shown = capsys.readouterr().err
    assert "not private" in shown
    assert "epsilon" not in shown


# --- refusals ---------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("settings", "error", "message"),
    [
        ({"ablation": "none"}, ConfigError, "ablation='none'.*clip-only"),
        ({"ema": 1.0}, ConfigError, r"ema=1.0.*\(0, 1\)"),
        ({"ema": 0}, ConfigError, "ema=0"),
        ({"resume": True}, ConfigError, "resume=True without out="),
        ({"delta": 0}, ConfigError, "delta=0"),
        ({"delta": 2.0, "ablation": "plain"}, ConfigError, "delta=2.0"),
        ({"insecure_seed": -1}, ConfigError, "insecure_seed=-1"),
        ({"units": tiny.data(n=39)}, PrivacyError, "39 units.*n=40.*own"),
        ({"units": (torch.zeros(40, 5), torch.zeros(39))}, DataError, "first dimensions"),
        ({"units": ()}, DataError, "first dimensions"),
        ({"valid": (torch.zeros(0, 5), torch.zeros(0).long())}, DataError, "valid has no units"),
        ({"plan": tiny.mechanism(support=Fixed({"9.weight": False}))}, ConfigError, "9.weight.*no parameter"),
        ({"scheduler": lr_scheduler.ReduceLROnPlateau}, ConfigError, "ReduceLROnPlateau.*CosineAnnealingLR"),
    ],
    ids=repr,
)
def test_wrong_settings_are_refused(settings, error, message):
    with pytest.raises(error, match=message):
        tiny.run(**settings)


def test_a_data_loader_is_refused_with_the_remedy():
    loader = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(*tiny.data()), batch_size=4)
    with pytest.raises(DataError, match=r"DataLoader.*loader\.dataset"):
        tiny.run(units=loader)


def mean_loss(network, batch):
    return tiny.loss_fn(network, batch).mean()


def per_class_loss(network, batch):
    return network(batch[0])


def one_too_many(network, batch):
    return torch.cat([tiny.loss_fn(network, batch), torch.zeros(1)])


def forgotten_return(network, batch):
    tiny.loss_fn(network, batch)


@pytest.mark.parametrize(
    ("loss_fn", "message"),
    [
        (mean_loss, "one number for the whole batch.*reduction='none'"),
        (per_class_loss, r"shape \[\d+, 3\].*losses.flatten\(1\).mean\(1\)"),
        (one_too_many, "one loss per unit"),
        (forgotten_return, "NoneType.*one loss per unit"),
    ],
)
@pytest.mark.parametrize("ablation", ["private", "plain"])
def test_losses_that_are_not_one_per_unit_are_refused(loss_fn, message, ablation, tmp_path):
    network, out = tiny.model(), tmp_path / "run"
    with pytest.raises(DataError, match=message):
        train(
            network, tiny.data(), loss_fn, tiny.mechanism(), tiny.sgd(network),
            ablation=ablation, out=out, progress=False,
        )  # fmt: skip
    assert not out.exists()  # nothing to clean up before the next try


def test_coupled_units_are_refused_before_the_folder_exists(tmp_path):
    network = nn.Sequential(nn.Linear(5, 6), nn.BatchNorm1d(6, track_running_stats=False), nn.Linear(6, 3))
    with pytest.raises(CoupledSamples):
        tiny.run(network, out=tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_release_needs_its_epoch_in_the_ledger():
    """A shuffled epoch is one release, written at its first batch: no batch can leave without it."""
    plan = tiny.mechanism(sampler=Shuffle(tiny.N, tiny.BATCH), adjacency="zero-out")
    state = State.start(plan)
    state.step = 3
    network = tiny.model()
    with pytest.raises(PrivacyError, match="not in the ledger"):
        private_step(network, tiny.data(), tiny.loss_fn, tiny.sgd(network), state)
    assert state.ledger.lines == []


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"about": {"who": "me"}}, "about has 'who'.*Known are task, data, model, repairs"),
        ({"about": ["task"]}, "must be a dict of public facts"),
        ({"about": {"data": "clinic"}}, "must be a dict of public facts"),
        ({"keep": 3}, r"keep=3: must be noisewise.runs.states.Keep.evenly\(3, steps\)"),
    ],
)
def test_what_would_be_lost_or_cannot_be_read_is_refused(given, words):
    with pytest.raises(ConfigError, match=words):
        tiny.run(**given)

"""Parts of a batch become one sum: never released before, never of different things, and one unit moves it by its bound."""

from dataclasses import is_dataclass, replace

import pytest
import torch

from helpers import shared_runs as runs
from helpers import tiny
from helpers.ranks import on_ranks
from noisewise import adaptive, clipping, sampling
from noisewise.accounting import Ledger
from noisewise.bounded import Bounded, release
from noisewise.clipping import Flat
from noisewise.distributed import ALONE
from noisewise.distributed.joining import Occasion, Part, join, total
from noisewise.errors import ConfigError, PrivacyError
from noisewise.mechanism import Mechanism
from noisewise.persample import ClippedBatch
from noisewise.randomness import Entropy
from noisewise.sampling import FullBatch, Poisson
from noisewise.training.given import check_model
from noisewise.training.state import State
from noisewise.training.step import private_step

VALUES = {"a": torch.arange(6.0).view(2, 3), "b": torch.ones(4, dtype=torch.float64)}
SUPPORT = {"a": torch.tensor([[True, False, False], [False, True, False]]), "c": False}


def clipped(values=VALUES, sensitivity=1.0, support=SUPPORT):
    return ClippedBatch(Bounded(values, sensitivity, support), torch.zeros(1, 2, dtype=torch.float64))


def occasion(step=3, units=(1, 2, 5), root=9):
    return Occasion(step, torch.tensor(units), Entropy(root))


def test_a_part_cannot_be_released():
    part = Part(clipped())
    with pytest.raises(PrivacyError, match="Join the parts of all ranks first"):
        release(
            {"gradient": (part, 1.0)}, sampler=FullBatch(3), ledger=Ledger(), entropy=Entropy.fresh(), step=0
        )  # fmt: skip
    assert "tensor" not in repr(part)
    assert join(part, ALONE, occasion()) is part._clipped


def joined(team):
    before = team.sent
    whole = join(Part(clipped()), team, occasion(), norms=True)
    sent = team.sent - before
    dense = total(VALUES, {}, team)
    refused = []
    for other in (
        {"sensitivity": 2.0},
        {"support": {**SUPPORT, "a": ~SUPPORT["a"]}},
        {"support": {"a": SUPPORT["a"]}},
        {"values": {"a": VALUES["a"].double(), "b": VALUES["b"]}},
    ):
        refused.append(_refused(team, clipped(**other) if team.rank else clipped(), occasion()))
    for other in ({"step": 4}, {"units": (1, 2, 6)}, {"root": 10}):
        refused.append(_refused(team, clipped(), occasion(**other) if team.rank else occasion()))
    return whole.grads._values, whole.norms.shape, sent, dense, refused


def _refused(team, batch, when):
    try:
        join(Part(batch), team, when)
    except PrivacyError as error:
        return "disagree about step" in str(error)
    return False


def test_sums_are_added_kept_coordinates_travel_and_what_differs_is_refused():
    answers = on_ranks(2, joined)
    for values, norms, sent, dense, refused in answers:
        assert torch.equal(values["a"], 2 * VALUES["a"] * SUPPORT["a"])
        assert torch.equal(values["b"], 2 * VALUES["b"])
        assert norms == (1, 3)
        assert sent == 2 * 4 + 4 * 8 + 3 * 8  # two kept floats, four doubles, norms of three units
        assert torch.equal(dense["a"], 2 * VALUES["a"])
        assert refused == [True] * 7


SMALL = ("mlp", "encoder", "poisson, cut and padded", "shuffle", "random masks", "quantile", "people", "noise-only")


def check_equal(sizes, names):
    alone = on_ranks(1, runs.all_cases, names)[0]
    for size in sizes:
        for rank, together in enumerate(on_ranks(size, runs.all_cases, names, timeout=100.0)):
            for name in names:
                distance = runs.difference(alone[name], together[name])
                assert isinstance(distance, float), f"{name}, rank {rank} of {size}: {distance} differs"
                assert distance < 1e-12, f"{name}, rank {rank} of {size}: {distance}"


@pytest.mark.filterwarnings("ignore::noisewise.errors.PrivacyWarning")
def test_several_processes_make_the_run_of_one():
    check_equal([2], SMALL)


def test_every_sampler_and_every_rule_is_tried_on_several_processes():
    rules = [kind for module in (sampling, clipping, adaptive) for kind in vars(module).values() if is_dataclass(kind)]
    assert {kind.__name__ for kind in rules} >= {"Poisson", "PerLayer", "Quantile"}
    assert set(rules) == set().union(*(case.uses for case in runs.CASES.values()))


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::noisewise.errors.PrivacyWarning")
def test_any_number_of_processes_makes_any_run_of_one():
    check_equal([2, 3, 4], tuple(runs.CASES))


def sum_without(team, left_out):
    """The gradient that the optimizer sees, times the batch size, where nothing is noised and everybody is in the batch."""
    x, y = runs.inputs("mlp"), runs.labels()
    keep = torch.arange(len(x)) != left_out
    model = runs.network("mlp")
    plan = Mechanism(sampler=FullBatch(int(keep.sum())), clip=Flat(0.5), noise_multiplier=0.0, steps=1)
    state = State.start(plan, insecure_seed=0, team=team)
    private_step(model, (x[keep], y[keep]), runs.loss_fn, torch.optim.SGD(model.parameters(), lr=0.0), state)
    return torch.cat([p.grad.flatten() for p in model.parameters()]) * plan.sampler.n


def sums(team):
    return [sum_without(team, unit) for unit in (-1, 0, 9, 10, 29)]


def test_one_unit_moves_the_sum_of_all_ranks_by_its_bound():
    everybody, *without = on_ranks(3, sums)[1]
    moved = [float((everybody - other).norm()) for other in without]
    assert max(moved) <= 0.5 * (1 + 1e-12)
    assert max(moved) > 0.4  # it is a bound that is reached


def beside_ddp(team):
    """The sum that is released without clipping or noise, and the mean gradient of torch's DistributedDataParallel."""
    rows = runs.inputs("cnn"), runs.labels()
    model = runs.network("cnn")
    plan = Mechanism(sampler=FullBatch(runs.N), clip=Flat(1e6), noise_multiplier=0.0, steps=1)
    state = State.start(plan, insecure_seed=0, team=team)
    private_step(model, rows, runs.loss_fn, torch.optim.SGD(model.parameters(), lr=0.0), state)
    wrapped = torch.nn.parallel.DistributedDataParallel(runs.network("cnn"))
    with pytest.raises(ConfigError, match="wrapped in DistributedDataParallel"):
        check_model(wrapped)
    own = team.part(torch.arange(runs.N))
    runs.loss_fn(wrapped, (rows[0][own], rows[1][own])).mean().backward()
    return [p.grad for p in model.parameters()], [p.grad for p in wrapped.parameters()]


def test_without_clipping_and_noise_it_is_the_gradient_of_torchs_own_data_parallel():
    for ours, torchs in on_ranks(2, beside_ddp):
        for one, other in zip(ours, torchs, strict=True):
            torch.testing.assert_close(one, other, rtol=1e-10, atol=1e-12)


STEPS = 40


def nothing(model, batch):
    return 0.0 * runs.loss_fn(model, batch)


def noise_of(team, secret):
    """All gradients of a run whose loss says nothing: noise alone."""
    model = tiny.model()
    plan = tiny.mechanism(sampler=Poisson(tiny.N, 8), clip=Flat(2.0), noise_multiplier=3.0, steps=STEPS)
    state = State.start(plan, team=team) if secret else State.start(plan, insecure_seed=4, team=team)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
    seen = []
    for _ in range(STEPS):
        private_step(model, tiny.data(), nothing, optimizer, state)
        seen.append(torch.cat([p.grad.flatten() for p in model.parameters()]) * 8)
    return torch.cat(seen), state.ledger.to_dict()


def both(team):
    return noise_of(team, secret=False), noise_of(team, secret=True)


def test_noise_is_drawn_once_and_the_same_on_all_ranks():
    (alone, ledger), _ = both(ALONE)
    for (seeded, lines), (secret, _) in (answers := on_ranks(2, both)):
        assert torch.equal(seeded, alone)  # the sums are exactly 0
        assert lines == ledger
        assert torch.equal(secret, answers[0][1][0])
    count = len(alone)
    for noise in (seeded, secret):
        chi = float((noise / 6).square().sum())  # multiplier 3, bound 2
        assert abs(chi - count) < 5 * (2 * count) ** 0.5  # twice the variance is 70 deviations away
        assert abs(float(noise.mean())) < 5 * 6 / count**0.5


def with_own_noise(team):
    """A rank whose root is another: it would draw its own batch and noise."""
    model = tiny.model()
    state = State.start(tiny.mechanism(), team=team)
    state.entropy = replace(state.entropy, root=state.entropy.root + team.rank)
    try:
        private_step(model, tiny.data(), tiny.loss_fn, tiny.sgd(model), state)
    except Exception as error:
        return type(error).__name__, state.ledger.lines
    return None


def test_a_rank_with_a_root_of_its_own_releases_nothing():
    assert on_ranks(2, with_own_noise) == [("RunError", [])] * 2


def with_other_rates(team):
    model = tiny.model()
    optimizer = tiny.sgd(model)
    state = State.start(tiny.mechanism(), team=team)
    private_step(model, tiny.data(), tiny.loss_fn, optimizer, state)
    optimizer.param_groups[0]["lr"] += 0.1 * team.rank
    private_step(model, tiny.data(), tiny.loss_fn, optimizer, state)
    try:
        private_step(model, tiny.data(), tiny.loss_fn, optimizer, state)
    except PrivacyError as error:
        return "ranks disagree about step 2" in str(error), state.ledger.releases
    return None


def test_a_rank_with_another_learning_rate_stops_before_the_next_release():
    assert on_ranks(2, with_other_rates) == [(True, 2)] * 2


def norms_under_dropout(team):
    """Norms of units whose rows are all the same: they differ by what was dropped."""
    rows, seen = (torch.ones(tiny.N, 5), torch.zeros(tiny.N, dtype=torch.long)), []
    model = tiny.model(dropout=0.5)
    state = State.start(tiny.mechanism(sampler=FullBatch(tiny.N)), insecure_seed=0, team=team)
    private_step(model, rows, tiny.loss_fn, tiny.sgd(model), state, recorders=[lambda told: seen.append(told.norms[0])])
    return seen[0]


def test_units_of_two_ranks_do_not_share_what_layers_draw():
    norms = on_ranks(2, norms_under_dropout)[0]
    first, second = norms[: tiny.N // 2], norms[tiny.N // 2 :]
    assert not torch.equal(first, second)
    assert len(first.unique()) > 5

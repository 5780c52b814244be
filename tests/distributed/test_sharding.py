"""Parameters spread over ranks by fully_shard: the run of one process, its noise, its ledger and its files, in less memory."""

import os
import shutil
import signal
import time

import pytest
import torch
from safetensors.torch import load_file
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.multiprocessing.reductions import StorageWeakRef

from helpers import shared_runs as runs
from helpers import tiny
from helpers.ranks import Gone, on_ranks, outcomes
from noisewise.clipping import Flat
from noisewise.data import Data, Splits
from noisewise.distributed import ALONE, Team, fetching, shard, sharding
from noisewise.distributed.sharding import is_sharded, whole_of
from noisewise.errors import ConfigError, NoisewiseError, RankLost, UnsupportedLayer
from noisewise.mechanism import Mechanism
from noisewise.recipe import Phase, Recipe, fit
from noisewise.repairs.random_sparsification import RandomMasks
from noisewise.runs.tensors import load_tensors
from noisewise.runtime import Runtime
from noisewise.sampling import FullBatch, Poisson
from noisewise.support import Fixed
from noisewise.training import checkpoint, train
from noisewise.training.paid import PaidAccuracy
from noisewise.training.state import State
from noisewise.training.step import private_step

pytestmark = [
    pytest.mark.filterwarnings("ignore::noisewise.errors.PrivacyWarning"),
    pytest.mark.filterwarnings("ignore:FSDP2-wrapped module:UserWarning"),
]


def check_equal(sizes, names):
    alone = on_ranks(1, runs.all_cases, names)[0]
    for size in sizes:
        for rank, together in enumerate(on_ranks(size, runs.all_cases, names, True, timeout=100.0)):
            for name in names:
                distance = runs.difference(alone[name], together[name])
                assert isinstance(distance, float), f"{name}, rank {rank} of {size}: {distance} differs"
                assert distance < 1e-12, f"{name}, rank {rank} of {size}: {distance}"


def test_spread_parameters_make_the_run_of_one_process():
    check_equal([2], ("mlp", "blocks", "quantile"))


@pytest.mark.slow
def test_spread_parameters_make_any_run_of_one_process():
    check_equal([2, 3], runs.SHARDED)


def whole(model, team):
    return torch.cat([whole_of(parameter, team).flatten() for parameter in model.parameters()])


# ---------------------------------------------------------------------------------------------------------------- noise

STEPS = 20


def nothing(model, batch):
    return 0.0 * tiny.loss_fn(model, batch)


def wide(dtype):
    """More numbers than are drawn at once, in rows that no number of ranks divides."""
    with torch.random.fork_rng([]):
        torch.manual_seed(2)
        return nn.Sequential(nn.Linear(5, 301), nn.Linear(301, 451), nn.Linear(451, 3)).to(dtype)


def noise_of(team, dtype=torch.float32, steps=1, secret=False, **settings):
    """All gradients of a run whose loss says nothing: noise alone. And how many numbers this rank has of them."""
    model = wide(dtype) if steps == 1 else tiny.model(dtype)
    if team.several:
        shard(model, team)
    plan = tiny.mechanism(sampler=Poisson(tiny.N, 8), clip=Flat(2.0), noise_multiplier=3.0, steps=steps)
    state = State.start(plan, team=team, **({} if secret else {"insecure_seed": 4}), **settings)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
    seen = []
    for _ in range(steps):
        private_step(model, tiny.data(dtype=dtype), nothing, optimizer, state)
        seen.append(torch.cat([whole_of(p.grad, team).flatten() for p in model.parameters()]) * 8)
    here = sum(p.grad._local_tensor.numel() for p in model.parameters()) if team.several else 0
    return torch.cat(seen), here, state.ledger.to_dict()


def noises(team):
    return (
        noise_of(team), noise_of(team, torch.float64), noise_of(team, secure=True), noise_of(team, steps=STEPS, secret=True),
    )  # fmt: skip


def test_noise_of_pieces_is_that_of_one_process_each_number_drawn_once():
    alone = noises(ALONE)
    answers = on_ranks(2, noises)
    for rank in answers:
        for (noise, _, ledger), (expected, _, lines) in zip(rank[:3], alone[:3], strict=True):
            assert torch.equal(noise, expected)  # the sums are exactly 0
            assert ledger == lines
        assert torch.equal(rank[3][0], answers[0][3][0])
    for way in range(4):
        numbers = len(answers[0][way][0]) // (STEPS if way == 3 else 1)
        assert sum(rank[way][1] for rank in answers) == numbers  # together all of them, and none twice
    secret = answers[0][3][0]
    chi = float((secret / 6).square().sum())  # multiplier 3, bound 2
    assert abs(chi - len(secret)) < 5 * (2 * len(secret)) ** 0.5
    assert len(secret.unique()) > 0.99 * len(secret)  # pieces do not repeat each other


# ------------------------------------------------------------------------------------------------- against torch itself


def beside_torch(team):
    """The sum that is released without clipping or noise, and the gradient of fully_shard's own backward pass."""
    rows = runs.inputs("blocks"), runs.labels()
    model = shard(runs.network("blocks"), team)
    plan = Mechanism(sampler=FullBatch(runs.N), clip=Flat(1e6), noise_multiplier=0.0, steps=2)
    state = State.start(plan, insecure_seed=0, team=team)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
    private_step(model, rows, runs.loss_fn, optimizer, state)
    ours = [whole_of(p.grad, team) for p in model.parameters()]
    optimizer.zero_grad()
    part = team.part(torch.arange(runs.N))
    runs.loss_fn(model, (rows[0][part], rows[1][part])).mean().backward()
    torchs = [whole_of(p.grad, team) for p in model.parameters()]
    private_step(model, rows, runs.loss_fn, optimizer, state)  # after a pass with torch's own hooks
    again = [whole_of(p.grad, team) for p in model.parameters()]
    with torch.no_grad():
        outputs = model(rows[0])
    return ours, torchs, again, outputs


def test_without_clipping_and_noise_it_is_the_gradient_of_fully_shard_which_still_works():
    expected = runs.network("blocks")(runs.inputs("blocks"))
    for ours, torchs, again, outputs in on_ranks(2, beside_torch):
        for one, other, third in zip(ours, torchs, again, strict=True):
            torch.testing.assert_close(one, other, rtol=1e-10, atol=1e-12)
            assert torch.equal(one, third)
        torch.testing.assert_close(outputs, expected.detach(), rtol=1e-10, atol=1e-12)


def sums(team):
    """The released gradient times the batch, without noise, with each of some units left out."""
    x, y = runs.inputs("mlp"), runs.labels()
    answers = []
    for left_out in (-1, 0, 15, 29):
        keep = torch.arange(len(x)) != left_out
        model = shard(runs.network("mlp"), team)
        plan = Mechanism(sampler=FullBatch(int(keep.sum())), clip=Flat(0.5), noise_multiplier=0.0, steps=1)
        state = State.start(plan, insecure_seed=0, team=team)
        private_step(model, (x[keep], y[keep]), runs.loss_fn, torch.optim.SGD(model.parameters(), lr=0.0), state)
        answers.append(torch.cat([whole_of(p.grad, team).flatten() for p in model.parameters()]) * plan.sampler.n)
    return answers


def test_one_unit_moves_the_sum_of_all_pieces_by_its_bound():
    everybody, *without = on_ranks(2, sums)[0]
    moved = [float((everybody - other).norm()) for other in without]
    assert max(moved) <= 0.5 * (1 + 1e-12)
    assert max(moved) > 0.4


# --------------------------------------------------------------------------------------------------------------- memory


FEW = 0.35  # of a model of ten layers: one of them, as it came and as it is lent, and the next


def in_memory(team):
    """Bytes of parameters and of momentum here, the most bytes of whole weights at once, and those of the model."""
    with torch.random.fork_rng([]):
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(5, 64), *[nn.Linear(64, 64) for _ in range(10)], nn.Linear(64, 3))
    size = sum(p.nbytes for p in model.parameters())
    shard(model, team)
    optimizer, most, out = tiny.sgd(model), [], {}

    def count(tensor):
        storage = tensor.untyped_storage()
        out[storage._cdata] = StorageWeakRef(storage), storage.nbytes()
        patience = time.monotonic() + 5  # gloo's own thread lets go of a tensor some time after it has arrived
        while (held := living()) > FEW * size and time.monotonic() < patience:
            time.sleep(0.001)
        most[-1] = max(most[-1], held)
        return tensor

    def living():
        for key in [key for key, (reference, _) in out.items() if reference.expired()]:
            del out[key]
        return sum(held for _, held in out.values())

    state = State.start(tiny.mechanism(), insecure_seed=0, team=team)
    with pytest.MonkeyPatch.context() as patch:
        later, whole = Team.all_parts_later, fetching._Bundle.whole

        def gathered(self, part):
            arriving = later(self, part)
            count(arriving.args[1])  # what is gathered into
            return arriving

        patch.setattr(Team, "all_parts_later", gathered)
        patch.setattr(fetching._Bundle, "whole", lambda *arguments, **last: count(whole(*arguments, **last)))
        patch.setattr(fetching, "BUNDLE", 4 * 64 * 65)  # of one layer
        for _ in range(3):
            most.append(0)
            private_step(model, tiny.data(), tiny.loss_fn, optimizer, state)
    local = sum(p._local_tensor.nbytes for p in model.parameters())
    moved = sum(s["momentum_buffer"]._local_tensor.nbytes for s in optimizer.state.values())
    grads = sum(p.grad._local_tensor.nbytes for p in model.parameters())
    return size, local, moved, grads, most


def test_a_rank_holds_its_rows_and_a_few_whole_weights_at_a_time():
    for size, *held, most in on_ranks(2, in_memory):
        assert all(0.49 * size < part < 0.51 * size for part in held)  # parameters, momentum, gradients
        assert all(0 < held < FEW * size for held in most)


def without_a_whole(team):
    """A model that is made without values and gets them row by row; its last layer has fewer rows than there are ranks."""
    with torch.random.fork_rng([]):
        torch.manual_seed(2)
        values = nn.Sequential(nn.Linear(5, 6), nn.Tanh(), nn.Linear(6, 1)).double()
    model = values
    if team.several:
        model = nn.Sequential(nn.Linear(5, 6), nn.Tanh(), nn.Linear(6, 1)).double().to("meta")
        shard(model, team).to_empty(device="cpu")
        with torch.no_grad():
            for (_, parameter), value in zip(model.named_parameters(), values.parameters(), strict=True):
                parameter.copy_(sharding.divided(parameter, value.detach(), team))
    x, _ = tiny.data(dtype=torch.float64)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
    how = {"insecure_seed": 1, "progress": False, "team": team}
    train(model, (x, x.sum(1)), squared, tiny.mechanism(), optimizer, **how)
    return whole(model, team)


def squared(model, batch):
    return (model(batch[0]).squeeze(1) - batch[1]).square()


def test_a_model_that_was_never_whole_and_has_fewer_rows_than_ranks():
    alone = without_a_whole(ALONE)
    for together in on_ranks(2, without_a_whole):
        torch.testing.assert_close(together, alone, rtol=1e-10, atol=1e-12)


def killed(team):
    def strike(told):
        if told.step == 2 and team.rank == 1:
            os.kill(os.getpid(), signal.SIGKILL)

    tiny.run(shard(tiny.model(), team), team=team, recorders=[strike])


def test_a_rank_that_is_killed_stops_the_others():
    first, second = outcomes(2, killed)
    assert isinstance(first, RankLost)
    assert "Nothing of this step was released" in str(first)
    assert isinstance(second, Gone)


# ------------------------------------------------------------------------------------------------------------ run folder


class Stopped(Exception):
    """Somebody pulls the plug."""


def in_folder(team, out, stop=None, sharded=True, resume=False, **settings):
    """A run into a folder, ended without warning at a step."""
    model = tiny.model()
    if sharded and team.several:
        shard(model, team)

    def pull(told):
        if told.step == stop:
            raise Stopped

    def adam(network):
        return torch.optim.Adam(network.parameters(), lr=0.01)

    how = {"insecure_seed": 3, "ema": 0.9, "checkpoint_seconds": 0.0, "recorders": [pull], **settings}
    try:
        tiny.run(model, team=team, out=out, resume=resume, optimizer=adam, **how)
    except Stopped:
        return None
    return whole(model, team)


def test_a_stopped_run_resumes_bit_for_bit_and_its_files_are_those_of_one_process(tmp_path):
    expected = on_ranks(2, in_folder, tmp_path / "through")
    on_ranks(2, in_folder, tmp_path / "stopped", 7)
    tree = load_tensors(tmp_path / "stopped" / "sensitive" / "checkpoint.safetensors")
    assert tree["sharded"] is True
    assert tree["ranks"] == 2
    assert tree["model"]["0.weight"].shape == (6, 5)
    assert tree["optimizer"]["state"][0]["exp_avg"].shape == (6, 5)
    assert torch.equal(on_ranks(2, in_folder, tmp_path / "stopped", None, True, True)[0], expected[0])
    one = in_folder(ALONE, tmp_path / "one")
    torch.testing.assert_close(one, expected[0])
    files = {name: load_file(tmp_path / name / "model.safetensors") for name in ("through", "stopped", "one")}
    for name, tensor in files["one"].items():
        torch.testing.assert_close(files["through"][name], tensor)
        assert torch.equal(files["through"][name], files["stopped"][name])
    assert len({(tmp_path / name / "ledger.json").read_text() for name in files}) == 1


@pytest.mark.slow
@pytest.mark.parametrize(("ranks", "sharded"), [(3, True), (2, False), (1, False)])
def test_a_stopped_run_goes_on_otherwise_with_the_same_ledger(tmp_path, ranks, sharded):
    """On another number of ranks, or with all parameters on each."""
    on_ranks(2, in_folder, tmp_path / "through")
    on_ranks(2, in_folder, tmp_path / "stopped", 7)
    on_ranks(ranks, in_folder, tmp_path / "stopped", None, sharded, True)
    ledgers = [(tmp_path / name / "ledger.json").read_text() for name in ("through", "stopped")]
    assert ledgers[0] == ledgers[1]


def goes_on(team, out, sharded, resume):
    """The randomness of later steps after a stop, which is bound to the course of the run."""
    chains = []
    real = checkpoint._take_up

    def take_up(run, tree):
        real(run, tree)
        chains.append(run.state.chain)

    checkpoint._take_up = take_up
    in_folder(team, out, None if resume else 7, sharded, resume, insecure_seed=None)
    checkpoint._take_up = real
    return chains


def test_whole_parameters_go_on_with_new_noise(tmp_path):
    """Sums that are rounded otherwise must not get the noise that those of spread parameters may have got."""
    on_ranks(2, goes_on, tmp_path / "run", True, False)
    shutil.copytree(tmp_path / "run", tmp_path / "again")
    same, other = (on_ranks(2, goes_on, tmp_path / name, spread, True)[0]
                   for name, spread in (("run", True), ("again", False)))  # fmt: skip
    assert same != other


def with_other_micro_batches(team):
    """Passes of other numbers of units: one rank would wait for another."""
    network = shard(tiny.model(), team)
    state = State.start(tiny.mechanism(), team=team)
    how = Runtime(microbatch=2 + team.rank)
    return told(lambda: private_step(network, tiny.data(), tiny.loss_fn, tiny.sgd(network), state, how))


def test_ranks_that_would_make_other_passes_are_told_at_once():
    for message in on_ranks(2, with_other_micro_batches):
        assert message.startswith("PrivacyError: ranks disagree about step 0")


def to_its_parts(team, folder):
    """`fit` with everything that a run leaves behind on its way: states, and the loss on public rows."""
    x, y = tiny.data()
    recipe = Recipe(
        model=tiny.model(), data=Splits(Data(x, y), Data(x, y, public=True), Data(x, y)), loss_fn=tiny.loss_fn,
        mechanism=tiny.mechanism(), optimizer=lambda parameters: torch.optim.SGD(parameters, lr=0.1),
    )  # fmt: skip
    given = {"insecure_seed": 1, "progress": False, "valid": recipe.data.valid, "team": team, "keep_states": 3}
    trained = fit(recipe, out=folder, sharded=team.several, **given)
    phase = Phase(mechanism=tiny.mechanism())
    with pytest.raises(ConfigError, match="several phases" if team.several else "in one process"):
        fit(Recipe(**{**vars(recipe), "phases": (phase,)}), sharded=True, **given)
    return [sorted(state) for _, state in trained.states], trained.history


def test_kept_states_and_valid_losses_are_those_of_one_process(tmp_path):
    alone = to_its_parts(ALONE, tmp_path / "one")
    first, second = on_ranks(2, to_its_parts, tmp_path / "two")
    assert first[0] == alone[0]
    assert second[0] == []  # the first rank has the folder
    for told in (first[1], second[1]):
        assert [line["valid_loss"] for line in told] == pytest.approx(
            [line["valid_loss"] for line in alone[1]], rel=1e-5
        )


# -------------------------------------------------------------------------------------------------------------- refused


class Positions(nn.Module):
    """A parameter that belongs to no layer."""

    def __init__(self):
        super().__init__()
        self.inner, self.positions = nn.Linear(5, 3), nn.Parameter(torch.zeros(5))

    def forward(self, x):
        return self.inner(x + self.positions)


class Doubled(nn.Linear):
    """A linear layer that does something else with its weight."""

    def forward(self, x):
        return nn.functional.linear(x, 2 * self.weight, self.bias)


class Averaged(nn.Linear):
    """A layer that mixes units."""

    def forward(self, x):
        return super().forward(x - x.mean(0))


def spread(network, team, **how):
    return fully_shard(network, mesh=init_device_mesh("cpu", (team.size,)), **how)


def told(act):
    try:
        act()
    except NoisewiseError as error:
        return f"{type(error).__name__}: {error}"
    return "nothing"


def refusals(team):
    x, y = tiny.data()
    mask = torch.rand(6, 5, generator=torch.Generator().manual_seed(0)) < 0.5
    rows = Data(x, y)

    def run(network, **settings):
        return told(lambda: tiny.run(network, team=team, **settings))

    def halves():
        mesh = init_device_mesh("cpu", (1, team.size), mesh_dim_names=("copies", "rows"))
        return fully_shard(tiny.model(), mesh=mesh)

    paid = PaidAccuracy(rows, epsilon=1.0, readings=3)
    lines = {
        "a convolution": told(lambda: shard(nn.Sequential(nn.Conv2d(1, 2, 3)), team)),
        "a lone parameter": told(lambda: shard(Positions(), team)),
        "spread all the same": run(spread(nn.Sequential(nn.Conv1d(5, 3, 1)), team)),
        "another use": run(shard(nn.Sequential(Doubled(5, 3)), team)),
        "mixed units": run(shard(nn.Sequential(Averaged(5, 3)), team)),
        "copies": run(halves()),
        "another precision": run(
            spread(tiny.model(), team, mp_policy=MixedPrecisionPolicy(param_dtype=torch.bfloat16))
        ),
        "a mask": run(shard(tiny.model(), team), plan=tiny.mechanism(support=Fixed({"0.weight": mask}))),
        "random masks": run(shard(tiny.model(), team), plan=tiny.mechanism(support=RandomMasks(0.5, 12, 3))),
        "dense": run(shard(tiny.model(), team), runtime=Runtime(engine="dense")),
        "captured": run(shard(tiny.model(), team), runtime=Runtime(capture=True)),
        "plain": run(shard(tiny.model(), team), ablation="plain"),
        "paid": run(shard(tiny.model(), team), paid=paid),
        "one process": told(lambda: shard(tiny.model(), ALONE)),
        "a team of one": told(lambda: tiny.run(shard(tiny.model(), team), team=ALONE)),
    }
    network = shard(tiny.model(), team)
    state = State.start(tiny.mechanism(), team=team)
    optimizer = tiny.sgd(network)
    private_step(network, (x, y), tiny.loss_fn, optimizer, state)
    optimizer.param_groups[0]["lr"] += 0.1 * team.rank
    private_step(network, (x, y), tiny.loss_fn, optimizer, state)
    astray = told(lambda: private_step(network, (x, y), tiny.loss_fn, optimizer, state))
    late, course = tiny.model(), State.start(tiny.mechanism(), team=team)
    private_step(late, (x, y), tiny.loss_fn, tiny.sgd(late), course)
    shard(late, team)
    lines["too late"] = told(lambda: private_step(late, (x, y), tiny.loss_fn, tiny.sgd(late), course))
    return {**lines, "another course": astray if state.ledger.releases == 2 else "released"}


EXPECTED = {
    "a convolution": "UnsupportedLayer: layer '0' is a Conv2d with parameters of its own",
    "a lone parameter": "UnsupportedLayer: the model itself is a Positions with parameters of its own",
    "spread all the same": "UnsupportedLayer: layer '0' is a Conv1d with parameters of its own",
    "another use": "UnsupportedLayer: the model gives '0.weight', which is spread over processes, to mul",
    "mixed units": "CoupledSamples: the loss of one unit moved",
    "copies": "UnsupportedLayer: the model's '0.weight' is spread over processes as",
    "another precision": "ConfigError: fully_shard of the model has a mp_policy",
    "a mask": "ConfigError: Fixed(",
    "random masks": "ConfigError: RandomMasks(",
    "dense": "ConfigError: Runtime(engine='dense') with parameters that are spread",
    "captured": "ConfigError: Runtime(capture=True) with parameters that are spread",
    "plain": "ConfigError: ablation='plain' with parameters that are spread",
    "paid": "ConfigError: paid= with parameters that are spread",
    "one process": "ConfigError: one process has nobody to share parameters with",
    "a team of one": "UnsupportedLayer: the model's '0.weight' is spread over processes as",
    "too late": "ConfigError: the model's parameters were spread over processes after the first step",
    "another course": "PrivacyError: ranks disagree about step 2",
}


def test_what_cannot_be_spread_is_refused_with_the_reason_before_anything_is_released():
    for answers in on_ranks(2, refusals):
        assert answers.keys() == EXPECTED.keys()
        for name, message in answers.items():
            assert message.startswith(EXPECTED[name]), f"{name}: {message}"


def test_without_fully_shard_it_is_said(monkeypatch):
    monkeypatch.delattr("torch.distributed.fsdp.fully_shard")
    with pytest.raises(ConfigError, match=r"has no torch\.distributed\.fsdp\.fully_shard"):
        sharding._fully_shard()


def as_it_was(team):
    model = shard(tiny.model(), team)
    before = [(type(module), dict(vars(module)), list(module._forward_hooks)) for module in model.modules()]
    spread_parameters = sharding.Sharded(model, team)
    with spread_parameters.lent():
        assert type(model[0]) is nn.Linear
        assert not any(map(is_sharded, model.parameters()))
        assert not model[0]._forward_pre_hooks
        assert bool(model[0].weight.detach().isnan().all())
    after = [(type(module), dict(vars(module)), list(module._forward_hooks)) for module in model.modules()]
    return [kind.__name__ for kind, *_ in before], [
        one[0] is two[0] and one[1].keys() == two[1].keys() and one[2] == two[2]
        for one, two in zip(before, after, strict=True)
    ]


def test_the_model_is_lent_as_it_was_before_fully_shard_and_put_back():
    for kinds, same in on_ranks(2, as_it_was):
        assert kinds[1] == "FSDPLinear"
        assert all(same)


def test_a_whole_model_is_nothing_special():
    assert sharding.Sharded.of(tiny.model(), ALONE) is None
    with pytest.raises(UnsupportedLayer, match="is a Conv2d"):
        sharding.check_layers(nn.Conv2d(1, 1, 1))

"""Steps of fixed shapes are the ordinary ones; on a CPU, plain calls on padded micro-batches stand for graphs."""

import copy
import gc
import math
import pickle
import random
from contextlib import contextmanager, nullcontext

import pytest
import torch
from torch import nn

from helpers import tiny
from helpers.crashes import crashed
from helpers.fixed_shapes import CASES, SEED, Case, compared, people, run
from helpers.interpreted import interpret
from noisewise import Runtime, promises
from noisewise.adaptive import Quantile
from noisewise.clipping import Flat
from noisewise.errors import ConfigError, PrivacyError, RunError
from noisewise.persample import clipped_sum, examine, formed, replay
from noisewise.persample.steady import NotSteady
from noisewise.sampling import Poisson
from noisewise.testing import reveal
from noisewise.training.captured import Captured, most_for, sizes_for, wanted
from noisewise.training.loop import train
from noisewise.training.state import State
from noisewise.training.step import private_step

CAPTURED = Runtime(capture=True)


@pytest.mark.parametrize(
    ("name", "microbatch"), [*((name, None) for name in CASES), ("linear", 3), ("convolutional", 3), ("views", 3)]
)
def test_captured_runs_are_the_ordinary_ones(name, microbatch):
    assert compared(CASES[name], dtype=torch.float64, microbatch=microbatch) < 1e-9


def test_batches_of_any_size_fit_into_few_sizes_with_little_padding():
    """Expected batches from 8 to 8192; sizes that are drawn lie within five standard deviations."""
    for expected in (8, 32, 100, 256, 1024, 8192):
        spread = int(5 * math.sqrt(expected))
        drawn = range(max(0, expected - spread), expected + spread + 1)
        sizes = [sizes_for(units, expected) for units in drawn]
        assert all(sum(size) >= units and len(size) == (units > 0) for size, units in zip(sizes, drawn, strict=True))
        assert len({size[0] for size in sizes if size}) <= 20
        usual = range(expected - int(math.sqrt(expected)), expected + int(math.sqrt(expected)))
        padding = [sum(sizes_for(units, expected)) / units - 1 for units in usual]
        assert sum(padding) / len(padding) < 0.13


@pytest.mark.parametrize(("expected", "largest"), [(1, None), (8, None), (1000, None), (1000, 64)])
def test_nearly_every_batch_is_one_micro_batch(expected, largest):
    most = most_for(expected, largest)
    usual = range(1, math.ceil(expected + 6 * math.sqrt(expected)) + 1)
    sizes = [sizes_for(units, expected, most) for units in usual]
    assert all(len(size) == 1 for size in sizes) or largest is not None
    assert max(max(size) for size in sizes) <= most <= (largest or 8 * expected)


@pytest.mark.parametrize(("units", "sizes"), [(0, []), (1, [8]), (64, [64]), (130, [64, 64, 8]), (70, [64, 8])])
def test_micro_batches_are_never_larger_than_asked_for(units, sizes):
    assert sizes_for(units, 1000, 64) == sizes
    assert all(size <= 64 for size in sizes_for(units, 1000, 64))


def cancelling(delta):
    """A unit of two positions that nearly cancel: Gram matrices know its norm badly."""
    x = torch.zeros(2, 16)
    x[0], x[1] = 1, -1
    x[1, 0] += delta
    return 1000 * x


@pytest.mark.parametrize("with_kernels", [False, True])
@pytest.mark.parametrize("kept", [1 << 28, 2 * 34 * 256, 30 * 256])
def test_a_units_norm_does_not_follow_its_company(monkeypatch, with_kernels, kept):
    """Neither who else is in the batch nor how many they are, also where formed gradients no longer fit."""
    monkeypatch.setattr(formed, "KEPT", kept)
    monkeypatch.setattr(formed, "CUDA_KEPT", kept)
    if with_kernels:
        interpret(monkeypatch)
    torch.manual_seed(0)
    model, company, weights = nn.Linear(16, 16, bias=False), 100 * torch.randn(80, 2, 16), torch.ones(2, 16)

    def loss(network, batch):
        return (network(batch) * weights).sum((1, 2))  # a gradient that lies in one piece: kernels want that

    layout, known = examine(model, loss, company[:0]), []
    for others in (0, 1, 33, 34, 80):
        batch = torch.cat([cancelling(0.005)[None], company[:others]])
        clipped = Captured().clipped(
            model, loss, batch, Flat(1.0), {}, CAPTURED, layout=layout, expected=16, seed=1, norms=True
        )
        known.append(clipped.norms[0, 0].item())
    assert max(known) / min(known) < 1 + 1e-6


def test_the_pass_that_makes_kernels_ready_leaves_nothing_behind(monkeypatch):
    """No kernel is run in it: what it would have written is no number, and in no sum, norm or verdict of the step."""
    pytest.importorskip("triton")
    interpret(monkeypatch)
    rehearsed, empty, real = [], torch.empty, replay.kernels.rehearsal

    @contextmanager
    def rehearsal(device):
        with real(device):
            yield
        rehearsed.append(captured._sums.values["2.weight"].isnan().any().item())

    def blank(*size, **settings):
        tensor = empty(*size, **settings)
        return tensor.fill_(math.nan) if tensor.is_floating_point() else tensor

    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv1d(8, 4, 3), nn.Flatten(), nn.Linear(20, 3))
    batch, captured = torch.randn(6, 8, 7), Captured()

    def loss(network, batch):
        return network(batch).square().sum(1)

    layout = examine(model, loss, batch[:0])
    monkeypatch.setattr(torch, "empty", blank)
    monkeypatch.setattr(replay.kernels, "rehearsal", rehearsal)
    clipped = captured.clipped(
        model, loss, batch, Flat(1.0), {}, CAPTURED, layout=layout, expected=6, seed=1, norms=True
    )
    captured.settle()
    assert rehearsed == [True]
    monkeypatch.setattr(replay.kernels, "ENABLED", False)
    expected = clipped_sum(model, loss, batch, Flat(1.0), layout=layout)
    torch.testing.assert_close(clipped.norms, expected.norms, rtol=1e-4, atol=0)
    for name, value in reveal(expected.grads).items():
        torch.testing.assert_close(reveal(clipped.grads)[name], value, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("fails", [False, True])
@pytest.mark.parametrize("free", [1, 3])
def test_while_a_graph_is_captured_no_garbage_is_looked_for(fails, free, monkeypatch):
    """Freeing memory would break the capture, and looking for it before takes longer than the capture itself."""
    done, collected = [], []
    for name in ("synchronize", "empty_cache"):
        monkeypatch.setattr(torch.cuda, name, lambda name=name: done.append(name))
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda: (free, 8))
    monkeypatch.setattr(torch.cuda, "stream", lambda stream: nullcontext())
    monkeypatch.setattr(gc, "collect", lambda *_: collected.append(True))

    class Graph:
        def capture_begin(self, pool):
            done.append("begin")

        def capture_end(self):
            done.append("end")

    try:
        with pytest.raises(ZeroDivisionError) if fails else nullcontext(), replay.capturing(Graph(), None, None):
            assert not gc.isenabled()
            done.append(1 / (not fails))
    finally:
        again = gc.isenabled()
        gc.enable()
    assert again
    assert not collected
    emptied = ["empty_cache"] if free == 1 else []
    assert done == ["synchronize", *emptied, "begin", *([] if fails else [1]), "end"]


def test_no_micro_batch_is_larger_than_the_most(monkeypatch):
    """Batches of all 40 units where 8 were expected: gradients that are kept would not fit."""
    made = []
    real = replay.Replay.__init__
    monkeypatch.setattr(replay.Replay, "__init__", lambda self, *a, **k: (made.append(a[3]), real(self, *a, **k))[1])
    network, units = tiny.model(), tiny.data()
    layout = examine(network, tiny.loss_fn, units)
    Captured().clipped(
        network, tiny.loss_fn, units, Flat(1.0), {}, CAPTURED, layout=layout, expected=8, seed=0, norms=False
    )
    assert max(made) == most_for(8) < tiny.N


def test_each_size_is_captured_once(monkeypatch):
    made = []
    real = replay.Replay.__init__
    monkeypatch.setattr(replay.Replay, "__init__", lambda self, *a, **k: (made.append(a[3]), real(self, *a, **k))[1])
    run(CASES["linear"], runtime=CAPTURED)
    assert len(made) == len(set(made)) < tiny.STEPS


REFUSED = {
    "people": (Case(units=people, plan={"sampler": Poisson(tiny.N // 2, 4), "unit": "person"}), "several rows"),
    "an adaptive rule": (Case(plan={"clip": Quantile(1.0)}), "answers"),
    "no proof": (Case(loss_fn=lambda m, b: tiny.loss_fn(m, b) * (2 if bool((b[0] > -1e9).all()) else 1)), "goes over"),
}


class Keeping(nn.Module):
    """Keeps what it computes, from its second pass in a step's shape on."""

    def __init__(self):
        super().__init__()
        self.layer, self.kept = nn.Linear(5, 3), []

    def forward(self, x):
        out = self.layer(x)
        if len(x) == 24:  # padded: no examination has such a batch, and not the first of the sizes
            self.kept.append(out)
        return out


def test_a_model_that_keeps_what_a_replay_writes_into_is_refused():
    network = Keeping()
    with pytest.raises(PrivacyError, match="keeps"):
        tiny.run(
            network, plan=tiny.mechanism(sampler=Poisson(tiny.N, 23), steps=12), insecure_seed=SEED, runtime=CAPTURED
        )


class Counting(nn.Module):
    """Counts its passes."""

    def __init__(self):
        super().__init__()
        self.layer, self.passes = nn.Linear(5, 3), 0

    def forward(self, x):
        self.passes += 1
        return self.layer(x)


class Chancy(Counting):
    """Draws from Python's generator."""

    def forward(self, x):
        return self.layer(x) * (1 + 1e-3 * (random.random() > 2))


REFUSED["a count of passes"] = (Case(Counting), "counts")
REFUSED["Python's chance"] = (Case(Chancy), "Python")


@pytest.mark.parametrize("name", REFUSED)
def test_what_cannot_be_captured_is_refused_or_made_in_the_ordinary_way(name):
    case, word = REFUSED[name]
    with pytest.raises(ConfigError, match="capture=True") as error:
        run(case, runtime=CAPTURED)
    assert word in str(error.value)
    assert torch.isfinite(run(case, runtime=Runtime())[0]).all()


@pytest.mark.parametrize(
    ("capture", "device", "expected"),
    [(None, "cuda", True), (None, "cpu", False), (False, "cuda", False), (True, "cpu", True)],
)
def test_steps_are_captured_on_a_gpu_or_where_asked_for(capture, device, expected):
    assert wanted(Runtime(capture=capture), torch.device(device)) is expected
    assert Runtime().capture is None


def test_a_private_run_is_captured_where_asked_for(monkeypatch):
    seen = []
    real = Captured.clipped
    monkeypatch.setattr(Captured, "clipped", lambda *a, **k: (seen.append(1), real(*a, **k))[1])
    done = tiny.run(runtime=CAPTURED)
    assert len(seen) == done.ledger.releases == tiny.STEPS
    assert done.status.status == "private"


def test_steps_of_little_memory_are_not_captured():
    assert not wanted(Runtime(memory="small"), torch.device("cuda"))
    with pytest.raises(ConfigError, match="memory='small'"):
        run(CASES["linear"], runtime=Runtime(capture=True, memory="small"))


@pytest.mark.parametrize("engine", ["loop", "dense"])
def test_other_engines_are_not_captured(engine):
    with pytest.raises(ConfigError, match="engine"):
        run(CASES["linear"], runtime=Runtime(capture=True, engine=engine))


def test_a_number_that_changes_is_not_frozen():
    """A weight of the loss that is another after half of the steps: the examined pass is no longer this one."""
    weight = 1.0

    def loss_fn(network, batch):
        return tiny.loss_fn(network, batch) * weight

    def change(observation):
        nonlocal weight
        weight = 1.0 if observation.step < 5 else 0.01

    network = tiny.model()
    with pytest.raises(ConfigError, match="other constants"):
        train(
            network, tiny.data(), loss_fn, tiny.mechanism(), tiny.sgd(network), insecure_seed=SEED, progress=False,
            recorders=[change], runtime=CAPTURED,
        )  # fmt: skip


def test_a_switch_of_the_model_is_read_again():
    network = tiny.model(torch.float64, dropout=0.9)
    state = State.start(tiny.mechanism(), insecure_seed=SEED)
    optimizer, units = tiny.sgd(network), tiny.data(dtype=torch.float64)
    private_step(network, units, tiny.loss_fn, optimizer, state, CAPTURED)
    before = state.captured.captures
    network.eval()
    private_step(network, units, tiny.loss_fn, optimizer, state, CAPTURED)
    assert state.captured.captures == before + 1


def test_a_rule_that_breaks_its_promise_adds_nothing_and_is_told(monkeypatch):
    class Broken(Flat):
        """Twice what it may be; taken for one of the package's."""

        def factors(self, samples):
            return 2 * super().factors(samples)

    monkeypatch.setattr(promises, "TRUSTED", promises.TRUSTED | {Broken})
    network, units, captured = tiny.model(torch.float64), tiny.data(dtype=torch.float64), Captured()
    layout = examine(network, tiny.loss_fn, units)
    got = captured.clipped(
        network, tiny.loss_fn, units, Broken(0.1), {}, CAPTURED, layout=layout, expected=8, seed=0, norms=False
    )
    assert all((value == 0).all() for value in reveal(got.grads).values())
    with pytest.raises(PrivacyError, match="contribute more"):
        captured.settle()


def test_captured_runs_resume_bit_for_bit(tmp_path):
    whole = tiny.run(insecure_seed=SEED, runtime=CAPTURED)
    crashed(tmp_path / "run", insecure_seed=SEED, runtime=CAPTURED)
    resumed = tiny.run(insecure_seed=SEED, runtime=CAPTURED, out=tmp_path / "run", resume=True)
    assert tiny.same(whole.model, resumed.model)


@pytest.mark.parametrize("captured", [True, False])
def test_a_run_is_resumed_in_its_own_way_alone(tmp_path, captured):
    crashed(tmp_path / "run", insecure_seed=SEED, runtime=Runtime(capture=captured))
    with pytest.raises(RunError, match=rf"the same noise on sums that differ.*Runtime\(capture={captured}\)"):
        tiny.run(insecure_seed=SEED, runtime=Runtime(capture=not captured), out=tmp_path / "run", resume=True)
    tiny.run(insecure_seed=SEED, runtime=Runtime(capture=captured), out=tmp_path / "run", resume=True)


def test_a_size_that_cannot_be_captured_does_not_change_the_way(monkeypatch):
    """Else who was drawn would decide how the norms of all are computed."""
    real, sizes = replay.Replay.__init__, set()

    def refusing(self, model, loss_fn, like, size, *rest, **settings):
        sizes.add(size)
        if len(sizes) > 1:
            raise NotSteady("not this one")
        real(self, model, loss_fn, like, size, *rest, **settings)

    monkeypatch.setattr(replay.Replay, "__init__", refusing)
    with pytest.raises(PrivacyError, match=r"steps of other sizes were captured, one of .* cannot be: not this one"):
        tiny.run(plan=tiny.mechanism(sampler=Poisson(tiny.N, 7), steps=40), insecure_seed=SEED, runtime=CAPTURED)


def test_a_broken_promise_of_an_earlier_rule_is_told():
    captured = Captured()
    network, units = tiny.model(torch.float64), tiny.data(dtype=torch.float64)
    layout = examine(network, tiny.loss_fn, units)
    for bound in (0.1, 0.2):
        captured.clipped(
            network, tiny.loss_fn, units, Flat(bound), {}, CAPTURED, layout=layout, expected=8, seed=0, norms=False
        )
        captured.settle()
        if bound == 0.1:
            broken = captured._sums.broken
    broken.fill_(True)
    with pytest.raises(PrivacyError, match="contribute more"):
        captured.settle()


@pytest.mark.parametrize("way", [copy.deepcopy, lambda state: pickle.loads(pickle.dumps(state))])
def test_copies_of_a_state_capture_anew(way):
    network = tiny.model()
    state = State.start(tiny.mechanism(), insecure_seed=SEED)
    private_step(network, tiny.data(), tiny.loss_fn, tiny.sgd(network), state, CAPTURED)
    assert state.captured.replays
    assert not way(state).captured.replays


def test_dropout_draws_anew_in_every_step():
    """Two runs that differ in the secret root alone differ in their weights without noise and clipping at work."""
    plan = {"sampler": Poisson(tiny.N, tiny.N), "noise_multiplier": 0.0, "steps": 2}
    runs = []
    for seed in (1, 2):
        network = tiny.model(torch.float64, dropout=0.5)
        tiny.run(network, plan=tiny.mechanism(**plan), insecure_seed=seed, runtime=CAPTURED)
        runs.append(tiny.weights(network))
    assert not torch.equal(*runs)


def test_gradients_of_a_captured_step_are_not_its_sums():
    """The next step writes to those; what this one has released stays as it is."""
    network = tiny.model()
    state, optimizer = State.start(tiny.mechanism(), insecure_seed=0), tiny.sgd(network)
    private_step(network, tiny.data(), tiny.loss_fn, optimizer, state, CAPTURED)
    grads = [parameter.grad for parameter in network.parameters()]
    before = [grad.clone() for grad in grads]
    private_step(network, tiny.data(), tiny.loss_fn, optimizer, state, CAPTURED)
    assert state.captured.replays
    assert all(torch.equal(grad, old) for grad, old in zip(grads, before, strict=True))

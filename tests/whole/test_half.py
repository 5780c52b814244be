"""Models in float16 and bfloat16: units are bounded, sums and norms are the definition's, training is the ordinary one."""

import os
import signal

import pytest
import torch
from safetensors.torch import load_file
from torch import nn

from helpers.oracles import Setup, clipped_sum_by_hand, flat, unit_gradients
from noisewise.adaptive import Quantile
from noisewise.clipping import Flat, Global, per_layer
from noisewise.errors import Interrupted
from noisewise.mechanism import Mechanism
from noisewise.persample import clipped_sum, examine
from noisewise.runtime import Runtime
from noisewise.sampling import FullBatch, Poisson
from noisewise.training.loop import train
from noisewise.training.state import State
from noisewise.training.step import private_step

HALVES = pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
ENGINES = pytest.mark.parametrize("engine", ["auto", "dense", "loop"])
UNITS, CLASSES = 6, 5


def loss_fn(model, batch):
    """In the model's own precision up to the outputs."""
    return nn.functional.cross_entropy(model(batch[0]).float(), batch[1], reduction="none")


class Tokens(nn.Module):
    def __init__(self):
        super().__init__()
        self.table, self.norm = nn.Embedding(30, 16), nn.LayerNorm(16)
        self.mix, self.head = nn.Linear(16, 16), nn.Linear(16, CLASSES)

    def forward(self, x):
        return self.head(torch.tanh(self.mix(self.norm(self.table(x)))).mean(1))


def perceptron():
    return nn.Sequential(nn.Linear(20, 32), nn.Tanh(), nn.Linear(32, CLASSES))


def convolutions():
    return nn.Sequential(
        nn.Conv2d(3, 8, 3, padding=1), nn.ReLU(), nn.Conv2d(8, 4, 3), nn.Flatten(), nn.Linear(144, CLASSES)
    )


MODELS = {"perceptron": (perceptron, (20,)), "convolutions": (convolutions, (3, 8, 8)), "tokens": (Tokens, None)}


def problem(name, dtype, scale=1.0):
    make, shape = MODELS[name]
    with torch.random.fork_rng([]):
        torch.manual_seed(0)
        model = make().to(dtype)
        x = torch.randint(0, 30, (UNITS, 40)) if shape is None else (scale * torch.randn(UNITS, *shape)).to(dtype)
    return Setup(model, loss_fn, (x, torch.arange(UNITS) % CLASSES))


def rules(names):
    return {
        "flat": Flat(0.5),
        "tiny": Flat(1e-3),
        "global": Global(0.5, 4.0),
        "per layer": per_layer(names, {"*bias": Flat(0.05), "*": Flat(0.3)}),
    }


def length(tensors):
    return flat(tensors).norm().item()


@HALVES
@ENGINES
@pytest.mark.parametrize("scale", [1.0, 300.0])
@pytest.mark.parametrize("name", MODELS)
def test_no_unit_is_longer_than_the_bound(name, dtype, engine, scale):
    """Also where squares of gradients are beyond what float16 can hold."""
    model, _, (x, y) = problem(name, dtype, scale)
    layout, runtime = examine(model, loss_fn, (x, y)), Runtime(engine=engine)
    for rule in rules([name for name, _ in model.named_parameters()]).values():
        for i in range(UNITS):
            found = clipped_sum(model, loss_fn, (x[i : i + 1], y[i : i + 1]), rule, runtime=runtime, layout=layout)
            assert length(found.grads._values) <= rule.sensitivity * (1 + 1e-5)


@HALVES
@ENGINES
@pytest.mark.parametrize("microbatch", [None, 4])
@pytest.mark.parametrize("name", MODELS)
def test_norms_and_sums_are_the_definition(name, dtype, engine, microbatch):
    """Gradients of one unit after the other in the same precision; norms, factors and sums in double."""
    setup = problem(name, dtype)
    grads = {name: grad.double() for name, grad in unit_gradients(setup).items()}
    rounding = 16 * torch.finfo(dtype).eps
    layout, runtime = examine(setup.model, loss_fn, setup.batch), Runtime(engine=engine, microbatch=microbatch)
    for rule in rules(list(grads)).values():
        found = clipped_sum(setup.model, loss_fn, setup.batch, rule, runtime=runtime, layout=layout)
        total, norms = clipped_sum_by_hand(grads, rule, {})
        torch.testing.assert_close(found.norms.double(), norms, rtol=rounding, atol=rounding)
        apart = {name: found.grads._values[name].double() - total[name] for name in total}
        assert length(apart) <= rounding * length(total)


def plan(n=UNITS, **settings):
    given = {"sampler": FullBatch(n), "clip": Flat(0.5), "noise_multiplier": 4.0, "steps": 6}
    return Mechanism(**{**given, **settings})


@HALVES
def test_noise_has_its_std_in_every_precision(dtype):
    with torch.random.fork_rng([]):
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(100, 200), nn.Tanh(), nn.Linear(200, CLASSES)).to(dtype)
        x, y = torch.randn(UNITS, 100).to(dtype), torch.arange(UNITS) % CLASSES
    state = State.start(plan(), insecure_seed=0)
    private_step(model, (x, y), loss_fn, torch.optim.SGD(model.parameters(), lr=0.1), state)
    noised = torch.cat([parameter.grad.flatten().double() for parameter in model.parameters()])
    assert noised.std().item() == pytest.approx(4.0 * 0.5 / UNITS, rel=0.03)
    assert all(parameter.grad.dtype == parameter.dtype == dtype for parameter in model.parameters())


@HALVES
@pytest.mark.parametrize("name", MODELS)
def test_training_is_that_of_the_definition(name, dtype):
    """Without noise: every step is the clipped sum by hand, over the expected batch size, times the rate."""
    setup, rule = problem(name, dtype), Flat(0.5)
    own = problem(name, dtype).model
    optimizer = torch.optim.SGD(own.parameters(), lr=0.5)
    for _ in range(3):
        total, _ = clipped_sum_by_hand(
            {key: grad.double() for key, grad in unit_gradients(Setup(own, *setup[1:])).items()}, rule, {}
        )
        for key, parameter in own.named_parameters():
            parameter.grad = (total[key] / UNITS).to(dtype)
        optimizer.step()
    moved = torch.optim.SGD(setup.model.parameters(), lr=0.5)
    trained = train(
        setup.model, setup.batch, loss_fn, plan(steps=3, clip=rule), moved, ablation="clip-only", progress=False
    )
    start = flat(dict(problem(name, dtype).model.named_parameters())).detach()
    expected, found = (flat(dict(m.named_parameters())).detach() for m in (own, trained.model))
    assert (expected - start).norm() > 0.1
    assert (found - expected).norm() <= 0.05 * (expected - start).norm()


@HALVES
@pytest.mark.parametrize("settings", [{}, {"secure": True}, {"ema": 0.5}, {"runtime": Runtime(microbatch=4)}], ids=str)
def test_a_run_is_private_stopped_resumed_and_saved_in_its_precision(dtype, settings, tmp_path):
    def run(**more):
        setup = problem("perceptron", dtype)
        moves = torch.optim.SGD(setup.model.parameters(), lr=0.1, momentum=0.9)
        mechanism = plan(clip=Quantile(0.5), sampler=Poisson(UNITS, 4))
        return train(setup.model, setup.batch, loss_fn, mechanism, moves, progress=False, **settings, **more)

    def stop(observation):
        if observation.step == 2:
            os.kill(os.getpid(), signal.SIGINT)

    out = {"out": tmp_path / "run", "insecure_seed": 3}
    with pytest.raises(Interrupted):
        run(recorders=[stop], **out)
    resumed, whole = run(resume=True, **out), run(insecure_seed=3)
    for one, other in zip(resumed.model.parameters(), whole.model.parameters(), strict=True):
        assert torch.equal(one, other)
        assert one.dtype == dtype
        assert one.isfinite().all()
    assert {value.dtype for value in load_file(tmp_path / "run" / "model.safetensors").values()} == {dtype}
    assert run().status.status == "private"

"""Situations that models bring along: mixed precision, chance, several losses, compilation, low rank, checkpoints."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.checkpoint import checkpoint

from helpers import shared_runs as runs
from helpers.oracles import (
    Apply,
    Setup,
    clipped_sum_by_hand,
    cross_entropy,
    flat,
    in_double,
    relative_error,
    rows,
    unit_gradients,
)
from helpers.shared_runs import Blocks
from noisewise.clipping import Flat
from noisewise.errors import UnsupportedLayer
from noisewise.persample import clipped_sum, examine
from noisewise.runtime import Runtime

EACH_ENGINE = pytest.mark.parametrize("engine", ["auto", "dense", "loop"])
BOUND = 0.3
X = torch.randn(4, 5, generator=torch.Generator().manual_seed(0))
Y = torch.tensor([0, 1, 2, 0])
TOKENS = (runs.inputs("blocks", 6), runs.labels(6))


def mlp(*between):
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(5, 8), nn.Tanh(), *between, nn.Linear(8, 3))


def summed(setup, engine="auto", **kwargs):
    return clipped_sum(*setup, Flat(BOUND), runtime=Runtime(engine=engine), **kwargs)


def by_hand(setup):
    grads = unit_gradients(setup)
    assert flat({name: grad[0] for name, grad in grads.items()}).norm() > BOUND
    return clipped_sum_by_hand(grads, Flat(BOUND), {})[0]


def length(clipped):
    return float(flat(clipped.grads._values).norm())


# ------------------------------------------------------------------------------------------------- mixed precision


def autocast_loss(model, batch):
    with torch.autocast("cpu", torch.bfloat16):
        scores = model(batch[0])
    return F.cross_entropy(scores.float(), batch[1], reduction="none")


@EACH_ENGINE
def test_autocast_takes_norms_in_float64_sums_in_float32_and_keeps_the_bound(engine):
    norm = [] if engine == "dense" else [nn.LayerNorm(8)]  # whose types vmap mixes up: dense refuses it
    setup = Setup(mlp(*norm), autocast_loss, (X, Y))
    got = summed(setup, engine)
    assert got.norms.dtype == torch.float64
    assert all(value.dtype == torch.float32 for value in got.grads._values.values())
    assert relative_error(got.grads._values, by_hand(in_double(setup)._replace(loss_fn=cross_entropy))) < 0.03
    for unit in range(4):
        alone = summed(setup._replace(batch=rows(setup.batch, slice(unit, unit + 1))), engine)
        assert length(alone) <= BOUND * (1 + 1e-5)


# ---------------------------------------------------------------------------------------------------------- chance


@EACH_ENGINE
@pytest.mark.parametrize("units", range(4))
def test_with_dropout_a_lone_unit_keeps_the_bound_and_the_random_state_stays(engine, units):
    setup = Setup(mlp(nn.Dropout(0.5)), cross_entropy, rows((X, Y), slice(units, units + 1)))
    for seed in range(5):
        torch.manual_seed(seed)
        state = torch.get_rng_state()
        assert length(summed(setup, engine)) <= BOUND * (1 + 1e-6)
        assert torch.equal(torch.get_rng_state(), state)


@EACH_ENGINE
def test_equal_units_draw_dropout_of_their_own(engine):
    same = (X[:1].repeat(8, 1), Y[:1].repeat(8))
    assert len(set(summed(Setup(mlp(nn.Dropout(0.5)), cross_entropy, same), engine).norms[0].tolist())) > 4


@EACH_ENGINE
def test_dropout_in_evaluation_mode_is_not_there(engine):
    setup = Setup(mlp(nn.Dropout(0.5)).eval(), cross_entropy, (X, Y))
    assert relative_error(summed(setup, engine).grads._values, by_hand(setup)) < 1e-5


def test_dropout_beside_a_parameter_without_a_rule_goes_to_the_dense_engine():
    model = mlp(nn.Dropout(0.5))
    model.register_parameter("gain", nn.Parameter(torch.ones(3)))

    def loss_fn(m, batch):
        return F.cross_entropy(torch.maximum(m(batch[0]), m.gain), batch[1], reduction="none")

    layout = examine(model, loss_fn, (X, Y))
    assert layout.fallback == {"gain"}
    assert layout.vectorises
    assert length(summed(Setup(model, loss_fn, (X[:1], Y[:1])), layout=layout)) <= BOUND * (1 + 1e-6)


# ------------------------------------------------------------------------------- several losses, inputs and outputs


def several_losses(model, batch):
    scores, values = model(batch)
    first = F.cross_entropy(scores, batch["class"], reduction="none")
    second = (values - batch["target"]).square().mean(1)
    return first + 0.5 * second + 0.1 * scores.square().sum(1)


def two_inputs_and_outputs():
    torch.manual_seed(0)

    def forward(m, batch):
        hidden = torch.tanh(m.left(batch["inputs"][0]) + m.right(batch["inputs"][1]))
        return m.scores(hidden), m.values(hidden)

    return Apply(
        forward, left=nn.Linear(5, 6), right=nn.Linear(2, 6), scores=nn.Linear(6, 3), values=nn.Linear(6, 2)
    )  # fmt: skip


@EACH_ENGINE
def test_several_losses_inputs_and_outputs_in_a_dict(engine):
    generator = torch.Generator().manual_seed(1)
    batch = {
        "inputs": (X, torch.randn(4, 2, generator=generator)),
        "class": Y,
        "target": torch.randn(4, 2, generator=generator),
    }
    setup = Setup(two_inputs_and_outputs(), several_losses, batch)
    assert relative_error(summed(setup, engine).grads._values, by_hand(setup)) < 1e-5


@EACH_ENGINE
def test_a_loss_that_looks_at_the_weights_is_clipped_with_them(engine):
    def loss_fn(model, batch):
        return cross_entropy(model, batch) + 0.1 * model[0].weight.square().sum()

    setup = Setup(mlp(), loss_fn, (X, Y))
    assert relative_error(summed(setup, engine).grads._values, by_hand(setup)) < 1e-5


# ------------------------------------------------------------------------------------------------------ checkpoints


def checkpointed(reentrant, where):
    def body(m, x):
        return torch.tanh(m.inner(x))

    def forward(m, x):
        hidden = torch.tanh(m.body(x)) if where == "inside" else x.clone().requires_grad_()
        return m.head(checkpoint(lambda h: body(m, h), hidden, use_reentrant=reentrant))

    torch.manual_seed(0)
    width = 8 if where == "inside" else 5
    return Apply(forward, body=nn.Linear(5, 8), inner=nn.Linear(width, 8), head=nn.Linear(8, 3))


def wholly_checkpointed(reentrant):
    torch.manual_seed(0)
    inner = nn.Sequential(nn.Linear(5, 8), nn.Tanh(), nn.Linear(8, 3))
    return Apply(lambda m, x: checkpoint(m.inner, x.clone().requires_grad_(), use_reentrant=reentrant), inner=inner)


@pytest.mark.parametrize(
    "model", [checkpointed(False, "inside"), checkpointed(False, "first"), wholly_checkpointed(False)]
)
@pytest.mark.parametrize("engine", ["auto", "ghost", "loop"])
def test_checkpoints_are_right_if_not_reentrant(model, engine):
    setup = Setup(model, cross_entropy, (X, Y))
    assert relative_error(summed(setup, engine).grads._values, by_hand(setup)) < 1e-5
    assert all(p.grad is None for p in model.parameters())


@pytest.mark.parametrize("dropped", [0.0, 0.5])
def test_checkpoints_of_activations_change_no_bit(dropped):
    """Norms and sums of an encoder, the engine's proof included, with what dropout draws."""
    sums = []
    for where in ("nowhere", "in the block"):
        torch.manual_seed(0)
        model = Blocks(checkpointed=where == "in the block")
        model.inner.append(nn.Dropout(dropped))
        layout = examine(model, runs.loss_fn, TOKENS)
        assert layout.proven
        assert not layout.fallback
        sums.append(clipped_sum(model, runs.loss_fn, TOKENS, Flat(0.5), layout=layout, seed=3))
    plain, again = sums
    assert torch.equal(plain.norms, again.norms)
    assert all(torch.equal(again.grads._values[name], total) for name, total in plain.grads._values.items())


@pytest.mark.parametrize(
    "model", [checkpointed(True, "inside"), checkpointed(True, "first"), wholly_checkpointed(True)]
)
@EACH_ENGINE
@pytest.mark.filterwarnings("ignore:None of the inputs have requires_grad=True:UserWarning")
def test_reentrant_checkpoints_are_refused_and_leave_no_gradient(model, engine):
    with pytest.raises(UnsupportedLayer, match=r"reentrant checkpoint hides.*use_reentrant=False"):
        summed(Setup(model, cross_entropy, (X, Y)), engine)
    assert all(p.grad is None for p in model.parameters())


def test_a_checkpoint_that_turns_reentrant_after_the_examination_is_refused():
    model = wholly_checkpointed(False)
    layout = examine(model, cross_entropy, (X, Y))
    model._run = wholly_checkpointed(True)._run
    with pytest.raises(UnsupportedLayer, match="reentrant checkpoint"):
        summed(Setup(model, cross_entropy, (X, Y)), layout=layout)


# ------------------------------------------------------------------------------------------------- hidden gradients


class Hidden(torch.autograd.Function):
    """A layer in one custom function: autograd knows its parameters, no rule does."""

    @staticmethod
    def forward(context, x, weight):
        context.save_for_backward(x, weight)
        return x @ weight.T

    @staticmethod
    def backward(context, grad):
        x, weight = context.saved_tensors
        return grad @ weight, grad.T @ x


@pytest.mark.parametrize("engine", ["auto", "loop"])
def test_custom_functions_are_left_to_the_loop(engine):
    torch.manual_seed(0)
    model = Apply(
        lambda m, x: m.head(Hidden.apply(x, m.weight)), weight=nn.Parameter(torch.randn(6, 5)), head=nn.Linear(6, 3)
    )
    setup = Setup(model, cross_entropy, (X, Y))
    layout = examine(*setup)
    assert "custom autograd function" in layout.reason
    assert layout.fallback == {"weight", "head.weight", "head.bias"}
    assert not layout.vectorises
    assert relative_error(summed(setup, engine).grads._values, by_hand(setup)) < 1e-5


# ------------------------------------------------------------------------------------------------------ compilation


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("warm", [False, True])
@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
def test_a_compiled_part_is_right(backend, warm):
    """Backends that trace and do not need a compiler."""
    torch.manual_seed(0)
    model = Apply(lambda m, x: m.head(torch.tanh(m.body(x))), body=nn.Linear(5, 8), head=nn.Linear(8, 3))
    setup = Setup(model, cross_entropy, (X, Y))
    expected = by_hand(setup)
    model.body.compile(backend=backend)
    if warm:
        cross_entropy(model, (X, Y)).sum().backward()
        model.zero_grad()
    assert relative_error(summed(setup).grads._values, expected) < 1e-5

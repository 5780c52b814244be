"""The tracker on small models: code that depends on the size of the batch, on state, chance or values read into Python.

Each model here couples its units in some way. It must not be proven; or it is proven only where its losses are right.
"""

import copy
import importlib
import random
import threading
import warnings

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.checkpoint import checkpoint

from noisewise.errors import PrivacyError
from noisewise.persample.conditions import NotProven
from noisewise.persample.dispatched import StateChanged
from noisewise.persample.engines import follow
from noisewise.persample.examine import examine
from noisewise.persample.held import own_tensors
from noisewise.persample.places import FRONT, apart
from noisewise.persample.proof import Proof

look = importlib.import_module("noisewise.persample.examine")

SIZES = (2, 3, 4, 8, 16, 33, 64, 128, 200)

G = torch.Generator().manual_seed(0)

X, Y = torch.randn(200, 6, generator=G), torch.randint(0, 3, (200,), generator=G)


class Net(nn.Module):
    """Two layers, a table, a mask and a constant that is no buffer; what happens in between is given."""

    def __init__(self, between):
        super().__init__()
        torch.manual_seed(1)
        self.body, self.head = nn.Linear(6, 8), nn.Linear(8, 3)
        self.table = nn.Parameter(torch.randn(256, 8))
        self.register_buffer("scales", torch.rand(256) + 0.5)
        self.constant = torch.linspace(0.5, 2, 300)
        self.numbers = np.ones(1, dtype=np.float32)
        self.memory = []
        self.calls = 0
        self.between = between

    def forward(self, x):
        """Logits."""
        return self.head(self.between(self, torch.tanh(self.body(x)), x))


def loss_of(model, batch):
    """One loss for each unit."""
    return F.cross_entropy(model(batch[0]), batch[1], reduction="none")


def proved(model, loss_fn=loss_of):
    """What the proof alone says, without the second net."""
    live = dict(model.named_parameters())
    return look._prove(model, loss_fn, (X[:3], Y[:3]), None, 3, live)


def passes(model, layout, loss_fn=loss_of, sizes=SIZES):
    """Size -> losses of the batches of real units whose pass is proven."""
    found = {}
    for size in sizes:
        torch.manual_seed(0)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            try:
                found[size] = follow(
                    model, loss_fn, (X[:size], Y[:size]), dict(model.named_parameters()), against=layout.trace,
                    copied=layout.copies,
                ).losses.detach()  # fmt: skip
            except NotProven:
                continue
    return found


HONEST = {
    "nothing": lambda m, h, x: h,
    "zeros of the batch's size": lambda m, h, x: torch.cat([h, torch.zeros(len(x), 1)], 1)[:, :8],
    "ones in place": lambda m, h, x: h * torch.ones(len(x), 1).mul_(0.5),
    "a table widened over the batch": lambda m, h, x: h + m.table[:1].expand(len(x), 8),
    "a table repeated over the batch": lambda m, h, x: h + m.table[:1].repeat(len(x), 1),
    "positions repeated over the batch": lambda m, h, x: h + m.table[torch.arange(8).expand(len(x), 8)][:, :, 0],
    "own entry by number": lambda m, h, x: h * h[torch.arange(len(x)), (x[:, 0] > 0).long()][:, None],
    "time first": lambda m, h, x: h.view(-1, 4, 2).transpose(0, 1).reshape(4, -1, 2).transpose(0, 1).reshape(-1, 8),
    "heads": lambda m, h, x: F.scaled_dot_product_attention(*[h.view(-1, 2, 2, 2)] * 3).reshape(-1, 8),
    "einsum": lambda m, h, x: torch.einsum("bi,bj->bij", h, h).sum(2),
    "twice behind each other": lambda m, h, x: (lambda z: z[: len(x)] + z[len(x) :])(torch.cat([h, h * 2])),
    "two chunks of it": lambda m, h, x: sum(torch.cat([h, h * 2]).chunk(2)),
    "one hot": lambda m, h, x: h * F.one_hot((x[:, 0] > 0).long(), 8),
    "softmax of a shared tensor": lambda m, h, x: h * m.scales[:8].softmax(0),
    "a constant that is no buffer": lambda m, h, x: h * m.constant[:8],
    "chance by entry": lambda m, h, x: h * torch.rand(len(x), 8),
    "columns of chance": lambda m, h, x: (lambda r: h * r[:, :8] + r[:, 1:])(torch.rand(len(x), 9)),
    "chance used twice": lambda m, h, x: (lambda r: h * r + r.square())(torch.rand(len(x), 8)),
    "halves of chance": lambda m, h, x: (lambda a, b: h * a + b)(*torch.rand(2 * len(x), 8).chunk(2)),
    "one draw for all": lambda m, h, x: h * torch.rand(()),
    "checkpoint": lambda m, h, x: checkpoint(torch.tanh, h, use_reentrant=False),
    "a number of the model": lambda m, h, x: h * (m.calls + 0.5),
    "sequences padded round": lambda m, h, x: F.pad(h[:, None], (1, 1), mode="circular")[:, 0, 1:9],
    "vmap over the batch": lambda m, h, x: torch.func.vmap(lambda row: row * row.sum())(h),
    "an input changed in place": lambda m, h, x: h + x.mul_(2).sum(1, keepdim=True),
    "written part by part": lambda m, h, x: _parts(h),
    "recurrent": lambda m, h, x: recurrent(h.view(-1, 4, 2))[0][:, -1],
}

recurrent = nn.LSTM(2, 8, batch_first=True)


def _parts(h):
    out = torch.empty(len(h), 8)
    out[:, :4] = h[:, 4:]
    out[:, 4:] = h[:, :4]
    return out


@pytest.mark.parametrize("name", HONEST)
def test_honest_models_are_proven_at_every_size(name):
    model = Net(HONEST[name])
    layout = proved(model)
    assert layout.proven, layout.reason
    assert set(passes(model, layout)) == set(SIZES)


BY_SIZE = {
    "divided by the length": lambda m, h, x: h / len(x),
    "divided by numel": lambda m, h, x: h / x.numel(),
    "divided by a sum of ones": lambda m, h, x: h / torch.ones(len(x)).sum(),
    "divided by a sum of zeros like": lambda m, h, x: h / (torch.zeros_like(x[:, 0]) + 1).sum(),
    "divided by sums of ones by row": lambda m, h, x: h / torch.ones(len(x), len(x)).sum(1, keepdim=True),
    "divided by sums of ones twice as many": lambda m, h, x: h / torch.ones(len(x), 2 * len(x)).sum(1, keepdim=True),
    "divided by a product of ones": lambda m, h, x: h / (torch.ones(3, len(x)) @ torch.ones(len(x), 1))[0],
    "sums of widened constants": lambda m, h, x: h + m.table[:1].expand(len(x), 8).sum(0),
    "the sum of one constant, widened": lambda m, h, x: h * m.table[0, 0].expand(len(x)).sum(),
    "the length of one constant, widened": lambda m, h, x: h * m.table[0, 0].expand(len(x)).norm(),
    "the deviation of two constants, widened": lambda m, h, x: h * m.table[:2, :1].expand(2, len(x)).std(),
    "sums of half as many widened constants": lambda m, h, x: h + m.table[:1].expand(len(x) // 2, 8).sum(0),
    "sums of repeated constants": lambda m, h, x: h + m.table[:1].repeat(len(x), 1).sum(0),
    "the last number": lambda m, h, x: h * torch.arange(len(x))[-1],
    "the last number, widened": lambda m, h, x: h * torch.arange(len(x))[None, -1:],
    "the last number, one hot": lambda m, h, x: h * F.one_hot(torch.arange(len(x))[-1:] % 8, 8),
    "the largest number": lambda m, h, x: h * torch.arange(len(x)).max(),
    "the number of each row": lambda m, h, x: h * torch.arange(len(x))[:, None],
    "linspace with a step for each row": lambda m, h, x: h * torch.linspace(0, 1, len(x))[:, None],
    "linspace that ends at the size": lambda m, h, x: h * torch.linspace(0, len(x), 8),
    "a tensor of the length": lambda m, h, x: h / torch.tensor(len(x)),
    "a new tensor of the length": lambda m, h, x: h / x.new_tensor([len(x)]),
    "an old-style tensor of the length": lambda m, h, x: h / torch.Tensor([len(x)]),
    "an array of the length": lambda m, h, x: h / torch.from_numpy(np.full(1, len(x), dtype=np.float32)),
    "a scalar of the length": lambda m, h, x: h / torch.full((), len(x), dtype=torch.float),
    "full of the length": lambda m, h, x: h / torch.full((len(x), 1), float(len(x))),
    "filled with the length": lambda m, h, x: h / torch.ones(1).fill_(len(x)),
    "the power of the length": lambda m, h, x: h ** len(x),
    "a column by the length": lambda m, h, x: h * h[:, len(x) % 8][:, None],
    "a column from the length on": lambda m, h, x: h * h[:, len(x) % 7 :][:, :1],
    "a column among columns": lambda m, h, x: h * h.unbind(1)[len(x) % 8][:, None],
    "a column of a list": lambda m, h, x: h * [h[:, 0], h[:, 1], h[:, 2]][len(x) % 3][:, None],
    "a column by unfold": lambda m, h, x: h * h.unfold(1, len(x) % 4 + 1, 8)[:, 0, :1],
    "a row of the table by the length": lambda m, h, x: h * m.table[len(x)],
    "a number of a constant by the length": lambda m, h, x: h * m.constant[len(x)],
    "a number of a made constant": lambda m, h, x: h * (m.constant * 2)[len(x)],
    "the table up to the length": lambda m, h, x: h - m.table[: len(x)].mean(0),
    "the table up to half the length": lambda m, h, x: h - m.table[: len(x) // 2 + 1].mean(0),
    "a made table up to the length": lambda m, h, x: h - (m.table * 2)[: len(x)].mean(0),
    "a table by position": lambda m, h, x: h + m.table[: len(x)],
    "chance around a table by position": lambda m, h, x: h + torch.normal(m.table[: len(x)], 0.1),
    "chance with a table by position": lambda m, h, x: h * torch.bernoulli(m.table[: len(x)].sigmoid()),
    "ranks of chance": lambda m, h, x: h * (lambda r: (r[:, None] > r[None]).sum(1, keepdim=True))(torch.rand(len(x))),
    "the largest of chance": lambda m, h, x: h * torch.rand(len(x)).max(),
    "integers up to the size": lambda m, h, x: h * torch.randint(0, len(x), (1,)),
    "chance of the next row as well": lambda m, h, x: (lambda r: h * r[: len(x)] + r[1 : len(x) + 1])(
        torch.rand(2 * len(x), 8)
    ),
    "chance of neighbours, added first": lambda m, h, x: (
        h * (lambda r: r[: len(x)] - r[1 : len(x) + 1])(torch.rand(2 * len(x), 8))
    ),
    "chance of neighbours, copied first": lambda m, h, x: (
        lambda r: h * (r[: len(x)].clone() + r[1 : len(x) + 1].clone())
    )(torch.rand(2 * len(x), 8)),
    "chance of the first row for all": lambda m, h, x: (lambda r: h * r + r[0])(torch.rand(len(x), 8)),
    "order of chance": lambda m, h, x: h[torch.rand(len(x)).argsort()],
    "a random rank for each": lambda m, h, x: h * torch.randperm(len(x))[:, None],
    "a random order": lambda m, h, x: h[torch.randperm(len(x))],
    "another type by size": lambda m, h, x: h.to(torch.float16 if len(x) % 4 == 1 else torch.bfloat16).float(),
    "another rounding by size": lambda m, h, x: h.round(decimals=len(x) % 3),
    "polygamma of the size": lambda m, h, x: torch.polygamma(len(x) % 3 + 1, h.abs() + 1),
    "as many classes": lambda m, h, x: h * F.one_hot((x[:, 0] > 0).long(), 8 + len(x) % 3)[:, :8],
    "pooled by size": lambda m, h, x: F.adaptive_avg_pool1d(h[:, None], len(x) % 3 + 1)[:, 0].mean(1, keepdim=True) * h,
    "matrices by position": lambda m, h, x: h * (h[:, None] @ m.table[: len(x), :, None])[:, 0],
    "an attention mask by position": lambda m, h, x: _attending(h, m.table[: len(x)].repeat(1, 2).view(-1, 1, 4, 4)),
    "sequences by position": lambda m, h, x: h * torch.searchsorted(m.table[: len(x)], h),
    "weights of bags by position": lambda m, h, x: h * _bags(h, m.table[:2], m.table[: len(x)]),
    "losses of a list": None,
}


def _attending(h, mask):
    """Attention whose mask is a view: nothing is computed on the way to it."""
    return F.scaled_dot_product_attention(*[h.view(-1, 1, 4, 2)] * 3, attn_mask=mask).reshape(-1, 8)


def _bags(h, table, weights):
    return F.embedding_bag((h > 0).long(), table, mode="sum", per_sample_weights=weights)


def chosen_losses(model, batch):
    logits = model(batch[0])
    return logits[:, len(batch[0]) % 3]


@pytest.mark.filterwarnings("ignore::UserWarning")
@pytest.mark.parametrize("name", BY_SIZE)
def test_what_depends_on_the_size_is_not_proven(name):
    honest = HONEST["nothing"]
    model = Net(BY_SIZE[name] or honest)
    layout = proved(model, loss_of if BY_SIZE[name] else chosen_losses)
    assert not layout.proven
    assert layout.reason


@pytest.mark.parametrize("way", ["if", "where", "max", "slice", "ones", "min"])
@pytest.mark.parametrize("threshold", [2, 3, 6, 12, 40, 100, 150, 200])
def test_thresholds_on_the_size_are_not_proven_where_they_act(way, threshold):
    """Batches above the threshold get another loss: all proven passes must be on one side of it."""

    def between(m, h, x):
        above = len(x) >= threshold
        match way:
            case "if":
                return h - h.mean(0) if above else h
            case "where":
                return h * (2.0 if above else 1.0)
            case "max":
                return h * torch.ones(max(len(x), threshold)).sum()
            case "min":
                return h * torch.ones(min(len(x), threshold)).sum()
            case "slice":
                return h * m.constant[: max(len(x), threshold)].mean()
            case _:
                return h / torch.ones(len(x) if above else 7).sum()

    model = Net(between)
    layout = proved(model)
    if layout.proven:
        found = passes(model, layout)
        assert found
        first = next(iter(found.values()))
        assert all(torch.allclose(first[:2], losses[:2], atol=1e-5) for losses in found.values())


@pytest.mark.parametrize("threshold", [40, 100, 150])
def test_draws_of_neighbours_are_not_proven_above_a_threshold_either(threshold):
    def between(m, h, x):
        draws, first = torch.rand(2 * len(x), 8), int(len(x) >= threshold)
        return h * draws[: len(x)] + draws[first : first + len(x)]

    model = Net(between)
    layout = proved(model)
    assert layout.proven
    assert max(passes(model, layout)) < threshold


MIXING = {
    "centred": lambda m, h, x: h - h.mean(0),
    "scaled by the largest": lambda m, h, x: h / x.abs().max(),
    "the first rows": lambda m, h, x: torch.cat([h[:2], h[2:] + h[:1]]),
    "the first 32 rows": lambda m, h, x: torch.cat([h[:32], h[32:] * 2]),
    "a row from 32 on": lambda m, h, x: h + h[32:].sum(),
    "rolled": lambda m, h, x: h + h.roll(1, 0),
    "reversed": lambda m, h, x: h.flip(0).flip(0),
    "sorted and sorted back": lambda m, h, x: (lambda order: h[order][order.argsort()])(x[:, 0].argsort()),
    "a branch on a value": lambda m, h, x: h * 2 if x.max() > 1 else h,
    "a branch on one value": lambda m, h, x: h * 2 if x[0, 0] > 0 else h,
    "a value as a number": lambda m, h, x: h * x[0, 0].item(),
    "a value as float": lambda m, h, x: h * float(x.sum()),
    "values as a list": lambda m, h, x: h * x[0].tolist()[0],
    "values as an array": lambda m, h, x: h * float(x.detach().numpy().max()),
    "values as an array of numpy's": lambda m, h, x: h * float(np.asarray(x.detach()).max()),
    "values as text": lambda m, h, x: h * len(f"{x[0, 0]:.3f}"),
    "values as a representation": lambda m, h, x: h * len(repr(x)),
    "values as bytes": lambda m, h, x: h * sum(x.untyped_storage().tolist()[:3]),
    "values through dlpack": lambda m, h, x: h * torch.from_dlpack(x.detach()).max(),
    "values by address": lambda m, h, x: h * (x.data_ptr() % 3 + 1),
    "a copy by memory": lambda m, h, x: h * copy.deepcopy(x.detach())[0, 0],
    "equal": lambda m, h, x: h * 2 if torch.equal(x, x * 1) else h,
    "memory behind the batch": lambda m, h, x: h * x.as_strided((len(x), 6), (6, 1), 6)[:, :1],
    "chance scaled by the batch": lambda m, h, x: h + torch.randn_like(h) * h.std(),
    "gradients on the way": lambda m, h, x: h * torch.autograd.grad(h.square().sum(), h, retain_graph=True)[0].sum(),
    "a grad inside": lambda m, h, x: h * torch.func.grad(lambda w: (h @ w).sum())(m.head.weight.t()).sum(),
    "vmap against all": lambda m, h, x: torch.func.vmap(lambda row: (row * h).sum(0))(h),
}


@pytest.mark.filterwarnings("ignore::UserWarning")
@pytest.mark.parametrize("name", MIXING)
def test_what_mixes_units_or_reads_them_is_not_proven(name):
    model = Net(MIXING[name])
    layout = proved(model)
    assert not layout.proven or not passes(model, layout)


@pytest.mark.parametrize("share", [0.1, 0.5, 0.9])
def test_chance_of_python_that_mixes_units_at_times_is_never_proven_then(share):
    drawn = random.Random(0)
    model = Net(lambda m, h, x: h + h.roll(1, 0) if drawn.random() < share else h)
    layout = proved(model)
    right = passes(honest := Net(HONEST["nothing"]), proved(honest))
    found = passes(model, layout, sizes=SIZES * 3) if layout.proven else {}
    assert all(torch.equal(losses, right[size]) for size, losses in found.items())


class Mixing(torch.autograd.Function):
    """The identity, with a backward pass that mixes rows."""

    @staticmethod
    def forward(ctx, h):
        """The same."""
        return h.view_as(h)

    @staticmethod
    def backward(ctx, grad):
        """The sum, for all."""
        return grad.sum(0, keepdim=True).expand_as(grad)


@torch.library.custom_op("noisewise_tests::centred", mutates_args=())
def centred(h: torch.Tensor) -> torch.Tensor:
    """An operator that no table knows."""
    return h - h.mean(0)


@centred.register_fake
def _(h):
    return torch.empty_like(h)


@torch.library.custom_op("noisewise_tests::sneaky", mutates_args=())
def sneaky(h: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
    """Does not touch units, as far as one can see."""
    return scale * 2


def centred_by_script(h: torch.Tensor):
    """TorchScript wraps what goes wrong inside."""
    return h - h.mean(0)


with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # deprecated, and still in use
    scripted = torch.jit.script(centred_by_script)


def from_another_thread(h):
    found = []
    thread = threading.Thread(target=lambda: found.append((h - h.mean(0)).sum()))
    thread.start()
    thread.join()
    return found[0]


class Labelled(torch.Tensor):
    """A tensor subclass."""


def mixed_by_a_hook(m, h, x):
    if h.requires_grad:
        h.register_hook(lambda grad: grad.sum(0, keepdim=True).expand_as(grad))
    return h


def mixed_by_a_node_hook(m, h, x):
    if h.requires_grad:
        h.grad_fn.register_hook(lambda into, out: tuple(g if g is None else g.flip(0) for g in into))
    return h


def mixed_by_saved_tensors(m, h, x):
    with torch.autograd.graph.saved_tensors_hooks(lambda t: t, lambda t: t.flip(0)):
        return h * h


BEYOND = {
    "a custom autograd function": lambda m, h, x: Mixing.apply(h),
    "a custom operator": lambda m, h, x: centred(h),
    "a scripted function": lambda m, h, x: scripted(h),
    "another thread": lambda m, h, x: h + from_another_thread(h.detach()),
    "a custom operator on what is shared": lambda m, h, x: h * sneaky(m.scales, m.scales)[:8],
    "a tensor subclass": lambda m, h, x: (h.as_subclass(Labelled) * 2).as_subclass(torch.Tensor),
    "a tensor hook": mixed_by_a_hook,
    "a hook of a node": mixed_by_a_node_hook,
    "hooks of saved tensors": mixed_by_saved_tensors,
}


@pytest.mark.parametrize("name", BEYOND)
def test_what_the_dispatcher_does_not_see_is_not_proven(name):
    layout = proved(Net(BEYOND[name]))
    assert not layout.proven


def test_backward_hooks_of_modules_are_not_proven():
    model = Net(HONEST["nothing"])
    model.body.register_full_backward_hook(
        lambda module, into, out: tuple(g.flip(0) if g is not None else g for g in into)
    )
    assert not proved(model).proven


def test_forward_hooks_of_modules_are_followed():
    model = Net(HONEST["nothing"])
    model.body.register_forward_hook(lambda module, args, out: out * 2)
    assert proved(model).proven
    model.body.register_forward_hook(lambda module, args, out: out - out.mean(0))
    assert not proved(model).proven


@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
def test_compiled_submodules_are_proven_rightly_or_not_at_all(backend):
    model = Net(HONEST["nothing"])
    model.body = torch.compile(model.body, backend=backend, dynamic=True)
    layout = proved(model)
    if layout.proven:
        found = passes(model, layout, sizes=(2, 8, 64))
        assert all(torch.allclose(losses[:2], found[2][:2], atol=1e-5) for losses in found.values())
    coupled = Net(HONEST["nothing"])
    coupled.body = torch.compile(
        nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8, track_running_stats=False)), backend=backend
    )
    assert not proved(coupled).proven
    torch._dynamo.reset()


def test_autocast_inside_and_outside_is_followed():
    def between(m, h, x):
        with torch.autocast("cpu", torch.bfloat16):
            return (h @ m.table[:8].t()).float()

    model = Net(between)
    layout = proved(model)
    assert layout.proven, layout.reason
    assert set(passes(model, layout)) == set(SIZES)
    plain = Net(HONEST["nothing"])
    with torch.autocast("cpu", torch.bfloat16):
        layout = proved(plain)
        assert layout.proven, layout.reason
        assert set(passes(plain, layout)) == set(SIZES)


def counting(m, h, x):
    m.calls += 1
    return h * m.calls


def remembering(m, h, x):
    last = m.memory[-1] if m.memory else torch.zeros(())
    m.memory.append(h.detach() * 2)
    return h + last.sum()


def writing_an_array(m, h, x):
    m.numbers[0] = len(x)
    return h * torch.from_numpy(m.numbers)


@pytest.mark.parametrize("between", [counting, remembering, writing_an_array])
def test_state_that_reaches_the_losses_is_not_proven(between):
    model = Net(between)
    assert not proved(model).proven


@pytest.mark.parametrize("write", ["in place", "through data", "a part", "out"])
def test_writes_into_what_the_model_holds_are_refused(write):
    def between(m, h, x):
        match write:
            case "in place":
                m.scales.mul_(0.9)
            case "through data":
                m.table.data.add_(1.0)
            case "a part":
                m.constant[3:5] = h.detach().sum()
            case _:
                torch.add(m.scales, 1, out=m.scales)
        return h

    model = Net(between)
    if write == "a part":  # of something computed over all units
        assert not proved(model).proven
        return
    with pytest.raises(PrivacyError, match="running statistics"):
        proved(model)


def test_a_tensor_that_was_not_there_at_the_examination_is_not_proven():
    """Addresses of freed tensors may come again: a constant made without the dispatcher is another one in each pass."""
    storage = torch.ones(1).untyped_storage()
    del storage

    def between(m, h, x):
        return h * torch.from_numpy(np.full(1, 1.0, dtype=np.float32)).data

    model = Net(between)
    layout = proved(model)
    assert layout.proven  # equal content in every pass
    model.between = lambda m, h, x: h * torch.from_numpy(np.full(1, 1.0 + (len(x) > 50), dtype=np.float32)).data
    assert set(passes(model, layout)) == {2, 3, 4, 8, 16, 33}


def trace_of(call, units):
    x = torch.randn(units, 6)
    with Proof([x], {}, strict=True) as proof:
        losses = call(x)
    return proof.conclude(losses)


def test_traces_say_that_types_differ():
    def trace(units, dtype):
        x = torch.randn(units, 6, dtype=dtype)
        with Proof([x], {}) as proof:
            losses = (x * 2).sum(1)
        return proof.conclude(losses)

    assert trace(5, torch.float32).difference(trace(7, torch.float32)) is None
    assert trace(5, torch.float32).difference(trace(7, torch.float64)) is not None


@pytest.mark.parametrize("more", [0, 1])
def test_a_pass_that_is_longer_or_shorter_than_the_examined_one_is_not_proven(more):
    trace = trace_of(lambda x: (x * 2).tanh().sum(1), 5)
    x = torch.randn(4, 6)
    proof = Proof([x], {}, against=trace)
    with pytest.raises(NotProven, match="more operations|is aten|result"):  # noqa: RUF043
        _conclude(proof, lambda: (x * 2).tanh().sum(1) * 1 if more else (x * 2).sum(1))


def _conclude(proof, compute):
    with proof:
        losses = compute()
    return proof.conclude(losses)


def test_losses_in_another_order_are_not_proven():
    x = torch.randn(5, 6)
    with Proof([x], {}) as proof:
        pairs = torch.cat([x, x])
    with pytest.raises(NotProven, match="not in the order"):
        proof.conclude(pairs[:, 0])


def test_a_failure_that_the_model_catches_stays_a_failure():
    def between(m, h, x):
        try:
            return h - h.mean(0)
        except NotProven:
            return h

    assert "goes over the units" in proved(Net(between)).reason


def test_units_that_share_memory_or_lie_crosswise_are_copied_apart():
    wide = torch.arange(60.0).view(5, 12)
    same = apart([wide[:, :6], wide[:, 6:]])
    assert [t.data_ptr() for t in same] == [wide[:, :6].data_ptr(), wide[:, 6:].data_ptr()]
    shifted = apart([wide[:3], wide[1:4]])
    assert shifted[1].data_ptr() != wide[1:4].data_ptr()
    assert torch.equal(shifted[1], wide[1:4])
    widened = apart([wide[:1].expand(5, 12)])
    assert widened[0].stride() == (12, 1)


@pytest.mark.parametrize("turned", [False, True])
def test_a_part_of_another_input_leaves_all_of_it_the_batchs(turned):
    wide = torch.randn(5, 12)
    inputs = [wide, wide[:, :6]][:: -1 if turned else 1]
    with Proof(inputs, {}) as proof:
        assert [proof.place(tensor) for tensor in inputs] == [FRONT, FRONT]


def test_what_is_the_same_for_each_unit_counts_as_theirs_from_then_on():
    x = torch.randn(5, 6)
    with Proof([x], {}) as proof:
        hidden = torch.zeros(5, 6)
        assert proof.alike_or_in_front(hidden)
        assert proof.in_front(hidden)
        assert proof.place(hidden) == FRONT
        assert not proof.in_front(torch.arange(5.0)[:, None] * torch.ones(5, 6))


def test_one_unit_is_itself_whatever_the_model_does():
    """A batch of one holds nobody else: it needs no trace, and its losses are those of the unit alone."""
    model = Net(HONEST["heads"])
    layout = proved(model)
    found = passes(model, layout, sizes=(1, 8))
    assert torch.allclose(found[1], found[8][:1], atol=1e-6)


def test_a_unit_alone_is_evaluated_as_in_a_batch():
    """Units are evaluated alone where a pass is not proven: code that treats a batch of one in another way is refused."""
    model = Net(lambda m, h, x: h * (3.0 if len(x) == 1 else 1.0))
    with pytest.raises(Exception, match="all other units were left out"):
        examine(model, loss_of, (X[:3], Y[:3]))


def test_the_examination_and_the_proof_agree_on_an_honest_model():
    layout = examine(Net(HONEST["heads"]), loss_of, (X[:3], Y[:3]))
    assert layout.proven
    assert layout.fallback == {"table"} or not layout.fallback


def test_state_is_named_as_the_model_names_it():
    model = Net(lambda m, h, x: h * m.scales.add_(1)[:8])
    with pytest.raises(StateChanged, match="scales"):  # noqa: SIM117
        with Proof([X[:5]], own_tensors(model), strict=True):
            model(X[:5])


def test_memory_behind_the_batch_is_nobodys():
    """A batch that is a slice of a larger tensor: what lies behind it are other people's rows."""
    x = X[:5]
    with Proof([x], {}) as proof:
        behind = x.as_strided((5, 6), (6, 1), 30)
    with pytest.raises(NotProven, match="does not hold every unit"):
        proof.place(behind)


@pytest.mark.parametrize("read", [float, bool, torch.Tensor.item])
def test_values_read_into_python_are_named(read):
    x = torch.randn(5, 6)
    with Proof([x], {}, strict=True), pytest.raises(NotProven, match="read into Python"):
        read(x[0, 0])


def test_a_foreign_tensor_keeps_its_address():
    """While a trace lives no other tensor gets the address of one that it names: equal addresses mean the same tensor."""
    x, foreign = torch.randn(5, 6), torch.ones(6)
    with Proof([x], {}) as proof:
        x * foreign
    address = foreign.untyped_storage()._cdata
    assert proof.trace.steps[0].sources[1] == address
    trace = proof.trace
    del proof, foreign
    assert all(torch.ones(6).untyped_storage()._cdata != address for _ in range(1000))
    assert trace.references

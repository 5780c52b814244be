"""Units that own several rows: augmentations of one record, or the rows of one person, clipped as one."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from helpers.notes import Notes
from noisewise.batches import Padded, Views
from noisewise.clipping import Flat, per_layer
from noisewise.persample import clipped_sum, units_alone
from noisewise.runtime import Runtime
from noisewise.testing import reveal

UNITS, VIEWS = 5, 3

MODELS = {
    "linear": (lambda: nn.Sequential(nn.Linear(5, 6), nn.LayerNorm(6), nn.Linear(6, 4), nn.PReLU()), (5,)),
    "positions": (lambda: nn.Sequential(nn.Linear(5, 6), nn.Tanh(), nn.Linear(6, 1), nn.Flatten()), (4, 5)),
    "conv": (
        lambda: nn.Sequential(
            nn.Conv2d(3, 8, 3, padding=1),
            nn.GroupNorm(2, 8),
            nn.ReLU(inplace=True),
            nn.Conv2d(8, 9, 3),
            nn.Tanh(),
            nn.Conv2d(9, 9, 2, stride=2, groups=3),
            nn.Flatten(),
            nn.Linear(81, 4),
        ),
        (3, 8, 8),
    ),
    "conv3d": (lambda: nn.Sequential(nn.Conv3d(2, 8, 2), nn.Flatten(), nn.Linear(64, 4)), (2, 3, 3, 3)),
    "embedding": (lambda: nn.Sequential(nn.Embedding(7, 3), nn.Flatten(), nn.Linear(12, 4)), None),
}


def cross_entropy(model, batch):
    return F.cross_entropy(model(batch[0]), batch[1], reduction="none")


def make(name):
    torch.manual_seed(0)
    build, shape = MODELS[name]
    inputs = torch.randint(0, 7, (UNITS, VIEWS, 4)) if shape is None else torch.randn(UNITS, VIEWS, *shape).double()
    mask = torch.rand(UNITS, VIEWS) > 0.3
    mask[:, 0] = True
    return build().double(), (inputs, torch.randint(0, 4, (UNITS, VIEWS))), mask


def mean_gradients_clipped_once(model, batch, mask, bound, support):
    """The definition: average the losses of a unit's rows, clip the masked gradient once, add up."""
    parameters = dict(model.named_parameters())
    total = {name: torch.zeros_like(p) for name, p in parameters.items()}
    for i in range(UNITS):
        rows = tuple(tensor[i][mask[i]] for tensor in batch)
        grads = torch.autograd.grad(cross_entropy(model, rows).mean(), list(parameters.values()))
        grads = {name: g * support.get(name, True) for name, g in zip(parameters, grads, strict=True)}
        norm = torch.stack([g.square().sum() for g in grads.values()]).sum().sqrt()
        for name, g in grads.items():
            total[name] += g * min(1.0, bound / norm.item())
    return total


@pytest.mark.filterwarnings("ignore:There is a performance drop:UserWarning")
@pytest.mark.parametrize("bound", [0.2, 1e3])  # all are clipped, none is
@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("engine", ["auto", "dense", "loop"])
@pytest.mark.parametrize("name", MODELS)
def test_a_unit_is_the_mean_of_its_rows_clipped_once(name, engine, masked, bound):
    model, batch, mask = make(name)
    support = {n: torch.rand_like(p) > 0.5 for n, p in model.named_parameters()} if masked else {}
    runtime = Runtime(engine=engine, microbatch=2)
    got = reveal(clipped_sum(model, cross_entropy, Views.mean(batch, mask), Flat(bound), support, runtime).grads)
    expected = mean_gradients_clipped_once(model, batch, mask, bound, support)
    error = sum((got[n] - expected[n]).square().sum() for n in got).sqrt()
    assert error <= 1e-9 * sum(e.square().sum() for e in expected.values()).sqrt()


@pytest.mark.parametrize("name", MODELS)
def test_a_unit_with_many_rows_contributes_no_more_than_the_bound(name):
    model, batch, mask = make(name)
    one = Views(tuple(tensor[:1] for tensor in batch), Views.mean(batch, mask).weights[:1])
    clip = per_layer(dict(model.named_parameters()), Flat(1e-3))
    contribution = reveal(clipped_sum(model, cross_entropy, one, clip).grads)
    length = sum(value.square().sum() for value in contribution.values()).sqrt()
    assert 0 < length <= clip.sensitivity * (1 + 1e-6)


def test_one_view_is_an_ordinary_batch():
    model, batch, _ = make("conv")
    plain = tuple(tensor[:, 0] for tensor in batch)
    single = reveal(clipped_sum(model, cross_entropy, Views.single(plain), Flat(0.2)).grads)
    ordinary = reveal(clipped_sum(model, cross_entropy, plain, Flat(0.2)).grads)
    assert all(torch.equal(single[name], ordinary[name]) for name in single)


def test_padding_units_with_views_contribute_nothing():
    model, batch, mask = make("conv")
    views = Views.mean(batch, mask)
    present = torch.tensor([1, 1, 0, 1, 0])
    padded = reveal(clipped_sum(model, cross_entropy, Padded(views, present), Flat(0.2)).grads)
    kept = present.bool()
    shorter = Views(tuple(tensor[kept] for tensor in batch), views.weights[kept])
    expected = reveal(clipped_sum(model, cross_entropy, shorter, Flat(0.2)).grads)
    assert all(torch.allclose(padded[name], expected[name], rtol=1e-9, atol=1e-12) for name in padded)


def test_the_loop_looks_at_rows_that_count_only():
    model, batch, mask = make("linear")
    seen = Notes()

    def loss_fn(model, rows):
        seen.append(len(rows[0]))
        return cross_entropy(model, rows)

    units_alone.loop(model, loss_fn, Views.mean(batch, mask), dict(model.named_parameters()))
    assert seen == mask.sum(1).tolist()
    assert not mask.all()


@pytest.mark.parametrize("engine", ["auto", "dense", "loop"])
def test_a_unit_without_rows_contributes_nothing(engine):
    model, batch, mask = make("conv")
    mask[2] = False
    clip, runtime = Flat(0.2), Runtime(engine=engine)
    with_it = reveal(clipped_sum(model, cross_entropy, Views.mean(batch, mask), clip, runtime=runtime).grads)
    rest = torch.arange(UNITS) != 2
    fewer = Views.mean(tuple(tensor[rest] for tensor in batch), mask[rest])
    without = reveal(clipped_sum(model, cross_entropy, fewer, clip, runtime=runtime).grads)
    assert all(torch.allclose(with_it[name], without[name], rtol=1e-9, atol=1e-12) for name in without)

"""Gradient embedding perturbation against its definition in NumPy; its bound, its noise, its ledger."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from torch import nn

from noisewise.clipping import Flat, PerLayer
from noisewise.data import Data
from noisewise.errors import ConfigError, PrivacyError
from noisewise.losses import cross_entropy
from noisewise.mechanism import Mechanism
from noisewise.persample import examine
from noisewise.sampling import Poisson
from noisewise.support import Fixed
from noisewise.training import State
from noisewise.training import embedding as gep

BOUNDS = (0.7, 0.2)


def network(seed=0):
    with torch.random.fork_rng([]):
        torch.manual_seed(seed)
        return nn.Sequential(nn.Linear(6, 5), nn.Tanh(), nn.Linear(5, 3)).double()


def rows(n=12, seed=1, public=False):
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(n, 6, generator=generator, dtype=torch.float64)
    return Data(x, torch.randint(0, 3, (n,), generator=generator), classes=("a", "b", "c"), public=public)


def one_by_one(model, data):
    """Gradients of each unit by autograd, in NumPy."""
    found = []
    for x, y in zip(data.x, data.y, strict=True):
        loss = cross_entropy(model, (x[None], y[None])).sum()
        found.append(torch.cat([g.flatten() for g in torch.autograd.grad(loss, list(model.parameters()))]).numpy())
    return np.array(found)


def anchors(**more):
    return gep.Anchors(rows(20, 7, public=True), **{"dimension": 9, "groups": 3, **more})


def clipped(vector, bound):
    return vector * min(1.0, bound / np.linalg.norm(vector))


def test_the_sums_are_the_definition():
    """Algorithm 1 of the paper, a unit and a group of weights at a time."""
    model, data = network(), rows()
    layout = examine(model, cross_entropy, (data.x, data.y))
    bases = anchors().bases(model, cross_entropy, layout, 0)
    sums = gep.embedded_sum(model, cross_entropy, (data.x, data.y), gep.embedding_bounds(*BOUNDS), bases, layout, 3)
    inside, outside = np.zeros(7), np.zeros(53)  # 9 dimensions, whole ones for each group
    for gradient in one_by_one(model, data):
        parts = np.split(gradient, np.cumsum([len(basis) for basis in bases])[:-1])
        e = [basis.numpy().T @ part for basis, part in zip(bases, parts, strict=True)]
        r = [part - basis.numpy() @ inner for basis, part, inner in zip(bases, parts, e, strict=True)]
        inside += clipped(np.concatenate(e), BOUNDS[0])
        outside += clipped(np.concatenate(r), BOUNDS[1])
    np.testing.assert_allclose(sums._values["embedding"], inside / BOUNDS[0], rtol=1e-4, atol=1e-6)
    np.testing.assert_allclose(sums._values["residual"], outside / BOUNDS[1], rtol=1e-4, atol=1e-6)
    live = dict(model.named_parameters())
    whole = gep.rebuilt(sums._values, gep.embedding_bounds(*BOUNDS), bases, live)
    expected = np.concatenate([b.numpy() @ e for b, e in zip(bases, np.split(inside, [2, 4]), strict=True)]) + outside
    flat = torch.cat([whole[name].flatten() for name in live])
    np.testing.assert_allclose(flat, expected, rtol=1e-4, atol=1e-6)


def test_with_wide_bounds_nothing_is_lost():
    model, data = network(), rows()
    layout = examine(model, cross_entropy, (data.x, data.y))
    bases = anchors().bases(model, cross_entropy, layout, 0)
    rule = gep.embedding_bounds(1e3, 1e3)
    sums = gep.embedded_sum(model, cross_entropy, (data.x, data.y), rule, bases, layout, 3)
    whole = gep.rebuilt(sums._values, rule, bases, dict(model.named_parameters()))
    flat = torch.cat([part.flatten() for part in whole.values()])
    np.testing.assert_allclose(flat, one_by_one(model, data).sum(0), rtol=1e-3, atol=1e-5)


@pytest.mark.parametrize("scale", [1e-3, 1.0, 1e4, math.inf])
def test_a_lone_unit_adds_at_most_the_root_of_two(scale):
    model, data = network(), rows(1)
    layout = examine(model, cross_entropy, (rows().x, rows().y))
    bases = anchors().bases(model, cross_entropy, layout, 0)
    sums = gep.embedded_sum(
        model, cross_entropy, (data.x * scale, data.y), gep.embedding_bounds(*BOUNDS), bases, layout, 3
    )
    total = sum(float(value.double().square().sum()) for value in sums._values.values())
    assert sums.sensitivity == math.sqrt(2)
    assert total <= 2
    if scale == 1e4:
        assert total == pytest.approx(2, rel=1e-4)
    if scale == math.inf:
        assert total == 0


def test_bases_are_orthonormal_and_find_the_largest_directions():
    generator = torch.Generator().manual_seed(0)
    left = torch.linalg.qr(torch.randn(30, 6, generator=generator, dtype=torch.float64))[0]
    right = torch.linalg.qr(torch.randn(50, 6, generator=generator, dtype=torch.float64))[0]
    gradients = left @ torch.diag(torch.tensor([9.0, 8, 7, 0.1, 0.05, 0.01], dtype=torch.float64)) @ right.T
    basis = gep.basis_of(gradients, 3, 4, generator)
    torch.testing.assert_close(basis.T @ basis, torch.eye(3, dtype=torch.float64))
    best = torch.from_numpy(np.linalg.svd(gradients.numpy())[2][:3]).T
    torch.testing.assert_close(basis @ basis.T, best @ best.T, rtol=0, atol=1e-6)
    assert gep._dimensions([100, 100, 400], 40) == [10, 10, 20]
    assert gep._cut(11, 3) == [3, 3, 5]


def plan(**more):
    given = {"sampler": Poisson(60, 20), "clip": gep.embedding_bounds(*BOUNDS), "steps": 3, "noise_multiplier": 2.0}
    return Mechanism(**{**given, **more})


def step(model, data, state, using=None, lr=0.5):
    optimizer = torch.optim.SGD(model.parameters(), lr=lr)
    gep.embedded_step(model, data, cross_entropy, optimizer, state, using or anchors())


def test_the_ledger_is_the_plans_and_stops_with_it():
    model, data, mechanism = network(), rows(60), plan()
    state = State.start(mechanism, insecure_seed=0)
    for _ in range(3):
        step(model, data, state)
    assert state.ledger.lines == mechanism.lines()
    assert state.ledger.epsilon(1e-3) == mechanism.epsilon(1e-3)
    with pytest.raises(PrivacyError, match="all 3 planned steps are done"):
        step(model, data, state)


def test_noise_has_the_stated_size_in_each_part():
    """The learning rate turns the released gradient into a move of the weights, which shows its noise."""
    inside, outside = [], []
    data = rows(60)
    bases = anchors().bases(network(), cross_entropy, examine(network(), cross_entropy, (data.x, data.y)), 0)
    for seed in range(25):
        model = network()
        before = torch.cat([p.detach().flatten() for p in model.parameters()])
        step(model, data, State.start(plan(noise_multiplier=50.0), insecure_seed=seed), lr=1.0)
        moved = (before - torch.cat([p.detach().flatten() for p in model.parameters()])) * 20
        e, r = gep.embedded(moved.unsqueeze(0), bases)
        inside.append(e)
        outside.append(r)
    sizes = [50.0 * math.sqrt(2) * bound for bound in BOUNDS]
    coordinates = torch.cat(inside)
    both = math.hypot(*sizes)  # the residual's noise falls into the subspace too
    assert float(coordinates.std()) == pytest.approx(both, rel=4 / math.sqrt(2 * coordinates.numel()))
    left = float(torch.cat(outside).square().sum(1).mean())
    assert math.sqrt(left / (53 - 7)) == pytest.approx(sizes[1], rel=0.1)


def test_it_learns():
    model, data = network(), rows(200)
    data = Data(data.x, (data.x[:, 0] > 0).long() + (data.x[:, 1] > 1).long(), classes=("a", "b", "c"))
    before = float(cross_entropy(model, (data.x, data.y)).mean().detach())
    state = State.start(plan(sampler=Poisson(200, 100), steps=30, noise_multiplier=0.1), insecure_seed=0)
    for _ in range(30):
        step(model, data, state, lr=1.0)
    assert float(cross_entropy(model, (data.x, data.y)).mean().detach()) < 0.75 * before


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"clip": Flat(1.0)}, "needs embedding_bounds"),
        ({"support": Fixed({"0.bias": False})}, "all parameters learn"),
    ],
)
def test_plans_that_it_does_not_fit_are_refused(settings, message):
    with pytest.raises(ConfigError, match=message):
        step(network(), rows(60), State.start(plan(**settings), insecure_seed=0))


def test_anchors_are_public_and_have_sizes():
    with pytest.raises(PrivacyError, match="not declared public"):
        gep.Anchors(rows(5))
    for wrong in ({"dimension": 0}, {"groups": 1.5}, {"rounds": 0}, {"dimension": 2, "groups": 3}):
        with pytest.raises(ConfigError, match="anchors"):
            anchors(**wrong)


def test_a_batch_without_anybody_is_zeros():
    model, data = network(), rows()
    layout = examine(model, cross_entropy, (data.x, data.y))
    bases = anchors().bases(model, cross_entropy, layout, 0)
    sums = gep.embedded_sum(
        model, cross_entropy, (data.x[:0], data.y[:0]), gep.embedding_bounds(*BOUNDS), bases, layout, 3
    )
    assert [value.shape for value in sums._values.values()] == [(7,), (53,)]
    assert not any(value.any() for value in sums._values.values())


def lone(rule, bases, model, layout):
    """What one unit with a large gradient adds."""
    data = rows(1)
    sums = gep.embedded_sum(model, cross_entropy, (data.x * 1e4, data.y), rule, bases, layout, 3)
    return {name: value.double().norm().item() for name, value in sums._values.items()}


def test_the_order_of_the_bounds_does_not_matter():
    model = network()
    layout = examine(model, cross_entropy, (rows().x, rows().y))
    bases = anchors().bases(model, cross_entropy, layout, 0)
    turned = PerLayer({"residual": Flat(BOUNDS[1]), "embedding": Flat(BOUNDS[0])})
    expected = lone(gep.embedding_bounds(*BOUNDS), bases, model, layout)
    assert lone(turned, bases, model, layout) == pytest.approx(expected)
    assert max(expected.values()) <= 1


def dropping():
    return nn.Sequential(nn.Dropout(0.5), network())


def test_random_layers_draw_from_the_secret_seed_alone():
    data, weights = rows(40), []
    plan = Mechanism(sampler=Poisson(40, 20), clip=gep.embedding_bounds(*BOUNDS), steps=1, noise_multiplier=1.0)
    for seed in (0, 1):
        model, state = dropping(), State.start(plan, insecure_seed=5)
        torch.manual_seed(seed)
        before = torch.get_rng_state()
        gep.embedded_step(
            model, data, cross_entropy, torch.optim.SGD(model.parameters(), lr=1.0), state, anchors(dimension=3)
        )
        assert torch.equal(before, torch.get_rng_state())
        weights.append(torch.cat([p.detach().flatten() for p in model.parameters()]))
    assert torch.equal(*weights)
    model = dropping()
    layout = examine(model, cross_entropy, (data.x, data.y))
    sums = [gep.unit_gradients(model, cross_entropy, (data.x, data.y), seed, layout) for seed in (1, 1, 2)]
    assert torch.equal(sums[0], sums[1])
    assert not torch.equal(sums[0], sums[2])


def test_a_model_that_keeps_the_batch_is_refused():
    kept = []

    class Keeps(nn.Module):
        def __init__(self):
            super().__init__()
            self.inner = network()

        def forward(self, x):
            if len(x) >= 10:
                kept.append(x)
            return self.inner(x)

    model, data = Keeps(), rows()
    layout = examine(model, cross_entropy, (data.x, data.y))
    kept.clear()
    with pytest.raises(PrivacyError, match="keeps"):
        gep.unit_gradients(model, cross_entropy, (data.x, data.y), 1, layout)

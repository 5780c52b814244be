"""Each unit alone: the loop, the dense engine, products that are not cut."""

import itertools

import pytest
import torch
from torch import nn

from helpers.oracles import (
    PROBLEMS,
    Apply,
    cross_entropy,
)
from noisewise.batches import Views, take
from noisewise.persample import engines, examine, units_alone
from noisewise.persample.conditions import NotProven
from noisewise.persample.rounding import shortened

X = torch.randn(9, 6, generator=torch.Generator().manual_seed(0), dtype=torch.float64)

Y = torch.arange(9) % 3


def shuffled(m, x):
    order = x[:, 0].argsort()
    return m.head(torch.tanh(m.body(x[order])))[order.argsort()]


def network(forward=shuffled):
    torch.manual_seed(0)
    return Apply(forward, body=nn.Linear(6, 5), head=nn.Linear(5, 3)).double()


@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("views", [1, 2, 4, 12])
@pytest.mark.parametrize("name", ["conv", "linear-2d"])
def test_filling_up_is_the_loop_for_any_number_of_rows(name, views, masked):
    setup = PROBLEMS[name].make()
    layout = examine(*setup)
    assert layout.proven
    x, y = setup.batch[0], setup.batch[1]
    index = torch.arange(2 * views) % len(x)
    weights = torch.rand(2, views, dtype=torch.float64)
    batch = Views((x[index].unflatten(0, (2, views)), y[index].unflatten(0, (2, views))), weights)
    live = dict(setup.model.named_parameters())
    masks = {name: torch.rand(p.shape) < 0.6 for name, p in live.items()} if masked else {}
    found = engines.filled_up(setup.model, setup.loss_fn, batch, live, masks, layout, strict=True)
    expected = units_alone.loop(setup.model, setup.loss_fn, batch, live)
    expected = {name: grads * masks.get(name, 1) for name, grads in expected.items()}
    for name, grads in expected.items():
        assert torch.allclose(found[name][0], grads.flatten(1).square().sum(1), rtol=1e-9)
        factors = torch.tensor([0.3, 2.0], dtype=torch.float64)
        assert torch.allclose(found[name][1].weighted_sum(factors).flatten(), factors @ grads.flatten(1), rtol=1e-8)


@pytest.mark.parametrize("straying", [{1}, {0, 2}, {0, 1, 2}])
def test_units_that_stray_keep_their_places(straying, monkeypatch):
    setup = PROBLEMS["linear-2d"].make()
    layout, calls = examine(*setup), itertools.count(-1)  # the rehearsal comes first
    alongside = engines._in_company_of_itself

    def some(*given):
        if next(calls) in straying:
            raise NotProven("this unit takes another way")
        return alongside(*given)

    monkeypatch.setattr(engines, "_in_company_of_itself", some)
    batch = take(Views.single(setup.batch), slice(0, 3))
    live = dict(setup.model.named_parameters())
    found = engines.filled_up(setup.model, setup.loss_fn, batch, live, {}, layout, strict=False)
    factors, keep = torch.tensor([0.3, 2.0, 0.7], dtype=torch.float64), torch.tensor([True, False, True])
    for name, grads in units_alone.loop(setup.model, setup.loss_fn, batch, live).items():
        squares, gradient = found[name]
        grads = grads.flatten(1)
        assert torch.allclose(squares, grads.square().sum(1), rtol=1e-9)
        assert torch.allclose(gradient.weighted_sum(factors).flatten(), factors @ grads, rtol=1e-8)
        assert torch.allclose(gradient.where(keep).weighted_sum(factors).flatten(), (factors * keep) @ grads, rtol=1e-8)
        assert torch.allclose(gradient.formed().flatten(1), grads, rtol=1e-9)


@pytest.fixture
def cut():
    """Products of float32 factors may be cut."""
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("high")
    yield
    torch.set_float32_matmul_precision(before)


def test_products_are_not_cut_where_each_unit_is_alone(cut):
    seen = []

    def forward(m, x):
        seen.append(shortened(x))
        return m.head(torch.tanh(m.body(x)))

    model, batch = network(forward).float(), Views.single((X.float(), Y))
    live = dict(model.named_parameters())
    units_alone.dense(model, cross_entropy, batch, live)
    assert seen == [0.0]
    engines.booked(model, cross_entropy, batch, live, {})
    assert seen[-1] == 0.0
    assert shortened(batch.batch[0]) > 0

"""Batches without a proof: each unit alone, all at once with book-keeping inside, or in a batch of the examined size."""

import itertools
import random
import sys

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from helpers.oracles import (
    PROBLEMS,
    Apply,
    Setup,
    clipped_sum_by_hand,
    cross_entropy,
    gradients_of,
    relative_error,
    typical_norm,
    unit_gradients,
)
from noisewise.batches import Views
from noisewise.clipping import Flat
from noisewise.errors import UnsupportedLayer
from noisewise.persample import clipped_sum, engines, examine
from noisewise.runtime import Runtime
from noisewise.testing import reveal

X = torch.randn(9, 6, generator=torch.Generator().manual_seed(0), dtype=torch.float64)

Y = torch.arange(9) % 3

UNPROVEN = [name for name, problem in PROBLEMS.items() if not problem.proven]


def shuffled(m, x):
    order = x[:, 0].argsort()
    return m.head(torch.tanh(m.body(x[order])))[order.argsort()]


def network(forward=shuffled):
    torch.manual_seed(0)
    return Apply(forward, body=nn.Linear(6, 5), head=nn.Linear(5, 3)).double()


def summed(setup, layout, clip, **settings):
    return reveal(clipped_sum(*setup, clip, layout=layout, **settings).grads)


def by_hand(setup, clip):
    return clipped_sum_by_hand(unit_gradients(setup), clip, {})[0]


@pytest.mark.parametrize("name", UNPROVEN)
def test_units_alone_with_book_keeping_are_the_loop(name):
    setup, grads = PROBLEMS[name].make(), gradients_of(name)
    layout = examine(*setup)
    assert layout.recorded == layout.fallback
    assert layout.vectorises
    clip = Flat(typical_norm(grads))
    assert relative_error(summed(setup, layout, clip), clipped_sum_by_hand(grads, clip, {})[0]) < 1e-9
    views = Views.single(setup.batch)
    live = dict(setup.model.named_parameters())
    measured = engines.booked(setup.model, setup.loss_fn, views, live, {})
    for key, grad in grads.items():
        assert torch.allclose(measured[key][0], grad.flatten(1).square().sum(1), rtol=1e-9)


def test_book_keeping_leaves_what_it_cannot_explain_to_the_dense_engine():
    def forward(m, x):
        return shuffled(m, x) * m.gain

    torch.manual_seed(0)
    model = Apply(forward, body=nn.Linear(6, 5), head=nn.Linear(5, 3), gain=nn.Parameter(torch.ones(3))).double()
    setup = Setup(model, cross_entropy, (X, Y))
    layout = examine(*setup)
    assert layout.recorded == {"body.weight", "body.bias", "head.weight", "head.bias"}
    assert relative_error(summed(setup, layout, Flat(0.1)), by_hand(setup, Flat(0.1))) < 1e-9


@pytest.mark.parametrize("views", [1, 3])
def test_book_keeping_with_several_rows_of_a_unit(views):
    setup = Setup(network(), cross_entropy, (X, Y))
    layout = examine(*setup)
    rows = (X[:9].unflatten(0, (-1, views)), Y[:9].unflatten(0, (-1, views)))
    batch = Views(rows, torch.full((9 // views, views), 1 / views))
    found = {
        engine: reveal(clipped_sum(setup.model, cross_entropy, batch, Flat(0.1), layout=layout,
                                   runtime=Runtime(engine=engine)).grads)
        for engine in ("auto", "loop")
    }  # fmt: skip
    assert relative_error(found["auto"], found["loop"]) < 1e-9


def by_size(limit):
    def forward(m, x):
        hidden = torch.tanh(m.body(x))
        return m.head(hidden if len(x) <= limit else 1.02 * hidden)

    return forward


@pytest.mark.parametrize("limit", [1, 2, 3, 6, 8])
@pytest.mark.parametrize("units", [1, 2, 3, 7, 9])
def test_what_a_unit_adds_does_not_depend_on_the_size_of_its_batch(limit, units):
    """The model does, by two per cent: too little to be seen, and one unit more would move what all others add."""
    setup = Setup(network(by_size(limit)), cross_entropy, (X, Y))
    layout = examine(*setup)
    together = summed(Setup(setup.model, cross_entropy, (X[:units], Y[:units])), layout, Flat(0.1))
    alone = [
        summed(Setup(setup.model, cross_entropy, (X[i : i + 1], Y[i : i + 1])), layout, Flat(0.1)) for i in range(units)
    ]
    total = {name: sum(part[name] for part in alone) for name in together}
    assert relative_error(together, total) < 1e-9


@pytest.mark.parametrize("limit", [64, 200])
def test_units_of_batches_that_take_another_way_are_measured_as_all_others(limit):
    """Norms are rounded up by a bound of the engine: other bounds for a batch beyond the limit would move every unit."""
    torch.manual_seed(0)
    model = network(by_size(limit)).float()
    x, y = (
        torch.randn(6) + 0.1 * torch.randn(limit + 1, 6),
        torch.ones(limit + 1, dtype=torch.long),
    )  # what moves adds up
    layout = examine(model, cross_entropy, (x, y))
    fewer, more = (summed(Setup(model, cross_entropy, (x[:n], y[:n])), layout, Flat(1e-3)) for n in (limit, limit + 1))
    moved = torch.cat([(more[name] - fewer[name]).flatten().double() for name in more]).norm()
    assert float(moved) <= 1e-3 * (1 + 1e-5)


@pytest.fixture
def cut():
    """Products of float32 factors may be cut."""
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("high")
    yield
    torch.set_float32_matmul_precision(before)


def every_other(m, x):
    hidden = torch.tanh(m.body(x))
    return m.head(hidden if len(x) % 2 else 1.02 * hidden)


@pytest.mark.parametrize(("units", "sizes"), [(2, {3}), (4, {5}), (8, {9})])
def test_units_fill_up_batches_of_the_neighbouring_size_where_products_may_be_cut(units, sizes, monkeypatch, cut):
    """A kernel for another number of rows may cut products that the neighbours' kernel does not, or the other way round."""
    setup = Setup(network(every_other).float(), cross_entropy, (X[:units].float(), Y[:units]))
    layout, alongside, tried = examine(*setup), engines._in_company_of_itself, set()
    monkeypatch.setattr(engines, "_in_company_of_itself", lambda *given: (tried.add(given[-1]), alongside(*given))[1])
    summed(setup, layout, Flat(0.1))
    assert tried == sizes


def test_a_unit_that_is_not_finite_spoils_no_other_when_it_fills_up():
    setup = PROBLEMS["linear-2d"].make()
    layout = examine(*setup)
    x, *rest = setup.batch
    broken = x.clone()
    broken[0] = float("inf")
    got = clipped_sum(setup.model, setup.loss_fn, (broken[:1], *(part[:1] for part in rest)), Flat(1.0), layout=layout)
    assert all(bool((value == 0).all()) for value in reveal(got.grads).values())


def test_a_model_that_decides_by_chance_or_by_a_count_is_evaluated_alone():
    counter = itertools.count()

    def forward(m, x):
        hidden = torch.tanh(m.body(x))
        return m.head(hidden - hidden.mean(0) if m.mixing and next(counter) % 2 else hidden)

    model = network(forward)
    model.mixing = False
    setup = Setup(model, cross_entropy, (X, Y))
    layout = examine(*setup)
    assert layout.proven
    expected = by_hand(setup, Flat(0.1))
    model.mixing = True
    for _ in range(4):
        got = summed(setup, layout, Flat(0.1))
        single = [
            summed(Setup(model, cross_entropy, (X[i : i + 1], Y[i : i + 1])), layout, Flat(0.1)) for i in range(9)
        ]
        assert max(float(torch.cat([v.flatten() for v in part.values()]).norm()) for part in single) <= 0.1 * (1 + 1e-6)
        assert all(value.isfinite().all() for value in got.values())
    model.mixing = False
    assert relative_error(summed(setup, layout, Flat(0.1)), expected) < 1e-9


def test_mixing_now_and_then_by_pythons_own_chance_moves_nothing():
    def forward(m, x):
        hidden = torch.tanh(m.body(x))
        if m.mixing and random.random() < 0.5:
            hidden = 0.5 * (hidden + hidden[torch.randperm(len(hidden))])
        return m.head(hidden)

    model = network(forward)
    model.mixing = False
    setup = Setup(model, cross_entropy, (X, Y))
    layout = examine(*setup)
    model.mixing = True
    expected = by_hand(Setup(network(lambda m, x: m.head(torch.tanh(m.body(x)))), cross_entropy, (X, Y)), Flat(0.1))
    for _ in range(6):
        assert relative_error(summed(setup, layout, Flat(0.1)), expected) < 1e-9


def test_the_fast_engine_alone_refuses_with_the_reason():
    setup = Setup(network(), cross_entropy, (X, Y))
    with pytest.raises(UnsupportedLayer, match=r"needs a proof.*aten::sort goes along the units.*engine='auto'"):
        clipped_sum(*setup, Flat(1.0), runtime=Runtime(engine="ghost"))


def counted(monkeypatch):
    seen = []
    module = sys.modules["noisewise.persample.clipped_sum"]
    original = module.examine

    def watching(*args, **kwargs):
        seen.append(args[1])
        return original(*args, **kwargs)

    monkeypatch.setattr(module, "examine", watching)
    return seen


def other_loss(model, batch):
    return F.mse_loss(model(batch[0])[:, 0], batch[1].double(), reduction="none")


def test_a_proof_is_made_again_when_mode_shapes_types_or_loss_change(monkeypatch):
    model = nn.Sequential(nn.Linear(6, 5), nn.Dropout(0.1), nn.Linear(5, 3)).double()
    layout = examine(model, cross_entropy, (X, Y))
    seen = counted(monkeypatch)

    def examined_again(loss_fn=cross_entropy, batch=(X, Y)):
        seen.clear()
        clipped_sum(model, loss_fn, batch, Flat(1.0), layout=layout)
        return bool(seen)

    assert not examined_again()
    assert not examined_again(batch=(X[:4], Y[:4]))
    assert examined_again(other_loss)
    assert examined_again(batch=(X, Y.byte()))
    model.eval()
    assert examined_again()
    model.train()
    with torch.autocast("cpu", torch.bfloat16):
        assert examined_again()
    model.float()
    assert examined_again(batch=(X.float(), Y))

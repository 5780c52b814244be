"""Units that influence each other are refused, or evaluated alone: one unit moves the clipped sum by at most its bound.

The collection and the measures are in `hostile.py`. Nothing here knows how the examination works.
"""

from __future__ import annotations

import random
import types
from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from helpers.hostile import (
    ALONE,
    CAPTURED,
    FAMILIES,
    POOL,
    ROUNDING,
    TOGETHER,
    Draw,
    Family,
    Hostile,
    Net,
    carried,
    cross_entropy,
    deviation,
    distance,
    movement,
    pool_of,
    seed_all,
    variants,
)
from helpers.oracles import Setup, rows
from noisewise.clipping import Flat
from noisewise.errors import NoisewiseError
from noisewise.mechanism import Mechanism
from noisewise.persample import clipped_sum, examine
from noisewise.sampling import FullBatch
from noisewise.testing import reveal
from noisewise.training.state import State
from noisewise.training.step import private_step

pytestmark = [
    pytest.mark.filterwarnings("ignore::UserWarning"),
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
]

FIRST = [hostile for family in FAMILIES for hostile in variants(family, 0, 1)]
QUICK = FIRST[::2]
SLOW = [*FIRST[1::2], *(hostile for family in FAMILIES for hostile in variants(family, 1, 7))]


def each(form: str | None = None) -> pytest.MarkDecorator:
    """One variant of every family; the others by hand with -m slow."""
    quick = [pytest.param(hostile, id=repr(hostile)) for hostile in QUICK if form in (None, hostile.form)]
    slow = [
        pytest.param(hostile, id=repr(hostile), marks=pytest.mark.slow)
        for hostile in SLOW
        if form in (None, hostile.form)
    ]
    return pytest.mark.parametrize("hostile", quick + slow)


def unless_refused(measure: Callable[[], float], allowed: float) -> None:
    """The measure is within what is allowed, or noisewise refuses."""
    try:
        found = measure()
    except NoisewiseError:
        return
    assert found <= allowed


@each()
def test_one_unit_moves_the_sum_by_at_most_the_bound(hostile):
    unless_refused(lambda: movement(hostile), 1 + ROUNDING[hostile.dtype])


@each("carry")
def test_nothing_is_carried_from_one_batch_to_the_next(hostile):
    unless_refused(lambda: carried(hostile), ROUNDING[hostile.dtype])


CAPTURED_NOW = FIRST[1::6]
IN_FIXED_SHAPES = [
    pytest.param(hostile, id=repr(hostile), marks=() if hostile in CAPTURED_NOW else pytest.mark.slow)
    for hostile in FIRST
]


@pytest.mark.parametrize("hostile", IN_FIXED_SHAPES)
def test_captured_steps_keep_to_the_bound_too(hostile):
    """On a CPU plain calls stand for graphs; `tests/whole/test_gpu.py` has those."""
    unless_refused(lambda: movement(hostile, CAPTURED), 1 + ROUNDING[hostile.dtype])
    if hostile.form == "carry":
        unless_refused(lambda: carried(hostile, CAPTURED), ROUNDING[hostile.dtype])


DEVIATION = {torch.float64: 1e-6, torch.float32: 1e-3, torch.bfloat16: 0.05}  # norms may be rounded up


@each("pair")
def test_what_is_accepted_is_the_sum_of_lone_units(hostile):
    unless_refused(lambda: deviation(hostile), DEVIATION[hostile.dtype])


# ------------------------------------------------------------------------------------------------------ several steps

UNITS, BOUND, SIGMA = 40, 0.05, 1e-9
STEPPED = [
    pytest.param(hostile, id=repr(hostile))
    for family in FAMILIES
    if family.startswith(("memory", "counter", "chance:", "rows: to", "rows: sorted", "loss: m"))
    for hostile in variants(family, 10, 11)
]


def stepped(setup: Setup, extreme: bool, steps: int, switch: Callable[[nn.Module], None] | None = None) -> list[dict]:
    """Sums released by steps of one state over all units, the last of which is extreme or not.

    Noise and learning rate are next to nothing, so that neighbouring runs keep the same weights and differ by their data.
    `switch` changes the model after the first step.
    """
    model, loss_fn, pool = setup
    data = rows(pool, [*range(UNITS - 1), POOL - 1 if extreme else UNITS - 1])
    mechanism = Mechanism(sampler=FullBatch(n=UNITS), clip=Flat(BOUND), noise_multiplier=SIGMA, steps=steps)
    state, optimizer = State.start(mechanism, insecure_seed=1), torch.optim.SGD(model.parameters(), lr=1e-9)
    released = []
    for step in range(steps):
        if switch is not None and step == 1:
            switch(model)
        seed_all(step)
        private_step(model, data, loss_fn, optimizer, state)
        released.append({n: p.grad.clone() * UNITS for n, p in model.named_parameters() if p.grad is not None})
    return released


def largest_difference(
    make: Callable[[], Setup], steps: int, switch: Callable[[nn.Module], None] | None = None
) -> float:
    """By how much replacing a unit moves what any step releases, in units of twice the bound."""
    runs = [stepped(make(), extreme, steps, switch) for extreme in (False, True)]
    return max(distance(a, b) for a, b in zip(*runs, strict=True)) / (2 * BOUND)


@pytest.mark.parametrize("hostile", STEPPED)
def test_steps_of_one_state_keep_the_bound(hostile):
    rounding = 1e-5 if hostile.dtype == torch.float64 else 0.02  # gradients are handed over in the model's precision
    unless_refused(lambda: largest_difference(hostile.make, 40 if hostile.warmup else 4), 1 + rounding)


# ------------------------------------------------------------------------------- examined in one way, used in another


class Switched(nn.Module):
    """Mixes units where its condition holds."""

    def __init__(self, condition: Callable[[Switched, Tensor], bool]):
        super().__init__()
        self.net, self.condition, self.on = Net(self.mix, 1), condition, False
        self.norm = nn.BatchNorm1d(6, momentum=0.0)
        self.norm.num_batches_tracked = None
        self.norm.eval()

    def mix(self, h: Tensor) -> Tensor:
        return h - 2 * h.mean(0) if self.condition(self, h) else h

    def forward(self, x: Tensor) -> Tensor:
        return self.norm(self.net(x))


class Mixer(nn.Module):
    """What a layer is replaced by."""

    def forward(self, h: Tensor) -> Tensor:
        return h - 2 * h.mean(0)


def never(model: Switched, h: Tensor) -> bool:
    return False


def honest_until(condition: Callable[[Switched, Tensor], bool], training: bool = False) -> Callable[[], Setup]:
    def make() -> Setup:
        x, y = pool_of(Draw(random.Random(2), 4))
        with torch.random.fork_rng([]):
            torch.manual_seed(3)
            model = Switched(condition)
        model.net.train(training)
        return Setup(model.double(), cross_entropy, (x.double(), y))

    return make


def _hook(model: nn.Module) -> None:
    model.net.first.register_forward_hook(lambda _, __, out: out - 2 * out.mean(0))


def _pre_hook(model: nn.Module) -> None:
    model.net.second.register_forward_pre_hook(lambda _, args: (args[0] - 2 * args[0].mean(0),))


def _backward_hook(model: nn.Module) -> None:
    model.net.second.register_full_backward_hook(lambda _, grads, __: (grads[0] - 2 * grads[0].mean(0),))


def _forward_of_its_own(model: nn.Module) -> None:
    plain = type(model).forward
    model.forward = types.MethodType(lambda self, x: plain(self, x - 2 * x.mean(0)), model)


CROSSINGS: dict[str, tuple[Callable[[], Setup], Callable[[nn.Module], None]]] = {
    "BatchNorm, evaluation then training": (honest_until(never), lambda model: model.norm.train()),
    "own code, evaluation then training": (honest_until(lambda m, h: m.net.training), lambda model: model.net.train()),
    "own code, training then evaluation": (
        honest_until(lambda m, h: not m.net.training, training=True),
        lambda model: model.net.eval(),
    ),
    "attribute": (honest_until(lambda m, h: m.on), lambda model: setattr(model, "on", True)),
    "replaced function": (honest_until(never), lambda model: setattr(model.net, "mix", Mixer())),
    "replaced layer": (
        honest_until(never),
        lambda model: setattr(model.net, "second", nn.Sequential(Mixer(), nn.Linear(6, 6)).double()),
    ),
    "forward hook": (honest_until(never), _hook),
    "forward pre-hook": (honest_until(never), _pre_hook),
    "backward hook": (honest_until(never), _backward_hook),
    "forward pass of its own": (honest_until(never), _forward_of_its_own),
}


@pytest.mark.parametrize("name", CROSSINGS)
def test_a_state_examined_in_one_way_and_used_in_another_keeps_the_bound(name):
    make, switch = CROSSINGS[name]
    unless_refused(lambda: largest_difference(make, 3, switch), 1 + 1e-5)


@pytest.mark.parametrize("name", CROSSINGS)
def test_a_layout_found_in_one_way_and_used_in_another_keeps_the_bound(name):
    make, switch = CROSSINGS[name]

    def moved() -> float:
        model, loss_fn, pool = make()
        layout = examine(model, loss_fn, rows(pool, slice(0, 0)))
        switch(model)
        return pair(model, loss_fn, pool, layout)

    unless_refused(moved, 1 + 1e-6)


def pair(model: nn.Module, loss_fn: Callable, pool: tuple[Tensor, Tensor], layout: object) -> float:
    """Movement when an extreme unit joins UNITS others."""
    few, more = (
        reveal(clipped_sum(model, loss_fn, rows(pool, units), Flat(BOUND), layout=layout, seed=0).grads)
        for units in ([*range(UNITS)], [*range(UNITS), POOL - 1])
    )
    return distance(few, more) / BOUND


def negatives(model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
    out = model(batch[0])
    return F.cross_entropy(out @ out.T, torch.arange(len(out)), reduction="none")


def averaged(model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
    return cross_entropy(model, batch).mean().expand(len(batch[0]))


OTHER_LOSSES = {"in-batch negatives": negatives, "the mean": averaged}


@pytest.mark.parametrize("name", OTHER_LOSSES)
def test_a_layout_found_for_one_loss_and_used_for_another_keeps_the_bound(name):
    def moved() -> float:
        model, loss_fn, pool = honest_until(never)()
        layout = examine(model, loss_fn, rows(pool, slice(0, 0)))
        return pair(model, OTHER_LOSSES[name], pool, layout)

    unless_refused(moved, 1 + 1e-6)


@pytest.mark.parametrize("name", OTHER_LOSSES)
def test_a_state_examined_for_one_loss_and_used_for_another_keeps_the_bound(name):
    def make() -> Setup:
        setup = honest_until(never)()

        def loss_fn(model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
            return (OTHER_LOSSES[name] if model.on else cross_entropy)(model, batch)

        return setup._replace(loss_fn=loss_fn)

    unless_refused(lambda: largest_difference(make, 3, lambda model: setattr(model, "on", True)), 1 + 1e-5)


@pytest.mark.parametrize("length", [5, 9])
def test_a_layout_found_at_one_length_and_used_at_another_keeps_the_bound(length):
    """Mixing only beyond the length that was examined."""

    class Long(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.head = nn.Linear(5, 6), nn.Linear(6, 6)

        def forward(self, x: Tensor) -> Tensor:
            h = torch.tanh(self.first(x)).mean(1)
            return self.head(h - 2 * h.mean(0) if x.shape[1] > 4 else h)

    def moved() -> float:
        generator = torch.Generator().manual_seed(0)
        torch.manual_seed(0)
        model, y = Long().double(), torch.arange(POOL) % 4
        x = torch.randn(POOL, length, 5, generator=generator, dtype=torch.float64)
        x[-1] *= 1000
        layout = examine(model, cross_entropy, (x[:0, :4], y[:0]))
        return pair(model, cross_entropy, (x, y), layout)

    unless_refused(moved, 1 + 1e-6)


# ------------------------------------------------------------------------------------------------------ the yardstick

HONEST = Family("pair", lambda draw: (Net(lambda h: torch.tanh(h), 1), cross_entropy))


@pytest.mark.parametrize("variant", range(5))
def test_an_honest_model_is_accepted_and_moves_by_the_bound_itself(variant):
    honest = Hostile("honest", variant, *HONEST)
    assert 0.99 < movement(honest) <= 1 + ROUNDING[honest.dtype]
    assert deviation(honest) <= DEVIATION[honest.dtype]
    assert carried(honest) <= ROUNDING[honest.dtype]


def test_hundreds_of_variants_are_the_same_every_time():
    assert len(QUICK) + len(SLOW) >= 1000
    for hostile in QUICK[::20]:
        first, second = hostile.make(), hostile.make()
        assert all(torch.equal(a, b) for a, b in zip(first.model.parameters(), second.model.parameters(), strict=True))
        assert torch.equal(first.batch[0], second.batch[0])
        assert hostile.sizes == hostile.sizes


@pytest.mark.slow
@pytest.mark.parametrize("family", [name for name, family in FAMILIES.items() if family.form != "carry"])
def test_units_alone_hold_by_the_definition(family):
    """The property can be had: the definition has it, for every family that does not remember."""
    (hostile,) = variants(family, 0, 1)
    assert movement(hostile, ALONE) <= 1 + ROUNDING[hostile.dtype]


TOGETHER_IS_WRONG = [  # not for gradients that mix in one backward pass of all losses, nor for rows in another order
    name
    for name, family in FAMILIES.items()
    if family.form != "lone" and not name.startswith(("gradients", "operator: backward")) and "and back" not in name
]


@pytest.mark.slow
@pytest.mark.parametrize("family", TOGETHER_IS_WRONG)
def test_every_family_has_teeth(family):
    """An engine that takes each loss of the whole batch for the unit's own breaks the bound in some variant."""

    def broken(hostile: Hostile) -> bool:
        late = hostile.form == "carry" and carried(hostile, TOGETHER) > ROUNDING[hostile.dtype]
        return late or movement(hostile, TOGETHER) > 1 + ROUNDING[hostile.dtype]

    assert any(broken(hostile) for hostile in variants(family, 0, 16))

"""Every engine against the plain oracle: all problems, rules, supports and micro-batch sizes."""

import weakref

import pytest
import torch
from torch import nn

from helpers.oracles import (
    PROBLEMS,
    RULES,
    SUPPORTS,
    Apply,
    Setup,
    clipped_sum_by_hand,
    cross_entropy,
    gradients_of,
    in_double,
    make_support,
    problems_and_engines,
    relative_error,
    rules,
    typical_norm,
    unit_gradients,
)
from noisewise.batches import Views
from noisewise.clipping import Flat
from noisewise.errors import ConfigError, UnsupportedLayer
from noisewise.persample import clipped_sum, engines, examine, live_parameters, uses
from noisewise.persample.units_alone import dense, loop
from noisewise.runtime import Runtime

ENGINES = ("auto", "dense", "loop")

MICROBATCHES = (None, 1, 2, 3, 7)

EXACT = 1e-9  # relative L2, float64

# The warning is torch's, on being asked for exactly this computation.
pytestmark = pytest.mark.filterwarnings("ignore:Using padding='same' with even kernel:UserWarning")


def microbatches(name, engine, rule):
    """Sizes that go round over problems and rules; the fast engine also takes the whole batch every time."""
    size = MICROBATCHES[(list(PROBLEMS).index(name) + RULES.index(rule)) % len(MICROBATCHES)]
    return {None, size} if engine == "auto" else {size}


def takes_its_turn(name, support_kind, rule):
    """Rules go round over supports: each problem has every rule with one of them, and every support with two rules."""
    return (list(PROBLEMS).index(name) + SUPPORTS.index(support_kind) + RULES.index(rule)) % len(SUPPORTS) == 0


@pytest.mark.parametrize("rule", RULES)
def test_every_rule_has_its_turn(rule):
    turns = [(name, kind) for name in PROBLEMS for kind in SUPPORTS if takes_its_turn(name, kind, rule)]
    assert {name for name, _ in turns} == set(PROBLEMS)
    assert {kind for _, kind in turns} == set(SUPPORTS)


@pytest.mark.parametrize("support_kind", SUPPORTS)
@pytest.mark.parametrize(("name", "engine"), problems_and_engines(ENGINES))
def test_every_rule_equals_the_oracle(name, engine, support_kind):
    setup, layout = PROBLEMS[name].examined()
    support = make_support(support_kind, setup.model)
    grads = gradients_of(name)
    assert layout.fallback == PROBLEMS[name].fallback  # a rule with a mistake would not be used
    for rule, clip in rules(list(grads), typical_norm(grads)).items():
        if not takes_its_turn(name, support_kind, rule):
            continue
        expected, norms = clipped_sum_by_hand(grads, clip, support)
        for size in microbatches(name, engine, rule):
            runtime = Runtime(engine=engine, microbatch=size)
            got = clipped_sum(*setup, clip, support, runtime, layout=layout)
            assert relative_error(got.grads._values, expected) < EXACT, (rule, size)
            assert torch.allclose(got.norms, norms, rtol=EXACT, atol=1e-12), (rule, size)
            assert got.grads.sensitivity == clip.sensitivity


@pytest.mark.parametrize(
    ("name", "engine"),
    [(name, e) for name, e in problems_and_engines(ENGINES) if e == "auto" or list(PROBLEMS).index(name) % 3 == 0],
)
def test_float32_differs_by_rounding_only(name, engine):
    """1e-4: a float32 Gram norm may be lengthened by about 1e-7 (|A| |G| / norm)^2, which is below 100 here."""
    setup, layout = PROBLEMS[name].examined(torch.float32)
    grads = unit_gradients(in_double(setup))
    clip = rules(list(grads), typical_norm(grads))["flat"]
    got = clipped_sum(*setup, clip, runtime=Runtime(engine=engine), layout=layout)
    expected, norms = clipped_sum_by_hand(grads, clip, {})
    assert got.grads._values.keys() == expected.keys()
    assert all(value.dtype == torch.float32 for value in got.grads._values.values())
    assert relative_error(got.grads._values, expected) < 1e-4
    assert torch.allclose(got.norms.double(), norms, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("name", PROBLEMS)
def test_ghost_takes_what_it_can_explain_and_refuses_the_rest_by_name(name):
    (setup, layout), fallback = PROBLEMS[name].examined(), PROBLEMS[name].fallback
    grads = gradients_of(name)
    clip = Flat(typical_norm(grads))
    if not fallback:
        got = clipped_sum(*setup, clip, runtime=Runtime(engine="ghost"), layout=layout)
        assert relative_error(got.grads._values, clipped_sum_by_hand(grads, clip, {})[0]) < EXACT
        return
    with pytest.raises(UnsupportedLayer) as refusal:
        clipped_sum(*setup, clip, runtime=Runtime(engine="ghost"), layout=layout)
    if PROBLEMS[name].proven:
        assert all(repr(parameter) in str(refusal.value) for parameter in fallback)
    else:
        assert "needs a proof that units do not influence each other" in str(refusal.value)


@pytest.mark.parametrize("name", [name for name, problem in PROBLEMS.items() if problem.fallback and problem.proven])
def test_ghost_is_content_once_the_unexplained_parameters_are_frozen(name):
    setup = PROBLEMS[name].make()
    support = dict.fromkeys(PROBLEMS[name].fallback, False)
    grads = gradients_of(name)
    clip = Flat(typical_norm(grads))
    got = clipped_sum(*setup, clip, support, Runtime(engine="ghost"))
    assert relative_error(got.grads._values, clipped_sum_by_hand(grads, clip, support)[0]) < EXACT


@pytest.mark.parametrize("name", ["lstm", "gru", "learned-state"])
def test_what_cannot_be_vectorised_is_refused_by_dense_and_found_out_once(name):
    setup = PROBLEMS[name].make()
    assert examine(*setup).vectorises == (not PROBLEMS[name].fallback)  # not asked where nobody needs it
    with pytest.raises(UnsupportedLayer, match="the dense engine cannot vectorise this model"):
        clipped_sum(*setup, Flat(1.0), runtime=Runtime(engine="dense"))


@pytest.mark.parametrize("engine", [dense, loop])
@pytest.mark.parametrize("name", ["linear-2d", "tied-head", "unused", "in-place", "dicts"])
def test_unit_gradients_equal_the_oracle(name, engine):
    setup = PROBLEMS[name].make()
    views = Views.single(setup.batch)
    got = engine(setup.model, setup.loss_fn, views, live_parameters(setup.model, {}))
    assert relative_error({n: g.detach() for n, g in got.items()}, gradients_of(name)) < EXACT


@pytest.mark.parametrize("frozen", ["0.weight", "0.bias", "2.weight", "2.bias"])
@pytest.mark.parametrize("rule", ["per-layer-local", "per-layer-global"])
def test_per_layer_rules_work_whichever_parameter_is_frozen(rule, frozen):
    setup, grads, support = PROBLEMS["linear-2d"].make(), gradients_of("linear-2d"), {frozen: False}
    clip = rules(list(grads), typical_norm(grads))[rule]
    got = clipped_sum(*setup, clip, support)
    assert relative_error(got.grads._values, clipped_sum_by_hand(grads, clip, support)[0]) < EXACT


def test_masks_need_not_be_contiguous():
    setup, grads = PROBLEMS["linear-3d-gram"].make(), gradients_of("linear-3d-gram")
    generator = torch.Generator().manual_seed(0)
    support = {
        name: (torch.rand(p.shape[::-1], generator=generator) < 0.5).permute(*reversed(range(p.dim())))
        for name, p in setup.model.named_parameters()
    }
    clip = Flat(typical_norm(grads))
    got = clipped_sum(*setup, clip, support)
    assert relative_error(got.grads._values, clipped_sum_by_hand(grads, clip, support)[0]) < EXACT


def test_inputs_need_not_be_contiguous():
    problem = PROBLEMS["conv-wide-gram"]
    setup = problem.make()
    x, weight = setup.batch
    strided = (x.transpose(1, 3).contiguous().transpose(1, 3), weight)
    assert not strided[0].is_contiguous()
    got = clipped_sum(setup.model, setup.loss_fn, strided, Flat(1.0))
    expected = clipped_sum_by_hand(gradients_of("conv-wide-gram"), Flat(1.0), {})[0]
    assert relative_error(got.grads._values, expected) < EXACT


@pytest.mark.parametrize("engine", ENGINES)
def test_parameters_of_two_types_are_clipped_together(engine):
    torch.manual_seed(0)
    model = Apply(lambda m, x: m.head(m.body(x).double()), body=nn.Linear(5, 4), head=nn.Linear(4, 3).double())
    setup = Setup(model, cross_entropy, (torch.randn(4, 5), torch.tensor([0, 1, 2, 0])))
    expected = clipped_sum_by_hand(unit_gradients(setup), Flat(0.5), {})[0]
    got = clipped_sum(*setup, Flat(0.5), runtime=Runtime(engine=engine)).grads._values
    assert {name: value.dtype for name, value in got.items()} == {n: p.dtype for n, p in model.named_parameters()}
    assert relative_error(got, expected) < 1e-5


@pytest.mark.parametrize("engine", ENGINES)
def test_bfloat16_norms_are_taken_in_float64(engine):
    setup = PROBLEMS["linear-2d"].make(torch.bfloat16)
    got = clipped_sum(*setup, Flat(0.5), runtime=Runtime(engine=engine))
    expected, norms = clipped_sum_by_hand(unit_gradients(in_double(setup)), Flat(0.5), {})
    assert got.norms.dtype == torch.float64
    assert torch.allclose(got.norms, norms, rtol=0.02)
    assert relative_error(got.grads._values, expected) < 0.03  # a bfloat16 has 8 bits: 0.4 % a rounding


@pytest.mark.parametrize("engine", ENGINES)
def test_a_loss_that_ignores_the_model_is_refused_and_one_without_slope_gives_zeros(engine):
    setup = Setup(nn.Linear(3, 2), lambda model, x: x.sum(1), torch.ones(4, 3))
    with pytest.raises(ConfigError, match="does not depend on any parameter that learns"):
        clipped_sum(*setup, Flat(1.0), runtime=Runtime(engine=engine))
    flat = setup._replace(loss_fn=lambda model, x: 0 * model(x).sum(1))
    got = clipped_sum(*flat, Flat(1.0), runtime=Runtime(engine=engine))
    assert all(not value.any() for value in got.grads._values.values())
    assert not got.norms.any()


@pytest.mark.parametrize("engine", ENGINES)
def test_control_flow_by_unit_is_right_or_refused_with_a_remedy(engine):
    torch.manual_seed(0)
    model = Apply(
        lambda m, x: torch.stack([m.body(row) if row.sum() > 0 else -m.body(row) for row in x]), body=nn.Linear(5, 3)
    )
    setup = Setup(model, cross_entropy, (torch.randn(4, 5), torch.tensor([0, 1, 2, 0])))
    runtime = Runtime(engine=engine)
    if engine != "dense":
        expected = clipped_sum_by_hand(unit_gradients(setup), Flat(0.5), {})[0]
        assert relative_error(clipped_sum(*setup, Flat(0.5), runtime=runtime).grads._values, expected) < 1e-6
        return
    with pytest.raises(UnsupportedLayer, match=r"body\.weight.*engine='loop'"):
        clipped_sum(*setup, Flat(0.5), runtime=runtime)


def test_gradients_of_outputs_are_gone_once_a_layer_is_measured(monkeypatch):
    """Three convolutions whose formed gradients are kept: while one is measured, those before it hold nothing else."""
    model = nn.Sequential(*(nn.Conv2d(8, 8, 3, padding=1) for _ in range(3)), nn.Flatten(), nn.Linear(8 * 144, 2))
    batch = (torch.randn(4, 8, 12, 12), torch.tensor([0, 1, 0, 1]))
    layout, alive, grads = examine(model, cross_entropy, batch), [], []
    gradients, measure = uses.output_gradients, engines.measure_blocks

    def outputs(*given):
        computed = gradients(*given)
        grads.extend(weakref.ref(grad) for grad in computed)
        return computed

    def watched(*given):
        alive.append(sum(grad() is not None for grad in grads))
        return measure(*given)

    monkeypatch.setattr(uses, "output_gradients", outputs)
    monkeypatch.setattr(engines, "measure_blocks", watched)
    clipped_sum(model, cross_entropy, batch, Flat(1.0), layout=layout)
    assert alive == [4, 3, 3, 2, 2, 1, 1, 1]  # weight and bias of each

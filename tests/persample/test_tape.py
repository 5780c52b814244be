"""What is seen of a forward pass: recorded calls, unexplained uses, misaligned rows."""

import warnings

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from helpers.halves import padded_under_autocast
from helpers.oracles import Apply, squared_output
from noisewise.clipping import Flat
from noisewise.errors import DataError
from noisewise.persample import clipped_sum
from noisewise.persample.conditions import NotProven
from noisewise.persample.layers import Operands
from noisewise.persample.places import Place
from noisewise.persample.proof import Proof
from noisewise.persample.tape import Call, Tape, misaligned, unexplained, with_stand_ins
from noisewise.runtime import Runtime


def watch(model, x):
    live = {name: p for name, p in model.named_parameters() if p.requires_grad}
    proof = Proof([x], dict(model.named_parameters()))
    with Tape(live, proof) as tape, proof:
        output = model(x)
    return tape, output, live


def test_every_call_of_a_shared_module_is_recorded():
    model = Apply(lambda m, x: m.layer(torch.tanh(m.layer(x))), layer=nn.Linear(3, 3))
    tape, output, live = watch(model, torch.ones(2, 3))
    assert [call.names for call in tape.calls] == [{"weight": "layer.weight", "bias": "layer.bias"}] * 2
    assert unexplained(output, live) == set()


def test_frozen_parameters_are_not_recorded():
    model = nn.Linear(3, 2)
    model.weight.requires_grad_(False)
    tape, _, _ = watch(model, torch.ones(2, 3))
    assert [call.names for call in tape.calls] == [{"bias": "bias"}]


def test_detached_parameters_are_not_recorded():
    tape, output, live = watch(Apply(lambda m, x: F.linear(x, m.a.detach()[:2]) + m.a.detach()[0, 0],
                                     a=nn.Parameter(torch.ones(3, 3))), torch.ones(2, 3))  # fmt: skip
    assert (tape.calls, unexplained(output, live)) == ([], set())


def test_nothing_is_recorded_without_gradients():
    with torch.no_grad():
        tape, _, _ = watch(nn.Linear(3, 2), torch.ones(2, 3))
    assert tape.calls == []


@pytest.mark.parametrize(
    "use",
    [
        lambda m, x: m.layer(x) @ m.layer.weight.T,
        lambda m, x: m.layer.weight @ x.T,
        lambda m, x: F.linear(x, m.layer.weight.clone()),
        lambda m, x: F.linear(x, m.layer.weight * 2, m.layer.bias),
        lambda m, x: F.linear(x, m.layer.weight[::2]),
        lambda m, x: F.linear(x[:, :2], m.layer.weight[:, :2]),
        lambda m, x: F.linear(x, torch._neg_view(m.layer.weight)),
        lambda m, x: torch.maximum(x, m.layer.weight.norm()),
        lambda m, x: torch.addmm(m.layer.bias, x, m.layer.weight, alpha=2),
    ],
    ids=[
        "transposed",
        "other side",
        "clone",
        "scaled",
        "every other row",
        "columns",
        "negative",
        "largest",
        "addmm, scaled",
    ],
)
def test_uses_that_no_rule_explains_are_found(use):
    _, output, live = watch(Apply(use, layer=nn.Linear(3, 3)), torch.ones(2, 3))
    assert "layer.weight" in unexplained(output, live)


@pytest.mark.parametrize(
    ("use", "reached"),
    [
        (lambda m, x: m.layer(m.start).expand(len(x), -1) + x, {"layer.weight", "layer.bias", "start"}),
        (lambda m, x: x * m.layer(m.start)[0], {"layer.weight", "layer.bias", "start"}),
        (lambda m, x: x - m.layer.weight.norm(), {"layer.weight"}),
        (lambda m, x: x / m.start.exp(), {"start"}),
    ],
    ids=["widened", "laid over", "a number", "below"],
)
def test_what_is_the_same_for_all_units_is_explained_where_it_is_laid_over_them(use, reached):
    model = Apply(use, layer=nn.Linear(3, 3), start=nn.Parameter(torch.ones(1, 3)))
    tape, output, live = watch(model, torch.randn(2, 3))
    assert unexplained(output, live) | misaligned(tape.calls) == set()
    assert {name for call in tape.calls for name in call.names.values()} == reached


def test_a_parameter_that_is_input_and_weight_of_one_call_is_not_taken_for_a_layer():
    model = Apply(
        lambda m, x: torch.maximum(F.linear(m.table, m.table).sum(0), x), table=nn.Parameter(torch.ones(4, 4))
    )
    tape, output, live = watch(model, torch.ones(2, 4))
    assert unexplained(output, live) | misaligned(tape.calls) == {"table"}


@pytest.mark.parametrize(
    ("use", "reason"),
    [
        (lambda m, x: x * m.start[:1].expand(len(x), -1).mean(0), "mean"),
        (lambda m, x: x * m.start[:1].expand(len(x), -1).flip(0), "flip"),
        (lambda m, x: x * m.start, "differs by position"),
        (lambda m, x: m.deep(x.T.view(1, 3, 2, 1)), "among channels or positions"),
    ],
    ids=["mean of copies", "copies of others", "a row for each unit", "units as positions"],
)
def test_what_belongs_to_one_unit_may_not_reach_another(use, reason):
    """The mean of copies is the parameter itself, but its gradient would be that of all units."""
    model = Apply(use, start=nn.Parameter(torch.ones(2, 3)), deep=nn.Conv2d(3, 2, 1))
    with pytest.raises(NotProven, match=reason):
        watch(model, torch.randn(2, 3))


@pytest.mark.parametrize(
    ("use", "place"),
    [
        (lambda m, x: m.layer(x.transpose(0, 1)), Place(1)),
        (lambda m, x: m.layer(x.flatten(0, 1)), Place(0, 1, 4)),
        (lambda m, x: m.layer(x.transpose(0, 1).flatten(0, 1)), Place(0, 4, 1)),
    ],
    ids=["time first", "flattened", "time first, flattened"],
)
def test_the_place_of_the_units_is_that_of_the_proof(use, place):
    tape, _, _ = watch(Apply(use, layer=nn.Linear(3, 2)), torch.randn(2, 4, 3))
    assert [call.place for call in tape.calls] == [place]


def test_what_no_rule_has_in_its_place_is_misaligned():
    """One row of numbers for all units, but as long as there are units: it is not theirs, and nobody knows whose."""
    model = Apply(lambda m, x: m.layer(m.rows) + x, layer=nn.Linear(3, 3))
    model.rows = torch.arange(6.0).view(2, 3)
    tape, output, live = watch(model, torch.ones(3, 2, 3))
    assert unexplained(output, live) | misaligned(tape.calls) == set()
    edge = tape.calls[0].edge
    unknown = Call(F.linear, Operands(model.rows, None), {"weight": "layer.weight"}, edge, None, 0)
    assert misaligned([*tape.calls, unknown]) == {"layer.weight"}


@pytest.mark.parametrize("rows", [(1, 3), (3,)])
def test_layers_on_what_is_the_same_for_all_are_unexplained_where_no_function_lays_them_over(rows):
    model = Apply(lambda m, x: torch.maximum(m.layer(torch.ones(*rows)), x[:, :2]), layer=nn.Linear(3, 2))
    tape, output, live = watch(model, torch.ones(2, 3))
    assert unexplained(output, live) | misaligned(tape.calls) == set(live)


@pytest.mark.parametrize("kind", [nn.LSTM, nn.GRU, nn.RNN])
def test_a_frozen_recurrent_layer_takes_the_same_steps(kind):
    """Passes must have the same operations whatever is frozen by a support, or each would be another way."""
    model = Apply(lambda m, x: m.cell(x)[0], cell=kind(3, 2))
    x = torch.randn(4, 2, 3)
    traces = []
    for frozen in ((), ("cell.weight_hh_l0", "cell.bias_hh_l0"), tuple(dict(model.named_parameters()))):
        live = {name: p for name, p in model.named_parameters() if name not in frozen}
        proof = Proof([x.transpose(0, 1)], dict(model.named_parameters()))
        with Tape(live, proof) as tape, proof:
            model(x)
        traces.append(proof.trace)
        assert {name for call in tape.calls for name in call.names.values()} == set(live)
    assert traces[0].difference(traces[1]) is None
    assert traces[0].difference(traces[2]) is None


def test_recurrent_weights_that_are_computed_lead_back_to_their_parameters():
    model = Apply(
        lambda m, x: torch.gru(
            x.transpose(0, 1), torch.zeros(1, 2, 3), [m.first, m.second * 2], False, 1, 0.0, True, False, False
        )[0],
        first=nn.Parameter(torch.randn(9, 3)),
        second=nn.Parameter(torch.randn(9, 3)),
    )
    tape, output, live = watch(model, torch.randn(2, 4, 3))
    assert tape.calls == []
    assert unexplained(output, live) == {"first", "second"}


def test_a_changed_input_is_refused_with_the_remedy():
    def forward(m, x):
        x = x.clone()
        hidden = m.body(x)
        x += 1
        return m.head(hidden)

    model = Apply(forward, body=nn.Linear(3, 3), head=nn.Linear(3, 2))
    with pytest.raises(DataError, match=r"body\.weight.*changed in place.*x = x \+ y"):
        clipped_sum(
            model, squared_output, (torch.ones(4, 3), torch.ones(4)), Flat(1.0), runtime=Runtime(engine="ghost")
        )


def test_the_output_does_not_depend_on_being_watched():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(2, 3, 3), nn.GroupNorm(1, 3), nn.ReLU(inplace=True), nn.Flatten(), nn.Linear(12, 2))
    x = torch.randn(2, 2, 4, 4)
    assert torch.equal(watch(model, x)[1], model(x))


def test_what_an_autocast_casts_is_cast_once_and_kept_so():
    """Convolutions, whose rule takes halves: gradients and outputs are those of the autocast itself."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(2, 3, 3), nn.GroupNorm(1, 3), nn.Conv2d(3, 4, 2), nn.Flatten(), nn.Linear(4, 2))
    x = torch.randn(2, 2, 4, 4)
    assert all(call.operands.input.dtype == torch.float32 for call in watch(model, x)[0].calls)
    with torch.autocast("cpu", torch.bfloat16):
        expected = model(x)
        tape, output, _ = watch(model, x)
    convolutions = [call.operands.input for call in tape.calls if call.function is F.conv2d]
    assert [given.dtype for given in convolutions] == [torch.bfloat16] * 2
    assert torch.equal(convolutions[0], x.bfloat16())
    assert torch.equal(output, expected)


@pytest.mark.parametrize("kernel", [3, 4])
@pytest.mark.parametrize("captured", [False, True])
def test_convolutions_that_keep_their_size_under_an_autocast_are_those_of_the_loop(captured, kernel):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # PyTorch, of even kernels: a copy of the input is made
        apart = padded_under_autocast("cpu", torch.bfloat16, kernel, captured=captured)
    assert apart < torch.finfo(torch.bfloat16).eps


def test_a_stand_in_of_other_memory_is_made_anew():
    layer, x = nn.Linear(3, 2, bias=False), torch.ones(4, 3)
    made = {id(layer.weight): layer.weight.detach().clone().requires_grad_()}
    with torch.no_grad():
        layer.weight.mul_(2)
    output = with_stand_ins(F.linear, (x, layer.weight), {}, Operands(x, layer.weight), {"weight": "weight"}, made)
    assert torch.equal(output, layer(x))
    assert unexplained(output, {"weight": layer.weight}) == set()

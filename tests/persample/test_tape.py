"""What is seen of a forward pass: recorded calls, unexplained uses, misaligned rows."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from helpers.oracles import Apply, squared_output
from noisewise.clipping import Flat
from noisewise.errors import DataError
from noisewise.persample import clipped_sum
from noisewise.persample.layers import Operands
from noisewise.persample.proof import Proof
from noisewise.persample.tape import Tape, misaligned, unexplained, with_stand_ins
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


def test_nothing_is_recorded_without_gradients():
    with torch.no_grad():
        tape, _, _ = watch(nn.Linear(3, 2), torch.ones(2, 3))
    assert tape.calls == []


@pytest.mark.parametrize(
    "use",
    [
        lambda m, x: m.layer(x) @ m.layer.weight,
        lambda m, x: x @ m.layer.weight.T,
        lambda m, x: F.linear(x, m.layer.weight.clone()),
        lambda m, x: F.linear(x, m.layer.weight * 2, m.layer.bias),
        lambda m, x: m.layer(x) * m.layer.weight.norm(),
        lambda m, x: torch.addmm(m.layer.bias, x, m.layer.weight),
    ],
    ids=["matmul", "transposed", "clone", "scaled", "norm", "addmm"],
)
def test_uses_that_no_rule_explains_are_found(use):
    _, output, live = watch(Apply(use, layer=nn.Linear(3, 3)), torch.ones(2, 3))
    assert "layer.weight" in unexplained(output, live)


def test_a_parameter_that_is_the_input_of_a_layer_is_unexplained():
    model = Apply(
        lambda m, x: m.layer(m.start).expand(len(x), -1), layer=nn.Linear(3, 2), start=nn.Parameter(torch.ones(1, 3))
    )
    tape, output, live = watch(model, torch.ones(2, 1))
    assert unexplained(output, live) == {"start"}
    assert misaligned(tape.calls) == {"layer.weight", "layer.bias"}


def test_a_parameter_that_is_input_and_weight_of_one_call_is_not_taken_for_a_layer():
    model = Apply(lambda m, x: F.linear(m.table, m.table).sum(0) + x, table=nn.Parameter(torch.ones(4, 4)))
    tape, output, live = watch(model, torch.ones(2, 4))
    assert unexplained(output, live) | misaligned(tape.calls) == {"table"}


@pytest.mark.parametrize(
    "use",
    [
        lambda m, x: m.layer(x.transpose(0, 1)),
        lambda m, x: m.layer(x.flatten(0, 1)),
        lambda m, x: m.layer(torch.ones(1, 3)) + x[:, 0, :1],
        lambda m, x: m.layer(torch.ones(3)) + x[:, 0, :1],
    ],
    ids=["time first", "flattened", "one row for all", "no rows"],
)
def test_rows_that_are_not_units_are_misaligned(use):
    tape, _, _ = watch(Apply(use, layer=nn.Linear(3, 2)), torch.ones(2, 4, 3))
    assert misaligned(tape.calls) == {"layer.weight", "layer.bias"}


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


def test_a_stand_in_of_other_memory_is_made_anew():
    layer, x = nn.Linear(3, 2, bias=False), torch.ones(4, 3)
    made = {id(layer.weight): layer.weight.detach().clone().requires_grad_()}
    with torch.no_grad():
        layer.weight.mul_(2)
    output = with_stand_ins(F.linear, (x, layer.weight), {}, Operands(x, layer.weight), {"weight": "weight"}, made)
    assert torch.equal(output, layer(x))
    assert unexplained(output, {"weight": layer.weight}) == set()

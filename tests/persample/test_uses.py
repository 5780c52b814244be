"""Uses of parameters: one backward pass for all, in which norms are measured as it goes through them."""

import weakref

import pytest
import torch
from torch import nn

from helpers.oracles import Setup, clipped_sum_by_hand, cross_entropy, relative_error, unit_gradients
from noisewise.clipping import Flat
from noisewise.persample import clipped_sum, examine, uses
from noisewise.runtime import Runtime


class Net(nn.Module):
    """Two convolutions with a norm behind each, a norm of a sum, and one whose output nobody needs."""

    def __init__(self, norm):
        super().__init__()
        self.first, self.second, self.head = nn.Conv2d(2, 4, 3), nn.Conv2d(4, 4, 3), nn.Linear(16, 3)
        self.norms = nn.ModuleList(norm() for _ in range(4))

    def forward(self, x):
        one = self.norms[0](self.first(x)).relu_()
        two = self.norms[1](self.second(one)).relu()
        self.norms[3](two)
        return self.head(self.norms[2](two + one[:, :, 1:-1, 1:-1]).flatten(1))


def problem(norm=lambda: nn.GroupNorm(2, 4)):
    torch.manual_seed(0)
    return Setup(Net(norm).double(), cross_entropy, (torch.randn(5, 2, 6, 6).double(), torch.tensor([0, 1, 2, 1, 0])))


@pytest.mark.parametrize(
    "norm",
    [
        lambda: nn.GroupNorm(2, 4),
        lambda: nn.BatchNorm2d(4).eval(),
        lambda: nn.GroupNorm(2, 4, affine=False),
    ],
)
def test_norms_that_are_measured_on_the_way_equal_the_loop(norm):
    setup = problem(norm)
    expected = clipped_sum_by_hand(unit_gradients(setup), Flat(0.1), {})[0]
    sums = clipped_sum(*setup, Flat(0.1), runtime=Runtime(engine="ghost")).grads._values
    assert relative_error(sums, expected) < 1e-12


def test_only_norms_that_the_pass_must_go_through_are_not_asked_for(monkeypatch):
    setup, asked, gradients = problem(), [], uses.output_gradients
    layout = examine(*setup)

    def watched(losses, calls, weights):
        asked.extend(sorted(name for call in calls for name in call.names.values() if name.endswith("weight")))
        return gradients(losses, calls, weights)

    monkeypatch.setattr(uses, "output_gradients", watched)
    clipped_sum(*setup, Flat(0.1), layout=layout)
    assert asked == ["first.weight", "head.weight", "norms.2.weight", "norms.3.weight", "second.weight"]


def test_inputs_of_norms_are_gone_when_the_backward_pass_is_through(monkeypatch):
    """The output of the second convolution is: when the first norm's turn comes, nobody has it."""
    setup, form, inputs, alive = problem(), uses.Early._form, {}, []
    layout = examine(*setup)

    def watched(self, k, *given):
        inputs.update({j: weakref.ref(call.operands.input) for j, call in self.waiting.items() if j not in inputs})
        alive.append([j for j, one in inputs.items() if one() is not None])
        return form(self, k, *given)

    monkeypatch.setattr(uses.Early, "_form", watched)
    clipped_sum(*setup, Flat(0.1), layout=layout)
    first, second = sorted(inputs)
    assert alive == [[first, second], [first]]


class Dead(nn.Module):
    """A norm of a convolution that nobody needs."""

    def __init__(self):
        super().__init__()
        self.body, self.conv, self.norm = nn.Linear(4, 3), nn.Conv1d(1, 4, 1), nn.GroupNorm(2, 4)

    def forward(self, x):
        self.norm(self.conv(x.unsqueeze(1)))
        return self.body(x)


def test_a_norm_that_plays_no_part_waits_for_nothing():
    """It has no gradient, and what it was given is not kept: another pass would be refused."""
    torch.manual_seed(0)
    setup = Setup(Dead(), cross_entropy, (torch.randn(5, 4), torch.tensor([0, 1, 2, 1, 0])))
    for _ in range(2):
        sums = clipped_sum(*setup, Flat(0.1)).grads._values
    assert not sums["norm.weight"].any()
    assert sums["body.weight"].any()

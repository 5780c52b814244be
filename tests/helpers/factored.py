"""Gradients in factored form, and the check against gradients formed by hand."""

import pytest
import torch
import torch.nn.functional as F

from noisewise.persample.gradients import Outer
from noisewise.persample.layers import RULES


def random(*shape, dtype=torch.float64, seed=0):
    return torch.randn(shape, dtype=dtype, generator=torch.Generator().manual_seed(seed))


def check(gradient, formed, mask=None, tolerance=1e-11):
    """measure, weighted_sum, formed and where say the same as the formed gradients `[units, *parameter]`."""
    units, shape = formed.shape[0], formed.shape[1:]
    assert torch.allclose(gradient.formed().reshape(formed.shape), formed, rtol=tolerance, atol=tolerance)
    expected = formed if mask is None else formed * mask
    squares, rest = gradient.measure(mask)
    assert squares.dtype == torch.float64
    assert torch.allclose(squares, expected.double().flatten(1).square().sum(1), rtol=tolerance, atol=tolerance)
    factors = torch.linspace(0.1, 1.0, units, dtype=torch.float64)
    total = torch.tensordot(factors.to(formed.dtype), expected, 1)
    close = {"rtol": tolerance, "atol": tolerance * float(total.abs().max())}
    assert torch.allclose(rest.weighted_sum(factors).reshape(shape), total, **close)
    keep = torch.arange(units) % 3 != 0
    rest_of = torch.tensordot((factors * keep).to(formed.dtype), expected, 1)
    assert torch.allclose(rest.where(keep).weighted_sum(factors).reshape(shape), rest_of, **close)
    return rest


def outer(units, time, rows, columns, dtype=torch.float64):
    left, right = random(units, time, rows, dtype=dtype), random(units, time, columns, dtype=dtype, seed=1)
    return Outer(left, right), torch.einsum("itr,itc->irc", left, right)


def convolution(units, channels, out, size, kernel, dtype=torch.float64, **settings):
    """A convolution as its rule makes it, and its weight's gradients by autograd of one unit at a time."""
    inputs = random(units, channels, *size, dtype=dtype)
    weight = random(out, channels // settings.get("groups", 1), *kernel, dtype=dtype, seed=1).requires_grad_()
    grad = random(*F.conv2d(inputs, weight, **settings).shape, dtype=dtype, seed=2)
    formed = torch.stack(
        [
            torch.autograd.grad(F.conv2d(x[None], weight, **settings), weight, g[None])[0]
            for x, g in zip(inputs, grad, strict=True)
        ]
    )
    rule = RULES[F.conv2d]
    return rule.gradients(rule.operands(inputs, weight.detach(), **settings), grad)["weight"](), formed


def mask_for(formed):
    return torch.rand(formed.shape[1:], generator=torch.Generator().manual_seed(4)) < 0.6


MASKED = pytest.mark.parametrize("masked", [False, True], ids=["all", "masked"])

CONVOLUTIONS = {
    "few-channels": (2, 3, (5, 6), (3, 3), {"padding": 1}),
    "1x1": (8, 9, (4, 3), (1, 1), {}),
    "shifted-gram": (8, 8, (3, 3), (3, 3), {"padding": 1}),
    "shifted-gram-no-padding": (12, 10, (5, 4), (3, 2), {}),
    "shifted-formed": (8, 8, (13, 12), (3, 3), {"padding": 1}),
    "shifted-formed-dilated": (9, 8, (16, 17), (2, 3), {"dilation": (3, 2), "padding": (2, 1)}),
    "shifted-same": (8, 8, (6, 5), (4, 2), {"padding": "same"}),
    "one-output": (8, 4, (3, 4), (3, 4), {}),
    "stride-gram": (8, 8, (5, 5), (3, 3), {"stride": 2, "padding": 1}),
    "stride-formed": (8, 3, (21, 20), (2, 2), {"stride": 2}),
    "stride-leaves-rest": (3, 2, (8, 9), (2, 3), {"stride": (3, 4)}),
    "stride-over-gaps": (2, 3, (9, 9), (2, 2), {"stride": 3, "dilation": 2, "padding": (1, 0)}),
    "groups": (6, 4, (5, 4), (3, 3), {"groups": 2, "padding": 1}),
    "wide-groups": (32, 32, (3, 3), (3, 3), {"groups": 2, "padding": 1}),
    "depthwise": (6, 12, (5, 4), (3, 3), {"groups": 6}),
    "depthwise-stride": (8, 8, (7, 6), (3, 2), {"groups": 8, "stride": (2, 1), "padding": (1, 0)}),
}

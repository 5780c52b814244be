"""Per-unit gradients in float64."""

from __future__ import annotations

import math

from noisewise.persample.convolution import Convolution
from noisewise.persample.gradients import Formed, Outer, Rows


def in_float64(gradient):
    """The same factors as they are, so that the gradient can be formed exactly."""
    match gradient:
        case Outer():
            return Outer(gradient.left.double(), gradient.right.double())
        case Convolution():
            settings = (gradient.kernel, gradient.stride, gradient.padding, gradient.dilation, gradient.groups)
            return Convolution(gradient.input.double(), gradient.grad.double(), *settings)
        case Rows():
            return Rows(gradient.index, gradient.rows.double(), gradient.size)
    return Formed(gradient.grads.double())


def length(tensor):
    """Norm in float64, safe from under- and overflow."""
    largest = float(tensor.double().abs().max())
    return largest * float((tensor.double() / largest).norm()) if 0 < largest < math.inf else largest

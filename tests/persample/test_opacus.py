"""Ghost against the hooks of Opacus, on models where both are right."""

import pytest
import torch
from torch import nn

from helpers.oracles import cross_entropy, relative_error
from noisewise.clipping import Flat
from noisewise.persample import clipped_sum
from noisewise.runtime import Runtime

opacus = pytest.importorskip("opacus")

# Opacus puts full backward hooks on the first layer, whose input needs no gradient; torch warns about that.
pytestmark = pytest.mark.filterwarnings("ignore:Full backward hook is firing when gradients are computed:UserWarning")


def cnn():
    return nn.Sequential(
        nn.Conv2d(3, 8, 3, padding=1),
        nn.GroupNorm(2, 8),
        nn.Tanh(),
        nn.Conv2d(8, 8, 3, stride=2),
        nn.Tanh(),
        nn.Flatten(),
        nn.Linear(72, 4),
    ), torch.randn(5, 3, 8, 8)


def mlp():
    return nn.Sequential(nn.Linear(10, 12), nn.Tanh(), nn.LayerNorm(12), nn.Linear(12, 4)), torch.randn(5, 10)


def words():
    return nn.Sequential(nn.Embedding(9, 6), nn.Linear(6, 6), nn.Tanh(), nn.Flatten(), nn.Linear(30, 4)), torch.randint(
        0, 9, (5, 5)
    )


def opacus_gradients(model, x, y):
    """`grad_sample` of each parameter, `[units, *parameter]`."""
    from opacus.grad_sample import GradSampleModule

    wrapped = GradSampleModule(model, loss_reduction="sum")
    cross_entropy(wrapped, (x, y)).sum().backward()
    grads = {name: p.grad_sample.detach().clone() for name, p in model.named_parameters()}
    wrapped.to_standard_module()
    return grads


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
@pytest.mark.parametrize("build", [cnn, mlp, words])
def test_norms_and_clipped_sums_agree(build, dtype):
    torch.manual_seed(0)
    model, x = build()
    model = model.to(dtype)
    x, y = x.to(dtype) if x.is_floating_point() else x, torch.tensor([0, 1, 2, 3, 0])
    tolerance = 1e-9 if dtype == torch.float64 else 1e-4
    bound = 1.0
    ours = clipped_sum(model, cross_entropy, (x, y), Flat(bound), runtime=Runtime(engine="ghost"))
    theirs = opacus_gradients(model, x, y)
    norms = torch.cat([grad.flatten(1) for grad in theirs.values()], 1).norm(dim=1)
    factors = (bound / norms).clamp(max=1)
    sums = {name: torch.tensordot(factors, grad, 1) for name, grad in theirs.items()}
    assert torch.allclose(ours.norms[0], norms.double(), rtol=tolerance)
    assert (norms > bound).any()
    assert relative_error(ours.grads._values, sums) < tolerance

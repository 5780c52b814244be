"""Networks of the theory, with what is known about them in closed form."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from noisewise.errors import ConfigError
from noisewise.models.shapes import positive, refuse, vector

PATCHES = 2


class TwoLayerCNN(nn.Module):
    """`F_k(x) = (1/m) sum_r [relu(<w_kr, x1>) + relu(<w_kr, x2>)]` for two patches; only w learns.

    `filters.weight` holds w, `[outputs * m, d]`: output k owns rows k m to (k + 1) m.
    """

    def __init__(self, d: int, outputs: int, filters: int):
        super().__init__()
        self.outputs = outputs
        self.filters = nn.Linear(d, outputs * filters, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """Outputs `[n, outputs]` of inputs `[n, 2, d]`."""
        return torch.relu(self.filters(x)).sum(1).unflatten(1, (self.outputs, -1)).mean(2)


def two_layer_cnn(
    shape: tuple[int, ...], outputs: int, *, filters: int = 10, start: float | None = None
) -> TwoLayerCNN:
    """The two-layer ReLU network on two patches, second layer fixed to 1/m: `filters` (m) for each class.

    `start` is the standard deviation of a normal initialisation N(0, start^2), as in the theory; without it PyTorch's
    default, uniform within 1/sqrt(d), as in the synthetic experiments.

    Reference: Xu, Chen 2026, arXiv:2603.04881 (synthetic experiments). Deviation: the fixed second layer is taken as 1/m.
    """
    if len(shape) != 2 or shape[0] != PATCHES:
        raise refuse("two-layer-cnn", shape, f"two patches [{PATCHES}, d]")
    positive("two-layer-cnn", filters=filters)
    model = TwoLayerCNN(shape[1], outputs, filters)
    if start is not None:
        if not (math.isfinite(start) and start > 0):
            raise ConfigError(f"model 'two-layer-cnn': start={start!r} must be a finite standard deviation > 0.")
        nn.init.normal_(model.filters.weight, std=start)
    return model


@torch.no_grad()
def gradient_norms(model: TwoLayerCNN, x: Tensor, y: Tensor) -> Tensor:
    """Norms `[n]` of the gradients of cross entropy by w, one for each unit, without forming a gradient.

    `||g||^2 = sum_k ((p_k - 1[y=k]) / m)^2 sum_r (a1 |x1|^2 + a2 |x2|^2 + 2 a1 a2 <x1, x2>)`, with a1, a2 the
    activation bits of filter (k, r) on the two patches and p the softmax of the outputs.

    Reference: differentiate `TwoLayerCNN`; relu'(0) = 0.
    """
    active = (model.filters(x) > 0).to(x.dtype).unflatten(2, (model.outputs, -1))  # [n, 2, outputs, m]
    residual = torch.softmax(model(x), 1) - nn.functional.one_hot(y, model.outputs)
    counts = active.sum(3)  # [n, 2, outputs]
    both = active.prod(1).sum(2)
    lengths = x.square().sum(2)  # [n, 2]
    inner = (x[:, 0] * x[:, 1]).sum(1)
    squares = (counts * lengths.unsqueeze(2)).sum(1) + 2 * both * inner.unsqueeze(1)  # [n, outputs]
    return ((residual / active.shape[3]).square() * squares).sum(1).sqrt()


def two_layer_linear(
    shape: tuple[int, ...], outputs: int, *, hidden: int = 50, balanced: bool = False
) -> nn.Sequential:
    """The linear network `W2 W1 x` without biases, `hidden` units wide; `0.weight` is W1, `1.weight` is W2.

    `balanced` starts from `W2^T W2 = W1 W1^T`, which gradient flow keeps: with the default's product `W2 W1 = U S V^T`
    and random orthonormal columns Q, `W1 = Q sqrt(S) V^T` and `W2 = U sqrt(S) Q^T`, the same function.

    Reference: Watson et al. 2023, arXiv:2311.06839 (Theorem 3.3 and its experiment: one output, squared error).
    """
    d = vector("two-layer-linear", shape)
    positive("two-layer-linear", hidden=hidden)
    first, second = nn.Linear(d, hidden, bias=False), nn.Linear(hidden, outputs, bias=False)
    if balanced:
        rank = min(d, hidden, outputs)
        with torch.no_grad():
            left, sizes, right = torch.linalg.svd(second.weight @ first.weight, full_matrices=False)
            root = sizes[:rank].sqrt()
            columns = torch.linalg.qr(torch.randn(hidden, rank))[0]
            first.weight.copy_((columns * root) @ right[:rank])
            second.weight.copy_((left[:, :rank] * root) @ columns.T)
    return nn.Sequential(first, second)


def linear_minimum(signal: Tensor, deviation: float, noise: int, direction: Tensor) -> tuple[Tensor, Tensor]:
    """W1 `[h, ds + noise]` and W2 `[1, h]` of the balanced minimum of `E (W2 W1 x - y)^2` for signal and noise inputs.

    x = (x_s, x_n), y uniform in {-1, 1}, x_s ~ N(y v, s^2 I), x_n ~ N(0, s^2 I) of dimension `noise`; v is `signal`, s
    `deviation`, and `direction [h]` (made a unit vector alpha) is the one freedom left:
    `W1 = (|v| (|v|^2 + s^2))^(-1/2) alpha [v^T, 0]`, `W2 = (|v| / (|v|^2 + s^2))^(1/2) alpha^T`.
    The columns that face noise are zero, so pruning by magnitude removes them first.

    Reference: Watson et al. 2023, arXiv:2311.06839, Theorem 3.3. Deviation: a line printed in its proof has a factor |v|
    too many; the factors above do not.
    """
    size, total = float(signal.norm()), float(signal.square().sum()) + deviation**2
    length = float(direction.norm())
    if signal.dim() != 1 or direction.dim() != 1 or not (size > 0 and length > 0):
        raise ConfigError("linear_minimum: signal and direction must be vectors, not zero.")
    if not (math.isfinite(deviation) and deviation >= 0) or noise < 0:
        raise ConfigError(f"linear_minimum: deviation={deviation!r} and noise={noise!r} must be at least 0.")
    alpha = direction / length
    facing = torch.cat([signal, signal.new_zeros(noise)])
    return torch.outer(alpha, facing) / math.sqrt(size * total), math.sqrt(size / total) * alpha.unsqueeze(0)

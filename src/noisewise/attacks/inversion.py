"""Reconstruction of a record from its gradient: by search for an input that explains it, and by least squares.

What an adversary sees: the gradient as it is, or as training releases it, of one record, all others being known.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from noisewise.accounting import Ledger
from noisewise.errors import ConfigError
from noisewise.estimates import intervals
from noisewise.estimates.estimate import LEVEL, Estimate
from noisewise.evaluation import evaluating
from noisewise.randomness import Entropy

if TYPE_CHECKING:
    from torch import Tensor, nn

    from noisewise.batches import Nest
    from noisewise.data import Data
    from noisewise.losses import LossFn
    from noisewise.mechanism import Mechanism
    from noisewise.support import Support


# Theorem 5.1 -----------------------------------------------------------------------------------------------------------


def least_squares(gradient: np.ndarray, k: np.ndarray, mask: np.ndarray) -> np.ndarray:
    """The x that explains gradients `k x + noise` best on the kept coordinates: `<m k, g> / |m k|^2`, along the last axis.

    Reference: Zhu et al. 2023 (random sparsification), Theorem 5.1. Deviation: none.
    """
    kept = mask * k
    return (kept * gradient).sum(-1) / np.square(kept).sum(-1)


def least_squares_error(
    k: np.ndarray, sigma: float, sparsity: float, draws: int, generator: np.random.Generator, level: float = LEVEL
) -> Estimate:
    """Mean squared error of `least_squares` over noise and masks, by simulation. Masks without any weight are left out."""
    masks = _masks(len(k), sparsity, draws, generator)
    masks = masks[np.square(masks * k).sum(1) > 0]
    x = generator.standard_normal(len(masks))
    gradients = masks * (k * x[:, None] + sigma * generator.standard_normal(masks.shape))
    return intervals.mean(np.square(least_squares(gradients, k, masks) - x), level, floor=0.0)


def expected_error(k: np.ndarray, sigma: float, sparsity: float) -> float:
    """`sigma^2 E[1 / |m k|^2]` over all masks with `int(r P)` zeros, one by one. Masks without any weight are left out."""
    kept = len(k) - zeros(len(k), sparsity)
    if math.comb(len(k), kept) > 1_000_000:
        raise ConfigError(f"{math.comb(len(k), kept):,} masks of {len(k)} coordinates: too many to go through.")
    squares = (sum(chosen) for chosen in itertools.combinations(np.square(k).tolist(), kept))
    return sigma**2 * float(np.mean([1 / square for square in squares if square > 0]))


def error_bound(k: np.ndarray, sigma: float, sparsity: float) -> float:
    """`sigma^2 / ((1 - r) |k|^2)`: no mask of that sparsity can do better on average (Jensen)."""
    share = 1 - zeros(len(k), sparsity) / len(k)
    return sigma**2 / (share * float(np.square(k).sum()))


def zeros(coordinates: int, sparsity: float) -> int:
    """How many coordinates a mask of this sparsity leaves out."""
    if not 0 <= sparsity < 1:
        raise ConfigError(f"sparsity={sparsity!r}: a share of coordinates in [0, 1) that is left out.")
    return int(sparsity * coordinates)


def _masks(coordinates: int, sparsity: float, count: int, generator: np.random.Generator) -> np.ndarray:
    ranks = generator.random((count, coordinates)).argsort(1)
    return (ranks >= zeros(coordinates, sparsity)).astype(float)


# Inversion -------------------------------------------------------------------------------------------------------------


class Observation(NamedTuple):
    """Gradients of several records in one row each, `[records, weights]`, and which coordinates are known."""

    gradients: Tensor
    known: Tensor


class Attack(NamedTuple):
    """How hard the adversary tries: steps of Adam (`signed`: by the sign of the gradient), weight of total variation."""

    steps: int = 1000
    rate: float = 0.1
    variation: float = 1e-4
    signed: bool = True


def invert(
    model: nn.Module,
    seen: Observation,
    labels: Tensor,
    like: Tensor,
    *,
    loss_fn: LossFn,
    attack: Attack,
    start: Tensor,
    advance: Callable[[], Any] = lambda: None,
) -> Tensor:
    """Inputs whose gradients point where the observed ones do: `min_x 1 - cos(grad(x), observed) + lambda TV(x)`.

    Adam with step 0.1, a tenth of it from 3/8, 5/8 and 7/8 of the run on; x stays within the range of `like [n, ...]`, whose
    mean and spread scale it (`start` too: standard normal). Labels are known. Coordinates left out are not compared.
    Reference: Geiping et al. 2020, arXiv:2003.14053. Deviation: one start; the last x, not the best of several.
    """
    import torch

    weights = {name: p.detach() for name, p in model.named_parameters() if p.requires_grad}
    mean, spread = float(like.mean()), max(float(like.std()), 1e-6)
    low, high = ((float(end) - mean) / spread for end in (like.min(), like.max()))
    device = next(iter(weights.values())).device
    x = start.to(device, like.dtype, copy=True).requires_grad_()
    optimizer = torch.optim.Adam([x], lr=attack.rate)
    decays = [attack.steps * part // 8 for part in (3, 5, 7)]
    scheduler = torch.optim.lr_scheduler.MultiStepLR(optimizer, decays, 0.1)

    def mismatch(one: Tensor, label: Tensor, gradient: Tensor, known: Tensor) -> Tensor:
        def loss(values: dict[str, Tensor]) -> Tensor:
            def called(inputs: Tensor) -> Tensor:
                return torch.func.functional_call(model, values, (inputs,))

            return loss_fn(called, (one.unsqueeze(0) * spread + mean, label.unsqueeze(0))).sum()

        grads = torch.func.grad(loss)(weights)
        guessed = torch.cat([grads[name].flatten() for name in weights]) * known
        length = guessed.norm() * gradient.norm()
        return 1 - (guessed * gradient).sum() / (length + torch.finfo(guessed.dtype).tiny)

    given = labels.to(device), (seen.gradients * seen.known).to(device), seen.known.to(device)
    with evaluating(model):
        each = _each(mismatch, x, *given)
        for _ in range(attack.steps):
            optimizer.zero_grad()
            cost = each(x, *given).sum() + attack.variation * _total_variation(x)
            (x.grad,) = torch.autograd.grad(cost, [x])
            if attack.signed:
                x.grad.sign_()
            optimizer.step()
            scheduler.step()
            with torch.no_grad():
                x.clamp_(low, high)
            advance()
    return (x.detach() * spread + mean).cpu()


def _each(function: Callable[..., Tensor], x: Tensor, *given: Tensor) -> Callable[..., Tensor]:
    """`function` of every row: vectorised if that gives the same, else one by one, which any model allows."""
    import torch

    def one_by_one(*rows: Tensor) -> Tensor:
        return torch.stack([function(*row) for row in zip(*rows, strict=True)])

    vectorised: Callable[..., Tensor] = torch.func.vmap(function)
    try:
        same = torch.allclose(vectorised(x, *given), one_by_one(x, *given), atol=1e-4)
    except RuntimeError:  # an operation that torch cannot vectorise
        same = False
    return vectorised if same else one_by_one


def _total_variation(x: Tensor) -> Tensor:
    """Mean difference of neighbouring pixels of images `[n, channels, height, width]`, added up; 0 for other inputs."""
    if x.dim() != 4:
        return x.new_zeros(())
    across, down = (x.diff(dim=axis).abs().flatten(1) for axis in (3, 2))
    return sum((d.mean(1).sum() for d in (across, down) if d.shape[1]), x.new_zeros(()))


# What is seen ---------------------------------------------------------------------------------------------------------


def observe(
    model: nn.Module,
    chosen: Data,
    mechanism: Mechanism,
    sparsity: float,
    loss_fn: LossFn,
    rng: np.random.Generator,
) -> dict[str, Observation]:
    """Each record's gradient as it is (`plain`) and as the engine releases it (`clipped`, `noisy`, `sparse`)."""
    import torch

    from noisewise.bounded import release
    from noisewise.persample import clipped_sum, examine

    learning = {name: p for name, p in model.named_parameters() if p.requires_grad}
    device = next(iter(learning.values())).device
    records = list(zip(chosen.x.to(device).split(1), chosen.y.to(device).split(1), strict=True))
    layout = examine(model, loss_fn, records[0])
    clip, sigma, sampler = mechanism.clip_at(0), mechanism.noise_at(0), mechanism.sampler

    def plain(record: Nest) -> Tensor:
        loss = loss_fn(model, record).sum()
        grads = torch.autograd.grad(loss, list(learning.values()), materialize_grads=True)
        return torch.cat([grad.flatten() for grad in grads])

    def released(record: Nest, multiplier: float, support: Support) -> Tensor:
        clipped = clipped_sum(model, loss_fn, record, clip, support, layout=layout).grads
        entropy, ledger = Entropy.insecure(int(rng.integers(2**62))), Ledger(mechanism.adjacency)
        parts = {"gradient": (clipped, multiplier)}
        return _flat(release(parts, sampler=sampler, ledger=ledger, entropy=entropy, step=0)["gradient"], learning)

    supports = [_random_support(learning, sparsity, rng) for _ in records]
    rows = {
        "plain": [plain(record) for record in records],
        "clipped": [released(record, 0.0, {}) for record in records],
        "noisy": [released(record, sigma, {}) for record in records],
        "sparse": [released(record, sigma, support) for record, support in zip(records, supports, strict=True)],
    }
    gradients = {name: torch.stack(each).detach() for name, each in rows.items()}
    known = {name: torch.ones_like(each) for name, each in gradients.items()}
    known["sparse"] = torch.stack([_flat(support, learning) for support in supports]).to(gradients["sparse"])
    return {name: Observation(gradients[name], known[name]) for name in rows}


def _flat(tensors: Mapping[str, Any], names: Mapping[str, Any]) -> Tensor:
    import torch

    return torch.cat([tensors[name].flatten() for name in names])


def _random_support(learning: Mapping[str, Tensor], sparsity: float, rng: np.random.Generator) -> dict[str, Tensor]:
    """A mask over all coordinates jointly with exactly `int(r P)` zeros."""
    import torch

    sizes = [parameter.numel() for parameter in learning.values()]
    mask = np.ones(sum(sizes), bool)
    mask[rng.permutation(len(mask))[: zeros(len(mask), sparsity)]] = False
    device = next(iter(learning.values())).device
    parts = torch.from_numpy(mask).to(device).split(sizes)
    return {name: part.view_as(learning[name]) for name, part in zip(learning, parts, strict=True)}

"""Runs on the two-patch data: one training, and what it did to each group."""

from __future__ import annotations

from typing import Any

import torch

import noisewise as nw
from noisewise.attacks.pgd import Space, pgd
from noisewise.clipping import Flat
from noisewise.data import Data
from noisewise.data.synthetic import rotated_features, two_patch_distribution
from noisewise.evaluation import outputs
from noisewise.losses import cross_entropy
from noisewise.models import build
from noisewise.models.theory import TwoLayerCNN, gradient_norms
from noisewise.reproduce.tables import noise_for

BOX = 1000.0  # inputs are not bounded: a box that no change reaches


def train_two_patch(
    *,
    seed: int,
    device: str,
    d: int = 200,
    n: int = 1000,
    test: int = 1000,
    norms: tuple[float, ...] = (5.0, 3.0, 4.0, 2.0),
    proportions: tuple[float, ...] = (0.4, 0.1, 0.4, 0.1),
    sigma_xi: float = 0.1,
    filters: int = 10,
    start: float | None = None,
    bound: float = 1.0,
    batch: int = 128,
    steps: int = 400,
    lr: float = 0.5,
    sigma_n: float = 0.0,
    plain: bool = False,
    radius: dict[str, float] | None = None,
    attacked: int = 400,
) -> dict[str, Any]:
    """Train the two-layer network on four features, with noise of deviation `sigma_n` on the mean gradient.

    plain: neither clipped nor noised. radius: of the attack, by norm; `attacked` test points are attacked.
    """
    source = two_patch_distribution(seed, d=d, norms=_four(norms), proportions=_four(proportions), sigma_xi=sigma_xi)
    data = source.splits(seed, 0, n=n, test=test)
    model = build("two-layer-cnn", (2, d), 2, seed, filters=filters, start=start).to(device)
    factors = _train(model, data.train, sigma_n, plain, bound, batch, steps, lr, seed, device)
    return _seen(model, data.train, data.test, radius or {}, attacked, seed) | {"factors": factors}


def train_one_feature(
    *,
    seed: int,
    device: str,
    d: int = 100,
    n: int = 600,
    test: int = 1000,
    norm: float = 2.0,
    sigma_xi: float = 0.1,
    filters: int = 10,
    start: float | None = None,
    bound: float = 1.0,
    batch: int = 128,
    steps: int = 400,
    lr: float = 0.5,
    sigma_n: float = 0.0,
    epsilon: float | None = None,
    delta: float = 1e-4,
    plain: bool = False,
    radius: dict[str, float] | None = None,
    radii: dict[str, list[float]] | None = None,
    attacked: int = 400,
    degrees: float = 0.0,
    pretraining: int = 0,
    pretraining_rows: int = 2000,
) -> dict[str, Any]:
    """The same with one feature for each class; after `pretraining` open steps on other rows, whose features are not turned.

    epsilon: noise is calibrated for it, in place of `sigma_n`. radii: several of one norm, numbered `l2 0`, `l2 1`, ...
    """
    before, source = rotated_features(degrees, seed, d=d, norm=norm, sigma_xi=sigma_xi)
    data = source.splits(seed, 0, n=n, test=test)
    model = build("two-layer-cnn", (2, d), 2, seed, filters=filters, start=start).to(device)
    if pretraining:
        public = before.splits(seed + 500_000, 0, n=pretraining_rows, test=1).train
        _train(model, public, 0.0, True, bound, batch, pretraining, lr, seed, device)
        model = _fresh(model, device)
    if epsilon is not None:
        sigma_n = noise_for(n, min(batch, n), steps, epsilon, delta) * bound / min(batch, n)
    _train(model, data.train, sigma_n, plain, bound, batch, steps, lr, seed, device)
    seen = _seen(model, data.train, data.test, radius or {}, attacked, seed, radii or {})
    return seen | {"sigma_n": sigma_n, "noise_multiplier": sigma_n * min(batch, n) / bound}


def _four(values: tuple[float, ...]) -> tuple[float, float, float, float]:
    first, second, third, fourth = values
    return first, second, third, fourth


def _fresh(model: TwoLayerCNN | torch.nn.Module, device: str) -> torch.nn.Module:
    """A model of its own with the same weights: those came from public rows, so no ledger goes with them."""
    weights = {name: value.detach().clone() for name, value in model.state_dict().items()}
    d, total = weights["filters.weight"].shape[1], weights["filters.weight"].shape[0]
    copy = build("two-layer-cnn", (2, d), 2, 0, filters=total // 2).to(device)
    copy.load_state_dict(weights)
    return copy


def _train(model: torch.nn.Module, data: Data, sigma_n: float, plain: bool, bound: float, batch: int, steps: int,
           lr: float, seed: int, device: str) -> list[float]:  # fmt: skip
    """Train; the mean clipping factor of each group at the start, where gradients are longest."""
    size = min(batch, len(data))
    plan = nw.Mechanism(
        sampler=nw.Poisson(len(data), size), clip=Flat(bound), steps=steps, noise_multiplier=sigma_n * size / bound
    )
    assert isinstance(model, TwoLayerCNN)
    x, y, group = data.x.to(device), data.y.to(device), data.groups["feature"]
    factors = (bound / gradient_norms(model, x, y)).clamp(max=1.0).cpu()
    here = Data(x, y, classes=data.classes, public=True)
    nw.train(
        model, here, cross_entropy, plan, torch.optim.SGD(model.parameters(), lr=lr),
        ablation="plain" if plain else "private" if sigma_n > 0 else "clip-only",
        seed=seed, insecure_seed=seed, delta=1e-5, progress=False,
    )  # fmt: skip
    return [float(factors[group == g].mean()) for g in range(int(group.max()) + 1)]


def _seen(
    model: torch.nn.Module,
    train: Data,
    test: Data,
    radius: dict[str, float],
    attacked: int,
    seed: int,
    radii: dict[str, list[float]] | None = None,
) -> dict[str, Any]:
    """Loss and accuracy of all and of each group, clean and attacked; lengths of the filters."""
    assert isinstance(model, TwoLayerCNN)
    model = model.cpu()
    group = test.groups["feature"]
    logits = outputs(model, test.x)
    loss = torch.nn.functional.cross_entropy(logits, test.y, reduction="none")
    right = (logits.argmax(1) == test.y).double()
    fitted = torch.nn.functional.cross_entropy(outputs(model, train.x), train.y)
    seen: dict[str, Any] = {
        "loss": float(loss.mean()),
        "accuracy": float(right.mean()),
        "train_loss": float(fitted),
        "norm": float(model.filters.weight.detach().norm(dim=1).mean()),
        "least_residual": float((1 - torch.softmax(logits, 1)[torch.arange(len(test)), test.y]).min()),
        "groups": _by_group(group, loss=loss, accuracy=right),
    }
    rows = torch.arange(min(attacked, len(test)))
    attacks = [(norm, norm, size) for norm, size in radius.items()]
    attacks += [(f"{norm} {k}", norm, size) for norm, sizes in (radii or {}).items() for k, size in enumerate(sizes)]
    for name, norm, size in attacks:
        space = Space.of(test.x, (-BOX, BOX), 1.0)
        worst = pgd(model, test.x[rows], test.y[rows], size, norm, space, torch.Generator().manual_seed(seed))
        seen[name] = {"loss": float(worst.loss.mean()), "accuracy": float(worst.right.double().mean())}
        seen[name]["groups"] = _by_group(group[rows], loss=worst.loss, accuracy=worst.right.double())
    return seen


def _by_group(group: torch.Tensor, **values: torch.Tensor) -> list[dict[str, float]]:
    count = int(group.max()) + 1
    return [{name: float(value[group == g].double().mean()) for name, value in values.items()} for g in range(count)]

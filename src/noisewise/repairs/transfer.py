"""Transfer (DP-TL): a linear layer is learnt privately on the features of a network that others trained on public data.

The papers take ResNeXt-29 (trained on CIFAR-100) or SimCLR v2 (ImageNet); neither's weights come with this library: give the
network and the file of its weights. Reference: Tramer, Boneh 2021, arXiv:2011.11660; Zhu, Blaschko 2023, arXiv:2112.00845.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import torch
from torch import Tensor, nn

from noisewise.clipping import Flat
from noisewise.data import Data, Splits
from noisewise.errors import ConfigError, PrivacyError, RunError
from noisewise.losses import cross_entropy
from noisewise.mechanism import Mechanism
from noisewise.models import build
from noisewise.progress import tracked
from noisewise.recipe import Recipe
from noisewise.runs.tensors import read_weights
from noisewise.sampling import Poisson, steps_for

SEPARATE = 1e-4  # by how much features may change with the rows beside, relative: rounding


@dataclass(frozen=True)
class Probe:
    """Settings of a linear probe; these are the papers' for SimCLR's features of CIFAR-10 at epsilon 2, delta 1e-5."""

    batch_size: int = 1024
    epochs: float = 50
    lr: float = 4.0
    momentum: float = 0.9
    bound: float = 0.1
    noise_multiplier: float = 2.40


SIMCLR, RESNEXT = Probe(), Probe(batch_size=2048, lr=8.0, noise_multiplier=3.32)


def linear_probe(
    data: Splits,
    network: nn.Module,
    weights: str | Path | None = None,
    *,
    settings: Probe = SIMCLR,
    statistics: tuple[Tensor, Tensor] | None = None,
    seed: int = 0,
    at_once: int = 256,
    progress: bool = False,
) -> Recipe:
    """A recipe that trains a linear layer on the features of a public network, with `weights` from a safetensors file.

    `network` maps `[n, ...]` to features `[n, d]`; `statistics`: public means and deviations of the features, to normalise by
    (the network's own batch norm has them). `noisewise.recipe.fit(recipe)` trains, `recipe.at_epsilon` calibrates.

    Guarantee: features of a row are a fixed function of that row, so that training on them costs what training on the rows
    would; whoever made the weights must never have seen the private rows.
    """
    network = copy.deepcopy(network)
    if weights is not None:
        try:
            network.load_state_dict(read_weights(Path(weights)))
        except RuntimeError as error:
            raise RunError(f"{weights} does not hold the weights of this network ({error}).") from None
    features = features_of(data, network, at_once=at_once, progress=progress)
    n, width = features.train.units, features.train.x.shape[1]
    head = build("logistic", (width,), len(data.train.classes), seed)
    if statistics is not None:
        mean, std = (torch.as_tensor(values, dtype=torch.float32) for values in statistics)
        if mean.shape != (width,) or std.shape != (width,) or not bool((std > 0).all()):
            raise ConfigError(f"statistics: needs one mean and one deviation above 0 for each of {width} features.")
        features = Splits(*(replace(part, x=(part.x - mean) / std) for part in features))
    size = min(settings.batch_size, n)
    return Recipe(
        model=head,
        data=features,
        loss_fn=cross_entropy,
        mechanism=Mechanism(
            sampler=Poisson(n, size),
            clip=Flat(settings.bound),
            steps=steps_for(settings.epochs, n, size),
            noise_multiplier=settings.noise_multiplier,
            unit="row" if features.train.unit is None else "person",
        ),
        optimizer=partial(torch.optim.SGD, lr=settings.lr, momentum=settings.momentum),
    )


@torch.no_grad()
def features_of(data: Splits, network: nn.Module, *, at_once: int = 256, progress: bool = False) -> Splits:
    """The same units with the features of a frozen network as inputs, computed once, in evaluation mode.

    A network whose features of made-up rows depend on the rows beside them is refused.
    """
    with _evaluating(network):
        _check_separate(network, data.train.x)
        return Splits(*(replace(part, x=_features(network, part, at_once, progress)) for part in data))


def _features(network: nn.Module, data: Data, at_once: int, progress: bool) -> Tensor:
    device = next((p.device for p in network.parameters()), data.x.device)
    rows = list(data.x.split(at_once)) if len(data) else [data.x]
    parts = [network(part.to(device)).to(data.x.device) for part in tracked(rows, "features", len(rows), show=progress)]
    if parts[0].dim() != 2:
        raise ConfigError(
            f"the network gives {list(parts[0].shape)}: must be features [n, d]; end it with nn.Flatten()."
        )
    return torch.cat(parts)


def _check_separate(network: nn.Module, like: Tensor) -> None:
    device = next((p.device for p in network.parameters()), like.device)
    rows = torch.randn(4, *like.shape[1:], generator=torch.Generator().manual_seed(0))
    rows = (rows if like.is_floating_point() else rows > 0).to(device, like.dtype)
    together, alone = network(rows), torch.cat([network(row.unsqueeze(0)) for row in rows])
    if not torch.allclose(together, alone, rtol=SEPARATE, atol=SEPARATE * float(alone.abs().max())):
        raise PrivacyError(
            "features of a row depend on the rows beside it (statistics over a batch?): one person's would hold others. Use a "
            "network that looks at one row at a time, noisewise.models.convert.batchnorm_to_groupnorm."
        )


@contextmanager
def _evaluating(network: nn.Module) -> Iterator[None]:
    modes = {module: module.training for module in network.modules()}
    network.eval()
    try:
        yield
    finally:
        for module, training in modes.items():
            module.training = training

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

from noisewise.accounting import Ledger
from noisewise.clipping import Flat
from noisewise.data import Splits
from noisewise.data.marks import mark_of
from noisewise.data.statistics import Statistics
from noisewise.errors import ConfigError, PrivacyError
from noisewise.losses import cross_entropy
from noisewise.mechanism import Mechanism
from noisewise.models import build
from noisewise.models.convolutional import Standardize
from noisewise.persample.behaviour import check_state
from noisewise.persample.chance import random_state
from noisewise.persample.conditions import NotProven
from noisewise.persample.dispatched import StateChanged
from noisewise.persample.held import changes, held, own_tensors, self_changing
from noisewise.persample.made_up import synthetic
from noisewise.persample.proof import Proof
from noisewise.persample.tape import Tape
from noisewise.persample.trace import Trace
from noisewise.persample.watch import Watch
from noisewise.progress import tracked
from noisewise.recipe import Recipe, load_weights
from noisewise.sampling import Poisson, steps_for
from noisewise.training import lineage

SEPARATE, ROUNDING = 1e-4, 1e-5  # by how much features may change with the rows beside: relative to each, and at all
ROWS = 4  # made-up ones whose features are compared
SIZES = ((11, 13), (17, 19), (5, 7))  # of made-up batches for the proof


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
    statistics: Statistics | tuple[Tensor, Tensor] | None = None,
    seed: int = 0,
    at_once: int = 256,
    progress: bool = False,
) -> Recipe:
    """A recipe that trains a linear layer on the features of a public network, with `weights` from a safetensors file.

    `network` maps `[n, ...]` to features `[n, d]`. `statistics`: to normalise the features by, in a first layer that does not
    learn: what `noised_statistics(features_of(data, network).train, bounds)` released, whose ledger the recipe goes on with;
    or means and deviations that are public (the network's own batch norm has them). A bare pair costs nothing, so it must not
    come from the private rows: pass the `Statistics` themselves, not `(s.mean, s.std)`.
    `noisewise.recipe.fit(recipe)` trains, `recipe.at_epsilon` calibrates.

    Guarantee: features of a row are a fixed function of that row, so that training on them costs what training on the rows
    would; whoever made the weights must never have seen the private rows.
    """
    network = copy.deepcopy(network)
    if weights is not None:
        load_weights(network, Path(weights))
    origin = Ledger() if not isinstance(statistics, Statistics) else statistics.ledger
    lineage.check_origin(lineage.marks_of(network), mark_of(data.train), origin)
    features = features_of(data, network, at_once=at_once, progress=progress)
    n, width = features.train.units, features.train.x.shape[1]
    head = build("logistic", (width,), len(data.train.classes), seed)
    ledger = None
    if statistics is not None:
        if isinstance(statistics, Statistics):
            ledger, statistics = statistics.ledger, (statistics.mean, statistics.std)
        head = nn.Sequential(_standardising(statistics, width), head)
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
        ledger=ledger,
    )


def _standardising(statistics: tuple[Tensor, Tensor], width: int) -> Standardize:
    try:
        mean, std = (torch.as_tensor(values) for values in statistics)
    except (TypeError, ValueError):
        raise ConfigError(
            "statistics: must be what noised_statistics released, or a pair (means, deviations)."
        ) from None
    if mean.shape != (width,) or std.shape != (width,) or not bool((std > 0).all()):
        raise ConfigError(f"statistics: needs one mean and one deviation above 0 for each of {width} features.")
    return Standardize(mean, std, places=0)


@torch.no_grad()
def features_of(data: Splits, network: nn.Module, *, at_once: int = 256, progress: bool = False) -> Splits:
    """The same units with the features of a frozen network as inputs, computed once, in evaluation mode.

    Guarantee: features of a row depend on that row alone. `at_once` rows are computed together only where each operation on
    them is shown to act row by row (`persample.proof`), always so many, with zeros behind the last; any other network is given
    one row at a time, and nothing may stay in it. Networks that change in a pass, and those whose features of made-up rows
    depend on the rows beside them, are refused. Limit: the last bit may depend on a row's place in its batch; `at_once=1` is
    without it.
    """
    if type(at_once) is not int or at_once < 1:
        raise ConfigError(f"at_once={at_once!r}: must be a whole number of at least 1.")
    with _evaluating(network):
        trace = _examined(network, data.train.x)
        before = held(network, None)
        try:
            parts = Splits(*(replace(part, x=_features(network, part.x, trace, at_once, progress)) for part in data))
        except StateChanged as error:
            raise self_changing([str(error)]) from None
        if changed := changes(before, held(network, None)):
            raise self_changing(sorted(changed))
        return parts


def _features(network: nn.Module, x: Tensor, trace: Trace | None, at_once: int, progress: bool) -> Tensor:
    device = _device(network, x)
    watch = Watch(own_tensors(network))
    batches = list(x.split(at_once)) if len(x) else [x]
    parts = []
    for rows in tracked(batches, "features", len(batches), show=progress):
        filled = torch.cat([rows, rows.new_zeros(at_once - len(rows), *rows.shape[1:])]).to(device)
        try:
            features = None if trace is None else _followed(network, filled, trace)[0]
        except NotProven:  # this batch takes another way
            features = None
        if features is None:
            features = _one_by_one(network, filled[: max(1, len(rows))], watch)
        parts.append(features[: len(rows)].to(x.device))
    return torch.cat(parts)


def _followed(
    network: nn.Module, rows: Tensor, against: Trace | None = None, *, strict: bool = False
) -> tuple[Tensor, Trace]:
    """Features of all rows at once, under proof."""
    rows = rows.clone(memory_format=torch.contiguous_format)
    proof = Proof([rows], own_tensors(network), against=against, strict=strict, copied=True)
    try:
        with Tape({}, proof), proof:
            features = network(rows)
    except RuntimeError:  # scripted code wraps what it meets
        if proof.failure is None:
            raise
        raise NotProven(proof.failure) from None
    return features, proof.conclude(features)


def _one_by_one(network: nn.Module, rows: Tensor, watch: Watch) -> Tensor:
    """Features of each row alone; what a row leaves behind must not reach the next."""
    parts = []
    for row in rows:
        alone = row.unsqueeze(0).clone()
        watch.begin([alone])
        with watch:
            features = network(alone)
        parts.append(_checked(features, 1).clone())
    return torch.cat(parts)


def _examined(network: nn.Module, like: Tensor) -> Trace | None:
    """Refuse a network that mixes or keeps made-up rows; the trace of the proof that it is separate, if there is one."""
    with random_state(0):
        made = synthetic(like[:0], max(max(SIZES)) + ROWS).to(_device(network, like))
        _checked(network(made[:ROWS].clone()), ROWS)
        check_state(network, _sums, made[:ROWS], made[ROWS : 2 * ROWS], like)
        for sizes in SIZES:  # another pair where a size is one of the network's own too
            try:
                traces = [_followed(network, made[:size], strict=True)[1] for size in sizes]
            except (NotProven, StateChanged):
                continue
            if traces[0].difference(traces[1]) is None:
                return traces[0]
        _check_separate(network, made[:ROWS])
    return None


def _check_separate(network: nn.Module, rows: Tensor) -> None:
    """A second net: a network that means to mix rows is refused, and not quietly given one at a time."""
    together, alone = network(rows.clone()), torch.cat([network(row.unsqueeze(0).clone()) for row in rows])
    size = alone.abs().amax(0, keepdim=True)  # of each feature: a large one hides no other
    if together.shape != alone.shape or not bool(((together - alone).abs() <= SEPARATE * size + ROUNDING).all()):
        raise PrivacyError(
            "features of a row depend on the rows beside it (statistics over a batch?): one person's would hold others. Use a "
            "network that looks at one row at a time, noisewise.models.convert.batchnorm_to_groupnorm."
        )


def _checked(features: Tensor, rows: int) -> Tensor:
    if features.dim() != 2 or len(features) != rows:
        raise ConfigError(
            f"the network gives {list(features.shape)} for {rows} rows: must be features [n, d]; end it with nn.Flatten()."
        )
    return features


def _sums(network: nn.Module, rows: Tensor) -> Tensor:
    return network(rows).sum(1)


def _device(network: nn.Module, x: Tensor) -> torch.device:
    return next((parameter.device for parameter in network.parameters()), x.device)


@contextmanager
def _evaluating(network: nn.Module) -> Iterator[None]:
    modes = {module: module.training for module in network.modules()}
    network.eval()
    try:
        yield
    finally:
        for module, training in modes.items():
            module.training = training

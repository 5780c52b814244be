"""The mean of private features, released with noise once before training: what all rows share tells nothing apart.

Every row has length 100, and so has at most that part in the sum: released is `sum x + sigma 100 N(0, I)`, divided by n. With
n rows of D coordinates the mean is off by `100 sigma sqrt(D) / n`: a twentieth of a row's length for sigma 20, 16,000
coordinates and 50,000 rows, at a price that moves the noise of training by a fiftieth at epsilon 1.

Guarantee: one Gaussian release with multiplier sigma, in a ledger that training goes on with. Rows that are not finite count
as zeros. What is released is kept in the model, so the data stay as they are.
"""

from __future__ import annotations

import copy
import json
import math
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor, nn

from noisewise.accounting import Identity, Ledger
from noisewise.accounting.events import check_multiplier, gaussian, joint_multiplier
from noisewise.bounded import Bounded, release
from noisewise.data import Data
from noisewise.data.marks import mark_of
from noisewise.errors import ConfigError, RunError
from noisewise.models.heads import LENGTH, Centred
from noisewise.randomness import Entropy
from noisewise.recipe import Recipe
from noisewise.recipes.features import Features
from noisewise.recipes.transform import features_of
from noisewise.runs.files import write_atomically
from noisewise.sampling import FullBatch

PURPOSE = "feature mean"
ROWS = 4096  # at a time
MOST_OFF = 0.2  # of a row's length: above, a centre is not taken unless it is asked for


def worth_it(features: Features, shape: Sequence[int], n: int) -> bool:
    """Is the mean of n units off by at most a fifth of a row's length? Asked with a blank image."""
    coordinates = features_of(torch.zeros(1, *shape), features).shape[-1]
    return features.centre * math.sqrt(coordinates) / n <= MOST_OFF


def planned_ledger(n: int, noise: float, adjacency: str, unit: str) -> Ledger:
    """What the release will write, before it is made."""
    check_multiplier(noise, "centre")
    ledger = Ledger(adjacency, unit=unit)
    ledger.record(gaussian(FullBatch(n), joint_multiplier([noise])), PURPOSE, 0)
    return ledger


def noised_centre(
    data: Data,
    noise: float,
    *,
    views: int = 1,
    adjacency: str = "add-remove",
    secure: bool = False,
    insecure_seed: int | None = None,
) -> tuple[Tensor, Ledger]:
    """The mean of the units' features, flat, with noise of multiplier `noise`, and the ledger that says so.

    `views`: those that stand side by side in a unit are averaged first, as are all rows of a person.
    """
    check_multiplier(noise, "centre")
    if not noise > 0:
        raise ConfigError(f"centre={noise!r}: must be above 0, or no noise would protect anybody.")
    unit = "row" if data.unit is None else "person"
    entropy = Entropy.fresh(secure=secure) if insecure_seed is None else Entropy.insecure(insecure_seed, secure=secure)
    ledger = Ledger(adjacency, unit=unit)
    ledger.claim_data(mark_of(data), entropy.key(b"identity"))
    answer = release(
        {PURPOSE: (Bounded({"sum": _sum(data, views)}, LENGTH), noise)},
        sampler=FullBatch(data.units), ledger=ledger, entropy=entropy, step=0,
    )  # fmt: skip
    return (answer[PURPOSE]["sum"] / data.units).float(), ledger


def _sum(data: Data, views: int) -> Tensor:
    """Sum over units of their features, each shortened to `LENGTH`."""
    if data.unit is None:
        total = sum(_shortened(_flat(part, views)).sum(0) for part in data.x.split(ROWS))
        return torch.as_tensor(total).cpu()
    owner, rows = torch.unique(data.unit.cpu(), return_inverse=True, return_counts=True)[1:]
    people = torch.zeros(len(rows), _flat(data.x[:1], views).shape[1], dtype=torch.float64)
    people.index_add_(0, owner, _flat(data.x, views).cpu())
    return _shortened(people / rows.unsqueeze(1)).sum(0)


def _flat(x: Tensor, views: int) -> Tensor:
    return (x.double().mean(1) if views > 1 else x.double()).flatten(1)


def _shortened(rows: Tensor) -> Tensor:
    lengths = rows.norm(dim=1, keepdim=True)
    return torch.where(lengths.isfinite(), rows * (LENGTH / lengths.clamp(min=LENGTH)), 0.0)


def centred(recipe: Recipe, centre: Tensor, ledger: Ledger, planned: Ledger | None = None) -> Recipe:
    """The recipe with a released centre in a copy of its model, going on from what that cost.

    planned: what the recipe's ledger begins with in place of this very release, if it does. Guarantee: whatever else the recipe
    has in its ledger stays in it, such as the choice of a mask.
    """
    model = copy.deepcopy(recipe.model)
    for part in _places(model):
        part.centre.copy_(centre.to(part.centre))
    return replace(recipe, model=model, ledger=_added(recipe, ledger, planned))


def _added(recipe: Recipe, released: Ledger, planned: Ledger | None) -> Ledger:
    if recipe.ledger is None:
        return released
    if recipe.ledger.identity is not None:  # some of it is about data that are known
        recipe.ledger.claim_data(mark_of(recipe.data.train), b"")
    lines, expected = recipe.ledger.lines, [] if planned is None else planned.lines
    if lines[: len(expected)] != expected:
        raise ConfigError("the recipe's ledger does not begin with the release of a centre that was planned.")
    return released.composed(replace(recipe.ledger, lines=lines[len(expected) :]))


def centred_as(model: nn.Module, other: nn.Module) -> nn.Module:
    """The model with the centres of another one of the same architecture: it then sees what that one sees."""
    for ours, theirs in zip(_centres(model), _centres(other), strict=True):
        ours.centre.copy_(theirs.centre)
    return model


def _places(model: nn.Module) -> list[Centred]:
    places = _centres(model)
    if not places:
        raise ConfigError("a centre of a model that has no place for it: build it with centred=True.")
    return places


def _centres(model: nn.Module) -> list[Centred]:
    return [part for part in model.modules() if isinstance(part, Centred)]


def with_centre(
    recipe: Recipe, noise: float, path: Path, *, views: int, secure: bool, insecure_seed: int | None
) -> Recipe:
    """`centred` by what lies in a file, or by a release that is written there before it is used: it happens once in a run."""
    if not path.exists():
        adjacency = recipe.mechanism.adjacency
        centre, ledger = noised_centre(
            recipe.data.train, noise, views=views, adjacency=adjacency, secure=secure, insecure_seed=insecure_seed
        )
        assert ledger.identity is not None
        about = {"ledger": json.dumps(ledger.to_dict()), "identity": json.dumps(ledger.identity.to_dict())}
        write_atomically(path, save({"centre": centre.contiguous()}, metadata=about))
    try:
        with safe_open(path, framework="pt") as file:
            centre, about = file.get_tensor("centre"), file.metadata()
        ledger = Ledger.from_dict(json.loads(about["ledger"]))
        ledger.identity = Identity.from_dict(json.loads(about["identity"]))
    except (OSError, SafetensorError, ValueError, KeyError, TypeError) as error:
        raise RunError(f"{path} is damaged ({error}): begin anew in another folder.") from None
    planned = planned_ledger(recipe.data.train.units, noise, ledger.adjacency, recipe.mechanism.unit)
    return centred(recipe, centre, ledger, planned)

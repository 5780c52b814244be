"""Changes to a model that make private training possible; each says in words what it did."""

from __future__ import annotations

import copy
import math

from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm

from noisewise.errors import ConfigError

LEAST = 16  # channels to a group of what was BatchNorm1d


def batchnorm_to_groupnorm(model: nn.Module, groups: int = 32) -> tuple[nn.Module, list[str]]:
    """A copy of the model with GroupNorm in place of every BatchNorm (1d, 2d, 3d, synchronised), and what was done.

    BatchNorm normalises a unit by the others of its batch, so no bound on one unit's contribution holds. GroupNorm looks
    at one unit only. Each layer gets `gcd(groups, channels)` groups (BatchNorm1d fewer: at least 16 channels to a group),
    keeps its name, eps, mode, weight and bias, and loses its running statistics. The model passed in is untouched.
    """
    if not isinstance(groups, int) or isinstance(groups, bool) or groups < 1:
        raise ConfigError(f"groups={groups!r}: must be a whole number of at least 1.")
    if not isinstance(model, nn.Module):
        raise ConfigError(f"the model is {model!r}: must be a torch.nn.Module, an object and not its class.")
    for name, module in model.named_modules():
        if isinstance(module, _BatchNorm) and module.num_features == 0:
            raise ConfigError(
                f"{name}: {type(module).__name__} has no channels yet. Run the model on a made-up batch first."
            )
    model, changes = copy.deepcopy(model), []
    made: dict[nn.Module, tuple[nn.GroupNorm, str]] = {}  # a layer used under two names stays one layer
    names = [name for name, module in model.named_modules(remove_duplicate=False) if isinstance(module, _BatchNorm)]
    for name in names:
        old = model.get_submodule(name)
        if not isinstance(old, _BatchNorm):
            continue  # its owner has two names and it was replaced under the other one
        if old in made:
            new, first = made[old]
            changes.append(f"{name}: the same layer as {first}, also replaced.")
        else:
            new = _group_norm(old, groups)
            made[old] = (new, name)
            changes.append(_in_words(name, old, new))
        if not name:
            return new, changes
        owner, _, key = name.rpartition(".")
        model.get_submodule(owner)._modules[key] = new
    return model, changes or ["No BatchNorm was found: the copy is as the model was."]


def _group_norm(old: _BatchNorm, groups: int) -> nn.GroupNorm:
    new = nn.GroupNorm(_count(old, groups), old.num_features, eps=old.eps, affine=old.affine)
    if old.affine:
        new.weight, new.bias = old.weight, old.bias
    return new.train(old.training)


def _count(old: _BatchNorm, groups: int) -> int:
    """`gcd(groups, channels)`; for BatchNorm1d its largest divisor that leaves 16 channels to a group, or one group.

    BatchNorm1d may have one value per channel, and a group of few values would keep little more than their signs.
    """
    count = math.gcd(groups, old.num_features)
    if not isinstance(old, nn.BatchNorm1d):
        return count
    return max(d for d in range(1, count + 1) if count % d == 0 and (d == 1 or old.num_features // d >= LEAST))


def _in_words(name: str, old: _BatchNorm, new: nn.GroupNorm) -> str:
    kept = "weight and bias kept" if old.affine else "no weight and bias, as before"
    lost = "; running statistics dropped" if old.track_running_stats else ""
    return (
        f"{name or 'the model itself'}: {type(old).__name__}({old.num_features}) became "
        f"GroupNorm({new.num_groups} groups, {new.num_channels} channels), {kept}{lost}."
    )

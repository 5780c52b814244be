"""Gradients of several parts of the people at once: how long they are, and how far they go along each part's mean."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from noisewise.audits.gradients import block_norms, clipped_units, gradients, group_labels, layout_of, rule_factors
from noisewise.support import live_parameters

if TYPE_CHECKING:
    from torch import Tensor, nn

    from noisewise.clipping import Clip
    from noisewise.data import Data
    from noisewise.losses import LossFn
    from noisewise.support import Support


@dataclass(frozen=True)
class PartGradients:
    """Of every unit whether it was clipped and what was left; of every part (x.x, x.xbar) of gradients, raw and clipped."""

    clipped: np.ndarray
    factor: np.ndarray
    raw: list[tuple[np.ndarray, np.ndarray]]
    shortened: list[tuple[np.ndarray, np.ndarray]]
    coordinates: int


def part_gradients(
    model: nn.Module,
    data: Data,
    units: Tensor,
    parts: Sequence[np.ndarray],
    loss_fn: LossFn,
    rule: Clip,
    support: Support,
    advance: Callable[[int], None],
) -> PartGradients:
    """Gradients of these units, and of `parts` (places among them) that may overlap, clipped by `rule` and not.

    Means of the parts first, then inner products with them; memory: two vectors of all weights for every part.
    """
    import torch

    layout = layout_of(model, data, loss_fn)
    labels = group_labels(rule, data, units)
    member = torch.from_numpy(np.stack([np.isin(np.arange(len(units)), part) for part in parts])).double()
    live = live_parameters(model, support)
    owner = rule.blocks(live)
    blocks = [owner[name] for name in live]
    norms, factors = [], []
    sums = shortened_sums = torch.zeros(())
    for place, chunk in gradients(model, data, units, loss_fn=loss_fn, support=support, layout=layout):
        lengths = block_norms(torch.stack([gradient.square().sum(1) for gradient in chunk.values()]), blocks)
        left = rule_factors(rule, lengths, None if labels is None else labels[place])
        norms.append(lengths.cpu())
        factors.append(left.cpu())
        here = member[:, place].to(lengths.device)
        sums = sums + (here @ torch.cat(list(chunk.values()), 1)).cpu()
        shortened_sums = shortened_sums + (here @ _shortened(chunk, left, owner)).cpu()
        advance(place.stop - place.start)
    counts = member.sum(1, keepdim=True)
    means, shortened_means = sums / counts, shortened_sums / counts
    on_mean, on_shortened = [], []
    for place, chunk in gradients(model, data, units, loss_fn=loss_fn, support=support, layout=layout):
        flat = torch.cat(list(chunk.values()), 1)
        short = _shortened(chunk, torch.cat(factors, 1)[:, place].to(flat.device), owner)
        on_mean.append((flat @ means.T.to(flat.device)).cpu())
        on_shortened.append((short @ shortened_means.T.to(flat.device)).cpu())
        advance(place.stop - place.start)
    every_norm, every_factor = torch.cat(norms, 1), torch.cat(factors, 1)
    square, short_square = every_norm.square().sum(0).numpy(), (every_factor * every_norm).square().sum(0).numpy()
    along, short_along = torch.cat(on_mean).numpy(), torch.cat(on_shortened).numpy()
    kept = np.divide(short_square, square, out=(every_factor.mean(0) ** 2).numpy(), where=square > 0)
    return PartGradients(
        clipped_units(rule, every_norm, every_factor, labels).numpy(),
        np.sqrt(kept),
        [(square[rows], along[rows, place]) for place, rows in enumerate(parts)],
        [(short_square[rows], short_along[rows, place]) for place, rows in enumerate(parts)],
        sum(_learning(support.get(name, True), parameter) for name, parameter in live.items()),
    )


def _shortened(chunk: Mapping[str, Tensor], factors: Tensor, owner: Mapping[str, int]) -> Tensor:
    import torch

    return torch.cat([factors[owner[name]].unsqueeze(1) * gradient for name, gradient in chunk.items()], 1)


def _learning(mask: bool | Tensor, parameter: Tensor) -> int:
    return parameter.numel() if isinstance(mask, bool) else int(mask.sum())

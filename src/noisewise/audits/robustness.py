"""Robustness: how often small changes of the input, made to mislead, succeed; and whether the attack itself works.

Radii are in units of `scale`, so that 8/255 means the same for raw and for normalised pixels. In a table numbers move by a
share of their declared range, and nothing else does.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from noisewise._moved import old_names
from noisewise.attacks.campaign import Answers, Campaign, attack_all, checks, refuse_unattackable
from noisewise.attacks.pgd import NOISE_DRAWS, NORMS, Numbers, Space
from noisewise.audits import declared
from noisewise.audits.audit import Audit
from noisewise.audits.misled import Point, Robustness, Values
from noisewise.audits.outputs import check_subject, status_of
from noisewise.audits.people import (
    SMALLEST,
    Estimates,
    Extremes,
    Part,
    divided,
    extremes,
    means,
    named_parts,
    owners,
    part_of,
    shares,
)
from noisewise.audits.show import Bar
from noisewise.errors import ConfigError
from noisewise.estimates.estimate import LEVEL, Estimate, check_level
from noisewise.evaluation import logits

if TYPE_CHECKING:
    from torch import nn

    from noisewise.data import Data
    from noisewise.data.tables.schema import Schema

TAKES = "Does not retrain; about 20 seconds of processor time per model for a network like LeNet."
ROWS = 640
RADIUS = {"linf": 8 / 255, "l2": 0.5}
NORMS_OF_PIXELS = ("linf", "l2")
FACTORS = (0.5, 1.0, 2.0, 4.0)


def robustness(
    model: nn.Module,
    data: Data,
    *,
    twin: nn.Module | None = None,
    generator: np.random.Generator | None = None,
    progress: bool = False,
    level: float = LEVEL,
    norms: Sequence[str] | None = None,
    radius: Mapping[str, float] | None = None,
    factors: Sequence[float] = FACTORS,
    steps: int = 20,
    step: float = 0.25,
    restarts: int | None = None,
    box: tuple[Numbers, Numbers] | None = None,
    scale: Numbers | None = None,
    rows: int | None = ROWS,
) -> Robustness:
    """Accuracy under PGD, one gradient step (FGSM) and random noise, for a sweep of radii, by class and by group.

    `radius` is the main one of each norm (default: 8/255 of linf and 0.5 of l2), `factors` times it the sweep (must hold
    1); the first of `norms` makes the headline. `step` is a share of the radius: 0.25 of 8/255 is the usual 2/255. Changes
    stay in `box`, the inputs that can occur, as the model sees them (default: the range of `data`). Radii count in units
    of `scale` model-input units, one number or one per channel; the default is the box's width, so that a radius is a
    share of the input range and 8/255 means eight grey levels of images whose pixels fill their range, normalised or not.
    MNIST divided by 0.3081: `scale=1 / 0.3081`. Rows of a table (data with a schema, neither `box` nor `scale` given):
    every number moves by at most a share of its declared range, 5 % by default, and all else stays; such models bend
    sharply and are quick, so the attack starts eight times by default instead of once.

    `rows` of the data, drawn at random, are attacked (None: all); both models see the same rows, starts and noise.
    Accuracy has Wilson's interval, loss Student's t (both by person where people have several rows); differences are
    paired. The checks are part of the result.
    All rows are attacked until they are misled, a random 256 of them to the end: those give the loss and the
    attack without limit. A row that a smaller change misleads counts as misled at every larger radius.
    The generator draws rows, starts and noise (default: seed 0). Does not retrain; 640 rows, two norms, four radii, 20
    steps and a network like LeNet take about 20 seconds of processor time per model, and 88 % is then known to within
    2.6 points.
    """
    import torch

    check_level(level)
    check_subject(data, private=model, twin=twin)
    schema = data.schema if box is None and scale is None else None
    norms = (NORMS_OF_PIXELS if schema is None else declared.NORMS) if norms is None else norms
    radius = (RADIUS if schema is None else declared.RADIUS) if radius is None else radius
    restarts = (1 if schema is None else declared.RESTARTS) if restarts is None else restarts
    _validate(norms, radius, factors, steps, step, restarts, rows)
    generator = np.random.default_rng(0) if generator is None else generator
    models = {"private": model} | ({} if twin is None else {"twin": twin})
    space = Space.of(data.x, box, scale) if schema is None else declared.space_of(data.x, schema)
    # in random order, also if all are taken: the first chunk stands for all
    chosen = data.take(torch.from_numpy(generator.permutation(len(data))[:rows]))
    for which, network in models.items():
        refuse_unattackable(logits(network, chosen), which)
    radii = {norm: [0.0, *sorted(radius[norm] * factor for factor in factors)] for norm in norms}
    seed, owner = int(generator.integers(2**62)), owners(chosen)
    with Bar(progress, sum(len(some) for some in radii.values()) * len(models), "attacks") as advance:
        raw = attack_all(models, chosen, radii, space, seed, advance, steps=steps, step=step, restarts=restarts)

    sweep = {
        norm: [
            _point({which: campaigns[norm] for which, campaigns in raw.items()}, place, level, owner)
            for place in range(len(radii[norm]))
        ]
        for norm in norms
    }
    main = {norm: radii[norm].index(radius[norm]) for norm in norms}
    split = {norm: _parts(chosen, {which: campaigns[norm].pgd[main[norm]].right for which, campaigns in raw.items()}, level)
             for norm in norms}  # fmt: skip
    first = norms[0]
    lost = {
        which: campaigns[first].pgd[0].right & ~campaigns[first].pgd[main[first]].right
        for which, campaigns in raw.items()
    }
    return Robustness(
        headline=_headline(sweep[first][main[first]].accuracy, shares(lost, level, owner)),
        values=Values(
            sweep=sweep,
            parts={norm: split[norm][0] for norm in norms},
            extremes={norm: split[norm][1] for norm in norms},
            checks=[
                check
                for which, campaigns in raw.items()
                for norm in norms
                for check in checks(campaigns[norm], which, norm)
            ],
        ),
        settings={
            "rows": len(chosen),
            "rows_of_data": len(data),
            "rows_to_the_end": len(raw["private"][first].pgd[0].loss),
            "level": level,
            "smallest_part": SMALLEST,
            "radius": {norm: float(radius[norm]) for norm in norms},
            "steps": steps,
            "step": step,
            "restarts": restarts,
            "noise_draws": NOISE_DRAWS,
            **_inputs(space, box is None, scale is None, schema),
        },
        status=status_of(data, twin),
    )


def _inputs(space: Space, box: bool, scale: bool, schema: Schema | None) -> dict[str, Any]:
    """How inputs could change: in a table numbers in their declared range, else by box and scale (given or not)."""
    if schema is not None:
        return {"declared": [asdict(column) for column in declared.numbers_of(schema)], "scale_is_range": True}
    return {
        "box": [space.low.flatten().tolist(), space.high.flatten().tolist()],
        "box_is_range_of_data": box,
        "scale": space.scale.flatten().tolist(),
        "scale_is_range": scale,
    }


def _validate(
    norms: Sequence[str],
    radius: Mapping[str, float],
    factors: Sequence[float],
    steps: int,
    step: float,
    restarts: int,
    rows: int | None,
) -> None:
    if isinstance(norms, str) or not norms or len(set(norms)) < len(norms) or not set(norms) <= set(NORMS):
        raise ConfigError(f"norms {norms!r}: give a list of one or more of {', '.join(NORMS)}, each once.")
    for norm in norms:
        if norm not in radius or not (0 < radius[norm] < math.inf):
            raise ConfigError(f"radius {radius!r}: needs a number above 0 for the norm {norm!r}.")
    if 1 not in factors or not all(0 < factor < math.inf for factor in factors) or len(set(factors)) < len(factors):
        raise ConfigError(f"factors {list(factors)!r}: different numbers above 0, with 1 (the main radius) among them.")
    for name, value in {"steps": steps, "restarts": restarts, "rows": 1 if rows is None else rows}.items():
        if not isinstance(value, int) or value < 1:
            raise ConfigError(f"{name} {value!r}: must be a whole number above 0.")
    if not 0 < step < math.inf:
        raise ConfigError(f"step {step!r}: must be above 0; it is a share of the radius.")


def _point(campaigns: Mapping[str, Campaign], place: int, level: float, owner: np.ndarray | None) -> Point:
    """What the attacks of one norm do at one radius, by model."""
    pgd, fgsm, noise = (
        {which: getattr(campaign, attack)[place] for which, campaign in campaigns.items()}
        for attack in ("pgd", "fgsm", "noise")
    )

    def right(answers: Mapping[str, Answers]) -> Estimates:
        return shares({which: a.right for which, a in answers.items()}, level, owner)

    first = None if owner is None else owner[: len(pgd["private"].loss)]
    return Point(
        radius=campaigns["private"].radii[place],
        accuracy=right(pgd),
        loss=means({which: a.loss for which, a in pgd.items()}, level, 0.0, first),
        fgsm=right(fgsm),
        noise=right(noise),
    )


def _parts(data: Data, hits: dict[str, np.ndarray], level: float) -> tuple[list[Part], dict[str, Extremes]]:
    """Everyone, each class and each group that is large enough; and the extremes."""
    owner = owners(data)
    part = partial(part_of, outcomes={which: {"hits": of} for which, of in hits.items()}, level=level, owner=owner)
    parts, of_partitions = divided(
        data,
        named_parts(data),
        part,
        lambda hidden, _, shown: extremes(hidden, hits, shown, level, owner=owner),
    )
    everyone = part("everyone", "all", np.arange(len(data)))
    return [everyone, *parts], of_partitions


def _headline(accuracy: dict[str, Estimate], lost: dict[str, Estimate]) -> dict[str, Estimate]:
    headline = {"robust accuracy": accuracy["private"], "lost to the attack": lost["private"]}
    if "twin" in lost:
        headline |= {
            "twin robust accuracy": accuracy["twin"],
            "cost": accuracy["difference"],
            "excess lost": lost["difference"],
        }
    return headline


AUDIT = Audit("robustness", robustness, takes=TAKES, usual=True, classes=True)

if not TYPE_CHECKING:
    __getattr__ = old_names(__name__)

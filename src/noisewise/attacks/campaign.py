"""A campaign: every attack by adversarial examples on one model, over a sweep of radii; and whether the attacks work."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from noisewise.attacks.pgd import NORMS, Attacked, Space, fgsm, look_and_climb, noise, pgd
from noisewise.errors import DataError
from noisewise.evaluation import device_of, evaluating
from noisewise.wording import number

if TYPE_CHECKING:
    from torch import Tensor, nn

    from noisewise.data import Data

POINT = 0.01  # how much a check forgives: one percentage point, or one hundredth of a loss
STUCK = 0.05  # share of rows without a gradient, or that no attack at all misleads, from which a check fails
CHUNK = 256  # rows at a time, which stay in a processor's cache; those of the first chunk are attacked to the end


class Answers(NamedTuple):
    """Of every row: right under attack; and the largest loss of those that are attacked to the end, the first chunk."""

    right: np.ndarray
    loss: np.ndarray


@dataclass(frozen=True)
class Campaign:
    """All attacks of one norm on one model: by radius (0 first), without limit, and where there is no gradient.

    whole: every input could be changed.
    """

    radii: list[float]
    pgd: list[Answers]
    fgsm: list[Answers]
    noise: list[Answers]
    unbounded: np.ndarray
    flat: np.ndarray
    whole: bool = True


def refuse_unattackable(outputs: Tensor, which: str) -> None:
    """Stop at a model that has one class only, or outputs that are not finite."""
    import torch

    if outputs.shape[1] < 2:
        raise DataError(f"the {which} model knows {outputs.shape[1]} class: it takes two to be misled.")
    if not bool(torch.isfinite(outputs).all()):
        raise DataError(f"the {which} model gives outputs that are not finite: nothing can be said of its robustness.")


def attack_all(
    models: Mapping[str, nn.Module],
    data: Data,
    radii: Mapping[str, list[float]],
    space: Space,
    seed: int,
    advance: Callable[[], Any] = lambda: None,
    **settings: Any,
) -> dict[str, dict[str, Campaign]]:
    """All models and norms; every model sees the same random numbers. `advance` is called after each radius."""
    return {
        which: {
            norm: campaign(model, data, norm, some, space, seed, advance, **settings) for norm, some in radii.items()
        }
        for which, model in models.items()
    }


def campaign(
    model: nn.Module,
    data: Data,
    norm: str,
    radii: list[float],
    space: Space,
    seed: int,
    advance: Callable[[], Any] = lambda: None,
    **settings: Any,
) -> Campaign:
    """Every attack at every radius; a row that a smaller change misleads is misled at all larger radii.

    The first chunk is attacked to the end, for its loss; other rows are left alone once they are misled.
    """
    import torch

    device = device_of(model)
    chunks = [(x.to(device), y.to(device)) for x, y in zip(data.x.split(CHUNK), data.y.split(CHUNK), strict=True)]
    with evaluating(model):
        known = [look_and_climb(model, x, y) for x, y in chunks]
    clean = [answer for answer, _ in known]
    results = {name: [_answers(clean)] for name in ("pgd", "fgsm", "noise")}
    worst = clean
    advance()
    for radius in radii[1:]:
        given: dict[str, Any] = {"radius": radius, "norm": norm, "space": space}
        draws = torch.Generator().manual_seed(seed)
        started = [clean[0], *worst[1:]]
        seen = [
            pgd(model, x, y, generator=draws, known=at, stop=place > 0, **given, **settings)
            for place, ((x, y), at) in enumerate(zip(chunks, started, strict=True))
        ]
        worst = [now._replace(right=now.right & before.right) for now, before in zip(seen, worst, strict=True)]
        results["pgd"].append(_answers(worst))
        pairs = list(zip(chunks, known, strict=True))
        results["fgsm"].append(_answers([fgsm(model, x, y, known=at, **given) for (x, y), at in pairs]))
        blind = [noise(model, x, y, generator=draws, known=at, **given) for (x, y), (at, _) in pairs]
        results["noise"].append(_answers(blind))
        advance()
    widest = float(NORMS[norm].size(space.width.expand(data.x[:1].shape)))
    draws = torch.Generator().manual_seed(seed)
    x, y = chunks[0]
    limitless = pgd(model, x, y, widest, norm, space, draws, known=clean[0], stop=True, **settings)
    scale = space.to(chunks[0][0]).scale
    flat = torch.cat([(gradient * scale == 0).flatten(1).all(1) for _, gradient in known])
    unbounded = limitless.right.cpu().numpy()
    return Campaign(radii, **results, unbounded=unbounded, flat=flat.cpu().numpy(), whole=space.whole)


def _answers(chunks: Sequence[Attacked]) -> Answers:
    import torch

    return Answers(torch.cat([chunk.right for chunk in chunks]).cpu().numpy(), chunks[0].loss.cpu().numpy())


@dataclass(frozen=True)
class Check:
    """Does the attack of a norm on a model work: what is asked, whether it holds, and what was found, in words."""

    check: str
    passed: bool
    found: str
    model: str
    norm: str


def checks(campaign: Campaign, model: str, norm: str) -> list[Check]:
    """Does the attack work?

    Reference: Athalye et al. 2018, arXiv:1802.00420, section 3.1; Carlini et al. 2019, arXiv:1902.06705, section 5.
    """
    losses = [float(answers.loss.mean()) for answers in campaign.pgd]
    kept = {
        name: np.array([answers.right.mean() for answers in getattr(campaign, name)])
        for name in ("pgd", "fgsm", "noise")
    }
    blind = [float(answers.loss.mean()) for answers in campaign.noise]
    flat, unbounded = float(campaign.flat.mean()), float(campaign.unbounded.mean())
    rises = all(after >= before - POINT * max(before, 1.0) for before, after in pairwise(losses))
    over_step = float((kept["pgd"] - kept["fgsm"]).max())
    over_noise = float((kept["pgd"] - kept["noise"]).max())
    stronger = over_noise <= POINT and all(a > b for a, b in zip(losses[1:], blind[1:], strict=True))
    answers = {
        "loss rises with the radius": (rises, "mean loss " + ", ".join(number(loss) for loss in losses)),
        "at least as strong as one step": (
            over_step <= POINT,
            f"leaves at most {100 * max(over_step, 0.0):.1f} points more right than one step",
        ),
        "stronger than random noise": (
            stronger,
            f"at the largest radius loss {number(losses[-1])} against {number(blind[-1])}, "
            f"accuracy {100 * kept['pgd'][-1]:.1f} % against {100 * kept['noise'][-1]:.1f} %",
        ),
        "gradients are not masked": (flat <= STUCK, f"{100 * flat:.1f} % of rows have no gradient"),
        "without a limit hardly anyone stays right": (
            unbounded <= STUCK,
            f"{100 * unbounded:.1f} % of {len(campaign.unbounded)} rows stay right anywhere in the box",
        ),
    }
    if not campaign.whole:  # inputs that stay as they are may well decide
        del answers["without a limit hardly anyone stays right"]
    return [Check(question, *answer, model=model, norm=norm) for question, answer in answers.items()]

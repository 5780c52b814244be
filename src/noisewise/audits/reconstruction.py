"""Reconstruction: how much of a record can be drawn again from its gradient, as it is and as training releases it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from noisewise._moved import old_names
from noisewise.attacks.inversion import (
    Attack,
    Observation,
    error_bound,
    expected_error,
    invert,
    least_squares_error,
    observe,
    zeros,
)
from noisewise.audits.audit import Audit
from noisewise.audits.outputs import check_subject
from noisewise.audits.people import owners
from noisewise.audits.result import FAINT, INK, Figure, Result, Table
from noisewise.audits.show import Bar, cell
from noisewise.clipping import Flat, OneBlock
from noisewise.errors import ConfigError, DataError
from noisewise.estimates import intervals
from noisewise.estimates.estimate import LEVEL, Estimate, check_level
from noisewise.evaluation import evaluating
from noisewise.losses import LossFn, cross_entropy
from noisewise.mechanism import Mechanism
from noisewise.runs.folder import Status
from noisewise.sampling import FullBatch
from noisewise.wording import fixed, number
from noisewise.wording import level as level_of

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from torch import Tensor, nn

    from noisewise.data import Data
    from noisewise.mechanism import Mechanism

TAKES = "Does not retrain; about a minute for four small images (steps= and images= set the time)."
OBSERVED = {
    "plain": "the gradient as it is",
    "clipped": "clipped",
    "noisy": "clipped, with noise",
    "sparse": "clipped, with noise, some coordinates left out",
}
BLIND = "blind"  # the mean record: what is known without any gradient
PEAK = 120.0  # dB; a perfect copy has no finite ratio
SIDE = 32  # pixels of a picture that is kept
SHOWN = 8  # pictures that are kept
FLOATS = 1 << 24  # of gradients that are matched at a time
THEOREM = (16, (0.0, 0.25, 0.5, 0.75), 20_000)  # coordinates, sparsities, draws


@dataclass(frozen=True)
class Errors:
    """Over the records: mean squared error and peak signal to noise ratio in dB; and the squared error of `each`."""

    mse: Estimate
    psnr: Estimate
    each: list[float]


@dataclass(frozen=True)
class Simulation:
    """Of least squares at one sparsity: its error as simulated and as expected, and the lower bound of Theorem 5.1."""

    sparsity: float
    simulated: Estimate
    expected: float
    bound: float


@dataclass(frozen=True)
class Values:
    """Errors by observation; pictures `[height][width]` or `[height][width][colour]` by row of the figure; the theorem."""

    errors: dict[str, Errors]
    pictures: dict[str, list[Any]]
    theorem: list[Simulation]


@dataclass(frozen=True, kw_only=True)
class Reconstruction(Result):
    """What an adversary draws from one record's gradient, who knows the model, the label and all other records.

    headline: mean squared error of each observation (`plain`, `clipped`, `noisy`, `sparse`) and of a `blind` guess (the
    mean record), with Student's t intervals over the records. values: `errors` with `mse` and `psnr`; `pictures` of
    originals and reconstructions; `theorem`, least squares against Theorem 5.1.
    Guarantee: none; an attack that fails proves nothing. Reference: Geiping et al. 2020, arXiv:2003.14053; Zhu et al. 2023.
    """

    kind: ClassVar[str] = "reconstruction"
    title: ClassVar[str] = "What can be drawn from one gradient"

    values: Values

    def error(self, observed: str) -> Estimate:
        """Mean squared error, in the data's own units."""
        return self.values.errors[observed].mse

    def psnr(self, observed: str) -> Estimate:
        """Peak signal to noise ratio in dB."""
        return self.values.errors[observed].psnr

    def plot(self, ax: Axes) -> Axes:
        """Originals on top, below them what each observation gives."""
        names = ["original", *OBSERVED]
        pictures = {name: [_paint(picture) for picture in self.values.pictures[name]] for name in names}
        height, width = pictures["original"][0].shape[:2]
        down, across = (max(1, round(0.08 * side)) for side in (height, width))
        canvas = np.ones(
            (len(names) * (height + down) - down, len(pictures["original"]) * (width + across) - across, 3)
        )
        for row, name in enumerate(names):
            for column, picture in enumerate(pictures[name]):
                top, left = row * (height + down), column * (width + across)
                canvas[top : top + height, left : left + width] = picture
        ax.imshow(canvas, interpolation="nearest", aspect="equal" if height > 4 else "auto")
        labels = [self._row_name(name) for name in names]
        ax.set_yticks([row * (height + down) + (height - 1) / 2 for row in range(len(names))], labels=labels)
        ax.set_xticks([])
        ax.tick_params(colors=INK, length=0)
        for side in ax.spines.values():
            side.set_edgecolor(FAINT)
        return ax

    def _row_name(self, name: str) -> str:
        return name if name == "original" else f"{name}\nMSE {number(self.error(name).value, 2)}"

    def figures(self) -> list[Figure]:
        """Originals beside reconstructions."""
        count = len(self.values.pictures["original"])
        caption = f"{count} records and what an attack makes of their gradients: {'; '.join(self._legend())}"
        return [Figure(caption, f"{caption}. {' '.join(self.sentences())}", self.plot, 12)]

    @staticmethod
    def _legend() -> list[str]:
        return [f"{name} ({words})" for name, words in OBSERVED.items()]

    def sentences(self) -> list[str]:
        """Without protection, with it, and without any gradient; what clipping alone does; what is not shown."""
        plain, noisy, sparse, blind = (self.error(name) for name in ("plain", "noisy", "sparse", BLIND))
        settings = self.settings
        sentences = [
            f"From a plain gradient the attack rebuilds a record with a mean squared error of {number(plain.value)} "
            f"({level_of(plain)} interval {number(plain.low)} to {number(plain.high)}, {plain.n} records); from what "
            f"training releases (noise multiplier {number(settings['noise_multiplier'])}) with {number(noisy.value)}, with "
            f"{100 * settings['sparsity']:.0f} % of the coordinates left out {number(sparse.value)}. Guessing the mean "
            f"record, without any gradient, is off by {number(blind.value)}.",
            "Clipping alone protects from nothing here: it changes a gradient's length, and the attack looks at its direction."
            if settings["one_block"]
            else "Clipping by layers changes a gradient's direction, not only its length.",
        ]
        sentences.append("An attack that fails proves nothing: only epsilon is a promise.")
        if settings["records"] > SHOWN or settings["shrunk"]:
            small = ", shrunk" if settings["shrunk"] else ""
            sentences.append(f"Shown are {min(settings['records'], SHOWN)} of {settings['records']} records{small}.")
        return sentences

    def tables(self) -> list[Table]:
        """Errors of each observation, then Theorem 5.1."""
        level = level_of(self.error("plain"))
        rows = [
            [name, words, cell(self.error(name), number), cell(self.psnr(name), lambda value: fixed(value, 1))]
            for name, words in {**OBSERVED, BLIND: "no gradient: the mean record"}.items()
        ]
        theorem = [
            [fixed(t.sparsity), cell(t.simulated, number), number(t.expected), number(t.bound)]
            for t in self.values.theorem
        ]
        return [
            Table(f"Reconstruction of records, {level} intervals", ["observed", "", "MSE", "PSNR, dB"], rows),
            Table(
                "Least squares on k x + N(0, 1) with masked coordinates (Theorem 5.1)",
                ["sparsity", "simulated error", "exact error", "lower bound"],
                theorem,
            ),
        ]


def _paint(picture: Any) -> np.ndarray:
    """Red, green and blue; a single row of values is made four high."""
    grey = np.asarray(picture, dtype=float)
    coloured = grey if grey.ndim == 3 else np.repeat(grey[:, :, None], 3, 2)
    return np.repeat(coloured, 4, 0) if len(coloured) == 1 else coloured


def reconstruction(
    model: nn.Module,
    data: Data,
    *,
    twin: nn.Module | None = None,
    generator: np.random.Generator | None = None,
    progress: bool = False,
    mechanism: Mechanism | None = None,
    sparsity: float = 0.9,
    images: int = 4,
    loss_fn: LossFn | None = None,
    attack: Attack | None = None,
    level: float = LEVEL,
) -> Reconstruction:
    """Invert the gradients of some records: plain, clipped, with noise, with noise and a random mask.

    The adversary of the guarantee knows every other record, so what is left of a release is one record's clipped gradient
    and the noise `N(0, (sigma C)^2)`: exactly what `clipped_sum` and `release` give for a batch of one.
    Guarantee: none. Reference: see `invert` and `least_squares`.

    Args:
        model: any classifier on real-valued inputs; asked in evaluation mode.
        data: records to be rebuilt are drawn from it.
        twin: not used.
        generator: draws records, noise, masks and starting points.
        progress: show a bar.
        mechanism: gives clip and noise (of step 0); `Flat(1.0)` and noise multiplier 1 if left out.
        sparsity: share of the coordinates that a random mask leaves out, before clipping.
        images: how many records.
        loss_fn: `(model, (x, y)) -> [batch]`; cross-entropy by default.
        attack: steps and settings of the inversion.
        level: of the intervals.

    Does not retrain; about a minute for four small images. Shows records: sensitive unless the data is public.
    """
    check_level(level)
    check_subject(data, private=model)
    if not data.x.is_floating_point():
        raise DataError(f"inputs of type {data.x.dtype}: only real-valued inputs can be searched for by gradients.")
    if type(images) is not int or not 1 <= images <= len(data):
        raise ConfigError(f"images={images!r} of {len(data)} records: must be a whole number from 1 to that.")
    zeros(1, sparsity)
    rng = np.random.default_rng() if generator is None else generator
    attack = attack or Attack()
    given = mechanism or Mechanism(sampler=FullBatch(1), clip=Flat(1.0), noise_multiplier=1.0, steps=1)
    chosen = data.take(_rows(data, images, rng))
    rebuilt_by = _reconstructions(model, data, chosen, given, sparsity, loss_fn or cross_entropy, attack, rng, progress)
    blind = data.x.mean(0, keepdim=True).expand_as(chosen.x)
    span = max(float(data.x.max() - data.x.min()), 1e-12)
    errors = {name: _errors(chosen, rebuilt, span, level) for name, rebuilt in {**rebuilt_by, BLIND: blind}.items()}
    pictures, shrunk = _pictures({"original": chosen.x, **rebuilt_by}, float(data.x.min()), span)
    return Reconstruction(
        headline={name: error.mse for name, error in errors.items()},
        values=Values(errors=errors, pictures=pictures, theorem=_theorem(rng, level)),
        settings={
            "records": images,
            "noise_multiplier": given.noise_at(0),
            "clip": repr(given.clip_at(0)),
            "one_block": isinstance(given.clip_at(0), OneBlock),
            "sparsity": sparsity,
            "span": span,
            "level": level,
            "shrunk": shrunk,
            "attack": attack._asdict(),
        },
        status=Status("private", "records of a public data set")
        if data.public
        else Status("not-private", "shows records and what can be made of their exact gradients"),
    )


def _rows(data: Data, count: int, rng: np.random.Generator) -> Tensor:
    import torch

    return torch.from_numpy(rng.choice(len(data), count, replace=False))


def _reconstructions(
    model: nn.Module,
    data: Data,
    chosen: Data,
    mechanism: Mechanism,
    sparsity: float,
    loss_fn: LossFn,
    attack: Attack,
    rng: np.random.Generator,
    progress: bool,
) -> dict[str, Tensor]:
    """What the attack makes of each observation, all of them in as few passes as memory allows."""
    import torch

    with evaluating(model):
        seen = observe(model, chosen, mechanism, sparsity, loss_fn, rng)
    gradients = torch.cat([observation.gradients for observation in seen.values()])
    known = torch.cat([observation.known for observation in seen.values()])
    labels = chosen.y.repeat(len(seen))
    generator = torch.Generator().manual_seed(int(rng.integers(2**62)))
    start = torch.randn(chosen.x.shape, generator=generator).repeat(len(seen), *[1] * (chosen.x.dim() - 1))
    at_once = max(1, FLOATS // gradients.shape[1])
    parts = torch.arange(len(labels)).split(at_once)
    rebuilt = []
    with Bar(progress, len(parts) * attack.steps, "inverting gradients") as advance:
        for part in parts:
            rebuilt.append(
                invert(
                    model,
                    Observation(gradients[part], known[part]),
                    labels[part],
                    data.x,
                    loss_fn=loss_fn,
                    attack=attack,
                    start=start[part],
                    advance=advance,
                )
            )
    return dict(zip(seen, torch.cat(rebuilt).split(len(chosen)), strict=True))


def _errors(original: Data, rebuilt: Tensor, span: float, level: float) -> Errors:
    """MSE and PSNR = 10 log10(span^2 / MSE), at most `PEAK`, over the records."""
    squares, owner = (rebuilt.double() - original.x.double()).square().flatten(1).mean(1).numpy(), owners(original)
    ratios = np.minimum(10 * np.log10(span**2 / np.maximum(squares, 1e-300)), PEAK)
    return Errors(
        mse=intervals.mean(squares, level, 0.0, owner),
        psnr=intervals.mean(ratios, level, owner=owner),
        each=squares.tolist(),
    )


def _theorem(rng: np.random.Generator, level: float) -> list[Simulation]:
    """Theorem 5.1 in numbers, for a random k."""
    coordinates, sparsities, draws = THEOREM
    k = rng.standard_normal(coordinates)
    return [
        Simulation(
            sparsity=r,
            simulated=least_squares_error(k, 1.0, r, draws, rng, level),
            expected=expected_error(k, 1.0, r),
            bound=error_bound(k, 1.0, r),
        )
        for r in sparsities
    ]


def _pictures(images: Mapping[str, Tensor], low: float, span: float) -> tuple[dict[str, list[Any]], bool]:
    """At most `SHOWN` pictures of at most `SIDE` pixels a side, values from 0 to 1; were they shrunk?"""
    import torch.nn.functional as F

    def grid(x: Tensor) -> Tensor:
        x = ((x[:SHOWN].float() - low) / span).clamp(0, 1)
        if x.dim() == 4:
            return x if x.shape[1] in (1, 3) else x.mean(1, keepdim=True)
        return x.unsqueeze(1) if x.dim() == 3 else x.flatten(1)[:, None, None]

    sizes: Sequence[int] = grid(images["original"]).shape[2:]
    limit = SIDE if min(sizes) > 1 else 2 * SIDE
    shrink = max(1.0, max(sizes) / limit)
    height, width = (max(1, round(size / shrink)) for size in sizes)

    def drawn(x: Tensor) -> list[Any]:
        small = F.adaptive_avg_pool2d(grid(x), (height, width))
        rounded = [[[[round(v, 3) for v in row] for row in channel] for channel in one] for one in small.tolist()]
        return [one[0] if len(one) == 1 else np.moveaxis(np.asarray(one), 0, 2).tolist() for one in rounded]

    return {name: drawn(x) for name, x in images.items()}, shrink > 1


AUDIT = Audit("reconstruction", reconstruction, takes=TAKES, needs=("mechanism", "loss_fn"), classes=True)

if not TYPE_CHECKING:
    __getattr__ = old_names(__name__)

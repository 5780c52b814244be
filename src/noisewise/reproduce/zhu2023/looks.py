"""What Zhu, Blaschko 2023 show of masks, gradients and attacks: counts, symmetry, inversion."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Any

from noisewise.reproduce.claims import Claim, Finding, above, below, within
from noisewise.reproduce.drawing import curve, dress, sheet
from noisewise.reproduce.experiment import Cell, Config, Experiment, grid
from noisewise.reproduce.measured import Measured

if TYPE_CHECKING:
    from matplotlib.figure import Figure

COUNTS, RANDOM, RANKED, CLEAR = "masks", "random", "ranked", "ranked without noise"


@dataclass(frozen=True, kw_only=True)
class Masks(Config):
    """Masks of a whole run."""

    data: str = "fashion_mnist"
    model: str = "dp-cnn-s"
    batch: int = 1000
    epochs: float = 40
    lr: float = 1.0
    sigma: float = 2.0
    bound: float = 1.0
    final: float = 0.9
    rows: int | None = None


def _mask_cells(config: Masks, measured: Measured) -> Sequence[Cell]:
    return grid(config, "masks:mask_counts", {COUNTS: config.given()})


def _as_random(config: Masks, measured: Measured, level: float) -> list[Finding]:
    return [below("KS distance of ranked masks to random ones", measured.mean(level, COUNTS, RANKED, "ks"), 0.05)]


def _times_wider(row: Mapping[str, Any]) -> float:
    return float(row[COUNTS][CLEAR]["ks"] / max(row[COUNTS][RANKED]["ks"], 1e-9))


def _clear_is_wide(config: Masks, measured: Measured, level: float) -> list[Finding]:
    return [
        above(
            "deviation of counts, without noise - random",
            measured.contrast(level, (COUNTS, CLEAR, "deviation"), (COUNTS, RANDOM, "deviation")),
        ),
        above(
            "KS distance to random masks, without noise over with noise", measured.each_seed(level, _times_wider), 2.0
        ),
    ]


def _payload(config: Masks, measured: Measured, level: float) -> list[Finding]:
    wanted = 1 - config.final / 2
    return [
        within(
            f"numbers sent over dense, {kind} masks",
            measured.mean(level, COUNTS, kind, "payload"),
            wanted - 0.02,
            wanted + 0.02,
        )
        for kind in (RANDOM, RANKED)
    ]


def _draw_masks(config: Masks, measured: Measured) -> Figure:
    figure, (ax,) = sheet()
    bins = len(measured.arms[COUNTS][measured.seeds[0]][RANDOM]["histogram"])
    for place, kind in enumerate((RANDOM, RANKED, CLEAR)):
        shares = [measured.column(COUNTS, kind, "histogram", k) for k in range(bins)]
        seen = [sum(shares[: k + 1], 0 * shares[0]) for k in range(bins)]
        curve(
            ax,
            [(k + 1) / bins for k in range(bins)],
            seen,
            kind,
            place,
            markersize=0,
            linestyle=("-", "--", "-")[place],
        )
    dress(ax, "masked in at most this share of the steps", "share of coordinates")
    return figure


MASKS = Experiment(
    name="masks",
    title="How often a coordinate is masked",
    where="Figure 12, section 5",
    tiers={
        "quick": Masks(seeds=1, data="digits", model="cnn", batch=64, epochs=2, rows=150),
        "standard": Masks(rows=5000, batch=250, epochs=20),
        "full": Masks(seeds=8),
    },
    stages=(_mask_cells,),
    claims=(
        Claim(
            "Z7.masks",
            "counts of ranked masks are those of random ones: KS distance below .05",
            "Figure 12",
            _as_random,
        ),
        Claim("Z7.clear", "ranking without noise masks some coordinates far more often", "Figure 12", _clear_is_wide),
        Claim("Z.payload.run", "a run sends 1 - r*/2 of the numbers", "section 5", _payload),
    ),
    draw=_draw_masks,
    settings=(
        "Fashion-MNIST and DP-CNN/S in place of CIFAR-10 and DP-CNN: batch 1000, 40 epochs (the paper: 100), learning rate 1, "
        "sigma 2, C 1, r* = 0.9 with cooling. Ranking without noise is not private. 'Wider' is a KS distance at least "
        "twice as large."
    ),
    minutes={"quick": 0.03, "standard": 8, "full": 3},
)


# Symmetry --------------------------------------------------------------------------------------------------------------

CLOUDS, DENSE, SPARSE = "deviations", "dense", "random sparsification"


@dataclass(frozen=True, kw_only=True)
class Symmetry(Config):
    """Deviations of gradients from their mean along runs, with and without random sparsification."""

    data: str = "fashion_mnist"
    model: str = "dp-cnn-s"
    batch: int = 1000
    epochs: float = 20
    lr: float = 1.0
    sigma: float = 2.0
    bound: float = 1.0
    final: float = 0.9
    states: int = 6
    looked: int = 500
    rows: int | None = None


def _cloud_cells(config: Symmetry, measured: Measured) -> Sequence[Cell]:
    way = {"batch": config.batch, "lr": config.lr, "sigma": config.sigma}
    sparse = {**way, "repair": {"kind": SPARSE, "final": config.final, "refreshes": 1}}
    given = {name: v for name, v in config.given().items() if name not in ("batch", "lr", "sigma", "final")}
    return grid(config, "gradients:asymmetries", {CLOUDS: {**given, "ways": {DENSE: way, SPARSE: sparse}}})


def _falls(config: Symmetry, measured: Measured, level: float) -> list[Finding]:
    return [
        below(
            f"asymmetry at the end - at the start, {way}",
            measured.contrast(level, (CLOUDS, way, config.states - 1, "asymmetry"), (CLOUDS, way, 0, "asymmetry")),
        )
        for way in (DENSE, SPARSE)
    ]


def _symmetric(config: Symmetry, measured: Measured, level: float) -> list[Finding]:
    return [
        above(
            f"p-value of symmetry at the end, {way}",
            measured.mean(level, CLOUDS, way, config.states - 1, "p"),
            0.05,
        )
        for way in (DENSE, SPARSE)
    ]


def _draw_symmetry(config: Symmetry, measured: Measured) -> Figure:
    figure, (ax,) = sheet()
    for place, way in enumerate((DENSE, SPARSE)):
        across = [config.epochs * k / (config.states - 1) for k in range(config.states)]
        seen = [measured.column(CLOUDS, way, k, "asymmetry") for k in range(config.states)]
        curve(ax, across, seen, way, place)
    dress(ax, "epochs", "asymmetry of the deviations (1 is most)")
    return figure


SYMMETRY = Experiment(
    name="symmetry",
    title="Do deviations of gradients become symmetric?",
    where="appendix F",
    tiers={
        "quick": Symmetry(seeds=1, data="digits", model="cnn", batch=64, epochs=1, rows=150, states=2, looked=60),
        "standard": Symmetry(seeds=10, rows=5000, batch=250, epochs=8, states=3),
        "full": Symmetry(seeds=20),
    },
    stages=(_cloud_cells,),
    claims=(
        Claim("Z8", "the asymmetry falls in the course of training", "appendix F, pictures", _falls),
        Claim(
            "Z8.symmetric",
            "at the end no asymmetry can be told in 500 images",
            "not tested there",
            _symmetric,
            control=True,
        ),
    ),
    draw=_draw_symmetry,
    settings=(
        "Fashion-MNIST and DP-CNN/S in place of CIFAR-10 and DP-CNN: batch 1000, 20 epochs, learning rate 1, sigma 2, C 1, "
        "r* = 0.9. The gradients of 500 training images in a random plane; asymmetry is the squared energy distance between "
        "the cloud and its mirror image over its largest value."
    ),
    minutes={"quick": 0.03, "standard": 6, "full": 2},
)


# Inversion -------------------------------------------------------------------------------------------------------------

ATTACK = "inversion"


@dataclass(frozen=True, kw_only=True)
class Inversion(Config):
    """Images from their gradients, with noise and masks."""

    data: str = "cifar10"
    model: str = "lenet"
    rates: tuple[float, ...] = (0.0, 0.3, 0.5, 0.7, 0.9)
    variance: float = 1e-3
    images: int = 20
    steps: int = 2000
    variation: float = 1e-4
    signed: bool = True


def _attack_cells(config: Inversion, measured: Measured) -> Sequence[Cell]:
    return grid(config, "inverted:inverted_images", {ATTACK: config.given()})


def _grows(config: Inversion, measured: Measured, level: float) -> list[Finding]:
    def error(rate: float) -> tuple[str, ...]:
        return (ATTACK, "rates", f"{rate:g}")

    steps = [
        above(f"error at r = {b:g} - at {a:g}", measured.contrast(level, error(b), error(a)), -0.02)
        for a, b in pairwise(config.rates)
    ]
    ends = measured.contrast(level, error(config.rates[-1]), error(config.rates[0]))
    return [*steps, above(f"error at r = {config.rates[-1]:g} - at {config.rates[0]:g}", ends)]


def _noise_protects(config: Inversion, measured: Measured, level: float) -> list[Finding]:
    gap = measured.contrast(level, (ATTACK, "noisy"), (ATTACK, "plain"))
    return [above("error with noise - without", gap)]


def _attack_works(config: Inversion, measured: Measured, level: float) -> list[Finding]:
    gap = measured.contrast(level, (ATTACK, "plain"), (ATTACK, "blind"))
    return [below("error from the plain gradient - of guessing the mean image", gap)]


def _draw_inversion(config: Inversion, measured: Measured) -> Figure:
    figure, (ax,) = sheet()
    seen = [measured.column(ATTACK, "rates", f"{rate:g}") for rate in config.rates]
    curve(ax, config.rates, seen, "with noise", 0)
    for place, (name, words) in enumerate((("plain", "without noise"), ("blind", "guessing the mean image")), 1):
        column = measured.column(ATTACK, name)
        curve(ax, (config.rates[0], config.rates[-1]), [column, column], words, place, markersize=0, linestyle="--")
    dress(ax, "sparsity r", "mean squared error of the image")
    return figure


INVERSION = Experiment(
    name="inversion",
    title="Images drawn again from gradients, by sparsity",
    where="Figure 5",
    tiers={
        "quick": Inversion(seeds=1, data="digits", model="cnn", rates=(0.0, 0.9), images=1, steps=3),
        "standard": Inversion(rates=(0.0, 0.9), images=4, steps=500),
        "full": Inversion(seeds=10),
    },
    stages=(_attack_cells,),
    claims=(
        Claim("Z6", "the error does not fall with r (.02 allowed), and is larger at the end", "Figure 5", _grows),
        Claim("Z6.noise", "noise alone raises the error", "Figure 5", _noise_protects),
        Claim("Z6.works", "without noise the attack beats guessing", ".02 +- .02", _attack_works, control=True),
    ),
    draw=_draw_inversion,
    settings=(
        "An untrained LeNet in place of ResNet-34, CIFAR-10 images (20 for each of ten seeds: 200), noise of variance 0.001 on "
        "every coordinate of the gradient, which is not clipped; the attack of Geiping et al. with signed steps, 2,000 of "
        "them, total variation 1e-4; label and mask are known. Errors in normalised pixels, so not those of the paper."
    ),
    left_out="ResNet-34, 24,000 steps",
    minutes={"quick": 0.02, "standard": 10, "full": 4},
)

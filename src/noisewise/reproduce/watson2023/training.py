"""Pruning and ablations of Watson et al. 2023 on LeNet."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from noisewise.reproduce.claims import Claim, Finding, above, below, more
from noisewise.reproduce.drawing import accuracies, bars, dress, sheet
from noisewise.reproduce.experiment import TUNING_SEED, Cell, Config, Experiment, grid
from noisewise.reproduce.measured import Measured

if TYPE_CHECKING:
    from matplotlib.figure import Figure

RUN = "images:train_images"
NONE, SAME, PUBLIC, RANDOM = "no mask", "mask from the same data", "mask from another set", "random mask"


@dataclass(frozen=True, kw_only=True)
class Pruning(Config):
    """Masks of one size from several sources, at epsilon 1."""

    seeds: int = 10
    data: str = "fashion_mnist"
    public: str = "mnist"
    model: str = "lenet"
    batch: int = 512
    epochs: float = 30
    lr: float = 0.5
    epsilon: float = 1.0
    sigma: float | None = None
    share: float = 0.7
    mask_epochs: float = 20
    mask_batch: int = 128
    mask_lr: float = 0.1
    rows: int | None = None


def _pruning_cells(config: Pruning, measured: Measured) -> Sequence[Cell]:
    shared = config.given("data", "model", "batch", "epochs", "lr", "epsilon", "sigma", "rows")
    source = {
        "kind": "magnitude mask",
        "share": config.share,
        "epochs": config.mask_epochs,
        "batch": config.mask_batch,
        "lr": config.mask_lr,
    }
    arms = {
        NONE: shared,
        SAME: {**shared, "repair": {**source, "source": "same"}},
        PUBLIC: {**shared, "repair": {**source, "source": config.public}},
        RANDOM: {**shared, "repair": {"kind": "random mask", "share": config.share}},
    }
    return grid(config, RUN, arms)


PRUNING = Experiment(
    name="pruning",
    title="Pruning before private training: masks from several sources, LeNet on Fashion-MNIST",
    where="Figures 18 and 19",
    tiers={
        "quick": Pruning(
            seeds=1,
            data="digits",
            public="digits",
            model="cnn",
            batch=64,
            epochs=0.5,
            mask_epochs=0.5,
            rows=200,
            sigma=1.0,
        ),
        "standard": Pruning(seeds=5, rows=10_000, epochs=8, mask_epochs=2),
        "full": Pruning(),
    },
    stages=(_pruning_cells,),
    claims=(
        Claim(
            "W11",
            "pruning 70 % by weights trained on the same data gains accuracy",
            "Figures 18, 19",
            more(SAME, NONE),
        ),
        Claim("W11.public", "a mask from another set gains too", "Figure 13, for ResNet-18", more(PUBLIC, NONE)),
        Claim(
            "W11.random",
            "the mask from the same data beats a random one",
            "not tested there",
            more(SAME, RANDOM),
            control=True,
        ),
        Claim(
            "W11.public.random", "that from another set does", "not tested there", more(PUBLIC, RANDOM), control=True
        ),
    ),
    draw=accuracies(NONE, SAME, PUBLIC, RANDOM),
    settings=(
        "LeNet with tanh, DP-SGD with batch 512, learning rate 0.5, C 1, 30 epochs, epsilon 1 at delta 1e-5 (as "
        "published for Fashion-MNIST). Masks: 20 epochs of SGD, batch 128, learning rate 0.1, no momentum; 70 % "
        "of each layer's weights removed, biases kept. The mask from the same data voids the guarantee. The standard tier: "
        "10,000 images, 8 epochs, masks from 2 epochs."
    ),
    left_out="MNIST, ResNet-18, the 5 % subset, other shares",
    minutes={"quick": 0.05, "standard": 20, "full": 6},
)


# Clipping against noise ------------------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class Ablation(Config):
    """SGD, clipped, noisy and private, at one learning rate; clipped SGD also at the best of several."""

    data: str = "cifar10"
    model: str = "resnet18"
    options: tuple[tuple[str, str | int], ...] = (("stem", "small"),)
    batch: int = 1024
    epochs: float = 30
    lr: float = 0.5
    sigma: float = 2.4
    bound: float = 1.0
    rates: tuple[float, ...] = (0.5, 1.0, 2.0, 4.0)
    rows: int | None = None
    valid: int = 5000


LEARNT = 0.5  # accuracy
SGD, CLIPPED, NOISY, DP, TUNED = "SGD", "clipped", "noisy", "private", "clipped, tuned step"
WAYS = {SGD: "plain", CLIPPED: "clip-only", NOISY: "noise-only", DP: "private"}


def _ablated(config: Ablation, way: str, lr: float, **changed: Any) -> dict[str, Any]:
    given = {
        **config.given("data", "model", "batch", "epochs", "sigma", "rows", "valid"),
        "options": dict(config.options),
        "lr": lr,
        "rule": {"kind": "local", "bound": config.bound},
        "ablation": WAYS[way],
    }
    return given | changed


def _choices(config: Ablation, measured: Measured) -> dict[float, str]:
    return measured.tried(config.rates, lambda lr: f"lr {lr:g}", "accuracy")


def _ablation_rates(config: Ablation, measured: Measured) -> Sequence[Cell]:
    arms = {arm: _ablated(config, CLIPPED, lr, tuning=True) for lr, arm in _choices(config, measured).items()}
    return grid(config, RUN, arms, seeds=[TUNING_SEED], tuning=True)


def _ablation_cells(config: Ablation, measured: Measured) -> Sequence[Cell]:
    best = measured.best(_choices(config, measured), "accuracy")
    arms = {way: _ablated(config, way, config.lr) for way in WAYS}
    return grid(config, RUN, {**arms, TUNED: _ablated(config, CLIPPED, best)})


def _noise_is_harmless(config: Ablation, measured: Measured, level: float) -> list[Finding]:
    return [above("accuracy, noisy - SGD", measured.difference(level, NOISY, SGD, "accuracy"), -0.02)]


def _clipping_harms(config: Ablation, measured: Measured, level: float) -> list[Finding]:
    return [below("accuracy, clipped - SGD", measured.difference(level, CLIPPED, SGD, "accuracy"), -0.05)]


def _tuned_harms(config: Ablation, measured: Measured, level: float) -> list[Finding]:
    return [
        below("accuracy, clipped with a tuned step - SGD", measured.difference(level, TUNED, SGD, "accuracy"), -0.05)
    ]


def _sgd_learns(config: Ablation, measured: Measured, level: float) -> list[Finding]:
    """What is compared with it means nothing where it diverges, as it does at this rate on few images."""
    return [above("accuracy of SGD", measured.mean(level, SGD, "accuracy"), LEARNT)]


def _draw_ablation(config: Ablation, measured: Measured) -> Figure:
    figure, (ax,) = sheet()
    bars(ax, {name: measured.column(name, "accuracy") for name in (*WAYS, TUNED)})
    dress(ax, "", "test accuracy, %", legend=False)
    return figure


ABLATION = Experiment(
    name="ablation",
    title="Clipping or noise: ResNet-18 on CIFAR-10",
    where="Figure 10",
    tiers={
        "quick": Ablation(
            seeds=1, data="digits", model="cnn", options=(), batch=64, epochs=0.5, rates=(0.5,), rows=200, valid=60
        ),
        "standard": Ablation(
            options=(("stem", "large"), ("width", 16)), rows=25_000, batch=256, epochs=13, sigma=0.6, rates=(0.5, 2.0)
        ),
        "full": Ablation(),
    },
    stages=(_ablation_rates, _ablation_cells),
    claims=(
        Claim("W7.noise", "noisy SGD ends within 2 points of SGD", "Figure 10", _noise_is_harmless, needs=_sgd_learns),
        Claim("W7.clip", "clipped SGD ends at least 5 points below", "Figure 10", _clipping_harms, needs=_sgd_learns),
        Claim(
            "W7.tuned",
            "also with a tuned learning rate",
            "not tested there",
            _tuned_harms,
            control=True,
            needs=_sgd_learns,
        ),
    ),
    draw=_draw_ablation,
    settings=(
        "GroupNorm, batch 1024, learning rate 0.5 for all, 30 epochs, C 1, sigma 2.4, no augmentation, as "
        "published for DP-SGD; noise on the sum has deviation sigma C. The control's learning rate was chosen on "
        "5,000 held-out images. The standard tier: a quarter of the width, 25,000 images, batch 256 and sigma 0.6 (the same "
        "noise in the mean of a batch), 13 epochs, five seeds."
    ),
    minutes={"quick": 0.05, "standard": 110, "full": 40},
)

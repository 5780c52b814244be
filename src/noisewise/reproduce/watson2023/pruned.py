"""Pruning with clipping, noise and both; norms of weights; sources and shares of masks, Watson et al. 2023."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from noisewise.reproduce.claims import Claim, Finding, above, below, more, within
from noisewise.reproduce.drawing import columns, curve, dress, sheet
from noisewise.reproduce.experiment import Cell, Config, Experiment, grid
from noisewise.reproduce.measured import Measured
from noisewise.reproduce.watson2023.training import NONE, PUBLIC, RANDOM, SAME, Pruning

if TYPE_CHECKING:
    from matplotlib.figure import Figure

RUN = "images:train_images"
SGD, CLIPPED, NOISY, DP = "SGD", "clipped", "noisy", "private"
WAYS = {SGD: "plain", CLIPPED: "clip-only", NOISY: "noise-only", DP: "private"}


@dataclass(frozen=True, kw_only=True)
class Pruned(Config):
    """SGD, clipped, noisy and private, with no mask, a mask by magnitude and a random one."""

    seeds: int = 8
    data: str = "cifar10"
    model: str = "lenet"
    batch: int = 1024
    epochs: float = 30
    lr: float = 0.5
    sigma: float = 2.4
    share: float = 0.7
    mask_epochs: float = 10
    mask_batch: int = 128
    mask_lr: float = 0.1
    rows: int | None = None


def _arm(way: str, mask: str) -> str:
    return f"{way}, {mask}"


def _pruned_cells(config: Pruned, measured: Measured) -> Sequence[Cell]:
    shared = config.given("data", "model", "batch", "epochs", "lr", "sigma", "rows")
    masks: dict[str, dict[str, Any] | None] = {
        NONE: None,
        SAME: {
            "kind": "magnitude mask",
            "share": config.share,
            "epochs": config.mask_epochs,
            "batch": config.mask_batch,
            "lr": config.mask_lr,
            "source": "same",
        },
        RANDOM: {"kind": "random mask", "share": config.share},
    }
    wanted = [(way, mask) for way in WAYS for mask in masks if way in (CLIPPED, DP) or mask != RANDOM]
    arms = {_arm(way, mask): {**shared, "ablation": WAYS[way], "repair": masks[mask]} for way, mask in wanted}
    return grid(config, RUN, arms)


def _gain(way: str, first: str, second: str) -> Any:
    def check(config: Pruned, measured: Measured, level: float) -> list[Finding]:
        gap = measured.difference(level, _arm(way, first), _arm(way, second), "accuracy")
        return [above(f"accuracy of {way}, {first} - {second}", gap)]

    return check


def _noise_indifferent(config: Pruned, measured: Measured, level: float) -> list[Finding]:
    gap = measured.difference(level, _arm(NOISY, SAME), _arm(NOISY, NONE), "accuracy")
    return [within(f"accuracy of {NOISY}, {SAME} - {NONE}", gap, -0.02, 0.02)]


def _plain_indifferent(config: Pruned, measured: Measured, level: float) -> list[Finding]:
    gap = measured.difference(level, _arm(SGD, SAME), _arm(SGD, NONE), "accuracy")
    return [below("accuracy of SGD, pruned - not", gap, 0.01)]


def _norms(row: Mapping[str, Any], first: str, second: str) -> float:
    return float(row[first]["norm"] / row[second]["norm"])


def _norm_grows(config: Pruned, measured: Measured, level: float) -> list[Finding]:
    ratio = measured.each_seed(level, _norms, _arm(DP, NONE), _arm(SGD, NONE))
    return [above("norm of the weights, private over SGD", ratio, 1.0)]


def _norm_pruned(config: Pruned, measured: Measured, level: float) -> list[Finding]:
    ratio = measured.each_seed(level, _norms, _arm(DP, SAME), _arm(DP, NONE))
    return [below("norm of the weights, private, pruned over not", ratio, 1.0)]


def _draw_pruned(config: Pruned, measured: Measured) -> Figure:
    figure, axes = sheet(2)
    for ax, of, scale in ((axes[0], "accuracy", 100.0), (axes[1], "norm", 1.0)):
        for place, mask in enumerate((NONE, SAME, RANDOM)):
            ways = [way for way in WAYS if _arm(way, mask) in measured.arms]
            seen = columns(measured, [_arm(way, mask) for way in ways], of)
            spots = [list(WAYS).index(way) + 0.15 * (place - 1) for way in ways]
            curve(ax, spots, [scale * column for column in seen], mask, place, linestyle="")
        ax.set_xticks(range(len(WAYS)), labels=list(WAYS))
        dress(ax, "", "test accuracy, %" if of == "accuracy" else "norm of the weights", above=True)
    return figure


PRUNED = Experiment(
    name="pruned",
    title="Pruning with clipping, with noise, with both; norms of weights",
    where="Figures 12, 16 and 17",
    tiers={
        "quick": Pruned(seeds=1, data="digits", model="cnn", batch=64, epochs=0.5, mask_epochs=0.5, rows=150),
        "standard": Pruned(seeds=5, rows=5000, batch=256, epochs=10, mask_epochs=5, mask_batch=64),
        "full": Pruned(),
    },
    stages=(_pruned_cells,),
    claims=(
        Claim("W8.clip", "pruning 70 % raises the accuracy of clipped SGD", "Figure 12", _gain(CLIPPED, SAME, NONE)),
        Claim("W8.noise", "noisy SGD ends where it did (2 points allowed)", "Figure 12", _noise_indifferent),
        Claim(
            "W8.random",
            "a random mask does less for clipped SGD",
            "not tested there",
            _gain(CLIPPED, SAME, RANDOM),
            control=True,
        ),
        Claim(
            "W8.plain",
            "pruning gains nothing without clipping and noise: SGD is not better with it",
            "not tested there",
            _plain_indifferent,
            control=True,
        ),
        Claim("W10", "weights are longer under DP-SGD than under SGD", "142 against 86, ResNet-18", _norm_grows),
        Claim("W10.pruned", "and shorter again with pruning", "100, ResNet-18", _norm_pruned),
    ),
    draw=_draw_pruned,
    settings=(
        "LeNet with tanh on CIFAR-10 in place of ResNet-18; batch 1024, learning rate 0.5, 30 epochs, C 1, sigma 2.4 for all "
        "ways (not tuned); masks from ten epochs of SGD on the same data, batch 128, learning rate 0.1: no guarantee is left."
    ),
    left_out="ResNet-18; so norms are compared in direction only",
    minutes={"quick": 0.06, "standard": 12, "full": 4},
)


# Shares and sources ----------------------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class Shares(Pruning):
    """Masks of several sizes, from all of the data, from 5 % of it and from another set.

    classes: that are private, all where none is named; the others can be that other set. public_way: how the model learns on
    it where that is not how it learns on the records. options: of the model.
    """

    shares: tuple[float, ...] = (0.3, 0.5, 0.7, 0.9)
    records: float = 0.05
    classes: tuple[int, ...] = ()
    public_way: tuple[tuple[str, float], ...] = ()
    options: tuple[tuple[str, str | int], ...] = ()


FEW = "mask from 5 % of the data"


def _sized(mask: str, share: float) -> str:
    return f"{mask}, {share:g} pruned"


def _share_cells(config: Shares, measured: Measured) -> Sequence[Cell]:
    shared = config.given("data", "model", "batch", "epochs", "lr", "epsilon", "sigma", "rows")
    if config.classes:
        shared["classes"] = list(config.classes)
    if config.options:
        shared["options"] = dict(config.options)
    source = {"kind": "magnitude mask", "epochs": config.mask_epochs, "batch": config.mask_batch, "lr": config.mask_lr}
    arms: dict[str, dict[str, Any]] = {NONE: shared}
    for share in config.shares:
        arms[_sized(SAME, share)] = {**shared, "repair": {**source, "share": share, "source": "same"}}
        arms[_sized(RANDOM, share)] = {**shared, "repair": {"kind": "random mask", "share": share}}
    few = {**source, "share": config.share, "source": "same", "records": config.records}
    arms[FEW] = {**shared, "repair": few}
    public = {**source, **dict(config.public_way), "share": config.share, "source": config.public}
    arms[PUBLIC] = {**shared, "repair": public}
    return grid(config, RUN, arms)


def _best_share(config: Shares, measured: Measured, level: float) -> list[Finding]:
    return [
        above(
            f"accuracy at {config.share:g} pruned - at {share:g}",
            measured.difference(level, _sized(SAME, config.share), _sized(SAME, share), "accuracy"),
        )
        for share in (config.shares[0], config.shares[-1])
    ]


def _same_gains(config: Shares, measured: Measured, level: float) -> list[Finding]:
    gain = measured.difference(level, _sized(SAME, config.share), NONE, "accuracy")
    return [above("accuracy, mask from the same data - no mask", gain)]


def _same_over_random(config: Shares, measured: Measured, level: float) -> list[Finding]:
    pair = (_sized(SAME, config.share), _sized(RANDOM, config.share))
    return [above("accuracy, mask from the same data - random", measured.difference(level, *pair, "accuracy"))]


def _same_shortens(config: Shares, measured: Measured, level: float) -> list[Finding]:
    ratio = measured.each_seed(level, _norms, _sized(SAME, config.share), NONE)
    return [below("norm of the weights, mask from the same data over none", ratio, 1.0)]


def _draw_shares(config: Shares, measured: Measured) -> Figure:
    figure, (ax,) = sheet(width=5.6)
    for place, mask in enumerate((SAME, RANDOM)):
        arms = [NONE, *(_sized(mask, share) for share in config.shares)]
        seen = columns(measured, arms, "accuracy")
        curve(ax, (0.0, *config.shares), [100 * column for column in seen], mask, place)
    for place, mask in enumerate((FEW, PUBLIC), 2):
        curve(ax, [config.share], [100 * measured.column(mask, "accuracy")], mask, place, marker="D")
    dress(ax, "pruned share", "test accuracy, %")
    return figure


def _share_claims(name: str, published: str, other: str, *more_of: Claim) -> tuple[Claim, ...]:
    """Those of all experiments on masks; `other`: whose weights the public mask comes from."""
    return (
        Claim(f"{name}.same", "a mask from the same data gains at epsilon 1", published, _same_gains),
        Claim(f"{name}.few", "a mask from 5 % of the data gains", "Figure 13", more(FEW, NONE)),
        Claim(f"{name}.public", f"a mask from {other} gains", "Figure 13, CIFAR-100", more(PUBLIC, NONE)),
        *more_of,
        Claim(
            f"{name}.random",
            "the mask from the same data beats a random one of equal size",
            "not tested there",
            _same_over_random,
            control=True,
        ),
    )


def _best(name: str) -> Claim:
    return Claim(f"{name}.best", "pruning 70 % is better than less or more", "Figure 15", _best_share)


def _as_published(epochs: int) -> tuple[tuple[str, float], ...]:
    """How the paper trains on CIFAR-100 for a mask."""
    return (("epochs", epochs), ("batch", 512), ("lr", 0.02), ("momentum", 0.9))


QUICK = Shares(
    seeds=1, data="digits", public="digits", model="cnn", batch=64, epochs=0.5, mask_epochs=0.5, rows=150, sigma=1.0,
    shares=(0.5, 0.7, 0.9),
)  # fmt: skip

SHARES = Experiment(
    name="shares",
    title="How much to prune, and whose weights to prune by, LeNet on Fashion-MNIST",
    where="Figures 13 to 15",
    tiers={
        "quick": QUICK,
        "standard": Shares(seeds=5, rows=10_000, epochs=8, mask_epochs=2, shares=(0.3, 0.7, 0.9)),
        "full": Shares(seeds=5),
    },
    stages=(_share_cells,),
    claims=_share_claims("W9", "+23 points, ResNet-18", "another set", _best("W9")),
    draw=_draw_shares,
    settings=(
        "LeNet with tanh on Fashion-MNIST and MNIST as the other set, in place of ResNet-18, CIFAR-10 and CIFAR-100, "
        "which was not available; the settings of watson2023.pruning. Masks from the same data, or from 5 % of it, void "
        "the guarantee. The standard tier: 10,000 images, 8 epochs, masks from 2 epochs."
    ),
    left_out="ResNet-18, epsilon 2",
    minutes={"quick": 0.06, "standard": 25, "full": 5},
)

FIRST = (0, 1, 2, 3, 4)  # airplane, automobile, bird, cat, deer; public: dog, frog, horse, ship, truck
HALVES: dict[str, Any] = {"seeds": 5, "data": "cifar10", "classes": FIRST, "public": "other classes"}
QUICK_HALVES = replace(QUICK, classes=FIRST, public="other classes")
HALVED = (
    "Airplane, automobile, bird, cat and deer are private, 25,000 images, and their test images are looked at; dog, frog, "
    "horse, ship and truck are the public set, in place of CIFAR-100, which was not available. Masks from the same data, or "
    "from 5 % of it, void the guarantee; that from other classes (SGD with batch 512, learning rate 0.02, momentum 0.9, 100 "
    "epochs, as published for CIFAR-100, without augmentation) masks the last layer too. "
)

SHARES_HALVES = Experiment(
    name="shares_halves",
    title="How much to prune, and whose weights to prune by, five classes of CIFAR-10 with the others as the public set",
    where="Figures 13 to 15",
    tiers={
        "quick": QUICK_HALVES,
        "standard": Shares(
            **HALVES, rows=10_000, epochs=8, mask_epochs=5, public_way=_as_published(10), shares=(0.3, 0.7, 0.9)
        ),
        "full": Shares(**HALVES, batch=1024, public_way=_as_published(100)),
    },
    stages=(_share_cells,),
    claims=_share_claims("W9.halves", "+23 points, ResNet-18", "other classes", _best("W9.halves")),
    draw=_draw_shares,
    settings=HALVED + "LeNet with tanh in place of ResNet-18, batch 1024, learning rate 0.5, C 1, 30 epochs, masks from 20 "
    "epochs of SGD, batch 128, learning rate 0.1. The standard tier: 10,000 images, batch 512, 8 epochs, masks from 5, "
    "and 10 on the public set.",
    left_out="ResNet-18, which watson2023.shares_resnet has; epsilon 2",
    minutes={"quick": 0.06, "standard": 10, "full": 6},
)  # fmt: skip

SHARES_RESNET = Experiment(
    name="shares_resnet",
    title="Pruning 70 % of a ResNet-18, five classes of CIFAR-10 with the others as the public set",
    where="Figures 13, 16 and 17",
    tiers={
        "quick": replace(QUICK_HALVES, shares=(0.7,)),
        "standard": Shares(
            **HALVES, model="resnet18", options=(("stem", "large"), ("width", 16)), epochs=8, mask_epochs=5,
            public_way=_as_published(10), shares=(0.7,),
        ),
        "full": Shares(
            **HALVES, model="resnet18", options=(("stem", "small"),), batch=1024, public_way=_as_published(100), shares=(0.7,)
        ),
    },
    stages=(_share_cells,),
    claims=_share_claims(
        "W9.resnet", "+23 points", "other classes",
        Claim("W10.resnet", "pruning shortens the weights", "100 against 142", _same_shortens),
    ),
    draw=_draw_shares,
    settings=HALVED + "GroupNorm, batch 1024, learning rate 0.5, C 1, 30 epochs, no augmentation; masks from 20 epochs of SGD, "
    "batch 128, learning rate 0.1. The standard tier: a quarter of the width, batch 512, 8 epochs, masks from 5, and "
    "10 on the public set.",
    left_out="epsilon 2",
    minutes={"quick": 0.06, "standard": 80, "full": 40},
)  # fmt: skip

SHARES_CIFAR = Experiment(
    name="shares_cifar",
    title="How much to prune, and whose weights to prune by, CIFAR-10 with CIFAR-100 as the other set",
    where="Figures 13 to 15",
    tiers={
        "quick": QUICK,
        "standard": Shares(
            seeds=5,
            data="cifar10",
            public="cifar100",
            batch=512,
            rows=10_000,
            epochs=8,
            mask_epochs=2,
            shares=(0.3, 0.7, 0.9),
        ),
        "full": Shares(seeds=5, data="cifar10", public="cifar100", batch=1024, public_way=_as_published(100)),
    },
    stages=(_share_cells,),
    claims=_share_claims("W9.cifar", "+23 points, ResNet-18", "CIFAR-100", _best("W9.cifar")),
    draw=_draw_shares,
    settings=(
        "LeNet with tanh in place of ResNet-18, batch 1024, learning rate 0.5, C 1, 30 epochs; on CIFAR-100 SGD with batch "
        "512, learning rate 0.02, momentum 0.9, 100 epochs, without augmentation; its output layer is another one, so it gives "
        "no mask for the last layer."
    ),
    left_out="ResNet-18, epsilon 2",
    cannot="the files of CIFAR-100 were not available",
    minutes={"quick": 0.06, "standard": 30, "full": 6},
)

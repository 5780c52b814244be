"""Runs on images: one training, and all that a claim may ask of the model: accuracy, attacks, calibration, members, curves."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Iterable
from dataclasses import replace
from functools import cache, partial
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.utils import parameters_to_vector

import noisewise as nw
from noisewise import audits, repairs
from noisewise.accounting.accountants import pld_epsilon
from noisewise.attacks.pgd import Space, pgd
from noisewise.clipping import Clip, Flat, Global, per_layer
from noisewise.data import Data, Splits, made_up
from noisewise.data.cached import kept
from noisewise.data.images import SCALES, black
from noisewise.data.scatter import scatter
from noisewise.data.statistics import bounds_of, noised_statistics
from noisewise.data.transforms import only_classes, pad_and_resize, rotate, subsample_class
from noisewise.errors import ConfigError
from noisewise.evaluation import outputs
from noisewise.losses import cross_entropy
from noisewise.models import build
from noisewise.recipe import Recipe, train_openly
from noisewise.reproduce.tables import noise_for, release_of_statistics

DELTA = 1e-5
BATCH = 2000  # images at a time, when nothing is learnt
CORE = 512  # images at a time, when a core learns: maps of more do not stay in its cache
SHOWN = 5000  # training images whose loss a curve shows
MADE_UP = 1000  # images whose features bound those of private ones
OTHERS = "other classes"  # a public set: images of the classes that are not private
APART = 1_000_000  # seeds of statistics begin there: their noise is not that of a first step


def train_images(
    *,
    seed: int,
    device: str,
    data: str,
    model: str,
    batch: int,
    epochs: float,
    lr: float,
    momentum: float = 0.0,
    adam: bool = False,
    beta: float | None = None,
    options: dict[str, Any] | None = None,
    rows: int | None = None,
    sizes: dict[str, int] | None = None,
    classes: list[int] | None = None,
    padding: float = 0.0,
    scattered: bool = False,
    standardised: float | None = None,
    rule: dict[str, Any] | None = None,
    sigma: float | None = None,
    epsilon: float | None = None,
    ablation: str = "private",
    sampler: str = "poisson",
    repair: dict[str, Any] | None = None,
    start: dict[str, Any] | None = None,
    turned: dict[str, Any] | None = None,
    radius: dict[str, float] | None = None,
    attacked: int = 1000,
    curve: int = 0,
    members: bool = False,
    tuning: bool = False,
    valid: int = 5000,
    keep: Callable[[nn.Module], None] | None = None,
) -> dict[str, Any]:
    """Train one model and look at it, on the test part; while `tuning` on held-out training images instead.

    Args:
        seed: of initial weights, batches and noise; equal seeds are pairs.
        device: where.
        data: a set of images by name.
        model: a model by name, with `options`.
        batch: expected size.
        epochs: passes over the training rows.
        lr: learning rate of SGD.
        momentum: of SGD.
        adam: DP-Adam in place of SGD.
        beta: its momentum, 0.9 by default.
        options: of the model.
        rows: that are trained on; all by default.
        sizes: of classes, others in full.
        classes: that are private, numbered anew; training images of the others are a public set, `other classes`.
        padding: share of the side that is border.
        scattered: scattering features in place of pixels.
        standardised: noise multiplier of their statistics, by which the model normalises; they are part of the budget.
        rule: of clipping, see `rule_of`.
        sigma: noise multiplier; without one, that of `epsilon` at delta 1e-5.
        epsilon: see sigma; 3 by default.
        ablation: private, plain, clip-only or noise-only.
        sampler: poisson, or shuffle (`sigma` must be given: what it costs is another question).
        repair: see `repairs_of`.
        start: public pretraining: epochs, batch, lr on the images that are not turned.
        turned: degrees, and how many of the turned test images are trained on; the others are the test part.
        radius: of PGD by norm (`l2`, `linf`, and a word behind it where there are several), for pixels from 0 to 1.
        attacked: test images that are attacked.
        curve: points of the loss over the run.
        members: attack membership.
        tuning: look at held-out training images; the test part is not read.
        valid: how many those are.
        keep: called with the trained model.
    """
    if device == "cpu":
        torch.set_num_threads(1)
    prepared = scattered_of if scattered else parts_of
    parts = prepared(data, valid if tuning else 0, padding, device)
    train, look = parts.train, parts.valid if tuning else parts.test
    public, others = train, None
    if classes is not None:
        others = only_classes(train, [label for label in range(len(train.classes)) if label not in classes])
        train, look = only_classes(train, classes), only_classes(look, classes)
    if turned is not None:
        train, look = _turned(data, parts, turned, tuning)
    if sizes is not None:
        train = subsample_class(train, {int(label): size for label, size in sizes.items()}, seed)
    if rows is not None and rows < len(train):
        train = train.take(
            torch.from_numpy(np.random.default_rng(seed).permutation(len(train))[:rows]).to(train.y.device)
        )
    if standardised is not None:
        options = {**(options or {}), "statistics": _statistics(data, train, standardised, seed, device)}
    network = build(model, tuple(train.x.shape[1:]), len(train.classes), seed, **(options or {})).to(device)
    if start is not None:
        network = _pretrained(network, data, public, start, seed)
    n, size = len(train), min(batch, len(train))
    steps = nw.steps_for(epochs, n, size)
    if ablation in ("plain", "clip-only"):
        sigma = 0.0
    elif sigma is None:
        sigma = noise_for(n, size, steps, 3.0 if epsilon is None else epsilon, DELTA, statistics=standardised)
    plan = nw.Mechanism(
        sampler=nw.Poisson(n, size), clip=rule_of(rule or {}, network), steps=steps, noise_multiplier=sigma
    )
    if sampler == "shuffle":
        plan = replace(plan, sampler=nw.Shuffle(n, size), adjacency="zero-out")
    recipe = Recipe(
        model=network, data=Splits(train, look.take(torch.arange(0)), look), loss_fn=cross_entropy, mechanism=plan,
        optimizer=optimizer_of(lr, momentum, adam, beta),
    )  # fmt: skip
    recipe = repairs.repaired(recipe, *repairs_of(repair, seed, device, others))
    watched = _Curve(curve, plan.steps, look, train)
    trained = _carried_out(recipe, seed, ablation, watched, device)
    if keep is not None:
        keep(trained)
    seen = _seen(trained, look, data, radius or {}, attacked, seed)
    seen["train_accuracy"] = scores_of(trained, watched.fitted)["accuracy"]
    seen |= {"steps": plan.steps, "noise_multiplier": float(plan.noise_at(0)), "n": n, "curve": watched.points}
    if ablation == "private" and plan.noise_at(0) > 0:
        before = [] if standardised is None else [(release_of_statistics(n, standardised), 1)]
        seen["epsilon"] = pld_epsilon([*before, *plan.events()], DELTA, plan.adjacency)
    if members:
        seen["auc"] = _auc(trained, look, train, seed)
    return seen


def hard_images(
    *, seed: int, device: str, ensemble: int, open_lr: float, open_epochs: float, parts: int = 10, **settings: Any
) -> dict[str, Any]:
    """Accuracy of a private model and of its twin by how hard test images are to an ensemble of other open models.

    Images are ranked by the mean loss of `ensemble` models and cut into `parts`, the easiest first.
    """
    test = parts_of(settings["data"], 0, 0.0, device).test
    openly = {**settings, "ablation": "plain", "lr": open_lr, "epochs": open_epochs, "momentum": 0.0}
    losses = torch.stack([_losses(_model(seed * 100 + 50 + k, device, openly), test) for k in range(ensemble)])
    order = losses.mean(0).argsort(stable=True)
    seen: dict[str, Any] = {}
    for which, given in (("private", settings), ("twin", openly)):
        logits = outputs(_model(seed, device, given), test.x, BATCH)
        right = (logits.argmax(1) == test.y.cpu()).double()[order]
        seen[which] = [float(part.mean()) for part in right.tensor_split(parts)]
    return seen


def _model(seed: int, device: str, settings: dict[str, Any]) -> nn.Module:
    kept: list[nn.Module] = []
    train_images(seed=seed, device=device, keep=kept.append, **settings)
    return kept[0]


def _losses(model: nn.Module, data: Data) -> Tensor:
    return nn.functional.cross_entropy(outputs(model, data.x, BATCH), data.y.cpu(), reduction="none")


@cache
def parts_of(data: str, valid: int, padding: float, device: str) -> Splits:
    """A set of images on the device, padded."""
    split = nw.load(data, 0, valid)
    made = []
    for part in split:
        x = part.x.to(device)
        x = pad_and_resize(x, padding, black(data)) if padding else x
        made.append(replace(part, x=x, y=part.y.to(device)))
    return Splits(*made)


@cache
def scattered_of(data: str, valid: int, padding: float, device: str) -> Splits:
    """The same as scattering features, `[81 channels, height / 4, width / 4]`."""
    return Splits(*(replace(part, x=scatter(part.x, device=device)) for part in parts_of(data, valid, padding, device)))


def _statistics(data: str, train: Data, noise: float, seed: int, device: str) -> tuple[Tensor, Tensor]:
    """Means and deviations of channels, released with noise; bounds and units are those of made-up images, which are free."""
    colours, height, width = parts_of(data, 0, 0.0, device).train.x.shape[1:]
    made = scatter(made_up.images("spectrum", MADE_UP, (colours, height, width), device=device), device=device)
    public = Data(made, made.new_zeros(len(made), dtype=torch.int64), classes=("made up",), public=True)
    told = noised_statistics(train, bounds_of(public), noise_multiplier=noise, insecure_seed=APART + seed)
    return told.mean, told.std


def _turned(name: str, parts: Splits, turned: dict[str, Any], tuning: bool) -> tuple[Data, Data]:
    """Turned test images: some are trained on, the others are the test part; while tuning a fifth of the first."""
    whole = parts.test
    x = rotate(whole.x, turned["degrees"], black(name)) if turned["degrees"] else whole.x
    order = torch.from_numpy(np.random.default_rng(0).permutation(len(whole))).to(whole.y.device)
    moved, count = replace(whole, x=x), int(turned["rows"])
    if count >= len(whole):
        raise ConfigError(f"{count} turned images to train on: {name} has {len(whole)}, and some must be left.")
    if not tuning:
        return moved.take(order[:count]), moved.take(order[count:])
    held = count // 5
    return moved.take(order[held:count]), moved.take(order[:held])


def _pretrained(model: nn.Module, data: str, public: Data, start: dict[str, Any], seed: int) -> nn.Module:
    """Trained openly, once for all runs that begin so: kept in the user's cache, by weights at the start and settings."""

    def train() -> Tensor:
        trained = train_openly(
            model, public, cross_entropy, epochs=start["epochs"], batch_size=start["batch"], lr=start["lr"], seed=seed
        )
        return parameters_to_vector(trained.parameters()).detach()

    if any(True for _ in model.buffers()):
        raise ConfigError(
            f"start={start!r}: a public start keeps parameters only, this model has buffers. Use another one."
        )
    first = parameters_to_vector(model.parameters()).detach()
    about = f"{data} {len(public)} {sorted(start.items())} {seed} {first.device.type} {torch.__version__}"
    trained = kept(first, about, train, public=True, name="pretrained")
    parts = trained.split([parameter.numel() for parameter in model.parameters()])
    with torch.no_grad():
        for parameter, part in zip(model.parameters(), parts, strict=True):
            parameter.copy_(part.view_as(parameter))  # into memory of its own
    return model


def optimizer_of(lr: float, momentum: float, adam: bool, beta: float | None) -> Callable[..., torch.optim.Optimizer]:
    """SGD, or Adam with `beta` for its first moment."""
    if adam:
        return partial(torch.optim.Adam, lr=lr, betas=(0.9 if beta is None else beta, 0.999))
    return partial(torch.optim.SGD, lr=lr, momentum=momentum)


def rule_of(given: dict[str, Any], model: nn.Module) -> Clip:
    """`{"kind": "local" | "global" | "local layerwise" | "global layerwise", "bound": C, "screen": Z, "bias": C of biases}`."""
    kind, bound = given.get("kind", "local"), float(given.get("bound", 1.0))
    screen, bias = given.get("screen"), float(given.get("bias", bound))

    def of(limit: float) -> Clip:
        return Global(limit, float(screen)) if kind.startswith("global") and screen else Flat(limit)

    if kind in ("local", "global"):
        return of(bound)
    if kind in ("local layerwise", "global layerwise"):
        return per_layer([name for name, _ in model.named_parameters()], {"*bias": of(bias), "*": of(bound)})
    raise ConfigError(f"clipping rule {kind!r}: must be local or global, or either of them layerwise.")


def repairs_of(
    given: dict[str, Any] | None, seed: int, device: str = "cpu", others: Data | None = None
) -> list[repairs.Repair]:
    """A repair by `kind`: freeze, prune, random or magnitude mask, random or ranked sparsification, ..., `several` of them."""
    match given:
        case None:
            return []
        case {"kind": "several", "repairs": each}:
            return [made for one in each for made in repairs_of(one, seed, device, others)]
        case {"kind": "average", "decay": decay}:
            return [repairs.MovingAverage(decay)]
        case {"kind": "pretraining", "source": source, "epochs": epochs, "batch": batch, "lr": lr}:
            training = {"epochs": epochs, "batch_size": batch, "lr": lr, "seed": seed}
            return [repairs.Pretraining(_source(source, device, 1.0, training, others))]
        case {"kind": "global clipping", "screen": screen, "lr_factor": factor}:
            return [repairs.GlobalClipping(screen, factor)]
        case {"kind": "freeze" | "prune" as mode, "at": at, "shares": shares}:
            return [repairs.StagewiseFreezing(at=tuple(at), shares=tuple(shares), mode=mode)]
        case {"kind": "random mask", "share": share}:
            return [repairs.MagnitudePruning(repairs.AtRandom(seed), share)]
        case {"kind": "magnitude mask", "share": share, "source": source, "epochs": epochs, "batch": batch, "lr": lr}:
            training = {"epochs": epochs, "batch_size": batch, "lr": lr, "seed": seed}
            training["momentum"] = given.get("momentum", 0.0)
            records = given.get("records", 1.0)
            return [repairs.MagnitudePruning(_source(source, device, records, training, others), share)]
        case {"kind": "random sparsification", "final": final, "refreshes": refreshes}:
            return [repairs.RandomSparsification(final, refreshes=refreshes)]
        case {"kind": "ranked sparsification", "final": final}:
            return [repairs.RankedSparsification(final)]
        case {"kind": "local then global", "screen": screen, "share": share}:
            return [repairs.LocalThenGlobal(screen=screen, share=share)]
    raise ConfigError(f"repair {given!r}: none of those that the experiments use.")


def _source(name: str, device: str, records: float, training: dict[str, Any], others: Data | None) -> Any:
    """Whose weights a mask comes from: a share of the private records (no guarantee is left), or a public set by name."""
    if name == "same":
        return repairs.PrivateRecords(accept_not_private=True, share=records, **training)
    if name == OTHERS:
        if others is None:
            raise ConfigError(f"source={name!r}: needs `classes`, which says which classes are not public.")
        return repairs.PublicTraining(others, **training)
    return repairs.PublicTraining(parts_of(name, 0, 0.0, device).train, **training)


class _Curve:
    """Test and training loss, and test accuracy, at equal distances over a run."""

    def __init__(self, points: int, steps: int, look: Data, train: Data):
        self.every = max(1, steps // points) if points else math.inf
        self.look, self.fitted = look, train.take(torch.arange(min(SHOWN, len(train)), device=train.y.device))
        self.points: list[dict[str, float]] = []

    def note(self, step: int, model: nn.Module, last: bool = False) -> None:
        """One point, if it is time."""
        before = self.points[-1]["step"] if self.points else -math.inf
        if self.every == math.inf or (step - before < self.every and not last):
            return
        test, fitted = scores_of(model, self.look), scores_of(model, self.fitted)
        self.points.append({"step": step, **test, "train_loss": fitted["loss"]})


def _carried_out(recipe: Recipe, seed: int, ablation: Any, watched: _Curve, device: str) -> nn.Module:
    """A trained copy of a recipe's model; recipes here have one phase."""
    model = copy.deepcopy(recipe.model)
    watched.note(0, model)
    trained = nw.train(
        model, recipe.data.train, recipe.loss_fn, recipe.mechanism, recipe.optimizer(model.parameters()), seed=seed,
        insecure_seed=seed, delta=DELTA, progress=False, ablation=ablation, ema=recipe.ema, augment=recipe.augment,
        runtime=runtime_for(device),
        callbacks=[lambda told: watched.note(told.step, model, told.step == told.steps)],
    )  # fmt: skip
    if trained.averaged is not None:
        model.load_state_dict(trained.averaged, strict=False)
    return model


def runtime_for(device: str) -> nw.Runtime:
    """How steps are computed there: on a core in micro-batches (networks of images took 15 to 28 % less time in them)."""
    return nw.Runtime(capture=False, microbatch=CORE) if device == "cpu" else nw.Runtime()


def scores_of(model: nn.Module, data: Data) -> dict[str, float]:
    """Mean loss and accuracy."""
    logits = outputs(model, data.x, BATCH)
    y = data.y.cpu()
    return {
        "loss": float(nn.functional.cross_entropy(logits, y)),
        "accuracy": float((logits.argmax(1) == y).double().mean()),
    }


def _seen(
    model: nn.Module, look: Data, name: str, radius: dict[str, float], attacked: int, seed: int
) -> dict[str, Any]:
    logits, y = outputs(model, look.x, BATCH), look.y.cpu()
    right = (logits.argmax(1) == y).double()
    seen: dict[str, Any] = scores_of(model, look)
    seen["classes"] = [float(right[y == label].mean()) for label in range(logits.shape[1])]
    seen["balanced"] = float(np.mean(seen["classes"]))
    seen |= calibration_errors(logits, y)
    seen["norm"] = float(torch.cat([weight.detach().flatten() for weight in model.parameters()]).norm())
    rows = torch.from_numpy(np.random.default_rng(0).permutation(len(look))[:attacked]).to(look.y.device)
    for norm, size in radius.items():
        worst = _attacked(model, look.take(rows), name, norm.split()[0], size, seed)
        labels = look.y[rows].cpu()
        seen[norm] = {
            "accuracy": float(worst.mean()),
            "classes": [float(worst[labels == label].mean()) for label in range(logits.shape[1])],
        }
    return seen


def _attacked(model: nn.Module, data: Data, name: str, norm: str, size: float, seed: int) -> Tensor:
    """Which images stay right; PGD of 20 steps in pixels from 0 to 1."""
    scale = SCALES[name]
    low, high = ([(end - m) / s for m, s in zip(*scale, strict=True)] for end in (0.0, 1.0))
    space = Space.of(data.x, (low, high), [1 / s for s in scale.std])
    generator = torch.Generator().manual_seed(seed)
    answers: Iterable[Tensor] = (
        pgd(model, x, y, size, norm, space, generator, steps=20, stop=True).right.cpu()
        for x, y in zip(data.x.split(BATCH), data.y.split(BATCH), strict=True)
    )
    return torch.cat(list(answers)).double()


def calibration_errors(logits: Tensor, y: Tensor, bins: int = 15, smallest: int = 20) -> dict[str, float]:
    """ECE and MCE with bins of equal width; `mce` leaves out bins of fewer than `smallest` rows, `mce_all` none.

    `ECE = sum_b |b|/N |acc(b) - conf(b)|`, `MCE = max_b |acc(b) - conf(b)|`. As `noisewise.audits.calibration`, whose
    intervals are not needed here: those of experiments are over seeds. Also `over`: mean confidence - accuracy.
    """
    confidence, answer = torch.softmax(logits, 1).max(1)
    right = (answer == y).double()
    which = (confidence * bins).ceil().long().clamp(1, bins) - 1
    count = torch.bincount(which, minlength=bins).double()
    gaps = torch.bincount(which, right - confidence.double(), minlength=bins).abs()
    each = gaps / count.clamp(min=1)
    large = count >= smallest
    return {
        "ece": float(gaps.sum() / len(y)),
        "mce": float(each[large].max()) if bool(large.any()) else float(each.max()),
        "mce_all": float(each.max()),
        "over": float((confidence.double() - right).mean()),
    }


def _auc(model: nn.Module, look: Data, train: Data, seed: int) -> dict[str, float]:
    """Of the logistic attack on held-out halves, as many members as others."""
    model, here = model.cpu(), [replace(part, x=part.x.cpu(), y=part.y.cpu()) for part in (look, train)]
    found = audits.membership(model, here[0], members=here[1], generator=np.random.default_rng(seed), rows=len(look))
    return {name: found.attack(name).auc.value for name in found.attacks}

"""The page of what we learned, for a reader who will not open the papers; every number comes from a result file.

    python benchmarks/learned.py       # writes docs/what_we_learned.md and docs/questions.md

A statement belongs to a claim and has a sentence for each way in which it can turn out; the committed result chooses, and what
has no verdict yet is listed as such. In a sentence `{0}` is the claim's first number with its interval, `{0:points}` in
percentage points, `{all[W8.plain]}` the first number of another claim of the same experiment; `{epsilon:g}` is a setting of
the tier that was run.
"""

from __future__ import annotations

import importlib.util
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from noisewise.estimates.estimate import Estimate
from noisewise.reproduce.claims import EXACT
from noisewise.reproduce.papers import find
from noisewise.runs.files import read_json
from noisewise.wording import number

PROJECT = Path(__file__).parents[1]
PAGE = PROJECT / "docs" / "what_we_learned.md"
ANSWERED = PROJECT / "docs" / "questions.md"
SPEC = importlib.util.spec_from_file_location("reproductions", Path(__file__).with_name("reproductions.py"))
assert SPEC is not None
assert SPEC.loader is not None
RESULTS = importlib.util.module_from_spec(SPEC)
SPEC.loader.exec_module(RESULTS)


@dataclass(frozen=True)
class Statement:
    """What to say of a claim: if it holds, if it is contradicted (`no`), if it cannot be told (`open`).

    `helps`: the way in which a remedy's claim must turn out for the remedy to help. `full`: small sizes say nothing of it.
    """

    claim: str  # `zhu2023.table2/Z3.fmnist.gain1`
    yes: str
    no: str
    open: str = ""
    helps: str = "yes"
    full: bool = False

    @property
    def experiment(self) -> str:
        """`zhu2023.table2`."""
        return self.claim.partition("/")[0]


class Shown:
    """A number with its interval, as a sentence has it."""

    def __init__(self, ours: Estimate):
        self.ours = ours

    def __format__(self, how: str) -> str:
        """`points`: percentage points, with a sign; `loss`: without plus; `percent`; `size`: without interval; `hundredth`."""
        ours = self.ours
        if how in ("points", "loss"):
            form = "+.1f" if how == "points" else ".1f"
            value, low, high = (f"{100 * v:{form}}".replace("-", "−") for v in (ours.value, ours.low, ours.high))
            return f"{value} points" if ours.method == EXACT else f"{value} points ({low} to {high})"
        if how == "percent":
            value, low, high = (f"{100 * v:.0f}".replace("-", "−") for v in (ours.value, ours.low, ours.high))
            return f"{value} %" if low == high else f"{value} % ({low} to {high})"
        if how == "size":
            return number(abs(ours.value))
        if how == "hundredth":
            return number(ours.value / 100)
        return number(ours.value) + ("" if ours.method == EXACT else f" ({number(ours.low)} to {number(ours.high)})")


def row_of(claim: str) -> Any:
    """What the page of reproductions says of a claim."""
    name, _, wanted = claim.partition("/")
    return next(row for row in rows_of(name) if row.name == wanted)


@cache
def rows_of(name: str) -> list[Any]:
    """All claims of an experiment."""
    return list(RESULTS.rows_of(*find(name)))


def outcome(row: Any, full: bool = False) -> str:
    """yes, no, open, or nothing where there is no verdict, or none of the full size where that is asked for."""
    if full and row.tier != "full":
        return ""
    if row.verdict == "reproduced":
        return "yes"
    if row.verdict == "not-reproduced":
        return "no" if row.reason.startswith("contradicted") else "open"
    return ""


def sentence(statement: Statement, row: Any) -> str:
    """The sentence that fits, with numbers and a link to the figure."""
    text = getattr(statement, outcome(row)) or f"Whether {row.says} cannot be told."
    paper, _, experiment = statement.experiment.partition(".")
    picture = RESULTS.result_path(RESULTS.RESULTS, paper, experiment, row.tier).with_suffix(".png")
    where = f"[{row.name}](../{picture.relative_to(PROJECT).as_posix()})"
    exact = all(finding.ours.method == EXACT for finding in row.findings)
    small = ", small sizes" if row.tier == "standard" and not exact else ""
    settings = find(statement.experiment)[1].tiers[row.tier].to_dict()
    others = {other.name: Shown(other.findings[0].ours) for other in rows_of(statement.experiment) if other.findings}
    shown = (Shown(finding.ours) for finding in row.findings)
    return f"{text.format(*shown, **settings, all=others)} ({where}{small})"


def said(statements: tuple[Statement, ...], helps: bool | None = None) -> list[str]:
    """One line for each statement with a verdict; of remedies those that help, or those that do not."""
    rows = [(statement, row_of(statement.claim)) for statement in statements]
    return [
        f"- {sentence(statement, row)}"
        for statement, row in rows
        if (found := outcome(row, statement.full)) and helps in (None, found == statement.helps)
    ]


def unjudged() -> list[str]:
    """Statements that wait for a result, by experiment."""
    waiting: dict[str, list[str]] = {}
    for statement in EVERY:
        row = row_of(statement.claim)
        if not outcome(row, statement.full):
            waiting.setdefault(statement.experiment, []).append(row.name)
    return [f"- `{name}`: {', '.join(claims)}" for name, claims in waiting.items()]


COSTS = (
    Statement(
        "questions.best/Q8.price",
        "At epsilon {epsilon:g} privacy costs a small network {0:loss} of accuracy on Fashion-MNIST.",
        "At epsilon {epsilon:g} privacy costs a small network no accuracy on Fashion-MNIST.",
    ),
    Statement(
        "bu2022.regression/B6.price",
        "Regressions with DP-SGD at epsilon 3 have larger errors than without: logarithm of the mean squared error {0} above "
        "on wine, {1} on California's houses.",
        "A regression with DP-SGD at epsilon 3 is no worse than without.",
        "A regression with DP-SGD at epsilon 3 costs some sets more than others: logarithm of the mean squared error {1} above "
        "that without privacy on California's houses, {0} on wine.",
    ),
    Statement(
        "bu2022.mnist/B4.mnist.open",
        "Confidences become wrong: DP-SGD with local clipping has a larger calibration error than no privacy on MNIST, by "
        "{0:points}.",
        "On MNIST DP-SGD is not worse calibrated than a model without privacy ({0:points}).",
    ),
    Statement(
        "bu2022.cifar/B4.cifar.open",
        "On CIFAR-10 the calibration error is larger by {0:points}.",
        "On CIFAR-10 DP-SGD is not worse calibrated ({0:points}).",
        "On CIFAR-10 it cannot be told whether the calibration error is larger ({0:points}).",
    ),
    Statement(
        "xu2026.figure3/X2.a",
        "Models become easier to attack: in a two-layer network on made-up data noise raises the loss under attack of every "
        "group, the first by {0}.",
        "Noise does not raise the loss under attack of every group in a two-layer network on made-up data ({0}).",
    ),
    Statement(
        "xu2026.padding/X4.twin",
        "Small objects in large images: three quarters of padding cost a private CNN on MNIST more than its twin, by {0:loss}.",
        "Padding costs a private CNN on MNIST no more than its twin ({0:points}).",
        "Whether padding costs a private CNN on MNIST more than its twin cannot be told ({0:points}).",
    ),
    Statement(
        "xu2026.vit_padding/X7.twin",
        "It costs a private vision transformer more too ({0:points}).",
        "A private vision transformer is not hurt by it more than its twin ({0:points}).",
        "Of a vision transformer that cannot be told ({0:points}).",
    ),
    Statement(
        "xu2026.padding_cifar/X4.cifar.twin",
        "On CIFAR-10 too ({0:points}).",
        "On CIFAR-10 it costs a private CNN less than its twin ({0:points}), which has more to lose: no rule.",
        "On CIFAR-10 that cannot be told ({0:points}).",
    ),
    Statement(
        "bu2022.cifar/B5.b",
        "What is bought: attacks on membership succeed less than without privacy, by {0} in area under the curve (CIFAR-10).",
        "Attacks on membership do not succeed less than without privacy.",
        "Whether attacks on membership succeed less than without privacy cannot be told.",
    ),
)
RATIO = (
    Statement(
        "questions.features/Q6.images",
        "The size of a class's mean gradient against the noise, measured before training, tells who pays on MNIST: rank "
        "correlation {0}.",
        "The size of a class's mean gradient against the noise does not tell who pays on MNIST: rank correlation {0}.",
        "Whether the size of a class's mean gradient against the noise tells who pays on MNIST cannot be told: {0}.",
    ),
    Statement(
        "questions.features/Q6.people",
        "The ratio tells it on Adult too, by income and race: {0}.",
        "The ratio does not tell it on Adult, by income and race: {0}.",
        "On Adult, by income and race, it cannot be told: {0}.",
    ),
    Statement(
        "questions.features/Q6.size",
        "It tells more than the size of a group alone ({0} on MNIST, {1} on Adult).",
        "It tells no more than the size of a group alone ({0} on MNIST, {1} on Adult).",
        "That it tells more than the size of a group alone is not shown: correlations differ by {0} on MNIST, where it orders "
        "the classes as their sizes do, and by {1} on Adult.",
    ),
)
WHO = (
    Statement(
        "questions.groups/Q1.price",
        "DP-SGD widens the gap between the best and the worst class by {0:points}, and a class with few images falls behind "
        "the others by {1:points}, both against the same network without privacy.",
        "DP-SGD does not leave weak and small classes behind ({0:points}, {1:points}).",
        "Against the same network without privacy a class with few images moves by {1:points} beside the others, the gap "
        "between the best and the worst class by {0:points}: not both are shown to be worse.",
    ),
    Statement(
        "xu2026.class_size/X6.twin",
        "A class of 100 images among others of 3,000 is lost: growing it to 3,000 gains a private model {0:loss} of its "
        "accuracy more than its twin (MNIST, epsilon 3).",
        "Growing a class from 100 to 3,000 images gains a private model no more than its twin ({0:points}).",
    ),
    Statement(
        "xu2026.hard_digits/X9.b",
        "Hard images pay more than easy ones: the hardest tenth of MNIST {0:loss} of accuracy more than the easiest.",
        "Hard images pay no more than easy ones ({0:points}).",
    ),
)
WHY = (
    Statement(
        "xu2026.figure3/T8.a",
        "Noise is a random walk: it makes the weights of a two-layer network {0} times as long as step size times noise "
        "times the root of steps and dimensions.",
        "Weights do not grow as a random walk would.",
    ),
    Statement(
        "xu2026.figure3/T8.b",
        "Long weights are easy to attack: correlation {0}.",
        "Long weights are not easier to attack.",
    ),
    Statement(
        "xu2026.steps/T4.b",
        "At a fixed budget more steps need more noise, and the weights grow in proportion to the steps (exponent {1}).",
        "Weights do not grow in proportion to the steps at a fixed budget.",
    ),
    Statement(
        "watson2023.ablation/W7.noise",
        "Noise alone costs ResNet-18 on CIFAR-10 at most 2 points ({0:points}).",
        "Noise alone costs ResNet-18 on CIFAR-10 {0:points}, more than the paper says.",
        "Noise alone changes the accuracy of a ResNet-18 on CIFAR-10 by {0:points}: that it costs less than 2 is not shown.",
    ),
    Statement(
        "watson2023.ablation/W7.clip",
        "Clipping alone changes it by {0:points} at the same learning rate.",
        "Clipping alone costs less than 5 points at the same learning rate ({0:points}).",
    ),
    Statement(
        "watson2023.ablation/W7.tuned",
        "It still costs at least 5 points after its learning rate is tuned ({0:points}).",
        "Most of that was the step size: with a tuned learning rate clipping costs {0:points}.",
        "Much of that is the step size: with a tuned learning rate it is {0:points}.",
    ),
    Statement(
        "watson2023.few_steps/W6.noise",
        "Over five steps on one batch, at the same learning rate, where clipped steps are shorter, clipping costs a small "
        "network more than noise: from trained weights the loss with noise alone, minus that with clipping alone, is {1}.",
        "Over five steps on one batch noise costs a small network more than clipping ({1}).",
        "Over five steps on one batch it cannot be told whether noise or clipping costs more ({1}).",
    ),
    Statement(
        "watson2023.phases/W1",
        "Of a run's two halves, one with SGD and one with DP-SGD, the second decides more where the training loss of a LeNet "
        "ends (what the first moves minus what the second moves: {0}); for accuracy that cannot be told "
        "({all[W1.accuracy]:points}).",
        "The second phase does not decide where a run ends ({0}).",
    ),
    Statement(
        "questions.ratio/Q4.harmless",
        "Clipping hardly turns the mean gradient of real images: cosine {0} at the end of a private run.",
        "Clipping turns the mean gradient of real images, once something is learnt: cosine {0} of the clipped and the true "
        "mean at the end of a private run.",
        "How far clipping turns the mean gradient of real images at the end of a private run differs from run to run: cosine "
        "{0} of the clipped and the true mean.",
    ),
    Statement(
        "watson2023.pruned/W10",
        "A private network's weights end longer than those of SGD: {0} times.",
        "Whether a private network's weights end longer than those of SGD depends on the setting: noise lengthens them, but "
        "clipped steps are shorter. At Watson et al.'s a private LeNet's are {0} times as long (theirs, of a ResNet-18: 1.65).",
        "A private network's weights are {0} times as long as those of SGD.",
    ),
    Statement(
        "questions.everyone/Q7.norm",
        "On real images too long weights go with weak models: rank correlation {0} of norm and accuracy under attack, over a "
        "private network and seven repairs of it.",
        "On real images norms of weights do not go with accuracy under attack: {0}.",
        "Of a private network and seven repairs of it on real images that cannot be told: {0}.",
    ),
    Statement(
        "zhu2023.masks/Z7.masks",
        "Noise drowns what single coordinates say: masks ranked by released gradients cannot be told from random ones (KS "
        "distance {0}), while ranking without noise picks the same coordinates again and again.",
        "Masks ranked by released gradients differ from random ones (KS distance {0}).",
    ),
    Statement(
        "bu2022.noise_or_clipping/B7",
        "With small steps the clipping bound matters more than the noise: losses differ by {0} more.",
        "With small steps the noise matters more than the clipping bound ({0}).",
    ),
)
REMEDIES = (
    Statement(
        "zhu2023.table2_cifar/Z3.cifar.gain1",
        "On CIFAR-10 it gains a CNN {0:points} at epsilon 1 (the paper: +2.4); its runs are a fifth longer, as in the paper.",
        "Random sparsification gains a CNN nothing at epsilon 1 on CIFAR-10 ({0:points}; the paper: +2.4).",
        "Random sparsification at epsilon 1 on CIFAR-10: {0:points}, which cannot be told from 0 (the paper: +2.4).",
    ),
    Statement(
        "zhu2023.table2_cifar/Z3.cifar.gain3",
        "At epsilon 3 it gains the same CNN {0:points} (the paper: +1.8).",
        "Random sparsification gains a CNN nothing at epsilon 3 on CIFAR-10 ({0:points}; the paper: +1.8).",
        "Random sparsification at epsilon 3 on CIFAR-10: {0:points}, which cannot be told from 0 (the paper: +1.8).",
    ),
    Statement(
        "zhu2023.table2_hcnn/Z3.hcnn.gain3",
        "On scattering features of Fashion-MNIST it gains {0:points} at epsilon 3 (the paper: +0.3).",
        "On scattering features of Fashion-MNIST sparsification gains nothing ({0:points}; the paper: +0.3).",
        "Sparsification on scattering features of Fashion-MNIST: {0:points}, which cannot be told from 0.",
    ),
    Statement(
        "zhu2023.table2_hcnn_cifar/Z3.hcnn.cifar.gain1",
        "On scattering features of CIFAR-10 it gains {0:points} at epsilon 1 (the paper: +0.8).",
        "On scattering features of CIFAR-10 sparsification gains nothing at epsilon 1 ({0:points}; the paper: +0.8).",
        "Sparsification on scattering features of CIFAR-10 at epsilon 1: {0:points}, which cannot be told from 0.",
        full=True,
    ),
    Statement(
        "zhu2023.table2/Z3.fmnist.gain1",
        "With the learning rate that is best without it on held-out images, random sparsification gains {0:points} at "
        "epsilon 1 on Fashion-MNIST.",
        "What random sparsification gains depends on the learning rate: on Fashion-MNIST at epsilon 1 it loses ({0:points}) at "
        "the smaller of two rates that do equally well without it on held-out images, while it gains at the larger.",
        "With the learning rate that is best without it on held-out images, random sparsification cannot be told from none at "
        "epsilon 1 on Fashion-MNIST ({0:points}).",
    ),
    Statement(
        "zhu2023.grid/Z1.two",
        "Random sparsification pays where noise is large: at least 2 points of training accuracy at C sigma = 2.",
        "Where noise is large (C sigma = 2) random sparsification gains less than 2 points of training accuracy: {0:points}.",
        "At C sigma = 2 random sparsification gains {0:points} of training accuracy; 2 points are not shown everywhere.",
    ),
    Statement(
        "xu2026.freezing/X8",
        "Stage-wise freezing gains {0:points} on MNIST (the paper: +1.6).",
        "Stage-wise freezing gains nothing on MNIST ({0:points}; the paper: +1.6).",
        "Stage-wise freezing on MNIST: {0:points}, which cannot be told from 0 (the paper: +1.6).",
    ),
    Statement(
        "questions.everyone/Q7.frozen",
        "Stage-wise freezing gains a small CNN {0:points} on Fashion-MNIST at epsilon {epsilon:g}.",
        "Stage-wise freezing gains a small CNN nothing on Fashion-MNIST ({0:points}).",
        "Stage-wise freezing of a small CNN on Fashion-MNIST: {0:points}, which cannot be told from 0.",
    ),
    Statement(
        "questions.everyone/Q7.public",
        "Pruning half of that CNN by weights that learned on MNIST gains {0:points}, and {all[Q7.public.random]:points} over a "
        "random mask of equal size.",
        "Pruning half of that CNN by weights that learned on MNIST gains nothing ({0:points}).",
        "Pruning half of that CNN by weights that learned on MNIST: {0:points}, which cannot be told from 0.",
    ),
    Statement(
        "watson2023.pruning/W11.public",
        "Pruning 70 % of a LeNet by weights trained on a public set gains {0:points} at epsilon {epsilon:g}.",
        "Pruning 70 % of a LeNet by weights trained on a public set gains nothing ({0:points}).",
        "Pruning 70 % of a LeNet by weights trained on a public set: {0:points}, which cannot be told from 0.",
    ),
    Statement(
        "watson2023.shares_halves/W9.halves.public",
        "Pruning 70 % of a LeNet by weights that learned on other classes of CIFAR-10 gains {0:points}.",
        "Pruning 70 % of a LeNet by weights that learned on other classes of CIFAR-10 gains nothing ({0:points}).",
        "Pruning 70 % of a LeNet by weights that learned on other classes of CIFAR-10: {0:points}, which cannot be told "
        "from 0.",
    ),
    Statement(
        "watson2023.shares_resnet/W9.resnet.public",
        "Pruning 70 % of a ResNet-18 by weights that learned on other classes of CIFAR-10 gains {0:points} at epsilon "
        "{epsilon:g}; by weights of the private images it gains {all[W9.resnet.same]:points} (the paper: +23), which voids the "
        "guarantee.",
        "Pruning 70 % of a ResNet-18 by weights that learned on other classes of CIFAR-10 gains nothing ({0:points}).",
        "Pruning 70 % of a ResNet-18 by weights that learned on other classes of CIFAR-10: {0:points}, which cannot be told "
        "from 0.",
    ),
    Statement(
        "watson2023.pruned/W8.clip",
        "Pruning by weights that the private data trained gains {0:points} where gradients are only clipped; but SGD gains as "
        "much ({all[W8.plain]:points}), noise alone too ({all[W8.noise]:points}), and such a mask voids the guarantee.",
        "Pruning gains nothing where gradients are only clipped ({0:points}).",
        "Pruning where gradients are only clipped: {0:points}, which cannot be told from 0.",
        helps="never",
    ),
    Statement(
        "xu2026.rotation/X5.upright",
        "Public pretraining on the same kind of images beats starting from scratch: {0:points}.",
        "Public pretraining on the same kind of images does not help ({0:points}).",
    ),
    Statement(
        "xu2026.rotation/X5.turned",
        "Pretraining still helps if the private images are turned ({0:points}).",
        "Pretraining on images that do not look like the private ones harms ({0:points}).",
        "Pretraining on images that do not look like the private ones: {0:points}, which cannot be told from 0.",
    ),
    Statement(
        "xu2026.rotated_features/T7.few",
        "In a two-layer network, pretraining on features at right angles to the private ones harms where few private steps "
        "follow (loss {0} above that from scratch).",
        "In a two-layer network, pretraining on features at right angles to the private ones does not harm even where few "
        "private steps follow ({0}).",
        helps="no",
    ),
    Statement(
        "bu2022.local_then_global/B3.ece",
        "Global clipping for the last epochs lowers the calibration error (before minus after: {0:points}).",
        "Global clipping for the last epochs raises the calibration error (before minus after: {0:points}).",
        "Global clipping for the last epochs does not change the calibration error as far as can be told (before minus after: "
        "{0:points}).",
    ),
    Statement(
        "bu2022.local_then_global/B3.loss",
        "Global clipping for the last epochs lowers the test loss by more than a fifth ({0}).",
        "Global clipping for the last epochs does not lower the test loss by a fifth (share {0}; the paper: 40 % on SNLI).",
    ),
    Statement(
        "bu2022.text/B3.sick.loss",
        "On texts (SICK, a small pretrained encoder) that switch lowers the test loss by more than a fifth ({0}).",
        "On texts (SICK, a small pretrained encoder) that switch does not lower the test loss by a fifth either (share {0}).",
        "On texts (SICK, a small pretrained encoder) that switch lowers the test loss by {0} of it; a fifth is not told.",
    ),
    Statement(
        "zhu2023.momentum/Z9",
        "One rule saves a search: momentum and bound may change together, with C / (1 - mu) constant.",
        "Moving along C / (1 - mu) = constant changes accuracy by more than a point ({0:points}).",
        "That accuracy stays within a point where momentum mu and bound C change together, with C / (1 - mu) constant, is not "
        "shown ({1:points} with mu = 0.9).",
    ),
    Statement(
        "zhu2023.sparsity/Z7",
        "Ranking coordinates before masking is worth no more than a point either way ({0:points}): random masks do as well.",
        "Ranked masks differ from random ones by more than a point ({0:points}).",
        "Ranked against random masks: {0:points}; that they are within a point is not shown.",
    ),
    Statement(
        "bu2022.mnist/B4.mnist.step",
        "Global clipping calibrates better than local clipping with a step of equal accuracy ({0:points}).",
        "The better calibration of global clipping is that of a smaller step ({0:points} at equal accuracy).",
        "That global clipping calibrates better than local clipping with a step of equal accuracy is not shown ({0:points}).",
    ),
    Statement(
        "zhu2023.inversion/Z6",
        "Masks make it harder to draw an image from its gradient: relative error {0} larger with 90 % masked. Noise alone does "
        "so as well ({all[Z6.noise]}), and leaves an attack that is hardly better than guessing.",
        "Masks do not make it harder to draw an image from its gradient.",
        "That masks make it harder to draw an image from its gradient is not shown at every step.",
    ),
)
WRONG = (
    Statement(
        "watson2023.theory/W.T32",
        "Watson et al.'s Theorem 3.2 held in all clouds of gradients.",
        "Watson et al.'s Theorem 3.2 is false as printed: a cloud of 20 gradients misses 1 - R/2 by {2:size}; (1 - R)/(1 + R) "
        "holds, and is proven.",
    ),
    Statement(
        "watson2023.turning/W.T32.says",
        "On real gradients R is below 2, so that 1 - R/2 says something.",
        "On batches of real gradients it never fails and says nothing: R is so large that 1 - R/2 is above 0 in {0:percent} of "
        "them.",
        "On batches of real gradients 1 - R/2 is above 0, and so says something, in {0:percent} of them.",
    ),
    Statement(
        "watson2023.balance/W.T33.ordinary",
        "Theorem 3.3, that the minimum of a linear network does not face noise, holds from PyTorch's own start too.",
        "Theorem 3.3, that the minimum of a linear network does not face noise, needs its balanced start: from PyTorch's own "
        "{0:percent} of the first layer's length still do.",
    ),
    Statement(
        "zhu2023.theory/Z.best",
        "Zhu and Blaschko's best sparsity is where the bound is smallest.",
        "Zhu and Blaschko's formula for the best sparsity lacks the learning rate: at eta = 0.3 it misses the minimum by "
        "{1:size}.",
    ),
    Statement(
        "zhu2023.theory/Z.C11",
        "The noise term of their Corollary C.1.1 falls with the number of steps.",
        "The noise term of their Corollary C.1.1 grows with the root of the number of steps; it is said to fall.",
    ),
    Statement(
        "bu2022.epsilons/Eps.bound.SNLI",
        "Bu et al.'s epsilon on SNLI holds as a guarantee.",
        "Bu et al.'s epsilons are approximations, not bounds: 1.25 on SNLI is {0} by an accountant that gives guarantees.",
    ),
    Statement(
        "bu2022.tables/F5.flat",
        "Screening may make eigenvalues negative under flat clipping.",
        "Their footnote 5 overstates: with flat clipping no eigenvalue of the kernel is negative.",
    ),
)
QUESTIONS: tuple[tuple[str, tuple[Statement, ...]], ...] = (
    (
        "Do sparsification and freezing narrow the gaps between groups?",
        (
            Statement(
                "questions.groups/Q1.sparse",
                "Random sparsification narrows the gap between classes ({0:points}).",
                "Random sparsification widens the gap between classes ({0:points}).",
                "Random sparsification does not change the gap between classes as far as can be told ({0:points}).",
            ),
            Statement(
                "questions.groups/Q1.freeze",
                "Freezing narrows it ({0:points}).",
                "Freezing widens it ({0:points}).",
                "Nor does freezing, as far as can be told ({0:points}).",
            ),
            Statement(
                "questions.groups/Q1.sparse.small",
                "A small class comes closer under sparsification ({0:points}).",
                "A small class falls further behind under sparsification ({0:points}).",
                "A small class under sparsification: {0:points}, which cannot be told from 0.",
            ),
            Statement(
                "questions.groups/Q1.freeze.small",
                "It comes closer under freezing ({0:points}).",
                "It falls further behind under freezing ({0:points}).",
                "Under freezing: {0:points}, which cannot be told from 0.",
            ),
        ),
    ),
    (
        "Does global clipping, which shortens all gradients alike, change who pays?",
        (
            Statement(
                "questions.rules/Q2.gap",
                "It narrows the gap between classes ({0:points}).",
                "At epsilon {epsilon:g} it widens the gap between classes ({0:points}).",
                "The gap between classes changes by {0:points}, which cannot be told from 0.",
            ),
            Statement(
                "questions.rules/Q2.small",
                "A small class comes closer to the others ({0:points}).",
                "A small class falls further behind ({0:points}).",
                "A small class against the others: {0:points}, which cannot be told from 0.",
            ),
        ),
    ),
    (
        "Is the gain of pruning more than that of a random mask of equal size?",
        (
            Statement(
                "questions.masks/Q3.public",
                "At epsilon {epsilon:g} pruning {share:.0%} of a LeNet by a public set is {0:points} better than at random.",
                "No: a mask from a public set is worse than a random one ({0:points}).",
                "A mask from a public set against a random one: {0:points}, which cannot be told from 0.",
            ),
            Statement(
                "questions.masks/Q3.random",
                "Sparsity alone gains: a random mask is better than none by {0:points}.",
                "A random one costs accuracy against no mask ({0:points}).",
                "Sparsity alone: {0:points}, which cannot be told from 0.",
            ),
            Statement(
                "questions.masks/Q3.same",
                "A mask from the private data themselves is better than a random one by {0:points}, and voids the guarantee.",
                "A mask from the private data is no better than a random one ({0:points}).",
            ),
        ),
    ),
    (
        "Does R fall under sparsification, and does it tell where clipping hurts?",
        (
            Statement(
                "questions.ratio/Q4.same",
                "Holding coordinates back at random leaves R as it is ({0} of it): sparsification does not work through R.",
                "Holding coordinates back at random changes R to {0} of what it was.",
                "Holding coordinates back at random leaves {0} times R: it does not work through R as far as can be told.",
            ),
            Statement(
                "questions.ratio/Q4.predicts",
                "Where (1 - R)/(1 + R) is larger, gradients agree more with their mean ({0:hundredth} of cosine for each "
                "hundredth of it).",
                "Where (1 - R)/(1 + R) is larger, gradients do not agree more with their mean ({0}).",
            ),
            Statement(
                "questions.ratio/Q4.later",
                "That is so after the start too ({0}).",
                "After the start it is not so ({0}): gradients agree most before anything is learnt, and that is all of it.",
                "After the start that cannot be told ({0}): gradients agree most before anything is learnt.",
            ),
            Statement(
                "watson2023.turning/W.R.most",
                "Pruning 70 % by magnitude does lower R of a real network, by {0:size}.",
                "Pruning 70 % by magnitude does not lower R of a real network ({0}).",
                "Whether pruning 70 % by magnitude lowers R of a real network cannot be told (R moves by {0}).",
            ),
            Statement(
                "watson2023.turning/W.R",
                "Every further share that is pruned lowers R.",
                "Not every further share that is pruned lowers R: 30 % moves it by {0}, 50 % by {1} more, 70 % by {2} "
                "and 90 % by {3} more.",
                "That every further share lowers R is not shown.",
            ),
        ),
    ),
    (
        "How calibrated are sparsified and frozen models?",
        (
            Statement(
                "questions.calibration/Q5.price",
                "DP-SGD is worse calibrated than its twin ({0:points} of ECE, twin minus DP-SGD).",
                "DP-SGD is better calibrated than its twin, which is surer than it should be ({0:points} of ECE, "
                "twin minus DP-SGD).",
                "DP-SGD and its twin differ by {0:points} of ECE, which cannot be told from 0.",
            ),
            Statement(
                "questions.calibration/Q5.sparse",
                "Sparsification calibrates better than DP-SGD ({0:points}).",
                "Sparsification calibrates worse than DP-SGD ({0:points}).",
                "Sparsification against DP-SGD: {0:points} of ECE, which cannot be told from 0.",
            ),
            Statement(
                "questions.calibration/Q5.freeze",
                "Freezing calibrates better ({0:points}).",
                "Freezing calibrates worse ({0:points}).",
                "Freezing: {0:points}, which cannot be told from 0.",
            ),
        ),
    ),
    (
        "Does the feature-to-noise ratio predict who pays?",
        (
            *RATIO,
            Statement(
                "questions.features/Q6.end",
                "At the released weights, where a user can measure it, the ratio still tells who pays on MNIST ({0}).",
                "At the released weights it misleads: classes that paid have the larger ratio, since they are still to be "
                "learnt ({0}). Measure it before training.",
                "At the released weights the ratio does not tell who paid ({0}). Measure it before training.",
            ),
        ),
    ),
    (
        "Do repairs that help the mean help the worst class, and robustness?",
        (
            Statement(
                "questions.everyone/Q7.worst.others",
                "Yes, for the worst class: {0} points for each point of the mean.",
                "No: what the mean gains the worst class loses ({0} points for each).",
                "For the worst class it cannot be told: {0} points for each point of the mean, over six repairs at epsilon "
                "{epsilon:g}. Global clipping, which lowers the mean, is left out: alone it would decide ({all[Q7.worst]}).",
            ),
            Statement(
                "questions.everyone/Q7.attacked.others",
                "Under attack too: {0} points for each.",
                "Not under attack: {0} points for each point of the mean.",
                "Nor under attack: {0}. Global clipping loses accuracy and gains most there ({all[Q7.attacked]}).",
            ),
            Statement(
                "questions.everyone/Q7.norm",
                "What goes with robustness is the length of the weights: rank correlation {0} over DP-SGD and seven repairs.",
                "The length of the weights does not go with robustness: rank correlation {0}.",
                "That models with shorter weights are more robust is not shown: rank correlation {0}.",
            ),
            Statement(
                "questions.everyone/Q7.robust",
                "Sparsified ({0:points}) and frozen models ({1:points}) are more robust than DP-SGD; so are averaged ones and "
                "those with a random mask (see the figure).",
                "Sparsified ({0:points}) and frozen models ({1:points}) are not both more robust than DP-SGD.",
                "That sparsified ({0:points}) and frozen models ({1:points}) are more robust than DP-SGD is not shown for "
                "both.",
            ),
        ),
    ),
    (
        "What are all repairs worth together, at equal epsilon?",
        (
            Statement(
                "questions.best/Q8.gain",
                "Public pretraining, sparsification and averaged weights together gain {0:points} at epsilon {epsilon:g}.",
                "Public pretraining, sparsification and averaged weights together gain nothing ({0:points}).",
                "Together: {0:points}, which cannot be told from 0.",
            ),
            Statement(
                "questions.best/Q8.adds",
                "That is more than the best of them alone ({0:points}).",
                "That is less than the best of them alone ({0:points}).",
                "Against the best of them alone: {0:points}, which cannot be told from 0.",
            ),
            Statement(
                "questions.best/Q8.half",
                "They give back {0:percent} of what privacy took.",
                "They give back {0:percent} of what privacy took, less than half.",
                "They give back {0:percent} of what privacy took.",
            ),
        ),
    ),
)
DECIDED = PROJECT / "benchmarks" / "results" / "fashion_mnist_sparsification.json"
WORDS = """**Words.** DP-SGD clips each image's gradient to a length C (*local* clipping), adds Gaussian noise of deviation
sigma C, and steps; *global* clipping shortens all gradients by one factor and leaves out those that are too long. Epsilon says
how much one record can matter: less is more private. A *twin* is the same model trained without privacy. A *mask* holds
coordinates of the gradient back: drawn anew at random (*sparsification*), more of them stage by stage (*freezing*), or those of
small weights (*pruning*). *Calibration error* (ECE) is how far confidence is from accuracy. R is how much the gradients of a
batch differ from their mean, over the length of that mean. *Small sizes*: fewer images or steps, a narrower network, or a
larger epsilon than planned; [reproductions](reproductions.md) says which."""
BRIEF: tuple[tuple[str, dict[str, str]], ...] = (
    (
        "Privacy costs accuracy, and small classes and hard images pay more of it than others.",
        {"questions.best/Q8.price": "yes", "xu2026.class_size/X6.twin": "yes", "xu2026.hard_digits/X9.b": "yes"},
    ),
    (
        "Noise makes weights long, and long weights are easy to attack; clipped steps are shorter, and so may the weights be.",
        {
            "xu2026.figure3/T8.a": "yes",
            "xu2026.figure3/T8.b": "yes",
            "questions.everyone/Q7.norm": "yes",
            "watson2023.pruned/W10": "no",
        },
    ),
    ("What is bought is real: attacks on membership fail more often.", {"bu2022.cifar/B5.b": "yes"}),
    (
        "Pretraining on public images of the same kind helps; repairs together give back less than half of what privacy took.",
        {"xu2026.rotation/X5.upright": "yes", "questions.best/Q8.gain": "yes", "questions.best/Q8.half": "no"},
    ),
    (
        "Freezing weights stage by stage and pruning by public weights gain or lose by network and share: a small CNN and a "
        "ResNet-18 gained, a LeNet of which 70 % went lost.",
        {
            "xu2026.freezing/X8": "no",
            "questions.everyone/Q7.frozen": "yes",
            "questions.everyone/Q7.public": "yes",
            "watson2023.pruning/W11.public": "no",
            "watson2023.shares_resnet/W9.resnet.public": "yes",
        },
    ),
    (
        "Random sparsification gains a CNN two points on CIFAR-10, as published, and little on Fashion-MNIST.",
        {"zhu2023.table2_cifar/Z3.cifar.gain1": "yes", "zhu2023.table2_cifar/Z3.cifar.gain3": "yes"},
    ),
    (
        "Global clipping calibrates better at equal accuracy on MNIST; on Fashion-MNIST it widened the gap between classes.",
        {"bu2022.mnist/B4.mnist.step": "yes", "questions.rules/Q2.gap": "no"},
    ),
    (
        "Some of what is printed is false: a theorem, a formula, epsilons that are no bounds.",
        {"watson2023.theory/W.T32": "no", "zhu2023.theory/Z.best": "no", "bu2022.epsilons/Eps.bound.SNLI": "no"},
    ),
)


def brief() -> list[str]:
    """Sentences for those who read no further; each only while the verdicts it rests on stand."""
    return [
        f"- {text}"
        for text, needed in BRIEF
        if all(outcome(row_of(claim)) == wanted for claim, wanted in needed.items())
    ]


def decided() -> list[str]:
    """Sparsification with all images and as many seeds as decide, from a benchmark of its own."""
    gains = {float(epsilon): Estimate(**gain) for epsilon, gain in read_json(DECIDED)["gains"].items()}
    if not all(gain.low > 0 for gain in gains.values()):
        return []
    one, three = (f"{Shown(gains[epsilon]):points}" for epsilon in (1.0, 3.0))
    return [
        f"- Random sparsification gains a little: on Fashion-MNIST {one} at epsilon 1 and {three} at epsilon 3 with all images "
        f"and {gains[1.0].n} seeds (the paper: +1.3 and +0.8). ([repairs measured](repairs_measured.md))"
    ]


ANSWERS = tuple(each for _, statements in QUESTIONS for each in statements)
EVERY = tuple(dict.fromkeys((*COSTS, *WHO, *WHY, *REMEDIES, *WRONG, *ANSWERS)))


def page() -> str:
    """The whole page."""
    found = [outcome(row_of(statement.claim), statement.full) for statement in EVERY]
    judged = sum(map(bool, found))
    count, others = f"{judged} of the {len(EVERY)} statements", "; the others are listed at the end"
    if judged == len(EVERY):
        count, others = f"All {judged} statements", ""
    lines = [
        "# What we learned",
        "",
        "Four papers say what DP-SGD does to models and how to repair it: Xu and Chen "
        "([2026](https://arxiv.org/abs/2603.04881)), Bu et al. ([2022](https://arxiv.org/abs/2106.07830)), Zhu and Blaschko "
        "([2023](https://arxiv.org/abs/2112.00845)), Watson et al. ([2023](https://arxiv.org/abs/2311.06839)). We ran what "
        "they claim, with the controls that a reader would ask for. This page is for a reader who will not open them; `python "
        f"benchmarks/learned.py` writes it from result files. {count} here and in [questions](questions.md) have a "
        f"verdict{others}; that it cannot be told is that of {found.count('open')}. Numbers stand with intervals over seeds, "
        "corrected for all claims of an experiment; settings, and what is missing in the papers, in "
        "[reproductions](reproductions.md).",
        "",
        *brief(),
        "",
        *WORDS.splitlines(),
        "",
    ]
    for title, statements in (
        ("What privacy costs", COSTS),
        ("Who pays", WHO),
        ("Why", WHY),
    ):
        lines += [f"## {title}", "", *(said(statements) or ["- Not yet judged."]), ""]
    lines += ["## What helps", "", *([*decided(), *said(REMEDIES, True)] or ["- Nothing yet judged does."]), ""]
    lines += ["## What does not, or cannot be told", ""]
    lines += [*(said(REMEDIES, False) or ["- Nothing yet judged."]), ""]
    lines += ["## What the papers have wrong", "", *said(WRONG), ""]
    lines += ["Eight questions that no paper asks have [answers](questions.md) of their own.", ""]
    if waiting := unjudged():
        lines += ["## Not yet judged", "", *waiting, ""]
    return "\n".join(lines).rstrip() + "\n"


def answers() -> str:
    """The page of questions."""
    lines = [
        "# Questions that no paper asks",
        "",
        "Eight questions between the papers, each with an experiment (`noisewise reproduce questions.NAME`), a figure and an "
        "answer of at most five lines; `python benchmarks/learned.py` writes them from result files. Words and papers are "
        "explained in [what we learned](what_we_learned.md), settings in [reproductions](reproductions.md).",
        "",
    ]
    for place, (question, statements) in enumerate(QUESTIONS, 1):
        lines += [f"## {place}. {question}", "", *(said(statements) or ["- Not yet judged."]), ""]
    return "\n".join(lines).rstrip() + "\n"


if __name__ == "__main__":
    PAGE.write_text(page())
    ANSWERED.write_text(answers())

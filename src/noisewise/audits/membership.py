"""Membership: can one tell from the model who was trained on? Attacks by loss, by regression, and with shadow models."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
from numpy.typing import ArrayLike

from noisewise._moved import old_names
from noisewise.attacks.members import (
    ATTACKS,
    SHIFT,
    SMALLEST,
    Rows,
    Scores,
    balanced,
    bounded,
    class_shift,
    fitted_and_judged,
    phi,
    sigmoid,
)
from noisewise.attacks.shadows import Shadows, digest_of, lira_offline, lira_online, rmia_scores
from noisewise.audits.audit import Audit
from noisewise.audits.outputs import check_subject
from noisewise.audits.result import FAINT, INK, PRIVATE, TWIN, Figure, Result, Table
from noisewise.audits.show import dress, tracked
from noisewise.errors import ConfigError, DataError
from noisewise.estimates import intervals
from noisewise.estimates.estimate import LEVEL, Estimate, check_level
from noisewise.estimates.roc import auc, auc_difference, exact_share, roc, threshold
from noisewise.evaluation import logits
from noisewise.runs.folder import Status
from noisewise.wording import fixed, number, percent, percent_interval
from noisewise.wording import level as level_of

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from torch import nn

    from noisewise.data import Data

TAKES = (
    "Does not retrain; under a minute. LiRA and RMIA train shadow models once (minutes to hours), then take seconds."
)
RATES = (0.01, 0.001)  # false-positive rates at which attacks are compared
ROWS = 10_000  # members and as many others; more would narrow the intervals little
MODELS = ("private", "twin")
STATUS = Status("not-private", "shows how far training records can be told from others: no ledger covers it")


@dataclass(frozen=True)
class Rate:
    """Aiming `at` a false-positive rate: members found (`tpr`) and the false alarms met on new people (`fpr`)."""

    at: float
    tpr: Estimate
    fpr: Estimate


@dataclass(frozen=True)
class Measured:
    """What one attack learns from one model.

    `rates`: for each false-positive rate aimed `at` that the people suffice for, the `tpr` and the `fpr` met on people
    who had no part in setting the threshold. `curve`: pairs (false-positive rate, true-positive rate).
    """

    attack: str
    model: str
    auc: Estimate
    rates: list[Rate]
    curve: list[list[float]]


@dataclass(frozen=True)
class Values:
    """Every attack on every model; with a twin the differences of their AUC; the strongest on each model; who is compared."""

    measured: list[Measured]
    differences: dict[str, Estimate]
    strongest: dict[str, str]
    class_shift_p: float


@dataclass(frozen=True, kw_only=True)
class Membership(Result):
    """How well attacks tell training records from others.

    headline: `auc` and `tpr at 1 % fpr` of the strongest attack; with a twin also `twin auc`, and `difference`: private -
    twin AUC of the attack that is strongest on the twin.
    Guarantee: intervals of the strongest allow for having picked it among all attacks (Bonferroni). An attack that fails
    proves nothing: only the ledger's epsilon bounds every attack.
    """

    kind: ClassVar[str] = "membership"
    title: ClassVar[str] = "Who was trained on"

    values: Values

    @property
    def measured(self) -> list[Measured]:
        """Every attack on every model."""
        return self.values.measured

    def attack(self, name: str, model: str = "private") -> Measured:
        """One attack on one model."""
        for measured in self.measured:
            if (measured.attack, measured.model) == (name, model):
                return measured
        known = sorted({f"{measured.attack} ({measured.model})" for measured in self.measured})
        raise ConfigError(f"attack {name!r} on model {model!r}: not in this result, which has {', '.join(known)}.")

    @property
    def attacks(self) -> list[str]:
        """Their names."""
        return list(dict.fromkeys(measured.attack for measured in self.measured))

    @property
    def has_twin(self) -> bool:
        """Was there a non-private model to compare with?"""
        return "twin" in self.values.strongest

    def plot(self, ax: Axes) -> Axes:
        """ROC curves on logarithmic axes, so that few but sure guesses show; the line of guessing in grey."""
        styles = dict(zip(self.attacks, ("-", "--", ":", "-."), strict=False))
        low = min(value for measured in self.measured for point in measured.curve for value in point if value > 0)
        ax.plot([low, 1], [low, 1], color=FAINT, linewidth=2, label="guessing", zorder=1)
        for measured in self.measured:
            rates, hits = (np.array(side) for side in zip(*measured.curve, strict=True))
            seen = hits > 0
            ax.plot(
                rates[seen],
                hits[seen],
                styles.get(measured.attack, "-"),
                color=PRIVATE if measured.model == "private" else TWIN,
                linewidth=1.8,
                label=f"{measured.attack}, {measured.model}: AUC {fixed(measured.auc.value, 3)}",
                zorder=3 if measured.model == "private" else 2,
            )
        ax.set_xscale("log")
        ax.set_yscale("log")
        ax.set_xlim(min(measured.curve[0][0] for measured in self.measured), 1)
        ax.set_ylim(low, 1.15)
        dress(ax, "false-positive rate", "true-positive rate")
        ax.legend(frameon=False, fontsize=8, loc="lower right", labelcolor=INK)
        return ax

    def figures(self) -> list[Figure]:
        """The ROC curves."""
        caption = "How many members an attack finds against how many others it takes for members (both logarithmic)"
        return [Figure(caption, f"{caption}. {' '.join(self.sentences())}", self.plot, 10)]

    def sentences(self) -> list[str]:
        """The strongest attack; what it finds at low false-positive rates; the twin; what limits the answer."""
        strongest, auc = self.values.strongest, self.headline["auc"]
        several = len(self.attacks) > 1
        who = strongest["private"]
        who = f"The strongest of {len(self.attacks)} attacks, {who}," if several else f"The attack {who}"
        sure = "so members can be told from others" if auc.low > 0.5 else "which guessing can explain"
        sentences = [
            f"{who} reaches an AUC of {fixed(auc.value, 3)} ({level_of(auc)} interval "
            f"{_span(auc)}{', allowing for the choice' if several else ''}; 0.5 is guessing), {sure}."
        ]
        for rate in self.attack(strongest["private"]).rates:
            sentences.append(
                f"Aiming at {_rate(rate.at)} false alarms it finds {percent(rate.tpr)} of the members (interval "
                f"{percent_interval(rate.tpr)}) and meets {percent(rate.fpr)} false alarms on new people."
            )
        if self.has_twin:
            twin, change = self.headline["twin auc"], self.headline["difference"]
            chance = "" if change.excludes_zero else ", which chance can explain"
            sentences.append(
                f"Against the non-private twin {'the strongest, ' if several else ''}{strongest['twin']}{',' * several} "
                f"reaches {fixed(twin.value, 3)} (interval "
                f"{_span(twin)}); against the private model its AUC changes by {_signed(change.value)} (interval "
                f"{_signed(change.low)} to {_signed(change.high)}{chance})."
            )
        for at in self.settings["too_few_for"]:
            sentences.append(
                f"A false-positive rate of {_rate(at)} is not shown: it needs {math.ceil(1 / at) - 1:,} non-members for "
                f"the threshold, here are {self.settings['setting_thresholds']:,}."
            )
        if self.values.class_shift_p < SHIFT:
            sentences.append(
                "Members and others differ in their classes, so part of this may be no memory of the model."
            )
        sentences.append("An attack that fails proves nothing: only the epsilon of the ledger bounds every attack.")
        return sentences

    def tables(self) -> list[Table]:
        """AUC of each attack, then the rates at low false-positive rates."""
        level = level_of(self.headline["auc"])
        columns = ["attack", "private", *(["twin", "private − twin"] if self.has_twin else [])]
        rows = []
        for name in self.attacks:
            found = [measured.auc for measured in self.measured if measured.attack == name]
            cells = [f"{fixed(auc.value, 3)} ({_span(auc)})" for auc in found]
            change = self.values.differences.get(name)
            rows.append([name, *cells, *([] if change is None else [_change_cell(change)])])
        rates = [
            [
                f"{measured.attack}, {measured.model}",
                _rate(rate.at),
                f"{percent(rate.tpr)} ({percent_interval(rate.tpr)})",
                f"{percent(rate.fpr)} ({percent_interval(rate.fpr)})",
            ]
            for measured in self.measured
            for rate in measured.rates
        ]
        caption = f"Area under the ROC curve (0.5 is guessing), {level} intervals of each attack"
        tables = [Table(caption, columns, rows)]
        if rates:
            met = f"Members found at few false alarms, {level} intervals; thresholds set on other non-members"
            tables.append(Table(met, ["attack", "aimed at", "members found", "false alarms met"], rates))
        return tables


def membership(
    model: nn.Module,
    data: Data,
    *,
    members: Data,
    twin: nn.Module | None = None,
    generator: np.random.Generator | None = None,
    progress: bool = False,
    level: float = LEVEL,
    rows: int = ROWS,
) -> Membership:
    """Attacks by loss threshold and by logistic regression: `members` are training rows, `data` rows never trained on.

    As many members as others are drawn (at most `rows` of each, one per person) and halved at random: the first half
    fits the regression, the second half is judged. Loss threshold: `score = -loss`. Regression: on logits, label
    (one-hot), logit of the label and loss, standardised; strength of the penalty by 3 folds.

    A threshold that aims at false-positive rate r is the `floor(r (k + 1))`-th highest score of half of the judged
    non-members, k of them: on new people the rate is at most r on average. Members above it count as found; the rate
    met on the other non-members is reported too. A rate that needs more non-members is left out, and said so.

    Both kinds must come from one distribution, best as random parts of one set: any other difference passes for memory.
    Different shares of classes are warned of; other differences show when an untrained model is attacked in the same way.

    Guarantee: intervals hold for the judged half: AUC DeLong (logit scale), rates Clopper-Pearson given the threshold.
    Reference: Yeom et al. 2018, arXiv:1709.01604 (loss); Shokri et al. 2017, arXiv:1610.05820; the grid of penalties is
    that of TensorFlow Privacy. Deviation: folds are compared by AUC, not by accuracy.
    Does not retrain; under a minute.

    Args:
        model: the attacked model, `[n, classes]` outputs.
        data: non-members from the same distribution, usually the test part.
        members: rows the model was trained on.
        twin: the non-private model, attacked in the same way on the same people.
        generator: draws people and halves; seed 0 by default.
        progress: show a bar.
        level: of the intervals.
        rows: most members, and most others, that are looked at.
    """
    check_level(level)
    check_subject(data, private=model, twin=twin)
    generator = np.random.default_rng(0) if generator is None else generator
    inside, outside = balanced(members, data, rows, generator)
    shift = class_shift(inside.y, outside.y)
    half = len(inside) // 2
    folds = int(generator.integers(2**31))
    networks = {"private": model} if twin is None else {"private": model, "twin": twin}
    by_attack: dict[str, dict[str, Scores]] = {name: {} for name in ATTACKS}
    jobs = [(which, name) for which in networks for name in ATTACKS]
    seen: dict[str, tuple[Rows, Rows]] = {}
    for which, name in tracked(jobs, progress, len(jobs), "membership attacks"):
        if which not in seen:
            outputs = [logits(networks[which], side) for side in (inside, outside)]
            seen[which] = fitted_and_judged(outputs, [inside.y, outside.y], half)
        fitted, judged = seen[which]
        scores = ATTACKS[name](fitted, judged, folds)
        by_attack[name][which] = Scores(scores[judged.inside], scores[~judged.inside])
    settings = {"members": len(inside), "non_members": len(outside), "judged_half": len(inside) - half}
    return _result(by_attack, level, shift, settings)


def lira(
    model: nn.Module,
    data: Data,
    *,
    inside: ArrayLike,
    shadows: Shadows,
    online: bool = True,
    twin: nn.Module | None = None,
    twin_shadows: Shadows | None = None,
    generator: np.random.Generator | None = None,
    progress: bool = False,
    level: float = LEVEL,
) -> Membership:
    """Likelihood-ratio attack on the rows of `data`, of which the model was trained on those `inside` (about half).

    `phi = log(p_y / (1 - p_y))`. Online: `log N(phi; m_in, s_in) - log N(phi; m_out, s_out)` with each row's mean over
    the shadows with and without it; offline: `P[N(m_out, s_out) < phi]`. Standard deviations row by row from 64 shadows
    on, else pooled over rows.

    Thresholds come from a random half of the non-members as in `membership`; all rows are in the AUC. The intervals hold
    for this model and these shadows.
    Reference: Carlini et al. 2022, arXiv:2112.03570, Algorithm 1 and Section VI. Deviation: pooled variances are those
    within rows, and centres are means (the authors' code takes the spread over all rows, and medians); the offline score
    is `(phi - m_out) / s_out`, which has the same order.
    Retrains: `train_shadows` once, minutes to hours; then seconds.
    """
    check_level(level)
    check_subject(data, private=model, twin=twin)
    scores = lira_online if online else lira_offline

    def attack(target: nn.Module, shadow: Shadows) -> np.ndarray:
        theirs = _shadow_phi(target, data, shadow, progress)
        return scores(bounded(_phi_of(target, data)), bounded(theirs), shadow.inside)

    name = f"LiRA {'online' if online else 'offline'}"
    return _with_shadows(name, attack, model, data, inside, shadows, twin, twin_shadows, generator, level, {})


def rmia(
    model: nn.Module,
    data: Data,
    *,
    inside: ArrayLike,
    shadows: Shadows,
    population: Data,
    twin: nn.Module | None = None,
    twin_shadows: Shadows | None = None,
    a: float = 0.3,
    gamma: float = 2.0,
    generator: np.random.Generator | None = None,
    progress: bool = False,
    level: float = LEVEL,
) -> Membership:
    """Robust attack with few shadows: how many of the `population` a row beats.

    `p(x) = ((1 + a) mean_out p_y(x) + 1 - a) / 2`, `r(x) = p_target(x) / p(x)`, score = share of population rows z with
    `r(x) / r(z) >= gamma`. The population is in no model's training part; all shadows count as "out" for it.

    Thresholds come from a random half of the non-members as in `membership`.
    Reference: Zarifzadeh et al. 2024, arXiv:2312.03262, offline form.
    Retrains: `train_shadows` once, minutes to hours; then seconds.
    """
    check_level(level)
    check_subject(data, private=model, twin=twin)
    if not 0 <= a < 1 or not gamma > 0:
        raise ConfigError(f"a={a!r}, gamma={gamma!r}: a is at least 0 and below 1 (0.3), gamma above 0 (2).")
    if digest_of(population) == shadows.data:
        raise DataError("the population is the attacked rows: pass other rows, which no model was trained on.")

    def attack(target: nn.Module, shadow: Shadows) -> np.ndarray:
        chances = [
            sigmoid(phi)
            for part in (data, population)
            for phi in (_phi_of(target, part), _shadow_phi(target, part, shadow, progress))
        ]
        return rmia_scores(chances[0], chances[1], shadow.inside, chances[2], chances[3], a, gamma)

    used = {"a": a, "gamma": gamma, "population": len(population)}
    return _with_shadows("RMIA", attack, model, data, inside, shadows, twin, twin_shadows, generator, level, used)


# attacks with shadows


def _phi_of(model: nn.Module, data: Data) -> np.ndarray:
    return phi(logits(model, data), data.y)


def _shadow_phi(like: nn.Module, data: Data, shadows: Shadows, progress: bool) -> np.ndarray:
    """phi of every row by every shadow `[shadows, rows]`."""
    models = tracked(shadows.models(like), progress, len(shadows), "asking the shadows")
    return np.stack([_phi_of(shadow, data) for shadow in models])


def _with_shadows(
    name: str,
    attack: Callable[[nn.Module, Shadows], np.ndarray],
    model: nn.Module,
    data: Data,
    inside: ArrayLike,
    shadows: Shadows,
    twin: nn.Module | None,
    twin_shadows: Shadows | None,
    generator: np.random.Generator | None,
    level: float,
    settings: dict[str, Any],
) -> Membership:
    generator = np.random.default_rng(0) if generator is None else generator
    mask = np.asarray(inside)
    if mask.shape != (len(data),) or mask.dtype != np.bool_ or min(mask.sum(), (~mask).sum()) < SMALLEST:
        raise DataError(
            f"inside of shape {list(mask.shape)}, {mask.dtype}, {int(mask.sum())} true: needs true or false for each of "
            f"{len(data)} rows, with at least {SMALLEST} of each."
        )
    used = {"private": shadows}
    if twin is not None:
        used["twin"] = shadows if twin_shadows is None else twin_shadows
    for each in used.values():
        each.check(data)
    shift = class_shift(data.y[mask], data.y[~mask])
    order = generator.permutation(np.flatnonzero(~mask))
    of_models = {}
    for which, network in zip(MODELS, (model, twin), strict=True):
        if network is not None:
            scores = attack(network, used[which])
            of_models[which] = Scores(scores[mask], scores[order])
    settings = settings | {"members": int(mask.sum()), "non_members": int((~mask).sum()), "shadows": len(shadows)}
    return _result({name: of_models}, level, shift, settings)


# what is measured


def _result(
    by_attack: dict[str, dict[str, Scores]], level: float, shift: float, settings: dict[str, Any]
) -> Membership:
    """Every attack by itself, and the strongest with intervals that allow for the choice."""
    measured = [_measured(name, which, s, level) for name, by in by_attack.items() for which, s in by.items()]
    together = intervals.each(level, len(by_attack))
    first = next(iter(by_attack.values()))
    headline, strongest = {}, {}
    for which in first:
        aucs = {name: auc(by[which].inside, by[which].outside, together) for name, by in by_attack.items()}
        strongest[which] = max(aucs, key=lambda name: aucs[name].value)
        headline["auc" if which == "private" else "twin auc"] = _largest(list(aucs.values()), level)
    rates = [_rates(by["private"], together)[:1] for by in by_attack.values()]
    if all(rates) and rates[0][0].at == RATES[0]:
        headline[f"tpr at {_rate(RATES[0])} fpr"] = _largest([rate[0].tpr for rate in rates], level)
    differences = {}
    if "twin" in first:
        differences = {name: _difference(by, level) for name, by in by_attack.items()}
        change = _difference(by_attack[strongest["twin"]], together)
        headline["difference"] = _named(change, level, len(by_attack))
    values = Values(measured=measured, differences=differences, strongest=strongest, class_shift_p=shift)
    setting = first["private"].setting
    too_few = [at for at in RATES if threshold(setting, at) is None]
    settings = settings | {"level": level, "setting_thresholds": len(setting), "too_few_for": too_few}
    return Membership(headline=headline, values=values, settings=settings, status=STATUS)


def _difference(by: dict[str, Scores], level: float) -> Estimate:
    private, twin = by["private"], by["twin"]
    return auc_difference((private.inside, private.outside), (twin.inside, twin.outside), level)


def _measured(attack: str, which: str, scores: Scores, level: float) -> Measured:
    area = auc(scores.inside, scores.outside, level)
    return Measured(attack, which, area, _rates(scores, level), roc(scores.inside, scores.outside))


def _rates(scores: Scores, level: float) -> list[Rate]:
    limits = {at: threshold(scores.setting, at) for at in RATES}
    return [
        Rate(at, exact_share(scores.inside > limit, level), exact_share(scores.fresh > limit, level))
        for at, limit in limits.items()
        if limit is not None
    ]


def _largest(estimates: Sequence[Estimate], level: float) -> Estimate:
    """The largest of several values, from intervals that hold together."""
    top = max(estimates, key=lambda e: e.value)
    low, high = max(e.low for e in estimates), max(e.high for e in estimates)
    return _named(Estimate(top.value, low, high, top.n, level, top.method), level, len(estimates))


def _named(estimate: Estimate, level: float, choices: int) -> Estimate:
    method = estimate.method if choices == 1 else f"{estimate.method}, Bonferroni"
    return Estimate(estimate.value, estimate.low, estimate.high, estimate.n, level, method)


# words


def _rate(at: float) -> str:
    return f"{number(100 * at, 1)} %"


def _span(e: Estimate) -> str:
    return f"{fixed(e.low, 3)}–{fixed(e.high, 3)}"


def _signed(value: float) -> str:
    text = fixed(value, 3)
    return f"+{text}" if value > 0 and float(text) else text


def _change_cell(e: Estimate) -> str:
    return f"{_signed(e.value)} ({_signed(e.low)} to {_signed(e.high)})"


AUDIT = Audit("membership", membership, takes=TAKES, needs=("members",), usual=True, classes=True)

if not TYPE_CHECKING:
    __getattr__ = old_names(__name__)

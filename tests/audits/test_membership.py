"""Who was among the records: attacks find what an overfit model shows, and nothing where there is nothing."""

from __future__ import annotations

import json
import math
import time

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from matplotlib.figure import Figure
from scipy.stats import binom, norm
from sklearn.metrics import roc_auc_score
from torch import Tensor, nn

from helpers.membership import CLASSES, FEATURES, RECIPE, Trainings, network, overfit, people, rng
from noisewise.attacks.members import Scores, phi
from noisewise.attacks.shadows import train_shadows
from noisewise.audits.membership import ROWS, Membership, lira, membership, rmia
from noisewise.clipping import Flat
from noisewise.data import Data, mnist, split
from noisewise.errors import ConfigError, DataError, NoisewiseWarning
from noisewise.estimates import intervals
from noisewise.estimates.roc import auc
from noisewise.mechanism import Mechanism
from noisewise.models import build
from noisewise.sampling import Poisson
from noisewise.training.loop import train


class Table(nn.Module):
    """Logits by heart: row i of the data, given as its number, has the i-th logits."""

    def __init__(self, logits: Tensor):
        super().__init__()
        self.logits = nn.Parameter(logits)

    def forward(self, x: Tensor) -> Tensor:
        return self.logits[x.long().flatten()]


def numbered(y: Tensor, start: int = 0, **extra) -> Data:
    return Data(torch.arange(start, start + len(y)).float().unsqueeze(1), y, **extra)


# audits
@pytest.fixture(scope="module")
def leak() -> tuple[Data, Data, nn.Module, nn.Module]:
    """Members, others, a DP-trained model and its overfit twin."""
    members, others = people(400, 1), people(400, 2)
    private, twin = network(0), overfit(members, 0)
    train(
        private,
        (members.x, members.y),
        lambda model, batch: F.cross_entropy(model(batch[0]), batch[1], reduction="none"),
        Mechanism(sampler=Poisson(400, 80), clip=Flat(1.0), noise_multiplier=4.0, steps=30),
        torch.optim.SGD(private.parameters(), lr=0.3),
        insecure_seed=5,
        progress=False,
    )
    return members, others, private, twin


@pytest.fixture(scope="module")
def found(leak) -> Membership:
    members, others, private, twin = leak
    return membership(private, others, members=members, twin=twin)


def test_an_overfit_model_leaks_more_than_privacy_allows_and_a_private_one_does_not(found) -> None:
    """A mu-GDP model lets no attack beat AUC Phi(mu / sqrt 2); here mu = rate sqrt(steps (e^(1/sigma^2) - 1))."""
    bound = norm.cdf(0.2 * math.sqrt(30 * (math.exp(1 / 16) - 1)) / math.sqrt(2))
    assert 0.55 < bound < 0.6
    for name in ("loss threshold", "logistic regression"):
        assert found.attack(name).auc.low < bound < found.attack(name, "twin").auc.low
        assert found.values.differences[name].high < -0.1
    assert found.headline["auc"].low < bound < found.headline["twin auc"].low
    assert found.headline["difference"].high < -0.1
    assert set(found.headline) == {"auc", "tpr at 1 % fpr", "twin auc", "difference"}


def test_an_untrained_model_leaks_nothing_more_often_than_chance_says() -> None:
    """Fresh people and models, again and again: 95 % of the intervals contain 0.5. Of overfit models none does."""
    blank = [
        membership(network(seed), people(120, 1000 + seed), members=people(120, 2000 + seed), generator=rng(seed))
        for seed in range(12)
    ]
    wrong = sum(not each.auc.low < 0.5 < each.auc.high for result in blank for each in result.measured)
    assert wrong <= binom.ppf(0.999, 24, 0.05)
    assert sum(result.headline["auc"].low > 0.5 for result in blank) <= binom.ppf(0.999, 12, 0.05)
    calm = next(result for result in blank if result.headline["auc"].low <= 0.5)
    assert any("which guessing can explain" in sentence for sentence in calm.sentences())
    for seed in range(3):
        members = people(120, 2000 + seed)
        told = membership(overfit(members, seed), people(120, 1000 + seed), members=members)
        assert told.headline["auc"].low > 0.5
        assert any("so members can be told from others" in sentence for sentence in told.sentences())
        assert set(told.headline) == {"auc"}  # 30 non-members are too few for 1 %
        assert not told.has_twin


def test_the_loss_attack_is_scikit_learns_auc_of_the_loss() -> None:
    """All people on the judged half, known by heart: the same number from cross-entropy and roc_auc_score."""
    members, others = people(200, 1), people(200, 2)
    model = overfit(members, 0)
    result = membership(model, others, members=members, generator=rng(21))
    generator = rng(21)
    orders = [generator.permutation(200) for _ in range(2)]
    rows = [generator.permutation(order)[100:] for order in orders]
    with torch.no_grad():
        losses = [
            F.cross_entropy(model(part.x[index]).double(), part.y[index], reduction="none").numpy()
            for part, index in zip((members, others), rows, strict=True)
        ]
    expected = roc_auc_score(np.repeat([1, 0], 100), -np.concatenate(losses))
    assert result.attack("loss threshold").auc.value == pytest.approx(expected, abs=1e-12)
    assert result.settings["judged_half"] == 100
    again = membership(model, others, members=members, generator=rng(21))
    assert again.to_dict() == result.to_dict()


def test_regression_finds_what_the_loss_does_not_show() -> None:
    """Members' logits are all higher by 1: no probability changes. By their sum, N(4, 4) and N(0, 4), AUC Phi(sqrt 2)."""
    y = torch.arange(800) % CLASSES
    outputs = torch.from_numpy(rng(22).normal(0, 1, (800, CLASSES)))
    outputs[:400] += 1.0
    result = membership(Table(outputs), numbered(y[400:], 400), members=numbered(y[:400]))
    loss, regression = (result.attack(name).auc for name in ("loss threshold", "logistic regression"))
    assert loss.low < 0.5 < loss.high
    assert 0.8 < regression.low < norm.cdf(math.sqrt(2)) < regression.high
    assert result.values.strongest["private"] == "logistic regression"


def test_regression_is_judged_on_people_it_was_not_fitted_to() -> None:
    """30 useless logits: fitted and judged on the same 60 + 60 people they would seem to tell much."""
    from sklearn.linear_model import LogisticRegression

    y = torch.arange(240) % 30
    outputs = torch.from_numpy(rng(23).normal(0, 1, (240, 30)))
    result = membership(Table(outputs), numbered(y[120:], 120), members=numbered(y[:120]))
    own = result.attack("logistic regression").auc
    assert own.low < 0.5 < own.high
    labels = np.repeat([1, 0], 60)
    rows = np.r_[0:60, 120:180]
    seeming = LogisticRegression(C=100, max_iter=5000).fit(outputs[rows], labels).decision_function(outputs[rows])
    assert auc(seeming[:60], seeming[60:]).low > 0.6


def test_the_strongest_attack_has_an_interval_that_allows_for_the_choice(found) -> None:
    level = intervals.each(0.95, 2)
    each = [m.auc for m in found.measured if m.model == "private"]
    top = found.headline["auc"]
    assert top.value == max(e.value for e in each)
    assert top.method == "DeLong, logit, Bonferroni"
    assert top.level == 0.95
    strongest = next(e for e in each if e.value == top.value)
    assert top.high > strongest.high
    z = [norm.ppf((1 + x) / 2) for x in (0.95, level)]
    logit = [math.log(e / (1 - e)) for e in (strongest.value, strongest.high)]
    assert top.high >= 1 / (1 + math.exp(-(logit[0] + (logit[1] - logit[0]) * z[1] / z[0]))) - 1e-9


def test_rates_are_met_on_people_who_did_not_set_the_threshold() -> None:
    y = torch.zeros(8000, dtype=torch.long)
    outputs = torch.zeros(8000, 2, dtype=torch.float64)
    outputs[:, 0] = torch.from_numpy(rng(24).normal(0, 1, 8000) + 1.5 * (np.arange(8000) < 4000))
    result = membership(Table(outputs), numbered(y[4000:], 4000), members=numbered(y[:4000]))
    one, tenth = result.attack("loss threshold").rates
    assert (result.settings["judged_half"], result.settings["setting_thresholds"], one.fpr.n) == (2000, 1000, 1000)
    scores = Scores(np.zeros(1), np.arange(7.0))
    assert np.concatenate([scores.setting, scores.fresh]).tolist() == scores.outside.tolist()
    assert (one.at, tenth.at) == (0.01, 0.001)
    assert one.fpr.low < 0.01 < one.fpr.high
    assert one.tpr.value == pytest.approx(norm.cdf(1.5 - norm.ppf(0.99)), abs=0.06)
    assert one.tpr.low < one.tpr.value < one.tpr.high
    assert tenth.tpr.value < one.tpr.value
    assert result.headline["tpr at 1 % fpr"].value >= one.tpr.value
    assert result.settings["too_few_for"] == []


def test_rates_that_need_more_people_are_said_to_be_missing(found) -> None:
    assert found.settings["too_few_for"] == [0.001]
    assert [rate.at for rate in found.attack("loss threshold").rates] == [0.01]
    assert any(
        "0.1 % is not shown: it needs 999 non-members for the threshold, here are 100" in s for s in found.sentences()
    )


def test_different_classes_are_warned_of() -> None:
    members, others = people(300, 1), people(300, 2)
    shifted = others.take(torch.nonzero(others.y < 3).flatten())
    with pytest.warns(NoisewiseWarning, match="differ in their shares of classes"):
        result = membership(network(), shifted, members=members)
    assert any("differ in their classes" in sentence for sentence in result.sentences())
    one = Data(members.x, torch.zeros(300, dtype=torch.long)), Data(others.x, torch.zeros(300, dtype=torch.long))
    assert membership(network(), one[1], members=one[0]).values.class_shift_p == 1.0


def test_one_row_per_person_and_as_many_members_as_others() -> None:
    members, others = people(300, 1), people(130, 2)
    owned = Data(members.x, members.y, unit=torch.arange(300) // 3)
    result = membership(network(), others, members=owned)
    assert (result.settings["members"], result.settings["non_members"]) == (100, 100)
    few = membership(network(), others, members=members, rows=60)
    assert (few.settings["members"], few.settings["non_members"]) == (60, 60)
    assert ROWS == 10_000


def test_whoever_has_rows_on_both_sides_is_no_non_member() -> None:
    members, others = people(100, 1), people(100, 2)
    inside = Data(members.x, members.y, unit=torch.arange(100))
    with pytest.raises(DataError, match="3 people have rows among the members and among the others"):
        membership(network(), Data(others.x, others.y, unit=torch.arange(97, 197)), members=inside)
    apart = membership(network(), Data(others.x, others.y, unit=torch.arange(100, 200)), members=inside)
    assert apart.settings["members"] == 100


def test_people_that_do_not_fit_are_refused(leak, tmp_path) -> None:
    members, others, model, _ = leak
    with pytest.raises(DataError, match="the same rows"):
        membership(model, members, members=Data(members.x.clone(), members.y))
    with pytest.raises(DataError, match="at least 40 people of each kind"):
        membership(model, people(39, 5), members=members)
    with pytest.raises(DataError, match="not finite"):
        membership(
            Table(torch.full((400, 2), math.nan)),
            numbered(torch.zeros(50).long(), 50),
            members=numbered(torch.zeros(50).long()),
        )
    shadows = train_shadows(Trainings(), others, tmp_path, recipe=RECIPE, count=4)
    for inside in (np.ones(400, dtype=bool), np.arange(400) % 2, np.arange(399) < 150):
        with pytest.raises(DataError, match="true or false for each"):
            lira(nn.Linear(FEATURES, CLASSES), others, inside=inside, shadows=shadows)
    with pytest.raises(DataError, match="not the 400 rows"):
        lira(nn.Linear(FEATURES, CLASSES), members, inside=np.arange(400) < 150, shadows=shadows)
    with pytest.raises(DataError, match="population is the attacked rows"):
        rmia(nn.Linear(FEATURES, CLASSES), others, inside=np.arange(400) < 150, shadows=shadows, population=others)
    with pytest.raises(ConfigError, match="gamma=0"):
        rmia(
            nn.Linear(FEATURES, CLASSES),
            others,
            inside=np.arange(400) < 150,
            shadows=shadows,
            population=members,
            gamma=0,
        )


def test_a_result_is_read_as_it_was_written(found) -> None:
    again = Membership.from_dict(json.loads(json.dumps(found.to_dict())))
    assert again == found
    assert again.status.status == "not-private"
    assert "training records" in again.status.reason
    with pytest.raises(ConfigError, match="not in this result"):
        found.attack("LiRA online")
    areas, rates = found.tables()
    assert areas.columns == ["attack", "private", "twin", "private − twin"]
    assert [len(row) for row in areas.rows] == [4, 4]
    assert [len(row) for row in rates.rows] == [4] * 4
    assert found.figures()[0].words.endswith(found.sentences()[-1])


def test_the_curves_are_on_logarithmic_axes(found) -> None:
    ax = found.plot(Figure().subplots())
    assert (ax.get_xscale(), ax.get_yscale()) == ("log", "log")
    assert len(ax.get_lines()) == 5  # two attacks on two models, and guessing
    colours = {line.get_color() for line in ax.get_lines()}
    assert len(colours) == 3


def test_shadow_attacks_find_members_and_nothing_in_an_untrained_model(tmp_path) -> None:
    data, population = people(240, 31), people(200, 32)
    inside = rng(33).random(240) < 0.5
    fit = lambda part, seed: overfit(part, seed, 40)  # noqa: E731
    shadows = train_shadows(fit, data, tmp_path, recipe={"steps": 40}, count=8)
    twin = overfit(data.take(torch.from_numpy(np.flatnonzero(inside))), 99, 40)
    rest = {"inside": inside, "shadows": shadows, "twin": twin}
    results = [
        lira(network(77), data, **rest),
        lira(network(77), data, **rest, online=False),
        rmia(network(77), data, **rest, population=population),
    ]
    assert [r.attacks for r in results] == [["LiRA online"], ["LiRA offline"], ["RMIA"]]
    for result in results:
        assert result.headline["auc"].low < 0.5 < result.headline["auc"].high
        assert result.headline["twin auc"].low > 0.6
        assert result.headline["difference"].high < -0.1
        assert result.settings["shadows"] == 8
        assert result.headline["auc"].method == "DeLong, logit"  # nothing was chosen
        assert result.sentences()[0].startswith(f"The attack {result.attacks[0]} reaches an AUC of ")
    plain = phi(twin(data.x).detach().double(), data.y)
    best = results[0].attack("LiRA online", "twin").auc.value
    assert best > auc(plain[inside], plain[~inside]).value - 0.02
    mask = torch.from_numpy(inside)
    assert (
        lira(network(77), data, inside=mask, shadows=shadows, progress=True).headline
        == lira(network(77), data, inside=inside, shadows=shadows).headline
    )


# at size
def mnist_fit(epochs: int):
    """LeNet by Adam, batches of 64."""

    def fit(data: Data, seed: int) -> nn.Module:
        model = build("lenet", (1, 28, 28), 10, seed)
        optimizer = torch.optim.Adam(model.parameters(), lr=2e-3)
        generator = torch.Generator().manual_seed(seed)
        for _ in range(epochs):
            for rows in torch.randperm(len(data), generator=generator).split(64):
                optimizer.zero_grad()
                F.cross_entropy(model(data.x[rows]), data.y[rows]).backward()
                optimizer.step()
        return model

    return fit


@pytest.mark.slow
def test_mnist_membership_takes_under_a_minute() -> None:
    splits = mnist()
    twin = mnist_fit(1)(splits.train.take(torch.arange(5000)), 0)
    start = time.monotonic()
    result = membership(build("lenet", (1, 28, 28), 10, 5), splits.test, members=splits.train, twin=twin)
    seconds = time.monotonic() - start
    print(f"membership of MNIST, with a twin: {seconds:.1f} s")
    print(*result.sentences(), sep="\n")
    assert result.settings["members"] == 10_000
    assert seconds < 60


@pytest.mark.slow
def test_mnist_lira_with_16_shadows_takes_under_ten_minutes(tmp_path) -> None:
    train_part = mnist().train
    data, population, _ = split(train_part, 1, 10_000, 2_000)
    inside = rng(41).random(len(data)) < 0.5
    start = time.monotonic()
    fit = mnist_fit(8)
    model = fit(data.take(torch.from_numpy(np.flatnonzero(inside))), 10**6)
    shadows = train_shadows(fit, data, tmp_path, recipe={"model": "lenet", "epochs": 8}, count=16, progress=True)
    trained = time.monotonic() - start
    online = lira(model, data, inside=inside, shadows=shadows)
    offline = lira(model, data, inside=inside, shadows=shadows, online=False)
    robust = rmia(model, data, inside=inside, shadows=shadows, population=population)
    seconds = time.monotonic() - start
    print(f"17 trainings {trained:.0f} s, three attacks {seconds - trained:.1f} s")
    for result in (online, offline, robust):
        print(*result.sentences(), sep="\n")
    assert seconds < 600
    assert online.headline["auc"].low > 0.5

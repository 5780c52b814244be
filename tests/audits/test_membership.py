from __future__ import annotations

import json
import math
import stat
import time

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from matplotlib.figure import Figure
from scipy.stats import binom, norm
from sklearn.metrics import roc_auc_score, roc_curve
from torch import Tensor, nn

from noisewise.attacks.members import Scores, phi
from noisewise.attacks.shadows import Shadows, duration, halves, lira_offline, lira_online, rmia_scores, train_shadows
from noisewise.audits.membership import ROWS, Membership, lira, membership, rmia
from noisewise.clipping import Flat
from noisewise.data import Data, mnist, split
from noisewise.errors import ConfigError, DataError, Interrupted, NoisewiseWarning, RunError
from noisewise.estimates import intervals
from noisewise.estimates.roc import auc, auc_difference, exact_share, roc, threshold
from noisewise.mechanism import Mechanism
from noisewise.models import build
from noisewise.sampling import Poisson
from noisewise.training.loop import train

FEATURES, CLASSES = 12, 4


def rng(seed: int = 0) -> np.random.Generator:
    return np.random.default_rng(seed)


def people(n: int, seed: int) -> Data:
    """Labels that have nothing to do with the inputs: all that can be learned is who was there."""
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(n, FEATURES, generator=generator)
    return Data(x, torch.randint(0, CLASSES, (n,), generator=generator))


def network(seed: int = 0) -> nn.Module:
    with torch.random.fork_rng([]):
        torch.manual_seed(seed)
        return nn.Sequential(nn.Linear(FEATURES, 48), nn.Tanh(), nn.Linear(48, CLASSES))


def overfit(data: Data, seed: int, steps: int = 60) -> nn.Module:
    model = network(seed)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.02)
    for _ in range(steps):
        optimizer.zero_grad()
        F.cross_entropy(model(data.x), data.y).backward()
        optimizer.step()
    return model


class Table(nn.Module):
    """Logits by heart: row i of the data, given as its number, has the i-th logits."""

    def __init__(self, logits: Tensor):
        super().__init__()
        self.logits = nn.Parameter(logits)

    def forward(self, x: Tensor) -> Tensor:
        return self.logits[x.long().flatten()]


def numbered(y: Tensor, start: int = 0, **extra) -> Data:
    return Data(torch.arange(start, start + len(y)).float().unsqueeze(1), y, **extra)


# ROC


def slow_delong(inside, outside):
    """DeLong's definition, pair by pair."""
    wins = np.array([[1.0 if a > b else 0.5 if a == b else 0.0 for b in outside] for a in inside])
    v10, v01 = wins.mean(1), wins.mean(0)
    return wins.mean(), v10.var(ddof=1) / len(v10) + v01.var(ddof=1) / len(v01)


def width(e) -> float:
    return e.high - e.low


@pytest.mark.parametrize("ties", [False, True])
def test_auc_is_scikit_learns_and_its_interval_delongs(ties) -> None:
    inside, outside = rng(1).normal(0.5, 1, 60), rng(2).normal(0, 1, 45)
    if ties:
        inside, outside = inside.round(), outside.round()
    found = auc(inside, outside)
    labels = np.repeat([1, 0], [60, 45])
    assert found.value == pytest.approx(roc_auc_score(labels, np.concatenate([inside, outside])), abs=1e-12)
    value, variance = slow_delong(inside, outside)
    half = 1.959964 * math.sqrt(variance) / (value * (1 - value))
    ends = [1 / (1 + math.exp(-(math.log(value / (1 - value)) + sign * half))) for sign in (-1, 1)]
    assert [found.low, found.high] == pytest.approx(ends, abs=1e-7)
    assert (found.n, found.method) == (105, "DeLong, logit")


def test_interval_covers_the_gaussians_closed_form_as_often_as_it_says() -> None:
    """Scores N(mu, 1) and N(0, 1) have AUC Phi(mu / sqrt 2); an interval with half the width would not do."""
    generator, mu, repeats = rng(3), 0.7, 600
    truth = norm.cdf(mu / math.sqrt(2))
    found = [auc(generator.normal(mu, 1, 80), generator.normal(0, 1, 120)) for _ in range(repeats)]
    covered = sum(e.low <= truth <= e.high for e in found)
    narrow = sum(abs(e.value - truth) <= width(e) / 4 for e in found)
    lowest, highest = binom.ppf([1e-4, 1 - 1e-4], repeats, 0.95)
    assert lowest <= covered <= highest
    assert narrow < lowest
    assert np.mean([e.value for e in found]) == pytest.approx(truth, abs=4 * 0.036 / math.sqrt(repeats))


def test_intervals_agree_with_the_bootstrap() -> None:
    generator = rng(4)
    shared_in, shared_out = generator.normal(0.6, 1, 150), generator.normal(0, 1, 150)
    first = shared_in + generator.normal(0.4, 0.5, 150), shared_out + generator.normal(0, 0.5, 150)
    second = shared_in + generator.normal(0, 0.5, 150), shared_out + generator.normal(0, 0.5, 150)
    labels = np.repeat([1, 0], 150)

    def drawn() -> tuple[float, float]:
        rows, others = generator.integers(0, 150, 150), generator.integers(0, 150, 150)
        values = [roc_auc_score(labels, np.concatenate([a[rows], b[others]])) for a, b in (first, second)]
        return values[0], values[0] - values[1]

    draws = np.array([drawn() for _ in range(400)])
    single, paired = auc(*first), auc_difference(first, second)
    z = norm.ppf(0.975)
    assert width(single) / (2 * z) == pytest.approx(draws[:, 0].std(), rel=0.12)
    assert width(paired) / (2 * z) == pytest.approx(draws[:, 1].std(), rel=0.12)
    assert paired.value == pytest.approx(auc(*first).value - auc(*second).value)
    unpaired = math.hypot(width(auc(*first)), width(auc(*second)))
    assert width(paired) < 0.7 * unpaired  # the pairing is used


def test_separated_scores_do_not_give_a_point() -> None:
    found = auc(np.arange(30) + 100, np.arange(20))
    assert (found.value, found.high, found.method) == (1.0, 1.0, "Newcombe")

    def within(t):  # Hanley and McNeil's standard deviation, with the mean size in place of each
        size = (30 + 20) / 2 - 1
        q = t * (1 - t) * (1 + size * (1 - t) / (2 - t) + size * t / (1 + t)) / 600
        return 1 - t <= 1.959964 * np.sqrt(q)

    grid = np.linspace(0.5, 0.99999, 200_001)
    assert found.low == pytest.approx(grid[within(grid)].min(), abs=1e-5)
    assert auc(np.arange(300) + 1000, np.arange(300)).low > found.low
    below = auc(np.arange(30), np.arange(20) + 100)
    assert (below.value, below.low) == (0.0, 0.0)
    assert below.high == pytest.approx(1 - found.low, abs=1e-6)
    equal = auc(np.ones(30), np.ones(20))
    assert equal.low < 0.4 < equal.value == 0.5 < 0.6 < equal.high
    same = auc_difference((np.arange(30) + 100, np.arange(20)), (np.arange(30) + 50, np.arange(20)))
    assert same.low < -0.05 < same.value == 0 < 0.05 < same.high


def test_scores_that_cannot_be_ranked_are_refused() -> None:
    with pytest.raises(DataError, match="none of them missing"):
        auc([0.1, math.nan], [0.2])
    with pytest.raises(DataError, match="same people"):
        auc_difference(([1.0, 2.0], [0.0]), ([1.0], [0.0]))


def test_thresholds_keep_the_false_positive_rate_on_new_people() -> None:
    """Of uniform scores, 1 - t exceed t. One score further down, as a naive quantile is, would be too many."""
    generator, k, rate, repeats = rng(5), 199, 0.01, 4000
    draws = generator.random((repeats, k))
    met = np.mean([1 - threshold(draw, rate) for draw in draws])
    naive = np.mean([1 - np.sort(draw)[::-1][math.floor(rate * (k + 1))] for draw in draws])
    error = 4 * math.sqrt(0.01 * 0.99 / 200 / repeats)
    assert met == pytest.approx(rate, abs=error)
    assert naive > rate + error
    assert threshold(np.arange(999), 0.001) == 998
    assert threshold(np.arange(998), 0.001) is None


@pytest.mark.parametrize(("hits", "n"), [(0, 40), (1, 40), (17, 40), (40, 40)])
def test_exact_share_is_clopper_and_pearsons(hits, n) -> None:
    found = exact_share(np.arange(n) < hits)
    assert found.value == hits / n
    assert found.low == 0 if hits == 0 else binom.sf(hits - 1, n, found.low) == pytest.approx(0.025)
    assert found.high == 1 if hits == n else binom.cdf(hits, n, found.high) == pytest.approx(0.025)


def test_the_saved_curve_is_on_scikit_learns() -> None:
    inside, outside = rng(6).normal(1, 1, 300), rng(7).normal(0, 1, 200)
    false, true, _ = roc_curve(np.repeat([1, 0], [300, 200]), np.concatenate([inside, outside]))
    points = roc(inside, outside)
    assert points[0][0] == pytest.approx(1 / 200)
    assert points[-1] == [1.0, 1.0]
    for aim, found in points:
        count = math.floor(aim * 200 + 1e-6)
        limit = np.sort(outside)[::-1][count] if count < 200 else -math.inf
        assert found == pytest.approx((inside > limit).mean())
    for rate, hit in zip(false, true, strict=True):
        assert all(found <= hit + 1e-12 for aim, found in points if aim <= rate - 1e-9)


# signals and scores


def test_phi_is_the_logit_of_the_labels_probability() -> None:
    outputs = torch.from_numpy(rng(8).normal(0, 2, (50, 5)))
    y = torch.from_numpy(rng(9).integers(0, 5, 50))
    p = torch.softmax(outputs, 1)[torch.arange(50), y].numpy()
    assert phi(outputs, y) == pytest.approx(np.log(p / (1 - p)), abs=1e-12)
    assert phi(outputs + 500, y) == pytest.approx(phi(outputs, y), abs=1e-9)
    far = torch.tensor([[900.0, 0.0, 0.0], [0.0, 900.0, 0.0]], dtype=torch.float64)
    assert phi(far, torch.tensor([0, 0])) == pytest.approx([900 - math.log(2), -900])  # softmax gives 1 and 0 here
    for broken in (torch.full((2, 3), math.nan), torch.zeros(2, 1)):
        with pytest.raises(DataError, match="without a probability"):
            phi(broken, torch.tensor([0, 0]))


def shadow_case(count: int, rows: int = 25):
    inside = halves(rows, count, rng(10))
    shadows = rng(11).normal(0, 1, (count, rows)) * rng(12).uniform(0.5, 2, rows) + inside * 0.8
    return rng(13).normal(0.4, 1.5, rows), shadows, inside


def slow_gaussians(shadows, inside, member):
    """Mean and standard deviation by row, one value at a time."""
    samples = [[v for v, i in zip(s, m, strict=True) if i == member] for s, m in zip(shadows.T, inside.T, strict=True)]
    means = [float(np.mean(sample)) for sample in samples]
    if len(shadows) >= 64:
        return means, [float(np.std(sample, ddof=1)) for sample in samples]
    squares = sum((v - m) ** 2 for sample, m in zip(samples, means, strict=True) for v in sample)
    return means, [math.sqrt(squares / sum(len(sample) - 1 for sample in samples))] * len(means)


@pytest.mark.parametrize("count", [4, 16, 64])
def test_lira_is_the_ratio_of_two_scipy_densities(count) -> None:
    target, shadows, inside = shadow_case(count)
    (m1, s1), (m0, s0) = (slow_gaussians(shadows, inside, member) for member in (True, False))
    ratio = [norm.logpdf(t, a, b) - norm.logpdf(t, c, d) for t, a, b, c, d in zip(target, m1, s1, m0, s0, strict=True)]
    assert lira_online(target, shadows, inside) == pytest.approx(ratio, abs=1e-9)
    chance = [norm.cdf(t, m, s) for t, m, s in zip(target, m0, s0, strict=True)]
    assert norm.cdf(lira_offline(target, shadows, inside)) == pytest.approx(chance, abs=1e-12)


def test_lira_reaches_the_closed_form_and_beats_a_global_threshold() -> None:
    """Rows of different difficulty: phi ~ N(d + mu [in], 1). The best attack has AUC Phi(mu / sqrt 2)."""
    generator, rows, mu = rng(14), 4000, 1.0
    difficulty = generator.normal(0, 3, rows)
    inside = halves(rows, 100, generator)
    shadows = difficulty + mu * inside + generator.normal(0, 1, inside.shape)
    member = generator.random(rows) < 0.5
    target = difficulty + mu * member + generator.normal(0, 1, rows)
    best = norm.cdf(mu / math.sqrt(2))
    pooled = shadows[:40], halves(rows, 40, rng(15))
    for scores in (lira_online(target, shadows, inside), lira_offline(target, shadows, inside)):
        found = auc(scores[member], scores[~member])
        assert best - 0.03 < found.value < found.high < best + 0.05
        assert found.high > best - 0.01
    assert auc(target[member], target[~member]).high < 0.65  # who ignores the difficulty finds little
    wrong = lira_online(target, *pooled)  # the masks of other shadows: nothing to find
    assert auc(wrong[member], wrong[~member]).value < 0.6


def test_rmia_is_its_double_loop() -> None:
    generator, rows, count, others = rng(16), 20, 8, 30
    inside = halves(rows, count, generator)
    target, shadows = generator.random(rows), generator.random((count, rows))
    target_z, shadows_z = generator.random(others), generator.random((count, others))

    def denominator(values):
        return 0.5 * (1.3 * (sum(values) / len(values)) + 0.7)

    expected = []
    for x in range(rows):
        own = target[x] / denominator([shadows[s, x] for s in range(count) if not inside[s, x]])
        beaten = 0
        for z in range(others):
            beaten += own / (target_z[z] / denominator(list(shadows_z[:, z]))) >= 2.0
        expected.append(beaten / others)
    assert rmia_scores(target, shadows, inside, target_z, shadows_z).tolist() == pytest.approx(expected)
    assert len(set(expected)) > 5


def test_rows_in_all_shadows_are_refused() -> None:
    inside = np.ones((4, 3), dtype=bool)
    with pytest.raises(DataError, match="3 rows are in all shadows"):
        lira_offline(np.zeros(3), np.zeros((4, 3)), inside)
    with pytest.raises(DataError, match="in all shadows or in none"):
        rmia_scores(np.ones(3), np.ones((4, 3)), inside, np.ones(2), np.ones((4, 2)))


# shadows


class Trainings:
    """A training that counts, uses the global generator, and can be stopped."""

    def __init__(self, stop_at: int | None = None):
        self.sizes: list[int] = []
        self.seeds: list[int] = []
        self.stop_at = stop_at

    def __call__(self, data: Data, seed: int) -> nn.Module:
        if len(self.sizes) == self.stop_at:
            raise KeyboardInterrupt
        self.sizes.append(len(data))
        self.seeds.append(seed)
        model = nn.Linear(FEATURES, CLASSES)
        with torch.no_grad():
            model.bias += data.x.mean(0)[:CLASSES]
        return model


RECIPE = {"model": "linear", "rate": 0.1}


def weights_of(shadows: Shadows) -> list[Tensor]:
    return [torch.cat([p.flatten() for p in m.parameters()]) for m in shadows.models(nn.Linear(FEATURES, CLASSES))]


@pytest.mark.parametrize(("rows", "count"), [(1, 4), (57, 6), (200, 16)])
def test_every_row_is_in_exactly_half_of_the_shadows(rows, count) -> None:
    inside = halves(rows, count, rng(17))
    assert inside.shape == (count, rows)
    assert (inside.sum(0) == count // 2).all()
    if rows == 200:
        sizes = inside.sum(1)
        assert len(set(sizes.tolist())) > 1  # drawn at random, row by row
        assert abs(sizes - 100).max() < 40


def test_shadows_are_trained_once_and_kept_for_the_owner_only(tmp_path) -> None:
    data, fit, folder = people(60, 1), Trainings(), tmp_path / "shadows"
    before = torch.get_rng_state()
    shadows = train_shadows(fit, data, folder, recipe=RECIPE, count=6, seed=3)
    assert torch.equal(before, torch.get_rng_state())
    assert fit.sizes == shadows.inside.sum(1).tolist()
    assert len(set(fit.seeds)) == 6
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    assert json.loads((folder / "shadows.json").read_text())["status"] == "not-private"
    again = train_shadows(fit, data, folder, recipe=RECIPE, count=6, seed=3)
    assert len(fit.sizes) == len(shadows) == 6
    assert (again.inside == shadows.inside).all()
    assert all(torch.equal(a, b) for a, b in zip(weights_of(shadows), weights_of(Shadows.read(folder)), strict=True))
    assert len({tuple(w.tolist()) for w in weights_of(shadows)}) == 6


def test_an_interrupted_training_goes_on_at_the_next_shadow(tmp_path) -> None:
    data = people(60, 1)
    whole = train_shadows(Trainings(), data, tmp_path / "whole", recipe=RECIPE, count=6)
    first, second = Trainings(stop_at=4), Trainings()
    with pytest.raises(Interrupted, match="after 4 of 6 shadows"):
        train_shadows(first, data, tmp_path / "parts", recipe=RECIPE, count=6)
    with pytest.raises(RunError, match="2 of 6 shadows are not trained yet"):
        Shadows.read(tmp_path / "parts")
    parts = train_shadows(second, data, tmp_path / "parts", recipe=RECIPE, count=6)
    assert (len(first.sizes), len(second.sizes)) == (4, 2)
    assert all(torch.equal(a, b) for a, b in zip(weights_of(whole), weights_of(parts), strict=True))


def test_stopped_before_the_halves_were_written(tmp_path) -> None:
    data, folder = people(60, 1), tmp_path / "shadows"
    first = train_shadows(Trainings(), data, folder, recipe=RECIPE, count=4)
    for file in folder.glob("*.safetensors"):
        file.unlink()
    again = train_shadows(Trainings(), data, folder, recipe=RECIPE, count=4)
    assert (again.inside == first.inside).all()


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"recipe": {"model": "linear", "rate": 0.2}}, "recipe"),
        ({"seed": 4}, "seed"),
        ({"count": 8}, "count"),
        ({"data": people(60, 2)}, "data"),
    ],
)
def test_another_plan_in_the_same_folder_is_refused(tmp_path, change, named) -> None:
    settings = {"data": people(60, 1), "recipe": RECIPE, "count": 4, "seed": 3}
    train_shadows(Trainings(), folder=tmp_path / "s", **settings)
    with pytest.raises(RunError, match=rf"another plan \(different: {named}\)"):
        train_shadows(Trainings(), folder=tmp_path / "s", **(settings | change))


def test_impossible_shadows_are_refused(tmp_path) -> None:
    data = people(60, 1)
    for count in (5, 2, True, 8.0):
        with pytest.raises(ConfigError, match="even number"):
            train_shadows(Trainings(), data, tmp_path, recipe=RECIPE, count=count)
    with pytest.raises(ConfigError, match="seed=-1"):
        train_shadows(Trainings(), data, tmp_path, recipe=RECIPE, seed=-1)
    with pytest.raises(ConfigError, match="says what `fit` does"):
        train_shadows(Trainings(), data, tmp_path, recipe={"loss": len})
    with pytest.raises(ConfigError, match="returned a NoneType"):
        train_shadows(lambda data, seed: None, data, tmp_path, recipe=RECIPE)
    doubled = Data(data.x, data.y, unit=torch.arange(60) // 2)
    with pytest.raises(DataError, match="60 rows of 30 people"):
        train_shadows(Trainings(), doubled, tmp_path / "b", recipe=RECIPE)
    (tmp_path / "file").write_text("")
    with pytest.raises(RunError, match="choose another folder"):
        train_shadows(Trainings(), data, tmp_path / "file", recipe=RECIPE)
    (tmp_path / "models").mkdir()
    (tmp_path / "models" / "mine.safetensors").write_text("")
    with pytest.raises(RunError, match=r"no shadows\.json"):
        train_shadows(Trainings(), data, tmp_path / "models", recipe=RECIPE)


def test_damaged_or_foreign_shadows_are_refused(tmp_path) -> None:
    data = people(60, 1)
    shadows = train_shadows(Trainings(), data, tmp_path, recipe=RECIPE, count=4)
    with pytest.raises(RunError, match="same architecture"):
        next(shadows.models(nn.Linear(3, 2)))
    with pytest.raises(DataError, match="not the 60 rows"):
        shadows.check(people(60, 2))
    raw = bytearray(shadows.file(2).read_bytes())
    raw[-1] ^= 1
    shadows.file(2).write_bytes(bytes(raw))
    with pytest.raises(RunError, match="damaged"):
        weights_of(shadows)
    (tmp_path / "shadows.json").write_text('{"format": 9, "count": 4, "rows": 60, "data": ""}')
    with pytest.raises(RunError, match="damaged"):
        Shadows.read(tmp_path)


def test_one_process_at_a_time(tmp_path) -> None:
    data = people(60, 1)

    def fit(part: Data, seed: int) -> nn.Module:
        with pytest.raises(RunError, match="in use by another process"):
            train_shadows(Trainings(), data, tmp_path, recipe=RECIPE, count=4)
        return nn.Linear(2, 2)

    assert len(train_shadows(fit, data, tmp_path, recipe=RECIPE, count=4)) == 4


def test_the_time_it_takes_is_said_after_the_first(tmp_path, capsys) -> None:
    train_shadows(Trainings(), people(60, 1), tmp_path, recipe=RECIPE, count=4, progress=True)
    assert f"3 more shadows, {duration(0)}" in capsys.readouterr().err
    train_shadows(Trainings(), people(60, 1), tmp_path / "quiet", recipe=RECIPE, count=4)
    assert capsys.readouterr().err == ""


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


def test_a_folder_with_other_files_is_left_as_it_is(tmp_path) -> None:
    tmp_path.chmod(0o755)
    (tmp_path / "notes.txt").write_text("mine")
    with pytest.raises(RunError, match="choose an empty folder"):
        train_shadows(Trainings(), people(60, 1), tmp_path, recipe=RECIPE, count=4)
    assert stat.S_IMODE(tmp_path.stat().st_mode) == 0o755
    assert [each.name for each in tmp_path.iterdir()] == ["notes.txt"]


def test_people_that_do_not_fit_are_refused(leak, tmp_path) -> None:
    members, others, model, _ = leak
    with pytest.raises(DataError, match="the same rows"):
        membership(model, members, members=Data(members.x.clone(), members.y))
    with pytest.raises(DataError, match="at least 40 people of each kind"):
        membership(model, people(39, 5), members=members)
    with pytest.raises(DataError, match="without a probability"):
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

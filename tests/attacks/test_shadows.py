"""Shadow models: trained once, kept for the owner, and the ratios drawn from them."""

from __future__ import annotations

import json
import math
import stat

import numpy as np
import pytest
import torch
from scipy.stats import norm
from torch import Tensor, nn

from helpers import working
from helpers.membership import CLASSES, FEATURES, RECIPE, Trainings, people, rng
from noisewise.attacks.shadows import Shadows, halves, lira_offline, lira_online, rmia_scores, train_shadows
from noisewise.data import Data
from noisewise.errors import ConfigError, DataError, Interrupted, RunError
from noisewise.estimates.roc import auc
from noisewise.jobs import Local
from noisewise.runs.tensors import load_tensors


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
    with pytest.raises(Interrupted, match="4 of 6 done; nothing is lost"):
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


def test_a_bar_is_shown_where_asked_for(tmp_path, capsys) -> None:
    train_shadows(Trainings(), people(60, 1), tmp_path, recipe=RECIPE, count=4, progress=True)
    assert "shadow models" in capsys.readouterr().err
    train_shadows(Trainings(), people(60, 1), tmp_path / "quiet", recipe=RECIPE, count=4)
    assert capsys.readouterr().err == ""


# audits


def test_a_folder_with_other_files_is_left_as_it_is(tmp_path) -> None:
    tmp_path.chmod(0o755)
    (tmp_path / "notes.txt").write_text("mine")
    with pytest.raises(RunError, match="choose an empty folder"):
        train_shadows(Trainings(), people(60, 1), tmp_path, recipe=RECIPE, count=4)
    assert stat.S_IMODE(tmp_path.stat().st_mode) == 0o755
    assert [each.name for each in tmp_path.iterdir()] == ["notes.txt"]


@pytest.mark.slow  # test_cluster.py has two workers do the same jobs
def test_several_processes_train_the_same_shadows_also_if_one_is_killed(tmp_path, monkeypatch) -> None:
    victim = tmp_path / "victim"
    victim.touch()
    data = people(40, 1)
    whole = train_shadows(working.fitted, data, tmp_path / "one", recipe=RECIPE, count=4)  # before there is a victim
    monkeypatch.setenv("KILL_ONE", str(victim))
    monkeypatch.setenv("OMP_NUM_THREADS", str(torch.get_num_threads()))
    parts = train_shadows(working.fitted, data, tmp_path / "two", recipe=RECIPE, count=4, where=Local(2))
    assert not victim.exists()
    for number in range(4):
        one, other = (load_tensors(shadows.file(number)) for shadows in (whole, parts))
        assert all(torch.equal(one[name], other[name]) for name in one)
    assert not (tmp_path / "two" / "rows").exists()
    with pytest.raises(ConfigError, match="no function of a module"):
        train_shadows(Trainings(), data, tmp_path / "three", recipe=RECIPE, count=4, where=Local(2))

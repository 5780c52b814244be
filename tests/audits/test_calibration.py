"""Calibration: who is too sure, told from chance, by people."""

from __future__ import annotations

import json
import os
import time
from dataclasses import replace

import numpy as np
import pytest
import torch
from matplotlib.figure import Figure
from scipy.stats import binomtest
from sklearn.metrics import brier_score_loss, log_loss
from torchmetrics.functional.classification import multiclass_calibration_error

from helpers.confident import Told, honest
from noisewise.audits.calibration import AUDIT, OVER, RESAMPLES, UNDER, Calibration, calibration
from noisewise.audits.confidence import (
    equal_width,
    largest_error,
)
from noisewise.data import Data, mnist
from noisewise.errors import ConfigError, DataError
from noisewise.models import build
from noisewise.repairs.temperature import Scaled, Temperature, temperature
from noisewise.runs.folder import Status

FREE = Status("private", "public")


def confidence_and_hits(data: Data, sharpness: float = 1.0) -> tuple[np.ndarray, np.ndarray]:
    confidence, said = (data.x * sharpness).softmax(1).max(1)
    return confidence.numpy(), (said == data.y).double().numpy()


def test_the_audit_reports_these_numbers() -> None:
    data = honest(800)
    result = calibration(Told(2.0), data, twin=Told(1.0))
    for which, sharpness in {"private": 2.0, "twin": 1.0}.items():
        shares = (data.x * sharpness).softmax(1)
        for name, bins in {"ECE": 15, "ECE, 10 bins": 10, "ECE, 20 bins": 20}.items():
            theirs = float(multiclass_calibration_error(shares, data.y, 4, n_bins=bins))
            assert result.scores(name)[which].value == pytest.approx(theirs, abs=1e-6)
        theirs = float(multiclass_calibration_error(shares, data.y, 4, n_bins=15, norm="max"))
        assert result.scores("MCE, all bins")[which].value == pytest.approx(theirs, abs=1e-6)
        assert result.scores("NLL")[which].value == pytest.approx(log_loss(data.y, shares))
        theirs = brier_score_loss(data.y, shares, scale_by_half=False)
        assert result.scores("Brier")[which].value == pytest.approx(theirs)
    for name in ("ECE", "adaptive ECE", "MCE", "Brier", "NLL", "over-confidence", "accuracy"):
        scores = result.scores(name)
        assert scores["difference"].value == pytest.approx(scores["private"].value - scores["twin"].value, abs=1e-9)
        assert all(e.low <= e.value <= e.high for e in scores.values())


def test_adaptive_error_is_the_slow_definition() -> None:
    data = honest(450)
    confidence, hits = confidence_and_hits(data, 2.0)
    order = np.argsort(confidence)
    slow = sum(len(rows) / 450 * abs(hits[rows].mean() - confidence[rows].mean()) for rows in np.array_split(order, 15))
    assert calibration(Told(2.0), data).scores("adaptive ECE")["private"].value == pytest.approx(slow)


def test_rows_of_one_person_are_drawn_together() -> None:
    one = honest(300)
    five = Data(one.x.repeat_interleave(5, 0), one.y.repeat_interleave(5), unit=torch.arange(300).repeat_interleave(5))
    single, together = (calibration(Told(2.0), data).scores("ECE")["private"] for data in (one, five))
    assert (single.value, single.low, single.high) == pytest.approx((together.value, together.low, together.high))
    apart = calibration(Told(2.0), Data(five.x, five.y)).scores("ECE")["private"]
    assert apart.high - apart.low < 0.7 * (together.high - together.low)


def test_mce_allows_for_the_choice_of_the_bin() -> None:
    """Perfectly calibrated: the largest gap of the sample is above 0, its interval starts there all the same."""
    low = [calibration(Told(), honest(1000, seed=seed), resamples=20).headline["MCE"].low for seed in range(6)]
    assert low.count(0.0) >= 5
    assert calibration(Told(5.0), honest(1000)).headline["MCE"].low > 0.1


# --- planted effects
def test_an_overconfident_model_is_found_and_repaired() -> None:
    data, other = honest(3000, public=True), honest(3000, seed=1, public=True)
    model = Told(5.0)
    found = temperature(model, other)
    assert found.value == pytest.approx(5.0, rel=0.1)
    result = calibration(model, data, temperature=found)
    assert result.headline["over-confidence"].low > 0.1
    assert result.values.sides["private"].over > 10 * result.values.sides["private"].under
    assert result.chance().p < 0.01
    assert any("is over-confident" in sentence for sentence in result.sentences())
    assert result.headline["ECE with temperature"].high < result.headline["ECE"].low / 3
    assert result.scores("ECE")["gain"].high < 0
    assert result.scores("NLL")["gain"].high < 0
    assert result.scores("accuracy")["gain"].value == 0
    assert result.status.status == "private"
    repaired = calibration(Scaled(model, found), data)
    assert repaired.headline["ECE"].value == pytest.approx(result.headline["ECE with temperature"].value)
    assert repaired.chance().p > 0.01


def test_an_underconfident_model_is_found() -> None:
    result = calibration(Told(0.3), honest(2000))
    assert result.headline["over-confidence"].high < -0.1
    assert any("is under-confident" in sentence for sentence in result.sentences())
    assert result.values.sides["private"].under > 10 * result.values.sides["private"].over


def test_a_calibrated_model_is_not_accused() -> None:
    results = [calibration(Told(), honest(1500, seed=seed), resamples=300) for seed in range(8)]
    assert sum(not result.headline["over-confidence"].excludes_zero for result in results) >= 7
    assert sum(result.chance().p > 0.05 for result in results) >= 6
    assert sum(result.headline["ECE"].low < 0.005 for result in results) >= 7
    assert np.mean([r.headline["ECE"].value / r.chance().mean for r in results]) == pytest.approx(1.0, abs=0.25)


def test_what_privacy_changed_is_told_from_chance() -> None:
    data = honest(2000)
    worse = calibration(Told(4.0), data, twin=Told())
    assert worse.headline["excess ECE"].low > 0.05
    assert worse.headline["excess over-confidence"].low > 0.05
    same = calibration(Told(2.0), data, twin=Told(2.0))
    assert same.headline["excess ECE"].value == 0
    assert any("chance can explain" in sentence for sentence in same.sentences())


# --- temperature
def test_a_temperature_from_private_people_makes_the_result_private() -> None:
    found = temperature(Told(2.0), honest(500))
    result = calibration(Told(2.0), honest(500, seed=1, public=True), temperature=found)
    assert result.status.status == "not-private"
    assert any("not-private" in sentence for sentence in result.sentences())


# --- what is shown
def test_people_are_counted_not_rows() -> None:
    """Rows of two people are many, and yet neither a bin nor a group."""
    few = honest(300, groups={"ward": torch.arange(300) % 2})
    owned = replace(few, unit=torch.arange(300) // 10)  # 30 people, who all have rows in both wards
    crowd = replace(few, unit=torch.arange(300) // 20)
    shown = [calibration(Told(), data, resamples=20) for data in (few, owned, crowd)]
    assert [len(result.values.groups) for result in shown] == [2, 2, 0]
    assert [any(b.accuracy for b in result.bins()) for result in shown] == [True, True, False]
    assert "MCE" not in shown[2].headline
    assert any(f"({len([b for b in shown[2].bins() if b.n])} of 15)" in words for words in shown[2].sentences())
    assert max(b.n for b in shown[1].bins()) <= 30
    assert {group.n for group in shown[1].values.groups} == {30}
    assert shown[1].headline["ECE"].n == shown[1].scores("NLL")["private"].n == 30


def test_small_bins_are_counted_not_shown() -> None:
    data = honest(300, spread=3.0)
    result = calibration(Told(), data)
    bins = result.bins()
    assert sum(b.n for b in bins) == 300
    assert any(0 < b.n < 20 for b in bins)
    for b in bins:
        assert (b.accuracy is None) == (b.confidence is None) == (b.n < 20)
    confidence, hits = confidence_and_hits(data)
    of_large = largest_error(confidence, hits, equal_width(confidence, 15), 20)
    assert result.headline["MCE"].value == pytest.approx(of_large)
    assert result.scores("MCE, all bins")["private"].value > of_large
    assert any("fewer than 20 people" in sentence for sentence in result.sentences())


def test_too_few_people_for_any_bin_have_no_mce() -> None:
    result = calibration(Told(), honest(15))
    assert "MCE" not in result.headline
    assert np.isnan(largest_error(*confidence_and_hits(honest(15)), np.arange(15), 20))
    assert result.sentences()
    assert result.tables()


def test_groups_of_enough_people_are_listed() -> None:
    data = honest(600)
    sure = data.x.clone()
    sure[:200] *= 6  # the model is over-confident about group 1 only
    group = torch.zeros(600, dtype=torch.long)
    group[:200], group[-10:] = 1, 2
    result = calibration(Told(), Data(sure, data.y, groups={"ward": group}), twin=Told())
    found = {entry.name: entry.gap["private"] for entry in result.values.groups}
    assert set(found) == {"0", "1"}
    assert found["1"].low > 0.05
    assert not found["0"].excludes_zero
    assert any(row[0] == "ward 1" for row in result.tables()[1].rows)


def test_saved_and_drawn_without_the_model() -> None:
    data = honest(600)
    original = calibration(Told(3.0), data, twin=Told(), temperature=Temperature(3.0, FREE, 9))
    result = Calibration.from_dict(json.loads(json.dumps(original.to_dict())))
    assert result == original
    assert result.status.status == "not-private"
    for table in result.tables():
        assert {len(row) for row in table.rows} == {len(table.columns)}
    assert len(result.figures()) == 3
    for figure in result.figures():
        axes = Figure().add_subplot()
        assert figure.draw(axes) is axes
        assert axes.get_xlabel() == "confidence, %"
        assert "people" in figure.words


@pytest.mark.parametrize(("sharpness", "colour", "other"), [(5.0, OVER, UNDER), (0.3, UNDER, OVER)])
def test_the_gap_is_coloured_by_its_sign(sharpness: float, colour: str, other: str) -> None:
    from matplotlib.colors import to_rgba

    axes = calibration(Told(sharpness), honest(3000)).plot(Figure().add_subplot())
    area = {
        c: sum(p.get_height() for p in axes.patches if p.get_facecolor() == to_rgba(c, 0.85)) for c in (OVER, UNDER)
    }
    assert area[colour] > 3 * area[other]


def test_same_seed_same_result_and_no_global_randomness() -> None:
    data, state = honest(300), torch.random.get_rng_state()
    before = np.random.get_state()[1].copy()
    first, second, other = (
        calibration(Told(2.0), data, generator=np.random.default_rng(seed)).headline["ECE"] for seed in (1, 1, 2)
    )
    assert first == second != other
    assert torch.equal(state, torch.random.get_rng_state())
    assert (before == np.random.get_state()[1]).all()


def test_mistakes_are_named() -> None:
    with pytest.raises(ConfigError, match="bins 0"):
        calibration(Told(), honest(50), bins=0)
    with pytest.raises(DataError, match="not finite"):
        calibration(Told(float("inf")), honest(50))
    with pytest.raises(DataError, match="whole-number class"):
        calibration(Told(), Data(torch.zeros(30, 2), torch.zeros(30)))
    with pytest.raises(ConfigError, match="resamples 0"):
        calibration(Told(), honest(50), resamples=0)
    assert (
        calibration(Told(), honest(50), resamples=30).settings["resamples"] == 30
    )  # not a multiple of what is drawn at once
    assert RESAMPLES >= 1000
    assert "retrain" in AUDIT.takes


@pytest.mark.slow
@pytest.mark.skipif("NOISEWISE_DATA" not in os.environ, reason="needs the official MNIST files")
def test_all_of_mnist_takes_less_than_a_minute() -> None:
    data, model = mnist().test, build("lenet", (1, 28, 28), 10, 0)
    start = time.perf_counter()
    result = calibration(model, data, twin=build("lenet", (1, 28, 28), 10, 1))
    assert time.perf_counter() - start < 60
    assert result.headline["ECE"].n == 10_000


def test_intervals_by_person_do_not_shrink_with_copies_of_rows() -> None:
    one = honest(200, groups={"ward": torch.arange(200) % 2})
    five = one.take(torch.arange(200).repeat_interleave(5))
    five = replace(five, unit=torch.arange(200).repeat_interleave(5))
    single, together = (calibration(Told(2.0), data, resamples=20) for data in (one, five))
    for score in ("over-confidence", "Brier", "NLL"):
        ours, theirs = (result.scores(score)["private"] for result in (single, together))
        assert (ours.low, ours.high) == pytest.approx((theirs.low, theirs.high))
    gaps = [result.values.groups[0].gap["private"] for result in (single, together)]
    assert (gaps[0].low, gaps[0].high) == pytest.approx((gaps[1].low, gaps[1].high))
    for name in ("accuracy", "MCE"):
        narrow, wide = (result.scores(name)["private"] for result in (single, together))
        assert wide.high - wide.low >= narrow.high - narrow.low - 1e-9
    assert [(b.n, b.accuracy is None) for b in single.bins()] == [(b.n, b.accuracy is None) for b in together.bins()]


@pytest.mark.parametrize(("right", "signs"), [(True, (0, 1)), (False, (1, 0))])
def test_a_model_that_is_always_right_or_wrong_is_not_known_to_be(right: bool, signs: tuple[int, int]) -> None:
    """80 rows without a single error: a rate of 4.6 % is possible (Wilson), so over-confidence and ECE may be that."""
    y = torch.arange(80) % 2
    z = 40.0 * torch.nn.functional.one_hot(y if right else 1 - y, 2).double()
    result = calibration(Told(), Data(z, y), twin=Told(0.9), resamples=50)
    reach = float(np.diff(binomtest(0, 80).proportion_ci(0.95, method="wilson"))[0])
    gap, ece = result.scores("over-confidence"), result.scores("ECE")["private"]
    assert gap["private"].value - gap["private"].low == pytest.approx(signs[0] * reach, abs=1e-9)
    assert gap["private"].high - gap["private"].value == pytest.approx(signs[1] * reach, abs=1e-9)
    assert ece.high == pytest.approx(min(ece.value + reach, 1.0), abs=1e-9)
    assert (gap["difference"].low, gap["difference"].high) == pytest.approx((-reach, reach), abs=1e-3)


def test_resampling_shows_a_bar(capsys) -> None:
    calibration(Told(), honest(50), resamples=20, progress=True)
    assert "40/40" in capsys.readouterr().err

"""What epsilon buys: arithmetic of plans, accuracy of stand-ins and of runs at hand."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path

import pytest

from noisewise.advice.noise import smallest_class
from noisewise.data.tabular import COMPAS, WINE
from noisewise.errors import ConfigError
from noisewise.estimates.estimate import Estimate
from noisewise.runs.folder import RunFolder
from noisewise.workflow import forecast as module
from noisewise.workflow.forecast import Forecast, Point, Row, between, columns, draw, forecast
from noisewise.workflow.opened import audit, open_run
from noisewise.workflow.plan_inputs import Asked
from noisewise.workflow.recommended import recommended


def estimate(value: float) -> Estimate:
    return Estimate(value, value - 0.1, value + 0.1, 100, 0.95, "t")


def test_rows_are_the_plans_that_train_would_take() -> None:
    result = forecast(Asked(n=2000, features=12, epsilons=(1.0, 3.0)))
    assert (result.delta, result.source, result.without) == (1e-5, "", None)
    for row in result.rows:
        settings = recommended(2000, 12, row.epsilon)
        assert (row.batch_size, row.steps) == (settings.batch_size, settings.steps)
        assert row.step_noise == pytest.approx(row.noise_multiplier * settings.bound / settings.batch_size)
        assert row.smallest_class == pytest.approx(
            smallest_class(row.batch_size / 2000, row.steps, row.noise_multiplier, row.coordinates)
        )
        assert row.score is None
    assert result.rows[0].step_noise > result.rows[1].step_noise


def test_with_one_model_only_epsilon_differs() -> None:
    result = forecast(Asked(n=5000, features=40, epsilons=(1.0, 8.0)))
    sizes = [row.coordinates for row in result.rows]
    assert sizes[0] < sizes[1]
    alike = result.with_one_model()
    assert alike[0] == pytest.approx(result.rows[0].smallest_class)
    assert alike[1] == pytest.approx(result.rows[1].smallest_class * math.sqrt(sizes[0] / sizes[1]))


def test_batches_and_passes_can_be_chosen() -> None:
    (row,) = forecast(Asked(n=2000, features=12, epsilons=(1.0,), batch_size=100, epochs=3.0, model="logistic")).rows
    assert (row.batch_size, row.steps, row.coordinates) == (100, 60, 26)
    (row,) = forecast(Asked(n=2000, features=12, classes=5, epsilons=(1.0,), model="logistic", delta=1e-8)).rows
    assert (row.batch_size, row.steps, row.coordinates) == (256, 235, 65)


def test_a_schema_says_columns_and_classes(tmp_path: Path) -> None:
    written = tmp_path / "schema.json"
    written.write_text(json.dumps(COMPAS.to_dict()))
    assert columns(Asked(n=100, schema=written)) == (COMPAS.width, 2, "classification")
    written.write_text(json.dumps(WINE.to_dict()))
    assert columns(Asked(n=100, schema=written)) == (WINE.width, 1, "regression")
    assert columns(Asked(n=100, features=7)) == (7, 2, "classification")
    assert columns(Asked(n=100, stand_in="digits")) is None


def test_stand_ins_are_tried_at_every_epsilon_and_without(monkeypatch) -> None:
    tried = []

    def scores(name, plans, **how):
        tried.append((name, plans, how))
        return [estimate(0.5 + 0.1 * place) for place in range(len(plans))]

    monkeypatch.setattr(module, "scores", scores)
    result = forecast(Asked(n=3000, stand_in="digits", epsilons=(1.0, 10.0), seeds=4))
    ((name, plans, how),) = tried
    assert (name, how["n"], how["seeds"], how["flat"]) == ("digits", 3000, 4, False)
    assert [None if plan is None else plan.sampler.n for plan, _ in plans] == [3000, 3000, None]
    assert plans[0][1].model == "cnn"
    assert [row.score.value for row in result.rows if row.score] == [0.5, 0.6]
    assert result.without is not None
    assert result.without.value == pytest.approx(0.7)
    forecast(Asked(n=3000, features=9, stand_in="digits", epsilons=(1.0,)))
    assert tried[1][2]["flat"]
    assert tried[1][1][0][1].model.startswith("table")


def test_accuracy_between_runs_follows_n_epsilon() -> None:
    points = [
        Point("a", 1000, 1.0, estimate(0.6)),
        Point("b", 2000, 2.0, estimate(0.8)),
        Point("c", 10, math.inf, estimate(1.0)),
    ]
    assert between(points, 4000) == points[1].score
    middle = between(points, 2000)
    assert middle is not None
    assert (middle.value, middle.low, middle.high) == pytest.approx((0.7, 0.6, 0.8))
    assert between(points, 900) is None
    assert between(points, 5000) is None


def test_runs_with_equal_people_and_epsilon_count_as_their_mean() -> None:
    points = [
        Point("a", 1000, 1.0, estimate(0.6)),
        Point("b", 1000, 1.0, estimate(0.7)),
        Point("c", 2000, 2.0, estimate(0.85)),
    ]
    same = between(points[:2], 1000)
    assert same is not None
    assert (same.value, same.low, same.high, same.n) == pytest.approx((0.65, 0.55, 0.75, 100))
    middle = between(points, 2000)
    assert middle is not None
    assert (middle.value, middle.low) == pytest.approx((0.75, 0.65))


def test_runs_at_hand_give_plan_and_accuracy(run: RunFolder) -> None:
    with pytest.raises(ConfigError, match="noisewise audit"):
        forecast(Asked(n=1258, runs=(run.path,), epsilons=(1.0,)))
    found = audit(open_run(run.path), "disparity")
    spent = module._point(run.path).epsilon
    result = forecast(Asked(n=1258, runs=(run.path,), epsilons=(spent, 10 * spent)))
    assert result.points[0].n == 1258
    assert result.rows[0].score == found.headline["accuracy"]
    assert result.rows[1].score is None
    assert (result.rows[0].batch_size, result.rows[0].steps, result.rows[0].coordinates) == (64, 3, 9930)
    assert result.rows[0].noise_multiplier == pytest.approx(4.0, rel=0.01)


@pytest.mark.parametrize("suffix", [".png", ".svg"])
def test_it_can_be_drawn(tmp_path: Path, suffix: str) -> None:
    rows = [Row(epsilon, 3.0, 0.1, 500, 100, 10, 50.0, None) for epsilon in (1.0, 3.0)]
    result, path = Forecast(2000, 1e-5, rows, None, "", "accuracy", []), tmp_path / f"a{suffix}"
    draw(result, path)
    alone = path.stat().st_size
    scored = replace(
        result, rows=[replace(row, score=estimate(0.7)) for row in rows], without=estimate(0.9), source="x"
    )
    draw(scored, path)
    assert path.stat().st_size > alone > 1000

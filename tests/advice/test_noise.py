"""Noise that gathers in weights, and voices over it: against torch's own SGD, and against what was measured."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest
import torch

from noisewise.advice.noise import gathered_noise, smallest_class, voice
from noisewise.errors import ConfigError

PRICE = json.loads((Path(__file__).parents[2] / "benchmarks" / "results" / "price_mnist-5.json").read_text())


@pytest.mark.parametrize(("momentum", "ema"), [(0.0, None), (0.9, None), (0.9, 0.95), (0.0, 0.5)])
def test_gathered_noise_is_what_torchs_sgd_gathers(momentum: float, ema: float | None) -> None:
    steps, weights = 12, torch.nn.Parameter(torch.zeros(12, dtype=torch.float64))  # weight i is pushed in step i alone
    optimizer, averaged = torch.optim.SGD([weights], lr=0.3, momentum=momentum), weights.detach().clone()
    for step in range(steps):
        weights.grad = torch.eye(steps, dtype=torch.float64)[step]
        optimizer.step()
        averaged.lerp_(weights.detach(), 1 if ema is None else 1 - min(ema, (2 + step) / (11 + step)))
    assert gathered_noise(0.7, 0.3, momentum, steps, ema) == pytest.approx(0.7 * averaged.norm().item(), rel=1e-9)


def test_plain_sgd_gathers_like_a_random_walk() -> None:
    assert gathered_noise(2.0, 0.5, 0.0, 100) == pytest.approx(10.0)


@pytest.mark.parametrize(("steps", "momentum"), [(0, 0.9), (2.5, 0.9), (5, 1.0)])
def test_what_means_nothing_is_refused(steps: float, momentum: float) -> None:
    with pytest.raises(ConfigError, match="above 0"):
        gathered_noise(1.0, 0.1, momentum, steps)  # type: ignore[arg-type]


def test_the_voice_of_a_class_is_its_gradients_over_the_noise() -> None:
    torch.manual_seed(0)
    people, rate, steps, sigma, weights = 40, 0.25, 64, 2.0, 5000
    noise = sum(sigma * torch.randn(weights, dtype=torch.float64) for _ in range(steps)).norm().item()
    assert voice(people, rate, steps, sigma, weights) == pytest.approx(people * rate * steps / noise, rel=0.03)
    assert voice(1, rate, steps, 0.0, weights) == math.inf


def test_the_smallest_class_is_as_loud_as_the_noise() -> None:
    people = smallest_class(0.1, 400, 3.0, 900)
    assert voice(people, 0.1, 400, 3.0, 900) == pytest.approx(1.0)
    assert people == pytest.approx(45.0)
    assert smallest_class(0.1, 400, math.inf, 900) == math.inf


def test_classes_below_the_rule_were_lost_and_those_above_it_learned() -> None:
    least = smallest_class(512 / 30_000, PRICE["steps"], PRICE["noise_multiplier"], 61_706)
    rows = [row for row in PRICE["rows"] if row["part"] == "class 5" and row["metric"] == "accuracy"]
    assert {row["case"] for row in rows} == {100.0, 500.0, 1000.0, 3000.0}
    for row in rows:
        learned = row["private"]["value"] > 0.8
        assert learned == (row["case"] > least), row["case"]
        assert row["twin"]["value"] > 0.8  # without noise even the smallest is learned

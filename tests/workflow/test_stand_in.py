"""Plans on public stand-ins: as much noise on a coordinate as with the people who are planned for."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from noisewise.clipping import Flat
from noisewise.data import Data
from noisewise.errors import PrivacyError
from noisewise.mechanism import Mechanism
from noisewise.sampling import Poisson
from noisewise.workflow import stand_in
from noisewise.workflow.stand_in import Course, opened, reached, score, scores

COURSE = Course(model="logistic", batch_size=200, steps=5, bound=0.5, lr=0.5, momentum=0.0, ema=0.5, twin_lr=0.25)


def plan(n: int, batch: int) -> Mechanism:
    return Mechanism(sampler=Poisson(n, batch), clip=Flat(0.5), noise_multiplier=6.0, steps=5)


def caught(monkeypatch, **given):
    seen = {}

    def trained(model, data, loss_fn, mechanism, optimizer, **settings):
        seen.update(data=data, mechanism=mechanism, lr=optimizer.param_groups[0]["lr"], **settings)
        return type("Trained", (), {"averaged": None})()

    monkeypatch.setattr(stand_in, "train", trained)
    reached("breast_cancer", given.pop("plan"), given.pop("course", COURSE), flat=True, seed=0, **given)
    return seen


@pytest.mark.parametrize(("n", "rows", "batch"), [(400, 400, 200), (100_000, 455, 200)])
def test_noise_per_coordinate_is_that_of_the_plan(monkeypatch, n: int, rows: int, batch: int) -> None:
    seen = caught(monkeypatch, plan=plan(n, 200), n=n)
    assert (len(seen["data"]), seen["mechanism"].expected_batch_size) == (rows, batch)
    assert (seen["mechanism"].noise_at(0), seen["mechanism"].steps) == (6.0, 5)
    assert (seen["lr"], seen["ablation"], seen["ema"]) == (0.5, "private", 0.5)


def test_batches_larger_than_the_stand_in_are_all_of_it_with_less_noise(monkeypatch) -> None:
    seen = caught(monkeypatch, plan=plan(100_000, 4550), course=replace(COURSE, batch_size=4550), n=100_000)
    assert seen["mechanism"].expected_batch_size == 455
    assert seen["mechanism"].noise_at(0) / 455 == pytest.approx(6.0 / 4550)


def test_without_privacy_nothing_is_clipped_and_the_twins_rate_is_taken(monkeypatch) -> None:
    seen = caught(monkeypatch, plan=None, n=1000)
    assert (seen["lr"], seen["ablation"]) == (0.25, "plain")


def test_private_data_is_no_stand_in(monkeypatch) -> None:
    secret = replace(opened("breast_cancer", 0, True).train, public=False)
    monkeypatch.setattr(stand_in, "load", lambda name, seed: stand_in.Splits(secret, secret, secret))
    with pytest.raises(PrivacyError, match="not public"):
        opened("two_patch", 7, True)


def test_the_bundled_table_is_scikit_learns() -> None:
    parts = opened("breast_cancer", 0, False)
    assert [len(part) for part in parts] == [455, 1, 113]
    assert parts.train.x.shape[1] == 30
    assert parts.train.x.abs().max() <= 1


def test_scores_are_accuracies_or_explained_variance() -> None:
    x = torch.tensor([[1.0], [-1.0], [2.0], [-3.0]])
    sign = torch.nn.Linear(1, 2, bias=False)
    with torch.no_grad():
        sign.weight[:] = torch.tensor([[-1.0], [1.0]])
    assert score(sign, Data(x, torch.tensor([1, 0, 1, 1]), classes=("a", "b"))) == 0.75
    line = torch.nn.Linear(1, 1, bias=False)
    with torch.no_grad():
        line.weight[:] = 1.0
    assert score(line, Data(x, x[:, 0])) == 1.0
    assert score(line, Data(x, x[:, 0] + 1)) < 1.0


def test_noise_costs_accuracy_on_the_stand_in() -> None:
    loud, course = replace(plan(455, 200), noise_multiplier=3000.0), replace(COURSE, steps=40, lr=2.0, ema=None)
    plans = [(replace(loud, noise_multiplier=0.01), course), (loud, course)]
    quiet, drowned = scores("breast_cancer", plans, flat=True, n=455, seeds=2, progress=False)
    assert quiet.value > 0.85
    assert drowned.value < quiet.value
    assert all(0 <= one.low <= one.high <= 1 for one in (quiet, drowned))

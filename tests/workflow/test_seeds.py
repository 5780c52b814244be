"""Several seeds of one plan: runs of their own, which go on where they were stopped, and add up."""

import math

import pytest

from helpers.remembered import remembered  # noqa: F401  accountants with a memory
from noisewise import Mechanism, Poisson
from noisewise.errors import Interrupted
from noisewise.jobs import Local
from noisewise.workflow import sweep as module
from noisewise.workflow.config import configure
from noisewise.workflow.seeds import spent_together, train_seeds

PLAN = {"data": "digits", "model": "logistic", "noise_multiplier": 4.0, "steps": 3, "batch_size": 64, "twin": False}


def configs(count, **more):
    return {f"seed-{seed}": configure(**PLAN, seed=seed, **more) for seed in range(count)}


@pytest.mark.slow  # test_cluster.py has two workers do the same jobs
def test_two_at_a_time_are_those_of_one_after_another(tmp_path, monkeypatch):
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    for name, where in (("one", Local()), ("two", Local(2))):
        train_seeds(configs(2, insecure_seed=1), tmp_path / name, where, progress=False)
    for seed in ("seed-0", "seed-1"):
        one, two = ((tmp_path / name / seed / "model.safetensors").read_bytes() for name in ("one", "two"))
        assert one == two


def test_runs_whose_noise_repeats_have_no_total(tmp_path):
    train_seeds(configs(1, insecure_seed=1), tmp_path, progress=False)
    assert spent_together([tmp_path / "seed-0"])[0] == math.inf


def test_a_stopped_call_goes_on_and_the_runs_add_up(tmp_path, monkeypatch):
    real, calls = module.execute, []

    def stopping(*args, **how):
        calls.append((args[1].rpartition("/")[2], how["progress"]))
        if len(calls) == 2:
            raise Interrupted("stopped after step 1; nothing is lost.")
        return real(*args, **how)

    monkeypatch.setattr(module, "execute", stopping)
    with pytest.raises(Interrupted, match="1 of 3 done; nothing is lost"):
        train_seeds(configs(3), tmp_path, progress=False)
    train_seeds(configs(3), tmp_path, progress=False)
    assert calls == [(f"seed-{seed}", False) for seed in (0, 1, 1, 2)]
    total, delta = spent_together([tmp_path / f"seed-{seed}" for seed in range(3)])
    together = Mechanism(sampler=Poisson(1258, 64), steps=9, noise_multiplier=4.0)
    assert total == pytest.approx(together.epsilon(delta), rel=1e-6)


def test_one_at_a_time_shows_its_steps_and_several_show_runs(tmp_path, monkeypatch):
    asked = []
    monkeypatch.setattr(module, "execute", lambda *args, progress, **how: asked.append(progress))
    monkeypatch.setattr(module, "read_summary", lambda folder: {"privacy": {"epsilon": 1.0, "status": "private"}})
    train_seeds(configs(1), tmp_path / "a")
    assert asked == [True]
    seen = []
    monkeypatch.setattr("noisewise.workflow.seeds.carry_out", lambda jobs, *_, **how: seen.append((jobs, how)))
    train_seeds(configs(2), tmp_path / "b", Local(2))
    ((jobs, how),) = seen
    assert how["progress"]
    assert not any(job.settings["progress"] for job in jobs)

"""Jobs on a real Ray of one machine with two workers: the same results, and nothing lost when one is killed."""

import json
import os

import pytest

from helpers import working
from noisewise.errors import RunError
from noisewise.jobs import Job, Local, Ray, carry_out

SETTINGS = {"progress": False}


def doubles(count, **more):
    return [Job(f"job-{n}", working.double, {"number": n, **more}) for n in range(count)]


def test_ray_does_what_local_processes_do(cluster, tmp_path):
    jobs = [Job(f"seed-{seed}", working.trained, {"seed": seed}) for seed in range(3)]
    here = carry_out(jobs, tmp_path / "here", **SETTINGS)
    there = carry_out(jobs, tmp_path / "there", Ray(cluster), **SETTINGS)
    assert there == here
    assert carry_out(jobs, tmp_path / "there", Local(2), **SETTINGS) == here  # what Ray did is not done again
    stored = [json.loads((tmp_path / where / "seed-1.json").read_text()) for where in ("here", "there")]
    assert stored[0] == stored[1]


def test_a_worker_that_is_killed_is_replaced_and_its_job_done(cluster, tmp_path):
    jobs = [*doubles(2), Job("killed", working.killed_once, {"trace": str(tmp_path), "number": 5})]
    results = carry_out(jobs, tmp_path / "out", Ray(cluster), **SETTINGS)
    assert results["killed"] == 5
    assert len(list(tmp_path.glob("killed-*"))) == 1
    assert os.getpid() not in {results[f"job-{n}"]["process"] for n in range(2)}


def test_a_job_that_kills_every_worker_is_named_and_the_others_kept(cluster, tmp_path):
    with pytest.raises(RunError, match=r"1 of 3 jobs failed.*dies: its worker was ended from outside twice"):
        carry_out([Job("dies", working.die, {}), *doubles(2)], tmp_path, Ray(cluster), **SETTINGS)
    assert sorted(path.name for path in tmp_path.glob("*.json")) == ["job-0.json", "job-1.json"]

"""Local processes: a worker that is killed is replaced, and results depend on neither order nor number of workers."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from helpers import working
from noisewise.errors import RunError
from noisewise.jobs import Job, Local, carry_out

SETTINGS = {"progress": False}


def test_a_worker_that_is_killed_is_replaced_and_its_job_done(tmp_path, capsys):
    jobs = [
        Job("killed", working.killed_once, {"trace": str(tmp_path), "number": 5}),
        *(Job(f"job-{n}", working.double, {"number": n}) for n in range(3)),
    ]
    results = carry_out(jobs, tmp_path / "out", Local(2), label="runs")
    assert results["killed"] == 5
    assert [results[f"job-{n}"]["twice"] for n in range(3)] == [0, 2, 4]
    assert len(list(tmp_path.glob("killed-*"))) == 1
    assert "killed: its worker was ended from outside, and it is tried once more" in " ".join(
        capsys.readouterr().err.split()
    )


def test_a_job_that_kills_every_worker_is_named_and_the_others_kept(tmp_path):
    jobs = [Job("dies", working.die, {}), *(Job(f"job-{n}", working.double, {"number": n}) for n in range(3))]
    with pytest.raises(RunError, match=r"1 of 4 jobs failed.*dies: its worker was ended from outside twice"):
        carry_out(jobs, tmp_path, Local(2), **SETTINGS)
    assert len(list(tmp_path.glob("job-*.json"))) == 3


def test_results_depend_on_neither_order_nor_number_of_workers(tmp_path, monkeypatch):
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    jobs = [Job(f"seed-{seed}", working.trained, {"seed": seed}) for seed in range(3)]
    two = carry_out(jobs, tmp_path / "two", Local(2), **SETTINGS)
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        one = carry_out(jobs[::-1], tmp_path / "one", **SETTINGS)
    finally:
        torch.set_num_threads(threads)
    assert one == two
    assert list(one) == ["seed-2", "seed-1", "seed-0"]
    for path in (tmp_path / "one").glob("*.json"):
        assert path.read_text() == (tmp_path / "two" / path.name).read_text()


def test_a_script_without_its_guard_is_told_of(tmp_path):
    script = tmp_path / "many.py"
    script.write_text(
        "from helpers import working\nfrom noisewise.jobs import Job, Local, carry_out\n"
        "carry_out([Job(f'a-{n}', working.double, {'number': n}) for n in range(2)], 'out', Local(2), progress=False)\n"
    )
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(Path(__file__).parent.parent), *sys.path])}
    ended = subprocess.run([sys.executable, str(script)], env=environment, cwd=tmp_path, capture_output=True, text=True)
    assert ended.returncode == 1
    assert "if __name__ == '__main__'" in ended.stderr.splitlines()[-1]

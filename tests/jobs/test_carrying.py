"""Jobs: done once, several at a time, stopped without a loss."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from helpers import working
from noisewise.errors import ConfigError, Interrupted, RunError
from noisewise.jobs import Job, Local, carry_out
from noisewise.jobs import carrying as module
from noisewise.runs.files import hold

SETTINGS = {"progress": False}


def doubles(count, **more):
    return [Job(f"job-{n}", working.double, {"number": n, **more}) for n in range(count)]


def test_results_come_in_the_order_of_the_jobs_and_are_made_once(tmp_path):
    trace = tmp_path / "trace"
    trace.mkdir()
    jobs = doubles(3, trace=str(trace))
    first = carry_out(jobs, tmp_path / "out", **SETTINGS)
    assert [result["twice"] for result in first.values()] == [0, 2, 4]
    assert list(first) == ["job-0", "job-1", "job-2"]
    assert carry_out(jobs, tmp_path / "out", **SETTINGS) == first
    assert len(list(trace.iterdir())) == 3
    (tmp_path / "out" / "job-1.json").unlink()
    carry_out(jobs, tmp_path / "out", **SETTINGS)
    assert len(list(trace.iterdir())) == 4


def test_several_processes_share_the_work_and_the_cores(tmp_path, monkeypatch):
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    results = carry_out(doubles(4), tmp_path, Local(2), **SETTINGS)
    assert [result["twice"] for result in results.values()] == [0, 2, 4, 6]
    assert os.getpid() not in {result["process"] for result in results.values()}
    assert {result["threads"] for result in results.values()} == {str(max(1, os.cpu_count() // 2))}
    assert "OMP_NUM_THREADS" not in os.environ
    assert carry_out(doubles(4), tmp_path, Local(2), **SETTINGS) == results  # nothing is left to do
    assert carry_out([], tmp_path, Local(2), **SETTINGS) == {}


@pytest.mark.parametrize("processes", [1, 2])
def test_a_failing_job_is_named_and_the_others_are_kept(processes, tmp_path):
    jobs = [*doubles(2), Job("bad", working.fail, {"number": 7})]
    with pytest.raises(ConfigError, match=r"1 of 3 jobs failed.*bad: number=7: is not liked"):
        carry_out(jobs, tmp_path, Local(processes), **SETTINGS)
    assert sorted(path.name for path in tmp_path.glob("*.json")) == ["job-0.json", "job-1.json"]


def test_a_bug_is_not_hidden(tmp_path):
    with pytest.raises(RuntimeError, match="a bug"):
        carry_out([Job("a", working.crash, {})], tmp_path, **SETTINGS)


def test_a_process_that_dies_is_said_and_what_was_done_is_kept(tmp_path):
    jobs = [*doubles(1), Job("dies", working.die, {})]
    with pytest.raises(RunError, match="ended from outside"):
        carry_out(jobs, tmp_path, Local(2), **SETTINGS)
    assert carry_out(doubles(1), tmp_path, **SETTINGS)["job-0"]["twice"] == 0


def test_an_interrupted_job_goes_on_with_the_next_call(tmp_path):
    jobs = [
        *doubles(1),
        Job("stops", working.stop, {"trace": str(tmp_path)}),
        Job("last", working.double, {"number": 9}),
    ]
    with pytest.raises(Interrupted, match="1 of 3 done; nothing is lost"):
        carry_out(jobs, tmp_path / "out", **SETTINGS)
    assert not (tmp_path / "out" / "last.json").exists()
    assert carry_out(jobs, tmp_path / "out", **SETTINGS)["last"]["twice"] == 18


SCRIPT = """
import sys
from helpers import working
from noisewise.errors import Interrupted
from noisewise.jobs import Job, Local, carry_out
if __name__ == "__main__":
    trace, out = sys.argv[1:]
    jobs = [Job(f"job-{n}", working.slow, {"trace": trace, "number": n}) for n in range(3)]
    try:
        print(carry_out(jobs, out, Local(2), progress=False))
    except Interrupted as error:
        print(error)
        sys.exit(130)
"""


def alive(pid):
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return Path(f"/proc/{pid}/stat").read_text().split()[2] != "Z" if Path(f"/proc/{pid}/stat").exists() else True


def waited(condition, seconds=120):
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "it did not happen"
        time.sleep(0.05)


@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGKILL])
def test_stopped_from_outside_every_worker_saves_and_ends(how, tmp_path):
    """Ctrl-C, and a parent that is killed without a word."""
    trace, script = tmp_path / "trace", tmp_path / "many.py"
    trace.mkdir()
    script.write_text(SCRIPT)
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(Path(__file__).parent.parent), *sys.path])}
    command = [sys.executable, str(script), str(trace), str(tmp_path / "out")]
    heard = lambda: signal.signal(signal.SIGINT, signal.SIG_DFL)  # noqa: E731 - a shell's background jobs ignore it
    parent = subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True, preexec_fn=heard)
    waited(lambda: len(list(trace.glob("begun-*"))) == 2)
    workers = [int(path.name.rpartition("-")[2]) for path in trace.glob("begun-*")]
    parent.send_signal(how)
    try:
        out, _ = parent.communicate(timeout=120)
        waited(lambda: len(list(trace.glob("saved-*"))) == 2)
        waited(lambda: not any(map(alive, workers)))
    finally:  # a test that fails leaves nobody behind
        for worker in filter(alive, workers):
            os.kill(worker, signal.SIGKILL)
    assert len(list(trace.glob("begun-*"))) == 2  # the third never began
    if how == signal.SIGINT:
        assert parent.returncode == 130
        assert "0 of 3 done; nothing is lost" in out
    (trace / "quick").touch()
    again = subprocess.run(command, env=environment, capture_output=True, text=True, check=True, timeout=300)
    assert again.stdout.strip() == "{'job-0': 0, 'job-1': 1, 'job-2': 2}"


def test_a_result_of_other_settings_is_not_taken(tmp_path):
    carry_out([Job("a", working.double, {"number": 1})], tmp_path, **SETTINGS)
    with pytest.raises(RunError, match="other settings"):
        carry_out([Job("a", working.double, {"number": 2})], tmp_path, **SETTINGS)
    (tmp_path / "a.json").write_text(json.dumps({"result": 1}))
    with pytest.raises(RunError, match="no result of a job"):
        carry_out([Job("a", working.double, {"number": 1})], tmp_path, **SETTINGS)


def test_how_long_the_rest_takes_is_said_where_it_is_long(tmp_path, capsys, monkeypatch):
    carry_out(doubles(3), tmp_path / "quick", label="runs")
    assert "more runs" not in capsys.readouterr().err
    monkeypatch.setattr(module, "LONG", -1.0)
    carry_out(doubles(3), tmp_path / "long", label="runs")
    assert "2 more runs, about 1 seconds" in capsys.readouterr().err


def test_a_failure_of_one_ends_all_where_that_is_wanted(tmp_path):
    jobs = [Job("bad", working.fail, {"number": 7}), *doubles(2)]
    with pytest.raises(ConfigError, match="1 of 3 jobs failed"):
        carry_out(jobs, tmp_path, go_on=False, **SETTINGS)
    assert list(tmp_path.glob("*.json")) == []


def test_nothing_is_kept_where_jobs_know_what_is_done(tmp_path):
    for keep, folder in ((False, tmp_path / "out"), (True, None)):
        assert carry_out(doubles(1), folder, keep=keep, **SETTINGS)["job-0"]["twice"] == 0
    assert list(tmp_path.rglob("*.json")) == []


def test_two_at_once_in_one_folder_are_refused(tmp_path):
    with hold(tmp_path / ".lock"), pytest.raises(RunError, match="in use by another process"):
        carry_out(doubles(1), tmp_path, **SETTINGS)


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: carry_out([Job("a", lambda: 1, {})], "nowhere", Local(2)), "no function of a module"),
        (lambda: carry_out([*doubles(1), *doubles(1)], "nowhere"), "one key"),
        (lambda: carry_out(doubles(1), "nowhere", 2), "where=2"),
    ],
)
def test_jobs_that_cannot_be_are_refused(make, words, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ConfigError, match=words):
        make()
    assert list(tmp_path.iterdir()) == []

"""`train --processes N` and torchrun: the same run in several processes, started, watched and ended together."""

import json
import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from noisewise.cli import processes
from noisewise.errors import ConfigError, Interrupted, RankLost, RunError


@pytest.fixture
def stand_in(tmp_path, monkeypatch):
    """A program in the place of `python -m noisewise`: each process writes down what it was told, and does as the test says."""
    script = tmp_path / "python"
    script.write_text(
        f"#!{sys.executable}\n"
        "import json, os, signal, sys, time\n"
        "rank = os.environ['RANK']\n"
        f"open(os.path.join({str(tmp_path)!r}, rank + '.json'), 'w').write(json.dumps([sys.argv[1:], dict(os.environ)]))\n"
        "act = dict(part.split('=') for part in sys.argv[-1].split(',')).get(rank, '0')\n"
        "if act == 'killed': os.kill(os.getpid(), signal.SIGKILL)\n"
        "if act == 'waits': time.sleep(60)\n"
        "if act == 'late': time.sleep(0.5); sys.exit(2)\n"
        "sys.exit(int(act))\n"
    )
    script.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(script))
    for name in ("OMP_NUM_THREADS", "MASTER_PORT"):
        monkeypatch.delenv(name, raising=False)

    def spread(count, acts):
        monkeypatch.setattr(sys, "argv", ["noisewise", "train", acts])
        return processes.spread(count)

    return spread


def test_each_process_is_told_who_it_is(stand_in, tmp_path):
    assert stand_in(3, "0=0") == 0
    told = [json.loads((tmp_path / f"{rank}.json").read_text()) for rank in range(3)]
    for rank, (arguments, environment) in enumerate(told):
        assert arguments == ["-m", "noisewise", "train", "0=0"]
        assert (environment["RANK"], environment["LOCAL_RANK"], environment["WORLD_SIZE"]) == (
            str(rank),
            str(rank),
            "3",
        )
        assert int(environment["OMP_NUM_THREADS"]) == max(1, (os.cpu_count() or 1) // 3)
        assert environment["GLOO_SOCKET_IFNAME"] in {name for _, name in socket.if_nameindex()}
        assert "MASTER_PORT" not in environment  # no port that others could reach
    (meeting,) = {environment["NOISEWISE_MEETING"] for _, environment in told}
    assert not Path(meeting).parent.exists()  # gone with them


def test_the_code_of_who_failed_is_handed_on(stand_in):
    assert stand_in(2, "0=0,1=3") == 3
    assert stand_in(2, "0=130,1=130") == 130


def test_who_was_killed_is_named_although_others_failed_for_it(stand_in):
    with pytest.raises(RunError, match=r"process 1 of 2 was ended by SIGKILL.*--resume goes on, with any --processes"):
        stand_in(2, "0=late,1=killed")


def test_those_that_do_not_end_are_ended(stand_in, monkeypatch):
    monkeypatch.setattr(processes, "GRACE", 0.3)
    began = time.monotonic()
    assert stand_in(2, "0=waits,1=2") == 2
    assert time.monotonic() - began < 20


def test_words_are_the_first_processes(monkeypatch):
    monkeypatch.delenv("WORLD_SIZE", raising=False)
    assert processes.rank() is None
    assert processes.team() is None
    assert not processes.is_silent(RunError("a"))
    monkeypatch.setenv("WORLD_SIZE", "2")
    monkeypatch.setenv("RANK", "0")
    assert not processes.is_silent(RankLost("a"))
    monkeypatch.setenv("RANK", "1")
    assert processes.is_silent(RunError("before they met, all ranks see it"))
    monkeypatch.setenv("LOCAL_RANK", "0")
    assert not processes.is_silent(RunError("a file that another machine does not have"))
    monkeypatch.setattr(torch.distributed, "is_initialized", lambda: True)
    assert not processes.is_silent(RunError("its own rows"))
    assert processes.is_silent(RankLost("another one"))
    assert processes.is_silent(Interrupted("all of them"))


def test_what_all_processes_see_is_said_by_one_and_what_one_sees_by_that_one(monkeypatch, tmp_path):
    monkeypatch.setattr(torch.distributed, "is_initialized", lambda: True)
    monkeypatch.setenv("WORLD_SIZE", "3")

    def says(number, words, meeting=tmp_path / "meeting"):
        monkeypatch.setenv("RANK", str(number))
        monkeypatch.setenv("NOISEWISE_MEETING", str(meeting))
        return not processes.is_silent(ConfigError(words))

    assert [says(number, "a layer of all") for number in (1, 0, 2)] == [True, False, False]
    assert says(2, "its own")
    assert [says(number, "nowhere to meet", tmp_path / "gone" / "meeting") for number in (0, 1)] == [True, True]


def test_who_says_nothing_lets_the_others_speak_before_torchrun_ends_them(monkeypatch):
    slept = []
    monkeypatch.setattr(processes.time, "sleep", slept.append)
    monkeypatch.setenv("NOISEWISE_MEETING", "here")
    processes.give_way()
    assert slept == []
    monkeypatch.delenv("NOISEWISE_MEETING")
    processes.give_way()
    assert slept == [processes.WORDS]


def test_numbers_of_processes_that_cannot_be_meant(monkeypatch):
    monkeypatch.setattr(os, "cpu_count", lambda: 2)
    monkeypatch.delenv("WORLD_SIZE", raising=False)
    processes.check_count(16)
    with pytest.raises(ConfigError, match=r"--processes 17 on a machine with 2 cores.*At most 16"):
        processes.check_count(17)
    monkeypatch.setenv("WORLD_SIZE", "4")
    processes.check_count(4)
    with pytest.raises(ConfigError, match="--processes 2 in one of 4 processes that torchrun has started: leave"):
        processes.check_count(2)


class Scripted:
    """A rank that hears what the first one says."""

    def __init__(self, first, heard):
        self.first, self.heard = first, heard

    def said(self, value):
        return value if self.first else self.heard


def test_schema_and_config_are_the_first_ones():
    assert processes.config_of_first(Scripted(False, None), None) is None
    asked = []
    assert processes.schema_of_first(Scripted(False, None), lambda: asked.append(1)) is None
    assert asked == []  # noise for a schema is drawn once
    assert processes.schema_of_first(None, lambda: asked.append(1)) is None
    assert asked == [1]


# --- for real ----------------------------------------------------------------------------------------------------------

TRAIN = ["train", "--data", "digits", "--epsilon", "3", "--epochs", "2", "--insecure-seed", "1", "--quiet"]


def command(*words, launcher=("-m", "noisewise"), **settings):
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    return subprocess.run(
        [sys.executable, *launcher, *words], env=environment, capture_output=True, text=True, timeout=300, check=False
    )  # fmt: skip


@pytest.mark.slow
def test_one_process_two_and_torchrun_give_the_same_run(tmp_path):
    torchrun = ("-m", "torch.distributed.run", "--nproc-per-node", "2", "-m", "noisewise")
    ways = {
        "one": command(*TRAIN, "--out", str(tmp_path / "one")),
        "two": command(*TRAIN, "--out", str(tmp_path / "two"), "--processes", "2"),
        "torchrun": command(*TRAIN, "--out", str(tmp_path / "torchrun"), launcher=torchrun),
    }
    for name, done in ways.items():
        assert done.returncode == 0, f"{name}: {done.stderr}"
        assert done.stdout == ""
    one, two, three = (load_file(tmp_path / name / "model.safetensors") for name in ways)
    for name in one:
        torch.testing.assert_close(one[name], two[name], rtol=0, atol=1e-6)
        assert torch.equal(two[name], three[name])
    for name in ("ledger.json", "summary.json", "config.toml"):
        assert len({(tmp_path / way / name).read_bytes() for way in ways}) == 1


@pytest.mark.slow
def test_a_rank_of_the_command_line_that_is_killed_is_named_and_the_run_goes_on_with_another_number(tmp_path):
    out = tmp_path / "run"
    words = [
        "train",
        "--data",
        "digits",
        "--epsilon",
        "3",
        "--epochs",
        "300",
        "--no-twin",
        "--quiet",
        "--out",
        str(out),
    ]
    run = subprocess.Popen(
        [sys.executable, "-m", "noisewise", *words, "--processes", "2"], stderr=subprocess.PIPE, text=True,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )  # fmt: skip
    deadline = time.monotonic() + 120
    while not (out / "metrics.jsonl").exists():
        assert time.monotonic() < deadline
        time.sleep(0.05)
    children = subprocess.run(["pgrep", "-P", str(run.pid)], capture_output=True, text=True, check=True).stdout.split()
    os.kill(int(children[1]), signal.SIGKILL)
    message = run.communicate(timeout=120)[1]
    assert run.returncode == 2
    assert "process 1 of 2 was ended by SIGKILL" in message
    assert "Traceback" not in message
    again = command("train", "--resume", "--out", str(out), "--processes", "3", "--quiet")
    assert again.returncode == 0, again.stderr
    summary = json.loads((out / "summary.json").read_text())
    assert summary["privacy"]["status"] == "private"
    assert summary["privacy"]["epsilon"] <= 3
    assert not (out / "sensitive" / "checkpoint.safetensors").exists()


@pytest.mark.slow
def test_a_mistake_is_said_once(tmp_path):
    done = command("train", "--data", "digits", "--out", str(tmp_path / "run"), "--processes", "2")
    assert done.returncode == 2
    assert done.stderr.count("how private?") == 1
    words = ("--data", "digits", "--model", "cnn", "--epsilon", "3", "--steps", "5", "--no-twin", "--processes", "2")
    done = command("train", *words, "--sharded", "--out", str(tmp_path / "sharded"))
    assert done.returncode == 3
    assert done.stderr.count("error: ") == 1

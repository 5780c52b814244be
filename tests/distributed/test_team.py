"""Processes that speak to each other, and what becomes of the others when one is gone."""

import os
import signal
import time

import pytest
import torch

from helpers.ranks import Gone, on_ranks, outcomes
from noisewise.distributed import ALONE, Team, begin, end
from noisewise.distributed.team import chosen_team
from noisewise.errors import ConfigError, RankLost, RunError


@pytest.mark.parametrize("count", [0, 1, 2, 5, 8, 13])
def test_parts_are_disjoint_whole_in_order_and_alike(count):
    units = torch.arange(count) * 3
    for size in (1, 2, 3, 4):
        parts = [Team(rank, size).part(units) for rank in range(size)]
        assert torch.cat(parts).tolist() == units.tolist()
        assert max(map(len, parts)) - min(map(len, parts)) <= 1
        assert max(map(len, parts)) == Team(0, size).largest_part(count)


def speak(team):
    numbers = torch.full((5,), float(team.rank + 1))
    team.add(numbers)
    return {
        "sum": numbers.tolist(),
        "any": team.any(team.rank == 1, False, True),
        "same": team.same(7),
        "different": team.same(1 << 62 if team.rank == 2 else 7),
        "least": team.least(10 - team.rank),
        "said": team.said({"rank": team.rank, "none": None}),
        "bytes": team.said_bytes(b"" if team.rank == 0 else b"ignored"),
        "many bytes": len(team.said_bytes(bytes(100_000) if team.rank == 0 else b"")),
        "gathered": team.gathered(b"x" * team.rank),
        "refused": _refusal(team),
        "sent": team.sent,
        "state without a word": _unsaid(),
    }


def _refusal(team):
    try:
        team.agree({"colour": "red", "size": "3" if team.rank == 2 else "1"}, "Paint it.")
    except RunError as error:
        return str(error)


def _unsaid():
    try:
        chosen_team(None)
    except ConfigError as error:
        return str(error)


def test_what_ranks_tell_each_other():
    answers = on_ranks(3, speak)
    assert answers[0] == answers[1] == answers[2]
    assert answers[0] == {
        "sum": [6.0] * 5,
        "any": (True, False, True),
        "same": True,
        "different": False,
        "least": 8,
        "said": {"rank": 0, "none": None},
        "bytes": b"",
        "many bytes": 100_000,
        "gathered": [b"", b"x", b"xx"],
        "refused": "rank 2 has another size than rank 0, of 3 ranks. Paint it.",
        "sent": 20,
        "state without a word": answers[0]["state without a word"],
    }
    assert "one of 3 processes" in answers[0]["state without a word"]


def test_a_process_by_itself_has_nothing_to_say():
    tensor = torch.ones(2)
    ALONE.add(tensor)
    assert tensor.tolist() == [1, 1]
    assert ALONE.any(True, False) == (True, False)
    assert ALONE.same(3)
    assert ALONE.said_bytes(b"abc") == b"abc"
    assert ALONE.gathered(b"abc") == [b"abc"]
    assert ALONE.sent == 0
    assert chosen_team(None) is ALONE
    with pytest.raises(ConfigError, match="must be noisewise"):
        chosen_team(4)


def test_who_was_started_by_nobody_is_alone_and_half_a_start_is_refused(monkeypatch):
    for name in ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT", "NOISEWISE_MEETING"):
        monkeypatch.delenv(name, raising=False)
    assert begin() is ALONE
    monkeypatch.setenv("WORLD_SIZE", "2")
    with pytest.raises(ConfigError, match="without RANK, MASTER_ADDR, MASTER_PORT"):
        begin()


def die(team, how):
    started = time.monotonic()
    team.same(1)
    if team.rank == 1:
        if how == "killed":
            os.kill(os.getpid(), signal.SIGKILL)
        if how == "silent":
            time.sleep(6)  # twice what the others wait
        if how == "failed":
            raise ValueError("my own mistake")
    try:
        team.add(torch.ones(3))
    except RankLost:
        took = time.monotonic() - started
        with pytest.raises(RankLost):  # and from here on
            team.same(1)
        return took, team.broken
    return None


@pytest.mark.parametrize("how", ["killed", "failed", "silent"])
def test_a_rank_that_is_gone_or_silent_stops_the_others(how):
    first, lost, third = outcomes(3, die, how, timeout=3.0)
    for took, message in (first, third):
        assert took < 30  # not the half hour that gloo waits by itself
        assert "another process of this run has stopped, or did not answer in time" in message
        assert "resume" in message
    assert isinstance(lost, {"killed": Gone, "failed": ValueError, "silent": tuple}[how])


def starting(rank, meeting):
    """What a process that was started as one of two has to say."""
    os.environ.update(RANK=str(rank), WORLD_SIZE="2", NOISEWISE_MEETING=str(meeting))
    team = begin(timeout=20.0)
    assert begin() is team
    told = team.rank, team.size, team.gathered(bytes([rank]))
    end()
    return told == (rank, 2, [b"\0", b"\1"])


def test_processes_meet_by_a_file(tmp_path):
    children = []
    for rank in range(2):
        child = os.fork()
        if not child:
            os._exit(0 if starting(rank, tmp_path / "meeting") else 1)
        children.append(child)
    assert [os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children] == [0, 0]


def test_who_waits_in_vain_says_where(tmp_path, monkeypatch):
    for name, value in {"RANK": "0", "WORLD_SIZE": "2", "NOISEWISE_MEETING": str(tmp_path / "meeting")}.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(RunError, match=r"2 processes of this run did not find each other at .*meeting within 0.5 s"):
        begin(timeout=0.5)

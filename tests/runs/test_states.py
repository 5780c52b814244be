"""States along a run: evenly spaced, secret until a private run has ended, whole or refused."""

import itertools

import pytest
import torch

from noisewise.errors import ConfigError, RunError
from noisewise.runs.folder import RunFolder, Status
from noisewise.runs.states import Keep, join_states, keep_state, read_states, release_states


def state(value):
    return {"weight": torch.full((2,), float(value)), "count": torch.tensor(value)}


@pytest.mark.parametrize("count", [0, 1, 3, 7, 20])
def test_states_are_spread_evenly_and_belong_to_one_phase_each(count):
    keep = Keep.evenly(count, 20)
    steps = sorted(keep.steps)
    assert len(steps) == count
    assert steps[:1] == [0][:count]
    assert all(abs(second - first - 20 / max(count, 1)) <= 1 for first, second in itertools.pairwise(steps))
    parts = [keep.part(first, length) for first, length in ((0, 6), (6, 1), (7, 13))]
    assert sorted(part.first + step for part in parts for step in part.steps) == steps
    assert all(part.asked == keep.asked == keep.steps for part in parts)


@pytest.mark.parametrize("count", [-1, 21, 2.0, True])
def test_other_numbers_of_states_are_refused(count):
    with pytest.raises(ConfigError, match=r"keep_states=.* of 20 steps"):
        Keep.evenly(count, 20)


@pytest.mark.parametrize("status", ["private", "not-private", "not-proven"])
def test_states_are_secret_until_a_private_run_ends(status, tmp_path):
    folder = RunFolder(tmp_path)
    folder.create()
    for step in (4, 0, 4):  # a step that is done again after a kill
        keep_state(folder, step, state(step))
    assert not folder.states.exists()
    keep_state(folder, 3, state(3))  # left by another run
    release_states(folder, Status(status, "for a test"), frozenset({0, 4}))
    assert (folder.states.exists(), folder.kept.exists()) == ((status == "private"), (status != "private"))
    assert ("states.safetensors" in folder.digests()) == (status == "private")
    for step, kept in read_states(folder):
        assert torch.equal(kept["weight"], state(step)["weight"])
        assert torch.equal(kept["count"], state(step)["count"])
    assert [step for step, _ in read_states(folder)] == ([0, 4] if status == "private" else [0, 3, 4])


def test_states_of_a_phase_are_taken_over_as_secrets(tmp_path):
    folder = RunFolder(tmp_path)
    folder.create()
    phase = folder.phase(1)
    phase.create()
    join_states(folder, phase)
    assert read_states(folder) == []
    keep_state(phase, 0, state(0))
    release_states(phase, Status("private", "for a test"), frozenset({0}))
    keep_state(folder, 6, state(6))
    join_states(folder, phase)
    assert [step for step, _ in read_states(folder)] == [0, 6]
    assert not folder.states.exists()


def test_a_damaged_file_of_states_is_refused(tmp_path):
    folder = RunFolder(tmp_path)
    folder.create()
    keep_state(folder, 0, state(1))
    content = bytearray(folder.kept.read_bytes())
    content[-1] ^= 1
    folder.kept.write_bytes(bytes(content))
    with pytest.raises(RunError, match="damaged"):
        read_states(folder)

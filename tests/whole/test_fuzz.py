"""Damaged run folders: an error in words or the right result; never a crash, a wrong epsilon or executed code."""

import json
import os
import pickle
import shutil
import signal
import sys
from collections import Counter
from functools import cache

import pytest
import tomli_w
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from helpers import tiny
from helpers.damage import damaged
from noisewise import cli
from noisewise.accounting import Ledger
from noisewise.errors import Interrupted, NoisewiseError
from noisewise.mechanism import Mechanism
from noisewise.runs.files import read_json
from noisewise.runs.folder import RunFolder
from noisewise.runs.summary import read_summary
from noisewise.runs.tensors import load_tensors, save_tensors
from noisewise.sampling import Poisson
from noisewise.training.loop import train
from noisewise.workflow.config import Config, configure
from noisewise.workflow.execution import execute

SEED = 5
PLAIN = (
    "model",
    "optimizer",
    "scheduler",
    "averaged",
    "history",
)  # the owner's own numbers: no epsilon depends on them
RELEASED = ("ledger.json", "config.toml", "run.json", "summary.json")


def how_often(count):
    return settings(
        max_examples=count, deadline=None, derandomize=True, database=None, suppress_health_check=list(HealthCheck)
    )


def _flipped(content, places):
    content = bytearray(content)
    for place, change in places:
        content[place % len(content)] ^= change
    return bytes(content)


def bytes_like(content):
    """The bytes with some of them changed, the end cut off, a piece taken out, or something put in."""
    place = st.integers(0, len(content))
    return st.one_of(
        st.builds(
            lambda places: _flipped(content, places),
            st.lists(st.tuples(place, st.integers(1, 255)), min_size=1, max_size=4),
        ),
        st.builds(lambda end: content[:end], place),
        st.builds(lambda first, count: content[:first] + content[first + count :], place, st.integers(1, 9)),
        st.builds(lambda at, more: content[:at] + more + content[at:], place, st.binary(min_size=1, max_size=9)),
        st.builds(lambda at, digit: content[:at] + b"%d" % digit + content[at + 1 :], place, st.integers(0, 9)),
    )


# --- checkpoints ------------------------------------------------------------------------------------------------------


class Crash(Exception):
    pass


def _crash(observation):
    if observation.step == 6:
        raise Crash


@pytest.fixture(scope="module")
def begun(tmp_path_factory):
    """A run that ended in the middle."""
    folder = tmp_path_factory.mktemp("begun")
    with pytest.raises(Crash):
        tiny.run(out=folder, checkpoint_seconds=0, insecure_seed=SEED, recorders=[_crash])
    return RunFolder(folder)


@cache
def uninterrupted():
    return tiny.run(insecure_seed=SEED)


def resume(content, work):
    """Resumed from a checkpoint with this content: the trained run, or None if it was refused."""
    shutil.rmtree(work, ignore_errors=True)
    run = RunFolder(work)
    run.create()
    run.checkpoint.write_bytes(content)
    try:
        trained = tiny.run(out=work, resume=True, insecure_seed=SEED)
    except NoisewiseError:
        return None
    assert trained.ledger.lines == tiny.mechanism().lines()
    assert read_summary(run)["privacy"]["plan_epsilon"] == tiny.mechanism().epsilon(1e-3)
    assert trained.status.reason == "noise reproducible: do not publish"
    return trained


def check_bytes(begun, work, count):
    content, seen = begun.checkpoint.read_bytes(), Counter()

    @how_often(count)
    @given(bytes_like(content))
    def holds(changed):
        trained = resume(changed, work)
        seen["refused" if trained is None else "right"] += 1
        assert trained is None or tiny.same(trained.model, uninterrupted().model)

    holds()
    return seen


def check_edits(begun, work, count):
    """Edits by someone who knows the format and corrects the digest."""
    tree, seen = load_tensors(begun.checkpoint), Counter()
    edited, copy = {key: value for key, value in tree.items() if key not in PLAIN}, work.with_name("edited")

    @how_often(count)
    @given(damaged(edited))
    def holds(changed):
        save_tensors(copy, {**{key: tree[key] for key in PLAIN}, **changed})
        seen["refused" if resume(copy.read_bytes(), work) is None else "right"] += 1

    holds()
    return seen


# --- files of a run ---------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """A run of the command line, finished."""
    config = configure(data="digits", noise_multiplier=4.0, steps=3, batch_size=64)
    return execute(config, tmp_path_factory.mktemp("finished") / "run", progress=False)


@pytest.fixture(scope="module")
def unfinished(tmp_path_factory):
    """A run of the command line, interrupted after its first step."""
    folder = tmp_path_factory.mktemp("unfinished") / "run"
    config = configure(data="digits", noise_multiplier=4.0, steps=3, batch_size=64, twin=False)

    def stopping(*arguments, **settings):
        stop = lambda observation: signal.raise_signal(signal.SIGINT)  # noqa: E731
        return train(*arguments, **settings, recorders=[stop])

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("noisewise.recipe.train", stopping)
        with pytest.raises(Interrupted):
            execute(config, folder, progress=False)
    return RunFolder(folder)


def noisewise(*arguments):
    """Exit code of a command, run in this process."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("OMP_WAIT_POLICY", "passive")
        patch.setattr(sys, "argv", ["noisewise", *map(str, arguments)])
        with pytest.raises(SystemExit) as stopped:
            cli.main()
    return int(stopped.value.code or 0)


def contents(path):
    """What a damaged file may hold: other bytes, or one entry changed and written properly."""
    content = path.read_bytes()
    if path.suffix == ".json":
        edits = damaged(json.loads(content)).map(lambda tree: json.dumps(tree).encode())
    elif path.suffix == ".toml":
        edits = damaged(Config.read(path).__dict__).map(_toml)
    else:
        return bytes_like(content)
    return st.one_of(bytes_like(content), edits)


def _toml(settings):
    kept = {name: value for name, value in settings.items() if value is not None}
    return tomli_w.dumps({"format": 1, **kept}).encode()


def check_files(original, names, commands, work, count):
    """Damage one file, give one command: right, or refused with 2 or 3."""
    target, seen = RunFolder(work), Counter()
    choices = [(name, command) for name in names for command in commands]

    @how_often(count)
    @given(st.sampled_from(choices).flatmap(lambda c: st.tuples(st.just(c), contents(original.path / c[0]))))
    def holds(case):
        (name, command), content = case
        shutil.rmtree(work, ignore_errors=True)
        shutil.copytree(original.path, work)
        (work / name).write_bytes(content)
        code = noisewise(*command, work)
        assert code in (0, 2, 3), (name, command, content)
        seen["refused" if code else "right"] += 1
        if not code and command[0] != "audit":
            right_epsilon(target)

    holds()
    return seen


def right_epsilon(run):
    """What is shown is what the ledger says, and the ledger holds the three steps that were made."""
    ledger, privacy = Ledger.from_dict(read_json(run.ledger)), read_summary(run)["privacy"]
    assert ledger.releases == 3
    assert ledger.lines[0].event.event.noise_multiplier == 4.0
    assert privacy["epsilon"] == pytest.approx(planned_epsilon(privacy["delta"]), rel=1e-3)


@cache
def planned_epsilon(delta):
    return Mechanism(sampler=Poisson(1258, 64), steps=3, noise_multiplier=4.0).epsilon(delta)


COMMANDS = [("report",), ("audit", "--only", "disparity"), ("train", "--resume", "--out")]


BEGUN = ("config.toml", "run.json", "sensitive/checkpoint.safetensors")
CHECKS = {
    "bytes of a checkpoint": lambda runs, work, count: check_bytes(runs("begun"), work, count),
    "entries of a checkpoint": lambda runs, work, count: check_edits(runs("begun"), work, count),
    "files of a finished run": lambda runs, work, count: check_files(runs("finished"), RELEASED, COMMANDS, work, count),
    "files of an unfinished run": lambda runs, work, count: check_files(
        runs("unfinished"), BEGUN, COMMANDS[2:], work, count
    ),
}
QUICK, SLOW = (30, 30, 10, 5), (1500, 1500, 600, 200)


@pytest.mark.parametrize(("what", "count"), list(zip(CHECKS, QUICK, strict=True)))
def test_damage_is_refused_or_does_not_matter(what, count, request, tmp_path):
    seen = CHECKS[what](request.getfixturevalue, tmp_path / "run", count)
    assert seen["refused"] > count / 3


@pytest.mark.slow
@pytest.mark.parametrize(("what", "count"), list(zip(CHECKS, SLOW, strict=True)))
def test_thousands_of_damages(what, count, request, tmp_path, capsys):
    seen = CHECKS[what](request.getfixturevalue, tmp_path / "run", count)
    assert seen["refused"] > count / 3
    said = f"{what}: {seen.total()} cases, {seen['refused']} refused, {seen['right']} with the right result"
    with capsys.disabled():
        print(f"\n{said}")


# --- executed code ----------------------------------------------------------------------------------------------------


class Payload:
    """Makes a folder when it is unpickled."""

    def __init__(self, folder):
        self.folder = str(folder)

    def __reduce__(self):
        return os.mkdir, (self.folder,)


@pytest.mark.parametrize("protocol", [0, 2, 5])
def test_the_payload_works(protocol, tmp_path):
    pickle.loads(pickle.dumps(Payload(tmp_path / "struck"), protocol))
    assert (tmp_path / "struck").exists()


@pytest.mark.parametrize("name", [*RELEASED, "model.safetensors", "sensitive/twin.safetensors"])
@pytest.mark.parametrize("command", COMMANDS, ids=" ".join)
def test_nothing_in_a_file_is_executed(finished, tmp_path, name, command):
    work, struck = tmp_path / "run", tmp_path / "struck"
    for content in (pickle.dumps(Payload(struck), 0), pickle.dumps(Payload(struck), 5)):
        shutil.rmtree(work, ignore_errors=True)
        shutil.copytree(finished.path, work)
        (work / name).write_bytes(content)
        noisewise(*command, work)
    assert not struck.exists()

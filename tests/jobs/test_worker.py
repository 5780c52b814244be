"""What a worker does with a message: it takes part only where it has the same versions and files, and never raises."""

import json
import os
import re
import stat
from dataclasses import replace

import pytest

from helpers import working
from noisewise.errors import ConfigError
from noisewise.jobs import Job
from noisewise.jobs.worker import MARK, Failure, Scene, do, do_far, outcome_of


@pytest.fixture
def scene(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("OMP_NUM_THREADS", os.environ.get("OMP_NUM_THREADS", "1"))
    (tmp_path / MARK).write_text("the same")
    return Scene.here(tmp_path, "the same", int(os.environ["OMP_NUM_THREADS"]))


def test_a_message_and_its_outcome_are_json(scene):
    message = scene.message(Job("a", working.double, {"number": 4}))
    assert set(json.loads(message)) == {"key", "function", "settings", "scene"}
    assert outcome_of(do(message))["twice"] == 8
    assert outcome_of(do(scene.message(Job("a", working.infinite, {})))) == {"epsilon": "inf", "pair": [1, 2]}


def test_where_data_are_kept_is_known_to_workers(tmp_path, monkeypatch):
    monkeypatch.setenv("NOISEWISE_DATA", "/somewhere")
    monkeypatch.setenv("SECRET", "mine")
    message = Scene.here(None, "", 1).message(Job("a", working.variables, {}))
    assert "mine" not in message
    monkeypatch.delenv("NOISEWISE_DATA")
    assert outcome_of(do(message)) == {"NOISEWISE_DATA": "/somewhere"}


def test_failures_are_told_by_kind(scene):
    assert outcome_of(do(scene.message(Job("a", working.fail, {"number": 7})))) == Failure(
        "ConfigError", "number=7: is not liked."
    )
    bug = outcome_of(do(scene.message(Job("a", working.crash, {}))))
    assert (bug.kind, "RuntimeError: a bug" in bug.words) == ("bug", True)
    full = outcome_of(do(scene.message(Job("a", working.fill, {}))))
    assert (full.kind, "memory is full" in full.words) == ("RunError", True)
    stopped = outcome_of(do(scene.message(Job("a", working.stop, {"trace": scene.at}))))
    assert stopped.kind == "stopped"
    with pytest.raises(ConfigError, match="no function of a module"):
        scene.message(Job("a", lambda: 1, {}))


def test_a_bug_goes_far_by_its_kind_and_place_and_its_text_stays_with_the_owner(scene, tmp_path):
    message = scene.message(Job("a", working.quote, {"row": "HIV positive"}))
    for _ in range(2):  # the second one replaces the file of the first
        told = do_far(message)
    assert "HIV" not in told
    bug, text = outcome_of(told), tmp_path / "a.error.txt"
    assert bug.kind == "bug"
    assert re.search(rf"ValueError at .*working\.py:\d+\. .* in {text}", bug.words)
    assert stat.S_IMODE(text.stat().st_mode) == 0o600
    assert text.read_text().count("could not convert string to float: 'HIV positive'") == 1
    assert "HIV positive" in outcome_of(do(message)).words  # on this machine
    nowhere = do_far(Scene.here(None, "", 1).message(Job("a", working.quote, {"row": "HIV positive"})))
    assert ("HIV" in nowhere, "is not kept" in nowhere) == (False, True)
    text.unlink()
    text.mkdir()
    unwritten = do_far(message)
    assert ("HIV" in unwritten, "could not be written" in unwritten) == (False, True)
    assert outcome_of(do_far(scene.message(Job("a", working.double, {"number": 4}))))["twice"] == 8


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"mark": "another"}, "shared file system"),
        ({"folder": "/nowhere"}, "shared file system"),
        ({"at": "/nowhere"}, "shared file system"),
        ({"versions": {"noisewise": "0", "torch": "0", "numpy": "0", "python": "0"}}, "instead of 0"),
    ],
)
def test_a_worker_elsewhere_is_refused(scene, change, words):
    told = outcome_of(do(replace(scene, **change).message(Job("a", working.double, {"number": 4}))))
    assert told.kind == "RunError"
    assert words in told.words

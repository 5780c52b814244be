"""What a worker does with a message: it takes part only where it has the same versions and files, and never raises."""

import json
import os
from dataclasses import replace

import pytest

from helpers import working
from noisewise.errors import ConfigError
from noisewise.jobs import Job
from noisewise.jobs.worker import MARK, Failure, Scene, do, outcome_of


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
    stopped = outcome_of(do(scene.message(Job("a", working.stop, {"trace": scene.at}))))
    assert stopped.kind == "stopped"
    with pytest.raises(ConfigError, match="no function of a module"):
        scene.message(Job("a", lambda: 1, {}))


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

"""The order of acts on the disk: write, fsync of the file, rename, fsync of its folder, for every file of a run.

Only this order survives a power cut: a rename that reaches the disk before the content leaves an empty file. The acts are
recorded by wrapping the functions of `os` that do them; a file is known by its inode, so that its names do not matter.
"""

import json
import os
import signal
import stat
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch

from helpers import tiny
from noisewise.audits.recorder import ClipRecorder
from noisewise.clipping import Flat
from noisewise.data import Data, Splits
from noisewise.errors import Interrupted
from noisewise.recipe import Phase, Recipe, fit
from noisewise.runs.folder import RunFolder
from noisewise.workflow.config import configure
from noisewise.workflow.execution import execute


@dataclass(frozen=True)
class Act:
    """What was done, to which inode, how long the file was then, the path it got or lost, and the inode of its folder."""

    what: str
    inode: int
    size: int
    path: str = ""
    folder: int = 0


class Journal(list):
    """All acts, in order."""

    def paths(self):
        """Files that got their name by a rename, in order."""
        return [act.path for act in self if act.what == "rename"]

    def last(self, what, path):
        """Where the last such act on a path is."""
        return max(place for place, act in enumerate(self) if (act.what, act.path) == (what, str(path)))

    def check(self):
        """Every rename came after the fsync of all of its content, and the fsync of its folder comes next."""
        assert self.paths()
        for place, act in enumerate(self):
            if act.what == "rename":
                before = [one for one in self[:place] if one.what == "fsync" and one.inode == act.inode]
                assert before, f"{act.path} was renamed without an fsync of its content"
                assert before[-1].size == act.size, f"{act.path} was written to after its fsync"
                after = [(one.what, one.inode) for one in self[place + 1 : place + 2]]
                assert after == [("fsync folder", act.folder)], f"no fsync of the folder after the rename to {act.path}"


@pytest.fixture
def journal(monkeypatch):
    acts, real = Journal(), {name: getattr(os, name) for name in ("fsync", "replace", "rename", "unlink")}

    def fsync(file):
        real["fsync"](file)
        about = os.fstat(file)
        acts.append(Act("fsync folder" if stat.S_ISDIR(about.st_mode) else "fsync", about.st_ino, about.st_size))

    def renaming(name):
        def rename(source, target, **how):
            about = os.stat(source)
            real[name](source, target, **how)
            acts.append(Act("rename", about.st_ino, about.st_size, str(target), os.stat(Path(target).parent).st_ino))

        return rename

    def unlink(path, **how):
        real["unlink"](path, **how)
        acts.append(Act("unlink", 0, 0, str(path)))

    monkeypatch.setattr(os, "fsync", fsync)
    monkeypatch.setattr(os, "unlink", unlink)
    for name in ("replace", "rename"):
        monkeypatch.setattr(os, name, renaming(name))
    return acts


def stop_at(step):
    """A recorder that sends Ctrl-C at a step."""

    def recorder(observation):
        if observation.step == step:
            os.kill(os.getpid(), signal.SIGINT)

    return recorder


def test_every_file_of_a_run_is_on_the_disk_before_it_has_its_name(journal, tmp_path):
    folder = RunFolder(tmp_path / "run")
    tiny.run(out=folder.path, checkpoint_seconds=0.0)
    journal.check()
    written = journal.paths()
    assert written.count(str(folder.checkpoint)) == tiny.STEPS + 1  # at the start, and after each step
    last = [folder.identity, folder.model, folder.ledger, folder.mechanism, folder.summary, folder.run]
    assert sorted(written[-6:-1]) == sorted(str(path) for path in last[:-1])
    assert written[-1] == str(folder.run)


def test_secrets_are_forgotten_only_when_the_run_is_complete_on_the_disk(journal, tmp_path):
    folder = RunFolder(tmp_path / "run")
    tiny.run(out=folder.path)
    assert json.loads(folder.run.read_text())["state"] == "complete"
    complete = journal.last("rename", folder.run)
    assert journal[complete + 1].what == "fsync folder"
    assert journal.last("unlink", folder.checkpoint) > complete + 1


def test_a_resumed_run_rewrites_metrics_and_recordings_in_the_same_order(journal, tmp_path):
    folder, units = RunFolder(tmp_path / "run"), Data(*tiny.data())
    settings = {"units": units, "out": folder.path, "valid": units}
    with pytest.raises(Interrupted):
        tiny.run(recorders=[ClipRecorder(folder.path, units, Flat(1.0)), stop_at(7)], **settings)
    recorder = ClipRecorder(folder.path, units, Flat(1.0))
    tiny.run(recorders=[recorder], resume=True, **settings)
    journal.check()
    rewritten = {str(path) for path in (folder.metrics, folder.sensitive / "metrics.jsonl", recorder.path)}
    assert rewritten <= set(journal.paths())


def test_every_phase_is_written_in_the_same_order(journal, tmp_path):
    units, plan = Data(*tiny.data()), tiny.mechanism(steps=2)
    recipe = Recipe(
        model=tiny.model(), data=Splits(units, units, units), loss_fn=tiny.loss_fn, mechanism=plan,
        optimizer=lambda parameters: torch.optim.SGD(parameters, lr=0.1), phases=(Phase(mechanism=plan),),
    )  # fmt: skip
    fit(recipe, out=tmp_path / "run", progress=False)
    journal.check()
    assert str(tmp_path / "run" / "sensitive" / "phase-1" / "model.safetensors") in journal.paths()


def test_the_config_is_on_the_disk_before_anything_else(journal, tmp_path):
    config = configure(data="digits", model="mlp", noise_multiplier=4.0, steps=1, batch_size=16, twin=False)
    folder = execute(config, tmp_path / "run", progress=False)
    journal.check()
    assert journal.paths()[0] == str(folder.config)


def wrong_orders(journal, folder):
    """Files put in place in ways that a power cut can undo."""
    with (folder / "a").open("wb") as file:
        file.write(b"content")
        yield lambda: os.replace(folder / "a", folder / "b")  # never synced
        os.fsync(file.fileno())
        file.write(b"more")
        file.flush()
        yield lambda: os.replace(folder / "b", folder / "c")  # written to since
        os.fsync(file.fileno())
    yield lambda: os.replace(folder / "c", folder / "d")  # its folder is not synced


def test_a_wrong_order_is_seen(journal, tmp_path):
    for act in wrong_orders(journal, tmp_path):
        act()
        with pytest.raises(AssertionError):
            journal.check()
        del journal[[one.what for one in journal].index("rename")]

"""The run folder: what it holds, who may read it, what it refuses."""

import importlib.metadata
import json
import re
import socket
import stat
import subprocess
import sys
from hashlib import sha256
from pathlib import Path

import pytest

from helpers import tiny
from helpers.crashes import ROOT, SEED, crashed, files
from noisewise.accounting import Ledger
from noisewise.data import Data
from noisewise.errors import RunError
from noisewise.runs.files import read_json
from noisewise.runs.folder import RunFolder


def mode(path):
    return stat.S_IMODE(path.stat().st_mode)


# --- contents ---------------------------------------------------------------------------------------------------------
def test_a_finished_folder_holds_these_files_and_no_more(tmp_path):
    tiny.run(out=tmp_path)
    released = ["ledger.json", "mechanism.json", "metrics.jsonl", "model.safetensors", "run.json", "summary.json"]
    assert files(tmp_path) == sorted([*released, "sensitive/identity.json", "sensitive/lock"])
    assert mode(tmp_path / "sensitive") == 0o700
    assert RunFolder(tmp_path).complete


def test_sensitive_is_closed_even_if_it_was_open(tmp_path):
    (tmp_path / "sensitive").mkdir(mode=0o755)
    tiny.run(out=tmp_path)
    assert mode(tmp_path / "sensitive") == 0o700


def test_the_ledger_can_be_read_back(tmp_path):
    trained = tiny.run(out=tmp_path)
    assert Ledger.from_dict(read_json(tmp_path / "ledger.json")) == trained.ledger


def test_run_json_names_versions_and_hardware_but_no_place(tmp_path):
    tiny.run(out=tmp_path)
    about = read_json(tmp_path / "run.json")
    assert about.keys() == {"format", "state", "status", "reason", "versions", "hardware", "files"}
    assert about["files"] == RunFolder(tmp_path).digests()
    assert about["files"]["model.safetensors"] == sha256((tmp_path / "model.safetensors").read_bytes()).hexdigest()
    assert (about["format"], about["state"], about["status"]) == (1, "complete", "private")
    assert about["versions"]["torch"] == importlib.metadata.version("torch")
    text = (tmp_path / "run.json").read_text()
    assert "/" not in text
    assert not re.search(rf"\b{re.escape(socket.gethostname())}\b", text)


@pytest.mark.parametrize(
    "how",
    [{"ablation": "plain"}, {"ablation": "clip-only"}, {"ablation": "noise-only"}, {"insecure_seed": SEED}],
    ids=repr,
)
def test_what_is_not_private_says_so_in_every_file(how, tmp_path):
    tiny.run(out=tmp_path, **how)
    privacy, about = read_json(tmp_path / "summary.json")["privacy"], read_json(tmp_path / "run.json")
    assert about["status"] == privacy["status"] == "not-private"
    assert about["reason"] == privacy["reason"]
    assert {privacy[key] for key in ("epsilon", "rdp_epsilon", "gdp_epsilon")} == {"inf"}
    metrics = [json.loads(line) for line in (tmp_path / "metrics.jsonl").read_text().splitlines()]
    assert {line["epsilon"] for line in metrics} == {"inf"}


def test_metrics_of_private_people_stay_under_sensitive(tmp_path):
    history = tiny.run(out=tmp_path, valid=tiny.data(n=15)).history
    public = [json.loads(line) for line in (tmp_path / "metrics.jsonl").read_text().splitlines()]
    secret = [json.loads(line) for line in (tmp_path / "sensitive" / "metrics.jsonl").read_text().splitlines()]
    assert secret == history
    assert public == [{"step": line["step"], "epsilon": line["epsilon"]} for line in history]
    losses = {repr(line["valid_loss"]) for line in history}
    for name in files(tmp_path):
        if not name.startswith("sensitive/"):
            assert not any(loss.encode() in (tmp_path / name).read_bytes() for loss in losses)


def test_metrics_of_public_data_are_public(tmp_path):
    history = tiny.run(out=tmp_path, valid=Data(*tiny.data(n=15), public=True)).history
    assert [json.loads(line) for line in (tmp_path / "metrics.jsonl").read_text().splitlines()] == history
    assert all("valid_loss" in line for line in history)
    assert not (tmp_path / "sensitive" / "metrics.jsonl").exists()


def test_private_data_objects_are_not_public_by_themselves(tmp_path):
    tiny.run(out=tmp_path, valid=Data(*tiny.data(n=15)))
    assert "valid_loss" not in (tmp_path / "metrics.jsonl").read_text()


# --- secrets ----------------------------------------------------------------------------------------------------------
def where_the_root_is(folder):
    forms = [str(ROOT), f"{ROOT:x}", f"{ROOT:X}"]
    forms = [form.encode() for form in forms] + [ROOT.to_bytes(32, "little"), ROOT.to_bytes(32, "big")]
    return [name for name in files(folder) if any(form in (Path(folder) / name).read_bytes() for form in forms)]


def test_the_secret_root_is_in_the_checkpoint_while_it_is_needed_and_nowhere_afterwards(tmp_path, monkeypatch):
    monkeypatch.setattr("secrets.randbits", lambda bits: ROOT)
    folder = crashed(tmp_path)
    assert where_the_root_is(tmp_path) == ["sensitive/checkpoint.safetensors"]
    folder.checkpoint.with_name(".checkpoint.safetensors.tmp").write_bytes(
        folder.checkpoint.read_bytes()[:-7]
    )  # a kill
    tiny.run(out=tmp_path, resume=True, checkpoint_seconds=1000)
    assert where_the_root_is(tmp_path) == []
    assert not [name for name in files(tmp_path) if "checkpoint" in name]


# --- who may write ----------------------------------------------------------------------------------------------------
def test_a_second_process_is_refused(tmp_path):
    RunFolder(tmp_path).create()
    hold = "import fcntl, sys; f = open(sys.argv[1], 'w'); fcntl.flock(f, fcntl.LOCK_EX); print('held', flush=True); input()"
    command = [sys.executable, "-c", hold, str(tmp_path / "sensitive" / "lock")]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as other:
        assert other.stdout.readline() == b"held\n"
        with pytest.raises(RunError, match="in use by another process"):
            tiny.run(out=tmp_path)
        other.communicate(b"\n")
    assert tiny.run(out=tmp_path).ledger.releases == tiny.STEPS


def test_a_killed_process_leaves_no_lock_behind(tmp_path):
    hold = (
        "import sys; from noisewise.runs import RunFolder\n"
        "with RunFolder(sys.argv[1]).locked(): print('held', flush=True); input()"
    )
    command = [sys.executable, "-c", hold, str(tmp_path)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as other:
        assert other.stdout.readline() == b"held\n"
        with pytest.raises(RunError, match="in use by another process"), RunFolder(tmp_path).locked():
            pass
        other.kill()
    with RunFolder(tmp_path).locked():
        assert RunFolder(tmp_path).lock.read_bytes() == b""


def test_the_lock_is_given_back_after_an_error(tmp_path):
    crashed(tmp_path)
    assert tiny.run(out=tmp_path, resume=True).ledger.releases == tiny.STEPS


@pytest.mark.parametrize("resume", [False, True])
def test_a_finished_folder_is_never_overwritten(tmp_path, resume):
    tiny.run(out=tmp_path)
    before = {name: (tmp_path / name).read_bytes() for name in files(tmp_path)}
    with pytest.raises(RunError, match="finished run"):
        tiny.run(out=tmp_path, resume=resume)
    assert {name: (tmp_path / name).read_bytes() for name in files(tmp_path)} == before


def test_an_unfinished_folder_needs_resume(tmp_path):
    before = crashed(tmp_path).checkpoint.read_bytes()
    assert not RunFolder(tmp_path).complete
    with pytest.raises(RunError, match=r"unfinished run.*resume=True"):
        tiny.run(out=tmp_path)
    assert RunFolder(tmp_path).checkpoint.read_bytes() == before


def test_there_is_nothing_to_resume_in_an_empty_folder(tmp_path):
    with pytest.raises(RunError, match=r"new holds no run to go on with.*without resume"):
        tiny.run(out=tmp_path / "new", resume=True)
    assert tiny.run(out=tmp_path / "new").ledger.releases == tiny.STEPS


@pytest.mark.parametrize("place", ["file", "file/run", "x" * 300])
def test_folders_that_cannot_be_made_are_said(place, tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(RunError, match=r"cannot be used as a run folder.*choose another"):
        tiny.run(out=tmp_path / place)


def test_a_lock_that_cannot_be_opened_is_said(tmp_path):
    (tmp_path / "sensitive" / "lock").mkdir(parents=True)
    with pytest.raises(RunError, match="lock cannot be opened"):
        tiny.run(out=tmp_path)


# --- damage -----------------------------------------------------------------------------------------------------------
@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory):
    """The bytes of a checkpoint in the middle of a run."""
    folder = crashed(tmp_path_factory.mktemp("damage"), insecure_seed=SEED)
    return folder.checkpoint.read_bytes()


def test_a_metrics_line_that_a_kill_cut_short_is_dropped(tmp_path):
    crashed(tmp_path / "crashed", insecure_seed=SEED)
    with (tmp_path / "crashed" / "metrics.jsonl").open("a") as file:
        file.write('{"step": 6, "eps')
    tiny.run(out=tmp_path / "crashed", resume=True, insecure_seed=SEED)
    tiny.run(out=tmp_path / "whole", insecure_seed=SEED)
    assert (tmp_path / "crashed" / "metrics.jsonl").read_text() == (tmp_path / "whole" / "metrics.jsonl").read_text()


def test_a_resumed_run_keeps_the_lines_up_to_its_step_and_no_others(tmp_path):
    folder = RunFolder(tmp_path)
    folder.create()
    for public in (True, False):
        for step in (0, 4, 5, 6):
            folder.append_metrics({"step": step}, public=public)
    folder.truncate_metrics(5)
    for path in (folder.metrics, folder.sensitive / "metrics.jsonl"):
        assert [json.loads(line)["step"] for line in path.read_text().splitlines()] == [0, 4, 5]

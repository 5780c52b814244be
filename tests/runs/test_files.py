"""Files are whole or not there, JSON stays JSON, one process at a time."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from helpers.crashes import SEED, crashed, files
from noisewise.errors import RunError
from noisewise.runs.files import read_json, write_atomically, write_json
from noisewise.runs.tensors import load_tensors


def test_runs_can_be_imported_where_there_is_no_fcntl():
    """As on Windows; there the lock is another one, here filelock says that it has none as good."""
    code = "import sys; sys.modules['fcntl'] = None; import noisewise.runs; print(noisewise.runs.RunFolder('a').lock)"
    asked = [sys.executable, "-W", "ignore", "-c", code]
    assert subprocess.run(asked, capture_output=True, text=True, check=True).stdout == f"{Path('a/sensitive/lock')}\n"


# --- damage -----------------------------------------------------------------------------------------------------------
@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory):
    """The bytes of a checkpoint in the middle of a run."""
    folder = crashed(tmp_path_factory.mktemp("damage"), insecure_seed=SEED)
    return folder.checkpoint.read_bytes()


def test_infinity_is_written_as_text_and_json_stays_json(tmp_path):
    write_json(tmp_path / "file", {"a": [float("inf"), float("-inf")], "b": (1.5, None)})
    text = (tmp_path / "file").read_text()
    assert json.loads(text, parse_constant=pytest.fail) == {"a": ["inf", "-inf"], "b": [1.5, None]}


@pytest.mark.parametrize("content", [b"", b"{", b"\xff"])
def test_damaged_json_names_the_file(content, tmp_path):
    (tmp_path / "run.json").write_bytes(content)
    with pytest.raises(RunError, match=r"run\.json cannot be read"):
        read_json(tmp_path / "run.json")


def test_missing_files_are_said(tmp_path):
    with pytest.raises(RunError, match="does not exist"):
        read_json(tmp_path / "run.json")
    with pytest.raises(RunError, match="does not exist"):
        load_tensors(tmp_path / "checkpoint")


def test_a_file_that_cannot_be_replaced_keeps_its_content(tmp_path):
    (tmp_path / "folder").mkdir()
    with pytest.raises(RunError, match="folder could not be written"):
        write_atomically(tmp_path / "folder", b"new")
    assert files(tmp_path) == []

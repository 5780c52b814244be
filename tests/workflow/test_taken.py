"""Whether a run folder is free is said before anything else."""

import pytest

from helpers.command_line import command_line
from noisewise.errors import RunError
from noisewise.runs.folder import RunFolder
from noisewise.workflow.config import plan
from noisewise.workflow.execution import execute
from noisewise.workflow.taken import check_finished, check_no_folder_of_runs, check_out


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    planned = plan(data="digits", noise_multiplier=1.0, steps=1, batch_size=64, model="logistic")
    return execute(planned, tmp_path_factory.mktemp("runs") / "run", progress=False)


def test_a_free_folder(tmp_path):
    assert check_out(RunFolder(tmp_path / "new"), resume=False) is None
    assert check_out(RunFolder(tmp_path), resume=False) is None


def test_a_file_is_no_folder(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(RunError, match="is a file"):
        check_out(RunFolder(tmp_path / "file"), resume=False)


def test_nothing_to_resume(tmp_path):
    with pytest.raises(RunError, match="no run to go on with"):
        check_out(RunFolder(tmp_path / "new"), resume=True)


def test_a_finished_run_is_not_overwritten(finished):
    with pytest.raises(RunError, match="finished run"):
        check_out(finished, resume=False)
    assert check_out(finished, resume=True) is None


def test_a_run_whose_twin_is_missing_is_unfinished(finished, tmp_path):
    import shutil

    copy = RunFolder(shutil.copytree(finished.path, tmp_path / "copy"))
    copy.twin_weights.unlink()
    with pytest.raises(RunError, match="unfinished run"):
        check_out(copy, resume=False)
    copy.config.unlink()  # as a run of Python, which has no twin
    with pytest.raises(RunError, match="a finished run"):
        check_out(copy, resume=False)


def test_what_is_no_finished_run_is_not_opened(finished, tmp_path):
    assert check_finished(finished) is None
    with pytest.raises(RunError, match="is no run folder: it holds no finished run"):
        check_finished(RunFolder(tmp_path / "new"))
    (tmp_path / "run.json").write_text("{}")
    with pytest.raises(RunError, match=r"unfinished run. Finish it with `noisewise train --resume --out"):
        check_finished(RunFolder(tmp_path))


def test_a_folder_of_runs_says_which_there_are(tmp_path):
    for number in range(1, 15):
        (tmp_path / f"run-{number:02d}").mkdir()
        (tmp_path / f"run-{number:02d}" / "run.json").write_text("{}")
    folder = RunFolder(tmp_path)
    with pytest.raises(
        RunError, match=rf"holds 14 runs and is none itself: run-01, .* and 2 more\..*{tmp_path}/run-01"
    ):
        check_finished(folder)
    (tmp_path / "sweep.json").write_text('{"chosen": "run-03"}')
    with pytest.raises(RunError, match=rf"the sweep chose run-03.*{tmp_path}/run-03"):
        check_no_folder_of_runs(folder)
    for damaged in ("{", "[]", '{"chosen": 3}', '{"chosen": "gone"}'):
        (tmp_path / "sweep.json").write_text(damaged)
        with pytest.raises(RunError, match=rf"e\.g\. {tmp_path}/run-01"):
            check_no_folder_of_runs(folder)
    check_no_folder_of_runs(RunFolder(tmp_path / "run-01"))


@pytest.mark.parametrize("command", ["verify", "audit", "suggest", "report", "report --shareable"])
def test_commands_that_are_given_a_folder_of_runs(command, tmp_path, monkeypatch, capsys):
    (tmp_path / "sweep/run-01").mkdir(parents=True)
    (tmp_path / "sweep/run-01/run.json").write_text("{}")
    outcome = command_line(monkeypatch, capsys, tmp_path, columns=120)(*command.split(), "sweep")
    assert outcome.code == 2
    assert "sweep holds 1 run and is none itself: run-01. Name one of them, e.g. sweep/run-01" in outcome.words

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


def test_a_folder_of_something_else_is_not_written_into(tmp_path):
    for name in ("README.md", "data.csv", "model.py"):
        (tmp_path / name).write_text("mine")
    with pytest.raises(
        RunError, match=r"holds something else than a run \(README.md, data.csv, model.py\): choose another --out"
    ):
        check_out(RunFolder(tmp_path), resume=False)
    (tmp_path / "src").mkdir()
    with pytest.raises(RunError, match=r"\(README.md, data.csv, model.py and 1 more\)"):
        check_out(RunFolder(tmp_path), resume=False)


@pytest.mark.parametrize(
    ("name", "content"),
    [("config.toml", '[tool]\nname = "mine"'), ("config.toml", "no TOML ["), ("schema.json", '{"type": "object"}'),
     ("schema.json", "3"), ("config.toml", None), ("summary.json", '{"format": 1}'), (".env", "SECRET=1")],
)  # fmt: skip
def test_files_of_others_with_names_of_ours(name, content, tmp_path):
    if content is None:
        (tmp_path / name).mkdir()
    else:
        (tmp_path / name).write_text(content)
    with pytest.raises(RunError, match="holds something else"):
        check_out(RunFolder(tmp_path), resume=False)


def test_what_a_run_left_that_broke_off_before_its_first_checkpoint(finished, tmp_path):
    folder = RunFolder(tmp_path / "new")
    folder.create()
    (folder.sensitive / "phase-1").mkdir()
    for path in (folder.lock, folder.centre, tmp_path / "new/.config.toml.tmp", tmp_path / "new/.gitkeep"):
        path.touch()
    folder.config.write_bytes(finished.config.read_bytes())
    assert check_out(folder, resume=False) is None


@pytest.mark.parametrize("name", ["schema.json", "people.schema.toml"])
def test_a_schema_that_was_released_before_training_may_lie_there(name, tmp_path, monkeypatch, capsys):
    (tmp_path / "people.csv").write_text("age,ill\n" + "".join(f"{age},{'ny'[age % 2]}\n" for age in range(20, 60)))
    (tmp_path / "run").mkdir()
    noisewise = command_line(monkeypatch, capsys, tmp_path, columns=120)
    how = ("--label", "ill=n,y", "--column", "age=0:120", "--header-only")
    assert noisewise("schema", "people.csv", *how, "--out", f"run/{name}").code == 0
    assert check_out(RunFolder(tmp_path / "run"), resume=False) is None


def test_train_changes_nothing_in_a_folder_of_something_else(tmp_path, monkeypatch, capsys):
    (tmp_path / "project").mkdir()
    (tmp_path / "project/README.md").write_text("mine")
    noisewise = command_line(monkeypatch, capsys, tmp_path, columns=120)
    refused = noisewise("train", "--data", "digits", "--epsilon", "3", "--out", "project")
    assert refused.code == 2
    assert "project holds something else than a run (README.md): choose another --out" in refused.words
    assert [path.name for path in (tmp_path / "project").iterdir()] == ["README.md"]


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

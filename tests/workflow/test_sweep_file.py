"""The file of a sweep: combinations, single runs, and what is refused before anything heavy is loaded."""

from dataclasses import fields

import pytest

from noisewise.errors import ConfigError, RunError
from noisewise.workflow.config import Config
from noisewise.workflow.sweep_file import EXAMPLE, SETTINGS, Choose, Sweep, check_same, command, said

TRAIN = '[train]\ndata = "digits"\nepsilon = 3\n'


def test_the_names_are_those_of_a_config():
    assert list(SETTINGS) == [field.name for field in fields(Config)]


def test_every_combination_is_tried_once_the_last_setting_fastest():
    sweep = Sweep.from_toml(EXAMPLE)
    assert [(one["lr"], one["bound"]) for one in sweep.tried] == [
        (0.25, 0.1), (0.25, 0.5), (0.5, 0.1), (0.5, 0.5), (1.0, 0.1), (1.0, 0.5),
    ]  # fmt: skip
    assert sweep.runs[0] == {"data": "digits", "epsilon": 3, "lr": 0.25, "bound": 0.1}
    assert (sweep.stand_in, sweep.choose) == (None, None)


def test_single_runs_and_lists_of_repairs():
    sweep = Sweep.from_toml(f'{TRAIN}[[runs]]\nlr = 0.5\n[[runs]]\nrepairs = ["lora:rank=2"]\nepochs = 2\n')
    assert sweep.tried == ({"lr": 0.5}, {"repairs": ["lora:rank=2"], "epochs": 2})


def test_a_stand_in_takes_the_place_of_the_data_in_the_runs_only():
    sweep = Sweep.from_toml('[train]\ndata = "mine"\nepsilon = 1\n[sweep]\nlr = [1]\n[stand_in]\ndata = "digits"\n')
    assert sweep.runs[0]["data"] == "digits"
    assert sweep.shared["data"] == "mine"


GRID = f"{TRAIN}[sweep]\nlr = [1]\n"
WRONG = {
    "lr = ": "not valid TOML",
    "lr = 1": "unknown entries lr",
    TRAIN: "one of them",
    f"{TRAIN}[sweep]\nlr = [1]\n[[runs]]\nlr = 1": "one of them",
    f"{TRAIN}[sweep]": "tries nothing",
    f"{TRAIN}[sweep]\nlr = 1": "must be a list",
    f"{TRAIN}[sweep]\nlr = []": "must be a list",
    f"{TRAIN}[sweep]\nlearning_rate = [1]": "unknown settings learning_rate",
    f"{TRAIN}[sweep]\nlr = [1, 1]": "lr=1 occurs twice",
    f"{TRAIN}[sweep]\nepsilon = [1, 2]": "stands in \\[train\\]",
    f"{TRAIN}[sweep]\nlr = [-1]": "lr=-1",
    f'{TRAIN}[sweep]\nmodel = ["resnet"]': "Known models",
    f'{TRAIN}recipe = "scattering-linear"\n[sweep]\nmodel = ["mlp"]': "a model of its own",
    f"{TRAIN}[sweep]\nnoise_multiplier = [1]": "one follows from the other",
    f"{TRAIN}steps = 3\nepochs = 2\n[sweep]\nlr = [1]": "epochs and steps",
    f"{TRAIN}[sweep]\nlr = {list(range(1, 41))}\nsteps = {list(range(1, 41))}": "1,600 combinations",
    f"{TRAIN}[[runs]]": "at least one",
    "train = 3\n[sweep]\nlr = [1]": "must be a table",
    '[train]\ndata = "digits"\n[sweep]\nlr = [1]': "how private",
    "[train]\nepsilon = 1\n[sweep]\nlr = [1]": "which data",
    '[train]\nepsilon = 1\ndata = "nowhere.csv"\n[sweep]\nlr = [1]': "neither a data set",
    '[train]\nepsilon = 1\ndata = "here.csv"\n[sweep]\nlr = [1]': "without a schema",
    '[train]\nepsilon = 1\ndata = "here.csv"\nschema = "no.toml"\n[sweep]\nlr = [1]': "no such file",
    f"{GRID}[choose]\nepsilon = 1": "holds `by`",
    f'{GRID}[choose]\nby = "luck"': "must be 'valid'",
    f'{GRID}[choose]\nby = "noised-valid"': "may cost together",
    f'{GRID}[choose]\nby = "noised-valid"\nepsilon = 0': "may cost together",
    f'{GRID}[choose]\nby = "valid"\nepsilon = 1': "exact scores take no noise",
}


@pytest.mark.parametrize("text", WRONG)
def test_wrong_files_are_refused(text, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "here.csv").write_text("a,b\n1,2\n")
    with pytest.raises(ConfigError, match=WRONG[text]):
        Sweep.from_toml(text)


def test_files_that_cannot_be_read_are_named(tmp_path):
    with pytest.raises(ConfigError, match="cannot be read"):
        Sweep.read(tmp_path / "nowhere.toml")


def test_a_folder_belongs_to_one_sweep(tmp_path):
    one, other = Sweep.from_toml(EXAMPLE), Sweep.from_toml(GRID)
    check_same(one, tmp_path / "new")
    (tmp_path / "sweep.toml").write_text(one.text)
    check_same(one, tmp_path)
    with pytest.raises(RunError, match="another file"):
        check_same(other, tmp_path)
    with pytest.raises(RunError, match="is a file"):
        check_same(one, tmp_path / "sweep.toml")
    (tmp_path / "taken").mkdir()
    (tmp_path / "taken" / "thing").touch()
    with pytest.raises(RunError, match="something else"):
        check_same(one, tmp_path / "taken")


def test_settings_in_words_and_as_a_command():
    settings = {"data": "a.csv", "schema": "a.toml", "epsilon": 1.0, "lr": 0.5, "secure": True, "public": False,
                "repairs": ["lora:rank=2"]}  # fmt: skip
    assert said({"lr": 0.5, "secure": True}) == "lr=0.5 secure=true"
    assert command(settings, "runs/x") == (
        "noisewise train --data a.csv --schema a.toml --epsilon 1.0 --set lr=0.5 --set secure=true --repair 'lora:rank=2' "
        "--out runs/x"
    )
    assert Choose("valid").epsilon is None

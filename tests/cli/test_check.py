"""check: exit codes, tables and remedies for a user's own model."""

import sys

import pytest

from helpers.users_file import FILE
from noisewise import cli


@pytest.fixture
def check(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "120")
    (tmp_path / "mine.py").write_text(FILE)
    (tmp_path / "lone.py").write_text("from torch import nn\nmodel = nn.Linear(2, 2)\n")

    def call(*arguments):
        monkeypatch.setattr(sys, "argv", ["noisewise", "check", *arguments])
        with pytest.raises(SystemExit) as stopped:
            cli.main()
        captured = capsys.readouterr()
        return int(stopped.value.code or 0), " ".join((captured.out + captured.err).split())

    return call


@pytest.mark.parametrize(
    "arguments",
    [
        ("mine.py:model",),
        ("mine.py:model", "--example", "mine.py:numbers"),
        ("mine.py:model", "--example", "mine.py:words", "--loss", "mine.py:loss_fn"),
        ("mine.py:model", "--shape", "5", "--outputs", "3"),
        ("mine.py:sized", "--shape", "5", "--outputs", "3"),
        ("mine.py:sized", "--outputs", "3"),
    ],
)
def test_a_good_model_gives_exit_code_0(check, arguments):
    code, words = check(*arguments)
    assert code == 0, words
    assert "verdict can be trained privately" in words
    assert "0.weight 8 x 5 proven row by row ghost -" in words
    assert "2.bias 3 proven row by row ghost -" in words
    assert "times as long as a plain one" in words


def test_a_function_of_both_is_given_one_output_for_targets_that_are_real_numbers(check):
    code, words = check("mine.py:sized", "--example", "mine.py:measured")
    assert code == 0, words
    assert "2.bias 1 proven row by row ghost -" in words
    assert check("mine.py:sized", "--shape", "5", "--outputs", "1")[0] == 0


def test_a_refused_model_gives_exit_code_3_and_what_to_change(check):
    code, words = check("mine.py:build")
    assert code == 3
    assert "verdict cannot be trained privately" in words
    assert "0.weight 8 x 5 refused - -" in words
    assert "batchnorm_to_groupnorm(model)" in words


def test_without_a_proof_the_table_says_so_and_why(check):
    code, words = check("mine.py:Flipped")
    assert code == 0, words
    assert "linear.weight 3 x 5 each unit alone booked -" in words
    assert "scale 1 each unit alone dense 4 B" in words
    assert "not faster aten::flip" in words


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("nowhere.py:model",), "there is no file 'nowhere.py'"),
        (("mine.py:modle",), "mine.py has no 'modle'"),
        (("mine.py",), "say which object of which file"),
        (("mine.py:batch",), "is a tuple: must be a function that makes a torch.nn.Module"),
        (("mine.py:numbers",), "is tuple: must be an nn.Module"),
        (("mine.py:fails",), "'mine.py:fails' failed with OSError: no weights (mine.py, line"),
        (("mine.py:takes",), "must be a function of nothing, or of (shape, outputs)"),
        (("lone.py:model",), "name one with --example FILE.py:NAME, or say the sizes"),
        (("mine.py:sized",), "how many classes are there? Say so, e.g. --outputs 10"),
        (
            ("mine.py:sized", "--example", "mine.py:words", "--outputs", "3"),
            "is no pair (x, y) of tensors that shows them",
        ),
        (("mine.py:sized", "--shape", "5"), "--shape 5 without --outputs: how many classes"),
        (("mine.py:sized", "--shape", "5x5", "--outputs", "3"), "--shape '5x5': must be the sizes of one input"),
        (("mine.py:sized", "--shape", "0", "--outputs", "3"), "whole numbers above 0"),
        (("mine.py:sized", "--shape", "5", "--outputs", "3", "--example", "mine.py:numbers"), "Leave one of them out"),
        (("mine.py:model", "--outputs", "3"), "'mine.py:model' needs no number of outputs"),
        (("mine.py:model", "--example", "mine.py:nothing"), "mine.py has no 'nothing'"),
        (("mine.py:model", "--example", "mine.py:words"), "is not a pair (x, y), so there is no default loss"),
        (("mine.py:model", "--loss", "mine.py:batch"), "is tuple: must be a function of (model, batch)"),
    ],
)
def test_wrong_input_gives_exit_code_2_and_the_remedy(check, arguments, message):
    code, words = check(*arguments)
    assert code == 2, words
    assert message in words

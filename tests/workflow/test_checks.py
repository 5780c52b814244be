"""Settings that can mean nothing are refused before anything heavy is loaded."""

import subprocess
import sys

import pytest

from noisewise import models
from noisewise.errors import ConfigError
from noisewise.workflow import choices
from noisewise.workflow.checks import check_settings


def test_the_light_lists_are_the_real_ones():
    assert tuple(models.MODELS) == choices.MODEL_NAMES


def test_nothing_given_is_nothing_wrong():
    assert check_settings({}) is None
    assert check_settings({"epsilon": None, "model": None, "repairs": ()}) is None
    assert (
        check_settings({"epsilon": 3.0, "model": "mine.py:net", "repairs": ("mine.py:repair", "lora:rank=2")}) is None
    )


@pytest.mark.parametrize(
    ("name", "value", "words"),
    [
        ("epsilon", 0.0, "above 0"), ("epsilon", float("nan"), "above 0"), ("epsilon", float("inf"), "above 0"),
        ("epochs", -1.0, "above 0"), ("lr", 0.0, "above 0"), ("twin_lr", -0.1, "above 0"), ("bound", 0.0, "above 0"),
        ("screen", -1.0, "above 0"), ("batch_size", 0, ">= 1"), ("steps", 0, ">= 1"), ("microbatch", 0, ">= 1"),
        ("valid", -1, ">= 0"), ("seed", -1, ">= 0"), ("seeds", 0, ">= 1"), ("clip", "oval", "one of flat"),
        ("optimizer", "lbfgs", "one of sgd"), ("sampler", "dice", "one of poisson"), ("adjacency", "near", "one of"),
        ("engine", "steam", "one of auto"), ("noise_multiplier", -1.0, ">= 0"), ("momentum", 1.0, r"\[0, 1\)"),
        ("ema", 1.0, r"\(0, 1\)"), ("delta", 1.0, "delta=1.0"), ("model", "nope", "Known models: cnn"),
        ("repairs", ("nope",), "Known repairs: global-clipping"),
    ],
)  # fmt: skip
def test_each_setting_is_checked(name, value, words):
    with pytest.raises(ConfigError, match=words):
        check_settings({name: value})


def test_a_screen_belongs_to_global_clipping():
    assert check_settings({"clip": "global", "screen": 3.0}) is None
    with pytest.raises(ConfigError, match="only global clipping"):
        check_settings({"clip": "flat", "screen": 3.0})


def test_checking_imports_nothing_heavy():
    code = (
        "import sys; from noisewise.workflow.checks import check_settings; check_settings({'epsilon': 3.0, 'clip': 'flat'});"
        "print(sorted({'torch', 'scipy', 'pandas', 'dp_accounting'} & set(sys.modules)))"
    )
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert found.strip() == "[]"


@pytest.mark.parametrize(
    ("setting", "words"),
    [
        ({"lr": "a"}, "lr='a': must be a number, e.g. "),
        ({"momentum": "a"}, "momentum='a': must be a number"),
        ({"ema": True}, "ema=True: must be a number"),
        ({"epsilon": "3"}, "epsilon='3': must be a number"),
        ({"clip": 3}, "clip=3: must be a text, e.g. 'flat'"),
        ({"repairs": [3]}, "repairs=\\[3\\]: must be a list of texts"),
        ({"repairs": "moving-average"}, "repairs='moving-average': must be a list of texts"),
    ],
)
def test_settings_of_another_kind_are_refused(setting, words):
    """A file of a sweep may hold anything."""
    with pytest.raises(ConfigError, match=words):
        check_settings(setting)

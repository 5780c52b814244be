"""Models as they are written on the command line."""

import pytest
import torch
from torch import nn

from noisewise.errors import ConfigError
from noisewise.models import build
from noisewise.workflow.model_specs import build_model, named, options


def same(one: nn.Module, other: nn.Module) -> bool:
    first, second = one.state_dict(), other.state_dict()
    return first.keys() == second.keys() and all(torch.equal(first[name], second[name]) for name in first)


def test_a_name_alone_is_the_model():
    assert same(build_model("mlp", (5,), 3, 1), build("mlp", (5,), 3, 1))


def test_settings_reach_the_model():
    made = build_model("mlp:widths=7/4,activation=tanh", (5,), 3, 1)
    assert same(made, build("mlp", (5,), 3, 1, widths=(7, 4), activation="tanh"))
    assert options("table", "knots=2,hidden=3") == {"knots": 2, "hidden": 3}
    assert same(
        build_model(named("table", {"knots": 2, "hidden": 3}), (5,), 2, 0),
        build("table", (5,), 2, 0, knots=2, hidden=3),
    )


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("mlp:width=7", "one of widths, activation"), ("mlp:widths", "KEY=VALUE"), ("mlp:widths=wide", "widths=wide"),
        ("nope", "Known models"), ("logistic:depth=3", "one of none"),
    ],
)  # fmt: skip
def test_mistakes_are_named(text, words):
    with pytest.raises(ConfigError, match=words):
        build_model(text, (5,), 3, 0)


def test_a_model_of_ones_own_file(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine.py").write_text(
        "import torch\n"
        "def net(shape, outputs): return torch.nn.Linear(shape[0], outputs)\n"
        "def fixed(): return torch.nn.Linear(5, 3)\n"
        "made = torch.nn.Linear(5, 3)\n"
    )
    for name in ("net", "fixed", "made"):
        assert build_model(f"mine.py:{name}", (5,), 3, 0).weight.shape == (3, 5)
    assert same(build_model("mine.py:net", (5,), 3, 4), build_model("mine.py:net", (5,), 3, 4))
    assert not same(build_model("mine.py:net", (5,), 3, 4), build_model("mine.py:net", (5,), 3, 5))
    copies = [build_model("mine.py:made", (5,), 3, 0) for _ in range(2)]
    assert copies[0] is not copies[1]

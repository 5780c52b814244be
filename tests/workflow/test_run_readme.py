"""A run folder says how its model is used; the lines it shows run, in plain torch."""

import re

import pytest
import torch
from torch import nn

from noisewise import models
from noisewise.repairs import LoRA
from noisewise.workflow.config import plan
from noisewise.workflow.execution import execute
from noisewise.workflow.opened import open_run
from noisewise.workflow.run_readme import layers


@pytest.fixture(scope="module", params=["mlp", "cnn"])
def run(request, tmp_path_factory):
    wanted = plan(data="digits", noise_multiplier=1.0, steps=2, batch_size=64, model=request.param, twin=False)
    return execute(wanted, tmp_path_factory.mktemp("run") / "run", progress=False)


def test_three_lines_of_plain_torch_load_the_model(run, monkeypatch):
    text = run.readme.read_text()
    lines = re.search(r"```python\n(.*?)```", text, re.S).group(1)
    assert lines.count("\n") == 3
    assert "noisewise" not in lines
    monkeypatch.chdir(run.path)
    names: dict = {}
    exec(lines, names)
    opened = open_run(run.path)
    x = opened.data.test.x[:5]
    assert torch.equal(names["model"](x), opened.model(x))


@pytest.mark.parametrize(
    ("model", "repairs"),
    [
        ("vit:patch=4,width=16,depth=1,heads=2", ()),
        ("mlp:widths=12", ("lora:rank=2,alpha=3",)),
        ("own.py:made", ("lora:rank=2",)),
    ],
)
def test_a_model_of_other_layers_is_built_by_its_name_or_by_its_owner(model, repairs, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "own.py").write_text(
        "import torch\ndef made(shape, outputs):\n"
        "    return torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(64, outputs))\n"
    )
    wanted = plan(data="digits", noise_multiplier=1.0, steps=2, batch_size=64, model=model, repairs=repairs, twin=False)
    run = execute(wanted, tmp_path / "run", progress=False)
    text = run.readme.read_text()
    assert ("YourModel()" in text) == model.startswith("own.py")
    assert "In plain PyTorch" not in text
    monkeypatch.chdir(run.path)
    own = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(64, 10))
    names: dict = {"YourModel": lambda: own}
    exec(re.search(r"```python\n(.*?)```", text, re.S).group(1), names)
    monkeypatch.chdir(tmp_path)
    opened = open_run(run.path)
    x = opened.data.test.x[:5]
    assert torch.equal(names["model"].eval()(x), opened.model(x))


def test_it_says_what_is_promised_and_what_is_secret(run):
    text = run.readme.read_text()
    assert "sensitive/`: **never publish" in text
    assert "delta 1e-05" in text
    assert "unit: one row" in text
    assert "[rows, 1, 8, 8]" in text


@pytest.mark.parametrize(
    "name", ["mlp", "logistic", "cnn", "lenet", "mnist-cnn", "cifar-net", "dp-cnn", "dp-cnn-s", "resnet18"]
)
def test_layers_are_written_such_that_the_weights_fit(name):
    shape = (3, 32, 32)
    model = models.build(name, shape, 4, 0)
    text = layers(model)
    if text is None:
        assert name == "resnet18"
        return
    again = eval(text, {"torch": torch})
    again.load_state_dict(model.state_dict())
    x = torch.randn(2, *shape)
    assert torch.equal(again(x), model(x))


def test_modules_of_ones_own_are_not_made_up():
    class Own(nn.Linear):
        pass

    assert layers(Own(2, 2)) is None
    assert layers(nn.Sequential(nn.Linear(2, 2), Own(2, 2))) is None


def test_additions_within_a_module_of_ours_are_no_plain_layers() -> None:
    model = models.build("table", (3,), 2, 0, knots=1, hidden=4)
    assert layers(model) is not None
    changed, _ = LoRA(rank=2).added(model)
    assert layers(changed) is None
    assert "9, 4, 2" in repr(changed)

"""docs/layers.md says what is so: every situation is there, and noisewise is right or refuses as written."""

import importlib.util
from pathlib import Path

import pytest

PROJECT = Path(__file__).parents[2]
SPEC = importlib.util.spec_from_file_location("layers_benchmark", PROJECT / "benchmarks" / "layers.py")
layers = importlib.util.module_from_spec(SPEC)
SPEC.loader.exec_module(layers)

REFUSED = {"checkpoint, reentrant", "BatchNorm, training mode", "in-batch negatives"}
COLUMNS = ("situation", "noisewise", "engine", "hooks", "ghost")


def rows():
    """Rows of the table by situation."""
    lines = (PROJECT / "docs" / "layers.md").read_text().splitlines()
    cells = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines if line.startswith("| ")][1:]
    return {row[0]: dict(zip(COLUMNS, row, strict=True)) for row in cells}


def test_every_situation_has_a_row():
    assert list(rows()) == list(layers.SITUATIONS)


@pytest.mark.filterwarnings("ignore:Using padding='same' with even kernel:UserWarning")
@pytest.mark.filterwarnings("ignore:None of the inputs have requires_grad=True:UserWarning")
@pytest.mark.parametrize("name", layers.SITUATIONS)
def test_noisewise_is_right_or_refuses_as_the_table_says(name):
    build = layers.SITUATIONS[name]
    found = layers.verdict(layers.ours, build)
    assert found.startswith("refused (") if name in REFUSED else found == "right"
    assert found == rows()[name]["noisewise"]
    assert layers.engines(build) == rows()[name]["engine"]


def test_a_wrong_sum_would_be_called_wrong():
    def half(situation, bound):
        return {name: value / 2 for name, value in layers.ours(situation, bound).items()}

    def double(situation, bound):
        return {name: 2 * value for name, value in layers.ours(situation, bound).items()}

    assert layers.verdict(half, layers.SITUATIONS["Linear"]) == "**wrong** (50% off)"
    assert layers.verdict(double, layers.SITUATIONS["Linear"]) == "**wrong** (100% off), lone unit 2.00 C"


@pytest.mark.filterwarnings("ignore:Full backward hook is firing when gradients are computed:UserWarning")
def test_opacus_agrees_where_the_table_says_so():
    pytest.importorskip("opacus")
    for method in ("hooks", "ghost"):
        assert (
            layers.verdict(getattr(layers, method), layers.SITUATIONS["Conv2d"]) == rows()["Conv2d"][method] == "right"
        )

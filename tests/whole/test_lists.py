"""One list per kind of thing: the library, the command line and docs/lists.md offer what is in it, and nothing else."""

import importlib.util
import inspect
import re
import typing
from dataclasses import replace
from pathlib import Path

import pytest
import torch.nn.functional as F
import typer

import noisewise.data
from helpers.oracles import rules
from noisewise import adaptive, clipping, models, recipes, repairs, sampling
from noisewise.accounting import ADJACENCIES
from noisewise.audits import AUDITS, RESULTS
from noisewise.cli import app
from noisewise.data.catalog import CATALOG
from noisewise.persample.layers import RULES
from noisewise.runtime import Engine
from noisewise.testing import check_clip
from noisewise.workflow.choices import CLIPS, OPTIMIZERS

PROJECT = Path(__file__).parents[2]


def benchmark(name):
    """A script beside the package, as a module."""
    spec = importlib.util.spec_from_file_location(f"{name}_benchmark", PROJECT / "benchmarks" / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


pages, layers = benchmark("pages"), benchmark("layers")
FUNCTIONS = {command.callback.__name__: command.callback for command in app.registered_commands}


def choices(command, name):
    """What an option of a command accepts."""
    hint = typing.get_type_hints(FUNCTIONS[command])[name]
    literals = [kind for kind in (hint, *typing.get_args(hint)) if typing.get_origin(kind) is typing.Literal]
    assert len(literals) == 1
    return list(typing.get_args(literals[0]))


def help_of(command, name):
    """The words of an option."""
    options = typer.main.get_command(app).commands[command].params
    return next(option.help for option in options if option.name == name)


@pytest.mark.parametrize(
    ("command", "name", "library"),
    [
        ("train", "sampler", sampling.SAMPLERS),
        ("epsilon", "sampler", sampling.SAMPLERS),
        ("calibrate", "sampler", sampling.SAMPLERS),
        ("train", "optimizer", OPTIMIZERS),
        ("train", "engine", typing.get_args(Engine)),
        ("train", "adjacency", ADJACENCIES),
    ],
)
def test_the_command_line_offers_what_the_library_has(command, name, library):
    assert choices(command, name) == list(library)


def test_the_help_names_every_rule():
    assert all(kind in help_of("train", "clip") for kind in adaptive.KINDS)
    assert "FILE.py:NAME" in help_of("train", "clip")


def test_the_help_says_where_data_sets_models_and_repairs_are_listed():
    assert "(noisewise datasets)" in help_of("train", "data")
    assert "(noisewise models)" in help_of("train", "model")
    assert "(noisewise repairs)" in help_of("train", "repair")
    assert "(noisewise recipes)" in help_of("train", "recipe")


def test_configs_know_every_rule():
    assert list(adaptive.KINDS) == list(CLIPS)


# ------------------------------------------------------------------------------------------------------------ rules


def members(module, protocol):
    """Classes of a module that have what a protocol asks for, and are meant to be used themselves."""
    classes = [kind for kind in vars(module).values() if inspect.isclass(kind) and kind.__module__ == module.__name__]
    return {kind for kind in classes if hasattr(kind, protocol) and "kind" in vars(kind)}


def test_no_rule_is_missing_from_the_list():
    assert members(clipping, "factors") | members(adaptive, "factors") == set(adaptive.RULES.values())
    kinds = [rule.kind for rule in adaptive.RULES.values()]
    assert len(set(kinds)) == len(kinds)


@pytest.mark.parametrize("kind", adaptive.KINDS)
def test_every_rule_is_made_from_settings_and_keeps_its_promise(kind):
    names = ["first.weight", "first.bias", "second.weight"]
    rule = adaptive.rule_for(kind, 0.7, names=names)
    assert type(rule) is adaptive.KINDS[kind]
    assert rule.sensitivity == pytest.approx(0.7)
    check_clip(rule, names)


def test_a_screen_goes_to_the_rules_that_have_one():
    screens = {kind: getattr(adaptive.rule_for(kind, 0.7, 7.0), "screen", None) for kind in adaptive.KINDS}
    assert {kind: screen for kind, screen in screens.items() if screen} == {"global": 7.0, "global-adapt": 7.0}
    assert adaptive.rule_for("global", 0.7) == clipping.Global(0.7)
    assert adaptive.rule_for("global-adapt", 0.7) == adaptive.GlobalAdapt(0.7)


def test_without_names_per_layer_is_flat_for_now():
    assert adaptive.rule_for("per-layer", 0.7) == clipping.Flat(0.7)


def test_oracles_know_every_fixed_rule():
    assert {type(rule) for rule in rules(["name"]).values()} == set(clipping.RULES.values())


# --------------------------------------------------------------------------------------------------------- samplers


def test_no_sampler_is_missing_from_the_list():
    assert members(sampling, "batches") == set(sampling.SAMPLERS.values())


@pytest.mark.parametrize(
    "sampler", [sampling.Poisson(20, 5), sampling.Poisson(20, 5, 9), sampling.FullBatch(20), sampling.Shuffle(20, 5)]
)
def test_samplers_are_written_and_read(sampler):
    raw = sampling.to_dict(sampler)
    assert sampling.from_dict(raw) == sampler
    assert list(raw)[:3] == ["kind", "n", "batch_size"]
    assert None not in raw.values()
    assert sampler.words


# ------------------------------------------------------------------------------------- models, data, repairs, audits


def test_no_model_is_missing_from_the_list():
    assert set(models.MODELS) == {function.__name__.replace("_", "-") for function in models.MODELS.values()}
    assert {function.__name__ for function in models.MODELS.values()} <= set(models.__all__)


def test_data_sets_are_loaded_by_the_names_of_the_catalog():
    assert list(noisewise.data.DATASETS) == list(CATALOG)
    assert all(callable(getattr(noisewise.data, name)) for name in CATALOG)


def test_no_repair_is_missing_from_the_list():
    kinds = {kind for kind in vars(repairs).values() if inspect.isclass(kind) and issubclass(kind, repairs.Repair)}
    assert kinds - {repairs.Repair} == set(repairs.REPAIRS.values())
    assert all(name == repair.name for name, repair in repairs.REPAIRS.items())


def test_no_recipe_is_missing_from_the_list():
    kinds = {kind for kind in vars(recipes).values() if inspect.isclass(kind) and issubclass(kind, recipes.NamedRecipe)}
    assert kinds - {recipes.NamedRecipe} == set(recipes.RECIPES.values())


def test_audits_answer_with_results_that_can_be_read():
    assert set(AUDITS) <= set(RESULTS)


# ------------------------------------------------------------------------------------------------------- ghost rules


def situations(function):
    """Rows of docs/layers.md that begin with the layer of a function: `InstanceNorm2d, affine` for `instance_norm`."""
    layer = function.__name__.replace("_", "")
    return [name for name in layers.SITUATIONS if re.match(rf"{layer}(\dd)?\b", name, re.IGNORECASE)]


@pytest.mark.parametrize("function", RULES, ids=lambda function: function.__name__)
def test_every_ghost_rule_is_on_the_page_of_layers_and_used_there(function, monkeypatch):
    rows = [line.split(" | ") for line in (PROJECT / "docs" / "layers.md").read_text().splitlines()]
    shown = {row[0].removeprefix("| "): row[1:3] for row in rows}
    names = [name for name in situations(function) if shown[name] == ["right", "ghost"]]
    assert names, "no row of docs/layers.md, and no case of test_layers_table.py, has it"
    rule, calls = RULES[function], []

    def gradients(*args):
        calls.append(function.__name__)
        return rule.gradients(*args)

    monkeypatch.setitem(RULES, function, replace(rule, gradients=gradients))
    assert layers.verdict(layers.ours, layers.SITUATIONS[names[0]]) == "right"
    assert calls


def test_a_rule_that_no_page_names_would_be_seen():
    assert situations(F.bilinear) == []
    assert situations(F.embedding) == ["Embedding", "Embedding, padding_idx"]


# ------------------------------------------------------------------------------------------------------------- pages


def test_the_page_of_lists_is_what_there_is():
    """`python benchmarks/pages.py` writes it."""
    assert pages.LISTS.read_text() == pages.lists()


def test_the_table_of_steps_on_a_gpu_is_that_of_its_results():
    assert pages.GPU_TABLE.findall(pages.README.read_text()) == [pages.gpu_table()]
    assert pages.TIMES_TABLE.findall(pages.README.read_text()) == [pages.times_table()]


def test_the_table_of_accuracies_is_that_of_its_results(monkeypatch):
    monkeypatch.syspath_prepend(Path(pages.__file__).parent)
    assert pages.ACCURACY_TABLE.findall(pages.README.read_text()) == [pages.accuracy_table()]


@pytest.mark.parametrize(
    "names",
    [adaptive.RULES, sampling.SAMPLERS, models.MODELS, CATALOG, repairs.REPAIRS, recipes.RECIPES, AUDITS],
    ids=lambda names: len(names),
)
def test_every_entry_is_on_the_page(names):
    assert [name for name in names if f"| `{name}`" not in pages.LISTS.read_text()] == []

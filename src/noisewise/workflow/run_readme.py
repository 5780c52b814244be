"""The README of a run folder: what lies there, what is promised, and how to use the model without noisewise."""

from __future__ import annotations

import inspect
from typing import TYPE_CHECKING

from torch import nn

from noisewise.losses import outputs_for
from noisewise.models.table import LONGEST, START, Beside, Hats
from noisewise.runs.folder import RunFolder
from noisewise.runs.summary import read_summary
from noisewise.wording import at_most, promised, without_folders
from noisewise.workflow.model_specs import options
from noisewise.workflow.recipe_specs import parsed, weights_of
from noisewise.workflow.repair_specs import parse

if TYPE_CHECKING:
    from noisewise.recipe import Recipe
    from noisewise.workflow.settings import Config

OWN = (Hats, Beside)  # modules of ours whose code is put beside the weights
PLAIN = (nn.Sequential, nn.Flatten, nn.Linear, nn.Conv2d, nn.GroupNorm, nn.ReLU, nn.Tanh, nn.MaxPool2d, nn.AvgPool2d)


def readme(config: Config, recipe: Recipe, folder: RunFolder) -> str:
    """Markdown."""
    privacy, promise = (summary := read_summary(folder))["privacy"], promised(summary)
    table = recipe.data.train.schema is not None
    lines = [
        f"# {without_folders(config.model)} on {summary['data']['name']}: {promise.badge}",
        "",
        f"Epsilon {at_most(float(privacy['epsilon']))} at delta {at_most(privacy['delta'])} ({privacy['adjacency']}, unit: one "
        f"{privacy['unit']}). {promise.meaning}",
        "",
        "## Use the model",
        "",
        *(["    noisewise predict DIR new.csv --out scores.csv", ""] if table else []),
        *(["    noisewise predict DIR images.npy --out scores.csv", ""] if config.recipe else []),
        "In plain PyTorch:" if layers(recipe.model) else "In Python:",
        "",
        "```python",
        *code(recipe, config),
        "```",
        "",
        f"Inputs are tensors `[rows, {', '.join(map(str, recipe.data.train.x.shape[1:]))}]`"
        + (", made as `schema.json` says." if table else _features(config))
        + _outputs(recipe),
        "",
        "## What lies here",
        "",
        "- `model.safetensors`: the weights. `ledger.json`: every release of private data. `summary.json`, `run.json`,",
        "  `metrics.jsonl`, `mechanism.json`: what was done and spent."
        + (" `model.py`: modules of the model." if own_code(recipe.model) else "")
        + (" `schema.json`: how columns become numbers." if table else "")
        + (" `states.safetensors`: the weights along the run." if folder.states.exists() else ""),
        "- `config.toml`: all settings; `noisewise train --config DIR/config.toml --out NEW` trains anew, with fresh noise.",
        "- `sensitive/`: **never publish this folder.** The twin, audits, what resuming needs.",
    ]
    return "\n".join(lines) + "\n"


def _features(config: Config) -> str:
    """Where inputs come from that are no images any more."""
    if config.recipe is None:
        return "."
    kind, copy = parsed(config.recipe)[0], ', Path("features.safetensors")' if weights_of(config.recipe) else ""
    flat = "" if kind.flat else ", flat=False"
    return (
        f": features of images. `noisewise.recipes.features_of(images, features{flat})` makes them, with the features of "
        f"`_, features = noisewise.workflow.recipe_specs.complete({without_folders(config.recipe)!r}{copy})`."
    )


def _outputs(recipe: Recipe) -> str:
    data = recipe.data.train
    if data.task == "regression":
        return " The output is the predicted number."
    names = ", ".join(data.classes[:12]) + (", ..." if len(data.classes) > 12 else "")
    return f" Outputs are logits of the classes {names}."


def code(recipe: Recipe, config: Config) -> list[str]:
    """A few lines that load the model: of plain torch where its layers are plain, else the module is named."""
    added = [
        f"model, _ = nw.repairs.{parse(text)!r}.added(model)"
        for text in config.repairs
        if text.partition(":")[0] == "lora"
    ]
    load = 'model.load_state_dict(safetensors.torch.load_file("model.safetensors"))'
    if made := layers(recipe.model):
        ours = ", model as ours" if own_code(recipe.model) else ""
        return [f"import torch, safetensors.torch{ours}", f"model = {made}", load]
    if ".py:" in config.model:
        needed = ", noisewise as nw" if added else ", torch"
        made = f"YourModel()  # the module that was trained: {without_folders(config.model)}"
    else:
        needed = ", noisewise as nw"
        made = f"nw.models.build({_built(recipe, config)})"
    return [f"import safetensors.torch{needed}", f"model = {made}", *added, load]


def _built(recipe: Recipe, config: Config) -> str:
    """Arguments that build an untrained model of ours by its name."""
    name, _, rest = config.model.partition(":")
    data = recipe.data.train
    given = [name, tuple(data.x.shape[1:]), outputs_for(data), config.seed]
    return ", ".join([*map(repr, given), *(f"{key}={value!r}" for key, value in options(name, rest).items())])


def own_code(model: nn.Module) -> str | None:
    """A file of plain torch with the modules of ours that a model has; None where it has none, or others too."""
    if layers(model) is None:
        return None
    kinds = [kind for kind in OWN if any(type(module) is kind for module in model.modules())]
    if not kinds:
        return None
    constants = [f"LONGEST, START = {LONGEST!r}, {START!r}"]
    head = [
        '"""Modules of the model in model.safetensors; see README.md."""',
        "",
        "import torch",
        "from torch import Tensor, nn",
    ]
    return "\n".join([*head, "", *constants, "", "", "\n\n".join(inspect.getsource(kind) for kind in kinds)])


def layers(module: nn.Module) -> str | None:
    """Python that builds an untrained module of plain layers; None where there are others.

    >>> layers(nn.Sequential(nn.Flatten(), nn.Linear(3, 2)))
    'torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(3, 2))'
    """
    if type(module) in OWN and all(layers(child) is not None for child in module.children()):
        return f"ours.{type(module).__name__}({module.extra_repr()})"
    if type(module) not in PLAIN:
        return None
    if isinstance(module, nn.Sequential):
        if [name for name, _ in module.named_children()] != [str(place) for place in range(len(module))]:
            return None
        parts = [layers(child) for child in module]
        return None if None in parts else f"torch.nn.Sequential({', '.join(part for part in parts if part)})"
    return f"torch.nn.{type(module).__name__}({_arguments(module)})"


def _arguments(module: nn.Module) -> str:
    match module:
        case nn.Flatten() if (module.start_dim, module.end_dim) == (1, -1):
            return ""
        case nn.Linear():
            return f"{module.in_features}, {module.out_features}" + ("" if module.bias is not None else ", bias=False")
        case nn.ReLU() | nn.Tanh():
            return ""
    return module.extra_repr()

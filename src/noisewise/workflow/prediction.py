"""Predictions for new rows of a table, from a run folder alone: no training data, no twin."""

from __future__ import annotations

import csv
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from torch import Tensor, nn

from noisewise.data.tables.counts import Counts
from noisewise.data.tables.encode import input_parts, rows_at_once
from noisewise.data.tables.kinds import Classes
from noisewise.data.tables.rows import parts_of
from noisewise.data.tables.schema import Schema
from noisewise.errors import ConfigError, RunError
from noisewise.recipe import load_weights
from noisewise.repairs import LoRA
from noisewise.runs.folder import RunFolder
from noisewise.workflow.model_specs import build_model
from noisewise.workflow.opened import stored_schema
from noisewise.workflow.repair_specs import parse
from noisewise.workflow.settings import Config
from noisewise.workflow.taken import check_finished


@dataclass(frozen=True)
class Predictor:
    """The model of a run on a table, how rows become its inputs, and what its outputs are divided by."""

    model: nn.Module
    schema: Schema
    temperature: float = 1.0

    @property
    def names(self) -> tuple[str, ...]:
        """Columns of the predictions."""
        target = self.schema.target
        chances = tuple(f"probability of {name}" for name in target.values) if isinstance(target, Classes) else ()
        return ("prediction", *chances)

    def rows(self, x: Tensor) -> Iterator[list[str]]:
        """Prediction and probabilities of each row, as texts."""
        target = self.schema.target
        with torch.no_grad():
            outputs = self.model(x)
        if not isinstance(target, Classes):
            yield from ([f"{value:.7g}"] for value in target.unscaled(outputs.reshape(len(x)).double()).tolist())
            return
        chances = (outputs.double() / self.temperature).softmax(1)
        for best, row in zip(chances.argmax(1).tolist(), chances.tolist(), strict=True):
            yield [target.values[best], *(f"{chance:.6f}" for chance in row)]


def open_predictor(path: str | os.PathLike[str]) -> Predictor:
    """Model and schema of a finished run on a table, from its folder alone."""
    folder = RunFolder(path)
    check_finished(folder)
    schema = stored_schema(folder)
    if schema is None or not folder.config.exists():
        raise RunError(
            f"{folder.path} is neither a run on a table nor, by a recipe, on images: how a file becomes inputs is not known. "
            "Its README.md says how to use the model in plain PyTorch."
        )
    config = Config.read(folder.config)
    outputs = len(schema.target.values) if isinstance(schema.target, Classes) else 1
    return Predictor(released_model(folder, config, (schema.width,), outputs), schema)


def released_model(folder: RunFolder, config: Config, shape: tuple[int, ...], outputs: int) -> nn.Module:
    """The model of a finished run, in evaluation mode, with what repairs added to it."""
    model = build_model(config.model, shape, outputs, config.seed)
    for repair in map(parse, (text for text in config.repairs if text.startswith("lora"))):
        assert isinstance(repair, LoRA)
        model, _ = repair.added(model)
    return load_weights(model, folder.model).eval()


def predict(
    path: str | os.PathLike[str], source: Path, out: Path, *, keep: Sequence[str] = (), temperature: float = 1.0
) -> Counts:
    """Write a prediction for every row of `source` into the CSV file `out`; gives what was counted on the way.

    `keep`: columns of the source that are copied beside the predictions. `temperature`: what outputs are divided by.
    """
    predictor = replace(open_predictor(path), temperature=temperature)
    if temperature != 1 and not isinstance(predictor.schema.target, Classes):
        raise ConfigError(
            f"temperature {temperature:g} of a run that predicts numbers: it is for classes. Leave it out."
        )
    schema, counts, number = predictor.schema, Counts(), 0
    parts = parts_of(source, schema.separator, rows_at_once(schema), schema.encoding_of(source))
    with out.open("x", encoding="utf-8", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["row", *keep, *predictor.names])
        for part, (x, odd) in zip(parts, input_parts(schema, source, rows=rows_at_once(schema)), strict=True):
            counts += odd
            if lost := [name for name in keep if name not in part.columns]:
                raise ConfigError(f"--keep {lost[0]}: {source.name} has no such column.")
            for place, row in enumerate(predictor.rows(x)):
                number += 1
                writer.writerow([number, *(part.columns[name][place] for name in keep), *row])
    return counts

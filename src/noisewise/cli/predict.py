"""`noisewise predict`: a trained model's predictions for new rows."""

from __future__ import annotations

import json
import math
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from noisewise.cli.shared import Json, example, plain, terminal
from noisewise.data.catalog import CATALOG
from noisewise.errors import ConfigError, DataError
from noisewise.runs.folder import RunFolder
from noisewise.workflow.settings import Config as Settings
from noisewise.workflow.taken import check_finished


@example("noisewise predict runs/clinic new.csv --out scores.csv")
def predict(
    run: Annotated[
        Path, typer.Argument(metavar="DIR", help="Folder of a finished run on a table, or on images with a recipe.")
    ],
    file: Annotated[
        Path,
        typer.Argument(
            metavar="FILE",
            help="CSV or Parquet file with the columns of the schema; images: FILE.npy, a folder, a name.",
        ),
    ],
    out: Annotated[Path, typer.Option(help="CSV file to write.")],
    keep: Annotated[
        list[str] | None, typer.Option(help="Column to copy beside the predictions; may be repeated.", metavar="NAME")
    ] = None,
    temperature: Annotated[
        float, typer.Option(help="Divide outputs by this; noisewise temperature finds it.", metavar="T")
    ] = 1.0,
    as_json: Json = False,
) -> None:
    r"""Predict for new rows or images: the class and the probability of each, or the number.

    Model and schema come from the run folder; no training data is touched and no label column is needed. Values that the
    schema does not know (unseen categories, numbers outside their range, missing ones) are counted and said. Images are real
    numbers \[n, channels, height, width], scaled as those that were trained on.
    """
    if not 0 < temperature < math.inf:
        raise ConfigError(f"--temperature {temperature}: must be a number above 0; above 1 the model is less sure.")
    if out.exists():
        raise ConfigError(f"{out} exists: choose another --out, so that nothing is overwritten.")
    if not out.parent.is_dir():
        raise ConfigError(f"{out.parent} is no folder: --out must lie in one that exists.")
    table = file.suffix.lower() in (".csv", ".tsv", ".txt", ".parquet")
    if not file.exists() and (table or str(file) not in CATALOG):
        raise DataError(f"{file} does not exist. Give the path of a CSV or Parquet file, or of images (FILE.npy).")
    check_finished(RunFolder(run))
    of_images = RunFolder(run).config.exists() and Settings.read(RunFolder(run).config).recipe is not None
    if table and of_images:
        raise DataError(
            f"{run} was trained on images, and {file} is a table: give images, FILE.npy of [n, channels, height, width], a "
            "folder of noisewise.data.disk.save, or a set's name."
        )
    if of_images:
        _images(run, file, out, keep, temperature, as_json)
        return
    from noisewise.workflow.prediction import predict as predicted

    try:
        counts = predicted(run, file, out, keep=keep or [], temperature=temperature)
    except BaseException:
        out.unlink(missing_ok=True)  # half a file would be taken for a whole one
        raise
    if as_json:
        print(json.dumps({"rows": counts.rows, "out": str(out), "counted": asdict(counts)}))
        return
    console = terminal()
    for sentence in counts.sentences():
        console.print(plain(sentence))
    console.print(f"[bold]{counts.rows:,} predictions:[/] {out}", soft_wrap=True)


def _images(run: Path, source: Path, out: Path, keep: list[str] | None, temperature: float, as_json: bool) -> None:
    """The same for images."""
    if keep:
        raise ConfigError(f"--keep {keep[0]}: images have no columns. Leave it out.")
    from noisewise.workflow.image_prediction import predict_images

    try:
        count = predict_images(run, source, out, temperature=temperature)
    except BaseException:
        out.unlink(missing_ok=True)
        raise
    if as_json:
        print(json.dumps({"rows": count, "out": str(out)}))
        return
    terminal().print(f"[bold]{count:,} predictions:[/] {out}", soft_wrap=True)

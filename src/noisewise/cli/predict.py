"""`noisewise predict`: a trained model's predictions for new rows."""

from __future__ import annotations

import json
import math
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from noisewise.cli.shared import Json, example, plain, terminal
from noisewise.errors import ConfigError, DataError
from noisewise.runs.folder import RunFolder
from noisewise.workflow.taken import check_finished


@example("noisewise predict runs/clinic new.csv --out scores.csv")
def predict(
    run: Annotated[Path, typer.Argument(metavar="DIR", help="Folder of a finished run on a table.")],
    file: Annotated[Path, typer.Argument(metavar="FILE", help="CSV or Parquet file with the columns of the schema.")],
    out: Annotated[Path, typer.Option(help="CSV file to write.")],
    keep: Annotated[
        list[str] | None, typer.Option(help="Column to copy beside the predictions; may be repeated.", metavar="NAME")
    ] = None,
    temperature: Annotated[
        float, typer.Option(help="Divide outputs by this; noisewise temperature finds it.", metavar="T")
    ] = 1.0,
    as_json: Json = False,
) -> None:
    """Predict for new rows: the class and the probability of each, or the number.

    Model and schema come from the run folder; no training data is touched and no label column is needed. Values that the
    schema does not know (unseen categories, numbers outside their range, missing ones) are counted and said.
    """
    if not 0 < temperature < math.inf:
        raise ConfigError(f"--temperature {temperature}: must be a number above 0; above 1 the model is less sure.")
    if out.exists():
        raise ConfigError(f"{out} exists: choose another --out, so that nothing is overwritten.")
    if not out.parent.is_dir():
        raise ConfigError(f"{out.parent} is no folder: --out must lie in one that exists.")
    if not file.is_file():
        raise DataError(f"{file} does not exist. Give the path of a CSV or Parquet file.")
    check_finished(RunFolder(run))
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

"""`noisewise temperature`: another confidence for the same decisions."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from noisewise.cli.shared import Json, example, note, terminal
from noisewise.runs.folder import RunFolder
from noisewise.wording import number
from noisewise.workflow.taken import check_finished


@example("noisewise temperature runs/clinic")
def temperature(
    run: Annotated[Path, typer.Argument(metavar="DIR", help="Folder of a finished run that tells classes apart.")],
    as_json: Json = False,
) -> None:
    """Fit a temperature: the number to divide a model's outputs by, so that it is as sure as it is right.

    No decision changes, only how sure the model says it is. It is fitted to held-out rows (the valid part, or the test part
    where there is none), and changes nothing in the run folder. Of public rows it costs nothing; of others it is a number
    about people without noise, and must not be published, nor what is predicted with it.
    """
    check_finished(RunFolder(run))
    from noisewise.workflow.temperature import fitted_temperature

    fitted, part = fitted_temperature(run)
    status = fitted.status
    if as_json:
        about = {"temperature": fitted.value, "part": part, "rows": fitted.n}
        print(json.dumps({**about, "status": status.status, "reason": status.reason}, indent=2))
        return
    console = terminal()
    sure = "less" if fitted.value > 1 else "more"
    console.print(f"[bold]Temperature:[/] {number(fitted.value, 4)}, of {fitted.n:,} rows of the {part} part")
    console.print(f"The model should be {sure} sure than it is; its decisions stay as they are.")
    colour = "green" if status.status == "private" else "bold red"
    console.print(f"[dim]status[/] [{colour}]{status.status}[/]: {status.reason}")
    if part == "test":
        note("the test part is used up by this: audits of calibration on it no longer judge the scaled model.")
    if RunFolder(run).schema.exists():
        line = f"noisewise predict {run} FILE --out scores.csv --temperature {fitted.value:.4g}"
        console.print(f"[dim]Next:[/] {line}", soft_wrap=True)
    else:
        console.print(f"[dim]Next:[/] in Python (model(x) / {fitted.value:.4g}).softmax(1)", soft_wrap=True)

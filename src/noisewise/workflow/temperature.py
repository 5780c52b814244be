"""The temperature of a finished run, fitted to its held-out people."""

from __future__ import annotations

import os

from noisewise.errors import ConfigError, RunError
from noisewise.repairs.temperature import Temperature, temperature
from noisewise.runs.folder import RunFolder
from noisewise.workflow.opened import open_run
from noisewise.workflow.taken import check_finished


def fitted_temperature(path: str | os.PathLike[str]) -> tuple[Temperature, str]:
    """The temperature of a run's model, and the part it is from: held-out rows, or the test part where there are none."""
    folder = RunFolder(path)
    check_finished(folder)
    if not folder.config.exists():
        raise RunError(
            f"{folder.path} was made in Python: fit its temperature there, noisewise.repairs.temperature(model, valid)."
        )
    run = open_run(path)
    if run.data.train.task != "classification":
        raise ConfigError(f"{folder.path} predicts numbers, which have no confidence: a temperature is for classes.")
    part = "valid" if len(run.data.valid) else "test"
    return temperature(run.model, getattr(run.data, part)), part

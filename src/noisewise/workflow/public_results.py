"""What may be measured openly: audits of a released model on rows that are public, without the twin and without secrets."""

from __future__ import annotations

import copy
import os
import warnings
from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np

from noisewise.audits import AUDITS, Result
from noisewise.data.catalog import CATALOG
from noisewise.data.marks import mark_of
from noisewise.errors import ConfigError, DataError, NoisewiseWarning, OddRows, RunError
from noisewise.runs.files import read_json
from noisewise.runs.folder import RunFolder
from noisewise.runs.tensors import read_weights
from noisewise.workflow.config import Config
from noisewise.workflow.opened import stored_schema
from noisewise.workflow.plan import Planned, is_open

ASKED = ("disparity", "calibration")


def _the_same(about: Mapping[str, Any], planned: Planned, config: Config) -> bool:
    """Are these the rows that the run was declared about? Runs of older versions do not say; a named set is what it is."""
    said = about.get("test")
    return config.data in CATALOG if said is None else said == mark_of(planned.data.test).hex()


class Measured(NamedTuple):
    """Results, or why there are none."""

    results: list[Result]
    why_none: str


def public_results(path: str | os.PathLike[str]) -> Measured:
    """Disparity and calibration of a run's released model on its test rows, where these were declared public.

    Guarantee: follows from released files and public rows; nothing under `sensitive/` is read. Rows that are others now, in
    the same place, are not asked: nobody declared them public.
    """
    folder = RunFolder(path)
    if not folder.complete:
        raise RunError(f"{folder.path} holds no finished run: finish it with --resume, or check the name.")
    if not read_json(folder.summary)["data"].get("public"):
        return Measured([], "exact figures of held-out people would expose them; no ledger covers them")
    if not folder.config.exists():
        return Measured([], "the run was made in Python, so its public rows are not known here")
    config = Config.read(folder.config)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", OddRows)
            planned = Planned.of(config, stored_schema(folder), folder.features)
        model = copy.deepcopy(planned.recipe.model).cpu().eval()
    except (DataError, ConfigError, OSError) as error:
        warnings.warn(f"public rows are not shown: {error}", NoisewiseWarning, stacklevel=2)
        return Measured([], "the public rows could not be loaded where this was written")
    if not is_open(planned.data):
        return Measured([], "the test rows were not declared public")
    if not _the_same(read_json(folder.summary)["data"], planned, config):
        return Measured([], "what lies there now are not the rows that were declared public when the model was trained")
    try:
        model.load_state_dict(read_weights(folder.model))
    except RuntimeError as error:
        raise RunError(f"{folder.model} does not hold the weights of this run's model ({error}).") from None
    task = planned.data.test.task
    results = []
    for name in ASKED:
        if task == "classification" or not AUDITS[name].classes:
            generator = np.random.default_rng(config.seed)
            results.append(AUDITS[name].run(model, planned.data.test, twin=None, generator=generator, progress=False))
    return Measured(results, "")

"""Audits: what privacy costs, who pays, and why. One file each: a function `(model, data, ...) -> Result` and its result.

An `AUDIT` in the file says what it needs of a finished run, and the file's name in `ORDER` puts it into the lists below, on
the command line and into the report.

Not in `AUDITS`, since they need more than a finished run: `attribution` (trains four ways), `one_run` (trains with
canaries), `lira` and `rmia` (shadow models), `over_steps` (saved states), `story` (made-up data).
"""

from __future__ import annotations

import os
from importlib import import_module
from pathlib import Path
from typing import Any

from noisewise.attacks.shadows import Shadows, train_shadows
from noisewise.audits.attribution import Attribution, attribution
from noisewise.audits.audit import Audit, results_in
from noisewise.audits.calibration import Calibration, calibration
from noisewise.audits.clipping_bias import ClippingBias, clipping_bias
from noisewise.audits.convergence import Convergence, convergence
from noisewise.audits.disparity import Disparity, disparity
from noisewise.audits.engine_epsilon import EngineEpsilon, engine_epsilon
from noisewise.audits.error_disparity import ErrorDisparity
from noisewise.audits.feature_noise import FeatureNoise, feature_noise
from noisewise.audits.feature_story import FeatureStory, story
from noisewise.audits.landscape import Landscape, landscape
from noisewise.audits.membership import Membership, lira, membership, rmia
from noisewise.audits.ntk import Ntk, ntk
from noisewise.audits.one_run import OneRun, one_run
from noisewise.audits.over_steps import OverSteps, over_steps
from noisewise.audits.reconstruction import Reconstruction, reconstruction
from noisewise.audits.result import Result
from noisewise.audits.robustness import Robustness, robustness
from noisewise.errors import RunError
from noisewise.estimates.estimate import Estimate
from noisewise.runs.files import read_json

__all__ = [
    "AUDITS", "Attribution", "Audit", "Calibration", "ClippingBias", "Convergence", "Disparity", "EngineEpsilon",
    "ErrorDisparity", "Estimate", "FeatureNoise", "FeatureStory", "Landscape", "Membership", "Ntk", "OneRun", "OverSteps",
    "RESULTS", "Reconstruction", "Result", "Robustness", "Shadows", "attribution", "calibration", "clipping_bias",
    "convergence", "disparity", "engine_epsilon", "feature_noise", "landscape", "lira", "membership", "ntk", "one_run",
    "over_steps", "read", "reconstruction", "rmia", "robustness", "story", "train_shadows",
]  # fmt: skip


ORDER = (
    "disparity", "calibration", "robustness", "membership", "clipping_bias", "feature_noise", "landscape", "over_steps", "ntk",
    "convergence", "engine_epsilon", "one_run", "reconstruction", "attribution", "feature_story",
)  # fmt: skip
"""Files of audits, in the order of the report: each has results, and an `AUDIT` where a finished run is all it needs."""

_MODULES = [import_module(f"{__name__}.{name}") for name in ORDER]
AUDITS: dict[str, Audit] = {home.AUDIT.name: home.AUDIT for home in _MODULES if hasattr(home, "AUDIT")}
RESULTS: dict[str, type[Result]] = {
    result.kind: result
    for result in sorted({kind for home in _MODULES for kind in results_in(home)}, key=lambda kind: kind.__name__)
}


def read(path: str | os.PathLike[str]) -> Result:
    """A saved result, of whichever audit."""
    raw: Any = read_json(Path(path))
    kind = raw.get("kind") if isinstance(raw, dict) else None
    if kind not in RESULTS:
        raise RunError(f"{Path(path).name} holds a result of kind {kind!r}: this version knows {', '.join(RESULTS)}.")
    return RESULTS[kind].from_dict(raw)

"""Audits: what privacy costs, who pays, and why. One file each: a function `(model, data, ...) -> Result` and its result.

Not in `AUDITS`, since they need more than a finished run: `attribution` (trains four ways), `one_run` (trains with
canaries), `lira` and `rmia` (shadow models), `over_steps` (saved states), `story` (made-up data).
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from noisewise.attacks.shadows import Shadows, train_shadows
from noisewise.audits.attribution import Attribution, attribution
from noisewise.audits.calibration import Calibration, calibration
from noisewise.audits.clipping_bias import ClippingBias, clipping_bias
from noisewise.audits.convergence import Convergence, convergence
from noisewise.audits.disparity import Disparity, ErrorDisparity, disparity
from noisewise.audits.empirical import EngineEpsilon, OneRun, engine_epsilon, one_run
from noisewise.audits.feature_noise import FeatureNoise, feature_noise
from noisewise.audits.feature_story import FeatureStory, story
from noisewise.audits.landscape import Landscape, OverSteps, landscape, over_steps
from noisewise.audits.membership import Membership, lira, membership, rmia
from noisewise.audits.ntk import Ntk, ntk
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


@dataclass(frozen=True)
class Audit:
    """An audit of a finished run: its function, and what that needs beside model, data and twin.

    needs: members (training rows), mechanism, loss_fn, lr and momentum of SGD, start (the model before training), path
    (models along the run: the start). usual: `noisewise audit DIR`
    asks it unless told otherwise. classes: only for classification. twin: it compares with one.
    model: it looks at the run's model and data, not only at its mechanism.
    """

    run: Callable[..., Result]
    needs: tuple[str, ...] = ()
    usual: bool = False
    classes: bool = False
    twin: bool = True
    model: bool = True

    @property
    def takes(self) -> str:
        """Whether it retrains, and how long it takes."""
        home = vars(sys.modules[self.run.__module__])
        return home.get(f"TAKES_{self.run.__name__.split('_')[0].upper()}", home["TAKES"])

    @property
    def asks(self) -> str:
        """The first line of what its function says of itself."""
        return (self.run.__doc__ or "").strip().splitlines()[0]


AUDITS = {
    "disparity": Audit(disparity, usual=True),
    "calibration": Audit(calibration, usual=True, classes=True),
    "robustness": Audit(robustness, usual=True, classes=True),
    "membership": Audit(membership, ("members",), usual=True, classes=True),
    "clipping-bias": Audit(clipping_bias, ("mechanism", "loss_fn"), usual=True),
    "feature-noise": Audit(feature_noise, ("mechanism", "loss_fn"), usual=True),
    "landscape": Audit(landscape, ("start", "loss_fn")),
    "ntk": Audit(ntk, ("mechanism", "loss_fn")),
    "convergence": Audit(convergence, ("mechanism", "loss_fn", "lr", "momentum", "path"), twin=False),
    "engine-epsilon": Audit(engine_epsilon, ("mechanism", "loss_fn"), twin=False, model=False),
    "reconstruction": Audit(reconstruction, ("mechanism", "loss_fn"), classes=True),
}
RESULTS: dict[str, type[Result]] = {
    result.kind: result
    for result in (
        Attribution, Calibration, ClippingBias, Convergence, Disparity, EngineEpsilon, ErrorDisparity, FeatureNoise,
        FeatureStory, Landscape, Membership, Ntk, OneRun, OverSteps, Reconstruction, Robustness,
    )
}  # fmt: skip


def read(path: str | os.PathLike[str]) -> Result:
    """A saved result, of whichever audit."""
    raw: Any = read_json(Path(path))
    kind = raw.get("kind") if isinstance(raw, dict) else None
    if kind not in RESULTS:
        raise RunError(f"{Path(path).name} holds a result of kind {kind!r}: this version knows {', '.join(RESULTS)}.")
    return RESULTS[kind].from_dict(raw)

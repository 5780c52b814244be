"""Audits: what privacy costs, who pays, and why. One file each: a function `(model, data, ...) -> Result` and its result.

An `AUDIT` in the file says what it needs of a finished run, and the file's name in `ORDER` puts it into the lists below, on
the command line and into the report.

Not in `AUDITS`, since they need more than a finished run: `attribution` (trains four ways), `one_run` (trains with
canaries), `lira` and `rmia` (shadow models), `over_steps` (saved states), `story` (made-up data).
"""

from __future__ import annotations

import inspect
import os
import re
from importlib import import_module
from pathlib import Path
from typing import Any

from noisewise import userfiles
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
from noisewise.errors import ConfigError, RunError
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


PLAIN = re.compile(r"[A-Za-z0-9_-]+")  # names of audits, which are names of files
OWN = "own"  # in a saved result: FILE.py:NAME of an audit that is not the library's


def audit_of(name: str) -> Audit:
    """An audit by its name, or `FILE.py:NAME` of one's own."""
    if ".py:" not in name:
        if name not in AUDITS:
            raise ConfigError(f"audit {name!r}: unknown. Known audits: {', '.join(AUDITS)}; or FILE.py:NAME.")
        return AUDITS[name]
    own = _of_file(name)
    _check_called(own, name)
    return own


def _check_called(own: Audit, name: str) -> None:
    """Can the function of one's own audit be called as audits are? What has no signature is called and seen."""
    called_with = ("twin", "generator", "progress", *own.needs)
    try:
        signature = inspect.signature(own.run, follow_wrapped=False)
    except ValueError:
        return
    try:
        signature.bind(None, None, **dict.fromkeys(called_with))
    except TypeError as error:
        options = ", ".join(f"{option}=" for option in called_with)
        raise ConfigError(
            f"audit {name!r}: its function is called with (model, data, {options}), and does not take that: {error}."
        ) from None


def _of_file(name: str) -> Audit:
    own = userfiles.load(name)
    if not isinstance(own, Audit):
        raise ConfigError(
            f"audit {name!r} is a {type(own).__name__}: must be a noisewise.audits.Audit, e.g. AUDIT = Audit('mine', function, "
            "takes='Seconds.') (CONTRIBUTING.md shows one)."
        )
    if not PLAIN.fullmatch(own.name):
        raise ConfigError(f"audit {name!r} is called {own.name!r}: its name is a file's, of letters, digits, - and _.")
    if own.name in AUDITS:
        raise ConfigError(f"audit {name!r} is called {own.name!r}, as one of the library's is. Give it another name.")
    return own


def kept(result: Result, name: str) -> dict[str, Any]:
    """The JSON form of the result of an audit of that name, for `read`."""
    return result.to_dict() | ({OWN: name} if ".py:" in name else {})


def _own(path: Path, name: str) -> Audit:
    try:
        return _of_file(name)
    except ConfigError as error:
        raise RunError(
            f"{path} is the result of an audit of your own. {error} Go to the folder where it was asked, or delete the result."
        ) from None


def read(path: str | os.PathLike[str]) -> Result:
    """A saved result, of whichever audit; that of one's own needs the audit's file, from the folder where it was asked."""
    raw: Any = read_json(Path(path))
    known = RESULTS
    if isinstance(raw, dict) and OWN in raw:
        home = inspect.getmodule(_own(Path(path), raw.pop(OWN)).run)
        known = RESULTS | ({} if home is None else {kind.kind: kind for kind in results_in(home)})
    kind = raw.get("kind") if isinstance(raw, dict) else None
    if kind not in known:
        raise RunError(f"{Path(path).name} holds a result of kind {kind!r}: this version knows {', '.join(known)}.")
    return known[kind].from_dict(raw)

"""Audits: what privacy costs and who pays. One file each: a function `(model, data, ...) -> Result` and its result."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

from noisewise.audits.disparity import Disparity, disparity
from noisewise.audits.result import Estimate, Result
from noisewise.errors import RunError
from noisewise.runs import read_json

AUDITS: dict[str, Callable[..., Result]] = {"disparity": disparity}
RESULTS: dict[str, type[Result]] = {result.kind: result for result in (Disparity,)}

__all__ = ["AUDITS", "RESULTS", "Disparity", "Estimate", "Result", "disparity", "read"]


def read(path: str | os.PathLike[str]) -> Result:
    """A saved result, of whichever audit."""
    raw: Any = read_json(Path(path))
    kind = raw.get("kind") if isinstance(raw, dict) else None
    if kind not in RESULTS:
        raise RunError(f"{Path(path).name} holds a result of kind {kind!r}: this version knows {', '.join(RESULTS)}.")
    return RESULTS[kind].from_dict(raw)

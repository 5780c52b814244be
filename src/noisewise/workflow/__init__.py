"""From settings to a run and its audits: config (with defaults), plan, execution, opened runs.

Names are loaded when they are first used, so that the command line's help is light.
"""

from __future__ import annotations

import importlib
from typing import Any

_HOMES = {
    "ADAPTIVE_LR": "defaults", "CLIPS": "choices", "Config": "config", "OPTIMIZERS": "choices",
    "PLAN": "config", "Planned": "plan", "Run": "opened", "accuracy": "opened", "audit": "opened", "configure": "config",
    "execute": "execution", "finished": "execution", "open_run": "opened", "prepare": "execution",
}  # fmt: skip

__all__ = [*_HOMES, "twin_weights"]


def twin_weights(folder: Any) -> Any:
    """As `folder.twin_weights`, which is the name from now on."""
    return folder.twin_weights


def __getattr__(name: str) -> Any:
    if name in _HOMES:
        return getattr(importlib.import_module(f"noisewise.workflow.{_HOMES[name]}"), name)
    raise AttributeError(f"module 'noisewise.workflow' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)

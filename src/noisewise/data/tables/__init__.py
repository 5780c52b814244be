"""Tables: what a column may hold, and how rows become numbers.

Names are imported when they are first used: `header` and `declare` need no torch.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from noisewise.data.table_parts import TableSplits as TableSplits
    from noisewise.data.table_parts import load_table as load_table
    from noisewise.data.tables.counts import Counts as Counts
    from noisewise.data.tables.encode import encoded_inputs as encoded_inputs
    from noisewise.data.tables.encode import input_parts as input_parts
    from noisewise.data.tables.propose import Proposal as Proposal
    from noisewise.data.tables.propose import ToConfirm as ToConfirm

_HOMES = {
    "Counts": "tables.counts",
    "Proposal": "tables.propose",
    "TableSplits": "table_parts",
    "ToConfirm": "tables.propose",
    "encoded_inputs": "tables.encode",
    "input_parts": "tables.encode",
    "load_table": "table_parts",
}

__all__ = [*_HOMES]


def __getattr__(name: str) -> Any:
    if name in _HOMES:
        return getattr(importlib.import_module(f"noisewise.data.{_HOMES[name]}"), name)
    raise AttributeError(f"module 'noisewise.data.tables' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)

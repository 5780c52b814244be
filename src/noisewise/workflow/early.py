"""What can be told of repairs, sizes and groups before torch is imported: mistakes are said at once. No torch here.

All of it is checked again where it is used; a mistake that is not seen here is said there.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

from noisewise.accounting.events import check_releases
from noisewise.data.catalog import CATALOG
from noisewise.errors import ConfigError
from noisewise.workflow.written import converted, settings_of

LARGEST = 1 << 26  # bytes of a table whose lines are counted
CODE = object  # a setting that only the repair itself can read
Scope = Literal["layer", "model"]
SETTINGS: dict[str, dict[str, Any]] = {  # of each repair: what its settings are, without importing it
    "global-clipping": {"screen": float, "lr_factor": float},
    "local-then-global-clipping": {"screen": float, "share": float},
    "global-adapt": {"screen": float, "rate": float, "tau": float, "noise": float | None},
    "group-bounds": {"group": str, "limit": float, "noise": float | None},
    "random-sparsification": {"final": float, "cooling": bool, "refreshes": int},
    "ranked-sparsification": {"final": float, "unnoised": bool},
    "stage-wise-freezing": {
        "at": tuple[float, ...], "shares": tuple[float, ...], "mode": Literal["freeze", "prune"], "scope": Scope,
    },
    "augmentation": {"views": int, "function": CODE},
    "moving-average": {"decay": float},
    "fine-tuning-of-a-part": {"what": str},
    "lora": {"rank": int, "alpha": float, "layers": str, "also": tuple[str, ...], "seed": int},
    "first-phase": {
        "epochs": float, "ablation": Literal["private", "plain", "clip-only", "noise-only"], "clip": CODE,
        "noise_multiplier": float | None, "batch_size": int | None,
    },
}  # fmt: skip


def check_repairs(repairs: Sequence[str], epsilon: float | None) -> None:
    """Known settings of the right kinds; none of a kind twice; with an epsilon, none without noise."""
    counts = Counter(text.partition(":")[0] for text in repairs if ".py:" not in text)
    for name, count in counts.items():
        if count > 1 and name in SETTINGS:
            raise ConfigError(
                f"repair {name!r} is given {count} times: repairs of one kind cannot be combined, since each decides the same "
                "thing. Leave all but one out."
            )
    for text in repairs:
        name, _, rest = text.partition(":")
        if name in SETTINGS and ".py:" not in text:
            given = _read(text, rest, SETTINGS[name])
            open_part = given.get("ablation", "private") != "private" or given.get("unnoised", False)
            if epsilon is not None and open_part:
                raise ConfigError(
                    f"epsilon={epsilon}: no noise can meet it, since {text} is not private. Take it out, or give a "
                    "noise_multiplier instead of an epsilon."
                )


def _read(text: str, rest: str, known: Mapping[str, Any]) -> dict[str, Any]:
    given: dict[str, Any] = {}
    for key, value in settings_of(text, rest).items():
        if key not in known:
            raise ConfigError(f"repair {text!r}: there is no {key!r}. Known are {', '.join(known)}.")
        if known[key] is not CODE:
            try:
                given[key] = converted(key, value, known[key])
            except ConfigError as error:
                raise ConfigError(f"repair {text!r}: {error}") from None
    return given


def check_sizes(data: str | None, batch_size: int | None, valid: int | None) -> None:
    """Parts that fit into the rows there are, as far as these can be counted at once."""
    rows, what = _rows(data)
    if rows is None:
        return
    if valid is not None and valid >= rows:
        raise ConfigError(f"valid={valid} leaves none of {what} for training: hold out fewer.")
    left = rows - (valid or 0)
    if batch_size is not None and batch_size > left:
        raise ConfigError(
            f"batch_size={batch_size} of at most {left} rows: the sampling rate {batch_size / left:.3g} is outside (0, 1]. "
            "Give a smaller batch size."
        )


def check_length(
    data: str | None, epochs: float | None, steps: int | None, batch_size: int | None, sampler: str | None
) -> None:
    """A plan that no accountant composes in reasonable time, as far as its releases can be counted at once.

    Every sampler releases once an epoch at least, Poisson sampling oftener unless a batch is everybody.
    """
    every_step = sampler in (None, "poisson")
    least = max(epochs or 0, (steps or 0) if sampler != "shuffle" else 0)
    if epochs and every_step:
        rows = CATALOG[data].rows if data in CATALOG else None  # half of them train at least
        least = max(least, epochs * rows / (2 * batch_size)) if rows and batch_size else least * (1 + 1e-6)
    check_releases(math.ceil(least), "at least ")


def _rows(data: str | None) -> tuple[int | None, str]:
    """At most so many rows: those of a set by name, the lines of a table below its header."""
    if data in CATALOG:
        return CATALOG[data].rows, f"the {CATALOG[data].rows:,} rows of {data}" if CATALOG[data].rows else ""
    path = Path(data or "")
    if path.suffix.lower() != ".csv" or not path.is_file() or path.stat().st_size > LARGEST:
        return None, ""
    content = path.read_bytes()
    lines = len(content.replace(b"\r\n", b"\n").replace(b"\r", b"\n").rstrip(b"\n").split(b"\n")) - 1
    return max(lines, 1), f"at most {lines:,} rows of {data}"


def check_groups(data: str | None, repairs: Sequence[str], groups: Sequence[str], schema: Any) -> None:
    """A group that a repair names is one of the data's."""
    if data is None or schema is not None or (data not in CATALOG and not Path(data).is_file()):
        return
    known = CATALOG[data].groups if data in CATALOG else tuple(group.partition("=")[0].strip() for group in groups)
    for text in repairs:
        name, _, rest = text.partition(":")
        wanted = settings_of(text, rest).get("group") if name == "group-bounds" else None
        if wanted is not None and wanted not in known:
            remedy = "" if data in CATALOG else f" Say so: --group {wanted}."
            raise ConfigError(
                f"repair {text!r}: {data} has no groups {wanted!r}; it has {', '.join(known) or 'none'}.{remedy}"
            )

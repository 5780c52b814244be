"""What a finished run says of itself, read and checked: its status, its ledger, its summary."""

from __future__ import annotations

import math
import tomllib
from collections.abc import Mapping
from typing import Any

from noisewise.accounting import Identity, Ledger, spent
from noisewise.accounting.events import not_private
from noisewise.errors import RunError
from noisewise.runs.files import read_json
from noisewise.runs.folder import RunFolder, Status
from noisewise.wording import promised

STATUSES = ("private", "not-proven", "not-private")
READINGS = ("epsilon", "rdp_epsilon", "gdp_epsilon")
SHARED = ("delta", "adjacency", "sampler", "noise_multiplier", "steps")  # said by summary.json and config.toml


def read_status(folder: RunFolder) -> Status:
    """What a finished run says it is: run.json and summary.json must say the same."""
    about, summary = read_json(folder.run), read_json(folder.summary)
    try:
        claims = [(source["status"], source["reason"]) for source in (about, summary["privacy"])]
        status, reason = claims[0]
        agree = claims[0] == claims[1] and status in STATUSES and isinstance(reason, str)
    except (KeyError, TypeError, IndexError):
        agree = False
    if not agree:
        raise RunError(
            f"{folder.path}: run.json and summary.json do not say the same about whether the run is private. One of them "
            "was edited or damaged: restore it from a copy."
        )
    return Status(status, reason)


def read_ledger(folder: RunFolder, *, unit: str | None = None) -> Ledger:
    """ledger.json, with the data's identity where `sensitive/` is still beside it. `unit`: where format 1 says none."""
    ledger = Ledger.from_dict(read_json(folder.ledger), unit=unit)
    if folder.identity.exists():
        ledger.identity = Identity.from_dict(read_json(folder.identity))
    return ledger


def read_summary(folder: RunFolder) -> dict[str, Any]:
    """summary.json of a finished run.

    Guarantee: its epsilons are those of ledger.json, computed anew, its strength (where it says one) is what these are
    called, and its plan is that of config.toml (where there is one); files that disagree are refused, so that no edited
    number is shown. Nothing under `sensitive/` is read.
    """
    status, summary = read_status(folder), read_json(folder.summary)
    ledger = Ledger.from_dict(read_json(folder.ledger))
    try:
        privacy = summary["privacy"]
        if privacy["adjacency"] != ledger.adjacency:
            raise ValueError(f"adjacency {privacy['adjacency']!r} is not {ledger.adjacency!r}")
        if ledger.unit is not None and privacy["unit"] != ledger.unit:
            raise ValueError(f"unit {privacy['unit']!r} is not {ledger.unit!r}")
        if ledger.reproducible and status.status != "not-private":
            raise ValueError("its noise is reproducible, and the status does not say so")
        for name, expected in _readings(ledger, status, privacy["delta"]).items():
            if not _same_reading(privacy[name], expected):
                raise ValueError(f"{name} is {privacy[name]!r}, by the ledger {expected!r}")
        _check_settings(folder, privacy)
        _check_strength(summary)
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise RunError(
            f"{folder.path}: summary.json does not fit ledger.json and config.toml ({error}). One of them was edited or "
            "damaged: restore it from a copy."
        ) from None
    return summary


def _readings(ledger: Any, status: Status, delta: float) -> dict[str, float | None]:
    """Epsilon by every accountant, as a summary holds it."""
    epsilons = spent(
        [(not_private(), 1)] if status.status == "not-private" else ledger.events(), delta, ledger.adjacency
    )
    return {name: getattr(epsilons, name) for name in READINGS}


def _same_reading(written: Any, expected: float | None) -> bool:
    """Equal up to what another version of the accountant may change; infinite numbers are written as text."""
    if written is None or expected is None or isinstance(written, bool):
        return written is expected
    return math.isclose(float(written), expected, rel_tol=1e-3)


def _check_settings(folder: RunFolder, privacy: Mapping[str, Any]) -> None:
    """The plan in summary.json is the plan in config.toml."""
    if not folder.config.exists():
        return
    try:
        settings = tomllib.loads(folder.config.read_text())
    except OSError as error:
        raise ValueError(f"config.toml cannot be read: {error}") from None
    phases = bool(settings.get("repairs"))  # those may divide the run: steps are then those of its last phase
    for name in SHARED:
        written, planned = privacy[name], settings.get(name)
        if written != planned and not (phases and name == "steps" and written < planned):
            raise ValueError(f"{name} is {written!r}, in config.toml {planned!r}")
    budget, cost = settings.get("epsilon"), privacy.get("plan_epsilon")
    if budget is not None and cost is not None and not float(cost) <= budget:
        raise ValueError(f"plan_epsilon {cost!r} is above epsilon {budget!r} in config.toml")


def _check_strength(summary: Mapping[str, Any]) -> None:
    """The word in summary.json follows its numbers; summaries of earlier versions have none."""
    privacy = summary["privacy"]
    if "strength" in privacy and privacy["strength"] != (expected := promised(summary).strength):
        raise ValueError(f"strength is {privacy['strength']!r}, by its epsilon and delta {expected!r}")

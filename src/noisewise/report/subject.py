"""What the page says of a run in words: the guarantee, its limits, the data, who made it, and what is counted."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from noisewise import __version__
from noisewise.sampling import SAMPLERS
from noisewise.wording import (
    GDP,
    GUARANTEE,
    NEIGHBOURS,
    RDP,
    Promise,
    at_most,
    certainty,
    number,
    percent_at_most,
    reason,
    rounded_up,
    several_units,
)

if TYPE_CHECKING:
    from noisewise.audits import Result
    from noisewise.runs.folder import RunFolder

ORIGINS = {
    "declared": "ranges and categories declared from public knowledge",
    "noised": "ranges and categories chosen with noise, which the ledger counts",
    "rows": "ranges and categories read off the rows and confirmed as public knowledge",
}


def guarantee(privacy: Mapping[str, Any], promise: Promise) -> dict[str, Any]:
    """The first card."""
    epsilon, private = float(privacy["epsilon"]), privacy["status"] == "private"
    why = reason(privacy["status"], promise.strength, privacy["reason"])
    counted = private and math.isfinite(epsilon)
    return {
        "epsilon": at_most(epsilon),
        "plan_epsilon": None if private or "plan_epsilon" not in privacy else at_most(float(privacy["plan_epsilon"])),
        "delta": power(privacy["delta"]),
        "certainty": percent_at_most(epsilon, privacy["delta"]) if counted else None,
        "gauge": f"{200 * (certainty(epsilon, privacy['delta']) - 0.5):.1f}" if counted else None,
        "guess": promise.guess,
        "verdict": promise.verdict,
        "meaning": promise.meaning,
        "accountant": str(privacy["accountant"]).upper(),
        "adjacency": privacy["adjacency"],
        "unit": privacy["unit"],
        "sampler": _sampling_in_words(privacy["sampler"]),
        "badge": promise.badge,
        "reason": why[:1].upper() + why[1:],
        "good": promise.publishable,
    }


def _sampling_in_words(kind: str) -> str:
    return SAMPLERS[kind].words if kind in SAMPLERS else kind


def subject(summary: Mapping[str, Any], promise: Promise, bought: str = "") -> dict[str, Any]:
    """Title, lead and caveats; `bought`: what is said of a score that was released beside the run."""
    privacy, data, model = summary["privacy"], summary["data"], short_model(summary["model"])
    kind = f" ({model})" if model else ""
    unit, spoken = privacy["unit"], data_name(summary)
    either = NEIGHBOURS[privacy["adjacency"]].format(unit=unit)
    how, so_that = {
        "weak": (
            "with weak differential privacy",
            f": whoever sees it and guesses {either} can be right {promise.guess}",
        ),
        "none": ("without a privacy guarantee", " without a privacy guarantee"),
    }.get(
        promise.strength,
        ("with differential privacy", f" so that whoever sees it and guesses {either} is right {promise.guess}"),
    )
    public = f"{spoken[:1].upper()}{spoken[1:]} is a public data set: here it stands in for private data."
    protects = {
        "person": "It protects one person, with all rows of that person. What several people have in common, such as a "
        "family, is protected less.",
    }.get(unit, f"It protects one {unit}. Somebody with several {several_units(unit)} in the data is protected less.")
    caveats = [
        protects,
        f"With probability about δ = {power(privacy['delta'])} the promise may fail.",
        "It covers this run alone: other runs on the same data, also those that only chose settings, add up with it.",
        f"The number of {several_units(unit)} ({data['n']:,}) and all settings below count as public.",
        *([bought] if bought else []),
    ]
    if promise.strength == "none":
        why = reason(privacy["status"], promise.strength, privacy["reason"])
        caveats = [f"This run: {promise.badge} ({why}): do not publish the model."]
    elif not promise.publishable:
        caveats = ["The guarantee is weak: do not publish the model because of it.", *caveats]
    return {
        "title": f"{'Table model' if model == 'table' else model or 'Model'} on {spoken}, trained {how}",
        "lead": f"A model{kind} was trained on {data['n']:,} {several_units(unit)} of {spoken}{so_that}.",
        "note": public if data.get("public") else "",
        "either": either,
        "caveats": caveats,
    }


def short_model(model: str | None) -> str | None:
    """A model without its settings, which stand among all others: `table:knots=6` is a table. A run need not name one.

    >>> short_model("table:knots=6,hidden=16"), short_model("nets.py:small"), short_model("cnn")
    ('table', 'nets.py:small', 'cnn')
    """
    return model if model is None or ".py:" in model else model.partition(":")[0]


def data_name(summary: Mapping[str, Any]) -> str:
    """The data as it is spoken of."""
    return str(summary["data"].get("name", "data")).replace("_", " ")


def repair_names(summary: Mapping[str, Any]) -> list[str]:
    """The repairs of a run by name; summary.json holds what each of them says of itself."""
    return [str(repair["name"]) for repair in summary.get("repairs", [])]


def warning(results: Sequence[Result]) -> str:
    """Why the page is internal; it says what is on the page, and nothing else."""
    if any(getattr(result, "has_twin", False) for result in results):
        return "This page shows the non-private twin and exact figures of test rows: do not publish it."
    if results:
        return "This page shows exact figures of test rows: do not publish it."
    return "This page was not made to be published: later versions of it will hold figures of test rows."


def counted(summary: Mapping[str, Any], results: Sequence[Result]) -> list[str]:
    """Which numbers count people, and which rows."""
    unit, n = summary["privacy"]["unit"], summary["data"]["n"]
    tested = next((result for result in results if hasattr(result, "everyone") and "rows" in result.settings), None)
    rows, people = (None, None) if tested is None else (tested.settings["rows"], tested.everyone.n)
    if unit != "person":
        lines = [
            f"The guarantee, n = {n:,}, batch sizes and rates count {several_units(unit)}: the data do not say which rows "
            "belong to one person."
        ]
        if rows is not None:
            lines.append(f"Audits count rows too: {rows:,} test rows, each taken for another person.")
        return lines
    lines = [
        f"The guarantee, n = {n:,}, batch sizes and rates count people: all rows of one person are sampled, averaged and "
        "clipped as one."
    ]
    if rows is not None and people is not None:
        lines.append(
            f"Accuracies, losses and errors are over rows, {rows:,} test rows; columns called people count people, "
            f"{people:,} in the test part (whoever has rows of several classes or groups, in each of them), "
            "and intervals allow for the rows of one person being alike."
        )
    return lines


def made(folder: RunFolder, summary: Mapping[str, Any], about: Mapping[str, Any], by: str | None) -> dict[str, Any]:
    """Who made the page and the run, when, with which data and which version."""
    data, unit = summary["data"], summary["privacy"]["unit"]
    day = datetime.fromtimestamp(folder.run.stat().st_mtime, UTC)
    public = "published" if data.get("public") else "not published"
    trained = about["versions"].get("noisewise", "unknown")
    reported = f", reported by {by.rstrip('.')}" if by else ""
    return {
        "by": by or "",
        "rows": [
            ("made by", by or "not said (noisewise report DIR --by NAME)"),
            ("trained", f"{day:%Y-%m-%d %H:%M} UTC, by the date of its files"),
            ("data", f"{data_name(summary)}: {data['n']:,} {several_units(unit)} for training, {public}"),
            ("noisewise", trained if trained == __version__ else f"{trained}; this page: {__version__}"),
        ],
        "line": f"Trained {day:%Y-%m-%d} with noisewise {trained}{reported}.",
    }


def schema_rows(schema: Mapping[str, Any]) -> list[tuple[str, str]]:
    """What the columns of a table are for, by their names."""
    columns = [f"{entry['name']} ({entry['kind']})" for entry in schema["columns"]]
    rows = [
        ("label", str(schema["label"]["name"])),
        ("groups", ", ".join(entry["name"] for entry in schema["groups"]) or "none"),
        *([("whose row", str(schema["unit"]))] if "unit" in schema else []),
        ("columns", ", ".join(columns)),
        ("schema", ORIGINS[schema["origin"]]),
    ]
    return rows


def accountants(privacy: Mapping[str, Any], promise: Promise) -> list[tuple[str, str, str]]:
    """Epsilon by every accountant, and what each is worth."""

    def row(name: str, key: str, note: str) -> tuple[str, str, str]:
        if privacy[key] is None:
            return name, "–", "does not cover this mechanism"
        epsilon = float(privacy[key])
        return name, f"ε = {at_most(epsilon)}", note if math.isfinite(epsilon) else GUARANTEE["none"]

    return [
        row("PLD", "epsilon", GUARANTEE[promise.strength]),
        row("RDP", "rdp_epsilon", RDP),
        row("GDP-CLT", "gdp_epsilon", GDP),
    ]


def ledger_line(line: Mapping[str, Any]) -> dict[str, str]:
    """A line of the ledger as the page shows it."""
    event = line["event"]
    how = {
        "poisson-gaussian": "Gaussian noise on a Poisson-sampled batch",
        "truncated-poisson-gaussian": "Gaussian noise on a Poisson-sampled batch of limited size",
        "gaussian": "Gaussian noise",
        "not-private": "no noise: not private",
    }[event["kind"]]
    return {
        "purpose": line["purpose"],
        "how": how,
        "noise": number(event.get("noise_multiplier"), 4),
        "rate": number(event.get("rate"), 3),
        "count": f"{line['count']:,}",
        "first": f"{line['first_step']:,}",
    }


def made_with(about: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Versions and the machine."""
    hardware = about["hardware"]
    machine = f"{hardware['machine']}, {hardware['cores']} cores, {hardware['threads']} threads"
    gpus = ", ".join(hardware["gpus"]) or "none"
    return [*((name, str(version)) for name, version in about["versions"].items()), ("machine", machine), ("GPU", gpus)]


def setting(value: Any) -> str:
    """A setting as it is written; several, one after another."""
    match value:
        case bool():
            return "yes" if value else "no"
        case float():
            return f"{value:g}"
        case list() | tuple():
            return ", ".join(map(setting, value)) or "none"
    return str(value)


def power(delta: float) -> str:
    """1e-05 as a power of ten; three digits, rounded up, since a delta is an upper bound."""
    text = f"{rounded_up(delta):.3g}"
    mantissa, exponent = text.split("e") if "e" in text else (text, "")
    if not exponent:
        exact = math.log10(delta)
        if not exact.is_integer():
            return mantissa
        mantissa, exponent = "1", str(int(exact))
    raised = str(int(exponent)).translate(str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹"))
    return f"10{raised}" if mantissa == "1" else f"{mantissa} · 10{raised}"

"""The report: one self-contained page, made from the files of a run folder and nothing else."""

from __future__ import annotations

import math
import os
import tomllib
from collections.abc import Mapping
from importlib import resources
from pathlib import Path
from typing import Any

import jinja2
from markupsafe import Markup

from noisewise import __version__, audits
from noisewise.audits import Disparity, ErrorDisparity
from noisewise.audits.parts import rows_in_words
from noisewise.errors import RunError
from noisewise.report.figures import inline_svg
from noisewise.runs.folder import RunFolder, read_json, read_summary, write_atomically
from noisewise.sampling import SAMPLERS
from noisewise.wording import (
    GDP,
    GUARANTEE,
    NEIGHBOURS,
    RDP,
    Promise,
    badge,
    certainty,
    fixed,
    level,
    number,
    percent,
    percent_at_most,
    percent_interval,
    points,
    points_interval,
    promised,
    reason,
)

CROSSED = " × "  # in the name of a partition by two columns


def write(run: str | os.PathLike[str], out: str | os.PathLike[str] | None = None) -> Path:
    """Write the page; by default among the run's secrets, since it shows the twin."""
    folder = RunFolder(run)
    page = render(run)
    path = folder.sensitive / "report.html" if out is None else Path(out)
    if not path.parent.is_dir():
        raise RunError(
            f"{path} cannot be written: the folder {path.parent} does not exist. Make it, or choose another."
        )
    if path.is_dir():
        raise RunError(f"{path} is a folder: name a file, e.g. {path / 'report.html'}.")
    write_atomically(path, page.encode())
    return path


def render(run: str | os.PathLike[str]) -> str:
    """The page as text."""
    folder = RunFolder(run)
    if not folder.complete:
        raise RunError(
            f"{folder.path} holds no finished run. Make one with `noisewise train --out DIR`, or finish it with --resume."
        )
    source = resources.files("noisewise.report").joinpath("page.html").read_text(encoding="utf-8")
    environment = jinja2.Environment(
        autoescape=True, undefined=jinja2.StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    return environment.from_string(source).render(facts(folder))


def facts(folder: RunFolder) -> dict[str, Any]:
    """Everything the page says, read from the run folder."""
    summary, about = read_summary(folder), read_json(folder.run)
    try:
        settings = tomllib.loads(folder.config.read_text()) if folder.config.exists() else {}
        results = _results(folder)
        privacy = summary["privacy"]
        epsilon, said = float(privacy["epsilon"]), promised(summary)
        return {
            **_guarantee(privacy, epsilon, said),
            **_subject(summary, said),
            **_price(results),
            "results": [_section(result, said.strength) for result in results],
            "missing": [] if results else [("What privacy cost, and who pays:", "noisewise audit DIR")],
            "ledger": [_line(line) for line in read_json(folder.ledger)["lines"]],
            "accountants": _accountants(privacy, said),
            "settings": [
                (name.replace("_", " "), _setting(value)) for name, value in settings.items() if name != "format"
            ],
            "made_with": _made_with(about),
            "version": __version__,
        }
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise RunError(f"a file of {folder.path} is damaged or of another version ({error!r}).") from None


def _guarantee(privacy: Mapping[str, Any], epsilon: float, said: Promise) -> dict[str, Any]:
    private = privacy["status"] == "private"
    why = reason(privacy["status"], said.strength, privacy["reason"])
    counted = private and math.isfinite(epsilon)
    return {
        "epsilon": number(epsilon),
        "plan_epsilon": None if private or "plan_epsilon" not in privacy else number(float(privacy["plan_epsilon"])),
        "delta": _power(privacy["delta"]),
        "certainty": percent_at_most(epsilon, privacy["delta"]) if counted else None,
        "gauge": f"{200 * (certainty(epsilon, privacy['delta']) - 0.5):.1f}" if counted else None,
        "guess": said.guess,
        "verdict": said.verdict,
        "meaning": said.meaning,
        "accountant": str(privacy["accountant"]).upper(),
        "adjacency": privacy["adjacency"],
        "unit": privacy["unit"],
        "sampler": _sampler_in_words(privacy["sampler"]),
        "badge": said.badge,
        "reason": why[:1].upper() + why[1:],
        "good": said.publishable,
    }


def _sampler_in_words(kind: str) -> str:
    return SAMPLERS[kind].words if kind in SAMPLERS else kind


def _subject(summary: Mapping[str, Any], said: Promise) -> dict[str, Any]:
    privacy, data, model = summary["privacy"], summary["data"], summary["model"]
    kind = f" ({model})" if model else ""
    unit, spoken = privacy["unit"], data.get("name", "data").replace("_", " ")
    either = NEIGHBOURS[privacy["adjacency"]].format(unit=unit)
    how, so_that = {
        "weak": ("with weak differential privacy", f": whoever sees it and guesses {either} can be right {said.guess}"),
        "none": ("without a privacy guarantee", " without a privacy guarantee"),
    }.get(
        said.strength,
        ("with differential privacy", f" so that whoever sees it and guesses {either} is right {said.guess}"),
    )
    public = f"{spoken[:1].upper()}{spoken[1:]} is a public data set: here it stands in for private data."
    caveats = [
        f"It protects one {unit}. Somebody with several {unit}s in the data is protected less.",
        f"With probability about δ = {_power(privacy['delta'])} the promise may fail.",
        "It covers this run alone: other runs on the same data, also those that only chose settings, add up with it.",
        f"The number of {unit}s ({data['n']:,}) and all settings below count as public.",
    ]
    if said.strength == "none":
        why = reason(privacy["status"], said.strength, privacy["reason"])
        caveats = [f"This run: {said.badge} ({why}): do not publish the model."]
    elif not said.publishable:
        caveats = ["The guarantee is weak: do not publish the model because of it.", *caveats]
    banner = "This page shows the non-private twin and exact figures of test rows: do not publish it."
    return {
        "title": f"{model or 'Model'} on {spoken}, trained {how}",
        "lead": f"A model{kind} was trained on {data['n']:,} {unit}s of {spoken}{so_that}.",
        "note": public if data.get("public") else "",
        "either": either,
        "caveats": caveats,
        "banner": banner,
    }


def _results(folder: RunFolder) -> list[Any]:
    order = {name: place for place, name in enumerate(audits.AUDITS)}
    paths = (folder.sensitive / "audits").glob("*.json")
    return [audits.read(path) for path in sorted(paths, key=lambda path: (order.get(path.stem, len(order)), path.stem))]


def _price(results: list[Any]) -> dict[str, Any]:
    """The second and third card: what privacy cost overall, and whom."""
    errors = next((result for result in results if isinstance(result, ErrorDisparity)), None)
    if errors is not None:
        return _price_of_errors(errors)
    found = next((result for result in results if isinstance(result, Disparity)), None)
    if found is None:
        return {"cost": None, "pays": None}
    shares, extremes = found.everyone.accuracy, found.extremes()
    own = shares["private"]
    rows = [("private", percent(own), percent_interval(own))]
    people = f"{rows_in_words(found.settings['rows'], found.everyone.n)}, {level(own)} intervals"
    if not found.has_twin:
        cost = {
            "value": percent(own),
            "unit": "accuracy",
            "interval": "",
            "rows": rows,
            "note": f"{people}. No twin to compare with.",
        }
        if "worst" not in extremes:
            return {"cost": cost, "pays": None}
        lines = [f"is served worst: {percent(extremes['lowest'])}."]
        return {"cost": cost, "pays": {"value": f"class {extremes['worst']}", "lines": lines, "note": _apart(extremes)}}
    change = shares["difference"]
    rows.append(("without privacy", percent(shares["twin"]), percent_interval(shares["twin"])))
    chance = "" if change.excludes_zero else " Chance can explain the difference."
    cost = {
        "value": points(change),
        "unit": "points of accuracy",
        "interval": f"interval {points_interval(change)}",
        "rows": rows,
        "note": f"{people}.{chance}",
    }
    if "pays_most" not in extremes:
        return {"cost": cost, "pays": None}
    part = next(part for part in found.parts() if part.name == extremes["pays_most"])
    largest = extremes["largest_cost"]
    lines = [
        f"{percent(part.accuracy['private'])} right, {percent(part.accuracy['twin'])} without privacy: "
        f"{points(largest)} points (interval {points_interval(largest)}, allowing for the choice).",
    ]
    if largest.high >= 0:
        lines.append("With so few test rows per class, chance can still explain it.")
    worst = f"Served worst: class {extremes['worst']}, {percent(extremes['lowest'])}. " + _apart(extremes)
    groups = {by: found.extremes(by) for by in found.partitions if by != "class" and CROSSED not in by}
    for by, of in groups.items():
        if "pays_most" in of:
            worst += f" By {by} {of['pays_most']} pays most: {points(of['largest_cost'])} points."
    return {"cost": cost, "pays": {"value": f"class {part.name}", "lines": lines, "note": worst}}


def _price_of_errors(found: Any) -> dict[str, Any]:
    """The same for a regression: squared errors, where more is worse."""
    own, twin, change = (found.headline.get(name) for name in ("mse", "twin mse", "cost"))
    assert own is not None
    people = f"{rows_in_words(found.settings['rows'], found.everyone.n)}, {level(own)} intervals"
    rows = [("private", fixed(own.value), f"{fixed(own.low)}–{fixed(own.high)}")]
    cost = {"value": fixed(own.value), "unit": "mean squared error", "interval": "", "rows": rows, "note": f"{people}."}
    if change is None or twin is None:
        return {"cost": cost | {"note": f"{people}. No twin to compare with."}, "pays": None}
    rows.append(("without privacy", fixed(twin.value), f"{fixed(twin.low)}–{fixed(twin.high)}"))
    sign = "+" if change.value > 0 else ""
    cost |= {
        "value": f"{sign}{fixed(change.value)}",
        "unit": "in mean squared error",
        "interval": f"interval {fixed(change.low)} to {fixed(change.high)}",
        "note": f"{people}." + ("" if change.excludes_zero else " Chance can explain the difference."),
    }
    paying = [(by, found.extremes(by)) for by in found.partitions if "pays_most" in found.extremes(by)]
    if not paying:
        return {"cost": cost, "pays": None}
    by, extremes = max(paying, key=lambda pair: pair[1]["largest_cost"].value)
    largest = extremes["largest_cost"]
    lines = [
        f"Mean squared error {fixed(largest.value)} above the twin's (interval {fixed(largest.low)} to {fixed(largest.high)}, "
        "allowing for the choice)."
    ]
    if largest.low <= 0:
        lines.append("Chance can still explain it.")
    worst = f"Served worst: {by} {extremes['worst']}, {fixed(extremes['highest'].value)}."
    return {"cost": cost, "pays": {"value": f"{by} {extremes['pays_most']}", "lines": lines, "note": worst}}


def _apart(extremes: Mapping[str, Any]) -> str:
    text = f"Best and worst class are {points(extremes['gap']).lstrip('+')} points apart"
    return (
        f"{text}, {points(extremes['twin_gap']).lstrip('+')} without privacy." if "twin_gap" in extremes else f"{text}."
    )


def _section(result: Any, strength: str) -> dict[str, Any]:
    figures = [
        {"caption": figure.caption, "words": figure.words, "svg": Markup(inline_svg(figure))}
        for figure in result.figures()
    ]
    return {
        "title": result.title,
        "sentences": result.sentences(),
        "figures": figures,
        "key": getattr(result, "has_twin", False),
        "tables": [table._asdict() for table in result.tables()],
        "badge": badge(result.status.status, strength),
        "reason": reason(result.status.status, strength, result.status.reason),
    }


def _line(line: Mapping[str, Any]) -> dict[str, str]:
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


def _accountants(privacy: Mapping[str, Any], said: Promise) -> list[tuple[str, str, str]]:
    def row(name: str, key: str, note: str) -> tuple[str, str, str]:
        if privacy[key] is None:
            return name, "–", "does not cover this mechanism"
        epsilon = float(privacy[key])
        return name, f"ε = {number(epsilon)}", note if math.isfinite(epsilon) else GUARANTEE["none"]

    return [
        row("PLD", "epsilon", GUARANTEE[said.strength]),
        row("RDP", "rdp_epsilon", RDP),
        row("GDP-CLT", "gdp_epsilon", GDP),
    ]


def _made_with(about: Mapping[str, Any]) -> list[tuple[str, str]]:
    hardware = about["hardware"]
    machine = f"{hardware['machine']}, {hardware['cores']} cores, {hardware['threads']} threads"
    gpus = ", ".join(hardware["gpus"]) or "none"
    return [*((name, str(version)) for name, version in about["versions"].items()), ("machine", machine), ("GPU", gpus)]


def _setting(value: Any) -> str:
    return (
        ("yes" if value else "no")
        if isinstance(value, bool)
        else f"{value:g}"
        if isinstance(value, float)
        else str(value)
    )


def _power(delta: float) -> str:
    """1e-05 as a power of ten."""
    mantissa, exponent = f"{delta:.3g}".split("e") if "e" in f"{delta:.3g}" else (f"{delta:.3g}", "")
    if not exponent:
        exact = math.log10(delta)
        if not exact.is_integer():
            return mantissa
        mantissa, exponent = "1", str(int(exact))
    raised = str(int(exponent)).translate(str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹"))
    return f"10{raised}" if mantissa == "1" else f"{mantissa} · 10{raised}"

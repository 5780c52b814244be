"""The report: one self-contained page, made from the files of a run folder and nothing else."""

from __future__ import annotations

import math
import os
import tomllib
from collections.abc import Mapping
from importlib import resources
from pathlib import Path
from typing import TYPE_CHECKING, Any

import jinja2
from markupsafe import Markup

from noisewise import __version__, audits
from noisewise._moved import old_names
from noisewise.errors import RunError
from noisewise.report.figures import inline_svg
from noisewise.runs.files import read_json, write_atomically
from noisewise.runs.folder import RunFolder
from noisewise.runs.summary import read_summary
from noisewise.sampling import SAMPLERS
from noisewise.wording import (
    GDP,
    GUARANTEE,
    NEIGHBOURS,
    RDP,
    Promise,
    badge,
    certainty,
    number,
    percent_at_most,
    promised,
    reason,
)

if TYPE_CHECKING:
    from noisewise.audits import Result
    from noisewise.audits.result import Card


def write(run: str | os.PathLike[str], out: str | os.PathLike[str] | None = None) -> Path:
    """Write the page; by default among the run's secrets, since it shows the twin."""
    folder = RunFolder(run)
    page = render(run)
    path = folder.report if out is None else Path(out)
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
        epsilon, promise = float(privacy["epsilon"]), promised(summary)
        return {
            **_guarantee(privacy, epsilon, promise),
            **_subject(summary, promise),
            **_price(results),
            "results": [_section(result, promise.strength) for result in results],
            "missing": [] if results else [("What privacy cost, and who pays:", "noisewise audit DIR")],
            "ledger": [_line(line) for line in read_json(folder.ledger)["lines"]],
            "accountants": _accountants(privacy, promise),
            "settings": [
                (name.replace("_", " "), _setting(value)) for name, value in settings.items() if name != "format"
            ],
            "made_with": _made_with(about),
            "version": __version__,
        }
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise RunError(f"a file of {folder.path} is damaged or of another version ({error!r}).") from None


def _guarantee(privacy: Mapping[str, Any], epsilon: float, promise: Promise) -> dict[str, Any]:
    private = privacy["status"] == "private"
    why = reason(privacy["status"], promise.strength, privacy["reason"])
    counted = private and math.isfinite(epsilon)
    return {
        "epsilon": number(epsilon),
        "plan_epsilon": None if private or "plan_epsilon" not in privacy else number(float(privacy["plan_epsilon"])),
        "delta": _power(privacy["delta"]),
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


def _subject(summary: Mapping[str, Any], promise: Promise) -> dict[str, Any]:
    privacy, data, model = summary["privacy"], summary["data"], summary["model"]
    kind = f" ({model})" if model else ""
    unit, spoken = privacy["unit"], data.get("name", "data").replace("_", " ")
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
    caveats = [
        f"It protects one {unit}. Somebody with several {unit}s in the data is protected less.",
        f"With probability about δ = {_power(privacy['delta'])} the promise may fail.",
        "It covers this run alone: other runs on the same data, also those that only chose settings, add up with it.",
        f"The number of {unit}s ({data['n']:,}) and all settings below count as public.",
    ]
    if promise.strength == "none":
        why = reason(privacy["status"], promise.strength, privacy["reason"])
        caveats = [f"This run: {promise.badge} ({why}): do not publish the model."]
    elif not promise.publishable:
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


def _results(folder: RunFolder) -> list[Result]:
    order = {name: place for place, name in enumerate(audits.AUDITS)}
    paths = folder.audits.glob("*.json")
    return [audits.read(path) for path in sorted(paths, key=lambda path: (order.get(path.stem, len(order)), path.stem))]


def _price(results: list[Result]) -> dict[str, Card | None]:
    """The second and third card: what privacy cost overall, and whom; of the first result that has them."""
    cards = next((cards for result in results if (cards := result.cards())), [])
    return {place: next((card for card in cards if card.place == place), None) for place in ("cost", "pays")}


def _section(result: Result, strength: str) -> dict[str, Any]:
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


def _accountants(privacy: Mapping[str, Any], promise: Promise) -> list[tuple[str, str, str]]:
    def row(name: str, key: str, note: str) -> tuple[str, str, str]:
        if privacy[key] is None:
            return name, "–", "does not cover this mechanism"
        epsilon = float(privacy[key])
        return name, f"ε = {number(epsilon)}", note if math.isfinite(epsilon) else GUARANTEE["none"]

    return [
        row("PLD", "epsilon", GUARANTEE[promise.strength]),
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


if not TYPE_CHECKING:
    __getattr__ = old_names(__name__)

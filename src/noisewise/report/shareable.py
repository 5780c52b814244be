"""What may leave: a page, a model card and a privacy card, of what the ledger or public rows cover and of nothing else.

Guarantee: nothing under `sensitive/` is read. What is left out is said, with the reason.
"""

from __future__ import annotations

import os
import re
import tomllib
from collections.abc import Mapping, Sequence
from importlib import resources
from pathlib import Path
from typing import TYPE_CHECKING, Any

import jinja2
from markupsafe import Markup

from noisewise import __version__
from noisewise.accounting import Ledger
from noisewise.errors import ConfigError, PrivacyError, RunError
from noisewise.report.cards import Bought, Metric, Subject, model_card, privacy_card
from noisewise.report.figures import inline_svg
from noisewise.runs.files import read_json, write_atomically
from noisewise.runs.folder import RunFolder
from noisewise.runs.replaced import SHAREABLE, is_page
from noisewise.runs.scores import read_score
from noisewise.runs.summary import read_summary
from noisewise.wording import (
    NEIGHBOURS,
    at_most,
    fixed,
    number,
    percent,
    percent_interval,
    promised,
    several_units,
    without_folders,
)

if TYPE_CHECKING:
    from noisewise.audits import Result
    from noisewise.estimates.estimate import Estimate
    from noisewise.wording import Promise

DOCUMENTS = (".html", ".htm", ".md", ".pdf", ".txt")  # ends of names that nobody gives a folder
FILES = {"report": "report.html", "model card": "README.md", "privacy card": "PRIVACY.md"}
ORIGINS = {
    "declared": "Ranges and lists of the columns were declared as public knowledge.",
    "noised": "Ranges and lists of the columns were chosen with noise; the ledger holds it.",
    "rows": "Ranges and lists of the columns were read off the rows and confirmed as public knowledge.",
}
EVENTS = {
    "poisson-gaussian": "Gaussian noise on a Poisson-sampled batch",
    "truncated-poisson-gaussian": "Gaussian noise on a Poisson-sampled batch of limited size",
    "gaussian": "Gaussian noise",
}
PATHS = ("data", "test")  # settings that are places on a machine, where they are no names
HEADLINES = {  # of audits: what the cards show, and what Hugging Face calls it
    "disparity": {"accuracy": "accuracy", "worst class": "accuracy"},
    "calibration": {"ECE": "expected_calibration_error"},
    "disparity-regression": {"mse": "mse", "mae": "mae"},
}


def write(subject: Subject, results: Sequence[Result], out: str | os.PathLike[str]) -> list[Path]:
    """Write the page and both cards into a folder; gives their paths. `results`: those that the subject was made with."""
    folder = Path(out)
    check_place(folder)
    folder.mkdir(exist_ok=True)
    contents = {
        "report": page(subject, results),
        "model card": model_card(subject),
        "privacy card": privacy_card(subject),
    }
    for what, name in FILES.items():
        write_atomically(folder / name, contents[what].encode())
    return [folder / name for name in FILES.values()]


def check_place(folder: Path) -> None:
    """Where the files may be written: a folder of their own."""
    if folder.suffix.lower() in DOCUMENTS and not folder.is_dir():
        raise ConfigError(
            f"{folder} is the name of a file: with --shareable three files are written, so --out must be a folder, e.g. "
            f"--out {folder.with_suffix('')}. Its page is then {folder.with_suffix('') / FILES['report']}."
        )
    if folder.is_file() or not folder.parent.is_dir():
        raise RunError(f"{folder} cannot be used: --out must be a folder (with --shareable), in one that exists.")
    there = [name for name in FILES.values() if (folder / name).exists()]
    if there and (len(there) < len(FILES) or not is_page(folder / FILES["report"], SHAREABLE)):
        raise RunError(
            f"{folder} holds a {there[0]} that is not of a shareable report: it would be overwritten. Name an empty folder."
        )


def subject_of(
    run: str | os.PathLike[str],
    *,
    results: Sequence[Result] = (),
    why_none: str = "",
    contact: str | None = None,
    license: str | None = None,
) -> Subject:
    """All that may be said of a finished run; one without a guarantee is refused.

    `results`: audits of the released model on public rows, without the twin; others are refused. `why_none`: why there are
    none. `contact`: whom people may ask. `license`: of the model, by Hugging Face's names.
    """
    folder = RunFolder(run)
    if not folder.complete:
        raise RunError(f"{folder.path} holds no finished run: finish it with --resume, or check the name.")
    for result in results:
        if result.status.status != "private":
            raise PrivacyError(f"{result.kind} may not be shared: {result.status.reason}.")
    summary, about = read_summary(folder), read_json(folder.run)
    bought, score = _bought(folder, summary), read_score(folder)
    promise = promised(summary) if bought is None else promised(_with_epsilon(summary, bought.together))
    if promise.strength == "none":
        raise PrivacyError(
            f"{folder.path} has nothing to share: {_why_nothing(summary['privacy'], promise)} `noisewise report` without "
            "--shareable writes an internal page."
        )
    try:
        settings = tomllib.loads(folder.config.read_text()) if folder.config.exists() else {}
        schema = read_json(folder.schema) if folder.schema.exists() else None
        return Subject(
            summary=summary,
            settings=_settings(settings),
            versions=about["versions"],
            ledger=[
                _line(line)
                for ledger in (read_json(folder.ledger), *([] if score is None else [score.ledger.to_dict()]))
                for line in ledger["lines"]
            ],
            promise=promise,
            columns=[] if schema is None else _columns(schema),
            origin="" if schema is None else ORIGINS[schema["origin"]],
            code=_code(folder),
            metrics=[metric for result in results for metric in _metrics(result)],
            noised=bought,
            files=[path.name for path in (folder.model, folder.code) if path.exists()],
            left_out=_left_out(settings, bool(results), why_none, bought is not None),
            contact=contact,
            license=license,
        )
    except (KeyError, TypeError, ValueError, AttributeError, OSError) as error:
        raise RunError(f"a file of {folder.path} is damaged or of another version ({error!r}).") from None


def _why_nothing(privacy: Mapping[str, Any], promise: Promise) -> str:
    """Why a run may not be shared, and what to do: it has no guarantee, or one that rules nothing out."""
    if privacy["status"] != "private":
        return (
            f"{privacy['status']} ({privacy['reason'].rstrip('.')}). No ledger bounds what it tells of its people. Train a "
            "private run."
        )
    return f"{promise.verdict[:1].lower()}{promise.verdict[1:]} Train it anew with a smaller epsilon or delta."


def _settings(settings: Mapping[str, Any]) -> dict[str, Any]:
    """All settings; of those that may hold paths, names of files alone."""
    return {name: _shown(value, name in PATHS) for name, value in settings.items() if name != "format"}


def _shown(value: Any, path: bool) -> Any:
    if isinstance(value, list):
        return ", ".join(_shown(one, path) for one in value) or "none"
    if isinstance(value, bool):
        return "yes" if value else "no"
    return without_folders(value, path=path) if isinstance(value, str) else value


def _line(line: Mapping[str, Any]) -> dict[str, str]:
    event = line["event"]
    return {
        "purpose": line["purpose"],
        "how": EVENTS[event["kind"]],
        "noise": number(event.get("noise_multiplier"), 4),
        "rate": number(event.get("rate"), 3),
        "count": f"{line['count']:,}",
    }


def _columns(schema: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Columns that the model reads, and the one it predicts."""
    used = [column for column in schema["columns"] if column["kind"] != "ignore"]
    label = schema["label"]
    return [*((column["name"], _kind(column)) for column in used), (label["name"], f"{_kind(label)}; predicted")]


def _kind(column: Mapping[str, Any]) -> str:
    if "values" in column:
        names = ", ".join(map(str, column["values"][:8])) + (", ..." if len(column["values"]) > 8 else "")
        return f"{column['kind']}: {names}"
    if "low" in column and "high" in column:
        return f"{column['kind']}, {number(column['low'])} to {number(column['high'])}"
    return str(column["kind"])


def _code(folder: RunFolder) -> str:
    """How the model is loaded, as the run's README shows it."""
    text = folder.readme.read_text() if folder.readme.exists() else ""
    block = re.search(r"^```python\n(.*?)^```", text, re.MULTILINE | re.DOTALL)
    return block.group(1).rstrip() if block else ""


def _metrics(result: Result) -> list[Metric]:
    return [
        Metric(_spoken(name), kind, result.headline[name].value, _words(result.headline[name], kind))
        for name, kind in HEADLINES.get(result.kind, {}).items()
        if name in result.headline
    ]


def _bought(folder: RunFolder, summary: Mapping[str, Any]) -> Bought | None:
    """A score that was released with noise, and what it cost; None where none was."""
    score = read_score(folder)
    if score is None:
        return None
    delta, unit = summary["privacy"]["delta"], summary["privacy"]["unit"]
    cost = score.ledger.epsilon(delta)
    together = Ledger.from_dict(read_json(folder.ledger), unit=unit).composed(score.ledger).epsilon(delta)
    share, low, high = score.shown
    words = (
        f"About {share:.1f} % of answers are right on {score.units:,} {several_units(unit)} that were held out. Noise was "
        f"added, of standard deviation {100 * score.deviation:.1f} points: 95 % of the time the truth is within {low:.1f} to "
        f"{high:.1f} %. The figure cost epsilon {at_most(cost)}; model and figure together: at most {at_most(together)}."
    )
    return Bought(words, score.units, cost, together, f"{share:.1f} %")


def _with_epsilon(summary: Mapping[str, Any], epsilon: float) -> dict[str, Any]:
    return {**summary, "privacy": {**summary["privacy"], "epsilon": epsilon}}


def _spoken(name: str) -> str:
    return {"worst class": "accuracy of the worst class", "ECE": "expected calibration error"}.get(name, name)


def _words(estimate: Estimate, kind: str) -> str:
    level = f"{100 * estimate.level:g} % interval"
    if kind == "accuracy":
        return f"{percent(estimate)} ({level} {percent_interval(estimate)})"
    return f"{fixed(estimate.value, 3)} ({level} {fixed(estimate.low, 3)} to {fixed(estimate.high, 3)})"


def _left_out(settings: Mapping[str, Any], measured: bool, why_none: str, noised: bool) -> list[tuple[str, str]]:
    """What is not shown, by kind. It follows from the settings, never from what lies among the run's secrets."""
    exact = "figures of single held-out people expose them; no ledger covers them"
    reasons = [
        ("The training loss, gradient norms, drawn batches and the noise", "they tell of single records"),
        ("Membership, reconstruction and other attacks on the training rows", "they ask the records themselves"),
    ]
    if not settings or settings.get("twin", False):
        reasons.append(
            ("The model without privacy and every comparison with it", "it was trained on the records openly")
        )
    if not measured:
        what = "Exact accuracy, calibration" if noised else "Accuracy, calibration"
        reasons.insert(0, (f"{what} and who is served worst", why_none or exact))
    reasons.append(
        ("Where the data lie and when the run took place", "paths tell of a machine, and times of drawn batches")
    )
    return reasons


# --- the page ----------------------------------------------------------------------------------------------------------


def page(subject: Subject, results: Sequence[Result] = ()) -> str:
    """One self-contained HTML page: no script, nothing loaded."""
    source = resources.files("noisewise.report").joinpath("shareable.html").read_text(encoding="utf-8")
    environment = jinja2.Environment(
        autoescape=True, undefined=jinja2.StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    privacy = subject.privacy
    return environment.from_string(source).render(
        subject=subject,
        privacy=privacy,
        promise=subject.promise,
        epsilon=at_most(subject.epsilon),
        delta=at_most(privacy["delta"]),
        many=several_units(subject.unit),
        either=NEIGHBOURS[privacy["adjacency"]].format(unit=subject.unit),
        sections=[_section(result) for result in results],
        version=__version__,
        made_by=SHAREABLE,
    )


def _section(result: Result) -> dict[str, Any]:
    figures = [
        {"caption": figure.caption, "words": figure.words, "svg": Markup(inline_svg(figure))}
        for figure in result.figures()
    ]
    return {
        "title": result.title,
        "sentences": result.sentences(),
        "figures": figures,
        "tables": [table._asdict() for table in result.tables()],
    }

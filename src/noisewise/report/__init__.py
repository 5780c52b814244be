"""The report: one self-contained page, made from the files of run folders and nothing else."""

from __future__ import annotations

import os
import tomllib
from collections.abc import Mapping, Sequence
from importlib import resources
from pathlib import Path
from typing import TYPE_CHECKING, Any

import jinja2
from markupsafe import Markup

from noisewise import __version__, audits
from noisewise._moved import old_names
from noisewise.accounting import Ledger
from noisewise.errors import ConfigError, RunError
from noisewise.report import subject
from noisewise.report.advice import next_steps
from noisewise.report.course import figures as figures_of_course
from noisewise.report.figures import inline_svg
from noisewise.report.measured import MISSING, measured
from noisewise.report.several import Opened, names_of, side_by_side
from noisewise.runs.files import read_json, write_atomically
from noisewise.runs.folder import RunFolder
from noisewise.runs.replaced import INTERNAL, check_page
from noisewise.runs.scores import read_score
from noisewise.runs.summary import read_summary
from noisewise.wording import at_most, badge, promised, reason, several_units

if TYPE_CHECKING:
    from noisewise.audits import Result
    from noisewise.audits.result import Card, Figure

Run = str | os.PathLike[str]
Advice = Sequence[Mapping[str, Any]]


def write(
    run: Run | Sequence[Run],
    out: Run | None = None,
    *,
    by: str | None = None,
    suggested: Advice | None = None,
) -> Path:
    """Write the page of a run, or of several side by side; by default among the run's secrets, since it shows audits.

    `by`: who made it, shown on the page. `suggested`: what to do next, as `next_steps` takes it.
    """
    runs = [run] if isinstance(run, str | os.PathLike) else list(run)
    if out is None and len(runs) > 1:
        raise ConfigError("a page of several runs belongs to none of their folders: say where, e.g. --out report.html.")
    if out is not None:
        check_page(Path(out))
    page = render(runs, by=by, suggested=suggested)
    path = RunFolder(runs[0]).report if out is None else Path(out)
    if not path.parent.is_dir():
        raise RunError(
            f"{path} cannot be written: the folder {path.parent} does not exist. Make it, or choose another."
        )
    write_atomically(path, page.encode())
    path.chmod(0o600)  # it shows audits
    return path


def render(run: Run | Sequence[Run], *, by: str | None = None, suggested: Advice | None = None) -> str:
    """The page as text."""
    folders = [RunFolder(path) for path in ([run] if isinstance(run, str | os.PathLike) else run)]
    for folder in folders:
        if not folder.complete:
            raise RunError(
                f"{folder.path} holds no finished run. Make one with `noisewise train --out DIR`, or finish it with --resume."
            )
    if not folders:
        raise ConfigError("a report of no run: name at least one run folder.")
    if len(folders) == 1:
        return template("page.html").render(facts(folders[0], by, suggested), made_by=INTERNAL)
    return template("several.html").render(facts_of_several(folders, by), made_by=INTERNAL)


def template(name: str) -> jinja2.Template:
    """A template of this folder; what it does not know is an error, and texts are escaped."""
    here = resources.files("noisewise.report")
    environment = jinja2.Environment(
        loader=jinja2.FunctionLoader(lambda name: here.joinpath(name).read_text(encoding="utf-8")),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    return environment.get_template(name)


def warning(runs: Sequence[Run]) -> str:
    """Why a page is internal."""
    return subject.warning([result for run in runs for result in _results(RunFolder(run))])


def facts(folder: RunFolder, by: str | None = None, suggested: Advice | None = None) -> dict[str, Any]:
    """Everything the page says, read from the run folder."""
    summary, about = read_summary(folder), read_json(folder.run)
    try:
        settings = tomllib.loads(folder.config.read_text()) if folder.config.exists() else {}
        schema = read_json(folder.schema) if folder.schema.exists() else None
        results = _results(folder)
        privacy = summary["privacy"]
        promise = promised(summary)
        sections = [_section(result, promise.strength, privacy["unit"]) for result in results]
        return {
            **subject.guarantee(privacy, promise),
            **subject.subject(summary, promise, bought(folder, summary)),
            **_price(results),
            "banner": subject.warning(results),
            "next_steps": next_steps(folder, results, promise, suggested),
            "counted": subject.counted(summary, results),
            "course": [{**_drawn(figure), "sensitive": sensitive} for figure, sensitive in figures_of_course(folder)],
            "measured": measured(results),
            "unmeasured": MISSING,
            "made": subject.made(folder, summary, about, by),
            "schema": [] if schema is None else subject.schema_rows(schema),
            "results": [{**section, "id": f"audit-{place}"} for place, section in enumerate(sections, start=1)],
            "missing": [] if results else [("What privacy cost, and who pays:", "noisewise audit DIR")],
            "ledger": [subject.ledger_line(line) for line in read_json(folder.ledger)["lines"]],
            "accountants": subject.accountants(privacy, promise),
            "settings": [
                (name.replace("_", " "), subject.setting(value)) for name, value in settings.items() if name != "format"
            ],
            "made_with": subject.made_with(about),
            "version": __version__,
        }
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise RunError(f"a file of {folder.path} is damaged or of another version ({error!r}).") from error


def facts_of_several(folders: Sequence[RunFolder], by: str | None = None) -> dict[str, Any]:
    """Everything the page of several runs says."""
    paths = [folder.path.resolve() for folder in folders]
    if len(set(paths)) < len(paths):
        raise ConfigError("a run is named twice: name each folder once.")
    opened = [
        Opened(name, folder, read_summary(folder), _results(folder), facts(folder))
        for name, folder in zip(names_of(folders), folders, strict=True)
    ]
    everything = [result for run in opened for result in run.results]
    return {
        **side_by_side(opened),
        "title": f"{len(opened)} runs side by side",
        "banner": subject.warning(everything),
        "by": by or "",
        "version": __version__,
    }


def bought(folder: RunFolder, summary: Mapping[str, Any]) -> str:
    """That a noised score was released beside the run, and what both cost together; nothing where none was."""
    if (score := read_score(folder)) is None:
        return ""
    delta, unit = summary["privacy"]["delta"], summary["privacy"]["unit"]
    together = Ledger.from_dict(read_json(folder.ledger), unit=unit).composed(score.ledger)
    cost, total = (at_most(ledger.epsilon(delta)) for ledger in (score.ledger, together))
    return (
        f"A noised score of {score.units:,} held-out {several_units(unit)} was released too, for ε = {cost}: with the model "
        f"at most {total}."
    )


def _results(folder: RunFolder) -> list[Result]:
    order = {name: place for place, name in enumerate(audits.AUDITS)}
    paths = folder.audits.glob("*.json")
    return [audits.read(path) for path in sorted(paths, key=lambda path: (order.get(path.stem, len(order)), path.stem))]


def _price(results: Sequence[Result]) -> dict[str, Card | None]:
    """The second and third card: what privacy cost overall, and whom; of the first result that has them."""
    cards = next((cards for result in results if (cards := result.cards())), [])
    return {place: next((card for card in cards if card.place == place), None) for place in ("cost", "pays")}


def _drawn(figure: Figure) -> dict[str, Any]:
    return {"caption": figure.caption, "words": figure.words, "svg": Markup(inline_svg(figure))}


def _section(result: Result, strength: str, unit: str) -> dict[str, Any]:
    named = {"people": "people" if unit == "person" else "rows"}
    return {
        "title": result.title,
        "sentences": result.sentences(),
        "figures": [_drawn(figure) for figure in result.figures()],
        "key": getattr(result, "has_twin", False),
        "tables": [
            {**table._asdict(), "columns": [named.get(column, column) for column in table.columns]}
            for table in result.tables()
        ],
        "badge": badge(result.status.status, strength),
        "reason": reason(result.status.status, strength, result.status.reason),
    }


if not TYPE_CHECKING:
    __getattr__ = old_names(__name__)

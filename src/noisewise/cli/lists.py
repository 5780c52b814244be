"""`noisewise datasets`, `models`, `recipes`, `repairs`, `audits`, `clips`: what there is, one line each."""

from __future__ import annotations

import json
from collections.abc import Mapping

from noisewise.cli.shared import Json, example, plain, terminal


@example("noisewise datasets")
def datasets(as_json: Json = False) -> None:
    """Data sets by name, for `train --data NAME`."""
    import importlib

    from noisewise.data.catalog import CATALOG

    homes = {name: importlib.import_module(f"noisewise.data.{entry.home}") for name, entry in CATALOG.items()}
    _show("data set", {name: first_line(getattr(home, name)) for name, home in homes.items()}, as_json)


@example("noisewise models")
def models(as_json: Json = False) -> None:
    """Models by name, for `train --model NAME`."""
    from noisewise.models import MODELS

    _show("model", {name: first_line(make) for name, make in MODELS.items()}, as_json)


@example("noisewise repairs")
def repairs(as_json: Json = False) -> None:
    """Repairs by name, for `train --repair NAME:key=value`."""
    from noisewise.workflow.repair_specs import BY_SLUG, example

    lines = {example(kind): f"changes {kind.changes}. {kind.reference}." for kind in BY_SLUG.values()}
    _show("repair", lines, as_json)


@example("noisewise recipes")
def recipes(as_json: Json = False) -> None:
    """Recipes for images by name, for `train --recipe NAME[:KEY=VALUE,...]`, and what may be set in each.

    What is not set follows from the images, epsilon and what was found on public sets; a run's config.toml has it all.
    """
    from noisewise.recipes import RECIPES

    lines = {
        name: f"{first_line(kind)}" if as_json else f"{first_line(kind)} Settings: {', '.join(kind.known())}."
        for name, kind in RECIPES.items()
    }
    _show("recipe", lines, as_json)
    if not as_json:
        terminal().print(
            "[dim]For example:[/] --recipe scattering-linear:scales=2/3,views=same/flip,waves=2048", soft_wrap=True
        )


@example("noisewise audits")
def audits(as_json: Json = False) -> None:
    """Audits by name, for `audit DIR --only NAME`."""
    from noisewise.audits import AUDITS

    lines = {
        name: f"{audit.asks} {audit.takes}{'' if audit.usual else ' Asked with --all or --only.'}"
        for name, audit in AUDITS.items()
    }
    _show("audit", lines, as_json)


@example("noisewise clips")
def clips(as_json: Json = False) -> None:
    """Clipping rules by name, for `train --clip NAME`."""
    from noisewise.adaptive import KINDS

    _show("clipping rule", {name: first_line(rule) for name, rule in KINDS.items()}, as_json)


def first_line(thing: object) -> str:
    """What something says of itself in its first sentence."""
    return (thing.__doc__ or "").strip().split("\n\n")[0].replace("\n", " ").strip()


def _show(kind: str, lines: Mapping[str, str], as_json: bool) -> None:
    if as_json:
        print(json.dumps(dict(lines), indent=2))
        return
    from rich.table import Table

    table = Table(box=None, padding=(0, 2, 0, 0), header_style="dim")
    table.add_column(kind, no_wrap=len(max(lines, key=len)) <= 30, overflow="fold")
    table.add_column("")
    for name, words in lines.items():
        table.add_row(plain(name), plain(" ".join(words.split())))
    terminal().print(table)

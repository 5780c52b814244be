"""A plan on the terminal, before it is carried out."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from noisewise.cli.shared import plain, terminal

if TYPE_CHECKING:
    from noisewise.workflow.plan import Planned


def print_plan(planned: Planned, runs: int = 1) -> None:
    """What will be promised, by which noise, in how many steps, and how long it will take."""
    from rich.table import Table

    from noisewise.wording import at_most, number, promise, several_units
    from noisewise.workflow.estimate import in_words, seconds, too_few
    from noisewise.workflow.sweep import composed

    config, recipe = planned.config, planned.recipe
    mechanism, spent = recipe.mechanism, recipe.epsilon(config.delta)
    unit, console = mechanism.unit, terminal()
    table = Table(box=None, padding=(0, 2, 0, 0), show_header=False)
    table.add_column(style="dim", no_wrap=True)
    table.add_column()
    each = "" if runs == 1 else f" for each of {runs} runs, which add up"
    status, n = planned.status, mechanism.sampler.n
    if status.status == "private":
        words = promise(spent, config.delta, n, adjacency=mechanism.adjacency, unit=unit)
        table.add_row("epsilon", f"[bold]{at_most(spent)}[/]{each}. {words.meaning}")
        if runs > 1:
            schema = planned.data.train.schema  # chosen once for all runs; a centre is released by each of them
            before = [] if schema is None or schema.ledger is None else schema.ledger.lines
            total = composed([recipe.lines()] * runs, before, (), config.delta, mechanism.adjacency)
            strength = promise(total, config.delta, n, adjacency=mechanism.adjacency, unit=unit).strength
            table.add_row("together", f"[bold]epsilon {at_most(total)}[/] for all {runs}: {strength}")
    else:
        table.add_row("status", f"[bold red]{status.status}[/]: {status.reason}")
        kept = f"; with secret noise it would be at most {at_most(spent)}" if math.isfinite(spent) else ""
        table.add_row("epsilon", f"[bold]{number(math.inf)}[/], nothing is promised{kept}")
    table.add_row("delta", at_most(config.delta))
    table.add_row("protects", f"one {unit} of {n:,} ({mechanism.adjacency})")
    bound = mechanism.clip_at(0).sensitivity if ".py:" in config.clip else config.bound  # one's own may have its own
    table.add_row("noise", f"multiplier {mechanism.noise_at(0):.4g}, bound {bound:g} ({config.clip} clipping)")
    steps = mechanism.steps + sum(phase.mechanism.steps for phase in recipe.phases)
    phases = f" in {len(recipe.phases) + 1} phases" if recipe.phases else ""
    table.add_row(
        "steps", f"{steps:,} of about {config.batch_size:,} {several_units(unit)} ({mechanism.sampler.kind}){phases}"
    )
    if recipe.ledger is not None:
        purposes = dict.fromkeys(line.purpose for line in recipe.ledger.lines)
        spent_before = at_most(recipe.ledger.epsilon(config.delta))
        table.add_row("before", f"{', '.join(purposes)}: epsilon {spent_before} of the above")
    if config.recipe is not None:
        table.add_row("recipe", plain(config.recipe.replace(",", ", ")))
    for text in config.repairs:
        table.add_row("repair", plain(text))
    if needed := too_few(recipe):
        table.add_row(
            "[bold yellow]too few[/]",
            f"a class needs about {needed:,.0f} {several_units(unit)} to be heard above the noise, and there are {n:,} in all: "
            "hardly anything will be learned. More epsilon, more rows, or fewer weights (noisewise plan).",
        )
    expected = runs * seconds(recipe, config.runtime(), twin=config.twin)
    table.add_row("takes", f"about {in_words(expected)}{', twin included' if config.twin else ''}")
    name = config.data.rpartition("/")[2]
    console.print(f"[bold]{config.model}[/] on [bold]{name}[/]", soft_wrap=True)
    console.print(table)

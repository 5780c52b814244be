"""`noisewise epsilon` and `noisewise calibrate`: what a plan costs, before any training."""

from __future__ import annotations

import json
import math
from typing import TYPE_CHECKING, Annotated

import typer

from noisewise.cli.shared import (
    PLAN,
    BatchSize,
    Delta,
    Epochs,
    Neighbours,
    Sampler,
    Steps,
    checked_delta,
    example,
    option,
    terminal,
)
from noisewise.errors import ConfigError

if TYPE_CHECKING:
    from noisewise.accounting import Spent
    from noisewise.mechanism import Mechanism

Rows = Annotated[int, option(PLAN, "Rows in the training data; a number you declare public.", "--n")]
Drawn = Annotated[
    Sampler, option(PLAN, "poisson, full-batch, or shuffle (which earns no amplification).", metavar="NAME")
]
Json = Annotated[bool, typer.Option("--json", help="Print one JSON object and nothing else.")]


@example("noisewise epsilon --n 60000 --batch-size 256 --epochs 60 --noise-multiplier 1.1")
def epsilon(
    n: Rows,
    noise_multiplier: Annotated[float, option(PLAN, "Noise standard deviation over the clipping bound.")],
    batch_size: BatchSize = None,
    epochs: Epochs = None,
    steps: Steps = None,
    delta: Delta = None,
    sampler: Drawn = "poisson",
    adjacency: Neighbours = None,
    as_json: Json = False,
) -> None:
    """What a plan spends: epsilon by three accountants, before any training."""
    plan = _plan(n, batch_size, epochs, steps, sampler, adjacency, noise_multiplier)
    _show_plan(plan, checked_delta(delta, n), as_json, chosen=adjacency)


@example("noisewise calibrate --n 60000 --batch-size 256 --epochs 60 --epsilon 3")
def calibrate(
    n: Rows,
    epsilon: Annotated[float, option(PLAN, "Budget: the plan will cost at most this.")],
    batch_size: BatchSize = None,
    epochs: Epochs = None,
    steps: Steps = None,
    delta: Delta = None,
    sampler: Drawn = "poisson",
    adjacency: Neighbours = None,
    as_json: Json = False,
) -> None:
    """The least noise that meets a budget: noise multiplier for an epsilon."""
    plan, spend_at = _plan(n, batch_size, epochs, steps, sampler, adjacency, None), checked_delta(delta, n)
    _show_plan(plan.calibrated(epsilon, spend_at), spend_at, as_json, chosen=adjacency)


def _plan(
    n: int,
    batch_size: int | None,
    epochs: float | None,
    steps: int | None,
    sampler: str,
    adjacency: str | None,
    noise_multiplier: float | None,
) -> Mechanism:
    from noisewise.accounting.defaults import default_adjacency
    from noisewise.mechanism import Mechanism
    from noisewise.sampling import SAMPLERS, FullBatch, steps_for

    if (epochs is None) == (steps is None):
        raise ConfigError("how long? Give --epochs or --steps, one of them.")
    if sampler == FullBatch.kind:
        if batch_size not in (None, n):
            raise ConfigError(f"--batch-size {batch_size} with --sampler full-batch: every step sees all {n} rows.")
        drawn = FullBatch(n)
    elif batch_size is None:
        raise ConfigError("how many rows per step? Give --batch-size, or --sampler full-batch for all of them.")
    else:
        drawn = SAMPLERS[sampler](n, batch_size)
    if steps is None:
        assert epochs is not None
        steps = steps_for(epochs, n, drawn.batch_size)
    return Mechanism(
        sampler=drawn,
        steps=steps,
        noise_multiplier=noise_multiplier,
        adjacency=adjacency or default_adjacency(sampler),
    )


def _show_plan(plan: Mechanism, delta: float, as_json: bool, chosen: str | None) -> None:
    spent = plan.spent(delta)
    if as_json:
        facts = {
            "epsilon": spent.epsilon,
            "delta": delta,
            "noise_multiplier": plan.noise_at(0),
            "steps": plan.steps,
            "rate": plan.sampler.rate,
            "accountant": "pld",
            "adjacency": plan.adjacency,
            "sampler": plan.sampler.kind,
            "rdp_epsilon": spent.rdp_epsilon,
            "gdp_epsilon": spent.gdp_epsilon,
            "rdp_reason": spent.rdp_reason,
            "gdp_reason": spent.gdp_reason,
        }
        infinite = {key: str(value) for key, value in facts.items() if isinstance(value, float) and math.isinf(value)}
        typer.echo(json.dumps(facts | infinite, allow_nan=False))
        return
    _print_plan(plan, spent, chosen)


def _print_plan(plan: Mechanism, spent: Spent, chosen: str | None) -> None:
    from rich.table import Table

    from noisewise.wording import GDP, GUARANTEE, RDP, at_most, promise, rounded_up

    promised = promise(spent.epsilon, spent.delta, plan.sampler.n, adjacency=plan.adjacency, unit=plan.unit)
    console = terminal()
    table = Table(box=None, padding=(0, 2, 0, 0), header_style="dim")
    table.add_column("accountant")
    table.add_column("epsilon", justify="right")
    table.add_column("")
    table.add_row("[bold]PLD[/]", f"[bold]{at_most(spent.epsilon)}[/]", GUARANTEE[promised.strength])
    table.add_row("RDP", at_most(spent.rdp_epsilon), spent.rdp_reason or RDP)
    table.add_row("GDP-CLT", at_most(spent.gdp_epsilon), spent.gdp_reason or GDP)
    sampler = plan.sampler
    forced = (
        f" (the {sampler.kind} sampler is proven for these only)" if sampler.kind == "shuffle" and not chosen else ""
    )
    console.print()
    console.print(table)
    console.print()
    facts = Table(box=None, padding=(0, 2, 0, 0), show_header=False)
    facts.add_column(style="dim")
    facts.add_column()
    facts.add_row("delta", at_most(spent.delta))
    facts.add_row("noise multiplier", f"{rounded_up(plan.noise_at(0), 6):.6g}")
    facts.add_row("steps", f"{plan.steps:,}")
    facts.add_row("rate", f"{sampler.rate:.6g}   ({sampler.batch_size:,} of {sampler.n:,} rows per step)")
    facts.add_row("sampler", sampler.kind)
    facts.add_row("adjacency", f"{plan.adjacency}{forced}")
    console.print(facts)
    console.print()
    console.print(promised.meaning)

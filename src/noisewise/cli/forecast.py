"""`noisewise plan`: what epsilon buys, before any training."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from noisewise.cli.shared import PLAN, Jobs, Json, PerGpu, RayAddress, checked_delta, example, option, plain, terminal
from noisewise.jobs import chosen
from noisewise.runs.files import finite
from noisewise.wording import KEEP_INTERNAL, number, percent_at_most
from noisewise.workflow.plan_inputs import EPSILONS, Asked

if TYPE_CHECKING:
    from noisewise.estimates.estimate import Estimate
    from noisewise.workflow.forecast import Forecast

RECORDS, REACHED = "Records", "Accuracy"  # panels of --help


@example("noisewise plan --n 5000 --features 40 --classes 2 --stand-in breast_cancer")
def plan(
    n: Annotated[int, option(PLAN, "People (or rows) to be protected; a number you declare public.", "--n")],
    epsilon: Annotated[list[float] | None, option(PLAN, "May be repeated. Default: 0.5, 1, 3 and 10.")] = None,
    delta: Annotated[float | None, option(PLAN, "Default: the largest power of ten at most 1/(10 n).")] = None,
    batch_size: Annotated[int | None, option(PLAN, "Expected rows per step. Default: what train would take.")] = None,
    epochs: Annotated[float | None, option(PLAN, "Passes over the data. Default: what train would take.")] = None,
    features: Annotated[int | None, option(RECORDS, "Encoded columns of a record.")] = None,
    classes: Annotated[int | None, option(RECORDS, "Classes to tell apart. Default: 2.")] = None,
    data: Annotated[
        Path | None, option(RECORDS, "A schema file, which says both; no row is read.", metavar="SCHEMA")
    ] = None,
    model: Annotated[
        str | None, option(RECORDS, "By name, or FILE.py:FUNCTION. Default: what train would take.")
    ] = None,
    stand_in: Annotated[
        str | None,
        option(
            REACHED, "A public data set that resembles yours: digits and breast_cancer are embedded.", metavar="NAME"
        ),
    ] = None,
    runs: Annotated[
        list[Path] | None, option(REACHED, "Finished and audited runs at hand; may be repeated.", metavar="DIR")
    ] = None,
    seeds: Annotated[int, option(REACHED, "Runs on the stand-in for each epsilon.")] = 3,
    plot: Annotated[Path | None, option(REACHED, "Draw it too, as .png, .svg or .pdf.", metavar="FILE")] = None,
    jobs: Jobs = None,
    ray: RayAddress = None,
    per_gpu: PerGpu = None,
    as_json: Json = False,
) -> None:
    """What epsilon buys, before any training: accuracy, noise, and the smallest class that can be learned.

    No private row is read. Accuracy comes from a public stand-in, on which the plan for your number of people is tried, or
    from runs at hand. How many people a class needs: with fewer, the clipped gradients of all of them, over all steps, are
    together shorter than the noise of all steps, m < sigma sqrt(d) / (q sqrt(T)), for d weights, T steps and a share q of
    the people in each. More weights catch more noise; --model holds them fixed.
    """
    where = chosen(jobs, ray, per_gpu)
    asked = Asked(
        n=n, epsilons=tuple(sorted(set(epsilon or EPSILONS))), features=features, classes=classes, schema=data, model=model,
        delta=delta, batch_size=batch_size, epochs=epochs, stand_in=stand_in, runs=tuple(runs or ()), seeds=seeds, plot=plot,
    )  # fmt: skip
    checked_delta(delta, n)
    from noisewise.workflow.forecast import draw, forecast

    result = forecast(asked, where=where, progress=not as_json)
    if plot is not None:
        draw(result, plot)
    if as_json:
        print(json.dumps(finite(result.to_dict()), indent=2))
    else:
        _print_forecast(result, plot)


def _print_forecast(result: Forecast, plot: Path | None) -> None:
    from rich.table import Table

    console = terminal()
    table = Table(box=None, padding=(0, 2, 0, 0), header_style="dim")
    table.add_column("epsilon", justify="right")
    for heading in ("a guess is right", "noise / bound", "noise per weight", "weights", "a class needs"):
        table.add_column(heading, justify="right")
    table.add_column(f"{result.measure}, %" if result.source else "", no_wrap=result.measure == "accuracy")
    for row in result.rows:
        table.add_row(
            f"[bold]{row.epsilon:g}[/]", f"{percent_at_most(row.epsilon, result.delta)} %", number(row.noise_multiplier),
            f"{row.step_noise:.2g}", f"{row.coordinates:,}", f"{row.smallest_class:,.0f}",
            _cell(row.score) if result.source else "",
        )  # fmt: skip
    if result.without is not None:
        table.add_row("[dim]none[/]", "", "", "", "", "", _cell(result.without))
    console.print()
    console.print(table)
    console.print()
    first, last = result.rows[0], result.rows[-1]
    lines = [
        f"{result.n:,} people, delta {result.delta:g}; {_span(first.steps, last.steps)} steps of about "
        f"{_span(first.batch_size, last.batch_size)} people. Noise per weight: of a step's mean gradient.",
        *_about_classes(result),
        f"The {result.measure} is that of {result.source}, not of your people; intervals of 95 %."
        if result.source
        else "Accuracy is not known: name a public data set that resembles yours (--stand-in), or --runs.",
    ]
    if result.internal:
        lines.append(KEEP_INTERNAL)
    for line in lines:
        console.print(plain(line), style="dim")
    if plot is not None:
        console.print(f"[bold]Plot:[/] {plot}", soft_wrap=True)


def _about_classes(result: Forecast) -> list[str]:
    """What the smallest class is, and why it changes from row to row."""
    row = result.rows[0]
    lines = [
        f"A class needs: so many people in the data, at least. At epsilon {row.epsilon:g} one of fewer than "
        f"{row.smallest_class:,.0f} (a rare illness, say) is not learned: all that its people add to training is weaker than "
        "the noise."
    ]
    alike = result.with_one_model()
    if len({row.coordinates for row in result.rows}) > 1:
        listed = ", ".join(f"{needs:,.0f} at {row.epsilon:g}" for row, needs in zip(result.rows, alike, strict=True))
        lines.append(
            "Rows are of several models, as train would take them, and a larger one catches more noise. With the smallest, "
            f"{min(row.coordinates for row in result.rows):,} weights, throughout: {listed}."
        )
    return lines


def _span(first: int, last: int) -> str:
    return f"{first:,}" if first == last else f"{first:,} to {last:,}"


def _cell(score: Estimate | None) -> str:
    if score is None:
        return "not measured"
    return f"{100 * score.value:.1f} ({100 * score.low:.1f}–{100 * score.high:.1f})"

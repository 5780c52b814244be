"""Does an audit keep what all audits promise? For one's own audits, and for every audit of this package."""

from __future__ import annotations

import copy
import json
import tempfile
from dataclasses import is_dataclass, replace
from pathlib import Path
from typing import Any, get_type_hints

import numpy as np
import torch
from torch import nn

from noisewise.audits.audit import Audit
from noisewise.audits.people import SMALLEST
from noisewise.audits.result import Card, Result
from noisewise.data import Data
from noisewise.errors import ConfigError, PrivacyError, RunError
from noisewise.estimates.estimate import Estimate
from noisewise.runs.files import write_json
from noisewise.runs.folder import Status
from noisewise.runs.summary import STATUSES

COLUMN, FEW, OTHERS = "column of check_audit", "only these three", "everybody else"


def check_audit(
    audit: Audit, model: nn.Module, data: Data, *, twin: nn.Module | None = None, seed: int = 0, **settings: Any
) -> None:
    """Run an audit on small data and see that it keeps what all audits promise; raises an error that shows where not.

    - It runs without a twin, and with one where it compares; the model and torch's random state are left as they were.
    - The same generator gives the same result.
    - What it found (`values`) is a dataclass of the audit, and the result's class says which.
    - The result survives JSON, entry by entry in the same order; another version is refused.
    - A group of three people that is added to `data` (and to data among the settings) is named nowhere: small groups are
      counted, not shown.
    - Private people and twins give a result that is not called private.
    - Sentences, tables, figures and cards can be made from the reloaded result, without model and data.

    Args:
        audit: what is checked, e.g. the `AUDIT` of its file.
        model: any model that the audit takes.
        data: some 100 people; it counts as private here.
        twin: a second model; by default the model with other weights.
        seed: of the generator that the audit gets.
        settings: what the audit needs besides (`audit.needs`), and options that make it quick.
    """
    _check_description(audit)
    people = replace(_with_few(data), public=False)
    settings = {name: _with_few(value) if isinstance(value, Data) else value for name, value in settings.items()}

    def run(other: nn.Module | None) -> Result:
        subject = (model, people) if audit.model else (None, None)
        return audit.run(*subject, twin=other, generator=np.random.default_rng(seed), progress=False, **settings)

    before = _traces(model)
    result = run(None)
    if _traces(model) != before:
        raise ConfigError(
            f"{audit.name}: it changes the model or torch's random state. Work on a copy, fork the generator."
        )
    if _text(run(None)) != _text(result):
        raise ConfigError(f"{audit.name}: twice the same generator, two results. Draw from `generator` alone.")
    _check_result(audit, result, private_people=audit.model)
    if audit.twin:
        _check_result(audit, run(_other_weights(model, seed) if twin is None else twin), private_people=True)


def _check_description(audit: Audit) -> None:
    for what, text in {"name": audit.name, "takes": audit.takes}.items():
        if not text.strip():
            raise ConfigError(f"{audit.name!r}: its {what} is empty, and the command line shows it.")
    if not (audit.run.__doc__ or "").strip():
        raise ConfigError(f"{audit.name}: its function has no docstring, whose first line says what the audit asks.")


def _check_result(audit: Audit, result: Result, *, private_people: bool) -> None:
    if not isinstance(result, Result):
        raise ConfigError(f"{audit.name}: gives a {type(result).__name__}, must be a Result.")
    _check_values(audit, result)
    _check_status(audit, result.status, private_people)
    again = _reloaded(audit, result)
    _check_headline(audit, again)
    shown = [_text(result), *_shown(audit, again)]
    if any(FEW in text for text in shown):
        raise PrivacyError(
            f"{audit.name}: it shows a group of three people. Leave out groups of fewer than {SMALLEST}; "
            "`noisewise.audits.people.large_enough` gives the others."
        )


def _check_values(audit: Audit, result: Result) -> None:
    name, values = type(result).__name__, result.values
    if not is_dataclass(values):
        raise ConfigError(
            f"{audit.name}: `values` of its {name} is a {type(values).__name__}: must be a dataclass of the audit, so that "
            "every entry has a name and a type."
        )
    declared = get_type_hints(type(result))["values"]
    if declared is Any or not isinstance(values, declared):
        raise ConfigError(
            f"{audit.name}: `values` is a {type(values).__name__}, and its {name} does not say so: declare "
            f"`values: {type(values).__name__}` in the class."
        )


def _check_status(audit: Audit, status: Status, private_people: bool) -> None:
    if status.status not in STATUSES or not status.reason:
        raise ConfigError(f"{audit.name}: status {status!r} must be one of {', '.join(STATUSES)}, with a reason.")
    if private_people and status.status == "private":
        raise PrivacyError(
            f"{audit.name}: calls figures of private people, or of a twin, private, though no ledger covers them. "
            "`noisewise.audits.outputs.status_of` says what they are."
        )


def _reloaded(audit: Audit, result: Result) -> Result:
    raw = json.loads(_text(result))
    try:
        again = type(result).from_dict(raw)
    except RunError as error:
        raise ConfigError(f"{audit.name}: its result cannot be read back: {error}") from None
    if _text(again) != _text(result):
        raise ConfigError(
            f"{audit.name}: its result is another one after saving and loading. Declare the types of `values`."
        )
    try:
        type(result).from_dict(raw | {"version": result.version + 1})
    except RunError:
        return again
    raise ConfigError(f"{audit.name}: it reads a result of another version.")


def _check_headline(audit: Audit, result: Result) -> None:
    if not result.headline:
        raise ConfigError(f"{audit.name}: its headline is empty. Name the number or two to remember.")
    for name, estimate in result.headline.items():
        if not (isinstance(estimate, Estimate) and estimate.low <= estimate.value <= estimate.high):
            raise ConfigError(
                f"{audit.name}: {name!r} is {estimate}: must be an Estimate with its value in its interval."
            )


def _shown(audit: Audit, result: Result) -> list[str]:
    """All words of a result, everything drawn."""
    from matplotlib.figure import Figure as Canvas

    sentences, tables, figures, cards = result.sentences(), result.tables(), result.figures(), result.cards()
    if not (result.title and sentences and all(sentences)):
        raise ConfigError(f"{audit.name}: its result has no title or says nothing. Write `sentences`.")
    for table in tables:
        if any(len(row) != len(table.columns) for row in table.rows):
            raise ConfigError(f"{audit.name}: a row of the table {table.caption!r} has not as many cells as columns.")
    for draw in (result.plot, *(figure.draw for figure in figures)):
        axes = Canvas().add_subplot()
        if draw(axes) is not axes or not axes.has_data():
            raise ConfigError(f"{audit.name}: a drawing leaves its axes empty, or gives back others.")
    if not all(figure.caption and figure.words and figure.rows > 0 for figure in figures):
        raise ConfigError(f"{audit.name}: a figure has no caption, no words for whoever does not see it, or no height.")
    if not all(isinstance(card, Card) for card in cards):
        raise ConfigError(f"{audit.name}: what it gives for the first screen are no Cards.")
    cells = [text for table in tables for row in (table.columns, *table.rows) for text in row]
    return [*sentences, *cells, *(f"{figure.caption} {figure.words}" for figure in figures), *map(str, cards)]


def _with_few(data: Data) -> Data:
    """The same people in one more group column, three of them on their own."""
    owner = torch.arange(len(data)) if data.unit is None else data.unit
    if data.units < 2 * SMALLEST:
        raise ConfigError(f"{data.units} people: give at least {2 * SMALLEST}, so that there is a group to be shown.")
    few = torch.isin(owner, torch.unique(owner)[:3])
    groups, names = {**data.groups, COLUMN: few.long()}, {**data.group_names, COLUMN: (OTHERS, FEW)}
    return replace(data, groups=groups, group_names=names)


def _other_weights(model: nn.Module, seed: int) -> nn.Module:
    other, generator = copy.deepcopy(model), torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in other.parameters():
            parameter.add_(0.1 * torch.randn(parameter.shape, generator=generator).to(parameter))
    return other


def _traces(model: nn.Module) -> tuple[Any, ...]:
    """What an audit must leave alone, in a form that can be compared."""
    weights = {name: tensor.detach().cpu().double().numpy().tobytes() for name, tensor in model.state_dict().items()}
    modes = [module.training for module in model.modules()]
    grads = [parameter.grad is None for parameter in model.parameters()]
    return weights, modes, grads, torch.get_rng_state().numpy().tobytes()


def _text(result: Result) -> str:
    """The file that a run folder would hold."""
    with tempfile.TemporaryDirectory() as folder:
        write_json(path := Path(folder) / "result.json", result.to_dict())
        return path.read_text()

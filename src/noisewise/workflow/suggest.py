"""What to do next with a finished run: its audits are gathered, rules are asked, and the advice is kept among its secrets."""

from __future__ import annotations

import math
import os

import torch

from noisewise.accounting import Ledger
from noisewise.advice import AUDITS, Advice, Evidence, advise
from noisewise.audits import AUDITS as KNOWN
from noisewise.audits import Result, read
from noisewise.errors import ConfigError, DataError, RunError
from noisewise.progress import tracked
from noisewise.runs.files import write_json
from noisewise.runs.folder import RunFolder
from noisewise.runs.summary import read_ledger, read_summary
from noisewise.workflow.opened import Run, audit, open_run


def suggest(path: str | os.PathLike[str], *, progress: bool = False) -> tuple[Evidence, list[Advice]]:
    """Advice for a run, the most promising first, and what it is drawn from; also written to sensitive/suggestions.json.

    Audits that were asked before are read, the missing ones are asked. Guarantee: nothing is written outside `sensitive/`:
    audits look at people, and so does whatever follows from them.
    """
    if not RunFolder(path).config.exists():
        raise ConfigError(
            f"{path} was made in Python: its settings are in your code, so no command can be suggested. `noisewise audit "
            f"{path} --model FILE.py:NAME --data ...` says what privacy cost and why; `noisewise repairs` says what helps."
        )
    run = open_run(path)
    evidence = gathered(run, str(path), progress=progress)
    advice = advise(evidence)
    write_json(run.folder.suggestions, [one.to_dict() for one in advice])
    return evidence, advice


def gathered(run: Run, name: str, *, progress: bool = False) -> Evidence:
    """What rules read of an opened run that has a config; `name`: its folder, as commands write it."""
    assert run.config is not None
    results, unasked = dict[str, Result](), dict[str, str]()
    fitting = [each for each in AUDITS if run.data.test.task == "classification" or not KNOWN[each].classes]
    for each in tracked(
        fitting, "audits", len(fitting), show=progress and not all(_fresh(run, each) for each in fitting)
    ):
        try:
            results[each] = _kept(run, each) or audit(run, each)
        except (ConfigError, DataError) as error:
            unasked[each] = str(error)
    epsilon, twice = _spent(run.folder)
    return Evidence(
        folder=name,
        settings=vars(run.config),
        task=run.data.train.task,
        epsilon=epsilon,
        twice=twice,
        n=run.data.train.units,
        noise_multiplier=run.mechanism.noise_at(0),
        coordinates=sum(parameter.numel() for parameter in run.model.parameters()),
        class_sizes=_class_sizes(run),
        results=results,
        unasked=unasked,
    )


def _fresh(run: Run, name: str) -> bool:
    """Is there a result of an audit that is no older than the models it speaks of?"""
    written, models = run.folder.audit(name), (run.folder.model, run.folder.twin_weights)
    return written.exists() and written.stat().st_mtime >= max(m.stat().st_mtime for m in models if m.exists())


def _kept(run: Run, name: str) -> Result | None:
    """The result of an audit that was asked before; None if it must be asked anew."""
    if not _fresh(run, name):
        return None
    try:
        return read(run.folder.audit(name))
    except RunError:  # of an earlier version, or damaged
        return None


def _spent(folder: RunFolder) -> tuple[float, float]:
    """Epsilon of the run, and of two such runs together."""
    privacy, ledger = read_summary(folder)["privacy"], read_ledger(folder)
    if privacy["status"] != "private":
        return math.inf, math.inf
    both = Ledger(ledger.adjacency, [*ledger.lines, *ledger.lines], ledger.unit)
    return float(privacy["epsilon"]), both.epsilon(privacy["delta"])


def _class_sizes(run: Run) -> dict[str, int]:
    data = run.data.train
    if data.task != "classification":
        return {}
    people = torch.arange(len(data)) if data.unit is None else data.unit
    count = len(data.classes) or int(data.y.max()) + 1
    names = data.classes or tuple(map(str, range(count)))
    return {name: len(people[data.y == place].unique()) for place, name in enumerate(names)}

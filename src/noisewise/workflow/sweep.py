"""Carrying a sweep out: plans and their price first, then the runs, then a choice that only released numbers decide."""

from __future__ import annotations

import math
import os
import warnings
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from noisewise.accounting import Ledger, Line, pld_epsilon
from noisewise.data import Splits
from noisewise.data.tables import schema as schemas
from noisewise.data.tables.schema import Schema
from noisewise.errors import ConfigError, OddRows, PrivacyError, RunError
from noisewise.jobs import Job, Where, carry_out
from noisewise.progress import tracked
from noisewise.runs.files import read_json, write_atomically, write_json
from noisewise.runs.folder import RunFolder, Status
from noisewise.runs.summary import read_ledger, read_summary
from noisewise.workflow.config import PLAN, Config
from noisewise.workflow.defaults import filled_in
from noisewise.workflow.execution import execute, finished
from noisewise.workflow.plan import Planned
from noisewise.workflow.scores import PURPOSE, exact_score, noised_scores, right_answers, score_event, trained_model
from noisewise.workflow.sweep_file import BESIDE, NOISED, Sweep, check_same

FORMAT = 1
ROWS = ("data", "seed", "valid", "test", "drop_unlabelled", "public", "recipe", "device")  # what rows follow from


@dataclass(frozen=True)
class PlannedSweep:
    """Every run of a sweep, planned, and the schema of each; `public`: are all rows declared public?"""

    sweep: Sweep
    plans: tuple[Planned, ...]
    schemas: tuple[Schema | None, ...]
    public: bool

    @property
    def delta(self) -> float:
        """The smallest of the runs'."""
        return min(plan.config.delta for plan in self.plans)

    @property
    def epsilons(self) -> list[float]:
        """What each run costs."""
        known: dict[tuple[Any, ...], float] = {}
        costs = []
        for plan in self.plans:
            key = (plan.config.delta, *((line.event, line.count) for line in plan.recipe.lines()))
            if key not in known:
                known[key] = plan.recipe.epsilon(plan.config.delta)
            costs.append(known[key])
        return costs

    @property
    def before(self) -> list[Line]:
        """Lines of a schema that was chosen with noise, where all runs have the same one."""
        ledgers = [schema.ledger for schema in self.schemas if schema is not None and schema.ledger is not None]
        same = len(ledgers) == len(self.plans) and all(schema is self.schemas[0] for schema in self.schemas)
        return list(ledgers[0].lines) if same else []

    @property
    def status(self) -> Status:
        """What the runs will be: not private as soon as one of them is not."""
        return next((plan.status for plan in self.plans if plan.status.status != "private"), self.plans[0].status)

    def together(self, extra: Sequence[Line] = ()) -> float:
        """What all runs cost in all, with what else was released; infinite as soon as one run is not private."""
        if self.status.status != "private":
            return math.inf
        return composed([plan.recipe.lines() for plan in self.plans], self.before, extra, self.delta, self.adjacency)

    def score_lines(self) -> list[Line]:
        """What the release of noised scores will write."""
        assert self.sweep.choose is not None
        assert self.sweep.choose.epsilon is not None
        event = score_event(self.sweep.choose.epsilon, self.delta, self.adjacency)
        return [Line(event, PURPOSE, 1, 0)]

    @property
    def adjacency(self) -> str:
        """What neighbours differ by: one for all."""
        return self.plans[0].mechanism.adjacency


def composed(
    runs: Sequence[Sequence[Line]], before: Sequence[Line], extra: Sequence[Line], delta: float, adjacency: str
) -> float:
    """Epsilon of runs by PLD; lines `before` all of them count once."""
    counts: Counter[Any] = Counter()
    rest = [lines[len(before) :] if list(lines[: len(before)]) == list(before) else lines for lines in runs]
    for line in [*before, *extra, *(line for lines in rest for line in lines)]:
        counts[line.event] += line.count
    return pld_epsilon(list(counts.items()), delta, adjacency)


def plan_sweep(sweep: Sweep, *, progress: bool = True) -> PlannedSweep:
    """Plan every run: settings, noise, price. Refuses choices that would look at private rows without paying."""
    known: dict[tuple[Any, ...], float | None] = {}
    rows: dict[tuple[Any, ...], Splits] = {}
    read: dict[str, Schema] = {}
    plans, used = [], []
    with warnings.catch_warnings():
        for number, settings in enumerate(tracked(sweep.runs, "planning", len(sweep.runs), show=progress)):
            schema = None
            if "schema" in settings:
                schema = read.setdefault(settings["schema"], schemas.read(settings["schema"]))
            plans.append(_planned(settings, schema, known, rows))
            used.append(schema)
            if number == 0:
                warnings.simplefilter("ignore", OddRows)  # said once
    whole = PlannedSweep(
        sweep, tuple(plans), tuple(used), all(plan.data.valid.public and plan.data.train.public for plan in plans)
    )
    if len({(plan.mechanism.adjacency, plan.mechanism.unit) for plan in plans}) > 1:
        raise PrivacyError(
            "the runs protect different things (adjacency or unit), so that their total cannot be told. Use one."
        )
    _check_choice(whole)
    return whole


def _planned(
    settings: dict[str, Any],
    schema: Schema | None,
    known: dict[tuple[Any, ...], float | None],
    rows: dict[tuple[Any, ...], Splits],
) -> Planned:
    """One run. `known`: noise of equal plans. `rows`: of the runs before, so that equal ones lie in memory once."""
    given = {"twin": False, **{key: value for key, value in settings.items() if key not in BESIDE}}
    filled, splits = filled_in(given, settings.get("epochs"), schema)
    config = Config(**filled)
    splits = rows.setdefault((id(schema), *(getattr(config, name) for name in ROWS)), splits)
    key = tuple(getattr(config, name) for name in PLAN)
    if config.epsilon is not None:
        config = replace(config, noise_multiplier=known.get(key))
    recipe = Planned(config, splits).recipe
    if config.noise_multiplier is None:
        known[key] = recipe.mechanism.noise_at(0)
        config = replace(config, noise_multiplier=known[key])
    return Planned(config, splits, recipe)


def _check_choice(whole: PlannedSweep) -> None:
    sweep, valid = whole.sweep, whole.plans[0].data.valid
    if sweep.stand_in is not None and not whole.public:
        raise PrivacyError(
            "[stand_in] names rows that are not public: trying settings on them would cost their people. Say public = true if "
            "they are published, or use another stand-in."
        )
    if sweep.choose is None:
        return
    if sweep.choose.by != NOISED and not whole.public:
        raise PrivacyError(
            "[choose] by = 'valid' with rows that are not public: the best of many exact scores tells of held-out people. "
            f"Pay for it (by = {NOISED!r}, epsilon = 0.1), try settings on public rows ([stand_in]), or leave [choose] out."
        )
    if not len(valid):
        raise ConfigError("[choose] without held-out rows: set valid in [train], e.g. valid = 500.")
    if sweep.choose.by == NOISED and valid.task != "classification":
        raise ConfigError(
            "[choose] a noised score is a share of right answers, and this is a regression: use [stand_in]."
        )


def run_job(out: Path, config: Config, schema: Schema | None, *, score: bool = False, progress: bool = False) -> Job:
    """A run as a job, named as its folder. Workers get settings and paths, and read the rows themselves."""
    settings = {
        "config": config.to_toml(),
        "out": str(out),
        "schema": None if schema is None else schema.to_dict(),
        "score": score,
        "progress": progress,
    }
    gpu = torch.cuda.is_available() if config.device is None else config.device.startswith("cuda")
    return Job(out.name, train_one, settings, gpu=gpu)


def train_one(
    config: str, out: str, schema: dict[str, Any] | None, score: bool, progress: bool = False
) -> dict[str, Any]:
    """One of many runs, as a job: trained, or resumed, into its folder; its score where the rows are public."""
    settings, folder = Config.from_toml(config), RunFolder(out)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", OddRows)
        planned = Planned.of(settings, None if schema is None else Schema.from_dict(schema))
    if not finished(settings, out):
        begun = folder.config.exists() or folder.run.exists() or folder.checkpoint.exists()
        execute(planned, out, resume=begun, progress=progress)
    privacy = read_summary(folder)["privacy"]
    result = {"epsilon": privacy["epsilon"], "status": privacy["status"]}
    return {**result, "score": exact_score(trained_model(planned, folder), planned.data.valid)} if score else result


def carry_out_sweep(
    whole: PlannedSweep, out: str | os.PathLike[str], where: Where | None = None, *, progress: bool = True
) -> dict[str, Any]:
    """Train all runs (those that are done stay), choose where a choice was asked for, and say what it cost together.

    Killed or stopped at any moment, the same call goes on, here or elsewhere. The choice is made from public or noised scores
    only; the noised ones are released once, with the ledger that holds them, and kept.
    """
    folder = Path(out)
    check_same(whole.sweep, folder)
    folder.mkdir(parents=True, exist_ok=True)
    keys = names_of(len(whole.plans))
    for key, schema in zip(keys, whole.schemas, strict=True):
        _check_same_schema(RunFolder(folder / key), schema)
    write_atomically(folder / "sweep.toml", whole.sweep.text.encode())
    scored = whole.public and len(whole.plans[0].data.valid) > 0
    jobs = [
        run_job(folder / key, plan.config, schema, score=scored)
        for key, plan, schema in zip(keys, whole.plans, whole.schemas, strict=True)
    ]
    results = carry_out(jobs, folder / "jobs", where, progress=progress, label="runs")
    folders = [RunFolder(folder / key) for key in keys]
    paid = _paid_scores(whole, folders, folder)
    scores = paid["shares"] if paid else [results[key].get("score") for key in keys]
    content = _described(whole, keys, folders, results, scores, paid)
    write_json(folder / "sweep.json", content)
    return content


def _check_same_schema(run: RunFolder, schema: Schema | None) -> None:
    """A schema that was chosen anew with noise was paid for anew: its runs are others."""
    if run.schema.exists() and read_json(run.schema) != (None if schema is None else schema.to_dict()):
        raise RunError(
            f"{run.path} was trained under another schema than the one that is named now: choosing it anew has spent more "
            "than the total says. Put the old schema back (it lies there as schema.json), or give another --out."
        )


def names_of(count: int) -> list[str]:
    """run-01, run-02, ..."""
    return [f"run-{number:0{max(2, len(str(count)))}d}" for number in range(1, count + 1)]


def _paid_scores(whole: PlannedSweep, folders: Sequence[RunFolder], folder: Path) -> dict[str, Any] | None:
    """Noised scores, released once: what is on the disk already is not drawn again."""
    choose = whole.sweep.choose
    if choose is None or choose.by != NOISED:
        return None
    path = folder / "scores.json"
    if not path.exists():
        parts = [plan.data.valid for plan in whole.plans]
        sums = [right_answers(trained_model(plan, run), part)
                for plan, run, part in zip(whole.plans, folders, parts, strict=True)]  # fmt: skip
        assert choose.epsilon is not None
        first = whole.plans[0]
        scores = noised_scores(
            sums,
            [part.units for part in parts],
            epsilon=choose.epsilon,
            delta=whole.delta,
            adjacency=whole.adjacency,
            unit=first.mechanism.unit,
            insecure_seed=first.config.insecure_seed,
            secure=any(plan.config.secure for plan in whole.plans),
        )
        content = {"shares": scores.shares, "deviation": scores.deviation, "ledger": scores.ledger.to_dict()}
        write_json(path, {"format": FORMAT, **content})
    stored: dict[str, Any] = read_json(path)
    if len(stored["shares"]) != len(folders):
        raise RunError(f"{path} holds {len(stored['shares'])} scores for {len(folders)} runs: restore it from a copy.")
    return stored


def _described(
    whole: PlannedSweep,
    keys: Sequence[str],
    folders: Sequence[RunFolder],
    results: dict[str, Any],
    scores: Sequence[float | None],
    paid: dict[str, Any] | None,
) -> dict[str, Any]:
    extra = Ledger.from_dict(paid["ledger"]).lines if paid else []
    lines = [read_ledger(run).lines for run in folders]
    private = all(result["status"] == "private" for result in results.values())
    total = composed(lines, whole.before, extra, whole.delta, whole.adjacency) if private else math.inf
    known = [score for score in scores if score is not None]
    best = keys[scores.index(max(known))] if known else None
    rows = [
        {"run": key, "settings": tried, **results[key], "score": score}
        for key, tried, score in zip(keys, whole.sweep.tried, scores, strict=True)
    ]
    return {
        "format": FORMAT,
        "public": whole.public,
        "task": whole.plans[0].data.train.task,
        "unit": whole.plans[0].mechanism.unit,
        "adjacency": whole.adjacency,
        "n": whole.plans[0].mechanism.sampler.n,
        "delta": whole.delta,
        "epsilon": total,
        "score": None if not known else "noised" if paid else "exact",
        "score_epsilon": Ledger.from_dict(paid["ledger"]).epsilon(whole.delta) if paid else None,
        "score_deviation": paid["deviation"] if paid else None,
        "runs": rows,
        "chosen": best,
    }

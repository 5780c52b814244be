"""Checks of a run folder by somebody without the data: do its files fit together, and does this machine's engine hold?

They show that nothing was changed on its own. They do not show who wrote the folder: whoever changes every file alike, digests
included, is not seen.
"""

from __future__ import annotations

import hmac
import json
import math
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Literal

import torch
from torch import nn

from noisewise.accounting import Ledger, Line
from noisewise.accounting.events import event_to_dict
from noisewise.accounting.ledger import joined
from noisewise.audits.engine_epsilon import engine_epsilon
from noisewise.clipping import PerLayer
from noisewise.data import Data, Splits
from noisewise.data.tables.kinds import Classes
from noisewise.data.tables.schema import Schema
from noisewise.errors import ConfigError, NoisewiseError, OwnCode, RunError
from noisewise.losses import loss_for
from noisewise.mechanism import Mechanism
from noisewise.recipe import Recipe
from noisewise.runs.files import read_json
from noisewise.runs.folder import RELEASED, RunFolder
from noisewise.runs.scores import read_score
from noisewise.runs.states import Keep, read_states
from noisewise.runs.summary import read_summary
from noisewise.runs.tensors import read_weights
from noisewise.support import EVERYTHING
from noisewise.training.callbacks import PAID_ACCURACY
from noisewise.wording import at_least, at_most, number, several_units
from noisewise.workflow.config import Config
from noisewise.workflow.model_specs import build_model
from noisewise.workflow.opened import stored_schema
from noisewise.workflow.plan import ledger_before, optimizer_of, plan_of, recipe_of
from noisewise.workflow.repair_specs import parse
from noisewise.workflow.scores import PURPOSE

TRIALS = 20_000  # of the engine's audit: seconds
NAMES = ("files", "epsilon", "plan", "mechanism", "weights", "states", "metrics", "scores", "engine")
Verdict = Literal["ok", "fails", "cannot be checked"]
OK: Verdict = "ok"
FAILS: Verdict = "fails"
OPEN: Verdict = "cannot be checked"


@dataclass(frozen=True)
class Check:
    """One question: its answer, and why."""

    name: str
    verdict: Verdict
    why: str


class _Open(Exception):
    """There is nothing to hold against."""


def verified(
    path: str | os.PathLike[str], *, names: Sequence[str] = NAMES, progress: bool = False, trials: int = TRIALS
) -> list[Check]:
    """Every check of a finished run folder, without its data and without `sensitive/`; the engine's is asked last."""
    folder = RunFolder(path)
    if not folder.complete:
        raise RunError(f"{folder.path} holds no finished run: check the name; an unfinished one cannot be verified.")
    questions: dict[str, Callable[[RunFolder], str]] = {
        "files": _files,
        "epsilon": _epsilon,
        "plan": _plan,
        "mechanism": _mechanism,
        "weights": _weights,
        "states": _states,
        "metrics": _metrics,
        "scores": _scores,
        "engine": partial(_engine, progress=progress, trials=trials),
    }
    only_where = {"scores": folder.scores, "states": folder.states}
    asked = [name for name in names if name not in only_where or only_where[name].exists()]
    return [_answered(name, partial(questions[name], folder)) for name in asked]


def _answered(name: str, question: Callable[[], str]) -> Check:
    try:
        return Check(name, OK, question())
    except _Open as reason:
        return Check(name, OPEN, str(reason))
    except NoisewiseError as error:
        return Check(name, FAILS, str(error))
    except (KeyError, TypeError, ValueError, AttributeError, OverflowError) as error:
        return Check(name, FAILS, f"a file is damaged or of another version ({error!r}).")


# --- what was written --------------------------------------------------------------------------------------------------


def _files(folder: RunFolder) -> str:
    """Released files have the digests that run.json holds, and no file came or went."""
    about = read_json(folder.run)
    if "files" not in about:
        raise _Open("run.json holds no digests: an older version wrote it, so changed files show only below.")
    written, there = about["files"], folder.digests()
    changed = [name for name in there if name in written and not hmac.compare_digest(there[name], written[name])]
    lost = [name for name in written if name not in there]
    added = [name for name in there if name not in written]
    complaints = {"changed since the run ended": changed, "missing": lost, "added": added}
    words = "; ".join(f"{what}: {', '.join(names)}" for what, names in complaints.items() if names)
    if words:
        raise RunError(f"{words}. Restore the files from a copy.")
    known = {*RELEASED, folder.run.name, folder.sensitive.name}
    others = sorted(path.name for path in folder.path.iterdir() if path.name not in known)
    beside = f" Not of the run: {', '.join(others)}." if others else ""
    return f"{len(there)} files are those that were written.{beside}"


def _epsilon(folder: RunFolder) -> str:
    """The stated epsilons follow from the ledger, the words from them, and run.json says the same."""
    summary = read_summary(folder)
    privacy, lines = summary["privacy"], Ledger.from_dict(read_json(folder.ledger)).lines
    releases = sum(line.count for line in lines)
    stated = f"epsilon {at_most(float(privacy['epsilon']))} at delta {at_most(privacy['delta'])}"
    if privacy["status"] != "private":
        return f"{privacy['status']} ({privacy['reason']}), and nothing else is claimed."
    return f"{stated} is what the {releases:,} releases of the ledger cost (PLD, computed anew)."


def _scores(folder: RunFolder) -> str:
    """A noised score was released once; its noise is that of its ledger, which adds up with the model's."""
    score, privacy = read_score(folder), read_summary(folder)["privacy"]
    assert score is not None
    if privacy["status"] != "private":
        raise RunError(f"a noised score beside a run that is {privacy['status']}: it promises nothing.")
    lines = score.ledger.lines
    together = Ledger.from_dict(read_json(folder.ledger), unit=privacy["unit"]).composed(score.ledger)
    if score.ledger.reproducible or score.ledger.releases != 1 or lines[0].purpose != PURPOSE:
        raise RunError(
            f"the ledger of scores.json holds {_in_words(lines)}, not one release of scores with fresh noise."
        )
    noise = event_to_dict(lines[0].event)["noise_multiplier"] / score.units
    if not math.isclose(noise, score.deviation, rel_tol=1e-6):
        raise RunError(
            f"scores.json states a deviation of {100 * score.deviation:.3g} points, its ledger gives {100 * noise:.3g}."
        )
    share, low, high = score.shown
    cost, total = (ledger.epsilon(privacy["delta"]) for ledger in (score.ledger, together))
    return (
        f"one score was bought of {score.units:,} held-out {several_units(privacy['unit'])}, epsilon "
        f"{at_most(cost)}; with the model at most {at_most(total)}. "
        f"{share:.1f} % right, noise of {100 * noise:.1f} points ({low:.1f} to {high:.1f} %)."
    )


def _metrics(folder: RunFolder) -> str:
    """Epsilon over the run grows to what is stated at its end; no reading was taken that held-out people did not pay for."""
    if not folder.metrics.exists():
        raise _Open("there is no metrics.jsonl.")
    lines = [json.loads(line) for line in folder.metrics.read_text().splitlines()]
    steps = [line["step"] for line in lines]
    readings = [float(line["epsilon"]) for line in lines if line["epsilon"] is not None]
    stated = float(read_json(folder.summary)["privacy"]["epsilon"])
    if steps != sorted(set(steps)) or readings != sorted(readings):
        raise RunError("metrics.jsonl: steps or epsilons do not grow; lines were changed, lost or moved.")
    if readings and readings[-1] != stated and not math.isclose(readings[-1], stated, rel_tol=1e-3):
        raise RunError(f"metrics.jsonl ends at epsilon {number(readings[-1])}, summary.json states {number(stated)}.")
    return f"epsilon grows over {len(lines)} lines to the one stated.{_paid(folder, lines)}"


def _paid(folder: RunFolder, lines: list[dict[str, Any]]) -> str:
    """What readings of held-out people cost them; a run that was resumed may have paid for more than it shows."""
    readings = sum(PAID_ACCURACY in line for line in lines)
    if not readings and not folder.valid_ledger.exists():
        return ""
    if not folder.valid_ledger.exists():
        raise RunError(
            f"metrics.jsonl holds {readings} noised readings, and valid_ledger.json, their ledger, is missing."
        )
    ledger = Ledger.from_dict(read_json(folder.valid_ledger))
    if ledger.releases < readings:
        raise RunError(
            f"metrics.jsonl holds {readings} noised readings, valid_ledger.json {ledger.releases}: lines of it are gone."
        )
    delta = read_json(folder.summary)["privacy"]["delta"]
    cost = at_most(ledger.epsilon(delta))
    return (
        f" Its {readings} readings of held-out people cost these epsilon {cost} at delta {delta:g} (valid_ledger.json)."
    )


# --- what was planned --------------------------------------------------------------------------------------------------


def _plan(folder: RunFolder) -> str:
    """config.toml and n give the lines that are in the ledger, at no more than the config's epsilon."""
    written = joined(Ledger.from_dict(read_json(folder.ledger)).lines)
    if not folder.config.exists():
        planned = _written_plan(folder).lines()
        tail = written[len(written) - len(planned) :]
        if [_release(line) for line in tail] != [_release(line) for line in planned]:
            raise RunError(f"mechanism.json plans {_in_words(planned)}, the ledger holds {_in_words(written)}.")
        return (
            f"the ledger ends with what mechanism.json plans: {_in_words(planned)}. (Made in Python: no config.toml.)"
        )
    config = Config.read(folder.config)
    recipe = planned_recipe(folder, config)
    planned = recipe.lines()
    if planned != written:
        raise RunError(
            f"config.toml plans {_in_words(planned)}, the ledger holds {_in_words(written)}: one of them was changed."
        )
    if config.epsilon is not None and not (cost := recipe.epsilon(config.delta)) <= config.epsilon * (1 + 1e-3):
        raise RunError(f"the plan costs epsilon {at_most(cost)}, config.toml allows {number(config.epsilon)}.")
    return f"config.toml gives the ledger's lines: {_in_words(planned)}."


def _written_plan(folder: RunFolder) -> Mechanism:
    """The mechanism of a run that was made in Python; rules and plans of somebody's own cannot be read."""
    try:
        return Mechanism.from_dict(read_json(folder.mechanism))
    except OwnCode as error:
        raise _Open(f"{error} `noisewise.testing.checks.check_clip` asks a rule by itself.") from None


def _release(line: Line) -> tuple[Any, str, int]:
    return line.event, line.purpose, line.count


def _in_words(lines: list[Line]) -> str:
    return ", ".join(f"{line.count:,} x {line.purpose} ({_event(line)})" for line in lines) or "nothing"


def _event(line: Line) -> str:
    raw = event_to_dict(line.event)
    return " ".join([str(raw.pop("kind")), *(f"{name.replace('_', ' ')} {value:.6g}" for name, value in raw.items())])


def planned_recipe(folder: RunFolder, config: Config) -> Recipe:
    """What a config releases, with blank rows in place of its data: plans depend on how many there are, not on what they say.

    Repairs that are free leave no line; the others are applied. Somebody else's code is not run.
    """
    own = [text for text in (config.model, *config.repairs) if ".py:" in text]
    if ".py:" in config.clip:
        raise _Open(f"{config.clip} is a rule of code that is not here, and may ask for more than gradients.")
    if own and config.repairs:
        raise _Open(f"{own[0]} is code that is not here, and may change what is planned.")
    data = _blank(folder)
    paying = tuple(text for text in config.repairs if parse(text).cost != "free")
    config = replace(config, device="cpu", repairs=paying)
    if paying:
        if "shape" not in read_json(folder.summary)["data"] and data.train.schema is None:
            raise _Open(f"an older version wrote no shape of the inputs, which {paying[0]} needs.")
        try:
            return recipe_of(config, data)
        except ConfigError as error:
            raise _Open(f"{paying[0]} cannot be planned without the data: {error}") from None
    return Recipe(
        model=nn.Identity(),
        data=data,
        loss_fn=loss_for(data.train),
        mechanism=plan_of(config, data),
        optimizer=optimizer_of(config, config.lr),
        ledger=ledger_before(config, data),
    )


def _blank(folder: RunFolder) -> Splits:
    """As many units as the run had, of the same form, all blank: one row, shown n times."""
    summary, schema = read_json(folder.summary), stored_schema(folder)
    n, about = summary["data"]["n"], summary["data"]
    shape = (schema.width,) if schema is not None else tuple(about.get("shape", (1,)))
    classes = _classes(schema, about.get("classes", 0))
    regression = summary["task"] == "regression"
    y = torch.zeros(1, dtype=torch.float32 if regression else torch.long).expand(n)
    groups = {} if schema is None else {name: torch.zeros(1, dtype=torch.long).expand(n) for name in schema.groups}
    names = {} if schema is None else {name: tuple(kind.values) for name, kind in schema.groups.items()}
    train = Data(
        torch.zeros(1, *shape).expand(n, *shape),
        y,
        groups,
        classes,
        bool(about.get("public")),
        torch.arange(n) if summary["privacy"]["unit"] == "person" else None,
        names,
        schema,
    )
    few = train.take(torch.arange(min(n, 2)))
    return Splits(train, few, few)


def _classes(schema: Schema | None, count: int) -> tuple[str, ...]:
    if schema is not None:
        return schema.target.values if isinstance(schema.target, Classes) else ()
    return tuple(str(place) for place in range(count))


def _mechanism(folder: RunFolder) -> str:
    """mechanism.json says the same as config.toml, as far as both say it."""
    if not folder.mechanism.exists():
        raise _Open("there is no mechanism.json: an older version wrote the folder.")
    stored = read_json(folder.mechanism)
    if not folder.config.exists():
        raise _Open("there is no config.toml to hold mechanism.json against: the run was made in Python.")
    config = Config.read(folder.config)
    rebuilt = planned_recipe(folder, config).mechanism.to_dict()
    compared = ["sampler", "noise_multiplier", "steps", "adjacency", "unit"]
    if not config.repairs and config.clip != PerLayer.kind:
        compared += ["clip", "support"]
    for name in compared:
        if stored[name] != rebuilt[name]:
            raise RunError(f"mechanism.json says {name} {stored[name]!r}, config.toml gives {rebuilt[name]!r}.")
    return f"mechanism.json and config.toml agree on {', '.join(compared)}."


def _weights(folder: RunFolder) -> str:
    """The weights are numbers, and those of the config's model."""
    weights = read_weights(folder.model)
    odd = [name for name, value in weights.items() if value.is_floating_point() and not bool(value.isfinite().all())]
    if odd:
        raise RunError(f"model.safetensors: {odd[0]} holds values that are not finite.")
    count = sum(value.numel() for value in weights.values())
    if not folder.config.exists():
        raise _Open(f"{count:,} finite numbers; which model they are of only its Python code says.")
    config = Config.read(folder.config)
    if ".py:" in config.model or any(".py:" in text or text.startswith("lora") for text in config.repairs):
        raise _Open(f"{count:,} finite numbers; {config.model} is not rebuilt here.")
    data = _blank(folder).train
    if data.schema is None and "shape" not in read_json(folder.summary)["data"]:
        raise _Open(f"{count:,} finite numbers; an older version wrote no shape of the inputs.")
    outputs = 1 if data.task == "regression" else len(data.classes)
    expected = build_model(config.model, tuple(data.x.shape[1:]), outputs, config.seed).state_dict()
    forms = {name: tuple(value.shape) for name, value in weights.items()}
    if forms != {name: tuple(value.shape) for name, value in expected.items()}:
        raise RunError(f"model.safetensors does not hold the weights of {config.model}.")
    return f"{count:,} finite numbers, those of {config.model}."


def _states(folder: RunFolder) -> str:
    """The weights along the run are those of the steps that were asked for."""
    if not folder.config.exists():
        raise _Open("which states were asked for only the run's Python code says.")
    config, kept = Config.read(folder.config), [step for step, _ in read_states(folder)]
    asked = Keep.evenly(config.keep_states or 0, config.steps).steps
    if odd := [step for step in kept if step not in asked]:
        raise RunError(f"states.safetensors holds the weights after step {odd[0]}, for which config.toml does not ask.")
    return f"{len(kept)} of the {len(asked)} states that config.toml asks for."


# --- this machine ------------------------------------------------------------------------------------------------------


def _engine(folder: RunFolder, *, progress: bool, trials: int) -> str:
    """One release of this mechanism on this machine gives away no more than it claims."""
    made_here = folder.config.exists()
    plan = planned_recipe(folder, Config.read(folder.config)).mechanism if made_here else _written_plan(folder)
    if isinstance(plan.clip_at(0), PerLayer):
        raise _Open(
            "rules per layer name parameters of the run's model. `noisewise audit DIR --only engine-epsilon` asks it."
        )
    if not plan.noise_at(0):
        raise _Open("there is no noise, so nothing is claimed.")
    delta = read_json(folder.summary)["privacy"]["delta"]
    try:
        result = engine_epsilon(
            mechanism=replace(plan, support=EVERYTHING), trials=trials, progress=progress, generator=None, delta=delta
        )
    except ConfigError as error:
        raise _Open(str(error)) from None
    proven, claimed = result.headline["empirical epsilon"].low, result.claimed
    words = (
        f"of the epsilon {at_most(claimed)} that one release claims at delta {at_most(delta)}, {at_least(proven)} was found "
        f"in {trials:,} trials"
    )
    if result.exceeds:
        raise RunError(f"{words}: the engine of this machine is faulty. Do not publish what it trained.")
    return f"{words}: nothing exceeds the claim."

"""Checkpoints: everything that the next step depends on, in one atomic file; only the same run takes one up again."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import torch
from torch import Tensor

from noisewise.accounting import Identity, Ledger
from noisewise.accounting.ledger import joined
from noisewise.distributed import Team
from noisewise.distributed.sharding import divided
from noisewise.errors import RunError
from noisewise.randomness import Entropy
from noisewise.runs.folder import RunFolder, Status
from noisewise.runs.states import Keep
from noisewise.runs.tensors import load_tensors, save_tensors
from noisewise.runtime import Runtime
from noisewise.training import lineage
from noisewise.training.run import Run
from noisewise.training.summary import status_of
from noisewise.training.together import agree_at_start, agree_on_course

FORMAT = 2
BINDINGS = ("origin", "chain", "event_chain")  # of a state's noise


def open_folder(folder: RunFolder, run: Run, resume: bool, beginning: Mapping[str, Any]) -> Status:
    """Begin a run in the folder (with what `contents_of` gave) or take up the one there; says whether it is private."""
    if folder.begun:
        if not resume:
            raise RunError(
                f"{folder.path} holds an unfinished run: go on with resume=True (--resume), or choose another."
            )
        load(run)
    elif folder.run.exists():
        raise RunError(f"{folder.path} holds a finished run: choose another folder, so that no release is overwritten.")
    elif resume:
        raise RunError(
            f"{folder.path} holds no run to go on with: check the path, or begin one without resume (--resume)."
        )
    else:
        _check_nothing_lost(folder)
        save(run, beginning)  # the secret root is on disk before anything depends on it
    status = status_of(run.state, run.ablation)
    folder.write_run("running", status)
    return status


def _check_nothing_lost(folder: RunFolder) -> None:
    """Refuse a folder with a file that the run would replace, though no run wrote it."""
    written = (folder.model, folder.ledger, folder.summary, folder.mechanism, folder.metrics, folder.states)
    if there := [path.name for path in written if path.exists()]:
        raise RunError(
            f"{folder.path} holds no run, but a {there[0]} that this run would replace: choose another folder, so that "
            "nothing is overwritten."
        )


def save_agreed(run: Run) -> None:
    """Save where the run stands, once all its processes say that they stand there too."""
    agree_on_course(run.model, run.state)
    contents = contents_of(run)
    if run.folder:
        save(run, contents)


def contents_of(run: Run) -> dict[str, Any]:
    """Weights, optimizer and averages; where they are spread over ranks all of these ask for them, and they are whole here."""
    parts = {
        "model": dict(run.model.state_dict()), "optimizer": run.optimizer.state_dict(), "averaged": run.averaged,
    }  # fmt: skip
    return parts if run.state.sharded is None or run.where is None else dict(run.whole(parts))


def save(run: Run, contents: Mapping[str, Any]) -> None:
    """Everything that the next step depends on, in one atomic file."""
    assert run.folder is not None
    state = run.state
    assert state.ledger.identity is not None
    assert state.origin is not None
    tree = {
        "format": FORMAT,
        "step": state.step,
        "mechanism": state.mechanism.to_dict(),
        "ablation": run.ablation,
        "seed": state.seed,
        "ledger": state.ledger.to_dict(),
        "before": Ledger(state.ledger.adjacency, state.before, state.ledger.unit).to_dict(),
        "identity": state.ledger.identity.to_dict(),
        "entropy": {
            "root": str(state.entropy.root),
            "reproducible": state.entropy.reproducible,
            "secure": state.entropy.secure,
            **{name: getattr(state, name).hex() for name in BINDINGS},
        },
        "weights": {name: sorted(m.hex() for m in getattr(state.outcome, name)) for name in ("fresh", "begun")},
        "behaviour": run.behaviour,
        **contents,
        "scheduler": None if run.scheduler is None else _plain_state(run.scheduler),
        "kinds": _kinds(run),
        "ema": run.ema,
        "clip": None if state.clip is None else dict(vars(state.clip)),
        "microbatch": state.microbatch,
        "captured": run.captured,
        "way": run.way,
        "keep": {"steps": sorted(run.keep.steps), "first": run.keep.first, "others": sorted(run.keep.others)},
        "ranks": state.team.size,
        "sharded": state.sharded is not None,
        "course": state.course.save(),
        "history": run.history,
    }
    save_tensors(run.folder.checkpoint, tree)
    run.saved_at = time.monotonic()


def _kinds(run: Run) -> dict[str, str]:
    """Classes whose saved state fits no other class."""
    return {"optimizer": type(run.optimizer).__name__, "scheduler": type(run.scheduler).__name__}


def load(run: Run) -> None:
    """Take up a checkpoint of the same plan; anything else is refused."""
    assert run.folder is not None
    _take_up(run, load_tensors(run.folder.checkpoint))
    run.folder.truncate_metrics(run.state.step)


def take_part(run: Run) -> bool:
    """All ranks go on from the checkpoint that the first one has taken up, whose file is sent; False if there was none."""
    team = run.state.team
    if not team.several or not team.said(run.resumed):
        return False
    content = team.said_bytes(run.folder.checkpoint.read_bytes() if run.folder else b"")
    if not team.first:
        with tempfile.TemporaryDirectory() as work:  # of mode 700
            path = Path(work, "checkpoint.safetensors")
            path.write_bytes(content)
            _take_up(run, load_tensors(path))
    agree_at_start(team, run.state, run.data, lineage.together(lineage.marks_of(run.model, team)))
    return True


def _take_up(run: Run, tree: Mapping[str, Any]) -> None:
    state = run.state
    try:
        _check_same_run(run, tree)
        state.step, state.before = tree["step"], Ledger.from_dict(tree["before"]).lines
        saved, secret = Ledger.from_dict(tree["ledger"]), tree["entropy"]
        state.ledger.lines[:], state.ledger.reproducible = saved.lines, saved.reproducible
        state.ledger.identity = Identity.from_dict(tree["identity"])
        for name in BINDINGS:
            setattr(state, name, bytes.fromhex(secret[name]))
        begun = {name: frozenset(map(bytes.fromhex, tree["weights"][name])) for name in ("fresh", "begun")}
        state.outcome = lineage.Outcome(state.ledger, **begun)
        state.entropy = Entropy(int(secret["root"]), secret["reproducible"], secret["secure"])
        state.microbatch = Runtime(microbatch=tree["microbatch"]).microbatch
        state.clip = None if tree["clip"] is None else replace(cast(Any, state.rule()), **tree["clip"])
        team, here = state.team, run.model.state_dict()
        run.model.load_state_dict({name: divided(here.get(name), part, team) for name, part in tree["model"].items()})
        state.course.load(tree["course"], dict(run.model.named_parameters()), state.step)
        run.optimizer.load_state_dict(_divided_state(run.optimizer, tree["optimizer"], team))
        if run.scheduler is not None:
            run.scheduler.load_state_dict(tree["scheduler"])
        for name, average in (run.averaged or {}).items():
            average.copy_(divided(average, tree["averaged"][name], team))
        run.history[:] = tree["history"]
        same_code = lineage.same_behaviour(tree["behaviour"], run.behaviour, run.model)
        if (tree.get("ranks", 1), tree.get("sharded", False)) != (team.size, state.sharded is not None):
            state.on_other_ranks()
        if not run.keep.asked and (kept := tree.get("keep")):  # as it was asked when the run began
            run.keep = Keep(frozenset(kept["steps"]), kept["first"], frozenset(kept["others"]))
        if tree.get("way") != run.way:
            state.by_another_way(repr(run.way))
    except (KeyError, TypeError, AttributeError, ValueError, RuntimeError, OverflowError) as error:
        raise RunError(
            f"the checkpoint in {run.where} does not fit this run ({' '.join(str(error).split())}). Resume with the "
            "model, optimizer and settings that it was begun with, or choose another folder."
        ) from None
    if type(state.step) is not int or not 0 <= state.step <= state.mechanism.steps:
        raise RunError(f"the checkpoint in {run.where} is damaged: it stands at step {state.step!r}.")
    if run.ablation == "private" and joined(state.ledger.lines) != state.planned():
        raise RunError(f"the checkpoint in {run.where} is damaged: step {state.step} and ledger disagree.")
    if not same_code:
        raise RunError(
            f"the checkpoint in {run.where} belongs to a run of another model, loss_fn or augment: they answer "
            "made-up units otherwise. The same noise on other sums would give them away: resume with the same code, or "
            "begin in another folder."
        )
    lineage.resumed(run.model, state.outcome)
    run.resumed = True


def _divided_state(optimizer: torch.optim.Optimizer, saved: Mapping[str, Any], team: Team) -> dict[str, Any]:
    """A saved state of an optimizer, in which what has the shape of a spread parameter is spread as that is."""
    numbers = [number for group in saved["param_groups"] for number in group["params"]]
    parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
    of = dict(zip(numbers, parameters, strict=True))
    state = {
        number: {
            key: divided(of[number], value, team)
            if isinstance(value, Tensor) and value.shape == of[number].shape
            else value
            for key, value in entries.items()
        }
        for number, entries in saved["state"].items()
    }
    return {**saved, "state": state}


def _check_same_run(run: Run, tree: Mapping[str, Any]) -> None:
    """The same settings, the same insecure seed and the same earlier phases."""
    settings = {
        "mechanism": run.state.mechanism.to_dict(),
        "ablation": run.ablation,
        "seed": run.state.seed,
        "ema": run.ema,
        "kinds": _kinds(run),
    }
    if tree["format"] != FORMAT:
        raise RunError(
            f"the checkpoint in {run.where} has format {tree['format']!r}, this version reads {FORMAT}: resume with the "
            "version that began the run, or begin in another folder."
        )
    _check_same_data(run, tree)
    for key, now in settings.items():
        if tree[key] != now:
            raise RunError(
                f"the checkpoint in {run.where} belongs to another run ({', '.join(_changes(key, tree[key], now))}). Use the "
                "same settings, or another folder."
            )
    given = run.state.ledger
    lines = given.to_dict()["lines"]
    drawn_anew = given.identity is not None and given.identity.keys != Identity.from_dict(tree["identity"]).keys
    if lines and (drawn_anew or lines not in (tree["before"]["lines"], tree["ledger"]["lines"])):
        raise RunError(
            f"the checkpoint in {run.where} does not continue this ledger, whose releases would be lost. "
            "Pass the ledger that the run began with, of the earlier phase."
        )
    entropy, begun = run.state.entropy, tree["entropy"]
    same_seed = begun["reproducible"] and int(begun["root"]) % (1 << 128) == entropy.root % (1 << 128)  # any phase
    if entropy.reproducible and not same_seed:
        raise RunError(f"the checkpoint in {run.where} was not made with this insecure_seed.")
    if entropy.secure != begun["secure"]:
        raise RunError(
            f"the checkpoint in {run.where} was made with secure={begun['secure']}, this run with "
            f"secure={entropy.secure}: its noise cannot change its kind. Resume with secure={begun['secure']}."
        )
    if (captured := tree.get("captured", False)) != run.captured:
        raise RunError(
            f"the checkpoint in {run.where} is of {_way(captured)} steps, this run makes {_way(run.captured)} ones: the "
            f"same noise on sums that differ would give them away. Resume with Runtime(capture={captured})."
        )


def _check_same_data(run: Run, tree: Mapping[str, Any]) -> None:
    """The data that the run began with. Before its settings, which follow from the number of rows."""
    if Identity.from_dict(tree["identity"]).fits(run.data):
        return
    then, now = (plan["sampler"].get("n") for plan in (tree["mechanism"], run.state.mechanism.to_dict()))
    what = "some value, type, order or owner differs" if then == now else f"n: {then} became {now}"
    raise RunError(
        f"the checkpoint in {run.where} belongs to a run on other data ({what}). The same noise on two data sets would give "
        "both away: resume with the same data, or begin in another folder."
    )


def _changes(name: str, then: Any, now: Any) -> list[str]:
    """What became what, entry by entry, of two that differ.

    >>> _changes("mechanism", {"steps": 5, "sampler": {"n": 100}}, {"steps": 5, "sampler": {"n": 101}})
    ['mechanism.sampler.n: 100 became 101']
    """
    if isinstance(then, Mapping) and isinstance(now, Mapping):
        keys = dict.fromkeys((*then, *now))
        changed = [key for key in keys if key not in then or key not in now or then[key] != now[key]]
        return [change for key in changed for change in _changes(f"{name}.{key}", then.get(key), now.get(key))]
    return [f"{name}: {then!r} became {now!r}"]


def _way(captured: bool) -> str:
    return "captured" if captured else "ordinary"


def _plain_state(scheduler: Any) -> dict[str, Any]:
    """A scheduler's state without functions: those come with the code again."""
    return {key: value for key, value in scheduler.state_dict().items() if not callable(value)}

"""What the processes of a run must have in common: compared at the start, at every checkpoint and at the end."""

from __future__ import annotations

import hashlib
import json
import platform
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

import torch
from torch import nn

from noisewise.data.marks import digest
from noisewise.distributed import Team
from noisewise.distributed.sharding import is_sharded
from noisewise.runs.folder import versions
from noisewise.training.state import State

SAME_START = (
    "All ranks of a run need the same code, data, settings, initial weights (torch.manual_seed before the model is made) and "
    "kind of machine: sums of what differs do not belong together. Nothing was released."
)
SAME_COURSE = (
    "They have gone apart, so this run has no one result: do not release it, and report a bug if the machines are alike. The "
    "last checkpoint was equal on all ranks."
)


def agree_at_start(team: Team, state: State, data: bytes, weights: bytes) -> None:
    """Refuse a rank with another plan, ledger, data (by its mark), weights, software or machine.

    What tells of records goes out under the key of the secret root, which all ranks have.
    """
    if not team.several:
        return
    facts = {
        "mechanism": _of_json(state.mechanism.to_dict()),
        "ledger": _of_json(state.ledger.to_dict()),
        "step": str(state.step),
        "seed": str(state.seed),
        "kind of noise (secure, insecure_seed)": f"{state.entropy.secure} {state.entropy.reproducible}",
        "set of data": state.entropy.key(b"agree", data).hex(),
        "set of initial weights": state.entropy.key(b"agree", weights).hex(),
        "version of noisewise's code": _code(),
        "version of Python, torch, numpy or dp-accounting": _of_json(versions()),
        "kind of machine": f"{platform.machine()} {torch.backends.cpu.get_cpu_capability()} {_gpu()}",
    }
    team.agree(facts, SAME_START)


def agree_on_run(team: Team, behaviour: Mapping[str, Any], settings: Mapping[str, Any]) -> None:
    """Refuse a rank that calls `train` with other settings, another model, loss or augmentation (by its `behaviour`)."""
    if team.several:
        asked = {name: f"{value:.2e}" for name, value in _losses(behaviour).items()}
        team.agree({**{name: str(value) for name, value in settings.items()}, **asked}, SAME_START)


def _losses(behaviour: Mapping[str, Any]) -> dict[str, float]:
    """Losses of made-up units, to a few digits: two machines of one kind differ less."""
    known = {mode: behaviour.get(mode) for mode in ("evaluated", "trained")}
    sums = {mode: None if losses is None else losses.abs().sum().item() for mode, losses in known.items()}
    return {f"model, loss or augment ({mode})": -1.0 if value is None else value for mode, value in sums.items()}


def agree_on_course(model: nn.Module, state: State) -> None:
    """Where a run stands is the same on all ranks: step, ledger, weights, rule and randomness; one size of micro-batches.

    Called before each checkpoint and at the end. Weights that are spread over the ranks are on none of them twice.
    """
    team = state.team
    if not team.several:
        return
    everywhere = [tensor for tensor in model.state_dict().values() if not is_sharded(tensor)]
    weights = hashlib.blake2b(b"".join(digest(tensor) for tensor in everywhere)).digest()
    facts = {
        "step": str(state.step),
        "ledger": _of_json(state.ledger.to_dict()),
        "set of weights": state.entropy.key(b"agree", weights).hex(),
        "clipping rule": repr(state.rule()) if state.step < state.mechanism.steps else "",
        "chain of optimizer settings": state.chain.hex(),
    }
    team.agree(facts, SAME_COURSE)
    smallest = team.least(state.microbatch or 1 << 62)
    state.microbatch = None if smallest == 1 << 62 else smallest


@cache
def _code() -> str:
    """Digest of noisewise's source."""
    root = Path(__file__).parent.parent
    whole = hashlib.blake2b(digest_size=16)
    for path in sorted(root.rglob("*.py")):
        whole.update(path.relative_to(root).as_posix().encode() + path.read_bytes())
    return whole.hexdigest()


def _gpu() -> str:
    return torch.cuda.get_device_name() if torch.cuda.is_available() else "no GPU"


def _of_json(content: Any) -> str:
    return hashlib.blake2b(json.dumps(content, sort_keys=True, default=str).encode(), digest_size=16).hexdigest()

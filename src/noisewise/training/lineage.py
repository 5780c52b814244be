"""Where models come from: which of them came out of a run, and whether one behaves as another did."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.weak import WeakIdKeyDictionary

from noisewise.accounting import Ledger
from noisewise.batches import Nest, map_tensors
from noisewise.data.marks import digest
from noisewise.distributed import ALONE, Team
from noisewise.distributed.sharding import whole_of
from noisewise.errors import PrivacyError
from noisewise.losses import unit_losses
from noisewise.persample.lent import is_lent, lending
from noisewise.persample.made_up import synthetic

UNITS = 3  # made-up units whose losses describe a model
SAME_LOSS = 1e-3  # relative; TF32 rounds at 1e-3 of a product
SAME_SHORT_LOSS = 3e-2  # in half precision


# --- behaviour --------------------------------------------------------------------------------------------------------


def behaviour(
    model: nn.Module, loss_fn: Any, like: Nest, example: Nest = None, augment: Callable[..., Nest] | None = None
) -> dict[str, Any]:
    """Losses of a few made-up units at made-up weights: two runs of the same code say the same.

    The weights depend on the parameters' names and shapes only, so that the answer is the same before, within and after
    a run and tells nothing of a record. Asked in evaluation mode, and in the model's own mode, where the layers' random
    draws follow the device. `like` gives shapes and types, `example` made-up units where random ones do not do.
    The model is put back bit for bit.
    """
    device = next(model.parameters()).device
    modes = {module: module.training for module in model.modules()}
    with torch.random.fork_rng(sorted({p.device.index or 0 for p in model.parameters() if p.is_cuda})), torch.no_grad():
        torch.manual_seed(0)
        units = synthetic(map_tensors(lambda tensor: tensor[:0].cpu(), like), UNITS) if example is None else example
        if augment is not None:
            units = augment(units, torch.Generator().manual_seed(0))
        units = map_tensors(lambda tensor: tensor.to(device), units)
        with _made_up_weights(model):
            in_own_mode = _losses(model, loss_fn, units)
            try:
                model.eval()
                evaluated = _losses(model, loss_fn, units)
            finally:
                for module, training in modes.items():
                    module.training = training
    return {"evaluated": evaluated, "trained": in_own_mode, "device": device.type}


def same_behaviour(one: Mapping[str, Any], other: Mapping[str, Any], model: nn.Module) -> bool:
    """Do two answers of `behaviour` come from the same code, up to rounding?"""
    short = any(p.dtype in (torch.float16, torch.bfloat16) for p in model.parameters())
    modes = ("evaluated", "trained") if one["device"] == other["device"] else ("evaluated",)
    return all(_close(one[mode], other[mode], SAME_SHORT_LOSS if short else SAME_LOSS) for mode in modes)


def draws(said: Mapping[str, Any]) -> bool:
    """Do layers draw in training, as dropout does? By an answer of `behaviour`: it is another one in evaluation mode."""
    return not _close(said["evaluated"], said["trained"], 1e-6)


def _close(one: Tensor | None, other: Tensor | None, tolerance: float) -> bool:
    if one is None or other is None:
        return one is other
    if one.shape != other.shape:
        return False
    scale = float(one.nan_to_num(0, 0, 0).abs().max()) if one.numel() else 0.0
    return torch.allclose(one, other, rtol=tolerance, atol=tolerance * scale, equal_nan=True)


def _losses(model: nn.Module, loss_fn: Any, units: Nest) -> Tensor | None:
    torch.manual_seed(1)
    try:
        return unit_losses(model, loss_fn, units).detach().double().cpu()
    except Exception:  # a loss that made-up weights do not suit fails again the next time
        return None


@contextmanager
def _made_up_weights(model: nn.Module) -> Iterator[None]:
    """Parameters that depend on their names and shapes only; afterwards the old ones, bit for bit."""
    before = [(parameter, parameter.detach().clone()) for parameter in model.parameters() if not is_lent(parameter)]
    lends = lending()
    try:
        for name, parameter in model.named_parameters():
            if parameter.is_floating_point() and not is_lent(parameter):
                parameter.data.copy_(_made_up(name, parameter))
        with nullcontext() if lends is None else lends.changed(_made_up):
            yield
    finally:
        for parameter, old in before:
            parameter.data.copy_(old)


def _made_up(name: str, parameter: Tensor) -> Tensor:
    seed = int.from_bytes(hashlib.blake2b(f"{name} {list(parameter.shape)}".encode()).digest()[:7], "little")
    drawn = torch.randn(parameter.shape, generator=torch.Generator().manual_seed(seed))
    inputs = max(1, parameter.numel() // max(1, len(parameter) if parameter.dim() else 1))
    made: Tensor = (drawn / inputs**0.5).to(parameter)
    return made


# --- outcomes of runs -------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Outcome:
    """What weights came out of: the run's ledger; marks of parameters when it began, and `fresh` ones, before any run."""

    ledger: Ledger
    fresh: frozenset[bytes] = frozenset()
    begun: frozenset[bytes] = frozenset()


_PARAMETERS: Any = WeakIdKeyDictionary()  # parameter -> its outcomes
_CONTENTS: dict[bytes, tuple[Outcome, ...]] = {}  # mark of what a run ended with, of a tensor or of all -> its outcomes
Marks = list[tuple[Tensor, bytes]]  # of each parameter


def marks_of(model: nn.Module, team: Team = ALONE) -> Marks:
    """The parameters of a model and their marks, as a whole. Cost: one reading of the weights."""
    return [(parameter, digest(whole_of(parameter, team))) for parameter in model.parameters()]


def together(marks: Marks) -> bytes:
    """The mark of all parameters."""
    return hashlib.blake2b(b"".join(mark for _, mark in marks), digest_size=32).digest()


def check_origin(marks: Marks, data: bytes, ledger: Ledger) -> None:
    """Weights that came out of a run on the same data (by its mark) go on with its ledger, or are refused.

    Recognised within one process: parameters that a run has moved, and copies of what a run ended with, tensor by tensor
    (as a whole, if `recipe.load_weights` read them). Weights as they were before the run are fresh. Limits: weights that
    were changed by hand or read from a file in another way are not recognised, nor are sets that share only some people
    with this one.
    """
    for earlier in {id(outcome): outcome for known in _known(marks) for outcome in known}.values():
        whose = earlier.ledger.identity
        if whose is not None and whose.fits(data) and not ledger.holds(earlier.ledger):
            what = ", ".join(f"{line.count} x {line.purpose}" for line in earlier.ledger.lines)
            raise PrivacyError(
                f"this model came out of a run on the same data, whose releases ({what}) the ledger does not hold: epsilon "
                "would leave them out. Pass that run's ledger, ledger=result.ledger, so that both add up; or start from a "
                "fresh model (a new run, whose epsilon adds to that one's)."
            )


def begin(marks: Marks, ledger: Ledger) -> Outcome:
    """From now on these parameters are those of a run with this ledger."""
    fresh: set[bytes] = set()
    others: list[tuple[Outcome, ...]] = []
    for (_, mark), known in zip(marks, _known(marks), strict=True):
        continued = [outcome for outcome in known if ledger.holds(outcome.ledger)]
        fresh = fresh.union(*(outcome.fresh for outcome in continued)) if continued else fresh | {mark}
        others.append(tuple(outcome for outcome in known if outcome not in continued))
    if not any(_known(marks)):
        _CONTENTS.setdefault(together(marks), ())  # fresh, also where a run without any effect is read later
    outcome = Outcome(ledger, frozenset(fresh), frozenset(mark for _, mark in marks))
    for (parameter, _), earlier in zip(marks, others, strict=True):
        _PARAMETERS[parameter] = (*earlier, outcome)
    return outcome


def end(model: nn.Module, copies: Mapping[str, Tensor] | None = None, team: Team = ALONE) -> None:
    """Copies of what a run ended with (the weights; or `copies`, such as their averages) are known from now on.

    But for tensors that it left as they were, and constant ones.
    """
    for name, parameter in model.named_parameters():
        outcomes = _PARAMETERS[parameter] = tuple(
            replace(outcome, ledger=replace(outcome.ledger, lines=list(outcome.ledger.lines)))
            for outcome in _PARAMETERS.get(parameter, ())
        )
        tensor = whole_of(parameter if copies is None else copies[name], team)
        mark = digest(tensor)
        if _varied(tensor) and not any(mark in outcome.fresh | outcome.begun for outcome in outcomes):
            _CONTENTS[mark] = outcomes


def handed_on(made: nn.Module, model: nn.Module) -> None:
    """Weights that were made of a model's come out of whatever those came out of; such as are still fresh ones are fresh."""
    outcomes = {id(outcome): outcome for known in _known(marks_of(model)) for outcome in known}
    old = {mark for _, mark in marks_of(model)}  # what is as it was is known as before
    for parameter, mark in marks_of(made) if outcomes else ():
        if mark in old:
            continue
        _PARAMETERS[parameter] = tuple(({id(one): one for one in _PARAMETERS.get(parameter, ())} | outcomes).values())
        if _varied(parameter) and not any(mark in outcome.fresh for outcome in outcomes.values()):
            _CONTENTS[mark] = tuple(outcomes.values())  # copies too


def resumed(model: nn.Module, outcome: Outcome) -> None:
    """The parameters are again those of a run that was interrupted."""
    for parameter in model.parameters():
        _PARAMETERS[parameter] = (outcome,)


def loaded(model: nn.Module, ledger: Ledger) -> None:
    """The weights were read from the folder of a finished run with this ledger.

    Copies of them are known as a whole: a single tensor may be as any fresh model's, if it was frozen.
    """
    outcome = Outcome(ledger)
    resumed(model, outcome)
    _CONTENTS.setdefault(together(marks_of(model)), (outcome,))


def _varied(tensor: Tensor) -> bool:
    """Are there two values in it? Constant ones any fresh model may hold."""
    return tensor.numel() > 0 and bool((tensor != tensor.flatten()[0]).any())


def _known(marks: Marks) -> list[list[Outcome]]:
    """For each parameter, the runs that it came out of."""
    whole = _CONTENTS.get(together(marks), ())
    return [
        [
            outcome
            for outcome in (*_PARAMETERS.get(parameter, ()), *_CONTENTS.get(mark, ()), *whole)
            if mark not in outcome.fresh
        ]
        for parameter, mark in marks
    ]

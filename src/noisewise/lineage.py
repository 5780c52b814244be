"""Where data and models come from: marks of data and weights, how a model behaves, and which models came out of a run."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.weak import WeakIdKeyDictionary

from noisewise.accounting import Ledger
from noisewise.data import Data
from noisewise.errors import PrivacyError
from noisewise.nest import Nest, map_tensors
from noisewise.persample.examine import synthetic
from noisewise.persample.losses import unit_losses

CHUNK = 1 << 24  # bytes hashed at a time
UNITS = 4  # made-up units whose losses describe a model
SAME_LOSS = 1e-3  # relative; TF32 rounds at 1e-3 of a product
SAME_SHORT_LOSS = 3e-2  # in half precision


# --- marks ------------------------------------------------------------------------------------------------------------


def mark_of(data: Data | Nest) -> bytes:
    """BLAKE2b of a whole protected set: names, types, shapes and bytes of x, y, unit and groups, or of a nest's tensors.

    It has no key, so it never leaves memory; `accounting.Identity` is made of it. Tensors that nobody has touched since
    (the same objects, at the same version) are not read again. Cost: about a second for each gigabyte, once; data from
    disk or on a GPU pass through memory in chunks. Limits: overlapping sets have marks that share nothing; writing
    through `.data` or a NumPy view of the same memory is not noticed.
    """
    if isinstance(data, Data):
        owned = {} if data.unit is None else {"unit": data.unit}
        parts = {"0": data.x, "1": data.y, **owned, **{f"groups/{name}": data.groups[name] for name in data.groups}}
    else:
        parts = dict(_named(data))
    digest = hashlib.blake2b(digest_size=32)
    for name in sorted(parts):
        digest.update(f"{len(name)} {name}".encode() + _mark_of_tensor(parts[name]))
    return digest.digest()


def _named(nest: Nest, path: str = "") -> Iterator[tuple[str, Tensor]]:
    if isinstance(nest, Tensor):
        yield path, nest
    elif isinstance(nest, Mapping | tuple | list):
        for key, item in nest.items() if isinstance(nest, Mapping) else enumerate(nest):
            yield from _named(item, f"{path}/{key}" if path else str(key))


_MARKS: Any = WeakIdKeyDictionary()  # tensor -> (version, mark)


def _mark_of_tensor(tensor: Tensor) -> bytes:
    if tensor.is_inference():  # has no version
        return _digest(tensor)
    version, mark = _MARKS.get(tensor, (None, b""))
    if version != tensor._version:
        mark = _digest(tensor)
        _MARKS[tensor] = tensor._version, mark
    return mark


def _digest(tensor: Tensor) -> bytes:
    rows = tensor.detach().reshape(1) if tensor.dim() == 0 else tensor.detach()
    digest = hashlib.blake2b(f"{tensor.dtype} {list(tensor.shape)}".encode(), digest_size=32)
    each = rows[:1].numel() * rows.element_size()
    for part in rows.split(max(1, CHUNK // max(1, each))):
        plain = part.resolve_conj().resolve_neg().cpu().contiguous()
        digest.update(plain.view(-1).view(torch.uint8).numpy())
    return digest.digest()


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
    own = {module: module.training for module in model.modules()}
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
                for module, training in own.items():
                    module.training = training
    return {"evaluated": evaluated, "trained": in_own_mode, "device": device.type}


def same_behaviour(one: Mapping[str, Any], other: Mapping[str, Any], model: nn.Module) -> bool:
    """Do two answers of `behaviour` come from the same code, up to rounding?"""
    short = any(p.dtype in (torch.float16, torch.bfloat16) for p in model.parameters())
    modes = ("evaluated", "trained") if one["device"] == other["device"] else ("evaluated",)
    return all(_close(one[mode], other[mode], SAME_SHORT_LOSS if short else SAME_LOSS) for mode in modes)


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
    before = [(parameter, parameter.detach().clone()) for parameter in model.parameters()]
    try:
        for name, parameter in model.named_parameters():
            if parameter.is_floating_point():
                seed = int.from_bytes(hashlib.blake2b(f"{name} {list(parameter.shape)}".encode()).digest()[:7], "little")
                drawn = torch.randn(parameter.shape, generator=torch.Generator().manual_seed(seed))
                inputs = max(1, parameter.numel() // max(1, len(parameter) if parameter.dim() else 1))
                parameter.data.copy_(drawn / inputs**0.5)
        yield
    finally:
        for parameter, old in before:
            parameter.data.copy_(old)


# --- outcomes of runs -------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Outcome:
    """What weights came out of: the run's ledger, and the marks of its parameters before any step."""

    ledger: Ledger
    start: frozenset[bytes]


_PARAMETERS: Any = WeakIdKeyDictionary()  # parameter -> its outcomes
_CONTENTS: dict[bytes, tuple[Outcome, ...]] = {}  # mark of what a run ended with -> its outcomes
Marks = list[tuple[Tensor, bytes]]  # of each parameter


def marks_of(model: nn.Module) -> Marks:
    """The parameters of a model and their marks. Cost: as `mark_of`, of the weights."""
    return [(parameter, _digest(parameter)) for parameter in model.parameters()]


def check_origin(marks: Marks, data: bytes, ledger: Ledger) -> None:
    """Weights that came out of a run on the same data (by its mark) go on with its ledger, or are refused.

    Recognised within one process: parameters that a run has moved, and copies of what a run ended with, tensor by tensor.
    Weights as they were before the run are fresh. Limits: weights that were changed by hand, and files that were read
    otherwise than by `recipe.load_weights`, are not recognised; nor are sets that share some people with this one.
    """
    for found in {id(known): known for parameter, mark in marks for known in _known(parameter, mark)}.values():
        whose = found.ledger.identity
        if whose is not None and whose.fits(data) and not ledger.holds(found.ledger):
            what = ", ".join(f"{line.count} x {line.purpose}" for line in found.ledger.lines)
            raise PrivacyError(
                f"this model came out of a run on the same data, whose releases ({what}) the ledger does not hold: epsilon "
                "would leave them out. Pass that run's ledger, ledger=result.ledger, so that both add up; or start from a "
                "fresh model (a new run, whose epsilon adds to that one's)."
            )


def begin(marks: Marks, ledger: Ledger) -> None:
    """From now on these parameters are those of a run with this ledger."""
    start: set[bytes] = set()
    others: dict[int, tuple[Outcome, ...]] = {}
    for parameter, mark in marks:
        known = _known(parameter, mark)
        continued = [outcome for outcome in known if ledger.holds(outcome.ledger)]
        start.update(*(outcome.start for outcome in continued)) if continued else start.add(mark)
        others[id(parameter)] = tuple(outcome for outcome in known if outcome not in continued)
    outcome = Outcome(ledger, frozenset(start))
    for parameter, _ in marks:
        _PARAMETERS[parameter] = (*others[id(parameter)], outcome)


def end(model: nn.Module, copies: Mapping[str, Tensor] | None = None) -> None:
    """Copies of what the run ended with (the weights; `copies` of them, such as averages) are known from now on.

    But for tensors that are as they were before it, and constant ones, which any fresh model may hold.
    """
    for name, parameter in model.named_parameters():
        outcomes = tuple(
            Outcome(replace(outcome.ledger, lines=list(outcome.ledger.lines)), outcome.start)
            for outcome in _PARAMETERS.get(parameter, ())
        )
        _PARAMETERS[parameter] = outcomes
        tensor = parameter if copies is None else copies[name]
        mark = _digest(tensor)
        fresh = any(mark in outcome.start for outcome in outcomes)
        if not fresh and tensor.numel() and bool((tensor != tensor.flatten()[0]).any()):
            _CONTENTS[mark] = outcomes


def loaded(model: nn.Module, ledger: Ledger) -> None:
    """The weights were read from a run with this ledger."""
    for parameter, mark in marks_of(model):
        start = frozenset[bytes]().union(*(outcome.start for outcome in _known(parameter, mark)))
        _PARAMETERS[parameter] = (Outcome(ledger, start),)
    end(model)


def _known(parameter: Tensor, mark: bytes) -> list[Outcome]:
    """The runs that the parameter came out of."""
    outcomes = (*_PARAMETERS.get(parameter, ()), *_CONTENTS.get(mark, ()))
    return [outcome for outcome in outcomes if mark not in outcome.start]

"""Made-up units, and the model as it is looked at with them."""

from __future__ import annotations

import zlib
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from typing import Any

import torch
from torch import Tensor, nn

from noisewise.batches import Nest, leaves, length, map_tensors, take
from noisewise.errors import NoisewiseError, PrivacyError
from noisewise.losses import unit_losses
from noisewise.persample.chance import reseed
from noisewise.persample.conditions import NotProven
from noisewise.persample.dispatched import RecordsRead, StateChanged
from noisewise.persample.lent import is_lent, lending

UNITS = 3


def units_and_others(like: Nest, example: Nest, classes: int | None) -> tuple[Nest, Nest]:
    """Three units, and for each of them another one to be put in its place."""
    if example is None:
        both = synthetic(like, 2 * UNITS, classes)
        return take(both, slice(0, UNITS)), take(both, slice(UNITS, None))
    if length(example) < UNITS:
        raise PrivacyError(f"example has {length(example)} units: the check needs at least {UNITS} different ones.")
    units, others = take(example, slice(0, UNITS)), take(example, (torch.arange(UNITS) + 1) % UNITS)
    same = [
        all(bool((a[i] == b[i]).all()) for a, b in zip(leaves(units), leaves(others), strict=True))
        for i in range(UNITS)
    ]
    if any(same):
        raise PrivacyError("example holds equal units: replacing one by another would show nothing. Make them differ.")
    return units, others


def synthetic(like: Nest, units: int, classes: int | None = None) -> Nest:
    """Random units in the shapes and types of a batch: normal numbers, and 0 or 1 for integers and truth values.

    Whole numbers with one entry for each unit are taken for labels: they are drawn from all `classes`, where given.
    """

    def fill(tensor: Tensor) -> Tensor:
        shape = (units, *tensor.shape[1:])
        if tensor.is_floating_point() or tensor.is_complex():
            return torch.randn(shape, dtype=tensor.dtype, device=tensor.device)
        high = classes if classes and tensor.dim() == 1 and tensor.dtype != torch.bool else 2
        return torch.randint(0, high, shape, device=tensor.device).to(tensor.dtype)

    return map_tensors(fill, like)


def batch_of(like: Nest, example: Nest, classes: int | None, units: int) -> Nest:
    """So many units: made up, or those of the example again and again."""
    if example is None:
        return synthetic(like, units, classes)
    return take(example, torch.arange(units) % length(example))


def losses_of(model: nn.Module, loss_fn: Any, units: Nest, seed: int = 1) -> Tensor:
    """Losses of made-up units, with the same draws for the same seed."""
    reseed(seed)  # the same dropout in every pass
    try:
        return unit_losses(model, loss_fn, map_tensors(torch.clone, units))
    except (NoisewiseError, NotProven, StateChanged, RecordsRead):
        raise
    except Exception as error:
        raise PrivacyError(
            f"the model could not be checked on synthetic inputs ({type(error).__name__}: {error}), so nothing is known "
            f"about whether its units are independent. loss_fn(model, batch) was given units of {in_words(units)}: if model or "
            "loss do not fit these shapes and types, correct one of them (x.float(), y.long(), the first layer); if they need "
            "other values than random ones, pass example=, a made-up batch of three units that they accept."
        ) from error


def in_words(units: Nest) -> str:
    """The shape and type of each tensor of one unit.

    >>> in_words((torch.zeros(3, 4), torch.zeros(3, dtype=torch.long)))
    '[4] float32, [] int64'
    """
    return ", ".join(f"{list(tensor.shape[1:])} {str(tensor.dtype).removeprefix('torch.')}" for tensor in leaves(units))


@contextmanager
def nothing_changed(model: nn.Module) -> Iterator[None]:
    """The model as it is."""
    yield


@contextmanager
def perturbed(model: nn.Module) -> Iterator[None]:
    """Weights moved a little, so that a layer that starts at zero hides nothing; put back bit for bit.

    An autocast around it remembers the weights that it has cast, as they were: it is made to forget them, here and after.
    """
    before = [(parameter, parameter.detach().clone()) for parameter in model.parameters() if not is_lent(parameter)]
    generators = {device: torch.Generator(device).manual_seed(7) for device in {p.device for p, _ in before}}
    lends = lending()
    try:
        with torch.no_grad():
            for parameter, _ in before:
                if parameter.is_floating_point() or parameter.is_complex():
                    parameter.data.add_(_a_little(parameter, generators[parameter.device]))
        torch.clear_autocast_cache()
        with nullcontext() if lends is None else lends.changed(_moved):
            yield
    finally:
        with torch.no_grad():
            for parameter, copy in before:
                parameter.data.copy_(copy)
        torch.clear_autocast_cache()  # of the moved ones


def _a_little(parameter: Tensor, generator: torch.Generator) -> Tensor:
    """By what a parameter is moved: a tenth of its own size, and of 1."""
    scale = 0.1 * (1 + float(parameter.abs().float().mean()) if parameter.numel() else 1.0)
    return (scale * torch.randn(parameter.shape, generator=generator, device=parameter.device)).to(parameter)


def _moved(name: str, whole: Tensor) -> Tensor:
    return whole + _a_little(whole, torch.Generator(whole.device).manual_seed(zlib.crc32(name.encode())))


@contextmanager
def without_dropout(model: nn.Module) -> Iterator[None]:
    """In evaluation mode: dropout draws differently for another number of units."""
    training = [module for module in model.modules() if module.training]
    model.eval()
    try:
        yield
    finally:
        for module in training:
            module.training = True

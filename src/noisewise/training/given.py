"""What a user hands to `train` and `private_step`: the right kinds of things, told apart before anything is computed."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import nn
from torch.utils.data import DataLoader

from noisewise.accounting import Ledger
from noisewise.batches import leaves
from noisewise.data import Data, Splits
from noisewise.data.indexed import Indexed
from noisewise.errors import ConfigError, DataError, NoisewiseWarning
from noisewise.mechanism import Mechanism
from noisewise.runtime import Runtime
from noisewise.training.augmentation import Augment

ORDER = (
    "Arguments are train(model, data, loss_fn, mechanism, optimizer); private_step ends with (..., optimizer, state)."
)


def kind(value: Any) -> str:
    """How an error calls what was given."""
    return f"the class {value.__name__}" if isinstance(value, type) else f"a {type(value).__name__}"


def check_model(model: Any) -> None:
    """A module with its weights."""
    if isinstance(model, tuple) and model and isinstance(model[0], nn.Module):
        raise ConfigError(
            "the model is a tuple that begins with one, as batchnorm_to_groupnorm gives (model, changes): take it apart, "
            "model, changes = batchnorm_to_groupnorm(model)."
        )
    if isinstance(model, type) and issubclass(model, nn.Module):
        raise ConfigError(
            f"the model is {kind(model)}, not one of its objects: call it, e.g. model = {model.__name__}(...)."
        )
    if not isinstance(model, nn.Module):
        raise ConfigError(f"the model is {kind(model)}: must be a torch.nn.Module. {ORDER}")
    if isinstance(model, nn.parallel.DistributedDataParallel | nn.DataParallel):
        raise ConfigError(
            f"the model is wrapped in {type(model).__name__}, which adds up gradients that are not clipped: pass what is "
            "within, model.module, and team=noisewise.distributed.begin(), which adds the clipped sums of all processes."
        )
    if lazy := [name for name, parameter in model.named_parameters() if not _is_there(parameter)]:
        raise ConfigError(
            f"the model's {lazy[0]!r} has no values yet (device meta, or a lazy layer): give it some, e.g. "
            "model.to_empty(device='cpu') and an initialisation, or a first pass on a made-up batch."
        )


def warn_of_mode(model: nn.Module) -> None:
    """Dropout that is asleep, which nobody means."""
    asleep = [
        name for name, module in model.named_modules() if isinstance(module, nn.modules.dropout._DropoutNd) and module.p
    ]
    if asleep and not model.training:
        warnings.warn(
            f"the model is in evaluation mode, so {asleep[0] or 'its dropout'} drops nothing while it trains: call "
            "model.train() first, or remove dropout if that is meant.",
            NoisewiseWarning,
            stacklevel=5,
        )


def _is_there(parameter: nn.Parameter) -> bool:
    return not parameter.is_meta and not nn.parameter.is_lazy(parameter)


def check_data(data: Any) -> None:
    """Tensors that can be cut into units; the parts of a data set are not one."""
    if isinstance(data, Splits):
        raise DataError("the data is train, valid and test together (Splits): train on one of them, data.train.")
    if isinstance(data, nn.Module | str | type) or data is None or callable(data):
        raise DataError(
            f"the data is {kind(data)}: must be noisewise.Data, a nest of tensors (x, y) with the unit as first dimension, or "
            f"a torch Dataset; a name is loaded first, noisewise.load('digits').train. {ORDER}"
        )
    if type(data).__module__.partition(".")[0] == "pandas":
        raise DataError(
            f"the data is {kind(data)}: columns must become numbers in public ranges first. PrivateClassifier().fit(frame, y) "
            "does all of it, noisewise.Schema(...).encode(frame) only this."
        )
    if isinstance(data, DataLoader):
        raise DataError(
            "the data is a DataLoader: it fixes batches that the accountant does not know. Pass its Dataset, loader.dataset; "
            "for reading by workers noisewise.Indexed(loader.dataset, num_workers=4)."
        )
    if isinstance(data, Indexed):
        return
    for tensor in leaves((data.x, data.y) if isinstance(data, Data) else data):
        if tensor.layout != torch.strided or tensor.is_meta:
            raise DataError(
                f"a tensor of layout {tensor.layout} on device {tensor.device}: rows are cut from dense tensors that hold "
                "values. Use tensor.to_dense(), or load it."
            )


def check_loss(loss_fn: Any) -> None:
    """A function of model and batch."""
    if isinstance(loss_fn, nn.Module) or loss_fn in _OF_TORCH:
        raise ConfigError(
            f"loss_fn is {getattr(loss_fn, '__name__', type(loss_fn).__name__)} of torch, which takes outputs and targets: "
            "must be your function of (model, batch), e.g. lambda model, batch: F.cross_entropy(model(batch[0]), batch[1], "
            "reduction='none')."
        )
    if not callable(loss_fn) or isinstance(loss_fn, type):
        raise ConfigError(f"loss_fn is {kind(loss_fn)}: must be a function (model, batch) -> [batch]. {ORDER}")


_OF_TORCH = tuple(
    function
    for name, function in vars(nn.functional).items()
    if callable(function) and name.endswith(("loss", "entropy", "with_logits"))
)


def check_optimizer(optimizer: Any) -> None:
    """An optimizer that can make a step with the gradients it finds."""
    if isinstance(optimizer, type):
        raise ConfigError(
            f"optimizer is {kind(optimizer)}: must be built on the model's parameters, e.g. "
            f"torch.optim.{optimizer.__name__}(model.parameters(), lr=0.1)."
        )
    if not hasattr(optimizer, "param_groups") or not callable(getattr(optimizer, "step", None)):
        raise ConfigError(
            f"optimizer is {kind(optimizer)}: must be a torch optimizer, e.g. torch.optim.SGD(model.parameters(), lr=0.1). "
            f"{ORDER}"
        )
    if isinstance(optimizer, torch.optim.LBFGS):
        raise ConfigError(
            "optimizer is LBFGS: it evaluates the loss several times in each step, and each time would be a release that "
            "the plan does not count. Use one that takes the gradient as it is: SGD, Adam, RMSprop, ..."
        )


def check_mechanism(mechanism: Any) -> None:
    """The plan itself."""
    if not isinstance(mechanism, Mechanism):
        raise ConfigError(
            f"mechanism is {kind(mechanism)}: must be a noisewise.Mechanism(sampler=..., steps=...), which is what is "
            f"accounted. {ORDER}"
        )


def check_scheduler(scheduler: Any, optimizer: Any) -> None:
    """A schedule of this optimizer's learning rate that is known before training."""
    if scheduler is None:
        return
    if isinstance(scheduler, torch.optim.lr_scheduler.ReduceLROnPlateau):
        raise ConfigError(
            "scheduler=ReduceLROnPlateau: it follows a metric, which no ledger covers. Use a schedule that is known "
            "before training, e.g. CosineAnnealingLR."
        )
    if isinstance(scheduler, type) or not callable(getattr(scheduler, "step", None)):
        raise ConfigError(
            f"scheduler is {kind(scheduler)}: must be built on the optimizer, e.g. "
            "torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, steps)."
        )
    if getattr(scheduler, "optimizer", optimizer) is not optimizer:
        raise ConfigError(
            f"scheduler={type(scheduler).__name__} belongs to another optimizer: it would change nothing here. Build it on "
            "the optimizer that is passed in."
        )


ABOUT = ("task", "data", "model", "repairs")  # what summary.json has room for


def check_about(about: Any) -> None:
    """Facts for summary.json; one that it has no room for would be lost."""
    if about is None:
        return
    if not isinstance(about, Mapping) or not isinstance(about.get("data", {}), Mapping):
        raise ConfigError(
            f"about={about!r}: must be a dict of public facts, e.g. about={{'task': 'classification', 'data': {{'name': "
            "'clinic'}, 'model': 'mlp'}."
        )
    if not all(isinstance(repair, Mapping) for repair in about.get("repairs", [])):
        raise ConfigError(
            f"about['repairs'] is {about['repairs']!r}: must be a list of dicts, as repair.describe() gives."
        )
    if unknown := [name for name in about if name not in ABOUT]:
        raise ConfigError(
            f"about has {unknown[0]!r}, for which summary.json has no room. Known are {', '.join(ABOUT)}."
        )


def check_extras(runtime: Any, ledger: Any, recorders: Any, augment: Any) -> None:
    """What may be given besides."""
    if runtime is not None and not isinstance(runtime, Runtime):
        raise ConfigError(f"runtime={runtime!r}: must be noisewise.Runtime(engine='ghost', ...), or None.")
    if ledger is not None and not isinstance(ledger, Ledger):
        raise ConfigError(f"ledger is {kind(ledger)}: must be a noisewise.Ledger, e.g. of an earlier phase, or None.")
    check_functions("recorders", recorders)
    if augment is not None and not isinstance(augment, Augment):
        raise ConfigError(f"augment is {kind(augment)}: must be Augment(function, views=1), or None.")


def check_functions(name: str, functions: Any) -> None:
    """A sequence of plain functions."""
    if not isinstance(functions, Sequence) or isinstance(functions, str):
        raise ConfigError(f"{name} is {kind(functions)}: must be a list of functions, {name}=[function].")
    for function in functions:
        if not callable(function):
            raise ConfigError(f"{name} holds {function!r}: each must be a function.")


def check_number(name: str, value: Any, example: str) -> None:
    """A number, which texts and truth values are not."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise ConfigError(f"{name}={value!r}: must be a number, e.g. {example}.")

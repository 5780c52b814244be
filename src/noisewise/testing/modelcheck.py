"""Can this model be trained privately, what keeps the units of each parameter apart, what does it cost, what to change?

`noisewise.testing.check_model` is the public name. Everything is measured on synthetic units, so the answers depend on no
record.
"""

from __future__ import annotations

import statistics
import time
import weakref
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from noisewise.batches import Nest, length, map_tensors, take
from noisewise.clipping import Flat
from noisewise.errors import ConfigError, NoisewiseError, PrivacyError
from noisewise.losses import default_loss, unit_losses
from noisewise.models.convert import batchnorm_to_groupnorm
from noisewise.persample import Layout, clipped_sum, examine
from noisewise.persample.made_up import synthetic
from noisewise.support import live_parameters
from noisewise.userfiles import called, load, model_maker

REPEATS = 3
BLANK = 64  # units of a batch that only has a shape
Engine = Literal["ghost", "booked", "dense", "loop"]
Isolation = Literal["proven row by row", "each unit alone", "refused"]
NO_RULE = "no rule explains its use, or the unit is not in front there"


@dataclass(frozen=True)
class Cost:
    """One private and one plain gradient of the same synthetic batch; seconds are medians, bytes are peaks."""

    units: int
    plain_seconds: float
    private_seconds: float
    plain_bytes: int
    private_bytes: int

    @property
    def time_ratio(self) -> float:
        """Private over plain."""
        return self.private_seconds / self.plain_seconds

    @property
    def memory_ratio(self) -> float:
        """Private over plain."""
        return self.private_bytes / max(self.plain_bytes, 1)

    def sentences(self) -> list[str]:
        """Time and memory in words."""
        return [
            f"A private gradient took {self.time_ratio:.1f} times as long as a plain one: "
            f"{1e3 * self.private_seconds:.3g} ms against {1e3 * self.plain_seconds:.3g} ms for {self.units} units.",
            f"It held {self.memory_ratio:.1f} times the memory: {readable_bytes(self.private_bytes)} against "
            f"{readable_bytes(self.plain_bytes)} beside the weights. Runtime(microbatch=...) lowers it without changing the "
            "result.",
        ]


@dataclass(frozen=True)
class Parameter:
    """A parameter that learns: what keeps its units apart, which engine makes its gradients, and why not a faster one.

    `held`: bytes of gradients that the engine holds for each unit of a batch.
    """

    name: str
    shape: tuple[int, ...]
    isolation: Isolation
    engine: Engine | None = None
    held: int = 0
    reason: str = ""


@dataclass(frozen=True)
class ModelCheck:
    """What `check_model` found. `parameters` has every parameter that learns.

    `changes`: what to change, so that the model can be trained or gets faster. `cost` is None if nothing could be measured.
    """

    trainable: bool
    reason: str
    parameters: tuple[Parameter, ...] = ()
    frozen: tuple[str, ...] = ()
    cost: Cost | None = None
    changes: tuple[str, ...] = ()

    @property
    def engines(self) -> dict[str, Engine]:
        """The engine of each parameter; empty if the model was refused."""
        return {one.name: one.engine for one in self.parameters if one.engine is not None}

    @property
    def sentences(self) -> tuple[str, ...]:
        """Everything in words."""
        head = "can" if self.trainable else "cannot"
        sentences = [f"This model {head} be trained privately: {self.reason}"]
        sentences += [_ENGINES[engine].format(_names(names)) for engine, names in self.by_engine().items()]
        sentences += [f"Not faster because {reason}: {_names(names)}." for reason, names in self.by_reason().items()]
        if self.frozen:
            sentences.append(f"Frozen, not trained: {_names(self.frozen)}.")
        return (*sentences, *(self.cost.sentences() if self.cost else ()), *self.changes)

    def by_engine(self) -> dict[Engine, list[str]]:
        """Names of parameters for each engine that is used, the fastest first."""
        return {
            kind: [n for n, e in self.engines.items() if e == kind]
            for kind in _ENGINES
            if kind in self.engines.values()
        }

    def by_reason(self) -> dict[str, list[str]]:
        """Names of the trained parameters that do not get the fastest engine, for each reason."""
        slower = [one for one in self.parameters if one.engine not in (None, "ghost")]
        reasons = dict.fromkeys(one.reason for one in slower)
        return {reason: [one.name for one in slower if one.reason == reason] for reason in reasons}

    def __str__(self) -> str:
        return "\n".join(self.sentences)


_ENGINES: dict[Engine, str] = {
    "ghost": "Proven row by row, by ghost rules, the fast way: {}.",
    "booked": "Each unit alone, all at once, without forming gradients: {}.",
    "dense": "Each unit alone, all at once by the dense engine, which holds a gradient for each unit in memory: {}.",
    "loop": "Each unit alone by the loop, one after another, which is slow: {}.",
}


def check_model(
    model: nn.Module, batch: Nest, loss_fn: Callable[[Any, Nest], Tensor], *, example: Nest = None
) -> ModelCheck:
    """Whether a model can be trained privately, in words; a bad model is described, not raised about.

    `batch` gives shapes, types and the number of units; its values are not looked at. `example` is a public or made-up
    batch of at least three different units, for models that cannot run on random numbers. The model, its gradients and
    the random state are as before.
    """
    frozen = tuple(name for name, p in model.named_parameters() if not p.requires_grad)
    try:
        live = live_parameters(model, {})
        device = next(iter(live.values())).device
        like = map_tensors(lambda tensor: tensor[:0].to(device), batch)
        units = length(batch)
        layout = examine(model, loss_fn, like, example)
        cost = _cost(model, loss_fn, like, units, example, layout)
    except NoisewiseError as error:
        changes = _remedies(model, batch, loss_fn, example, error)
        return ModelCheck(False, str(error), _refused(model), frozen, changes=changes)
    except Exception as error:
        return ModelCheck(False, f"it stopped with {type(error).__name__}: {error}", _refused(model), frozen)
    parameters = tuple(_kept_apart(name, parameter, layout) for name, parameter in live.items())
    reason = "its units are independent, and the gradient of each parameter is exact for each of them."
    return ModelCheck(True, reason, parameters, frozen, cost, _faster(parameters))


def _refused(model: nn.Module) -> tuple[Parameter, ...]:
    learning = ((name, p) for name, p in model.named_parameters() if p.requires_grad)
    return tuple(Parameter(name, tuple(p.shape), "refused") for name, p in learning)


def _kept_apart(name: str, parameter: Tensor, layout: Layout) -> Parameter:
    """How `clipped_sum` with this layout treats a parameter."""
    shape = tuple(parameter.shape)
    if name not in layout.fallback:
        return Parameter(name, shape, "proven row by row", "ghost")
    reason = NO_RULE if layout.proven else layout.reason or "the model was not examined"
    if not layout.vectorises:
        return Parameter(name, shape, "each unit alone", "loop", _gradient_bytes(parameter), reason)
    if name in layout.recorded:
        return Parameter(name, shape, "each unit alone", "booked", 0, reason)
    return Parameter(name, shape, "each unit alone", "dense", _gradient_bytes(parameter), reason)


def _gradient_bytes(parameter: Tensor) -> int:
    """A gradient of one unit; formed in float32 at least."""
    return parameter.numel() * max(parameter.element_size(), 4)


def check_user_files(
    model: str,
    batch: str | None = None,
    loss: str | None = None,
    *,
    shape: tuple[int, ...] | None = None,
    outputs: int | None = None,
) -> ModelCheck:
    """`check_model` on objects named as `path.py:name`; a module or batch may also be a function that makes one.

    The batch is the `batch` of the model's file if it is not named, or blank units of a `shape`; the loss is `default_loss`. A
    function of (shape, outputs) is given the sizes of the batch, and one output where its targets are real numbers; the number
    of classes is said (`outputs`), since no value of a batch is looked at.
    """
    maker, needed = model_maker(model)
    if shape is not None:
        where, units = f"--shape {','.join(map(str, shape))}", _blank(shape, outputs, batch)
    else:
        where, units = _batch_of(model, batch)
        if outputs is not None and not needed:
            raise ConfigError(f"--outputs {outputs}: {model!r} needs no number of outputs. Leave it out.")
    sizes = _sizes(model, where, units, outputs) if needed else ()
    module = maker if isinstance(maker, nn.Module) else called(model, maker, *sizes)
    if not isinstance(module, nn.Module):
        raise ConfigError(f"{model!r} is {type(module).__name__}: must be an nn.Module or a function that returns one.")
    loss_fn = default_loss if loss is None else load(loss)
    if loss is None and not _is_pair(units):
        raise ConfigError(
            f"{where!r} is not a pair (x, y), so there is no default loss: name one with --loss FILE.py:NAME."
        )
    if not callable(loss_fn):
        raise ConfigError(f"{loss!r} is {type(loss_fn).__name__}: must be a function of (model, batch).")
    return check_model(module, units, loss_fn)


def _batch_of(model: str, batch: str | None) -> tuple[str, Any]:
    """Its name and the batch."""
    where = batch or f"{model.rpartition(':')[0]}:batch"
    try:
        made = load(where)
        return where, called(where, made) if callable(made) else made
    except ConfigError as error:
        raise ConfigError(
            f"{error} The shapes of a batch are needed: name one with --example FILE.py:NAME, or say the sizes of one input "
            "and the number of outputs, e.g. --shape 3,32,32 --outputs 10."
        ) from None


def _blank(shape: tuple[int, ...], outputs: int | None, batch: str | None) -> tuple[Tensor, Tensor]:
    """Blank units of a shape; targets are real numbers if there is one output, else classes."""
    said = f"--shape {','.join(map(str, shape))}"
    if batch is not None:
        raise ConfigError(f"{said} and --example {batch}: a batch has sizes of its own. Leave one of them out.")
    if outputs is None:
        raise ConfigError(f"{said} without --outputs: how many classes are there? Say so, or 1 for a regression.")
    return torch.zeros(BLANK, *shape), torch.zeros(BLANK, dtype=torch.float32 if outputs == 1 else torch.long)


def _sizes(model: str, where: str, units: Any, outputs: int | None) -> tuple[tuple[int, ...], int]:
    """What a function of (shape, outputs) is given."""
    if not _is_pair(units) or not isinstance(units[0], Tensor):
        raise ConfigError(
            f"{model!r} is a function of (shape, outputs), and {where!r} is no pair (x, y) of tensors that shows them: say "
            "--shape 3,32,32 --outputs 10, or name a function of nothing."
        )
    if outputs is None and not units[1].is_floating_point():
        raise ConfigError(
            f"{model!r} is a function of (shape, outputs): how many classes are there? Say so, e.g. --outputs 10."
        )
    return tuple(units[0].shape[1:]), 1 if outputs is None else outputs


def _is_pair(units: Any) -> bool:
    return isinstance(units, tuple | list) and len(units) == 2 and isinstance(units[1], Tensor)


def _remedies(model: nn.Module, batch: Nest, loss_fn: Any, example: Nest, error: Exception) -> tuple[str, ...]:
    """If BatchNorm is to blame, say so: the converted copy is examined too."""
    if not isinstance(error, PrivacyError) or not any(isinstance(module, _BatchNorm) for module in model.modules()):
        return ()
    try:
        converted, changes = batchnorm_to_groupnorm(model)
    except RuntimeError as other:  # e.g. with weights that hooks compute
        return (f"Write the model with GroupNorm in place of BatchNorm: it cannot be copied ({other}).",)
    advice = f"Replace BatchNorm: model, changes = noisewise.models.convert.batchnorm_to_groupnorm(model). {' '.join(changes)}"
    try:
        examine(converted, loss_fn, batch, example)
    except Exception as other:
        return (advice, f"That alone does not do: {other}")
    return (advice, "With that change the model can be trained privately.")


def _faster(parameters: tuple[Parameter, ...]) -> tuple[str, ...]:
    slow = sorted({one.name.rpartition(".")[0] or one.name for one in parameters if one.engine == "loop"})
    if not slow:
        return ()
    return (
        f"To be faster, write {_names(slow)} with layers that have ghost rules (a recurrent layer as a loop over time of "
        "nn.Linear), or freeze these parameters.",
    )


def _rows(like: Nest, units: int, example: Nest) -> Nest:
    if example is None:
        return synthetic(like, units)
    return take(example, torch.arange(units) % length(example))


def _cost(model: nn.Module, loss_fn: Any, like: Nest, units: int, example: Nest, layout: Layout) -> Cost:
    live = list(live_parameters(model, {}).values())

    def plain() -> None:
        losses = unit_losses(model, loss_fn, batch)
        if losses.requires_grad:
            torch.autograd.grad(losses.sum(), live, allow_unused=True)

    def private() -> None:
        clipped_sum(model, loss_fn, batch, Flat(1.0), layout=layout)

    cuda = live[0].device if live[0].is_cuda else None
    with torch.random.fork_rng([] if cuda is None else [cuda.index or 0]), torch.enable_grad():
        torch.manual_seed(0)
        batch = _rows(like, units, example)
        plain_bytes, private_bytes = _peak(plain, cuda), _peak(private, cuda)  # the warm-up too
        seconds: tuple[list[float], list[float]] = ([], [])
        for _ in range(REPEATS):
            for step, taken in zip((plain, private), seconds, strict=True):
                taken.append(_seconds(step, cuda))
    return Cost(units, statistics.median(seconds[0]), statistics.median(seconds[1]), plain_bytes, private_bytes)


def _seconds(step: Callable[[], None], cuda: torch.device | None) -> float:
    if cuda is not None:
        torch.cuda.synchronize(cuda)
    start = time.perf_counter()
    step()
    if cuda is not None:
        torch.cuda.synchronize(cuda)
    return time.perf_counter() - start


def _peak(step: Callable[[], None], cuda: torch.device | None) -> int:
    """Most bytes that tensors made by a step held at once."""
    if cuda is None:
        with _Allocations() as seen:
            step()
        return seen.peak
    torch.cuda.reset_peak_memory_stats(cuda)
    before = torch.cuda.memory_allocated(cuda)
    step()
    return torch.cuda.max_memory_allocated(cuda) - before


class _Allocations(TorchDispatchMode):
    """Adds up the memory of tensors from when they are made until nobody holds them."""

    def __init__(self) -> None:
        super().__init__()
        self.peak = self._now = 0
        self._held: dict[int, weakref.ref[Any]] = {}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        given = {leaf.untyped_storage()._cdata for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, Tensor)}
        for leaf in tree_leaves(result):
            if isinstance(leaf, Tensor) and leaf.untyped_storage()._cdata not in given:
                self._hold(leaf.untyped_storage())
        return result

    def _hold(self, storage: Any) -> None:
        key, size = storage._cdata, storage.nbytes()
        if key in self._held:
            return

        def release(_: Any) -> None:
            del self._held[key]
            self._now -= size

        self._held[key] = weakref.ref(storage, release)
        self._now += size
        self.peak = max(self.peak, self._now)


def _names(names: Any, most: int = 6) -> str:
    names = list(names)
    return ", ".join(names[:most]) + (f" and {len(names) - most} more" if len(names) > most else "")


def readable_bytes(count: int) -> str:
    """Bytes for people."""
    for size, unit in ((1e9, "GB"), (1e6, "MB"), (1e3, "kB")):
        if count >= size:
            return f"{count / size:.3g} {unit}"
    return f"{count} B"

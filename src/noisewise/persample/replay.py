"""The clipped sum of a micro-batch as one fixed sequence of operations: on a GPU a CUDA graph, elsewhere a plain call.

A graph replays the very operations that were proven to act row by row when it was captured, on other rows: no line of
Python runs between them, so nothing can take another way. What is read from Python at capture must stay as it was (`seen`).
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from noisewise.batches import Nest, Views, leaves, map_tensors
from noisewise.bounded import Bounded
from noisewise.clipping import Clip
from noisewise.persample import engines, kernels, laid
from noisewise.persample.clipped_sum import _clip_and_add, _sum_type, nothing_kept
from noisewise.persample.examine import Versions
from noisewise.persample.held import counts
from noisewise.persample.layout import Layout
from noisewise.persample.proof import Proof
from noisewise.persample.seen import Chance
from noisewise.persample.steady import NotSteady, steady
from noisewise.pieces import pieces, room_for
from noisewise.promises import blocks_of

if TYPE_CHECKING:
    from noisewise.support import Support

WARM_UPS = 1  # passes before a capture: libraries choose their kernels there


class Sums:
    """Where the micro-batches of a step are added up, and what must hold for all of them; on the model's device.

    `masks` are copies that stay in place, so that another mask of the same shape needs no new capture; `forms` what was made
    of them. For `release`, and to be laid on all sums at once, masks are pieces of one vector as sums are.
    """

    def __init__(self, model: nn.Module, live: Mapping[str, nn.Parameter], clip: Clip, support: Support, most: int):
        self.model, self.live, self.clip, self.support, self.most = model, dict(live), clip, dict(support), most
        self.device = next(iter(live.values())).device
        self.values, self._wholes = _together(live)
        masks = {name: mask for name, mask in support.items() if isinstance(mask, Tensor) and name in live}
        self.masks = {name: mask.detach().to(self.device, copy=True) for name, mask in masks.items()}
        self.forms = laid.Forms()
        self._pieces, self._learning = _together(live, torch.bool) if masks else ({}, [])
        self._idle = [torch.zeros_like(whole) for whole in self._learning]
        self._lay_together()
        self.blocks = max(blocks_of(clip, live).values()) + 1
        self.broken = torch.zeros((), dtype=torch.int32, device=self.device)  # 1: a rule did not keep its promise

    def zero(self) -> None:
        """Nobody is in it."""
        for whole in self._wholes:
            whole.zero_()

    def take(self, values: Mapping[str, Tensor]) -> None:
        """Write down what is not written here already."""
        elsewhere = [name for name, value in self.values.items() if values[name].data_ptr() != value.data_ptr()]
        if elsewhere:
            torch._foreach_copy_([self.values[name] for name in elsewhere], [values[name] for name in elsewhere])

    def copies(self) -> list[Tensor]:
        """What a micro-batch has summed, before the next one overwrites it."""
        return [whole.clone() for whole in self._wholes]

    def add(self, earlier: list[Tensor]) -> None:
        """Add what earlier micro-batches have summed."""
        for whole, part in zip(self._wholes, earlier, strict=True):
            whole.add_(part)

    def take_over(self, support: Support) -> bool:
        """Use other masks, if they freeze and mask the same parameters as before."""
        if support.keys() != self.support.keys():
            return False
        pairs = [(support[name], self.support[name]) for name in support]
        if any(isinstance(new, bool) != isinstance(old, bool) for new, old in pairs):
            return False
        if any(isinstance(new, bool) and new != old for new, old in pairs):
            return False
        if self.masks:
            given = [mask for name in self.masks if isinstance(mask := support[name], Tensor)]
            torch._foreach_copy_(list(self.masks.values()), given)
            self._lay_together()
            self.forms.renew()
        self.support = dict(support)
        return True

    def _lay_together(self) -> None:
        """Masks as pieces of one vector, and where they leave nothing."""
        if not self.masks:
            return
        for name, piece in self._pieces.items():
            piece.copy_(self.masks[name]) if name in self.masks else piece.fill_(True)
        for learning, idle in zip(self._learning, self._idle, strict=True):
            torch.logical_not(learning, out=idle)

    def mask(self) -> None:
        """Exactly zero where nothing learns, whatever was there."""
        for whole, learning, idle in zip(self._wholes, self._learning, self._idle, strict=True) if self._idle else ():
            if kernels.lays(whole, learning):
                kernels.cleared(whole, learning)
            else:
                whole.masked_fill_(idle, 0)

    def bounded(self) -> Bounded:
        """The sum of the step, which only `release` opens."""
        return Bounded(
            self.values, self.clip.sensitivity, self.support | {name: self._pieces[name] for name in self.masks}
        )


def _together(
    live: Mapping[str, nn.Parameter], dtype: torch.dtype | None = None
) -> tuple[dict[str, Tensor], list[Tensor]]:
    """Zeros in the shapes of parameters as pieces of one vector for each type of their sums, and those vectors."""
    kinds: dict[torch.dtype, dict[str, nn.Parameter]] = {}
    for name, parameter in live.items():
        kinds.setdefault(_sum_type(parameter), {})[name] = parameter
    values, wholes = dict[str, Tensor](), []
    for kind, some in kinds.items():
        like = list(some.values())
        wholes.append(torch.zeros(room_for(like), dtype=dtype or kind, device=like[0].device))
        values |= dict(zip(some, pieces(wholes[-1], like), strict=True))
    return {name: values[name] for name in live}, wholes


class Replay:
    """A micro-batch of a fixed size: forward pass, norms, factors and clipped sums, which are written into `sums`.

    Rows behind the given ones are padding: `present` is False there, and they add nothing whatever they hold.
    `NotSteady` if the model's step is not a fixed sequence of operations.
    """

    def __init__(
        self,
        model: nn.Module,
        loss_fn: Any,
        like: Nest,
        size: int,
        sums: Sums,
        layout: Layout,
        pool: Any = None,
        *,
        checked: bool = False,
    ):
        self.model, self.loss_fn, self.sums, self.layout, self.size = model, loss_fn, sums, layout, size
        self.single = not isinstance(like, Views)  # units of one row each
        views = Views.single(like) if self.single else like
        self._batch = map_tensors(lambda t: torch.zeros(size, *t.shape[1:], dtype=t.dtype, device=sums.device), views)
        if self.single:
            self._batch.weights.fill_(1.0)
        self._inputs = (
            [leaf.squeeze(1) for leaf in leaves(self._batch.batch)] if self.single else list(leaves(self._batch))
        )
        self._numbers = torch.arange(size, device=sums.device)
        self._present = torch.zeros(size, dtype=torch.bool, device=sums.device)
        self.norms = torch.zeros(sums.blocks, size, dtype=torch.float64, device=sums.device)
        self.draws = sums.device.type != "cuda"  # there, whether a pass draws shows in its generator
        if not checked:
            self._check()
        self._run = self._captured(pool) if sums.device.type == "cuda" else self._plain

    def __call__(self, rows: list[Tensor], first: int, count: int) -> None:
        """Write down the clipped sum of `count` units from `first` on, at most `size`; `rows` are the tensors of a batch."""
        for static, given in zip(self._inputs, rows, strict=True):
            part = given if count == len(given) else given[first : first + count]
            (static if count == self.size else static[:count]).copy_(part, non_blocking=True)
        torch.lt(self._numbers, count, out=self._present)
        self._run()

    def _body(self, proofs: list[Proof] | None = None) -> None:
        sums = self.sums
        with torch.enable_grad(), steady(sums.most), laid.kept(sums.forms):
            measured = engines.measure(
                self.model, self.loss_fn, self._batch, sums.live, sums.masks, self.layout, "auto", proofs
            )
            part = _clip_and_add(measured, sums.live, sums.clip, {}, self._present, None, sums.broken, out=sums.values)
        sums.take(part.grads._values)
        sums.mask()
        self.norms.copy_(part.norms)

    def _plain(self) -> None:
        """A pass of Python: nothing is kept or changed."""
        versions = Versions(self.model)
        with nothing_kept(self._batch) as proofs:
            self._body(proofs)
        versions.check(self.model)

    def _check(self) -> None:
        """One pass on padding alone: nothing is kept, counted, changed or drawn elsewhere. Kernels get ready by the way."""
        chance, before = Chance(), counts(self.model, self.loss_fn)
        with kernels.rehearsal(self.sums.device):
            self._plain()
        if counts(self.model, self.loss_fn) != before:
            raise NotSteady("the model or the loss counts its passes, which a graph would not")
        if not chance.untouched():
            raise NotSteady("the model or the loss draws from Python's or NumPy's generators, which a graph would not")

    def _captured(self, pool: Any) -> Callable[[], None]:
        generator = torch.cuda.default_generators[self.sums.device.index or 0]
        stream, current = torch.cuda.Stream(self.sums.device), torch.cuda.current_stream(self.sums.device)
        stream.wait_stream(current)
        with torch.cuda.stream(stream):
            for _ in range(WARM_UPS):
                self._plain()
        current.wait_stream(stream)
        self.draws = generator.get_offset() > 0  # every pass begins with a fresh seed, at 0
        graph = torch.cuda.CUDAGraph()
        try:
            with nothing_kept(self._batch) as proofs, capturing(graph, pool, stream):
                self._body(proofs)
        except NotSteady:
            raise
        except RuntimeError as error:
            if isinstance(error, torch.cuda.OutOfMemoryError):
                raise
            raise NotSteady(f"{type(error).__name__}: {str(error).splitlines()[0]}") from None
        return graph.replay


@contextmanager
def capturing(graph: torch.cuda.CUDAGraph, pool: Any, stream: torch.cuda.Stream) -> Iterator[None]:
    """As `torch.cuda.graph`, without its search for garbage, which takes longer than a capture: none is looked for within.

    The cache of memory is emptied where little is free, since nothing can be given back in a capture.
    """
    torch.cuda.synchronize()
    free, total = torch.cuda.mem_get_info()
    if free < total / 4:
        torch.cuda.empty_cache()
    looked_for = gc.isenabled()
    gc.disable()
    try:
        with torch.cuda.stream(stream):
            graph.capture_begin(pool=pool)
            try:
                yield
            finally:
                graph.capture_end()
    finally:
        if looked_for:
            gc.enable()

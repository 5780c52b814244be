"""Steps of fixed shapes: batches of any size as a few micro-batches of a few sizes, each captured once and replayed."""

from __future__ import annotations

import math
from contextlib import nullcontext
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from noisewise.adaptive import Adaptive
from noisewise.batches import Nest, Views, leaves
from noisewise.clipping import Clip
from noisewise.errors import ConfigError, PrivacyError
from noisewise.losses import LossFn
from noisewise.persample import ClippedBatch, Layout
from noisewise.persample.chance import random_state
from noisewise.persample.replay import Replay, Sums
from noisewise.persample.seen import Seen
from noisewise.persample.steady import NotSteady
from noisewise.promises import broken, own
from noisewise.runtime import Runtime
from noisewise.support import live_parameters

if TYPE_CHECKING:
    from noisewise.support import Support

SPREAD = 6.0  # standard deviations of a batch's size above its mean that still make one micro-batch
RECAPTURES = 16  # changes of rule, masks or model after which graphs are no longer worth their capture


def most_for(expected: int, largest: int | None = None) -> int:
    """The most units in a micro-batch: nearly every batch is one, and the number is known before anybody is drawn."""
    step = _step(expected, largest)
    most = -(-math.ceil(expected + SPREAD * math.sqrt(expected)) // step) * step
    return max(2, min(most, largest or most))


def _step(expected: int, largest: int | None) -> int:
    usual = min(expected, largest or expected)
    return max(2, 1 << round(math.log2(usual / 8)) if usual >= 8 else 0)


def sizes_for(units: int, expected: int, largest: int | None = None) -> list[int]:
    """Sizes of the micro-batches that hold so many units: as few as `largest` allows, the last one rounded up to a step.

    Steps are about an eighth of the expected batch: 6 % of the rows are padding, and a run meets a handful of sizes.
    """
    step = _step(expected, largest)
    full, rest = divmod(units, largest) if largest else (0, units)
    last = -(-rest // step) * step
    sizes = [*[largest or 0] * full, *([min(last, largest or last)] if rest else [])]
    return [max(size, 2) for size in sizes]  # a batch of one row may take another way than any other


class Captured:
    """The captured steps of a run: what was captured, for which rule, masks and model, and where it adds up."""

    def __init__(self) -> None:
        self.reason: str | None = None  # why nothing can be captured
        self.replays: dict[Any, Replay] = {}
        self._sums: Sums | None = None
        self._seen: Seen | None = None
        self._known: Seen | None = None
        self._pool: Any = None
        self._support: Any = None
        self._ended: list[tuple[Clip, Tensor]] = []  # rules that are no longer in force: did they break their promise?
        self._most = 0
        self.captures = 0

    def clipped(
        self,
        model: nn.Module,
        loss_fn: LossFn,
        rows: Any,
        clip: Clip,
        support: Support,
        runtime: Runtime,
        *,
        layout: Layout,
        expected: int,
        seed: int,
        norms: bool,
        fixed: bool = True,
        most: int | None = None,
        known: Seen | None = None,
    ) -> ClippedBatch:
        """`clipped_sum` of a batch by replays; `norms`: hand out those too. `NotSteady` if that cannot be.

        `fixed`: all units have the same number of rows, by construction. `most`: of units in a micro-batch, for all of the
        run: where memory runs out these become smaller, but norms are taken as before. `known`: what the step has found
        unchanged since it was looked at.
        """
        self._most = most or most_for(expected, runtime.microbatch)
        self._prepare(model, loss_fn, rows, clip, support, layout, fixed, known)
        sums = self._sums
        assert sums is not None
        tensors, parts, first = list(leaves(rows)), [], 0
        units = len(tensors[0])
        sizes = sizes_for(units, expected, min(self._most, runtime.microbatch or self._most))
        begun = bool(self.replays)
        try:
            replays = [self._replay(model, loss_fn, rows, size, layout, seed) for size in sizes]
        except NotSteady as error:
            self.forget()
            if begun:  # which way a step takes would follow from who was drawn
                raise PrivacyError(
                    f"steps of other sizes were captured, one of {sizes} units cannot be: {error}. Go on with a model whose "
                    "passes are the same for every size, or begin anew with Runtime(capture=False)."
                ) from None
            raise
        except BaseException:
            self.forget()
            raise
        with random_state(seed) if any(replay.draws for replay in replays) else nullcontext():
            if not replays:
                sums.zero()
            for replay in replays:
                count = min(replay.size, units - first)
                earlier = sums.copies() if first else []
                replay(tensors, first, count)
                if first:
                    sums.add(earlier)
                if norms:
                    parts.append(replay.norms[:, :count].clone())
                first += count
        measured = torch.cat(parts, 1) if parts else sums.broken.new_zeros(sums.blocks, 0, dtype=torch.float64)
        return ClippedBatch(sums.bounded(), measured)

    def _prepare(
        self,
        model: nn.Module,
        loss_fn: LossFn,
        rows: Any,
        clip: Clip,
        support: Support,
        layout: Layout,
        fixed: bool,
        known: Seen | None,
    ) -> None:
        """Forget what was captured for another rule, another model or masks of another form."""
        seen, sums = self._seen, self._sums
        fits = seen is not None and sums is not None and (sums.clip, sums.most) == (clip, self._most)
        unchanged = known is not None and known is self._known
        fits = fits and seen is not None and (unchanged or seen.still(model, loss_fn, rows))
        if fits and sums is not None and (support is self._support or sums.take_over(support)):
            self._support = support
            return
        self.forget()
        self.captures += 1
        if self.captures > RECAPTURES:
            raise NotSteady("rule, masks or model change too often for graphs to be worth their capture")
        if own(clip) or isinstance(clip, Adaptive):
            raise NotSteady(f"{type(clip).__name__} is computed from answers, or is a rule of your own")
        device = next(model.parameters()).device
        if device.type == "cuda" and device.index != torch.cuda.current_device():
            raise NotSteady(f"the model lies on {device}, which is not the current GPU (torch.cuda.set_device)")
        if isinstance(rows, Views) and not fixed:
            raise NotSteady("units have several rows: the largest of a batch would set the shape for all")
        if not layout.proven or layout.fallback:
            raise NotSteady(layout.reason or f"no ghost rule explains how {sorted(layout.fallback)} are used")
        self._sums = Sums(model, live_parameters(model, support), clip, support, self._most)
        self._seen, self._known, self._support = Seen(model, loss_fn, rows), known, support
        if self._sums.device.type == "cuda":
            self._pool = torch.cuda.graph_pool_handle()

    def _replay(self, model: nn.Module, loss_fn: LossFn, like: Nest, size: int, layout: Layout, seed: int) -> Replay:
        views = like.weights.shape[1] if isinstance(like, Views) else None
        key = (size, views)
        if key not in self.replays:
            assert self._sums is not None
            with random_state(seed):
                checked = any(views == other for _, other in self.replays)
                self.replays[key] = Replay(model, loss_fn, like, size, self._sums, layout, self._pool, checked=checked)
        return self.replays[key]

    def forget(self) -> None:
        """Free what was captured."""
        self.replays.clear()
        if self._sums is not None:
            self._ended.append((self._sums.clip, self._sums.broken))
        self._sums = self._seen = self._known = self._pool = self._support = None

    def settle(self) -> None:
        """Wait for the steps made so far, and say if a rule did not keep its promise in one of them."""
        now = [] if self._sums is None else [(self._sums.clip, self._sums.broken)]
        for clip, failed in (*self._ended, *now):
            if bool(failed):
                raise broken(clip)


def wanted(runtime: Runtime | None, device: torch.device) -> bool:
    """Shall steps be captured? If told so, or, with None, on a GPU; on a CPU by plain calls."""
    runtime = runtime or Runtime()
    chosen, engine = runtime.capture, runtime.engine
    if chosen and engine not in ("auto", "ghost"):
        raise ConfigError(
            f"Runtime(capture=True, engine={engine!r}): only the fast engine is captured. Use engine='auto'."
        )
    if chosen and runtime.memory == "small":
        raise ConfigError(
            "Runtime(capture=True, memory='small'): captured steps keep gradients between norm and sum, and their memory to "
            "themselves. Leave one of them out."
        )
    able = engine in ("auto", "ghost") and runtime.memory == "ample"
    return able and (device.type == "cuda" if chosen is None else chosen)


def refused(reason: object) -> ConfigError:
    """The error where capture=True was asked for and cannot be."""
    return ConfigError(
        f"Runtime(capture=True): a step of this run is no fixed sequence of operations: {reason}. Use capture=None, which "
        "captures where it can, or capture=False."
    )

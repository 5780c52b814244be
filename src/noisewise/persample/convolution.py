"""Per-unit gradients of a convolution's weight."""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass, replace
from functools import cached_property

import torch
import torch.nn.functional as F
from torch import Tensor

from noisewise.persample import kernels
from noisewise.persample.bounds import SLACK, Bounds, dot_bounds, in_range
from noisewise.persample.formed import (
    KEPT,
    TRAFFIC,
    ByTap,
    Formed,
    PerSample,
    Summable,
    keep_formed,
    masked,
    measure_formed,
    room_for,
    slices_of,
    zero_rows,
)
from noisewise.persample.gradients import Outer, weighted
from noisewise.persample.rounding import (
    lengths,
    magnitudes,
    roundoff,
    shortened,
    squared,
)
from noisewise.persample.steady import is_steady, most_units

ONE_TILE = 64  # positions whose Gram matrices a kernel holds
SHIFTED, TILED = 4, 6  # what Gram matrices take on an H200 over their count: shifted ones, and those of a tile
COLUMNS = 256  # taps of all channels that are one tile's
MODEST = KEPT >> 6  # floats of a gradient that 64 units may keep


def in_memory_order(images: Tensor) -> Tensor:
    """The same numbers, with channels last where they lie so: nothing is copied."""
    last = images.dim() == 4 and images.is_contiguous(memory_format=torch.channels_last)
    return images.permute(0, 2, 3, 1) if last else images


@dataclass(frozen=True)
class Convolution:
    """Gradients of a convolution's weight, over any number of axes: the padded input correlated with the output's gradient.

    `g_i[o, c, u] = sum_t grad_i[o, t] padded_i[c, stride t + dilation u]`, without unfolding where it can be helped: with
    stride 1, and the output's gradient widened to the padded size, tap u is an offset into the flattened input.
    input `[batch, in, *axes]`, grad `[batch, out, *axes']`, padding ((before, after), ...) per axis.
    """

    input: Tensor
    grad: Tensor
    kernel: tuple[int, ...]
    stride: tuple[int, ...]
    padding: tuple[tuple[int, int], ...]
    dilation: tuple[int, ...]
    groups: int
    mask: Tensor | None = None

    def measure(self, mask: Tensor | None) -> tuple[Tensor, Summable]:
        """The cheapest exact way for this shape: Gram matrices or formed gradients, by shifting or by unfolding."""
        out, channels = self.grad.shape[1], self.input.shape[1]
        time, taps = math.prod(self.grad.shape[2:]), math.prod(self.kernel)
        size = taps * channels * out // self.groups
        bounds = None
        if mask is None and self._in_one_tile:
            return self._tap_grams(), self
        if is_steady() and self._walks and (mask is not None if self._few_positions else not self.keeps_what_it_forms):
            return self._walked(mask), self.with_mask(mask)
        if self._gathers or (mask is None and not self.on_gpu and self._cheap_to_keep):
            return measure_formed(self, mask, size)
        if self._walks and (mask is not None or not self._few_positions):
            return measure_formed(self, mask, size)
        if mask is None and self._walks:
            bounds = self._shifted_gram(self._roundoff)
        elif mask is None and self._shifts:
            area, wide = math.prod(self._sizes()), self.grad.shape[2] * math.prod(self._sizes()[1:])
            if area * area * channels + wide * wide * (out + TRAFFIC / 8 * taps) < (time + TRAFFIC) * size:
                bounds = self._shifted_gram(self._roundoff)
        elif mask is None and self.groups == 1 and time * time * (taps * channels + out) < (time + TRAFFIC) * size:
            bounds = Outer(self.grad.flatten(2).transpose(1, 2), self._patches()).gram(self._roundoff)
        if bounds is not None and bounds.certain():
            return squared(bounds.most), self
        squares, gradients = measure_formed(self, mask, size)
        return (squares if bounds is None else bounds.or_else(squares)), gradients

    def _walked(self, mask: Tensor | None) -> Tensor:
        """Squared norms of gradients that are not stored, with room for the rounding of the later sum.

        In a captured step, where Gram matrices do not know masks, or where formed gradients do not fit.
        """
        setup = (self.kernel, self.stride, self.padding, self.dilation)
        cut = shortened(self.grad, convolution=True) > 0
        if cut and math.prod(self.grad.shape[2:]) <= ONE_TILE:
            squares = kernels.tap_squares(self.grad, self.input, *setup, mask, cut=cut)
        else:
            _, squares = kernels.form_taps(self.grad, self.input, *setup, mask, cut=cut, stored=False)
        return squared(squares.sqrt() + 2 * self.rounding())

    def _tap_grams(self) -> Tensor:
        """Squared norms by Gram matrices, tap by tap, the most that they can be with the rounding of the later sum.

        As `bounds.dot_bounds`: the entry (t, s) of a Gram matrix is off by at most `roundoff |l_t| |l_s|`, for each tap.
        """
        grad, given = (lengths(part.flatten(1)) for part in (self.grad, self.input))
        out, channels = self.grad.shape[1], self.input.shape[1]
        by_grad, by_given = (roundoff(self.grad, terms, convolution=True) for terms in (out, channels))
        vanished = SLACK * torch.finfo(torch.float32).tiny * math.prod(self.grad.shape[2:]) ** 2 * (out + channels)
        setup = (self.kernel, self.stride, self.padding, self.dilation)
        cut = shortened(self.grad, convolution=True) > 0
        squares, unfolded = kernels.tap_grams(
            self.grad, self.input, *setup, (grad, given), (by_grad, by_given, vanished), cut=cut
        )
        later = self._roundoff * grad * unfolded.sqrt()
        return squared(squares.clamp(min=0).sqrt() + later)

    def with_mask(self, mask: Tensor | None) -> Convolution:
        """The mask is laid on the sum."""
        return replace(self, mask=mask)

    @property
    def units(self) -> int:
        """Size of the batch."""
        return self.grad.shape[0]

    @property
    def on_gpu(self) -> bool:
        """Is it computed there?"""
        return self.grad.is_cuda

    def rounding(self) -> Tensor:
        """How far the sum, in float64 and for each unit, may be from what it should be: norms are off by as much."""
        return (
            self._roundoff
            * math.sqrt(math.prod(self.kernel))
            * lengths(in_memory_order(self.input).flatten(1))
            * lengths(in_memory_order(self.grad).flatten(1))
        )

    @property
    def _roundoff(self) -> float:
        return roundoff(self.grad, math.prod(self.grad.shape[2:]), convolution=True)

    @property
    def _kept_as(self) -> torch.dtype:
        """What kernels store: bfloat16 has the range of float32, float16 has not."""
        return torch.bfloat16 if self.grad.dtype == torch.bfloat16 else torch.float32

    @property
    def _shifts(self) -> bool:
        """Is a tap an offset into the flattened input, and are there channels enough for products over them?"""
        return set(self.stride) == {1} and self.groups == 1 and self.input.shape[1] >= 8

    @property
    def _widens(self) -> bool:
        """Are images given on a CPU, where a few wide products are faster than many narrow ones?"""
        return self._shifts and len(self.kernel) == 2 and self.dilation == (1, 1) and not self.on_gpu

    @property
    def _lies_last(self) -> bool:
        """Are images with channels last in memory given, and is a row of the kernel a stretch of it that is long enough?"""
        return (
            len(self.kernel) == 2
            and self.groups == 1
            and self.dilation == (1, 1)
            and not self.input.is_cuda
            and self.input.shape[1] * self.kernel[1] * self._joined >= 16
            and self.input.stride(1) == 1
            and self.input.is_contiguous(memory_format=torch.channels_last)
        )

    @property
    def _joined(self) -> int:
        """Rows of the kernel that are one stretch of the unfolded input: as many as the stride skips, if that divides them."""
        return self.stride[0] if self.kernel[0] % self.stride[0] == 0 else 1

    @property
    def _cheap_to_keep(self) -> bool:
        """Is it cheaper to form gradients, and to keep them for the sum, than Gram matrices and a gradient of the sum?

        Counted in multiply-adds for one unit: their number is not asked, since norms would follow it.
        """
        if not self._lies_last and not self._shifts:
            return False
        out, channels = self.grad.shape[1], self.input.shape[1]
        time, taps = math.prod(self.grad.shape[2:]), math.prod(self.kernel)
        size, traffic = taps * channels * out, TRAFFIC / 4 if self._lies_last else TRAFFIC
        if self._shifts:
            area, wide = math.prod(self._sizes()), self.grad.shape[2] * math.prod(self._sizes()[1:])
            grams = area * area * channels + wide * wide * (out + TRAFFIC / 8 * taps)
        else:
            grams = time * time * (taps * channels + out)
        return size <= MODEST and size * (time / 5 + traffic) < grams

    @property
    def _walks(self) -> bool:
        """Is there a kernel, and are there channels enough to fill its tiles?"""
        return self._in_kernels and self.input.shape[1] >= 8

    @property
    def _gathers(self) -> bool:
        """In a captured step: are channels so few that all of them, at all taps, are columns of one tile?

        Not in full precision, whose products are compiled for long.
        """
        few = self.input.shape[1] < 8 and self.input.shape[1] * math.prod(self.kernel) <= COLUMNS
        exact = self.grad.dtype != torch.float32 or shortened(self.grad, convolution=True) > 0
        return is_steady() and few and exact and self._in_kernels

    @property
    def _in_kernels(self) -> bool:
        return len(self.kernel) <= 2 and self.groups == 1 and kernels.walks(self.grad, self.input)

    @property
    def _in_one_tile(self) -> bool:
        """In a captured step: are positions so few that a kernel has all of their Gram matrices at once, and does that pay?

        Counted as in `_few_positions`; norms that are the most that rounding allows must be worth half of the time.
        """
        time, taps = math.prod(self.grad.shape[2:]), math.prod(self.kernel)
        if not is_steady() or not self._walks or time > ONE_TILE or self.grad.dtype != torch.float32:
            return False
        if not shortened(self.grad, convolution=True):  # products in full precision are compiled for long
            return False
        out, channels = self.grad.shape[1], self.input.shape[1]
        size, given = taps * channels * out, self.input[0].numel() + self.grad[0].numel()
        grams = TILED * (4 * given + taps * (channels + out) * time * time / 55)
        return 2 * (grams + size * time / 230) < size * (time / 55 + 2)

    @property
    def keeps_what_it_forms(self) -> bool:
        """In a captured step: are gradients formed by the kernel, and kept for the sum, whoever is drawn?"""
        size = math.prod(self.kernel) * self.input.shape[1] * self.grad.shape[1]
        formed = self._gathers or (self._walks and not self._few_positions)
        return is_steady() and formed and most_units() * size <= room_for(self)

    @property
    def _few_positions(self) -> bool:
        """On a GPU: are Gram matrices of positions cheaper than gradients that are written and read?

        Counted in floats that pass through memory; a product of matrices does 55 multiply-adds in the time of one, a
        convolution 230.
        """
        if not self._shifts:
            return False
        out, channels, taps = self.grad.shape[1], self.input.shape[1], math.prod(self.kernel)
        time, size = math.prod(self.grad.shape[2:]), taps * channels * out
        area, wide = math.prod(self._sizes()), self.grad.shape[2] * math.prod(self._sizes()[1:])
        grams = SHIFTED * (4 * (channels + out) * area + (3 * taps + 12) * wide * wide)
        return grams + size * time / 230 < size * (time / 55 + 2)

    def _sizes(self) -> list[int]:
        """Size of each axis of the padded input."""
        return [size + sum(pads) for size, pads in zip(self.input.shape[2:], self.padding, strict=True)]

    def _padded(self, chunk: slice, spare: int = 0) -> Tensor:
        """Input of some units with zeros around it, and behind the first axis some more."""
        pads = [pad for pair in reversed(self.padding) for pad in pair]
        pads[-1] += spare
        return F.pad(self.input[chunk], pads) if any(pads) else self.input[chunk]

    def _flat(self, chunk: slice) -> tuple[Tensor, Tensor]:
        """Gradient and input of some units with all positions in one axis."""
        sizes = self._sizes()
        spare = [size - have for size, have in zip(sizes, self.grad.shape[2:], strict=True)]
        grad = F.pad(self.grad[chunk], [pad for gap in reversed(spare[1:]) for pad in (0, gap)]).flatten(2)
        reach = sum(gap * math.prod(sizes[axis + 1 :]) for axis, gap in enumerate(spare) if axis)
        grad = grad[:, :, : grad.shape[2] - reach]  # behind the last position nothing needs widening
        return grad, self._padded(chunk).flatten(2)

    def _offsets(self) -> list[int]:
        """Where each tap is on the one axis."""
        sizes = self._sizes()
        steps = [d * math.prod(sizes[axis + 1 :]) for axis, d in enumerate(self.dilation)]
        taps = itertools.product(*(range(k) for k in self.kernel))
        return [sum(u * step for u, step in zip(tap, steps, strict=True)) for tap in taps]

    def _shifted_gram(self, rounding: float) -> Bounds:
        """Sum over taps of <X^T X shifted along its diagonal, G^T G>."""
        area, offsets = math.prod(self._sizes()), self._offsets()

        def bounds(grad: Tensor, inputs: Tensor) -> Bounds:
            time = grad.shape[2]
            grams, grads = torch.bmm(inputs.transpose(1, 2), inputs), torch.bmm(grad.transpose(1, 2), grad)
            shifted = grams[:, :time, :time].clone()
            for offset in offsets[1:]:
                shifted += grams[:, offset : offset + time, offset : offset + time]
            return dot_bounds(shifted, grads, inputs.shape[1] + len(offsets), grad.shape[1], rounding)

        chunks = slices_of(self.grad, 2 * area**2 + area * self.input.shape[1])
        parts = [in_range(bounds, *self._flat(chunk)) for chunk in chunks]
        return Bounds(*map(torch.cat, zip(*parts, strict=True)))

    def slices(self) -> list[slice]:
        """Units in chunks whose formed gradients, and what they are formed from, fit."""
        if self._walks or self._gathers:
            return slices_of(self.grad, math.prod(self.kernel) * self.grad.shape[1] * self.input.shape[1] // 4)
        out, channels = self.grad.shape[1], self.input.shape[1]
        time, taps = math.prod(self.grad.shape[2:]), math.prod(self.kernel)
        floats = taps * out * channels // self.groups
        if self._lies_last:
            rows = (self.grad.shape[2] - 1) * self.stride[0] + self.kernel[0]
            return slices_of(self.grad, floats + rows * self.grad.shape[3] * self.kernel[1] * channels)
        if self._widens:
            return slices_of(self.grad, floats + self._sizes()[0] * self.grad.shape[3] * self.kernel[1] * channels)
        if self._shifts:
            return slices_of(self.grad, floats + math.prod(self._sizes()) * (channels + out))
        return slices_of(self.grad, floats + channels * taps * time)

    def form(self, chunk: slice, mask: Tensor | None) -> Formed | ByTap:
        """By a kernel that walks over positions, by shifting, one batched product per tap, or by unfolding."""
        setup = (self.kernel, self.stride, self.padding, self.dilation)
        if self._gathers:
            grads, squares = kernels.gather_taps(self.grad[chunk], self.input[chunk], *setup, mask, self._kept_as)
            return ByTap(grads.unsqueeze(0), squares)  # as one tap of many channels
        if self._walks:
            cut = shortened(self.grad, convolution=True) > 0
            grad, given = self.grad[chunk], self.input[chunk]
            return ByTap(*kernels.form_taps(grad, given, *setup, mask, cut=cut, kind=self._kept_as))
        if self._lies_last:
            return self._by_rows(chunk, mask)
        if self._widens:
            return self._by_shifted_rows(chunk, mask)
        if self._shifts:
            (grad, inputs), offsets = self._flat(chunk), self._offsets()
            time = grad.shape[2]
            grads = grad.new_empty(len(offsets), grad.shape[0], grad.shape[1], inputs.shape[1])
            for tap, offset in enumerate(offsets):
                torch.bmm(grad, inputs[:, :, offset : offset + time].transpose(1, 2), out=grads[tap])
            if mask is not None:
                grads.mul_(mask.flatten(2).permute(2, 0, 1).unsqueeze(1))
            return ByTap(grads)
        return Formed.masked(self._unfolded(chunk), mask)

    def _by_rows(self, chunk: slice, mask: Tensor | None) -> ByTap:
        """Unfolded along the width; a row of the kernel is then an offset into the rows of one remainder of the stride."""
        (high, broad), (down, right), (out, height, width) = self.kernel, self.stride, self.grad.shape[1:]
        stretch, joined = broad * self.input.shape[1], self._joined
        rows = height + (high - 1) // down
        spare = max(0, rows * down - self._sizes()[0])
        padded = self._padded(chunk, spare).permute(0, 2, 3, 1).contiguous()
        units, steps = padded.shape[0], padded.stride()
        view = padded.as_strided(
            (units, down // joined, rows, width, joined, stretch),
            (steps[0], steps[1], down * steps[1], right * steps[2], steps[1], 1),
        )
        unfolded = view.reshape(units, down // joined, rows * width, joined * stretch)
        grad = self.grad[chunk].permute(0, 2, 3, 1).reshape(units, height * width, out).transpose(1, 2)
        grads = grad.new_empty(high // joined, units, out, joined * stretch)
        for place, row in enumerate(range(0, high, joined)):
            first = row // down * width
            torch.bmm(grad, unfolded[:, row % down, first : first + height * width], out=grads[place])
        if mask is not None:
            laid = mask.permute(2, 0, 3, 1).unflatten(0, (-1, joined)).transpose(1, 2)
            grads.mul_(laid.flatten(2).unsqueeze(1))
        return ByTap(grads, columns=joined * broad)

    def _by_shifted_rows(self, chunk: slice, mask: Tensor | None) -> ByTap:
        """With stride 1: unfolded along the width, a row of the kernel is an offset into the rows of the input."""
        (high, broad), (out, height, width) = self.kernel, self.grad.shape[1:]
        windows = self._padded(chunk).unfold(3, width, 1).permute(0, 3, 1, 2, 4)  # [batch, broad, in, rows, width]
        unfolded, grad = windows.reshape(len(windows), broad * self.input.shape[1], -1), self.grad[chunk].flatten(2)
        grads = grad.new_empty(high, len(grad), out, unfolded.shape[1])
        for row in range(high):
            part = unfolded[:, :, row * width : (row + height) * width]
            torch.bmm(grad, part.transpose(1, 2), out=grads[row])
        if mask is not None:
            grads.mul_(mask.permute(2, 0, 3, 1).flatten(2).unsqueeze(1))
        return ByTap(grads, columns=broad)

    def _patches(self) -> Tensor:
        """Unfolded input `[batch, time, taps * in]`, the last in any order."""
        if not self._lies_last:
            return self._columns(slice(None))[:, 0].transpose(1, 2)
        padded = self._padded(slice(None)).permute(0, 2, 3, 1).contiguous()
        (high, broad), sizes, steps = self.kernel, self.grad.shape[2:], padded.stride()
        moves = (self.stride[0] * steps[1], self.stride[1] * steps[2], steps[1], 1)
        view = padded.as_strided((len(padded), *sizes, high, broad * self.input.shape[1]), (steps[0], *moves))
        return view.reshape(len(padded), math.prod(sizes), -1)

    def _unfolded(self, chunk: slice) -> Tensor:
        """Gradients `[batch, out * in / groups * taps]` from unfolded inputs."""
        grad, columns = self.grad[chunk].flatten(2), self._columns(chunk)
        if self.groups == 1:
            return torch.bmm(grad, columns[:, 0].transpose(1, 2)).flatten(1)
        formed: Tensor = grad.unflatten(1, (self.groups, -1)) @ columns.transpose(2, 3)
        return formed.flatten(1)

    def _columns(self, chunk: slice) -> Tensor:
        """Unfolded input `[batch, groups, in / groups * taps, time]`; a strided copy is faster than `F.unfold`."""
        padded = self._padded(chunk).contiguous()
        sizes = self.grad.shape[2:]
        steps = padded.stride()
        taps = tuple(d * step for d, step in zip(self.dilation, steps[2:], strict=True))
        moves = tuple(s * step for s, step in zip(self.stride, steps[2:], strict=True))
        view = padded.as_strided((*padded.shape[:2], *self.kernel, *sizes), (*steps[:2], *taps, *moves))
        return view.reshape(padded.shape[0], self.groups, -1, math.prod(sizes))

    def weighted_sum(self, factors: Tensor) -> Tensor:
        """The ordinary weight gradient of the weighted output gradient."""
        even = all(before == after for before, after in self.padding)
        axes = len(self.kernel)
        input = self.input if even else self._padded(slice(None))
        grad, input = weighted(self.grad, input, magnitudes(self.input), factors)
        weight = grad.new_empty(1).expand(grad.shape[1], self.input.shape[1] // self.groups, *self.kernel)
        total = torch.ops.aten.convolution_backward(
            grad,
            input,
            weight,
            None,
            self.stride,
            [before if even else 0 for before, _ in self.padding],
            self.dilation,
            False,
            [0] * axes,
            self.groups,
            (False, True, False),
        )[1]
        return masked(total, self.mask)

    def formed(self) -> Tensor:
        """By unfolding."""
        return self._unfolded(slice(None))

    def where(self, keep: Tensor) -> Convolution:
        """Both factors zero."""
        even = all(before == after for before, after in self.padding)
        if even and kernels.usable(self.input, self.grad):
            return self
        return replace(self, input=zero_rows(self.input, keep), grad=zero_rows(self.grad, keep))

    def by_unit(self, views: int) -> PerSample:
        """A unit's rows are one more axis, along which the kernel has size 1."""
        if len(self.kernel) == 3:  # PyTorch has no convolution over four axes
            return Formed(self.formed()).by_unit(views)
        input, grad = (part.unflatten(0, (-1, views)).transpose(1, 2) for part in (self.input, self.grad))
        return Convolution(
            input.contiguous(),
            grad.contiguous(),
            (1, *self.kernel),
            (1, *self.stride),
            ((0, 0), *self.padding),
            (1, *self.dilation),
            self.groups,
            self.mask,
        )


@dataclass(frozen=True)
class HalfConvolution:
    """A convolution with input and gradient in one half precision, whose products are exact in float32.

    Read as they are where the kernel forms gradients that are kept, else widened first. Those of float16 are kept in float32;
    those of bfloat16 are rounded to it and measured as they are kept: what was measured is what is summed.
    """

    narrow: Convolution

    @cached_property
    def wide(self) -> Convolution:
        """The same in float32."""
        return replace(self.narrow, input=self.narrow.input.float(), grad=self.narrow.grad.float())

    def measure(self, mask: Tensor | None) -> tuple[Tensor, Summable]:
        """By the kernel, or widened."""
        return keep_formed(self.narrow, mask) if self.narrow.keeps_what_it_forms else self.wide.measure(mask)

    def weighted_sum(self, factors: Tensor) -> Tensor:
        """Widened."""
        return self.wide.weighted_sum(factors)

    def formed(self) -> Tensor:
        """Widened."""
        return self.wide.formed()

    def where(self, keep: Tensor) -> Convolution:
        """Widened."""
        return self.wide.where(keep)

    def by_unit(self, views: int) -> PerSample:
        """Widened."""
        return self.wide.by_unit(views)

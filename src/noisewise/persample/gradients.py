"""Per-unit gradients of one parameter in factored form: measure their norms, then add them up with weights.

Each class stands for a batch of gradients `[batch, *parameter]` that is formed only where that is the cheaper way.

    squares, rest = gradient.measure(mask)     # ||mask * g_i||^2 for every unit, and what the sum needs
    total = rest.weighted_sum(factors)         # sum_i factors_i * (mask * g_i)

Where positions cancel, rounding can make a norm too short for the sum that is computed later, and clipping would no
longer bound it. Norms are therefore lengthened by a bound on both roundings: they may come out too long (by some 1e-5 in
ordinary float32 layers), never too short.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Protocol

import torch
import torch.nn.functional as F
from torch import Tensor

KEPT = 1 << 24  # floats of formed gradients that a parameter may keep between its norm and its sum
CHUNK = 1 << 20  # floats of intermediate results at a time on a CPU: stays in cache
CUDA_CHUNK = 1 << 26  # and on a GPU, where every chunk costs a launch
TRAFFIC = 64  # multiply-adds that writing and reading one formed float is worth
SAFETY = 8  # roundings allowed for besides those of the sums themselves


class PerSample(Protocol):
    """A batch of gradients of one parameter."""

    def measure(self, mask: Tensor | None) -> tuple[Tensor, PerSample]:
        """Squared norms `[batch]` of the masked gradients, and those gradients ready to be summed."""
        ...

    def weighted_sum(self, factors: Tensor) -> Tensor:
        """`sum_i factors_i g_i` with as many elements as the parameter, in its order."""
        ...

    def formed(self) -> Tensor:
        """The gradients themselves, `[batch, ...]`, in the parameter's order."""
        ...

    def where(self, keep: Tensor) -> PerSample:
        """The same with the gradients of all units not in `keep [batch]` exactly zero, whatever they were."""
        ...

    def by_unit(self, views: int) -> PerSample:
        """The gradients of units that own `views` consecutive rows each: the sum over their rows."""
        ...


def join(parts: Sequence[PerSample]) -> PerSample:
    """The gradients of a parameter that several calls used: positions side by side, so that cross terms count."""
    if len(parts) == 1:
        return parts[0]
    if all(isinstance(part, Rows) for part in parts):
        rows = [part for part in parts if isinstance(part, Rows)]
        return Rows(torch.cat([r.index for r in rows], 1), torch.cat([r.rows for r in rows], 1), rows[0].size)
    outers = [part.as_outer() if isinstance(part, Rows) else part for part in parts]
    if all(isinstance(part, Outer) for part in outers):
        pairs = [part for part in outers if isinstance(part, Outer)]
        return Outer(torch.cat([o.left for o in pairs], 1), torch.cat([o.right for o in pairs], 1))
    units = len(parts[0].formed())
    total = parts[0].formed().reshape(units, -1)
    for part in parts[1:]:
        total = total + part.formed().reshape(units, -1)
    return Formed(total)


def _zero_rows(tensor: Tensor, keep: Tensor) -> Tensor:
    return torch.where(keep.view(-1, *[1] * (tensor.dim() - 1)), tensor, tensor.new_zeros(()))


def _chunk(tensor: Tensor, floats: int) -> int:
    """Units at a time whose intermediate results, `floats` each, fit."""
    return max(1, (CUDA_CHUNK if tensor.is_cuda else CHUNK) // max(floats, 1))


def _roundoff(tensor: Tensor, terms: int) -> float:
    """Bound on the relative error of a sum of `terms` products: `terms` roundings, plus TF32's of the factors."""
    tf32 = tensor.is_cuda and tensor.dtype == torch.float32 and torch.get_float32_matmul_precision() != "highest"
    return (terms + SAFETY) * torch.finfo(tensor.dtype).eps / 2 + (2**-10 if tf32 else 0.0)


def _dot(lefts: Tensor, rights: Tensor, rows: int, columns: int) -> Tensor:
    """<L, R> for Gram matrices of `rows` and `columns` terms each, plus what rounding may have taken from it.

    The entry (t, s) of L is off by at most `rows` roundings of |l_t| |l_s|, and the same holds for R; so the product is off
    by at most `roundoff (|l|^T |R| |l| + |r|^T |L| |r|)`, where |l_t|^2 and |r_t|^2 are the diagonals.
    """
    left, right = (_diagonal(gram).clamp(min=0).sqrt().unsqueeze(2) for gram in (lefts, rights))
    error = _roundoff(lefts, rows) * (left.transpose(1, 2) @ (rights.abs() @ left))
    error += _roundoff(rights, columns) * (right.transpose(1, 2) @ (lefts.abs() @ right))
    return ((lefts * rights).sum((1, 2)) + error.flatten()).clamp(min=0)


def _diagonal(matrices: Tensor) -> Tensor:
    return matrices.diagonal(dim1=1, dim2=2)


def _lengthen(squares: Tensor, terms: int, size: Tensor) -> Tensor:
    """Squared norms of gradients that are computed anew for the sum: each time off by rounding `terms` terms of `size`."""
    return (squares.sqrt() + 2 * _roundoff(squares, terms) * size).square()


def _length(tensor: Tensor) -> Tensor:
    """Norm of each unit's part."""
    return torch.linalg.vector_norm(tensor.flatten(1), dim=1)


@dataclass(frozen=True)
class Formed:
    """Gradients as they are, `[batch, *parameter]`."""

    grads: Tensor

    def measure(self, mask: Tensor | None) -> tuple[Tensor, PerSample]:
        """Square and add."""
        flat = self.grads.reshape(self.grads.shape[0], -1)
        if mask is not None:
            flat = flat * mask.flatten()
        return flat.square().sum(1), Formed(flat)

    def weighted_sum(self, factors: Tensor) -> Tensor:
        """One product of a vector and a matrix."""
        return factors.to(self.grads.dtype) @ self.grads.reshape(self.grads.shape[0], -1)

    def formed(self) -> Tensor:
        """Themselves."""
        return self.grads

    def where(self, keep: Tensor) -> PerSample:
        """Zero rows."""
        return Formed(_zero_rows(self.grads, keep))

    def by_unit(self, views: int) -> PerSample:
        """Add up."""
        return Formed(self.grads.unflatten(0, (-1, views)).sum(1))


@dataclass(frozen=True)
class Outer:
    """`g_i = sum_t left_it right_it^T`: linear layers. left `[batch, time, rows]`, right `[batch, time, columns]`."""

    left: Tensor
    right: Tensor
    mask: Tensor | None = None  # laid on the sum

    def measure(self, mask: Tensor | None) -> tuple[Tensor, PerSample]:
        """One position: a product of norms. Several: Gram matrices or formed gradients, whichever is cheaper."""
        units, time, rows = self.left.shape
        columns = self.right.shape[2]
        if time == 1:
            left, right = self.left[:, 0].square(), self.right[:, 0].square()
            if mask is None:
                return left.sum(1) * right.sum(1), self
            shaped = mask.reshape(rows, columns)
            return ((left @ shaped.to(left.dtype)) * right).sum(1), Outer(self.left, self.right, shaped)
        if mask is None and time * time * (rows + columns) < (time + TRAFFIC) * rows * columns:
            return self.gram(), self
        squares, kept = [], []
        keep = units * rows * columns <= KEPT
        for left, right in self._chunks(rows * columns):
            grads = torch.bmm(left.transpose(1, 2), right).flatten(1)
            if mask is not None:
                grads = grads.mul_(mask.flatten())
            squares.append(grads.square().sum(1))
            if keep:
                kept.append(grads)
        if keep:
            return torch.cat(squares), Formed(torch.cat(kept))
        size = _length(self.left) * _length(self.right)
        return _lengthen(torch.cat(squares), time, size), Outer(self.left, self.right, mask)

    def gram(self) -> Tensor:
        """||sum_t l_t r_t^T||^2 = sum_ts <l_t, l_s> <r_t, r_s>."""
        squares = []
        for left, right in self._chunks(self.left.shape[1] ** 2):
            lefts, rights = torch.bmm(left, left.transpose(1, 2)), torch.bmm(right, right.transpose(1, 2))
            squares.append(_dot(lefts, rights, left.shape[2], right.shape[2]))
        return torch.cat(squares)

    def _chunks(self, floats: int) -> list[tuple[Tensor, Tensor]]:
        size = _chunk(self.left, floats)
        return list(zip(self.left.split(size), self.right.split(size), strict=True))

    def weighted_sum(self, factors: Tensor) -> Tensor:
        """One matrix product over units and positions together, as in an ordinary backward pass."""
        left, right, weights = self.left, self.right, factors.to(self.left.dtype).view(-1, 1, 1)
        if left.shape[2] <= right.shape[2]:
            left = left * weights
        else:
            right = right * weights
        total = left.flatten(0, 1).T @ right.flatten(0, 1)
        return total if self.mask is None else total.mul_(self.mask.view(total.shape))

    def formed(self) -> Tensor:
        """Batched product."""
        return torch.bmm(self.left.transpose(1, 2), self.right)

    def where(self, keep: Tensor) -> PerSample:
        """Both factors zero: 0 times infinity must not come up."""
        return Outer(_zero_rows(self.left, keep), _zero_rows(self.right, keep), self.mask)

    def by_unit(self, views: int) -> PerSample:
        """A unit's rows are more positions."""
        left, right = (factor.unflatten(0, (-1, views)).flatten(1, 2) for factor in (self.left, self.right))
        return Outer(left, right, self.mask)


@dataclass(frozen=True)
class Rows:
    """`g_i = sum_t e_index(it) rows_it^T`: embeddings, never dense. index `[batch, time]`, rows `[batch, time, columns]`."""

    index: Tensor
    rows: Tensor
    size: int
    mask: Tensor | None = None

    def measure(self, mask: Tensor | None) -> tuple[Tensor, PerSample]:
        """Add up the rows that a unit sends to the same token, then square."""
        units = self.index.shape[0]
        unit = torch.arange(units, device=self.index.device).unsqueeze(1)
        keys, inverse = torch.unique((unit * self.size + self.index).flatten(), return_inverse=True)
        sums = self.rows.new_zeros(keys.numel(), self.rows.shape[2]).index_add_(0, inverse, self.rows.flatten(0, 1))
        if mask is not None:
            sums = sums * mask[keys % self.size]
        squares = sums.new_zeros(units).index_add_(0, keys // self.size, sums.square().sum(1))
        time = self.index.shape[1]
        squares = _lengthen(squares, time, math.sqrt(time) * _length(self.rows))
        return squares, Rows(self.index, self.rows, self.size, mask)

    def weighted_sum(self, factors: Tensor) -> Tensor:
        """One scatter."""
        weighted = self.rows * factors.to(self.rows.dtype).view(-1, 1, 1)
        total = self.rows.new_zeros(self.size, self.rows.shape[2])
        total.index_add_(0, self.index.flatten(), weighted.flatten(0, 1))
        return total if self.mask is None else total.mul_(self.mask)

    def formed(self) -> Tensor:
        """Scatter per unit."""
        grads = self.rows.new_zeros(self.index.shape[0], self.size, self.rows.shape[2])
        return grads.scatter_add_(1, self.index.unsqueeze(2).expand_as(self.rows), self.rows)

    def as_outer(self) -> Outer:
        """With one-hot vectors on the left: for a table that is also used as a matrix."""
        return Outer(F.one_hot(self.index, self.size).to(self.rows.dtype), self.rows)

    def where(self, keep: Tensor) -> PerSample:
        """Zero rows."""
        return Rows(self.index, _zero_rows(self.rows, keep), self.size, self.mask)

    def by_unit(self, views: int) -> PerSample:
        """A unit's rows are more positions."""
        index, rows = (part.unflatten(0, (-1, views)).flatten(1, 2) for part in (self.index, self.rows))
        return Rows(index, rows, self.size, self.mask)


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

    def measure(self, mask: Tensor | None) -> tuple[Tensor, PerSample]:
        """The cheapest exact way for this shape: Gram matrices or formed gradients, by shifting or by unfolding."""
        out, channels = self.grad.shape[1], self.input.shape[1]
        time, taps = math.prod(self.grad.shape[2:]), math.prod(self.kernel)
        form = (time + TRAFFIC) * taps * channels * out // self.groups
        if set(self.stride) == {1} and self.groups == 1 and channels >= 8:
            area, wide = math.prod(self._sizes()), self.grad.shape[2] * math.prod(self._sizes()[1:])
            gram = area * area * channels + wide * wide * (out + TRAFFIC / 8 * taps)
            return (self._shifted_gram(), self) if mask is None and gram < form else self._shifted_form(mask)
        if mask is None and self.groups == 1 and time * time * (taps * channels + out) < form:
            columns = self._columns(slice(None))[:, 0].transpose(1, 2)
            return Outer(self.grad.flatten(2).transpose(1, 2), columns).gram(), self
        return self._unfolded_form(mask)

    def _sizes(self) -> list[int]:
        """Size of each axis of the padded input."""
        return [size + sum(pads) for size, pads in zip(self.input.shape[2:], self.padding, strict=True)]

    def _padded(self, chunk: slice) -> Tensor:
        pads = [pad for pair in reversed(self.padding) for pad in pair]
        return F.pad(self.input[chunk], pads) if any(pads) else self.input[chunk]

    def _flat(self, chunk: slice) -> tuple[Tensor, Tensor, list[int]]:
        """Input and gradient of some units with all positions in one axis, and each tap's offset on it."""
        sizes = self._sizes()
        spare = [size - have for size, have in zip(sizes, self.grad.shape[2:], strict=True)]
        strides = [math.prod(sizes[axis + 1 :]) for axis in range(len(sizes))]
        grad = F.pad(self.grad[chunk], [pad for gap in reversed(spare[1:]) for pad in (0, gap)]).flatten(2)
        reach = sum(gap * stride for gap, stride in zip(spare[1:], strides[1:], strict=True))
        grad = grad[:, :, : grad.shape[2] - reach]  # behind the last position nothing needs widening
        steps = [d * stride for d, stride in zip(self.dilation, strides, strict=True)]
        taps = itertools.product(*(range(k) for k in self.kernel))
        offsets = [sum(u * step for u, step in zip(tap, steps, strict=True)) for tap in taps]
        return self._padded(chunk).flatten(2), grad, offsets

    def _slices(self, floats: int) -> list[slice]:
        size, units = _chunk(self.grad, floats), self.grad.shape[0]
        return [slice(i, min(i + size, units)) for i in range(0, units, size)]

    def _shifted_gram(self) -> Tensor:
        """Sum over taps of <X^T X shifted along its diagonal, G^T G>."""
        squares, area = [], math.prod(self._sizes())
        for chunk in self._slices(2 * area**2 + area * self.input.shape[1]):
            inputs, grad, offsets = self._flat(chunk)
            time = grad.shape[2]
            grams, grads = torch.bmm(inputs.transpose(1, 2), inputs), torch.bmm(grad.transpose(1, 2), grad)
            shifted = grams[:, :time, :time].clone()
            for offset in offsets[1:]:
                shifted += grams[:, offset : offset + time, offset : offset + time]
            squares.append(_dot(shifted, grads, inputs.shape[1] + len(offsets), grad.shape[1]))
        return torch.cat(squares)

    def _shifted_form(self, mask: Tensor | None) -> tuple[Tensor, PerSample]:
        """One batched product per tap."""
        units, out = self.grad.shape[:2]
        channels, taps = self.input.shape[1], math.prod(self.kernel)
        keep = units * taps * out * channels <= KEPT
        mask_by_tap = None if mask is None else mask.flatten(2).permute(2, 0, 1).unsqueeze(1)
        squares, kept = [], []
        for chunk in self._slices(taps * out * channels + math.prod(self._sizes()) * (channels + out)):
            inputs, grad, offsets = self._flat(chunk)
            time = grad.shape[2]
            grads = grad.new_empty(taps, grad.shape[0], out, channels)
            for tap, offset in enumerate(offsets):
                torch.bmm(grad, inputs[:, :, offset : offset + time].transpose(1, 2), out=grads[tap])
            if mask_by_tap is not None:
                grads.mul_(mask_by_tap)
            squares.append(torch.linalg.vector_norm(grads.flatten(2), dim=2).square().sum(0))
            if keep:
                kept.append(grads)
        return (torch.cat(squares), ByTap(kept)) if keep else self._later(torch.cat(squares), mask)

    def _columns(self, chunk: slice) -> Tensor:
        """Unfolded input `[batch, groups, in / groups * taps, time]`; a strided copy is faster than `F.unfold`."""
        padded, sizes = self._padded(chunk), self.grad.shape[2:]
        steps = padded.stride()
        taps = tuple(d * step for d, step in zip(self.dilation, steps[2:], strict=True))
        moves = tuple(s * step for s, step in zip(self.stride, steps[2:], strict=True))
        view = padded.as_strided((*padded.shape[:2], *self.kernel, *sizes), (*steps[:2], *taps, *moves))
        return view.reshape(padded.shape[0], self.groups, -1, math.prod(sizes))

    def _unfolded_form(self, mask: Tensor | None) -> tuple[Tensor, PerSample]:
        units, out = self.grad.shape[:2]
        rows = self.input.shape[1] * math.prod(self.kernel)
        size = out * rows // self.groups
        keep = units * size <= KEPT
        squares, kept = [], []
        for chunk in self._slices(size + rows * math.prod(self.grad.shape[2:])):
            grads = self._form(chunk).flatten(1)
            if mask is not None:
                grads = grads * mask.flatten()
            squares.append(torch.linalg.vector_norm(grads, dim=1).square())
            if keep:
                kept.append(grads)
        return (torch.cat(squares), Formed(torch.cat(kept))) if keep else self._later(torch.cat(squares), mask)

    def _later(self, squares: Tensor, mask: Tensor | None) -> tuple[Tensor, PerSample]:
        """The norms of gradients that are formed again for the sum."""
        size = math.sqrt(math.prod(self.kernel)) * _length(self.input) * _length(self.grad)
        return _lengthen(squares, math.prod(self.grad.shape[2:]), size), replace(self, mask=mask)

    def _form(self, chunk: slice) -> Tensor:
        grad = self.grad[chunk].flatten(2).unflatten(1, (self.groups, -1))
        return grad @ self._columns(chunk).transpose(2, 3)

    def weighted_sum(self, factors: Tensor) -> Tensor:
        """The ordinary weight gradient of the weighted output gradient."""
        even = all(before == after for before, after in self.padding)
        axes = len(self.kernel)
        grad = self.grad * factors.to(self.grad.dtype).view(-1, 1, *[1] * axes)
        weight = grad.new_empty(1).expand(grad.shape[1], self.input.shape[1] // self.groups, *self.kernel)
        total = torch.ops.aten.convolution_backward(
            grad,
            self.input if even else self._padded(slice(None)),
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
        return total if self.mask is None else total.mul_(self.mask.view(total.shape))

    def formed(self) -> Tensor:
        """By unfolding."""
        return self._form(slice(None))

    def where(self, keep: Tensor) -> PerSample:
        """Both factors zero."""
        return replace(self, input=_zero_rows(self.input, keep), grad=_zero_rows(self.grad, keep))

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
class ByTap:
    """Formed gradients of a convolution in chunks of units, `[taps, units, out, in]` each."""

    chunks: list[Tensor]

    def measure(self, mask: Tensor | None) -> tuple[Tensor, PerSample]:
        """Through the parameter's own order."""
        return Formed(self.formed()).measure(mask)

    def weighted_sum(self, factors: Tensor) -> Tensor:
        """A product of a vector and a matrix per tap."""
        taps, _, out, channels = self.chunks[0].shape
        total = self.chunks[0].new_zeros(taps, out * channels)
        first = 0
        for grads in self.chunks:
            part = factors[first : first + grads.shape[1]].to(grads.dtype)
            total += part @ grads.flatten(2)
            first += grads.shape[1]
        return total.view(taps, out, channels).permute(1, 2, 0)

    def formed(self) -> Tensor:
        """In the parameter's order."""
        return torch.cat([grads.permute(1, 2, 3, 0).flatten(1) for grads in self.chunks])

    def where(self, keep: Tensor) -> PerSample:
        """Zero rows, chunk by chunk."""
        parts = keep.split([grads.shape[1] for grads in self.chunks])
        return ByTap(
            [
                torch.where(part.view(1, -1, 1, 1), grads, grads.new_zeros(()))
                for part, grads in zip(parts, self.chunks, strict=True)
            ]
        )

    def by_unit(self, views: int) -> PerSample:
        """Add up."""
        return Formed(self.formed()).by_unit(views)

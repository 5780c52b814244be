"""The table of operations, row for row: moving one unit moves that unit's row of the result and no other.

Every name in the table has a case: units in front, in the middle or last, laid out several times; the place that the proof
finds is compared with plain torch, after one unit was replaced and after one was left out. And the other side: arguments under
which an operation mixes units must not be proven.
"""

import functools
import importlib.util
import operator
import random
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import pytest
import torch
from torch import Tensor

from noisewise.persample.conditions import NotProven
from noisewise.persample.operations import RULES, TABLE
from noisewise.persample.places import FRONT, Place
from noisewise.persample.proof import Proof

UNITS = 5
A = torch.ops.aten
CUDA_ONLY = {
    "_cudnn_rnn",
    "cudnn_batch_norm",
    "_scaled_dot_product_flash_attention",
    "_scaled_dot_product_efficient_attention",
    "_scaled_dot_product_cudnn_attention",
    "_scaled_dot_product_fused_attention_overrideable",
    "_thnn_fused_lstm_cell",
    "_thnn_fused_gru_cell",
    "_fused_rms_norm",
}
"""Operations that no CPU runs: their rules are those of others that are tried here, or plain."""


class U(NamedTuple):
    """A tensor with units: the shape of one unit's part, the dimension where the units run, and how often they are laid out."""

    part: tuple[int, ...]
    at: int = 0
    outer: int = 1
    inner: int = 1
    kind: str = "normal"

    def draw(self, units: int, generator: torch.Generator) -> Tensor:
        """Random values, the units in front."""
        shape = (units, self.outer, self.inner, *self.part)
        match self.kind.split(":"):
            case ["normal"]:
                return torch.randn(shape, generator=generator)
            case ["positive"]:
                return torch.rand(shape, generator=generator) + 0.5
            case ["share"]:
                return torch.rand(shape, generator=generator) * 0.8 + 0.1
            case ["bool"]:
                return torch.rand(shape, generator=generator) > 0.5
            case ["complex"]:
                return torch.randn(shape, generator=generator, dtype=torch.complex64)
            case ["signs"]:
                return torch.rand(shape, generator=generator).round() * 2 - 1
            case ["index", high]:
                return torch.randint(0, int(high), shape, generator=generator)
            case other:
                raise AssertionError(other)

    def laid_out(self, front: Tensor) -> Tensor:
        """A copy whose memory runs as the operation wants it, seen with the units in front."""
        there = front.movedim((1, 0, 2), (self.at, self.at + 1, self.at + 2)).contiguous()
        return there.movedim((self.at, self.at + 1, self.at + 2), (1, 0, 2))

    def view(self, front: Tensor) -> Tensor:
        """From there by views alone to what the operation takes."""
        return front.movedim((1, 0, 2), (self.at, self.at + 1, self.at + 2)).flatten(self.at, self.at + 2)


class Case(NamedTuple):
    """An operation with arguments under which it acts row by row."""

    name: str
    inputs: list[U]
    call: Callable[..., object]


def tensors(result: object) -> list[Tensor]:
    return [result] if isinstance(result, Tensor) else [t for t in result if isinstance(t, Tensor)]


def run(case: Case, fronts: list[Tensor]) -> list[Tensor]:
    torch.manual_seed(0)
    return tensors(case.call(*(u.view(u.laid_out(front)) for u, front in zip(case.inputs, fronts, strict=True))))


def prove(case: Case, fronts: list[Tensor]) -> tuple[list[Tensor], list[Place | None], Proof]:
    torch.manual_seed(0)
    inputs = [u.laid_out(front) for u, front in zip(case.inputs, fronts, strict=True)]
    with Proof(inputs, {}, copied=True) as proof:
        outputs = tensors(case.call(*(u.view(front) for u, front in zip(case.inputs, inputs, strict=True))))
    return outputs, [proof.place(out) for out in outputs], proof


def of_units(out: Tensor, place: Place, units: int) -> Tensor:
    """The result with the units in front."""
    return out.unflatten(place.dim, (place.outer, units, place.inner)).movedim(place.dim + 1, 0)


def same(one: Tensor, two: Tensor) -> bool:
    return torch.allclose(one, two, rtol=1e-5, atol=1e-6, equal_nan=True)


def assert_row_by_row(case: Case, seed: int) -> bool:
    """Does a case hold? True if something moved at all."""
    generator = torch.Generator().manual_seed(seed)
    fronts = [u.draw(UNITS, generator) for u in case.inputs]
    outputs, places, _ = prove(case, fronts)
    assert any(place is not None for place in places)
    plain = run(case, fronts)
    assert all(same(a, b) for a, b, place in zip(outputs, plain, places, strict=True) if place is not None)
    moved = False
    for unit in (seed % UNITS, UNITS - 1):
        others = [i for i in range(UNITS) if i != unit]
        replaced = [front.clone() for front in fronts]
        for front, u in zip(replaced, case.inputs, strict=True):
            front[unit] = u.draw(1, generator)[0]
        without = [front[others] for front in fronts]
        for out, after, fewer, place in zip(plain, run(case, replaced), run(case, without), places, strict=True):
            if place is None or out.numel() == 0:
                continue
            before, now = of_units(out, place, UNITS), of_units(after, place, UNITS)
            assert same(before[others], now[others]), f"unit {unit} moves others"
            assert same(before[others], of_units(fewer, place, UNITS - 1)), f"leaving unit {unit} out moves others"
            moved = moved or not same(before[unit], now[unit])
    return moved


# ---------------------------------------------------------------------------------------------- cases that must be proven

Make = Callable[[random.Random], tuple[list[U], Callable[..., object]]]
CASES: list[tuple[str, Make]] = []


def case(*names: str) -> Callable[[Callable[..., object]], Callable[..., object]]:
    """Register a maker of cases; makers with a second argument get the operation."""

    def register(make: Callable[..., object]) -> Callable[..., object]:
        for name in names:
            packet = getattr(A, name)
            wants = make.__code__.co_argcount > 1
            CASES.append((name, (lambda r, make=make, packet=packet: make(r, packet)) if wants else make))
        return make

    return register


def anywhere(r: random.Random, *part: int, kind: str = "normal", last: int | None = None) -> U:
    """Units anywhere up to dimension `last`, laid out up to twice or thrice."""
    return U(part, r.randint(0, len(part) if last is None else last), r.choice([1, 1, 2]), r.choice([1, 1, 3]), kind)


UNARY = [
    "abs",
    "angle",
    "asinh",
    "atan",
    "ceil",
    "celu",
    "clone",
    "cos",
    "cosh",
    "deg2rad",
    "elu",
    "erf",
    "erfc",
    "exp",
    "exp2",
    "expm1",
    "floor",
    "frac",
    "gelu",
    "hardshrink",
    "hardsigmoid",
    "hardswish",
    "hardtanh",
    "i0",
    "isinf",
    "isnan",
    "isneginf",
    "isposinf",
    "leaky_relu",
    "log_sigmoid_forward",
    "mish",
    "nan_to_num",
    "neg",
    "rad2deg",
    "reciprocal",
    "relu",
    "round",
    "sgn",
    "sigmoid",
    "sign",
    "signbit",
    "silu",
    "sin",
    "sinc",
    "sinh",
    "softplus",
    "softshrink",
    "special_erfcx",
    "special_i0e",
    "special_i1",
    "special_i1e",
    "special_log_ndtr",
    "tan",
    "tanh",
    "trunc",
    "_neg_view_copy",
]
POSITIVE = ["digamma", "lgamma", "log", "log10", "log1p", "log2", "rsqrt", "special_entr", "sqrt"]
SHARE = ["acos", "asin", "atanh", "erfinv", "logit", "special_ndtri"]
BINARY = [
    "add",
    "atan2",
    "copysign",
    "div",
    "fmax",
    "fmin",
    "fmod",
    "ge",
    "gt",
    "heaviside",
    "hypot",
    "ldexp",
    "le",
    "logaddexp",
    "logaddexp2",
    "lt",
    "maximum",
    "minimum",
    "mul",
    "nextafter",
    "remainder",
    "rsub",
    "sub",
    "complex",
]
BINARY_POSITIVE = ["floor_divide", "igamma", "igammac", "pow", "xlogy", "special_xlog1py", "polar", "special_zeta"]
INTEGERS = [
    "eq",
    "ne",
    "logical_and",
    "logical_or",
    "logical_xor",
    "bitwise_and",
    "bitwise_or",
    "bitwise_xor",
    "bitwise_left_shift",
    "bitwise_right_shift",
    "__lshift__",
    "__rshift__",
]


@case(*UNARY)
def unary(r, op):
    return [anywhere(r, 3, 2)], op


@case(*POSITIVE)
def unary_positive(r, op):
    return [anywhere(r, 3, 2, kind="positive")], op


@case(*SHARE)
def unary_share(r, op):
    return [anywhere(r, 3, kind="share")], op


@case(*BINARY)
def binary(r, op):
    u = anywhere(r, 3, 2)
    return [u, u], op


@case(*BINARY_POSITIVE)
def binary_positive(r, op):
    u = anywhere(r, 3, 2, kind="positive")
    return [u, u], (lambda a, b: op(a + 1, b)) if op is A.special_zeta else op


@case(*INTEGERS)
def integers(r, op):
    u = anywhere(r, 3, 2, kind="index:3")
    return [u, u], op


@case("add", "mul", "where", "maximum")
def with_shared(r, op):
    """A tensor that is the same for all, broadcast from behind, beside, or widened."""
    row = torch.arange(2.0)
    scale = torch.tensor(0.3).expand(1, 1, 1)
    other = r.choice([row, scale, torch.tensor(0.3)])
    u = U((3, 2), r.randint(0, 1), r.choice([1, 2]), r.choice([1, 3]))
    if op is A.where:
        return [u], lambda x: op(x > 0, x, other)
    return [u], lambda x: op(x, other)


@case("add", "mul", "div")
def with_made_alike(r, op):
    """Made in the pass, all entries equal or drawn by chance."""
    make = r.choice([torch.ones_like, torch.rand_like, lambda x: torch.full(x.shape, 2.0)])
    return [anywhere(r, 3, 2)], lambda x: op(x, make(x) * 0 + 2)


@case("bitwise_not", "logical_not")
def negations(r, op):
    return [anywhere(r, 3, kind="index:2")], op


@case("_conj_physical")
def conjugate(r):
    return [anywhere(r, 3, kind="complex")], A._conj_physical


@case("acosh")
def acosh(r):
    return [anywhere(r, 3, kind="positive")], lambda x: A.acosh(x + 1)


@case("addcdiv", "addcmul", "lerp", "where")
def ternary(r, op):
    u = anywhere(r, 3, 2, kind="positive")
    return [u, u, u], (lambda a, b, c: op(a > 1, b, c)) if op is A.where else op


@case("clamp", "clamp_max", "clamp_min", "masked_fill", "threshold", "polygamma", "mvlgamma", "_to_copy")
def with_numbers(r, op):
    calls = {
        A.clamp: lambda x: op(x, 0.7, 1.2), A.clamp_max: lambda x: op(x, 1.0), A.clamp_min: lambda x: op(x, 1.0),
        A.masked_fill: lambda x: op(x, x > 1, 3.0), A.threshold: lambda x: op(x, 1.0, 2.0),
        A.polygamma: lambda x: op(1, x), A.mvlgamma: lambda x: op(x + 3, 2),
        A._to_copy: lambda x: op(x, dtype=torch.float64),
    }  # fmt: skip
    return [anywhere(r, 3, 2, kind="positive")], calls[op]


@case("bernoulli", "normal", "poisson", "native_dropout", "rrelu_with_noise")
def chance(r, op):
    """With so little chance that the results can be compared."""
    calls = {
        A.bernoulli: lambda x: op((x > 1).float()), A.normal: lambda x: op(x, 0.0), A.poisson: lambda x: op(x * 1e-30) + x,
        A.native_dropout: lambda x: op(x, 0.0, True),
        A.rrelu_with_noise: lambda x: op(x - 1, torch.empty_like(x), 0.2, 0.2, True),
    }  # fmt: skip
    return [anywhere(r, 3, 2, kind="positive")], calls[op]


@case("binary_cross_entropy", "mse_loss", "huber_loss", "smooth_l1_loss", "soft_margin_loss")
def losses(r, op):
    u = anywhere(r, 3, kind="share")
    return [u, u], (lambda a, b: op(a, b, None, 0)) if op is A.binary_cross_entropy else lambda a, b: op(a, b, 0)


@case("_prelu_kernel")
def prelu(r):
    weight = torch.tensor([[0.2, 0.3]])
    return [U((2,), 0, r.choice([1, 2]), r.choice([1, 3]))], lambda x: A._prelu_kernel(x, weight)


@case("copy")
def copies(r):
    """Into a new tensor, whole or one part after the other."""
    u = anywhere(r, 3, 2)

    def whole(x):
        return torch.zeros_like(x).copy_(x)

    def parts(x):
        out = torch.zeros(*x.shape, 2)
        out[..., 1] = x
        out[..., 0] = x * 2
        return out

    def into_empty(x):
        out = torch.empty(*x.shape, 2)
        out[..., 1] = x
        out[..., 0] = 0.5
        return out

    def by_copy(x):
        return A.copy(torch.zeros(x.shape), x)

    return [u], r.choice([whole, parts, into_empty, by_copy])


REDUCE = [
    "sum",
    "mean",
    "prod",
    "amax",
    "amin",
    "max",
    "min",
    "argmax",
    "argmin",
    "any",
    "all",
    "std",
    "var",
    "var_mean",
    "std_mean",
    "logsumexp",
    "median",
    "nanmedian",
    "nansum",
    "norm",
    "linalg_vector_norm",
    "mode",
    "kthvalue",
    "count_nonzero",
    "aminmax",
]


@case(*REDUCE)
def reductions(r, op):
    at, keep = r.randint(0, 2), r.random() < 0.5
    u = U((4, 3), at, r.choice([1, 2]), r.choice([1, 3]), "index:4" if op is A.mode else "normal")
    dim = r.choice([d for d in range(3) if d != at]) - r.choice([0, 3])
    calls = {
        A.norm: lambda x: op(x, 2, [dim], keep), A.linalg_vector_norm: lambda x: op(x, 2, [dim], keep),
        A.kthvalue: lambda x: op(x, 2, dim, keep), A.count_nonzero: lambda x: op(x > 0, [dim]),
        A.aminmax: lambda x: op(x, dim=dim, keepdim=keep), A.logsumexp: lambda x: op(x, [dim], keep),
        A.std: lambda x: op(x, [dim], correction=1, keepdim=keep), A.var: lambda x: op(x, [dim], correction=1, keepdim=keep),
        A.var_mean: lambda x: op(x, [dim], correction=0, keepdim=keep),
        A.std_mean: lambda x: op(x, [dim], correction=0, keepdim=keep), A.any: lambda x: op(x > 0, dim, keep),
        A.all: lambda x: op(x > -0.5, dim, keep),
        **{o: lambda x: op(x, [dim], keep) for o in (A.sum, A.mean, A.amax, A.amin, A.nansum)},
    }  # fmt: skip
    return [u], calls.get(op, lambda x: op(x, dim, keep))


@case("sum", "amax", "linalg_vector_norm")
def over_several(r, op):
    at = r.randint(0, 2)
    dims = [d for d in range(3) if d != at]
    return [U((4, 3), at, 2, 3)], (lambda x: op(x, 2, dims)) if op is A.linalg_vector_norm else lambda x: op(x, dims)


@case("max", "min")
def of_two(r, op):
    u = anywhere(r, 3)
    return [u, u], op.other


@case("mode", "kthvalue", "sort", "topk", "glu")
def along_the_last_by_default(r, op):
    u = U((4,), 0, r.choice([1, 2]), r.choice([1, 3]))
    return [u], (lambda x: op(x, 2)) if op in (A.kthvalue, A.topk) else op


ALONG = [
    "_softmax",
    "_log_softmax",
    "_safe_softmax",
    "cumsum",
    "cumprod",
    "cummax",
    "cummin",
    "logcumsumexp",
    "flip",
    "roll",
    "sort",
    "topk",
    "glu",
]


@case(*ALONG)
def along(r, op):
    at = r.randint(0, 2)
    u = U((4, 6), at, r.choice([1, 2]), r.choice([1, 3]))
    dim = r.choice([d for d in range(3) if d != at]) - r.choice([0, 3])
    calls = {
        A._softmax: lambda x: op(x, dim, False), A._log_softmax: lambda x: op(x, dim, False),
        A.flip: lambda x: op(x, [dim]), A.roll: lambda x: op(x, [1], [dim]), A.topk: lambda x: op(x, 2, dim),
    }  # fmt: skip
    return [u], calls.get(op, lambda x: op(x, dim))


@case("_fft_r2c", "_fft_c2c", "_fft_c2r")
def fourier(r, op):
    at = r.randint(0, 2)
    dim = r.choice([d for d in range(3) if d != at])
    u = U((4, 6), at, r.choice([1, 2]), 1, "normal" if op is A._fft_r2c else "complex")
    extra = {A._fft_r2c: True, A._fft_c2c: True, A._fft_c2r: 4}[op]
    return [u], lambda x: op(x, [dim], 0, extra)


@case(
    "tril",
    "triu",
    "linalg_inv_ex",
    "linalg_cholesky_ex",
    "_linalg_det",
    "linalg_qr",
    "_linalg_eigh",
    "linalg_matrix_exp",
)
def matrices(r, op):
    u = U((2, 3, 3), r.randint(0, 1), r.choice([1, 2]), r.choice([1, 3]))
    symmetric = op in (A.linalg_cholesky_ex, A._linalg_eigh)

    def call(x):
        result = op(x + x.mT + 9 * torch.eye(3) if symmetric else x)
        return result[:1] if op is A._linalg_eigh else result  # eigenvectors have no sign

    return [u], call


@case("mm", "addmm", "mv", "addmv")
def products(r, op):
    weight, bias, vector = torch.randn(4, 3), torch.randn(3), torch.randn(4)
    u = U((4,), 0, r.choice([1, 2]), r.choice([1, 3]))
    if op is A.mm:
        return r.choice([([u], lambda x: op(x, weight)), ([u], lambda x: op(weight.mT, x.mT))])
    if op is A.addmm:
        own = u._replace(part=(3,))
        return r.choice([
            ([u], lambda x: op(bias, x, weight)), ([u, own], lambda x, b: op(b, x, weight)),
            ([own], lambda b: op(b, torch.ones(len(b), 4), weight)),
        ])  # fmt: skip
    if op is A.mv:
        return [u], lambda x: op(x, vector)
    return [u, u._replace(part=())], lambda x, b: op(b, x, vector)


@case("bmm", "baddbmm")
def batched_products(r, op):
    outer, inner = r.choice([1, 2]), r.choice([1, 3])
    left, right = U((2, 4), 0, outer, inner), U((4, 3), 0, outer, inner)
    weight = torch.randn(1, 4, 3)
    if op is A.bmm:
        middle = U((3, 4), 1, outer, inner)  # heads in front, units as rows
        return r.choice([
            ([left, right], op), ([left], lambda x: op(x, weight.expand(len(x), 4, 3))),
            ([middle], lambda x: op(x, weight.expand(3, 4, 3))),
        ])  # fmt: skip
    return [left, right], lambda a, b: op(torch.ones(1, 2, 3), a, b)


@case("convolution", "_convolution")
def convolutions(r, op):
    axes, transposed = r.randint(1, 3), r.random() < 0.3
    weight, bias = torch.randn(4, 4, *[2] * axes), torch.randn(4)
    u = U((4, *[4] * axes), 0, r.choice([1, 2]), r.choice([1, 3]))
    settings = (weight, bias, [1] * axes, [1] * axes, [1] * axes, transposed, [0] * axes, 1)
    extra = (False, False, False, False) if op is A._convolution else ()
    return [u], lambda x: op(x, *settings, *extra)


def spatial(r: random.Random, axes: int, size: int = 4, channels: int = 2) -> U:
    return U((channels, *[size] * axes), r.randint(0, 1), r.choice([1, 2]), r.choice([1, 3]))


POOLS = {
    2: ["max_pool2d_with_indices", "avg_pool2d", "_adaptive_avg_pool2d", "adaptive_max_pool2d"],
    3: ["max_pool3d_with_indices", "avg_pool3d", "_adaptive_avg_pool3d", "adaptive_max_pool3d"],
}
UPSAMPLE = {
    1: ["upsample_nearest1d", "upsample_linear1d", "_upsample_nearest_exact1d"],
    2: [
        "upsample_nearest2d",
        "upsample_bilinear2d",
        "upsample_bicubic2d",
        "_upsample_nearest_exact2d",
        "_upsample_bilinear2d_aa",
        "_upsample_bicubic2d_aa",
    ],
    3: ["upsample_nearest3d", "upsample_trilinear3d", "_upsample_nearest_exact3d"],
}
for axes_ in (1, 2, 3):

    @case(*POOLS.get(axes_, []))
    def pools(r, op, axes=axes_):
        return [spatial(r, axes)], lambda x: op(x, [2] * axes)

    @case(*UPSAMPLE[axes_])
    def upsampling(r, op, axes=axes_):
        smooth = any(word in str(op) for word in ("linear", "bicubic"))
        return [spatial(r, axes)], lambda x: op(x, [7] * axes, *([False] if smooth else []))

    @case(f"reflection_pad{axes_}d", f"replication_pad{axes_}d")
    def borders(r, op, axes=axes_):
        return [spatial(r, axes)], lambda x: op(x, [1, 2] * axes)


@case("pixel_shuffle", "pixel_unshuffle")
def pixels(r, op):
    return [U((4, 4, 4), 0, r.choice([1, 2]), r.choice([1, 3]))], lambda x: op(x, 2)


@case("channel_shuffle")
def channels(r, op):
    return [U((4, 2, 2))], lambda x: op(x, 2)


@case("max_unpool2d")
def unpooling(r):
    u = spatial(r, 2)

    def call(x):
        values, indices = A.max_pool2d_with_indices(x, [2, 2])
        return A.max_unpool2d(values, indices, [4, 4])

    return [u], call


@case("im2col", "col2im")
def patches(r, op):
    if op is A.im2col:
        return [U((2, 4, 4))], lambda x: op(x, [2, 2], [1, 1], [0, 0], [1, 1])
    return [U((8, 4))], lambda x: op(x, [4, 4], [2, 2], [1, 1], [0, 0], [2, 2])


@case("constant_pad_nd")
def padding(r):
    at = r.randint(0, 2)
    pads = [[1, 2], [0, 1], [2, 0]]
    pads[2 - at] = [0, 0]
    return [U((3, 4), at, 2, 3)], lambda x: A.constant_pad_nd(x, functools.reduce(operator.iadd, pads, []), 0.5)


@case("native_layer_norm", "native_group_norm")
def norms(r, op):
    outer, inner = r.choice([1, 2]), r.choice([1, 3])
    if op is A.native_layer_norm:
        weight = torch.randn(4)
        return [U((3, 4), r.randint(0, 1), outer, inner)], lambda x: op(x, [4], weight, weight, 1e-5)
    weight = torch.randn(4)
    return [U((4, 3), 0, outer, inner)], lambda x: op(x, weight, weight, x.shape[0], 4, 3, 2, 1e-5)


BATCH_NORMS = ["native_batch_norm", "_native_batch_norm_legit", "_native_batch_norm_legit_no_training"]


@case(*BATCH_NORMS)
def batch_norms(r, op):
    """In evaluation mode; or over one unit, with units as channels."""
    mean, variance = torch.randn(4), torch.rand(4) + 0.5
    u = U((4, 3), 0, r.choice([1, 2]), r.choice([1, 3]))
    as_channels = U((2, 3), 1, 1, r.choice([1, 4]))
    if op is A._native_batch_norm_legit_no_training:
        return [u], lambda x: op(x, mean, mean, mean, variance, 0.1, 1e-5)
    if op is A._native_batch_norm_legit:
        return [as_channels], lambda x: op.no_stats(x, None, None, True, 0.1, 1e-5)
    return r.choice([
        ([u], lambda x: op(x, mean, mean, mean, variance, False, 0.1, 1e-5)),
        ([as_channels], lambda x: op(x, None, None, None, None, True, 0.1, 1e-5)),
    ])  # fmt: skip


@case("embedding")
def look_ups(r):
    table = torch.randn(7, 2)
    return [anywhere(r, 3, kind="index:7")], lambda i: A.embedding(table, i)


@case("_embedding_bag", "_embedding_bag_forward_only")
def bags(r, op):
    table = torch.randn(7, 2)
    mode = r.randint(0, 2)

    def call(index):
        return op(table, index.flatten(), torch.arange(0, index.numel(), 3), False, mode)

    return [U((3,), kind="index:7")], call


@case("_scaled_dot_product_flash_attention_for_cpu")
def attention(r):
    u = U((2, 3, 4), 0, r.choice([1, 2]), r.choice([1, 3]))
    op = A._scaled_dot_product_flash_attention_for_cpu
    mask = torch.randn(1, 1, 3, 3)
    return r.choice([
        ([u, u, u], op), ([u, u, u], lambda q, k, v: op(q, k, v, attn_mask=mask.expand(len(q), 2, 3, 3))),
        ([u, u, u, u._replace(part=(2, 3, 3))], lambda q, k, v, m: op(q, k, v, attn_mask=m)),
    ])  # fmt: skip


@case("nll_loss_forward", "nll_loss2d_forward")
def classes(r, op):
    weight = torch.rand(4) + 0.5
    more = (2, 3) if op is A.nll_loss2d_forward else ()
    outer, inner = r.choice([1, 2]), r.choice([1, 3])
    return [U((4, *more), 0, outer, inner), U(more, 0, outer, inner, "index:4")], lambda s, y: op(s, y, weight, 0, -100)


@case("multi_margin_loss", "multilabel_margin_loss_forward")
def margins(r, op):
    if op is A.multi_margin_loss:
        return [U((4,)), U((), kind="index:4")], lambda s, y: op(s, y, 1, 1.0, None, 0)
    return [U((4,)), U((4,), kind="index:4")], lambda s, y: op(s, y, 0)


@case("cat", "stack")
def joined(r, op):
    u = anywhere(r, 3, 2)
    if op is A.stack:
        dim = r.randint(0, 3)
        return [u, u], lambda a, b: op([a, b, torch.zeros_like(a)], dim)
    behind = U((3,), r.randint(0, 1), 1)
    dim = r.choice([d for d in range(3) if d != u.at])
    row = torch.randn(1, 1, 1)

    def with_shared(x):
        sizes = list(x.shape)
        sizes[dim] = 1
        return op([row.expand(sizes), x], dim)

    return r.choice([
        ([u, u], lambda a, b: op([a, b], dim)), ([u], with_shared),
        ([behind, behind._replace(outer=2)], lambda a, b: op([a, b], behind.at)),
    ])  # fmt: skip


@case("repeat")
def repeated(r):
    u = anywhere(r, 3)
    times = [r.randint(1, 3) for _ in range(r.choice([2, 3]))]
    return [u], lambda x: A.repeat(x, times)


@case("index", "_unsafe_index")
def indexed(r, op):
    u, table = U((4, 3), r.randint(0, 2), r.choice([1, 2]), r.choice([1, 3])), torch.randn(6, 4)
    chosen = torch.tensor([2, 0])
    others = [d for d in range(3) if d != u.at]
    dim = r.choice(others)

    def columns(x):
        return op(x, [chosen if d == dim else None for d in range(dim + 1)])

    def both(x):
        return op(x, [chosen if d in others else None for d in range(3)])

    def own_entry(x, i):
        return op(x, [torch.arange(len(x)), i])

    def own_entries(x, i):
        return op(x, [torch.arange(len(x))[:, None], i])

    return r.choice([
        ([u], columns), ([u], both), ([U((4, 3)), U((), kind="index:4")], own_entry),
        ([U((4, 3)), U((2,), kind="index:4")], own_entries),
        ([anywhere(r, 2, kind="index:6")], lambda i: op(table, [i])),
        ([anywhere(r, 2, kind="index:4")], lambda i: op(table, [None, i])),
    ])  # fmt: skip


@case("index_put", "_index_put_impl", "_unsafe_index_put")
def put(r, op):
    chosen = torch.tensor([2, 0])

    def columns(x, v):
        return op(x, [None, chosen], v)

    def own_entry(x, i, v):
        return op(x, [torch.arange(len(x)), i], v)

    def into_zeros(i, v):
        return op(torch.zeros(len(v), 4), [torch.arange(len(v)), i], v)

    def values_into_zeros(v):
        return op(torch.zeros(len(v), 4), [None, chosen], v)

    index = U((), kind="index:4")
    return r.choice([
        ([U((4,), 0, 2, 3), U((2,), 0, 2, 3)], columns), ([U((4,)), index, U(())], own_entry),
        ([index, U(())], into_zeros), ([U((2,))], values_into_zeros),
    ])  # fmt: skip


@case("gather", "scatter", "scatter_add", "scatter_reduce")
def gathered(r, op):
    at = r.randint(0, 1)
    u, index = U((4,), at, 2, 3), U((2,), at, 2, 3, "index:4")
    value = index._replace(kind="normal")
    dim = 1 - at - r.choice([0, 2])
    if op is A.gather:
        return r.choice([
            ([u, index], lambda x, i: op(x, dim, i)),
            ([U((4,), 0)], lambda x: op(x, 1, torch.tensor([[1, 3]]).expand(len(x), 2))),
        ])  # fmt: skip
    if op is A.scatter_reduce:
        return [u, index, value], lambda x, i, v: op(x, dim, i, v, "amax")
    return r.choice([
        ([u, index, value], lambda x, i, v: op(x, dim, i, v)),
        ([index, value], lambda i, v: op(torch.zeros(*(4 if d == dim % 2 else n for d, n in enumerate(i.shape))), dim, i, v)),
    ])  # fmt: skip


@case("index_select", "index_add", "index_copy")
def selected(r, op):
    at = r.randint(0, 2)
    u, dim, index = U((4, 4), at, 2, 3), r.choice([d for d in range(3) if d != at]), torch.tensor([3, 1])
    if op is A.index_select:
        table = torch.randn(6, 3)
        return r.choice([
            ([u], lambda x: op(x, dim, index)), ([U((), kind="index:6")], lambda i: op(table, 0, i)),
        ])  # fmt: skip
    part = tuple(2 if d == dim - (dim > at) else 4 for d in range(2))
    return [u, u._replace(part=part)], lambda x, v: op(x, dim, index, v)


@case("bucketize", "searchsorted", "isin")
def against_shared(r, op):
    steps = torch.linspace(-1, 1, 6)
    if op is A.isin:
        return [anywhere(r, 3, kind="index:6")], lambda x: op(x, torch.tensor([1, 4]))
    return [anywhere(r, 3)], (lambda x: op(x, steps)) if op is A.bucketize else lambda x: op(steps, x)


@case("grid_sampler_2d", "grid_sampler_3d")
def sampled(r, op):
    axes = 2 if op is A.grid_sampler_2d else 3
    outer, inner = r.choice([1, 2]), r.choice([1, 3])
    image, grid = U((2, *[4] * axes), 0, outer, inner), U((*[3] * axes, axes), 0, outer, inner, "share")
    return [image, grid], lambda x, g: op(x, g, 0, 0, False)


@case("affine_grid_generator")
def grids(r, op):
    return [U((2, 3), 0)], lambda theta: op(theta, [len(theta), 1, 4, 5], False)


@case("binary_cross_entropy_with_logits")
def logits(r, op):
    u = anywhere(r, 3)
    return [u, u._replace(kind="share")], lambda a, b: op(a, b, None, None, 0)


@case("multinomial")
def drawn(r):
    u, numbers = U((), 0, r.choice([1, 2]), 3, "index:4"), torch.arange(4)
    return [u], lambda x: A.multinomial((x[:, None] == numbers).float(), 1)


@case("_cdist_forward", "_euclidean_dist")
def distances(r, op):
    u, points = U((3, 2), 0, r.choice([1, 2]), r.choice([1, 3])), torch.randn(1, 4, 2)
    extra = (2.0, 2) if op is A._cdist_forward else ()
    return r.choice([
        ([u, u], lambda a, b: op(a, b, *extra)), ([u], lambda a: op(a, points.expand(len(a), 4, 2), *extra)),
    ])  # fmt: skip


@case("mkldnn_rnn_layer")
def recurrent(r):
    w, h, b, batch_first = torch.randn(12, 4), torch.randn(12, 3), torch.randn(12), r.random() < 0.5

    def call(x):
        zeros = torch.zeros(x.shape[1], 3)
        return A.mkldnn_rnn_layer(x, w, h, b, b, zeros, zeros, False, [], 2, 3, 1, True, False, batch_first, True)

    return [U((4, 4), 1)], call


@pytest.mark.parametrize(("name", "make"), CASES, ids=[f"{name}-{i}" for i, (name, _) in enumerate(CASES)])
def test_moving_one_unit_moves_its_row_alone(name, make):
    r = random.Random(name)
    torch.manual_seed(0)
    moved = False
    for seed in range(3):
        moved |= assert_row_by_row(Case(name, *make(r)), seed)
    assert moved or name in ("isinf", "isnan", "isneginf", "isposinf", "poisson"), (
        "nothing moved: the case shows nothing"
    )


def test_every_name_of_the_table_has_a_case():
    assert sorted(set(RULES) - {name for name, _ in CASES}) == sorted(CUDA_ONLY)


def test_cases_run_the_operation_that_they_are_about():
    """Some operations are taken apart before the proof sees them: such a case would show nothing about its row."""
    seen = set()
    for name, make in CASES:
        case = Case(name, *make(random.Random(0)))
        steps = prove(case, [u.draw(UNITS, torch.Generator().manual_seed(0)) for u in case.inputs])[2].trace.steps
        seen |= {step.operation.removeprefix("aten::").partition(".")[0].rstrip("_") for step in steps}
    assert {name for name, _ in CASES if name.rstrip("_") not in seen} == set()


def test_every_name_of_the_table_is_an_operation_once():
    names = [name for row in TABLE for name in row.names]
    assert len(names) == len(set(names))
    assert [name for name in names if not hasattr(A, name)] == []


# ------------------------------------------------------------------------------------- arguments that must not be proven

X, ROW, IMAGE = U((4,)), U((), kind="index:5"), U((4, 4, 4))
COLUMNS, TIME = U((4,), 1), U((4, 3), 1)
TABLE_OF_ROWS = torch.arange(20.0).view(5, 4)
EYE = torch.eye(5)

REFUSED = {
    "sum of all": ([X], torch.sum),
    "sum over units": ([X], lambda x: x.sum(0)),
    "sum over units, negative dim": ([COLUMNS], lambda x: x.sum(-1)),
    "sum over no dims": ([X], lambda x: A.sum(x, [])),
    "mean over units and columns": ([TIME], lambda x: x.mean((0, 1))),
    "max over units": ([X], lambda x: x.max(0)),
    "max of all": ([X], torch.max),
    "argmax of all": ([X], torch.argmax),
    "norm of all": ([X], lambda x: A.norm(x, 2)),
    "vector norm of all": ([X], lambda x: A.linalg_vector_norm(x)),
    "standard deviation of all": ([X], torch.std),
    "mode along units by default": ([COLUMNS], A.mode),
    "kthvalue along units by default": ([COLUMNS], lambda x: A.kthvalue(x, 2)),
    "count of all": ([X], torch.count_nonzero),
    "aminmax of all": ([X], torch.aminmax),
    "median of all": ([X], torch.median),
    "any of all": ([X], lambda x: (x > 0).any()),
    "softmax over units": ([X], lambda x: x.softmax(0)),
    "log_softmax over units": ([COLUMNS], lambda x: x.log_softmax(-1)),
    "cumsum along units": ([X], lambda x: x.cumsum(0)),
    "cummax along units": ([X], lambda x: x.cummax(0)),
    "flip of units": ([X], lambda x: x.flip(0)),
    "flip of both": ([X], lambda x: x.flip(0, 1)),
    "roll of units": ([X], lambda x: x.roll(1, 0)),
    "roll of all": ([X], lambda x: x.roll(1)),
    "sort of units": ([X], lambda x: x.sort(0)),
    "sort along units by default": ([COLUMNS], torch.sort),
    "topk along units by default": ([COLUMNS], lambda x: x.topk(2)),
    "glu along units by default": ([U((4,), 1, 2)], lambda x: A.glu(x)),
    "Fourier over units": ([X], lambda x: torch.fft.fft(x, dim=0)),
    "Fourier over both": ([X], torch.fft.fft2),
    "matrix with units in rows": ([U((5,))], torch.tril),
    "inverse of a matrix of units": ([U((5,))], torch.linalg.inv),
    "product of units with units": ([X, X], lambda a, b: a @ b.mT),
    "product over units": ([X, X], lambda a, b: a.mT @ b),
    "contraction with a constant over units": ([X], lambda x: EYE[:2] @ x),
    "product with a matrix that differs by row": ([U((2, 4))], lambda x: torch.bmm(x, torch.arange(60.0).view(5, 4, 3))),
    "bmm with units in different places": ([U((5, 4)), U((5, 4), 1)], lambda a, b: torch.bmm(a, b.mT)),
    "addmm onto rows that differ": ([X], lambda x: torch.addmm(TABLE_OF_ROWS, x, torch.eye(4))),
    "addmm of a constant that differs by row": ([X], lambda b: torch.addmm(b, EYE, TABLE_OF_ROWS)),
    "mv with a vector of units": ([U(())], lambda v: TABLE_OF_ROWS.mT @ v),
    "mv over units": ([COLUMNS], lambda x: x @ torch.ones(5)),
    "dot": ([U(()), U(())], torch.dot),
    "outer": ([U(()), U(())], torch.outer),
    "convolution with units as channels": ([U((4, 3), 1)], lambda x: A.convolution(
        x, torch.ones(5, 5, 2), None, [1], [0], [1], False, [0], 1)),
    "convolution with weights of units": ([U((4, 2))], lambda w: A.convolution(
        torch.ones(2, 4, 6), w, None, [1], [0], [1], False, [0], 1)),
    "pool over units": ([U((2, 4), 1)], lambda x: A.avg_pool2d(x, [2, 2])),
    "unpool by other units' indices": ([IMAGE, U((4, 4, 4), 1, kind="index:16")], lambda x, i: A.max_unpool2d(
        x, i.transpose(0, 1).transpose(0, 1).reshape(5, 4, 4, 4).flip(0), [8, 8])),
    "upsample over units": ([U((2, 3), 2)], lambda x: A.upsample_nearest1d(x, [9])),
    "reflection over units": ([U((2, 3), 2)], lambda x: A.reflection_pad1d(x, [1, 1])),
    "pixel shuffle of units as channels": ([U((2, 4, 4), 1, 4)], lambda x: A.pixel_shuffle(x, 2)),
    "channel shuffle of units": ([U((2, 2, 2, 2), 1, 2)], lambda x: A.channel_shuffle(x, 2)),
    "im2col with units as channels": ([U((2, 4, 4), 1)], lambda x: A.im2col(x, [2, 2], [1, 1], [0, 0], [1, 1])),
    "rows added to the units": ([X], lambda x: A.constant_pad_nd(x, [0, 0, 1, 0])),
    "rows cut from the units": ([X], lambda x: A.constant_pad_nd(x, [0, 0, -1, 0])),
    "layer norm over units": ([COLUMNS], lambda x: A.native_layer_norm(x, [5], None, None, 1e-5)),
    "layer norm over all": ([X], lambda x: A.native_layer_norm(x, [5, 4], None, None, 1e-5)),
    "layer norm with weights of units": ([U((5,)), U(())], lambda x, w: A.native_layer_norm(x, [5], w, None, 1e-5)),
    "group norm with units as channels": ([U((4, 3), 1)], lambda x: A.native_group_norm(x, None, None, 4, 5, 3, 1, 1e-5)),
    "group norm over all units": ([U((4, 3))], lambda x: A.native_group_norm(x, None, None, 1, 20, 3, 1, 1e-5)),
    "batch norm": ([X], lambda x: A.native_batch_norm(x, None, None, None, None, True, 0.1, 1e-5)),
    "batch norm without statistics": ([X], lambda x: A._native_batch_norm_legit.no_stats(x, None, None, True, 0.1, 1e-5)),
    "batch norm with weights of units": ([COLUMNS, U(())], lambda x, w: A.native_batch_norm(
        x, w, None, None, None, True, 0.1, 1e-5)),
    "batch norm with weights by position": ([COLUMNS], lambda x: A.native_batch_norm(
        x, EYE[0], None, None, None, True, 0.1, 1e-5)),
    "batch norm with units as positions": ([U((2, 3), 2)], lambda x: A.native_batch_norm(
        x, None, None, None, None, True, 0.1, 1e-5)),
    "a table made of units": ([X], lambda x: A.embedding(x, torch.tensor([0, 1]))),
    "bags by other offsets": ([U((3,), kind="index:7")], lambda i: A._embedding_bag(
        torch.ones(7, 2), i.flatten(), torch.tensor([0, 4, 6, 9, 12]), False, 0)),
    "bags of two units": ([U((3,), kind="index:7")], lambda i: A._embedding_bag(
        torch.ones(7, 2), i.flatten(), torch.arange(0, 10, 2), False, 0)),
    "where a bag belongs": ([U((3,), kind="index:7")], lambda i: A._embedding_bag(
        torch.ones(7, 2), i.flatten(), torch.arange(0, 15, 3), False, 1)[1] * 2),
    "attention over units": ([U((1, 4, 3), 2)] * 3, A._scaled_dot_product_flash_attention_for_cpu),
    "attention with a mask by row": ([U((1, 4, 3))] * 3, lambda q, k, v: A._scaled_dot_product_flash_attention_for_cpu(
        q, k, v, attn_mask=torch.arange(80.0).view(5, 1, 4, 4))),
    "nll with mean": ([X, ROW._replace(kind="index:4")], lambda s, y: A.nll_loss_forward(s, y, None, 1, -100)),
    "nll with units as classes": ([COLUMNS, U((), kind="index:4")], lambda s, y: A.nll_loss_forward(
        s, torch.zeros(4, dtype=torch.long), None, 0, -100)),
    "nll of one row of classes": ([U(())], lambda s: A.nll_loss_forward(s, torch.tensor(1), None, 0, -100)),
    "nll with labels by position": ([X], lambda s: A.nll_loss_forward(s, torch.tensor([0, 1, 2, 3, 0]), None, 0, -100)),
    "nll with weights of units": ([U((5,)), ROW, U(())], lambda s, y, w: A.nll_loss_forward(s, y, w, 0, -100)),
    "margins of one row of classes": ([U(()), ROW], lambda s, y: A.multilabel_margin_loss_forward(s, y, 0)),
    "margins with mean": ([X, ROW._replace(kind="index:4")], lambda s, y: A.multi_margin_loss(s, y)),
    "mse with mean, by default": ([X, X], lambda a, b: A.mse_loss(a, b)),
    "mse with sum": ([X, X], lambda a, b: A.mse_loss(a, b, 2)),
    "bce with mean, by default": ([X._replace(kind="share")] * 2, lambda a, b: A.binary_cross_entropy(a, b)),
    "huber with mean, by default": ([X, X], lambda a, b: A.huber_loss(a, b)),
    "units over units of another place": ([U((5,)), U((5,), 1)], torch.add),
    "units over units laid out otherwise": ([U((), 0, 1, 3), U((), 0, 3, 1)], torch.add),
    "units against all units": ([U(())] * 2, lambda a, b: a[:, None] - b[None, :]),
    "contraction over units onto as many columns": ([COLUMNS], lambda x: x @ torch.ones(5, 5)),
    "product of rows with rows": ([U((5,)), X], lambda a, b: a @ b),
    "batch norm of as many channels": ([U((5,))], lambda x: A.native_batch_norm(x, None, None, None, None, True, 0.1, 1e-5)),
    "a constant's rows by a mask of units": ([X], lambda x: TABLE_OF_ROWS[x[:, 0] == x[:, 0]]),
    "rows shifted by padding": ([X], lambda x: A.constant_pad_nd(x, [0, 0, 1, -1])),
    "zeros into some rows": ([X], lambda x: _into(x * 1, slice(0, 3), torch.zeros(())) * 2),
    "into rows shifted by one": ([X], lambda x: _into(torch.cat([x, x]), slice(1, 6), x) * 2),
    "chance around a constant by row": ([X], lambda x: x + torch.normal(TABLE_OF_ROWS, 1.0)),
    "a constant that differs by row": ([X], lambda x: x + TABLE_OF_ROWS),
    "numbers of the rows": ([X], lambda x: x * torch.arange(5.0)[:, None]),
    "a random order": ([X], lambda x: x[torch.randperm(5)]),
    "cat of constants behind the units": ([X], lambda x: torch.cat([x, torch.zeros(1, 4)])),
    "cat of a constant that differs by row": ([X], lambda x: torch.cat([x, TABLE_OF_ROWS], 1)),
    "cat of units laid out several times": ([U((4,), 0, 1, 3)] * 2, lambda a, b: torch.cat([a, b]) + 0),
    "cat of different places": ([U((5,)), U((5,), 1)], lambda a, b: torch.cat([a, b], 1)),
    "stack of different places": ([U((5,)), U((5,), 1)], lambda a, b: torch.stack([a, b])),
    "entries by mask": ([X], lambda x: x[x > 0]),
    "rows by mask": ([X], lambda x: x[x[:, 0] > 0]),
    "rows by a constant": ([X], lambda x: x[torch.tensor([0, 0, 1, 2, 3])]),
    "rows by units": ([X, ROW], lambda x, i: x[i]),
    "columns by units for all": ([X, ROW._replace(kind="index:4")], lambda x, i: x[:, i]),
    "numbers seen as another type": ([X], lambda x: x[torch.arange(5).view(torch.int32)[:5]]),
    "numbers backwards": ([X], lambda x: x[torch.arange(4, -1, -1)]),
    "numbers by one and a half": ([U((4,), 0)], lambda x: x[torch.arange(0, 4.9, 1.0).long()]),
    "put into rows by units": ([X, ROW, U(())], lambda x, i, v: torch.index_put(x, [i], v[:, None])),
    "put where a unit says, in all rows": ([X, ROW._replace(kind="index:4"), U((5,))], lambda x, i, v: torch.index_put(
        x, [torch.arange(5)[:, None], i[None]], v)),
    "gather along units": ([X, X._replace(kind="index:5")], lambda x, i: x.gather(0, i)),
    "gather with fewer rows": ([X], lambda x: x.gather(1, torch.zeros(2, 1, dtype=torch.long))),
    "gather by a constant that differs by row": ([X], lambda x: x.gather(1, torch.tensor([[0], [1], [2], [3], [0]]))),
    "scatter along units": ([X, X._replace(kind="index:5")], lambda x, i: x.scatter_add(0, i, x)),
    "index_select of rows": ([X], lambda x: x.index_select(0, torch.tensor([1, 0, 2, 3, 4]))),
    "index_select by units": ([X, ROW._replace(kind="index:4")], lambda x, i: x.index_select(1, i)),
    "index_add to rows": ([X], lambda x: x.index_add(0, torch.tensor([0]), torch.ones(1, 4))),
    "index_add by units": ([X, ROW._replace(kind="index:4"), U((5,))], lambda x, i, v: x.index_add(1, i, v)),
    "bucketize by units": ([X, U(())], lambda x, b: torch.bucketize(x, b)),
    "searchsorted in units": ([X, X], lambda x, v: torch.searchsorted(x, v)),
    "searchsorted in a sequence of each row": ([X], lambda x: torch.searchsorted(TABLE_OF_ROWS, x)),
    "weights of bags that differ by row": ([U((3,), kind="index:7")], lambda i: A._embedding_bag(
        torch.ones(7, 2), i.flatten(), torch.arange(0, 15, 3), False, 0, False, torch.arange(15.0))),
    "isin units": ([X, X], torch.isin),
    "grid with units as positions": ([IMAGE, U((5, 4, 2), 1)], lambda x, g: A.grid_sampler_2d(x, g, 0, 0, False)),
    "multinomial over units": ([U((), kind="positive")], lambda x: x.multinomial(2)),
    "distances between units": ([X, X], torch.cdist),
    "recurrence over units": ([U((3, 4))], lambda x: A.mkldnn_rnn_layer(
        x, torch.ones(12, 4), torch.ones(12, 3), torch.ones(12), torch.ones(12), torch.zeros(3, 3), torch.zeros(3, 3),
        False, [], 2, 3, 1, True, False, False, True)),
    "nonzero": ([X], torch.nonzero),
    "where with one argument": ([X], lambda x: torch.where(x > 0)),
    "unique": ([X], torch.unique),
    "equal": ([X, X], torch.equal),
    "item": ([X], lambda x: x[0, 0].item()),
    "some rows": ([X], lambda x: x[:3] * 2),
    "all rows but one": ([X], lambda x: x[1:] * 2),
    "every second row": ([X], lambda x: x[::2] * 2),
    "one row for all": ([X], lambda x: x - x[0]),
    "a view that mixes rows": ([X], lambda x: x.view(4, 5) * 2),
    "a diagonal": ([U((5,))], lambda x: x.diagonal() * 2),
    "windows over rows": ([X], lambda x: x.unfold(0, 2, 1) * 2),
    "memory shifted by one": ([X], lambda x: x.as_strided((4, 4), (4, 1), 4) * 2),
    "one row repeated": ([X], lambda x: x[:1].expand(5, 4) * 2),
    "memory resized": ([X], lambda x: (x * 1).resize_(4, 5) * 2),
    "memory exchanged": ([X], lambda x: (x * 1).set_((x * 2).flip(1)) * 2),
    "blank memory": ([X], lambda x: x + torch.empty_like(x)),
    "half-blank memory": ([X], lambda x: _half(x) * 2),
    "noise written by the way": ([X], lambda x: _noise(x) * 2),
    "into rows of other units": ([X], lambda x: _into(torch.zeros(6, 4), slice(1, None), x) * 2),
    "into other units' rows": ([X], lambda x: _into(x * 1, slice(0, 3), x[2:] * 1) * 2),
    "one row's value for all": ([X], lambda x: _into(x * 1, (slice(None), 0), x[0, 0]) * 2),
    "masked_fill by a mask by row": ([X], lambda x: (x * 1).masked_fill_(EYE[:, :4] > 0, 0.0)),
    "masked_fill with one unit's value": ([X], lambda x: x.masked_fill(x > 0, x[0, 0])),
    "units beside a constant by position": ([X], lambda x: _beside_positions(x) * 2),
    "sum into out": ([X], lambda x: torch.sum(x, 0, out=torch.zeros(4))),
    "running mean": ([X], lambda x: A.native_batch_norm(x, None, None, torch.zeros(4), torch.ones(4), True, 0.1, 1e-5)),
}  # fmt: skip


def _half(x: Tensor) -> Tensor:
    out = torch.empty(*x.shape, 2)
    out[..., 0] = x
    return out


def _noise(x: Tensor) -> Tensor:
    noise = torch.zeros_like(x)
    A.rrelu_with_noise(x, noise, 0.1, 0.3, True)
    return noise


def _into(target: Tensor, where: object, values: Tensor) -> Tensor:
    target[where] = values
    return target


def _beside_positions(x: Tensor) -> Tensor:
    out = torch.cat([TABLE_OF_ROWS, TABLE_OF_ROWS], 1)
    out[:, :4] = x
    return out


@pytest.mark.filterwarnings("ignore:An output with one or more elements was resized:UserWarning")
@pytest.mark.filterwarnings("ignore:torch.searchsorted:UserWarning")
@pytest.mark.parametrize("name", REFUSED)
def test_what_is_not_row_by_row_is_not_proven(name):
    inputs, call = REFUSED[name]
    fronts = [u.draw(UNITS, torch.Generator().manual_seed(0)) for u in inputs]
    with pytest.raises(NotProven):
        prove(Case(name, inputs, call), fronts)


# ------------------------------------------------------------------------------------------------- writing into memory

WRITES = {
    "in place": lambda x: (x * 1).add_(x).mul_(2),
    "through data": lambda x: _into((x * 1).data, (slice(None), 0), torch.zeros(())),
    "a column": lambda x: _into(x * 1, (slice(None), 0), x[:, 1]),
    "a column of zeros": lambda x: _into(torch.zeros(len(x), 4), (slice(None), 2), x[:, 1]),
    "masked_fill_": lambda x: (x * 1).masked_fill_(x > 0, 0.0),
    "index_put_": lambda x: (x * 1).index_put_([torch.arange(len(x)), (x[:, 0] > 0).long()], x[:, 1]),
    "scatter_": lambda x: torch.zeros(len(x), 4).scatter_(1, (x[:, :1] > 0).long(), x[:, 1:2]),
    "time first": lambda x: _into(torch.zeros(3, len(x), 4), 1, x).transpose(0, 1),
    "out=": lambda x: torch.add(x, x, out=torch.empty(len(x), 4)),
    "out= of another shape": lambda x: torch.sum(x, 1, out=torch.empty(len(x))),
    "two parts of blank memory": lambda x: _into(_half(x), (..., 1), x * 2) * 3,
    "seen as integers": lambda x: (x * 1).view(torch.int32) & 255,
    "seen as bytes": lambda x: (x * 1).view(torch.uint8).float(),
    "seen as complex": lambda x: torch.view_as_complex(x.unflatten(1, (2, 2))).conj() * 2,
    "real part of complex": lambda x: torch.view_as_real(torch.complex(x, x * 2)).flatten(1) * 2,
    "zeroed": lambda x: (x * 1).zero_() + x,
    "overwritten by chance": lambda x: (x * 1).uniform_() * 0 + x,
    "transposed in place": lambda x: (x * 1).t_().t_() * 2,
}


@pytest.mark.filterwarnings("ignore:An output with one or more elements was resized:UserWarning")
@pytest.mark.parametrize("name", WRITES)
def test_writes_into_a_units_own_rows_are_followed(name):
    for seed in range(3):
        assert assert_row_by_row(Case(name, [X], WRITES[name]), seed)


def test_the_batch_itself_is_not_written_without_a_copy():
    x = torch.randn(UNITS, 4)
    with pytest.raises(NotProven, match="changes the batch itself"), Proof([x], {}):
        x.add_(1)


def test_a_place_is_in_front_in_the_ordinary_case():
    x = torch.randn(UNITS, 4)
    with Proof([x], {}) as proof:
        assert proof.place(x * 2) == FRONT
        assert proof.place((x * 2).t()) == Place(1)
        assert proof.place(torch.cat([x, x])) == Place(0, 2)
        assert proof.place(x.repeat_interleave(3, 0)) == Place(0, 1, 3)


def test_the_page_is_what_the_table_says():
    project = Path(__file__).parent.parent.parent
    spec = importlib.util.spec_from_file_location("operations_page", project / "benchmarks" / "operations.py")
    page = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(page)
    text = (project / "docs" / "operations.md").read_text()
    assert text == page.page()
    assert all(f"`{name}`" in text for name in RULES)

"""What rounding can do to a norm and to a sum, so that norms can be rounded up: bounds, scales and directions.

A gradient is a sum of products. Its norm is safe if three things are in it: the roundings of the norm's own computation,
those of the later sum, and what under- or overflow may hide. Tensors are scaled by powers of two (exact) so that nothing
overflows and what vanishes is at most `finfo.tiny` against a largest entry near 1; lengths are float64 from there on.
Reference: Higham 2002, Accuracy and Stability of Numerical Algorithms, sections 2.1 (underflow) and 3.1 (sums of products).
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from operator import attrgetter

import torch
import torch.nn.functional as F
from torch import Tensor

from noisewise.persample import kernels

SAFETY = 8  # roundings allowed for besides those of the sums themselves
BLOCK = 512  # float32 squares that are added up in float32
ENOUGH = 1.01  # norms that may be too long by more than this are taken from formed gradients instead
# factors of TF32 are off by 2^-10 each: Hopper's tensor cores leave out the bits behind the tenth, and do not round
SHORTENED = {"none": 0.0, "ieee": 0.0, "highest": 0.0, "tf32": 2**-9, "high": 2**-9, False: 0.0, True: 2**-9}
UNKNOWN = 2**-7  # float32 factors cut to bfloat16, the least that any setting allows
MATMUL = {
    "cuda": ("backends.cuda.matmul.fp32_precision", "get_float32_matmul_precision"),
    "cpu": ("backends.mkldnn.matmul.fp32_precision", "get_float32_matmul_precision"),
}
CONVOLUTION = {
    "cuda": ("backends.cudnn.conv.fp32_precision", "backends.cudnn.allow_tf32"),
    "cpu": ("backends.mkldnn.conv.fp32_precision", "get_float32_matmul_precision"),
}

PRECISIONS = ("backends.cuda.matmul", "backends.cudnn.conv", "backends.mkldnn.matmul", "backends.mkldnn.conv")


def shortened(tensor: Tensor, convolution: bool = False) -> float:
    """Relative error of a product of two float32 factors that the settings let be cut to fewer bits (TF32, bfloat16).

    Convolutions follow a setting of their own (cuDNN's is on by default) and may also run as matrix products. Settings that
    this version of PyTorch does not have or know are taken for the worst. float64 is never cut; sums are never in float16
    or bfloat16 (`engines` widens them), so their reduced-precision reductions do not come up.
    """
    if tensor.dtype != torch.float32:
        return 0.0
    kinds = (MATMUL, CONVOLUTION) if convolution else (MATMUL,)
    return max(_error(kind.get(tensor.device.type, ())) for kind in kinds)


def _error(names: tuple[str, ...]) -> float:
    """By the first setting that this version of PyTorch has: the newer names also reflect the older ones."""
    precision = next((value for value in map(setting, names) if value is not None), None)
    return UNKNOWN if precision is None else SHORTENED.get(precision, UNKNOWN)


def setting(name: str) -> str | bool | None:
    """A setting of PyTorch by its name under `torch`; None where this version does not have it."""
    value = torch
    try:
        for part in name.split("."):
            value = getattr(value, part)
        return value() if callable(value) else value  # type: ignore[return-value]
    except (AttributeError, RuntimeError):
        return None


def roundoff(tensor: Tensor, terms: int, convolution: bool = False) -> float:
    """Bound on the error of a sum of `terms` products, relative to the sum of their magnitudes."""
    return (terms + SAFETY) * torch.finfo(tensor.dtype).eps / 2 + shortened(tensor, convolution)


def full_precision(tensor: Tensor) -> AbstractContextManager[None]:
    """Autocast off: a caller's autocast would cut the factors of norms and sums to 8 bits."""
    kind = tensor.device.type
    return torch.autocast(kind, enabled=False) if torch.is_autocast_enabled(kind) else nullcontext()


@contextmanager
def uncut() -> Iterator[None]:
    """Products of float32 factors in full, whatever the settings allow.

    Which kernel computes a product, and so whether it is cut, can depend on the number of units. Where each is evaluated
    alone, what one contributes must not: the difference would move with every neighbour that comes or goes.
    """
    newer = [name for name in PRECISIONS if setting(f"{name}.fp32_precision") is not None]
    if newer:
        owners = [attrgetter(name)(torch) for name in newer]
        before = [owner.fp32_precision for owner in owners]
        for owner in owners:
            owner.fp32_precision = "ieee"
        try:
            yield
        finally:
            for owner, value in zip(owners, before, strict=True):
                owner.fp32_precision = value
        return
    matmul, cudnn = torch.get_float32_matmul_precision(), torch.backends.cudnn.allow_tf32
    torch.set_float32_matmul_precision("highest")
    torch.backends.cudnn.allow_tf32 = False
    try:
        yield
    finally:
        torch.set_float32_matmul_precision(matmul)
        torch.backends.cudnn.allow_tf32 = cudnn


def magnitudes(tensor: Tensor) -> Tensor:
    """Largest entry of each unit, `[batch]`."""
    axes = tuple(range(1, tensor.dim()))
    if tensor.is_cuda:
        largest: Tensor = torch.linalg.vector_norm(tensor, torch.inf, axes)
        return largest
    return torch.maximum(tensor.amax(axes), tensor.amin(axes).neg_())


def exponents(sizes: Tensor, dtype: torch.dtype) -> Tensor | None:
    """Whole numbers e `[batch]` with 2^(e-1) <= size < 2^e, for numbers of some type, in range with their inverses.

    None, for no scaling, where all sizes are ordinary anyway; on a GPU this is not asked, since it would have to wait for
    the answer.
    """
    if _within(sizes, 2.0**-16, 2.0**16):
        return None
    limit = 126 if dtype == torch.float32 else 511  # in float64 the product of two such powers is in range too
    return torch.frexp(sizes.double())[1].long().clamp_(-limit, limit)


def _within(sizes: Tensor, low: float, high: float) -> bool:
    """Are all sizes between these? On a GPU never."""
    if sizes.is_cuda or sizes.numel() == 0:
        return False
    least, most = torch.aminmax(sizes)
    return low < least.item() and most.item() < high


def powers(exponent: Tensor) -> Tensor:
    """2^e in float64, exactly, for -1022 <= e <= 1023."""
    return ((exponent + 1023) << 52).view(torch.float64)


def scaled(tensor: Tensor, exponent: Tensor | None) -> Tensor:
    """`2^-e x` for each unit: exact, but for what is below the smallest ordinary number then."""
    if exponent is None:
        return tensor
    return tensor * powers(-exponent).to(tensor.dtype).view(-1, *[1] * (tensor.dim() - 1))


def restored(numbers: Tensor, exponent: Tensor | None) -> Tensor:
    """`2^e n` for each unit, in float64."""
    return numbers if exponent is None else numbers * powers(exponent)


def lengths(tensor: Tensor) -> Tensor:
    """Norms of `[batch, entries]` in float64, rounded up: squares of float32 neither under- nor overflow there.

    Many float32 entries are added up in blocks first, which is faster than in float64, where the norms that come out show
    that no square left its range. float64 is scaled by its largest entries.
    """
    entries = tensor.shape[1]
    if tensor.dtype == torch.float64:
        exponent = torch.frexp(magnitudes(tensor))[1].long().clamp_(-1022, 1022) if tensor.numel() else None
        norms: Tensor = torch.linalg.vector_norm(scaled(tensor, exponent), dim=1)
        return restored(norms * (1 + (entries + SAFETY) * 2.0**-53), exponent)
    if kernels.usable(tensor):
        return kernels.squares(tensor, longer=longer_squares(tensor)).sqrt_()
    if entries > BLOCK and not tensor.is_cuda:  # nobody is asked there whether a square left its range
        whole = entries - entries % BLOCK
        blocks = torch.linalg.vector_norm(tensor[:, :whole].unflatten(1, (-1, BLOCK)), dim=2)
        rest = torch.linalg.vector_norm(tensor[:, whole:], dim=1, keepdim=True)
        norms = torch.linalg.vector_norm(torch.cat([blocks, rest], 1), dim=1, dtype=torch.float64)
        inside = (norms > 1e-10) & (norms < 1e18)
        norms.mul_(1 + (BLOCK + SAFETY) * 2.0**-24)
        return norms if inside.all().item() else torch.where(inside, norms, _exact_lengths(tensor))  # row by row
    return _exact_lengths(tensor)


def _exact_lengths(tensor: Tensor) -> Tensor:
    norms: Tensor = torch.linalg.vector_norm(tensor, dim=1, dtype=torch.float64)
    return norms.mul_(1 + (tensor.shape[1] + SAFETY) * 2.0**-53)


def squared_lengths(tensor: Tensor, mask: Tensor | None = None) -> Tensor:
    """Squared norms of `[batch, entries]` in float64, rounded up; of the entries in the mask."""
    if tensor.dtype == torch.float32 and kernels.usable(tensor):  # whose squares do not vanish there
        return kernels.squares(tensor, longer=longer_squares(tensor), mask=mask)
    return squared(lengths(tensor if mask is None else tensor * mask))


def longer_squares(tensor: Tensor) -> float:
    """By what sums of squares of `[batch, entries]` in float64 are rounded up."""
    return 1 + 2 * (tensor.shape[1] + SAFETY) * 2.0**-53


def squared(norms: Tensor) -> Tensor:
    """Squares, rounded up where they vanish: `n^2 + 2^-511 n`."""
    return torch.add(norms.square(), norms, alpha=2.0**-511)


def toward_zero(factors: Tensor, dtype: torch.dtype, exponent: Tensor | None = None) -> Tensor:
    """`2^e factors` in another type, never larger in magnitude: an ulp less, and 0 instead of the smallest numbers."""
    factors = restored(factors, exponent)
    if factors.dtype == dtype:
        return factors
    info = torch.finfo(dtype)
    return F.hardshrink(factors * (1 - info.eps), info.tiny).clamp_(-info.max, info.max).to(dtype)

"""What rounding can do to a norm and to a sum, so that norms can be rounded up: bounds, scales and directions.

A gradient is a sum of products. Its norm is safe if three things are in it: the roundings of the norm's own computation,
those of the later sum, and what under- or overflow may hide. Tensors are scaled by powers of two (exact) so that nothing
overflows and what vanishes is at most `finfo.tiny` against a largest entry near 1; lengths are float64 from there on.
Reference: Higham 2002, Accuracy and Stability of Numerical Algorithms, sections 2.1 (underflow) and 3.1 (sums of products).
"""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext

import torch
import torch.nn.functional as F
from torch import Tensor

SAFETY = 8  # roundings allowed for besides those of the sums themselves
ORDINARY = 12  # largest entries between 2^-12 and 2^12 need no scaling
ENOUGH = 1.01  # norms that may be too long by more than this are taken from formed gradients instead
SHORTENED = {"none": 0.0, "ieee": 0.0, "highest": 0.0, "tf32": 2**-10, "high": 2**-10, False: 0.0, True: 2**-10}
UNKNOWN = 2**-7  # float32 factors cut to bfloat16, the least that any setting allows
MATMUL = {
    "cuda": ("backends.cuda.matmul.fp32_precision", "get_float32_matmul_precision"),
    "cpu": ("backends.mkldnn.matmul.fp32_precision", "get_float32_matmul_precision"),
}
CONVOLUTION = {
    "cuda": ("backends.cudnn.conv.fp32_precision", "backends.cudnn.allow_tf32"),
    "cpu": ("backends.mkldnn.conv.fp32_precision", "get_float32_matmul_precision"),
}


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
    found = next((value for value in map(setting, names) if value is not None), None)
    return UNKNOWN if found is None else SHORTENED.get(found, UNKNOWN)


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


def exponents(tensor: Tensor, limit: int | None = None) -> Tensor | None:
    """Whole numbers e `[batch]` with 2^(e-1) <= max |x_i| < 2^e, within a limit: 2^e and 2^-e are ordinary numbers.

    So is, in float64, the product of two such powers. None, for no scaling, where all units' largest entries are ordinary
    anyway; on a GPU this is not asked, since it would have to wait for the answer.
    """
    if tensor.numel() == 0:
        return None
    axes = tuple(range(1, tensor.dim()))
    found = torch.frexp(torch.maximum(tensor.amax(axes), tensor.amin(axes).neg_()).double())[1]
    if limit is None and not tensor.is_cuda and bool(found.abs().amax() <= ORDINARY):
        return None
    limit = limit or (126 if tensor.dtype == torch.float32 else 511)
    return found.long().clamp_(-limit, limit)


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


def lengths(tensor: Tensor, batch: int = 0) -> Tensor:
    """Norms of the units' parts in float64, rounded up: squares of float32 neither under- nor overflow there.

    `batch`: the unit's dimension. float64 is scaled by its largest entries first.
    """
    exponent = None
    if tensor.dtype == torch.float64:
        exponent = exponents(tensor.movedim(batch, 0), 1022)
        tensor = scaled(tensor.movedim(batch, 0), exponent).movedim(0, batch)
    axes = [axis for axis in range(tensor.dim()) if axis != batch]
    terms = tensor.numel() // max(tensor.shape[batch], 1)
    found = torch.linalg.vector_norm(tensor, dim=axes, dtype=torch.float64)
    return restored(found.mul_(1 + (terms + SAFETY) * 2.0**-53), exponent)


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

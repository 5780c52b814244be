"""Operations as PyTorch's dispatcher names them, and what a pass must not do with tensors."""

from __future__ import annotations

from collections.abc import Iterable
from functools import cache
from typing import Any, NamedTuple

import torch
from torch import Tensor

from noisewise.persample.conditions import NotProven, Rule
from noisewise.persample.operations import RULES


class BatchChanged(NotProven):
    """An operation writes into the batch: the pass needs a copy of it."""


class RecordsRead(Exception):
    """A pass on made-up units computed with the records themselves."""


class StateChanged(Exception):
    """A pass wrote into a tensor that was there before it; holds the tensor's name."""


BLANK = {"empty", "empty_like", "empty_strided", "empty_permuted", "new_empty", "new_empty_strided"}
CONSTANT = {"zeros", "zeros_like", "ones", "ones_like", "full", "full_like", "new_zeros", "new_ones", "new_full", "zero",
            "fill", "scalar_tensor"}  # fmt: skip
CHANCE = {"rand", "rand_like", "randn", "randn_like", "randint", "randint_like", "bernoulli", "normal", "uniform", "random",
          "exponential", "geometric", "cauchy", "log_normal", "poisson", "native_dropout", "rrelu_with_noise"}  # fmt: skip
LIKE = {"zeros_like", "ones_like", "full_like", "rand_like", "randn_like", "randint_like", "empty_like", "new_zeros",
        "new_ones", "new_full", "new_empty", "new_empty_strided"}  # take a shape from their input only  # fmt: skip
FRESH = {"lift_fresh", "lift_fresh_copy"}  # constants made from Python numbers: their content belongs to the trace
COUNTLESS = {"all", "any", "amax", "amin", "max", "min"}  # the same however often an entry is repeated
REARRANGING = {"set", "resize", "resize_as", "as_strided_scatter"}
OVERWRITING = CONSTANT | CHANCE | {"copy"}
SAME = {"detach", "alias"}  # another name for the same tensor
# in place: another view of itself
RESHAPING = {"as_strided", "transpose", "t", "squeeze", "unsqueeze", "swapaxes", "swapdims", "detach"}


class Operation(NamedTuple):
    """An operation: its names, arguments and their defaults, which of them it writes into, and its rule if there is one."""

    full: str
    space: str
    bare: str
    arguments: tuple[str, ...]
    defaults: dict[str, Any]
    written: tuple[str, ...]
    rule: Rule | None
    draws: bool = False  # from a generator
    plain: bool = False  # neither draws, writes nor makes from nothing: what is said of it follows from what it takes


@cache
def about(func: Any) -> Operation:
    """What an operator's schema says of it."""
    schema = func._schema
    name = schema.name.partition("::")
    bare = name[2].rstrip("_") if not name[2].startswith("__") else name[2]
    arguments = [argument.name for argument in schema.arguments]
    written = tuple(a.name for a in schema.arguments if a.alias_info is not None and a.alias_info.is_write)
    writes, written = bool(written), () if bare in RESHAPING else written
    defaults = {a.name: a.default_value for a in schema.arguments if a.has_default_value()}
    full = f"{schema.name}.{schema.overload_name or 'default'}"
    rule = RULES.get(bare) if name[0] == "aten" else None
    draws = torch.Tag.nondeterministic_seeded in func.tags
    special = bare in BLANK | CONSTANT | CHANCE | LIKE | FRESH | REARRANGING | SAME
    plain = name[0] == "aten" and not (draws or writes or special)
    return Operation(full, name[0], bare, tuple(arguments), defaults, written, rule, draws, plain)


def tensors_of(values: Iterable[Any]) -> list[Tensor]:
    """All tensors among the values, in lists and tuples too."""
    tensors: list[Tensor] = []
    for value in values:
        if isinstance(value, Tensor):
            tensors.append(value)
        elif isinstance(value, list | tuple):
            tensors += tensors_of(value)
    return tensors

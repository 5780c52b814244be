"""How the sums of a run are made, as far as neither its plan nor the answers of its model show it."""

from __future__ import annotations

from typing import Any

from torch import nn

from noisewise.mechanism import Mechanism
from noisewise.promises import answers_of
from noisewise.runtime import Runtime
from noisewise.support import Fixed, plans_of
from noisewise.training.augmentation import Augment


def way_of(
    model: nn.Module, mechanism: Mechanism, runtime: Runtime | None, augment: Augment | None, draws: bool = True
) -> dict[str, Any]:
    """What changes clipped sums by more than rounding, though plan, data, model and loss stay as they are.

    Engine, micro-batches, memory and padding decide what layers draw (dropout), and so does the device, where the model
    `draws`; the number of versions, what each row adds; which parameters learn, and what a rule of one's own says, what is
    clipped. Two courses that differ in it and had the same noise would give away the difference of their sums.
    """
    how = runtime or Runtime()
    fixed = [plan.support for plan in plans_of(mechanism.support) if isinstance(plan, Fixed)]
    frozen = {name for support in fixed for name, mask in support.items() if mask is False}
    learning = [name for name, parameter in model.named_parameters() if parameter.requires_grad and name not in frozen]
    return {
        "engine": how.engine,
        "microbatch": None if how.microbatch is None else int(how.microbatch),
        "memory": how.memory,
        "padded": how.padded,
        "device": next(model.parameters()).device.type if draws else None,
        "views": 0 if augment is None else int(augment.views),
        "learning": learning,
        "rules": answers_of(mechanism.clip, learning),
    }

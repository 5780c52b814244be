"""How the sums of a run are made, as far as neither its plan nor the answers of its model show it."""

from __future__ import annotations

from typing import Any

from torch import nn

from noisewise.mechanism import Mechanism
from noisewise.promises import answers_of
from noisewise.runtime import Runtime
from noisewise.training.augmentation import Augment


def way_of(model: nn.Module, mechanism: Mechanism, runtime: Runtime | None, augment: Augment | None) -> dict[str, Any]:
    """What changes clipped sums by more than rounding, though plan, data, model and loss stay as they are.

    Engine, micro-batches and memory decide in which order layers draw (dropout); the number of versions, what each row adds;
    which parameters learn, and what a rule of one's own says, what is clipped. Two courses that differ in it and had the same
    noise would give away the difference of their sums.
    """
    how = runtime or Runtime()
    learning = [name for name, parameter in model.named_parameters() if parameter.requires_grad]
    return {
        "engine": how.engine,
        "microbatch": how.microbatch,
        "memory": how.memory,
        "views": 0 if augment is None else augment.views,
        "learning": learning,
        "rules": answers_of(mechanism.clip, learning),
    }

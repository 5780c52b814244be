"""Private training: `private_step` for one's own loop, `train` for everybody else."""

from noisewise.accounting.defaults import default_delta
from noisewise.training.augmentation import Augment
from noisewise.training.loop import (
    ABLATIONS,
    Ablation,
    Observation,
    Recorder,
    State,
    Trained,
    private_step,
    save_weights,
    summary,
    train,
)

__all__ = [
    "ABLATIONS", "Ablation", "Augment", "Observation", "Recorder", "State", "Trained", "default_delta",
    "private_step", "save_weights", "summary", "train",
]  # fmt: skip

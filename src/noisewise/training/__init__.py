"""Private training: `private_step` for one's own loop, `train` for everybody else.

A step is read in `step`; around it `batches` draws, `course` says what learns, `memory` cuts what is too large, `ablation`
leaves out what makes it private. `loop` makes many steps; `checkpoint` and `summary` write what remains of them.
"""

from noisewise.accounting.defaults import default_delta
from noisewise.runs.tensors import save_weights
from noisewise.training.ablation import ABLATIONS, Ablation, ablated_step
from noisewise.training.augmentation import Augment
from noisewise.training.callbacks import Callback, Released, StopEarly, mlflow, tensorboard
from noisewise.training.loop import Trained, train
from noisewise.training.paid import PaidAccuracy
from noisewise.training.state import State
from noisewise.training.step import Observation, Recorder, private_step
from noisewise.training.summary import status_of, summary

__all__ = [
    "ABLATIONS", "Ablation", "Augment", "Callback", "Observation", "PaidAccuracy", "Recorder", "Released", "State", "StopEarly",
    "Trained", "ablated_step", "default_delta", "mlflow", "private_step", "save_weights", "status_of", "summary",
    "tensorboard", "train",
]  # fmt: skip

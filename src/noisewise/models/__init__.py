"""Networks by name; any `nn.Module` of your own works as well.

Every model maps `[n, *shape]` to `[n, outputs]`: logits of classes, or numbers for a regression (`outputs=1`).
`noisewise.losses` has the matching losses. All parameters have ghost rules, but for
those of standardised convolutions.
"""

from __future__ import annotations

import copy
import inspect
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import nn

from noisewise import userfiles
from noisewise.errors import ConfigError
from noisewise.models import convert as convert  # noisewise.models.convert.batchnorm_to_groupnorm, as errors name it
from noisewise.models.convolutional import cifar_net, cnn, dp_cnn, dp_cnn_s, h_cnn, h_cnn_s, lenet, mnist_cnn
from noisewise.models.heads import conv_head, linear_head
from noisewise.models.residual import resnet18, resnet34, wrn_16_4, wrn_40_4
from noisewise.models.simple import logistic, mlp
from noisewise.models.table import table
from noisewise.models.text import words
from noisewise.models.theory import TwoLayerCNN, gradient_norms, linear_minimum, two_layer_cnn, two_layer_linear
from noisewise.models.transformer import vit

__all__ = [
    "MODELS",
    "TwoLayerCNN",
    "build",
    "check_model",
    "cifar_net",
    "cnn",
    "conv_head",
    "dp_cnn",
    "dp_cnn_s",
    "gradient_norms",
    "h_cnn",
    "h_cnn_s",
    "lenet",
    "linear_head",
    "linear_minimum",
    "logistic",
    "mlp",
    "mnist_cnn",
    "resnet18",
    "resnet34",
    "table",
    "two_layer_cnn",
    "two_layer_linear",
    "vit",
    "words",
    "wrn_16_4",
    "wrn_40_4",
]

MODELS: dict[str, Callable[..., nn.Module]] = {
    "cnn": cnn,
    "lenet": lenet,
    "mlp": mlp,
    "logistic": logistic,
    "table": table,
    "mnist-cnn": mnist_cnn,
    "cifar-net": cifar_net,
    "dp-cnn": dp_cnn,
    "dp-cnn-s": dp_cnn_s,
    "h-cnn": h_cnn,
    "h-cnn-s": h_cnn_s,
    "linear-head": linear_head,
    "conv-head": conv_head,
    "resnet18": resnet18,
    "resnet34": resnet34,
    "wrn-16-4": wrn_16_4,
    "wrn-40-4": wrn_40_4,
    "vit": vit,
    "words": words,
    "two-layer-cnn": two_layer_cnn,
    "two-layer-linear": two_layer_linear,
}


def build(name: str, shape: tuple[int, ...], outputs: int, seed: int, **options: Any) -> nn.Module:
    """A model by name, initialised by a public seed, leaving the global random state alone.

    `shape` is one unit's input, `outputs` the number of classes or 1 for a regression; `options` are the model's own,
    e.g. `build("resnet18", (3, 32, 32), 10, 0, stem="small")`.
    """
    check_model(name)
    if not isinstance(outputs, int) or isinstance(outputs, bool) or outputs < 1:
        raise ConfigError(f"model {name!r}: outputs={outputs!r} must be the number of classes, or 1 for a regression.")
    if not isinstance(shape, tuple | list) or not shape or any(type(size) is not int or size < 1 for size in shape):
        raise ConfigError(
            f"model {name!r}: shape={shape!r} must be the sizes of one unit's input, all above 0, e.g. (64,)."
        )
    if isinstance(seed, bool) or not isinstance(seed, int) or seed < 0:
        raise ConfigError(f"model {name!r}: seed={seed!r} must be a whole number >= 0.")
    maker = _of_file(name) if _names_a_file(name) else MODELS[name]
    known = list(inspect.signature(maker).parameters)[2:]
    for option in options:
        if option not in known:
            raise ConfigError(f"model {name!r} has no option {option!r}. It has: {', '.join(known) or 'none'}.")
    with torch.random.fork_rng([]):
        torch.default_generator.manual_seed(seed)  # torch.manual_seed would also set those of other devices
        make = partial(userfiles.called, name, maker) if _names_a_file(name) else maker
        model = make(tuple(shape), outputs, **options)
    if not isinstance(model, nn.Module):
        raise ConfigError(f"model {name!r} gives a {type(model).__name__}: must be a torch.nn.Module.")
    return model


def check_model(name: str) -> None:
    """A model by name, or one of the user's own as `path.py:function`."""
    if not isinstance(name, str) or (name not in MODELS and not _names_a_file(name)):
        raise ConfigError(f"model {name!r}: unknown. Known models: {', '.join(MODELS)}; or FILE.py:FUNCTION.")


def _names_a_file(name: str) -> bool:
    return ".py:" in name


def _of_file(name: str) -> Callable[..., nn.Module]:
    """A user's function of (shape, outputs), or of nothing; a class counts, and so does a module, which is copied."""
    made, needed = userfiles.model_maker(name)
    if isinstance(made, nn.Module):
        return lambda shape, outputs: copy.deepcopy(made)
    return made if needed else lambda shape, outputs: made()

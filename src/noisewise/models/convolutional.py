"""Convolutional networks of the literature on private training; weight counts are for the papers' inputs, 10 classes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import cast

import torch
from torch import Tensor, nn

from noisewise.errors import ConfigError
from noisewise.models.shapes import activation as activation_of
from noisewise.models.shapes import flat, image, refuse

SCATTERED = 81  # channels of the scattering transform with 2 scales and 8 angles, for each channel of an image


def cnn(shape: tuple[int, ...], outputs: int) -> nn.Module:
    """Two tanh convolutions and a linear head for small images: 16 and 32 channels, kernel 3, one pooling."""
    channels, height, width = image("cnn", shape, 2)
    return nn.Sequential(
        nn.Conv2d(channels, 16, 3, padding=1),
        nn.Tanh(),
        nn.Conv2d(16, 32, 3, padding=1),
        nn.Tanh(),
        nn.AvgPool2d(2),
        nn.Flatten(),
        nn.Linear(32 * (height // 2) * (width // 2), outputs),
    )


def lenet(shape: tuple[int, ...], outputs: int, *, activation: str = "tanh", padding: int = 2) -> nn.Module:
    """LeNet-5 with maximum pooling: 61,706 weights for 28x28 grey images and 10 classes; 44,426 with `padding=0`.

    Convolution 6@5x5 (padding 2), pooling, convolution 16@5x5, pooling, then 400-120-84-10; `activation` tanh or relu.
    Reference: LeCun et al. 1998. Deviation: dense second convolution, softmax instead of radial units.
    """
    if padding not in (0, 1, 2):
        raise ConfigError(f"model 'lenet': padding={padding!r} must be 0, 1 or 2.")
    act = activation_of("lenet", activation)
    channels, _, _ = image("lenet", shape, 16 - 2 * padding)
    features = nn.Sequential(
        nn.Conv2d(channels, 6, 5, padding=padding),
        act(),
        nn.MaxPool2d(2),
        nn.Conv2d(6, 16, 5),
        act(),
        nn.MaxPool2d(2),
        nn.Flatten(),
    )
    size = flat(features, shape)
    return nn.Sequential(
        *features, nn.Linear(size, 120), act(), nn.Linear(120, 84), act(), nn.Linear(84, outputs)
    )  # fmt: skip


def mnist_cnn(shape: tuple[int, ...], outputs: int) -> nn.Module:
    """The MNIST network of Opacus' examples and of TensorFlow Privacy's tutorial: 26,010 weights.

    Convolution 16@8x8 (stride 2, padding 3), ReLU, pooling 2 (stride 1), convolution 32@4x4 (stride 2), ReLU, pooling 2
    (stride 1), then 512-32-10. The examples normalise pixels by 0.1307 and 0.3081.
    Reference: Bu et al. 2022, arXiv:2106.07830 (MNIST experiment); opacus/examples/mnist.py.
    """
    channels, _, _ = image("mnist-cnn", shape, 14)
    return _strided(shape, channels, outputs, padding=3, act=nn.ReLU)


def dp_cnn_s(shape: tuple[int, ...], outputs: int) -> nn.Module:
    """DP-CNN/S, the small tanh network for MNIST and Fashion-MNIST: 26,010 weights.

    As `mnist_cnn`, with tanh and padding 2 in the first convolution.
    Reference: Papernot et al. 2020, arXiv:2007.14191; Tramer, Boneh 2021, arXiv:2011.11660; Zhu, Blaschko 2023,
    arXiv:2112.00845.
    """
    channels, _, _ = image("dp-cnn-s", shape, 16)
    return _strided(shape, channels, outputs, padding=2, act=nn.Tanh)


def _strided(shape: tuple[int, ...], channels: int, outputs: int, padding: int, act: type[nn.Module]) -> nn.Module:
    features = nn.Sequential(
        nn.Conv2d(channels, 16, 8, stride=2, padding=padding),
        act(),
        nn.MaxPool2d(2, stride=1),
        nn.Conv2d(16, 32, 4, stride=2),
        act(),
        nn.MaxPool2d(2, stride=1),
        nn.Flatten(),
    )
    return nn.Sequential(*features, nn.Linear(flat(features, shape), 32), act(), nn.Linear(32, outputs))


def cifar_net(shape: tuple[int, ...], outputs: int) -> nn.Module:
    """The CIFAR network of PyTorch's tutorial: 62,006 weights for 3x32x32 images.

    Convolution 6@5x5, ReLU, pooling, convolution 16@5x5, ReLU, pooling, then 400-120-84-10 with ReLU.
    Reference: pytorch.org, Training a Classifier; used by Bu et al. 2022, arXiv:2106.07830 (CIFAR-10 experiment).
    """
    channels, _, _ = image("cifar-net", shape, 16)
    features = nn.Sequential(
        nn.Conv2d(channels, 6, 5),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(6, 16, 5),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
    )
    size = flat(features, shape)
    return nn.Sequential(
        *features, nn.Linear(size, 120), nn.ReLU(), nn.Linear(120, 84), nn.ReLU(), nn.Linear(84, outputs)
    )


def dp_cnn(shape: tuple[int, ...], outputs: int) -> nn.Module:
    """DP-CNN, the tanh network for CIFAR-10 and SVHN: 550,570 weights.

    Convolutions 3x3 with 32, 32, M, 64, 64, M, 128, 128, M channels (M: pooling 2), then 2048-128-10, tanh throughout.
    Reference: Papernot et al. 2020, arXiv:2007.14191; Tramer, Boneh 2021, arXiv:2011.11660; Zhu, Blaschko 2023,
    arXiv:2112.00845.
    """
    channels, _, _ = image("dp-cnn", shape, 8)
    layers: list[nn.Module] = []
    for wide in (32, 64, 128):
        layers += [nn.Conv2d(channels, wide, 3, padding=1), nn.Tanh(), nn.Conv2d(wide, wide, 3, padding=1), nn.Tanh()]
        layers += [nn.MaxPool2d(2)]
        channels = wide
    features = nn.Sequential(*layers, nn.Flatten())
    return nn.Sequential(*features, nn.Linear(flat(features, shape), 128), nn.Tanh(), nn.Linear(128, outputs))


class Standardize(nn.Module):
    """`(x - mean) / std` by channel, with constants: public ones, or released with noise (`noisewise.data.statistics`).

    `places`: how many dimensions follow the channel's, 2 for images and 0 for vectors.

    Guarantee: no statistic of a record is taken. Constants measured on private records need noise and a ledger line of
    their own; this module cannot know where they come from.
    """

    mean: Tensor
    std: Tensor

    def __init__(self, mean: Tensor | Sequence[float], std: Tensor | Sequence[float], places: int = 2):
        super().__init__()
        shape = (-1, *[1] * places)
        self.register_buffer("mean", torch.as_tensor(mean, dtype=torch.get_default_dtype()).reshape(shape))
        self.register_buffer("std", torch.as_tensor(std, dtype=torch.get_default_dtype()).reshape(shape))
        if not (bool(self.mean.isfinite().all()) and bool(self.std.isfinite().all()) and bool((self.std > 0).all())):
            raise ConfigError("statistics of features: means must be finite, deviations finite and > 0.")

    def forward(self, x: Tensor) -> Tensor:
        """Normalised."""
        return (x - self.mean) / self.std


Statistics = tuple[Sequence[float] | Tensor, Sequence[float] | Tensor]


def h_cnn(shape: tuple[int, ...], outputs: int, *, groups: int = 27, statistics: Statistics | None = None) -> nn.Module:
    """H-CNN on scattering features of colour images, 243x8x8 for 32x32 pixels: 187,210 weights.

    Normalisation, convolution 64@3x3, tanh, pooling 2, convolution 64@3x3, tanh, then 1024-10. Inputs come from
    `noisewise.data.scatter.features`. Normalisation without weights: each unit by itself in `groups` groups of channels
    (GroupNorm), or by constants, `statistics=(means, deviations)` by channel: public ones, or those that
    `noisewise.data.statistics.noised_statistics` releases, as the papers do for CIFAR-10.

    Guarantee: GroupNorm reads one unit at a time and is free. Constants must be public, or their ledger must go into the
    recipe, `Recipe(..., ledger=statistics.ledger)`: the model does not know where they come from, and without that ledger the
    run would not count what they cost.
    Reference: Tramer, Boneh 2021, arXiv:2011.11660; Zhu, Blaschko 2023, arXiv:2112.00845. Deviation: GroupNorm, which
    they use on Fashion-MNIST, is the default.
    """
    channels, normalise = _scattered("h-cnn", shape, 2, groups, statistics)
    features = nn.Sequential(
        normalise,
        nn.Conv2d(channels, 64, 3, padding=1),
        nn.Tanh(),
        nn.MaxPool2d(2),
        nn.Conv2d(64, 64, 3, padding=1),
        nn.Tanh(),
        nn.Flatten(),
    )
    return nn.Sequential(*features, nn.Linear(flat(features, shape), outputs))


def h_cnn_s(
    shape: tuple[int, ...], outputs: int, *, groups: int = 27, statistics: Statistics | None = None
) -> nn.Module:
    """H-CNN/S on scattering features of grey images, 81x7x7 for 28x28 pixels: 33,066 weights.

    Normalisation (as in `h_cnn`, GroupNorm with 27 groups), convolution 16@3x3 (stride 2, padding 1), tanh,
    convolution 32@3x3 (padding 1), tanh, then 512-32-10 with tanh.
    Reference: Tramer, Boneh 2021, arXiv:2011.11660; Zhu, Blaschko 2023, arXiv:2112.00845.
    """
    channels, normalise = _scattered("h-cnn-s", shape, 1, groups, statistics)
    features = nn.Sequential(
        normalise,
        nn.Conv2d(channels, 16, 3, stride=2, padding=1),
        nn.Tanh(),
        nn.Conv2d(16, 32, 3, padding=1),
        nn.Tanh(),
        nn.Flatten(),
    )
    return nn.Sequential(*features, nn.Linear(flat(features, shape), 32), nn.Tanh(), nn.Linear(32, outputs))


def _scattered(
    model: str, shape: tuple[int, ...], least: int, groups: int, statistics: Statistics | None
) -> tuple[int, nn.Module]:
    """Channels and normalisation of scattering features, or how to get them."""
    if len(shape) != 3 or min(shape[1:]) < least or shape[0] % SCATTERED:
        raise refuse(
            model,
            shape,
            f"scattering features [channels, height, width] with a multiple of {SCATTERED} channels and at least "
            f"{least}x{least} places, which noisewise.data.scatter.features(data) makes of images",
        )
    channels = shape[0]
    if statistics is None:
        if not isinstance(groups, int) or groups < 1 or channels % groups:
            raise ConfigError(f"model {model!r}: groups={groups!r} does not divide the {channels} channels.")
        return channels, nn.GroupNorm(groups, channels, affine=False)
    try:
        mean, std = (torch.as_tensor(values) for values in cast(tuple, statistics))
    except (TypeError, ValueError):
        raise ConfigError(f"model {model!r}: statistics must be a pair (means, deviations) of numbers.") from None
    if mean.shape != (channels,) or std.shape != (channels,):
        raise ConfigError(
            f"model {model!r}: statistics of shapes {list(mean.shape)} and {list(std.shape)}: needs one mean and one "
            f"deviation for each of the {channels} channels."
        )
    return channels, Standardize(mean, std)

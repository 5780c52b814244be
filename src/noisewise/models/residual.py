"""Residual networks with GroupNorm: no statistics over a batch, so that units stay independent."""

from __future__ import annotations

from math import gcd

import torch
from torch import Tensor, nn

from noisewise.errors import ConfigError
from noisewise.models.shapes import image, positive

STEMS = ("large", "small")
SMALLEST_SPREAD = 1e-4  # of the squares of an output's centred weights


def _norm(channels: int) -> nn.GroupNorm:
    """GroupNorm as Opacus puts it in BatchNorm's place."""
    return nn.GroupNorm(gcd(32, channels), channels)


class BasicBlock(nn.Module):
    """`relu(shortcut(x) + norm(conv(relu(norm(conv(x))))))`."""

    def __init__(self, before: int, after: int, stride: int):
        super().__init__()
        self.conv1 = nn.Conv2d(before, after, 3, stride, 1, bias=False)
        self.norm1 = _norm(after)
        self.conv2 = nn.Conv2d(after, after, 3, 1, 1, bias=False)
        self.norm2 = _norm(after)
        self.shortcut: nn.Module = nn.Identity()
        if stride != 1 or before != after:
            self.shortcut = nn.Sequential(nn.Conv2d(before, after, 1, stride, bias=False), _norm(after))

    def forward(self, x: Tensor) -> Tensor:
        """The block's output."""
        out = torch.relu(self.norm1(self.conv1(x)))
        return torch.relu(self.norm2(self.conv2(out)) + self.shortcut(x))


def resnet18(shape: tuple[int, ...], outputs: int, *, stem: str = "large", width: int = 64) -> nn.Module:
    """ResNet-18 with GroupNorm: 11,689,512 weights for 3 channels and 1000 classes, 11,181,642 for 10.

    Stages of 2, 2, 2, 2 blocks with `width` times 1, 2, 4, 8 channels. `stem="large"` (default, as torchvision):
    convolution 7x7 with stride 2 and pooling, which leaves 8x8 places of a 32x32 image. `stem="small"`, usual for CIFAR:
    convolution 3x3 with stride 1 and no pooling; 11,173,962 weights for 10 classes, about 16 times the work.

    Guarantee: GroupNorm with gcd(32, channels) groups reads one unit at a time.
    Reference: He et al. 2016; torchvision.models.resnet18 with BatchNorm replaced as Opacus does; Watson et al. 2023,
    arXiv:2311.06839.
    """
    return _resnet("resnet18", (2, 2, 2, 2), shape, outputs, stem, width)


def resnet34(shape: tuple[int, ...], outputs: int, *, stem: str = "large", width: int = 64) -> nn.Module:
    """ResNet-34 with GroupNorm: 21,797,672 weights for 3 channels and 1000 classes, 21,289,802 for 10.

    As `resnet18`, with 3, 4, 6, 3 blocks. Reference: He et al. 2016; torchvision.models.resnet34.
    """
    return _resnet("resnet34", (3, 4, 6, 3), shape, outputs, stem, width)


def _resnet(
    model: str, blocks: tuple[int, ...], shape: tuple[int, ...], outputs: int, stem: str, width: int
) -> nn.Module:
    channels, _, _ = image(model, shape, 8)
    positive(model, width=width)
    if stem not in STEMS:
        raise ConfigError(f"model {model!r}: stem={stem!r} is unknown. Known: {', '.join(STEMS)}.")
    layers: list[nn.Module] = []
    if stem == "large":
        layers += [nn.Conv2d(channels, width, 7, 2, 3, bias=False), _norm(width), nn.ReLU(), nn.MaxPool2d(3, 2, 1)]
    else:
        layers += [nn.Conv2d(channels, width, 3, 1, 1, bias=False), _norm(width), nn.ReLU()]
    before = width
    for stage, count in enumerate(blocks):
        for block in range(count):
            after = width * 2**stage
            layers.append(BasicBlock(before, after, 2 if stage and not block else 1))
            before = after
    network = nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(before, outputs))
    for module in network.modules():
        if isinstance(module, nn.Conv2d):
            nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")
    return network


class StandardizedConv2d(nn.Conv2d):
    """A convolution with standardised weights: `gain (w - mean w) / sqrt(max(fan_in var w, 1e-4))` for each output.

    The weights that meet the inputs are no parameters but computed from them, so no ghost rule applies: the dense engine
    forms the gradients of weight and gain. Reference: Qiao et al. 2019, arXiv:1903.10520; in this form Brock et al. 2021,
    arXiv:2101.08692.
    """

    def __init__(self, before: int, after: int, size: int, stride: int = 1, padding: int = 0):
        super().__init__(before, after, size, stride, padding)
        self.gain = nn.Parameter(torch.ones(after))

    def standardized(self) -> Tensor:
        """The weights that are convolved with."""
        rows = self.weight.flatten(1)
        centred = rows - rows.mean(1, keepdim=True)
        spread = centred.square().sum(1, keepdim=True).clamp(min=SMALLEST_SPREAD).rsqrt()
        return (centred * spread * self.gain.unsqueeze(1)).view_as(self.weight)

    def forward(self, x: Tensor) -> Tensor:
        """The convolution."""
        return nn.functional.conv2d(x, self.standardized(), self.bias, self.stride, self.padding)


class WideBlock(nn.Module):
    """Two times activation, norm, convolution; the shortcut of a stage's first block has a norm and convolution too."""

    def __init__(self, before: int, after: int, stride: int, groups: int, first: bool, conv: type[nn.Conv2d]):
        super().__init__()
        self.norm1 = nn.GroupNorm(groups, before)
        self.conv1 = conv(before, after, 3, stride, 1)
        self.norm2 = nn.GroupNorm(groups, after)
        self.conv2 = conv(after, after, 3, 1, 1)
        self.shortcut: nn.Module = nn.Identity()
        if first:
            self.shortcut = nn.Sequential(nn.ReLU(), nn.GroupNorm(groups, before), conv(before, after, 1, stride))

    def forward(self, x: Tensor) -> Tensor:
        """The block's output."""
        out = self.conv1(self.norm1(torch.relu(x)))
        return self.conv2(self.norm2(torch.relu(out))) + self.shortcut(x)


def wrn_16_4(
    shape: tuple[int, ...], outputs: int, *, width: int = 4, groups: int = 16, standardized: bool = False
) -> nn.Module:
    """Wide ResNet of depth 16 and width 4 for 32x32 images, with GroupNorm: 2.75 million weights (2,751,562).

    Convolution to 16 channels, three stages of two blocks with 16, 32, 64 times `width` channels (stride 1, 2, 2), the
    order within a block activation, norm, convolution; global average and a linear layer. `standardized`: convolutions with
    standardised weights as in the paper, 2,753,818 weights; their gradients are formed, which takes three times as long.

    Guarantee: GroupNorm (16 groups) reads one unit at a time; standardisation reads weights only.
    Reference: De et al. 2022, arXiv:2204.13650; Zagoruyko, Komodakis 2016. Deviation: not standardised by default.
    """
    return _wide("wrn-16-4", 2, shape, outputs, width, groups, standardized)


def wrn_40_4(
    shape: tuple[int, ...], outputs: int, *, width: int = 4, groups: int = 16, standardized: bool = False
) -> nn.Module:
    """Wide ResNet of depth 40 and width 4 for 32x32 images, with GroupNorm: 8,955,466 weights, 8,961,306 if `standardized`.

    As `wrn_16_4`, with six blocks in each stage. Reference: De et al. 2022, arXiv:2204.13650 (CIFAR-10 from scratch, 81.4 %
    at epsilon 8).
    """
    return _wide("wrn-40-4", 6, shape, outputs, width, groups, standardized)


def _wide(
    model: str, blocks: int, shape: tuple[int, ...], outputs: int, width: int, groups: int, standardized: bool
) -> nn.Module:
    channels, _, _ = image(model, shape, 8)
    positive(model, width=width, groups=groups)
    if 16 % groups:
        raise ConfigError(f"model {model!r}: groups={groups} must divide the first stage's 16 channels.")
    conv = StandardizedConv2d if standardized else nn.Conv2d
    layers: list[nn.Module] = [conv(channels, 16, 3, 1, 1)]
    before = 16
    for stage, wide in enumerate((16, 32, 64)):
        for block in range(blocks):
            stride = 2 if stage and not block else 1
            layers.append(WideBlock(before, wide * width, stride, groups, first=not block, conv=conv))
            before = wide * width
    layers += [nn.ReLU(), nn.GroupNorm(groups, before), nn.AdaptiveAvgPool2d(1), nn.Flatten()]
    network = nn.Sequential(*layers, nn.Linear(before, outputs))
    for module in network.modules():
        if isinstance(module, nn.Conv2d | nn.Linear):
            nn.init.kaiming_normal_(module.weight, nonlinearity="linear")  # variance 1 / inputs, as De et al.
            if module.bias is not None:
                nn.init.zeros_(module.bias)
    return network

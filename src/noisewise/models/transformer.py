"""A small vision transformer whose every parameter has a ghost rule."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from noisewise.errors import ConfigError
from noisewise.models.shapes import image, positive, refuse


class Block(nn.Module):
    """`x + attention(norm(x))`, then `x + mlp(norm(x))`; linear layers only, no dropout."""

    def __init__(self, width: int, heads: int, hidden: int):
        super().__init__()
        self.heads = heads
        self.norm1 = nn.LayerNorm(width)
        self.qkv = nn.Linear(width, 3 * width)
        self.mix = nn.Linear(width, width)
        self.norm2 = nn.LayerNorm(width)
        self.mlp = nn.Sequential(nn.Linear(width, hidden), nn.GELU(), nn.Linear(hidden, width))

    def attention(self, x: Tensor) -> Tensor:
        """`softmax(Q K^T / sqrt(width / heads)) V` within each unit, heads side by side."""
        units, tokens, width = x.shape
        query, key, value = self.qkv(x).reshape(units, tokens, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        out = F.scaled_dot_product_attention(query, key, value)
        return self.mix(out.transpose(1, 2).reshape(units, tokens, width))

    def forward(self, x: Tensor) -> Tensor:
        """The block's output."""
        x = x + self.attention(self.norm1(x))
        return x + self.mlp(self.norm2(x))


class VisionTransformer(nn.Module):
    """Patches, positions, blocks, the mean over patches, a linear head."""

    def __init__(self, channels: int, tokens: int, outputs: int, patch: int, width: int, depth: int, heads: int):
        super().__init__()
        self.patches = nn.Conv2d(channels, width, patch, stride=patch)
        self.positions = nn.Embedding(tokens, width)
        nn.init.normal_(self.positions.weight, std=0.02)
        self.blocks = nn.Sequential(*(Block(width, heads, 4 * width) for _ in range(depth)))
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, outputs)

    def forward(self, x: Tensor) -> Tensor:
        """Outputs `[n, outputs]`."""
        tokens = self.patches(x).flatten(2).transpose(1, 2)
        # a table read once per unit has a ghost rule; a bare parameter added to all units would have none
        places = torch.arange(tokens.shape[1], device=x.device).expand(tokens.shape[:2])
        return self.head(self.norm(self.blocks(tokens + self.positions(places))).mean(1))


def vit(
    shape: tuple[int, ...], outputs: int, *, patch: int = 7, width: int = 64, depth: int = 4, heads: int = 4
) -> nn.Module:
    """A small vision transformer: patch 7, width 64, depth 4, 4 heads; 204,938 weights for 28x28 grey images.

    Pre-norm blocks with LayerNorm, hidden layers of 4 * `width` with GELU, learned positions, no dropout.

    Guarantee: attention stays within a unit; LayerNorm reads one token at a time.
    Reference: Dosovitskiy et al. 2021, arXiv:2010.11929. Deviation: the mean over patches instead of a class token.
    """
    channels, high, wide = image("vit", shape, 1)
    positive("vit", patch=patch, width=width, depth=depth, heads=heads)
    if high % patch or wide % patch:
        raise refuse("vit", shape, f"images with sides that are multiples of patch={patch} (choose another patch)")
    if width % heads:
        raise ConfigError(f"model 'vit': width={width} must be a multiple of heads={heads}.")
    return VisionTransformer(channels, (high // patch) * (wide // patch), outputs, patch, width, depth, heads)

"""A network on tokens of texts or of pairs of texts: the mean of word vectors and a linear layer."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from noisewise.models.shapes import positive, vector


class MeanOfWords(nn.Module):
    """Word vectors of each text are averaged, to u and v; a linear layer sees `[u, v, |u - v|, u v]` (v = 0 without pairs).

    Tokens: 0 is padding, the last number separates the texts of a pair (`noisewise.data.tokens.HashedWords`).
    """

    def __init__(self, size: int, width: int, outputs: int):
        super().__init__()
        self.separator = size - 1
        self.words = nn.Embedding(size, width)
        nn.init.normal_(self.words.weight, std=0.1)  # larger ones drown what noisy steps teach
        self.head = nn.Linear(4 * width, outputs)

    def forward(self, x: Tensor) -> Tensor:
        """Outputs `[n, outputs]` of tokens `[n, length]`."""
        vectors = self.words(x)
        behind = (x == self.separator).long().cumsum(1)
        word = (x > 0) & (x < self.separator)
        u, v = (self._mean(vectors, word & (behind == place)) for place in (0, 1))
        return self.head(torch.cat([u, v, (u - v).abs(), u * v], 1))

    @staticmethod
    def _mean(vectors: Tensor, chosen: Tensor) -> Tensor:
        weights = chosen.unsqueeze(2).to(vectors.dtype)
        return (vectors * weights).sum(1) / weights.sum(1).clamp(min=1)


def words(shape: tuple[int, ...], outputs: int, *, size: int = 8194, width: int = 32) -> nn.Module:
    """Mean of word vectors for tokens of texts, `size` different ones, and a linear layer: 262,466 weights for 2 classes.

    For pairs of texts the layer sees both means, their distance and their product, as Conneau et al. 2017, arXiv:1705.02364.
    `size` is that of the tokens: `HashedWords().size` is 8194.
    Reference: Iyyer et al. 2015, Deep Unordered Composition Rivals Syntactic Methods. Deviation: no hidden layers.
    """
    vector("words", shape)
    positive("words", size=size, width=width)
    return MeanOfWords(size, width, outputs)

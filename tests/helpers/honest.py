"""Models whose units are independent, as people write them: none may be refused, or served slower, than before.

    PYTHONPATH=src:tests python tests/helpers/honest.py     writes tests/helpers/honest_baseline.json

The project's own models, every problem of `oracles.py`, every situation of `benchmarks/layers.py`, Hugging Face's models made
from small configurations, and typical user code. Each is small and the same in every run. `baseline` is what the code that
records it does with each model: accepted or not, and which engine serves each parameter.
"""

from __future__ import annotations

import importlib.util
import json
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence
from torch.utils.checkpoint import checkpoint

from helpers.oracles import (
    PROBLEMS,
    UNITS,
    Apply,
    Setup,
    as_type,
    cross_entropy,
    floats,
    labels,
    rows,
    squared_output,
    tokens,
    weights,
)
from noisewise.errors import NoisewiseError
from noisewise.models import MODELS, build
from noisewise.models.convert import batchnorm_to_groupnorm
from noisewise.persample import Layout, examine

BASELINE = Path(__file__).with_name("honest_baseline.json")
ENGINES = ("ghost", "dense", "loop")  # from fast to slow


@dataclass(frozen=True)
class Honest:
    """A model with a loss and a batch.

    `example`: it cannot run on random numbers, so the batch itself is the made-up example of the examination.
    `random`: chance moves its gradients (one draw per row), so it is not compared with the loop draw by draw.
    `rounding`: how far its sums may be from the loop's, relative; `spread`: False leaves weights that start at zero there.
    """

    name: str
    build: Callable[[], Setup]
    dtype: torch.dtype = torch.float64
    example: bool = False
    random: bool = False
    rounding: float = 1e-9
    spread: bool = True

    def make(self) -> Setup:
        """A fresh copy: the same numbers every time, biases away from 0 and norm weights away from 1."""
        with torch.random.fork_rng([]):
            torch.manual_seed(20)
            model, loss_fn, batch = self.build()
            with torch.no_grad():
                for parameter in model.parameters() if self.spread else ():
                    parameter.add_(torch.randn_like(parameter), alpha=0.1)
        return Setup(model.to(self.dtype), loss_fn, as_type(batch, self.dtype))

    @cache  # noqa: B019
    def examined(self) -> tuple[Setup, Layout | NoisewiseError]:
        """A copy and what the examination says of it."""
        model, loss_fn, batch = setup = self.make()
        try:
            return setup, examine(model, loss_fn, rows(batch, slice(0, 0)), batch if self.example else None)
        except NoisewiseError as error:
            return setup, error

    def __repr__(self) -> str:
        return self.name


# ----------------------------------------------------------------------------------------------- what is recorded


def learning(model: nn.Module) -> list[str]:
    """Names of the parameters that require a gradient."""
    return [name for name, parameter in model.named_parameters() if parameter.requires_grad]


def engine_of(layout: Layout, name: str) -> str:
    """The engine that serves a parameter."""
    return "ghost" if name not in layout.fallback else "dense" if layout.vectorises else "loop"


def behaviour(honest: Honest) -> dict[str, Any]:
    """Refused (by which error), or the parameters of each slower engine; all others go the fastest way."""
    setup, layout = honest.examined()
    if isinstance(layout, NoisewiseError):
        return {"refused": type(layout).__name__}
    engines = {name: engine_of(layout, name) for name in learning(setup.model)}
    return {slow: names for slow in ENGINES[1:] if (names := [n for n, engine in engines.items() if engine == slow])}


def losses(before: Mapping[str, Any], now: Mapping[str, Any]) -> list[str]:
    """What a model lost between two behaviours: it is refused now, or a parameter has a slower engine."""
    if "refused" in before:
        return []
    if "refused" in now:
        return [f"refused ({now['refused']})"]

    def rank(found: Mapping[str, Any], name: str) -> int:
        return next((ENGINES.index(engine) for engine in ENGINES[1:] if name in found.get(engine, ())), 0)

    slower = [name for engine in ENGINES[1:] for name in now.get(engine, ()) if rank(now, name) > rank(before, name)]
    return [f"{name}: {ENGINES[rank(before, name)]} -> {ENGINES[rank(now, name)]}" for name in slower]


def baseline() -> dict[str, dict[str, Any]]:
    """The recorded behaviour of every model."""
    return json.loads(BASELINE.read_text(encoding="utf-8"))


def record() -> None:
    """Write what this code does with every model."""
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    found = {name: behaviour(honest) for name, honest in HONEST.items()}
    BASELINE.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
    refused = {name: value["refused"] for name, value in found.items() if "refused" in value}
    print(f"{len(found)} models, {len(refused)} refused: {refused}")


# ------------------------------------------------------------------------------------- from elsewhere in the project


def _situations() -> dict[str, Callable[[], Setup]]:
    """Situations of benchmarks/layers.py but the two whose units are coupled."""
    path = Path(__file__).parents[2] / "benchmarks" / "layers.py"
    spec = importlib.util.spec_from_file_location("layers_for_honest", path)
    layers = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(layers)
    coupled = {"BatchNorm, training mode", "in-batch negatives"}
    return {name: (lambda b=b: Setup(*b())) for name, b in layers.SITUATIONS.items() if name not in coupled}


SMALL: dict[str, tuple[tuple[int, ...], dict[str, Any]]] = {  # the smallest inputs they take, narrow where they can be
    "cnn": ((1, 4, 4), {}),
    "lenet": ((1, 12, 12), {}),
    "mlp": ((3, 2), {"widths": (5, 4)}),
    "logistic": ((3, 2), {}),
    "table": ((3, 2), {"knots": 2, "hidden": 3}),
    "mnist-cnn": ((1, 14, 14), {}),
    "cifar-net": ((3, 16, 16), {}),
    "dp-cnn": ((3, 8, 8), {}),
    "dp-cnn-s": ((1, 16, 16), {}),
    "h-cnn": ((81, 2, 2), {}),
    "h-cnn-s": ((81, 1, 1), {}),
    "linear-head": ((2, 3), {"views": 2}),
    "conv-head": ((2, 3, 2, 2), {"views": 2, "channels": 4}),
    "resnet18": ((3, 16, 16), {"width": 2, "stem": "small"}),
    "resnet34": ((1, 16, 16), {"width": 2, "stem": "small"}),
    "wrn-16-4": ((3, 8, 8), {"width": 1}),
    "wrn-40-4": ((3, 8, 8), {"width": 1}),
    "vit": ((1, 6, 4), {"patch": 2, "width": 8, "depth": 2, "heads": 2}),
    "words": ((6,), {"size": 9, "width": 3}),
    "two-layer-cnn": ((2, 5), {"filters": 3}),
    "two-layer-linear": ((5,), {"hidden": 4}),
}


def _own_model(name: str) -> Setup:
    shape, options = SMALL[name]
    model = build(name, shape, 3 if name != "two-layer-cnn" else 2, 0, **options)
    return Setup(model, squared_output, (tokens(*shape, high=9), weights()) if name == "words" else _pair(*shape))


def _pair(*shape: int) -> tuple[Tensor, Tensor]:
    return floats(*shape), weights()


# -------------------------------------------------------------------------------------------------- Hugging Face

BASE = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 32}
TEXT = {"vocab_size": 50, "max_position_embeddings": 16, **BASE}
IMAGE = {"image_size": 8, "patch_size": 4, "num_channels": 2, **BASE}
AUDIO = {
    **BASE,
    "conv_dim": [8, 8],
    "conv_kernel": [4, 3],
    "conv_stride": [2, 2],
    "num_feat_extract_layers": 2,
    "num_conv_pos_embeddings": 4,
    "num_conv_pos_embedding_groups": 2,
    "classifier_proj_size": 8,
    "apply_spec_augment": False,
    "vocab_size": 12,
}


def _classify(model: nn.Module, batch: tuple[Tensor, ...]) -> Tensor:
    return F.cross_entropy(model(batch[0]).logits, batch[1], reduction="none")


def _classify_masked(model: nn.Module, batch: tuple[Tensor, ...]) -> Tensor:
    return F.cross_entropy(model(batch[0], attention_mask=batch[2]).logits, batch[1], reduction="none")


def _next_token(model: nn.Module, batch: Tensor) -> Tensor:
    scores = model(batch, use_cache=False).logits[:, :-1]
    return F.cross_entropy(scores.transpose(1, 2), batch[:, 1:], reduction="none").mean(1)


def _masked_token(model: nn.Module, batch: Tensor) -> Tensor:
    return F.cross_entropy(model(batch).logits.transpose(1, 2), batch, reduction="none").mean(1)


def _translate(model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
    source, target = batch
    scores = model(source, decoder_input_ids=target[:, :-1], use_cache=False).logits
    return F.cross_entropy(scores.transpose(1, 2), target[:, 1:], reduction="none").mean(1)


def _features(model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
    out = model(batch[0])[0].flatten(1)
    return out.square().mean(1) * batch[1] + out.sum(1)


def _sentence() -> Tensor:
    return torch.randint(3, 50, (UNITS, 8))


def _mask() -> Tensor:
    return (torch.arange(8) < torch.tensor([[8], [5], [3], [6]])).long()


BATCHES: dict[Callable[..., Tensor], Callable[[], Any]] = {
    _classify: lambda: (_sentence(), labels(2)),
    _classify_masked: lambda: (_sentence(), labels(2), _mask()),
    _next_token: _sentence,
    _masked_token: _sentence,
    _translate: lambda: (_sentence(), torch.randint(3, 50, (UNITS, 6))),
    _features: lambda: _pair(2, 8, 8),
}


def _face(
    kind: str,
    task: str,
    loss_fn: Callable[..., Tensor],
    config: Mapping[str, Any],
    batch: Callable[[], Any] | None = None,
) -> Callable[[], Setup]:
    """A model of transformers by name, in evaluation mode, with BatchNorm replaced."""

    def make() -> Setup:
        import transformers

        model = getattr(transformers, kind + task)(getattr(transformers, kind + "Config")(**config))
        return Setup(batchnorm_to_groupnorm(model)[0].eval(), loss_fn, (batch or BATCHES[loss_fn])())

    return make


def _images() -> tuple[Tensor, Tensor]:
    return floats(2, 8, 8), labels(2)


def _large_images() -> tuple[Tensor, Tensor]:
    return floats(2, 32, 32), labels(2)


def _audio() -> tuple[Tensor, Tensor]:
    return floats(64), labels(2)


def _training(make: Callable[[], Setup]) -> Callable[[], Setup]:
    """The same in training mode."""

    def trained() -> Setup:
        setup = make()
        setup.model.train()
        return setup

    return trained


SEQUENCE, CAUSAL = "ForSequenceClassification", "ForCausalLM"
GPT2 = {
    "vocab_size": 50,
    "n_embd": 16,
    "n_layer": 2,
    "n_head": 2,
    "n_positions": 16,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
DECODER = {**TEXT, "num_key_value_heads": 1, "pad_token_id": 0}
HALVES = {"d_model": 16, "encoder_layers": 2, "decoder_layers": 1, "vocab_size": 50, "max_position_embeddings": 16,
          "encoder_attention_heads": 2, "decoder_attention_heads": 2, "encoder_ffn_dim": 32, "decoder_ffn_dim": 32}  # fmt: skip
T5 = {"vocab_size": 50, "d_model": 16, "d_kv": 8, "d_ff": 32, "num_layers": 2, "num_heads": 2}
STAGES = {"num_channels": 2, "hidden_sizes": [8, 16], "depths": [1, 1]}

FACES: dict[str, Callable[[], Setup]] = {
    "BERT": _face("Bert", SEQUENCE, _classify, TEXT),
    "BERT, attention mask": _face("Bert", SEQUENCE, _classify_masked, TEXT),
    "BERT, eager attention": _face("Bert", SEQUENCE, _classify_masked, {**TEXT, "attn_implementation": "eager"}),
    "BERT, masked tokens, tied": _face("Bert", "ForMaskedLM", _masked_token, TEXT),
    "RoBERTa": _face("Roberta", SEQUENCE, _classify, {**TEXT, "pad_token_id": 1}),
    "RoBERTa, attention mask": _face("Roberta", SEQUENCE, _classify_masked, {**TEXT, "pad_token_id": 1}),
    "XLM-RoBERTa": _face("XLMRoberta", SEQUENCE, _classify, {**TEXT, "pad_token_id": 1}),
    "DistilBERT": _face(
        "DistilBert", SEQUENCE, _classify,
        {"vocab_size": 50, "max_position_embeddings": 16, "dim": 16, "n_layers": 2, "n_heads": 2, "hidden_dim": 32},
    ),
    "ALBERT": _face("Albert", SEQUENCE, _classify, {**TEXT, "embedding_size": 8}),
    "ELECTRA": _face("Electra", SEQUENCE, _classify, {**TEXT, "embedding_size": 8}),
    "DeBERTa-v2": _face(
        "DebertaV2", SEQUENCE, _classify,
        {**TEXT, "relative_attention": True, "pos_att_type": ["p2c", "c2p"], "position_biased_input": False},
    ),
    "MPNet": _face("MPNet", SEQUENCE, _classify, TEXT),
    "SqueezeBERT": _face("SqueezeBert", SEQUENCE, _classify, {**TEXT, "embedding_size": 16}),
    "ConvBERT": _face("ConvBert", SEQUENCE, _classify, {**TEXT, "embedding_size": 16, "head_ratio": 1}),
    "FNet": _face("FNet", SEQUENCE, _classify, {**TEXT}),
    "RoFormer": _face("RoFormer", SEQUENCE, _classify, TEXT),
    "GPT-2": _face("GPT2", "LMHeadModel", _next_token, GPT2),
    "GPT-2 classifier": _face("GPT2", SEQUENCE, _classify, {**GPT2, "pad_token_id": 0}),
    "GPT-Neo": _face(
        "GPTNeo", CAUSAL, _next_token,
        {"vocab_size": 50, "hidden_size": 16, "num_layers": 2, "num_heads": 2, "max_position_embeddings": 16,
         "attention_types": [[["global", "local"], 1]], "window_size": 4, "bos_token_id": 1, "eos_token_id": 2},
    ),
    "GPT-NeoX": _face("GPTNeoX", CAUSAL, _next_token, TEXT),
    "OPT": _face("OPT", CAUSAL, _next_token, {**TEXT, "ffn_dim": 32, "word_embed_proj_dim": 16}),
    "BLOOM": _face("Bloom", CAUSAL, _next_token, {"vocab_size": 50, "hidden_size": 16, "n_layer": 2, "n_head": 2}),
    "Falcon": _face("Falcon", CAUSAL, _next_token, TEXT),
    "Llama": _face("Llama", CAUSAL, _next_token, DECODER),
    "Llama, tied": _face("Llama", CAUSAL, _next_token, {**DECODER, "tie_word_embeddings": True}),
    "Llama classifier": _face("Llama", SEQUENCE, _classify, DECODER),
    "Mistral": _face("Mistral", CAUSAL, _next_token, {**DECODER, "sliding_window": 4}),
    "Qwen2": _face("Qwen2", CAUSAL, _next_token, DECODER),
    "Gemma": _face("Gemma", CAUSAL, _next_token, {**DECODER, "head_dim": 8}),
    "Gemma 2": _face("Gemma2", CAUSAL, _next_token, {**DECODER, "head_dim": 8, "query_pre_attn_scalar": 8}),
    "Phi": _face("Phi", CAUSAL, _next_token, {**TEXT, "pad_token_id": 0}),
    "Phi-3": _face("Phi3", CAUSAL, _next_token, DECODER),
    "StableLM": _face("StableLm", CAUSAL, _next_token, DECODER),
    "OLMo": _face("Olmo", CAUSAL, _next_token, DECODER),
    "Mamba": _face(
        "Mamba", CAUSAL, _next_token, {"vocab_size": 50, "hidden_size": 16, "num_hidden_layers": 2, "state_size": 4}
    ),
    "T5": _face("T5", "ForConditionalGeneration", _translate, {**T5, "decoder_start_token_id": 0}),
    "T5, gated": _face(
        "T5", "ForConditionalGeneration", _translate,
        {**T5, "decoder_start_token_id": 0, "feed_forward_proj": "gated-gelu", "tie_word_embeddings": False},
    ),
    "BART": _face("Bart", "ForConditionalGeneration", _translate, HALVES),
    "Marian": _face("Marian", "MTModel", _translate, {**HALVES, "pad_token_id": 0, "decoder_vocab_size": 50}),
    "ViT": _face("ViT", "ForImageClassification", _classify, IMAGE, _images),
    "DeiT": _face("DeiT", "ForImageClassification", _classify, IMAGE, _images),
    "BEiT": _face("Beit", "ForImageClassification", _classify, IMAGE, _images),
    "BEiT, relative positions": _face(
        "Beit", "ForImageClassification", _classify, {**IMAGE, "use_relative_position_bias": True}, _images
    ),
    "DINOv2": _face("Dinov2", "ForImageClassification", _classify, IMAGE, _images),
    "ViT features": _face("ViT", "Model", _features, IMAGE),
    "Swin": _face(
        "Swin", "ForImageClassification", _classify,
        {"image_size": 16, "patch_size": 2, "num_channels": 2, "embed_dim": 8, "depths": [2, 1], "num_heads": [1, 2],
         "window_size": 4}, lambda: (floats(2, 16, 16), labels(2)),
    ),
    "ConvNeXt": _face("ConvNext", "ForImageClassification", _classify, {**STAGES, "num_stages": 2}, _large_images),
    "ResNet with GroupNorm": _face(
        "ResNet", "ForImageClassification", _classify, {**STAGES, "embedding_size": 8, "layer_type": "basic"}, _large_images
    ),
    "MobileNet-v2 with GroupNorm": _face(
        "MobileNetV2", "ForImageClassification", _classify, {"num_channels": 2, "depth_multiplier": 0.25}, _large_images
    ),
    "PoolFormer": _face(
        "PoolFormer", "ForImageClassification", _classify,
        {**STAGES, "num_encoder_blocks": 2, "patch_sizes": [7, 3], "strides": [4, 2], "padding": [2, 1]}, _large_images,
    ),
    "SegFormer": _face(
        "Segformer", "ForImageClassification", _classify,
        {**STAGES, "num_encoder_blocks": 2, "sr_ratios": [2, 1], "patch_sizes": [7, 3], "strides": [4, 2],
         "num_attention_heads": [1, 2], "mlp_ratios": [2, 2]}, _large_images,
    ),
    "Wav2Vec2": _face("Wav2Vec2", SEQUENCE, _classify, AUDIO, _audio),
    "HuBERT": _face("Hubert", SEQUENCE, _classify, AUDIO, _audio),
}  # fmt: skip


def _whisper() -> Setup:
    import transformers

    config = transformers.WhisperConfig(
        **{key: value for key, value in HALVES.items() if key != "max_position_embeddings"},
        num_mel_bins=4, max_source_positions=8, max_target_positions=8,
        pad_token_id=0, bos_token_id=1, eos_token_id=2, decoder_start_token_id=1, begin_suppress_tokens=None,
    )  # fmt: skip
    model = transformers.WhisperForConditionalGeneration(config).eval()
    return Setup(model, _translate, (floats(4, 16), torch.randint(3, 50, (UNITS, 6))))


# -------------------------------------------------------------------------------------------------- typical user code

User = Callable[[], Setup]


def _model(*shape: int, **parts: Any) -> Callable[[Callable[[Any, Tensor], Tensor]], User]:
    """A model on float inputs of this shape: `parts` make its modules, the function is its forward pass."""
    return lambda forward: lambda: Setup(_apply(forward, parts), squared_output, _pair(*shape))


def _on(batch: Callable[[], Any], loss_fn: Callable[..., Tensor] | None = None, **parts: Any) -> Any:
    """A model on inputs of any form; without a loss it squares the outputs and weighs them by the last of the batch."""
    return lambda forward: lambda: Setup(_apply(forward, parts), loss_fn or _squared_all, batch())


def _apply(forward: Callable[[Any, Any], Tensor], parts: Mapping[str, Callable[[], Any]]) -> nn.Module:
    return Apply(forward, **{name: part() for name, part in parts.items()})


def _squared_all(model: nn.Module, batch: tuple[Tensor, ...]) -> Tensor:
    out = model(batch[:-1]).flatten(1)
    return out.square().mean(1) * batch[-1] + out.sum(1)


def _linear(width: int, out: int, **options: Any) -> Callable[[], nn.Module]:
    return lambda: nn.Linear(width, out, **options)


def _parameter(*shape: int) -> Callable[[], nn.Parameter]:
    return lambda: nn.Parameter(torch.randn(*shape) * 0.3)


def _module(kind: type[nn.Module], *args: Any, **options: Any) -> Callable[[], nn.Module]:
    return lambda: kind(*args, **options)


def _chain(*parts: Callable[[], nn.Module]) -> Callable[[], nn.Module]:
    return lambda: nn.Sequential(*(part() for part in parts))


def _loss(loss_fn: Callable[[Tensor, Any], Tensor], target: Callable[[], Any], out: int = 3) -> User:
    """A loss on the outputs of a small network."""
    return lambda: Setup(
        nn.Sequential(nn.Linear(5, 6), nn.Tanh(), nn.Linear(6, out)),
        lambda m, batch: loss_fn(m(batch[0]), batch[1]),
        (floats(5), target()),
    )


def _lengths() -> Tensor:
    return torch.tensor([1, 0, 3, 2])


def _elman(m: Any, x: Tensor) -> Tensor:
    hidden = x.new_zeros(x.shape[0], 4)
    for now in x.transpose(0, 1):
        hidden = torch.tanh(m.inner(now) + m.again(hidden))
    return m.head(hidden)


def _all_at_once_time_first(m: Any, x: Tensor) -> Tensor:
    inner, hidden = m.inner(x.transpose(0, 1)), x.new_zeros(x.shape[0], 4)
    for now in inner:
        hidden = torch.tanh(now + m.again(hidden))
    return m.head(hidden)


def _packed(m: Any, batch: tuple[Tensor, Tensor]) -> Tensor:
    x, lengths = batch
    packed = pack_padded_sequence(x, lengths.cpu(), batch_first=True, enforce_sorted=False)
    return m.head(pad_packed_sequence(m.cell(packed)[0], batch_first=True, total_length=x.shape[1])[0].sum(1))


def _valid_positions(m: Any, batch: tuple[Tensor, Tensor]) -> Tensor:
    x, mask = batch
    hidden = x.new_zeros(*x.shape[:2], 4)
    hidden[mask] = torch.tanh(m.inner(x[mask]))
    return m.head(hidden.sum(1))


def _masked_mean(m: Any, batch: tuple[Tensor, Tensor]) -> Tensor:
    x, mask = batch
    mask = mask.to(x.dtype).unsqueeze(2)
    return m.head((torch.tanh(m.inner(x)) * mask).sum(1) / mask.sum(1).clamp(min=1))


def _positions_of(m: Any, batch: tuple[Tensor, Tensor]) -> Tensor:
    x, lengths = batch
    return m.head(torch.tanh(m.inner(x))[torch.arange(len(x)), lengths])


def _gathered(m: Any, batch: tuple[Tensor, Tensor]) -> Tensor:
    x, lengths = batch
    hidden = torch.tanh(m.inner(x))
    return m.head(hidden.gather(1, lengths.view(-1, 1, 1).expand(-1, 1, hidden.shape[2])).squeeze(1))


def _einsum_attention(m: Any, x: Tensor) -> Tensor:
    query, key, value = (torch.einsum("bti,hio->bhto", x, w) for w in (m.query, m.key, m.value))
    weight = torch.einsum("bhto,bhso->bhts", query, key).softmax(-1)
    return m.head(torch.einsum("bhts,bhso->btho", weight, value).flatten(2).mean(1))


def _drop_path(m: Any, x: Tensor) -> Tensor:
    kept = (torch.rand(x.shape[0], 1, device=x.device) < 0.7).to(x.dtype) / 0.7
    return m.head(x + kept * torch.tanh(m.inner(x)))


def _dense_experts(m: Any, x: Tensor) -> Tensor:
    return (m.gate(x).softmax(1).unsqueeze(2) * torch.stack([expert(x) for expert in m.experts], 1)).sum(1)


def _masked_experts(m: Any, x: Tensor) -> Tensor:
    gate = m.gate(x).softmax(1)
    chosen = F.one_hot(gate.argmax(1), len(m.experts)).to(x.dtype) * gate
    return sum(chosen[:, k : k + 1] * expert(x) for k, expert in enumerate(m.experts))


def _routed_experts(m: Any, x: Tensor) -> Tensor:
    gate = m.gate(x).softmax(1)
    weight, chosen = gate.max(1)
    out = x.new_zeros(x.shape[0], 2)
    for k, expert in enumerate(m.experts):
        mine = chosen == k
        out[mine] = expert(x[mine]) * weight[mine].unsqueeze(1)
    return out


def _stacked_experts(m: Any, x: Tensor) -> Tensor:
    weight, chosen = m.gate(x).softmax(1).topk(2)
    picked = m.weights[chosen]  # [units, 2, out, in]
    return (torch.einsum("bkoi,bi->bko", picked, x) * weight.unsqueeze(2)).sum(1)


def _experts(count: int = 3) -> Callable[[], nn.Module]:
    return lambda: nn.ModuleList([nn.Linear(5, 2) for _ in range(count)])


def _film(m: Any, batch: tuple[Tensor, Tensor]) -> Tensor:
    x, condition = batch
    scale, shift = m.film(condition).chunk(2, 1)
    hidden = m.conv(x) * (1 + scale[:, :, None, None]) + shift[:, :, None, None]
    return m.head(F.relu(hidden).mean((2, 3)))


def _unet(m: Any, x: Tensor) -> Tensor:
    first = F.relu(m.norm(m.down(x)))
    second = F.relu(m.deep(F.max_pool2d(first, 2)))
    up = F.interpolate(second, scale_factor=2, mode="bilinear", align_corners=False)
    return m.out(torch.cat([first, up], 1))


def _siamese(m: Any, x: Tensor) -> Tensor:
    left, right = m.body(x[:, 0]), m.body(x[:, 1])
    return m.head((left - right).abs())


def _siamese_flat(m: Any, x: Tensor) -> Tensor:
    both = torch.tanh(m.body(x.flatten(0, 1))).unflatten(0, x.shape[:2])
    return m.head((both[:, 0] - both[:, 1]).abs())


def _triplet(model: nn.Module, batch: tuple[Tensor, ...]) -> Tensor:
    anchor, positive, negative = model(batch[0]).unbind(1)
    return F.triplet_margin_loss(anchor, positive, negative, margin=2.0, reduction="none")


def _graph(m: Any, batch: tuple[Tensor, Tensor]) -> Tensor:
    x, edges = batch
    near = (edges + edges.transpose(1, 2)).sigmoid()
    near = near / near.sum(2, keepdim=True)
    return m.head(F.relu(near @ m.second(F.relu(near @ m.first(x)))).sum(1))


def _graph_attention(m: Any, batch: tuple[Tensor, Tensor]) -> Tensor:
    x, edges = batch
    hidden = m.first(x)
    score = F.leaky_relu(m.source(hidden) + m.target(hidden).transpose(1, 2)).masked_fill(edges < -1, -1e9)
    return m.head((score.softmax(2) @ hidden).mean(1))


def _nearest_in_cloud(m: Any, x: Tensor) -> Tensor:
    distance = (x.unsqueeze(1) - x.unsqueeze(2)).square().sum(-1)
    near = distance.topk(2, largest=False).indices
    neighbours = x.gather(1, near.flatten(1).unsqueeze(2).expand(-1, -1, x.shape[2])).unflatten(1, near.shape[1:])
    edge = torch.cat([x.unsqueeze(2).expand_as(neighbours), neighbours - x.unsqueeze(2)], 3)
    return m.head(F.relu(m.inner(edge)).amax(2).amax(1))


def _gradient_penalty(model: nn.Module, batch: tuple[Tensor, ...]) -> Tensor:
    x = batch[0].detach().requires_grad_()
    out = model(x)
    (slope,) = torch.autograd.grad(out.sum(), x, create_graph=True)
    return F.cross_entropy(out, batch[1], reduction="none") + slope.square().flatten(1).sum(1)


def _ctc(scores: Tensor, target: Tensor) -> Tensor:
    steps = scores.unflatten(1, (6, 3)).log_softmax(2).transpose(0, 1)
    sizes = torch.full((len(target),), 6), torch.full((len(target),), target.shape[1])
    return F.ctc_loss(steps, target + 1, *sizes, reduction="none")


def _focal(scores: Tensor, target: Tensor) -> Tensor:
    plain = F.cross_entropy(scores, target, reduction="none")
    return (1 - (-plain).exp()).square() * plain


def _dice(scores: Tensor, target: Tensor) -> Tensor:
    share = scores.sigmoid()
    return 1 - (2 * (share * target).sum(1) + 1) / (share.sum(1) + target.sum(1) + 1)


def _weighted(scores: Tensor, target: Tensor) -> Tensor:
    return F.cross_entropy(scores, target, torch.tensor([0.2, 1.0, 3.0], dtype=scores.dtype), reduction="none")


def _mixture_density(out: Tensor, target: Tensor) -> Tensor:
    share, mean, scale = out.chunk(3, 1)
    parts = torch.distributions.Normal(mean, scale.exp(), validate_args=False).log_prob(target.unsqueeze(1))
    return -(share.log_softmax(1) + parts).logsumexp(1)


def _autocast(m: Any, x: Tensor) -> Tensor:
    with torch.autocast("cpu", torch.bfloat16):
        out = m.body(x)
    return out.float()


def _quantised(m: Any, x: Tensor) -> Tensor:
    hidden = m.inner(x)
    nearest = m.codes[(hidden.unsqueeze(1) - m.codes).square().sum(2).argmin(1)]
    return m.head(hidden + (nearest - hidden).detach()) + (nearest - hidden.detach()).square().sum(1, keepdim=True)


def _coupling_flow(model: nn.Module, batch: tuple[Tensor, ...]) -> Tensor:
    x, logdet = batch[0], 0.0
    for net in model.nets:
        left, right = x.chunk(2, 1)
        scale, shift = net(left).chunk(2, 1)
        x, logdet = torch.cat([right * scale.tanh().exp() + shift, left], 1), logdet + scale.tanh().sum(1)
    return 0.5 * x.square().sum(1) - logdet


def _variational(model: nn.Module, batch: tuple[Tensor, ...]) -> Tensor:
    mean, scale = model.encode(batch[0]).chunk(2, 1)
    drawn = mean + torch.randn_like(mean) * scale.exp()
    kl = 0.5 * (mean.square() + (2 * scale).exp() - 1 - 2 * scale).sum(1)
    return (model.decode(drawn) - batch[0]).square().sum(1) + kl


def _learned_uncertainty(model: nn.Module, batch: tuple[Tensor, ...]) -> Tensor:
    out = model.body(batch[0])
    first, second = F.cross_entropy(out[:, :3], batch[1], reduction="none"), out[:, 3].square()
    return first * (-model.log_scale[0]).exp() + second * (-model.log_scale[1]).exp() + model.log_scale.sum()


def _hyper(m: Any, batch: tuple[Tensor, Tensor]) -> Tensor:
    x, condition = batch
    return torch.bmm(x, m.hyper(condition).unflatten(1, (3, 4))).mean(1)


def _perceiver(m: Any, x: Tensor) -> Tensor:
    latents = m.latents.expand(x.shape[0], -1, -1)
    scores = (m.query(latents) @ m.key(x).transpose(1, 2) / 2).softmax(2)
    return m.head((scores @ m.value(x)).flatten(1))


def _class_token(m: Any, x: Tensor) -> Tensor:
    hidden = torch.cat([m.token.expand(len(x), -1, -1), m.inner(x)], 1) + m.positions
    return m.head(m.block(hidden)[:, 0])


def _causal_convolutions(m: Any, x: Tensor) -> Tensor:
    for k, conv in enumerate(m.convs):
        x = x + torch.tanh(conv(F.pad(x, (2 * 2**k, 0))))
    return m.head(x[:, :, -1])


def _scan(m: Any, x: Tensor) -> Tensor:
    decay, hidden, outs = m.decay.sigmoid(), 0.0, []
    for now in m.inner(x).unbind(1):
        hidden = decay * hidden + (1 - decay) * now
        outs.append(hidden)
    return m.head(torch.stack(outs, 1)).mean(1)


def _spatial_transformer(m: Any, x: Tensor) -> Tensor:
    where = m.where(x.flatten(1)).view(-1, 2, 3)
    grid = F.affine_grid(where, list(x.shape), align_corners=False)
    return m.head(F.grid_sample(x, grid, align_corners=False))


def _squeeze(m: Any, x: Tensor) -> Tensor:
    hidden = m.conv(x)
    return m.head((hidden * m.gate(hidden.mean((2, 3))).sigmoid()[:, :, None, None]).mean((2, 3)))


def _pooled_dense(m: Any, x: Tensor) -> Tensor:
    for layer in m.layers:
        x = torch.cat([x, F.relu(layer(x))], 1)
    return m.head(x.mean((2, 3)))


def _arc_face(m: Any, x: Tensor) -> Tensor:
    return 8 * F.linear(F.normalize(m.inner(x)), F.normalize(m.weight))


def _prototypes(m: Any, x: Tensor) -> Tensor:
    return -torch.cdist(m.inner(x), m.prototypes).square()


def _factorisation(m: Any, batch: tuple[Tensor]) -> Tensor:
    vectors = m.table(batch[0])
    return 0.5 * (vectors.sum(1).square() - vectors.square().sum(1)) + m.bias(batch[0]).sum(1)


def _user_and_item(m: Any, batch: tuple[Tensor, Tensor]) -> Tensor:
    return m.head(m.users(batch[0]) * m.items(batch[1]))


def _token_rotary(m: Any, x: Tensor) -> Tensor:
    query, key, value = m.project(x).chunk(3, -1)
    angle = torch.arange(x.shape[1], dtype=x.dtype).unsqueeze(1) / 10
    query, key = (torch.cat([h[..., :2] * angle.cos() - h[..., 2:] * angle.sin(),
                             h[..., 2:] * angle.cos() + h[..., :2] * angle.sin()], -1) for h in (query, key))  # fmt: skip
    return m.head(F.scaled_dot_product_attention(query, key, value, is_causal=True)).mean(1)


def _decode(m: Any, batch: tuple[Tensor, Tensor]) -> Tensor:
    return m.head(m.decoder(batch[0], batch[1])).mean(1)


def _teacher_forced(m: Any, batch: tuple[Tensor, Tensor]) -> Tensor:
    hidden, outs = torch.tanh(m.encode(batch[0])), []
    for word in batch[1].unbind(1):
        hidden = m.cell(m.table(word), hidden)
        outs.append(m.head(hidden))
    return torch.stack(outs, 1).mean(1)


def _checkpointed(m: Any, x: Tensor) -> Tensor:
    return m.head(checkpoint(m.body, x, use_reentrant=False))


def _checkpointed_deep(m: Any, x: Tensor) -> Tensor:
    for block in m.blocks:
        x = x + checkpoint(lambda h, block=block: torch.tanh(block(h)), x, use_reentrant=False)
    return m.head(x)


def _flow_by_euler(m: Any, x: Tensor) -> Tensor:
    for _ in range(3):
        x = x + 0.3 * m.field(x)
    return x


def _conv_block(channels: int, out: int, **options: Any) -> Callable[[], nn.Module]:
    return lambda: nn.Conv2d(channels, out, 3, padding=1, **options)


def _inverted_residual() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(2, 8, 1, bias=False), nn.GroupNorm(2, 8), nn.ReLU6(), nn.Conv2d(8, 8, 3, padding=1, groups=8, bias=False),
        nn.GroupNorm(2, 8), nn.ReLU6(), nn.Conv2d(8, 2, 1, bias=False), nn.GroupNorm(1, 2),
    )  # fmt: skip


def _tied_autoencoder(m: Any, x: Tensor) -> Tensor:
    return F.linear(torch.tanh(m.encode(x)), m.encode.weight.T)


def _frozen(part: Callable[[], nn.Module]) -> Callable[[], nn.Module]:
    return lambda: part().requires_grad_(False)


def _low_rank(m: Any, x: Tensor) -> Tensor:
    return m.head(torch.tanh(m.base(x) + m.up(m.drop(m.down(x)))))


def _encoder(**options: Any) -> Callable[[], nn.Module]:
    layer = {"dim_feedforward": 6, "dropout": 0.0, "batch_first": True, **options}
    return lambda: nn.TransformerEncoder(nn.TransformerEncoderLayer(4, 2, **layer), 2, enable_nested_tensor=False)


def _last(m: Any, x: Tensor) -> Tensor:
    return m.head(m.cell(x)[0][:, -1])


def _last_time_first(m: Any, x: Tensor) -> Tensor:
    return m.head(m.cell(x.transpose(0, 1))[0][-1])


def _cells(m: Any, x: Tensor) -> Tensor:
    state = None
    for now in x.unbind(1):
        state = m.cell(now, state)
    return m.head(state[0] if isinstance(state, tuple) else state)


def _bits(*shape: int) -> Tensor:
    mask = torch.rand(UNITS, *shape) < 0.7
    mask[:, 0] = True
    return mask


def _masks() -> tuple[Tensor, Tensor, Tensor]:
    return floats(4, 3), _bits(4), weights()


def _attended(m: Any, batch: tuple[Tensor, Tensor]) -> Tensor:
    x, keep = batch
    return m.head(m.attend(x, x, x, key_padding_mask=~keep, need_weights=False)[0].mean(1))


def _attended_causally(m: Any, x: Tensor) -> Tensor:
    mask = torch.ones(x.shape[1], x.shape[1], dtype=torch.bool).triu(1)
    return m.head(m.attend(x, x, x, attn_mask=mask)[0].mean(1))


def _attended_time_first(m: Any, x: Tensor) -> Tensor:
    x = x.transpose(0, 1)
    return m.head(m.attend(x, x, x, need_weights=False)[0].mean(0))


def _encoded(m: Any, batch: tuple[Tensor, Tensor]) -> Tensor:
    return m.head(m.encoder(batch[0], src_key_padding_mask=~batch[1]).mean(1))


def _head(width: int = 4) -> Callable[[], nn.Module]:
    return _linear(width, 2)


def _two(*shapes: tuple[int, ...]) -> Callable[[], tuple[Tensor, ...]]:
    return lambda: (*(floats(*shape) for shape in shapes), weights())


INNER = _linear(3, 4)
SEQUENCES = (4, 3)  # as many steps as units

USER: dict[str, User] = {
    "Elman by nn.Linear, step by step": _model(*SEQUENCES, inner=INNER, again=_linear(4, 4), head=_head())(_elman),
    "Elman by nn.Linear, time first at once": _model(*SEQUENCES, inner=INNER, again=_linear(4, 4), head=_head())(
        _all_at_once_time_first
    ),
    "LSTM, batch first": _model(*SEQUENCES, cell=_module(nn.LSTM, 3, 4, batch_first=True), head=_head())(_last),
    "LSTM, time first": _model(*SEQUENCES, cell=_module(nn.LSTM, 3, 4), head=_head())(_last_time_first),
    "LSTM, bidirectional": _model(
        5, 3, cell=_module(nn.LSTM, 3, 2, 2, batch_first=True, bidirectional=True), head=_head()
    )(_last),
    "LSTM, projected": _model(
        5, 3, cell=_module(nn.LSTM, 3, 6, batch_first=True, proj_size=4), head=_head()
    )(_last),
    "GRU, batch first": _model(*SEQUENCES, cell=_module(nn.GRU, 3, 4, batch_first=True), head=_head())(_last),
    "GRU, time first": _model(*SEQUENCES, cell=_module(nn.GRU, 3, 4), head=_head())(_last_time_first),
    "RNN, batch first": _model(*SEQUENCES, cell=_module(nn.RNN, 3, 4, batch_first=True), head=_head())(_last),
    "LSTMCell": _model(*SEQUENCES, cell=_module(nn.LSTMCell, 3, 4), head=_head())(_cells),
    "GRUCell": _model(*SEQUENCES, cell=_module(nn.GRUCell, 3, 4), head=_head())(_cells),
    "packed LSTM": _on(
        lambda: (floats(4, 3), torch.tensor([2, 4, 1, 3]), weights()),
        cell=_module(nn.LSTM, 3, 4, batch_first=True), head=_head(),
    )(_packed),
    "valid positions only": _on(_masks, inner=INNER, head=_head())(_valid_positions),
    "masked mean": _on(_masks, inner=INNER, head=_head())(_masked_mean),
    "hidden at own length, by index": _on(lambda: (floats(4, 3), _lengths(), weights()), inner=INNER, head=_head())(
        _positions_of
    ),
    "hidden at own length, by gather": _on(lambda: (floats(4, 3), _lengths(), weights()), inner=INNER, head=_head())(
        _gathered
    ),
    "attention by einsum": _model(
        4, 3, query=_parameter(2, 3, 2), key=_parameter(2, 3, 2), value=_parameter(2, 3, 2), head=_head()
    )(_einsum_attention),
    "mixture of experts, dense": _model(5, gate=_linear(5, 3), experts=_experts())(_dense_experts),
    "mixture of experts, masked": _model(5, gate=_linear(5, 3), experts=_experts())(_masked_experts),
    "mixture of experts, routed": _model(5, gate=_linear(5, 3), experts=_experts())(_routed_experts),
    "mixture of experts, weights picked": _model(5, gate=_linear(5, 3), weights=_parameter(3, 2, 5))(_stacked_experts),
    "FiLM": _on(_two((2, 5, 5), (3,)), film=_linear(3, 8), conv=_conv_block(2, 4), head=_head())(_film),
    "gate": _model(5, inner=_linear(5, 5), gate=_linear(5, 5), head=_head(5))(
        lambda m, x: m.head(torch.tanh(m.inner(x)) * m.gate(x).sigmoid())
    ),
    "GLU": _model(5, inner=_linear(5, 8), head=_head())(lambda m, x: m.head(F.glu(m.inner(x)))),
    "highway": _model(5, inner=_linear(5, 5), carry=_linear(5, 5), head=_head(5))(
        lambda m, x: m.head(torch.lerp(x, torch.relu(m.inner(x)), m.carry(x).sigmoid()))
    ),
    "U-Net": _model(
        2, 8, 8, down=_conv_block(2, 4), norm=_module(nn.GroupNorm, 2, 4), deep=_conv_block(4, 4), out=_conv_block(8, 1)
    )(_unet),
    "Siamese": _model(2, 5, body=_linear(5, 4), head=_head())(_siamese),
    "Siamese, rows laid out flat": _model(2, 5, body=_linear(5, 4), head=_head())(_siamese_flat),
    "triplet of one unit": _on(
        lambda: (floats(3, 5),), _triplet, inner=_linear(5, 6), head=_linear(6, 4)
    )(lambda m, x: m.head(torch.tanh(m.inner(x)))),
    "deep sets": _model(6, 3, inner=INNER, head=_head())(lambda m, x: m.head(torch.tanh(m.inner(x)).sum(1))),
    "PointNet": _model(6, 3, inner=INNER, head=_head())(lambda m, x: m.head(F.relu(m.inner(x)).amax(1))),
    "EdgeConv": _model(6, 3, inner=_linear(6, 4), head=_head())(_nearest_in_cloud),
    "graph net": _on(_two((5, 3), (5, 5)), first=INNER, second=_linear(4, 4), head=_head())(_graph),
    "graph attention": _on(_two((5, 3), (5, 5)), first=INNER, source=_linear(4, 1), target=_linear(4, 1), head=_head())(
        _graph_attention
    ),
    "attention pooling": _model(6, 3, score=_linear(3, 1), head=_head(3))(
        lambda m, x: m.head((m.score(x).softmax(1) * x).sum(1))
    ),
    "label smoothing": _loss(lambda out, y: F.cross_entropy(out, y, reduction="none", label_smoothing=0.1), labels),
    "focal loss": _loss(_focal, labels),
    "fixed class weights": _loss(_weighted, labels),
    "binary cross entropy": _loss(
        lambda out, y: F.binary_cross_entropy_with_logits(out, y, reduction="none").mean(1), lambda: floats(3).sigmoid()
    ),
    "Huber": _loss(lambda out, y: F.huber_loss(out, y, reduction="none").sum(1), lambda: floats(3)),
    "smooth L1": _loss(lambda out, y: F.smooth_l1_loss(out, y, reduction="none").sum(1), lambda: floats(3)),
    "Kullback-Leibler": _loss(
        lambda out, y: F.kl_div(out.log_softmax(1), y.softmax(1), reduction="none").sum(1), lambda: floats(3)
    ),
    "negative log likelihood": _loss(lambda out, y: F.nll_loss(out.log_softmax(1), y, reduction="none"), labels),
    "multi margin": _loss(lambda out, y: F.multi_margin_loss(out, y, reduction="none"), labels),
    "cosine embedding": _loss(lambda out, y: 1 - F.cosine_similarity(out, y, 1), lambda: floats(3)),
    "quantiles": _loss(
        lambda out, y: torch.maximum(0.9 * (y - out), -0.1 * (y - out)).mean(1), lambda: floats(3)
    ),
    "Gaussian likelihood": _loss(
        lambda out, y: F.gaussian_nll_loss(out[:, 0], y, F.softplus(out[:, 1]), reduction="none"), floats, 2
    ),
    "Poisson likelihood": _loss(
        lambda out, y: F.poisson_nll_loss(out[:, 0], y.exp(), reduction="none"), floats
    ),
    "dice": _loss(_dice, lambda: floats(3).sigmoid()),
    "hinge": _loss(lambda out, y: F.relu(1 - out[:, 0] * y), lambda: torch.tensor([1.0, -1.0, 1.0, -1.0])),
    "mixture density": _loss(_mixture_density, floats, 6),
    "CTC": _loss(_ctc, lambda: torch.randint(0, 2, (UNITS, 2)), 18),
    "loss ignores padding": _loss(
        lambda out, y: F.cross_entropy(out.unflatten(1, (3, 2)), y, reduction="none", ignore_index=0).sum(1),
        lambda: torch.randint(0, 3, (UNITS, 2)), 6,
    ),
    "gradient penalty": lambda: Setup(
        nn.Sequential(nn.Linear(5, 6), nn.Tanh(), nn.Linear(6, 3)), _gradient_penalty, (floats(5), labels())
    ),
    "learned uncertainties": lambda: Setup(
        Apply(lambda m, x: m.body(x), body=nn.Linear(5, 4), log_scale=nn.Parameter(torch.zeros(2))),
        _learned_uncertainty, (floats(5), labels()),
    ),
    "EmbeddingBag, weighted": _on(
        lambda: (tokens(6), floats(6), weights()), table=_module(nn.EmbeddingBag, 7, 3, mode="sum"), head=_head(3)
    )(lambda m, batch: m.head(m.table(batch[0], per_sample_weights=batch[1]))),
    "EmbeddingBag, max": _on(
        lambda: (tokens(6), weights()), table=_module(nn.EmbeddingBag, 7, 3, mode="max"), head=_head(3)
    )(lambda m, batch: m.head(m.table(batch[0]))),
    "factorisation machine": _on(
        lambda: (tokens(6), weights()), table=_module(nn.Embedding, 7, 3), bias=_module(nn.Embedding, 7, 1)
    )(_factorisation),
    "users and items": _on(
        lambda: (tokens(), tokens(), weights()),
        users=_module(nn.Embedding, 7, 4), items=_module(nn.Embedding, 7, 4), head=_head(),
    )(_user_and_item),
    "weight norm on a convolution": _model(
        2, 5, 5, conv=lambda: nn.utils.parametrizations.weight_norm(nn.Conv2d(2, 3, 3)), head=_head(3)
    )(lambda m, x: m.head(m.conv(x).mean((2, 3)))),
    "orthogonal weights": _model(
        4, inner=lambda: nn.utils.parametrizations.orthogonal(nn.Linear(4, 4)), head=_head()
    )(lambda m, x: m.head(torch.tanh(m.inner(x)))),
    "checkpoint of a block": _model(5, body=_chain(_linear(5, 6), nn.Tanh, _linear(6, 4)), head=_head())(_checkpointed),
    "checkpoint of every block": _model(
        5, blocks=lambda: nn.ModuleList([nn.Linear(5, 5) for _ in range(3)]), head=_head(5)
    )(_checkpointed_deep),
    "channels last": _model(2, 6, 6, conv=_conv_block(2, 8), norm=_module(nn.GroupNorm, 2, 8), head=_head(8))(
        lambda m, x: m.head(F.relu(m.norm(m.conv(x.to(memory_format=torch.channels_last)))).mean((2, 3)))
    ),
    "MultiheadAttention, key padding": _on(
        lambda: (floats(5, 4), _bits(5), weights()),
        attend=_module(nn.MultiheadAttention, 4, 2, batch_first=True), head=_head(),
    )(_attended),
    "MultiheadAttention, causal": _model(
        5, 4, attend=_module(nn.MultiheadAttention, 4, 2, batch_first=True), head=_head()
    )(_attended_causally),
    "MultiheadAttention, time first": _model(5, 4, attend=_module(nn.MultiheadAttention, 4, 2), head=_head())(
        _attended_time_first
    ),
    "TransformerEncoder, padding": _on(lambda: (floats(5, 4), _bits(5), weights()), encoder=_encoder(), head=_head())(
        _encoded
    ),
    "TransformerEncoder, norm first": _model(5, 4, encoder=_encoder(norm_first=True), head=_head())(
        lambda m, x: m.head(m.encoder(x)).mean(1)
    ),
    "TransformerEncoder, evaluation mode": _model(5, 4, encoder=lambda: _encoder()().eval(), head=_head())(
        lambda m, x: m.head(m.encoder(x)).mean(1)
    ),
    "TransformerDecoder": _on(
        _two((3, 4), (5, 4)),
        decoder=lambda: nn.TransformerDecoder(nn.TransformerDecoderLayer(4, 2, 6, 0.0, batch_first=True), 1), head=_head(),
    )(_decode),
    "sequence to sequence": _on(
        lambda: (floats(5), tokens(3), weights()),
        encode=_linear(5, 4), table=_module(nn.Embedding, 7, 4), cell=_module(nn.GRUCell, 4, 4), head=_head(),
    )(_teacher_forced),
    "rotary attention": _model(5, 4, project=_linear(4, 12), head=_head())(_token_rotary),
    "Perceiver": _model(
        6, 3, latents=_parameter(2, 4), query=_linear(4, 4), key=INNER, value=INNER, head=_head(8)
    )(_perceiver),
    "class token and positions": _model(
        4, 3, token=_parameter(1, 1, 4), positions=_parameter(1, 5, 4), inner=INNER, head=_head(),
        block=_chain(_module(nn.LayerNorm, 4), _linear(4, 4), nn.GELU),
    )(_class_token),
    "MLP-Mixer": _model(4, 6, across=_linear(4, 4), along=_linear(6, 6), norm=_module(nn.LayerNorm, 6), head=_head(6))(
        lambda m, x: m.head(m.along(x + m.across(m.norm(x).transpose(1, 2)).transpose(1, 2)).mean(1))
    ),
    "Fourier mixing": _model(4, 6, inner=_linear(6, 6), head=_head(6))(
        lambda m, x: m.head(torch.tanh(m.inner(torch.fft.fft2(x).real)).mean(1))
    ),
    "random Fourier features": _model(5, head=_head(8))(
        lambda m, x: m.head(torch.cos(x @ torch.linspace(-1, 1, 40, dtype=x.dtype).view(5, 8)))
    ),
    "causal convolutions": _model(
        3, 9, convs=lambda: nn.ModuleList([nn.Conv1d(3, 3, 3, dilation=2**k) for k in range(2)]), head=_head(3)
    )(_causal_convolutions),
    "state space scan": _model(5, 3, inner=INNER, decay=_parameter(4), head=_head())(_scan),
    "spatial transformer": _model(
        2, 5, 5, where=_linear(50, 6), head=_chain(nn.Flatten, _linear(50, 2))
    )(_spatial_transformer),
    "squeeze and excite": _model(2, 5, 5, conv=_conv_block(2, 4), gate=_linear(4, 4), head=_head())(_squeeze),
    "DenseNet": _model(
        2, 5, 5, layers=lambda: nn.ModuleList([nn.Conv2d(2 + 3 * k, 3, 3, padding=1) for k in range(2)]), head=_head(8)
    )(_pooled_dense),
    "inverted residual": _model(2, 5, 5, block=_inverted_residual, head=_head(50))(
        lambda m, x: m.head((x + m.block(x)).flatten(1))
    ),
    "transposed convolution decoder": _model(
        4, inner=_linear(4, 16), up=_module(nn.ConvTranspose2d, 4, 2, 4, stride=2, padding=1)
    )(lambda m, x: m.up(F.relu(m.inner(x)).unflatten(1, (4, 2, 2)))),
    "pixel shuffle": _model(2, 4, 4, conv=_conv_block(2, 8))(lambda m, x: F.pixel_shuffle(m.conv(x), 2)),
    "unfold": _model(2, 4, 4, inner=_linear(8, 3))(lambda m, x: m.inner(F.unfold(x, 2).transpose(1, 2))),
    "bilinear layer": _on(_two((3,), (4,)), pair=_module(nn.Bilinear, 3, 4, 2))(lambda m, batch: m.pair(*batch)),
    "local response norm": _model(4, 5, 5, conv=_conv_block(4, 4), head=_head())(
        lambda m, x: m.head(F.local_response_norm(m.conv(x), 2).mean((2, 3)))
    ),
    "instance norm without weights": _model(2, 5, 5, conv=_conv_block(2, 4), head=_head(100))(
        lambda m, x: m.head(F.instance_norm(m.conv(x)).flatten(1))
    ),
    "RMS norm by hand": _model(4, 5, inner=_linear(5, 5), gain=_parameter(5), head=_head(5))(
        lambda m, x: m.head(m.gain * F.normalize(m.inner(x), dim=-1))
    ),
    "PReLU per channel": _model(2, 5, 5, conv=_conv_block(2, 4), act=_module(nn.PReLU, 4), head=_head())(
        lambda m, x: m.head(m.act(m.conv(x)).mean((2, 3)))
    ),
    "maxout": _model(5, inner=_linear(5, 8), head=_head())(lambda m, x: m.head(m.inner(x).unflatten(1, (4, 2)).amax(2))),
    "vector quantisation": _model(5, inner=_linear(5, 3), codes=_parameter(4, 3), head=_head(3))(_quantised),
    "hypernetwork": _on(_two((6, 3), (4,)), hyper=_linear(4, 12))(_hyper),
    "neural ODE by Euler": _model(4, field=_chain(_linear(4, 6), nn.Tanh, _linear(6, 4)))(_flow_by_euler),
    "coupling flow": lambda: Setup(
        Apply(lambda m, x: x, nets=nn.ModuleList([nn.Sequential(nn.Linear(2, 6), nn.Tanh(), nn.Linear(6, 4)) for _ in "ab"])),
        _coupling_flow, (floats(4),),
    ),
    "autoencoder, tied": _model(5, encode=_linear(5, 3))(_tied_autoencoder),
    "ArcFace": _model(5, inner=_linear(5, 4), weight=_parameter(3, 4))(_arc_face),
    "learned prototypes": _model(5, inner=_linear(5, 4), prototypes=_parameter(3, 4))(_prototypes),
    "frozen backbone": _model(5, base=_frozen(_linear(5, 6)), head=_head(6))(lambda m, x: m.head(torch.tanh(m.base(x)))),
    "LoRA": _model(
        5, base=_frozen(_linear(5, 4)), down=_linear(5, 2, bias=False), up=_linear(2, 4, bias=False), drop=nn.Identity,
        head=_head(),
    )(_low_rank),
    "learned temperature": _model(5, head=_linear(5, 3), temperature=_parameter(1))(
        lambda m, x: m.head(x) / m.temperature.exp()
    ),
    "cumulative sum over time": _model(5, 3, inner=INNER, head=_head())(
        lambda m, x: m.head(torch.tanh(m.inner(x)).cumsum(1).mean(1))
    ),
    "sort within a unit": _model(5, 3, inner=INNER, head=_head())(
        lambda m, x: m.head(m.inner(x).sort(1).values[:, -2:].mean(1))
    ),
    "variance over own positions": _model(5, 3, inner=INNER, head=_head())(
        lambda m, x: m.head(torch.cat([m.inner(x).var(1)], 1))
    ),
    "branch by own sign": _model(5, left=_linear(5, 3), right=_linear(5, 3))(
        lambda m, x: torch.where(x[:, :1] > 0, m.left(x), m.right(x))
    ),
    "fixed standardisation": _model(5, head=_linear(5, 3))(lambda m, x: m.head((x - 0.3) / 1.7)),
    "BatchNorm in evaluation mode beside a trained head": _model(
        2, 5, 5, conv=_conv_block(2, 4), norm=lambda: nn.BatchNorm2d(4).eval(), head=_head()
    )(lambda m, x: m.head(F.relu(m.norm(m.conv(x))).mean((2, 3)))),
    "views and splits": _model(12, inner=_linear(3, 4), head=_head(8))(
        lambda m, x: m.head(torch.cat([m.inner(p) for p in x.view(-1, 4, 3).split(2, 1)], 2).mean(1))
    ),
    "list of heads": _model(5, body=_linear(5, 4), heads=lambda: nn.ModuleList([nn.Linear(4, 2) for _ in range(3)]))(
        lambda m, x: torch.stack([head(torch.tanh(m.body(x))) for head in m.heads], 1)
    ),
}  # fmt: skip


def _zero(part: Callable[[], nn.Module]) -> Callable[[], nn.Module]:
    def made() -> nn.Module:
        module = part()
        for parameter in module.parameters():
            nn.init.zeros_(parameter)
        return module

    return made


def _modulated(m: Any, batch: tuple[Tensor, Tensor]) -> Tensor:
    x, condition = batch
    scale, shift, gate = m.modulate(condition).unsqueeze(1).chunk(3, 2)
    return m.head(x + gate * m.inner(m.norm(x) * (1 + scale) + shift)).mean(1)


AT_ZERO: dict[str, User] = {  # as they start: gradients of some parts are exactly 0
    "head": _model(5, inner=_linear(5, 6), head=_zero(_linear(6, 3)))(lambda m, x: m.head(torch.tanh(m.inner(x)))),
    "classifier": lambda: Setup(nn.Sequential(nn.Linear(5, 6), nn.Tanh(), _zero(_linear(6, 3))()), cross_entropy,
                                (floats(5), labels())),
    "gate": _model(5, inner=_linear(5, 5), gate=lambda: nn.Parameter(torch.zeros(())), head=_head(5))(
        lambda m, x: m.head(x + m.gate * torch.tanh(m.inner(x)))
    ),
    "LoRA": _model(
        5, base=_frozen(_linear(5, 4)), down=_linear(5, 2, bias=False), up=_zero(_linear(2, 4, bias=False)),
        drop=nn.Identity, head=_head(),
    )(_low_rank),
    "adaptive layer norm": _on(
        _two((4, 3), (5,)), modulate=_zero(_linear(5, 9)), norm=_module(nn.LayerNorm, 3), inner=_linear(3, 3), head=_head(3)
    )(_modulated),
    "last norm of a residual branch": _model(
        2, 5, 5, conv=_conv_block(2, 2), norm=_zero(_module(nn.GroupNorm, 1, 2)), head=_head(50)
    )(lambda m, x: m.head((x + m.norm(m.conv(x))).flatten(1))),
    "squared output of a zero head": _model(5, inner=_linear(5, 6), head=_zero(_linear(6, 3)))(
        lambda m, x: m.head(torch.tanh(m.inner(x))).square()
    ),
    "all weights": lambda: Setup(_zero(_linear(5, 3))(), cross_entropy, (floats(5), labels())),
}  # fmt: skip

RANDOM: dict[str, User] = {  # chance is drawn for each row
    "DropPath": _model(5, inner=_linear(5, 5), head=_head(5))(_drop_path),
    "dropout": _model(5, inner=_linear(5, 6), drop=_module(nn.Dropout, 0.5), head=_head(6))(
        lambda m, x: m.head(m.drop(torch.tanh(m.inner(x))))
    ),
    "dropout of channels": _model(2, 5, 5, conv=_conv_block(2, 4), drop=_module(nn.Dropout2d, 0.5), head=_head())(
        lambda m, x: m.head(m.drop(m.conv(x)).mean((2, 3)))
    ),
    "alpha dropout": _model(5, inner=_linear(5, 6), drop=_module(nn.AlphaDropout, 0.3), head=_head(6))(
        lambda m, x: m.head(m.drop(F.selu(m.inner(x))))
    ),
    "noise of fixed size": _model(5, inner=_linear(5, 6), head=_head(6))(
        lambda m, x: m.head(torch.tanh(m.inner(x + 0.1 * torch.randn_like(x))))
    ),
    "randomised leaky ReLU": _model(5, inner=_linear(5, 6), act=nn.RReLU, head=_head(6))(
        lambda m, x: m.head(m.act(m.inner(x)))
    ),
    "variational autoencoder": lambda: Setup(
        Apply(lambda m, x: x, encode=nn.Linear(5, 4), decode=nn.Linear(2, 5)), _variational, (floats(5),)
    ),
    "Gumbel softmax": _model(5, inner=_linear(5, 4), head=_head())(lambda m, x: m.head(F.gumbel_softmax(m.inner(x)))),
    "LoRA with dropout": _model(
        5, base=_frozen(_linear(5, 4)), down=_linear(5, 2, bias=False), up=_linear(2, 4, bias=False),
        drop=_module(nn.Dropout, 0.2), head=_head(),
    )(_low_rank),
    "BERT, training mode": _training(FACES["BERT"]),
    "GPT-2, training mode": _training(FACES["GPT-2"]),
    "ViT, training mode": _training(FACES["ViT"]),
}  # fmt: skip

IN_FLOAT32: dict[str, User] = {
    "Mixtral": _face("Mixtral", CAUSAL, _next_token, {**DECODER, "num_local_experts": 3, "num_experts_per_tok": 2}),
    "LSTM": USER["LSTM, batch first"],
    "GRU": USER["GRU, batch first"],
    "U-Net": USER["U-Net"],
    "MultiheadAttention": USER["MultiheadAttention, causal"],
    "TransformerEncoder, evaluation mode": USER["TransformerEncoder, evaluation mode"],
    "autocast": _model(5, body=_chain(_linear(5, 6), nn.Tanh, _linear(6, 3)))(_autocast),
    "autocast of a convolution": _model(
        2, 6, 6, body=_chain(_conv_block(2, 4), nn.ReLU, nn.Flatten, _linear(144, 3))
    )(_autocast),
}  # fmt: skip

EXAMPLE = {"packed LSTM", "CTC", "Poisson likelihood"}  # lengths of 0, or labels that random numbers do not make
ROUNDING = {"face: GPT-Neo": 1e-6, "float32: autocast": 0.03, "float32: autocast of a convolution": 0.03}

HONEST: dict[str, Honest] = {
    honest.name: replace(honest, rounding=ROUNDING.get(honest.name, honest.rounding))
    for honest in [
        *(Honest(f"own: {name}", lambda name=name: _own_model(name)) for name in MODELS),
        *(Honest(f"problem: {name}", problem.build) for name, problem in PROBLEMS.items()),
        *(Honest(f"situation: {name}", build) for name, build in _situations().items()),
        *(Honest(f"user: {name}", build, example=name in EXAMPLE) for name, build in USER.items()),
        *(Honest(f"random: {name}", build, random=True) for name, build in RANDOM.items()),
        *(Honest(f"at zero: {name}", build, spread=False) for name, build in AT_ZERO.items()),
        *(Honest(f"float32: {name}", build, torch.float32, rounding=1e-4) for name, build in IN_FLOAT32.items()),
        *(Honest(f"face: {name}", build) for name, build in (FACES | {"Whisper": _whisper}).items()),
    ]
}

if __name__ == "__main__":
    record()

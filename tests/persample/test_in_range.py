"""Indices are looked at before anything reads by them."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from noisewise.persample.in_range import ASKING, InRange, NotAsked
from noisewise.persample.operations import RULES

LAYER = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True, norm_first=True)
TABLE, BODY, HEAD = nn.Embedding(20, 8), nn.TransformerEncoder(LAYER, 2, enable_nested_tensor=False), nn.Linear(8, 3)


def encoder(tokens):
    return HEAD(BODY(TABLE(tokens) + TABLE(torch.arange(tokens.shape[1]))).mean(1))


def test_ordinary_models_pass_and_their_answers_are_the_same():
    tokens, y, images = torch.randint(0, 20, (4, 5)), torch.tensor([0, 2, 1, -100]), torch.randn(4, 3, 9, 9)
    torch.manual_seed(1)
    network = nn.Sequential(
        nn.Conv2d(3, 8, 3),
        nn.GroupNorm(2, 8),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Dropout(0.5),
        nn.Flatten(),
        nn.Linear(72, 3),
    )

    def answers():
        torch.manual_seed(2)
        return torch.stack([F.cross_entropy(logits, y) for logits in (encoder(tokens), network(images))])

    with InRange():
        got = answers()
    torch.testing.assert_close(got, answers(), rtol=0, atol=0)
    got.sum().backward()  # outside


@pytest.mark.parametrize("token", [-1, 20])
def test_a_token_of_no_word_is_an_index_error(token):
    with InRange(), pytest.raises(IndexError, match=f"{token} is out of range: there are 0 to 19"):
        encoder(torch.tensor([[3, token]]))


@pytest.mark.parametrize("label", [-1, 3])
@pytest.mark.parametrize("shape", [(2, 3), (2, 3, 4, 4)])
def test_a_label_of_no_class_is_an_index_error(label, shape):
    target = torch.zeros(shape[0], *shape[2:], dtype=torch.long)
    target.view(-1)[1] = label
    with InRange(), pytest.raises(IndexError, match=f"{label} is out of range: there are 0 to 2"):
        F.cross_entropy(torch.randn(shape), target, reduction="none")


@pytest.mark.parametrize(
    "way",
    [
        lambda x: x.gather(0, torch.tensor([9])),
        lambda x: x[torch.tensor([9])],
        lambda x: F.binary_cross_entropy(x, x),
        lambda x: torch.bernoulli(x),
        lambda x: torch.take(x, torch.tensor([9])),
        lambda x: F.embedding_bag(torch.tensor([[9]]), x.view(3, 1)),
        lambda x: F.multi_margin_loss(x.view(1, 3), torch.tensor([9])),
    ],
)
def test_what_asks_something_of_its_values_is_not_run(way):
    with InRange(), pytest.raises(NotAsked):
        way(torch.tensor([0.5, 2.0, -1.0]))


def test_operations_that_ask_are_those_of_the_table():
    assert set(RULES) >= ASKING

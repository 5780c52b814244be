from __future__ import annotations

import pytest
import torch

from noisewise.errors import ConfigError
from noisewise.models import MODELS, build


@pytest.mark.parametrize(
    ("name", "shape", "weights"),
    [("lenet", (1, 28, 28), 61_706), ("cnn", (1, 8, 8), 160 + 4_640 + 5_130), ("cnn", (3, 9, 8), 448 + 4_640 + 5_130)],
)
def test_weights_are_counted_and_the_output_is_one_logit_per_class(name, shape, weights) -> None:
    model = build(name, shape, 10, seed=0)
    assert sum(p.numel() for p in model.parameters()) == weights
    assert model(torch.zeros(2, *shape)).shape == (2, 10)


def test_the_seed_is_the_initialisation_and_the_global_state_is_left_alone() -> None:
    torch.manual_seed(7)
    before = torch.get_rng_state()
    first, second, other = (build("cnn", (1, 8, 8), 10, seed) for seed in (1, 1, 2))
    assert torch.equal(torch.get_rng_state(), before)
    assert all(torch.equal(a, b) for a, b in zip(first.parameters(), second.parameters(), strict=True))
    assert not torch.equal(next(first.parameters()), next(other.parameters()))


@pytest.mark.parametrize(("name", "shape"), [("lenet", (1, 8, 8)), ("cnn", (64,)), ("cnn", (1, 1, 8))])
def test_inputs_that_do_not_fit_are_refused(name, shape) -> None:
    with pytest.raises(ConfigError, match=f"model '{name}' on inputs of shape"):
        build(name, shape, 10, seed=0)


def test_unknown_names_are_refused_with_the_known_ones() -> None:
    with pytest.raises(ConfigError, match=f"Known models: {', '.join(MODELS)}"):
        build("gpt", (1, 8, 8), 10, seed=0)

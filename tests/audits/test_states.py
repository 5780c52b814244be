from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from noisewise.audits.states import distance, flat, interpolated, length_of, load, moved, projected_gradients, some_rows
from noisewise.data import Data
from noisewise.errors import ConfigError


def small_net(seed: int = 0) -> nn.Module:
    with torch.random.fork_rng([]):
        torch.manual_seed(seed)
        return nn.Sequential(nn.Linear(3, 5), nn.Tanh(), nn.Linear(5, 4))


def cross_entropy(model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
    return nn.functional.cross_entropy(model(batch[0]), batch[1], reduction="none")


def test_projected_gradients_are_those_of_a_loop_over_rows() -> None:
    model, generator = small_net(), torch.Generator().manual_seed(0)
    x, y = torch.randn(12, 3, generator=generator), torch.randint(4, (12,), generator=generator)
    rows = []
    for i in range(12):
        loss = cross_entropy(model, (x[i : i + 1], y[i : i + 1])).sum()
        rows.append(torch.cat([g.flatten() for g in torch.autograd.grad(loss, list(model.parameters()))]).numpy())
    ours = projected_gradients(model, (x, y), cross_entropy, np.random.default_rng(3))
    again = np.random.default_rng(3)
    shapes = [parameter.shape for parameter in model.parameters()]
    matrix = np.stack([np.concatenate([again.standard_normal(s).ravel() for s in shapes]) for _ in range(2)], 1)
    np.testing.assert_allclose(ours, np.stack(rows) @ matrix / math.sqrt(len(matrix)), atol=1e-6)


def test_a_random_direction_has_its_length_and_leaves_other_tensors() -> None:
    state = {"a": torch.zeros(3, dtype=torch.float64), "b": torch.ones(2, 2), "c": torch.zeros(5)}
    step = moved(state, ["a", "b"], 7.0, np.random.default_rng(0))
    assert math.hypot(float(step["a"].norm()), float((step["b"] - 1).norm())) == pytest.approx(7, rel=1e-5)
    assert torch.equal(step["c"], state["c"])


def test_between_two_states() -> None:
    middle = interpolated({"b": torch.zeros(2)}, {"b": torch.ones(2)}, 0.25)
    assert middle["b"].tolist() == [0.25, 0.25]
    with pytest.raises(ConfigError, match="whole numbers that differ"):
        interpolated({"n": torch.tensor(1)}, {"n": torch.tensor(2)}, 0.5)


def test_lengths_are_those_of_the_named_tensors() -> None:
    first, second = (
        {"a": torch.tensor([3.0]), "b": torch.tensor([[4.0]])},
        {"a": torch.zeros(1), "b": torch.zeros(1, 1)},
    )
    assert flat(first, ["a", "b"]).tolist() == [3.0, 4.0]
    assert length_of(first, ["a", "b"]) == distance(first, second, ["a", "b"]) == 5.0
    assert length_of(first, ["b"]) == 4.0


def test_a_state_that_does_not_fit_is_refused_before_anything_is_written() -> None:
    model = small_net()
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    state = {name: torch.zeros_like(tensor) for name, tensor in before.items()} | {"2.bias": torch.zeros(3)}
    with pytest.raises(ConfigError, match=r"2\.bias is missing or has another shape"):
        load(model, state)
    assert all(torch.equal(before[name], tensor) for name, tensor in model.state_dict().items())


def test_some_rows_are_drawn_once_and_in_order() -> None:
    data = Data(torch.arange(30).float().unsqueeze(1), torch.zeros(30))
    drawn = some_rows(data, 10, np.random.default_rng(0)).x.flatten().tolist()
    assert drawn == sorted(set(drawn))
    assert len(drawn) == 10
    assert some_rows(data, 30, np.random.default_rng(0)) is data

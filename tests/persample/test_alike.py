import pytest
import torch
import torch.nn.functional as F
from torch import nn

from helpers.interpreted import interpret
from noisewise.clipping import Flat, PerLayer
from noisewise.persample import alike, clipped_sum, examine, kernels
from noisewise.persample.alike import is_small, measure_together, sums_together
from noisewise.persample.formed import Formed
from noisewise.persample.replay import Replay, Sums
from noisewise.persample.steady import steady

NAMES = ("0.weight", "0.bias", "1.weight", "1.bias", "3.weight", "3.bias")


@pytest.fixture(autouse=True)
def interpreted(monkeypatch):
    """Kernels on a CPU."""
    interpret(monkeypatch)


def gradients():
    torch.manual_seed(0)
    widths = {"a": (5,), "b": (3, 2), "c": (5,), "d": (5, 1), "e": (6,)}
    return {name: Formed(torch.randn(4, *shape)) for name, shape in widths.items()}


@pytest.mark.parametrize("masked", [(), ("a", "b", "d"), ("a", "b", "c", "d", "e")])
def test_norms_and_sums_together_are_those_of_each_alone(masked):
    """Masks are laid on sums later, so that here sums are those without."""
    given = gradients()
    masks = {name: torch.rand(given[name].grads.shape[1:]) < 0.5 for name in masked}
    given["c"].grads[2, 1] = float("nan")
    blocks = {"a": 0, "b": 1, "c": 0, "d": 1, "e": 1}
    factors = torch.rand(2, 4, dtype=torch.float64)
    factors[:, 2] = 0
    with steady(4):
        measured = measure_together(given, masks)
        sums = sums_together({name: gradient for name, (_, gradient) in measured.items()}, factors, blocks)
    assert set(measured) == set(sums) == set(given)
    for name, gradient in given.items():
        squares, alone = gradient.measure(masks.get(name))[0], gradient
        torch.testing.assert_close(measured[name][0], squares, rtol=1e-13, atol=0, equal_nan=True)
        torch.testing.assert_close(sums[name], alone.weighted_sum(factors[blocks[name]]), rtol=1e-6, atol=1e-7)
        assert sums[name].isfinite().all()


def test_what_is_taken_together_follows_from_shapes_and_the_public_number_of_units(monkeypatch):
    one = Formed(torch.randn(4, 5))
    assert not is_small(one)  # outside of a captured step
    monkeypatch.setattr(alike, "SMALL", 40)
    with steady(8):
        assert is_small(one)
        assert is_small(Formed(torch.randn(3, 5)))
        assert not is_small(Formed(torch.randn(4, 6)))
        assert not is_small(Formed(torch.randn(4, 5), torch.ones(5, dtype=torch.bool)))
        assert not is_small(Formed(torch.randn(4, 5).double()))
    with steady(9):
        assert not is_small(one)


@pytest.mark.parametrize("clip", [Flat(0.1), PerLayer({name: Flat(0.1) for name in NAMES})], ids=["flat", "per-layer"])
def test_a_captured_step_that_takes_small_ones_together_equals_an_ordinary_one(clip, monkeypatch):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 7), nn.LayerNorm(7), nn.Tanh(), nn.Linear(7, 7))
    batch = torch.randn(5, 6), torch.randint(0, 7, (5,))

    def losses(model, batch):
        return F.cross_entropy(model(batch[0]), batch[1], reduction="none")

    layout = examine(model, losses, batch)
    groups = []
    together = alike.measure_together
    monkeypatch.setattr(
        "noisewise.persample.engines.measure_together", lambda g, m: groups.append(set(g)) or together(g, m)
    )
    live = dict(model.named_parameters())
    sums = Sums(model, live, clip, {}, 5)
    replay = Replay(model, losses, batch, 5, sums, layout)
    replay(list(batch), 0, 4)
    assert groups[-1] == {"0.bias", "1.weight", "1.bias", "3.bias"}
    monkeypatch.setattr(kernels, "ENABLED", False)
    expected = clipped_sum(model, losses, tuple(part[:4] for part in batch), clip, layout=layout)
    for name, value in expected.grads._values.items():
        torch.testing.assert_close(sums.values[name], value, rtol=1e-4, atol=1e-6)

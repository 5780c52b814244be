"""Reconstruction: what is rebuilt from a step, and what noise and masks take away."""

from __future__ import annotations

import itertools
import json

import numpy as np
import pytest
import torch
from matplotlib.figure import Figure
from scipy.stats import ttest_rel
from torch import nn
from torchmetrics.image import PeakSignalNoiseRatio

from noisewise.attacks.inversion import (
    Attack,
    error_bound,
    expected_error,
    least_squares,
    least_squares_error,
    observe,
)
from noisewise.audits.reconstruction import Reconstruction, reconstruction
from noisewise.clipping import Flat, per_layer
from noisewise.data import Data
from noisewise.errors import ConfigError, DataError
from noisewise.mechanism import Mechanism
from noisewise.sampling import FullBatch

QUICK = Attack(steps=150)

K = np.array([1.0, -2.0, 0.5, 3.0, 0.25, 1.5, -1.0, 0.75])


def plan(sigma, bound=1.0, clip=None):
    return Mechanism(sampler=FullBatch(1), clip=clip or Flat(bound), steps=1, noise_multiplier=sigma)


def seeded(make):
    with torch.random.fork_rng([]):
        torch.manual_seed(0)
        return make()


def linear(inputs=12, classes=4):
    return seeded(lambda: nn.Linear(inputs, classes))


def vectors(n=40, inputs=12, classes=4, **settings):
    generator = torch.Generator().manual_seed(0)
    return Data(torch.rand(n, inputs, generator=generator), torch.arange(n) % classes, **settings)


def audit(model=None, data=None, seed=0, **settings):
    settings = {"attack": QUICK, **settings}
    return reconstruction(model or linear(), data or vectors(), generator=np.random.default_rng(seed), **settings)


# Theorem 5.1
def test_least_squares_is_numpys():
    rng = np.random.default_rng(0)
    gradient, mask = rng.standard_normal(8), np.array([1, 1, 0, 0, 1, 0, 1, 1.0])
    solved = np.linalg.lstsq((mask * K)[:, None], mask * gradient, rcond=None)[0][0]
    assert least_squares(gradient, K, mask) == pytest.approx(solved)


def test_the_expected_error_is_the_mean_over_all_masks():
    masks = [m for m in itertools.product((0, 1), repeat=8) if sum(m) == 4]
    slow = np.mean([1 / np.square(np.array(m) * K).sum() for m in masks])
    assert expected_error(K, 2.0, 0.5) == pytest.approx(4 * slow)


@pytest.mark.parametrize("sparsity", [0.0, 0.25, 0.5, 0.75])
def test_simulation_equals_the_formula_and_exceeds_the_bound(sparsity):
    """Seed 0, 200,000 draws, 99.9 % interval."""
    error = least_squares_error(K, 0.7, sparsity, 200_000, np.random.default_rng(0), 0.999)
    assert error.low < expected_error(K, 0.7, sparsity) < error.high
    bound = error_bound(K, 0.7, sparsity)
    assert bound == pytest.approx(0.49 / ((1 - sparsity) * np.square(K).sum()))
    if sparsity:
        assert error.low > bound
    else:
        assert expected_error(K, 0.7, 0.0) == pytest.approx(bound)


def test_the_error_increases_with_sparsity():
    errors = [expected_error(K, 1.0, zeros / 8) for zeros in range(8)]
    assert errors == sorted(errors)
    assert errors[-1] > 5 * errors[0]


def test_masks_without_any_weight_are_left_out():
    k = np.array([0.0, 0.0, 2.0])
    assert expected_error(k, 1.0, 0.7) == pytest.approx(0.25)
    error = least_squares_error(k, 1.0, 0.7, 30_000, np.random.default_rng(0), 0.999)
    assert error.low < 0.25 < error.high
    assert 9_000 < error.n < 11_000


@pytest.mark.parametrize("sparsity", [-0.1, 1.0])
def test_impossible_sparsity_is_refused(sparsity):
    with pytest.raises(ConfigError, match="sparsity"):
        error_bound(K, 1.0, sparsity)
    with pytest.raises(ConfigError, match="sparsity"):
        audit(sparsity=sparsity)


def test_too_many_masks_are_refused():
    with pytest.raises(ConfigError, match="too many"):
        expected_error(np.ones(40), 1.0, 0.5)


def _loss(model, batch):
    return nn.functional.cross_entropy(model(batch[0]), batch[1], reduction="none")


# The attack
def test_a_linear_layers_gradient_shows_its_input_and_inversion_finds_it():
    """grad_W = (p - y) x^T and grad_b = p - y: x is their quotient. Inversion gets there without being told."""
    data = vectors(public=True)
    seen = observe(linear(), data, plan(0.0), 0.0, _loss, np.random.default_rng(0))
    weight, bias = seen["plain"].gradients.split([48, 4], 1)
    quotient = (weight.view(-1, 4, 12) / bias.unsqueeze(2)).mean(1)
    assert torch.allclose(quotient, data.x, atol=1e-3)
    result = audit(data=data, mechanism=plan(0.0), sparsity=0.0, attack=Attack(steps=250))
    for observed in ("plain", "clipped", "noisy", "sparse"):  # no noise and no mask: all the same
        assert result.error(observed).value < 1e-3
    assert result.error("blind").value > 0.03


def test_a_small_image_is_rebuilt_by_a_small_network():
    generator = torch.Generator().manual_seed(0)
    data = Data(torch.rand(20, 1, 5, 5, generator=generator), torch.arange(20) % 3)
    model = seeded(lambda: nn.Sequential(nn.Conv2d(1, 4, 3), nn.Tanh(), nn.Flatten(), nn.Linear(36, 3)))
    result = audit(model, data, mechanism=plan(0.0), attack=Attack(steps=300))
    assert result.error("plain").high < 0.2 * result.error("blind").low


def test_noise_makes_it_worse():
    """Seed 0, 20 records, paired: with a multiplier of 0.3 worse than without; clipping alone is not what does it."""
    result = audit(images=20, mechanism=plan(0.3), attack=Attack(steps=200))
    each = {name: error.each for name, error in result.values.errors.items()}
    assert ttest_rel(each["noisy"], each["plain"], alternative="greater").pvalue < 1e-3
    assert ttest_rel(each["noisy"], each["clipped"], alternative="greater").pvalue < 1e-3


def test_leaving_coordinates_out_makes_it_worse():
    """Seed 0, 20 records, paired. Nothing is clipped, so masks take away signal and add none: 0 < 60 % < 90 % left out."""
    errors = {
        sparsity: audit(images=20, mechanism=plan(0.0005, 100.0), sparsity=sparsity).values.errors["sparse"].each
        for sparsity in (0.0, 0.6, 0.9)
    }
    assert ttest_rel(errors[0.6], errors[0.0], alternative="greater").pvalue < 1e-3
    assert ttest_rel(errors[0.9], errors[0.6], alternative="greater").pvalue < 1e-3


def test_unsigned_steps_and_total_variation_are_used():
    data, short = vectors(), Attack(steps=60)
    one = audit(attack=short)
    assert audit(attack=short._replace(signed=False)).headline != one.headline
    assert audit(attack=short._replace(variation=10.0)).headline == one.headline  # no images, no neighbours
    images = Data(data.x.view(-1, 1, 3, 4), data.y)
    model = nn.Sequential(nn.Flatten(), linear())
    smooth, rough = (
        audit(model, images, images=1, attack=QUICK._replace(variation=weight, signed=False)) for weight in (10.0, 0.0)
    )
    spreads = [np.std(result.values.pictures["plain"][0]) for result in (smooth, rough)]
    assert spreads[0] < 0.5 * spreads[1]


def test_psnr_is_torchmetrics():
    result = audit(images=1)
    original, rebuilt = (torch.tensor(result.values.pictures[name][0]) for name in ("original", "noisy"))
    theirs = PeakSignalNoiseRatio(data_range=1.0)(rebuilt, original)  # pictures run from 0 to 1, rounded
    assert result.psnr("noisy").value == pytest.approx(float(theirs), abs=0.05)


# The result
def test_the_model_and_the_random_state_are_left_alone():
    model = nn.Sequential(linear(), nn.Dropout(0.5))
    before = [parameter.clone() for parameter in model.parameters()]
    torch.manual_seed(1)
    state = torch.get_rng_state()
    one, other, another = (audit(model, seed=seed, attack=Attack(steps=20)) for seed in (0, 0, 1))
    assert one == other != another
    assert torch.equal(state, torch.get_rng_state())
    assert model.training
    assert all(torch.equal(a, b) and b.grad is None for a, b in zip(before, model.parameters(), strict=True))


@pytest.mark.parametrize(("public", "status"), [(True, "private"), (False, "not-private")])
def test_pictures_of_records_are_sensitive(public, status):
    assert audit(data=vectors(public=public), attack=Attack(steps=2)).status.status == status


@pytest.mark.parametrize(
    ("shape", "size", "shrunk"),
    [((12,), (1, 12), False), ((1, 3, 4), (3, 4), False), ((3, 40, 20), (32, 16, 3), True), ((4, 6), (4, 6), False),
     ((2, 5, 5), (5, 5), False), ((200,), (1, 64), True)],
)  # fmt: skip
def test_a_result_is_reloaded_and_drawn(shape, size, shrunk):
    x = torch.rand(10, *shape)
    model = seeded(lambda: nn.Sequential(nn.Flatten(), nn.Linear(x[0].numel(), 2)))
    result = audit(model, Data(x, torch.arange(10) % 2), images=9, attack=Attack(steps=2))
    again = Reconstruction.from_dict(json.loads(json.dumps(result.to_dict())))
    assert again == result
    assert {name: len(pictures) for name, pictures in again.values.pictures.items()} == dict.fromkeys(
        ("original", "plain", "clipped", "noisy", "sparse"), 8
    )
    assert np.shape(again.values.pictures["original"][0]) == size
    assert again.settings["shrunk"] == shrunk
    (figure,) = again.figures()
    axes = figure.draw(Figure().add_subplot())
    assert [label.get_text().split("\n")[0] for label in axes.get_yticklabels()] == [
        "original", "plain", "clipped", "noisy", "sparse",
    ]  # fmt: skip
    assert len(axes.images) == 1
    assert any("Shown are 8 of 9 records" in sentence for sentence in again.sentences())
    assert [len(table.rows) for table in again.tables()] == [5, 4]


def test_clipping_by_layers_is_said_to_turn_gradients():
    result = audit(mechanism=plan(0.1, clip=per_layer(["weight", "bias"], Flat(0.1))), attack=Attack(steps=2))
    assert any("Clipping by layers" in sentence for sentence in result.sentences())
    assert any("Clipping alone" in sentence for sentence in audit(attack=Attack(steps=2)).sentences())


def test_impossible_settings():
    with pytest.raises(ConfigError, match="images=41"):
        audit(images=41)
    with pytest.raises(DataError, match="real-valued"):
        audit(data=Data(torch.ones(4, 12).long(), torch.zeros(4).long()))


def test_records_of_few_people_say_less():
    """Four records of two people: one degree of freedom."""
    settings = {"attack": Attack(steps=3), "images": 4}
    alone, two = (audit(data=vectors(4, unit=unit), **settings) for unit in (None, torch.tensor([0, 0, 1, 1])))
    assert two.error("noisy").value == alone.error("noisy").value
    assert (two.error("noisy").n, two.psnr("noisy").n) == (2, 2)
    assert two.error("noisy").method == "Student t, by person"

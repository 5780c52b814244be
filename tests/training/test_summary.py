"""What masked updates weigh on the wire: by hand, by formula, and as a run counts them."""

import math

import pytest
import torch

from helpers import tiny
from noisewise.data import Data, Splits
from noisewise.errors import ConfigError
from noisewise.recipe import Recipe, fit
from noisewise.repairs import FineTuning, RandomSparsification, RankedSparsification, StagewiseFreezing, repaired
from noisewise.runs.files import read_json
from noisewise.runs.folder import RunFolder
from noisewise.support import Fixed
from noisewise.training.summary import SEED_BITS, VALUE_BITS, payload

P = sum(parameter.numel() for parameter in tiny.model().parameters())  # 57


def sent(tmp_path, *repairs, steps=20):
    data = Data(*tiny.data())
    recipe = Recipe(
        model=tiny.model(), data=Splits(data, data, data), loss_fn=tiny.loss_fn,
        mechanism=tiny.mechanism(noise_multiplier=50.0, steps=steps),
        optimizer=lambda parameters: torch.optim.SGD(parameters, lr=0.1),
    )  # fmt: skip
    fit(repaired(recipe, *repairs), out=tmp_path / "run", insecure_seed=0, progress=False)
    return read_json(RunFolder(tmp_path / "run").summary)["communication"]


def test_by_hand():
    found = payload(10, 3, values=12, indices=8, masks=2)
    assert found.dense == 10 * 3 * 32
    assert found.values == 12 * 32
    assert found.indices == 8 * 4  # ceil(log2 10)
    assert found.seeds == 2 * 64
    assert found.share == 12 / 30


@pytest.mark.parametrize(("coordinates", "bits"), [(1, 1), (2, 1), (3, 2), (1024, 10), (1025, 11)])
def test_an_index_tells_all_coordinates_apart(coordinates, bits):
    assert payload(coordinates, 1, values=0, indices=1, masks=2).indices == bits
    assert 2**bits >= coordinates


@pytest.mark.parametrize("settings", [{"values": 31}, {"values": -1}, {"indices": 21}, {"indices": -1}])
def test_more_than_there_is_cannot_be_sent(settings):
    with pytest.raises(ConfigError, match="more are kept than there are"):
        payload(10, 3, **{"values": 30, "indices": 20, "masks": 2, **settings})


@pytest.mark.parametrize("final", [0.3, 0.7, 0.9])
def test_with_cooling_the_share_is_about_one_minus_half_of_the_final_rate(final, tmp_path):
    """Exactly: the mean over four epochs of what rounding leaves."""
    found = sent(tmp_path, RandomSparsification(final))
    kept = [P - round(final * epoch / 3 * P) for epoch in range(4)]
    assert found["share"] == pytest.approx(sum(kept) / (4 * P), rel=1e-12)
    assert found["share"] == pytest.approx(1 - final / 2, abs=1 / P)
    assert found["values"] == 5 * sum(kept) * VALUE_BITS
    assert found["indices"] == sum(kept) * math.ceil(math.log2(P))
    assert found["seeds"] == 4 * SEED_BITS
    assert found["dense"] == 20 * P * VALUE_BITS


def test_a_whole_model_sends_everything_and_no_index(tmp_path):
    found = sent(tmp_path)
    assert found == {"dense": 20 * P * 32, "values": 20 * P * 32, "indices": 0, "seeds": 0, "share": 1.0}


def test_frozen_layers_are_not_sent(tmp_path):
    found = sent(tmp_path, FineTuning("last layer"))
    assert found["share"] == pytest.approx(21 / P)


def test_masks_that_follow_releases_have_no_seed(tmp_path):
    for number, repair in enumerate((RankedSparsification(0.5), StagewiseFreezing())):
        found = sent(tmp_path / str(number), repair)
        assert found["seeds"] is None
        assert 0 < found["share"] < 1


def test_another_precision_changes_the_bits_of_values_and_of_nothing_else():
    wide, half = (payload(100, 10, values=400, indices=80, masks=2, value_bits=bits) for bits in (32, 16))
    assert (half.dense, half.values) == (wide.dense // 2, wide.values // 2)
    assert (half.indices, half.seeds, half.share) == (wide.indices, wide.seeds, wide.share)


def test_what_is_frozen_by_parts_of_a_parameter_is_told_by_its_indices(tmp_path):
    """A fixed mask follows from no seed; whole parameters are known without one."""
    masked = tiny.mechanism(support=Fixed({"0.weight": torch.arange(30).view(6, 5) % 2 == 0}))
    frozen = tiny.mechanism(support=Fixed({"0.weight": False}))
    for name, plan, seeded in (("masked", masked, False), ("frozen", frozen, True)):
        tiny.run(plan=plan, out=tmp_path / name)
        told = read_json(RunFolder(tmp_path / name).summary)["communication"]["seeds"]
        assert (told is not None) == seeded

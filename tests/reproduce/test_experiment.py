"""Settings in tiers, and runs by their settings."""

import pytest

from helpers import toy_paper
from noisewise.errors import ConfigError
from noisewise.reproduce.experiment import Cell, Config, config_from, grid, seeds_of


def test_a_tier_takes_other_seeds_and_another_device():
    config = toy_paper.COIN.config("standard", 3, "cuda")
    assert (config.seeds, config.device, config.shifts) == (3, "cuda", (1.0, 2.0, 3.0))
    assert toy_paper.COIN.config("standard").seeds == 6
    with pytest.raises(ConfigError, match="tier='slow'"):
        toy_paper.COIN.config("slow")


@pytest.mark.parametrize("seeds", [0, 1001, 2.5])
def test_seeds_are_whole_numbers_that_tuning_does_not_use(seeds):
    with pytest.raises(ConfigError, match="seeds="):
        Config(seeds=seeds)


def test_seeds_begin_behind_a_pilot():
    assert list(seeds_of(Config(seeds=3, first_seed=10))) == [10, 11, 12]
    with pytest.raises(ConfigError, match="from 1 to 990"):
        Config(seeds=991, first_seed=10)


def test_a_config_is_written_and_read():
    config = toy_paper.Shift(seeds=2, shifts=(1.0, 4.0))
    raw = {**config.to_dict(), "shifts": [1.0, 4.0]}
    assert config_from(toy_paper.Shift, raw) == config


def test_equal_settings_have_equal_keys_whoever_asks():
    one, same = (Cell(arm, 3, "two_patch:train", {"n": 5, "d": 2}) for arm in ("a", "b"))
    assert one.key("cpu") == same.key("cpu")
    others = [
        Cell("a", 4, "two_patch:train", {"n": 5, "d": 2}),
        Cell("a", 3, "two_patch:train", {"n": 6, "d": 2}),
        Cell("a", 3, "two_patch:other", {"n": 5, "d": 2}),
    ]
    assert len({one.key("cpu"), one.key("cuda"), *(cell.key("cpu") for cell in others)}) == 5


def test_seeds_come_one_after_another():
    cells = grid(Config(seeds=2), "a:b", {"x": {}, "y": {}})
    assert [(cell.arm, cell.seed) for cell in cells] == [("x", 0), ("y", 0), ("x", 1), ("y", 1)]


def test_settings_are_handed_on_by_name():
    config = toy_paper.COIN.config("standard")
    assert config.given("shifts") == {"shifts": [1.0, 2.0, 3.0]}
    everything = config.given()
    assert everything["shifts"] == [1.0, 2.0, 3.0]
    assert not {"seeds", "first_seed", "device"} & set(everything)
    assert config.given("seeds") == {"seeds": 6}

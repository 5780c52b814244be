"""How a step is computed: engines by name, micro-batches in whole numbers."""

import pytest

from noisewise.errors import ConfigError
from noisewise.runtime import Runtime


@pytest.mark.parametrize("engine", ["fast", "", None, "Ghost"])
def test_an_unknown_engine_is_refused_with_the_known_ones(engine):
    with pytest.raises(ConfigError, match=r"engine=.*'auto', 'ghost', 'dense' or 'loop'"):
        Runtime(engine=engine)


@pytest.mark.parametrize("microbatch", [0, -1, 2.5, "8"])
def test_a_micro_batch_is_a_whole_number(microbatch):
    with pytest.raises(ConfigError, match=r"microbatch=.*whole number above 0, or None"):
        Runtime(microbatch=microbatch)


@pytest.mark.parametrize(
    ("runtime", "units", "expected"),
    [
        (Runtime(), 7, 7),
        (Runtime(), 0, 1),
        (Runtime(memory="small"), 7, 4),
        (Runtime(memory="small"), 1, 1),
        (Runtime(memory="small"), 0, 1),
        (Runtime(memory="small", microbatch=3), 7, 3),
        (Runtime(microbatch=9), 7, 9),
    ],
)
def test_so_many_units_are_computed_at_a_time(runtime, units, expected):
    assert runtime.units_at_once(units) == expected


def test_unknown_memory_is_refused():
    with pytest.raises(ConfigError, match=r"memory='tiny': must be 'ample' or 'small'\."):
        Runtime(memory="tiny")

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

"""Settings over a config: what changes, what is calibrated anew."""

from __future__ import annotations

from noisewise.workflow.config import configure
from noisewise.workflow.execution import prepare


def test_changes_over_a_config_recalibrate_only_where_the_plan_changes() -> None:
    base = configure(data="digits", epsilon=3.0, steps=5)
    assert configure(base, lr=0.1).noise_multiplier == base.noise_multiplier
    assert configure(base, epsilon=3.0) == base
    stricter = configure(base, epsilon=1.0)
    assert stricter.noise_multiplier > 2 * base.noise_multiplier
    assert configure(base, epochs=2.0).steps == 5  # ceil(2 * 1258 / 512)
    for change in ({"steps": 10}, {"batch_size": 256}):
        other = configure(base, **change)
        assert other.noise_multiplier != base.noise_multiplier, change
        assert prepare(other).mechanism.epsilon(other.delta) <= 3.0
    free = configure(base, noise_multiplier=1.0)
    assert (free.epsilon, free.noise_multiplier) == (None, 1.0)


def test_a_rule_without_screen_replaces_one_with() -> None:
    base = configure(data="digits", noise_multiplier=4.0, steps=3, batch_size=64, clip="global", screen=3.0)
    assert configure(base, clip="flat").screen is None

"""What a config says where the user says nothing."""

from __future__ import annotations

from noisewise.mechanism import Mechanism
from noisewise.sampling import Poisson
from noisewise.workflow.config import Config, configure
from noisewise.workflow.execution import prepare


def quick(**given) -> Config:
    return configure(**({"data": "digits", "noise_multiplier": 4.0, "steps": 3, "batch_size": 64} | given))


# --- config
def test_defaults_are_filled_in_and_the_budget_is_met() -> None:
    config = configure(data="digits", epsilon=3.0)
    assert (config.model, config.delta, config.adjacency, config.sampler) == ("cnn", 1e-5, "add-remove", "poisson")
    plan = Mechanism(
        sampler=Poisson(1258, config.batch_size), steps=config.steps, noise_multiplier=config.noise_multiplier
    )
    spent = plan.epsilon(config.delta)
    assert spent is not None
    assert 2.98 < spent <= 3


def test_samplers_have_their_own_defaults() -> None:
    assert quick(sampler="shuffle").adjacency == "zero-out"
    full = configure(data="digits", noise_multiplier=4.0, epochs=3.0, sampler="full-batch")
    assert (full.batch_size, full.steps) == (1258, 3)
    assert prepare(full).mechanism.sampler.rate == 1

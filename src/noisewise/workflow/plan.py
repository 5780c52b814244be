"""What a config stands for: its data, loaded once, and its mechanism, built once."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING

from noisewise.adaptive import rule_for
from noisewise.data import Splits, load
from noisewise.errors import ConfigError, PrivacyError
from noisewise.mechanism import Mechanism
from noisewise.sampling import SAMPLERS, FullBatch
from noisewise.wording import number

if TYPE_CHECKING:
    from noisewise.workflow.config import Config


@dataclass(frozen=True)
class Planned:
    """A config with its data and its mechanism, so that one command loads and builds them once.

    `built`: the mechanism, where it is there already.
    """

    config: Config
    data: Splits
    built: Mechanism | None = None

    @classmethod
    def of(cls, config: Config) -> Planned:
        """Load the data of a config."""
        return cls(config, load(config.data, config.seed, config.valid))

    @cached_property
    def plan(self) -> Mechanism:
        """The mechanism, as far as it is known before the model."""
        return plan_of(self.config, len(self.data.train)) if self.built is None else self.built

    def mechanism(self, names: list[str]) -> Mechanism:
        """The mechanism for a model with parameters of these `names`; one that costs more than its epsilon is refused."""
        config = self.config
        if config.epsilon is not None:
            spent = self.plan.epsilon(config.delta)
            if spent is None or spent > config.epsilon:
                raise PrivacyError(
                    f"noise_multiplier={config.noise_multiplier} costs epsilon {number(spent)}, more than the epsilon="
                    f"{config.epsilon:g} the config states. Take noise_multiplier out to have it calibrated."
                )
        return replace(self.plan, clip=rule_for(config.clip, config.bound, config.screen, names))


def plan_of(config: Config, n: int) -> Mechanism:
    """The mechanism, as far as it is known before the model."""
    if config.sampler == FullBatch.kind and config.batch_size != n:
        raise ConfigError(f"batch_size={config.batch_size} with the full-batch sampler: must be all {n} rows.")
    sampler = FullBatch(n) if config.sampler == FullBatch.kind else SAMPLERS[config.sampler](n, config.batch_size)
    return Mechanism(
        sampler=sampler,
        clip=rule_for(config.clip, config.bound, config.screen),
        steps=config.steps,
        noise_multiplier=config.noise_multiplier,
        adjacency=config.adjacency,
    )

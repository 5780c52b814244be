"""What advice is drawn from: the plan of a finished run, its audits, and what is known of the training people."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, TypeVar

from noisewise.advice.noise import smallest_class
from noisewise.audits.calibration import Calibration
from noisewise.audits.clipping_bias import ClippingBias
from noisewise.audits.disparity import Disparity
from noisewise.audits.feature_noise import FeatureNoise
from noisewise.audits.result import Result

AUDITS = ("disparity", "calibration", "clipping-bias", "feature-noise")
"""Audits that rules read; all take seconds to minutes, none retrains."""

Kind = TypeVar("Kind", bound=Result)


@dataclass(frozen=True, kw_only=True)
class Evidence:
    """A finished run as rules see it.

    Args:
        folder: where it lies, as its user writes it.
        settings: entries of its config.toml.
        task: classification or regression.
        epsilon: what it spent.
        twice: epsilon of two such runs on the same people.
        n: units it was trained on.
        noise_multiplier: of its steps.
        coordinates: numbers that learn.
        class_sizes: training units of each class, by name; as private as they are.
        results: results of audits, by name.
        unasked: audits that could not be asked, and why.
    """

    folder: str
    settings: Mapping[str, Any]
    task: str
    epsilon: float
    twice: float
    n: int
    noise_multiplier: float
    coordinates: int
    class_sizes: Mapping[str, int] = field(default_factory=dict)
    results: Mapping[str, Result] = field(default_factory=dict)
    unasked: Mapping[str, str] = field(default_factory=dict)

    @property
    def rate(self) -> float:
        """Share of the units that a step sees."""
        return self.settings["batch_size"] / self.n

    @property
    def average_class(self) -> float:
        """Training units of a class on average; a person with rows of several classes is in each of them."""
        return sum(self.class_sizes.values()) / len(self.class_sizes)

    @property
    def drowned(self) -> float:
        """Units that a class needs to be as loud as the noise; see `smallest_class`."""
        return smallest_class(self.rate, self.settings["steps"], self.noise_multiplier, self.coordinates)

    @property
    def disparity(self) -> Disparity | None:
        """Accuracy of everyone, classes and groups, beside the twin."""
        return self._of(Disparity, "disparity")

    @property
    def calibration(self) -> Calibration | None:
        """Confidence against accuracy."""
        return self._of(Calibration, "calibration")

    @property
    def clipping(self) -> ClippingBias | None:
        """How clipping turns the gradient."""
        return self._of(ClippingBias, "clipping-bias")

    @property
    def signal(self) -> FeatureNoise | None:
        """Gradients against the noise of a step."""
        return self._of(FeatureNoise, "feature-noise")

    def _of(self, kind: type[Kind], name: str) -> Kind | None:
        result = self.results.get(name)
        return result if isinstance(result, kind) else None

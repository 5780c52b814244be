"""What a release is to an accountant: dp-accounting's events, made, written and read."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from noisewise.errors import ConfigError, RunError

if TYPE_CHECKING:
    from dp_accounting import DpEvent

    from noisewise.sampling import Sampler

MOST_RELEASES = 1_000_000  # seconds; ten times as many take minutes
LEAST_NOISE, MOST_NOISE = 1e-100, 1e100


def joint_multiplier(multipliers: Iterable[float]) -> float:
    """Several Gaussian answers from one batch are one Gaussian mechanism: z^-2 = sum sigma^-2; 0 if one has no noise.

    By the smallest, m: `z = m / sqrt(sum (m / sigma)^2)`, in which nothing overflows; rounded down, never up.
    """
    multipliers = list(multipliers)
    if not all(multipliers) or len(multipliers) == 1:
        return min(multipliers)
    least = min(multipliers)
    return least / (math.sqrt(math.fsum((least / sigma) ** 2 for sigma in multipliers)) * (1 + 2**-50))


def check_releases(releases: int, words: str = "") -> None:
    """Plans that cannot be composed are refused by their number of releases alone, before an accountant is loaded."""
    if releases > MOST_RELEASES:
        raise ConfigError(
            f"{words}{releases:,} releases: more than {MOST_RELEASES:,} cannot be composed in reasonable time. Train for fewer "
            "steps; larger batches reach as far in fewer of them."
        )


def check_multiplier(sigma: float, name: str) -> None:
    """Accountants square multipliers: what under- or overflows there would be accounted wrongly, or not at all."""
    if sigma and not LEAST_NOISE <= sigma <= MOST_NOISE:
        raise ConfigError(
            f"{name}={sigma!r}: accountants cannot square it. Use 0 for no noise (not private), or a number from "
            f"{LEAST_NOISE:g} to {MOST_NOISE:g}; mechanism.calibrated(epsilon=..., delta=...) finds one."
        )


def not_private() -> DpEvent:
    """The event of a release that nothing protects: epsilon is infinite from there on."""
    import dp_accounting

    return dp_accounting.NonPrivateDpEvent()


def gaussian(sampler: Sampler, noise_multiplier: float) -> DpEvent:
    """The event of one release with this multiplier: without noise, nothing is private."""
    import dp_accounting

    check_multiplier(noise_multiplier, "joint noise multiplier")
    if noise_multiplier == 0:
        return not_private()
    return sampler.event(dp_accounting.GaussianDpEvent(noise_multiplier))


def event_to_dict(event: DpEvent) -> dict[str, Any]:
    """The events noisewise releases, as JSON."""
    import dp_accounting as dp

    if isinstance(event, dp.PoissonSampledDpEvent) and isinstance(event.event, dp.GaussianDpEvent):
        return {
            "kind": "poisson-gaussian",
            "rate": event.sampling_probability,
            "noise_multiplier": event.event.noise_multiplier,
        }
    if isinstance(event, dp.TruncatedSubsampledGaussianDpEvent):
        return {
            "kind": "truncated-poisson-gaussian",
            "n": event.dataset_size,
            "rate": event.sampling_probability,
            "max_batch": event.truncated_batch_size,
            "noise_multiplier": event.noise_multiplier,
        }
    if isinstance(event, dp.GaussianDpEvent):
        return {"kind": "gaussian", "noise_multiplier": event.noise_multiplier}
    if isinstance(event, dp.NonPrivateDpEvent):
        return {"kind": "not-private"}
    raise RunError(f"{event!r}: the ledger has no form for this event.")


def event_from_dict(raw: dict[str, Any]) -> DpEvent:
    """Inverse of `event_to_dict`."""
    import dp_accounting as dp

    def number(key: str, high: float) -> float:
        value: float = raw[key]
        if type(value) not in (int, float) or not 0 < value <= high:
            raise RunError(f"ledger event {raw!r}: {key} must be a number in (0, {high:g}].")
        return value

    match raw["kind"]:
        case "poisson-gaussian":
            check_keys(raw, "kind", "rate", "noise_multiplier")
            return dp.PoissonSampledDpEvent(number("rate", 1.0), dp.GaussianDpEvent(number("noise_multiplier", 1e12)))
        case "truncated-poisson-gaussian":
            check_keys(raw, "kind", "n", "rate", "max_batch", "noise_multiplier")
            if type(raw["n"]) is not int or type(raw["max_batch"]) is not int:
                raise RunError(f"ledger event {raw!r}: n and max_batch must be whole numbers.")
            n, cap = int(number("n", 1e15)), int(number("max_batch", 1e15))
            return dp.TruncatedSubsampledGaussianDpEvent(n, number("rate", 1.0), cap, number("noise_multiplier", 1e12))
        case "gaussian":
            check_keys(raw, "kind", "noise_multiplier")
            return dp.GaussianDpEvent(number("noise_multiplier", 1e12))
        case "not-private":
            check_keys(raw, "kind")
            return dp.NonPrivateDpEvent()
        case kind:
            raise RunError(f"ledger event of kind {kind!r}: unknown to this version.")


def check_keys(raw: dict[str, Any], *keys: str) -> None:
    """Exactly these entries."""
    if set(raw) != set(keys):
        raise RunError(f"ledger entry with {sorted(raw)}: expected exactly {sorted(keys)}.")

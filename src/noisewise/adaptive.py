"""Rules whose bound follows a private statistic: what to ask of a batch (with its bound), and which rule comes next.

The question leaves together with the gradient of the same batch, as one Gaussian mechanism with multiplier z where
`z^-2 = sigma^-2 + question^-2`; the ledger records z. The next rule depends on released answers only and is known before the
next batch is drawn, so each step's sensitivity is stated in advance. No torch import: rules act on given tensors.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import TYPE_CHECKING, Any, ClassVar, Protocol, Self, runtime_checkable

from noisewise import clipping, userfiles
from noisewise.clipping import Clip, Flat, OneBlock, PerLayer, Samples, per_layer, positive
from noisewise.errors import ConfigError

if TYPE_CHECKING:
    from torch import Tensor


@runtime_checkable
class Adaptive(Clip, Protocol):
    """A rule that learns its bound from noised answers."""

    query_sensitivity: ClassVar[float]

    def query(self, samples: Samples) -> dict[str, Tensor]:
        """A sum over units that one unit moves by at most `query_sensitivity` in L2."""
        ...

    def query_std(self, batch_size: int) -> float:
        """Standard deviation of the noise on the answer."""
        ...

    def update(self, answer: Mapping[str, Tensor], batch_size: int) -> Self:
        """The next rule: post-processing, free."""
        ...


def query_multiplier(rule: Clip, batch_size: int) -> float | None:
    """Noise multiplier of a rule's question; None for rules that ask none."""
    return rule.query_std(batch_size) / rule.query_sensitivity if isinstance(rule, Adaptive) else None


LEAST, MOST = 1e-12, 1e12  # where bounds may move to, unless they start beyond


def _moved(value: float, exponent: float) -> float:
    """`value exp(exponent)`, within the stated range: noised answers can be anything."""
    low, high = min(LEAST, value), max(MOST, value)
    if math.isnan(exponent):
        return value
    return min(max(value * math.exp(min(max(exponent, -700.0), 700.0)), low), high)


def _std(noise: float | None, batch_size: int) -> float:
    return batch_size / 20 if noise is None else noise


@dataclass(frozen=True)
class Quantile(OneBlock):
    """Flat clipping whose bound follows a quantile of the norms: `C' = C exp(-rate (s - target))`.

    `s = (sum_i (1[n_i <= C] - 1/2) + N(0, noise^2)) / B + 1/2`, the noised share of norms below the bound; one unit moves
    the sum by 1/2. noise: standard deviation of the count, B / 20 by default.
    Guarantee: n f(n) <= C with the C in force. Reference: Andrew et al. 2021, arXiv:1905.03871. Deviation: C stays between
    1e-12 and 1e12, or where it started beyond, so that no noised answer moves it out of floating point.
    """

    kind: ClassVar[str] = "quantile"
    bound: float = 1.0
    target: float = 0.5
    rate: float = 0.2
    noise: float | None = None
    query_sensitivity: ClassVar[float] = 0.5

    def __post_init__(self) -> None:
        """Numbers in range."""
        positive(self, bound=self.bound, rate=self.rate, noise=1.0 if self.noise is None else self.noise)
        if not 0 < self.target < 1:
            raise ConfigError(f"Quantile(target={self.target!r}): a share in (0, 1), e.g. 0.5 for the median.")

    def factors(self, samples: Samples) -> Tensor:
        """min(1, C / n)."""
        return Flat(self.bound).factors(samples)

    def query(self, samples: Samples) -> dict[str, Tensor]:
        """Centred count of norms below the bound."""
        return {"below": ((samples.norms <= self.bound).to(samples.norms.dtype) - 0.5).sum(1)}

    def query_std(self, batch_size: int) -> float:
        """Noise of the count."""
        return _std(self.noise, batch_size)

    def update(self, answer: Mapping[str, Tensor], batch_size: int) -> Quantile:
        """Geometric step towards the quantile."""
        share = answer["below"].item() / batch_size + 0.5
        return replace(self, bound=_moved(self.bound, -self.rate * (share - self.target)))


@dataclass(frozen=True)
class GlobalAdapt(OneBlock):
    """Scale everybody by C / Z where n <= Z, clip the others to C, and let Z follow how many exceed it.

    `f(n) = C / Z if n <= Z else C / n`; `Z' = max(C, Z exp(-rate + d))`, `d = (sum_i 1[n_i > tau Z] + N(0, noise^2)) / B`.
    Guarantee: n f(n) <= C. Blind to groups. Reference: Esipova et al. 2022, arXiv:2206.07737. Deviation: the count is
    released centred (1/2 per unit), which halves its sensitivity; Z stays below 1e12, or where it started beyond.
    """

    kind: ClassVar[str] = "global-adapt"
    bound: float = 1.0
    screen: float = 100.0
    rate: float = 0.1
    tau: float = 1.0
    noise: float | None = None
    query_sensitivity: ClassVar[float] = 0.5

    def __post_init__(self) -> None:
        """0 < C <= Z."""
        noise = 1.0 if self.noise is None else self.noise
        positive(self, bound=self.bound, screen=self.screen, rate=self.rate, tau=self.tau, noise=noise)
        if self.screen < self.bound:
            raise ConfigError(f"GlobalAdapt(bound={self.bound}, screen={self.screen}): use screen >= {self.bound}.")

    def factors(self, samples: Samples) -> Tensor:
        """C / max(n, Z)."""
        return self.bound / samples.norms.clamp(min=self.screen)

    def query(self, samples: Samples) -> dict[str, Tensor]:
        """Centred count of norms above tau Z."""
        return {"above": ((samples.norms > self.tau * self.screen).to(samples.norms.dtype) - 0.5).sum(1)}

    def query_std(self, batch_size: int) -> float:
        """Noise of the count."""
        return _std(self.noise, batch_size)

    def update(self, answer: Mapping[str, Tensor], batch_size: int) -> GlobalAdapt:
        """Shrink Z by the rate, unless many exceed it."""
        share = answer["above"].item() / batch_size + 0.5
        return replace(self, screen=max(self.bound, _moved(self.screen, share - self.rate)))


@dataclass(frozen=True)
class GroupBounds(OneBlock):
    """Flat clipping with a bound for each group of people: `C_k = C0 (1 + (m_k / b_k) / (m / b))`.

    b_k: noised number of units of group k in the batch before, m_k: how many of them had norms above C0; together one
    vector of counts to which a unit adds 1 in one place. Guarantee: n f(n) <= max_k C_k, to which noise is scaled.
    A unit's group is part of its record. noise: standard deviation of each count, by default `min(B / 20, sqrt(B / 10))`: no
    more than what drawing the batch does to the count of a tenth of it, so that noise at most doubles the variance of what a
    small group is judged by, while the question stays cheap (B = 1000, sigma = 1: half a percent of the noise).
    Reference: DPSGD-F, Xu, Du, Wu 2021, arXiv:2003.03699.
    Deviation: counts of the step before, so that the rule is known before the batch is drawn; noised shares are cut to
    [0, 1] (counts to 1e12), and no bound exceeds `limit` times C0.
    """

    kind: ClassVar[str] = "group-bounds"
    group: str
    groups: int
    bound: float = 1.0
    limit: float = 10.0
    noise: float | None = None
    bounds: tuple[float, ...] = ()
    query_sensitivity: ClassVar[float] = 1.0

    def __post_init__(self) -> None:
        """Numbers in range; all bounds start at C0."""
        positive(self, bound=self.bound, limit=self.limit, noise=1.0 if self.noise is None else self.noise)
        if type(self.groups) is not int or self.groups < 1 or self.limit < 1:
            raise ConfigError(f"GroupBounds(groups={self.groups!r}, limit={self.limit!r}): both must be at least 1.")
        object.__setattr__(self, "bounds", tuple(self.bounds) or (float(self.bound),) * self.groups)

    @property
    def sensitivity(self) -> float:
        """The largest bound in force."""
        return max(self.bounds)

    def _groups(self, samples: Samples) -> Any:
        if samples.groups is None:
            raise ConfigError(f"GroupBounds needs the groups {self.group!r} of the units: pass Data with groups=.")
        return samples.groups.long().clamp(0, self.groups - 1)

    def factors(self, samples: Samples) -> Tensor:
        """min(1, C_k / n)."""
        bounds = samples.norms.new_tensor(self.bounds)[self._groups(samples)]
        return (bounds / samples.norms).clamp(max=1.0)

    def query(self, samples: Samples) -> dict[str, Tensor]:
        """Units of each group with norms above, and not above, C0."""
        counts = samples.norms.new_zeros(self.groups, 2)
        above = (samples.norms[0] > self.bound).long()
        ones = samples.norms.new_ones(above.shape)
        return {"counts": counts.index_put_((self._groups(samples), above), ones, accumulate=True)}

    def query_std(self, batch_size: int) -> float:
        """Noise of each count: as given, or that of drawing a tenth of the batch."""
        return min(_std(None, batch_size), math.sqrt(batch_size / 10)) if self.noise is None else self.noise

    def update(self, answer: Mapping[str, Tensor], batch_size: int) -> GroupBounds:
        """Groups that are clipped more often get more room."""
        counts = [[min(max(0.0, value), MOST) for value in row] for row in answer["counts"].tolist()]
        shares = [above / max(below + above, 1.0) for below, above in counts]
        total = sum(above for _, above in counts) / max(sum(map(sum, counts)), 1.0)
        ratio = [share / total if total > 0 else 0.0 for share in shares]
        return replace(self, bounds=tuple(self.bound * min(1 + r, self.limit) for r in ratio))


RULES: dict[str, Any] = clipping.RULES | {rule.__name__: rule for rule in (Quantile, GlobalAdapt, GroupBounds)}
"""All rules of the package, those of `clipping` too."""
KINDS: dict[str, Any] = {rule.kind: rule for rule in RULES.values() if rule is not GroupBounds}
"""Rules that a config can name; bounds for groups need to be told the groups."""


def rule_for(kind: str, bound: float, screen: float | None = None, names: Sequence[str] = ()) -> Clip:
    """The rule of a config's settings; one that has no screen is not given it. `FILE.py:NAME`: a rule of one's own.

    Per layer: equal shares of the bound, so that the total sensitivity is the bound; flat as long as the parameters'
    `names` are not known (no epsilon depends on that).
    """
    if ".py:" in kind:
        return own_rule(kind, bound)
    if KINDS[kind] is PerLayer:
        return per_layer(names, Flat(bound / len(names) ** 0.5)) if names else Flat(bound)
    known, given = {field.name for field in fields(KINDS[kind])}, {"bound": bound, "screen": screen}
    rule: Clip = KINDS[kind](**{name: value for name, value in given.items() if name in known and value is not None})
    return rule


def own_rule(reference: str, bound: float) -> Clip:
    """A rule from a user's file: a class or function of the bound, or a rule that is made already, whose bound is its own."""
    made = userfiles.load(reference)
    rule = made if not isinstance(made, type) and isinstance(made, Clip) else userfiles.called(reference, made, bound)
    if isinstance(rule, type) or not isinstance(rule, Clip):
        raise ConfigError(
            f"clip {reference!r} gives a {type(rule).__name__}: a rule needs blocks, factors and sensitivity (CONTRIBUTING.md "
            "shows one); NAME is a class or function of the bound."
        )
    return rule

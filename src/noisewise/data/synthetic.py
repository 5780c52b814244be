"""Made-up distributions whose signal is known, so that theory can be compared with training: public data by design.

`two_patch` and `signal_noise` are loaders as for real sets; `two_patch_distribution`, `rotated_features` and
`SignalNoise` are the distributions behind them, with the features that audits need.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np
import torch
from torch import Tensor

from noisewise.data.base import Data, Splits, check_seed
from noisewise.errors import ConfigError

Basis = Literal["random", "unit"]
NORMS = (5.0, 3.0, 4.0, 2.0)
PROPORTIONS = (0.4, 0.1, 0.4, 0.1)
FEATURES = ("class 1 majority", "class 1 minority", "class 2 majority", "class 2 minority")


@dataclass(frozen=True, eq=False)
class TwoPatch:
    """Inputs of two patches: one is the feature of the row's group, the other Gaussian noise; which is which is a coin.

    x^(p) = u_g, x^(3-p) ~ N(0, sigma_xi^2 (I - sum_g u_g u_g^T/||u_g||^2)), p uniform in {1, 2}, g ~ proportions.

    Args:
        features: `u [groups, d]`, orthogonal to each other.
        labels: class (0 or 1) that owns each feature.
        proportions: probability of each feature; they sum to 1.
        sigma_xi: deviation of the noise patch.
        names: of the features.
        project: no noise along features; False: N(0, sigma_xi^2 I).

    Reference: Xu, Chen 2026, arXiv:2603.04881, section 3 and appendix B.
    Deviation: whether noise has a part along the features is not known of their version; here it has none by default.
    """

    features: Tensor
    labels: tuple[int, ...]
    proportions: tuple[float, ...]
    sigma_xi: float
    names: tuple[str, ...]
    project: bool = True

    def __post_init__(self) -> None:
        """Proportions are a distribution, features orthogonal and not 0."""
        count = len(self.features)
        if not count == len(self.labels) == len(self.proportions) == len(self.names):
            raise ConfigError(f"{count} features: give a label, a proportion and a name for each.")
        if min(self.proportions) < 0 or not math.isclose(sum(self.proportions), 1, abs_tol=1e-9):
            raise ConfigError(f"proportions={self.proportions}: must be numbers >= 0 that sum to 1.")
        if not 0 <= self.sigma_xi < math.inf:
            raise ConfigError(f"sigma_xi={self.sigma_xi!r}: must be a finite number >= 0.")
        norms = self.norms
        if not (norms > 0).all() or not norms.isfinite().all():
            raise ConfigError(f"norms {norms.tolist()}: every feature needs a finite norm above 0.")
        unit = self.features.double() / norms.unsqueeze(1)
        if not torch.allclose(unit @ unit.T, torch.eye(count, dtype=torch.float64), atol=1e-5):
            raise ConfigError("the features are not orthogonal to each other.")

    @property
    def norms(self) -> Tensor:
        """||u_g||."""
        return self.features.double().norm(dim=1)

    def draw(self, n: int, generator: torch.Generator) -> Data:
        """Independent rows `x [n, 2, d]`, `y [n]` in {0, 1}, with the group `feature`."""
        _check_count(n)
        chances = torch.tensor(self.proportions, dtype=torch.float64)
        feature = torch.multinomial(chances, n, replacement=True, generator=generator) if n else torch.empty(0).long()
        noise = torch.randn(n, self.features.shape[1], generator=generator, dtype=torch.float64) * self.sigma_xi
        if self.project:
            unit = self.features.double() / self.norms.unsqueeze(1)
            noise = noise - noise @ unit.T @ unit
        first = torch.randint(0, 2, (n, 1), generator=generator).bool()
        signal = self.features.double()[feature]
        x = torch.stack([torch.where(first, signal, noise), torch.where(first, noise, signal)], 1).float()
        return Data(
            x,
            torch.tensor(self.labels)[feature],
            groups={"feature": feature},
            classes=("1", "2"),
            public=True,
            group_names={"feature": self.names},
        )

    def splits(self, seed: int = 0, valid: int = 200, *, n: int = 1000, test: int = 1000) -> Splits:
        """`n` rows for training, `valid` and `test` more, each drawn from its own public stream."""
        return _splits(self.draw, seed, n, valid, test)


def two_patch(
    seed: int = 0,
    valid: int = 200,
    *,
    n: int = 1000,
    test: int = 1000,
    d: int = 200,
    norms: tuple[float, float, float, float] = NORMS,
    proportions: tuple[float, float, float, float] = PROPORTIONS,
    sigma_xi: float = 0.1,
    project: bool = True,
    basis: Basis = "random",
) -> Splits:
    """Rows of the two-patch distribution `two_patch_distribution(seed, ...)`: two classes, a common and a rare feature each.

    Reference: Xu, Chen 2026, arXiv:2603.04881. Deviation: their sizes are not known; these show the effects they describe.
    """
    source = two_patch_distribution(
        seed, d=d, norms=norms, proportions=proportions, sigma_xi=sigma_xi, project=project, basis=basis
    )
    return source.splits(seed, valid, n=n, test=test)


def two_patch_distribution(
    seed: int = 0,
    *,
    d: int = 200,
    norms: tuple[float, float, float, float] = NORMS,
    proportions: tuple[float, float, float, float] = PROPORTIONS,
    sigma_xi: float = 0.1,
    project: bool = True,
    basis: Basis = "random",
) -> TwoPatch:
    """Four features: (class 1 majority, class 1 minority, class 2 majority, class 2 minority).

    Args:
        seed: fixes the directions of the features.
        d: dimension of a patch.
        norms: ||u_ij||.
        proportions: phi_ij.
        sigma_xi: deviation of the noise patch.
        project: no noise along features.
        basis: `random` orthogonal directions (QR of a Gaussian matrix), or `unit` vectors e_1 .. e_4.
    """
    if len(norms) != len(FEATURES):
        raise ConfigError(f"norms={norms}: give four, of {', '.join(FEATURES)}.")
    features = _orthogonal(seed, d, len(FEATURES), basis) * torch.tensor(norms, dtype=torch.float64).unsqueeze(1)
    return TwoPatch(features, (0, 0, 1, 1), tuple(proportions), sigma_xi, FEATURES, project)


def rotated_features(
    degrees: float,
    seed: int = 0,
    *,
    d: int = 200,
    norm: float = 2.0,
    prior: float = 0.5,
    sigma_xi: float = 0.1,
    project: bool = True,
    basis: Basis = "random",
) -> tuple[TwoPatch, TwoPatch]:
    """Distributions for pretraining and for fine-tuning, whose features are turned: one feature u_k per class.

    v_1 = cos(t) u_1 + sin(t) u_2,  v_2 = cos(t) u_2 - sin(t) u_1: at 45 degrees v_1 is as near to u_2 as to u_1.

    Args:
        degrees: the angle t.
        seed: fixes the directions of the features.
        d: dimension of a patch.
        norm: ||u_1|| = ||u_2||.
        prior: probability of class 1.
        sigma_xi: deviation of the noise patch.
        project: no noise along features.
        basis: `random` orthogonal directions, or `unit` vectors.

    Reference: Xu, Chen 2026, arXiv:2603.04881, section 4 and appendix B. Deviation: their sign of t is not known.
    """
    if not math.isfinite(degrees):
        raise ConfigError(f"degrees={degrees!r}: must be a finite number.")
    cos, sin = math.cos(math.radians(degrees)), math.sin(math.radians(degrees))
    u = _orthogonal(seed, d, 2, basis) * norm
    before = TwoPatch(u, (0, 1), (prior, 1 - prior), sigma_xi, ("class 1", "class 2"), project)
    turn = torch.tensor([[cos, sin], [-sin, cos]], dtype=torch.float64)
    return before, replace(before, features=turn @ u)


@dataclass(frozen=True)
class SignalNoise:
    """x = (x_s, x_n): x_s ~ N(y v, s^2 I) in `ds` dimensions, x_n ~ N(0, s^2 I) in `dn`; y uniform in {-1, +1}.

    v = norm (1, ..., 1)/sqrt(ds), so that every signal coordinate matters as much as the others; `s` is `deviation`.

    Reference: Watson et al. 2023, arXiv:2311.06839, Theorem 3.3. Deviation: their dimensions and v are not known.
    """

    ds: int = 20
    dn: int = 180
    norm: float = 2.0
    deviation: float = 1.0

    def __post_init__(self) -> None:
        """Some signal; finite sizes."""
        if self.ds < 1 or self.dn < 0:
            raise ConfigError(f"ds={self.ds!r}, dn={self.dn!r}: at least one signal dimension, and no negative number.")
        if not (0 < self.norm < math.inf and 0 <= self.deviation < math.inf):
            raise ConfigError(f"norm={self.norm!r}, deviation={self.deviation!r}: finite, above 0 and at least 0.")

    @property
    def mean(self) -> Tensor:
        """E[y x] = (v, 0)."""
        v = torch.full((self.ds,), self.norm / math.sqrt(self.ds), dtype=torch.float64)
        return torch.cat([v, torch.zeros(self.dn, dtype=torch.float64)])

    @property
    def minimum(self) -> Tensor:
        """The linear map of least squared error: v/(||v||^2 + s^2) on the signal, 0 elsewhere."""
        return self.mean / (self.norm**2 + self.deviation**2)

    def draw(self, n: int, generator: torch.Generator) -> Data:
        """Independent rows `x [n, ds + dn]`, real-valued `y [n]`."""
        _check_count(n)
        y = 2.0 * torch.randint(0, 2, (n,), generator=generator, dtype=torch.float64) - 1
        noise = torch.randn(n, self.ds + self.dn, generator=generator, dtype=torch.float64) * self.deviation
        return Data((y.unsqueeze(1) * self.mean + noise).float(), y.float(), public=True)


def signal_noise(
    seed: int = 0,
    valid: int = 200,
    *,
    n: int = 1000,
    test: int = 1000,
    ds: int = 20,
    dn: int = 180,
    norm: float = 2.0,
    deviation: float = 1.0,
) -> Splits:
    """Rows of `SignalNoise(ds, dn, norm, deviation)`: a regression on y in {-1, +1}. Reference: Watson et al. 2023."""
    return _splits(SignalNoise(ds, dn, norm, deviation).draw, seed, n, valid, test)


def _splits(draw: Callable[[int, torch.Generator], Data], seed: int, n: int, valid: int, test: int) -> Splits:
    """A stream for each part, so that the size of one does not change another."""
    if type(n) is not int or n < 1:
        raise ConfigError(f"n={n!r} rows for training: must be a whole number above 0.")
    return Splits(*(draw(size, _stream(seed, part)) for part, size in enumerate((n, valid, test))))


def _stream(seed: int, purpose: int) -> torch.Generator:
    check_seed(seed)
    state = np.random.SeedSequence((seed, purpose)).generate_state(2, np.uint32)
    return torch.Generator().manual_seed(int(state[0]) << 31 | int(state[1]) >> 1)


def _orthogonal(seed: int, d: int, count: int, basis: Basis) -> Tensor:
    """`count` orthonormal rows of dimension d."""
    if type(d) is not int or d < count:
        raise ConfigError(f"d={d!r}: {count} orthogonal features need a whole number of dimensions >= {count}.")
    if basis == "unit":
        return torch.eye(count, d, dtype=torch.float64)
    if basis != "random":
        raise ConfigError(f"basis={basis!r}: must be 'random' or 'unit'.")
    gaussian = torch.randn(d, count, generator=_stream(seed, 3), dtype=torch.float64)
    return torch.linalg.qr(gaussian).Q.T.contiguous()


def _check_count(n: int) -> None:
    if type(n) is not int or n < 0:
        raise ConfigError(f"{n!r} rows: must be a whole number >= 0.")

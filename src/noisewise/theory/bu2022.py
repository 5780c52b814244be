"""Bu et al. 2022 (ICLR submission): what clipping does to the tangent kernel, and Tables 1 and 2 by search.

Outputs f of n rows, `J = df/dw`, `H = J J^T = sum_l J_l J_l^T` over layers l, `v = dL/df` for the mean loss L. Gradient
flow with factors `C_l = diag(c_1l, ..., c_nl)` has `dL/dt = -v A v^T`, `A = sum_l H_l C_l`. Without clipping A = H is
symmetric and positive; clipped, it may be neither.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from noisewise.errors import ConfigError

ZERO = 1e-9  # relative to the matrix: what double precision cannot tell from 0
RULES = ("none", "local flat", "local layerwise", "global flat", "global layerwise")


class Facts(NamedTuple):
    """Properties of a square matrix; `tolerance` is what rounding may do to the two smallest values.

    asymmetry: `||A - A^T|| / ||A||`; quadratic: smallest eigenvalue of `(A + A^T)/2`, that is of `x^T A x` over unit x;
    eigenvalue: smallest real part of A's own eigenvalues; imaginary: largest imaginary part.
    """

    asymmetry: float
    quadratic: float
    eigenvalue: float
    imaginary: float
    tolerance: float

    @property
    def symmetric(self) -> bool:
        """A = A^T up to rounding?"""
        return self.asymmetry <= ZERO

    @property
    def positive_form(self) -> bool:
        """x^T A x >= 0 for all x, up to rounding?"""
        return self.quadratic >= -self.tolerance

    @property
    def positive_eigenvalues(self) -> bool:
        """No eigenvalue with a negative real part, up to rounding?"""
        return self.eigenvalue >= -self.tolerance


def facts(matrix: np.ndarray) -> Facts:
    """Symmetric? Positive as a quadratic form? Positive in its eigenvalues? The last two agree for symmetric A only."""
    size = float(np.linalg.norm(matrix)) or 1.0
    eigenvalues = np.linalg.eigvals(matrix)
    form = np.linalg.eigvalsh((matrix + matrix.T) / 2)
    return Facts(
        float(np.linalg.norm(matrix - matrix.T)) / size,
        float(form.min()),
        float(eigenvalues.real.min()),
        float(np.abs(eigenvalues.imag).max()),
        ZERO * size,
    )


def clipped_kernel(kernels: Sequence[np.ndarray], factors: Iterable[np.ndarray]) -> np.ndarray:
    """`A = sum_l H_l diag(c_l)`: kernels `[n, n]` and factors `[n]` of each layer.

    With M outputs per row the kernel is `[n M, n M]`, rows of a unit side by side, and a unit's factor serves all of its
    outputs (`C kron I_M`). Reference: Bu et al. 2022 (ICLR submission), section 4.
    """
    total = np.zeros_like(kernels[0])
    for kernel, of_units in zip(kernels, factors, strict=True):
        total += kernel * np.repeat(of_units, len(kernel) // len(of_units))[None, :]
    return total


def loss_rate(matrix: np.ndarray, slopes: np.ndarray) -> float:
    """`dL/dt = -v A v^T`: negative while the loss falls."""
    return -float(slopes @ matrix @ slopes)


def rule_factors(
    rule: str, norms: np.ndarray, bound: float | Sequence[float], screen: float | None = None
) -> np.ndarray:
    """Factors `[layers, n]` of one of `RULES` for norms `[layers, n]` of the units' gradients.

    Flat rules look at the norm over all layers, layerwise ones at each layer's own.
    bound: C, of which each layer gets `C / sqrt(layers)`, or the layers' bounds, whose norm is C.
    screen: Z; by default the largest norm, so that nobody is screened out.
    """
    if rule == "none":
        return np.ones_like(norms)
    limits = np.full(len(norms), bound / math.sqrt(len(norms))) if isinstance(bound, float | int) else np.array(bound)
    seen, limit = norms, limits[:, None]
    if not rule.endswith("layerwise"):
        seen, limit = np.broadcast_to(np.sqrt((norms**2).sum(0)), norms.shape), np.array(np.linalg.norm(limits))
    if rule.startswith("local"):
        with np.errstate(divide="ignore"):
            return np.minimum(1.0, limit / seen)
    if rule.startswith("global"):
        largest = max(float(seen.max()), float(np.max(limit))) if screen is None else screen
        return (seen <= largest) * (limit / largest)
    raise ConfigError(f"rule={rule!r}: must be one of {list(RULES)}.")


@dataclass(frozen=True)
class Instance:
    """A small problem: each layer's Jacobian `[n, weights]`, slopes v `[n]` of the mean loss, C and Z."""

    name: str
    jacobians: tuple[np.ndarray, ...]
    slopes: np.ndarray
    bound: float | Sequence[float]
    screen: float | None = None

    @property
    def kernels(self) -> list[np.ndarray]:
        """H_l."""
        return [jacobian @ jacobian.T for jacobian in self.jacobians]

    @property
    def norms(self) -> np.ndarray:
        """Of each layer's part of each unit's gradient: `|n v_i| ||J_il||`."""
        lengths = np.stack([np.linalg.norm(jacobian, axis=1) for jacobian in self.jacobians])
        return np.abs(len(self.slopes) * self.slopes) * lengths

    def matrix(self, rule: str) -> np.ndarray:
        """A under a rule."""
        return clipped_kernel(self.kernels, rule_factors(rule, self.norms, self.bound, self.screen))


def uphill() -> Instance:
    """Per-unit gradients +10, -2, -2 along one direction and C = 1: the mean is +2, the clipped sum -1, so the loss rises.

    A small direction of its own for each unit makes H positive. Reference: the loss-increase instance of Bu et al.'s claim.
    """
    shared, slopes = np.ones((3, 1)), np.array([10.0, -2.0, -2.0]) / 3
    return Instance("uphill", (np.hstack([shared, 0.01 * np.eye(3)]),), slopes, 1.0)


def turned_over() -> Instance:
    """Two layers with H = [[14, -16], [-16, 20]] > 0 whose clipped sum has a negative eigenvalue.

    `J_1 = [[3, -1], [-3, 1]]` unclipped, `J_2 = [[-2, 0], [3, 1]]` with factors 1 and 0.2: eigenvalues 26.42 and -0.424.
    """
    first, second = np.array([[3.0, -1.0], [-3.0, 1.0]]), np.array([[-2.0, 0.0], [3.0, 1.0]])
    return Instance("turned over", (first, second), np.array([1.0, -math.sqrt(10)]) / 2, (10.0, 2.0))


def draw_instance(generator: np.random.Generator, *, screened: bool = False) -> Instance:
    """Two random layers of two units, H positive; gradient lengths over two orders of magnitude.

    screened: Z lies between the norms, so that someone is screened out.
    """
    jacobians = tuple(generator.normal(size=(2, 2)) * 10 ** generator.uniform(-1, 1) for _ in range(2))
    slopes = generator.choice([-1.0, 1.0], 2) * 10 ** generator.uniform(-1, 1, 2)
    drawn = Instance("drawn", jacobians, slopes, 10 ** generator.uniform(-1, 1))
    if not screened:
        return drawn
    low, high = np.sort(drawn.norms.ravel())[[0, -1]]
    return Instance("screened", jacobians, slopes, float(low), float(generator.uniform(low, high)))


class TableRow(NamedTuple):
    """What a rule guarantees: did it hold on every instance? `worst_...`: the smallest value that was met.

    symmetric, quadratic_form, eigenvalues: Table 2. converges, monotone, to_zero: Table 1; the loss falls at every moment
    (monotone, hence converges) if `v A v^T >= 0`, and a standstill has loss slope 0 (to_zero) if A is never singular,
    which `det A > 0` everywhere shows and a change of sign disproves.
    """

    rule: str
    instances: int
    symmetric: bool
    quadratic_form: bool
    eigenvalues: bool
    converges: bool
    monotone: bool
    to_zero: bool
    worst_form: float
    worst_eigenvalue: float
    worst_rate: float


def tables(instances: int = 2000, generator: np.random.Generator | None = None) -> list[TableRow]:
    """Tables 1 and 2 by search: each rule on `uphill`, `turned_over` and random ones; then global rules with screening.

    "No" is proven by the instance that was found; "yes" means that none was found. Values are relative to ||A||.
    Reference: Bu et al. 2022 (ICLR submission), Tables 1 and 2 and footnote 5. Deviation: the footnote says that screening
    may break positive eigenvalues; for the flat rule it cannot (`H C` with C >= 0 has the eigenvalues of
    `C^{1/2} H C^{1/2}`), only zeros appear; for the layerwise rule it can.
    """
    draw = np.random.default_rng(0) if generator is None else generator
    plain = [uphill(), turned_over(), *(draw_instance(draw) for _ in range(instances))]
    screened = [draw_instance(draw, screened=True) for _ in range(instances)]
    rows = [_table_row(rule, rule, plain) for rule in RULES]
    return rows + [_table_row(f"{rule}, screened", rule, screened) for rule in RULES[3:]]


def _table_row(name: str, rule: str, instances: Sequence[Instance]) -> TableRow:
    about, rates, determinants = [], [], []
    for instance in instances:
        matrix = instance.matrix(rule)
        size = float(np.linalg.norm(matrix))
        if size == 0:  # everybody is screened out: nothing moves, nothing is asked
            continue
        matrix = matrix / size
        about.append(facts(matrix))
        scaled = instance.slopes / np.linalg.norm(instance.slopes)
        rates.append(loss_rate(matrix, scaled))
        determinants.append(np.linalg.det(matrix))
    monotone = max(rates) <= ZERO
    return TableRow(
        rule=name,
        instances=len(about),
        symmetric=all(each.symmetric for each in about),
        quadratic_form=all(each.positive_form for each in about),
        eigenvalues=all(each.positive_eigenvalues for each in about),
        converges=all(each.positive_form for each in about) and monotone,
        monotone=monotone,
        to_zero=bool(min(determinants) > 0),
        worst_form=min(each.quadratic for each in about),
        worst_eigenvalue=min(each.eigenvalue for each in about),
        worst_rate=max(rates),
    )

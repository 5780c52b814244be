"""Neural tangent kernel: what clipping does to the matrix that says how fast training lowers the loss.

Outputs f of n rows, `J = df/dw`, `H = J J^T = sum_l J_l J_l^T` over layers l, `v = dL/df` for the mean loss L. Gradient
flow with factors `C_l = diag(c_1l, ..., c_nl)` has `dL/dt = -v A v^T`, `A = sum_l H_l C_l`. Without clipping A = H is
symmetric and positive; clipped, it may be neither.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

import numpy as np

from noisewise.audits.audit import Audit
from noisewise.audits.gradients import block_norms, chosen_loss, chosen_rule, gradient_status, gradients, group_labels
from noisewise.audits.gradients import rule_factors as clip_factors
from noisewise.audits.outputs import evaluating
from noisewise.audits.result import FAINT, INK, PRIVATE, TWIN, Figure, Result, Table
from noisewise.audits.show import Bar, dress, name_rows
from noisewise.errors import ConfigError, DataError
from noisewise.estimates.estimate import LEVEL, Estimate
from noisewise.wording import number

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from torch import Tensor, nn

    from noisewise.clipping import Clip
    from noisewise.data import Data
    from noisewise.mechanism import Mechanism
    from noisewise.persample import LossFn
    from noisewise.support import Support

TAKES = "Does not retrain; one kernel of a few rows, seconds to a minute."
LARGEST = 1 << 26  # numbers of one layer's Jacobian that are held at a time
ROWS = 64  # as many rows unless told otherwise, or as many as there are and fit
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
    own = np.linalg.eigvals(matrix)
    form = np.linalg.eigvalsh((matrix + matrix.T) / 2)
    return Facts(
        float(np.linalg.norm(matrix - matrix.T)) / size,
        float(form.min()),
        float(own.real.min()),
        float(np.abs(own.imag).max()),
        ZERO * size,
    )


def clipped_kernel(kernels: Sequence[np.ndarray], factors: Iterable[np.ndarray]) -> np.ndarray:
    """`A = sum_l H_l diag(c_l)`: kernels `[n, n]` and factors `[n]` of each layer.

    With M outputs per row the kernel is `[n M, n M]`, rows of a unit side by side, and a unit's factor serves all of its
    outputs (`C kron I_M`). Reference: Bu et al. 2022 (ICLR submission), section 4.
    """
    total = np.zeros_like(kernels[0])
    for kernel, mine in zip(kernels, factors, strict=True):
        total += kernel * np.repeat(mine, len(kernel) // len(mine))[None, :]
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


# --- the statements of the paper, numerically ---


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
    found = Instance("drawn", jacobians, slopes, 10 ** generator.uniform(-1, 1))
    if not screened:
        return found
    low, high = np.sort(found.norms.ravel())[[0, -1]]
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
    found, rates, determinants = [], [], []
    for instance in instances:
        matrix = instance.matrix(rule)
        size = float(np.linalg.norm(matrix))
        if size == 0:  # everybody is screened out: nothing moves, nothing is asked
            continue
        matrix = matrix / size
        found.append(facts(matrix))
        scaled = instance.slopes / np.linalg.norm(instance.slopes)
        rates.append(loss_rate(matrix, scaled))
        determinants.append(np.linalg.det(matrix))
    monotone = max(rates) <= ZERO
    return TableRow(
        rule=name,
        instances=len(found),
        symmetric=all(each.symmetric for each in found),
        quadratic_form=all(each.positive_form for each in found),
        eigenvalues=all(each.positive_eigenvalues for each in found),
        converges=all(each.positive_form for each in found) and monotone,
        monotone=monotone,
        to_zero=bool(min(determinants) > 0),
        worst_form=min(each.quadratic for each in found),
        worst_eigenvalue=min(each.eigenvalue for each in found),
        worst_rate=max(rates),
    )


# --- the audit ---


@dataclass(frozen=True, kw_only=True)
class Ntk(Result):
    """The kernel of a few rows under this run's rule and the five of the paper.

    headline: `predicted` and `measured` dL/dt of this rule (and `twin predicted`, `twin measured`).
    values: `rules`, for each rule the kernel's facts and both rates; `layers`, each layer's share of the trace of H.
    Reference: Bu et al. 2022 (ICLR submission), section 4 and Tables 1, 2. Deviation: finite width, real gradients.
    """

    kind: ClassVar[str] = "ntk"
    title: ClassVar[str] = "What clipping does to the training dynamics"

    @property
    def rules(self) -> dict[str, dict[str, Any]]:
        """Facts and rates by rule; `this run` is the one in force. `values["twin rules"]`: the twin's."""
        return self.values["rules"]

    def plot(self, ax: Axes) -> Axes:
        """Loss slope of each rule relative to no clipping: predicted (line) and measured (dot)."""
        names = list(self.rules)[::-1]
        for row, name in enumerate(names):
            entry = self.rules[name]
            rate = -entry["relative_rate"]
            ax.barh(row, rate, height=0.5, color=FAINT)
            ax.plot([-entry["measured_relative_rate"]], [row], "o", color=PRIVATE if rate >= 0 else TWIN, markersize=6)
        ax.axvline(0, color=INK, linewidth=1)
        ax.set_xlim(right=1.06)
        name_rows(ax, names)
        return dress(ax, "fall of the loss per unit of way, 1: the steepest there is")

    def figures(self) -> list[Figure]:
        """One figure."""
        caption = "How fast each way of clipping lowers the loss: predicted (bar) and measured (dot)"
        words = "; ".join(f"{name}: {number(-entry['relative_rate'])}" for name, entry in self.rules.items())
        return [Figure(caption, f"{caption}. {words}.", self.plot, len(self.rules) + 1)]

    def sentences(self) -> list[str]:
        """Which properties this rule keeps, and what follows."""
        mine = self.rules["this run"]
        kept = [name for name in ("symmetric", "positive_form", "positive_eigenvalues") if mine[name]]
        lost = [name for name in ("symmetric", "positive_form", "positive_eigenvalues") if not mine[name]]
        words = {
            "symmetric": "symmetry",
            "positive_form": "a positive quadratic form (the loss falls whatever the residuals)",
            "positive_eigenvalues": "positive eigenvalues",
        }
        said = [
            f"On {self.settings['rows']} rows the clipped kernel keeps {_listed([words[k] for k in kept])}"
            + (f" and loses {_listed([words[k] for k in lost])}." if lost else "."),
            f"An infinitely small clipped step changes the mean loss at a rate of {number(mine['rate'])} by the kernel, "
            f"{number(mine['measured_rate'])} measured; {100 * max(-mine['relative_rate'], 0):.0f} % of the steepest fall "
            "for a step of the same length.",
        ]
        if mine["rate"] > 0:
            said.append("At these weights the clipped step raises the loss.")
        return said

    def tables(self) -> list[Table]:
        """Facts by rule, and layers."""
        yes = {True: "yes", False: "no"}
        rows = [
            [
                name,
                yes[entry["symmetric"]],
                f"{yes[entry['positive_form']]} ({number(entry['quadratic'])})",
                f"{yes[entry['positive_eigenvalues']]} ({number(entry['eigenvalue'])})",
                number(entry["rate"]),
                number(entry["measured_rate"]),
            ]
            for name, entry in self.rules.items()
        ]
        columns = ["rule", "symmetric", "quadratic form >= 0", "eigenvalues >= 0", "dL/dt", "dL/dt measured"]
        layers = [[name, f"{100 * share:.1f}"] for name, share in self.values["layers"].items()]
        return [
            Table(f"The kernel of {self.settings['rows']} rows; smallest values in brackets", columns, rows),
            Table("Share of each layer in the kernel's trace, %", ["layer", "share"], layers),
        ]


def _listed(words: list[str]) -> str:
    return " and ".join([", ".join(words[:-1]), words[-1]] if len(words) > 1 else words) or "nothing"


def ntk(
    model: nn.Module,
    data: Data,
    *,
    mechanism: Mechanism | None = None,
    clip: Clip | None = None,
    loss_fn: LossFn | None = None,
    support: Support | None = None,
    twin: nn.Module | None = None,
    generator: np.random.Generator | None = None,
    progress: bool = False,
    rows: int | None = None,
    level: float = LEVEL,
) -> Ntk:
    """The clipped tangent kernel of some rows, and the loss change it predicts against the one that is measured.

    `dL/dt = -v (sum_l H_l C_l) v^T`, measured as `(L(w - s c) - L(w + s c)) / 2s` with c the clipped mean gradient. Does not
    retrain; seconds to a minute. Computed in double precision on a copy of the model. The five rules of the paper use the
    rule's sensitivity as C, each parameter as a layer, and a Z that screens nobody out.

    Args:
        model: with outputs `[n, classes]` (or `[n]`).
        data: rows are drawn from it.
        mechanism: says how gradients are clipped (the rule of the last step), or
        clip: the rule itself.
        loss_fn: `(model, batch) -> [batch]`, a function of `model(x)` and the targets.
        support: which coordinates learn, where the mechanism's changes from step to step.
        twin: a second model, with a kernel of its own.
        generator: draws the rows; a fixed one by default.
        progress: show a bar.
        rows: how many rows; the kernel has `rows * outputs` lines. By default 64, or fewer where the data has fewer or the
            Jacobian would be too large; the result says how many.
        level: of the intervals in the headline.
    """
    import torch

    rule, support = chosen_rule(mechanism, clip, support)
    loss = chosen_loss(loss_fn, data)
    if data.unit is not None:
        raise DataError("people who own several rows: a line of the kernel is a row. Give data without unit=.")
    rows = _fitting_rows(model, data, support) if rows is None else rows
    if not 2 <= rows <= len(data):
        raise ConfigError(f"rows={rows!r}: a whole number from 2 to the {len(data)} rows of the data.")
    draw = np.random.default_rng(0) if generator is None else generator
    index = torch.from_numpy(np.sort(draw.choice(len(data), rows, replace=False)))
    part = _in_double(data.take(index))
    models = {"": model} if twin is None else {"": model, "twin ": twin}
    headline: dict[str, Estimate] = {}
    values: dict[str, Any] = {}
    work = sum(len(list(each.parameters())) for each in models.values())
    with Bar(progress, work, "kernel") as advance:
        for prefix, each in models.items():
            found, traces = _dynamics(each, part, loss, rule, support, advance)
            mine, total = found["this run"], sum(traces.values()) or 1.0  # outputs that no weight moves: all shares 0
            headline[f"{prefix}predicted"] = _exact(mine["rate"], rows, level, "kernel, exact for these rows")
            headline[f"{prefix}measured"] = _exact(mine["measured_rate"], rows, level, "central difference")
            values[f"{prefix}rules"] = found
            values[f"{prefix}layers"] = {name: trace / total for name, trace in traces.items()}
    settings = {"clip": repr(rule), "rows": rows, "level": level, "screen": "largest norm of the rows"}
    return Ntk(headline=headline, values=values, settings=settings, status=gradient_status(data, twin))


def _fitting_rows(model: nn.Module, data: Data, support: Support) -> int:
    """As many rows as there are, `ROWS` at most, whose largest Jacobian may be held."""
    import torch

    from noisewise.persample import live_parameters

    device = next(model.parameters()).device
    with evaluating(model), torch.no_grad():
        outputs = model(data.x[:1].to(device)).numel()
    widest = max(parameter.numel() for parameter in live_parameters(model, support).values())
    return max(2, min(ROWS, len(data), LARGEST // (outputs * widest)))


def _dynamics(
    model: nn.Module, data: Data, loss: LossFn, rule: Clip, support: Support | None, advance: Callable[[int], None]
) -> tuple[dict[str, dict[str, Any]], dict[str, float]]:
    """Facts and rates by rule, and the trace of each layer's kernel."""
    import torch

    copied = copy.deepcopy(model).cpu().double()
    with evaluating(copied):
        kernels = {}
        for name, jacobian in jacobians(copied, data.x, support):
            kernels[name] = (jacobian @ jacobian.T).numpy()
            advance(1)
        slopes = output_slopes(copied, data, loss).numpy()
        grads = _all_gradients(copied, data, loss, support)
        mean = torch.cat([grad.mean(0) for grad in grads.values()])
        found = {}
        for name, factors in _factor_sets(rule, data, grads).items():
            matrix = clipped_kernel(list(kernels.values()), factors)
            weights = [torch.from_numpy(np.array(each)).unsqueeze(1) for each in factors]
            step = {key: (each * grad).mean(0) for each, (key, grad) in zip(weights, grads.items(), strict=True)}
            steepest = float(torch.cat(list(step.values())).norm() * mean.norm())
            rate, measured, about = loss_rate(matrix, slopes), measured_rate(copied, data, loss, step), facts(matrix)
            found[name] = {
                **about._asdict(),
                "symmetric": about.symmetric,
                "positive_form": about.positive_form,
                "positive_eigenvalues": about.positive_eigenvalues,
                "rate": rate,
                "measured_rate": measured,
                "relative_rate": rate / steepest if steepest > 0 else 0.0,
                "measured_relative_rate": measured / steepest if steepest > 0 else 0.0,
            }
    return found, {name: float(np.trace(kernel)) for name, kernel in kernels.items()}


def _exact(value: float, n: int, level: float, method: str) -> Estimate:
    return Estimate(value, value, value, n, level, method)


def _in_double(data: Data) -> Data:
    from dataclasses import replace

    return replace(
        data,
        x=data.x.double() if data.x.is_floating_point() else data.x,
        y=data.y.double() if data.y.is_floating_point() else data.y,
    )


def jacobians(model: nn.Module, x: Tensor, support: Support | None = None) -> Iterator[tuple[str, Tensor]]:
    """`(name, J_l [n outputs, weights])` of each parameter that learns, one at a time; masked coordinates are 0."""
    import torch

    from noisewise.persample import live_parameters

    live = live_parameters(model, support or {})
    everything = {name: parameter.detach() for name, parameter in model.named_parameters()}
    with torch.no_grad():
        lines = model(x[:1]).numel() * len(x)

    def outputs(parameter: Tensor, name: str, row: Tensor) -> Tensor:
        return torch.func.functional_call(model, everything | {name: parameter}, (row.unsqueeze(0),)).flatten()

    for name, parameter in live.items():
        if lines * parameter.numel() > LARGEST:
            raise ConfigError(
                f"the Jacobian of {name!r} for {len(x)} rows has {lines * parameter.numel():,} numbers: use fewer rows=."
            )
        slope = torch.func.vmap(torch.func.jacrev(outputs), in_dims=(None, None, 0), chunk_size=16)
        jacobian = slope(parameter.detach(), name, x).reshape(lines, -1)
        mask = (support or {}).get(name, True)
        yield name, jacobian if isinstance(mask, bool) else jacobian * mask.flatten()


class _Answers:
    """Stands for a model whose outputs are already known."""

    def __init__(self, outputs: Tensor):
        self.outputs = outputs

    def __call__(self, *_: Any) -> Tensor:
        return self.outputs


def output_slopes(model: nn.Module, data: Data, loss_fn: LossFn) -> Tensor:
    """`v = dL/df` of the mean loss, `[n outputs]`; a loss that is no function of the outputs alone is refused."""
    import torch

    with torch.no_grad():
        outputs, true = model(data.x), loss_fn(model, (data.x, data.y))
    outputs.requires_grad_(True)
    try:
        losses = loss_fn(_Answers(outputs), (data.x, data.y))
    except AttributeError as error:
        raise ConfigError(
            f"loss_fn looks into the model ({error}): the kernel needs a loss of model(x) alone."
        ) from error
    if not torch.allclose(losses.detach(), true):
        raise ConfigError("loss_fn is no function of model(x) and the targets alone: the kernel does not describe it.")
    (slopes,) = torch.autograd.grad(losses.mean(), outputs)
    return slopes.flatten()


def _all_gradients(model: nn.Module, data: Data, loss_fn: LossFn, support: Support | None) -> dict[str, Tensor]:
    """All rows' gradients at once: there are few."""
    import torch

    everyone = torch.arange(len(data))
    chunks = [found for _, found in gradients(model, data, everyone, loss_fn=loss_fn, support=support)]
    return {name: torch.cat([chunk[name] for chunk in chunks]) for name in chunks[0]}


def _factor_sets(rule: Clip, data: Data, grads: Mapping[str, Tensor]) -> dict[str, np.ndarray]:
    """Factors `[layers, n]` of this run's rule and of the paper's five."""
    import torch

    owner = rule.blocks(grads)
    blocks = [owner[name] for name in grads]
    squares = torch.stack([grad.square().sum(1) for grad in grads.values()])
    labels = group_labels(rule, data, torch.arange(len(data)))
    own = clip_factors(rule, block_norms(squares, blocks), labels)[blocks].numpy()
    norms = squares.sqrt().numpy()
    return {"this run": own} | {name: rule_factors(name, norms, rule.sensitivity) for name in RULES}


def measured_rate(
    model: nn.Module, data: Data, loss_fn: LossFn, step: Mapping[str, Tensor], way: float = 1e-5
) -> float:
    """`(L(w - s c) - L(w + s c)) / 2s` with `s ||c|| = way`: the slope of the mean loss along the step, by differences."""
    import torch

    length = math.sqrt(sum(float(part.square().sum()) for part in step.values()))
    if length == 0:
        return 0.0
    moved = copy.deepcopy(model)
    parameters = dict(moved.named_parameters())
    losses = []
    with torch.no_grad():
        for sign in (-1.0, 1.0):
            for name, part in step.items():
                start = dict(model.named_parameters())[name]
                parameters[name].copy_(start + sign * way / length * part.view_as(start))
            losses.append(float(loss_fn(moved, (data.x, data.y)).mean()))
    return (losses[0] - losses[1]) / (2 * way) * length


AUDIT = Audit("ntk", ntk, takes=TAKES, needs=("mechanism", "loss_fn"))

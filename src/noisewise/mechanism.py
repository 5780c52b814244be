"""The mechanism: everything that privacy depends on, frozen before training."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Literal

from noisewise import clipping, sampling, support
from noisewise._moved import old_names
from noisewise.accounting import (
    ADJACENCIES,
    Ledger,
    Line,
    Spent,
    gdp_epsilon,
    pld_epsilon,
    rdp_epsilon,
    smallest_noise,
    spent,
)
from noisewise.accounting.events import check_multiplier, check_releases, gaussian, joint_multiplier
from noisewise.adaptive import RULES, Adaptive, query_multiplier
from noisewise.clipping import Clip
from noisewise.errors import ConfigError, OwnCode
from noisewise.sampling import SAMPLERS, Sampler
from noisewise.schedule import Schedule, at, values
from noisewise.support import EVERYTHING, Plan, Together, plans_of

if TYPE_CHECKING:
    from dp_accounting import DpEvent

PURPOSE, QUESTION, RANKING = "gradient", "bound", "ranking"


@dataclass(frozen=True, kw_only=True)
class Mechanism:
    """Sampler, clipping rule, noise, steps and support of a training run, and so what it will spend.

    Per step: `sum_i factor_i * (m * g_i) + sigma C m * N(0, I)`, divided by the public expected batch size, where C is
    the rule's sensitivity and m the support. `noise_multiplier` is sigma = noise std / C, always for add/remove C.
    Guarantee: `epsilon(delta)` before training equals what the ledger says afterwards; going on past `steps` stops.
    """

    sampler: Sampler
    clip: Clip | Schedule[Clip] = field(default_factory=clipping.Flat)
    steps: int
    noise_multiplier: float | Schedule[float] | None = None
    support: Plan | Together = EVERYTHING
    adjacency: str = "add-remove"
    unit: str = "row"

    def __post_init__(self) -> None:
        """Refuse what cannot be accounted."""
        if type(self.steps) is not int or self.steps <= 0:
            raise ConfigError(f"steps={self.steps!r}: must be a whole number above 0.")
        if self.adjacency not in ADJACENCIES:
            raise ConfigError(f"adjacency={self.adjacency!r}: must be one of {list(ADJACENCIES)}.")
        if type(self.sampler) not in SAMPLERS.values():  # a subclass may draw in another way
            raise ConfigError(
                f"sampler={self.sampler!r}: the accountant knows no event for it. Use one of "
                f"{[kind.__name__ for kind in SAMPLERS.values()]}."
            )
        if self.adjacency not in self.sampler.adjacencies:
            raise ConfigError(
                f"adjacency={self.adjacency!r} with the {self.sampler.kind} sampler: its guarantee is proven for "
                f"{list(self.sampler.adjacencies)} only. Set adjacency={self.sampler.adjacencies[0]!r}, or use Poisson."
            )
        for rule in values(self.clip):
            if isinstance(rule, type) or not isinstance(rule, Clip):
                raise ConfigError(f"clip={rule!r}: a rule needs blocks, factors and sensitivity; e.g. Flat(1.0).")
        if isinstance(self.clip, Schedule) and any(isinstance(rule, Adaptive) for _, rule in self.clip.pieces):
            raise ConfigError("an adaptive rule within a schedule: two things would move the bound. Use one of them.")
        for sigma in () if self.noise_multiplier is None else values(self.noise_multiplier):
            if isinstance(sigma, bool) or not isinstance(sigma, int | float) or not 0 <= sigma < math.inf:
                raise ConfigError(f"noise_multiplier={sigma!r}: must be a finite number >= 0, or calibrated(...).")
            check_multiplier(sigma, "noise_multiplier")
        if not isinstance(self.unit, str) or not self.unit:
            raise ConfigError(f"unit={self.unit!r}: must say in a word what is protected, e.g. 'row' or 'person'.")
        if not isinstance(self.support, Plan | Together):
            raise ConfigError(
                f"support={self.support!r}: must be a plan; noisewise.support.Fixed(masks) makes one of masks."
            )
        if isinstance(self.noise_multiplier, Schedule) and self.sampler.steps_per_event > 1:
            raise ConfigError("a noise schedule with the shuffle sampler: one release covers an epoch. Use Poisson.")

    @property
    def expected_batch_size(self) -> int:
        """Public divisor of the noised sum."""
        return self.sampler.batch_size

    def clip_at(self, step: int) -> Clip:
        """The rule of a step."""
        return at(self.clip, step)

    def noise_at(self, step: int) -> float:
        """Sigma of a step."""
        sigma = at(self.noise_multiplier, step)
        if sigma is None:
            raise ConfigError(
                "noise_multiplier is not set. Give it, or call mechanism.calibrated(epsilon=..., delta=...)."
            )
        return sigma

    def lines(self, first_step: int = 0) -> list[Line]:
        """The ledger lines that training will write."""
        sigma = self.noise_multiplier
        runs = sigma.runs(self.steps) if isinstance(sigma, Schedule) else [(0, self.steps, self.noise_at(0))]
        ledger = Ledger(self.adjacency)
        for first, count, value in runs:
            parts = {PURPOSE: value, **self.beside()}
            event, purpose = gaussian(self.sampler, joint_multiplier(parts.values())), " + ".join(parts)
            ledger.lines.append(Line(event, purpose, -(-count // self.sampler.steps_per_event), first_step + first))
        return ledger.lines

    def beside(self) -> dict[str, float]:
        """Noise multipliers of what leaves together with each gradient, by purpose.

        An adaptive rule's question, and sums without noise if a support plan ranks by them, which is not private.
        """
        asked = {} if self.question is None else {QUESTION: self.question}
        return asked | ({RANKING: 0.0} if any(plan.unnoised for plan in plans_of(self.support)) else {})

    @property
    def question(self) -> float | None:
        """Noise multiplier of what an adaptive rule asks of each batch; None for other rules."""
        return None if isinstance(self.clip, Schedule) else query_multiplier(self.clip, self.sampler.batch_size)

    @property
    def joint_noise_multiplier(self) -> float | None:
        """Multiplier of the whole release: the gradient's, and below it if an adaptive rule asks something too."""
        if self.noise_multiplier is None or isinstance(self.noise_multiplier, Schedule):
            return None
        return joint_multiplier([self.noise_multiplier, *self.beside().values()])

    def events(self) -> list[tuple[DpEvent, int]]:
        """(event, count) of everything that will be released."""
        return [(line.event, line.count) for line in self.lines()]

    @property
    def _releases(self) -> int:
        """How many times something is released, at least: told without an accountant."""
        return -(-self.steps // self.sampler.steps_per_event)

    def spent(self, delta: float) -> Spent:
        """PLD, RDP and GDP-CLT readings of the whole plan."""
        check_releases(self._releases)
        return spent(self.events(), delta, self.adjacency)

    def epsilon(self, delta: float, accountant: Literal["pld", "rdp", "gdp"] = "pld") -> float | None:
        """Epsilon of the whole plan; None where an accountant does not cover it. `gdp` is no guarantee."""
        match accountant:
            case "pld":
                return pld_epsilon(self.events(), delta, self.adjacency)
            case "rdp":
                return rdp_epsilon(self.events(), delta, self.adjacency)[0]
            case "gdp":
                return gdp_epsilon(self.events(), delta, self.adjacency)[0]
        raise ConfigError(f"accountant={accountant!r}: must be 'pld', 'rdp' or 'gdp'.")

    def calibrated(self, epsilon: float, delta: float) -> Mechanism:
        """The same plan with the least noise that costs at most `epsilon` at `delta` (PLD).

        A noise schedule keeps its shape: one common factor is found for all its values.
        """
        check_releases(self._releases)
        if any(plan.unnoised for plan in plans_of(self.support)):
            raise ConfigError("a support plan ranks by gradients without noise: no amount of noise meets an epsilon.")
        shape = self.noise_multiplier
        if isinstance(shape, Schedule) and min(values(shape)) <= 0:
            raise ConfigError("a noise schedule with a 0 in it cannot meet any epsilon. Make every value above 0.")
        return self.scaled(smallest_noise(lambda factor: self.scaled(factor).events(), epsilon, delta, self.adjacency))

    def scaled(self, factor: float) -> Mechanism:
        """The same plan with noise multiplier `factor`; a noise schedule is multiplied by it."""
        shape = self.noise_multiplier
        sigma = shape.map(lambda s: s * factor) if isinstance(shape, Schedule) else factor
        return replace(self, noise_multiplier=sigma)

    def to_dict(self) -> dict[str, Any]:
        """JSON form, complete."""
        return {
            "sampler": sampling.to_dict(self.sampler),
            "clip": _schedule_to_dict(self.clip, _clip_to_dict),
            "noise_multiplier": _schedule_to_dict(self.noise_multiplier, lambda value: value),
            "steps": self.steps,
            "support": support.to_dict(self.support),
            "adjacency": self.adjacency,
            "unit": self.unit,
        }

    @classmethod
    def from_dict(cls, raw: Mapping[str, Any]) -> Mechanism:
        """Inverse of `to_dict`; unknown or missing entries stop."""
        expected = {"sampler", "clip", "noise_multiplier", "steps", "support", "adjacency", "unit"}
        try:
            if set(raw) != expected:
                raise ConfigError(f"mechanism entries {sorted(raw)}: expected exactly {sorted(expected)}.")
            mechanism = cls(
                sampler=sampling.from_dict(raw["sampler"]),
                clip=_schedule_from_dict(raw["clip"], _clip_from_dict),
                noise_multiplier=_schedule_from_dict(raw["noise_multiplier"], lambda value: value),
                steps=raw["steps"],
                support=support.from_dict(raw["support"]),
                adjacency=raw["adjacency"],
                unit=raw["unit"],
            )
            if mechanism.to_dict() != raw:
                raise ConfigError(
                    "the mechanism's description is damaged: entries are missing or contradict each other."
                )
            return mechanism
        except (KeyError, TypeError, AttributeError, ValueError, OverflowError, RuntimeError) as error:
            if isinstance(error, ConfigError):
                raise
            raise ConfigError(f"the mechanism's description is damaged: {error!r}.") from None


def _schedule_to_dict(value: Any, encode: Any) -> Any:
    if isinstance(value, Schedule):
        return {"schedule": [[first, encode(v)] for first, v in value.pieces]}
    return encode(value)


def _schedule_from_dict(raw: Any, decode: Any) -> Any:
    if isinstance(raw, Mapping) and set(raw) == {"schedule"}:
        return Schedule(tuple((first, decode(v)) for first, v in raw["schedule"]))
    return decode(raw)


def _clip_to_dict(clip: Clip) -> dict[str, Any]:
    if isinstance(clip, clipping.PerLayer):
        members = {} if clip.members is None else {"members": dict(clip.members)}
        return {
            "rule": "PerLayer",
            "rules": {name: _clip_to_dict(rule) for name, rule in clip.rules.items()},
            **members,
        }
    if type(clip) not in RULES.values():
        return {"rule": f"{type(clip).__module__}:{type(clip).__qualname__}", "settings": repr(clip)}
    return {"rule": type(clip).__name__, **{k: _plain(v) for k, v in vars(clip).items() if v is not None}}


def _plain(value: Any) -> Any:
    return list(value) if isinstance(value, tuple) else value


def _clip_from_dict(raw: Mapping[str, Any]) -> Clip:
    settings = dict(raw)
    name = settings.pop("rule")
    if name not in RULES:
        raise OwnCode(f"clip rule {name!r}: not one of {list(RULES)}; rebuild the mechanism in code.")
    if name == "PerLayer":
        rules = {key: _clip_from_dict(value) for key, value in settings["rules"].items()}
        return clipping.PerLayer(rules, settings.get("members"))
    rule: Clip = RULES[name](**settings)
    return rule


if not TYPE_CHECKING:
    __getattr__ = old_names(__name__)

"""What a repair is, and how several of them are applied to one recipe."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import fields, is_dataclass, replace
from itertools import combinations, product
from typing import Any, ClassVar, Literal

from noisewise.accounting.ledger import joined
from noisewise.clipping import Clip
from noisewise.errors import ConfigError, PrivacyError
from noisewise.recipe import Recipe, at_epsilon

Cost = Literal["free", "ledger", "not-private"]

CLAIMS = {
    "rule": "each of them says how a unit's gradient is scaled, and a gradient can be scaled in one way only",
    "draw": "each of them draws a new mask every epoch, so that the sparsity would be neither's",
    "learners": "each of them says which parameters learn, and what is left by both has no meaning of its own",
    "layers": "the one freezes the very weights among which the other chooses",
    "views": "each of them says in which versions a row is seen",
    "average": "each of them says how weights are averaged",
    "stages": "each of them says which weights stop learning, and when",
    "phases": "each of them divides the run into phases",
    "start": "each of them says from which weights training starts",
}


class Repair(ABC):
    """A change of a recipe that lowers a side effect of privacy.

    cost: `free` (the ledger is unchanged), `ledger` (it spends, and the ledger says what), `not-private` (the run has no
    guarantee any more and says so). changes: what it changes, in words. claims: keys of `CLAIMS`, what only one repair of a
    run can decide. order: repairs are applied from low to high, in whatever order they are given.
    Guarantee: `repaired` compares the ledger lines before and after with the stated cost, and refuses a repair that lies.
    """

    name: ClassVar[str]
    reference: ClassVar[str]
    changes: ClassVar[str]
    claims: ClassVar[tuple[str, ...]] = ()
    order: ClassVar[int] = 5
    cost: ClassVar[Cost] = "free"

    @abstractmethod
    def apply(self, recipe: Recipe) -> Recipe:
        """The changed recipe; the given one stays as it is."""

    def describe(self) -> dict[str, Any]:
        """For summary.json: name, cost, reference and settings."""
        settings: dict[str, Any] = (
            {item.name: getattr(self, item.name) for item in fields(self)} if is_dataclass(self) else {}
        )
        return {
            "name": self.name,
            "cost": self.cost,
            "reference": self.reference,
            "settings": {key: _readable(value) for key, value in settings.items()},
        }


def _readable(value: Any) -> Any:
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, tuple | list):
        return [_readable(item) for item in value]
    if isinstance(value, Clip):
        return repr(value)
    return getattr(value, "__name__", type(value).__name__)


def repaired(recipe: Recipe, *repairs: Repair, epsilon: float | None = None, delta: float | None = None) -> Recipe:
    """The recipe with all repairs applied; with `epsilon` and `delta`, calibrated anew so that everything costs that much.

    Two repairs that decide the same thing are refused, with the reason; so is one that should have come before those that
    the recipe already has. A repair whose stated cost is not what happens to the ledger is refused.
    """
    if (epsilon is None) != (delta is None):
        raise ConfigError(
            "epsilon and delta go together: give both to calibrate the noise anew, or neither to keep it."
        )
    check_compatible((*recipe.repairs, *repairs))
    _check_order(recipe.repairs, repairs)
    for repair in sorted(repairs, key=lambda repair: repair.order):
        before = recipe
        recipe = repair.apply(before)
        if not isinstance(recipe, Recipe):
            raise ConfigError(
                f"repair {repair.name}: apply() gave a {type(recipe).__name__}, must give a Recipe, e.g. "
                "dataclasses.replace(recipe, ...)."
            )
        _check_cost(repair, before, recipe)
        recipe = replace(recipe, repairs=(*before.repairs, repair))
    return recipe if epsilon is None or delta is None else at_epsilon(recipe, epsilon, delta)


def check_compatible(repairs: Sequence[Repair]) -> None:
    """Refuse two repairs that decide the same thing."""
    for repair in repairs:
        if not isinstance(repair, Repair):
            raise ConfigError(
                f"{repair!r} is no repair: derive it from noisewise.repairs.Repair, and give an instance."
            )
    for first, second in combinations(repairs, 2):
        for claim in first.claims:
            if claim in second.claims:
                raise ConfigError(
                    f"{first.name} and {second.name} cannot be combined: {CLAIMS[claim]}. Choose one of them."
                )


def _check_order(before: Sequence[Repair], repairs: Sequence[Repair]) -> None:
    for earlier, late in product(before, repairs):
        if late.order < earlier.order:
            raise ConfigError(
                f"{late.name} comes before {earlier.name}, which this recipe already has. Give both in one call of `repaired`."
            )


def _check_cost(repair: Repair, before: Recipe, after: Recipe) -> None:
    for word in ("adjacency", "unit"):
        old, new = getattr(before.mechanism, word), getattr(after.mechanism, word)
        if old != new:
            raise PrivacyError(
                f"repair {repair.name}: changes the {word} from {old} to {new}, and so what is promised."
            )
    same = joined(after.lines()) == joined(before.lines())
    lie = {
        "free": None if same else "it says that it is free, but what is released changes",
        "ledger": "it says that it spends, but the ledger is unchanged" if same else None,
        "not-private": "it says that it is not private, but every release carries noise" if after.private else None,
    }[repair.cost]
    if repair.cost != "not-private" and before.private and not after.private:
        lie = "a release without noise was added, but its cost is not stated as not-private"
    if lie:
        raise PrivacyError(
            f"repair {repair.name} (cost: {repair.cost}): {lie}. Lines before: {_lines(before)}; after: {_lines(after)}."
        )


def _lines(recipe: Recipe) -> str:
    return ", ".join(f"{line.count} x {line.purpose}" for line in recipe.lines())

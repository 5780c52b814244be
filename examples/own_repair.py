"""A repair of one's own: the last layer learns first, the others join later (gradual unfreezing)."""

from dataclasses import dataclass

from noisewise.recipe import with_support
from noisewise.repairs import Repair
from noisewise.support import Plan


@dataclass(frozen=True)
class HeadFirst(Plan):
    """Until a step, only parameters whose name begins with `head` learn."""

    head: str
    until: int

    def period(self, step):
        """Two periods, each with a support of its own."""
        return int(step >= self.until)

    def at(self, step, released, generator):
        """What is not named learns."""
        return {name: step >= self.until for name in released.weights if not name.startswith(self.head)}


@dataclass(frozen=True)
class Unfreezing(Repair):
    """HeadFirst for a share of the run. Cost: free, since names and steps are public."""

    head: str
    share: float = 0.5
    name, changes = "gradual unfreezing", "the support: the last layer learns first"
    reference, order = "Howard & Ruder 2018, arXiv:1801.06146", 6

    def apply(self, recipe):
        """The plan, as long as the recipe's mechanism."""
        return with_support(recipe, HeadFirst(self.head, round(self.share * recipe.mechanism.steps)))

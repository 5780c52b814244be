"""All repairs on one tiny recipe, which pairs of them compose, and the page that says so.

`python tests/helpers/compose.py` writes docs/repairs.md.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import torch
from torch import nn
from torch.nn import functional as F

from noisewise import repairs as r
from noisewise.accounting import Ledger
from noisewise.clipping import Flat
from noisewise.data import Data, Splits
from noisewise.errors import NoisewiseError
from noisewise.mechanism import Mechanism
from noisewise.recipe import Recipe, fit
from noisewise.sampling import Poisson

PROJECT = Path(__file__).parents[2]
PAGE, EXAMPLE = PROJECT / "docs" / "repairs.md", PROJECT / "examples" / "own_repair.py"
N, BATCH, STEPS, BOUND = 40, 8, 20, 0.1


def network(seed=2, classes=3):
    with torch.random.fork_rng([]):
        torch.manual_seed(seed)
        return nn.Sequential(
            nn.Conv2d(1, 2, 3), nn.Tanh(), nn.Flatten(), nn.Linear(8, 5), nn.Tanh(), nn.Linear(5, classes)
        )


def images(seed=1, n=N, classes=3, public=False):
    """Small images, in two groups of people."""
    generator = torch.Generator().manual_seed(seed)
    x, y = torch.randn(n, 1, 4, 4, generator=generator), torch.randint(0, classes, (n,), generator=generator)
    names = tuple(str(k) for k in range(classes))
    return Data(x, y, {"half": torch.arange(n) % 2}, names, public, group_names={"half": ("even", "odd")})


def loss_fn(model, batch):
    x, y = batch
    return F.cross_entropy(model(x), y, reduction="none")


def sgd(parameters):
    return torch.optim.SGD(parameters, lr=0.05, momentum=0.9)


def recipe(data=None, **settings):
    """Poisson batches of 8 of 40 images for four epochs; every gradient is longer than the bound."""
    data = images() if data is None else data
    plan = Mechanism(
        **{"sampler": Poisson(N, BATCH), "clip": Flat(BOUND), "noise_multiplier": 50.0, "steps": STEPS, **settings}
    )
    return Recipe(model=network(), data=Splits(data, data, data), loss_fn=loss_fn, mechanism=plan, optimizer=sgd)


def public(classes=4):
    return r.PublicTraining(images(7, 30, classes, public=True), epochs=2, batch_size=10)


@cache
def other_ledger():
    return Ledger("add-remove", recipe(noise_multiplier=70.0).mechanism.lines(), "row")


def turned(rows, generator):
    """Left and right exchanged at random."""
    x, y = rows
    which = torch.randint(0, 2, (len(x),), generator=generator).bool()
    return torch.where(which.view(-1, 1, 1, 1), x.flip(-1), x), y


KINDS = {
    "global clipping": lambda: r.GlobalClipping(10.0, lr_factor=2.0),
    "local then global clipping": lambda: r.LocalThenGlobal(10.0, 0.6),
    "global-adapt": lambda: r.GlobalAdapt(10.0, noise=20.0),
    "group bounds": lambda: r.GroupBounds("half", noise=20.0),
    "random sparsification": lambda: r.RandomSparsification(0.7),
    "ranked sparsification": lambda: r.RankedSparsification(0.7),
    "stage-wise freezing": lambda: r.StagewiseFreezing(),
    "pruning": lambda: r.MagnitudePruning(r.AtRandom()),
    "pruning, earlier epochs": lambda: r.MagnitudePruning(r.EarlierEpochs(1), 0.5),
    "augmentation": lambda: r.Augmentation(3),
    "moving average": lambda: r.MovingAverage(0.9),
    "public pretraining": lambda: r.Pretraining(public()),
    "fine-tuning, last layer": lambda: r.FineTuning("last layer"),
    "fine-tuning, biases": lambda: r.FineTuning("biases"),
    "LoRA": lambda: r.LoRA(2),
    "first phase": lambda: r.FirstPhase(1, clip=Flat(0.2)),
}
OPTIONS = {
    "global clipping, same steps": lambda: r.GlobalClipping(10.0),
    "random, constant rate, two masks an epoch": lambda: r.RandomSparsification(0.5, cooling=False, refreshes=2),
    "ranked without noise": lambda: r.RankedSparsification(0.7, unnoised=True),
    "stage-wise pruning": lambda: r.StagewiseFreezing(mode="prune"),
    "stage-wise freezing, whole model": lambda: r.StagewiseFreezing((0.3, 0.6), (0.4, 0.8), scope="model"),
    "pruning, public": lambda: r.MagnitudePruning(public()),
    "pruning, private model": lambda: r.MagnitudePruning(
        r.PrivateModel({name: weight.detach() for name, weight in network(5).named_parameters()}, other_ledger())
    ),
    "pruning, private records": lambda: r.MagnitudePruning(r.PrivateRecords(1.0, True, epochs=1, batch_size=10)),
    "pruning, 5 % of them": lambda: r.MagnitudePruning(r.PrivateRecords(0.05, True, epochs=1), scope="model"),
    "augmentation, own": lambda: r.Augmentation(2, turned),
    "pretrained weights": lambda: r.Pretraining(weights=network(9).state_dict()),
    "fine-tuning, pattern": lambda: r.FineTuning("3.*"),
    "LoRA and head": lambda: r.LoRA(1, layers="[03]", also=("5.*",)),
    "first phase, other noise": lambda: r.FirstPhase(1, noise_multiplier=80.0),
    "first phase, smaller batches": lambda: r.FirstPhase(1, batch_size=4),
    "first phase, plain": lambda: r.FirstPhase(1, "plain"),
    "first phase, clip-only": lambda: r.FirstPhase(1, "clip-only"),
    "first phase, noise-only": lambda: r.FirstPhase(2, "noise-only"),
}
ALL = {**KINDS, **OPTIONS}


@dataclass(frozen=True)
class Verdict:
    """Of a pair: composes and trains, or the reason why not."""

    first: str
    second: str
    reason: str = ""


def verdict(first: str, second: str, steps: int = 10) -> Verdict:
    """Apply both, in either order, and train for a few steps."""
    try:
        base = recipe(steps=steps)
        changed = r.repaired(base, KINDS[second](), KINDS[first]())
        trained = fit(changed, insecure_seed=0, progress=False)
    except NoisewiseError as error:
        return Verdict(first, second, f"{type(error).__name__}: {error}")
    if not all(bool(p.isfinite().all()) for p in trained.model.parameters()):
        return Verdict(first, second, "weights are not finite")
    return Verdict(first, second)


def verdicts() -> list[Verdict]:
    return [verdict(first, second) for first, second in itertools.combinations_with_replacement(KINDS, 2)]


def reason_of(text: str) -> str:
    """The reason alone, without the names of the pair and the remedy."""
    said = text.partition(": ")[2]
    return said.partition(" cannot be combined: ")[2].removesuffix(" Choose one of them.") or said


def listing() -> list[str]:
    rows = ["| repair | changes | cost | reference |", "|---|---|---|---|"]
    seen = set()
    for make in ALL.values():
        repair = make()
        kind = type(repair)
        if kind in seen:
            continue
        seen.add(kind)
        costs = sorted({made.cost for made in (other() for other in ALL.values()) if type(made) is kind})
        rows.append(f"| `{kind.__name__}` | {repair.changes} | {', '.join(costs)} | {repair.reference} |")
    return rows


def table(found: list[Verdict]) -> list[str]:
    """A triangle: + composes; a letter stands for a reason."""
    reasons = list(dict.fromkeys(reason_of(v.reason) for v in found if v.reason))
    letters = {reason: chr(ord("a") + k) for k, reason in enumerate(reasons)}
    cells = {frozenset((v.first, v.second)): letters[reason_of(v.reason)] if v.reason else "+" for v in found}
    names = list(KINDS)
    rows = ["| | " + " | ".join(str(k + 1) for k in range(len(names))) + " |", "|---" * (len(names) + 1) + "|"]
    for k, name in enumerate(names):
        row = [cells[frozenset((name, other))] for other in names[: k + 1]]
        rows.append(f"| {k + 1} {name} | " + " | ".join(row + [""] * (len(names) - k - 1)) + " |")
    return [*rows, "", *(f"- {letter}: {reason}" for reason, letter in letters.items())]


def page(found: list[Verdict]) -> str:
    refused = sum(bool(v.reason) for v in found)
    return "\n".join(
        [
            "# Repairs",
            "",
            "A repair changes a recipe and states what that costs: free (the ledger is unchanged), ledger (it spends, and the",
            "ledger says what), not-private (no guarantee is left, and every artefact of the run says so). `repaired` compares",
            "the ledger before and after with what is stated, and refuses a repair that lies.",
            "",
            "```python",
            "changed = repaired(recipe, RandomSparsification(0.7), MovingAverage(), epsilon=3.0, delta=1e-5)",
            'trained = fit(changed, out="run")',
            "```",
            "",
            *listing(),
            "",
            "Rules of thumb, as functions of `noisewise.repairs`: `bound_for_momentum` (C / (1 - mu) kept constant),",
            "`best_sparsity` (r*), `bound_at_sparsity`, `noise_term`.",
            "",
            "## Which pairs compose",
            "",
            f"Written by `tests/helpers/compose.py`, which applies and trains every pair: {len(found) - refused} of "
            f"{len(found)} compose (+).",
            "The others are refused with the reason below. Pruning from any source but the run's own earlier epochs composes",
            "alike. Repairs are applied in an order of their own, whatever order they are given in.",
            "",
            *table(found),
            "",
            "In pairs that compose: masks are drawn among what frozen and pruned weights leave; rules and plans of masks begin",
            "after a first phase; what never learns (a pruned weight, a frozen layer) does not learn in any phase.",
            "",
            "## A repair of one's own",
            "",
            "A plan says what learns at each step, from the step, released values and a public generator; a repair puts it",
            "into a recipe. `noisewise.testing.check_support` checks the plan, `repaired` the cost (free, by default).",
            "",
            "```python",
            EXAMPLE.read_text().rstrip(),
            "```",
            "",
            '`repaired(recipe, Unfreezing("fc"), MovingAverage())` combines it with others. `claims` names what only one',
            "repair of a run can decide (`noisewise.repairs.base.CLAIMS`), so that two of them are refused.",
            "",
        ]
    )


if __name__ == "__main__":
    torch.set_num_threads(1)
    PAGE.write_text(page(verdicts()))

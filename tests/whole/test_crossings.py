"""Two features at a time: every pair of them in one step, against the definition written out unit by unit.

The table is generated: each value of each feature meets each value of each other one, with all else as usual. Steps are
taken without noise (`clip-only`), so that they can be compared; `step_by_hand` calls nothing of the engine.
"""

import copy
import itertools
import math
import os
import signal
from dataclasses import dataclass, replace

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from helpers import tiny
from helpers.notes import Notes
from noisewise.accounting import Ledger
from noisewise.adaptive import GlobalAdapt, GroupBounds, Quantile
from noisewise.clipping import Flat, Global, per_layer
from noisewise.data import Data, Splits
from noisewise.errors import Interrupted, NoisewiseError
from noisewise.mechanism import Mechanism
from noisewise.recipe import Phase, Recipe, fit
from noisewise.repairs.freezing import PruningStages, Stages
from noisewise.repairs.random_sparsification import RandomMasks
from noisewise.repairs.ranked_sparsification import RankedMasks
from noisewise.runtime import Runtime
from noisewise.sampling import Poisson, Shuffle
from noisewise.schedule import Schedule
from noisewise.support import Fixed, Together, together
from noisewise.training.ablation import ablated_step
from noisewise.training.augmentation import Augment
from noisewise.training.state import State
from noisewise.training.step import private_step

STEPS, LR = 3, 0.5
NAMES = ("0.weight", "0.bias", "2.weight", "2.bias")
OWNERS = torch.tensor([4, 2, 4, 9, 2, 4, 7, 9, 4, 2, 11, 7, 11, 3, 5, 5])  # seven people, 1 to 4 rows, not in order


def network():
    with torch.random.fork_rng([]):
        torch.manual_seed(3)
        return nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 3)).double()


def rows(unit=None):
    """16 rows in two groups; all rows of one person are in one group."""
    generator = torch.Generator().manual_seed(1)
    x = torch.randn(16, 3, generator=generator, dtype=torch.float64) * torch.linspace(0.2, 3, 16).unsqueeze(1)
    groups = {"half": (torch.arange(16) % 2 if unit is None else (OWNERS > 4).long())}
    return Data(x, torch.randint(0, 3, (16,), generator=generator), groups, unit=unit)


def loss_fn(model, batch):
    return F.cross_entropy(model(batch[0]), batch[1], reduction="none")


def stretched(batch, generator):
    """A random version of each row."""
    x, y = batch
    return x * (0.5 + torch.rand(len(x), 1, generator=generator, dtype=torch.float64)), y


def masks():
    generator = torch.Generator().manual_seed(2)
    shapes = {name: parameter.shape for name, parameter in network().named_parameters()}
    return {name: torch.rand(shape, generator=generator) < 0.6 for name, shape in shapes.items()}


FEATURES = {
    "rule": {
        "per layer": per_layer(NAMES, {"*bias": Flat(0.1), "*": Global(0.3, 0.9)}),
        "quantile": Quantile(0.5, rate=0.7),
        "global-adapt": GlobalAdapt(0.5, 0.8, rate=0.3),
        "group bounds": GroupBounds("half", 2, 0.5, bounds=(0.2, 0.9)),
    },
    "support": {
        "masks": Fixed(masks()),
        "frozen": Fixed({"0.weight": False, "2.bias": False}),
        "random masks": RandomMasks(0.5, STEPS, STEPS, cooling=False),
        "stages": Stages((1, 2), (0.4, 0.7)),
        "pruning stages": PruningStages((1, 2), (0.4, 0.7)),
        "ranked masks": RankedMasks(0.6, STEPS, STEPS),
    },
    "unit": {"people": OWNERS},
    "augment": {"views": Augment(stretched, 3)},
    "microbatch": {"one by one": 1, "by threes": 3},
    "engine": {"dense": "dense", "loop": "loop"},
    "batches": {"cut": 5, "cut and filled up": 5, "filled up": 16},
}
USUAL = {
    "rule": Flat(0.5), "support": Fixed(), "unit": None, "augment": None, "microbatch": None, "engine": "auto",
    "batches": None,
}  # fmt: skip


def pairs():
    """Each value of each feature with each value of each other one."""
    for first, second in itertools.combinations(FEATURES, 2):
        for one, other in itertools.product(FEATURES[first], FEATURES[second]):
            yield pytest.param({first: one, second: other}, id=f"{one} x {other}")


# ---------------------------------------------------------------------------------------------------- the definition


def shortened(bound, norm):
    return 1.0 if norm <= bound else bound / norm


def factors_by_hand(rule, norms, group):
    """One factor for each block's norm."""
    match rule:
        case GroupBounds(bounds=bounds):
            return [shortened(bounds[group], norms[0])]
        case Quantile(bound=c) | Flat(bound=c):
            return [shortened(c, norms[0])]
        case GlobalAdapt(bound=c, screen=z):
            return [c / max(norms[0], z)]
    return [
        own.bound / own.screen * (norm <= own.screen) if isinstance(own, Global) else shortened(own.bound, norm)
        for own, norm in zip(rule.rules.values(), norms, strict=True)
    ]


def next_by_hand(rule, units, expected):
    """What an adaptive rule becomes after exact counts of (norm, group)."""
    match rule:
        case Quantile(bound=c, target=target, rate=rate):
            below = sum(0.5 if norm <= c else -0.5 for norm, _ in units)
            return replace(rule, bound=c * math.exp(-rate * (below / expected + 0.5 - target)))
        case GlobalAdapt(bound=c, screen=z, rate=rate, tau=tau):
            above = sum(0.5 if norm > tau * z else -0.5 for norm, _ in units)
            return replace(rule, screen=max(c, z * math.exp(above / expected + 0.5 - rate)))
        case GroupBounds(bound=c, limit=limit, groups=count):
            long = [sum(norm > c for norm, group in units if group == k) for k in range(count)]
            size = [sum(group == k for _, group in units) for k in range(count)]
            share = sum(long) / max(sum(size), 1)
            ratio = [long[k] / max(size[k], 1) / share if share else 0.0 for k in range(count)]
            return replace(rule, bounds=tuple(c * min(1 + r, limit) for r in ratio))
    return rule


def gradient_by_hand(model, x, y):
    losses = loss_fn(model, (x, y))
    grads = torch.autograd.grad(losses.mean(), list(model.parameters()))
    return dict(zip(NAMES, grads, strict=True))


def step_by_hand(model, data, drawn, rule, support, augment, seed):
    """The clipped sum of the drawn units, and their (norm, group): one unit at a time."""
    owned = [[int(u)] for u in drawn]
    if data.unit is not None:
        people = sorted(set(data.unit.tolist()))
        owned = [[r for r in range(len(data)) if data.unit[r] == people[u]] for u in drawn]
    widest, views = max(map(len, owned), default=1), augment.views if augment else 1
    stretch = 0.5 + torch.rand(
        len(drawn) * widest * views, 1, generator=torch.Generator().manual_seed(seed), dtype=torch.float64
    )
    total = {name: torch.zeros_like(p) for name, p in model.named_parameters() if support.get(name, True) is not False}
    found = []
    for place, mine in enumerate(owned):
        seen = []
        for number, row in enumerate(mine):
            for view in range(views):
                factor = stretch[(place * widest + number) * views + view] if augment else 1.0
                seen.append((data.x[row] * factor, data.y[row]))
        gradient = gradient_by_hand(model, torch.stack([x for x, _ in seen]), torch.stack([y for _, y in seen]))
        kept = {
            name: gradient[name] if support.get(name, True) is True else gradient[name] * support[name]
            for name in total
        }
        blocks = [[name] for name in rule.rules] if hasattr(rule, "rules") else [[*kept]]
        lengths = [
            math.sqrt(sum(kept[name].square().sum().item() for name in block if name in kept)) for block in blocks
        ]
        group = int(data.groups["half"][mine[0]])
        for block, factor in zip(blocks, factors_by_hand(rule, lengths, group), strict=True):
            for name in block:
                if name in kept:
                    total[name] += factor * kept[name]
        found.append((lengths[0], group))
    return total, found


# ---------------------------------------------------------------------------------------------------- pairs in a step


@dataclass
class Setting:
    """What a pair of features asks for."""

    data: Data
    plan: Mechanism
    runtime: Runtime
    augment: Augment | None


def setting(chosen):
    value = {name: FEATURES[name][chosen[name]] if name in chosen else USUAL[name] for name in FEATURES}
    data, batches = rows(value["unit"]), chosen.get("batches", "")
    sampler = Poisson(data.units, 5 if batches.startswith("cut") else min(8, data.units), value["batches"])
    plan = Mechanism(
        sampler=sampler, clip=value["rule"], noise_multiplier=1.0, steps=STEPS, support=value["support"],
        unit="row" if value["unit"] is None else "person",
    )  # fmt: skip
    runtime = Runtime(
        engine=value["engine"], microbatch=value["microbatch"], padded=batches.endswith("filled up")
    )  # fmt: skip
    return Setting(data, plan, runtime, value["augment"])


def compared(model, how, *, steps=STEPS):
    """Take the steps, and compare gradients, norms and the next rule with the definition; gives the supports."""
    state = State.start(how.plan, insecure_seed=11)
    optimizer, rule, supports = torch.optim.SGD(model.parameters(), lr=LR), how.plan.clip, []
    for step in range(steps):
        seen = []
        drawn = next(how.plan.sampler.batches(state.entropy, step, step + 1))
        seed = state.entropy.integer("forward", step)
        before = copy.deepcopy(model)
        ablated_step(
            model, how.data, loss_fn, optimizer, state, how.runtime, recorders=[seen.append], augment=how.augment,
            ablation="clip-only",
        )  # fmt: skip
        support = seen[0].support
        supports.append(support)
        assert seen[0].units.tolist() == drawn.tolist()
        for plan, mask in pruned(how.plan.support, support):
            assert plan.masked == "zero"
            for name in mask:
                before.get_parameter(name).data.mul_(mask[name])
        total, units = step_by_hand(before, how.data, drawn, rule, support, how.augment, seed)
        for name, parameter in model.named_parameters():
            if name in total:
                torch.testing.assert_close(
                    parameter.grad * how.plan.expected_batch_size, total[name], rtol=1e-6, atol=1e-7
                )
            else:
                assert parameter.grad is None
        assert seen[0].norms[0, : len(drawn)].tolist() == pytest.approx([norm for norm, _ in units], rel=1e-6, abs=1e-9)
        rule = next_by_hand(rule, units, how.plan.expected_batch_size)
        now = state.rule()
        for field in ("bound", "screen", "bounds"):
            if hasattr(rule, field) and getattr(rule, field) is not None:
                assert getattr(now, field) == pytest.approx(getattr(rule, field), rel=1e-6)
    return supports


def pruned(plans, support):
    """Plans that set to zero what they mask, with their masks."""
    for plan in plans.plans if isinstance(plans, Together) else (plans,):
        if isinstance(plan, PruningStages):
            yield plan, {name: mask for name, mask in support.items() if not isinstance(mask, bool)}


@pytest.mark.parametrize("chosen", list(pairs()))
def test_a_pair_of_features_is_the_definition(chosen):
    compared(network(), setting(chosen))


@pytest.mark.parametrize(("feature", "value"), [(f, v) for f in FEATURES for v in FEATURES[f]], ids=str)
def test_a_feature_alone_is_the_definition_and_acts(feature, value):
    """So a pair in which one feature is lost is seen: alone, each feature gives another step than none."""
    with_it, without = network(), network()
    compared(with_it, setting({feature: value}))
    compared(without, setting({}))
    same = all(torch.allclose(a, b, rtol=1e-9) for a, b in zip(with_it.parameters(), without.parameters(), strict=True))
    assert same == (feature in ("microbatch", "engine") or value == "filled up")


# ---------------------------------------------------------------------------------------------------- plans together


@pytest.mark.parametrize("stages", [Stages, PruningStages], ids=lambda kind: kind.__name__)
@pytest.mark.parametrize("microbatch", [None, 3])
def test_random_masks_are_drawn_among_what_stages_leave(stages, microbatch):
    """In each stage the smallest weights of each layer are left out for good, and half of all that is left is masked."""
    plan = together(stages((1, 2), (0.4, 0.7)), RandomMasks(0.5, STEPS, STEPS, cooling=False))
    how = setting({})
    how.plan, how.runtime = replace(how.plan, support=plan), Runtime(microbatch=microbatch)
    model = network()
    taken = []
    state, frozen = State.start(how.plan, insecure_seed=11), {name: set() for name in NAMES}
    optimizer = torch.optim.SGD(model.parameters(), lr=LR, momentum=0.9)
    for share in (0.0, 0.4, 0.7):
        for name in ("0.weight", "2.weight"):
            weight = model.get_parameter(name).detach().flatten().abs()
            order = [place for place in weight.argsort(stable=True).tolist() if place not in frozen[name]]
            frozen[name] |= set(order[: round(share * len(weight)) - len(frozen[name])])
        ablated_step(
            model, how.data, loss_fn, optimizer, state, how.runtime, recorders=[taken.append], ablation="clip-only"
        )
        masks = {name: taken[-1].support.get(name, True) for name in NAMES}
        masks = {
            name: torch.full(model.get_parameter(name).shape, mask) if isinstance(mask, bool) else mask
            for name, mask in masks.items()
        }
        left = sum(mask.numel() for mask in masks.values()) - sum(map(len, frozen.values()))
        assert sum(int(mask.sum()) for mask in masks.values()) == left - round(0.5 * left)
        for name, places in frozen.items():
            assert not masks[name].flatten()[sorted(places)].any()
            held = model.get_parameter(name).detach().flatten()[sorted(places)]
            assert stages is Stages or not held.any()


def test_stages_and_random_masks_are_the_definition():
    how = setting({})
    how.plan = replace(how.plan, support=together(Stages((1, 2), (0.4, 0.7)), RandomMasks(0.5, STEPS, STEPS)))
    compared(network(), how)


# ---------------------------------------------------------------------------------------------------- over a whole run


def stop_at(step):
    def recorder(observation):
        if observation.step == step:
            os.kill(os.getpid(), signal.SIGINT)

    return recorder


RUNS = {
    "secure": {"secure": True},
    "average": {"ema": 0.5},
    "views": {"augment": Augment(lambda rows, g: (rows[0] * torch.rand(len(rows[0]), 1, generator=g), rows[1]), 2)},
    "micro-batches": {"runtime": Runtime(microbatch=3)},
    "adaptive rule": {"plan": tiny.mechanism(clip=Quantile(0.5))},
    "cut and filled up": {
        "plan": tiny.mechanism(sampler=Poisson(tiny.N, tiny.BATCH, 10)), "runtime": Runtime(padded=True),
    },
    "random masks": {"plan": tiny.mechanism(support=RandomMasks(0.5, tiny.STEPS, 4))},
    "an earlier phase": {"ledger": tiny.mechanism(noise_multiplier=60.0).lines()},
}  # fmt: skip


def crossed_runs():
    for one, other in itertools.combinations(RUNS, 2):
        settings = {**RUNS[one], **RUNS[other]}
        if len(settings) == len(RUNS[one]) + len(RUNS[other]):  # the two decide different things
            yield pytest.param(settings, id=f"{one} x {other}")


def run(settings, **more):
    given = {**settings, **more, "insecure_seed": 4}
    if "ledger" in given:
        given["ledger"] = Ledger("add-remove", list(given["ledger"]), unit="row")
    return tiny.run(tiny.model(dropout=0.4), **given)


@pytest.mark.parametrize("settings", list(crossed_runs()))
def test_two_features_stopped_and_resumed_are_the_run_that_was_not(settings, tmp_path):
    whole = run(settings)
    with pytest.raises(Interrupted):
        run(settings, out=tmp_path / "run", recorders=[stop_at(5)])
    resumed = run(settings, out=tmp_path / "run", resume=True)
    assert tiny.same(resumed.model, whole.model)
    assert resumed.ledger.to_dict() == whole.ledger.to_dict()
    assert resumed.history == whole.history
    if whole.averaged is not None:
        assert all(torch.equal(resumed.averaged[name], value) for name, value in whole.averaged.items())


def test_secure_noise_stays_secure_on_resuming(tmp_path):
    """A resumed run with secure noise is neither the ordinary run nor any other."""
    secure, ordinary = run({"secure": True}), run({})
    assert not tiny.same(secure.model, ordinary.model)
    with pytest.raises(Interrupted):
        run({"secure": True}, out=tmp_path / "run", recorders=[stop_at(5)])
    assert tiny.same(run({"secure": True}, out=tmp_path / "run", resume=True).model, secure.model)


@pytest.mark.parametrize("secure", [False, True])
def test_the_average_of_a_run_with_phases_is_that_of_its_last_phase(secure):
    """The average starts at the weights that the earlier phase released, and follows the last one's steps alone."""
    units, path = Data(*tiny.data()), Notes()
    recipe = Recipe(
        model=tiny.model(), data=Splits(units, units, units), loss_fn=tiny.loss_fn, mechanism=tiny.mechanism(),
        optimizer=lambda parameters: torch.optim.SGD(parameters, lr=0.2), ema=0.6,
        phases=(Phase(mechanism=tiny.mechanism(steps=4)),),
    )  # fmt: skip

    def loss_fn(model, batch):
        if model.training and len(path) < 1000:
            path.append(tiny.weights(model).tolist())
        return tiny.loss_fn(model, batch)

    trained = fit(replace(recipe, loss_fn=loss_fn), insecure_seed=3, secure=secure, progress=False)
    last = tiny.weights(trained.model)
    visited = [*(torch.tensor(weights).to(last) for weights in path), last]
    visited = [
        now for now, after in itertools.pairwise([*visited, None]) if after is None or not torch.equal(now, after)
    ]
    visited = visited[-tiny.STEPS - 1 :]  # where the last phase began, and where each of its steps led
    average = visited[0]
    for t, now in enumerate(visited[1:], start=1):
        decay = min(0.6, (1 + t) / (10 + t))
        average = decay * average + (1 - decay) * now
    torch.testing.assert_close(torch.cat([value.flatten() for value in trained.averaged.values()]), average)


# ---------------------------------------------------------------------------------------------------- refused pairs

ROWS = rows()
PEOPLE = rows(OWNERS)
REFUSED = {
    "unlimited batches x filled up": (
        lambda: step(ROWS, sampler=Poisson(16, 8), runtime=Runtime(padded=True)), "max_batch",
    ),
    "people x a mechanism for rows": (lambda: step(PEOPLE, sampler=Poisson(7, 3)), "unit='person'"),
    "people x a number of rows": (lambda: step(PEOPLE, sampler=Poisson(16, 8), unit="person"), "7 units"),
    "group bounds x data without groups": (
        lambda: step(replace(ROWS, groups={}), sampler=Poisson(16, 8), clip=GroupBounds("half", 2)), "no such groups",
    ),
    "group bounds x data that is no Data": (
        lambda: step((ROWS.x, ROWS.y), sampler=Poisson(16, 8), clip=GroupBounds("half", 2)), "no noisewise.Data",
    ),
    "adaptive rule x schedule": (
        lambda: step(ROWS, sampler=Poisson(16, 8), clip=Schedule(((0, Flat(1.0)), (2, Quantile(1.0))))), "adaptive rule",
    ),
    "shuffled batches x add/remove": (lambda: step(ROWS, sampler=Shuffle(16, 8)), "zero-out"),
    "shuffled batches x noise schedule": (
        lambda: step(
            ROWS, sampler=Shuffle(16, 8), adjacency="zero-out", noise_multiplier=Schedule(((0, 1.0), (1, 2.0)))
        ),
        "noise schedule",
    ),
    "cut batches x less room than a batch": (lambda: step(ROWS, sampler=Poisson(16, 8, 7)), "max_batch=7"),
    "masks x another model": (
        lambda: step(ROWS, sampler=Poisson(16, 8), support=Fixed({"9.weight": False})), "9.weight",
    ),
    "views x mixing rows": (
        lambda: step(ROWS, sampler=Poisson(16, 8), augment=Augment(lambda b, g: (b[0].flip(0), b[1]), 2)), "augment",
    ),
    "ghost engine x a parameter without a rule": (
        lambda: step(ROWS, sampler=Poisson(16, 8), runtime=Runtime(engine="ghost"), model=Bare()), "scale",
    ),
}  # fmt: skip


class Bare(nn.Module):
    """A parameter that no layer's rule explains."""

    def __init__(self):
        super().__init__()
        self.body, self.scale = network(), nn.Parameter(torch.ones(3, dtype=torch.float64))

    def forward(self, x):
        return torch.einsum("nk,k->nk", self.body(x), self.scale)


def step(data, *, runtime=None, augment=None, model=None, **plan):
    """One step of a plan."""
    model = model or network()
    mechanism = Mechanism(**{"steps": 4, "noise_multiplier": 1.0, **plan})
    state = State.start(mechanism, insecure_seed=1)
    private_step(model, data, loss_fn, torch.optim.SGD(model.parameters(), lr=1.0), state, runtime, augment=augment)


@pytest.mark.parametrize("pair", REFUSED)
def test_a_pair_that_cannot_be_is_refused_by_name(pair):
    call, words = REFUSED[pair]
    with pytest.raises(NoisewiseError, match=words):
        call()

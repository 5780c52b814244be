"""Every repair, alone and in pairs: it costs what it says, its steps keep the bound, and a killed run goes on as it was."""

import copy
import itertools
import json
import math
import random
import re
from dataclasses import replace

import pytest
import torch

from helpers import compose
from helpers.walking import Walk
from noisewise import report
from noisewise.accounting.ledger import joined
from noisewise.batches import Views
from noisewise.errors import ConfigError, NoisewiseError, NoisewiseWarning, PrivacyError
from noisewise.mechanism import Mechanism
from noisewise.recipe import fit
from noisewise.repairs import LoRA, MovingAverage, Pretraining, Repair, repaired
from noisewise.runs.files import read_json
from noisewise.runs.folder import RunFolder
from noisewise.support import Fixed
from noisewise.training.augmentation import Augment

WITHIN = 1 + 1e-5
EACH = pytest.mark.parametrize("name", compose.ALL)


def made(name):
    return repaired(compose.recipe(), compose.ALL[name]())


def flat_weights(model):
    return torch.cat([parameter.detach().flatten() for parameter in model.parameters()])


# --- cost -------------------------------------------------------------------------------------------------------------


@EACH
def test_the_stated_cost_is_what_happens_to_the_ledger(name):
    before, repair = compose.recipe(), compose.ALL[name]()
    after = repaired(before, repair)
    same = joined(after.lines()) == joined(before.lines())
    assert same == (repair.cost == "free")
    assert after.private == (repair.cost != "not-private")
    epsilons = [changed.epsilon(1e-3) for changed in (before, after)]
    assert (epsilons[0] == epsilons[1]) == (repair.cost == "free")
    assert math.isinf(epsilons[1]) == (repair.cost == "not-private")


SHOWN = [name for name, make in compose.ALL.items() if make().cost == "not-private"]


@pytest.mark.parametrize("name", [*SHOWN, "random sparsification", "pruning, private model", "first phase"])
def test_what_is_not_private_says_so_in_every_artefact(name, tmp_path):
    repair, out = compose.ALL[name](), tmp_path / "run"
    trained = fit(made(name), out=out, progress=False)
    folder = RunFolder(out)
    summary, run, page = read_json(folder.summary), read_json(folder.run), report.render(out)
    open_lines = [line for line in read_json(folder.ledger)["lines"] if line["event"]["kind"] == "not-private"]
    expected = "not-private" if repair.cost == "not-private" else "private"
    assert trained.status.status == run["status"] == summary["privacy"]["status"] == expected
    assert bool(open_lines) == math.isinf(float(summary["privacy"]["epsilon"])) == (expected == "not-private")
    assert math.isinf(float(summary["privacy"]["plan_epsilon"])) == (expected == "not-private")
    assert math.isinf(trained.ledger.epsilon(1e-3)) == (expected == "not-private")
    assert ("not private" in page.lower()) == (expected == "not-private")
    assert [item["name"] for item in summary["repairs"]] == [repair.name]
    assert [item["cost"] for item in summary["repairs"]] == [repair.cost]
    last = json.loads((out / "metrics.jsonl").read_text().splitlines()[-1])
    assert math.isinf(float(last["epsilon"])) == (expected == "not-private")


class Liar(Repair):
    """Does what it is told and says what it is told."""

    changes = reference = "none"

    def __init__(self, change, cost):
        self.name, self.change, self._cost = "liar", change, cost

    @property
    def cost(self):
        return self._cost

    def apply(self, recipe):
        return replace(recipe, mechanism=replace(recipe.mechanism, **self.change))


@pytest.mark.parametrize(
    ("change", "cost", "message"),
    [
        ({"noise_multiplier": 10.0}, "free", "it says that it is free, but what is released changes"),
        ({"steps": 21}, "free", "it says that it is free"),
        ({"support": Fixed({"0.bias": False})}, "ledger", "it says that it spends, but the ledger is unchanged"),
        ({"support": Fixed({"0.bias": False})}, "not-private", "it says that it is not private, but every release"),
        ({"noise_multiplier": 0.0}, "ledger", "a release without noise was added"),
        ({"adjacency": "zero-out"}, "free", "changes the adjacency from add-remove to zero-out"),
        ({"unit": "person"}, "free", "changes the unit from row to person"),
    ],
)
def test_a_repair_that_lies_about_its_cost_is_refused(change, cost, message):
    with pytest.raises(PrivacyError, match=message):
        repaired(compose.recipe(), Liar(change, cost))


@pytest.mark.parametrize("cost", ["free", "ledger", "not-private"])
def test_an_honest_repair_passes(cost):
    change = {
        "free": {"support": Fixed()},
        "ledger": {"noise_multiplier": 70.0},
        "not-private": {"noise_multiplier": 0.0},
    }
    assert repaired(compose.recipe(), Liar(change[cost], cost)).repairs[0].cost == cost


# --- values -----------------------------------------------------------------------------------------------------------


@EACH
def test_recipes_are_values(name):
    """Neither applying nor training changes a recipe; training twice gives the same, and the ledger that was planned."""
    before = compose.recipe()
    start = copy.deepcopy(before.model.state_dict())
    after = repaired(before, compose.ALL[name]())
    begin, lines = copy.deepcopy(after.model.state_dict()), after.lines()
    first, second = (fit(after, insecure_seed=0, progress=False) for _ in range(2))
    for recipe, kept in ((before, start), (after, begin)):
        assert all(torch.equal(value, kept[key]) for key, value in recipe.model.state_dict().items())
    assert torch.equal(flat_weights(first.model), flat_weights(second.model))
    assert first.ledger == second.ledger
    assert after.lines() == lines
    planned = [(line.event, line.count) for line in lines]
    assert [(line.event, line.count) for line in joined(first.ledger.lines)] == planned
    assert before.repairs == ()


@EACH
def test_plans_survive_json(name):
    plan = made(name)
    for mechanism in [plan.mechanism, *(phase.mechanism for phase in plan.phases)]:
        assert Mechanism.from_dict(json.loads(json.dumps(mechanism.to_dict()))) == mechanism


@EACH
def test_every_repair_states_what_it_is(name):
    said = compose.ALL[name]().describe()
    assert json.loads(json.dumps(said)) == said
    assert said["name"]
    assert "20" in said["reference"]
    assert "Reference:" in type(compose.ALL[name]()).__doc__


# --- kill and resume --------------------------------------------------------------------------------------------------


class Stopping:
    """A loss that ends the process at one of its calls."""

    def __init__(self, at=None):
        self.calls, self.at = 0, at

    def __call__(self, model, batch):
        self.calls += 1
        if self.calls == self.at:
            raise KeyboardInterrupt
        return compose.loss_fn(model, batch)


def artefacts(out):
    folder = RunFolder(out)
    metrics = (out / "metrics.jsonl").read_text()
    return folder.model.read_bytes(), read_json(folder.ledger), read_json(folder.summary), metrics


STATEFUL = (  # the other options have no state that their kind has not
    "random, constant rate, two masks an epoch",
    "ranked without noise",
    "stage-wise pruning",
    "first phase, plain",
)


@pytest.mark.parametrize("name", [*compose.KINDS, *STATEFUL])
def test_a_killed_run_goes_on_bit_for_bit(name, tmp_path):
    """Stopped near the end of its last plan, and again when it goes on; each time everything is built anew."""
    counted = Stopping()
    settings = {"insecure_seed": 1, "seed": 4, "progress": False, "checkpoint_seconds": 0}
    whole = fit(replace(made(name), loss_fn=counted), out=tmp_path / "whole", **settings)
    for at in (counted.calls - 4, counted.calls // 4):
        stopping = replace(made(name), loss_fn=Stopping(at))
        with pytest.raises(KeyboardInterrupt):
            fit(stopping, out=tmp_path / "parts", resume=any((tmp_path / "parts").rglob("run.json")), **settings)
    resumed = fit(made(name), out=tmp_path / "parts", resume=True, **settings)
    assert artefacts(tmp_path / "parts") == artefacts(tmp_path / "whole")
    assert torch.equal(flat_weights(resumed.model), flat_weights(whole.model))
    assert resumed.ledger == whole.ledger
    assert list((tmp_path / "parts" / "sensitive").glob("phase-*")) == []


# --- neighbours -------------------------------------------------------------------------------------------------------


def pairs(count, seed=0):
    """Random pairs of all repairs and options that compose."""
    found, names = [], list(itertools.combinations(compose.ALL, 2))
    random.Random(seed).shuffle(names)
    for first, second in names:
        try:
            repaired(compose.recipe(), compose.ALL[first](), compose.ALL[second]())
        except NoisewiseError:
            continue
        found.append((first, second))
        if len(found) == count:
            return found
    raise AssertionError("too few pairs compose")


PAIRS = pairs(10)


def largest_moves(walk, batch=None):
    """How far one unit moves the sum and the rule's answer, from all others and alone."""
    batch = walk.everybody() if batch is None else batch
    whole, answer = walk.clipped(batch, range(compose.N))
    moves, asked = [], []
    for unit in (0, 13, 26):
        others = [k for k in range(compose.N) if k != unit]
        for one, other in ((walk.clipped(batch, others), (whole, answer)), (walk.clipped(batch, [unit]), (0, 0))):
            moves.append(float((one[0] - other[0]).norm()))
            if answer is not None:
                asked.append(float((one[1] - other[1]).norm()))
    return max(moves), max(asked, default=0.0)


def moves_and_bounds(recipe):
    """(move, bound) of the sum and of the rule's answer in the last step, when every mask, rule and view is in force."""
    walk = Walk(recipe, recipe.mechanism.steps - 1)
    moved, asked = largest_moves(walk)
    return (moved, walk.rule.sensitivity * WITHIN), (asked, getattr(walk.rule, "query_sensitivity", 0.0) * WITHIN)


@EACH
def test_one_unit_moves_the_sum_by_at_most_the_sensitivity(name):
    (moved, bound), (asked, most) = moves_and_bounds(made(name))
    assert 0 < moved <= bound
    assert asked <= most


@pytest.mark.parametrize("pair", PAIRS, ids=" + ".join)
def test_one_unit_moves_the_sum_by_at_most_the_sensitivity_through_pairs(pair):
    recipe = repaired(compose.recipe(), *(compose.ALL[name]() for name in pair))
    (moved, bound), (asked, most) = moves_and_bounds(recipe)
    assert 0 < moved <= bound
    assert asked <= most


@pytest.mark.parametrize("name", ["random sparsification", "augmentation", "LoRA", "pruning"])
def test_the_bound_is_reached(name):
    """Otherwise the tests above could pass because everything is short."""
    walk = Walk(made(name), 2)
    assert largest_moves(walk)[0] > 0.999 * walk.rule.sensitivity


def test_mixing_rows_would_break_the_bound():
    """With the check passed over, behaviour gives it away: the views of others change with one unit."""

    def mixed(rows, generator):
        return rows[0] + 5 * rows[0].mean(0), rows[1]

    walk = Walk(compose.recipe(), 2)
    walk.recipe = replace(walk.recipe, augment=Augment(mixed, 1))
    everybody, others = torch.arange(compose.N), torch.arange(1, compose.N)
    units = (
        walk.recipe.data.train.x * torch.where(everybody == 0, 30.0, 1.0).view(-1, 1, 1, 1),
        walk.recipe.data.train.y,
    )
    sums = []
    for chosen in (everybody, others):
        views = Views.single(mixed(tuple(tensor[chosen] for tensor in units), None))
        sums.append(walk.clipped(views, torch.arange(len(chosen)))[0])
    assert float((sums[0] - sums[1]).norm()) > 1.5 * walk.rule.sensitivity


# --- together ---------------------------------------------------------------------------------------------------------


def test_the_order_in_which_repairs_are_given_does_not_matter():
    for first, second in PAIRS:
        one = repaired(compose.recipe(), compose.ALL[first](), compose.ALL[second]())
        other = repaired(compose.recipe(), compose.ALL[second](), compose.ALL[first]())
        assert one.mechanism == other.mechanism
        assert one.lines() == other.lines()
        assert torch.equal(flat_weights(one.model), flat_weights(other.model))


def test_claims_hold_over_several_calls():
    once = repaired(compose.recipe(), compose.ALL["random sparsification"]())
    with pytest.raises(
        ConfigError, match="random sparsification and ranked sparsification cannot be combined: each of"
    ):
        repaired(once, compose.ALL["ranked sparsification"]())
    assert len(repaired(once, MovingAverage()).repairs) == 2


def test_what_should_have_come_first_is_refused_afterwards():
    once = repaired(compose.recipe(), compose.ALL["random sparsification"]())
    with pytest.raises(
        ConfigError, match="first phase comes before random sparsification, which this recipe already has"
    ):
        repaired(once, compose.ALL["first phase"]())


def test_what_is_no_repair_is_refused():
    with pytest.raises(
        ConfigError, match=r"is no repair: derive it from noisewise\.repairs\.Repair, and give an instance"
    ):
        repaired(compose.recipe(), MovingAverage)


def test_epsilon_and_delta_go_together():
    with pytest.raises(ConfigError, match="epsilon and delta go together"):
        repaired(compose.recipe(), epsilon=1.0)


# --- devices ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "device"),
    [("ranked sparsification", "cpu"), *(pytest.param(name, "cuda", marks=pytest.mark.gpu) for name in compose.ALL)],
)
def test_a_killed_run_goes_on_on_any_device(name, device, tmp_path):
    """Masks and sums are saved from, and come back to, where the model is."""

    def on_device(at=None):
        recipe = replace(compose.recipe(), model=compose.network().to(device))
        return replace(repaired(recipe, compose.ALL[name]()), loss_fn=Stopping(at))

    settings = {"insecure_seed": 1, "progress": False, "checkpoint_seconds": 0}
    counted = on_device()
    whole = fit(counted, **settings)
    with pytest.raises(KeyboardInterrupt):
        fit(on_device(counted.loss_fn.calls - 3), out=tmp_path / "parts", **settings)
    resumed = fit(on_device(), out=tmp_path / "parts", resume=True, **settings)
    assert all(parameter.device.type == device for parameter in resumed.model.parameters())
    assert torch.equal(flat_weights(resumed.model), flat_weights(whole.model))


def test_a_repair_that_gives_nothing_back_is_named():
    class Nothing(Repair):
        name = "nothing"

        def apply(self, recipe):
            return None

    with pytest.raises(ConfigError, match=r"repair nothing: apply\(\) gave a NoneType"):
        repaired(compose.recipe(), Nothing())


@pytest.mark.parametrize(
    ("repair", "words"),
    [
        (LoRA(layers=["2"]), r"LoRA\(layers=\['2'\]\): must be one pattern"),
        (Pretraining(weights="pre.pt"), "weights is a str, must be a state dict"),
    ],
)
def test_settings_of_another_kind_are_named(repair, words):
    with pytest.raises(ConfigError, match=words):
        repaired(compose.recipe(), repair)


def test_public_weights_that_are_missing_are_told():
    recipe = compose.recipe()
    first, *others = recipe.model.state_dict().items()
    with pytest.warns(NoisewiseWarning, match=rf"the weights hold no {re.escape(first[0])} \(1 of"):
        started = repaired(recipe, Pretraining(weights=dict(others)))
    assert torch.equal(started.model.state_dict()[first[0]], first[1])

"""Every option of every repair acts: a table of options and proofs, checked to be complete by the signatures.

Two repairs that differ in one option alone are applied to one recipe and trained with the same reproducible noise; what the
table names must differ. How right each option is, other tests say.
"""

import contextlib
import copy
import inspect
import io
from dataclasses import fields
from functools import cache

import pytest
import torch
from torch import nn

from helpers.compose import images, network, other_ledger, recipe, turned
from noisewise import repairs as r
from noisewise.accounting import Ledger
from noisewise.clipping import Flat
from noisewise.errors import NoisewiseError, PrivacyError
from noisewise.recipe import fit
from noisewise.repairs.lora import LowRank
from noisewise.repairs.public import replace_head
from noisewise.runs.folder import Status
from noisewise.training.augmentation import Augment

FOREIGN = {name: weight.detach() for name, weight in network(5).named_parameters()}
OTHER = {name: weight.detach() for name, weight in network(6).named_parameters()}


def total(tensors):
    return {name: value.detach().double().sum().item() for name, value in tensors.items()}


@cache
def watched(repair):
    """A recipe of three epochs with the repair, trained: all that can be seen of it."""
    shown = io.StringIO()
    try:
        with contextlib.redirect_stderr(shown):
            changed = r.repaired(recipe(steps=15), repair.repair)
    except NoisewiseError as error:
        return {"error": str(error)}
    trained = fit(changed, insecure_seed=1, progress=False)
    return {
        "error": None,
        "weights": total(dict(trained.model.named_parameters())),
        "averaged": trained.averaged and total(trained.averaged),
        "ledger": trained.ledger.to_dict(),
        "shown": shown.getvalue(),
    }


class Once:
    """A repair that is compared with several others and trained once; it is itself, whatever its settings are."""

    def __init__(self, repair):
        self.repair = repair


def pruned(source, **how):
    return r.MagnitudePruning(source, **how)


def public(**how):
    given = {"data": images(7, 30, 4, public=True), "epochs": 2, "batch_size": 10, **how}
    return pruned(r.PublicTraining(**given))


def alike(seed):
    """Training on a set of as many classes as the private one has: no other head is drawn by the seed."""
    return public(data=images(7, 30, 3, public=True), lr=1.0, seed=seed)


def records(**how):
    return pruned(r.PrivateRecords(**{"accept_not_private": True, "epochs": 1, "batch_size": 10, **how}))


def model(**how):
    return pruned(r.PrivateModel(**{"weights": FOREIGN, "ledger": other_ledger(), **how}))


def phase(**how):
    return r.FirstPhase(**{"epochs": 1, **how})


def adapt(**how):
    return r.GlobalAdapt(**{"screen": 4.0, "noise": 20.0, **how})


def groups(**how):
    return r.GroupBounds(**{"group": "half", "noise": 20.0, **how})


def stages(**how):
    return r.StagewiseFreezing(**how)


def adam(parameters):
    return torch.optim.Adam(parameters, lr=0.01)


MOVED = Augment(turned, 2)

# class: option: two repairs that differ in it, and what must differ
ADAPT, GROUPS, LORA, RANDOM, STAGES = map(Once, (adapt(), groups(), r.LoRA(2), r.RandomSparsification(0.7), stages()))
CONTROL, MODEL, RECORDS, FAST, PUBLIC, LEARNT = map(
    Once, (pruned(r.AtRandom()), model(), records(), records(lr=1.0), public(), public(lr=1.0))
)
PHASE, VIEWS, RANKED = map(Once, (phase(), r.Augmentation(2), r.RankedSparsification(0.7)))
OPTIONS = {
    r.AtRandom: {"seed": (CONTROL, pruned(r.AtRandom(2)), "weights")},
    r.Augmentation: {
        "views": (VIEWS, r.Augmentation(3), "weights"),
        "function": (VIEWS, r.Augmentation(2, turned), "weights"),
    },
    r.EarlierEpochs: {"epochs": (Once(pruned(r.EarlierEpochs(1))), pruned(r.EarlierEpochs(2)), "weights")},
    r.FineTuning: {"what": (Once(r.FineTuning("biases")), r.FineTuning("last layer"), "weights")},
    r.FirstPhase: {
        "epochs": (Once(phase(clip=Flat(0.2))), phase(clip=Flat(0.2), epochs=2), "weights"),
        "ablation": (PHASE, phase(ablation="clip-only"), "ledger"),
        "clip": (PHASE, phase(clip=Flat(0.2)), "weights"),
        "noise_multiplier": (PHASE, phase(noise_multiplier=60.0), "ledger"),
        "batch_size": (PHASE, phase(batch_size=4), "ledger"),
        "optimizer": (PHASE, phase(optimizer=adam), "weights"),
    },
    r.GlobalAdapt: {
        "screen": (ADAPT, adapt(screen=5.0), "weights"),
        "rate": (ADAPT, adapt(rate=0.3), "weights"),
        "tau": (ADAPT, adapt(tau=0.1), "weights"),
        "noise": (ADAPT, adapt(noise=30.0), "ledger"),
    },
    r.GlobalClipping: {
        "screen": (Once(r.GlobalClipping(10.0)), r.GlobalClipping(20.0), "weights"),
        "lr_factor": (Once(r.GlobalClipping(10.0, 1.0)), r.GlobalClipping(10.0, 0.5), "weights"),
    },
    r.GroupBounds: {
        "group": (GROUPS, groups(group="nobody's"), "error"),
        "limit": (GROUPS, groups(limit=1.2), "weights"),
        "noise": (GROUPS, groups(noise=30.0), "ledger"),
    },
    r.LoRA: {
        "rank": (LORA, r.LoRA(3), "weights"),
        "alpha": (LORA, r.LoRA(2, alpha=8.0), "weights"),
        "layers": (LORA, r.LoRA(2, layers="3"), "weights"),
        "also": (LORA, r.LoRA(2, also=("5.base.bias",)), "weights"),
        "seed": (LORA, r.LoRA(2, seed=1), "weights"),
    },
    r.LocalThenGlobal: {
        "screen": (Once(r.LocalThenGlobal(10.0, 0.6)), r.LocalThenGlobal(20.0, 0.6), "weights"),
        "share": (Once(r.LocalThenGlobal(10.0, 0.6)), r.LocalThenGlobal(10.0, 0.8), "weights"),
    },
    r.MagnitudePruning: {
        "source": (CONTROL, model(), "ledger"),
        "share": (CONTROL, pruned(r.AtRandom(), share=0.5), "weights"),
        "scope": (CONTROL, pruned(r.AtRandom(), scope="model"), "weights"),
    },
    r.MovingAverage: {"decay": (Once(r.MovingAverage(0.1)), r.MovingAverage(0.5), "averaged")},
    r.Pretraining: {
        "source": (Once(r.Pretraining(public().source)), r.Pretraining(public(lr=0.5).source), "weights"),
        "weights": (Once(r.Pretraining(weights=FOREIGN)), r.Pretraining(weights=OTHER), "weights"),
    },
    r.PrivateModel: {
        "weights": (MODEL, model(weights=OTHER), "weights"),
        "ledger": (
            MODEL,
            model(ledger=Ledger("add-remove", recipe(noise_multiplier=60.0).mechanism.lines(), unit="row")),
            "ledger",
        ),
    },
    r.PrivateRecords: {
        "share": (RECORDS, records(share=0.2), "weights"),
        "accept_not_private": (RECORDS, records(accept_not_private=False), "error"),
        "epochs": (RECORDS, records(epochs=3), "weights"),
        "batch_size": (FAST, records(lr=1.0, batch_size=20), "weights"),
        "lr": (RECORDS, records(lr=3.0), "weights"),
        "momentum": (FAST, records(lr=1.0, momentum=0.9), "weights"),
        "seed": (FAST, records(lr=1.0, seed=1), "weights"),
        "progress": (RECORDS, records(progress=True), "shown"),
    },
    r.PublicTraining: {
        "data": (PUBLIC, public(data=images(8, 30, 4, public=True)), "weights"),
        "epochs": (LEARNT, public(lr=1.0, epochs=4), "weights"),
        "batch_size": (LEARNT, public(lr=1.0, batch_size=20), "weights"),
        "lr": (LEARNT, public(lr=3.0), "weights"),
        "momentum": (LEARNT, public(lr=1.0, momentum=0.9), "weights"),
        "augment": (LEARNT, public(lr=1.0, augment=MOVED), "weights"),
        "seed": (Once(alike(0)), alike(1), "weights"),
        "progress": (PUBLIC, public(progress=True), "shown"),
    },
    r.RandomSparsification: {
        "final": (RANDOM, r.RandomSparsification(0.5), "weights"),
        "cooling": (RANDOM, r.RandomSparsification(0.7, cooling=False), "weights"),
        "refreshes": (RANDOM, r.RandomSparsification(0.7, refreshes=2), "weights"),
    },
    r.RankedSparsification: {
        "final": (RANKED, r.RankedSparsification(0.5), "weights"),
        "unnoised": (RANKED, r.RankedSparsification(0.7, unnoised=True), "ledger"),
    },
    r.StagewiseFreezing: {
        "at": (STAGES, stages(at=(0.1, 0.2, 0.3)), "weights"),
        "shares": (STAGES, stages(shares=(0.1, 0.2, 0.3)), "weights"),
        "mode": (STAGES, stages(mode="prune"), "weights"),
        "scope": (STAGES, stages(scope="model"), "weights"),
    },
}


@pytest.mark.parametrize(
    ("repair", "option"),
    [(repair, option) for repair, table in OPTIONS.items() for option in table],
    ids=lambda value: value if isinstance(value, str) else value.__name__,
)
def test_every_option_of_a_repair_acts(repair, option):
    one, other, differs = OPTIONS[repair][option]
    first, second = watched(one), watched(Once(other))
    assert first[differs] != second[differs], f"{option} changes nothing of {differs}"


def test_without_another_option_nothing_differs():
    """So what differs above comes from the option."""
    assert watched(GROUPS) == watched(Once(groups()))
    assert watched(PUBLIC) == watched(Once(public()))


def test_a_head_for_other_classes_follows_from_its_seed():
    heads = []
    for seed in (0, 0, 1):
        own = network()
        assert replace_head(own, 4, seed) == ["5.weight", "5.bias"]
        heads.append(own[5].weight.detach())
    assert torch.equal(heads[0], heads[1])
    assert not torch.equal(heads[0], heads[2])


@pytest.mark.parametrize("repair", OPTIONS, ids=lambda repair: repair.__name__)
def test_a_repair_is_described_with_every_setting(repair):
    """In summary.json: who reads it can repeat the run."""
    for one, other, _ in OPTIONS[repair].values():
        for given in (one.repair, other):
            settings = given.describe()["settings"]
            assert {field.name for field in fields(given)} <= set(settings)
            for name, value in settings.items():
                if isinstance(getattr(given, name, None), int | float | str):
                    assert value == getattr(given, name)


def test_epsilon_and_delta_calibrate_everything_together():
    for epsilon, delta in ((0.1, 1e-3), (0.2, 1e-3), (0.1, 1e-2)):
        found = r.repaired(recipe(steps=4), r.FineTuning(), epsilon=epsilon, delta=delta)
        assert 0.98 * epsilon < found.epsilon(delta) <= epsilon


def test_the_temperature_and_its_status_act():
    free, open_ = Status("private", "public people"), Status("not-private", "private people")
    x = images().x
    outputs = [r.Scaled(network(), r.Temperature(value, free, 40))(x) for value in (1.0, 2.0)]
    torch.testing.assert_close(outputs[0], network()(x))
    torch.testing.assert_close(outputs[1], network()(x) / 2)
    assert [r.Temperature(1.0, status, 40).cost for status in (free, open_)] == ["free", "not-private"]
    with pytest.raises(PrivacyError, match="allow_not_private"):
        r.Scaled(network(), r.Temperature(1.0, open_, 40))
    assert r.Scaled(network(), r.Temperature(1.0, open_, 40), allow_not_private=True).status == open_
    assert r.Temperature(1.0, free, 40).n == 40


SHOWN_ELSEWHERE = {  # by the three tests above, and by tests/repairs/test_temperature.py
    r.repaired: {"recipe", "epsilon", "delta"},
    r.Scaled: {"model", "temperature", "allow_not_private"},
    r.Temperature: {"value", "status", "n"},
    r.temperature: {"model", "data"},
}
FORMULAS = {r.best_sparsity, r.bound_at_sparsity, r.bound_for_momentum, r.noise_term}  # all arguments are the formula's
NO_OPTIONS = {r.check_compatible, r.merged, r.Repair}


def options_of(function):
    several = inspect.Parameter.VAR_POSITIONAL
    return {name for name, parameter in inspect.signature(function).parameters.items() if parameter.kind != several}


def test_no_option_is_without_a_proof():
    public_names = {getattr(r, name) for name in r.__all__ if callable(getattr(r, name)) and name != "Cost"}
    assert public_names == {*OPTIONS, *SHOWN_ELSEWHERE, *FORMULAS, *NO_OPTIONS}
    for function, shown in {**OPTIONS, **SHOWN_ELSEWHERE}.items():
        assert options_of(function) == set(shown), f"{function.__name__}: show that its new option acts, in the table"


@pytest.mark.parametrize(("rank", "alpha"), [(1, 4.0), (2, 6.0), (4, 4.0)])
@pytest.mark.parametrize(
    "base", [nn.Linear(5, 3), nn.Conv2d(5, 3, 3, stride=2, padding=1, dilation=2)], ids=["linear", "conv"]
)
def test_low_rank_additions_are_their_formula(base, rank, alpha):
    """`W x + (alpha / r) B A x`, as one layer with the merged weight computes it."""
    layer = LowRank(base, rank, alpha, torch.Generator().manual_seed(0))
    nn.init.normal_(layer.b)
    merged = copy.deepcopy(base)
    addition = (layer.b.flatten(1) @ layer.a.flatten(1)).view_as(base.weight) * alpha / rank
    merged.weight.data.add_(addition)
    x = torch.randn(2, 5, *[7] * (base.weight.dim() - 2))
    torch.testing.assert_close(layer(x), merged(x), rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(layer.weight, merged.weight, rtol=1e-4, atol=1e-5)

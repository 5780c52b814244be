"""Two courses from one checkpoint share noise only as long as they make the same sums."""

import shutil
from dataclasses import dataclass

import numpy as np
import pytest
import torch

from helpers import tiny
from helpers.crashes import crashed
from noisewise.clipping import Flat, OneBlock, per_layer
from noisewise.runs.states import Keep
from noisewise.runtime import Runtime
from noisewise.sampling import Poisson
from noisewise.support import Fixed
from noisewise.training.augmentation import Augment
from noisewise.training.lineage import behaviour, draws
from noisewise.training.way import way_of

SIZE = 20.0 / tiny.BATCH * 0.2  # of one step's noise in a weight


def own_rule(share):
    @dataclass(frozen=True)
    class Mine(OneBlock):
        bound: float = 1.0

        def factors(self, samples):
            return (share * self.bound / samples.norms).clamp(max=1.0)

    Mine.__qualname__ = "Mine"
    return Mine()


def jittered(rows, generator):
    return rows[0] + torch.randn(rows[0].shape, generator=generator), rows[1]


def frozen():
    network = tiny.model(dropout=0.5)
    network[0].weight.requires_grad_(False)
    return network


OTHERS = {
    "engine": ({}, {"runtime": Runtime(engine="loop")}),
    "micro-batches": ({}, {"runtime": Runtime(microbatch=3)}),
    "memory": ({}, {"runtime": Runtime(memory="small")}),
    "padding": (
        {"plan": tiny.mechanism(sampler=Poisson(tiny.N, tiny.BATCH, 20))},
        {"runtime": Runtime(padded=True)},
    ),
    "versions": ({"augment": Augment(jittered, 4)}, {"augment": Augment(jittered, 1)}),
    "rule": ({"plan": tiny.mechanism(clip=own_rule(1.0))}, {"plan": tiny.mechanism(clip=own_rule(0.5))}),
    "frozen": ({}, {"network": frozen}),
}


def go_on(out, network=lambda: tiny.model(dropout=0.5), **how):
    return tiny.weights(tiny.run(network(), out=out, resume=True, **how).model)


@pytest.mark.parametrize(("how", "other"), OTHERS.values(), ids=OTHERS)
def test_courses_that_make_other_sums_have_other_noise(how, other, tmp_path):
    crashed(tmp_path / "one", network=tiny.model(dropout=0.5), **how)
    for name in ("same", "other"):
        shutil.copytree(tmp_path / "one", tmp_path / name)
    first, same = go_on(tmp_path / "one", **how), go_on(tmp_path / "same", **how)
    assert torch.equal(first, same)
    differences = (go_on(tmp_path / "other", **{**how, **other}) - first).abs()
    assert float(differences.median()) > SIZE / 2


def test_what_no_sum_depends_on_is_no_other_way():
    network, plan = tiny.model(), tiny.mechanism()
    usual = way_of(network, plan, None, None)
    assert usual == way_of(network, plan, Runtime(), None) == way_of(network, plan, Runtime(capture=False), None)
    assert (usual["device"], way_of(network, plan, None, None, draws=False)["device"]) == ("cpu", None)
    assert way_of(network, plan, None, Augment(jittered, np.int64(2)))["views"] == 2
    assert usual["rules"] == []
    assert way_of(network, tiny.mechanism(clip=own_rule(1.0)), None, None)["rules"][0][0] == 1.0
    assert way_of(network, tiny.mechanism(clip=Flat(2.0)), None, None) == usual  # the plan itself is compared


def test_frozen_parameters_need_no_rule(tmp_path):
    rules = per_layer(["2.weight", "2.bias"], own_rule(1.0))
    frozen = Fixed({"0.weight": False, "0.bias": False})
    run = tiny.run(plan=tiny.mechanism(clip=rules, support=frozen), out=tmp_path / "run", delta=1e-3)
    assert run.status.status == "private"


@pytest.mark.parametrize("dropout", [0.0, 0.5])
def test_whether_layers_draw_is_seen(dropout):
    said = behaviour(tiny.model(dropout=dropout), tiny.loss_fn, tiny.data())
    assert draws(said) == (dropout > 0)


def test_a_resumed_run_keeps_the_states_that_it_was_asked_for(tmp_path):
    keep = Keep.evenly(3, tiny.STEPS)
    crashed(tmp_path / "run", keep=keep)
    run = tiny.run(out=tmp_path / "run", resume=True)
    assert {step for step, _ in run.states} == set(keep.steps)

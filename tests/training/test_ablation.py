"""Ablations leave out what they say, and are never private."""

import math

import pytest
import torch

from helpers import tiny
from helpers.loops import DELTA, SEED, assert_equal, by_hand, ours
from helpers.oracles import relative_error, unit_gradients
from helpers.steps import drawn, expected_sum, plan, problem, scaled, steps_of
from noisewise.clipping import Flat
from noisewise.randomness import Entropy
from noisewise.runtime import Runtime
from noisewise.sampling import Poisson
from noisewise.training.state import State


@pytest.mark.parametrize("ablation", ["plain", "clip-only", "noise-only"])
def test_ablations_are_recorded_as_not_private(ablation):
    state = State.start(plan(Poisson(n=20, batch_size=4), 3), insecure_seed=10)
    steps_of(problem(), state, 3, ablation=ablation)
    assert state.ledger.releases == 3
    assert state.ledger.epsilon(1e-5) == math.inf


def test_ablations_leave_out_what_they_say():
    """Seed 11: plain has neither clipping nor noise, clip-only no noise, noise-only no clipping."""
    setup, mechanism = problem(), plan(Poisson(n=20, batch_size=4), 1, 0.5)
    units = drawn(mechanism, 11, 0)
    grads = {
        ablation: steps_of(setup, State.start(mechanism, insecure_seed=11), 1, ablation=ablation)[0]
        for ablation in ("private", "plain", "clip-only", "noise-only")
    }
    unclipped = {name: grad[units].sum(0) / 4 for name, grad in unit_gradients(setup).items()}
    assert relative_error(grads["plain"], unclipped) < 1e-9
    assert relative_error(grads["clip-only"], scaled(expected_sum(setup, units, Flat(0.5)), 1 / 4)) < 1e-9
    noise = {name: grads["noise-only"][name] - unclipped[name] for name in unclipped}
    assert relative_error({name: grads["clip-only"][name] + noise[name] for name in noise}, grads["private"]) < 1e-9


# --- ablations --------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("ablation", "parts"),
    [
        ("plain", {"clip": False, "noise": False}),
        ("clip-only", {"clip": True, "noise": False}),
        ("noise-only", {"clip": False, "noise": True}),
        ("private", {"clip": True, "noise": True}),
    ],
)
@pytest.mark.parametrize("microbatch", [None, 3])
def test_ablations_leave_out_one_part_each(ablation, parts, microbatch):
    reference = tiny.model(torch.float64)
    by_hand(reference, tiny.mechanism(), tiny.sgd(reference), **parts)
    assert_equal(ours(ablation=ablation, runtime=Runtime(microbatch=microbatch)).model, reference)


def test_plain_is_ordinary_sgd_on_the_same_batches():
    """The loss of a batch, summed and divided by the expected size, through `backward`."""
    reference, entropy = tiny.model(torch.float64), Entropy.insecure(SEED)
    optimizer, units = tiny.sgd(reference), tiny.data(dtype=torch.float64)
    for batch in Poisson(tiny.N, tiny.BATCH).batches(entropy, 0, tiny.STEPS):
        optimizer.zero_grad()
        loss = tiny.loss_fn(reference, tuple(tensor[batch] for tensor in units)).sum() / tiny.BATCH
        loss.backward()
        optimizer.step()
    assert_equal(ours(ablation="plain").model, reference)


def test_noise_only_is_as_strong_as_the_sensitivity_says():
    """One step from noise alone: the noise of `noise-only` is sigma * C, however long the gradients are."""
    steps = {}
    for bound in (1e-3, 10.0):
        plan = tiny.mechanism(clip=Flat(bound), noise_multiplier=2.0, steps=1)
        runs = {ablation: tiny.weights(ours(plan, ablation=ablation).model) for ablation in ("plain", "noise-only")}
        steps[bound] = (runs["noise-only"] - runs["plain"]) / bound
    torch.testing.assert_close(steps[1e-3], steps[10.0], rtol=1e-6, atol=1e-9)
    noise = steps[10.0] * tiny.BATCH / 0.2
    assert noise.std().item() == pytest.approx(2.0, rel=0.35)  # 57 draws


@pytest.mark.parametrize("ablation", ["plain", "clip-only", "noise-only"])
def test_ablations_are_marked_and_infinitely_expensive_everywhere(ablation, tmp_path):
    trained = tiny.run(ablation=ablation, out=tmp_path)
    assert trained.status.status == "not-private"
    assert ablation in trained.status.reason
    assert trained.ledger.epsilon(DELTA) == math.inf
    assert trained.ledger.releases == tiny.STEPS
    assert all(line["epsilon"] == math.inf for line in trained.history)


def test_plain_needs_no_noise_multiplier(tmp_path):
    trained = tiny.run(plan=tiny.mechanism(noise_multiplier=None), ablation="plain", out=tmp_path)
    assert trained.status.status == "not-private"

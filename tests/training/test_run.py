"""What a run keeps beside its weights: averages, modes, held-out losses, readings of epsilon."""

import copy

import pytest
import torch

from helpers import tiny
from helpers.loops import DELTA
from noisewise.errors import NoisewiseWarning
from noisewise.sampling import FullBatch
from noisewise.training.loop import train


def test_epsilon_in_the_history_is_that_of_its_step():
    history = tiny.run(delta=DELTA).history
    assert [line["step"] for line in history] == [5, 10, 12]
    for line in history:
        exact = tiny.mechanism(steps=line["step"]).epsilon(DELTA)
        assert exact * (1 - 1e-6) <= line["epsilon"] <= 1.05 * exact
    assert history[-1]["epsilon"] == tiny.mechanism().epsilon(DELTA)


def test_epsilon_that_callbacks_are_told_is_that_of_its_step():
    told = []
    tiny.run(delta=DELTA, callbacks=[lambda one: told.append((one.step, one.epsilon))])
    assert [step for step, epsilon in told if epsilon is not None] == [5, 10, 12]
    for step, epsilon in told:
        exact = tiny.mechanism(steps=step).epsilon(DELTA)
        assert epsilon is None or exact * (1 - 1e-6) <= epsilon <= 1.05 * exact


def test_long_runs_read_epsilon_twenty_times_and_at_the_end():
    history = tiny.run(plan=tiny.mechanism(sampler=FullBatch(tiny.N), steps=50, noise_multiplier=50.0)).history
    assert len(history) == 50
    assert [line["step"] for line in history if line["epsilon"] is not None] == [*range(3, 50, 3), 50]


# --- the rest of the interface ----------------------------------------------------------------------------------------
@pytest.mark.parametrize("ema", [0.999, 0.5])
def test_the_moving_average_is_its_definition(ema):
    network = tiny.model(torch.float64)
    path = [tiny.weights(network)]
    trained = tiny.run(network, ema=ema, recorders=[lambda _: path.append(tiny.weights(network))])
    path = [*path[2:], tiny.weights(network)]  # the recorder of step t sees the weights before it
    average = tiny.weights(tiny.model(torch.float64))
    for t, now in enumerate(path, start=1):
        decay = min(ema, (1 + t) / (10 + t))
        average = decay * average + (1 - decay) * now
    torch.testing.assert_close(torch.cat([a.flatten() for a in trained.averaged.values()]), average)


def test_no_average_unless_asked_for():
    assert tiny.run().averaged is None


def test_training_changes_the_model_it_was_given_and_keeps_its_modes():
    network = tiny.model(dropout=0.5)
    network[2].eval()  # dropout switched off by hand
    before = tiny.weights(network)
    trained = tiny.run(network, valid=tiny.data())
    assert trained.model is network
    assert not torch.equal(tiny.weights(network), before)
    assert network.training
    assert not network[2].training


def test_evaluation_mode_is_kept_too():
    network = tiny.model(dropout=0.5).eval()
    with pytest.warns(NoisewiseWarning, match="drops nothing while it trains: call model.train"):
        tiny.run(network, valid=tiny.data())
    assert not any(module.training for module in network.modules())


def test_modes_are_restored_when_validation_fails():
    network = tiny.model(dropout=0.5)

    def loss_fn(model, batch):
        if len(batch[1]) == 77:
            raise FloatingPointError
        return tiny.loss_fn(model, batch)

    with pytest.raises(FloatingPointError):
        train(network, tiny.data(), loss_fn, tiny.mechanism(), tiny.sgd(network), valid=tiny.data(n=77), progress=False)
    assert network[2].training


def test_valid_loss_is_the_mean_over_held_out_units():
    network, held_out = tiny.model(dropout=0.5), tiny.data(n=11)
    history = tiny.run(network, valid=held_out).history
    with torch.no_grad():
        expected = tiny.loss_fn(copy.deepcopy(network).eval(), held_out).mean().item()
    assert history[-1]["valid_loss"] == pytest.approx(expected, rel=1e-6)

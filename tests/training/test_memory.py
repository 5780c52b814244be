"""Memory that runs out: smaller micro-batches, the same end."""

import re
import warnings
from contextlib import contextmanager

import pytest
import torch

from helpers import tiny
from helpers.notes import Notes
from noisewise.errors import MemoryWarning, RunError
from noisewise.runtime import Runtime
from noisewise.training.loop import train
from noisewise.training.state import State
from noisewise.training.step import private_step

SEED = 5


class Crash(Exception):
    pass


def crash(observation):
    if observation.step == 5:
        raise Crash


# --- batches that do not fit in memory --------------------------------------------------------------------------------
CPU = "[enforce fail at alloc_cpu.cpp:119] err == 0. DefaultCPUAllocator: can't allocate memory: you tried to allocate"

FAILURES = [
    RuntimeError(CPU),
    RuntimeError("DefaultCPUAllocator: not enough memory: you tried to allocate 9999 bytes."),
    torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 20.00 MiB."),
    MemoryError(),
]


def memory_for(most, failure=FAILURES[0]):
    """A loss for which there is memory for `most` rows at a time, and the sizes it was asked for."""
    asked = Notes()

    def loss_fn(model, batch):
        asked.append(len(batch[0]))
        if asked[-1] > most:
            raise failure
        return tiny.loss_fn(model, batch)

    return loss_fn, asked


def trained(loss_fn, **settings):
    network = tiny.model(torch.float64)
    return train(
        network, tiny.data(dtype=torch.float64), loss_fn, tiny.mechanism(), tiny.sgd(network),
        insecure_seed=SEED, progress=False, **settings,
    )  # fmt: skip


@contextmanager
def one_warning_without_sizes():
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        yield
    (warning,) = caught
    assert warning.category is MemoryWarning
    assert re.search(r"did not fit in memory.*micro-batches, halved.*Runtime\(microbatch=", str(warning.message))
    assert not re.search(r"\d", str(warning.message))  # how many units a batch had is private


@pytest.mark.parametrize("failure", FAILURES, ids=lambda failure: type(failure).__name__)
@pytest.mark.parametrize("ablation", ["private", "plain"])
def test_micro_batches_are_halved_and_the_run_goes_on_to_the_same_end(failure, ablation):
    loss_fn, asked = memory_for(3, failure)
    with one_warning_without_sizes():
        run = trained(loss_fn, ablation=ablation)
    expected = trained(tiny.loss_fn, ablation=ablation)
    torch.testing.assert_close(tiny.weights(run.model), tiny.weights(expected.model), rtol=1e-9, atol=1e-12)
    assert run.ledger == expected.ledger
    failed = [k for k, size in enumerate(asked) if size > 3]
    assert 1 <= len(failed) <= 6  # while the model is examined, and halved a few times in the beginning; the size stays
    assert sum(asked[failed[-1] :]) > tiny.STEPS


@pytest.mark.parametrize("engine", ["auto", "dense", "loop"])
def test_what_a_user_set_is_halved_too(engine):
    loss_fn, _ = memory_for(3)
    if engine == "auto":
        with one_warning_without_sizes():
            run = trained(loss_fn, runtime=Runtime(microbatch=5, engine=engine))
    else:  # one unit at a time for the loss: nothing to be halved
        run = trained(loss_fn, runtime=Runtime(microbatch=5, engine=engine))
    torch.testing.assert_close(
        tiny.weights(run.model), tiny.weights(trained(tiny.loss_fn).model), rtol=1e-9, atol=1e-12
    )


def test_an_allocator_that_fails_within_the_dense_engine_is_seen_too():
    fails = []

    def loss_fn(model, batch):
        if fails:
            raise fails.pop()
        return tiny.loss_fn(model, batch)

    def fill(observation):
        if observation.step == 3:
            fails.append(FAILURES[0])

    with one_warning_without_sizes():
        run = trained(loss_fn, runtime=Runtime(engine="dense"), recorders=[fill])
    torch.testing.assert_close(
        tiny.weights(run.model), tiny.weights(trained(tiny.loss_fn).model), rtol=1e-9, atol=1e-12
    )


def test_a_unit_that_does_not_fit_alone_ends_the_run_and_it_can_be_resumed(tmp_path):
    enough, steps = [True], []

    def loss_fn(model, batch):
        if not enough[0]:
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 20.00 MiB.")
        return tiny.loss_fn(model, batch)

    def fill(observation):
        steps.append(observation.step)
        enough[0] = observation.step != 6

    with (
        pytest.warns(MemoryWarning),
        pytest.raises(
            RunError, match=r"does not fit in the memory that is free.*End what else.*smaller model.*then resume"
        ),
    ):
        trained(loss_fn, out=tmp_path, checkpoint_seconds=0, recorders=[fill])
    enough[0] = True
    resumed = trained(tiny.loss_fn, out=tmp_path, resume=True)
    expected = tiny.weights(trained(tiny.loss_fn).model)
    torch.testing.assert_close(tiny.weights(resumed.model), expected, rtol=1e-9, atol=1e-12)
    assert steps == list(range(7))


def test_the_size_that_fitted_survives_an_interruption(tmp_path):
    """Otherwise a resumed run would add up in another order than the one that was not interrupted."""
    with pytest.warns(MemoryWarning):
        expected = trained(memory_for(3)[0]).model
    with pytest.warns(MemoryWarning), pytest.raises(Crash):
        trained(memory_for(3)[0], out=tmp_path, checkpoint_seconds=0, recorders=[crash])
    loss_fn, asked = memory_for(3)
    assert tiny.same(trained(loss_fn, out=tmp_path, resume=True).model, expected)  # and no second warning
    assert max(asked[-tiny.STEPS :]) <= 3


def test_other_errors_of_a_loss_are_not_taken_for_a_lack_of_memory():
    network, broken = tiny.model(), Notes()

    def loss_fn(model, batch):
        if len(broken):
            raise RuntimeError("mat1 and mat2 shapes cannot be multiplied")
        return tiny.loss_fn(model, batch)

    state = State.start(tiny.mechanism(), insecure_seed=SEED)
    private_step(network, tiny.data(), loss_fn, tiny.sgd(network), state)
    broken.append(True)
    with pytest.raises(RuntimeError, match="mat1 and mat2"):
        private_step(network, tiny.data(), loss_fn, tiny.sgd(network), state)
    assert state.step == 1
    assert state.microbatch is None

"""The state of a run: its noise is its own, whatever is copied, forked or pickled."""

import copy
import json
import os
import pickle
import shutil
from dataclasses import replace

import pytest
import torch

from helpers import tiny
from helpers.lineage import SEED, Crash, fresh_model, interrupted, other_data
from noisewise.accounting import Ledger
from noisewise.clipping import Flat
from noisewise.errors import PrivacyError
from noisewise.mechanism import Mechanism
from noisewise.randomness import Entropy
from noisewise.runs.folder import RunFolder
from noisewise.runs.tensors import load_tensors
from noisewise.sampling import Poisson, Shuffle
from noisewise.training.state import State
from noisewise.training.step import private_step


# --- noise is drawn once ----------------------------------------------------------------------------------------------
def copies(state):
    return [copy.copy(state), copy.deepcopy(state), pickle.loads(pickle.dumps(state))]


def drawn(folder):
    """Where the next step's noise comes from, by the checkpoint."""
    secret = load_tensors(RunFolder(folder).checkpoint)["entropy"]
    return [secret[name] for name in ("origin", "chain")]


def test_branches_of_another_learning_rate_part_ways_in_their_noise(tmp_path):
    """The schedule is a function, which no checkpoint holds: the folder's copy is resumed with another one."""

    def halving(optimizer):
        return torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 0.5**step)

    def thirds(optimizer):
        return torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 0.3**step)

    interrupted(tmp_path / "a", scheduler=halving)
    for name in ("b", "c"):
        shutil.copytree(tmp_path / "a", tmp_path / name)

    def stop(observation):
        seen.append(observation.units.tolist())
        if observation.step == 9:
            raise Crash

    batches, ways = [], {"a": halving, "b": halving, "c": thirds}
    for name, schedule in ways.items():
        seen = []
        with pytest.raises(Crash):
            tiny.run(out=tmp_path / name, resume=True, checkpoint_seconds=0, scheduler=schedule, recorders=[stop])
        batches.append(seen)
    assert drawn(tmp_path / "a") == drawn(tmp_path / "b")
    assert drawn(tmp_path / "a")[0] == drawn(tmp_path / "c")[0]
    assert drawn(tmp_path / "a")[1] != drawn(tmp_path / "c")[1]
    assert batches[0] == batches[1]
    assert batches[0][:2] == batches[2][:2]  # the step that was repeated, and the one whose rate is still the saved one
    assert batches[0][2:] != batches[2][2:]


def noise_of(state, units=None, network=None):
    """What one step on a bound far below the noise leaves in the gradient, divided by its scale."""
    network = tiny.model() if network is None else network
    private_step(network, tiny.data() if units is None else units, tiny.loss_fn, tiny.sgd(network), state)
    gradient = torch.cat([parameter.grad.flatten() for parameter in network.parameters()])
    return gradient * tiny.BATCH / (state.mechanism.noise_multiplier * state.mechanism.clip.bound)


LOUD = {"noise_multiplier": 1e6, "clip": Flat(1e-3)}


def test_the_same_root_draws_other_noise_for_other_data_and_other_weights():
    entropy, ends = Entropy.fresh(), []
    for units, network in ((None, None), (None, None), (other_data(), None), (None, fresh_model())):
        state = State(tiny.mechanism(**LOUD), Ledger(identity=None))
        state.entropy = entropy  # as resuming does
        ends.append(noise_of(state, units, network))
    torch.testing.assert_close(ends[0], ends[1])
    for other in ends[2:]:
        assert abs(torch.corrcoef(torch.stack([ends[0], other]))[0, 1]) < 0.6  # 57 draws: over four deviations


def test_under_an_insecure_seed_the_noise_is_the_same_for_any_data():
    ends = [
        noise_of(State.start(tiny.mechanism(**LOUD), insecure_seed=SEED), units, network)
        for units, network in ((None, None), (other_data(), fresh_model()))
    ]
    torch.testing.assert_close(ends[0], ends[1], atol=1e-3, rtol=1e-3)


def test_a_copy_of_a_state_has_noise_of_its_own_and_shows_no_root():
    state = State.start(tiny.mechanism(**LOUD))
    network = tiny.model()
    private_step(network, tiny.data(), tiny.loss_fn, tiny.sgd(network), state)
    written = pickle.dumps(state)
    assert state.entropy.root.to_bytes(32, "little") not in written
    made = [*copies(state), pickle.loads(written), pickle.loads(written)]
    roots = {each.entropy.root for each in made}
    assert len(roots | {state.entropy.root, 0}) == len(made) + 2
    assert all((each.step, each.ledger.releases) == (1, 1) for each in made)
    ends = [noise_of(each, network=copy.deepcopy(network)) for each in (state, *made)]
    for other in ends[1:]:
        assert abs(torch.corrcoef(torch.stack([ends[0], other]))[0, 1]) < 0.6


def test_a_copy_of_a_reproducible_state_stays_reproducible():
    state = State.start(tiny.mechanism(), insecure_seed=SEED)
    assert [each.entropy for each in copies(state)] == [state.entropy] * 3


def test_an_epoch_of_shuffled_batches_is_not_divided():
    plan = tiny.mechanism(sampler=Shuffle(tiny.N, tiny.BATCH), adjacency="zero-out")
    network, state, seen = tiny.model(), State.start(plan), []
    optimizer = tiny.sgd(network)
    for step in range(10):
        if step % 5:
            for duplicate in (copy.copy, copy.deepcopy, pickle.dumps):
                with pytest.raises(PrivacyError, match=rf"step {step}, within an epoch of shuffled batches"):
                    duplicate(state)
        else:
            assert len(copies(state)) == 3
        private_step(
            network, tiny.data(), tiny.loss_fn, optimizer, state, recorders=[lambda o: seen.extend(o.units.tolist())]
        )
    assert sorted(seen[:40]) == sorted(seen[40:]) == list(range(40))  # whatever the chain: each once an epoch
    assert seen[:40] != seen[40:]


def test_samplers_of_a_bound_root_keep_their_rate():
    """Binding changes the root, not the law: 450 bound roots, one batch each; false alarms 2e-9, 2.7 % more or less show."""
    drawn = [len(next(Poisson(1000, 100).batches(Entropy.fresh().bound(b"data"), 0, 1))) for _ in range(450)]
    assert abs(sum(drawn) / 450 - 100) < 6 * (90 / 450) ** 0.5


def _released(state, loss_fn):
    """One step from the same start, with noise far above the bound: what is released is the noise."""
    torch.manual_seed(1)
    model = torch.nn.Linear(6, 3)
    private_step(model, PEOPLE, loss_fn, torch.optim.SGD(model.parameters(), lr=0.1), state)
    return torch.cat([parameter.grad.flatten() for parameter in model.parameters()])


def _plain(model, batch):
    return torch.nn.functional.cross_entropy(model(batch[0]), batch[1], reduction="none")


def _smoothed(model, batch):
    return torch.nn.functional.cross_entropy(model(batch[0]), batch[1], reduction="none", label_smoothing=0.3)


PEOPLE = (torch.randn(40, 6, generator=torch.Generator().manual_seed(0)), torch.arange(40) % 3)

NOISY = Mechanism(sampler=Poisson(n=40, batch_size=10), clip=Flat(1e-3), steps=3, noise_multiplier=1e3)


def _apart(one, two):
    return float((one - two).norm() / one.norm()) > 0.1


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork on this system")
def test_a_forked_process_draws_noise_of_its_own():
    state = State.start(NOISY)
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            os.write(writing, json.dumps(_released(state, _smoothed).tolist()).encode())
        finally:
            os._exit(0)  # whatever happened: the child is not a second test run
    os.close(writing)
    with os.fdopen(reading, "rb") as answer:
        theirs = torch.tensor(json.loads(answer.read()))
    os.waitpid(child, 0)
    assert _apart(_released(state, _plain), theirs)


@pytest.mark.parametrize("again", [replace, lambda state: State(NOISY, Ledger(unit="row"), state.entropy)])
def test_two_states_of_one_root_share_no_noise(again):
    state = State.start(NOISY)
    other = again(state)
    assert _apart(_released(state, _plain), _released(other, _smoothed))

"""A Dataset read by index: the same run as on tensors, with any number of workers, bit for bit."""

import random

import numpy as np
import pytest
import torch
from torch.utils.data import Dataset, TensorDataset

from helpers import tiny
from helpers.items import OwnChance, Ragged, Rows, Words
from noisewise.accounting import Ledger
from noisewise.data.indexed import Indexed, readable
from noisewise.data.marks import mark_of
from noisewise.errors import ConfigError, DataError, RunError
from noisewise.training.state import State
from noisewise.training.step import private_step


def trained(units, **settings):
    return tiny.weights(tiny.run(units=units, insecure_seed=3, **settings).model)


def test_a_dataset_is_trained_on_as_its_tensors_are():
    assert torch.equal(trained(Rows()), trained(tiny.data()))
    assert torch.equal(trained(TensorDataset(*tiny.data())), trained(tiny.data()))


@pytest.mark.parametrize("chance", [0.0, 1.0])
def test_workers_change_nothing(chance):
    """Also where items draw at random, and the same again on a second run."""
    here = trained(Indexed(Rows(chance)))
    assert torch.equal(here, trained(Indexed(Rows(chance), num_workers=2)))
    assert torch.equal(here, trained(tiny.data())) == (chance == 0)


class Mapped(Dataset):
    """Rows of numbers in two files, as docs/several_processes.md reads them."""

    def __init__(self, folder):
        self.x = np.load(f"{folder}/x.npy", mmap_mode="r")
        self.y = np.load(f"{folder}/y.npy", mmap_mode="r")

    def __len__(self):
        return len(self.y)

    def __getitem__(self, index):
        return torch.from_numpy(self.x[index].copy()), int(self.y[index])


def test_rows_of_mapped_files_are_trained_on_as_tensors_are(tmp_path):
    for name, part in zip("xy", tiny.data(), strict=True):
        np.save(tmp_path / f"{name}.npy", part.numpy())
    assert torch.equal(trained(Indexed(Mapped(tmp_path), num_workers=2)), trained(tiny.data()))


def test_the_next_batch_is_known_before_it_is_asked_for(monkeypatch):
    """Also where the noise is secret and the learning rate falls: every batch that was read ahead is the one drawn next."""
    asked, begun = [], []
    data = Indexed(Rows(), num_workers=1)
    monkeypatch.setattr(data._reader, "workers", 0)  # nobody reads but this process
    monkeypatch.setattr(data, "ahead", lambda index, seed: begun.append((index.tolist(), seed)))
    rows = data.rows

    def noted(index, seed=0):
        asked.append((index.tolist(), seed))
        return rows(index, seed)

    monkeypatch.setattr(data, "rows", noted)
    network = tiny.model()
    optimizer, state = tiny.sgd(network), State.start(tiny.mechanism())
    schedule = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.9)
    for _ in range(tiny.STEPS):
        private_step(network, data, tiny.loss_fn, optimizer, state)
        schedule.step()
    assert len(begun) == tiny.STEPS - 1
    assert asked[-len(begun) :] == begun


def test_batches_that_nobody_asks_for_are_thrown_away():
    with Indexed(Rows(), num_workers=2) as data:
        data.ahead(torch.tensor([1, 2, 3]), 5)
        x, _ = data.rows(torch.tensor([7, 9]), 5)
        assert torch.equal(x, tiny.data()[0][[7, 9]])
        data.ahead(torch.tensor([4]), 5)
        assert torch.equal(data.rows(torch.tensor([4]), 5)[0], tiny.data()[0][[4]])


def test_workers_end_when_they_are_told_to_and_start_again():
    with Indexed(Rows(), num_workers=1) as data:
        data.rows(torch.arange(2))
        worker = data._reader._loader._iterator._workers[0]
        assert worker.is_alive()
        data.close()
        worker.join(10)
        assert not worker.is_alive()
        assert torch.equal(data.rows(torch.arange(2))[0], tiny.data()[0][:2])


@pytest.mark.parametrize("workers", [0, 1])
def test_generators_of_the_program_are_left_alone(workers):
    before = torch.get_rng_state(), random.getstate(), np.random.get_state()[1].tolist()
    with Indexed(Rows(1.0), num_workers=workers) as data:
        data.rows(torch.arange(3), 1)
    assert torch.equal(torch.get_rng_state(), before[0])
    assert (random.getstate(), np.random.get_state()[1].tolist()) == before[1:]


def test_what_an_item_draws_follows_from_seed_and_index():
    data = Indexed(Rows(1.0))
    x = data.rows(torch.arange(6), 4)[0]
    assert torch.equal(data.rows(torch.tensor([5, 2]), 4)[0], x[[5, 2]])
    assert not torch.equal(data.rows(torch.arange(6), 5)[0], x)
    assert len(set((x - tiny.data()[0][:6])[:, 0].tolist())) == 6


def test_the_mark_is_that_of_all_items():
    units = tiny.data()
    other = units[0].clone(), units[1]
    other[0][-1, -1] += 1
    marks = {mark_of(Indexed(Rows())), mark_of(Indexed(Rows(1.0))), mark_of(Indexed(Rows(units=other)))}
    assert len(marks) == 3
    assert mark_of(Indexed(Rows(1.0))) == mark_of(Indexed(Rows(1.0)))


def test_with_an_identity_nothing_is_read_before_it_is_drawn():
    rows = Rows()
    assert mark_of(Indexed(rows, identity="a")) != mark_of(Indexed(rows, identity="b"))
    assert Indexed(rows, identity="a").extremes == {}
    assert rows.read == []


@pytest.mark.parametrize("of", ["torch", "numpy", "random", "system"])
def test_items_that_differ_when_they_are_read_again_are_refused(of):
    ledger = Ledger("add-remove", unit="row")
    for data in (OwnChance(of), Indexed(OwnChance(of), identity="with a name")):
        with pytest.raises(
            DataError, match=r"item 0 of OwnChance is another one when it is read again.*augment=Augment"
        ):
            tiny.run(units=data, ledger=ledger)
    assert ledger.lines == []


def test_items_that_differ_are_refused_where_workers_read():
    with Indexed(OwnChance("numpy"), num_workers=2) as data, pytest.raises(DataError, match="read again"):
        tiny.run(units=data)


def test_some_items_of_the_whole_set_are_read_twice():
    last = OwnChance("numpy", every=tiny.N - 1)  # the first and the last
    last.draw = iter([0.0, 1.0, 0.0, 2.0]).__next__
    with pytest.raises(DataError, match=f"item {tiny.N - 1} of"):
        Indexed(last).check_steady()
    rows = Rows()
    Indexed(rows).check_steady()
    assert len(rows.read) == 16
    assert set(rows.read) >= {0, tiny.N - 1}


def test_chance_that_follows_from_the_seed_is_no_reason_to_refuse():
    units = tiny.data()
    units[0][0, 0] = float("nan")
    Indexed(Rows(1.0, units)).check_steady()
    one = Indexed(Rows(1.0, tuple(tensor[:1] for tensor in units)))
    assert one.check_steady() is None


def test_resuming_on_other_items_is_refused(tmp_path):
    def stop(observation):
        if observation.step == 4:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        tiny.run(units=Rows(), out=tmp_path, recorders=[stop], checkpoint_seconds=0.0)
    with pytest.raises(RunError, match="other data"):
        tiny.run(units=Rows(1.0), out=tmp_path, resume=True)
    assert tiny.run(units=Rows(), out=tmp_path, resume=True).ledger.lines == tiny.mechanism().lines()


def test_held_out_items_are_asked_as_tensors_are():
    inside = tiny.run(insecure_seed=3, valid=tiny.data(11)).history
    assert tiny.run(insecure_seed=3, valid=Rows(units=tiny.data(11))).history == inside


def test_one_dataset_is_looked_through_once():
    rows = Rows()
    assert readable(rows) is readable(rows)
    tiny.run(units=rows)
    read = len(rows.read)
    tiny.run(units=rows, insecure_seed=1)
    assert len(rows.read) - read < tiny.N * tiny.STEPS


def test_a_dataset_that_was_changed_is_other_data_for_the_next_run():
    rows = Rows()
    data = readable(rows)
    before = data.mark
    rows.x[0] += 1.0
    assert data.mark == before  # within a run it is not read again
    data.look_again()
    assert data.mark != before


@pytest.mark.parametrize(
    ("make", "error", "words"),
    [
        (lambda: Indexed(iter([1])), DataError, "cannot be read by index"),
        (lambda: Indexed(Rows(), num_workers=-1), ConfigError, "num_workers=-1"),
        (lambda: Indexed(Rows(), identity=3), ConfigError, "identity=3"),
        (lambda: Indexed(Rows(units=tiny.data(0))), DataError, "without items"),
        (lambda: Indexed(Words()).like, DataError, "hold no tensor, but 'a word'"),
        (lambda: Indexed(Ragged()).rows(torch.arange(2)), DataError, "of one shape"),
        (lambda: list(Indexed(Ragged(), num_workers=1).rows(torch.arange(2))), DataError, "of one shape"),
    ],
)
def test_what_cannot_be_read_is_said(make, error, words):
    with pytest.raises(error, match=words):
        make()

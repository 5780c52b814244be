"""Every mishap that a user can run into, provoked for real: the message names the value, the reason and the remedy."""

import json
import math
import os
import re
import sys
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader, Dataset, IterableDataset, TensorDataset

from helpers import tiny
from noisewise import cli
from noisewise.accounting import Ledger
from noisewise.adaptive import GlobalAdapt
from noisewise.clipping import Flat, Global
from noisewise.data import Data
from noisewise.data.indexed import Indexed
from noisewise.errors import ConfigError, DataError, PrivacyWarning, RunError
from noisewise.mechanism import Mechanism
from noisewise.runs.files import read_json
from noisewise.runs.folder import RunFolder
from noisewise.runtime import Runtime
from noisewise.sampling import FullBatch, Poisson
from noisewise.support import Fixed
from noisewise.training.loop import train

SEED = 5


class Crash(Exception):
    pass


class Mishap(NamedTuple):
    """`provoke(folder)` raises `error`, whose message holds all of `says`, in this order."""

    name: str
    provoke: Callable[[Path], Any]
    error: type[Exception]
    says: tuple[str, ...]


def training(loss_fn=tiny.loss_fn, units=None, **settings):
    """Training on the tiny problem with one thing wrong."""
    network = tiny.model()
    return train(
        network, tiny.data() if units is None else units, loss_fn, tiny.mechanism(), tiny.sgd(network),
        progress=False, **settings,
    )  # fmt: skip


def crash(observation):
    if observation.step == 5:
        raise Crash


def interrupted(folder):
    """A run that ended in the middle."""
    with pytest.raises(Crash):
        tiny.run(out=folder, checkpoint_seconds=0, insecure_seed=SEED, recorders=[crash])
    return RunFolder(folder)


def truncated_checkpoint(folder):
    run = interrupted(folder)
    run.checkpoint.write_bytes(run.checkpoint.read_bytes()[:-100])
    tiny.run(out=folder, resume=True, insecure_seed=SEED)


def edited_checkpoint(folder):
    run = interrupted(folder)
    content = run.checkpoint.read_bytes()
    assert content.count(b"noise_multiplier") >= 1
    run.checkpoint.write_bytes(content.replace(b"20.0", b"90.0"))
    tiny.run(out=folder, resume=True, insecure_seed=SEED)


def checkpoint_of_another_mechanism(folder):
    interrupted(folder)
    tiny.run(out=folder, resume=True, insecure_seed=SEED, plan=tiny.mechanism(noise_multiplier=30.0))


def truncated_ledger(folder):
    tiny.run(out=folder)
    run = RunFolder(folder)
    run.ledger.write_text(run.ledger.read_text()[:-20])
    read_json(run.ledger)


def edited_ledger(folder):
    tiny.run(out=folder)
    raw = read_json(RunFolder(folder).ledger)
    raw["lines"][0]["count"] = -3
    Ledger.from_dict(raw)


def folder_in_use(folder):
    with RunFolder(folder).locked():
        tiny.run(out=folder)


def unwritable_folder(folder):
    (folder / "file").write_text("no folder")
    tiny.run(out=folder / "file" / "run")


class Alternating(Poisson):
    """Every other unit: nothing that the accountant knows."""

    def batches(self, entropy, first, last):
        return (np.arange(0, self.n, 2) for _ in range(first, last))


def plan(**settings):
    return lambda _: tiny.mechanism(**settings)


def masked(support):
    return lambda _: tiny.run(plan=tiny.mechanism(support=Fixed(support)))


def loader(dataset):
    return DataLoader(dataset, batch_size=4)


class Stream(IterableDataset):
    def __iter__(self):
        return iter([tiny.data()])


DATASET = TensorDataset(*tiny.data())

MISHAPS = [
    Mishap(
        "reduced loss",
        lambda _: training(lambda model, batch: tiny.loss_fn(model, batch).mean()),
        DataError,
        ("one number for the whole batch", "cannot be told apart", "reduction='none'"),
    ),
    Mishap(
        "loss of wrong length",
        lambda _: training(lambda model, batch: tiny.loss_fn(model, batch)[1:]),
        DataError,
        ("returned shape [2] for 3 units", "one loss per unit"),
    ),
    Mishap(
        "loss per class",
        lambda _: training(lambda model, batch: model(batch[0])),
        DataError,
        ("returned shape [3, 3]", "must be [3]", "losses.flatten(1).mean(1)"),
    ),
    Mishap("foreign sampler", plan(sampler=range(40)), ConfigError, ("range(0, 40)", "no event", "'Poisson'")),
    Mishap(
        "sampler that draws in its own way",
        plan(sampler=Alternating(tiny.N, tiny.BATCH)),
        ConfigError,
        ("Alternating", "the accountant knows no event for it", "Use one of", "'Poisson'"),
    ),
    Mishap(
        "loader for data",
        lambda _: training(units=loader(DATASET)),
        DataError,
        ("DataLoader", "batches that the accountant does not know", "loader.dataset"),
    ),
    Mishap(
        "data set that is a stream",
        lambda _: training(units=Stream()),
        DataError,
        ("Stream", "cannot be read by index", "map-style Dataset with __len__ and __getitem__"),
    ),
    Mishap(
        "loader in Data",
        lambda _: Data(loader(DATASET), DATASET.tensors[1]),
        DataError,
        ("x is a DataLoader", "must be a tensor", "loader.dataset"),
    ),
    Mishap("rate above 1", lambda _: Poisson(40, 41), ConfigError, ("41", "outside (0, 1]", "at most 40")),
    Mishap("rate 0", lambda _: Poisson(40, 0), ConfigError, ("batch_size=0", "above 0")),
    *(
        Mishap(
            f"epsilon {epsilon}",
            lambda _, epsilon=epsilon: tiny.mechanism().calibrated(epsilon, 1e-3),
            ConfigError,
            (f"epsilon={epsilon}", "finite number above 0", "1 to 8"),
        )
        for epsilon in (0, -1.0, math.nan)
    ),
    Mishap(
        "epsilon out of reach",
        lambda _: Mechanism(sampler=FullBatch(1000), steps=1000).calibrated(1e-9, 1e-12),
        ConfigError,
        ("epsilon=1e-09", "out of reach", "fewer steps", "larger epsilon"),
    ),
    *(
        Mishap(
            f"delta {delta}",
            lambda _, delta=delta: tiny.run(delta=delta),
            ConfigError,
            (f"delta={delta}", "in (0, 1)", "1/(10 n)"),
        )
        for delta in (0, 1.0, -1e-5, math.nan)
    ),
    *(
        Mishap(f"steps {steps}", plan(steps=steps), ConfigError, (f"steps={steps}", "whole number above 0"))
        for steps in (0, -1, 2.5)
    ),
    *(
        Mishap(f"bound {bound}", lambda _, bound=bound: Flat(bound), ConfigError, (f"Flat(bound={bound})", "above 0"))
        for bound in (0, -1.0, math.nan, math.inf)
    ),
    Mishap("Z < R", lambda _: Global(2.0, 1.0), ConfigError, ("screen=1.0", "scale gradients up", "screen >= 2.0")),
    Mishap("Z < R, adaptive", lambda _: GlobalAdapt(2.0, 1.0), ConfigError, ("screen=1.0", "screen >= 2.0")),
    *(
        Mishap(
            f"noise {sigma}",
            plan(noise_multiplier=sigma),
            ConfigError,
            (f"noise_multiplier={sigma}", "finite number >= 0", "calibrated("),
        )
        for sigma in (math.nan, -1.0, math.inf)
    ),
    Mishap(
        "mask of wrong shape",
        masked({"0.weight": torch.ones(5, 6, dtype=torch.bool)}),
        ConfigError,
        ("support['0.weight']", "[5, 6]", "the parameter [6, 5]", "for each coordinate"),
    ),
    Mishap(
        "mask of wrong type",
        masked({"0.weight": torch.ones(6, 5)}),
        ConfigError,
        ("support['0.weight']", "torch.float32", "mask.bool()"),
    ),
    Mishap(
        "unknown parameter",
        masked({"head.weight": False}),
        ConfigError,
        ("'head.weight'", "no parameter of the model", "'0.weight'"),
    ),
    Mishap(
        "checkpoint of another mechanism",
        checkpoint_of_another_mechanism,
        RunError,
        ("belongs to another run", "20.0", "30.0", "same settings, or another folder"),
    ),
    Mishap("truncated checkpoint", truncated_checkpoint, RunError, ("is damaged", "Start the run anew, or restore")),
    Mishap("edited checkpoint", edited_checkpoint, RunError, ("is damaged", "does not fit its digest", "restore")),
    Mishap("truncated ledger", truncated_ledger, RunError, ("ledger.json cannot be read", "restore it from a copy")),
    Mishap("edited ledger", edited_ledger, RunError, ("count -3", "not whole numbers in range")),
    Mishap("folder in use", folder_in_use, RunError, ("in use by another process", "wait for it, or choose another")),
    Mishap(
        "unwritable folder",
        unwritable_folder,
        RunError,
        ("cannot be used as a run folder", "Not a directory", "choose another --out"),
    ),
]


@pytest.mark.parametrize("mishap", MISHAPS, ids=lambda mishap: mishap.name)
def test_the_message_names_value_reason_and_remedy(mishap, tmp_path):
    with pytest.raises(mishap.error) as caught:
        mishap.provoke(tmp_path)
    message = str(caught.value)
    assert re.search(".*".join(map(re.escape, mishap.says)), message, re.DOTALL), message
    assert message.endswith((".", ")")), message


# --- a delta that promises little -------------------------------------------------------------------------------------
@pytest.mark.parametrize("delta", [0.1, 1 / tiny.N])
def test_a_delta_of_at_least_one_over_n_is_warned_of_and_the_run_goes_on(delta):
    says = rf"delta {delta:g} is not below 1/n = 0.025.*each record in full.*probability {delta:g}.*0.001 is customary"
    with pytest.warns(PrivacyWarning, match=says):
        assert tiny.run(delta=delta).status.status == "private"


def test_no_warning_below_one_over_n_or_where_nothing_is_promised():
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        tiny.run(delta=0.99 / tiny.N)
        tiny.run(delta=0.1, ablation="plain")
    assert [w for w in seen if issubclass(w.category, PrivacyWarning)] == []


@pytest.mark.parametrize(
    "arguments",
    [
        "epsilon --n 1000 --sampler full-batch --steps 1 --noise-multiplier 5",
        "calibrate --n 1000 --sampler full-batch --steps 1 --epsilon 3",
        "plan --n 1000 --features 3 --epsilon 3",
        "train --out run --noise-multiplier 4 --steps 1 --batch-size 64 --no-twin --quiet",
    ],
)
def test_the_command_line_notes_a_large_delta_in_one_line(arguments, monkeypatch, capsys, tmp_path):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", ["noisewise", *arguments.split(), "--delta", "0.01"])
    with pytest.raises(SystemExit) as stopped:
        cli.main()
    assert not stopped.value.code
    (note,) = [line for line in capsys.readouterr().err.splitlines() if "delta" in line]
    assert re.fullmatch(
        r"note: delta 0.01 is not below 1/n = .*probability 0.01 would pass. (0.0001|1e-05) is customary.", note
    )


# --- a disk that is full -----------------------------------------------------------------------------------------------
def test_a_disk_that_is_full_while_saving_keeps_the_last_good_checkpoint(tmp_path, monkeypatch):
    """The real thing, with a limit on file sizes, is in test_checkpoint.py; here the disk fills up at a chosen step."""

    def full(file):
        raise OSError(28, os.strerror(28))

    def fill(observation):
        if observation.step == 7:
            monkeypatch.setattr(os, "fsync", full)

    with pytest.raises(RunError, match=r"could not be written \(No space left on device\).*before is kept.*resume"):
        tiny.run(out=tmp_path, checkpoint_seconds=0, insecure_seed=SEED, recorders=[fill])
    monkeypatch.undo()
    resumed = tiny.run(out=tmp_path, resume=True, insecure_seed=SEED)
    assert tiny.same(resumed.model, tiny.run(insecure_seed=SEED).model)


# --- data that teach nothing ------------------------------------------------------------------------------------------
class Rows(Dataset):
    def __init__(self, x, y):
        self.x, self.y = x, y

    def __len__(self):
        return len(self.x)

    def __getitem__(self, index):
        return self.x[index], self.y[index]


def unread(x, y):
    """Data that are not looked at before they are drawn."""
    return Indexed(Rows(x, y), identity="made up")


MARK = 0.125


def with_row(value):
    x, y = tiny.data()
    x = x.clone()
    x[3] = value
    return x, y


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("engine", ["auto", "dense", "loop"])
def test_rows_whose_loss_is_no_number_add_nothing(value, engine):
    """Numbers that are fine in themselves, and a loss that is not: it moves the sum by 0, everybody else counts as ever."""
    present = torch.ones(tiny.N)
    present[3] = 0

    def without_row_3(model, batch):
        return tiny.loss_fn(model, batch[:2]) * batch[2]

    def endless_for_row_3(model, batch):
        return tiny.loss_fn(model, batch) * torch.where(batch[0][:, 0] == MARK, value, 1.0)

    network = tiny.model()
    expected = train(
        network, (*tiny.data(), present), without_row_3, tiny.mechanism(), tiny.sgd(network),
        insecure_seed=SEED, progress=False,
    )  # fmt: skip
    network = tiny.model()
    run = train(
        network, with_row(MARK), endless_for_row_3, tiny.mechanism(), tiny.sgd(network),
        runtime=Runtime(engine=engine), insecure_seed=SEED, progress=False,
    )  # fmt: skip
    torch.testing.assert_close(tiny.weights(run.model), tiny.weights(expected.model))


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_rows_that_are_no_numbers_stop_the_step_that_takes_them(value):
    """Where nobody looked at the rows before; nothing of that step is released."""
    with pytest.raises(
        DataError, match=r"row 3 of the data holds .* released before it was read, and stay in the ledger"
    ):
        tiny.run(units=unread(*with_row(value)), insecure_seed=SEED)


@pytest.mark.parametrize("constant", [0.0, 1.0, 1e20])
def test_constant_features_are_trained_on(constant):
    x, y = tiny.data()
    run = tiny.run(units=(torch.full_like(x, constant), y), valid=(torch.full_like(x, constant), y))
    assert tiny.weights(run.model).isfinite().all()
    assert run.ledger.lines == tiny.mechanism().lines()


def test_one_class_only_is_trained_on():
    x, y = tiny.data()
    run = tiny.run(units=(x, torch.zeros_like(y)))
    assert tiny.weights(run.model).isfinite().all()
    assert run.ledger.lines == tiny.mechanism().lines()


def test_a_valid_part_without_numbers_is_logged_as_such(tmp_path):
    x, y = tiny.data()
    tiny.run(out=tmp_path, valid=Data(torch.full_like(x, math.nan), y, public=True))
    lines = [json.loads(line) for line in (tmp_path / "metrics.jsonl").read_text().splitlines()]
    assert {line["valid_loss"] for line in lines} == {"nan"}

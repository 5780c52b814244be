"""Trainings of an attribution: the same by other processes, kept in a folder, known by what they follow from."""

import stat
from functools import partial

import pytest
import torch

from helpers import working
from noisewise import Mechanism, Poisson, Runtime
from noisewise.audits import attribution
from noisewise.audits import retrained as module
from noisewise.audits.retrained import RUNS, Training
from noisewise.clipping import Flat
from noisewise.data import Data
from noisewise.errors import ConfigError, Interrupted, RunError
from noisewise.jobs import Local, Ray
from noisewise.runs.files import hold

X = torch.randn(120, 4, generator=torch.Generator().manual_seed(0))
DATA = Data(X, (X.sum(1) > 0).long(), classes=("no", "yes"))
PLAN = Mechanism(sampler=Poisson(120, 30), clip=Flat(1.0), noise_multiplier=1.0, steps=2)
SGD = partial(torch.optim.SGD, lr=0.5)
USUAL = {"loss_fn": working.row_loss, "mechanism": PLAN, "optimizer": SGD, "seeds": (0, 1), "measure": "loss"}


def run(model=working.linear, **more):
    return attribution(model, (DATA, DATA), **(USUAL | more))


@pytest.mark.slow  # test_cluster.py has two workers do the same jobs
def test_other_processes_give_the_same_and_the_rows_are_gone(tmp_path, monkeypatch):
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    decaying = partial(torch.optim.lr_scheduler.StepLR, step_size=1)
    here = run(scheduler=decaying, runtime=Runtime(engine="dense"))
    there = run(scheduler=decaying, runtime=Runtime(engine="dense"), where=Local(2), folder=tmp_path / "kept")
    assert there.to_dict() == here.to_dict()
    assert stat.S_IMODE((tmp_path / "kept").stat().st_mode) == 0o700
    assert not (tmp_path / "kept" / "rows").exists()
    assert len(list((tmp_path / "kept").glob("*.safetensors"))) == 8
    assert all("0." not in path.read_text() for path in (tmp_path / "kept" / "jobs").glob("*.json"))  # no score


def test_a_stopped_call_goes_on_and_nothing_is_done_twice(tmp_path, monkeypatch):
    real, done = Training.trained, []

    def counted(self, run, seed):
        done.append((seed, run))
        if len(done) == 4:
            raise KeyboardInterrupt
        return real(self, run, seed)

    monkeypatch.setattr(Training, "trained", counted)
    with pytest.raises(Interrupted, match="3 of 8 done"):
        run(folder=tmp_path)
    result = run(folder=tmp_path)
    assert done == [(0, name) for name in RUNS] + [(0, "private")] + [(1, name) for name in RUNS]
    (tmp_path / "seed-1.plain.safetensors").unlink()
    assert run(folder=tmp_path).to_dict() == result.to_dict()
    assert done[9:] == [(1, "plain")]
    monkeypatch.undo()
    assert run().to_dict() == result.to_dict()


@pytest.mark.parametrize(
    "change",
    [
        {"mechanism": Mechanism(sampler=Poisson(120, 30), clip=Flat(2.0), noise_multiplier=1.0, steps=2)},
        {"optimizer": partial(torch.optim.SGD, lr=0.25)},
        {"scheduler": partial(torch.optim.lr_scheduler.StepLR, step_size=1)},
        {"measure": "accuracy"},
        {"model": torch.nn.Linear(4, 2)},
        {"runtime": Runtime(engine="loop")},
    ],
    ids=lambda change: next(iter(change)),
)
def test_a_folder_of_other_trainings_is_refused(tmp_path, monkeypatch, change):
    monkeypatch.setattr(module.Training, "scores", lambda self, run, seed: torch.zeros(120))
    run(folder=tmp_path)
    with pytest.raises(RunError, match="other settings"):
        run(**{"folder": tmp_path, **change})


def scaled(model, batch, by=1.0):
    return by * working.row_loss(model, batch)


def other_loss(sign):
    return lambda model, batch: sign * working.row_loss(model, batch)


class Activated(torch.nn.Module):
    def __init__(self, function):
        super().__init__()
        self.inside, self.out, self.function = torch.nn.Linear(4, 3), torch.nn.Linear(3, 2), function

    def forward(self, x):
        return self.out(self.function(self.inside(x)))


def hidden(*activation):
    return lambda seed: torch.nn.Sequential(torch.nn.Linear(4, 3), *activation, torch.nn.Linear(3, 2))


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ({"loss_fn": partial(scaled, by=1.0)}, {"loss_fn": partial(scaled, by=1.0001)}),
        ({"loss_fn": partial(scaled, by=1.0)}, {"loss_fn": partial(other_loss(1.0))}),
        ({"loss_fn": other_loss(1.0)}, {"loss_fn": other_loss(2.0)}),  # of one name
        ({"model": hidden(torch.nn.Hardtanh(0, 0.001))}, {"model": hidden(torch.nn.Hardtanh(0, 0.0011))}),
        ({"model": lambda seed: Activated(torch.relu)}, {"model": lambda seed: Activated(torch.tanh)}),  # of one repr
    ],
    ids=["setting", "function", "closure", "layer", "inside"],
)
def test_other_losses_and_layers_are_other_trainings(tmp_path, monkeypatch, one, other):
    monkeypatch.setattr(module.Training, "scores", lambda self, run, seed: torch.zeros(120))
    run(folder=tmp_path, **one)
    run(folder=tmp_path, **one)
    with pytest.raises(RunError, match="other settings"):
        run(folder=tmp_path, **other)


def test_a_folder_in_use_is_left_as_it_is(tmp_path, monkeypatch):
    monkeypatch.setattr(module.Training, "scores", lambda self, run, seed: torch.zeros(120))
    (tmp_path / "rows").mkdir()
    (tmp_path / "rows" / "x").write_text("of the first call")
    with hold(tmp_path / "lock"), pytest.raises(RunError, match="in use by another process"):
        run(folder=tmp_path, where=Local(2))
    assert (tmp_path / "rows" / "x").exists()
    assert {path.name for path in tmp_path.iterdir()} == {"rows", "lock"}
    with pytest.raises(RunError, match="in use by another process"), module._opened(tmp_path):
        run(folder=tmp_path)


def test_a_folder_of_other_files_is_not_closed(tmp_path, monkeypatch):
    monkeypatch.setattr(module.Training, "scores", lambda self, run, seed: torch.zeros(120))
    tmp_path.chmod(0o755)
    (tmp_path / "thesis.tex").touch()
    with pytest.raises(RunError, match=r"holds other files \(thesis.tex\)"):
        run(folder=tmp_path)
    assert stat.S_IMODE(tmp_path.stat().st_mode) == 0o755
    assert [path.name for path in tmp_path.iterdir()] == ["thesis.tex"]
    with pytest.raises(RunError, match="cannot hold trainings"):
        run(folder=tmp_path / "thesis.tex")


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"model": torch.nn.Linear(4, 2)}, "give a function of a module"),
        ({"loss_fn": lambda model, batch: model}, "no function of a module"),
        ({"where": Ray("local")}, "a folder that all of them see"),
    ],
)
def test_what_other_processes_cannot_make_is_refused(change, words):
    with pytest.raises(ConfigError, match=words):
        run(**{"where": Local(2), **change})

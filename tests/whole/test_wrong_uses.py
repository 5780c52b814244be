"""Wrong uses from Python: each ends in an error of noisewise that names the value and the way out; none is silent, none raw.

The command line's are in `cli/test_wrong_lines.py`.
"""

import math
import sys
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, IterableDataset, TensorDataset

import noisewise as nw
from helpers import tiny
from noisewise import audits, clipping, losses, models
from noisewise.data import Splits
from noisewise.errors import NoisewiseError
from noisewise.estimators import base, spending
from noisewise.models.convert import batchnorm_to_groupnorm
from noisewise.training import PaidAccuracy, StopEarly, mlflow, tensorboard

X, Y = tiny.data()
NUMBERS, LABELS = X.numpy(), Y.numpy()


class Use(NamedTuple):
    """What is done (given an empty folder), and words that the error must say: the value or its kind, and the remedy."""

    do: Callable[[Any], Any]
    words: tuple[str, ...]


def go(model=None, data=(X, Y), loss_fn=tiny.loss_fn, mechanism=None, optimizer=None, **settings):
    """`train` with one thing wrong."""
    model = tiny.model() if model is None else model
    optimizer = tiny.sgd(model if isinstance(model, nn.Module) else tiny.model()) if optimizer is None else optimizer
    return nw.train(
        model, data, loss_fn, mechanism or tiny.mechanism(), optimizer, **{"progress": False, **settings}
    )  # fmt: skip


def with_value(tensor, value):
    changed = tensor.clone()
    changed.view(-1)[7] = value
    return changed


def data(**parts):
    return nw.Data(**{"x": X, "y": Y, **parts})


def recipe(**parts):
    return nw.Recipe(
        **{
            "model": tiny.model(),
            "data": Splits(data(), data(), data()),
            "loss_fn": tiny.loss_fn,
            "mechanism": tiny.mechanism(),
            "optimizer": tiny.sgd,
            **parts,
        }
    )


def half(folder):
    """A run that was interrupted."""

    def stop(observation):
        if observation.step == 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        go(out=folder, recorders=[stop], checkpoint_seconds=0.0)


def resumed(folder, **other):
    half(folder)
    go(out=folder, resume=True, **other)


def scheduled(optimizer):
    return torch.optim.lr_scheduler.StepLR(optimizer, 1)


class Stream(IterableDataset):
    def __iter__(self):
        return iter([])


def classifier(X=NUMBERS, y=LABELS, fitting=(), **settings):
    """`PrivateClassifier.fit` with one thing wrong."""
    chosen = {"classes": [0, 1, 2], "ranges": (-9, 9), "steps": 2, **settings}
    return nw.PrivateClassifier(**chosen).fit(X, y, **dict(fitting))


def regressor(y=NUMBERS[:, 0], **settings):
    return nw.PrivateRegressor(**{"target": (-9, 9), "ranges": (-9, 9), "steps": 2, **settings}).fit(NUMBERS, y)


FRAME = pd.DataFrame(NUMBERS, columns=list("abcde"))

MODELS = {
    "tuple of batchnorm_to_groupnorm": Use(
        lambda _: go(batchnorm_to_groupnorm(tiny.model())),
        ("is a tuple", "model, changes = batchnorm_to_groupnorm(model)"),
    ),
    "model class": Use(lambda _: go(nn.Linear), ("the class Linear", "call it")),
    "model None": Use(
        lambda _: nw.train(None, (X, Y), tiny.loss_fn, tiny.mechanism(), None), ("a NoneType", "nn.Module")
    ),
    "model function": Use(lambda _: go(lambda x: x), ("a function", "must be a torch.nn.Module")),
    "model without parameters": Use(
        lambda _: go(nn.Identity(), optimizer=tiny.sgd(tiny.model())), ("no parameter learns",)
    ),
    "model on meta": Use(lambda _: go(tiny.model().to("meta")), ("'0.weight' has no values yet", "to_empty")),
    "lazy layer": Use(lambda _: go(nn.Sequential(nn.LazyLinear(3))), ("'0.weight' has no values yet", "made-up batch")),
    "model is frozen": Use(
        lambda _: go(tiny.model().requires_grad_(False)), ("no parameter learns", "requires_grad=False")
    ),
    "BatchNorm": Use(
        lambda _: go(nn.Sequential(nn.Linear(5, 6), nn.BatchNorm1d(6), nn.Linear(6, 3))), ("BatchNorm", "GroupNorm")
    ),
    "model in another precision": Use(lambda _: go(tiny.model(torch.float64)), ("[5] float32", "x.float()")),
    "model of another width": Use(
        lambda _: go(nn.Linear(4, 3)), ("cannot be multiplied", "[5] float32", "the first layer")
    ),
    "batchnorm_to_groupnorm of a class": Use(
        lambda _: batchnorm_to_groupnorm(nn.BatchNorm1d), ("BatchNorm1d", "not its class")
    ),
    "build with a number for a shape": Use(lambda _: models.build("mlp", 4, 3, 0), ("shape=4", "(64,)")),
    "build with a negative seed": Use(lambda _: models.build("mlp", (4,), 3, -1), ("seed=-1", ">= 0")),
    "build with None": Use(lambda _: models.build(None, (4,), 3, 0), ("None", "Known models")),
}
DATA = {
    "label too large": Use(
        lambda _: go(data=(X, with_value(Y, 3))), ("row 7", "holds 3", "labels are 0 to classes - 1")
    ),
    "label too large in Data": Use(lambda _: go(data=data(y=with_value(Y, 9))), ("row 7", "holds 9", "Correct")),
    "label negative": Use(lambda _: go(data=(X, with_value(Y, -1))), ("row 7", "holds -1", "Correct or leave out")),
    "label too large for named classes": Use(
        lambda _: data(y=with_value(Y, 3), classes=("a", "b", "c")), ("class 3", "name every")
    ),
    "NaN in x": Use(
        lambda _: go(data=(with_value(X, math.nan), Y)), ("row 1", "holds nan", "missing numbers need a value")
    ),
    "infinity in x": Use(lambda _: go(data=(with_value(X, math.inf), Y)), ("row 1", "holds inf", "Correct")),
    "NaN in y": Use(
        lambda _: go(nn.Linear(5, 1), (X, with_value(X[:, 0], math.nan)), losses.squared_error),
        ("row 7", "holds nan", "targets"),
    ),
    "numpy arrays": Use(lambda _: go(data=(NUMBERS, LABELS)), ("ndarray", "torch.as_tensor")),
    "numpy array in Data": Use(lambda _: nw.Data(NUMBERS, LABELS), ("x is a ndarray", "torch.as_tensor(array)")),
    "pandas frame": Use(lambda _: go(data=FRAME), ("a DataFrame", "PrivateClassifier().fit(frame, y)")),
    "pandas within a tuple": Use(lambda _: go(data=(FRAME, FRAME["a"])), ("DataFrame", "torch.as_tensor")),
    "name of a data set": Use(lambda _: go(data="digits"), ("a str", "noisewise.load('digits').train")),
    "all parts of a data set": Use(lambda _: go(data=Splits(data(), data(), data())), ("Splits", "data.train")),
    "DataLoader": Use(lambda _: go(data=DataLoader(TensorDataset(X, Y))), ("DataLoader", "loader.dataset")),
    "stream": Use(lambda _: go(data=Stream()), ("Stream", "__getitem__")),
    "sparse x": Use(lambda _: go(data=(X.to_sparse(), Y)), ("sparse", "to_dense()")),
    "data on meta": Use(lambda _: go(data=(X.to("meta"), Y)), ("meta", "load it")),
    "x of whole numbers": Use(lambda _: go(data=(X.long(), Y)), ("[5] int64", "x.float()")),
    "y of type int32": Use(lambda _: go(data=(X, Y.int())), ("[] int32", "y.long()")),
    "float labels": Use(lambda _: go(data=(X, Y.float())), ("[] float32", "y.long()")),
    "float labels for the package's loss": Use(
        lambda _: go(data=(X, Y.float()), loss_fn=losses.cross_entropy), ("float32", "Use squared_error")
    ),
    "one-hot labels": Use(lambda _: go(data=(X, F.one_hot(Y, 3))), ("[3] int64", "correct one of them")),
    "x and y swapped": Use(lambda _: go(data=(Y, X)), ("[] int64, [5] float32", "correct one of them")),
    "lengths differ": Use(lambda _: go(data=(X, Y[:30])), ("30", "40", "same number of units")),
    "no rows": Use(lambda _: go(data=(X[:0], Y[:0])), ("0 units", "n=40", "public")),
    "other number of rows than planned": Use(lambda _: go(data=(X[:30], Y[:30])), ("30 units", "n=40")),
    "groups as a list": Use(lambda _: data(groups=[Y]), ("a list", "must be a dict")),
    "classes as a number": Use(lambda _: data(classes=3), ("classes=3", "tuple of names")),
    "classes as a text": Use(lambda _: data(classes="abc"), ("classes='abc'", "tuple of names")),
    "unit of fractions": Use(lambda _: data(unit=torch.rand(40)), ("unit", "float32", "whole number")),
    "load None": Use(lambda _: nw.load(None), ("None", "'digits'")),
    "load something unknown": Use(lambda _: nw.load("mnits"), ("'mnits'", "Known data sets")),
}
LOSSES = {
    "loss reduced by sum": Use(
        lambda _: go(loss_fn=lambda m, b: tiny.loss_fn(m, b).sum()),
        ("one number for the whole batch", "reduction='none'"),
    ),
    "loss reduced by mean": Use(
        lambda _: go(loss_fn=lambda m, b: F.cross_entropy(m(b[0]), b[1])), ("one number", "reduction='none'")
    ),
    "loss that mixes units": Use(
        lambda _: go(loss_fn=lambda m, b: tiny.loss_fn(m, b).mean().expand(len(b[1]))),
        ("another unit", "Remove what mixes"),
    ),
    "loss of torch, a module": Use(lambda _: go(loss_fn=nn.CrossEntropyLoss()), ("CrossEntropyLoss", "(model, batch)")),
    "loss of torch, a function": Use(lambda _: go(loss_fn=F.cross_entropy), ("cross_entropy", "(model, batch)")),
    "loss None": Use(lambda _: go(loss_fn=None), ("NoneType", "function (model, batch)")),
    "loss with swapped arguments": Use(
        lambda _: go(loss_fn=lambda b, m: F.cross_entropy(m(b[0]), b[1], reduction="none")),
        ("loss_fn(model, batch)", "correct"),
    ),
    "loss as a list": Use(
        lambda _: go(loss_fn=lambda m, b: tiny.loss_fn(m, b).tolist()), ("returned list", "tensor of one loss")
    ),
    "loss per class": Use(lambda _: go(loss_fn=lambda m, b: m(b[0])), ("[3, 3]", "losses.flatten(1).mean(1)")),
    "loss without a gradient": Use(
        lambda _: go(loss_fn=lambda m, b: tiny.loss_fn(m, b).detach()), ("does not depend", "detach()")
    ),
    "loss that is no number": Use(
        lambda _: go(loss_fn=lambda m, b: math.nan * tiny.loss_fn(m, b)), ("nan", "example=")
    ),
}
PLANS = {
    "batch larger than n": Use(lambda _: nw.Poisson(40, 41), ("batch_size=41", "at most 40")),
    "batch of 0": Use(lambda _: nw.Poisson(40, 0), ("batch_size=0", "above 0")),
    "batch of True": Use(lambda _: nw.Poisson(40, True), ("batch_size=True", "e.g. batch_size=256")),
    "n of numpy": Use(lambda _: nw.Poisson(np.int64(40), 8), ("n=np.int64(40)", "int(...)")),
    "no steps": Use(lambda _: tiny.mechanism(steps=0), ("steps=0", "above 0")),
    "epsilon as a text": Use(
        lambda _: tiny.mechanism().calibrated("3", 1e-5), ("epsilon='3'", "finite number above 0")
    ),
    "epsilon and delta swapped": Use(lambda _: tiny.mechanism().calibrated(1e-5, 3), ("delta=3", "1/(10 n)")),
    "delta of 1": Use(lambda _: tiny.mechanism().calibrated(3, 1), ("delta=1", "1/(10 n)")),
    "delta as a text": Use(lambda _: go(delta="1e-5"), ("delta='1e-5'", "in (0, 1)")),
    "negative noise": Use(lambda _: tiny.mechanism(noise_multiplier=-1), ("noise_multiplier=-1", "calibrated(...)")),
    "no noise chosen": Use(
        lambda _: go(mechanism=tiny.mechanism(noise_multiplier=None)), ("noise_multiplier is not set", "calibrated(")
    ),
    "bound of 0": Use(lambda _: clipping.Flat(0), ("Flat(bound=0)", "above 0")),
    "bound for a rule": Use(lambda _: tiny.mechanism(clip=1.0), ("clip=1.0", "Flat(1.0)")),
    "class for a rule": Use(lambda _: tiny.mechanism(clip=clipping.Flat), ("clip=<class", "Flat(1.0)")),
    "class for a sampler": Use(lambda _: tiny.mechanism(sampler=nw.Poisson), ("Poisson", "Use one of")),
    "unknown neighbours": Use(lambda _: tiny.mechanism(adjacency="swap"), ("'swap'", "'add-remove'")),
    "masks for a plan of them": Use(
        lambda _: tiny.mechanism(support={"0.weight": False}), ("0.weight", "Fixed(masks)")
    ),
    "unknown engine": Use(lambda _: nw.Runtime(engine="fast"), ("'fast'", "'ghost'")),
    "epochs in words": Use(lambda _: nw.steps_for("many", 40, 8), ("'many'", "0.5")),
}
RUNS = {
    "optimizer class": Use(
        lambda _: go(optimizer=torch.optim.SGD), ("the class SGD", "torch.optim.SGD(model.parameters()")
    ),
    "optimizer name": Use(lambda _: go(optimizer="sgd"), ("a str", "torch.optim.SGD(model.parameters()")),
    "LBFGS": Use(lambda _: go(m := tiny.model(), optimizer=torch.optim.LBFGS(m.parameters())), ("LBFGS", "SGD, Adam")),
    "optimizer of another model": Use(
        lambda _: go(optimizer=tiny.sgd(tiny.model())), ("4 parameters that are not", "this very model")
    ),
    "seed -1": Use(lambda _: go(seed=-1), ("seed=-1", ">= 0")),
    "seed in words": Use(lambda _: go(seed="one"), ("seed='one'", "whole number")),
    "insecure seed -1": Use(lambda _: go(insecure_seed=-1), ("insecure_seed=-1", "insecure_seed=0")),
    "insecure seed True": Use(lambda _: go(insecure_seed=True), ("insecure_seed=True", "insecure_seed=0")),
    "model and data swapped": Use(
        lambda _: nw.train((X, Y), tiny.model(), tiny.loss_fn, None, None), ("a tuple", "train(model, data")
    ),
    "loss and mechanism swapped": Use(
        lambda _: nw.train(m := tiny.model(), (X, Y), tiny.mechanism(), tiny.loss_fn, tiny.sgd(m)),
        ("a Mechanism", "train(model"),
    ),
    "mechanism and optimizer swapped": Use(
        lambda _: nw.train(m := tiny.model(), (X, Y), tiny.loss_fn, tiny.sgd(m), tiny.mechanism()),
        ("a SGD", "noisewise.Mechanism"),
    ),
    "mechanism for a state": Use(
        lambda _: nw.private_step(m := tiny.model(), (X, Y), tiny.loss_fn, tiny.sgd(m), tiny.mechanism()),
        ("a Mechanism", "State.start"),
    ),
    "optimizer for a state": Use(
        lambda _: nw.private_step(
            m := tiny.model(), (X, Y), tiny.loss_fn, nw.State.start(tiny.mechanism()), tiny.sgd(m)
        ),
        ("a SGD", "State.start(mechanism)"),
    ),
    "a batch for the data": Use(
        lambda _: nw.private_step(
            m := tiny.model(), (X[:8], Y[:8]), tiny.loss_fn, tiny.sgd(m), nw.State.start(tiny.mechanism())
        ),
        ("8 units", "n=40"),
    ),
    "state of a sampler": Use(lambda _: nw.State.start(nw.Poisson(40, 8)), ("a Poisson", "noisewise.Mechanism")),
    "runtime as a text": Use(lambda _: go(runtime="ghost"), ("'ghost'", "noisewise.Runtime(engine='ghost'")),
    "ledger as a list": Use(lambda _: go(ledger=[]), ("a list", "noisewise.Ledger")),
    "recorder without a list": Use(lambda _: go(recorders=len), ("builtin_function_or_method", "recorders=[function]")),
    "recorder as a text": Use(lambda _: go(recorders=["tb"]), ("'tb'", "each must be a function")),
    "scheduler class": Use(
        lambda _: go(scheduler=torch.optim.lr_scheduler.StepLR), ("the class StepLR", "CosineAnnealingLR(optimizer")
    ),
    "scheduler of another optimizer": Use(
        lambda _: go(scheduler=scheduled(tiny.sgd(tiny.model()))), ("StepLR", "passed in")
    ),
    "scheduler that follows a metric": Use(
        lambda _: go(
            m := tiny.model(), optimizer=(o := tiny.sgd(m)), scheduler=torch.optim.lr_scheduler.ReduceLROnPlateau(o)
        ),
        ("ReduceLROnPlateau", "CosineAnnealingLR"),
    ),
    "ema as a text": Use(lambda _: go(ema="0.9"), ("ema='0.9'", "0.9999")),
    "augment as a function": Use(
        lambda _: go(augment=lambda rows, generator: rows), ("a function", "Augment(function")
    ),
    "seconds as a text": Use(lambda _: go(checkpoint_seconds="30"), ("checkpoint_seconds='30'", "e.g. 30")),
    "out as a number": Use(lambda _: go(out=3), ("out=3", "runs/first")),
    "resume without a folder": Use(lambda _: go(resume=True), ("resume=True", "out=")),
    "resume nothing": Use(lambda folder: go(out=folder / "none", resume=True), ("holds no run", "check the path")),
    "resume another model": Use(
        lambda folder: resumed(folder / "a", model=nn.Linear(5, 3)),
        ("does not fit this run", "begun with, or choose another"),
    ),
    "resume on other data": Use(
        lambda folder: resumed(folder / "b", data=(X + 1, Y)), ("other data", "resume with the same data")
    ),
    "train on without the ledger": Use(
        lambda _: (go(m := tiny.model()), go(m)), ("12 x gradient", "ledger=result.ledger")
    ),
    "valid without rows": Use(lambda _: go(valid=(X[:0], Y[:0])), ("valid has no units", "or None")),
    "early stopping on private rows": Use(
        lambda _: go(callbacks=[StopEarly()], valid=(X, Y)), ("it is private", "public=True", "PaidAccuracy")
    ),
    "early stopping on nothing": Use(lambda _: go(callbacks=[StopEarly()]), ("there is none", "public=True")),
    "early stopping on training loss": Use(lambda _: StopEarly("train_loss"), ("'train_loss'", "'valid_loss'")),
    "callback without a list": Use(lambda _: go(callbacks=print), ("callbacks", "callbacks=[function]")),
    "too few paid readings": Use(
        lambda _: go(paid=PaidAccuracy(data(), epsilon=1, readings=1)),
        ("1 readings left, this run takes 3", "readings=3"),
    ),
    "fit of a model": Use(lambda _: nw.fit(tiny.model()), ("a Sequential", "train(model, ...)")),
    "optimizer in a recipe": Use(lambda _: recipe(optimizer=tiny.sgd(tiny.model())), ("a SGD", "lambda parameters")),
    "one part in a recipe": Use(lambda _: recipe(data=data()), ("a Data", "Splits(train, valid, test)")),
    "repair by name": Use(lambda _: nw.repaired(recipe(), "moving-average"), ("'moving-average'", "give an instance")),
    "clipped_sum with a number": Use(
        lambda _: nw.clipped_sum(tiny.model(), tiny.loss_fn, (X, Y), 1.0), ("clip=1.0", "clipping.Flat(1.0)")
    ),
    "clipped_sum swapped": Use(
        lambda _: nw.clipped_sum(tiny.loss_fn, tiny.model(), (X, Y), clipping.Flat(1.0)),
        ("a function", "clipped_sum(model, loss_fn"),
    ),
    "audit swapped": Use(lambda _: audits.calibration(data(), tiny.model()), ("a Sequential", "(model, data)")),
    "audit of a tuple": Use(lambda _: audits.calibration(tiny.model(), (X, Y)), ("a tuple", "noisewise.Data(x, y)")),
    "audit of a name": Use(lambda _: audits.disparity(tiny.model(), data(), twin="twin"), ("a str", "torch.nn.Module")),
    "TensorBoard without it": Use(
        lambda _: tensorboard("runs"), ("tensorboard is not installed", "noisewise[tensorboard]")
    ),
    "MLflow without it": Use(lambda _: mlflow(), ("mlflow is not installed", "noisewise[mlflow]")),
    "TensorBoard for a number": Use(lambda _: tensorboard(3), ("tensorboard(3)", "SummaryWriter")),
}
ESTIMATORS = {
    "no classes": Use(lambda _: classifier(classes=None), ("classes=None", "classes=[0, 1, 2]")),
    "classes of an estimator as a number": Use(lambda _: classifier(classes=3), ("classes=3", "[0, 1]")),
    "classes that miss one": Use(lambda _: classifier(classes=[0, 1]), ("label", "list every class")),
    "no range of the label": Use(lambda _: regressor(target=None), ("target=None", "target=(0, 100)")),
    "range of the label as a number": Use(lambda _: regressor(target=9), ("target=9", "(low, high)")),
    "ranges with too few rows": Use(lambda _: classifier(ranges=None), ("from 40 rows", "ranges=(low, high)")),
    "ranges in words": Use(lambda _: classifier(ranges="wide"), ("ranges='wide'", "'public'")),
    "range the wrong way round": Use(lambda _: classifier(ranges=(9, -9)), ("[9, -9]", "lower one first")),
    "range of no column": Use(lambda _: classifier(ranges={"wage": (0, 1)}), ("'wage'", "'x0'")),
    "range of a column as a number": Use(lambda _: classifier(ranges={"x0": 3}), ("ranges['x0']=3", "(low, high)")),
    "epsilon of an estimator as a text": Use(lambda _: classifier(epsilon="3"), ("epsilon='3'", "e.g. 3")),
    "epsilon of an estimator 0": Use(lambda _: classifier(epsilon=0), ("epsilon=0", "above 0")),
    "delta of an estimator": Use(lambda _: classifier(delta=2), ("delta=2", "in (0, 1)")),
    "all of epsilon for ranges": Use(lambda _: classifier(schema_epsilon=3), ("schema_epsilon=3", "smaller part")),
    "cuda without CUDA": Use(lambda _: classifier(device="cuda:7"), ("'cuda:7'", "use cpu")),
    "a module for a model": Use(lambda _: classifier(model=nn.Linear(5, 3)), ("a Linear", "function (shape, outputs)")),
    "batch of an estimator": Use(lambda _: classifier(batch_size=100), ("batch_size=100", "at most 40")),
    "lr as a text": Use(lambda _: classifier(lr="0.1"), ("lr='0.1'", "e.g. 0.1")),
    "seed of an estimator": Use(lambda _: classifier(seed=-1), ("seed=-1", ">= 0")),
    "one row": Use(lambda _: classifier(NUMBERS[:1], LABELS[:1]), ("n_samples=1", "Give more rows")),
    "no row at all": Use(lambda _: classifier(FRAME[:0], LABELS[:0]), ("0 sample", "minimum")),
    "one dimension": Use(lambda _: classifier(NUMBERS[:, 0]), ("1D array", "Reshape")),
    "labels of another length": Use(lambda _: classifier(y=LABELS[:30]), ("30 labels", "Give one for each")),
    "labels that are fractions": Use(lambda _: classifier(y=NUMBERS[:, 0]), ("continuous", "PrivateRegressor")),
    "labels that are missing": Use(lambda _: classifier(y=np.where(LABELS, LABELS, np.nan)), ("NaN", "Leave out rows")),
    "labels that are words": Use(lambda _: regressor(np.array(["a"] * 40)), ("'a'", "PrivateClassifier")),
    "infinity in X": Use(lambda _: classifier(np.where(NUMBERS > 2, np.inf, NUMBERS)), ("infinity", "NaN if it is")),
    "unit that is no column": Use(lambda _: classifier(FRAME, fitting={"unit": "person"}), ("'person'", "'a', 'b'")),
    "group that is no column": Use(lambda _: classifier(FRAME, fitting={"groups": ["sex"]}), ("'sex'", "'a', 'b'")),
    "schema that is a dict": Use(
        lambda _: classifier(ranges=None, fitting={"schema": {"a": 1}}), ("schema={'a': 1}", "noisewise.Schema")
    ),
    "schema and ranges": Use(
        lambda _: classifier(fitting={"schema": "s.toml"}), ("ranges and schema", "Leave ranges out")
    ),
    "asked before fit": Use(lambda _: nw.PrivateClassifier().predict(NUMBERS), ("not fitted yet", "Call 'fit'")),
    "other columns than fitted": Use(
        lambda _: classifier(FRAME).predict(FRAME.rename(columns={"a": "z"})), ("feature names", "z")
    ),
    "fewer columns than fitted": Use(lambda _: classifier().predict(NUMBERS[:, :3]), ("3 features", "5 features")),
    "unknown audit": Use(lambda _: classifier().audit(NUMBERS, LABELS, names=["magic"]), ("'magic'", "Known audits")),
    "audit that needs training rows": Use(
        lambda _: classifier().audit(NUMBERS, LABELS, names=["membership"]), ("membership", "train=(X, y)")
    ),
}
USES = {**MODELS, **DATA, **LOSSES, **PLANS, **RUNS, **ESTIMATORS}


@pytest.fixture(autouse=True)
def bare(monkeypatch):
    """Without what is optional, and without the memory of earlier fits."""
    for name in ("mlflow", "torch.utils.tensorboard", "tensorboard"):
        monkeypatch.setitem(sys.modules, name, None)
    monkeypatch.setattr(spending, "_FITS", [])
    monkeypatch.setattr(base, "noise_for", lambda *_: 1.0)


@pytest.mark.parametrize("name", USES)
def test_a_wrong_use_is_answered(name, tmp_path):
    with pytest.raises(NoisewiseError) as caught:
        USES[name].do(tmp_path)
    message = str(caught.value)
    assert [word for word in USES[name].words if word not in message] == [], message
    assert "report a bug" not in message
    assert len(message) > 30


def test_there_are_enough_of_them():
    assert len(USES) == sum(map(len, (MODELS, DATA, LOSSES, PLANS, RUNS, ESTIMATORS))) >= 160

"""Public tables that stand in for the measured ones when defaults are searched: none of their rows is measured later.

`.data/standins` (or the folder `$STANDINS`) holds the publishers' files: abalone, bank marketing, banknotes, Boston
housing, default of credit cards, diamonds, mammography, miles per gallon, phonemes, Pima Indians, Beijing's air, image
segments, Titanic (from github.com/jbrownlee/Datasets and mwaskom/seaborn-data; bank and credit from UCI), and MNIST's first
10,000 training images at 14x14 pixels. Friedman's function and Gaussian clusters are made up here. Numbers are scaled to
[-1, 1] by their range (on a logarithmic scale where the skewness exceeds 3), other columns are one-hot.
"""

from __future__ import annotations

import io
import os
from functools import cache
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

FOLDER = Path(os.environ.get("STANDINS") or Path(__file__).parent.parent / ".data" / "standins")
CELLS = {  # table: numbers of training rows
    "bank": (500, 2000, 8000, 32000), "credit": (1000, 5000, 20000), "phoneme": (1000, 4300), "mammography": (2000, 8900),
    "banknote": (300, 1000), "pima": (200, 600), "titanic": (700,), "segment": (1200,), "cut": (5000, 15000),
    "clusters": (2000, 8000), "mnist14": (1500, 4000),
    "diamonds": (1000, 10000), "abalone": (500, 3300), "air": (3000, 30000), "boston": (400,), "mpg": (300,),
    "friedman": (300, 2000, 15000),
}  # fmt: skip
REGRESSIONS = ("diamonds", "abalone", "air", "boston", "mpg", "friedman")
HELD_OUT = 10_000  # at most; a fifth otherwise


def _number(values, log: bool) -> np.ndarray:
    values = np.asarray(values, float)
    values = np.sign(values) * np.log1p(np.abs(values)) if log else values
    low, high = values.min(), values.max()
    return (2 * (values - low) / (high - low) - 1)[:, None]


def _one_hot(values) -> np.ndarray:
    texts = np.asarray(values).astype(str)
    return (texts[:, None] == np.unique(texts)).astype(float)


def _encoded(frame, label, regression: bool) -> tuple[np.ndarray, np.ndarray]:
    columns = []
    for name in frame.columns.drop(label):
        column = frame[name]
        numeric = column.dtype.kind in "iuf" and column.nunique() > 6
        columns.append(_number(column, abs(column.skew()) > 3) if numeric else _one_hot(column))
    y = (
        _number(frame[label], False)[:, 0]
        if regression
        else np.unique(frame[label].astype(str), return_inverse=True)[1]
    )
    return np.concatenate(columns, 1), y


def _file(name: str, **options):
    import pandas as pd

    return pd.read_csv(FOLDER / f"{name}.csv", **options)


def _segments():
    import pandas as pd

    lines = (FOLDER / "segment-challenge.arff").read_text().splitlines()
    rows = [line for line in lines if line.strip() and line[0] not in "@%"]
    return pd.read_csv(io.StringIO("\n".join(rows)), header=None).drop(columns=2)


def _titanic():
    frame = _file("titanic")[["survived", "pclass", "sex", "age", "sibsp", "parch", "fare", "embarked"]]
    return frame.assign(age=frame["age"].fillna(30))


@cache
def table(name: str) -> tuple[np.ndarray, np.ndarray]:
    """Features and labels of a stand-in."""
    regression = name in REGRESSIONS
    match name:
        case "clusters":
            from sklearn.datasets import make_classification

            x, y = make_classification(40_000, 20, n_informative=8, n_clusters_per_class=3, flip_y=0.05, random_state=1)
            return np.clip(x / 4, -1, 1), y
        case "friedman":
            from sklearn.datasets import make_friedman1

            x, y = make_friedman1(40_000, 10, noise=1.0, random_state=0)
            return 2 * x - 1, _number(y, False)[:, 0]
        case "mnist14":
            stored = np.load(FOLDER / "mnist14.npz")
            return stored["x"] / 255, stored["y"].astype(np.int64)
        case "bank":
            return _encoded(_file("bank-full"), "Outcome of present campaign", regression)
        case "credit":
            return _encoded(_file("UCI_Credit_Card"), "default.payment.next.month", regression)
        case "titanic":
            return _encoded(_titanic(), "survived", regression)
        case "segment":
            return _encoded(_segments(), 19, regression)
        case "cut" | "diamonds":
            return _encoded(_file("diamonds"), "cut" if name == "cut" else "price", regression)
        case "air":
            return _encoded(_file("pollution").dropna().drop(columns=["No", "year", "day"]), "pm2.5", regression)
        case "mpg":
            return _encoded(_file("mpg").dropna().drop(columns="name"), "mpg", regression)
    files = {"banknote": "banknote_authentication", "pima": "pima-indians-diabetes", "boston": "housing"}
    frame = _file(files.get(name, name), header=None)
    return _encoded(frame, frame.columns[-1], regression)


def parts(name: str, n: int) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Training and held-out features and labels: `n` rows, or as many as there are."""
    x, y = table(name)
    order = np.random.default_rng(0).permutation(len(y))
    held = min(HELD_OUT, len(y) // 5)
    train, rest = order[held : held + n], order[:held]
    x = torch.from_numpy(x.astype(np.float32))
    labels = torch.from_numpy(y.astype(np.float32 if name in REGRESSIONS else np.int64))
    return x[train], labels[train], x[rest], labels[rest]

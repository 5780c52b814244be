"""Datasets of the tiny problem, read item by item; here, where worker processes of any kind can import them."""

import random
from functools import partial

import numpy as np
import torch
from torch.utils.data import Dataset

from helpers import tiny


class Rows(Dataset):
    """The tiny data, one item at a time; `chance` adds what three generators draw."""

    def __init__(self, chance=0.0, units=None):
        self.x, self.y = tiny.data() if units is None else units
        self.chance, self.read = chance, []

    def __len__(self):
        return len(self.x)

    def __getitem__(self, index):
        self.read.append(index)
        drawn = torch.rand(()) + random.random() + np.random.random()
        return self.x[index] + self.chance * drawn, self.y[index]


class Words(Rows):
    def __getitem__(self, index):
        return "a word"


class Ragged(Rows):
    def __getitem__(self, index):
        return torch.zeros(1 + index % 2), 0


class OwnChance(Rows):
    """Draws from a generator of its own: `of` is torch, numpy or random; `every`: how many items, one of so many."""

    def __init__(self, of="torch", every=1):
        super().__init__()
        self.every = every
        self.draw = {
            "torch": partial(torch.rand, (), generator=torch.Generator().manual_seed(1)),
            "numpy": np.random.default_rng(1).random,
            "random": random.Random(1).random,
            "system": random.SystemRandom().random,
        }[of]

    def __getitem__(self, index):
        x, y = super().__getitem__(index)
        return (x + self.draw() if index % self.every == 0 else x), y

"""A table of made-up people, and the file of it."""

from __future__ import annotations

import csv

import numpy as np


def written(path, table):
    with path.open("w", encoding="utf-8", newline="") as file:
        csv.writer(file, quoting=csv.QUOTE_ALL).writerows([list(table), *zip(*table.values(), strict=True)])
    return path


def people(n=4000, seed=0):
    """Ages 18 to 79, born 1937 to 1998, pay with gaps, three towns and a rare one, a name for everybody."""
    generator = np.random.default_rng(seed)
    age = generator.integers(18, 80, n)
    pay = generator.uniform(-1500, 3000, n).round(2).astype(str)
    pay[generator.random(n) < 0.3] = "NA"
    town = generator.choice(["Ulm", "Bonn", "Köln"], n)
    town[0] = "Secret"
    return {
        "age": age.tolist(),
        "born": (2016 - age).tolist(),
        "pay": pay.tolist(),
        "town": town.tolist(),
        "name": [f"person {k}" for k in range(n)],
        "sex": generator.choice(["f", "m"], n).tolist(),
        "hired": generator.choice(["no", "yes"], n).tolist(),
    }

"""How useful schemas chosen with noise are on real tables: `python benchmarks/noised_schemas.py [--draws 5]`.

For each table and epsilon: the smallest share of a number column's values that its range holds, the median, and what a
linear model without privacy does with the encoded columns, beside a schema that was read off the rows.
"""

import argparse
import tempfile
from pathlib import Path

import numpy as np
import pandas as pd
from sklearn import datasets
from sklearn.linear_model import LogisticRegression, Ridge

from noisewise.data.files import find
from noisewise.data.table_parts import load_table
from noisewise.data.tables.kinds import WIDE, Classes, Number, centred
from noisewise.data.tables.propose import propose
from noisewise.data.tables.schema import Schema
from noisewise.data.tabular import ADULT_COLUMNS, GERMAN_COLUMNS
from noisewise.errors import ConfigError

EPSILONS = (0.1, 0.5, 1.0, 3.0)


def tables() -> dict[str, tuple[pd.DataFrame, str]]:
    """Each with its label."""
    adult = pd.read_csv(find("tabular/adult.data"), header=None, names=ADULT_COLUMNS, skipinitialspace=True)
    german = pd.read_csv(find("tabular/german.data"), header=None, names=(*GERMAN_COLUMNS, "risk"), sep=" ")
    return {
        "Adult": (adult, "income"),
        "California Housing": (pd.read_csv(find("tabular/california_housing.csv")), "medianHouseValue"),
        "white wine": (pd.read_csv(find("tabular/winequality-white.csv"), sep=";"), "quality"),
        "German credit": (german, "risk"),
        "diabetes": (datasets.load_diabetes(as_frame=True, scaled=False).frame, "target"),
        "breast cancer": (datasets.load_breast_cancer(as_frame=True).frame, "target"),
    }


def score(path: Path, schema: Schema) -> float:
    """Accuracy or R² on a held-out part."""
    parts = load_table(path, schema, test=0.3, public=True)
    model = Ridge() if parts.train.task == "regression" else LogisticRegression(max_iter=300)
    return model.fit(parts.train.x.numpy(), parts.train.y.numpy()).score(parts.test.x.numpy(), parts.test.y.numpy())


def held(frame: pd.DataFrame, schema: Schema) -> list[float]:
    """The share of each number column's values within its range; the wide default is left out."""
    kinds = {name: kind for name, kind in schema.columns.items() if isinstance(kind, Number)}
    values = {name: pd.to_numeric(frame[name], errors="coerce").dropna() for name in kinds}
    return [values[name].between(kind.low, kind.high).mean() for name, kind in kinds.items() if kind.high != WIDE.high]


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--draws", type=int, default=5, help="noised schemas for each table and epsilon")
    draws = parser.parse_args().draws
    for name, (frame, label) in tables().items():
        path = Path(tempfile.mkdtemp()) / "table.csv"
        frame.to_csv(path, index=False)
        values = frame[label]
        classes = values.nunique() <= 2
        ends = [] if classes else [float(values.min()), float(values.max())]
        known = {label: Classes(tuple(sorted(map(str, set(values))))) if classes else centred(*ends)}
        line = [f"{name}, {len(frame):,} rows: {score(path, propose(path, label=label, columns=known).schema):.3f}"]
        for epsilon in EPSILONS:
            try:
                schemas = [propose(path, label=label, columns=known, epsilon=epsilon).schema for _ in range(draws)]
            except ConfigError:
                line.append(f"epsilon {epsilon:g} refused")
                continue
            shares = [share for schema in schemas for share in held(frame, schema)]
            scores = [score(path, schema) for schema in schemas]
            line.append(f"epsilon {epsilon:g} {min(shares):.2f}, {np.median(shares):.2f}: {np.mean(scores):.3f}")
        print("; ".join(line), flush=True)

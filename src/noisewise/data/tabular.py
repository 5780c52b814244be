"""Published tables with their schemas, and any CSV file with a schema.

Categories and ranges are written out here, so that no loader looks at rows to find them. The ranges are those of the
published rows, which are public: for rows of your own, declare ranges that are public knowledge.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from noisewise.data.base import Data, Splits, split
from noisewise.data.files import find
from noisewise.data.table_parts import load_table
from noisewise.data.tables.kinds import Category, Classes, Feature, Ignore, Number, Target
from noisewise.data.tables.schema import Schema
from noisewise.errors import ConfigError

# --------------------------------------------------------------------------------------- Adult

SEX = Category(("Female", "Male"), other=False)
ADULT_GROUPS = {
    "sex": SEX,
    "race": Category(("White", "Asian-Pac-Islander", "Amer-Indian-Eskimo", "Other", "Black"), other=False),
}
ADULT = Schema(
    label="income",
    target=Classes(("<=50K", ">50K")),
    groups=ADULT_GROUPS,
    columns={
        "age": Number(17, 90),
        "workclass": Category(
            (
                "Private", "Self-emp-not-inc", "Self-emp-inc", "Federal-gov", "Local-gov", "State-gov", "Without-pay",
                "Never-worked",
            )
        ),
        "fnlwgt": Ignore(),
        "education": Category(
            (
                "Bachelors", "Some-college", "11th", "HS-grad", "Prof-school", "Assoc-acdm", "Assoc-voc", "9th",
                "7th-8th", "12th", "Masters", "1st-4th", "10th", "Doctorate", "5th-6th", "Preschool",
            ),
            other=False,
        ),
        "education_num": Number(1, 16),
        "marital_status": Category(
            (
                "Married-civ-spouse", "Divorced", "Never-married", "Separated", "Widowed", "Married-spouse-absent",
                "Married-AF-spouse",
            ),
            other=False,
        ),
        "occupation": Category(
            (
                "Tech-support", "Craft-repair", "Other-service", "Sales", "Exec-managerial", "Prof-specialty",
                "Handlers-cleaners", "Machine-op-inspct", "Adm-clerical", "Farming-fishing", "Transport-moving",
                "Priv-house-serv", "Protective-serv", "Armed-Forces",
            )
        ),
        "relationship": Category(
            ("Wife", "Own-child", "Husband", "Not-in-family", "Other-relative", "Unmarried"), other=False
        ),
        "capital_gain": Number(0, 99_999, log=True),
        "capital_loss": Number(0, 4_356, log=True),
        "hours_per_week": Number(1, 99),
        "native_country": Category(
            (
                "United-States", "Cambodia", "England", "Puerto-Rico", "Canada", "Germany",
                "Outlying-US(Guam-USVI-etc)", "India", "Japan", "Greece", "South", "China", "Cuba", "Iran", "Honduras",
                "Philippines", "Italy", "Poland", "Jamaica", "Vietnam", "Mexico", "Portugal", "Ireland", "France",
                "Dominican-Republic", "Laos", "Ecuador", "Taiwan", "Haiti", "Columbia", "Hungary", "Guatemala",
                "Nicaragua", "Scotland", "Thailand", "Yugoslavia", "El-Salvador", "Trinadad&Tobago", "Peru", "Hong",
                "Holand-Netherlands",
            )
        ),
    },
)  # fmt: skip
ADULT_COLUMNS = (
    "age", "workclass", "fnlwgt", "education", "education_num", "marital_status", "occupation", "relationship", "race",
    "sex", "capital_gain", "capital_loss", "hours_per_week", "native_country", "income",
)  # fmt: skip


def adult(seed: int = 0, valid: int = 3_256, *, group_features: bool = False) -> Splits:
    """Adult census income: does somebody earn over 50,000 dollars? 32,561 + 16,281 people; groups sex and race.

    An unknown value (`?`) is `other`. Gains and losses of capital are on a logarithmic scale, which a linear model learns
    from in fewer steps than from the plain scale (run to its end, it gets slightly further on the plain one). The census
    weight `fnlwgt` is not used. The test part is the official one; `valid` of the others are held out for choosing
    settings. Reference: B. Becker, R. Kohavi 1996, UCI.
    """
    schema = _with_groups(ADULT, ADULT_GROUPS) if group_features else ADULT
    known = _table("adult.data", ",", ADULT_COLUMNS)
    unseen = _table("adult.test", ",", ADULT_COLUMNS, skip=1)
    unseen["income"] = [text.removesuffix(".") for text in unseen["income"]]
    held, train = split(schema.encode(known, public=True), seed, valid)
    return Splits(train, held, schema.encode(unseen, public=True))


# --------------------------------------------------------------------------------------- German credit


def _codes(attribute: int, *codes: int) -> Category:
    return Category(tuple(f"A{attribute}{code}" for code in codes), other=False)


GERMAN_COLUMNS: Mapping[str, Feature] = {
    "checking_account": _codes(1, 1, 2, 3, 4),
    "months": Number(4, 72),
    "credit_history": _codes(3, 0, 1, 2, 3, 4),
    "purpose": _codes(4, 0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10),
    "amount": Number(250, 18_424, log=True),
    "savings": _codes(6, 1, 2, 3, 4, 5),
    "employed_since": _codes(7, 1, 2, 3, 4, 5),
    "installment_rate": Number(1, 4),
    "personal_status": _codes(9, 1, 2, 3, 4, 5),
    "other_debtors": _codes(10, 1, 2, 3),
    "resident_since": Number(1, 4),
    "property": _codes(12, 1, 2, 3, 4),
    "age": Number(19, 75),
    "other_plans": _codes(14, 1, 2, 3),
    "housing": _codes(15, 1, 2, 3),
    "credits_here": Number(1, 4),
    "job": _codes(17, 1, 2, 3, 4),
    "dependents": Number(1, 2),
    "telephone": _codes(19, 1, 2),
    "foreign_worker": _codes(20, 1, 2),
}
GERMAN_SOURCES: Mapping[str, Feature] = {name: GERMAN_COLUMNS[name] for name in ("personal_status", "age")}
GERMAN = Schema(
    label="risk",
    target=Classes(("bad", "good")),
    groups={
        "sex": Category(("female", "male"), other=False),
        "age_group": Category(("25 or younger", "over 25"), other=False),
    },
    columns={**GERMAN_COLUMNS, **dict.fromkeys(GERMAN_SOURCES, Ignore())},
)


def german_credit(seed: int = 0, valid: int = 100, *, group_features: bool = False) -> Splits:
    """German credit: 1000 loans, is the risk good (700) or bad (300)? Groups sex and age (25 or younger, or over).

    Codes as in the documentation of the set. Sex is part of the code of the personal status, the age group is made of the
    age: neither personal status nor age is a feature unless `group_features`. A fifth is the test part.
    Reference: H. Hofmann 1994, Statlog, UCI.
    """
    schema = replace(GERMAN, columns=GERMAN_COLUMNS) if group_features else GERMAN
    table = _table("german.data", " ", (*GERMAN_COLUMNS, "risk"))
    table["risk"] = [{"1": "good", "2": "bad"}[code] for code in table["risk"]]
    table["sex"] = ["female" if code in ("A92", "A95") else "male" for code in table["personal_status"]]
    table["age_group"] = ["25 or younger" if int(age) <= 25 else "over 25" for age in table["age"]]
    return _fifth(schema.encode(table, public=True), seed, valid)


# --------------------------------------------------------------------------------------- COMPAS

COMPAS_GROUPS = {
    "race": Category(("African-American", "Asian", "Caucasian", "Hispanic", "Native American", "Other"), other=False),
    "sex": SEX,
    "age_cat": Category(("Less than 25", "25 - 45", "Greater than 45"), other=False),
}
COMPAS_SOURCES: Mapping[str, Feature] = {"age": Number(18, 96)}
COMPAS = Schema(
    label="two_year_recid",
    target=Classes(("no", "yes")),
    groups=COMPAS_GROUPS,
    columns={
        "age": Ignore(),
        "priors_count": Number(0, 38, log=True),
        "juv_fel_count": Number(0, 20, log=True),
        "juv_misd_count": Number(0, 13, log=True),
        "juv_other_count": Number(0, 17, log=True),
        "c_charge_degree": Category(("F", "M"), other=False),
    },
)


def compas(seed: int = 0, valid: int = 617, *, group_features: bool = False) -> Splits:
    """COMPAS: was somebody charged again within two years? 6172 defendants; groups race, sex and age.

    ProPublica's filter: scores within 30 days of the arrest, known recidivism, no ordinary traffic offence, a score.
    Features are earlier charges and the degree of this one; the age, which the age group is made of, only with
    `group_features`; never the COMPAS score. A fifth is the test part.
    Reference: Larson, Mattu, Kirchner, Angwin 2016, ProPublica, "How We Analyzed the COMPAS Recidivism Algorithm".
    """
    import pandas as pd

    raw = pd.read_csv(find("tabular/compas-two-years.csv"), dtype=str, keep_default_na=False)
    days = pd.to_numeric(raw["days_b_screening_arrest"].replace("", None))
    counted = days.between(-30, 30) & (raw["is_recid"] != "-1") & (raw["c_charge_degree"] != "O")
    raw = raw[counted & (raw["score_text"] != "N/A")]
    table = raw[[*COMPAS.columns, *COMPAS.groups]].assign(
        two_year_recid=raw["two_year_recid"].map({"0": "no", "1": "yes"})
    )
    with_age = replace(COMPAS, columns={**COMPAS.columns, **COMPAS_SOURCES})
    schema = _with_groups(with_age, COMPAS_GROUPS) if group_features else COMPAS
    return _fifth(schema.encode(table, public=True), seed, valid)


# --------------------------------------------------------------------------------------- California Housing

HOUSING = Schema(
    label="medianHouseValue",
    target=Target(0, 500_001, scale=1e5),
    columns={
        "medianIncome": Number(0.4999, 15.0001),
        "housingMedianAge": Number(1, 52),
        "rooms": Number(0, 142, log=True),
        "bedrooms": Number(0, 35, log=True),
        "population": Number(3, 35_682, log=True),
        "occupancy": Number(0, 1_244, log=True),
        "latitude": Number(32.54, 41.95),
        "longitude": Number(-124.35, -114.31),
    },
)


def california_housing(seed: int = 0, valid: int = 2_064) -> Splits:
    """California Housing: median value of houses in 20,640 districts, in 100,000 dollars; a regression without groups.

    Rooms, bedrooms and people are per household, as in scikit-learn; values above 500,000 dollars are recorded as 500,001.
    A fifth is the test part. Reference: R. K. Pace, R. Barry 1997, Sparse Spatial Autoregressions.
    """
    import pandas as pd

    raw = pd.read_csv(find("tabular/california_housing.csv"))
    shares = {"rooms": "totalRooms", "bedrooms": "totalBedrooms", "occupancy": "population"}
    table = raw.assign(**{name: raw[total] / raw["households"] for name, total in shares.items()})
    return _fifth(HOUSING.encode(table[[*HOUSING.used]], public=True), seed, valid)


# --------------------------------------------------------------------------------------- Wine Quality

WINE = Schema(
    label="quality",
    target=Target(0, 10),
    groups={"colour": Category(("red", "white"), other=False)},
    columns={
        "fixed acidity": Number(3.8, 15.9),
        "volatile acidity": Number(0.1, 1.6),
        "citric acid": Number(0, 1.7),
        "residual sugar": Number(0.6, 65.8, log=True),
        "chlorides": Number(0.01, 0.61),
        "free sulfur dioxide": Number(1, 289, log=True),
        "total sulfur dioxide": Number(6, 440),
        "density": Number(0.987, 1.039),
        "pH": Number(2.7, 4.0),
        "sulphates": Number(0.2, 2.0),
        "alcohol": Number(8.0, 14.9),
    },
)
COLOURS = ("red", "white")


def wine_quality(
    seed: int = 0, valid: int | None = None, *, colour: str = "both", group_features: bool = False
) -> Splits:
    """Wine Quality: marks from 0 to 10 for 1599 red and 4898 white wines, a regression; group colour.

    `colour`: `red`, `white` or `both`. The ranges are those of both colours together, rounded. A fifth is the test part;
    `valid` defaults to a tenth. Reference: P. Cortez et al. 2009, Decision Support Systems 47(4).
    """
    if colour not in (*COLOURS, "both"):
        raise ConfigError(f"colour={colour!r}: must be 'red', 'white' or 'both'.")
    import pandas as pd

    chosen = COLOURS if colour == "both" else (colour,)
    files = [pd.read_csv(find(f"tabular/winequality-{name}.csv"), sep=";") for name in chosen]
    table = pd.concat([file.assign(colour=name) for file, name in zip(files, chosen, strict=True)])
    schema = _with_groups(WINE, WINE.groups) if group_features else WINE
    data = schema.encode(table, public=True)
    return _fifth(data, seed, len(data) // 10 if valid is None else valid)


# --------------------------------------------------------------------------------------- any CSV file


def table(
    path: str | os.PathLike[str],
    schema: Schema,
    seed: int = 0,
    valid: int | None = None,
    *,
    test: int | None = None,
    public: bool = False,
) -> Splits:
    """`load_table`: a fifth of a CSV or Parquet file (or `test`) for audits, a tenth (or `valid`) held out.

    Sizes count people where the schema has a unit column: all rows of one person are in the same part.
    `public`: the rows are published.
    """
    tested, held = 0.2 if test is None else test, 0.1 if valid is None else valid
    return load_table(path, schema, seed=seed, test=tested, valid=held, public=public).splits


# --------------------------------------------------------------------------------------- in common


def _with_groups(schema: Schema, groups: Mapping[str, Feature]) -> Schema:
    return replace(schema, columns={**schema.columns, **groups})


def _fifth(data: Data, seed: int, valid: int) -> Splits:
    test, held, train = split(data, seed, len(data) // 5, valid)
    return Splits(train, held, test)


def _table(name: str, separator: str, columns: tuple[str, ...], skip: int = 0) -> dict[str, Any]:
    """A publisher's file without a header."""
    lines = find(f"tabular/{name}").read_text().splitlines()[skip:]
    rows = [[field.strip() for field in line.split(separator)] for line in lines if line.strip()]
    return dict(zip(columns, np.array(rows).T.tolist(), strict=True))

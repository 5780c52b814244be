"""Published tables are the published ones, and are encoded as pandas would."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch

from noisewise.data import tabular
from noisewise.data.tables.kinds import Category, Classes, Number, Target
from noisewise.data.tables.schema import Schema
from noisewise.data.tabular import adult, california_housing, compas, german_credit, table, wine_quality
from noisewise.errors import ConfigError, PrivacyError

needs_data = pytest.mark.skipif(not os.environ.get("NOISEWISE_DATA"), reason="NOISEWISE_DATA is not set")


def published(name, **how):
    return pd.read_csv(Path(os.environ["NOISEWISE_DATA"]) / "tabular" / name, **how)


def together(parts, of):
    return torch.cat([of(part) for part in parts])


def feature(data, name):
    return data.x[:, data.schema.feature_names.index(name)]


@pytest.fixture(scope="module")
def adults():
    return adult()


# --- Adult


@needs_data
def test_adult_is_the_published_one(adults) -> None:
    assert [len(part) for part in adults] == [32_561 - 3_256, 3_256, 16_281]
    known = together(adults[:2], lambda part: part.y)
    assert (int(known.sum()), int(adults.test.y.sum())) == (7_841, 3_846)
    assert together(adults[:2], lambda part: part.groups["sex"]).bincount().tolist() == [10_771, 21_790]
    assert adults.train.group_names["sex"] == ("Female", "Male")
    assert adults.train.classes == ("<=50K", ">50K")
    assert all(part.public and part.unit is None for part in adults)


@needs_data
def test_adult_is_encoded_as_pandas_would(adults) -> None:
    """The official test part keeps its order, so it can be compared row by row."""
    raw = published("adult.test", names=tabular.ADULT_COLUMNS, skipinitialspace=True, skiprows=1)
    columns = tabular.ADULT.columns
    expected = [
        (raw["age"].clip(17, 90) - 17) / 73 * 2 - 1,
        np.log1p(raw["capital_gain"]) / np.log1p(99_999) * 2 - 1,
        np.log1p(raw["capital_loss"].clip(upper=4_356)) / np.log1p(4_356) * 2 - 1,
        (raw["hours_per_week"] - 1) / 98 * 2 - 1,
    ]
    for name, values in zip(("age", "capital_gain", "capital_loss", "hours_per_week"), expected, strict=True):
        np.testing.assert_allclose(feature(adults.test, name).numpy(), values, atol=1e-6)
    for name, kind in columns.items():
        if isinstance(kind, Category):
            dummies = pd.get_dummies(raw[name].replace("?", "other"), dtype=np.float32).reindex(
                columns=list(kind.names), fill_value=0
            )
            first = adults.test.schema.feature_names.index(f"{name}={kind.names[0]}")
            np.testing.assert_array_equal(adults.test.x[:, first : first + len(kind.names)].numpy(), dummies.to_numpy())
    assert torch.equal(adults.test.y, torch.tensor(raw["income"].str.startswith(">").to_numpy()).long())
    races = np.array(adults.test.group_names["race"])[adults.test.groups["race"].numpy()]
    assert races.tolist() == raw["race"].tolist()


@needs_data
def test_unknown_values_of_adult_are_other(adults) -> None:
    others = [name for name in adults.test.schema.feature_names if name.endswith("=other")]
    assert others == ["workclass=other", "occupation=other", "native_country=other"]
    unknown = torch.stack([feature(adults.test, name) for name in others]).max(0).values
    assert int(unknown.sum()) == 1_221
    first = together(adults[:2], lambda part: torch.stack([feature(part, name) for name in others]).max(0).values)
    assert int(first.sum()) == 2_399


@needs_data
def test_groups_are_features_only_if_asked(adults) -> None:
    names = adults.train.schema.feature_names
    assert not any(name.startswith(("sex", "race")) for name in names)
    asked = adult(group_features=True).test
    assert asked.schema.feature_names == (
        *names, "sex=Female", "sex=Male", *(f"race={race}" for race in asked.group_names["race"]),
    )  # fmt: skip
    assert torch.equal(feature(asked, "sex=Male").long(), asked.groups["sex"])


@needs_data
def test_a_linear_model_learns_adult(adults) -> None:
    """By scikit-learn, run until its own stopping rule; always saying "at most 50K" would score 0.764."""
    from sklearn.linear_model import LogisticRegression

    model = LogisticRegression(max_iter=1000).fit(adults.train.x.numpy(), adults.train.y.numpy())
    assert model.score(adults.test.x.numpy(), adults.test.y.numpy()) > 0.84
    assert float((adults.test.y == 0).float().mean()) == pytest.approx(0.764, abs=5e-4)


@needs_data
def test_the_seed_is_the_split() -> None:
    one, other = german_credit(1), german_credit(2)
    assert torch.equal(one.test.x, german_credit(1).test.x)
    assert not torch.equal(one.test.x, other.test.x)
    assert torch.equal(german_credit(1, valid=0).test.x, one.test.x)


# --- German credit


@needs_data
def test_german_credit_is_the_published_one() -> None:
    parts = german_credit()
    assert [len(part) for part in parts] == [700, 100, 200]
    assert together(parts, lambda part: part.y).bincount().tolist() == [300, 700]
    assert parts.train.classes == ("bad", "good")
    assert together(parts, lambda part: part.groups["sex"]).bincount().tolist() == [310, 690]
    raw = published("german.data", sep=" ", header=None)
    young = int((raw[12] <= 25).sum())
    assert together(parts, lambda part: part.groups["age_group"]).bincount().tolist() == [young, 1000 - young]
    assert not any(name.startswith(("personal_status", "age")) for name in parts.train.schema.feature_names)


@needs_data
def test_german_credit_is_encoded_as_pandas_would() -> None:
    raw = published("german.data", sep=" ", header=None)
    parts = german_credit(group_features=True)
    schema = parts.train.schema
    x = together(parts, lambda part: part.x).numpy()
    for column, (name, kind) in enumerate(tabular.GERMAN_COLUMNS.items()):
        first = schema.feature_names.index(kind.labels(name)[0])
        found = x[:, first : first + len(kind.labels(name))].sum(0)
        if isinstance(kind, Category):
            expected = raw[column].value_counts().reindex(list(kind.values), fill_value=0).to_numpy()
        else:
            assert isinstance(kind, Number)
            assert kind.low <= raw[column].min() <= raw[column].max() <= kind.high
            bent = np.log1p if kind.log else (lambda v: v)
            scaled = (bent(raw[column]) - bent(kind.low)) / (bent(kind.high) - bent(kind.low)) * 2 - 1
            expected = [scaled.sum()]
        np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-3)


# --- COMPAS


@needs_data
def test_compas_has_propublicas_6172_rows() -> None:
    parts = compas()
    raw = published("compas-two-years.csv")
    kept = raw[
        raw.days_b_screening_arrest.between(-30, 30)
        & (raw.is_recid != -1)
        & (raw.c_charge_degree != "O")
        & (raw.score_text != "N/A")
    ]
    assert sum(map(len, parts)) == len(kept) == 6_172
    assert len(parts.test) == 6_172 // 5
    assert int(together(parts, lambda part: part.y).sum()) == int(kept.two_year_recid.sum())
    for group in ("race", "sex", "age_cat"):
        counts = together(parts, lambda part, group=group: part.groups[group]).bincount().tolist()
        expected = kept[group].value_counts()
        assert dict(zip(parts.train.group_names[group], counts, strict=True)) == expected.to_dict()
    priors = together(parts, lambda part: feature(part, "priors_count")).numpy()
    scaled = np.log1p(kept["priors_count"]) / np.log1p(38) * 2 - 1
    np.testing.assert_allclose(np.sort(priors), np.sort(scaled), atol=1e-6)
    assert parts.train.schema.width == 6
    assert compas(group_features=True).train.schema.width == 6 + 1 + 6 + 2 + 3


# --- regressions


@needs_data
def test_california_housing_is_the_published_one() -> None:
    parts = california_housing()
    raw = published("california_housing.csv")
    assert [len(part) for part in parts] == [14_448, 2_064, 4_128]
    y = together(parts, lambda part: part.y).numpy()
    y = parts.train.schema.target.unscaled(y)
    np.testing.assert_allclose(np.sort(y), np.sort(raw["medianHouseValue"]), rtol=1e-5)
    assert parts.train.task == "regression"
    rooms = (np.log1p(raw["totalRooms"] / raw["households"]) / np.log1p(142)) * 2 - 1
    np.testing.assert_allclose(
        np.sort(together(parts, lambda p: feature(p, "rooms")).numpy()), np.sort(rooms), atol=1e-5
    )
    x = together(parts, lambda part: part.x)
    assert float(((x == 1) | (x == -1)).float().mean()) < 0.02  # ranges that cut hardly anything off


@needs_data
def test_wine_quality_is_the_published_one() -> None:
    parts = wine_quality()
    assert sum(map(len, parts)) == 1_599 + 4_898
    assert together(parts, lambda part: part.groups["colour"]).bincount().tolist() == [1_599, 4_898]
    raw = pd.concat([published(f"winequality-{colour}.csv", sep=";") for colour in ("red", "white")])
    y = together(parts, lambda part: part.y).numpy()
    assert np.sort(parts.train.schema.target.unscaled(y)).round(5).tolist() == np.sort(raw["quality"]).tolist()
    alcohol = (raw["alcohol"] - 8) / 6.9 * 2 - 1
    np.testing.assert_allclose(
        np.sort(together(parts, lambda p: feature(p, "alcohol")).numpy()), np.sort(alcohol), atol=1e-6
    )
    assert sum(map(len, wine_quality(colour="red"))) == 1_599
    assert wine_quality(group_features=True).train.schema.width == 13
    with pytest.raises(ConfigError, match="'rosé'"):
        wine_quality(colour="rosé")


# --- any CSV file

SCHEMA = Schema(label="y", target=Classes(("0", "1")), columns={"a": Number(0, 100)}, unit="who")


def test_any_csv_file_is_split_by_people(tmp_path) -> None:
    path = tmp_path / "rows.csv"
    path.write_text("who,a,y\n" + "".join(f"p{k % 40},{k},{k % 2}\n" for k in range(100)))
    parts = table(path, SCHEMA)
    assert all(part.units for part in parts)
    assert sum(map(len, parts)) == 100
    owners = [set(part.unit.tolist()) for part in parts]
    assert len(set.union(*owners)) == sum(map(len, owners)) == 40
    assert torch.equal(table(path, SCHEMA, seed=0).test.x, parts.test.x)
    assert not parts.train.public
    assert [part.units for part in table(path, SCHEMA, valid=3, test=5)] == [32, 3, 5]


def test_any_csv_file_without_units(tmp_path) -> None:
    path = tmp_path / "rows.csv"
    path.write_text("a,y\n" + "".join(f"{k},{k / 50}\n" for k in range(50)))
    schema = Schema(label="y", target=Target(0, 1), columns={"a": Number(0, 100)})
    parts = table(path, schema, public=True)
    assert all(map(len, parts))
    assert sum(map(len, parts)) == 50
    assert parts.test.public
    unconfirmed = Schema.from_dict({**schema.to_dict(), "origin": "rows"})
    with pytest.raises(PrivacyError, match="confirmed"):
        table(path, unconfirmed)

"""`noisewise temperature`, and predictions with it."""

import csv
import json
import math

import numpy as np
import pytest

PLAN = (
    "--noise-multiplier",
    "1",
    "--steps",
    "30",
    "--batch-size",
    "64",
    "--no-twin",
    "--quiet",
    "--insecure-seed",
    "1",
)


@pytest.fixture
def clinic(noisewise, tmp_path):
    """A run on people that are not public."""
    rng = np.random.default_rng(0)
    ages = rng.integers(0, 100, 400)
    ill = ["yes" if age + rng.normal(0, 30) > 50 else "no" for age in ages]
    rows = "".join(f"{age},{label}\n" for age, label in zip(ages, ill, strict=True))
    (tmp_path / "people.csv").write_text(f"age,ill\n{rows}")
    told = ("--column", "age=0:100", "--label", "ill=no,yes")
    assert noisewise("train", "--data", "people.csv", *told, *PLAN, "--out", "run").code == 0
    assert noisewise("train", "--data", "people.csv", *told, *PLAN, "--valid", "60", "--out", "held-out").code == 0


def chances(path):
    return [float(row["probability of yes"]) for row in csv.DictReader(path.read_text().splitlines())]


def test_predictions_are_as_sure_as_the_temperature_says(noisewise, clinic, tmp_path):
    printed = noisewise("temperature", "run")
    assert printed.code == 0, printed.err
    for text in ("rows of the test part", "status not-private: temperature fitted without noise", "is used up by this"):
        assert text in printed.words
    about = json.loads(noisewise("temperature", "run", "--json").out)
    line = f"noisewise predict run FILE --out scores.csv --temperature {about['temperature']:.4g}"
    assert f"Next: {line}" in printed.words
    value = f"{about['temperature']:.4g}"
    assert noisewise("predict", "run", "people.csv", "--out", "scores.csv", "--temperature", value).code == 0
    assert noisewise("predict", "run", "people.csv", "--out", "plain.csv").code == 0
    for scaled, plain in zip(chances(tmp_path / "scores.csv"), chances(tmp_path / "plain.csv"), strict=True):
        odds = math.log(min(max(plain, 1e-6), 1 - 1e-6) / min(max(1 - plain, 1e-6), 1.0)) / float(value)
        assert scaled == pytest.approx(1 / (1 + math.exp(-odds)), abs=2e-3 if 1e-3 < plain < 1 - 1e-3 else 0.1)
        assert (scaled > 0.5) == (plain > 0.5)


def test_held_out_rows_come_before_the_test_part(noisewise, clinic):
    about = json.loads(noisewise("temperature", "held-out", "--json").out)
    assert (about["part"], about["rows"], about["status"]) == ("valid", 60, "not-private")
    assert "is used up" not in noisewise("temperature", "held-out").words


@pytest.mark.parametrize("value", ["0", "-1", "nan", "inf"])
def test_what_is_no_temperature_is_refused(noisewise, value, tmp_path):
    (tmp_path / "people.csv").write_text("age,ill\n1,no\n")
    outcome = noisewise("predict", "run", "people.csv", "--out", "scores.csv", "--temperature", value)
    assert outcome.code == 2
    assert "--temperature" in outcome.words


def test_no_run_is_said(noisewise):
    assert "nowhere is no run folder" in noisewise("temperature", "nowhere").words

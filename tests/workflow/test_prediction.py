"""Predictions from a run folder alone."""

import csv
import shutil

import pytest
import torch

from noisewise.data.tables.kinds import Category, Classes, Number, Target
from noisewise.data.tables.schema import Schema
from noisewise.errors import ConfigError, DataError, RunError
from noisewise.workflow.config import plan
from noisewise.workflow.execution import execute
from noisewise.workflow.opened import open_run
from noisewise.workflow.prediction import open_predictor, predict

COLUMNS = {"age": Number(0, 100, fill=50), "town": Category(("Bonn", "Ulm"))}
LABELS = {"classes": Classes(("no", "yes")), "number": Target(0, 1000, scale=500, offset=500)}


@pytest.fixture(scope="module", params=LABELS)
def run(request, tmp_path_factory):
    """A run on a table that is gone afterwards, and so is its twin."""
    folder = tmp_path_factory.mktemp(request.param)
    label = (lambda k: "yes" if k % 3 else "no") if request.param == "classes" else (lambda k: str(10 * (k % 100)))
    rows = [f"{k % 100},{'Ulm' if k % 2 else 'Bonn'},{label(k)}" for k in range(300)]
    (folder / "t.csv").write_text("\n".join(["age,town,y", *rows]) + "\n")
    schema = Schema(label="y", target=LABELS[request.param], columns=COLUMNS)
    planned = plan(
        data=str(folder / "t.csv"), schema=schema, noise_multiplier=1.0, steps=20, batch_size=100, twin=False,
        repairs=("lora:rank=2",) if request.param == "classes" else (), model="mlp:widths=8",
    )  # fmt: skip
    run = execute(planned, folder / "run", progress=False)
    opened = open_run(run.path)
    expected = opened.model(opened.data.test.x[:4]).detach()
    test = opened.data.test.x[:4]
    (folder / "t.csv").unlink()
    shutil.rmtree(run.sensitive)
    return run, schema, test, expected


def written(path, text):
    path.write_text(text)
    return path


def test_the_model_is_the_one_that_was_trained(run):
    folder, _, x, expected = run
    with torch.no_grad():
        assert torch.equal(open_predictor(folder.path).model(x), expected)


def test_every_row_gets_its_prediction_in_its_place(run, tmp_path):
    folder, schema, _, _ = run
    source = written(tmp_path / "new.csv", "who,town,age\na,Ulm,20\nb,Bonn,90\nc,Rome,\nd,Ulm,400\n")
    counts = predict(folder.path, source, tmp_path / "out.csv", keep=["who"])
    rows = list(csv.DictReader((tmp_path / "out.csv").read_text().splitlines()))
    assert [(row["row"], row["who"]) for row in rows] == [("1", "a"), ("2", "b"), ("3", "c"), ("4", "d")]
    x = schema.inputs(source)
    with torch.no_grad():
        outputs = open_predictor(folder.path).model(x).double()
    if isinstance(schema.target, Classes):
        chances = outputs.softmax(1)
        assert [row["prediction"] for row in rows] == [schema.target.values[k] for k in chances.argmax(1)]
        told = torch.tensor([[float(row["probability of no"]), float(row["probability of yes"])] for row in rows])
        assert torch.allclose(told.double(), chances, atol=1e-6)
    else:
        told = torch.tensor([float(row["prediction"]) for row in rows]).double()
        assert torch.allclose(told, 500 + 500 * outputs[:, 0], rtol=1e-5)
    assert (counts.rows, counts.unseen, counts.outside, counts.missing) == (4, {"town": 1}, {"age": 1}, {"age": 1})


def test_a_missing_column_is_counted_where_there_is_a_way(run, tmp_path):
    folder = run[0]
    counts = predict(folder.path, written(tmp_path / "new.csv", "town\nUlm\n"), tmp_path / "out.csv")
    assert counts.absent == ("age",)
    with pytest.raises(DataError, match="no column"):
        predict(folder.path, written(tmp_path / "other.csv", "city\nUlm\n"), tmp_path / "other-out.csv")
    with pytest.raises(ConfigError, match="no such column"):
        predict(folder.path, tmp_path / "new.csv", tmp_path / "third.csv", keep=["who"])


def test_folders_that_predict_nothing(run, tmp_path):
    with pytest.raises(RunError, match="no finished run"):
        open_predictor(tmp_path)
    images = execute(
        plan(data="digits", noise_multiplier=1.0, steps=1, batch_size=64, model="logistic", twin=False),
        tmp_path / "images",
        progress=False,
    )
    with pytest.raises(RunError, match="neither a run on a table"):
        open_predictor(images.path)

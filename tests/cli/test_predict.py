"""`noisewise predict`: what it writes, says and refuses."""

import json
from pathlib import Path

import pytest

ROWS = "\n".join(f"{k % 60},{'F' if k % 2 else 'M'},{'ill' if k % 3 else 'well'}" for k in range(200))


@pytest.fixture
def run(noisewise, tmp_path):
    (tmp_path / "clinic.csv").write_text(f"age,sex,outcome\n{ROWS}\n")
    (tmp_path / "new.csv").write_text("sex,age\nF,30\nX,500\nM,\n")
    found = noisewise(
        "train", "--data", "clinic.csv", "--label", "outcome=ill,well", "--column", "age=0:120", "--column", "sex=F,M",
        "--noise-multiplier", "1", "--steps", "2", "--batch-size", "50", "--no-twin", "--quiet", "--out", "run",
    )  # fmt: skip
    assert found.code == 0, found.words
    return noisewise


def test_predictions_without_a_label_and_without_the_training_data(run):
    Path("clinic.csv").unlink()
    found = run("predict", "run", "new.csv", "--out", "scores.csv")
    assert found.code == 0, found.words
    assert "3 predictions: scores.csv" in found.words
    assert "Column 'sex', of 3 values: 1 not in the schema's list and taken as other." in found.words
    assert "Column 'age', of 3 values: 1 missing, 1 outside the declared range" in found.words
    assert len(Path("scores.csv").read_text().splitlines()) == 4


def test_for_programs(run):
    found = run("predict", "run", "new.csv", "--out", "scores.csv", "--json")
    facts = json.loads(found.out)
    assert facts["rows"] == 3
    assert facts["counted"]["unseen"] == {"sex": 1}


def test_nothing_is_overwritten_and_nothing_half_is_left(run):
    Path("scores.csv").write_text("mine")
    assert run("predict", "run", "new.csv", "--out", "scores.csv").code == 2
    assert Path("scores.csv").read_text() == "mine"
    Path("odd.csv").write_text("sex\n")
    Path("wrong.csv").write_text("city\nUlm\n")
    assert run("predict", "run", "wrong.csv", "--out", "other.csv").code == 2
    assert not Path("other.csv").exists()


@pytest.mark.parametrize(
    ("trained", "asked"), [("utf-16", "utf-8"), ("cp1252", "utf-8"), ("cp1252", "utf-16"), ("utf-8", "utf-16")]
)
def test_new_rows_need_not_be_written_as_those_that_were_trained_on(noisewise, tmp_path, trained, asked):
    rows = [f"{k % 60},{'Köln' if k % 2 else 'Ulm'},{'ill' if k % 3 else 'well'}" for k in range(200)]
    table = "größe,ort,outcome\n" + "\n".join(rows) + "\n"
    for name, encoding in (("clinic.csv", trained), ("again.csv", trained), ("new.csv", asked)):
        (tmp_path / name).write_bytes(table.encode(encoding))
    found = noisewise(
        "train", "--data", "clinic.csv", "--label", "outcome=ill,well", "--column", "größe=0:120", "--column", "ort=Köln,Ulm",
        "--noise-multiplier", "1", "--steps", "2", "--batch-size", "50", "--no-twin", "--quiet", "--out", "run",
    )  # fmt: skip
    assert found.code == 0, found.words
    for name in ("again", "new"):
        found = noisewise("predict", "run", f"{name}.csv", "--out", f"{name}.scores", "--keep", "ort")
        assert found.code == 0, found.words
        assert "taken as other" not in found.words
    assert Path("new.scores").read_text("utf-8") == Path("again.scores").read_text("utf-8")

"""`noisewise schema` on tables as they are: each is described, confirmed, encoded and predicted from, or refused at once."""

from __future__ import annotations

import json
import random
import time
from pathlib import Path

import dp_accounting  # noqa: F401  loaded here: it takes most of a second, which is not what a test below times
import pandas as pd
import pytest
import torch

from helpers.command_line import command_line
from noisewise.audits import disparity
from noisewise.data import tables
from noisewise.data.table_parts import load_table
from noisewise.data.tables import encoded_inputs, header
from noisewise.data.tables.dates import Date
from noisewise.data.tables.kinds import Boolean, Category, Classes, Hashed, Ignore, Number, Target, centred
from noisewise.data.tables.propose import propose
from noisewise.data.tables.schema import Schema, read
from noisewise.data.tables.words import Words
from noisewise.errors import DataError, PrivacyError

N = 400


@pytest.fixture
def noisewise(monkeypatch, capsys, tmp_path):
    """Runs the command line in this process, in an empty folder, 80 columns wide."""
    return command_line(monkeypatch, capsys, tmp_path, columns=80)


def lines(header: str, row, n: int = N) -> str:
    return header + "\n" + "".join(row(k) + "\n" for k in range(n))


def yes(k: int) -> str:
    return ("no", "yes")[k % 3 > 0]


NOTES = random.Random(0)
TABLES = {  # name: (content, arguments, kinds of some columns, words that must be printed)
    "dates": (
        lines(
            "when,born,y", lambda k: f"2021-0{1 + k % 9}-1{k % 9},{1 + k % 28}.{1 + k % 12}.{1930 + k % 70},{yes(k)}"
        ),
        (),
        {
            "when": Date("2021-01-01", "2021-12-31", parts=("position", "month", "weekday")),
            "born": Date("1930-01-01", "1999-12-31", "%d.%m.%Y"),
        },
        "date in [1930-01-01, 1999-12-31]",
    ),
    "free text": (
        lines("note,y", lambda k: f'"said ""{NOTES.choice("abc")} pain, number {k}"", and left again",{yes(k)}'),
        (),
        {"note": Words(64)},
        "free text, words hashed into 64 buckets",
    ),
    "identifiers": (
        lines("id,a,y", lambda k: f"{1000 + k},{k % 9},{yes(k)}"),
        (),
        {"id": Ignore()},
        "Identifiers, left out: 'id'.",
    ),
    "a person in several rows": (
        lines("patient_id,a,y", lambda k: f"P{k % 80},{k % 9},{yes(k)}"),
        (),
        {"patient_id": Ignore()},
        "--unit patient_id",
    ),
    "three percent of bad values": (
        lines("pay,y", lambda k: f"{('12 %', 'n/a', 'unknown')[k % 3] if k % 33 == 4 else k % 80},{yes(k)}"),
        (),
        {"pay": Number(0, 80, fill=40, indicator=True, invalid="missing")},
        "12 of 400 values are no numbers",
    ),
    "missing values": (
        lines("a,b,y", lambda k: f"{'' if k % 4 else k},{'NA' if k % 7 == 0 else 'x'},{yes(k)}"),
        (),
        {"a": Number(0, 400, fill=200, indicator=True), "b": Category(("NA", "x"))},
        "200 where missing",
    ),
    "a logarithmic scale with gaps": (
        lines("a,y", lambda k: f"{'' if k % 4 else k * k},{yes(k)}"),
        ("--column", "a=0:1000000:log"),
        {"a": Number(0, 1e6, log=True, fill=999)},
        "logarithmic, 999 where",
    ),
    "300 levels": (
        lines("town,y", lambda k: f"town {k % 300},{yes(k)}", 5000),
        (),
        {"town": Hashed(256)},
        "300 different texts share 256 buckets",
    ),
    "10,000 levels": (
        lines("town,y", lambda k: f"town {k * 7919 % 10_000},{yes(k)}", 20_000),
        (),
        {"town": Hashed(512)},
        "10,000 different texts share 512 buckets",
    ),
    "booleans": (
        lines("a,b,y", lambda k: f"{('TRUE', 'False')[k % 2]},{('y', 'n', '')[k % 3]},{yes(k)}"),
        (),
        {"a": Boolean(), "b": Boolean(indicator=True)},
        "yes or no, may be missing",
    ),
    "non-ASCII headers": (
        lines("größe,město,年齢,y", lambda k: f"{k % 50},Brno,{k % 90},{yes(k)}"),
        (),
        {"größe": Number(0, 50, fill=25), "年齢": Number(0, 90, fill=45)},
        "年齢",
    ),
    "windows-1252": (
        lines("größe;ort;y", lambda k: f"{k % 50};Köln;{yes(k)}").encode("cp1252"),
        (),
        {"größe": Number(0, 50, fill=25), "ort": Category(("Köln",))},
        "read as windows-1252",
    ),
    "utf-16": (
        lines("größe\tort\ty", lambda k: f"{k % 50}\tKöln\t{yes(k)}").encode("utf-16"),
        (),
        {"ort": Category(("Köln",))},
        "read as utf-16",
    ),
    "quoted separators": (
        lines('"a;b","c,d","y"', lambda k: f'"{k % 9};1","x,{k % 3}","{yes(k)}"'),
        (),
        {"a;b": Category(tuple(f"{k};1" for k in range(9))), "c,d": Category(("x,0", "x,1", "x,2"))},
        "a;b",
    ),
    "duplicate and unnamed columns": (
        lines("a,,a,y,", lambda k: f"{k % 9},{k % 7},{k % 5},{yes(k)},"),
        (),
        {
            "a": Number(0, 8, fill=4),
            "a (2)": Number(0, 4, fill=2),
            "column 2": Number(0, 6, fill=3),
            "column 5": Ignore(),
        },
        "Names that occur twice in the header are numbered: 'a (2)'.",
    ),
    "a real-valued label": (
        lines("a,y", lambda k: f"{k % 9},{100 + k * 1.5}"),
        (),
        {"a": Number(0, 8, fill=4)},
        "label: number in [100, 700]",
    ),
    "spaces, quotes and brackets": (
        lines(" a , [red]b , y ", lambda k: f' {k % 9} , "[bold]x""" , {yes(k)} ')
        .replace(' "[', '"[')
        .replace('""" ,', '""",'),
        (),
        {"[red]b": Category(('[bold]x"',))},
        "[red]b",
    ),
}


@pytest.mark.parametrize("name", TABLES)
def test_a_table_is_described_confirmed_encoded_and_predicted_from(noisewise, tmp_path, name) -> None:
    content, arguments, kinds, words = TABLES[name]
    Path("t.csv").write_bytes(content if isinstance(content, bytes) else content.encode())
    found = noisewise("schema", "t.csv", "--label", "y", "--out", "s.toml", *arguments)
    assert found.code == 0, found.words
    assert words in found.words
    assert max(map(len, found.out.splitlines())) <= 80
    schema = read("s.toml")
    assert {column: schema.columns[column] for column in kinds} == kinds
    with pytest.raises(PrivacyError, match="not confirmed"):
        load_table("t.csv", schema)
    text = Path("s.toml").read_text("utf-8")
    Path("s.toml").write_text(text.replace("confirmed = false", "confirmed = true"), "utf-8")
    loaded = load_table("t.csv", read("s.toml"), test=0.25)
    assert sum(map(len, loaded.splits)) == loaded.counts.rows >= N
    assert float(loaded.train.x.abs().max()) <= 1
    assert not loaded.train.public
    everything = encoded_inputs(read("s.toml"), "t.csv")
    assert len(everything.x) == loaded.counts.rows
    few = everything.x[torch.randperm(len(everything.x))[:5]]
    assert all(bool((row == everything.x).all(1).any()) for row in few)


@pytest.mark.parametrize("name", ["dates", "three percent of bad values", "booleans", "300 levels", "windows-1252"])
def test_json_is_the_schema_alone(noisewise, name) -> None:
    content = TABLES[name][0]
    Path("t.csv").write_bytes(content if isinstance(content, bytes) else content.encode())
    found = noisewise("schema", "t.csv", "--label", "y", "--json", "--out", "s.json")
    assert found.code == 0
    assert json.loads(found.out) == json.loads(Path("s.json").read_text("utf-8")) == read("s.json").to_dict()
    assert "read off the rows" in found.err
    assert Path("s.json").stat().st_mode & 0o777 == 0o600


def test_parquet_by_the_same_words(noisewise) -> None:
    pd.DataFrame({"a": range(N), "y": [yes(k) for k in range(N)], "b": [k / 7 for k in range(N)]}).to_parquet(
        "t.parquet"
    )
    found = noisewise("schema", "t.parquet", "--label", "y")
    assert found.code == 0
    assert read("t.schema.toml").columns["b"] == Number(0, 60, fill=30)


WRONG = {  # name: (content, arguments, what is said)
    "no file": (None, (), "t.csv does not exist"),
    "an empty file": ("", (), "t.csv is empty"),
    "blank lines": ("\n\n\n", (), "t.csv is empty"),
    "a header only": ("a,y\n", (), "no rows below the header"),
    "one class": ("a,y\n1,no\n2,no\n3,no\n", (), "'y' has 1 different values: there is nothing to learn"),
    "no such label": ("a,b\n1,2\n", (), "'y': no such column. The header has 'a', 'b'."),
    "no such group": ("a,y\n1,no\n", ("--group", "sex"), "'sex': no such column"),
    "no such unit": ("a,y\n1,no\n2,yes\n", ("--unit", "who"), "--unit who: no such column"),
    "no such declaration": ("a,y\n1,no\n", ("--column", "b=1:2"), "no such column"),
    "an impossible date": (
        "a,y\n1,no\n",
        ("--column", "a=date:2020-13-01:2021-01-01"),
        "must be a date like 2024-05-31",
    ),
    "an impossible format": ("a,y\n1,no\n", ("--column", "a=date:2020-01-01:2021-01-01:%Q"), "%Y, %m (or %b) and %d"),
    "an unknown encoding": ("a,y\n1,no\n", ("--encoding", "klingon"), "must be one of utf-8"),
    "ragged rows": ("a,y\n1,no\n1,2,3,yes\n", (), "row 2 (line 3): 4 fields, the header has 2"),
    "an open quote": ('a,y\n1,no\n"2,yes\n', (), "Quotes must be closed"),
    "two encodings": ("größe,y\n1,no\n".encode() + b"2,\xff\xfe\n", (), "something below it is not"),
    "every column an identifier": (lines("id,y", lambda k: f"{k},{yes(k)}"), (), "no column is left to learn from"),
    "too little for the noise": (
        lines("a,b,y", lambda k: f"{k % 9},{k % 7},{yes(k)}"),
        ("--label", "y=no,yes", "--epsilon", "0.1"),
        "Nothing was released, nothing is spent. It takes about",
    ),
    "a folder": ("folder", (), "cannot be read"),
}


@pytest.mark.parametrize("name", WRONG)
def test_a_hostile_table_is_refused_within_a_second_and_nothing_is_written(noisewise, tmp_path, name) -> None:
    content, arguments, message = WRONG[name]
    if content == "folder":
        Path("t.csv").mkdir()
    elif content is not None:
        Path("t.csv").write_bytes(content if isinstance(content, bytes) else content.encode())
    label = () if "--label" in arguments else ("--label", "y")
    start = time.process_time()
    found = noisewise("schema", "t.csv", *label, *arguments, "--out", "s.toml")
    assert time.process_time() - start < 1.5
    assert found.code == 2
    assert message in found.words
    assert "Traceback" not in found.words
    assert not (tmp_path / "s.toml").exists()


def test_three_rows_are_described_and_refused_for_training(noisewise) -> None:
    Path("t.csv").write_text("a,y\n1,no\n2,yes\n3,no\n")
    assert noisewise("schema", "t.csv", "--label", "y", "--out", "s.toml").code == 0
    schema = read("s.toml")
    with pytest.raises(Exception, match=r"3 rows: a share of 0\.2 for the test part is less than one"):
        load_table("t.csv", schema, public=True)


def test_a_wrong_name_is_said_before_the_rows_are_read(noisewise, monkeypatch) -> None:
    """The first lines only, for the separator: a file of any size is refused at once."""
    Path("t.csv").write_text("a,y\n1,no\n2,yes\n")
    for reading in ("noisewise.data.tables.header._eight_bits", "noisewise.data.tables.propose.survey"):
        real = [] if "survey" in reading else [header._eight_bits]
        monkeypatch.setattr(reading, lambda parts, *_, real=real: real[0](only_the_first_line(parts)))
    for wrong in (("--label", "z"), ("--label", "y", "--group", "z"), ("--label", "y", "--unit", "z")):
        found = noisewise("schema", "t.csv", *wrong, "--out", "s.toml")
        assert (found.code, "no such column" in found.words) == (2, True)


def only_the_first_line(blocks):
    assert isinstance(blocks, list), "more than the first line is read"
    return blocks


def test_an_existing_file_and_a_wrong_folder_are_said_before_anything_is_read(noisewise, monkeypatch) -> None:
    monkeypatch.setattr("noisewise.data.tables.header.look", lambda *_, **__: pytest.fail("read"))
    Path("s.toml").touch()
    assert "s.toml exists" in noisewise("schema", "t.csv", "--label", "y", "--out", "s.toml").words
    assert "is no folder" in noisewise("schema", "t.csv", "--label", "y", "--out", "no/s.toml").words


def test_a_noised_schema_of_a_small_table_is_refused_and_of_a_large_one_holds_nearly_all(noisewise) -> None:
    """`s6` in [91, 94] was the answer once."""
    from sklearn.datasets import load_diabetes

    frame = load_diabetes(as_frame=True, scaled=False).frame
    frame.to_csv("t.csv", index=False)
    label = ("--label", "target=0:400")
    found = noisewise("schema", "t.csv", *label, "--epsilon", "0.5", "--out", "s.toml")
    assert found.code == 2
    assert "epsilon 0.5 for choosing 10 columns from 442 rows" in found.words
    assert "or --epsilon 2.3" in found.words
    assert not Path("s.toml").exists()
    pd.concat([frame] * 20).to_csv("large.csv", index=False)
    assert noisewise("schema", "large.csv", *label, "--epsilon", "0.5", "--out", "s.toml").code == 0
    for name, kind in read("s.toml").columns.items():
        assert isinstance(kind, Number)
        assert frame[name].between(kind.low, kind.high).mean() > 0.85


def test_the_label_of_a_regression_comes_back_in_its_own_units(noisewise) -> None:
    Path("t.csv").write_text(TABLES["a real-valued label"][0])
    assert noisewise("schema", "t.csv", "--label", "y=0:1000", "--column", "a=0:9", "--out", "s.toml").code == 0
    schema = read("s.toml")
    assert schema.target == Target(0, 1000, scale=500, offset=500)
    data = schema.encode("t.csv")
    assert isinstance(schema.target, Target)
    assert schema.target.unscaled(data.y)[:3].tolist() == [100, 101.5, 103]
    assert isinstance(read("s.toml").target, Target)


@pytest.mark.parametrize("ways", [{}, {"header_only": True}, {"epsilon": 8.0}])
def test_what_reads_no_row_as_it_is_sees_the_encoding_of_the_header_alone(tmp_path, ways) -> None:
    """Which letters the rows have is theirs; a row that cannot be read then stops, with the way out."""
    path = tmp_path / "t.csv"
    path.write_bytes(lines("a,b,y", lambda k: f"{k % 9},{k % 7},{yes(k)}").encode() + b"8,K\xf6ln,no\n")
    assert propose(path, label="y").schema.encoding == "windows-1252"
    known = {"y": Classes(("no", "yes")), **({} if ways else {"a": Number(0, 9), "b": Category(("1",))})}
    if "epsilon" in ways:
        with pytest.raises(DataError, match="not UTF-8 text"):
            propose(path, label="y", columns=known, **ways)
        assert (
            propose(path, label="y", columns=known, encoding="windows-1252", **ways).schema.encoding == "windows-1252"
        )
    else:
        assert propose(path, label="y", columns=known, **ways).schema.encoding == "utf-8"


def test_errors_of_a_regression_are_in_the_units_of_its_label() -> None:
    table = {"a": range(50), "y": [100 + 3 * k for k in range(50)]}
    plain, scaled = (
        Schema(label="y", target=target, columns={"a": Number(0, 49)}).encode(table)
        for target in (Target(0, 500), centred(0, 500))
    )
    model = torch.nn.Linear(1, 1)
    torch.nn.init.zeros_(model.weight)
    torch.nn.init.zeros_(model.bias)  # says 0 of the plain label, 250 of the scaled one
    errors = [disparity(model, data).headline["mae"].value for data in (plain, scaled)]
    assert errors[0] == pytest.approx(sum(table["y"]) / 50)
    assert errors[1] == pytest.approx(sum(abs(y - 250) for y in table["y"]) / 50)


def test_names_of_the_package() -> None:
    assert {name: getattr(tables, name).__name__ for name in tables.__all__} == {name: name for name in tables.__all__}
    assert dir(tables) == sorted(tables.__all__)
    with pytest.raises(AttributeError, match="no attribute 'surprise'"):
        tables.surprise  # noqa: B018
    assert Classes(("a", "b")).values == ("a", "b")

"""Published sets of texts on small made-up files in their publishers' formats, and texts of one's own."""

from __future__ import annotations

import hashlib
import io
import json
import os
import zipfile
from dataclasses import replace

import pytest
import torch

from noisewise import data as sets
from noisewise.data import load_texts
from noisewise.data.files import FILES, Download
from noisewise.data.tokens import HashedWords
from noisewise.errors import ConfigError, DataError

needs_data = pytest.mark.skipif(not os.environ.get("NOISEWISE_DATA"), reason="NOISEWISE_DATA is not set")
WORDS = HashedWords()
CLASSES = ("entailment", "neutral", "contradiction")


@pytest.fixture
def put(tmp_path, monkeypatch):
    """Put a file where the user's own files are; its published checksum becomes its own."""
    monkeypatch.setenv("NOISEWISE_DATA", str(tmp_path))
    monkeypatch.setenv("NOISEWISE_CACHE", str(tmp_path / "cache"))

    def give(name, content):
        raw = content if isinstance(content, bytes) else content.encode()
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(raw)
        nowhere = Download(("http://127.0.0.1:9/file",), f"sha256:{'0' * 64}")
        monkeypatch.setitem(FILES, name, replace(FILES[name], sha256=hashlib.sha256(raw).hexdigest(), download=nowhere))

    return give


def rows(data):
    return [(x, int(y)) for x, y in zip(data.x.tolist(), data.y, strict=True)]


def test_sst2_is_read_as_glue_writes_it(put):
    """Quotes are letters, and a sentence ends with a space."""
    put("text/sst2_train.tsv", 'sentence\tlabel\nhide " new \t0\na joy \t1\nso so \t0\n')
    put("text/sst2_dev.tsv", "sentence\tlabel\ncharming \t1\n")
    parts = sets.sst2(valid=1)
    expected = [
        (WORDS.encode([text])[0].tolist(), label) for text, label in (("hide new", 0), ("a joy", 1), ("so so", 0))
    ]
    assert sorted([*rows(parts.train), *rows(parts.valid)]) == sorted(expected)
    assert rows(parts.test) == [(WORDS.encode(["charming"])[0].tolist(), 1)]
    assert all(part.public and part.classes == ("negative", "positive") for part in parts)


HEAD = "pair_ID\tsentence_A\tsentence_B\trelatedness_score\tentailment_judgment"


@pytest.fixture
def pairs(put):
    """SICK's lines may end as on Windows; the last one may not end at all."""
    put("text/sick_train.tsv", f"{HEAD}\n1\tA man\tA boy\t4.5\tNEUTRAL\n2\tNo man\tA man\t3\tCONTRADICTION")
    put("text/sick_trial.tsv", f"{HEAD}\n4\tA man runs\tA man moves\t3.6\tENTAILMENT\n")
    put("text/sick_test.tsv", f"{HEAD}\r\n6\tOne\tTwo\t3.3\tNEUTRAL\r\n7\tThree\tFour\t1\tENTAILMENT")


def test_sick_has_its_published_parts(pairs):
    parts = sets.sick()
    assert [len(part) for part in parts] == [2, 1, 2]
    assert rows(parts.train) == [
        (WORDS.encode(["A man"], ["A boy"])[0].tolist(), 1),
        (WORDS.encode(["No man"], ["A man"])[0].tolist(), 2),
    ]
    assert rows(parts.valid) == [(WORDS.encode(["A man runs"], ["A man moves"])[0].tolist(), 0)]
    assert [label for _, label in rows(parts.test)] == [1, 0]
    assert parts.test.classes == CLASSES
    assert sorted([*rows(sets.sick(0, 2).train), *rows(sets.sick(0, 2).valid)]) == sorted(
        [*rows(parts.train), *rows(parts.valid)]
    )


def snli_zip(**parts):
    raw = io.BytesIO()
    with zipfile.ZipFile(raw, "w") as archive:
        for part, lines in parts.items():
            text = "".join(json.dumps(line) + "\n" for line in lines)
            archive.writestr(f"snli_1.0/snli_1.0_{part}.jsonl", text)
    return raw.getvalue()


def pair(first, second, label):
    """A line as the publisher writes it."""
    return {"annotator_labels": [label], "captionID": "1.jpg#1", "gold_label": label, "pairID": "1", "sentence1": first,
            "sentence1_binary_parse": "( x )", "sentence2": second, "sentence2_parse": "(ROOT x)"}  # fmt: skip


def test_snli_has_its_published_parts_without_pairs_that_nobody_agrees_on(put):
    train = [pair("A “man”", "A boy", "neutral"), pair("x", "y", "-"), pair("No man", "A man", "contradiction")]
    put(
        "snli/snli_1.0.zip",
        snli_zip(train=train, dev=[pair("One", "Two", "entailment")], test=[pair("a", "b", "-")] * 2 + train),
    )
    parts = sets.snli()
    assert [len(part) for part in parts] == [2, 1, 2]
    assert rows(parts.train) == [
        (WORDS.encode(["A man"], ["A boy"])[0].tolist(), 1),
        (WORDS.encode(["No man"], ["A man"])[0].tolist(), 2),
    ]
    assert rows(parts.valid) == [(WORDS.encode(["One"], ["Two"])[0].tolist(), 0)]
    assert parts.train.classes == CLASSES
    assert len(sets.snli(0, 2).valid) == 2


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("text/sst2_dev.tsv", "sentence\n1\n", "no columns sentence, label"),
        ("text/sst2_dev.tsv", "sentence\tlabel\na\t0\tb\n", "no columns sentence, label"),
        ("text/sst2_dev.tsv", "sentence\tlabel\na\t2\n", "none of the classes 0, 1"),
        ("text/sst2_dev.tsv", "sentence\tlabel\n", "no rows"),
        ("snli/snli_1.0.zip", b"no archive", "snli_1.0.zip holds no readable"),
        ("snli/snli_1.0.zip", snli_zip(train=[{"sentence1": "a"}]), "line 1: no JSON object"),
    ],
)
def test_a_file_of_another_form_is_refused_by_name(put, name, content, message):
    put("text/sst2_train.tsv", "sentence\tlabel\na\t0\nb\t1\n")
    put(name, content)
    with pytest.raises(DataError, match=message):
        (sets.snli if "snli" in name else sets.sst2)(valid=None if "snli" in name else 0)


@needs_data
def test_the_real_sets_have_their_published_counts():
    counts = [part.y.bincount().tolist() for part in sets.sick()]
    assert counts == [[1299, 2536, 665], [144, 282, 74], [1414, 2793, 720]]
    train, _, test = sets.sst2(valid=0)
    assert (train.y.bincount().tolist(), test.y.bincount().tolist()) == ([29780, 37569], [428, 444])


# --- one's own --------------------------------------------------------------------------------------------------------
TABLE = {
    "note": [f"text number {k}" for k in range(60)],
    "other": [f"answer {k % 7}" for k in range(60)],
    "mood": ["good" if k % 3 else "bad" for k in range(60)],
    "patient": [f"p{k // 4}" for k in range(60)],
}


def whole(parts):
    return sorted(row for part in parts for row in rows(part))


def own(source=TABLE, **settings):
    return load_texts(source, **{"text": "note", "label": "mood", "classes": ("bad", "good"), **settings})


def test_csv_json_lines_and_columns_give_the_same_rows(tmp_path):
    import pandas as pd

    frame = pd.DataFrame(TABLE)
    frame.to_csv(tmp_path / "t.csv", index=False)
    frame.to_csv(tmp_path / "t.tsv", index=False, sep="\t")
    frame.to_json(tmp_path / "t.jsonl", orient="records", lines=True)
    expected = [
        (WORDS.encode([TABLE["note"][k]], [TABLE["other"][k]])[0].tolist(), int(TABLE["mood"][k] == "good"))
        for k in range(60)
    ]
    for source, more in ((TABLE, {}), (frame, {}), (tmp_path / "t.csv", {}), (tmp_path / "t.tsv", {"separator": "\t"}),
                         (tmp_path / "t.jsonl", {})):  # fmt: skip
        assert whole(own(source, second="other", **more)) == sorted(expected)


def test_parts_are_cut_unit_by_unit():
    """One row more moves nobody else; all rows of a person are in one part."""
    parts = own(unit="patient", test=0.3, valid=2)
    owners = [set(part.unit.tolist()) for part in parts]
    assert sum(map(len, owners)) == len(set.union(*owners))
    assert len(owners[1]) == 2
    more = {
        name: [*values, *extra]
        for (name, values), extra in zip(TABLE.items(), (["new"], ["x"], ["bad"], ["q"]), strict=True)
    }
    before, after = own(), own(more)
    gone = [row for row in rows(before.train) if row not in rows(after.train)]
    assert len(gone) <= 1
    assert sum(map(len, after)) == sum(map(len, before)) + 1
    assert not own().train.public
    assert own(public=True).train.public


@pytest.mark.parametrize("valid", [0.2, 3])
def test_a_person_less_moves_nobody_else(valid):
    """Each patient is left out, the first among them; where a number of people is held out, one other takes the place."""
    patient = {
        tuple(WORDS.encode([note])[0].tolist()): name
        for note, name in zip(TABLE["note"], TABLE["patient"], strict=True)
    }

    def people(table):
        parts = own(table, unit="patient", test=0.3, valid=valid)
        return [{patient[tuple(row)] for row in part.x.tolist()} for part in parts]

    before = people(TABLE)
    for gone in sorted(set(TABLE["patient"])):
        kept = [row for row, name in enumerate(TABLE["patient"]) if name != gone]
        after = people({name: [values[row] for row in kept] for name, values in TABLE.items()})
        assert after[0] <= before[0]
        assert len(before[0] - after[0]) <= 1
        if isinstance(valid, float):
            assert after == [part - {gone} for part in before]


@pytest.mark.parametrize("name", ["", "NA", None, float("nan")])
def test_rows_of_nobody_are_refused(tmp_path, name):
    table = {**TABLE, "patient": [*TABLE["patient"][:-1], name]}
    lines = [dict(zip(table, row, strict=True)) for row in zip(*table.values(), strict=True)]
    (tmp_path / "t.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    for source in (table, tmp_path / "t.jsonl"):
        with pytest.raises(DataError, match=r"row 60, column 'patient': .*nobody owns this row"):
            own(source, unit="patient")


@pytest.mark.parametrize(
    ("settings", "error", "message"),
    [
        ({"text": "words"}, DataError, "no column 'words'; it has 'note'"),
        ({"classes": ("bad",)}, ConfigError, "at least two"),
        ({"classes": ("bad", "bad")}, ConfigError, "at least two"),
        ({"classes": ("bad", "fair")}, DataError, "row 2, column 'mood': 'good': none of the classes bad, fair"),
        ({"test": 40, "valid": 20}, ConfigError, "nothing of 60 rows is left"),
        ({"seed": -1}, ConfigError, "seed=-1"),
        ({"source": {"note": [], "mood": []}}, DataError, "no rows"),
    ],
)
def test_mistakes_are_named(settings, error, message):
    with pytest.raises(error, match=message):
        own(**settings)


def test_json_lines_are_named_by_line(tmp_path):
    (tmp_path / "t.jsonl").write_text('{"note": "a", "mood": "bad"}\n\n{"note": "a"}\n')
    with pytest.raises(DataError, match=r"t.jsonl, line 3: no JSON object with note, mood"):
        own(tmp_path / "t.jsonl")
    (tmp_path / "t.jsonl").write_bytes(b"\xff\xfe")
    with pytest.raises(DataError, match="JSON lines in UTF-8"):
        own(tmp_path / "t.jsonl")


def test_longer_texts_lose_their_end():
    parts = own({**TABLE, "note": ["a b c d e f"] * 60}, length=4)
    assert torch.equal(parts.train.x[0], WORDS.encode(["a b c d"], None, 4)[0])

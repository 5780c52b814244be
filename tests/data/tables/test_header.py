"""The beginning of a file: separators, encodings, names; each by a public rule, and said where it is odd."""

from __future__ import annotations

import codecs

import pytest
from hypothesis import given
from hypothesis import strategies as st

from noisewise.data.tables.header import LINES, encoding_of, look
from noisewise.data.tables.kinds import Category, Number, Target
from noisewise.data.tables.rows import CODECS, csv_parts, renamed
from noisewise.data.tables.schema import Schema
from noisewise.errors import ConfigError, DataError

TEXT = "größe;ort\n1;Köln\n2;Łódź €\n"
SMALL = "größe;ort\n1;Köln\n2;„Ulm“\n"


@pytest.mark.parametrize(
    ("content", "encoding"),
    [
        (TEXT.encode(), "utf-8"),
        (TEXT.encode("utf-8-sig"), "utf-8"),
        (TEXT.encode("utf-16"), "utf-16"),
        (codecs.BOM_UTF16_BE + TEXT.encode("utf-16-be"), "utf-16"),
        (TEXT.encode("utf-16-le"), "utf-16-le"),
        (TEXT.encode("utf-16-be"), "utf-16-be"),
        (SMALL.encode("cp1252"), "windows-1252"),
        (SMALL.replace("„Ulm“", "\x81").encode("latin-1"), "latin-1"),
        (b"a;b\n1;2\n", "utf-8"),
    ],
)
def test_encodings_are_seen_said_and_read(tmp_path, content, encoding) -> None:
    path = tmp_path / "t.csv"
    path.write_bytes(content)
    seen = look(path, below=LINES, whole=True)
    assert (seen.encoding, seen.separator) == (encoding, ";")
    assert seen.names in (["größe", "ort"], ["a", "b"])
    assert any(encoding in note for note in seen.notes) == (encoding != "utf-8")
    (part,) = csv_parts(path, ";", 9, encoding)
    assert part.columns[seen.names[0]] in (["1", "2"], ["1"])
    given_one = look(path, encoding=encoding, below=LINES, whole=True)
    assert (given_one.names, given_one.notes) == (seen.names, ())


def test_rows_are_looked_at_only_if_asked(tmp_path) -> None:
    path = tmp_path / "t.csv"
    path.write_bytes(b"a,b\n1,K\xf6ln\n")
    assert encoding_of(path, whole=False) == "utf-8"
    assert encoding_of(path, whole=True) == "windows-1252"
    path.write_bytes("größe,b\n".encode() + b"1,K\xf6ln\n")
    assert look(path).encoding == "utf-8"
    with pytest.raises(DataError, match="first line is UTF-8 text, and something below it is not"):
        look(path, below=LINES, whole=True)


def test_an_encoding_that_does_not_fit_is_named(tmp_path) -> None:
    path = tmp_path / "t.csv"
    path.write_bytes(b"a,y\nK\xf6ln,1\n")
    schema = Schema(label="y", target=Target(0, 1), columns={"a": Category(("Köln",))})
    with pytest.raises(DataError, match=r"t\.csv is not UTF-8 text.*`encoding` in the schema, one of utf-8, utf-16"):
        schema.encode(path)
    right = Schema.from_dict({**schema.to_dict(), "encoding": "windows-1252"})
    assert right.encode(path).x.tolist() == [[1, 0]]
    assert Schema.from_dict(right.to_dict()).encoding == "windows-1252"
    with pytest.raises(ConfigError, match="encoding='klingon': must be one of utf-8"):
        Schema.from_dict({**schema.to_dict(), "encoding": "klingon"})
    with pytest.raises(ConfigError, match="klingon"):
        look(path, encoding="klingon")
    with pytest.raises(DataError, match="not UTF-16 text"):
        list(csv_parts(path, ",", 5, "utf-16"))


@pytest.mark.parametrize(
    ("text", "separator", "names"),
    [
        ("name;size\nA;1,75\nB;2,5\n", ";", ["name", "size"]),
        ('"a;b;c",d\n"1;2",3\n', ",", ["a;b;c", "d"]),
        ("a|b,c\n1|2\n3|4\n", "|", ["a", "b,c"]),
        ("a\tb\n1\t2\n", "\t", ["a", "b"]),
        ("alone\n1\n", ",", ["alone"]),
        ('a,b\n"1,5",2\n"x;y;z",3\n', ",", ["a", "b"]),
    ],
)
def test_the_separator_fits_the_first_lines(tmp_path, text, separator, names) -> None:
    path = tmp_path / "t.csv"
    path.write_text(text)
    seen = look(path, below=LINES, whole=True)
    assert (seen.separator, seen.names) == (separator, names)


def test_names_that_are_odd_are_said(tmp_path) -> None:
    path = tmp_path / "t.csv"
    path.write_text("age,,age,\n1,2,3,4\n")
    seen = look(path)
    assert seen.names == ["age", "column 2", "age (2)", "column 4"]
    assert "Columns without a name are called by their place: 'column 2', 'column 4'." in seen.notes
    assert "Names that occur twice in the header are numbered: 'age (2)'." in seen.notes
    path.write_text("17,3.5,Ulm\n18,2.5,Bonn\n")
    assert "Most names of columns are numbers" in look(path).notes[0]


@given(st.lists(st.sampled_from(["a", "a (2)", "", " a ", "column 2", "b"]), max_size=8))
def test_names_are_different_keep_their_order_and_depend_on_the_header_alone(names) -> None:
    found = renamed(names)
    assert len(set(found)) == len(found) == len(names)
    assert renamed(found) == found
    for was, new in zip(names, found, strict=True):
        assert new.startswith(was.strip() or "column ")


def test_a_table_with_odd_names_is_encoded_by_them(tmp_path) -> None:
    path = tmp_path / "t.csv"
    path.write_text("a,,a,y\n1,2,3,1\n")
    kinds = {"a": Number(0, 2), "column 2": Number(0, 4), "a (2)": Number(0, 6)}
    schema = Schema(label="y", target=Target(0, 1), columns=kinds)
    assert schema.encode(path).x.tolist() == [[0, 0, 0]]


@pytest.mark.parametrize(
    ("content", "message"), [(b"", "is empty"), (b"\n\n", "is empty"), (b";;\n", "is empty"), (None, "does not exist")]
)
def test_files_without_a_header(tmp_path, content, message) -> None:
    path = tmp_path / "t.csv"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(DataError, match=message):
        look(path)
    with pytest.raises(DataError, match="cannot be read"):
        look(tmp_path)


def small_schema(feature: str) -> Schema:
    return Schema(label="z", target=Target(0, 1), columns={feature: Number(0, 1, fill=0)})


OF_OTHERS = {  # encoding seen in the file to train on, bytes of another file: how that is read, None: refused
    "utf-8 after utf-16": ("utf-16", "größe\nä\n".encode(), "utf-8"),
    "utf-8 after windows-1252": ("windows-1252", "größe\nä\n".encode(), "utf-8"),
    "ascii after windows-1252": ("windows-1252", b"a\n1\n", "utf-8"),
    "utf-16 after utf-8": ("utf-8", "größe\nä\n".encode("utf-16"), "utf-16"),
    "utf-16 after windows-1252": ("windows-1252", "größe\nä\n".encode("utf-16"), "utf-16"),
    "the same again": ("windows-1252", "größe\nä\n".encode("cp1252"), "windows-1252"),
    "latin-1 reads every byte": ("latin-1", "größe\nä\n".encode("cp1252"), "latin-1"),
    "some bytes after utf-8": ("utf-8", "größe\nä\n".encode("cp1252"), None),
    "some bytes after utf-16": ("utf-16", "größe\nä\n".encode("cp1252"), None),
    "no letters in windows-1252": ("windows-1252", b"a\n\x81\n", None),
}


@pytest.mark.parametrize(("known", "content", "read"), OF_OTHERS.values(), ids=OF_OTHERS)
def test_another_file_is_read_as_its_bytes_show(tmp_path, known, content, read) -> None:
    path = tmp_path / "new.csv"
    path.write_bytes(content)
    raw = {**small_schema("y").to_dict(), "encoding": known}
    seen = Schema.from_dict({**raw, "encoding_seen": known != "utf-8"})
    assert Schema.from_dict(seen.to_dict()).encoding_seen == (known != "utf-8")
    if read is None:
        with pytest.raises(
            DataError, match=rf"new\.csv is not UTF-8.*trained on \({known.upper()}\).*Save it as UTF-8"
        ):
            seen.encoding_of(path)
    else:
        assert seen.encoding_of(path) == read
    if known != "utf-8":
        assert Schema.from_dict(raw).encoding_of(path) == known  # said by its user


def test_a_declared_encoding_names_itself_as_the_remedy(tmp_path) -> None:
    path = tmp_path / "t.csv"
    path.write_text("größe,y\n1,no\n", "utf-8")
    schema = Schema.from_dict({**small_schema("größe").to_dict(), "encoding": "utf-16"})
    with pytest.raises(DataError, match=r"t\.csv is not UTF-16 text.*Save it as UTF-16, or give its encoding"):
        schema.inputs(path)


def test_every_encoding_has_a_codec() -> None:
    assert all(codecs.lookup(codec) for codec in CODECS.values())

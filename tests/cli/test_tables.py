"""schema: written for the user to confirm."""

from __future__ import annotations

from pathlib import Path

import pytest


# --- schema
@pytest.fixture
def people(tmp_path) -> Path:
    """A CSV file of 600 rows with numbers, texts, gaps and brackets that are no markup."""
    path = tmp_path / "people.csv"
    rows = [
        f"{20 + k % 50},{'[red]Ulm' if k % 3 else 'Bonn'},{'f' if k % 2 else 'm'},{'yes' if k % 5 else 'no'}"
        for k in range(600)
    ]
    path.write_text("\n".join(["age,town,sex,hired", *rows]))
    return path


def test_schema_is_written_for_the_user_to_confirm(noisewise, people) -> None:
    from noisewise.data.tables.kinds import Classes, Number
    from noisewise.data.tables.schema import read
    from noisewise.errors import PrivacyError

    found = noisewise("schema", "people.csv", "--label", "hired", "--group", "sex", "--out", "s.toml")
    assert found.code == 0
    for text in (
        "label: classes 'no', 'yes'",
        "group: one of 'f', 'm'",
        "[red]Ulm",
        "from the data: confirm",
        "confirmed = true",
    ):
        assert text in found.words
    schema = read("s.toml")
    assert Path("s.toml").stat().st_mode & 0o777 == 0o600
    assert (schema.target, schema.columns["age"]) == (Classes(("no", "yes")), Number(20, 70, fill=45))
    with pytest.raises(PrivacyError):
        schema.encode(people)
    text = Path("s.toml").read_text()
    Path("s.toml").write_text(text.replace("confirmed = false", "confirmed = true"))
    assert len(read("s.toml").encode(people)) == 600


def test_schema_of_the_header_only_and_with_noise(noisewise, people) -> None:
    from noisewise.data.tables.kinds import Number
    from noisewise.data.tables.schema import read

    known = ("--label", "hired=no,yes", "--group", "sex=f,m")
    found = noisewise("schema", "people.csv", *known, "--column", "age=0:120", "--header-only")
    assert found.code == 0
    assert "Nothing below the header was looked at" in found.words
    assert read("people.schema.toml").columns["age"] == Number(0, 120, fill=60)
    found = noisewise("schema", "people.csv", *known, "--epsilon", "3", "--delta", "1e-5", "--out", "noised.toml")
    assert found.code == 0
    assert "released with noise" in found.words
    ledger = read("noised.toml").ledger
    assert ledger is not None
    spent = ledger.epsilon(1e-5)
    assert 2.9 < spent <= 3
    assert f"epsilon {spent:.4g} at delta 1e-05" in found.words


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("none.csv", "--label", "hired"), "none.csv does not exist"),
        (("people.csv", "--label", "salary"), "'salary': no such column"),
        (("people.csv", "--label", "hired", "--column", "age"), "--column age: say what it is"),
        (("people.csv", "--label", "hired", "--column", "age=1:2", "--column", "age=ignore"), "named twice"),
        (("people.csv", "--label", "hired", "--column", "sex=f", "--group", "sex=f,m"), "named twice"),
        (("people.csv", "--label", "hired", "--epsilon", "1"), "must be declared"),
        (("people.csv", "--label", "hired=no,yes", "--epsilon", "0"), "epsilon"),
        (("people.csv", "--label", "hired", "--out", "people.csv"), "exists"),
        (("people.csv", "--label", "hired", "--out", "no/s.toml"), "is no folder"),
        (("people.csv", "--label", "hired", "--separator", ";;"), "one character"),
    ],
)
def test_schema_says_what_is_wrong_and_writes_nothing(noisewise, people, arguments, message) -> None:
    before = people.read_bytes()
    found = noisewise("schema", *arguments)
    assert found.code == 2
    assert message in found.words
    assert "Traceback" not in found.words
    assert people.read_bytes() == before
    assert [path.name for path in people.parent.iterdir()] == ["people.csv"]

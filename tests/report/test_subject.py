"""What the page says of a run in words."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from noisewise.report import subject
from noisewise.runs.folder import RunFolder
from noisewise.wording import promised

SUMMARY = {
    "privacy": {
        "epsilon": 3.0, "delta": 1e-5, "adjacency": "add-remove", "unit": "row", "sampler": "poisson", "accountant": "pld",
        "status": "private", "reason": "every release is in the ledger", "rdp_epsilon": None, "gdp_epsilon": 2.5,
    },
    "data": {"name": "clinic_a.csv", "n": 5_000, "public": False},
    "model": "table:knots=6,hidden=16",
}  # fmt: skip


def of(unit: str) -> dict:
    return SUMMARY | {"privacy": SUMMARY["privacy"] | {"unit": unit}}


@pytest.mark.parametrize(
    ("delta", "written"),
    [(1e-5, "10⁻⁵"), (3e-5, "3 · 10⁻⁵"), (2.5e-7, "2.5 · 10⁻⁷"), (0.001, "10⁻³"), (0.002, "0.002"), (0.1, "10⁻¹")],
)
def test_deltas_are_powers_of_ten_where_they_are(delta, written):
    assert subject.power(delta) == written


def test_what_is_promised_is_rounded_up():
    summary = SUMMARY | {
        "privacy": SUMMARY["privacy"] | {"epsilon": 3.0012, "rdp_epsilon": 3.4001, "delta": 1 / 70_000}
    }
    shown = subject.guarantee(summary["privacy"], promised(summary))
    assert (shown["epsilon"], shown["delta"]) == ("3.01", "1.43 · 10⁻⁵")
    assert [value for _, value, _ in subject.accountants(summary["privacy"], promised(summary))[:2]] == [
        "ε = 3.01",
        "ε = 3.41",
    ]


def test_people_are_people_and_rows_are_rows():
    for unit, others in (("person", "5,000 people"), ("row", "5,000 rows")):
        summary = of(unit)
        found = subject.subject(summary, promised(summary))
        text = " ".join([found["title"], found["lead"], *found["caveats"]])
        assert "persons" not in text
        assert others in found["lead"]
        assert ("with all rows of that person" in text) == (unit == "person")
        assert ("Somebody with several rows" in text) == (unit == "row")
        assert "clinic a.csv" in found["title"]
        assert "knots" not in found["title"]


def test_what_is_counted_names_people_and_rows():
    tested = SimpleNamespace(settings={"rows": 900}, everyone=SimpleNamespace(n=300))
    rows, people = (" ".join(subject.counted(of(unit), [tested])) for unit in ("row", "person"))
    assert "n = 5,000, batch sizes and rates count rows" in rows
    assert "900 test rows, each taken for another person" in rows
    assert "n = 5,000, batch sizes and rates count people" in people
    assert "over rows, 900 test rows" in people
    assert "300 in the test part" in people
    assert len(subject.counted(of("person"), [])) == 1


@pytest.mark.parametrize(
    ("results", "shown"),
    [
        ([SimpleNamespace(has_twin=True)], "the non-private twin"),
        ([SimpleNamespace(has_twin=False)], "exact figures of test rows"),
        ([SimpleNamespace()], "exact figures of test rows"),
        ([], "not made to be published"),
    ],
)
def test_the_banner_names_what_the_page_shows(results, shown):
    text = subject.warning(results)
    assert shown in text
    assert ("twin" in text) == any(getattr(result, "has_twin", False) for result in results)


def test_who_when_with_which_data_and_version(tmp_path):
    folder = RunFolder(tmp_path)
    folder.run.write_text("{}")
    import os

    os.utime(folder.run, (1_700_000_000, 1_700_000_000))
    about = {"versions": {"noisewise": "0.0.7"}}
    found = dict(subject.made(folder, SUMMARY, about, "Ada L.")["rows"])
    assert found["made by"] == "Ada L."
    assert found["trained"].startswith("2023-11-14 22:13 UTC")
    assert found["data"] == "clinic a.csv: 5,000 rows for training, not published"
    assert found["noisewise"].startswith("0.0.7; this page: ")
    line = subject.made(folder, SUMMARY, about, "Ada L.")["line"]
    assert line == "Trained 2023-11-14 with noisewise 0.0.7, reported by Ada L."
    assert "--by NAME" in dict(subject.made(folder, SUMMARY, about, None)["rows"])["made by"]


def test_columns_are_called_as_the_user_wrote_them():
    schema = {
        "columns": [{"name": "Hours_per_WEEK", "kind": "number"}],
        "groups": [{"name": "SEX", "kind": "category"}],
        "label": {"name": "Income", "kind": "classes"},
        "unit": "Person ID",
        "origin": "noised",
    }
    found = dict(subject.schema_rows(schema))
    assert (found["label"], found["groups"], found["whose row"]) == ("Income", "SEX", "Person ID")
    assert found["columns"] == "Hours_per_WEEK (number)"
    assert "ledger counts" in found["schema"]


@pytest.mark.parametrize(
    ("value", "words"),
    [
        (True, "yes"),
        (0.5, "0.5"),
        (3, "3"),
        (["moving-average:decay=0.9", "lora"], "moving-average:decay=0.9, lora"),
        ([], "none"),
    ],
)
def test_settings_are_written_for_people(value, words):
    assert subject.setting(value) == words

"""From a CSV file to a private model in one command: what is read, asked, refused and spent."""

import json
import random
from pathlib import Path

import pytest

from noisewise.accounting import Ledger
from noisewise.cli import table_schema
from noisewise.wording import at_most

DECLARED = (
    "--label", "outcome=ill,well", "--group", "sex=F,M", "--column", "age=0:120", "--column", "pressure=50:250",
    "--column", "smoker=yes,no",
)  # fmt: skip
QUICK = ("--steps", "3", "--batch-size", "64", "--no-twin", "--quiet")


@pytest.fixture
def clinic(tmp_path):
    """People with an outcome that depends on pressure; each has two rows."""
    draw, lines = random.Random(0), ["person,age,sex,pressure,smoker,outcome"]
    for row in range(400):
        pressure, smoker = draw.gauss(130, 20), draw.choice(["yes", "no"])
        outcome = "ill" if pressure + 15 * (smoker == "yes") + draw.gauss(0, 10) > 138 else "well"
        lines.append(f"p{row // 2},{draw.randint(18, 95)},{draw.choice('FM')},{pressure:.1f},{smoker},{outcome}")
    path = tmp_path / "clinic.csv"
    path.write_text("\n".join(lines) + "\n")
    return path


def answers(monkeypatch, *given):
    """Somebody sits at the terminal and answers."""
    left = list(given)
    monkeypatch.setattr(table_schema.sys.stdin, "isatty", lambda: True, raising=False)
    monkeypatch.setattr(table_schema.typer, "prompt", lambda *_, **__: left.pop(0))


def privacy(folder: str = "run") -> dict:
    return json.loads(Path(folder, "summary.json").read_text())["privacy"]


def test_declared_columns_need_no_confirmation(noisewise, clinic):
    found = noisewise(
        "train",
        "--data",
        "clinic.csv",
        *DECLARED,
        "--column",
        "person=ignore",
        "--epsilon",
        "3",
        "--out",
        "run",
        *QUICK,
    )
    assert (found.code, found.err) == (0, "")
    schema = json.loads(Path("run/schema.json").read_text())
    assert schema["origin"] == "declared"
    assert schema["label"]["values"] == ["ill", "well"]
    assert [group["name"] for group in schema["groups"]] == ["sex"]
    assert privacy()["epsilon"] <= 3
    assert "clinic.csv" in Path("run/config.toml").read_text()
    assert str(clinic.parent) not in Path("run/summary.json").read_text()


def test_a_script_is_never_taken_for_a_person(noisewise, clinic):
    found = noisewise("train", "--data", "clinic.csv", "--label", "outcome", "--epsilon", "3", "--out", "run", *QUICK)
    assert found.code == 2
    assert "Nobody is here to confirm" in found.words
    assert not Path("run").exists()


def test_a_person_confirms_and_it_goes_on(noisewise, clinic, monkeypatch):
    answers(monkeypatch, "y")
    found = noisewise("train", "--data", "clinic.csv", "--label", "outcome", "--epsilon", "3", "--out", "run", *QUICK)
    assert found.code == 0
    schema = json.loads(Path("run/schema.json").read_text())
    assert (schema["origin"], schema["confirmed"]) == ("rows", True)
    assert 'What is marked "from the data" was read off the rows' in found.words
    assert "confirmed = true" not in found.words  # there is no file to write that into
    assert "\\n" not in found.words


def test_a_person_may_stop(noisewise, clinic, monkeypatch):
    answers(monkeypatch, "q")
    found = noisewise("train", "--data", "clinic.csv", "--label", "outcome", "--epsilon", "3", "--out", "run", *QUICK)
    assert found.code == 2
    assert "nothing was trained" in found.words


def test_yes_never_confirms_but_spends(noisewise, clinic):
    found = noisewise(
        "train", "--data", "clinic.csv", "--label", "outcome=ill,well", "--column", "smoker=yes,no", "--column", "sex=F,M",
        "--column", "person=ignore", "--column", "age=0:120", "--yes", "--epsilon", "8", "--schema-epsilon", "4",
        "--out", "run", *QUICK,
    )  # fmt: skip
    assert found.code == 0, found.words
    schema, ledger = (json.loads(Path(f"run/{name}.json").read_text()) for name in ("schema", "ledger"))
    assert schema["origin"] == "noised"
    assert not schema["confirmed"]
    assert any("schema" in line["purpose"] for line in ledger["lines"])
    assert 4 < privacy()["epsilon"] <= 8
    whole = Ledger.from_dict(ledger).epsilon(privacy()["delta"])
    assert whole == pytest.approx(privacy()["epsilon"], rel=1e-3)


def test_what_noise_chose_is_shown_with_how_to_say_it_better(noisewise, clinic):
    quick = [part for part in QUICK if part != "--quiet"]
    found = noisewise("train", *NOISED, "--out", "run", *quick)
    assert found.code == 0, found.words
    chosen = next(
        kind for kind in json.loads(Path("run/schema.json").read_text())["columns"] if kind["name"] == "pressure"
    )
    assert f"pressure number in [{chosen['low']:g}, {chosen['high']:g}]" in found.words
    assert "released with noise, in the ledger" in found.words
    assert "--column NAME=date:2010-01-01:2025-12-31" in found.words
    assert "kept in run/schema.json" in found.words
    for way in ("--quiet", "--json"):
        silent = noisewise("train", *NOISED, "--out", f"run{way}", *quick, way)
        assert silent.code == 0, silent.words
        assert "pressure number" not in silent.words
        assert (way == "--quiet" and silent.out == "") or json.loads(silent.out)


def test_a_date_that_noise_took_for_text_is_named(noisewise, clinic):
    header, *rows = clinic.read_text().splitlines()
    clinic.write_text("\n".join([f"{header},seen", *(f"{row},2020-01-{1 + k % 28:02}" for k, row in enumerate(rows))]))
    quick = [part for part in QUICK if part != "--quiet"]
    found = noisewise("train", *NOISED, "--schema-epsilon", "7", "--out", "run", *quick)
    assert found.code == 0, found.words
    assert "where dates were taken as text, --column seen=date:2010-01-01:2025-12-31." in found.words


def test_too_little_for_the_noise_names_options_of_train(noisewise, clinic):
    told = ("--data", "clinic.csv", "--label", "outcome=ill,well", "--yes", "--epsilon", "1", "--out", "run")
    found = noisewise("train", *told)
    assert found.code == 2
    assert "Nothing was released" in found.words
    needed = float(found.words.partition("--schema-epsilon ")[2].split()[0])
    assert "`noisewise schema FILE ... --header-only` writes a file for --schema" in found.words
    again = noisewise("train", *told, "--epsilon", str(2 * needed), "--schema-epsilon", str(needed), *QUICK)
    assert again.code == 0, again.words


@pytest.mark.parametrize(
    ("asked", "lacking"),
    [
        (("--label", "outcome", "--epsilon", "9"), "--label outcome=A,B"),
        (("--label", "age", "--group", "sex", "--epsilon", "9"), "--label age=LOW:HIGH --group sex=A,B"),
        (("--label", "outcome=ill,well", "--noise-multiplier", "1"), "--schema-epsilon 0.3"),
    ],
)
def test_noise_is_offered_only_where_it_can_choose(noisewise, clinic, monkeypatch, asked, lacking):
    answers(monkeypatch, "n")
    offered = []
    prompt = table_schema.typer.prompt
    monkeypatch.setattr(
        table_schema.typer, "prompt", lambda words, **more: offered.append(words) or prompt(words, **more)
    )
    found = noisewise("train", "--data", "clinic.csv", *asked, "--out", "run", *QUICK)
    assert found.code == 2
    assert offered == ["y: yes, it is public   q: stop, change something"]
    assert f"once you have said what it cannot choose: {lacking}." in found.words
    assert f"chosen with noise (with {lacking}, which noise does not choose)" in found.words
    assert not Path("run").exists()


def test_no_means_noise_where_it_can_choose(noisewise, clinic, monkeypatch):
    answers(monkeypatch, "n")
    asked = [part for part in NOISED if part not in ("--yes", "--schema-epsilon", "4")]
    found = noisewise("train", *asked, "--epsilon", "30", "--out", "run", *QUICK)
    assert found.code == 0, found.words
    assert json.loads(Path("run/schema.json").read_text())["origin"] == "noised"


def test_whoever_is_trained_on_is_no_test(noisewise, clinic):
    rows = clinic.read_text().splitlines()
    Path("later.csv").write_text("\n".join([rows[0], *rows[1:11], rows[11].replace("p5", "new")]) + "\n")
    found = noisewise(
        "train",
        "--data",
        "clinic.csv",
        *DECLARED,
        "--unit",
        "person",
        "--test",
        "later.csv",
        "--epsilon",
        "3",
        "--out",
        "run",
    )
    assert found.code == 2
    assert "5 people (by 'person') are in clinic.csv, to train on, and in later.csv, to test on" in found.words
    assert "Leave them out of one of the two" in found.words
    assert not Path("run").exists()


def test_a_schema_that_spent_the_budget_says_so(noisewise, clinic):
    told = [part for part in NOISED[2:] if part not in ("--yes", "--schema-epsilon", "4")]
    made = noisewise("schema", "clinic.csv", *told, "--epsilon", "4", "--out", "s.toml")
    assert made.code == 0, made.words
    found = noisewise("train", "--data", "clinic.csv", "--schema", "s.toml", "--epsilon", "2", "--out", "run", *QUICK)
    assert found.code == 2
    assert "('schema: kinds, magnitudes and texts', 'schema: ranges') has spent 4.00 already" in found.words
    assert "Give an epsilon above 4.00" in found.words


@pytest.mark.parametrize(
    ("said", "words"),
    [
        (
            ("--column", "age=100:10"),
            "--column age=100:10: number with range [100, 10]: its ends are the wrong way round",
        ),
        (("--column", "age=5:5"), "--column age=5:5: number with range [5, 5]: its ends are equal"),
        (("--column", "age=date:2013-13-01:2014-01-01"), "--column age=date:2013-13-01:2014-01-01: first='2013-13-01'"),
        (("--column", "age=A,A"), "--column age=A,A: category: 'A' is listed more than once"),
        (("--label", "outcome=no,no"), "--label outcome=no,no: category: 'no' is listed more than once"),
        (("--label", "outcome=no"), "label 'outcome' with the one class 'no': there is nothing to tell apart"),
        (("--group", 'sex="F'), '--group sex="F: the quotes do not match'),
    ],
)
@pytest.mark.parametrize("command", ["train", "schema"])
def test_what_is_wrongly_declared_is_named_with_its_option(noisewise, clinic, command, said, words):
    label = () if "--label" in said else ("--label", "outcome")
    file = ("--data", "clinic.csv", "--epsilon", "3") if command == "train" else ("clinic.csv",)
    found = noisewise(command, *file, *label, *said, "--out", "run")
    assert found.code == 2
    assert words in found.words
    assert not Path("run").exists()


NOISED = (
    "--data", "clinic.csv", "--label", "outcome=ill,well", "--column", "smoker=yes,no", "--column", "sex=F,M", "--column",
    "person=ignore", "--column", "age=0:120", "--yes", "--epsilon", "8", "--schema-epsilon", "4",
)  # fmt: skip


def test_a_schema_is_chosen_for_the_neighbours_of_the_run(noisewise, clinic):
    found = noisewise("train", *NOISED, "--adjacency", "replace-one", "--out", "run", *QUICK)
    assert found.code == 0, found.words
    assert privacy()["adjacency"] == "replace-one"


def test_rows_are_not_read_where_only_noise_may_look(noisewise, clinic, monkeypatch):
    monkeypatch.setattr("noisewise.data.tables.propose.survey", lambda *_: 1 / 0)
    assert noisewise("train", *NOISED, "--out", "run", *QUICK).code == 0


def test_what_several_runs_have_in_common_is_spent_once(noisewise, clinic):
    quick = [part for part in QUICK if part != "--quiet"]
    found = noisewise("train", *NOISED, "--seed", "4", "--seeds", "2", "--out", "runs", *quick)
    assert found.code == 0, found.words
    ledgers = [Ledger.from_dict(json.loads(Path(f"runs/seed-{k}/ledger.json").read_text())) for k in range(2)]
    schema = Ledger.from_dict(json.loads(Path("runs/seed-0/schema.json").read_text())["ledger"])
    steps = [line for ledger in ledgers for line in ledger.lines if "schema" not in line.purpose]
    total = Ledger("add-remove", [*schema.lines, *steps], "row").epsilon(privacy("runs/seed-0")["delta"])
    assert f"spent epsilon {at_most(total)} together" in found.words
    Path("runs/seed-1/run.json").unlink()  # as if it had been stopped
    again = noisewise("train", "--resume", "--seeds", "2", "--out", "runs", "--quiet")
    assert "seed was" not in again.words


def test_all_of_the_budget_cannot_go_to_the_schema(noisewise, clinic):
    found = noisewise(
        "train",
        "--data",
        "clinic.csv",
        "--label",
        "outcome=ill,well",
        "--schema-epsilon",
        "3",
        "--epsilon",
        "3",
        "--out",
        "run",
    )
    assert found.code == 2
    assert "nothing would be left" in found.words


def test_published_rows_may_be_read(noisewise, clinic):
    found = noisewise(
        "train", "--data", "clinic.csv", "--label", "outcome", "--public", "--epsilon", "3", "--out", "run", *QUICK
    )
    assert found.code == 0, found.words
    assert json.loads(Path("run/summary.json").read_text())["data"]["public"] is True


def test_people_are_protected_where_a_column_says_whose_row_it_is(noisewise, clinic):
    found = noisewise(
        "train", "--data", "clinic.csv", *DECLARED, "--unit", "person", "--epsilon", "3", "--out", "run", *QUICK
    )
    assert found.code == 0, found.words
    assert privacy()["unit"] == "person"
    assert json.loads(Path("run/summary.json").read_text())["data"]["n"] <= 200


def test_a_schema_file_is_used_and_must_agree(noisewise, clinic):
    made = noisewise("schema", "clinic.csv", *DECLARED, "--column", "person=ignore", "--out", "clinic.toml")
    assert made.code == 0
    common = ("train", "--data", "clinic.csv", "--schema", "clinic.toml", "--epsilon", "3", "--out", "run", *QUICK)
    for wrong, words in (
        (("--label", "age"), "the schema says 'outcome'"),
        (("--group", "age"), "the schema's groups are 'sex'"),
        (("--column", "age=0:9"), "Edit it there"),
    ):
        found = noisewise(*common, *wrong)
        assert (found.code, words in found.words) == (2, True)
    assert noisewise(*common, "--label", "outcome", "--group", "sex").code == 0


def test_an_interrupted_run_goes_on_with_its_own_schema(noisewise, clinic, monkeypatch):
    args = ("--data", "clinic.csv", *DECLARED, "--column", "person=ignore", "--epsilon", "3", "--out", "run")
    twin = ("--steps", "3", "--batch-size", "64", "--quiet")
    monkeypatch.setattr("noisewise.workflow.execution._twin", lambda *_: 1 / 0)
    assert noisewise("train", *args, *twin).code == 1
    monkeypatch.undo()
    monkeypatch.chdir(clinic.parent)
    found = noisewise("train", "--resume", "--out", "run", "--quiet")
    assert found.code == 0, found.words
    assert Path("run/sensitive/twin.safetensors").exists()


def test_the_same_plan_again_takes_the_schema_beside_its_config(noisewise, clinic):
    first = noisewise(
        "train",
        "--data",
        "clinic.csv",
        *DECLARED,
        "--column",
        "person=ignore",
        "--epsilon",
        "3",
        "--out",
        "run",
        *QUICK,
    )
    again = noisewise("train", "--config", "run/config.toml", "--out", "again", "--quiet", "--set", "steps=4")
    assert (first.code, again.code) == (0, 0), again.words
    assert Path("run/schema.json").read_text() == Path("again/schema.json").read_text()
    assert privacy("again")["steps"] == 4


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("--data", "nowhere.csv"), "neither a file nor a folder"),
        (("--data", "clinic.csv"), "which column shall be predicted?"),
        (("--data", "clinic.csv", "--label", "fate"), "--label fate: no such column"),
        (("--data", "clinic.csv", "--label", "outcome", "--group", "fate"), "--group fate"),
        (("--data", "clinic.csv", "--label", "outcome", "--unit", "fate"), "--unit fate"),
        (("--data", "clinic.csv", "--label", "outcome", "--column", "fate=0:1"), "--column fate=0:1"),
        (("--data", "clinic.csv", "--schema", "nowhere.toml"), "--schema nowhere.toml: does not exist"),
        (("--data", "digits", "--label", "outcome"), "are for a table"),
        (("--data", "clinic.csv", "--label", "outcome", "--test", "1.5"), "--test 1.5"),
        (("--data", "clinic.csv", "--label", "outcome", "--test", "some"), "--test some"),
        (("--config", "nowhere.toml"), "nowhere.toml does not exist"),
        (("--data", "digits", "--set", "speed=3"), "--set speed=3"),
        (("--data", "digits", "--set", "lr"), "--set lr"),
        (("--data", "digits", "--set", "lr=fast"), "lr=fast: must be a number"),
        (("--data", "digits", "--seeds", "0"), "seeds=0"),
        (("--data", "digits", "--device", "abacus"), "abacus"),
    ],
)
def test_mistakes_are_said_at_once(noisewise, clinic, arguments, words):
    found = noisewise("train", *arguments, "--epsilon", "3", "--out", "run")
    assert found.code == 2
    assert words in found.words
    assert "Traceback" not in found.err
    assert not Path("run").exists()


def test_values_with_commas_are_quoted(noisewise, tmp_path):
    rows = ['30,"Paris, France",ill', "40,Lyon,well"] * 40
    (tmp_path / "t.csv").write_text("\n".join(["age,city,outcome", *rows]) + "\n")
    told = ("--column", "age=0:120", "--column", 'city="Paris, France",Lyon', "--label", "outcome=ill,well")
    plan = ("--noise-multiplier", "4", "--steps", "2", "--batch-size", "8", "--no-twin")
    outcome = noisewise("train", "--data", "t.csv", *told, *plan, "--out", "run")
    assert outcome.code == 0, outcome.words
    columns = json.loads((tmp_path / "run/schema.json").read_text())["columns"]
    assert [column["values"] for column in columns if column["name"] == "city"] == [["Paris, France", "Lyon"]]
    assert "other than" not in outcome.words
    shown = noisewise("train", "--help").words
    assert 'city="Paris, France",Lyon' in shown.replace("│ │ ", "").replace("│ ", "")

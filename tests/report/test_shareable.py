"""What may leave holds what the ledger or public rows cover, whatever lies among the secrets."""

import json
import re
import shutil
from dataclasses import replace

import numpy as np
import pytest

from helpers import tiny
from helpers.people_schema import written
from helpers.remembered import remembered  # noqa: F401  accountants with a memory
from noisewise import report
from noisewise.audits import AUDITS
from noisewise.data.tables.kinds import Category, Classes, Number
from noisewise.data.tables.schema import Schema
from noisewise.errors import ConfigError, NoisewiseWarning, PrivacyError, PrivacyWarning, RunError
from noisewise.report.shareable import FILES, _shown, page, subject_of, write
from noisewise.runs.files import read_json, write_json
from noisewise.runs.folder import RunFolder
from noisewise.runs.scores import read_score, write_score
from noisewise.runs.together import grouped, read_runs
from noisewise.wording import certainty
from noisewise.workflow.config import configure, plan
from noisewise.workflow.execution import execute
from noisewise.workflow.opened import audit, open_run
from noisewise.workflow.public_results import public_results
from noisewise.workflow.released_score import MOST, offered, release_score
from noisewise.workflow.verification import verified


@pytest.fixture(scope="module")
def private(tmp_path_factory):
    """A run on a table of people that nobody declared public, audited, with a twin."""
    folder, generator = tmp_path_factory.mktemp("secret place"), np.random.default_rng(0)
    ages = generator.integers(0, 100, 300)
    rows = {"age": list(map(str, ages)), "sex": ["f", "m"] * 150, "ill": ["yes" if age > 50 else "no" for age in ages]}
    written(folder / "clinic.csv", rows)
    schema = Schema(
        label="ill",
        target=Classes(("no", "yes")),
        columns={"age": Number(0, 100)},
        groups={"sex": Category(("f", "m"))},
    )
    planned = plan(
        data=str(folder / "clinic.csv"),
        schema=schema,
        model="logistic",
        noise_multiplier=4.0,
        steps=3,
        batch_size=32,
        valid=40,
    )
    run = execute(planned, folder / "run", progress=False)
    audit(open_run(run.path), "disparity")
    return run


@pytest.fixture(scope="module")
def public(tmp_path_factory):
    """A run on the digits, which are public, audited, with a twin."""
    config = configure(data="digits", model="logistic", noise_multiplier=4.0, steps=3, batch_size=64)
    run = execute(config, tmp_path_factory.mktemp("run") / "a", progress=False)
    audit(open_run(run.path), "disparity")
    return run


def shared(run, out):
    """Every file of the shareable report, by name."""
    measured = public_results(run.path)
    subject = subject_of(run.path, results=measured.results, why_none=measured.why_none, contact="Ms Weber")
    paths = write(subject, measured.results, out)
    assert [path.name for path in paths] == list(FILES.values())
    return {path.name: path.read_bytes() for path in paths}


@pytest.mark.parametrize("which", ["private", "public"])
def test_nothing_among_the_secrets_moves_a_byte(which, request, tmp_path):
    """They are changed, filled with rubbish, and taken away; each time all bytes are the same."""
    run = RunFolder(shutil.copytree(request.getfixturevalue(which).path, tmp_path / "run"))
    (tmp_path / "out").mkdir()
    before = shared(run, tmp_path / "out" / "a")
    secrets = [path for path in run.sensitive.rglob("*") if path.is_file()]
    assert {"disparity.json", "identity.json", "twin.safetensors"} <= {path.name for path in secrets}
    disparity = read_json(run.audit("disparity"))
    disparity["headline"]["accuracy"]["value"] = 0.123
    write_json(run.audit("disparity"), disparity)
    (run.audits / "calibration.json").write_text("{}")
    assert shared(run, tmp_path / "out" / "b") == before
    for path in secrets:
        path.write_bytes(b"rubbish")
    assert shared(run, tmp_path / "out" / "c") == before
    shutil.rmtree(run.sensitive)
    assert shared(run, tmp_path / "out" / "d") == before


def test_a_private_run_tells_no_accuracy_and_says_why(private, tmp_path):
    texts = {name: content.decode() for name, content in shared(private, tmp_path / "out").items()}
    exact = f"{100 * read_json(private.audit('disparity'))['headline']['accuracy']['value']:.1f} %"
    for text in texts.values():
        assert exact not in text
        assert "secret place" not in text  # where the data lie
    for name in ("report.html", "README.md"):
        assert "Not told: exact figures" in texts[name]
        assert "would expose them; no ledger covers them" in texts[name]
        assert "The model without privacy" in texts[name]
        assert "clinic.csv" in texts[name]
    assert "valid_loss" not in "".join(texts.values())


def test_public_rows_are_measured_with_the_released_model_alone(public, tmp_path):
    results = public_results(public.path).results
    assert [result.kind for result in results] == ["disparity", "calibration"]
    assert not any("twin" in name for result in results for name in result.headline)
    known = read_json(public.audit("disparity"))["headline"]["accuracy"]["value"]  # by the audit that has a twin
    assert results[0].headline["accuracy"].value == known
    texts = shared(public, tmp_path / "out")
    assert f"value: {known!r}" in texts["README.md"].decode()
    assert b"On rows that are public" in texts["README.md"]
    assert b"Accuracy, calibration and who" not in texts["README.md"]
    assert b"<svg" in texts["report.html"]


def test_results_with_the_twin_or_of_private_rows_are_refused(private, public):
    for run in (private, public):
        opened = open_run(run.path)
        result = AUDITS["disparity"].run(
            opened.model, opened.data.test, twin=opened.twin, generator=None, progress=False
        )
        with pytest.raises(PrivacyError, match="may not be shared"):
            subject_of(run.path, results=[result])


@pytest.mark.parametrize(
    ("how", "words"), [({"insecure_seed": 1}, "noise reproducible"), ({"ablation": "plain"}, "ablation")]
)
def test_what_is_not_private_is_refused(how, words, tmp_path):
    tiny.run(out=tmp_path / "run", about={"data": {"name": "people"}}, **how)
    with pytest.raises(PrivacyError, match=f"nothing to share: not-private.*{words}"):
        subject_of(tmp_path / "run")


def test_an_epsilon_that_rules_nothing_out_is_refused_and_a_weak_one_labelled(tmp_path):
    tiny.run(out=tmp_path / "none", plan=tiny.mechanism(noise_multiplier=0.05), about={"data": {"name": "people"}})
    with pytest.raises(
        PrivacyError, match=r"nothing to share: no guarantee: an epsilon of .* rules nothing out. Train"
    ):
        subject_of(tmp_path / "none")
    with pytest.warns(PrivacyWarning, match="delta 0.5"):
        tiny.run(out=tmp_path / "large", delta=0.5, about={"data": {"name": "people"}})
    with pytest.raises(PrivacyError, match=r"nothing to share: no guarantee: delta 0\.5 is not below 1/n") as refused:
        subject_of(tmp_path / "large")
    assert "share: private" not in str(refused.value)
    tiny.run(out=tmp_path / "weak", plan=tiny.mechanism(noise_multiplier=0.45), about={"data": {"name": "people"}})
    assert 10 < float(read_json(tmp_path / "weak" / "summary.json")["privacy"]["epsilon"]) < 37
    for path in write(subject_of(tmp_path / "weak"), [], tmp_path / "out"):
        text = path.read_text()
        assert ("weak protection" if path.name == "PRIVACY.md" else "Not to be called publishable") in text
        assert "may be published" not in text


def test_settings_show_names_and_no_paths(private):
    settings = subject_of(private.path).settings
    assert settings["data"] == "clinic.csv"
    assert settings["twin"] == "yes"


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("/home/a b/clinic.csv", "clinic.csv"),
        ("..\\mine\\clinic.csv", "clinic.csv"),
        ("some where/models.py:make", "models.py:make"),
        ("public-pretraining:source=/home/a b/set,epochs=2", "public-pretraining:source=set,epochs=2"),
        ("magnitude-pruning:source=mine/set,share=0.3", "magnitude-pruning:source=set,share=0.3"),
        (
            "made-up-linear:weights=mine/e.safetensors,views=same/flip",
            "made-up-linear:weights=e.safetensors,views=same/flip",
        ),
        ("stage-wise-freezing:shares=0.39/0.63/0.77", "stage-wise-freezing:shares=0.39/0.63/0.77"),
        ("/home/a b/rule.py:Mine", "rule.py:Mine"),
        ("digits", "digits"),
        (["own/r.py:one", "moving-average"], "r.py:one, moving-average"),
        (0.2, 0.2),
    ],
)
def test_no_folder_is_left_in_a_setting(text, shown):
    assert _shown(text, False) == shown


def test_a_path_is_its_last_name():
    assert _shown("people/of/2024", True) == "2024"
    assert _shown("people\\2024", True) == "2024"


def test_a_models_file_is_named_without_its_folder(private, tmp_path):
    run = RunFolder(shutil.copytree(private.path, tmp_path / "run"))
    summary = read_json(run.summary)
    summary["model"] = "/home/alice/secret/net.py:small"  # as older versions wrote it
    write_json(run.summary, summary)
    for name, content in shared(run, tmp_path / "out").items():
        assert b"alice" not in content, name
        assert name == "PRIVACY.md" or b"net.py" in content


def test_other_rows_in_the_place_of_public_ones_are_not_asked(tmp_path, monkeypatch):
    """Nobody declared them public."""
    generator = np.random.default_rng(1)

    def table(path):
        ages = generator.integers(0, 100, 200)
        written(path, {"age": list(map(str, ages)), "ill": ["yes" if age > 50 else "no" for age in ages]})

    schema = Schema(label="ill", target=Classes(("no", "yes")), columns={"age": Number(0, 100)})
    for place in ("open", "closed"):
        (tmp_path / place).mkdir()
        table(tmp_path / place / "people.csv")
    monkeypatch.chdir(tmp_path / "open")
    planned = plan(
        data="people.csv", schema=schema, public=True, noise_multiplier=4.0, steps=2, batch_size=50, model="logistic",
        twin=False,
    )  # fmt: skip
    run = execute(planned, tmp_path / "run", progress=False)
    assert public_results(run.path).results
    monkeypatch.chdir(tmp_path / "closed")
    measured = public_results(run.path)
    assert not measured.results
    assert "not the rows that were declared public" in measured.why_none
    (tmp_path / "closed" / "people.csv").write_text("age,ill\n3,HIV positive Jane Doe\n")
    with pytest.warns(NoisewiseWarning, match="public rows are not shown"):
        measured = public_results(run.path)
    assert measured.why_none == "the public rows could not be loaded where this was written"


def test_the_page_loads_nothing_and_escapes_names(private, tmp_path):
    run = RunFolder(shutil.copytree(private.path, tmp_path / "run"))
    schema = read_json(run.schema)
    schema["columns"][0]["name"] = "<script>alert(1)</script>"
    write_json(run.schema, schema)
    html = page(subject_of(run.path))
    assert "<script" not in html
    assert "&lt;script&gt;" in html
    assert "http" not in html


def test_wrong_places_and_damaged_files_are_said(private, tmp_path):
    with pytest.raises(RunError, match="no finished run"):
        subject_of(tmp_path)
    with pytest.raises(RunError, match="no finished run"):
        public_results(tmp_path)
    (tmp_path / "file").touch()
    for out in (tmp_path / "file", tmp_path / "nowhere" / "deeper"):
        with pytest.raises(RunError, match="must be a folder"):
            write(subject_of(private.path), [], out)
    run = RunFolder(shutil.copytree(private.path, tmp_path / "run"))
    run.schema.write_text(json.dumps({"columns": []}))
    with pytest.raises(RunError, match="damaged or of another version"):
        subject_of(run.path)


def test_runs_of_python_and_rows_that_are_not_here_tell_no_numbers(private, tmp_path):
    tiny.run(out=tmp_path / "python", about={"data": {"name": "people", "public": True}})
    assert "made in Python" in public_results(tmp_path / "python").why_none
    run = RunFolder(shutil.copytree(private.path, tmp_path / "run"))
    summary = read_json(run.summary)
    summary["data"]["public"] = True
    write_json(run.summary, summary)
    assert "not declared public" in public_results(run.path).why_none
    text = run.config.read_text()
    run.config.write_text(text.replace("clinic.csv", "gone.csv"))
    with pytest.warns(NoisewiseWarning, match="does not exist here"):
        measured = public_results(run.path)
    assert "could not be loaded" in measured.why_none


def test_a_noised_score_is_released_once_shown_with_its_price_and_counted(private, tmp_path):
    run = RunFolder(shutil.copytree(private.path, tmp_path / "run"))
    exact = read_json(run.audit("disparity"))["headline"]["accuracy"]
    score = release_score(run.path, 20.0)
    assert abs(score.share - exact["value"]) < 6 * score.deviation
    assert score.deviation < 0.02
    assert score.share != exact["value"]
    delta = read_json(run.summary)["privacy"]["delta"]
    assert 19.9 < score.ledger.epsilon(delta) <= 20
    assert (read_score(run), read_json(run.run)["files"].keys() >= {"scores.json"}) == (score, True)
    content = shared(run, tmp_path / "out")
    for name in ("README.md", "report.html"):
        text = content[name].decode()
        assert f"About {min(100 * score.share, 100):.1f} % of answers are right on {score.units} rows" in text
        assert f"of standard deviation {100 * score.deviation:.1f} points" in text
        assert "model and figure together: at most" in text
        assert "Exact accuracy, calibration" in text
        assert "this model and its noised score" in text
        assert "scores" in text  # the ledger's line
    assert "model-index" not in content["README.md"].decode()
    (group,) = grouped(read_runs([run])[0])
    assert group.epsilon() > max(20 * 0.99, group.runs[0].epsilon)
    with pytest.raises(ConfigError, match="asking again would cost again"):
        release_score(run.path, 20.0)
    assert read_score(run) == score


def scored(run, tmp_path, epsilon=5.0, share=None):
    """A copy with a score; `share`: as if noise had made it that."""
    copy = RunFolder(shutil.copytree(run.path, tmp_path / "run"))
    score = release_score(copy.path, epsilon)
    if share is not None:
        score = replace(score, share=share)
        write_score(copy, score)
    return copy, score


def test_the_privacy_card_tells_of_a_score_that_was_shared(private, tmp_path):
    """From whom, for how much, and the sum: none smaller than what the ledgers give."""
    run, score = scored(private, tmp_path)
    card = shared(run, tmp_path / "out")["PRIVACY.md"].decode()
    privacy = read_json(run.summary)["privacy"]
    (group,) = grouped(read_runs([run])[0])
    together = group.epsilon()
    assert f"the {score.units} rows that were asked for it; they were held out" in card
    told = re.search(
        r"of its own: epsilon (\S+), besides (\S+) for the model. Together that is at most (\S+),", card
    ).groups()
    true = [score.ledger.epsilon(privacy["delta"]), float(privacy["epsilon"]), together]
    for shown, value in zip(map(float, told), true, strict=True):
        assert value <= shown <= 1.01 * value
    worst = 100 * certainty(together, privacy["delta"])
    guess = float(re.search(r"With the model and the figure they can be right at most \*\*(\S+) %", card)[1])
    assert worst <= guess <= worst + 0.1
    assert "the model alone" not in card
    assert "One figure" not in shared(private, tmp_path / "without")["PRIVACY.md"].decode()


@pytest.mark.parametrize(("share", "words"), [(1.04, "About 100.0 %"), (-0.02, "About 0.0 %")])
def test_a_score_is_shown_within_0_and_100_percent(private, tmp_path, share, words):
    run, _ = scored(private, tmp_path, share=share)
    assert read_score(run).share == share
    text = subject_of(run.path).noised.words
    assert words in text
    low, high = map(float, re.search(r"within (\S+) to (\S+) %", text).groups())
    assert 0 <= low <= high <= 100


def test_a_score_that_noise_would_drown_is_not_sold(private, tmp_path):
    """The deviation, the reason and the remedy are said; nothing is spent; a little above the line it is sold."""
    run = RunFolder(shutil.copytree(private.path, tmp_path / "run"))
    before = sorted(path.name for path in run.path.rglob("*"))
    with pytest.raises(
        ConfigError, match=r"standard deviation of \d+\.\d points, more than 10.*Nothing was spent"
    ) as stopped:
        release_score(run.path, 0.05)
    assert sorted(path.name for path in run.path.rglob("*")) == before
    assert read_score(run) is None
    enough = float(re.search(r"--score-epsilon \((\S+) is enough\)", str(stopped.value))[1])
    people = int(re.search(r"\(([\d,]+) at this epsilon\)", str(stopped.value))[1].replace(",", ""))
    offer = offered(run.path, enough)
    assert offer.deviation <= MOST
    assert people > offer.units
    with pytest.raises(ConfigError, match="drown the score"):
        offered(run.path, 0.9 * enough)
    assert read_score(run) is None  # asking for the price buys nothing
    score = release_score(run.path, enough)
    assert (score.deviation, score.units) == (pytest.approx(offer.deviation), offer.units)
    assert score.ledger.epsilon(read_json(run.summary)["privacy"]["delta"]) == pytest.approx(offer.epsilon)


def test_a_score_that_leaves_no_guarantee_is_refused(private):
    with pytest.raises(PrivacyError, match="rules nothing out"):
        offered(private.path, 60.0)


def test_verify_has_a_line_about_scores(private, tmp_path):
    run, score = scored(private, tmp_path)
    (check,) = verified(run.path, names=["scores"])
    assert check.verdict == "ok"
    assert f"one score was bought of {score.units} held-out rows, epsilon 5.00; with the model at most" in check.why
    assert verified(private.path, names=["scores"]) == []
    raw = read_json(run.scores)
    for change, words in (
        ({"deviation": score.deviation / 2}, "its ledger gives"),
        ({"ledger": raw["ledger"] | {"lines": 2 * raw["ledger"]["lines"]}}, "not one release"),
        ({"units": 2 * score.units}, "its ledger gives"),
    ):
        write_json(run.scores, raw | change)
        (check,) = verified(run.path, names=["scores"])
        assert check.verdict == "fails"
        assert words in check.why


def test_only_a_folder_of_its_own_is_written(private, tmp_path):
    for name in ("x.html", "page.MD"):
        with pytest.raises(ConfigError, match="is the name of a file"):
            write(subject_of(private.path), [], tmp_path / name)
        assert not (tmp_path / name).exists()
    (tmp_path / "README.md").write_text("mine")
    with pytest.raises(RunError, match=r"README.md that is not of a shareable report"):
        write(subject_of(private.path), [], tmp_path)
    assert (tmp_path / "README.md").read_text() == "mine"
    for _ in range(2):  # its own files are written anew
        write(subject_of(private.path), [], tmp_path / "out")
    (tmp_path / "out" / "report.html").write_text("<h1>mine</h1>")  # beside a README.md and a PRIVACY.md
    with pytest.raises(RunError, match=r"report.html that is not of a shareable report"):
        write(subject_of(private.path), [], tmp_path / "out")


def test_an_internal_page_does_not_take_the_place_of_a_shareable_one(private, tmp_path):
    page = write(subject_of(private.path), [], tmp_path / "out")[0]
    with pytest.raises(ConfigError, match="is no internal report"):
        report.write(private.path, page)


def test_the_model_card_names_the_files_that_are_not_beside_it(private, tmp_path):
    card = shared(private, tmp_path / "out")["README.md"].decode()
    for name in re.findall(r'load_file\("(\S+?)"\)', card):
        assert f"This needs `{name}`" in card
        assert not (tmp_path / "out" / name).exists()
    assert "load_file" in card


def test_scores_that_cannot_be_released_or_read_are_refused(private, public, tmp_path):
    with pytest.raises(ConfigError, match="above 0"):
        release_score(private.path, 0)
    with pytest.raises(RunError, match="no finished run"):
        release_score(tmp_path, 1.0)
    run = RunFolder(shutil.copytree(private.path, tmp_path / "run"))
    assert read_score(run) is None
    for rubbish in ("{}", '{"format": 1, "share": "nan", "deviation": 0, "units": 3, "ledger": {}}'):
        run.scores.write_text(rubbish)
        with pytest.raises(RunError, match=r"scores.json is damaged|ledger"):
            read_score(run)

"""The page: what its first screen says, that it loads nothing, and what it refuses."""

from __future__ import annotations

import json
import re
import shutil
from html.parser import HTMLParser
from importlib import resources
from pathlib import Path

import pytest
import torch

from noisewise import report
from noisewise.audits import disparity
from noisewise.audits.result import Figure
from noisewise.data import Data
from noisewise.errors import ConfigError, RunError
from noisewise.report.figures import inline_svg
from noisewise.runs.files import read_json, write_json
from noisewise.runs.folder import RunFolder
from noisewise.wording import at_most
from noisewise.workflow.config import configure
from noisewise.workflow.execution import execute
from noisewise.workflow.opened import audit, open_run

HOSTILE = '<script>alert("x")</script>&$\\frac$'


@pytest.fixture(scope="module")
def run(tmp_path_factory) -> RunFolder:
    config = configure(data="digits", noise_multiplier=4.0, steps=3, batch_size=64)
    folder = execute(config, tmp_path_factory.mktemp("run") / "a", progress=False)
    audit(open_run(folder.path), "disparity")
    return folder


class Text(HTMLParser):
    """Words of the page, its tags and attributes; fails on tags that do not close."""

    def __init__(self, page: str):
        super().__init__()
        self.words, self.open, self.attributes = "", [], []
        self.feed(page)
        assert self.open == []
        self.words = " ".join(self.words.split())

    def handle_starttag(self, tag, attrs):
        self.attributes += [(tag, *pair) for pair in attrs]
        if tag not in ("meta", "path", "use", "rect", "br"):
            self.open.append(tag)

    def handle_endtag(self, tag):
        if tag not in ("path", "use", "rect"):
            assert self.open.pop() == tag

    def handle_startendtag(self, tag, attrs):
        self.attributes += [(tag, *pair) for pair in attrs]

    def handle_data(self, data):
        if not self.open or self.open[-1] != "style":
            self.words += f" {data}"


def test_the_first_screen_says_what_was_promised_what_it_cost_and_who_pays(run: RunFolder) -> None:
    words = Text(report.render(run.path)).words
    privacy = read_json(run.summary)["privacy"]
    found = json.loads((run.sensitive / "audits/disparity.json").read_text())
    expected = [
        "Internal.", "do not publish", "cnn on digits, trained with differential privacy",
        "so that whoever sees it and guesses whether or not any one row was in the data is right at most",
        f"ε = {at_most(privacy['epsilon'])}", "δ = 10⁻⁵", "add-remove", "PLD", "Poisson-sampled",
        "private Every release is in the ledger", "1,258 rows",
        f"{100 * found['headline']['accuracy']['value']:.1f} %",
        f"{100 * found['headline']['twin accuracy']['value']:.1f} %",
        f"class {found['values']['extremes']['class']['pays_most']}",
    ]  # fmt: skip
    for text in expected:
        assert text in words, text


def test_the_rest_holds_figures_tables_ledger_settings_and_versions(run: RunFolder) -> None:
    page = report.render(run.path)
    text = Text(page)
    assert page.count("<svg") == 2
    labels = [value for tag, name, value in text.attributes if name == "aria-label"]
    assert sum("9: private" in label or "9: 0 points" in label or "points, interval" in label for label in labels) == 2
    for expected in (
        "Gaussian noise on a Poisson-sampled batch", "GDP-CLT", "approximation, no guarantee", "noise multiplier",
        "batch size", "dp-accounting", "torch", "cores", "everyone", "class 9", "Mean loss",
    ):  # fmt: skip
        assert expected in text.words, expected


def test_the_page_loads_nothing_and_runs_nothing(run: RunFolder) -> None:
    page = report.render(run.path)
    text = Text(page)
    assert not re.search(r"(?i)https?:|//[a-z]|@import|<script|<link|<iframe|<img|javascript:|\bon\w+=", page)
    for tag, name, value in text.attributes:
        assert name not in ("src", "srcset", "action"), (tag, name)
        if name in ("href", "xlink:href"):
            assert value.startswith("#")
    assert all(part.startswith("#") for part in re.findall(r"url\(([^)]*)\)", page))
    assert str(run.path) not in page


def test_ids_are_unique_and_references_resolve(run: RunFolder) -> None:
    page = report.render(run.path)
    ids = re.findall(r'\sid="([^"]+)"', page)
    assert len(ids) == len(set(ids))
    assert set(re.findall(r'href="#([^"]+)"', page)) | set(re.findall(r"url\(#([^)]+)\)", page)) <= set(ids)


def test_light_and_dark_have_the_same_colours_by_name() -> None:
    style = resources.files("noisewise.report").joinpath("style.css").read_text()
    light, dark = (
        re.search(pattern, style, re.S)[1] for pattern in (r":root \{(.*?)\}", r"dark\) \{\s*:root \{(.*?)\}")
    )
    names = [set(re.findall(r"(--[\w-]+):", part)) for part in (light, dark)]
    assert names[0] == names[1]
    assert set(re.findall(r"var\((--[\w-]+)\)", style)) <= names[0]


def test_without_an_audit_the_page_says_which_command_is_missing(run: RunFolder, tmp_path) -> None:
    config = configure(data="digits", noise_multiplier=4.0, steps=2, batch_size=64, twin=False)
    folder = execute(config, tmp_path / "a", progress=False)
    words = Text(report.render(folder.path)).words
    assert "Not measured yet" in words
    assert "noisewise audit DIR" in words
    audit(open_run(folder.path), "disparity")
    words = Text(report.render(folder.path)).words
    assert "Measured without a twin to compare with" in words
    assert "is served worst" in words


def test_audits_from_before_the_twin_are_asked_again_and_nothing_is_trained(run: RunFolder, tmp_path) -> None:
    folder = RunFolder(shutil.copytree(run.path, tmp_path / "a"))
    kept = folder.twin_weights.read_bytes()
    folder.twin_weights.unlink()  # stopped before the twin
    audit(open_run(folder.path), "disparity")
    assert "noisewise train --resume --twin --out DIR" in Text(report.render(folder.path)).words
    folder.twin_weights.write_bytes(kept)  # and taken up again
    words = Text(report.render(folder.path)).words
    assert "the twin is newer than they are" in words
    assert "noisewise audit DIR" in words
    assert "Train it again" not in words
    audit(open_run(folder.path), "disparity")
    assert "newer than they are" not in Text(report.render(folder.path)).words


def test_a_run_that_is_not_private_looks_like_it(tmp_path) -> None:
    config = configure(data="digits", noise_multiplier=4.0, steps=2, batch_size=64, twin=False, insecure_seed=1)
    folder = execute(config, tmp_path / "a", progress=False)
    words, privacy = Text(report.render(folder.path)).words, read_json(folder.summary)["privacy"]
    for text in (
        "trained without a privacy guarantee", "ε = ∞", "not-private Noise reproducible: do not publish",
        "Nothing is promised", "do not publish the model",
        f"The plan itself would have cost ε = {at_most(privacy['plan_epsilon'])}.",
    ):  # fmt: skip
        assert text in words, text


def test_hostile_names_are_text(run: RunFolder, tmp_path) -> None:
    data = Data(torch.arange(60.0).unsqueeze(1), torch.arange(60) % 2, classes=(HOSTILE, "b"))
    result = disparity(torch.nn.Linear(1, 2), data, twin=torch.nn.Linear(1, 2))
    folder = RunFolder(tmp_path / "a")
    folder.create()
    for path in (run.run, run.ledger, run.config):
        (folder.path / path.name).write_bytes(path.read_bytes())
    summary = read_json(run.summary)
    summary["model"] = HOSTILE
    write_json(folder.summary, summary)
    (folder.sensitive / "audits").mkdir()
    write_json(folder.sensitive / "audits" / "disparity.json", result.to_dict())
    page = report.render(folder.path)
    assert "<script" not in page
    assert Text(page).words.count(HOSTILE) >= 4


def test_write_defaults_to_the_secrets_and_refuses_impossible_places(run: RunFolder, tmp_path) -> None:
    assert report.write(run.path) == run.sensitive / "report.html"
    assert report.write(run.path, tmp_path / "r.html").read_text() == (run.sensitive / "report.html").read_text()
    with pytest.raises(RunError, match="does not exist"):
        report.write(run.path, tmp_path / "nowhere" / "r.html")
    with pytest.raises(RunError, match="is a folder"):
        report.write(run.path, tmp_path)
    with pytest.raises(RunError, match="no finished run"):
        report.write(tmp_path)


def test_only_a_page_is_replaced_by_a_page(run: RunFolder, tmp_path) -> None:
    written = report.write(run.path, tmp_path / "r.html")
    assert report.write(run.path, written, by="Ada").read_text().count("Ada") > 0
    (tmp_path / "people.csv").write_text("age\n3\n")
    for path in (tmp_path / "people.csv", run.model):
        before = path.read_bytes()
        with pytest.raises(ConfigError, match=rf"{path.name} exists and is no internal report.* another --out"):
            report.write(run.path, path)
        assert path.read_bytes() == before


@pytest.mark.parametrize("name", ["summary.json", "ledger.json", "run.json"])
@pytest.mark.parametrize("content", ["", "{}", "[]", '{"state": "complete"}'])
def test_damaged_files_are_named_not_guessed(run: RunFolder, tmp_path, name: str, content: str) -> None:
    folder = RunFolder(tmp_path / "a")
    folder.create()
    for path in (run.run, run.ledger, run.config, run.summary):
        (folder.path / path.name).write_bytes(path.read_bytes())
    (folder.path / name).write_text(content)
    with pytest.raises(RunError):
        report.render(folder.path)


def test_figures_follow_the_page_and_are_reproducible(run: RunFolder) -> None:
    from noisewise.audits import read

    figure: Figure = read(run.sensitive / "audits" / "disparity.json").figures()[0]
    svg = inline_svg(figure)
    assert svg == inline_svg(figure)
    assert "var(--private)" in svg
    assert "var(--twin)" in svg
    assert ">accuracy by class, %<" in svg  # text stays text


def test_the_template_is_in_the_wheel(tmp_path) -> None:
    import zipfile

    from hatchling.builders.wheel import WheelBuilder

    root = Path(__file__).parents[2]
    (wheel,) = WheelBuilder(str(root)).build(directory=str(tmp_path), versions=["standard"])
    names = zipfile.ZipFile(wheel).namelist()
    for name in ("page.html", "several.html", "parts.html", "style.css"):
        assert f"noisewise/report/{name}" in names
    assert not any(name.startswith("tests") for name in names)


@pytest.mark.parametrize(("name", "spoken"), [("wine_quality", "wine quality"), ("digits", "digits")])
def test_the_lead_is_a_sentence(run: RunFolder, tmp_path, name: str, spoken: str) -> None:
    folder = copied(run, tmp_path)
    summary = read_json(folder.summary)
    write_json(folder.summary, summary | {"model": "mlp", "data": summary["data"] | {"name": name}})
    words = Text(report.render(folder.path)).words
    assert f"A model (mlp) was trained on 1,258 rows of {spoken} so that" in words
    assert f"{spoken.capitalize()} is a public data set" in words
    write_json(folder.summary, summary | {"model": ""})
    assert "A model was trained on 1,258 rows" in Text(report.render(folder.path)).words


def test_cards_name_groups_and_say_what_chance_explains(run: RunFolder, tmp_path) -> None:
    """Classes are served alike, a group is not: the card names it. In a regression without any difference it says so."""
    generator = torch.Generator().manual_seed(0)
    x, side = torch.randn(200, 2, generator=generator), torch.arange(200) % 2
    with torch.random.fork_rng([]):
        torch.manual_seed(0)
        private, twin = torch.nn.Linear(2, 2), torch.nn.Linear(2, 2)
    parts = {"groups": {"side": side}, "group_names": {"side": ("left", "right")}}
    folder = copied(run, tmp_path)
    saved = folder.sensitive / "audits/disparity.json"
    found = disparity(private, Data(x, (x[:, 0] > 0).long(), classes=("a", "b"), **parts), twin=twin)
    write_json(saved, found.to_dict())
    pays = found.extremes("side").cost.name
    assert f"By side {pays} pays most:" in Text(report.render(folder.path)).words
    line = torch.nn.Linear(2, 1)
    same = disparity(line, Data(x, x[:, 0], **parts), twin=line)
    write_json(saved, same.to_dict())
    words = Text(report.render(folder.path)).words
    assert "Chance can explain the difference." in words
    assert "Chance can still explain it." in words


def test_sections_come_in_the_order_of_the_audits_and_folded(run: RunFolder, tmp_path) -> None:
    """`calibration` comes before `disparity` by name, and after it among the audits."""
    folder = copied(run, tmp_path)
    audit(open_run(folder.path), "calibration")
    page = report.render(folder.path)
    assert 0 < page.index(">Who gets how much</h2>") < page.index(">Does confidence mean what it says</h2>")
    assert re.findall(r"<details( open)?>", page) == ["", ""]
    assert "details::details-content { content-visibility: visible" in page.split("@media print")[1]


def copied(run: RunFolder, tmp_path: Path) -> RunFolder:
    """The run in a folder of its own, to be changed."""
    return RunFolder(shutil.copytree(run.path, tmp_path / "copy"))


def test_settings_are_written_as_they_are():
    from noisewise.report import subject

    written = {True: "yes", False: "no", 0.5: "0.5", 1e-5: "1e-05", "flat": "flat"}
    assert {value: subject.setting(value) for value in written} == written
    assert [subject.setting(value) for value in (3, 0, 2.0)] == ["3", "0", "2"]

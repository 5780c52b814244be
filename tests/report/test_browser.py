"""The page in a browser: no complaint, no request, the numbers of the files, figures that are seen and said, no side scroll.

Skipped where there is no Chromium (`apt-get install chromium`); NOISEWISE_REQUIRE_ALL=1 makes that a failure.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import torch

from helpers.browser import Browser, chromium
from noisewise import report
from noisewise.audits import calibration, disparity, robustness
from noisewise.data import Data
from noisewise.data.tables.schema import Category, Classes, Number, Schema
from noisewise.runs.files import read_json, write_json
from noisewise.runs.folder import RunFolder
from noisewise.workflow.config import configure
from noisewise.workflow.execution import execute
from noisewise.workflow.opened import audit, open_run

pytestmark = pytest.mark.skipif(chromium() is None, reason="no browser: apt-get install chromium")
PHONE = 390


@pytest.fixture(scope="module")
def run(tmp_path_factory) -> RunFolder:
    """A run with a twin and audits, among them one by group with long names and one of a table."""
    config = configure(data="digits", model="logistic", noise_multiplier=2.0, steps=40, batch_size=256, lr=0.5)
    folder = execute(config, tmp_path_factory.mktemp("browser") / "run", progress=False)
    for name in ("disparity", "calibration"):
        audit(open_run(folder.path), name)
    write_json(folder.audit("robustness"), table_result().to_dict())
    advice = {"advice": "Clip less.", "evidence": "Most units are clipped.", "command": "noisewise train --bound 4"}
    write_json(folder.sensitive / "suggestions.json", [advice])
    return folder


def table_result() -> Any:
    """Robustness of a table with a column whose name is long."""
    long = "Number of contacts with the health service in the last twelve months"
    schema = Schema(
        label="y",
        target=Classes(("no", "yes")),
        columns={long: Number(0, 50), "Age": Number(0, 120), "City": Category(("Ulm", "Rom"), other=False)},
        groups={"Residence status": Category(("permanent resident since birth", "temporary"), other=False)},
    )
    rows = range(160)
    data = schema.encode({
        long: [str(i % 50) for i in rows], "Age": [str(20 + i % 70) for i in rows],
        "City": [("Ulm", "Rom")[i % 2] for i in rows],
        "Residence status": [("permanent resident since birth", "temporary")[i // 3 % 2] for i in rows],
        "y": [("no", "yes")[i % 50 > 20] for i in rows],
    })  # fmt: skip
    with torch.random.fork_rng([]):
        torch.manual_seed(0)
        return robustness(torch.nn.Linear(4, 2), data, twin=torch.nn.Linear(4, 2))


@pytest.fixture(scope="module")
def pages(run: RunFolder, tmp_path_factory) -> dict[str, Path]:
    """One run, the same without audits, one by groups and people, and two side by side."""
    place = tmp_path_factory.mktemp("pages")
    config = configure(data="digits", model="logistic", noise_multiplier=4.0, steps=3, batch_size=64, twin=False)
    bare = execute(config, place / "bare", progress=False)
    made = {"one": [run.path], "bare": [bare.path], "two": [run.path, bare.path]}
    pages = {name: report.write(paths, place / f"{name}.html", by="Ada L.") for name, paths in made.items()}
    bare.audits.mkdir()
    for name in ("disparity", "calibration"):
        write_json(bare.audit(name), grouped(name))
    return pages | {"groups": report.write(bare.path, place / "groups.html")}


def grouped(name: str) -> Any:
    """Groups with long names, several rows of each person."""
    generator = torch.Generator().manual_seed(0)
    x, owner = torch.randn(600, 2, generator=generator), torch.arange(600) // 3
    names = tuple(f"a group whose name is rather long, number {place}" for place in range(3))
    data = Data(
        x, (x[:, 0] > 0).long(), groups={"Living arrangement": owner % 3}, classes=("no", "yes"), unit=owner,
        group_names={"Living arrangement": names},
    )  # fmt: skip
    with torch.random.fork_rng([]):
        torch.manual_seed(0)
        models = torch.nn.Linear(2, 2), torch.nn.Linear(2, 2)
    return {"disparity": disparity, "calibration": calibration}[name](models[0], data, twin=models[1]).to_dict()


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with Browser() as browser:
        yield browser


PAGES = ("one", "bare", "groups", "two")


@pytest.mark.parametrize("name", PAGES)
def test_the_page_complains_of_nothing_and_asks_for_nothing(browser: Browser, pages, name: str) -> None:
    for dark in (False, True):
        browser.open(pages[name], dark=dark)
        assert browser.errors == []
        assert browser.requests == []
    assert browser.ask("document.scripts.length") == 0


def test_the_browser_would_have_noticed(browser: Browser, tmp_path) -> None:
    page = tmp_path / "bad.html"
    page.write_text(
        '<img src="missing.png" alt=""><div style="width: 2000px">x</div><script>console.error("no")</script>'
    )
    browser.open(page, PHONE)
    assert any("no" in text for text in browser.errors)
    assert [Path(url).name for url in browser.requests] == ["missing.png"]
    assert browser.ask("document.documentElement.scrollWidth > innerWidth")


def test_each_number_of_the_first_screen_is_that_of_its_file(browser: Browser, run: RunFolder, pages) -> None:
    browser.open(pages["one"])
    privacy, found = read_json(run.summary)["privacy"], read_json(run.audit("disparity"))
    cards = browser.ask("[...document.querySelectorAll('.card')].map(card => card.innerText)")
    big = browser.ask("[...document.querySelectorAll('.card .big')].map(text => text.innerText)")
    assert len(cards) == 3
    epsilon, delta = re.fullmatch(r"ε = ([\d.]+) at δ = 10(\S+)", big[0]).groups()
    assert privacy["epsilon"] <= float(epsilon) < privacy["epsilon"] + 0.01
    assert 10.0 ** int(delta.translate(str.maketrans("⁻⁰¹²³⁴⁵⁶⁷⁸⁹", "-0123456789"))) == pytest.approx(privacy["delta"])
    everyone = found["values"]["parts"][0]["accuracy"]
    assert number_in(big[1]) == pytest.approx(100 * everyone["difference"]["value"], abs=0.05)
    for which in ("private", "twin"):
        assert f"{100 * everyone[which]['value']:.1f} %" in cards[1]
    payer = found["values"]["extremes"]["class"]["pays_most"]
    assert big[2] == f"class {payer}"
    (part,) = [p for p in found["values"]["parts"] if (p["by"], p["name"]) == ("class", payer)]
    said = re.search(
        r"(\S+) % right, (\S+) % without privacy: (\S+) points \(interval (\S+) to (\S+),", cards[2]
    ).groups()
    change = part["accuracy"]["difference"]
    wanted = [part["accuracy"]["private"]["value"], part["accuracy"]["twin"]["value"], change["value"], change["low"],
              change["high"]]  # fmt: skip
    assert [number_in(text) for text in said] == pytest.approx([100 * value for value in wanted], abs=0.05)


def number_in(text: str) -> float:
    return float(re.search(r"[−+-]?[\d.]+", text)[0].replace("−", "-"))


@pytest.mark.parametrize("name", PAGES)
@pytest.mark.parametrize("dark", [False, True])
def test_figures_are_seen_and_said(browser: Browser, pages, name: str, dark: bool) -> None:
    browser.open(pages[name], dark=dark)
    figures = browser.ask(
        "[...document.querySelectorAll('figure')].map(f => { const s = f.querySelector('svg'), r = s.getBoundingClientRect();"
        "const ink = getComputedStyle(s.querySelector('text') ?? s).fill;"
        "return [r.width, r.height, f.querySelector('[role=img]').getAttribute('aria-label'), ink] })"
    )
    assert bool(figures) == (name in ("one", "groups"))
    paper = browser.ask("getComputedStyle(document.querySelector('.sheet, .card')).backgroundColor")
    for width, height, label, ink in figures:
        assert width > 200
        assert height > 50
        assert len(label) > 40
        assert contrast(ink, paper) >= 4.5, (ink, paper)
    images = [said for role, said in browser.names() if role in ("image", "img")]
    assert len(images) >= len(figures)
    assert all(images)


def contrast(first: str, second: str) -> float:
    """Ratio of luminances as the WCAG 2 counts it."""

    def luminance(colour: str) -> float:
        parts = [int(c) / 255 for c in re.findall(r"\d+", colour)[:3]]
        linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in parts]
        return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]

    high, low = sorted((luminance(first), luminance(second)), reverse=True)
    return (high + 0.05) / (low + 0.05)


@pytest.mark.parametrize("dark", [False, True])
def test_every_text_can_be_read(browser: Browser, pages, dark: bool) -> None:
    """Contrast of 4.5 of each colour of text with what it stands on."""
    browser.open(pages["one"], dark=dark)
    pairs = browser.ask(
        "(() => { const pairs = {}; for (const e of document.querySelectorAll('body *:not(svg *)')) {"
        "if (![...e.childNodes].some(n => n.nodeType === 3 && n.textContent.trim())) continue;"
        "let b = e; while (b && getComputedStyle(b).backgroundColor === 'rgba(0, 0, 0, 0)') b = b.parentElement;"
        "pairs[getComputedStyle(e).color + '|' + getComputedStyle(b ?? document.body).backgroundColor] = e.textContent }"
        "return pairs })()"
    )
    assert len(pairs) >= 5
    for pair, text in pairs.items():
        assert contrast(*pair.split("|")) >= 4.5, (pair, text[:60])


@pytest.mark.parametrize("name", PAGES)
def test_no_page_scrolls_sideways_on_a_phone(browser: Browser, pages, name: str) -> None:
    browser.open(pages[name], PHONE, 844)
    browser.ask("document.querySelectorAll('details').forEach(d => { d.open = true })")
    assert browser.ask("innerWidth") == PHONE
    assert browser.ask("document.documentElement.scrollWidth") <= PHONE
    wide = browser.ask("[...document.querySelectorAll('.scroll')].map(box => [box.clientWidth, box.tabIndex])")
    assert wide
    assert all(width <= PHONE and tab == 0 for width, tab in wide)
    if name in ("one", "groups"):  # there are tables wider than a phone, and they move in their own box
        assert browser.ask("[...document.querySelectorAll('.scroll')].some(box => box.scrollWidth > box.clientWidth)")


@pytest.mark.parametrize("name", PAGES)
def test_landmarks_headings_and_tables_are_in_order(browser: Browser, pages, name: str) -> None:
    browser.open(pages[name])
    roles = [role for role, _ in browser.names()]
    for landmark in ("banner", "navigation", "main", "contentinfo"):
        assert roles.count(landmark) == 1, landmark
    levels = browser.ask("[...document.querySelectorAll('h1, h2, h3, h4')].map(h => Number(h.tagName[1]))")
    assert levels.count(1) == 1
    assert levels[0] == 1
    assert all(after <= before + 1 for before, after in pairwise(levels))
    assert browser.ask("[...document.querySelectorAll('th')].every(th => ['col', 'row'].includes(th.scope))")
    assert browser.ask("[...document.querySelectorAll('th')].every(th => th.textContent.trim())")
    assert browser.ask("[...document.querySelectorAll('table')].every(table => table.caption?.textContent.trim())")
    links = browser.ask("[...document.querySelectorAll('nav a')].map(a => !!document.getElementById(a.hash.slice(1)))")
    assert len(links) >= 3
    assert all(links)


def test_the_keyboard_reaches_contents_tables_and_folds(browser: Browser, pages) -> None:
    browser.open(pages["one"])
    seen = []
    for _ in range(40):
        for kind in ("keyDown", "keyUp"):
            browser.call("Input.dispatchKeyEvent", type=kind, key="Tab", code="Tab", windowsVirtualKeyCode=9)
        seen.append(browser.ask("document.activeElement.tagName + ' ' + document.activeElement.className"))
    assert seen[0] == "A skip"
    for wanted in ("A ", "DIV sheet scroll", "SUMMARY "):
        assert wanted in seen, seen
    assert browser.ask("getComputedStyle(document.activeElement).outlineStyle") == "solid"


def test_what_next_is_on_the_page_and_marks_say_their_value(browser: Browser, pages) -> None:
    browser.open(pages["one"])
    assert "Clip less. Most units are clipped." in browser.ask("document.querySelector('#next').innerText")
    assert browser.ask("document.querySelector('#next').getBoundingClientRect().top") < 900
    titles = browser.ask("[...document.querySelectorAll('figure svg title')].map(t => t.textContent)")
    assert len(titles) > 20
    assert all(re.search(r"\d", title) for title in titles)


def test_runs_are_chosen_without_scripts(browser: Browser, pages) -> None:
    browser.open(pages["two"], scripts=False)
    height = "document.querySelector('tr.run-2').getBoundingClientRect().height"
    assert browser.ask(height) > 0
    x, y = browser.ask(
        "(() => { const r = document.getElementById('show-2').getBoundingClientRect(); return [r.x + 5, r.y + 5] })()"
    )
    for kind in ("mousePressed", "mouseReleased"):
        browser.call("Input.dispatchMouseEvent", type=kind, x=x, y=y, button="left", clickCount=1)
    assert browser.ask(height) == 0
    assert browser.ask("document.querySelector('section.run-2').getBoundingClientRect().height") == 0
    assert browser.ask(height.replace("run-2", "run-1")) > 0


def test_print_is_light_open_and_without_contents(browser: Browser, pages) -> None:
    browser.open(pages["one"], dark=True, media="print")
    assert browser.ask("getComputedStyle(document.body).backgroundColor") == "rgb(255, 255, 255)"
    assert browser.ask("getComputedStyle(document.querySelector('nav')).display") == "none"
    assert browser.ask("[...document.querySelectorAll('details table')].every(t => t.checkVisibility())")

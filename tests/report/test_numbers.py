"""Every number on the page is the one of its files: by row name and column title, whatever the page's order is.

Cells are read back as numbers and compared with the JSON up to the digits shown, so nothing here knows how the product writes
a number. Entries of the files are found by the names that the page shows, not by their places.
"""

from __future__ import annotations

import functools
import json
import math
import re
import shutil
import tomllib
from collections.abc import Callable, Mapping
from html.parser import HTMLParser
from typing import Any, NamedTuple

import pytest
import torch

from noisewise import report
from noisewise.audits import AUDITS, calibration, disparity
from noisewise.data import Data
from noisewise.runs.files import read_json, write_json
from noisewise.runs.folder import RunFolder
from noisewise.workflow.config import configure
from noisewise.workflow.execution import execute
from noisewise.workflow.opened import audit, open_run

NUMBER = re.compile(r"([+−-]?)(∞|\d[\d,]*)(\.\d+)?(?:e([+-]\d+))?")


class Shown(NamedTuple):
    """A number as it stands on the page, and half a unit of its last digit."""

    value: float
    half: float


def numbers(text: str) -> list[Shown]:
    """All numbers of a text."""
    found = []
    for sign, whole, decimals, exponent in NUMBER.findall(text):
        size = math.inf if whole == "∞" else float(f"{whole.replace(',', '')}{decimals}e{exponent or 0}")
        half = 0.5 * 10.0 ** (int(exponent or 0) - max(len(decimals) - 1, 0))
        found.append(Shown(-size if sign in ("−", "-") else size, half))
    return found


def agrees(text: str, expected: Any) -> bool:
    """Is the text these numbers (or this text)?"""
    if isinstance(expected, str):
        return text == expected
    wanted, found = expected if isinstance(expected, list) else [expected], numbers(text)
    return len(wanted) == len(found) and all(
        w == f.value or abs(w - f.value) <= f.half * (1 + 1e-6) for w, f in zip(map(float, wanted), found, strict=True)
    )


class Grid(NamedTuple):
    """A table of the page."""

    section: str
    caption: str
    columns: list[str]
    rows: list[list[str]]


class Page(HTMLParser):
    """Sections, cards, tables and labels of figures, as a reader sees them."""

    def __init__(self, text: str):
        super().__init__()
        self.tables: list[Grid] = []
        self.cards: dict[str, str] = {}
        self.labels: list[str] = []
        self.widths: list[str] = []
        self.items: dict[str, list[str]] = {}
        self.paragraphs: list[str] = []
        self._section, self._card, self._text, self._stack, self._unseen = "", "", "", [], False
        self.feed(text.partition("</style>")[2])

    def handle_starttag(self, tag, attrs):
        self._stack.append(tag)
        if tag in ("h1", "h2", "h3", "caption", "th", "td", "li", "p"):
            self._text = ""
        if tag == "table":
            self.tables.append(Grid(self._section, "", [], []))
        if tag == "tr" and "tbody" in self._stack:
            self.tables[-1].rows.append([])
        known = dict(attrs)
        if known.get("role") == "img":
            self.labels.append(known["aria-label"])
        self._unseen = known.get("class") == "unseen"  # for screen readers
        self.widths += [value for name, value in attrs if name == "style" and tag == "div"]
        if tag == "section":
            self._card = ""

    def handle_data(self, data):
        self._text += data
        if self._card and "h3" not in self._stack:
            self.cards[self._card] = " ".join(f"{self.cards[self._card]} {data}".split())

    def handle_endtag(self, tag):
        text = " ".join(self._text.split())
        if tag == "h2":
            self._section = text
        elif tag == "h3":
            self._card, self.cards[text] = text, ""
        elif tag == "section":
            self._card = ""
        elif tag == "caption" and not self._unseen:
            self.tables[-1] = self.tables[-1]._replace(caption=text)
        elif tag in ("th", "td"):
            place = self.tables[-1].rows[-1] if "tbody" in self._stack else self.tables[-1].columns
            place.append("" if self._unseen and tag == "th" else {"rows": "people"}.get(text, text))
        elif tag == "li":
            self.items.setdefault(self._section, []).append(text)
        elif tag == "p":
            self.paragraphs.append(text)
        while self._stack and self._stack.pop() != tag:
            pass


# --- what the tables of each audit hold, by row name and column title


def of(e: Mapping[str, Any], scale: float = 1.0) -> list[float]:
    """An estimate: value, low, high."""
    return [scale * float(e[key]) for key in ("value", "low", "high")]


def share(e: Mapping[str, Any]) -> list[float]:
    """An estimate in per cent or points."""
    return of(e, 100)


def called(part: Mapping[str, Any]) -> str:
    return "everyone" if part["by"] == "everyone" else f"{part['by']} {part['name']}"


def by_model(measure: str, written: Callable[[Any], Any] = share) -> dict[str, Callable[[Any], Any]]:
    """Columns of a table that sets the private model beside its twin."""
    names = {"private": "private", "twin": "twin", "private − twin": "difference"}
    return {title: lambda entry, key=key: written(entry[measure][key]) for title, key in names.items()}


def parts_of(values: Any, crossed: bool = False) -> dict[str, Any]:
    return {
        called(part): part for part in values["parts"] if ("×" in part["by"]) == crossed and part["by"] != "difficulty"
    }


PEOPLE = {"people": lambda part: part["n"]}
YES = {True: "yes", False: "no"}
BOUNDS = {
    "printed": "1 − R/2", "corrected": "(1 − R)/(1 + R)", "one-sided": "all gradients point forward", "general": "general",
}  # fmt: skip
Spec = tuple[str, Callable[[Any], Mapping[str, Any]], Mapping[str, Callable[[Any], Any]]]


def scores(raw: Any) -> dict[str, Any]:
    return {
        name: {title: of(found[key]) if name in ("Brier", "NLL") else share(found[key]) for title, key in {
            "private": "private", "twin": "twin", "private − twin": "difference"}.items()}
        for name, found in raw["values"]["scores"].items()
    }  # fmt: skip


def bins(which: str) -> Callable[[Any], dict[str, Any]]:
    smallest = 20
    return lambda raw: {
        f"{100 * b['low']:.1f}–{100 * b['high']:.1f}": {
            "people": b["n"],
            "mean confidence": "–" if b["confidence"] is None or b["n"] < smallest else 100 * b["confidence"],
            "right": "–" if b["accuracy"] is None or b["n"] < smallest else share(b["accuracy"]),
        }
        for b in raw["values"]["bins"][which]
    }


def take(*titles: str) -> dict[str, Callable[[Any], Any]]:
    return {title: lambda entry, title=title: entry[title] for title in titles}


def radius(value: float, norm: str) -> str:
    return f"{round(255 * value)}/255" if norm == "linf" and value else f"{value:.3g}" if value < 1 else f"{value:.2f}"


def sweep(norm: str) -> Callable[[Any], dict[str, Any]]:
    return lambda raw: {radius(point["radius"], norm): point for point in raw["values"]["sweep"][norm]}


SWEEP = {
    **by_model("accuracy"),
    "private, one step": lambda point: share(point["fgsm"]["private"]),
    "private, random noise": lambda point: share(point["noise"]["private"]),
    "private, loss": lambda point: of(point["loss"]["private"]),
}


def attacks(raw: Any) -> dict[str, Any]:
    found: dict[str, Any] = {name: {"private − twin": of(e)} for name, e in raw["values"]["differences"].items()}
    for measured in raw["values"]["measured"]:
        found[measured["attack"]][measured["model"]] = of(measured["auc"])
    return found


CONSTANTS = {
    "G, largest |eigenvalue| of the Hessian (estimate)": "smoothness", "Δ_L = L(first point) − 0": "loss_gap",
    "σ_g² = E‖g − ∇‖²": "variance", "b, asymmetry of the deviations": "asymmetry", "P, weights that learn": "weights",
    "T": "steps", "B": "batch", "C": "bound", "σ": "noise", "η": "lr",
}  # fmt: skip


def constants(raw: Any) -> dict[str, float]:
    c = raw["values"]["constants"]
    clip = c["loss_gap"] / (c["lr"] * c["steps"]) + c["lr"] * c["smoothness"] * c["bound"] ** 2 / 2 - c["asymmetry"]
    noise = c["bound"] ** 2 * c["noise"] ** 2 * c["weights"] * c["smoothness"] / (2 * c["batch"] ** 2)
    derived = {"Δ_C": clip, "Δ_σ": noise, "r*": max(0.0, 1 - clip / (c["lr"] * noise))}
    return {text: c[name] for text, name in CONSTANTS.items()} | derived


SPECS: dict[str, list[Spec]] = {
    "disparity": [
        ("Accuracy on the test part", lambda raw: parts_of(raw["values"]), {**PEOPLE, **by_model("accuracy")}),
        ("Mean loss (cross-entropy) on", lambda raw: parts_of(raw["values"]), {**PEOPLE, **by_model("loss", of)}),
        (
            "Fairness between groups",
            lambda raw: {
                f"{name}, {column}": found
                for column, names in raw["values"]["fairness"].items()
                for name, found in names.items()
                if name != "hidden"
            },
            {key: lambda found, key=key: of(found[key]) if found.get(key) else "–" for key in ("private", "twin", "excess")},
        ),
        ("Accuracy in % by class and side", lambda raw: parts_of(raw["values"], True), {**PEOPLE, **by_model("accuracy")}),
        ("Mean loss (cross-entropy) by", lambda raw: parts_of(raw["values"], True), {**PEOPLE, **by_model("loss", of)}),
    ],
    "error-disparity": [
        (caption, lambda raw: parts_of(raw["values"]), {**PEOPLE, **by_model(measure, of)})
        for caption, measure in (("Mean squared error", "mse"), ("Mean absolute error", "mae"), ("Bias", "bias"))
    ],
    "calibration": [
        ("Calibration on the test part", scores, take("private", "twin", "private − twin")),
        ("Over-confidence (mean", lambda raw: {called(g): g for g in raw["values"]["groups"]}, {**PEOPLE, **by_model("gap")}),
        ("Bins of the private model", bins("private"), take("people", "mean confidence", "right")),
        ("Bins of the twin", bins("twin"), take("people", "mean confidence", "right")),
    ],
    "robustness": [
        ("Accuracy in % under L∞ attack, ", sweep("linf"), SWEEP),
        (
            "Accuracy in % under L∞ attack of",
            lambda raw: {called(part): part for part in raw["values"]["parts"]["linf"]},
            {**PEOPLE, **by_model("accuracy")},
        ),
        ("Accuracy in % under L2 attack, ", sweep("l2"), SWEEP),
        (
            "Accuracy in % under L2 attack of",
            lambda raw: {called(part): part for part in raw["values"]["parts"]["l2"]},
            {**PEOPLE, **by_model("accuracy")},
        ),
    ],
    "membership": [("Area under the ROC curve", attacks, take("private", "twin", "private − twin"))],
    "clipping-bias": [
        (
            "Lower bounds on the clipped step",
            lambda raw: {BOUNDS[name]: bound for name, bound in raw["values"]["bounds"].items()},
            {
                "value": lambda bound: bound["value"],
                "its condition is met": lambda bound: YES[bound["applies"]],
                "holds": lambda bound: YES[bound["holds"]],
            },
        ),
        (
            "Who is clipped",
            lambda raw: parts_of(raw["values"]),
            {
                **PEOPLE,
                "clipped, %": lambda part: share(part["clipped"]),
                "mean factor": lambda part: of(part["factor"]),
                "own, clipped": lambda part: part["own"],
                "step, true": lambda part: part["true_step"],
                "step, clipped": lambda part: part["clipped_step"],
            },
        ),
    ],
    "feature-noise": [
        (
            "Signal in one step",
            lambda raw: parts_of(raw["values"]),
            {
                **PEOPLE,
                "ratio": lambda part: of(part["ratio"]),
                "of the whole noise": lambda part: of(part["whole"]),
                "steps to level": lambda part: math.ceil(max(1.0, part["ratio"]["value"] ** -2)),
                "twin": lambda part: of(part["twin"]),
            },
        ),
        (
            "What makes the ratio",
            lambda raw: parts_of(raw["values"]),
            {
                "feature / noise": lambda part: of(part["feature"]),
                "clipped, %": lambda part: share(part["clipped"]),
                "mean factor": lambda part: of(part["factor"]),
                "share of people, %": lambda part: 100 * part["share"]["value"],
            },
        ),
    ],
    "landscape": [
        (
            "Segments between models",
            lambda raw: raw["values"]["segments"],
            {
                "length": lambda s: s["length"],
                "loss at first": lambda s: s["losses"][0],
                "highest": lambda s: max(s["losses"]),
                "at second": lambda s: s["losses"][-1],
                "instability": lambda s: of(s["instability"]),
                "barrier": lambda s: of(s["barrier"]),
                "random steep": lambda s: 100 * s["random"]["steep"]["value"],
            },
        ),
        (
            "Norms and gradients",
            lambda raw: {
                name: {
                    "weight norm": norm["from_origin"],
                    "from start": norm["from_start"],
                    "growth": norm["growth"],
                    "median gradient norm": raw["values"]["histograms"]["gradients"][name]["median"],
                    "asymmetry": raw["values"]["symmetry"][name]["asymmetry"],
                    "p": raw["values"]["symmetry"][name]["p_value"],
                }
                for name, norm in raw["values"]["norms"].items()
            },
            take("weight norm", "from start", "growth", "median gradient norm", "asymmetry", "p"),
        ),
    ],
    "ntk": [
        (
            "The kernel of",
            lambda raw: raw["values"]["rules"],
            {
                "symmetric": lambda rule: YES[rule["symmetric"]],
                "quadratic form >= 0": lambda rule: rule["quadratic"],
                "eigenvalues >= 0": lambda rule: rule["eigenvalue"],
                "dL/dt": lambda rule: rule["rate"],
                "dL/dt measured": lambda rule: rule["measured_rate"],
            },
        ),
        ("Share of each layer", lambda raw: raw["values"]["layers"], {"share": lambda part: 100 * part}),
    ],
    "convergence": [
        ("Constants, measured or public", constants, {"value": lambda value: value}),
        ("Upper bounds at r = 0", lambda raw: raw["values"]["bounds"], {"value": lambda value: value}),
        (
            "Where they were measured",
            lambda raw: dict(zip(raw["values"]["names"], raw["values"]["points"], strict=True)),
            {
                "mean loss": lambda point: point["loss"],
                "‖∇‖": lambda point: point["gradient"],
                "P_t": lambda point: point["close"],
                "b": lambda point: point["asymmetry"],
                "mean ⟨∇, clip(g)⟩": lambda point: point["descent"],
                "G": lambda point: point["smoothness"],
            },
        ),
    ],
    "engine-epsilon": [
        (
            "Measured mu and epsilon",
            lambda raw: {
                name: found | {"claimed": raw["headline"]["claimed epsilon"]["value"]}
                for name, found in raw["values"]["statistics"].items()
            },
            {
                "mu": lambda found: of(found["mu"]),
                "epsilon": lambda found: of(found["epsilon"]),
                "claimed epsilon": lambda found: found["claimed"],
                "the claim is": lambda found: "exceeded" if found["exceeds"] else "kept",
            },
        ),
    ],
    "reconstruction": [
        (
            "Reconstruction of records",
            lambda raw: raw["values"]["errors"],
            {"MSE": lambda found: of(found["mse"]), "PSNR, dB": lambda found: of(found["psnr"])},
        ),
        (
            "Least squares on k x",
            lambda raw: {f"{found['sparsity']:.2f}": found for found in raw["values"]["theorem"]},
            {
                "simulated error": lambda found: of(found["simulated"]),
                "exact error": lambda found: found["expected"],
                "lower bound": lambda found: found["bound"],
            },
        ),
    ],
}  # fmt: skip


def compare(page: Page, raw: Any, specs: list[Spec]) -> int:
    """Every cell of the tables that `specs` describe; returns how many were compared."""
    compared = 0
    for caption, rows_of, columns in specs:
        (grid,) = [grid for grid in page.tables if grid.caption.startswith(caption)]
        entries = rows_of(raw)
        assert [row[0] for row in grid.rows] == list(entries), grid.caption
        assert set(grid.columns[1:]) - {""} == set(columns), grid.caption
        for row in grid.rows:
            for title, cell in zip(grid.columns[1:], row[1:], strict=True):
                if title:
                    expected = columns[title](entries[row[0]])
                    assert agrees(cell, expected), (grid.caption, row[0], title, cell, expected)
                    compared += 1
    return compared


# --- the pages of a run, one for each audit


@pytest.fixture(scope="module")
def run(tmp_path_factory) -> RunFolder:
    config = configure(data="digits", model="logistic", noise_multiplier=4.0, steps=30, batch_size=64, lr=0.5)
    folder = execute(config, tmp_path_factory.mktemp("run") / "a", progress=False)
    audit(open_run(folder.path), "disparity")
    return folder


@pytest.fixture(scope="module")
def page(run: RunFolder) -> Page:
    return Page(report.render(run.path))


@pytest.fixture(scope="module")
def audited(run: RunFolder, tmp_path_factory) -> Callable[[str], tuple[RunFolder, Page]]:
    """The run with one audit, and its page."""

    @functools.cache
    def with_audit(name: str) -> tuple[RunFolder, Page]:
        folder = RunFolder(shutil.copytree(run.path, tmp_path_factory.mktemp(name) / "copy"))
        shutil.rmtree(folder.sensitive / "audits")
        audit(open_run(folder.path), name)
        return folder, Page(report.render(folder.path))

    return with_audit


def saved(run: RunFolder, name: str) -> Any:
    return json.loads((run.sensitive / "audits" / f"{name}.json").read_text())


@pytest.mark.parametrize("name", AUDITS)
def test_tables_of_audits_hold_the_numbers_of_their_files(audited, name: str) -> None:
    run, page = audited(name)
    specs = [spec for spec in SPECS[name] if any(grid.caption.startswith(spec[0]) for grid in page.tables)]
    assert compare(page, saved(run, name), specs) >= 6


def test_no_table_of_the_page_is_left_out(audited) -> None:
    described = tuple(caption for specs in SPECS.values() for caption, _, _ in specs)
    measured = "The claimed epsilon, and what attacks have proven"
    own = (
        "Does the attack work?",
        "The same ledger by three accountants",
        measured,
        "",
    )  # compared by tests of their own
    captions = {grid.caption for name in AUDITS for grid in audited(name)[1].tables} - {*own}
    assert [caption for caption in captions if not caption.startswith(described)] == []


def test_checks_of_the_attack_are_those_of_the_file(audited) -> None:
    run, page = audited("robustness")
    (grid,) = [grid for grid in page.tables if grid.caption == "Does the attack work?"]
    signs = {"linf": "L∞", "l2": "L2"}
    wanted = [
        {
            "check": c["check"],
            "norm": signs[c["norm"]],
            "model": c["model"],
            "passed": "yes" if c["passed"] else "NO",
            "found": c["found"],
        }
        for c in saved(run, "robustness")["values"]["checks"]
    ]
    assert [dict(zip(grid.columns, row, strict=True)) for row in grid.rows] == wanted


@pytest.mark.parametrize("task", ["classes", "numbers"])
def test_tables_by_group_hold_the_numbers_of_their_files(run: RunFolder, tmp_path, task: str) -> None:
    folder = RunFolder(shutil.copytree(run.path, tmp_path / "copy"))
    for path in (folder.sensitive / "audits").iterdir():
        path.unlink()
    generator = torch.Generator().manual_seed(0)
    x, side = torch.randn(300, 2, generator=generator), torch.arange(300) % 3
    groups = {"groups": {"side": side}, "group_names": {"side": ("left", "middle", "right")}}
    with torch.random.fork_rng([]):
        torch.manual_seed(4)  # who is served worst is not who pays most
        outputs = 2 if task == "classes" else 1
        private, twin = torch.nn.Linear(2, outputs), torch.nn.Linear(2, outputs)
    noise = torch.randn(300, generator=generator)
    y = (x[:, 0] + noise > 0).long() if task == "classes" else x[:, 0] + noise
    data = Data(x, y, **({"classes": ("a", "b")} if task == "classes" else {}), **groups)
    found = disparity(private, data, twin=twin)
    assert all(extremes.worst.name != extremes.cost.name for extremes in map(found.extremes, found.partitions))
    write_json(folder.sensitive / "audits/disparity.json", found.to_dict())
    if task == "classes":
        write_json(folder.sensitive / "audits/calibration.json", calibration(private, data, twin=twin).to_dict())
    shown = Page(report.render(folder.path))
    kinds = ["disparity", "calibration"] if task == "classes" else ["error-disparity"]
    for kind in kinds:
        assert compare(shown, saved(folder, kind.replace("error-", "")), SPECS[kind]) >= 20
    check_cards(shown, saved(folder, "disparity"))


# --- cards, sentences and labels


def test_cards_hold_the_numbers_of_their_files(run: RunFolder, page: Page) -> None:
    check_cards(page, saved(run, "disparity"))
    privacy = read_json(run.summary)["privacy"]
    promised, bound = math.exp(privacy["epsilon"]), privacy["delta"]
    sure = 100 * (promised + bound) / (promised + 1)
    found = [shown.value for shown in numbers(page.cards["The guarantee"].replace("10⁻⁵", "1e-05"))]
    epsilon, delta, coin, certain, guess = found[:5]
    assert (delta, coin, certain) == (bound, 50, 100)
    assert privacy["epsilon"] <= epsilon < privacy["epsilon"] + 0.01
    assert sure <= guess <= sure + 0.1
    assert agrees(page.labels[0], [guess, 50])
    assert agrees(*page.widths, 2 * (sure - 50))


def check_cards(page: Page, raw: Any) -> None:
    """What it cost, and whom: each number by the words around it, each title by the sign of its number."""
    everyone = next(part for part in raw["values"]["parts"] if part["by"] == "everyone")
    regression = "mse" in everyone
    overall, scale = (everyone["mse"], 1.0) if regression else (everyone["accuracy"], 100.0)
    own, twin, change = (of(overall[key], scale) for key in ("private", "twin", "difference"))
    worse = 1 if regression else -1
    most = worse * raw["values"]["extremes"]["side" if regression else "class"]["largest_cost"]["value"]
    gains = round(-worse * change[0], 2 if regression else 1) > 0
    sure = min(-worse * end for end in change[1:]) > 0
    cost = page.cards["What it cost" if not gains else "Ahead of the twin" if sure else "What it changed"]
    pays = page.cards["Who pays most" if most > 0 else "Nobody pays: who gains least"]
    rows = raw["settings"]["rows"]
    pattern = (
        r"(.*?) (?:points of accuracy|in mean squared error) interval (.*); \w+ 0: privacy costs with privacy (.*) "
        r"without privacy ([\d.,–% ]+?)(?: It evens out, .*?\.)? ([\d,]+) test rows, (.*)"
    )
    headline, interval, first, second, tested, level = re.fullmatch(pattern, cost).groups()
    assert agrees(headline, change[:1])
    assert agrees(interval, change[1:])
    assert agrees(first, own)
    assert agrees(second, twin)
    assert agrees(tested, rows)
    assert level.startswith("95 % intervals.")
    if regression:
        extremes = raw["values"]["extremes"]["side"]
        pattern = (
            r"side (\S+) Mean squared error (\S+) (above|below) the twin's \(interval (.*), adjusted.*?\)\."
            r"(?: Chance can still explain it\.)? Served worst: side (\S+), (\S+)\."
        )
        who, value, place, interval, worst, highest = re.fullmatch(pattern, pays).groups()
        assert (who, worst) == (extremes["pays_most"], extremes["worst"])
        assert agrees(value, abs(extremes["largest_cost"]["value"]))
        assert place == ("above" if most > 0 else "below")
        (paying,) = [p for p in raw["values"]["parts"] if (p["by"], p["name"]) == ("side", extremes["pays_most"])]
        assert agrees(interval, of(paying["mse"]["difference"])[1:])
        assert agrees(highest, extremes["highest"]["value"])
        return
    extremes = raw["values"]["extremes"]["class"]
    pattern = (
        r"class (\S+) (\S+) % right, (\S+) % without privacy: (\S+) points \(interval (.*), adjusted.*?\)\."
        r"(?: With so few.*?explain it\.)?(?: Hit hardest, .*?\)\.)? "
        r"Served worst: class (\S+), (\S+) %\. "
        r"Best and worst class are (\S+) points apart, "
        r"(\S+) without privacy\.(.*)"
    )
    who, right, without, points, interval, worst, lowest, gap, twin_gap, more = re.fullmatch(pattern, pays).groups()
    (paying,) = [
        part for part in raw["values"]["parts"] if (part["by"], part["name"]) == ("class", extremes["pays_most"])
    ]
    assert (who, worst) == (extremes["pays_most"], extremes["worst"])
    assert agrees(right, 100 * paying["accuracy"]["private"]["value"])
    assert agrees(without, 100 * paying["accuracy"]["twin"]["value"])
    assert agrees(points, 100 * extremes["largest_cost"]["value"])
    assert agrees(interval, share(paying["accuracy"]["difference"])[1:])
    assert agrees(lowest, 100 * extremes["lowest"]["value"])
    assert agrees(gap, 100 * extremes["gap"]["value"])
    assert agrees(twin_gap, 100 * extremes["twin_gap"]["value"])
    for by, of_groups in raw["values"]["extremes"].items():
        if by != "class":
            sentence = rf"By {by} (nobody pays, )?(\S+) (?:pays most|gains least): (\S+) points[.,]"
            nobody, group, cost_of_group = re.search(sentence, more).groups()
            assert group == of_groups["pays_most"]
            assert bool(nobody) == (of_groups["largest_cost"]["value"] >= 0)
            assert agrees(cost_of_group, 100 * of_groups["largest_cost"]["value"])


def test_sentences_on_who_gets_how_much_are_those_of_the_file(run: RunFolder, page: Page) -> None:
    raw = saved(run, "disparity")
    said = " ".join(page.items["Who gets how much"])
    everyone, extremes = raw["values"]["parts"][0]["accuracy"], raw["values"]["extremes"]["class"]
    own, twin, change = (share(everyone[key]) for key in ("private", "twin", "difference"))
    (paying,) = [p for p in raw["values"]["parts"] if (p["by"], p["name"]) == ("class", extremes["pays_most"])]
    expected = [
        own[0], raw["settings"]["rows"], 95, *own[1:], twin[0], abs(change[0]), -change[2], -change[1], int(extremes["worst"]),
        100 * extremes["lowest"]["value"], 100 * extremes["gap"]["value"], extremes["ratio"]["value"],
        int(extremes["pays_most"]), *share(paying["accuracy"]["difference"]),
    ]  # fmt: skip
    assert agrees(said, expected), said


def test_labels_of_figures_say_the_numbers_of_the_file(run: RunFolder, page: Page) -> None:
    parts = {
        part["name"]: part["accuracy"] for part in saved(run, "disparity")["values"]["parts"] if part["by"] == "class"
    }
    shares, changes = page.labels[1:3]
    found = re.findall(r"(\d): private (\S+) %, twin (\S+) %", shares)
    assert sorted(name for name, *_ in found) == sorted(parts)
    for name, own, twin in found:
        assert agrees(own, 100 * parts[name]["private"]["value"])
        assert agrees(twin, 100 * parts[name]["twin"]["value"])
    found = re.findall(r"(\d): (\S+) points, interval (\S+) to (\S+?)(?:;|\.?$)", changes)
    assert sorted(name for name, *_ in found) == sorted(parts)
    for name, *cells in found:
        assert agrees(" ".join(cells), share(parts[name]["difference"]))


# --- ledger, accountants, settings, versions


def rows_below(page: Page, section: str, caption: str = "") -> Grid:
    (grid,) = [grid for grid in page.tables if grid.section == section and grid.caption == caption]
    return grid


def test_the_ledger_is_the_file(run: RunFolder, page: Page) -> None:
    grid, lines = rows_below(page, "The ledger"), read_json(run.ledger)["lines"]
    assert len(grid.rows) == len(lines) > 0
    for row, line in zip(grid.rows, lines, strict=True):
        cell = dict(zip(grid.columns, row, strict=True))
        assert cell["released"] == line["purpose"]
        assert agrees(cell["noise multiplier"], line["event"]["noise_multiplier"])
        assert agrees(cell["rate"], line["event"]["rate"])
        assert agrees(cell["times"], line["count"])
        assert agrees(cell["from step"], line["first_step"])


def test_accountants_have_their_own_numbers(run: RunFolder, page: Page) -> None:
    privacy = read_json(run.summary)["privacy"]
    rows = rows_below(page, "The ledger", "The same ledger by three accountants").rows
    keys = {"PLD": "epsilon", "RDP": "rdp_epsilon", "GDP-CLT": "gdp_epsilon"}
    notes = {
        "PLD": "the guarantee",
        "RDP": "second opinion: proven too, looser",
        "GDP-CLT": "approximation, no guarantee",
    }
    assert [row[0] for row in rows] == list(keys)
    for name, value, note in rows:
        (shown,) = numbers(value)
        assert privacy[keys[name]] <= shown.value <= privacy[keys[name]] + 2 * shown.half  # an upper bound
        assert note == notes[name]
    assert len({value for _, value, _ in rows}) == 3


def test_settings_and_versions_are_those_of_the_files(run: RunFolder, page: Page) -> None:
    settings = tomllib.loads(run.config.read_text())
    shown = dict(rows_below(page, "Settings").rows)
    assert set(shown) == {name.replace("_", " ") for name in settings} - {"format"}
    for name, value in settings.items():
        if name != "format":
            cell = shown[name.replace("_", " ")]
            words = "yes" if value is True else "no" if value is False else value if isinstance(value, str) else None
            assert cell == words if words is not None else agrees(cell, value), name
    about = read_json(run.run)
    made = dict(rows_below(page, "Made with").rows)
    hardware = about["hardware"]
    machine = f"{hardware['machine']}, {hardware['cores']} cores, {hardware['threads']} threads"
    assert made == {**about["versions"], "machine": machine, "GPU": ", ".join(hardware["gpus"]) or "none"}


def test_the_lead_and_the_caveats_count_what_the_summary_counts(run: RunFolder, page: Page) -> None:
    summary = read_json(run.summary)
    lead = next(text for text in page.paragraphs if text.startswith("A model"))
    assert agrees(lead.partition(" so that")[0], summary["data"]["n"])
    caveats = page.items["What the guarantee says"]
    assert agrees(caveats[-1].partition(")")[0], summary["data"]["n"])
    assert any("δ = 10⁻⁵" in text for text in caveats)
    assert summary["privacy"]["delta"] == 1e-5


@pytest.mark.parametrize(
    ("text", "expected", "same"),
    [
        ("49.9 (44.7–55.0)", [49.86, 44.72, 55.04], True),
        ("49.9 (44.7–55.0)", [49.86, 55.04, 44.72], False),
        ("−1.49e-14", -1.494e-14, True),
        ("+2.6", -2.6, False),
        ("1,258", 1258, True),
        ("1,258", 1259, False),
        ("∞", math.inf, True),
        ("0.3", 0.36, False),
        ("1 2", [1], False),
    ],
)
def test_numbers_are_read_back(text: str, expected: Any, same: bool) -> None:
    assert agrees(text, expected) == same

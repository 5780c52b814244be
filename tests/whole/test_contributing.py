"""CONTRIBUTING.md: its drawing is the contract, and what it adds step by step works."""

import importlib.util
import json
import math
import re
import sys
import types
from pathlib import Path

import pytest
import torch
from matplotlib.figure import Figure

from helpers import tiny
from helpers.oracles import PROBLEMS, relative_error, unit_gradients
from noisewise import adaptive, audits, clipping
from noisewise.clipping import Samples
from noisewise.data import Data, Splits
from noisewise.mechanism import Mechanism
from noisewise.persample import clipped_sum
from noisewise.recipe import Recipe, fit
from noisewise.repairs import repaired
from noisewise.sampling import Poisson
from noisewise.testing import check_audit, check_clip, reveal

PROJECT = Path(__file__).parents[2]
PAGE = (PROJECT / "CONTRIBUTING.md").read_text()


SPEC = importlib.util.spec_from_file_location("pages", PROJECT / "benchmarks" / "pages.py")
pages = importlib.util.module_from_spec(SPEC)
SPEC.loader.exec_module(pages)


def example(title):
    """The code under a heading, as a module."""
    section = PAGE.split(f"\n## {title}\n")[1].split("\n## ")[0]
    (code,) = re.findall(r"^```python\n(.*?)^```", section, re.MULTILINE | re.DOTALL)
    module = types.ModuleType(title.rpartition(" ")[2])
    sys.modules[module.__name__] = module  # dataclasses look for their module
    try:
        exec(compile(code, f"CONTRIBUTING.md, {title}", "exec"), vars(module))
    finally:
        del sys.modules[module.__name__]
    return module


def test_the_drawing_is_the_contract():
    """`python benchmarks/pages.py` writes it."""
    assert pages.DRAWING.findall(PAGE) == [pages.drawing()]


def test_the_drawing_has_every_room_once():
    rooms = re.findall(r"[a-z]+", pages.drawing().removeprefix("```text"))
    there = {path.stem for path in pages.SOURCE.iterdir() if path.suffix == ".py" or (path / "__init__.py").exists()}
    assert len(rooms) == len(set(rooms))
    assert set(rooms) == there - {"__init__", "__main__", "_moved"}
    assert len({len(line) for line in pages.drawing().splitlines()[1:-1]}) == 1


def test_files_that_are_named_are_there():
    named = re.findall(r"`((?:tests|docs|examples|benchmarks|[a-z]+)/[\w/]+\.(?:py|md))`", PAGE)
    assert len(named) > 5
    places = [PROJECT, PROJECT / "src" / "noisewise"]
    assert [name for name in named if not any((place / name).is_file() for place in places)] == []


# ------------------------------------------------------------------------------------------------------ a clip rule


@pytest.fixture
def smooth():
    return example("Adding a clipping rule").Smooth


def test_the_rule_is_its_formula_and_keeps_its_promise(smooth):
    norms = [0.0, 0.3, 2.0, 50.0]
    factors = smooth(0.7).factors(Samples(torch.tensor([norms], dtype=torch.float64)))[0].tolist()
    assert factors == pytest.approx([0.7 / math.hypot(norm, 0.7) for norm in norms])
    check_clip(smooth(0.7))


def test_sums_under_the_rule_are_those_of_the_definition(smooth):
    setup = PROBLEMS["linear-2d"].make()
    grads = unit_gradients(setup)
    units = len(next(iter(grads.values())))
    norms = torch.stack([torch.cat([grad[i].flatten() for grad in grads.values()]).norm() for i in range(units)])
    factors = [0.7 / math.hypot(float(norm), 0.7) for norm in norms]
    expected = {name: sum(f * g for f, g in zip(factors, grad, strict=True)) for name, grad in grads.items()}
    assert relative_error(reveal(clipped_sum(*setup, smooth(0.7)).grads), expected) < 1e-5


def test_in_the_list_the_rule_is_written_read_and_named(smooth, monkeypatch):
    monkeypatch.setitem(adaptive.RULES, "Smooth", smooth)
    monkeypatch.setitem(adaptive.KINDS, smooth.kind, smooth)
    mechanism = Mechanism(sampler=Poisson(100, 10), clip=smooth(0.7), steps=3, noise_multiplier=1.0)
    assert Mechanism.from_dict(json.loads(json.dumps(mechanism.to_dict()))) == mechanism
    assert adaptive.rule_for("smooth", 0.7) == smooth(0.7)


# --------------------------------------------------------------------------------------------------------- a repair


@pytest.fixture
def falling():
    return example("Adding a repair").FallingBound


def test_the_repair_lowers_the_bound_at_no_cost(falling):
    rows, plan = Data(*tiny.data()), tiny.mechanism()
    before = Recipe(
        model=tiny.model(),
        data=Splits(rows, rows, rows),
        loss_fn=tiny.loss_fn,
        mechanism=plan,
        optimizer=lambda parameters: torch.optim.SGD(parameters, lr=0.1),
    )
    after = repaired(before, falling(0.25, 0.5))
    bounds = [after.mechanism.clip_at(step).sensitivity for step in range(plan.steps)]
    whole, late = plan.clip.sensitivity, round(0.5 * plan.steps)
    assert bounds == pytest.approx([whole] * late + [whole / 4] * (plan.steps - late))
    assert after.lines() == before.lines()
    assert fit(after, insecure_seed=0, progress=False).ledger.releases == plan.steps


# --------------------------------------------------------------------------------------------------------- an audit


@pytest.fixture
def audit():
    return example("Adding an audit")


def certain(probability):
    """A model that gives class 0 this probability whatever it sees."""
    model = torch.nn.Linear(2, 2)
    torch.nn.init.zeros_(model.weight)
    model.bias.data = torch.tensor([math.log(probability / (1 - probability)), 0.0])
    return model


ROWS = Data(torch.zeros(40, 2), torch.arange(40) % 2, public=True)


def test_the_audit_measures_what_is_known(audit):
    result = audit.sureness(certain(0.8), ROWS, certain(0.6))
    values = {name: estimate.value for name, estimate in result.values.models.items()}
    assert values == pytest.approx({"private": 0.8, "twin": 0.6})
    assert result.sentences()[0].startswith("The private model is 80")
    assert [row[0] for row in result.tables()[0].rows] == ["private", "twin"]
    assert (result.status.status, audit.sureness(certain(0.8), ROWS).status.status) == ("not-private", "private")


def test_people_are_counted_not_rows(audit):
    people = Data(ROWS.x, ROWS.y, public=True, unit=torch.arange(40) // 4)
    assert audit.sureness(certain(0.8), people).headline["sureness"].n == 10


def test_the_result_is_saved_read_and_drawn(audit, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "audit", audit)  # types are looked up where they were written
    monkeypatch.setitem(audits.RESULTS, "sureness", audit.Sureness)
    result = audit.sureness(certain(0.8), ROWS)
    (tmp_path / "sureness.json").write_text(json.dumps(result.to_dict()))
    assert audits.read(tmp_path / "sureness.json") == result
    axes = Figure().subplots()
    assert result.figures()[0].draw(axes) is axes
    assert axes.has_data()


def test_the_audit_keeps_what_all_audits_promise(audit, monkeypatch):
    monkeypatch.setitem(sys.modules, "audit", audit)
    assert audit.AUDIT.asks == "Mean probability of the class that a classifier chooses."
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(100, 2, generator=generator)
    people = Data(x, (x[:, 0] > 0).long(), groups={"half": torch.arange(100) % 2})
    check_audit(audit.AUDIT, torch.nn.Linear(2, 2), people)


def test_fixed_rules_are_where_the_page_says():
    assert clipping.RULES.items() <= adaptive.RULES.items()

"""Several runs on one page."""

from __future__ import annotations

import re
import shutil

import pytest

from noisewise import report
from noisewise.errors import ConfigError
from noisewise.report.several import names_of
from noisewise.runs.files import read_json
from noisewise.runs.folder import RunFolder
from noisewise.runs.summary import read_ledger
from noisewise.wording import at_most
from noisewise.workflow.config import configure
from noisewise.workflow.execution import execute
from noisewise.workflow.opened import audit, open_run
from noisewise.workflow.released_score import release_score


@pytest.fixture(scope="module")
def runs(tmp_path_factory) -> list[RunFolder]:
    place = tmp_path_factory.mktemp("several")
    found = []
    for name, noise in (("loud", 4.0), ("<soft>", 2.0)):
        config = configure(data="digits", model="logistic", noise_multiplier=noise, steps=3, batch_size=64)
        found.append(execute(config, place / name, progress=False))
    audit(open_run(found[0].path), "disparity")
    return found


def test_every_run_has_a_row_cards_and_a_box_to_choose_it(runs):
    page = report.render([run.path for run in runs], by="Ada")
    assert page.count('type="checkbox"') == 2
    for place, run in enumerate(runs, start=1):
        epsilon = at_most(read_json(run.summary)["privacy"]["epsilon"])
        row = re.search(rf'<tr class="run-{place}">(.*?)</tr>', page, re.S)[1]
        assert f"<strong>{epsilon}</strong>" in row
        assert f"body:has(#show-{place}:not(:checked)) .run-{place} {{ display: none; }}" in page
        assert f'id="run-{place}-guarantee"' in page
    accuracy = read_json(runs[0].audit("disparity"))["headline"]["accuracy"]["value"]
    assert f"{100 * accuracy:.1f} %" in page
    assert "Not audited yet: &lt;soft&gt;" in page
    assert "Reported by Ada." in page
    assert "<script" not in page
    assert "<soft>" not in page
    ids = re.findall(r'\sid="([^"]+)"', page)
    assert len(ids) == len(set(ids))
    assert set(re.findall(r'href="#([^"]+)"', page)) <= set(ids)


def test_what_runs_on_the_same_data_spent_together_is_said(runs):
    page = report.render([run.path for run in runs])
    first, second = (read_ledger(run) for run in runs)
    total = first.composed(second).epsilon(1e-5)
    assert f"learns as much as ε = {at_most(total)} at δ = 10⁻⁵ allows" in page
    assert total > max(float(read_json(run.summary)["privacy"]["epsilon"]) for run in runs)


def test_seeds_that_hold_other_people_out_and_scores_are_added_up(runs, tmp_path):
    """The number of training people differs by seed: the runs still are on the same data."""
    copies = [RunFolder(shutil.copytree(run.path, tmp_path / str(place))) for place, run in enumerate(runs)]
    config = configure(
        data="digits", model="logistic", noise_multiplier=4.0, steps=3, batch_size=64, valid=100, twin=False
    )
    fewer = execute(config, tmp_path / "fewer", progress=False)
    counts = {read_json(run.summary)["data"]["n"] for run in (copies[1], fewer)}
    assert len(counts) == 2
    without = report.render([copies[1].path, fewer.path])
    total = read_ledger(copies[1]).composed(read_ledger(fewer)).epsilon(1e-5)
    assert f"{min(counts):,} to {max(counts):,} rows" in without
    assert f"learns as much as ε = {at_most(total)} at" in without
    score = release_score(fewer.path, 2.0)
    more = read_ledger(copies[1]).composed(read_ledger(fewer)).composed(score.ledger).epsilon(1e-5)
    assert f"learns as much as ε = {at_most(more)} at" in report.render([copies[1].path, fewer.path])
    alone = at_most(read_ledger(fewer).composed(score.ledger).epsilon(1e-5))
    assert f"with the model at most {alone}." in report.render(fewer.path)


def test_repairs_are_shown_by_name(runs, tmp_path):
    config = configure(
        data="digits", model="logistic", noise_multiplier=4.0, steps=3, batch_size=64, twin=False,
        repairs=("moving-average:decay=0.9", "random-sparsification:final=0.5"),
    )  # fmt: skip
    repaired = execute(config, tmp_path / "repaired", progress=False)
    page = report.render([runs[0].path, repaired.path])
    without, shown = (re.search(rf'<tr class="run-{place}">(.*?)</tr>', page, re.S)[1] for place in (1, 2))
    names = [repair["name"] for repair in read_json(repaired.summary)["repairs"]]
    assert set(names) == {"moving average", "random sparsification"}
    assert f"<br>{', '.join(names)}</span>" in shown
    assert "moving average" not in without


def test_names_tell_folders_apart(tmp_path):
    folders = [RunFolder(tmp_path / text) for text in ("a/x", "b/x", "b/y")]
    assert names_of(folders) == ["a/x", "b/x", "b/y"]
    assert names_of(folders[1:]) == ["x", "y"]


def test_a_page_of_several_runs_needs_a_place_and_each_run_once(runs, tmp_path):
    paths = [run.path for run in runs]
    with pytest.raises(ConfigError, match="--out"):
        report.write(paths)
    with pytest.raises(ConfigError, match="named twice"):
        report.render([paths[0], paths[0]])
    with pytest.raises(ConfigError, match="no run"):
        report.render([])
    assert report.write(paths, tmp_path / "both.html").read_text().count("<h1>") == 1


def test_regressions_show_their_errors(runs, tmp_path):
    import torch

    from noisewise.audits import disparity
    from noisewise.data import Data
    from noisewise.runs.files import write_json

    copy = RunFolder(shutil.copytree(runs[1].path, tmp_path / "copy"))
    x = torch.arange(60.0).unsqueeze(1) / 60
    with torch.random.fork_rng([]):
        torch.manual_seed(0)
        found = disparity(torch.nn.Linear(1, 1), Data(x, x[:, 0]), twin=torch.nn.Linear(1, 1))
    copy.audits.mkdir()
    write_json(copy.audit("disparity"), found.to_dict())
    page = report.render([runs[0].path, copy.path])
    assert f"<strong>{found.headline['mse'].value:.2f}</strong>" in page
    assert "cost in squared error" in page

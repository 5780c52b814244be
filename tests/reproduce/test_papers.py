"""All papers: every experiment runs in its quick tier, has claims that can be decided, and is found by its name."""

import json

import pytest

from noisewise.errors import ConfigError
from noisewise.reproduce.claims import judge
from noisewise.reproduce.experiment import config_from
from noisewise.reproduce.measured import Measured
from noisewise.reproduce.papers import PAPERS, find, names
from noisewise.reproduce.running import reproduce, result_path
from noisewise.reproduce.tiers import TIERS
from noisewise.reproduce.zhu2023.training import DENSE, SPARSE, arm

EVERY = [(paper, experiment) for paper in PAPERS.values() for experiment in paper.experiments]


@pytest.fixture(scope="module")
def out(tmp_path_factory):
    """One folder for all, so that equal runs are shared."""
    return tmp_path_factory.mktemp("quick")


@pytest.fixture(autouse=True)
def no_data(monkeypatch, tmp_path):
    """Quick tiers need no files: what they train on is bundled or made up."""
    monkeypatch.setenv("NOISEWISE_DATA", str(tmp_path))


@pytest.mark.parametrize("name", names())
def test_the_quick_tier_runs_and_decides_what_theory_fixes(name, out):
    (result,) = reproduce([name], out, tier="quick", progress=False)
    assert result.measured.seeds
    for judged in result.judged:
        assert judged.findings, judged.claim.name
        decided = judged.verdict in ("reproduced", "not-reproduced")
        assert decided == judged.claim.theory, judged.claim.name
    paper, experiment = find(name)
    path = result_path(out, paper.name, experiment.name, "quick")
    raw = json.loads(path.read_text())
    assert config_from(type(result.config), raw["config"]) == result.config
    assert Measured.from_dict(raw["measured"]).seeds == result.measured.seeds
    assert path.with_suffix(".png").stat().st_size > 5000


def test_names_are_unique_and_found():
    assert len(set(names())) == len(names()) == len(EVERY)
    for paper, experiment in EVERY:
        assert find(f"{paper.name}.{experiment.name}") == (paper, experiment)
    with pytest.raises(ConfigError, match=r"xu2026\.figure3"):
        find("xu2026.figure33")


def test_claims_have_names_of_their_own():
    for paper in PAPERS.values():
        claims = [claim.name for experiment in paper.experiments for claim in experiment.claims]
        claims += [unrun.name for unrun in paper.unrun]
        assert len(set(claims)) == len(claims)


@pytest.mark.parametrize(("paper", "experiment"), EVERY, ids=lambda thing: thing.name)
def test_every_experiment_has_three_tiers_and_says_how_long_they_take(paper, experiment):
    assert tuple(experiment.tiers) == tuple(experiment.minutes) == TIERS
    assert experiment.settings
    assert experiment.claims  # one that looks for a reason has controls only
    for tier in ("standard", "full"):  # enough seeds for a verdict
        assert experiment.tiers[tier].seeds >= 5 or all(claim.theory for claim in experiment.claims)


def test_runs_that_count_never_share_a_seed_with_those_that_choose():
    for _, experiment in EVERY:
        if len(experiment.stages) > 1:
            cells = experiment.stages[0](experiment.tiers["full"], Measured({}, {}))
            assert all(cell.tuning and cell.seed >= 1000 for cell in cells)
            assert all(cell.settings.get("tuning") for cell in cells)


@pytest.mark.parametrize("name", ["table2", "table2_cifar", "table2_hcnn", "table2_hcnn_cifar", "table2_svhn"])
@pytest.mark.parametrize(("tier", "verdict"), [("standard", "not-comparable"), ("full", "reproduced")])
def test_published_accuracies_are_compared_where_all_images_are_trained_on(name, tier, verdict):
    _, experiment = find(f"zhu2023.{name}")
    config = experiment.tiers[tier]
    arms = {
        arm(e, kind): {s: {"accuracy": 0.99} for s in range(5)} for e in config.epsilons for kind in (DENSE, SPARSE)
    }
    judged = {each.claim.name.rpartition(".")[2]: each for each in judge(experiment.claims, config, Measured(arms, {}))}
    assert {judged[kind].verdict for kind in ("dense", "sparse")} == {verdict}
    assert judged["gain1"].verdict == "not-reproduced"  # what is compared within our runs is judged in both


def test_no_torch_is_imported_to_list_papers():
    import subprocess
    import sys

    code = "import sys; from noisewise.reproduce.papers import names; names(); sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0

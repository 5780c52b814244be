"""The released mean of features: its noise, what one unit can do to it, its ledger, and that it happens once."""

from dataclasses import replace

import pytest
import torch
from scipy import stats
from torch.nn import Flatten, Sequential

from noisewise.accounting import Identity, Ledger
from noisewise.accounting.events import gaussian
from noisewise.data import Data, load
from noisewise.distributed import Team
from noisewise.errors import ConfigError, PrivacyError, RunError
from noisewise.models.heads import LENGTH, Centred
from noisewise.recipe import fit
from noisewise.recipes import RECIPES, Scattering, ready
from noisewise.recipes.centre import PURPOSE, _sum, centred, noised_centre, planned_ledger, with_centre, worth_it
from noisewise.runs.files import read_json
from noisewise.sampling import FullBatch
from noisewise.testing import check_model
from noisewise.workflow.config import plan
from noisewise.workflow.execution import execute
from noisewise.workflow.opened import open_run
from noisewise.workflow.verification import verified

ROWS = torch.nn.functional.normalize(torch.randn(50, 400, generator=torch.Generator().manual_seed(0)), dim=1) * LENGTH
DATA = Data(ROWS, torch.arange(50) % 2, classes=("a", "b"))


def test_the_noise_is_the_ledgers_times_the_length_of_a_row(monkeypatch):
    with monkeypatch.context() as same:  # a secret root, but the same in every run: the test below has no false alarms
        same.setattr("secrets.randbits", lambda bits: 2**255 + 1)
        centre, ledger = noised_centre(DATA, 3.0)
    noise = (centre - ROWS.mean(0)) * 50 / (3.0 * LENGTH)
    assert stats.kstest(noise.numpy(), "norm").pvalue > 1e-4
    assert ledger.lines == planned_ledger(50, 3.0, "add-remove", "row").lines
    assert (ledger.lines[0].purpose, ledger.lines[0].count, ledger.reproducible) == (PURPOSE, 1, False)
    assert not torch.equal(centre, noised_centre(DATA, 3.0)[0])


@pytest.mark.parametrize("row", [1e6 * ROWS[0], ROWS[0], torch.full((400,), torch.nan), torch.full((400,), torch.inf)])
def test_one_unit_moves_the_sum_by_at_most_the_length_of_a_row(row):
    changed = ROWS.clone()
    changed[7] = row
    without = _sum(replace(DATA, x=ROWS[torch.arange(50) != 7], y=DATA.y[1:]), 1)
    assert float((_sum(replace(DATA, x=changed), 1) - without).norm()) <= LENGTH * (1 + 1e-9)


def test_people_and_views_are_averaged_first():
    people = replace(DATA, unit=torch.zeros(50, dtype=torch.long))
    torch.testing.assert_close(_sum(people, 1), ROWS.double().mean(0))
    views = replace(DATA, x=ROWS.view(25, 2, 400), y=DATA.y[:25])
    torch.testing.assert_close(_sum(views, 2), ROWS.double().sum(0) / 2)
    assert noised_centre(people, 5.0)[1].unit == "person"


@pytest.mark.parametrize("noise", [0.0, -1.0, float("nan")])
def test_without_noise_nothing_is_released(noise):
    with pytest.raises(ConfigError, match="centre"):
        noised_centre(DATA, noise)


def test_a_recipe_pays_for_its_centre_and_its_model_has_it():
    parts = load("digits")
    given = {"angles": 2, "centre": 30.0}
    recipe = ready(parts, RECIPES["scattering-linear"], epsilon=4, delta=1e-4, **given)
    assert [line.purpose for line in recipe.lines()] == [PURPOSE, "gradient"]
    assert 3.9 < recipe.epsilon(1e-4) <= 4
    module = recipe.model[1]
    assert bool(module.centre.any())
    rows = module(recipe.data.test.x)
    torch.testing.assert_close(rows.norm(dim=1), torch.full((len(rows),), LENGTH))
    report = check_model(recipe.model, (recipe.data.test.x[:4], recipe.data.test.y[:4]), recipe.loss_fn)
    assert set(report.engines.values()) == {"ghost"}
    short = replace(recipe, mechanism=replace(recipe.mechanism, steps=2))
    trained = fit(short, delta=1e-4, progress=False)
    assert trained.ledger.epsilon(1e-4) == pytest.approx(short.epsilon(1e-4))


def test_it_happens_once_in_a_run_and_the_folder_holds_together(tmp_path):
    recipe = "scattering-linear:scales=1,angles=2,centre=20"
    planned = plan(data="digits", recipe=recipe, noise_multiplier=4.0, steps=3, twin=False)
    folder = execute(planned, tmp_path / "run", progress=False)
    released = open_run(folder.path).model[1].centre
    again = with_centre(planned.recipe, 20.0, folder.centre, views=1, secure=False, insecure_seed=None)
    assert torch.equal(again.model[1].centre.cpu(), released)
    assert [line.count for line in again.ledger.lines] == [1]
    assert {check.verdict for check in verified(folder.path, trials=1000)} == {"ok"}
    folder.centre.write_bytes(b"damaged")
    with pytest.raises(RunError, match="damaged"):
        with_centre(planned.recipe, 20.0, folder.centre, views=1, secure=False, insecure_seed=None)


def test_few_rows_are_not_centred_unless_asked():
    """Off by more than a fifth of a row's length it would do harm."""
    features = Scattering(angles=2, centre=20.0)
    assert worth_it(features, (1, 8, 8), 50_000)
    assert not worth_it(features, (1, 8, 8), 300)
    assert (
        plan(data="digits", recipe="scattering-linear:centre=20", noise_multiplier=4.0, steps=1).recipe.ledger
        is not None
    )


def test_maps_of_a_convolution_are_not_centred():
    with pytest.raises(ConfigError, match="cannot be centred"):
        RECIPES["scattering-cnn"].model(Scattering(centre=20.0))


def test_on_several_processes_it_is_refused_before_anything_is_written(tmp_path, monkeypatch):
    recipe = "scattering-linear:scales=1,angles=2,centre=20"
    planned = plan(data="digits", recipe=recipe, noise_multiplier=4.0, steps=3, twin=False)
    monkeypatch.setattr(Team, "several", True)
    with pytest.raises(ConfigError, match=r"centre=20 on several processes.*--recipe scattering-linear:centre=0"):
        execute(planned, tmp_path / "run", progress=False)
    assert not (tmp_path / "run").exists()


def test_what_else_was_released_before_stays_in_the_ledger():
    parts = load("digits")
    planned = ready(parts, "scattering-linear", epsilon=4, delta=1e-4, angles=2)
    earlier = Ledger(unit="row")
    earlier.record(gaussian(FullBatch(len(parts.train)), 0.5), "choice of a mask", 0)
    plan_of_centre = planned_ledger(len(parts.train), 30.0, "add-remove", "row")
    model = Sequential(Flatten(), Centred(ROWS.shape[1]))
    released = noised_centre(DATA, 30.0)[1]
    released.lines = plan_of_centre.lines
    for before, expected in ((plan_of_centre.composed(earlier), plan_of_centre), (earlier, None)):
        made = centred(replace(planned, model=model, ledger=before), torch.ones(ROWS.shape[1]), released, expected)
        assert [line.purpose for line in made.ledger.lines] == [PURPOSE, "choice of a mask"]
        assert made.ledger.epsilon(1e-4) > earlier.epsilon(1e-4)
        assert made.ledger.identity is released.identity
    before = replace(released, identity=None)
    twice = centred(replace(planned, model=model, ledger=before), torch.ones(ROWS.shape[1]), released)
    assert [line.purpose for line in twice.ledger.lines] == [PURPOSE, PURPOSE]  # a released one is no plan
    with pytest.raises(ConfigError, match="does not begin with"):
        centred(replace(planned, model=model, ledger=earlier), torch.ones(ROWS.shape[1]), released, plan_of_centre)
    of_others = replace(earlier, identity=Identity.of(b"other people", bytes(32)))
    with pytest.raises(PrivacyError, match="not the data that the ledger counts"):
        centred(replace(planned, model=model, ledger=of_others), torch.ones(ROWS.shape[1]), released)


def test_a_mask_from_private_records_makes_a_centred_run_not_private(tmp_path):
    given = {
        "data": "digits", "recipe": "scattering-linear:scales=1,angles=2,centre=20", "noise_multiplier": 4.0, "steps": 3,
        "repairs": ("magnitude-pruning:source=private-records,accept_not_private=true,share=0.3",), "twin": False,
    }  # fmt: skip
    planned = plan(**given)
    assert planned.status.status == "not-private"
    folder = execute(planned, tmp_path / "run", progress=False)
    opened = open_run(folder.path)
    assert opened.status.status == "not-private"
    assert read_json(folder.ledger)["lines"][0]["purpose"] == PURPOSE
    assert len(read_json(folder.ledger)["lines"]) == 3  # the centre, the mask, the gradients
    assert {check.verdict for check in verified(folder.path, trials=1000)} == {"ok"}


def test_the_start_of_a_run_sees_what_its_model_sees(tmp_path):
    recipe = "scattering-linear:scales=1,angles=2,centre=20"
    folder = execute(
        plan(data="digits", recipe=recipe, noise_multiplier=4.0, steps=3, twin=False), tmp_path / "run", progress=False
    )
    opened = open_run(folder.path)
    assert bool(opened.model[1].centre.any())
    assert torch.equal(opened.start[1].centre, opened.model[1].centre)
    assert not torch.equal(opened.start[2].weight, opened.model[2].weight)

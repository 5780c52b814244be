"""The plan on the terminal, before it is carried out."""

import pytest

from noisewise.accounting.accountants import pld_epsilon
from noisewise.cli.planned import print_plan
from noisewise.wording import at_most
from noisewise.workflow.config import plan


def words(capsys, *, runs=1, **given):
    print_plan(
        plan(**({"data": "digits", "noise_multiplier": 4.0, "steps": 3, "batch_size": 64, "model": "mlp"} | given)),
        runs,
    )
    return " ".join(capsys.readouterr().out.split())


def test_all_that_is_promised_is_said(capsys):
    said = words(capsys)
    for part in (
        "mlp on digits", "epsilon 0.0835. Whoever sees the model", "A strong guarantee",
        "delta 1e-05", "protects one row of 1,258 (add-remove)",
        "multiplier 4, bound 0.5 (flat clipping)", "3 of about 64 rows (poisson)", "twin included",
    ):  # fmt: skip
        assert part in said


def test_a_run_whose_noise_repeats_promises_nothing(capsys):
    said = words(capsys, insecure_seed=1)
    assert "status not-private: noise reproducible: do not publish" in said
    assert "epsilon ∞, nothing is promised; with secret noise it would be at most 0." in said
    assert "strong" not in said


def test_repairs_phases_and_several_runs_are_said(capsys):
    said = words(capsys, runs=3, repairs=("first-phase:epochs=0.05", "moving-average:decay=0.9"), twin=False)
    assert "in 2 phases" in said
    assert "repair moving-average:decay=0.9" in said
    assert "for each of 3 runs, which add up" in said
    assert "twin" not in said


@pytest.mark.parametrize("columns", ["80", "200"])
def test_it_fits_the_terminal(capsys, monkeypatch, columns):
    monkeypatch.setenv("COLUMNS", columns)
    print_plan(plan(data="digits", noise_multiplier=4.0, steps=3, batch_size=64, model="mlp"))
    assert max(map(len, capsys.readouterr().out.splitlines())) <= int(columns)


def test_each_of_several_runs_releases_a_centre_of_its_own(capsys):
    given = {"recipe": "scattering-linear:scales=1,angles=2,centre=2", "noise_multiplier": 4.0}
    planned = plan(data="digits", steps=3, batch_size=64, **given)
    print_plan(planned, runs=3)
    said = " ".join(capsys.readouterr().out.split())
    events = [(event, 3 * count) for event, count in planned.recipe.ledger.events()]
    gradients = [(line.event, 3 * line.count) for line in planned.recipe.lines()[1:]]
    together = pld_epsilon([*events, *gradients], planned.config.delta, "add-remove")
    assert f"epsilon {at_most(together)} for all 3" in said
    assert f"before feature mean: epsilon {at_most(planned.recipe.ledger.epsilon(planned.config.delta))}" in said


def test_a_plan_that_cannot_learn_is_said(capsys):
    assert "too few" not in words(capsys, noise_multiplier=None, epsilon=3.0, steps=50)
    hopeless = words(capsys, noise_multiplier=None, epsilon=0.001, steps=50)
    assert "too few a class needs about" in hopeless
    assert "there are 1,258 in all" in hopeless

"""What a run draws and shows in every step and phase: dropout, noise of ablations, padding, held-out rows, recorders."""

import copy

import pytest
import torch

from helpers import tiny
from noisewise.accounting import Ledger
from noisewise.data import Data, Splits
from noisewise.errors import ConfigError
from noisewise.recipe import Recipe, continued, fit
from noisewise.runtime import Runtime
from noisewise.sampling import FullBatch, Poisson
from noisewise.support import Fixed, encode
from noisewise.training.augmentation import Augment
from noisewise.training.state import State
from noisewise.training.step import private_step

SEED = 5


def norms(ledger):
    """Norms of all units in each of five steps that move nothing: they differ by what dropout drew alone."""
    plan, network, seen = tiny.mechanism(sampler=FullBatch(tiny.N)), tiny.model(dropout=0.5), []
    state, optimizer = State.start(plan, ledger, insecure_seed=SEED), tiny.sgd(network, lr=0.0)
    for _ in range(5):
        private_step(network, tiny.data(), tiny.loss_fn, optimizer, state, recorders=[seen.append])
    return [tuple(observation.norms.flatten().tolist()) for observation in seen]


def test_dropout_draws_anew_in_every_step_and_every_phase():
    ledger = Ledger("add-remove")
    first, second = norms(ledger), norms(ledger)
    assert len({*first, *second}) == 10
    assert norms(Ledger("add-remove")) == first


def test_noise_only_draws_other_noise_in_the_next_phase():
    start, ledger, moves = tiny.model(), Ledger("add-remove"), []
    for _ in range(2):
        network = copy.deepcopy(start)
        tiny.run(
            network,
            plan=tiny.mechanism(steps=1, noise_multiplier=1e6),
            ledger=ledger,
            ablation="noise-only",
            insecure_seed=SEED,
        )
        moves.append(tiny.weights(network) - tiny.weights(start))
    assert not torch.allclose(moves[0], moves[1], rtol=0.1)


@pytest.mark.parametrize("ablation", ["plain", "noise-only", "clip-only", "private"])
def test_padding_changes_no_kind_of_run(ablation):
    plan = tiny.mechanism(sampler=Poisson(tiny.N, tiny.BATCH, 20))
    runs = [
        tiny.run(plan=plan, runtime=runtime, ablation=ablation, insecure_seed=SEED).model
        for runtime in (None, Runtime(padded=True))
    ]
    torch.testing.assert_close(tiny.weights(runs[0]), tiny.weights(runs[1]), rtol=1e-4, atol=1e-4)


def test_valid_loss_is_that_of_all_rows_of_a_long_part():
    x, y = tiny.data(n=2500)
    x[1024:] *= 5
    network = tiny.model()
    history = tiny.run(network, valid=(x, y), plan=tiny.mechanism(steps=1)).history
    with torch.no_grad():
        assert history[-1]["valid_loss"] == pytest.approx(tiny.loss_fn(network, (x, y)).mean().item(), rel=1e-5)


@pytest.mark.parametrize("support", [Fixed({"0.bias": False}), Fixed({"0.weight": torch.arange(30).view(6, 5) > 9})])
def test_recorders_see_what_learns(support):
    seen = []
    tiny.run(plan=tiny.mechanism(support=support), recorders=[seen.append])
    for observation in seen:
        assert encode(observation.support) == encode(support.support)


def test_an_augmentation_that_loses_rows_at_times_is_refused_even_if_another_unit_has_more():
    """It passes the check on made-up rows, and is found out by the batch, whose number of rows is right."""

    def lossy(rows, generator):
        copies = torch.where(rows[0][:, 0] > 90, 2, torch.where(rows[0][:, 0] < -90, 0, 1))
        return tuple(part.repeat_interleave(copies, 0) for part in rows)

    x, y = tiny.data()
    x[3, 0], x[7, 0] = 99.0, -99.0
    with pytest.raises(ConfigError, match="augment returned 2 rows for 1 of one unit"):
        tiny.run(
            units=(x, y), plan=tiny.mechanism(sampler=FullBatch(tiny.N)), augment=Augment(lossy, 1), insecure_seed=SEED
        )


def test_recipes_that_go_on_from_one_model_share_nothing_with_it():
    units = Data(*tiny.data())
    recipe = Recipe(
        model=tiny.model(), data=Splits(units, units, units), loss_fn=tiny.loss_fn, mechanism=tiny.mechanism(),
        optimizer=torch.optim.Adam,
    )  # fmt: skip
    trained = fit(recipe, insecure_seed=SEED, progress=False)
    on = continued(recipe, trained)
    before = trained.ledger.to_dict()
    on.ledger.lines.clear()
    for parameter in on.model.parameters():
        parameter.data.zero_()
    assert trained.ledger.to_dict() == before
    assert all(bool(parameter.any()) for parameter in trained.model.parameters())


@pytest.mark.parametrize("open_phase", [0, 1, 2])
def test_one_open_phase_among_several_leaves_nothing_private(open_phase):
    ledger, network = Ledger("add-remove"), tiny.model()
    for number in range(3):
        tiny.run(
            network,
            plan=tiny.mechanism(steps=1),
            ledger=ledger,
            ablation="plain" if number == open_phase else "private",
        )
    last = tiny.run(network, plan=tiny.mechanism(steps=1), ledger=ledger)
    assert last.status.status == "not-private"
    assert "without privacy" in last.status.reason

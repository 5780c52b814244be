from __future__ import annotations

import json

import numpy as np
import pytest
import scipy.stats
import torch
from matplotlib.figure import Figure
from torch import Tensor, nn

from noisewise import Mechanism, Poisson
from noisewise.adaptive import Quantile
from noisewise.audits.attribution import RUNS, Attribution, attribution, split
from noisewise.audits.retrained import Training
from noisewise.clipping import Flat
from noisewise.data import Data
from noisewise.errors import ConfigError, DataError

ROWS, BATCH = 200, 40


def cross_entropy(model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
    return nn.functional.cross_entropy(model(batch[0]), batch[1], reduction="none")


def people(seed: int, rows: int = ROWS, **extra) -> Data:
    """Two features decide; a tenth of the people follows the opposite rule, which two more features can express."""
    generator = torch.Generator().manual_seed(seed)
    x, minority = torch.randn(rows, 2, generator=generator), (torch.arange(rows) % 10 == 0).long()
    y = ((x.sum(1) > 0).long() + minority) % 2
    features = torch.cat([x, x * minority.unsqueeze(1)], 1)
    names = {"rule": ("majority", "minority")}
    return Data(features, y, groups={"rule": minority}, group_names=names, classes=("no", "yes"), **extra)


DATA = (people(0), people(1, 400))


def zeros(seed: int = 0) -> nn.Module:
    model = nn.Linear(4, 2)
    nn.init.zeros_(model.weight)
    nn.init.zeros_(model.bias)
    return model


def sgd(parameters) -> torch.optim.Optimizer:
    return torch.optim.SGD(parameters, lr=2.0)


def plan(bound: float, sigma: float, steps: int = 25) -> Mechanism:
    return Mechanism(sampler=Poisson(ROWS, BATCH), clip=Flat(bound), noise_multiplier=sigma, steps=steps)


def run(bound: float, sigma: float, seeds=(0, 1, 2), **settings) -> Attribution:
    given = {"loss_fn": cross_entropy, "optimizer": sgd, "seeds": seeds, **settings}
    return attribution(zeros, DATA, mechanism=plan(bound, sigma), **given)


def test_the_split_is_that_of_a_table_by_hand() -> None:
    """Two seeds; first: 0.9, 0.7, 0.8, 0.5, so clipping takes 0.2, noise 0.1, both 0.4, of which 0.1 is neither's."""
    found = split({"plain": [0.9, 0.8], "clip-only": [0.7, 0.8], "noise-only": [0.8, 0.9], "private": [0.5, 0.8]})
    expected = {"clipping": [0.2, 0.0], "noise": [0.1, -0.1], "interaction": [0.1, 0.1], "total": [0.4, 0.0]}
    assert {name: values.tolist() for name, values in found.items()} == {
        name: pytest.approx(values, abs=1e-12) for name, values in expected.items()
    }


def test_runs_share_start_batches_and_noise() -> None:
    """Without noise and clipping all four are one run; with noise that alone and both are; another seed is another run."""

    def weights(name: str, sigma: float, seed: int = 3) -> Tensor:
        mechanism = plan(50.0, sigma, 6)
        model = Training(zeros(), *DATA, cross_entropy, mechanism, sgd, None, None, "loss").trained(name, seed)
        return torch.cat([p.detach().flatten() for p in model.parameters()])

    quiet, noisy = ({name: weights(name, sigma) for name in RUNS} for sigma in (0.0, 0.01))
    for name in RUNS:
        torch.testing.assert_close(quiet[name], quiet["plain"], atol=1e-6, rtol=1e-5)
    torch.testing.assert_close(noisy["private"], noisy["noise-only"], atol=1e-5, rtol=1e-5)
    assert not torch.allclose(noisy["noise-only"], noisy["plain"], atol=1e-3)
    assert not torch.allclose(weights("plain", 0.0, seed=4), quiet["plain"], atol=1e-3)


def test_a_huge_bound_without_noise_takes_nothing() -> None:
    result = run(1e6, 0.0)
    for part in [result.everyone, *result.parts("class"), *result.parts("rule")]:
        assert all(e.value == 0 for e in part.effects.values()), part.name
        assert not any(e.excludes_zero for e in part.effects.values())
    assert any("none of the three can be told from chance" in sentence for sentence in result.sentences())


def test_a_tiny_bound_is_clippings_fault_and_the_minority_pays() -> None:
    result = run(0.001, 0.0)
    minority = result.parts("rule")[1]
    assert (minority.name, minority.n) == ("minority", 40)
    assert minority.effects["clipping"].low > 0.2
    for part in (result.everyone, minority):
        assert part.effects["noise"].value == 0
        assert part.effects["interaction"].value == pytest.approx(0, abs=1e-12)
        assert part.effects["total"].value == pytest.approx(part.effects["clipping"].value)
    found = result.extremes("rule")
    assert found.most.name == "minority"
    assert found.most.total.low > 0
    assert result.everyone.effects["clipping"].excludes_zero
    assert any("rule minority pays most" in sentence for sentence in result.sentences())


def test_huge_noise_under_a_large_bound_is_the_noises_fault() -> None:
    result = run(50.0, 20.0)
    everyone = result.everyone.effects
    assert everyone["clipping"].value == 0
    assert everyone["noise"].low > 0.05
    assert everyone["total"].value == pytest.approx(everyone["noise"].value)
    assert any(sentence.startswith("Over 3 seeds, noise can be told") for sentence in result.sentences())


@pytest.fixture(scope="module")
def mixed() -> Attribution:
    return run(0.05, 3.0, seeds=(5, 6, 7, 8))


def test_intervals_are_scipys_over_seeds(mixed: Attribution) -> None:
    for part in [mixed.everyone, *mixed.parts("class"), *mixed.parts("rule")]:
        runs = {name: np.array(values) for name, values in part.runs.items()}
        theirs = scipy.stats.ttest_rel(runs["plain"], runs["private"]).confidence_interval(0.95)
        assert (part.effects["total"].low, part.effects["total"].high) == pytest.approx((theirs.low, theirs.high))
        interaction = runs["clip-only"] + runs["noise-only"] - runs["plain"] - runs["private"]
        theirs = scipy.stats.ttest_1samp(interaction, 0).confidence_interval(0.95)
        found = part.effects["interaction"]
        assert (found.low, found.high, found.n) == pytest.approx((theirs.low, theirs.high, 4), abs=1e-12)
        parts = sum(part.effects[name].value for name in ("clipping", "noise", "interaction"))
        assert parts == pytest.approx(part.effects["total"].value)
    assert set(mixed.headline) == {"total", "clipping", "noise", "interaction"}
    counts = [part.n for part in mixed.parts("class")]
    for name in RUNS:
        whole = np.average([part.runs[name] for part in mixed.parts("class")], axis=0, weights=counts)
        assert whole == pytest.approx(mixed.everyone.runs[name])


def test_a_result_is_saved_and_drawn(mixed: Attribution) -> None:
    again = Attribution.from_dict(json.loads(json.dumps(mixed.to_dict())))
    assert again == mixed
    assert again.status.status == "not-private"
    assert again.partitions == ["class", "rule"]
    for figure in again.figures():
        axes = figure.draw(Figure().add_subplot())
        assert len(axes.patches) == 9  # three bars for each of two parts and everyone
        assert [text.get_text() for text in axes.get_legend().get_texts()] == ["clipping", "noise", "interaction"]
        assert axes.get_yticklabels()[-1].get_text() == "everyone"
    assert [row[0] for row in again.tables()[0].rows] == [
        "everyone", "class no", "class yes", "rule majority", "rule minority",
    ]  # fmt: skip
    assert all(len(row) == len(table.columns) for table in again.tables() for row in table.rows)


def test_a_given_model_is_left_as_it_was_and_so_is_the_random_state() -> None:
    model, state = zeros(), torch.get_rng_state()
    result = attribution(
        model, DATA, loss_fn=cross_entropy, mechanism=plan(1.0, 1.0, 2), optimizer=sgd, seeds=(0, 1), measure="loss"
    )
    assert not model.weight.any()
    assert model.weight.grad is None
    assert torch.equal(torch.get_rng_state(), state)
    assert result.settings["measure"] == "loss"
    training = Training(model, *DATA, cross_entropy, plan(1.0, 1.0, 2), sgd, None, None, "loss")
    expected = training.trained("private", 1)
    with torch.no_grad():
        loss = nn.functional.cross_entropy(expected(DATA[1].x).double(), DATA[1].y)
    assert result.everyone.runs["private"][1] == pytest.approx(-loss.item(), rel=1e-6)


def test_a_function_starts_each_seed_anew_and_the_scheduler_is_used() -> None:
    made = []

    def start(seed: int) -> nn.Module:
        made.append(nn.Linear(4, 2))
        return made[-1]

    stops: list[object] = []

    def scheduler(optimizer: torch.optim.Optimizer) -> torch.optim.lr_scheduler.LRScheduler:
        stops.append(torch.optim.lr_scheduler.StepLR(optimizer, 1))
        return stops[-1]

    for _ in range(2):
        attribution(
            start, DATA, loss_fn=cross_entropy, mechanism=plan(1.0, 1.0, 2), optimizer=sgd, seeds=(0, 1),
            scheduler=scheduler,
        )  # fmt: skip
    assert torch.equal(made[0].weight, made[2].weight)
    assert not torch.equal(made[0].weight, made[1].weight)
    assert len(stops) == 16
    assert all(stop.last_epoch == 2 for stop in stops)


def test_people_are_counted_not_rows() -> None:
    test = people(1, 400, unit=torch.arange(400) // 2)
    result = attribution(
        zeros, (DATA[0], test), mechanism=plan(1.0, 0.0, steps=2), loss_fn=cross_entropy, optimizer=sgd, seeds=(0, 1)
    )
    assert result.everyone.n == 200
    assert {part.name: part.n for part in result.parts("rule")} == {"majority": 200, "minority": 40}


def test_a_regression_is_split_by_its_loss() -> None:
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(ROWS, 4, generator=generator)
    data = Data(x, x.sum(1), groups={"half": torch.arange(ROWS) % 2})

    def squared(model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
        return (model(batch[0])[:, 0] - batch[1]) ** 2

    def small(parameters) -> torch.optim.Optimizer:
        return torch.optim.SGD(parameters, lr=0.05)

    settings = {"loss_fn": squared, "mechanism": plan(0.01, 0.0), "optimizer": small, "seeds": (0, 1)}
    result = attribution(zeros, (data, data), **settings)
    assert result.partitions == ["half"]
    assert result.everyone.effects["clipping"].low > 1
    assert "of mean loss from everyone" in result.sentences()[0]
    assert result.plot(Figure().add_subplot()).get_xlabel() == "mean loss that it takes (below 0: gives), by half"
    with pytest.raises(ConfigError, match="real-valued"):
        attribution(zeros, (data, data), **settings, measure="accuracy")


def test_a_bar_is_shown_where_asked_for(capsys) -> None:
    attribution(
        zeros, DATA, loss_fn=cross_entropy, mechanism=plan(1.0, 1.0, 1), optimizer=sgd, seeds=(0, 1), progress=True
    )
    assert "retrainings" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"seeds": (1,)}, "at least two different"),
        ({"seeds": (1, 1)}, "at least two different"),
        ({"seeds": (1, -2)}, "at least two different"),
        ({"measure": "auc"}, "must be 'accuracy' or 'loss'"),
        ({"optimizer": torch.optim.SGD([nn.Parameter(torch.zeros(1))], lr=1.0)}, "each run needs a new one"),
    ],
)
def test_impossible_settings_are_refused(settings: dict, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        run(1.0, 1.0, **settings)


def test_it_needs_a_train_and_a_test_part() -> None:
    settings = {"loss_fn": cross_entropy, "mechanism": plan(1.0, 1.0), "optimizer": sgd}
    for wrong in (DATA[0], DATA[:1], (DATA[0], DATA[1].x)):
        with pytest.raises(DataError, match="give \\(train, test\\)"):
            attribution(zeros, wrong, **settings)
    with pytest.raises(DataError, match="no rows"):
        attribution(zeros, (DATA[0], DATA[1].take(torch.arange(0))), **settings)
    with pytest.raises(ConfigError, match="must be an nn"):
        attribution(lambda seed: None, DATA, **settings)


def test_a_bound_that_follows_the_clipping_cannot_be_taken_apart() -> None:
    moving = Mechanism(sampler=Poisson(ROWS, BATCH), clip=Quantile(), noise_multiplier=1.0, steps=2)
    with pytest.raises(ConfigError, match="another bound"):
        attribution(zeros, DATA, loss_fn=cross_entropy, mechanism=moving, optimizer=sgd)

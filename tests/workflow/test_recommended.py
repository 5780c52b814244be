"""Settings that need no search: valid everywhere, growing where there is more to learn from, and good enough to converge."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import FrozenInstanceError, fields
from itertools import pairwise, product

import pytest
import torch

from noisewise.accounting.defaults import default_delta
from noisewise.adaptive import rule_for
from noisewise.data import Data
from noisewise.errors import ConfigError
from noisewise.losses import loss_for, outputs_for
from noisewise.mechanism import Mechanism
from noisewise.models import build
from noisewise.models.table import LONGEST
from noisewise.sampling import Poisson
from noisewise.training.loop import train
from noisewise.workflow.config import Config
from noisewise.workflow.recommended import LARGEST_BATCH, MOST_KNOTS, MOST_STEPS, Settings, recommended

ROWS = (50, 51, 200, 442, 1_000, 5_000, 20_640, 48_842, 1_000_000, 100_000_000)
EPSILONS = (0.1, 0.5, 1, 3.0, 8.0, 20.0)
FEATURES = (1, 10, 100, 784, 10_000)
TASKS = (("classification", 2), ("classification", 10), ("regression", 1))


@pytest.mark.parametrize(("task", "outputs"), TASKS)
def test_every_value_is_one_a_config_and_a_mechanism_take(task, outputs) -> None:
    for n, width, epsilon in product(ROWS, FEATURES, EPSILONS):
        settings = recommended(n, width, epsilon, task, outputs)
        config = Config(
            data="table", valid=0, seed=0, epsilon=float(epsilon), delta=default_delta(n), adjacency="add-remove",
            sampler="poisson", twin=True, engine="auto", **settings.config(),
        )  # fmt: skip
        clip = rule_for(config.clip, config.bound, config.screen)
        mechanism = Mechanism(sampler=Poisson(n, settings.batch_size), clip=clip, steps=settings.steps)
        assert mechanism.steps <= MOST_STEPS
        assert settings.batch_size == min(n // 4, LARGEST_BATCH)
        assert 0 <= settings.options["knots"] <= MOST_KNOTS


def test_its_names_are_those_of_a_config_and_its_options_build_the_model() -> None:
    settings = recommended(1_000, 7, 1.0)
    assert set(settings.config()) <= {field.name for field in fields(Config)}
    assert set(settings.config()) | {"options"} == {field.name for field in fields(Settings)}
    assert build(settings.model, (7,), 2, 0, **settings.options)(torch.zeros(3, 7)).shape == (3, 2)
    with pytest.raises(FrozenInstanceError):
        settings.lr = 1.0


def travel(settings: Settings) -> float:
    """How far weights can go, if every gradient has the length of the bound."""
    return settings.lr * settings.steps * settings.bound


@pytest.mark.parametrize(("task", "outputs"), TASKS)
@pytest.mark.parametrize("width", FEATURES)
def test_more_rows_or_a_larger_epsilon_never_make_the_model_smaller_or_the_way_shorter(task, outputs, width) -> None:
    by_rows = [recommended(n, width, 1.0, task, outputs) for n in ROWS]
    by_epsilon = [recommended(2_000, width, epsilon, task, outputs) for epsilon in EPSILONS]
    for less, more in (*pairwise(by_rows), *pairwise(by_epsilon)):
        for option in ("knots", "hidden"):
            assert less.options[option] <= more.options[option]
        assert less.steps <= more.steps
        assert less.batch_size <= more.batch_size
        if less.options["hidden"] == more.options["hidden"]:
            assert travel(less) <= 1.01 * travel(more)  # to rounding
            assert less.bound <= more.bound


@pytest.mark.parametrize(("task", "outputs"), TASKS)
def test_more_columns_never_make_the_map_finer(task, outputs) -> None:
    for less, more in pairwise(recommended(5_000, width, 3.0, task, outputs) for width in FEATURES):
        for option in ("knots", "hidden"):
            assert less.options[option] >= more.options[option]


def test_the_twin_of_a_regression_is_stable_whatever_the_rows() -> None:
    """Gradient descent with momentum m diverges from lr curvature = 2 (1 + m) on; rows and their bias bound the curvature."""
    for n, epsilon in product(ROWS, EPSILONS):
        settings = recommended(n, 10, epsilon, "regression", 1)
        assert settings.twin_lr * 2 * (LONGEST**2 + 1) < 2 * (1 + settings.momentum)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"n": 0}, "n=0: must be a whole number"),
        ({"n": 10.0}, "n=10.0"),
        ({"features": 0}, "features=0"),
        ({"outputs": True}, "outputs=True"),
        ({"epsilon": 0}, "epsilon=0: must be a number above 0"),
        ({"epsilon": float("inf")}, "epsilon=inf"),
        ({"epsilon": float("nan")}, "epsilon=nan"),
        ({"epsilon": True}, "epsilon=True"),
        ({"task": "ranking"}, "task='ranking': must be one of classification, regression"),
    ],
)
def test_what_cannot_be_is_refused(changes, message) -> None:
    with pytest.raises(ConfigError, match=message):
        recommended(**{"n": 100, "features": 5, "epsilon": 1.0, **changes})


def test_torch_is_not_imported() -> None:
    code = "import sys, noisewise.workflow.recommended as r; r.recommended(100, 5, 1.0); print('torch' in sys.modules)"
    answer = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert answer.stdout.strip() == "False"


# -------------------------------------------------------------------------------------------------- trained


def made_up(rows: int, task: str, seed: int = 0, width: int = 8) -> Data:
    """A table with numbers of which one bends, and a category of three values."""
    draw = torch.Generator().manual_seed(seed)
    numbers = torch.rand(rows, width - 3, generator=draw) * 2 - 1
    kind = torch.randint(0, 3, (rows,), generator=draw)
    x = torch.cat([numbers, torch.nn.functional.one_hot(kind, 3).float()], 1)
    value = 0.5 * numbers[:, 0] + 0.6 * numbers[:, 1].abs() - 0.3 + 0.3 * (kind == 1) - 0.2 * (kind == 2)
    value += 0.05 * torch.randn(rows, generator=draw)
    return Data(x, value.clamp(-1, 1)) if task == "regression" else Data(x, (value > 0).long(), classes=("no", "yes"))


def score(data: Data, held: Data, epsilon: float, *, twin: bool) -> float:
    """Accuracy or share of explained variance after training by the recommended settings."""
    n, outputs = len(data), outputs_for(data)
    settings = recommended(n, data.x.shape[1], epsilon, data.task, outputs)
    clip = rule_for(settings.clip, settings.bound, None)
    plan = Mechanism(sampler=Poisson(n, settings.batch_size), clip=clip, steps=settings.steps)
    mechanism = plan.calibrated(epsilon, default_delta(n))
    model = build(settings.model, (data.x.shape[1],), outputs, 0, **settings.options)
    lr = settings.twin_lr if twin else settings.lr
    trained = train(
        model, data, loss_for(data), mechanism, torch.optim.SGD(model.parameters(), lr=lr, momentum=settings.momentum),
        ema=settings.ema, ablation="plain" if twin else "private", insecure_seed=1, progress=False,
    )  # fmt: skip
    model.load_state_dict(model.state_dict() | trained.averaged)
    with torch.no_grad():
        out = model(held.x)
    if data.task == "classification":
        return float((out.argmax(1) == held.y).float().mean())
    return float(1 - (out[:, 0] - held.y).square().mean() / held.y.var())


@pytest.mark.parametrize(
    ("task", "rows", "epsilon", "private", "plain"),
    [
        ("classification", 4_000, 3.0, 0.92, 0.93),  # with a hidden layer
        ("classification", 400, 3.0, 0.75, 0.85),
        ("regression", 2_000, 1.0, 0.9, 0.95),
        ("regression", 200, 3.0, 0.5, 0.8),
    ],
)
def test_tables_of_any_size_are_learned_and_the_twin_is_no_worse(task, rows, epsilon, private, plain) -> None:
    data, held = made_up(rows, task), made_up(5_000, task, seed=1)
    reached, without = score(data, held, epsilon, twin=False), score(data, held, epsilon, twin=True)
    assert reached > private
    assert without > max(plain, reached - 0.01)


@pytest.mark.parametrize("task", ["classification", "regression"])
def test_columns_that_say_the_same_do_not_make_steps_unstable(task) -> None:
    """One number a hundred times: rows are shortened, else such steps would diverge."""
    data, held = made_up(1_000, task), made_up(2_000, task, seed=1)
    wide = [Data(part.x[:, :1].repeat(1, 100), part.y, classes=part.classes) for part in (data, held)]
    chance = 0.5 if task == "classification" else 0.0
    for twin in (False, True):
        assert score(*wide, 3.0, twin=twin) > chance + 0.15

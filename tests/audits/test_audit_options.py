"""Every option of every audit acts: a table of options and proofs, checked to be complete by the signatures.

Two calls that differ in one option alone must give different results (what a result merely repeats of its settings does not
count), and another level must move every interval. How right each option is, the audit's own tests say.
"""

import contextlib
import copy
import inspect
import io
from collections.abc import Mapping
from dataclasses import is_dataclass
from functools import cache

import numpy as np
import pytest

from helpers.audit_cases import CASES, ROWS, New, Refused, loss_fn, network, people, plan, rng, shadows, twice
from helpers.notes import Notes
from noisewise import audits
from noisewise.errors import ConfigError, DataError, RunError
from noisewise.estimates.estimate import Estimate
from noisewise.sampling import FullBatch

# options that act in other circumstances than those of the table: settings of both calls
ELSEWHERE = {
    (audits.disparity, "reference"): ({"data": people(0, 240)}, {"reference": (network(2),)}),
    (audits.engine_epsilon, "model"): ({"model": network(), "data": people(), "trials": 100}, {"model": network(1)}),
    (audits.engine_epsilon, "data"): ({"model": network(), "data": people(), "trials": 100}, {"data": people(2)}),
    (audits.engine_epsilon, "units"): ({"model": network(), "data": people(), "trials": 100}, {"units": 3}),
    (audits.one_run, "level"): (
        {"mechanism": plan(noise_multiplier=0.01, sampler=FullBatch(ROWS)), "canary": "gradient"}, {"level": 0.6},
    ),
}  # fmt: skip


def plain(value, path=()):
    """(where, what) of everything in a result; of estimates the interval, not the level that they repeat."""
    if isinstance(value, Estimate):
        yield path, (value.value, value.low, value.high, value.n)
    elif is_dataclass(value):
        yield from plain(vars(value), path)
    elif isinstance(value, Mapping):
        for key, item in value.items():
            yield from plain(item, (*path, key))
    elif isinstance(value, list | tuple | np.ndarray):
        for place, item in enumerate(value):
            yield from plain(item, (*path, place))
    else:
        yield path, str(value)


def called(function, **how):
    """What a call gives (without the settings that a result repeats) and shows."""
    given, shown = (
        {name: value.make() if isinstance(value, New) else value for name, value in how.items()},
        io.StringIO(),
    )
    with contextlib.redirect_stderr(shown):
        result = function(**given)
    return dict(plain({"headline": result.headline, "values": result.values, "status": vars(result.status)})), shown


@cache
def usual(function):
    return called(function, **CASES[function].base)


def pair(function, option):
    """The settings of two calls that differ in the option alone."""
    found = CASES[function]
    if (function, option) in ELSEWHERE:
        common, other = ELSEWHERE[function, option]
        return {**found.base, **common}, {**found.base, **common, **other}
    other = {**found.base, option: found.others[option]}
    if function in (audits.clipping_bias, audits.ntk) and option == "clip":  # instead of the mechanism
        other["mechanism"] = None
    return found.base, other


@pytest.mark.parametrize(
    ("function", "option"),
    [*((function, option) for function, found in CASES.items() for option in found.others), *ELSEWHERE],
    ids=lambda value: value if isinstance(value, str) else value.__name__,
)
def test_every_option_of_an_audit_acts(function, option):
    one, other = pair(function, option)
    if isinstance(other[option], Refused):
        with pytest.raises(ConfigError, match=other[option].words):
            called(function, **{**other, option: other[option].value})
        return
    first, _ = usual(function) if one is CASES[function].base else called(function, **one)
    second, shown = called(function, **other)
    if option in CASES[function].unused:
        assert first == second
        assert "not used" in function.__doc__
    elif option == "progress":
        assert first == second
        assert shown.getvalue()
    elif option == "level":
        assert intervals_that_stay(first, second) == EXACT.get(function, set())
    else:
        assert first != second, f"{option} changes nothing"


def intervals_that_stay(first, second):
    """Where an interval of some length is the same at another level, unless it is all that a share can be."""
    return {
        path
        for path, value in first.items()
        if isinstance(value, tuple) and value[1] < value[2] and value[1:3] == second[path][1:3] != (0, 1)
    }


@pytest.mark.parametrize("function", [one for one in CASES if "level" in inspect.signature(one).parameters])
def test_a_level_that_is_no_confidence_is_refused(function):
    for level in (95, 1.0, 0.0, -0.5, float("nan"), True, "0.95", None):
        with pytest.raises(ConfigError, match=r"level=.*between 0 and 1") as refused:
            called(function, **CASES[function].base, **{"level": level})
        assert ("0.95 is 95 %" in str(refused.value)) == (level == 95)


EXACT = {audits.convergence: {("headline", "bound")}}  # without end at every level


def test_the_engine_is_asked_with_the_given_loss():
    seen = Notes()

    def counted(model, batch):
        seen.append(len(batch[0]))
        return loss_fn(model, batch)

    audits.engine_epsilon(network(), people(), loss_fn=counted, trials=100, generator=rng())
    assert len(seen) >= 100


def test_delta_is_that_of_the_measured_epsilon_too():
    found = [
        audits.engine_epsilon(mechanism=plan(noise_multiplier=1.0), trials=1000, delta=delta, generator=rng()).headline
        for delta in (1e-5, 1e-2)
    ]
    for name in ("empirical epsilon", "claimed epsilon"):
        assert found[0][name].value > found[1][name].value


@pytest.mark.parametrize("bins", [4, 15])
def test_the_diagram_has_as_many_bins_as_the_error(bins):
    found = audits.calibration(network(), people(), twin=network(1), bins=bins, resamples=10)
    assert [len(found.bins(which)) for which in found.models] == [bins, bins]
    shares = [abs(b.confidence - b.accuracy.value) * b.n / ROWS for b in found.bins() if b.accuracy]
    hidden = sum(b.n for b in found.bins() if b.accuracy is None) / ROWS
    assert sum(shares) <= found.scores("ECE")["private"].value + 1e-9 <= sum(shares) + hidden + 2e-9


@pytest.mark.parametrize("score", ["ECE", "adaptive ECE"])
def test_intervals_of_calibration_errors_are_of_as_many_resamples_as_asked_for(score):
    ends = {
        audits.calibration(network(), people(), resamples=count, generator=rng()).scores(score)["private"].high
        for count in (20, 30, 40)
    }
    assert len(ends) == 3


def test_a_run_with_canaries_is_trained_by_the_given_settings():
    seen = {}

    def trainer(model, data, loss, mechanism, optimizer, **settings):
        seen.update(settings, mechanism=mechanism, lr=optimizer.param_groups[0]["lr"])

    how = {"mechanism": plan(), "canaries": 40, "delta": 1e-3, "optimizer": twice, "progress": True}
    audits.one_run(network(), people(), trainer=trainer, generator=rng(), **how)
    assert (seen["delta"], seen["progress"], seen["mechanism"], seen["lr"]) == (1e-3, True, plan(), 1.0)
    assert type(seen["insecure_seed"]) is int
    audits.one_run(network(), people(), trainer=trainer, **how)
    assert seen["insecure_seed"] is None  # noise that is not reproducible, unless a generator is given


# --- attacks with shadow models

INSIDE = np.arange(400) % 2 == 0


def attack(function, folder, **how):
    settings = {"model": network(), "data": people(0, 400), "inside": INSIDE, "generator": New(rng), **how}
    settings["shadows"] = shadows(folder / "own") if settings.get("shadows") is None else settings["shadows"]
    return called(function, **settings)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("shadows")


def other_shadows(folder):
    return shadows(folder / "other", start=1)


SHADOWED = {
    "model": lambda folder: {"model": network(1)},
    "inside": lambda folder: {"inside": ~INSIDE},
    "shadows": lambda folder: {"shadows": other_shadows(folder)},
    "twin": lambda folder: {"twin": network(1)},
    "generator": lambda folder: {"generator": New(lambda: rng(1))},
    "level": lambda folder: {"level": 0.6},
    "progress": lambda folder: {"progress": True},
}
LIRA = {**SHADOWED, "online": lambda folder: {"online": False}}
RMIA = {
    **SHADOWED,
    "population": lambda folder: {"population": people(5)},
    "a": lambda folder: {"a": 0.9},
    "gamma": lambda folder: {"gamma": 1.2},
}


@pytest.mark.parametrize(
    ("function", "option"),
    [*((audits.lira, option) for option in LIRA), *((audits.rmia, option) for option in RMIA)],
    ids=lambda value: value if isinstance(value, str) else value.__name__,
)
def test_every_option_of_an_attack_with_shadows_acts(function, option, folder):
    population = {} if function is audits.lira else {"population": people(4), "gamma": 1.05}
    other = (LIRA if function is audits.lira else RMIA)[option](folder)
    (first, _), (second, shown) = (
        attack(function, folder, **population),
        attack(function, folder, **{**population, **other}),
    )
    if option == "progress":
        assert first == second
        assert shown.getvalue()
    elif option == "level":
        assert intervals_that_stay(first, second) == set()
    else:
        assert first != second, f"{option} changes nothing"


@pytest.mark.parametrize("function", [audits.lira, audits.rmia], ids=lambda function: function.__name__)
def test_a_twin_is_attacked_with_its_own_shadows(function, folder):
    population = {} if function is audits.lira else {"population": people(4), "gamma": 1.05}
    shared, own = (
        attack(function, folder, twin=network(1), twin_shadows=chosen, **population)[0]
        for chosen in (None, other_shadows(folder))
    )
    assert shared != own
    alone, _ = attack(function, folder, **population)
    private = [path for path in alone if "private" in path]
    assert private
    assert all(alone[path] == own[path] for path in private if path in own)


@pytest.mark.parametrize("function", [audits.lira, audits.rmia])
def test_percentages_are_no_level_of_an_attack(function, folder):
    population = {} if function is audits.lira else {"population": people(4), "gamma": 1.05}
    with pytest.raises(ConfigError, match=r"level=95.*0\.95 is 95 %"):
        attack(function, folder, level=95, **population)


def test_rows_that_are_not_the_shadows_are_refused(folder):
    with pytest.raises(DataError, match="not the"):
        attack(audits.lira, folder, data=people(2, 400))


def test_every_option_of_training_shadows_acts(tmp_path, capsys):
    seen = []

    def fit(data, seed):
        seen.append((len(data), seed))
        return copy.deepcopy(network(seed % 3))

    def trained(name, **how):
        seen.clear()
        settings = {"fit": fit, "data": people(), "folder": tmp_path / name, "recipe": {"a": 1}, "count": 4, **how}
        return audits.train_shadows(**settings), [*seen]

    base, calls = trained("base")
    assert [size for size, _ in calls] == base.inside.sum(1).tolist()
    assert len({seed for _, seed in calls}) == 4
    other, others = trained("seed", seed=1)
    assert not np.array_equal(base.inside, other.inside)
    assert {seed for _, seed in calls}.isdisjoint(seed for _, seed in others)
    assert len(trained("count", count=6)[0]) == 6
    assert trained("data", data=people(2))[0].data != base.data
    assert trained("base")[1] == []  # the folder keeps them
    with pytest.raises(RunError, match="recipe"):
        trained("base", recipe={"a": 2})
    capsys.readouterr()
    trained("progress", progress=True)
    assert capsys.readouterr().err


# --- complete


def options_of(function):
    return set(inspect.signature(function).parameters)


def shown_of(function):
    return {*CASES[function].others, *(option for other, option in ELSEWHERE if other is function)}


def test_no_option_is_without_a_proof():
    """Of every public audit; `read` only takes a path, and results are no audits."""
    shown = {function: shown_of(function) for function in CASES}
    shown[audits.engine_epsilon].add("loss_fn")
    shown |= {audits.lira: {*LIRA, "data", "twin_shadows"}, audits.rmia: {*RMIA, "data", "twin_shadows"}}
    shown[audits.train_shadows] = {"fit", "data", "folder", "recipe", "count", "seed", "progress", "where"}
    shown[audits.attribution] |= {"folder", "where"}  # audits/test_retrained.py; for shadows attacks/test_shadows.py
    functions = {getattr(audits, name) for name in audits.__all__ if inspect.isfunction(getattr(audits, name))}
    assert functions - {audits.read} == set(shown)
    for function, options in shown.items():
        assert options_of(function) == options, f"{function.__name__}: show that its new option acts, in a table above"

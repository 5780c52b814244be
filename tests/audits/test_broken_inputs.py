"""Every audit of empty data, or of a model or state whose weights diverged, stops with words: what, why and what to do."""

import copy
import math
import warnings

import pytest
import torch

from helpers.audit_cases import CASES, STATES, New, network, people
from noisewise import audits
from noisewise.data import Data
from noisewise.errors import ConfigError, DataError

EMPTY = Data(torch.zeros(0, 6), torch.zeros(0, dtype=torch.long), classes=("a", "b", "c"))
WITH_DATA = [function for function, case in CASES.items() if "data" in case.base]
WITH_MODEL = [function for function in WITH_DATA if function is not audits.over_steps]
WITH_TWIN = [
    function
    for function in WITH_MODEL
    if "twin" in CASES[function].others and "twin" not in CASES[function].unused and function is not audits.convergence
]


def diverged(value=math.nan):
    model = copy.deepcopy(network())
    with torch.no_grad():
        model[0].weight[1, 2] = value
    return model


def call(function, **changes):
    base = {**CASES[function].base, **changes}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return function(**{name: value.make() if isinstance(value, New) else value for name, value in base.items()})


def name_of(function):
    return function.__name__


@pytest.mark.parametrize("function", WITH_DATA, ids=name_of)
def test_empty_data_is_refused_in_words(function):
    data = (people(), EMPTY) if function is audits.attribution else EMPTY
    with pytest.raises((ConfigError, DataError), match=r"no rows|0 rows|0 units"):
        call(function, data=data)


@pytest.mark.parametrize("value", [math.nan, math.inf])
@pytest.mark.parametrize("function", WITH_MODEL, ids=name_of)
def test_weights_that_are_not_finite_are_refused_in_words(function, value):
    with pytest.raises((ConfigError, DataError), match=r"0\.weight.*not finite"):
        call(function, model=diverged(value))


@pytest.mark.parametrize("function", WITH_TWIN, ids=name_of)
def test_a_twin_that_diverged_is_refused_in_words(function):
    with pytest.raises((ConfigError, DataError), match=r"0\.weight.*not finite"):
        call(function, twin=diverged())


def test_a_state_that_diverged_is_named():
    states = [*STATES[:3], (30, diverged().state_dict())]
    with pytest.raises(DataError, match=r"step 30.*0\.weight.*not finite"):
        call(audits.over_steps, states=states)

"""A job can be written down and compared; what no other process could find is refused."""

from functools import partial

import pytest

from helpers import working
from noisewise.errors import ConfigError
from noisewise.jobs import Job
from noisewise.jobs.job import described, name_of, named, rebuilt


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: Job("../a", working.double, {}), "a key has"),
        (lambda: Job("", working.double, {}), "a key has"),
        (lambda: Job("a", working.double, {"number": {1}}), "JSON"),
        (lambda: Job("a", working.double, {"number": float("nan")}), "JSON"),
        (lambda: Job("a", working.double, {}, of={1}), "JSON"),
        (lambda: name_of(lambda: 1), "no function of a module"),
        (lambda: name_of(partial(working.double, 1)), "no function of a module"),
        (lambda: described(partial(working.double, 1)), "by name"),
        (lambda: described(partial(working.double, number={1})), "JSON"),
        (lambda: named("helpers.working:nothing"), "cannot be imported"),
        (lambda: named("helpers.nowhere:nothing"), "on PYTHONPATH"),
    ],
)
def test_what_cannot_be_a_job_is_refused(make, words):
    with pytest.raises(ConfigError, match=words):
        make()


def test_a_function_is_found_again_by_its_name():
    assert named(name_of(working.double)) is working.double
    assert rebuilt(described(working.double)) is working.double
    again = rebuilt(described(partial(working.double, number=4)))
    assert again()["twice"] == 8


def test_results_are_known_by_function_and_settings_or_by_what_is_said_of_them():
    job = Job("a", working.double, {"number": 1})
    assert job.digest == Job("b", working.double, {"number": 1}, gpu=True).digest
    others = [
        Job("a", working.double, {"number": 2}),
        Job("a", working.fail, {"number": 1}),
        Job("a", job.function, {}, of=1),
    ]
    assert len({job.digest, *(other.digest for other in others)}) == 4
    assert Job("a", working.fail, {"number": 5}, of=[1]).digest == Job("a", lambda: 1, {}, of=[1]).digest

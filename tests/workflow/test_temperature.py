"""The temperature of a run: that of its held-out rows, which is the best one there is."""

import pytest
import torch

from helpers import tiny
from noisewise.errors import RunError
from noisewise.evaluation import logits
from noisewise.workflow.config import configure
from noisewise.workflow.execution import execute
from noisewise.workflow.opened import open_run
from noisewise.workflow.temperature import fitted_temperature


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    config = configure(data="digits", model="logistic", noise_multiplier=1.0, steps=20, batch_size=64, twin=False)
    return execute(config, tmp_path_factory.mktemp("run") / "a", progress=False)


def test_no_other_temperature_is_better_on_the_rows_it_is_from(run):
    fitted, part = fitted_temperature(run.path)
    opened = open_run(run.path)
    assert (part, fitted.n, fitted.status.status) == ("valid", len(opened.data.valid), "private")  # digits are public
    outputs, y = logits(opened.model, opened.data.valid).double(), opened.data.valid.y
    losses = [torch.nn.functional.cross_entropy(outputs / (fitted.value * by), y) for by in (0.99, 1.0, 1.01)]
    assert losses[1] < min(losses[0], losses[2])


def test_a_run_of_python_is_told_what_to_do(tmp_path):
    tiny.run(out=tmp_path / "a", delta=1e-3)
    with pytest.raises(RunError, match=r"made in Python.*noisewise\.repairs\.temperature\(model, valid\)"):
        fitted_temperature(tmp_path / "a")

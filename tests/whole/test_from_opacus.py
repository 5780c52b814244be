"""docs/from_opacus.md: every block runs, and both libraries say the same epsilon of the same loop."""

import re
import warnings
from pathlib import Path

import dp_accounting
import pytest

PAGE = Path(__file__).parents[2] / "docs" / "from_opacus.md"


def blocks():
    return re.findall(r"^```python\n(.*?)^```", PAGE.read_text(), re.MULTILINE | re.DOTALL)


@pytest.fixture(scope="module")
def ran():
    pytest.importorskip("opacus")
    names = {}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # Opacus warns of its generator and of hooks
        for block in blocks():
            exec(block, names)
    return names


def test_the_loops_cost_the_same(ran):
    """Opacus' own figure, dp-accounting by hand, and the ledger: PRV and PLD bound the same loss, up to discretisation."""
    accountant = dp_accounting.pld.PLDAccountant()
    event = dp_accounting.PoissonSampledDpEvent(64 / 512, dp_accounting.GaussianDpEvent(1.0))
    accountant.compose(event, 16)
    assert ran["epsilon"] == pytest.approx(accountant.get_epsilon(1e-4), rel=1e-4)
    assert ran["epsilon"] == pytest.approx(ran["opacus_epsilon"], rel=0.02)


def test_the_plan_is_used_up_and_the_model_left_as_it_was(ran):
    assert ran["state"].step == ran["mechanism"].steps == 16
    assert [name for name, _ in ran["model"].named_parameters()] == ["weight", "bias"]
    assert not ran["model"]._forward_hooks
    assert ran["result"].ledger.lines == ran["mechanism"].lines()


def test_four_lines_are_new():
    plain, _, private = blocks()[1:4]
    new = [line for line in private.splitlines() if line and line not in plain and "import" not in line]
    assert [line.split()[0] for line in new if "epsilon" not in line] == [
        "steps",
        "mechanism",
        "state",
        "for",
        "nw.private_step(model,",
    ]

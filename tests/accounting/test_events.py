"""Events: several answers about one batch, and their written form."""

import dp_accounting as dp
import pytest

from noisewise.accounting import Ledger, Line
from noisewise.bounded import joint_multiplier
from noisewise.errors import RunError


@pytest.mark.parametrize(
    ("multipliers", "joint"), [([2.0], 2.0), ([1.0, 1.0], 2**-0.5), ([3.0, 4.0], 2.4), ([1.0, 0.0], 0.0), ([0.0], 0.0)]
)
def test_joint_multiplier(multipliers, joint):
    assert joint_multiplier(iter(multipliers)) == pytest.approx(joint, rel=1e-15)


def test_events_without_a_written_form_are_refused():
    with pytest.raises(RunError, match="no form for this event"):
        Ledger(lines=[Line(dp.LaplaceDpEvent(1.0), "x", 1, 0)]).to_dict()

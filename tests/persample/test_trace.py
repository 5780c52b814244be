"""Traces of a pass: what differs, and shapes that follow the number of units."""

import pytest
import torch

from noisewise.persample.proof import Proof
from noisewise.persample.trace import Made, Step, Trace


def trace_of(call, units):
    x = torch.randn(units, 6)
    with Proof([x], {}, strict=True) as proof:
        losses = call(x)
    return proof.conclude(losses)


def test_traces_say_what_differs():
    base = trace_of(lambda x: (x * 2).sum(1), 5)
    assert base.difference(trace_of(lambda x: (x * 2).sum(1), 7)) is None
    other = {
        "other constants": lambda x: (x * 3).sum(1),
        "in one pass is": lambda x: (x + 2).sum(1),
        "another shape": lambda x: (x[:, :5] * 2).sum(1),
        "number of operations": None,
    }
    assert "other constants" in base.difference(trace_of(other["other constants"], 7))
    assert "in one pass is" in base.difference(trace_of(other["in one pass is"], 7))
    shorter = Trace(7, trace_of(lambda x: (x * 2).sum(1), 7).steps[:-1])
    assert "number of operations" in base.difference(shorter)
    two = [trace_of(lambda x, k=k: (lambda a, b: (a, b)[k].sum(1))(x * 2, x * 2), n) for k, n in ((0, 5), (1, 7))]
    assert "from elsewhere" in two[0].difference(two[1])
    columns = [trace_of(lambda x, k=k: (lambda v: v[k] * 1)(x.unbind(1)), n) for k, n in ((0, 5), (1, 7))]
    assert "from elsewhere" in columns[0].difference(columns[1])
    final = [trace_of(lambda x, k=k: (x * 2).unbind(1)[k], n) for k, n in ((0, 5), (1, 7))]
    assert "from elsewhere" in final[0].difference(final[1])


@pytest.mark.parametrize(
    ("shapes", "loose", "fits"),
    [
        (((3, 4), (3, 4)), (False, False), True),
        (((10, 4), (14, 4)), (True, False), True),
        (((10, 4), (14, 4)), (False, False), False),
        (((10, 4), (21, 4)), (True, False), False),
        (((10, 4), (15, 4)), (True, False), False),
        (((4, 5), (4, 7)), (True, True), True),
        (((4, 5), (4, 7, 1)), (True, True), False),
    ],
)
def test_shapes_follow_the_number_of_units_by_one_multiple_or_not_at_all(shapes, loose, fits):
    one, two = (Made("shared", shape, None, torch.float32, loose) for shape in shapes)
    step = [Step("aten::zeros.default", (), (), (made,)) for made in (one, two)]
    assert (Trace(5, step[:1]).difference(Trace(7, step[1:])) is None) == fits

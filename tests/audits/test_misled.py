"""How robustness is spoken of and drawn: grey levels for images, values on every mark."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from noisewise.audits import robustness
from noisewise.audits.misled import Robustness, _radius, _tick_labels
from noisewise.data import Data
from noisewise.report.figures import inline_svg
from noisewise.wording import percent


@pytest.fixture(scope="module")
def found() -> Robustness:
    generator = torch.Generator().manual_seed(0)
    x = torch.rand(80, 6, generator=generator)
    with torch.random.fork_rng([]):
        torch.manual_seed(0)
        models = nn.Linear(6, 2), nn.Linear(6, 2)
    return robustness(models[0], Data(x, (x[:, 0] > 0.5).long(), classes=("a", "b")), twin=models[1], steps=4)


def test_radii_are_grey_levels_where_they_are_whole_ones() -> None:
    assert [_radius(value, "linf") for value in (0.0, 8 / 255, 0.05)] == ["0", "8/255", "0.05"]
    assert _radius(8 / 255, "l2") == "0.0314"


def test_labels_that_would_touch_are_left_out_and_the_larger_stays() -> None:
    assert _tick_labels([0.0, 1.0, 2.0, 20.0], ["0", "1", "2", "20"]) == ["", "", "2", "20"]


def test_inputs_without_a_schema_are_attacked_in_both_norms(found: Robustness) -> None:
    assert found.norms == ["linf", "l2"]
    assert found.declared == []
    words = " ".join(found.sentences())
    assert "8/255 (L∞, share of the input range)" in words
    assert "declared" not in words


def test_every_mark_of_the_sweep_says_its_value(found: Robustness) -> None:
    drawing = inline_svg(found.figures()[0])
    for point in found.sweep():
        for label, which in (("private model", "private"), ("twin", "twin")):
            assert f"<title>{label}, {_radius(point.radius, 'linf')}: {percent(point.accuracy[which])} (" in drawing

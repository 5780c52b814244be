from __future__ import annotations

import json
import math

import numpy as np
import pytest
import torch
from matplotlib.figure import Figure
from torch import Tensor, nn

from noisewise.audits.landscape import Landscape, NoDirections, RandomDirections, landscape
from noisewise.data import Data
from noisewise.errors import ConfigError, DataError


class Point(nn.Module):
    """Weights only: the model says where it is."""

    def __init__(self, *place: float):
        super().__init__()
        self.place = nn.Parameter(torch.tensor(place, dtype=torch.float64))

    def forward(self, x: Tensor) -> Tensor:
        return self.place.expand(len(x), -1)


def numbers(rows: int = 40, width: int = 2, seed: int = 0) -> Data:
    x = torch.randn(rows, width, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    return Data(x, torch.zeros(rows))


def squared(model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
    return (model(batch[0]) - batch[0]).square().sum(1) / 2


def wells(model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
    return (model(batch[0])[:, 0] ** 2 - 1) ** 2 + 0 * batch[0][:, 0]


def test_a_quadratic_loss_runs_as_its_formula_says() -> None:
    """E_a = (1-a) E_0 + a E_1 - a(1-a) |w1 - w0|^2/2: below the line everywhere, so no barrier."""
    data, private, twin = numbers(), Point(3.0, -1.0), Point(-0.5, 2.0)
    found = landscape(private, data, twin=twin, loss_fn=squared, directions=0).segments["private to twin"]
    at, length = np.linspace(0, 1, 30), math.hypot(3.5, 3.0)
    ends = [squared(model, (data.x, data.y)).mean().item() for model in (private, twin)]
    expected = (1 - at) * ends[0] + at * ends[1] - at * (1 - at) * length**2 / 2
    assert found.at == pytest.approx(at.tolist())
    assert found.losses == pytest.approx(expected.tolist())
    assert found.length == pytest.approx(length)
    assert found.instability.value == pytest.approx(expected.max() - sum(ends) / 2)
    assert found.barrier.value == pytest.approx(0)


def test_two_wells_have_the_barrier_between_them() -> None:
    """(w^2 - 1)^2 from -1 to 1 is (1 - (1-2a)^2)^2, which is 1 in the middle and 0 at both ends."""
    result = landscape(Point(-1.0, 0.0), numbers(), twin=Point(1.0, 0.0), loss_fn=wells, points=31, directions=0)
    at = np.linspace(0, 1, 31)
    assert result.segments["private to twin"].losses == pytest.approx(((1 - (2 * at - 1) ** 2) ** 2).tolist())
    assert result.headline["instability"].value == pytest.approx(1)
    assert result.headline["barrier"].low == pytest.approx(1)  # all rows agree


def test_random_directions_have_the_length_of_the_segment() -> None:
    """A bowl around the first model: every direction of length L ends at L^2/2 above it."""
    data = Data(torch.zeros(10, 2, dtype=torch.float64), torch.zeros(10))
    result = landscape(Point(0.0, 0.0), data, twin=Point(3.0, 4.0), loss_fn=squared, directions=40)
    random = result.segments["private to twin"].random
    assert random.losses == pytest.approx([12.5] * 40)


def test_a_flat_valley_floor_is_told_from_its_steep_walls() -> None:
    """A valley along the first coordinate of 20: the segment is flat, random directions of its length climb the walls."""

    def valley(model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
        return 0.1 + model(batch[0])[:, 1:].square().sum(1)

    data = Data(torch.zeros(30, 20, dtype=torch.float64), torch.zeros(30))
    ends = Point(*[0.0] * 20), Point(15.0, *[0.0] * 19)
    result = landscape(ends[0], data, twin=ends[1], loss_fn=valley)
    assert result.headline["instability"].value == pytest.approx(0, abs=1e-12)
    assert result.headline["steep random directions"].value == 1
    assert result.headline["steep random directions"].n == 100
    assert result.segments["private to twin"].random.above_segment.value == 1
    assert any("Of 100 random directions of that length 100 end above 3 times" in s for s in result.sentences())


def small_net(seed: int = 0) -> nn.Module:
    with torch.random.fork_rng([]):
        torch.manual_seed(seed)
        return nn.Sequential(nn.Linear(3, 5), nn.Tanh(), nn.Linear(5, 4))


def labelled(rows: int = 60, seed: int = 0, **extra) -> Data:
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(rows, 3, generator=generator)
    return Data(x, torch.randint(4, (rows,), generator=generator), **extra)


def cross_entropy(model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
    return nn.functional.cross_entropy(model(batch[0]), batch[1], reduction="none")


def single_gradients(model: nn.Module, data: Data) -> np.ndarray:
    rows = []
    for i in range(len(data)):
        loss = cross_entropy(model, (data.x[i : i + 1], data.y[i : i + 1])).sum()
        rows.append(torch.cat([g.flatten() for g in torch.autograd.grad(loss, list(model.parameters()))]).numpy())
    return np.stack(rows)


def test_norms_histograms_and_distances_are_those_of_numpy() -> None:
    private, twin, start, data = small_net(0), small_net(1), small_net(2), labelled()
    result = landscape(private, data, twin=twin, start=start, points=3, directions=2)
    flat = {
        name: np.concatenate([p.detach().double().numpy().ravel() for p in model.parameters()])
        for name, model in (("private", private), ("twin", twin), ("start", start))
    }
    assert set(result.segments) == {"private to twin", "start to private", "start to twin"}
    for name, weights in flat.items():
        norms = result.norms[name]
        assert norms.from_origin == pytest.approx(np.linalg.norm(weights))
        assert norms.from_start == pytest.approx(np.linalg.norm(weights - flat["start"]))
        assert norms.growth == pytest.approx(np.linalg.norm(weights) / np.linalg.norm(flat["start"]))
        assert sum(n**2 for n in norms.layers.values()) == pytest.approx(np.linalg.norm(weights) ** 2)
        histogram = result.values.histograms.weights[name]
        edges = histogram.edges
        counts, _ = np.histogram(np.clip(weights, edges[0], edges[-1]), edges)
        assert np.mean(np.abs(weights) <= edges[-1]) >= 0.95
        assert counts.sum() == len(weights)
        assert histogram.shares == pytest.approx((counts / len(weights)).tolist())
    lengths = np.linalg.norm(single_gradients(private, data), axis=1)
    assert result.values.histograms.gradients["private"].mean == pytest.approx(lengths.mean(), rel=1e-5)
    assert result.headline["gradient norm"].value == pytest.approx(lengths.mean(), rel=1e-5)
    for histogram in result.values.histograms.gradients.values():
        assert sum(histogram.shares) == pytest.approx(1)


def test_models_and_random_state_are_left_as_they_were_and_results_repeat() -> None:
    private, twin, data = small_net(0).train(), small_net(1).eval(), labelled()
    before, state = [p.clone() for p in private.parameters()], torch.get_rng_state()
    results = [landscape(private, data, twin=twin, directions=3, generator=np.random.default_rng(7)) for _ in range(2)]
    assert results[0] == results[1]
    assert (private.training, twin.training) == (True, False)
    assert torch.equal(torch.get_rng_state(), state)
    for old, new in zip(before, private.parameters(), strict=True):
        assert torch.equal(old, new)
        assert new.grad is None


def test_tied_weights_move_together() -> None:
    class Tied(nn.Module):
        def __init__(self, place: float):
            super().__init__()
            self.first = nn.Linear(1, 1, bias=False)
            nn.init.constant_(self.first.weight, place)
            self.second = self.first

        def forward(self, x: Tensor) -> Tensor:
            return self.second(x) + self.first(x)

    data = Data(torch.ones(5, 1), torch.zeros(5))
    result = landscape(Tied(1.0), data, twin=Tied(2.0), points=3, directions=4)
    segment = result.segments["private to twin"]
    assert segment.losses == pytest.approx([4.0, 9.0, 16.0])
    assert segment.length == pytest.approx(1)
    assert {round(loss, 4) for loss in segment.random.losses} <= {0.0, 16.0}


def test_what_has_no_segment_is_refused() -> None:
    data = labelled()
    norm = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4))
    with pytest.raises(ConfigError, match="GroupNorm"):
        landscape(norm, data)
    with pytest.raises(ConfigError, match="different parameters"):
        landscape(small_net(), data, twin=nn.Linear(3, 4))
    with pytest.raises(ConfigError, match="at least 3"):
        landscape(small_net(), data, points=2)
    with pytest.raises(ConfigError, match="directions=-1"):
        landscape(small_net(), data, directions=-1)
    with pytest.raises(DataError, match="at least two"):
        landscape(small_net(), data.take(torch.arange(1)))


def test_a_result_is_saved_drawn_and_honest_about_its_rows() -> None:
    public = labelled(50, public=True)
    alone = landscape(small_net(), public)
    assert (alone.status.status, alone.segments) == ("private", {})
    assert set(alone.headline) == {"gradient norm"}
    result = landscape(small_net(0), labelled(80), twin=small_net(1), start=small_net(2), rows=30, directions=5)
    assert result.status.status == "not-private"
    assert any("Measured on 30 of 80 rows" in sentence for sentence in result.sentences())
    assert Landscape.from_dict(json.loads(json.dumps(result.to_dict()))) == result
    for shown in (alone, result):
        for figure in shown.figures():
            axes = figure.draw(Figure().add_subplot())
            assert axes.get_legend() is not None
            assert figure.words
        for table in shown.tables():
            assert all(len(row) == len(table.columns) for row in table.rows)


def test_the_largest_cosine_of_a_single_direction_is_a_dash() -> None:
    data = Data(torch.zeros(10, 2, dtype=torch.float64), torch.zeros(10))
    result = landscape(Point(0.0, 0.0), data, twin=Point(3.0, 4.0), loss_fn=squared, directions=40)
    random = result.segments["private to twin"].random
    assert isinstance(random, RandomDirections)
    assert 0.99 < random.closest < 1  # forty directions in a plane
    single = landscape(Point(0.0, 0.0), data, twin=Point(3.0, 4.0), loss_fn=squared, directions=1)
    assert any("is –" in sentence for sentence in single.sentences())
    assert Landscape.from_dict(single.to_dict()) == single


def test_frozen_weights_are_not_moved_by_random_directions() -> None:
    class Pair(nn.Module):
        def __init__(self, *place: float):
            super().__init__()
            self.learns = nn.Parameter(torch.tensor(place, dtype=torch.float64))
            self.rests = nn.Parameter(torch.zeros(2, dtype=torch.float64), requires_grad=False)

        def forward(self, x: Tensor) -> Tensor:
            return (self.learns + 1e3 * self.rests).expand(len(x), -1)

    data = Data(torch.zeros(10, 2, dtype=torch.float64), torch.zeros(10))
    result = landscape(Pair(0.0, 0.0), data, twin=Pair(3.0, 4.0), loss_fn=squared, directions=5)
    assert result.segments["private to twin"].random.losses == pytest.approx([12.5] * 5)


def test_a_loss_that_only_falls_is_not_said_to_rise() -> None:
    data = numbers()
    result = landscape(Point(0.0, 0.0), data, start=Point(6.0, 0.0), loss_fn=squared, directions=0)
    assert "nowhere above the line" in result.sentences()[0]
    wells_between = landscape(Point(-1.0, 0.0), data, twin=Point(1.0, 0.0), loss_fn=wells, points=31, directions=0)
    assert "1.00 above the line" in wells_between.sentences()[0]


def test_no_random_directions_are_saved_as_nothing() -> None:
    result = landscape(small_net(0), labelled(), twin=small_net(1), points=3, directions=0)
    assert result.segments["private to twin"].random == NoDirections()
    assert result.to_dict()["values"]["segments"]["private to twin"]["random"] == {}
    assert Landscape.from_dict(result.to_dict()) == result


def test_growth_from_a_start_at_the_origin_is_left_out() -> None:
    result = landscape(Point(3.0, 4.0), numbers(), start=Point(0.0, 0.0), loss_fn=squared, points=3, directions=0)
    assert (result.norms["private"].from_start, result.norms["private"].growth) == (5.0, None)
    assert "growth" not in result.to_dict()["values"]["norms"]["private"]
    assert "The weights of private have norm 5.00, 5.00 from its start." in result.sentences()
    assert Landscape.from_dict(result.to_dict()) == result


# People with several rows ----------------------------------------------------------------------------------------------


def tilted(model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
    """A bump in the middle of the segment from -1 to 1, whose height is the row's own."""
    return batch[0][:, 0] * (1 - model(batch[0])[:, 0] ** 2) + 0.3 * model(batch[0])[:, 1] * batch[0][:, 1]


def heights(generator: np.random.Generator, people: int = 60, each: int = 20) -> Data:
    """All rows of a person are alike; heights are 2 on average."""
    owner = torch.arange(people).repeat_interleave(each)
    x = torch.from_numpy(generator.standard_normal((people, 2)))[owner] + 2
    return Data(x, torch.zeros(len(x)), unit=owner)


ENDS = {"twin": Point(1.0, 0.0), "loss_fn": tilted, "points": 3, "directions": 0}


def test_intervals_hold_for_people_with_many_rows() -> None:
    """As if each had one row."""
    data = heights(np.random.default_rng(0))
    seen = landscape(Point(-1.0, 0.0), data, **ENDS)
    alone = landscape(Point(-1.0, 0.0), data.take(torch.arange(0, 1200, 20)), **ENDS)
    for name, e in seen.headline.items():
        assert e.n == 60
        assert (e.low, e.high) == (
            pytest.approx(alone.headline[name].low, abs=1e-9), pytest.approx(alone.headline[name].high, abs=1e-9),
        )  # fmt: skip
    assert (seen.settings["rows"], seen.settings["people"]) == (1200, 60)
    with pytest.raises(DataError, match="1 person"):
        landscape(Point(-1.0, 0.0), data.take(torch.arange(20)), **ENDS)


def test_symmetry_is_that_of_people() -> None:
    """Few symmetric people with many rows are a lopsided cloud, which is no sign of asymmetry."""
    generator, alarms = np.random.default_rng(0), 0
    for _ in range(20):
        data = heights(generator, 12, 10)
        alarms += landscape(Point(-1.0, 0.5), data, loss_fn=tilted).symmetry["private"].p_value <= 0.05
    assert alarms <= 4

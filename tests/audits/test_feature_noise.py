from __future__ import annotations

import json
import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from matplotlib.figure import Figure
from sklearn.datasets import load_digits
from torch import nn

from noisewise.adaptive import GroupBounds
from noisewise.audits.clipping_bias import clipping_bias
from noisewise.audits.exact_ratio import exact
from noisewise.audits.feature_noise import Extremes, FeatureNoise, Hidden, feature_noise
from noisewise.clipping import Flat, per_layer
from noisewise.data import Data
from noisewise.data.synthetic import two_patch_distribution
from noisewise.errors import ConfigError, DataError
from noisewise.mechanism import Mechanism
from noisewise.models import two_layer_cnn
from noisewise.sampling import Poisson
from noisewise.support import Fixed


def plan(bound: float = 1.0, noise: float = 2.0, n: int = 1000, batch: int = 100, **changes: object) -> Mechanism:
    settings = {"sampler": Poisson(n, batch), "clip": Flat(bound), "steps": 10, "noise_multiplier": noise, **changes}
    return Mechanism(**settings)  # type: ignore[arg-type]


def network(scale: float = 0.1, filters: int = 6, d: int = 30, seed: int = 0) -> nn.Module:
    with torch.random.fork_rng([]):
        torch.manual_seed(seed)
        return two_layer_cnn((2, d), 2, filters=filters, start=scale)


def digits(n: int = 400) -> Data:
    x, y = load_digits(return_X_y=True)
    keep = y[:n]
    group = torch.arange(n) % 3 % 2
    names = {"side": ("left", "right")}
    labels = tuple(str(k) for k in range(10))
    return Data(
        torch.tensor(x[:n] / 16).float(), torch.tensor(keep), {"side": group}, classes=labels, group_names=names
    )


def linear(inputs: int = 64, outputs: int = 10, seed: int = 0) -> nn.Module:
    with torch.random.fork_rng([]):
        torch.manual_seed(seed)
        return nn.Sequential(nn.Linear(inputs, 12), nn.Tanh(), nn.Linear(12, outputs))


def one_by_one(model: nn.Module, data: Data) -> np.ndarray:
    """Gradients row by row, by autograd alone."""
    rows = []
    for k in range(len(data)):
        loss = nn.functional.cross_entropy(model(data.x[k : k + 1]), data.y[k : k + 1])
        rows.append(torch.cat([g.flatten() for g in torch.autograd.grad(loss, list(model.parameters()))]))
    return torch.stack(rows).double().numpy()


def pairwise(rows: np.ndarray) -> float:
    """Mean of all inner products of two different rows."""
    products = rows @ rows.T
    return float(products[~np.eye(len(rows), dtype=bool)].mean())


@pytest.mark.parametrize("kind", ["flat", "per layer", "masked"])
def test_ratios_are_those_of_gradients_taken_one_by_one(kind: str) -> None:
    data, model = digits(), linear()
    names = [name for name, _ in model.named_parameters()]
    flat = 1.6 if kind == "masked" else 2.2  # about half are longer
    mask = torch.rand(12, 64, generator=torch.Generator().manual_seed(0)) < 0.3
    clip = per_layer(names, {"0.*": Flat(1.7), "2.*": Flat(1.3)}, by="pattern") if kind == "per layer" else Flat(flat)
    support = Fixed({"0.weight": mask, "0.bias": False}) if kind == "masked" else Fixed()
    mechanism = plan(n=400, batch=50, noise=1.5, clip=clip, support=support)
    found = feature_noise(model, data, mechanism=mechanism)

    rows = one_by_one(model, data)
    sizes = [p.numel() for p in model.parameters()]
    if kind == "masked":
        rows[:, : sizes[0]] *= mask.flatten().numpy()
        rows[:, sizes[0] : sizes[0] + sizes[1]] = 0
    cut = sizes[0] + sizes[1]
    if kind == "per layer":
        first, second = rows[:, :cut], rows[:, cut:]
        clipped = np.concatenate(
            [
                part * np.minimum(1, bound / np.linalg.norm(part, axis=1))[:, None]
                for part, bound in ((first, 1.7), (second, 1.3))
            ],
            1,
        )
        sensitivity = math.hypot(1.7, 1.3)
    else:
        clipped, sensitivity = rows * np.minimum(1, flat / np.linalg.norm(rows, axis=1))[:, None], flat
    sigma = 1.5 * sensitivity / 50
    kept = int(mask.sum()) + sizes[2] + sizes[3] if kind == "masked" else sum(sizes)
    assert found.settings["sigma_n"] == pytest.approx(sigma)
    assert found.settings["coordinates"] == kept
    y, side = data.y.numpy(), data.groups["side"].numpy()
    members = {("class", str(k)): y == k for k in range(10)}
    members |= {("side", name): side == k for k, name in enumerate(("left", "right"))} | {("everyone", "all"): y >= 0}
    lengths = np.linalg.norm(clipped, axis=1) / np.linalg.norm(rows, axis=1)
    assert 0.1 < found.everyone.clipped.value < 0.95
    for (by, name), mine in members.items():
        (part,) = (part for part in found.parts(by) if part.name == name)
        share = mine.mean()
        assert part.n == mine.sum()
        assert part.share.value == pytest.approx(share)
        assert part.feature.value == pytest.approx(math.sqrt(pairwise(rows[mine])) / sigma, rel=1e-4)
        assert part.kept.value == pytest.approx(math.sqrt(pairwise(clipped[mine])) / sigma, rel=1e-4)
        assert part.ratio.value == pytest.approx(share * math.sqrt(pairwise(clipped[mine])) / sigma, rel=1e-4)
        assert part.whole.value == pytest.approx(part.ratio.value / math.sqrt(kept))
        assert part.factor.value == pytest.approx(lengths[mine].mean(), rel=1e-4)
        assert part.clipped.value == pytest.approx((lengths[mine] < 1 - 1e-6).mean(), abs=1e-9)
        assert part.steps == pytest.approx(part.ratio.value**-2)
    cells = found.parts("class and side")
    assert sum(part.n for part in cells) + found.extremes("class and side").hidden_people == 400


def test_counterpart_of_the_exact_ratio_in_closed_form() -> None:
    source = two_patch_distribution(d=30, sigma_xi=0.0, proportions=(0.45, 0.15, 0.3, 0.1))
    data, model = source.draw(2000, torch.Generator().manual_seed(3)), network(0.3)
    mechanism = plan(bound=0.4, n=2000)
    found = feature_noise(model, data, mechanism=mechanism)
    parts = {part.name: part for part in found.parts("feature")}
    for label, ratio in enumerate(exact(source, mechanism, model)):
        row = (data.groups["feature"] == label).nonzero()[0]
        with torch.no_grad():
            active = int((model.filters(source.features[label].float()) > 0).sum())
            residual = 1 - float(torch.softmax(model(data.x[row]), 1)[0, data.y[row]])
        part = parts[ratio.name]
        # both outputs of a two-class model move by 1 - p_y; each active filter by u/m
        assert part.feature.value == pytest.approx(residual / 6 * math.sqrt(active) * ratio.ratio, rel=1e-4)
        assert part.factor.value == pytest.approx(ratio.factor, rel=1e-5)
        share = float((data.groups["feature"] == label).double().mean())
        assert part.ratio.value == pytest.approx(share * ratio.factor * part.feature.value, rel=1e-4)
    assert "class and feature" not in found.partitions  # the feature says the class


def planted(shrink: float = 1.0, rare: int = 200, seed: int = 0) -> Data:
    """Two groups of one distribution, 1800 people and `rare`; the rare one's inputs are multiplied by `shrink`."""
    draw = torch.Generator().manual_seed(seed)
    n = 1800 + rare
    y = torch.randint(0, 2, (n,), generator=draw)
    x = torch.randn(n, 20, generator=draw) + 0.5 * (2.0 * y.unsqueeze(1) - 1) * torch.eye(20)[0]
    group = (torch.arange(n) >= 1800).long()
    x = torch.where(group.unsqueeze(1) == 1, shrink * x, x)
    return Data(x, y, {"size": group}, classes=("a", "b"), group_names={"size": ("common", "rare")})


def ratios(data: Data, **settings: object) -> dict[str, float]:
    model = nn.Linear(20, 2)
    nn.init.zeros_(model.weight)
    nn.init.zeros_(model.bias)
    found = feature_noise(model, data, mechanism=plan(n=data.units), **settings)  # type: ignore[arg-type]
    return {part.name: part.ratio.value for part in found.parts("size")}


def test_a_group_with_a_ninth_of_the_people_has_a_ninth_of_the_ratio() -> None:
    found = [ratios(planted(seed=seed)) for seed in range(40)]
    quotients = np.array([of["rare"] / of["common"] for of in found])
    error = quotients.std(ddof=1) / math.sqrt(len(quotients))
    assert error < 0.005
    assert quotients.mean() == pytest.approx(1 / 9, abs=3 * error)
    plain = np.array([plain_quotient(planted(seed=seed)) for seed in range(40)])
    assert plain.mean() > 1 / 9 + 3 * error  # the length of a mean that is not debiased favours the rare
    rarer = np.array([ratios(planted(rare=100, seed=seed))["rare"] for seed in range(20)])
    assert rarer.mean() / np.mean([of["rare"] for of in found]) == pytest.approx(100 / 200 * 2000 / 1900, rel=0.15)


def plain_quotient(data: Data) -> float:
    """Rare over common, by the lengths of the sample means themselves; weights 0, so gradients are known."""
    rows = torch.cat([data.x, torch.ones(len(data), 1)], 1) * (data.y.unsqueeze(1) - 0.5) * math.sqrt(2)
    clipped = rows / rows.norm(dim=1, keepdim=True).clamp(min=1)
    common, rare = (clipped[data.groups["size"] == k].sum(0).norm() for k in (0, 1))
    return float(rare / common)


def test_smaller_features_have_a_smaller_ratio() -> None:
    # of the bias nothing is learnt here: the classes are balanced, so the ratio is that of the weights
    full, half = ratios(planted(seed=1), clip=Flat(100.0)), ratios(planted(0.5, seed=1), clip=Flat(100.0))
    assert half["common"] == pytest.approx(full["common"])
    assert half["rare"] == pytest.approx(0.5 * full["rare"], rel=0.15)


def test_clipping_is_described_as_in_the_clipping_audit() -> None:
    data, model = digits(), linear()
    mechanism = plan(n=400, bound=2.2)
    mine, other = (
        feature_noise(model, data, mechanism=mechanism),
        clipping_bias(model, data, mechanism=mechanism, batches=0),
    )
    assert mine.everyone.clipped == other.headline["clipped"]
    assert 0 < mine.everyone.clipped.value < 1
    for a, b in zip(mine.parts("class"), other.parts("class"), strict=True):
        assert (a.name, a.clipped) == (b.name, b.clipped)
        assert a.factor.value == pytest.approx(b.factor.value)


def test_sampled_units_estimate_the_whole() -> None:
    data, model = planted(), nn.Linear(20, 2)
    nn.init.zeros_(model.weight)
    nn.init.zeros_(model.bias)
    mechanism = plan(n=2000)
    whole = feature_noise(model, data, mechanism=mechanism)
    part = feature_noise(model, data, mechanism=mechanism, units=600, generator=np.random.default_rng(1))
    for by in ("class", "size"):
        for a, b in zip(whole.parts(by), part.parts(by), strict=True):
            assert a.share == b.share
            assert b.n < a.n
            assert b.ratio.low <= a.ratio.value <= b.ratio.high
    with pytest.raises(ConfigError, match="units=5"):
        feature_noise(model, data, mechanism=mechanism, units=5)


def test_people_with_several_rows_count_once() -> None:
    data, model = digits(), linear()
    owner = torch.arange(400) // 2
    people = replace(data, unit=owner, y=data.y[owner * 2], groups={"side": data.groups["side"][owner * 2]})
    found = feature_noise(model, people, mechanism=plan(n=200, batch=50, bound=0.5, unit="person"))
    rows = one_by_one(model, people).reshape(200, 2, -1).mean(1)
    clipped = rows * np.minimum(1, 0.5 / np.linalg.norm(rows, axis=1))[:, None]
    assert found.everyone.n == 200
    expected = math.sqrt(pairwise(clipped)) / found.settings["sigma_n"]
    assert found.everyone.ratio.value == pytest.approx(expected, rel=1e-4)


def test_rules_that_look_at_groups() -> None:
    data, model = digits(), linear()
    rule = GroupBounds("side", 2, bounds=(0.5, 0.1))
    mechanism = plan(n=400)
    found = feature_noise(model, data, mechanism=mechanism, clip=rule)
    left, right = found.parts("side")
    assert right.factor.value < left.factor.value
    with pytest.raises(ConfigError, match="clip="):
        feature_noise(model, data, mechanism=replace(mechanism, clip=rule))


def test_result_with_twin_small_groups_and_drawings() -> None:
    data, model, twin = digits(190), linear(), linear(seed=1)
    assert 0 < min(int((data.y == k).sum()) for k in range(10)) < 20
    found = feature_noise(model, data, mechanism=plan(n=190, batch=50), twin=twin)
    alone = feature_noise(twin, data, mechanism=plan(n=190, batch=50))
    assert [part.twin for part in found.parts("class")] == [part.ratio for part in alone.parts("class")]
    assert (found.status.status, alone.status.status) == ("not-private", "not-private")
    assert "twin" in found.status.reason
    assert all(part.n >= 20 for by in found.partitions for part in found.parts(by))
    extremes = found.extremes("class")
    assert isinstance(extremes, Extremes)
    assert extremes.hidden_parts > 0
    assert extremes.hidden_people == 190 - sum(part.n for part in found.parts("class"))
    assert any("not shown" in sentence for sentence in found.sentences())
    again = FeatureNoise.from_dict(json.loads(json.dumps(found.to_dict(), allow_nan=False)))
    assert again == found
    lowest = min(found.parts("class"), key=lambda part: part.ratio.value)
    assert extremes.weakest == lowest.name
    assert found.headline["weakest"].value == lowest.ratio.value
    assert found.headline["weakest"].low < lowest.ratio.low  # allows for the choice
    for figure in again.figures():
        axes = Figure().subplots()
        figure.draw(axes)
        assert axes.lines
    assert all(len(row) == len(table.columns) for table in found.tables() for row in table.rows)
    public = feature_noise(model, replace(data, public=True), mechanism=plan(n=190, batch=50))
    assert public.status.status == "private"


def test_refusals() -> None:
    data, model = digits(100), linear()
    with pytest.raises(ConfigError, match="noise_multiplier=0"):
        feature_noise(model, data, mechanism=plan(noise=0.0))
    with pytest.raises(ConfigError, match="noise_multiplier is not set"):
        feature_noise(model, data, mechanism=replace(plan(), noise_multiplier=None))
    with pytest.raises(DataError, match="fewer than 20"):
        feature_noise(model, digits(10), mechanism=plan())
    with pytest.raises(DataError, match="no rows"):
        feature_noise(model, data.take(torch.arange(0)), mechanism=plan())


def test_regression_has_groups_only() -> None:
    draw = torch.Generator().manual_seed(0)
    data = Data(torch.randn(100, 5, generator=draw), torch.randn(100, generator=draw), {"g": torch.arange(100) % 2})
    found = feature_noise(nn.Linear(5, 1), data, mechanism=plan(n=100, batch=20))
    assert found.partitions == ["g"]
    assert len(found.parts("g")) == 2
    assert found.sentences()


def test_where_nobody_has_a_signal_none_is_called_the_weakest() -> None:
    """A model that fits every row: all gradients are 0, and so are all ratios."""
    data = Data(torch.randn(100, 5), torch.zeros(100), {"sex": torch.arange(100) % 2})
    model = nn.Linear(5, 1)
    nn.init.zeros_(model.weight)
    nn.init.zeros_(model.bias)
    found = feature_noise(model, data, mechanism=plan(n=100, batch=20))
    assert [part.ratio.value for part in found.parts("sex")] == [0, 0]
    assert found.sentences()[1:] == ["By sex nobody has a signal that can be told from none at all."]


def test_a_partition_with_one_part_to_show_has_no_extremes() -> None:
    data = replace(digits(100), groups={"side": (torch.arange(100) < 5).long()})
    found = feature_noise(linear(), data, mechanism=plan(n=100, batch=20))
    assert found.extremes("side") == Hidden(hidden_parts=1, hidden_people=5)
    assert found.to_dict()["values"]["extremes"]["side"] == {"hidden_parts": 1, "hidden_people": 5}
    assert FeatureNoise.from_dict(found.to_dict()) == found

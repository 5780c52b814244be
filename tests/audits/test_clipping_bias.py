"""The bias of clipping: which bound holds, and figures that are those of the definition."""

from __future__ import annotations

import json

import numpy as np
import pytest
import torch
from matplotlib.figure import Figure
from sklearn.datasets import load_digits
from torch import nn

from noisewise.adaptive import GroupBounds, Quantile
from noisewise.audits import read
from noisewise.audits.clipping_bias import (
    ClippingBias,
    Hidden,
    clipping_bias,
)
from noisewise.audits.gradients import Moments, gradients
from noisewise.clipping import Automatic, Flat, Global, Normalized, per_layer
from noisewise.data import Data
from noisewise.errors import ConfigError, DataError
from noisewise.losses import cross_entropy
from noisewise.mechanism import Mechanism
from noisewise.runs.files import write_json
from noisewise.sampling import Poisson
from noisewise.schedule import Schedule
from noisewise.theory.watson2023 import corrected_bound, one_sided_bound, printed_bound


def normalised(rows: np.ndarray) -> Moments:
    """All gradients clipped, C = 1."""
    return Moments.of(rows, 1 / np.linalg.norm(rows, axis=1))


def flat(rows: np.ndarray, bound: float) -> Moments:
    return Moments.of(rows, np.minimum(1, bound / np.linalg.norm(rows, axis=1)))


def cloud(share: float, small: list[list[float]]) -> np.ndarray:
    """A share of gradients e1/share, the others the given small ones in turn: 1000 in all."""
    big = round(1000 * share)
    return np.array([[1 / share, 0.0]] * big + [small[k % len(small)] for k in range(1000 - big)])


def heavy_tailed(draw: np.random.Generator) -> np.ndarray:
    """A few gradients around a mean, in one or two dimensions, with lengths from Student's t of 3 degrees."""
    count, dimension = draw.integers(3, 12), draw.integers(1, 3)
    rows = draw.normal(size=(count, dimension)) + draw.normal(size=dimension)
    return rows * draw.standard_t(3, size=(count, 1))


def test_the_printed_bound_fails_on_the_first_counterexample() -> None:
    found = normalised(cloud(0.7, [[0.0, 0.01], [0.0, -0.01]]))
    ratio = found.plain_ratio
    assert ratio == pytest.approx(0.4286, abs=1e-4)
    assert printed_bound(1, ratio) == pytest.approx(0.786, abs=1e-3)
    assert found.projection == pytest.approx(0.700, abs=1e-3)
    assert one_sided_bound(1, ratio) == pytest.approx(found.projection, abs=1e-4)  # attained
    assert corrected_bound(1, ratio) < found.projection


def test_the_corrected_bound_is_attained_by_the_second() -> None:
    found = normalised(cloud(0.7, [[-0.01, 0.0]]))
    assert found.plain_ratio == pytest.approx(0.437, abs=1e-3)
    assert found.projection == pytest.approx(0.400, abs=1e-3)
    tiny = normalised(cloud(0.7, [[-1e-6, 0.0]]))
    assert tiny.projection == pytest.approx(corrected_bound(1, tiny.plain_ratio), abs=1e-5)
    assert tiny.projection >= corrected_bound(1, tiny.plain_ratio) - 1e-12
    assert tiny.projection < one_sided_bound(1, tiny.plain_ratio)  # whose condition is not met


def test_random_search_breaks_the_printed_bound_and_no_other() -> None:
    draw = np.random.default_rng(0)
    broken = 0
    for _ in range(4000):
        rows = heavy_tailed(draw)
        found = normalised(rows)
        broken += found.projection < printed_bound(1, found.plain_ratio) - 1e-9
        assert found.projection >= corrected_bound(1, found.plain_ratio) - 1e-9
        if (found.on_mean >= 0).all():
            assert found.projection >= one_sided_bound(1, found.plain_ratio) - 1e-9
        some = flat(rows, float(np.exp(2 * draw.normal())))
        assert some.projection >= some.general_bound - 1e-9
    assert 0.01 < broken / 4000 < 0.15


def test_round_clouds_keep_the_printed_bound() -> None:
    draw = np.random.default_rng(0)
    for _ in range(500):
        found = normalised(draw.normal(size=(30, 5)) + draw.normal(size=5))
        assert found.projection >= printed_bound(1, found.plain_ratio)


def small_model(dtype: torch.dtype = torch.float64, dropout: float = 0.0) -> nn.Module:
    with torch.random.fork_rng([]):
        torch.manual_seed(3)
        return nn.Sequential(nn.Linear(6, 5), nn.Tanh(), nn.Dropout(dropout), nn.Linear(5, 3)).to(dtype)


def people(n: int = 90, dtype: torch.dtype = torch.float64, **extra) -> Data:
    generator = torch.Generator().manual_seed(4)
    x = torch.randn(n, 6, generator=generator, dtype=dtype) * torch.exp(
        torch.randn(n, 1, generator=generator, dtype=dtype)
    )
    y = torch.arange(n) % 3
    return Data(x, y, groups={"sex": (torch.arange(n) < 30).long()}, classes=("a", "b", "c"), **extra)


def slow_gradients(model: nn.Module, data: Data) -> np.ndarray:
    """One unit at a time by plain autograd."""
    found = []
    for x, y in zip(data.x, data.y, strict=True):
        loss = nn.functional.cross_entropy(model.eval()(x[None]), y[None])
        grads = torch.autograd.grad(loss, list(model.parameters()))
        found.append(torch.cat([grad.flatten() for grad in grads]))
    return torch.stack(found).double().numpy()


def cosine(a: np.ndarray, b: np.ndarray) -> float:
    return float(a @ b / np.linalg.norm(a) / np.linalg.norm(b))


def test_figures_are_those_of_the_definition() -> None:
    data, bound = people(), 1.5
    result = clipping_bias(small_model(), data, clip=Flat(bound), batches=3, batch_size=10)
    rows = slow_gradients(small_model(), data)
    norms = np.linalg.norm(rows, axis=1)
    factors = np.minimum(1, bound / norms)
    mean, clipped = rows.mean(0), (factors[:, None] * rows).mean(0)
    ratio = ((rows - mean) ** 2).sum(1).mean() / (mean @ mean)
    assert 0.1 < (norms > bound).mean() < 0.9  # some are clipped, some are not
    assert result.headline["R"].value == pytest.approx(ratio, rel=1e-6)
    assert result.headline["cosine"].value == pytest.approx(cosine(mean, clipped), rel=1e-6)
    assert result.headline["clipped"].value == pytest.approx((norms > bound).mean())
    assert result.headline["factor"].value == pytest.approx(factors.mean(), rel=1e-6)
    assert result.values.projection == pytest.approx(clipped @ mean / np.linalg.norm(mean), rel=1e-6)
    assert result.values.alignment == pytest.approx(np.mean([cosine(row, mean) for row in rows]), rel=1e-6)
    assert result.bounds["general"].holds
    assert not result.bounds["printed"].applies
    parts = {"class": data.y.numpy(), "sex": data.groups["sex"].numpy()}
    for by, labels in parts.items():
        assert len(result.parts(by)) == len(set(labels))
        for label, part in enumerate(result.parts(by)):
            mine = labels == label
            own = rows[mine].mean(0)
            assert part.n == mine.sum()
            assert part.clipped.value == pytest.approx((norms > bound)[mine].mean())
            assert part.factor.value == pytest.approx(factors[mine].mean(), rel=1e-6)
            assert part.own == pytest.approx(cosine((factors[:, None] * rows)[mine].mean(0), own), rel=1e-6)
            assert part.true_step == pytest.approx(cosine(mean, own), rel=1e-6)
            assert part.clipped_step == pytest.approx(cosine(clipped, own), rel=1e-6)


@pytest.mark.parametrize("rule", [Flat(2.0), Flat(1e-9), Global(2.0, 5.0), Automatic(1.0), Normalized(1.0), "layers"])
def test_the_invariant_holds_on_real_gradients(rule) -> None:
    digits = load_digits()
    data = Data(
        torch.from_numpy(digits.data[:200]).float() / 16, torch.from_numpy(digits.target[:200]).long(), public=True
    )
    with torch.random.fork_rng([]):
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(64, 16), nn.Tanh(), nn.Linear(16, 10))
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    for _ in range(60):
        optimizer.zero_grad()
        cross_entropy(model, (data.x, data.y)).mean().backward()
        optimizer.step()
    rule = per_layer(dict(model.named_parameters()), Flat(0.05)) if rule == "layers" else rule
    result = clipping_bias(model, data, clip=rule, batches=10, batch_size=16)
    assert result.bounds["general"].holds
    assert len(result.batches) == 10
    for batch in result.batches:
        assert batch.projection >= batch.general - 1e-9
        assert batch.alignment >= batch.corrected - 1e-9
    if isinstance(rule, Normalized):
        assert vars(result.bounds["corrected"]) == {
            "value": pytest.approx(corrected_bound(1.0, result.headline["R"].value)), "applies": True, "holds": True
        }  # fmt: skip
    everybody = isinstance(rule, Normalized | Automatic) or rule == Flat(1e-9)
    assert (result.headline["clipped"].value == 1.0) == everybody


def test_a_sample_of_units_estimates_the_whole() -> None:
    data = people(600)
    whole = clipping_bias(small_model(), data, clip=Flat(1.0), batches=0)
    part = clipping_bias(small_model(), data, clip=Flat(1.0), batches=0, units=300, generator=np.random.default_rng(5))
    for name in ("R", "cosine"):
        assert part.headline[name].method == "debiased, jackknife"
        assert part.headline[name].low <= whole.headline[name].value <= part.headline[name].high
        assert part.headline[name].n == 300
    assert whole.printed_holds() is None


def test_a_person_counts_once() -> None:
    data = people(90, unit=torch.arange(90) // 3)
    result = clipping_bias(small_model(), data, clip=Flat(1.0), batches=0)
    rows = slow_gradients(small_model(), data).reshape(30, 3, -1).mean(1)
    assert result.settings["population"] == 30
    norms = np.linalg.norm(rows, axis=1)
    assert result.headline["factor"].value == pytest.approx(np.minimum(1, 1 / norms).mean(), rel=1e-6)


def test_rules_by_group_look_at_groups() -> None:
    data = people()
    rule = GroupBounds("sex", 2, bounds=(1e3, 1e-3))
    result = clipping_bias(small_model(), data, clip=rule, batches=0)
    assert [part.clipped.value for part in result.parts("sex")] == [0.0, 1.0]
    with pytest.raises(ConfigError, match="no groups 'age'"):
        clipping_bias(small_model(), data, clip=GroupBounds("age", 2))


def test_the_rule_of_a_mechanism_is_its_last() -> None:
    data, sampler = people(), Poisson(90, 10)
    mixed = Mechanism(sampler=sampler, clip=Schedule(((0, Flat(9.0)), (5, Flat(1.0)))), steps=10, noise_multiplier=1.0)
    assert clipping_bias(small_model(), data, mechanism=mixed, batches=0).settings["clip"] == repr(Flat(1.0))
    moving = Mechanism(sampler=sampler, clip=Quantile(), steps=10, noise_multiplier=1.0)
    with pytest.raises(ConfigError, match="moved during training"):
        clipping_bias(small_model(), data, mechanism=moving)
    for given_ in ({}, {"mechanism": mixed, "clip": Flat(1.0)}):
        with pytest.raises(ConfigError, match="either mechanism= or clip="):
            clipping_bias(small_model(), data, **given_)


def test_small_parts_are_counted_not_shown() -> None:
    data = people(50)
    result = clipping_bias(small_model(), data, clip=Flat(1.0), batches=0)
    assert result.parts() == []
    assert result.values.hidden["class"] == Hidden(parts=3, people=50)
    assert any("3 parts by class" in sentence for sentence in result.sentences())


def test_result_is_reloaded_and_drawn() -> None:
    data = people()
    result = clipping_bias(small_model(), data, clip=Flat(1.0), twin=small_model(), batches=4, batch_size=20)
    again = ClippingBias.from_dict(json.loads(json.dumps(result.to_dict())))
    assert again == result
    assert again.headline["twin R"] == again.headline["R"]
    assert len(again.figures()) == 5
    for figure in again.figures():
        axes = figure.draw(Figure().add_subplot())
        assert axes.lines
        assert figure.words
    assert len(again.tables()[1].rows) == 5
    assert any("random batches" in sentence for sentence in again.sentences())


@pytest.mark.parametrize(
    ("public", "twin", "status"),
    [(True, False, "private"), (False, False, "not-private"), (True, True, "not-private")],
)
def test_status(public: bool, twin: bool, status: str) -> None:
    model = small_model()
    data = people(public=public)
    result = clipping_bias(model, data, clip=Flat(1.0), twin=model if twin else None, batches=0)
    assert result.status.status == status


def test_the_model_is_left_as_it_was() -> None:
    model, state = small_model(dropout=0.5), torch.get_rng_state()
    clipping_bias(model, people(), clip=Flat(1.0), batches=1, batch_size=5)
    assert model.training
    assert torch.equal(torch.get_rng_state(), state)
    assert all(p.grad is None for p in model.parameters())


def test_without_a_direction_nothing_is_said() -> None:
    data = people(30)
    model = small_model()
    broken = Data(data.x * 1e308, data.y, classes=data.classes)
    with pytest.raises(DataError, match="not finite"):
        list(gradients(model, broken, torch.arange(30), loss_fn=cross_entropy))
    still = Data(torch.zeros(2, 6, dtype=torch.float64), torch.tensor([0.0, 0.0]), public=True)

    def flat_loss(network: nn.Module, batch) -> torch.Tensor:
        return 0 * network(batch[0]).sum(1)

    with pytest.raises(DataError, match="exactly 0"):
        clipping_bias(model, still, clip=Flat(1.0), loss_fn=flat_loss, batches=0)
    with pytest.raises(ConfigError, match="units=31"):
        clipping_bias(model, data, clip=Flat(1.0), units=31)


def separable() -> tuple[nn.Module, Data]:
    generator = torch.Generator().manual_seed(0)
    data = Data(torch.randn(40, 3, generator=generator), torch.arange(40) % 2, classes=("a", "b"))
    with torch.random.fork_rng([]):
        torch.manual_seed(0)
        return nn.Linear(3, 2), data


@pytest.mark.parametrize("units", [None, 30])
def test_where_nothing_passes_there_is_no_angle(units: int | None, tmp_path) -> None:
    model, data = separable()
    result = clipping_bias(model, data, clip=Global(1e-9, 2e-9), units=units)
    assert "cosine" not in result.headline
    assert result.headline["clipped"].value == 1
    assert any("no angle between them" in sentence for sentence in result.sentences())
    write_json(tmp_path / "a.json", result.to_dict())
    again = read(tmp_path / "a.json")
    assert again.sentences() == result.sentences()


def test_batches_of_one_unit_have_no_spread() -> None:
    """R of a single gradient is 0 and its cosine with itself 1."""
    model, data = separable()
    result = clipping_bias(model, data, clip=Flat(1.0), batch_size=1, batches=3)
    assert [batch.debiased_ratio for batch in result.batches] == [0, 0, 0]
    assert [batch.alignment for batch in result.batches] == pytest.approx([1, 1, 1])
    some = Moments.of(np.random.default_rng(0).normal(1, 1, (12, 3)), np.ones(12), population=50)
    assert some.debiased_ratio == some.ratio().value

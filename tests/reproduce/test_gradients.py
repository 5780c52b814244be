"""R of real gradients against a loop, masks of the asked size, symmetry along runs."""

import pytest
import torch

from noisewise.reproduce.gradients import asymmetries, random_support, turned_gradients
from noisewise.reproduce.starts import begun, some

GIVEN = {
    "seed": 1,
    "device": "cpu",
    "data": "digits",
    "model": "logistic",
    "ways": {
        "SGD": {"batch": 50, "lr": 0.5, "ablation": "plain"},
        "private": {"batch": 50, "lr": 0.5, "sigma": 2.0},
    },
    "epochs": 2,
    "states": 2,
    "bound": 0.1,
    "rows": 120,
}
MASK = {"kind": "magnitude mask", "source": "same", "epochs": 1, "batch": 50, "lr": 0.5}


@pytest.fixture(scope="module")
def seen():
    return turned_gradients(shares=[0.0, 0.5], mask=MASK, looked=60, batches=3, batch=20, **GIVEN)


def test_the_ratio_is_that_of_a_loop_over_images(seen):
    recipe = begun(1, "cpu", "digits", "logistic", 120, None)
    shown, rows = some(recipe.data.train, 60, 1), []
    for x, y in zip(shown.x.split(1), shown.y.split(1), strict=True):
        loss = torch.nn.functional.cross_entropy(recipe.model(x), y)
        rows.append(
            torch.cat([g.flatten() for g in torch.autograd.grad(loss, list(recipe.model.parameters()))]).double()
        )
    cloud = torch.stack(rows)
    mean = cloud.mean(0)
    ratio = float((cloud - mean).square().sum(1).mean() / mean.square().sum())
    cosines = torch.nn.functional.cosine_similarity(cloud, mean[None], dim=1)
    for way in ("SGD", "private"):
        start = seen["runs"][way][0]
        assert start["ratio"] == pytest.approx(ratio, rel=1e-4)
        assert start["alignment"] == pytest.approx(float(cosines.mean()), rel=1e-4)
    for kind in ("magnitude", "random", "held"):
        assert seen[kind]["0"]["ratio"] == pytest.approx(ratio, rel=1e-4)
        assert seen[kind]["0.5"]["ratio"] != pytest.approx(ratio, rel=1e-4)


def test_bounds_that_are_proven_hold_and_runs_go_on(seen):
    for way in ("SGD", "private"):
        first, last = seen["runs"][way]
        assert first["step"] == 0 < last["step"]
        assert last["ratio"] != first["ratio"]
        for state in (first, last):
            assert state["general"] == state["batches"]["general"] == state["batches"]["corrected"] == 1
    assert seen["runs"]["SGD"][1]["ratio"] != seen["runs"]["private"][1]["ratio"]


def test_random_supports_have_the_size_that_is_asked_for():
    weights = {"a": torch.zeros(30, 10), "b": torch.zeros(100)}
    support = random_support(weights, 0.3, 5)
    assert {name: mask.shape for name, mask in support.items()} == {"a": (30, 10), "b": (100,)}
    assert sum(int(mask.sum()) for mask in support.values()) == 280
    assert not torch.equal(support["a"], random_support(weights, 0.3, 6)["a"])


def test_symmetry_is_looked_at_along_each_run():
    seen = asymmetries(looked=60, **GIVEN)
    for course in seen.values():
        assert course[0]["step"] == 0 < course[1]["step"]
        assert all(0 <= point["asymmetry"] <= 1 and 0 < point["p"] <= 1 for point in course)
    assert seen["SGD"][0] == seen["private"][0]
    assert seen["SGD"][1] != seen["private"][1]

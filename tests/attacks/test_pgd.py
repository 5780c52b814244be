"""Attacks on inputs: exact on linear models, inside the ball and the box."""

from __future__ import annotations

import copy

import pytest
import torch
from torch.nn.functional import cross_entropy

from helpers.attacked import BOTH, draws, exact, linear, points
from helpers.digits_network import trained_on_digits
from noisewise.attacks.pgd import NORMS, Space, fgsm, margin, noise, pgd


@pytest.fixture(scope="module")
def trained():
    return trained_on_digits()


# --- against closed forms
@BOTH
@pytest.mark.parametrize("radius", [0.05, 0.2, 0.5])
def test_attacks_reach_the_exact_robust_accuracy_of_a_linear_model(norm: str, radius: float) -> None:
    model = linear()
    data = points(model)
    radius = radius if norm == "linf" else 3 * radius
    space = Space.of(data.x, (-100.0, 100.0), 1.0)
    truth = exact(model, data, radius, norm)
    assert 0.05 < truth.float().mean() < 0.9
    assert torch.equal(pgd(model, data.x, data.y, radius, norm, space, draws()).right, truth)
    assert torch.equal(fgsm(model, data.x, data.y, radius, norm, space).right, truth)
    blind = noise(model, data.x, data.y, radius, norm, space, draws()).right
    assert (truth & ~blind).sum() == 0
    assert blind.sum() > truth.sum()


@BOTH
def test_adversarial_points_stay_in_the_ball_and_the_box(trained, norm: str) -> None:
    model, data = trained
    x, y, radius = data.x[:100], data.y[:100], 0.3 if norm == "linf" else 1.5
    space = Space.of(x, (0.0, 1.0), 0.5)
    for found in (
        pgd(model, x, y, radius, norm, space, draws(), restarts=2),
        fgsm(model, x, y, radius, norm, space),
        noise(model, x, y, radius, norm, space, draws()),
    ):
        assert float(found.x.min()) >= 0
        assert float(found.x.max()) <= 1
        size = NORMS[norm].size((found.x - x) / 0.5)
        assert float(size.max()) <= radius * (1 + 1e-5)
        assert float(size.max()) > 0.5 * radius
        theirs = cross_entropy(model(found.x).double(), y, reduction="none")
        assert torch.allclose(found.loss, theirs, atol=1e-4)
        wrong_there = model(found.x).argmax(1) != y
        assert not (found.right & wrong_there).any()


def test_starts_and_noise_have_the_sizes_they_should() -> None:
    like = torch.zeros(4000, 3)
    inside = NORMS["l2"].inside(like, draws()).norm(dim=1)
    assert float(inside.max()) <= 1
    assert float(inside.mean()) == pytest.approx(3 / 4, abs=0.01)  # d / (d + 1) for the uniform ball
    assert torch.allclose(NORMS["l2"].surface(like, draws()).norm(dim=1), torch.ones(4000))
    cube = NORMS["linf"].inside(like, draws())
    assert float(cube.abs().max()) <= 1
    assert float(cube.var()) == pytest.approx(1 / 3, abs=0.02)
    assert set(NORMS["linf"].surface(like, draws()).unique().tolist()) == {-1.0, 1.0}


def test_l2_steps_keep_their_length_however_small_the_gradient() -> None:
    gradient = torch.tensor([[3e-30, 4e-30], [0.0, 0.0], [3e20, 4e20]])
    found = NORMS["l2"].direction(gradient)
    assert torch.allclose(found, torch.tensor([[0.6, 0.8], [0.0, 0.0], [0.6, 0.8]]))


# --- the margin
def test_the_margin_rises_in_the_direction_of_cross_entropy() -> None:
    z = torch.randn(50, 6, generator=draws(), dtype=torch.float64, requires_grad=True)
    y = torch.randint(0, 6, (50,), generator=draws())
    losses = cross_entropy(z, y, reduction="none")
    assert torch.allclose(torch.nn.functional.softplus(margin(z, y)), losses)
    (ours,) = torch.autograd.grad(margin(z, y).sum(), z)
    (theirs,) = torch.autograd.grad(losses.sum(), z)
    assert torch.allclose(*(NORMS["l2"].direction(g) for g in (ours, theirs)))


@BOTH
def test_stopping_at_misled_rows_changes_no_verdict(trained, norm: str) -> None:
    model, data = copy.deepcopy(trained[0]).double(), trained[1]
    x, y, space = data.x[:300].double(), data.y[:300], Space.of(data.x, (0.0, 1.0), 1.0)
    radius = 0.1 if norm == "linf" else 0.4
    asked: list[int] = []
    model.register_forward_hook(lambda _, inputs, __: asked.append(len(inputs[0])))
    full = pgd(model, x, y, radius, norm, space, draws(), restarts=2)
    patient = sum(asked)
    stopped = pgd(model, x, y, radius, norm, space, draws(), restarts=2, stop=True)
    assert torch.equal(full.right, stopped.right)
    assert 0.1 < float(full.right.double().mean()) < 0.9
    assert torch.allclose(full.loss[full.right], stopped.loss[full.right])
    assert (stopped.loss <= full.loss + 1e-9).all()
    assert sum(asked) - patient < 0.8 * patient


def test_more_restarts_never_help_the_model(trained) -> None:
    model, data = trained
    x, y, space = data.x[:200], data.y[:200], Space.of(data.x, (0.0, 1.0), 1.0)
    one, three = (pgd(model, x, y, 0.1, "linf", space, draws(), steps=3, restarts=k) for k in (1, 3))
    assert not (three.right & ~one.right).any()
    assert (three.loss >= one.loss).all()
    assert three.loss.sum() > one.loss.sum()

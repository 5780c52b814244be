"""Steps on a fixed batch are those that anyone would write."""

import copy

import pytest
import torch

from noisewise.reproduce.few_steps import _walk, few_steps, mean_gradient
from noisewise.reproduce.starts import begun


def test_plain_and_clipped_steps_are_those_of_a_loop():
    recipe = begun(0, "cpu", "digits", "logistic", 30, None)
    model, data = copy.deepcopy(recipe.model), recipe.data.train
    for ablation, bound in (("plain", None), ("clip-only", 0.5)):
        twin, losses = copy.deepcopy(model), []
        for _ in range(3):
            each = torch.nn.functional.cross_entropy(twin(data.x), data.y, reduction="none")
            losses.append(each.mean().item())
            total = [torch.zeros_like(p) for p in twin.parameters()]
            for loss in each:
                grads = torch.autograd.grad(loss, list(twin.parameters()), retain_graph=True)
                length = torch.cat([g.flatten() for g in grads]).norm()
                factor = 1.0 if bound is None else min(1.0, bound / float(length))
                total = [t + factor * g for t, g in zip(total, grads, strict=True)]
            with torch.no_grad():
                for p, t in zip(twin.parameters(), total, strict=True):
                    p -= 0.3 * t / len(data)
        walk = _walk(model, data, ablation, 2, 0.3, bound or 1.0, 0.0, 0)
        assert walk["loss"] == pytest.approx(losses, rel=1e-5)
        assert len(walk["gradient"]) == 3


def test_the_length_of_the_mean_gradient():
    recipe = begun(0, "cpu", "digits", "logistic", 30, None)
    loss = torch.nn.functional.cross_entropy(recipe.model(recipe.data.train.x), recipe.data.train.y)
    loss.backward()
    squares = sum(float(p.grad.square().sum()) for p in recipe.model.parameters())
    assert mean_gradient(recipe.model, recipe.data.train) == pytest.approx(squares**0.5, rel=1e-5)


def test_much_noise_is_seen_and_starts_differ():
    seen = few_steps(
        seed=0, device="cpu", data="digits", model="logistic", batch=40, steps=2, lr=0.5, bound=1.0, sigma=50.0, batches=2,
        open_epochs=3, open_batch=50, open_lr=0.5, rows=150,
    )  # fmt: skip
    for start in ("initial", "trained"):
        assert seen[start]["private"]["loss"][-1] > seen[start]["clipped"]["loss"][-1]
        assert seen[start]["SGD"]["loss"][-1] < seen[start]["SGD"]["loss"][0]
    assert seen["trained"]["SGD"]["loss"][0] < seen["initial"]["SGD"]["loss"][0]

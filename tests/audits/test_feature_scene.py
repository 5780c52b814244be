from __future__ import annotations

import numpy as np
import pytest
import torch

from noisewise.audits.feature_scene import Scene
from noisewise.clipping import Flat
from noisewise.data.synthetic import two_patch_distribution
from noisewise.losses import cross_entropy
from noisewise.mechanism import Mechanism
from noisewise.models import two_layer_cnn
from noisewise.persample import clipped_sum
from noisewise.sampling import Poisson
from noisewise.theory.xu2026 import Limits


def scene(ablation: str = "private", bound: float = 0.3) -> Scene:
    source = two_patch_distribution(0, d=30)
    parts = source.splits(0, 0, n=120, test=80)
    with torch.random.fork_rng([]):
        torch.manual_seed(0)
        model = two_layer_cnn((2, 30), 2, filters=6, start=0.2)
    plan = Mechanism(sampler=Poisson(120, 40), clip=Flat(bound), steps=5, noise_multiplier=2.0)
    return Scene(source, plan, model, parts.train, parts.test, 0.5, ablation)  # type: ignore[arg-type]


def test_the_patch_that_is_no_feature_is_found() -> None:
    stage = scene()
    patches = stage.noise_patches(stage.train)
    units = stage.source.features.double() / stage.source.norms.unsqueeze(1)
    assert float((patches @ units.T).abs().max()) < 1e-5  # noise has no part along features
    assert patches.shape == (120, 30)


@pytest.mark.parametrize("ablation", ["private", "noise-only"])
def test_the_signal_of_a_batch_is_its_clipped_sum(ablation: str) -> None:
    stage, batch = scene(ablation), torch.arange(0, 120, 3)
    rows = stage.train.take(batch)
    rule = Flat(0.3) if ablation == "private" else Flat(1e6)
    norms = clipped_sum(stage.model, cross_entropy, (rows.x, rows.y), rule).norms[0]
    assert (norms > 0.3).any()
    expected = torch.zeros_like(stage.model.filters.weight)
    for k in range(len(rows)):
        loss = cross_entropy(stage.model, (rows.x[k : k + 1], rows.y[k : k + 1])).sum()
        (gradient,) = torch.autograd.grad(loss, [stage.model.filters.weight])
        expected += gradient * min(1.0, rule.bound / float(gradient.norm()))
    assert stage.signal(batch, 0) == pytest.approx((-0.5 * expected.double() / 40).numpy(), abs=1e-6)


def test_noise_counts_only_where_it_is_added() -> None:
    assert scene().sigma(0) == scene("noise-only").sigma(0) == pytest.approx(2.0 * 0.3 / 40)
    assert scene("plain").sigma(0) == scene("clip-only").sigma(0) == 0.0


def test_a_step_is_taken_apart_and_put_together() -> None:
    stage = scene()
    view, before = stage.look(0), stage.weight.clone()
    signal = stage.signal(torch.arange(40), 0)
    noise = 0.5 * stage.sigma(0) * torch.from_numpy(np.random.default_rng(0).normal(size=before.shape))
    with torch.no_grad():
        stage.model.filters.weight.copy_(before + signal + noise)
    move = stage.move(before, signal, 0, view)
    for group in move.groups:
        for split in (group.own, group.other):
            assert split.total == pytest.approx(split.signal + split.noise + split.switching, abs=1e-9)
    assert np.mean(move.noise_lengths) == pytest.approx(1, abs=0.3)
    assert {row.name for row in stage.assumptions([view], [move], Limits())} >= {"step noise", "patch noise", "batch"}
    group = stage.group(0, stage.members(stage.test)[0].numpy(), [view], [move], 0.95)
    assert (group.loss, group.moves.own.total) == ([view.groups[0].loss], [move.groups[0].own.total])

"""Gradient inversion with noise of an absolute size."""

import pytest

from noisewise import audits
from noisewise.reproduce.inverted import inverted_images

GIVEN = {"seed": 0, "device": "cpu", "data": "digits", "model": "logistic", "images": 2, "variance": 1e-3}


def test_noise_has_the_variance_that_is_said_and_nothing_is_clipped(monkeypatch):
    asked, attack = [], audits.reconstruction

    def watched(*given, **settings):
        asked.append(settings)
        return attack(*given, **settings)

    monkeypatch.setattr(audits, "reconstruction", watched)
    seen = inverted_images(rates=[0.0, 0.5], steps=2, **GIVEN)
    for settings in asked:
        plan = settings["mechanism"]
        assert (plan.noise_at(0) * plan.clip_at(0).bound) ** 2 == pytest.approx(1e-3)
    assert [settings["sparsity"] for settings in asked] == [0.0, 0.5]
    assert seen["clipped"] == pytest.approx(seen["plain"], rel=1e-3)


def test_noise_and_masks_make_the_attack_worse():
    seen = inverted_images(rates=[0.0, 0.95], steps=150, **{**GIVEN, "variance": 1e-2})
    assert seen["plain"] < seen["noisy"]
    assert seen["rates"]["0"] < seen["rates"]["0.95"]
    assert seen["plain"] < seen["blind"]

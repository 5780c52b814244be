"""A campaign of attacks checks itself."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from noisewise.attacks.campaign import Answers, Campaign, checks


def test_a_falling_loss_is_found() -> None:
    def answers(loss: float, right: float) -> Answers:
        return Answers(np.arange(100) < 100 * right, np.full(100, loss))

    clean = answers(0.1, 0.9)
    blind = [clean, answers(0.11, 0.89), answers(0.12, 0.88)]
    some = {"fgsm": blind, "noise": blind, "unbounded": np.zeros(10, bool), "flat": np.zeros(100, bool)}
    good = Campaign([0, 1, 2], pgd=[clean, answers(1.0, 0.5), answers(2.0, 0.2)], **some)
    assert all(check.passed for check in checks(good, "private", "linf"))
    bad = replace(good, pgd=[clean, answers(2.0, 0.2), answers(1.0, 0.5)])
    assert [check.check for check in checks(bad, "private", "linf") if not check.passed] == [
        "loss rises with the radius"
    ]

"""Every audit keeps what all audits promise."""

from __future__ import annotations

import pytest
import torch

from helpers.audited import ROWS, network, people
from noisewise.audits import AUDITS
from noisewise.audits.audit import Audit
from noisewise.audits.reconstruction import Attack
from noisewise.clipping import Flat
from noisewise.data import Data
from noisewise.losses import loss_for
from noisewise.mechanism import Mechanism
from noisewise.sampling import Poisson
from noisewise.testing import check_audit


def needed(audit: Audit, data: Data) -> dict:
    """What the audit needs of a run."""
    mechanism = Mechanism(sampler=Poisson(ROWS, 30), clip=Flat(0.5), noise_multiplier=5.0, steps=6)
    known = {
        "members": people(1), "mechanism": mechanism, "loss_fn": loss_for(data), "lr": 0.5, "momentum": 0.5,
        "start": network(2), "path": (network(2),), "delta": 1e-4,
    }  # fmt: skip
    return {need: known[need] for need in audit.needs}


QUICK = {
    "calibration": {"resamples": 20},
    "clipping-bias": {"batches": 2, "batch_size": 16},
    "engine-epsilon": {"trials": 200},
    "landscape": {"points": 3, "directions": 2},
    "ntk": {"rows": 8},
    "reconstruction": {"images": 2, "attack": Attack(steps=2)},
    "robustness": {"steps": 2, "factors": (1.0, 4.0)},
}


@pytest.mark.parametrize("name", AUDITS)
def test_every_audit_keeps_what_all_promise(name: str) -> None:
    data = people()
    assert check_audit(AUDITS[name], network(), data, **needed(AUDITS[name], data), **QUICK.get(name, {})) is None


@pytest.mark.parametrize("name", [name for name, audit in AUDITS.items() if not audit.classes and audit.model])
def test_audits_that_need_no_classes_take_a_regression(name: str) -> None:
    classes = people()
    data = Data(classes.x, classes.x.sum(1))
    quick, model = QUICK.get(name, {}), network(0, 1)
    needs = needed(AUDITS[name], data) | {key: network(2, 1) for key in ("start",) if key in AUDITS[name].needs}
    needs |= {"path": (network(2, 1),)} if "path" in needs else {}
    assert check_audit(AUDITS[name], model, data, **needs, **quick) is None


@pytest.mark.parametrize("name", ["disparity", "calibration"])
def test_people_with_several_rows_are_people(name: str) -> None:
    two_each = people(unit=torch.arange(ROWS) // 2)
    assert check_audit(AUDITS[name], network(), two_each, **QUICK.get(name, {})) is None

"""Scores of members: logits of the label's probability."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from helpers.membership import rng
from noisewise.attacks.members import phi
from noisewise.errors import DataError


# signals and scores
def test_phi_is_the_logit_of_the_labels_probability() -> None:
    outputs = torch.from_numpy(rng(8).normal(0, 2, (50, 5)))
    y = torch.from_numpy(rng(9).integers(0, 5, 50))
    p = torch.softmax(outputs, 1)[torch.arange(50), y].numpy()
    assert phi(outputs, y) == pytest.approx(np.log(p / (1 - p)), abs=1e-12)
    assert phi(outputs + 500, y) == pytest.approx(phi(outputs, y), abs=1e-9)
    far = torch.tensor([[900.0, 0.0, 0.0], [0.0, 900.0, 0.0]], dtype=torch.float64)
    assert phi(far, torch.tensor([0, 0])) == pytest.approx([900 - math.log(2), -900])  # softmax gives 1 and 0 here
    for broken in (torch.full((2, 3), math.nan), torch.zeros(2, 1)):
        with pytest.raises(DataError, match="without a probability"):
            phi(broken, torch.tensor([0, 0]))

"""Data beside the model: on a CPU it stays where it is."""

import torch

from noisewise.training.resident import Resident, sent


def test_on_a_cpu_nothing_is_copied():
    units = {"x": torch.ones(3, 2), "y": torch.zeros(3)}
    assert Resident().of(units, torch.device("cpu")) is units
    assert sent(units["x"], torch.device("cpu")) is units["x"]

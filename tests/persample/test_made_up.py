"""Made-up units: shapes and types of the batch, none of its values."""

import torch
from torch import nn

from noisewise.persample.made_up import perturbed, synthetic


def test_an_autocast_sees_weights_that_are_moved_and_put_back():
    """Within one autocast PyTorch remembers the weights that it has cast, as they were."""
    torch.manual_seed(0)
    model, x = nn.Linear(4, 3), torch.randn(2, 4)
    with torch.autocast("cpu", torch.bfloat16):
        before = model(x)
        with perturbed(model):
            moved = model(x)
        after = model(x)
    assert not torch.equal(moved, before)
    assert torch.equal(after, before)


def test_made_up_labels_come_from_all_classes_and_tokens_do_not():
    like = (torch.zeros(0, 4), torch.zeros(0, 7).long(), torch.zeros(0).long(), torch.zeros(0).bool())
    torch.manual_seed(0)
    numbers, tokens, labels, truth = synthetic(like, 400, classes=10)
    assert set(labels.tolist()) == set(range(10))
    assert set(tokens.flatten().tolist()) == {0, 1}
    assert (truth.dtype, numbers.shape, tokens.shape) == (torch.bool, (400, 4), (400, 7))
    assert set(synthetic(like, 400)[2].tolist()) == {0, 1}


def test_synthetic_units_have_the_shapes_and_types_of_the_batch_and_none_of_its_values():
    like = {"x": torch.full((2, 3), 7.0), "ids": torch.full((2, 4), 9), "flag": torch.ones(2, dtype=torch.bool)}
    units = synthetic(like, 6)
    assert {key: (value.shape, value.dtype) for key, value in units.items()} == {
        "x": ((6, 3), torch.float32),
        "ids": ((6, 4), torch.int64),
        "flag": ((6,), torch.bool),
    }
    assert set(units["ids"].flatten().tolist()) <= {0, 1}
    assert not (units["x"] == 7).any()

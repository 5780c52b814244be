"""Losses per unit: against scikit-learn, and no silent broadcasting."""

import numpy as np
import pytest
import torch
from sklearn.metrics import log_loss, mean_squared_error
from torch import nn

from noisewise.data import Data
from noisewise.errors import ConfigError, DataError
from noisewise.losses import cross_entropy, loss_for, outputs_for, squared_error

X = torch.randn(6, 3, generator=torch.Generator().manual_seed(0))
CLASSES = torch.tensor([0, 1, 2, 2, 1, 0])
NUMBERS = torch.linspace(-1, 2, 6)


def the_first(columns):
    """A model whose outputs are its inputs' first columns."""
    return lambda x: x[:, :columns]


def test_cross_entropy_is_scikit_learns_log_loss():
    losses = cross_entropy(the_first(3), (X, CLASSES))
    assert losses.shape == (6,)
    for i, loss in enumerate(losses):
        expected = log_loss([CLASSES[i].item()], X[i : i + 1].double().softmax(1).numpy(), labels=[0, 1, 2])
        assert loss.item() == pytest.approx(expected, rel=1e-5)


@pytest.mark.parametrize("model", [the_first(1), lambda x: x[:, 0]])
def test_squared_error_is_scikit_learns_for_both_forms_of_output(model):
    losses = squared_error(model, (X, NUMBERS))
    assert losses.shape == (6,)
    assert losses.mean().item() == pytest.approx(mean_squared_error(NUMBERS.numpy(), X[:, 0].numpy()), rel=1e-5)
    np.testing.assert_allclose(losses.numpy(), (X[:, 0] - NUMBERS).square().numpy(), rtol=1e-6)


def test_squared_error_of_several_targets_is_their_mean():
    targets = X.flip(0)[:, :2].double()
    losses = squared_error(the_first(2), (X, targets))
    assert losses.dtype == X.dtype
    expected = [mean_squared_error(targets[i].numpy(), X[i, :2].numpy()) for i in range(6)]
    np.testing.assert_allclose(losses.numpy(), expected, rtol=1e-5)


@pytest.mark.parametrize(
    ("loss", "model", "y", "message"),
    [
        (squared_error, the_first(2), NUMBERS, r"outputs \[6, 2\] and targets \[6\].*outputs=1"),
        (squared_error, lambda x: x[:5, :1], NUMBERS, r"outputs \[5, 1\]"),
        (squared_error, the_first(1), NUMBERS.reshape(6, 1, 1), r"targets \[6, 1, 1\]"),
        (squared_error, lambda x: x.reshape(6, 3, 1), torch.zeros(6, 3, 1), r"needs \[n\] or \[n, k\]"),
        (cross_entropy, lambda x: x[:, 0], CLASSES, r"needs outputs \[n, classes\]"),
        (cross_entropy, the_first(3), CLASSES.unsqueeze(1), r"targets \[6, 1\]"),
        (cross_entropy, lambda x: x[:5], CLASSES, r"outputs \[5, 3\]"),
        (cross_entropy, the_first(1), CLASSES, "one output is 0 whatever it says"),
        (cross_entropy, the_first(3), NUMBERS, "classes are integers. Use squared_error"),
    ],
)
def test_outputs_that_do_not_go_with_the_targets_are_refused(loss, model, y, message):
    with pytest.raises(DataError, match=message):
        loss(model, (X, y))


def test_the_task_chooses_the_loss_and_the_number_of_outputs():
    classes, numbers = Data(X, CLASSES, classes=("a", "b", "c")), Data(X, NUMBERS)
    assert (loss_for(classes), outputs_for(classes)) == (cross_entropy, 3)
    assert (loss_for(numbers), outputs_for(numbers)) == (squared_error, 1)
    assert outputs_for(Data(X, X[:, :2])) == 2
    for data in (classes, numbers):
        assert loss_for(data)(nn.Linear(3, outputs_for(data)), (data.x, data.y)).shape == (6,)


def test_classes_are_not_read_off_the_labels():
    with pytest.raises(ConfigError, match="names no classes"):
        outputs_for(Data(X, CLASSES))


@pytest.mark.parametrize("label", [-100, -1, 3])
def test_no_label_means_nobody(label):
    """PyTorch skips -100 with a loss of 0."""
    with pytest.raises(IndexError, match=f"{label} is out of bounds"):
        cross_entropy(the_first(3), (X, CLASSES.where(CLASSES != 1, label)))

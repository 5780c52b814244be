"""How rules read a function's arguments, and when they decline."""

import pytest
import torch
import torch.nn.functional as F

from noisewise.persample.layers import RULES

BATCH = torch.randn(3, 4, 6, 5, generator=torch.Generator().manual_seed(0))
KERNEL = torch.randn(2, 4, 3, 2, generator=torch.Generator().manual_seed(1))


def conv(*args, **kwargs):
    """What the rule says about a call, formed, and what autograd says one unit at a time."""
    rule, weight = RULES[F.conv2d], KERNEL.clone().requires_grad_()
    output = F.conv2d(BATCH, weight, *args, **kwargs)
    grad = torch.randn(output.shape, generator=torch.Generator().manual_seed(2))
    got = rule.gradients(rule.operands(BATCH, KERNEL, *args, **kwargs), grad)["weight"]()
    expected = torch.autograd.grad(F.conv2d(BATCH[1:2], weight, *args, **kwargs), weight, grad[1:2])[0]
    return got.formed().reshape(3, *KERNEL.shape)[1], expected


@pytest.mark.filterwarnings("ignore:Using padding='same' with even kernel:UserWarning")
@pytest.mark.parametrize(
    ("args", "kwargs"),
    [
        ((), {}),
        ((None, 2, 1), {}),
        ((None, (2, 1), (0, 1), 1, 1), {}),
        ((), {"padding": "valid", "stride": [1, 2]}),
        ((), {"padding": "same"}),
        ((), {"padding": "same", "dilation": (1, 2)}),
        ((), {"padding": (1,), "stride": (2,), "dilation": (1,)}),
        ((), {"padding": [2, 0], "dilation": 2}),
    ],
)
def test_conv2d_arguments_in_every_spelling(args, kwargs):
    got, expected = conv(*args, **kwargs)
    assert torch.allclose(got, expected, rtol=1e-4, atol=1e-4)


def test_a_convolution_of_a_single_image_without_a_batch_is_left_to_dense():
    rule = RULES[F.conv2d]
    assert rule.exact(rule.operands(BATCH, KERNEL))
    assert not rule.exact(rule.operands(BATCH[0], KERNEL))


@pytest.mark.parametrize(("padding_idx", "found"), [(None, None), (0, 0), (3, 3), (-1, 6), (-7, 0)])
def test_padding_index_counts_from_either_end(padding_idx, found):
    operands = RULES[F.embedding].operands(torch.zeros(2, 3, dtype=torch.long), torch.zeros(7, 2), padding_idx)
    assert operands.settings["padding_idx"] == found


@pytest.mark.parametrize("setting", [{"max_norm": 1.0}, {"scale_grad_by_freq": True}])
def test_embeddings_that_look_at_more_than_their_tokens_are_left_to_dense(setting):
    rule = RULES[F.embedding]
    index, weight = torch.zeros(2, 3, dtype=torch.long), torch.zeros(7, 2)
    assert rule.exact(rule.operands(index, weight))
    assert not rule.exact(rule.operands(index, weight, **setting))


def test_layer_norm_over_the_units_themselves_is_left_to_dense():
    rule = RULES[F.layer_norm]
    assert rule.exact(rule.operands(torch.zeros(3, 4), (4,)))
    assert not rule.exact(rule.operands(torch.zeros(3, 4), (3, 4)))


def test_a_rule_gives_a_gradient_for_each_parameter_it_names():
    rule = RULES[F.linear]
    gradients = rule.gradients(rule.operands(torch.ones(2, 3), torch.ones(4, 3), torch.ones(4)), torch.ones(2, 4))
    assert gradients["weight"]().formed().shape == (2, 4, 3)
    assert torch.equal(gradients["bias"]().formed(), torch.ones(2, 4))

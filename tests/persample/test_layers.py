"""How rules read a function's arguments, and when they decline."""

import pytest
import torch
import torch.nn.functional as F

from noisewise.persample.layers import RULES, with_statistics

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


@pytest.mark.parametrize(("last", "shift"), [(False, 0.0), (False, 100.0), (True, 0.0)])
def test_statistics_that_pytorch_kept_give_the_gradient_of_group_norm(last, shift):
    """Against autograd of one unit in double precision; the mean is taken off first, so inputs far from zero keep digits."""
    x = (BATCH + shift).contiguous(memory_format=torch.channels_last if last else torch.contiguous_format)
    weight, bias = torch.ones(4, requires_grad=True), torch.zeros(4, requires_grad=True)
    rule, grad = RULES[F.group_norm], torch.randn(BATCH.shape, generator=torch.Generator().manual_seed(3))
    operands = with_statistics(rule.operands(x, 2, weight, bias), F.group_norm(x, 2, weight, bias))
    assert "statistics" in operands.settings
    got = rule.gradients(operands, grad)["weight"]().formed().detach().double()
    wide = torch.ones(4, dtype=torch.float64, requires_grad=True)
    for unit in range(3):
        output = F.group_norm(x[unit : unit + 1].double().contiguous(), 2, wide)
        expected = torch.autograd.grad(output, wide, grad[unit : unit + 1].double())[0]
        assert torch.allclose(got[unit], expected, rtol=1e-4, atol=1e-4)


def test_statistics_of_another_input_are_not_used():
    weight = torch.ones(4, requires_grad=True)
    rule, grad = RULES[F.group_norm], torch.ones_like(BATCH)
    operands = with_statistics(rule.operands(BATCH, 2, weight), F.group_norm(BATCH, 2, weight))
    moved = operands._replace(input=BATCH.flip(3) * 3)
    bare = rule.operands(moved.input, 2, weight)
    assert torch.equal(
        rule.gradients(moved, grad)["weight"]().formed(), rule.gradients(bare, grad)["weight"]().formed()
    )


def test_statistics_are_not_asked_of_what_is_recomputed():
    """Within a checkpoint they would be computed anew; of a call without gradients there are none."""
    weight = torch.ones(4, requires_grad=True)
    operands = RULES[F.group_norm].operands(BATCH, 2, weight)
    with torch.autograd.graph.saved_tensors_hooks(lambda kept: kept, lambda kept: kept):
        assert with_statistics(operands, F.group_norm(BATCH, 2, weight)) is operands
    assert with_statistics(operands, F.group_norm(BATCH, 2, weight.detach())) is operands


@pytest.mark.parametrize("kind", [torch.bfloat16, torch.float16], ids=str)
def test_biases_of_convolutions_in_half_precision_are_added_up_in_float32(kind):
    rule, grad = RULES[F.conv2d], torch.randn(3, 2, 40, 40, generator=torch.Generator().manual_seed(2)).to(kind)
    gradients = rule.gradients(rule.operands(BATCH.to(kind), KERNEL.to(kind)), grad)
    torch.testing.assert_close(gradients["bias"]().grads, grad.double().sum((2, 3)).float(), rtol=1e-5, atol=1e-4)

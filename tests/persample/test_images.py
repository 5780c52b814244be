"""Images with channels last in memory: the same numbers, the same sums, and only where the model allows it."""

from dataclasses import replace

import pytest
import torch
from torch import nn

from helpers.oracles import Apply, clipped_sum_by_hand, cross_entropy, relative_error, unit_gradients
from noisewise.clipping import Flat
from noisewise.errors import PrivacyError
from noisewise.persample import clipped_sum, examine
from noisewise.persample.images import convolves_images, draws, is_images, with_channels_last
from noisewise.persample.trace import Made, Step, Trace

IMAGES = torch.randn(6, 3, 9, 9, generator=torch.Generator().manual_seed(0))
GREY = torch.randn(6, 1, 9, 9, generator=torch.Generator().manual_seed(1))
LABELS = torch.tensor([0, 1, 2, 0, 1, 2])


def network(channels=3, *more):
    torch.manual_seed(3)
    return nn.Sequential(
        nn.Conv2d(channels, 8, 3, padding=1), nn.Tanh(), nn.MaxPool2d(2), nn.Conv2d(8, 6, 2, stride=2),
        nn.ReLU(), *more, nn.Flatten(), nn.Linear(24, 3),
    )  # fmt: skip


@pytest.mark.parametrize("images", [IMAGES, GREY, IMAGES[::2], IMAGES.double()], ids=["rgb", "grey", "some", "double"])
def test_the_same_numbers_with_channels_last(images):
    moved = with_channels_last(images)
    assert torch.equal(moved, images)
    assert moved.stride(1) == 1
    assert moved.is_contiguous(memory_format=torch.channels_last)


def test_one_channel_is_not_copied():
    assert with_channels_last(GREY).data_ptr() == GREY.data_ptr()
    assert with_channels_last(GREY[2:]).data_ptr() == GREY[2:].data_ptr()


@pytest.mark.parametrize(
    "other", [torch.zeros(4, 5), torch.zeros(4, 2, 3), torch.zeros(2, 3, 4, 5).long(), torch.zeros(0, 1, 2, 2)]
)
def test_other_tensors_stay_as_they_are(other):
    assert not is_images(other)
    assert with_channels_last(other) is other


def test_a_pass_that_convolves_images_is_known_by_its_operations():
    def trace(operation, shape):
        return Trace(5, [Step(operation, (), (), (Made("rows", shape),))])

    assert convolves_images(trace("aten::convolution.default", (8, 4, 4)), [LABELS, IMAGES])
    assert not convolves_images(trace("aten::convolution.default", (8, 4, 4)), [LABELS])
    assert not convolves_images(trace("aten::convolution.default", (8, 4)), [IMAGES])
    assert not convolves_images(trace("aten::relu.default", (8, 4, 4)), [IMAGES])
    both = (
        trace("aten::convolution.default", (8, 4, 4)).steps + trace("aten::native_group_norm.default", (8, 4, 4)).steps
    )
    assert not convolves_images(Trace(5, both), [IMAGES])


@pytest.mark.parametrize("images", [IMAGES, GREY], ids=["rgb", "grey"])
@pytest.mark.parametrize("kind", [torch.float32, torch.float64])
def test_sums_and_norms_are_those_of_a_loop_over_units(images, kind):
    model, batch = network(images.shape[1]).to(kind), (images.to(kind), LABELS)
    layout = examine(model, cross_entropy, batch)
    assert layout.channels_last
    expected, norms = clipped_sum_by_hand(unit_gradients((model, cross_entropy, batch)), Flat(0.5), {})
    tolerance = 1e-11 if kind is torch.float64 else 1e-4
    for chosen in (layout, replace(examine(model, cross_entropy, batch), channels_last=False, trace=None)):
        got = clipped_sum(model, cross_entropy, batch, Flat(0.5), layout=chosen)
        assert relative_error(got.grads._values, expected) < tolerance
        assert torch.allclose(got.norms, norms.to(got.norms), rtol=tolerance)


def test_a_unit_counts_the_same_alone_and_in_company():
    model = network()
    layout = examine(model, cross_entropy, (IMAGES, LABELS))
    together = clipped_sum(model, cross_entropy, (IMAGES, LABELS), Flat(1.0), layout=layout).norms
    for unit in range(len(IMAGES)):
        batch = (IMAGES[unit : unit + 1], LABELS[unit : unit + 1])
        alone = clipped_sum(model, cross_entropy, batch, Flat(1.0), layout=layout).norms
        assert torch.allclose(alone, together[:, unit : unit + 1], rtol=1e-6)


def test_a_model_with_group_norm_keeps_its_order():
    """PyTorch loses digits of its variance with channels last, and crashes where the input needs no gradient."""
    model = nn.Sequential(nn.GroupNorm(1, 3), network(3, nn.GroupNorm(2, 6)))
    layout = examine(model, cross_entropy, (IMAGES, LABELS))
    assert layout.proven
    assert not layout.channels_last


def test_a_pass_that_draws_is_known_by_its_operations():
    def trace(operation):
        return Trace(5, [Step("aten::relu.default", (), (), ()), Step(operation, (), (), ())])

    assert draws(trace("aten::native_dropout.default"))
    assert draws(trace("aten::bernoulli_.float"))
    assert not draws(trace("aten::convolution.default"))


def test_dropout_between_convolutions_does_not_stand_in_the_way():
    assert examine(network(3, nn.Dropout(0.5), nn.Dropout2d(0.2)), cross_entropy, (IMAGES, LABELS)).channels_last


def test_a_model_that_needs_its_own_order_keeps_it():
    def forward(m, x):
        return m.head(m.conv(x).view(len(x), -1))  # fails on other strides

    model = Apply(forward, conv=nn.Conv2d(3, 2, 3), head=nn.Linear(98, 3))
    layout = examine(model, cross_entropy, (IMAGES, LABELS))
    assert layout.proven
    assert not layout.channels_last
    assert not layout.fallback


def test_a_model_that_answers_by_strides_keeps_its_order():
    def forward(m, x):
        return m.head(m.conv(x).flatten(1)) * (1.0 if x.stride(1) > 1 else 1.1)

    model = Apply(forward, conv=nn.Conv2d(3, 2, 3), head=nn.Linear(98, 3))
    layout = examine(model, cross_entropy, (IMAGES, LABELS))
    assert layout.proven
    assert not layout.channels_last


WITHOUT = [
    (nn.Linear(5, 3), torch.randn(6, 5)),
    (nn.Sequential(nn.Conv1d(3, 2, 3), nn.Flatten(), nn.Linear(14, 3)), torch.randn(6, 3, 9)),
    (nn.Sequential(nn.Flatten(), nn.Linear(243, 3)), IMAGES),
]


@pytest.mark.parametrize(("model", "inputs"), WITHOUT)
def test_models_without_images_or_without_convolutions_keep_their_order(model, inputs):
    assert not examine(model, cross_entropy, (inputs, LABELS)).channels_last


@pytest.mark.parametrize("changes", [False, True])
@pytest.mark.parametrize("images", [IMAGES, GREY], ids=["rgb", "grey"])
def test_a_copy_of_the_batch_that_is_kept_is_refused(images, changes):
    """What the model is given is a copy, of which the caller has none: whoever still holds it afterwards kept it."""
    kept = []

    def forward(m, x):
        if m.warm:
            kept.append(x)
        return m.body(x.mul_(2) if changes else x)

    model = Apply(forward, body=network(images.shape[1]))
    model.warm = False
    layout = examine(model, cross_entropy, (images, LABELS))
    assert layout.channels_last
    assert layout.copies == changes
    clipped_sum(model, cross_entropy, (images, LABELS), Flat(1.0), layout=layout)
    model.warm = True
    with pytest.raises(PrivacyError, match="a forward pass changes"):
        clipped_sum(model, cross_entropy, (images, LABELS), Flat(1.0), layout=layout)

"""BatchNorm becomes GroupNorm: the copy can be trained, the original is untouched, and words say what was done."""

import copy

import pytest
import torch
from torch import nn

from helpers.oracles import Apply, clipped_sum_by_hand, cross_entropy, relative_error, unit_gradients
from helpers.tiny import run
from noisewise.clipping import Flat
from noisewise.errors import ConfigError, CoupledSamples
from noisewise.models.convert import batchnorm_to_groupnorm
from noisewise.persample import clipped_sum, examine

IMAGES = torch.randn(4, 2, 5, 5, generator=torch.Generator().manual_seed(0))
LABELS = torch.tensor([0, 1, 2, 0])


def cnn() -> nn.Sequential:
    torch.manual_seed(1)
    model = nn.Sequential(
        nn.Conv2d(2, 48, 3), nn.BatchNorm2d(48), nn.ReLU(), nn.Flatten(), nn.Linear(432, 32), nn.BatchNorm1d(32),
        nn.Linear(32, 3),
    )  # fmt: skip
    nn.init.normal_(model[1].weight)
    nn.init.normal_(model[5].bias)
    return model


def test_the_copy_passes_the_examination_that_the_original_fails():
    model = cnn()
    with pytest.raises(CoupledSamples, match=r"noisewise\.models\.convert\.batchnorm_to_groupnorm"):
        examine(model, cross_entropy, (IMAGES, LABELS))
    converted, _ = batchnorm_to_groupnorm(model)
    assert not examine(converted, cross_entropy, (IMAGES, LABELS)).fallback
    got = clipped_sum(converted, cross_entropy, (IMAGES, LABELS), Flat(0.5)).grads._values
    expected = clipped_sum_by_hand(unit_gradients((converted, cross_entropy, (IMAGES, LABELS))), Flat(0.5), {})[0]
    assert relative_error(got, expected) < 1e-4


def test_the_copy_can_be_trained():
    def model():
        torch.manual_seed(0)
        return nn.Sequential(nn.Linear(5, 16), nn.BatchNorm1d(16), nn.Tanh(), nn.Linear(16, 3))

    with pytest.raises(CoupledSamples):
        run(model())
    trained = run(batchnorm_to_groupnorm(model())[0])
    assert trained.status.status == "private"


def test_words_say_what_was_done_layer_by_layer():
    _, said = batchnorm_to_groupnorm(cnn())
    assert said == [
        "1: BatchNorm2d(48) became GroupNorm(16 groups, 48 channels), weight and bias kept; running statistics dropped.",
        "5: BatchNorm1d(32) became GroupNorm(2 groups, 32 channels), weight and bias kept; running statistics dropped.",
    ]


def test_the_original_is_untouched():
    model = cnn()
    before, kinds = copy.deepcopy(model.state_dict()), [type(module) for module in model.modules()]
    converted, _ = batchnorm_to_groupnorm(model)
    with torch.no_grad():
        for parameter in converted.parameters():
            parameter.zero_()
    assert [type(module) for module in model.modules()] == kinds
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())


def test_names_values_and_settings_are_kept():
    model = cnn().double().eval()
    model[1].weight.requires_grad_(False)
    model[1].eps = 0.01
    converted, _ = batchnorm_to_groupnorm(model)
    running = ("running_mean", "running_var", "num_batches_tracked")
    kept = {name: value for name, value in model.state_dict().items() if not name.endswith(running)}
    assert converted.state_dict().keys() == kept.keys()
    assert all(torch.equal(value, kept[name]) for name, value in converted.state_dict().items())
    assert not converted[1].weight.requires_grad
    assert converted[1].bias.requires_grad
    assert converted[1].eps == 0.01
    assert not converted[1].training


@pytest.mark.parametrize(
    ("layer", "groups", "expected"),
    [
        (nn.BatchNorm2d(64), 32, 32),
        (nn.BatchNorm2d(48), 32, 16),
        (nn.BatchNorm3d(7), 32, 1),
        (nn.BatchNorm2d(12, affine=False), 4, 4),
        (nn.SyncBatchNorm(20), 32, 4),
        (nn.BatchNorm1d(64), 32, 4),
        (nn.BatchNorm1d(8), 32, 1),
    ],
)
def test_groups_divide_the_channels(layer, groups, expected):
    new, said = batchnorm_to_groupnorm(layer, groups)
    assert isinstance(new, nn.GroupNorm)
    assert (new.num_groups, new.num_channels, new.affine) == (expected, layer.num_features, layer.affine)
    assert said[0].startswith("the model itself: ")


def test_one_layer_under_two_names_stays_one_layer():
    norm = nn.BatchNorm2d(4)
    inner = nn.Sequential(nn.Conv2d(4, 4, 1), norm)
    model = Apply(lambda m, x: m.again(m.norm(m.inner(x))), inner=inner, norm=norm, again=inner)
    converted, said = batchnorm_to_groupnorm(model)
    assert converted.norm is converted.inner[1] is converted.again[1]
    assert len(said) == 2
    assert said[1] == "norm: the same layer as inner.1, also replaced."


def test_a_model_without_batch_norm_is_copied():
    model = nn.Linear(2, 2)
    converted, said = batchnorm_to_groupnorm(model)
    assert converted is not model
    assert said == ["No BatchNorm was found: the copy is as the model was."]


@pytest.mark.parametrize("groups", [0, -1, 2.0, True])
def test_groups_is_a_whole_number(groups):
    with pytest.raises(ConfigError, match=r"groups=.*whole number of at least 1"):
        batchnorm_to_groupnorm(cnn(), groups)


def test_a_lazy_layer_must_know_its_channels():
    with pytest.raises(ConfigError, match=r"0: LazyBatchNorm1d has no channels yet. Run the model"):
        batchnorm_to_groupnorm(nn.Sequential(nn.LazyBatchNorm1d()))

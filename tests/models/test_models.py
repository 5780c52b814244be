"""Models by name: the papers' weight counts, per-unit gradients against the definition, closed forms, other software."""

from __future__ import annotations

import copy
import math

import numpy
import pytest
import torch
import torch.nn.functional as F
from torch import nn

from helpers import honest
from helpers.oracles import Setup, clipped_sum_by_hand, relative_error, typical_norm, unit_gradients
from noisewise.clipping import Flat
from noisewise.errors import ConfigError
from noisewise.losses import cross_entropy, squared_error
from noisewise.models import MODELS, build, gradient_norms, linear_minimum
from noisewise.models.convert import batchnorm_to_groupnorm
from noisewise.models.residual import StandardizedConv2d
from noisewise.models.transformer import Block
from noisewise.persample import clipped_sum, examine
from noisewise.testing import check_model, reveal

PUBLISHED = [  # weights: counts that the papers or the models' publishers state, or sums over the layers they state
    ("lenet", (1, 28, 28), 10, {}, 61_706),
    ("lenet", (1, 28, 28), 10, {"padding": 0}, 44_426),
    ("cnn", (1, 8, 8), 10, {}, 160 + 4_640 + 5_130),
    ("cnn", (3, 9, 8), 10, {}, 448 + 4_640 + 5_130),
    ("mnist-cnn", (1, 28, 28), 10, {}, 26_010),
    ("cifar-net", (3, 32, 32), 10, {}, 62_006),
    ("dp-cnn", (3, 32, 32), 10, {}, 550_570),
    ("dp-cnn-s", (1, 28, 28), 10, {}, 26_010),
    ("h-cnn", (243, 8, 8), 10, {}, 187_210),
    ("h-cnn-s", (81, 7, 7), 10, {}, 33_066),
    ("linear-head", (15_552,), 10, {}, 155_530),
    ("linear-head", (3, 20), 10, {"views": 3}, 210),
    ("conv-head", (243, 8, 8), 10, {}, 187_210),
    ("conv-head", (2, 81, 7, 7), 10, {"views": 2, "channels": 16}, 81 * 144 + 16 + 16 * 144 + 16 + 144 * 10 + 10),
    ("resnet18", (3, 32, 32), 1000, {}, 11_689_512),
    ("resnet18", (3, 32, 32), 10, {}, 11_181_642),
    ("resnet18", (3, 32, 32), 10, {"stem": "small"}, 11_181_642 - 3 * 64 * (49 - 9)),
    ("resnet34", (3, 32, 32), 1000, {}, 21_797_672),
    ("wrn-16-4", (3, 32, 32), 10, {}, 2_751_562),
    ("wrn-16-4", (3, 32, 32), 10, {"standardized": True}, 2_751_562 + 16 + 5 * (64 + 128 + 256)),
    ("wrn-40-4", (3, 32, 32), 10, {}, 8_955_466),
    ("wrn-40-4", (3, 32, 32), 10, {"standardized": True}, 8_955_466 + 16 + 13 * (64 + 128 + 256)),
    ("vit", (1, 28, 28), 10, {}, 3_200 + 1_024 + 4 * (256 + 12_480 + 4_160 + 16_640 + 16_448) + 128 + 650),
    ("words", (64,), 2, {}, 8_194 * 32 + 2 * (4 * 32 + 1)),
    ("mlp", (11,), 1, {}, 1_200 + 101),
    ("mlp", (1, 4, 4), 3, {"widths": (5, 6)}, 85 + 36 + 21),
    ("logistic", (1, 28, 28), 10, {}, 7_850),
    ("table", (12,), 2, {"knots": 3}, 2 * (12 * 7 + 1)),
    ("table", (12,), 2, {"knots": 1, "hidden": 5}, (2 + 5) * (12 * 3 + 1) + 2 * 5),
    ("two-layer-cnn", (2, 200), 2, {}, 2 * 10 * 200),
    ("two-layer-linear", (200,), 1, {}, 50 * 201),
]

SMALL = {**honest.SMALL, "cnn": ((1, 2, 2), {})}  # each model on the smallest inputs it takes


def count(model):
    return sum(p.numel() for p in model.parameters())


def draw(*shape, seed=0, dtype=torch.float64):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=dtype)


@pytest.mark.parametrize(("name", "shape", "outputs", "options", "weights"), PUBLISHED)
def test_weights_are_counted_and_there_is_one_output_per_class(name, shape, outputs, options, weights) -> None:
    model = build(name, shape, outputs, 0, **options)
    assert count(model) == weights
    with torch.no_grad():
        assert model(torch.zeros(2, *shape, dtype=torch.long if name == "words" else None)).shape == (2, outputs)


def test_every_model_has_a_count_and_a_check_of_its_gradients() -> None:
    assert set(MODELS) == {name for name, *_ in PUBLISHED} == set(SMALL)


LAYOUTS = {  # as the papers write them: channels, kernel, stride, padding; pooling kernel and stride
    "lenet": ((1, 28, 28), "6k5s1p2 tanh pool2s2 16k5s1p0 tanh pool2s2 400-120 tanh 120-84 tanh 84-10"),
    "mnist-cnn": ((1, 28, 28), "16k8s2p3 relu pool2s1 32k4s2p0 relu pool2s1 512-32 relu 32-10"),
    "dp-cnn-s": ((1, 28, 28), "16k8s2p2 tanh pool2s1 32k4s2p0 tanh pool2s1 512-32 tanh 32-10"),
    "cifar-net": ((3, 32, 32), "6k5s1p0 relu pool2s2 16k5s1p0 relu pool2s2 400-120 relu 120-84 relu 84-10"),
    "dp-cnn": (
        (3, 32, 32),
        "32k3s1p1 tanh 32k3s1p1 tanh pool2s2 64k3s1p1 tanh 64k3s1p1 tanh pool2s2 "
        "128k3s1p1 tanh 128k3s1p1 tanh pool2s2 2048-128 tanh 128-10",
    ),
    "h-cnn": ((243, 8, 8), "groups27 64k3s1p1 tanh pool2s2 64k3s1p1 tanh 1024-10"),
    "h-cnn-s": ((81, 7, 7), "groups27 16k3s2p1 tanh 32k3s1p1 tanh 512-32 tanh 32-10"),
}


def in_words(layer: nn.Module) -> str:
    match layer:
        case nn.Conv2d():
            return f"{layer.out_channels}k{layer.kernel_size[0]}s{layer.stride[0]}p{layer.padding[0]}"
        case nn.Linear():
            return f"{layer.in_features}-{layer.out_features}"
        case nn.MaxPool2d():
            return f"pool{layer.kernel_size}s{layer.stride}"
        case nn.GroupNorm():
            return f"groups{layer.num_groups}"
    return type(layer).__name__.lower()


@pytest.mark.parametrize("name", LAYOUTS)
def test_layers_are_in_the_papers_order(name) -> None:
    shape, layers = LAYOUTS[name]
    assert [in_words(m) for m in build(name, shape, 10, 0) if not isinstance(m, nn.Flatten)] == layers.split()


def test_the_wide_network_has_the_published_size() -> None:
    """2.75 million; the layout of Zagoruyko and Komodakis has 2,748,890, De et al. add norms on shortcuts and biases."""
    channels = (16, 64, 128, 256)
    norms_on_shortcuts = 2 * sum(channels[:-1])
    biases = channels[0] + 5 * sum(channels[1:])  # a stage has four convolutions and one on the shortcut
    assert 2_748_890 + norms_on_shortcuts + biases == 2_751_562
    assert round(2_751_562 / 1e6, 2) == 2.75


# --------------------------------------------------------------------------------------------------- private training


@pytest.mark.parametrize("outputs", [3, 1])
@pytest.mark.parametrize("name", MODELS)
def test_units_are_independent_and_clipped_sums_are_the_definitions(name, outputs) -> None:
    shape, options = SMALL[name]
    model = build(name, shape, outputs, 1, **options).double()
    x = (
        draw(4, *shape)
        if name != "words"
        else torch.randint(0, 9, (4, *shape), generator=torch.Generator().manual_seed(0))
    )
    batch = (x, torch.arange(4) % 3) if outputs == 3 else (x, draw(4, seed=1))
    setup = Setup(model, cross_entropy if outputs == 3 else squared_error, batch)
    layout = examine(*setup)
    assert layout.fallback == frozenset()  # every parameter has a ghost rule
    grads = unit_gradients(setup)
    clip = Flat(typical_norm(grads))
    got = clipped_sum(*setup, clip, layout=layout)
    expected, norms = clipped_sum_by_hand(grads, clip, {})
    assert float(norms.min()) < clip.bound < float(norms.max())
    assert relative_error(reveal(got.grads), expected) < 1e-9
    torch.testing.assert_close(got.norms, norms, rtol=1e-9, atol=0)


def test_the_models_report_says_so_in_words() -> None:
    model = build("vit", (1, 28, 28), 10, 0, depth=1)
    report = check_model(model, (torch.zeros(2, 1, 28, 28), torch.zeros(2, dtype=torch.long)), cross_entropy)
    assert report.trainable
    assert set(report.engines.values()) == {"ghost"}
    assert report.engines.keys() == dict(model.named_parameters()).keys()


# ------------------------------------------------------------------------------------------------------ by the seed


@pytest.mark.parametrize("name", MODELS)
def test_the_seed_is_the_initialisation_and_the_global_state_is_left_alone(name) -> None:
    shape, options = SMALL[name]
    torch.manual_seed(7)
    before = torch.get_rng_state()
    first, second, other = (build(name, shape, 3, seed, **options) for seed in (1, 1, 2))
    assert torch.equal(torch.get_rng_state(), before)
    assert all(torch.equal(a, b) for a, b in zip(first.parameters(), second.parameters(), strict=True))
    weights = [[p for p in model.parameters() if p.dim() > 1] for model in (first, other)]
    at_random = [[weight for weight in group if weight.any()] for group in weights]  # layers may start at 0
    assert at_random[0] or name == "linear-head"
    assert not any(torch.equal(a, b) for a, b in zip(*at_random, strict=True))


@pytest.mark.parametrize("shape", [(), (0,), (0, 28, 28), (1, 28.0, 28)])
@pytest.mark.parametrize("name", ["mlp", "logistic", "cnn", "h-cnn"])
def test_inputs_of_nothing_are_refused(name, shape) -> None:
    with pytest.raises(ConfigError, match=f"model '{name}'.*shape"):
        build(name, shape, 2, 0)


def test_generators_of_other_devices_are_left_alone(monkeypatch) -> None:
    """torch.manual_seed sets them too, and nothing sets them back."""
    monkeypatch.setattr(torch.cuda, "manual_seed_all", lambda seed: pytest.fail("the generators of GPUs were seeded"))
    assert build("logistic", (3,), 2, 0)[1].weight.shape == (2, 3)


# -------------------------------------------------------------------------------------------------- what is refused


@pytest.mark.parametrize(
    ("name", "shape", "needs"),
    [
        ("lenet", (1, 8, 8), "at least 12x12 pixels"),
        ("cnn", (64,), r"images \[channels, height, width\]"),
        ("cnn", (1, 1, 8), "at least 2x2 pixels"),
        ("mnist-cnn", (1, 28, 13), "at least 14x14"),
        ("dp-cnn-s", (1, 15, 16), "at least 16x16"),
        ("cifar-net", (3, 15, 15), "at least 16x16"),
        ("dp-cnn", (3, 7, 8), "at least 8x8"),
        ("resnet18", (3, 7, 8), "at least 8x8"),
        ("wrn-16-4", (3, 8), "images"),
        ("vit", (1, 28, 27), "multiples of patch=7"),
        ("h-cnn", (3, 32, 32), r"multiple of 81 channels.*noisewise.data.scatter.features\(data\)"),
        ("h-cnn", (243, 1, 8), "at least 2x2 places"),
        ("h-cnn-s", (81,), "scattering features"),
        ("two-layer-cnn", (3, 5), r"two patches \[2, d\]"),
        ("two-layer-cnn", (10,), r"two patches \[2, d\]"),
        ("two-layer-linear", (2, 5), r"vectors \[features\]"),
    ],
)
def test_inputs_that_do_not_fit_are_refused_with_what_is_needed(name, shape, needs) -> None:
    with pytest.raises(ConfigError, match=f"model '{name}' on inputs of shape .*needs .*{needs}.* Use other inputs"):
        build(name, shape, 10, seed=0)


@pytest.mark.parametrize("padding", [0, 1, 2])
def test_the_smallest_image_of_lenet_goes_with_its_padding(padding) -> None:
    side = 16 - 2 * padding
    assert build("lenet", (1, side, side), 10, 0, padding=padding)(torch.zeros(1, 1, side, side)).shape == (1, 10)
    with pytest.raises(ConfigError, match=f"at least {side}x{side}"):
        build("lenet", (1, side - 1, side), 10, 0, padding=padding)


def test_unknown_names_are_refused_with_the_known_ones() -> None:
    with pytest.raises(ConfigError, match=f"Known models: {', '.join(MODELS)}"):
        build("gpt", (1, 8, 8), 10, seed=0)


@pytest.mark.parametrize(
    ("name", "shape", "options", "message"),
    [
        ("cnn", (1, 8, 8), {"width": 3}, "no option 'width'. It has: none"),
        ("mlp", (4,), {"width": 3}, "no option 'width'. It has: widths, activation"),
        ("mlp", (4,), {"widths": 3}, "must be a sequence"),
        ("mlp", (4,), {"widths": (3, 0)}, "width=0 must be a whole number"),
        ("mlp", (4,), {"activation": "sine"}, "'sine' is unknown. Known: tanh, relu"),
        ("table", (4,), {"knots": -1}, "knots=-1 must be a whole number of at least 0"),
        ("table", (4,), {"hidden": True}, "hidden=True"),
        ("lenet", (1, 28, 28), {"padding": 3}, "padding=3"),
        ("resnet18", (3, 8, 8), {"stem": "huge"}, "stem='huge' is unknown. Known: large, small"),
        ("resnet34", (3, 8, 8), {"width": 0}, "width=0"),
        ("wrn-16-4", (3, 8, 8), {"groups": 3}, "groups=3 must divide"),
        ("vit", (1, 28, 28), {"heads": 5}, "width=64 must be a multiple of heads=5"),
        ("vit", (1, 28, 28), {"depth": True}, "depth=True"),
        ("h-cnn", (81, 8, 8), {"groups": 10}, "groups=10 does not divide the 81 channels"),
        ("h-cnn", (81, 8, 8), {"statistics": (torch.zeros(81), torch.ones(1))}, r"shapes \[81\] and \[1\]"),
        ("h-cnn", (81, 8, 8), {"statistics": (torch.zeros(81), torch.zeros(81))}, "deviations finite and > 0"),
        ("h-cnn", (81, 8, 8), {"statistics": 3}, "must be a pair"),
        ("two-layer-cnn", (2, 8), {"start": 0.0}, "start=0.0"),
        ("two-layer-linear", (8,), {"hidden": 0}, "hidden=0"),
    ],
)
def test_options_that_make_no_sense_are_refused(name, shape, options, message) -> None:
    with pytest.raises(ConfigError, match=message):
        build(name, shape, 2, 0, **options)


@pytest.mark.parametrize("outputs", [0, 2.0, True])
def test_the_number_of_outputs_is_checked(outputs) -> None:
    with pytest.raises(ConfigError, match="number of classes, or 1 for a regression"):
        build("cnn", (1, 8, 8), outputs, 0)


# --------------------------------------------------------------------------------------------- against other software


@pytest.mark.parametrize(("name", "depths"), [("resnet18", [2, 2, 2, 2]), ("resnet34", [3, 4, 6, 3])])
def test_residual_networks_are_hugging_faces_with_group_norm(name, depths) -> None:
    from transformers import ResNetConfig, ResNetForImageClassification

    sizes = [12, 24, 48, 96]  # 4, 8, 16, 32 groups
    config = ResNetConfig(
        num_channels=3, embedding_size=12, hidden_sizes=sizes, depths=depths, layer_type="basic", num_labels=5
    )
    theirs, _ = batchnorm_to_groupnorm(ResNetForImageClassification(config))
    ours = build(name, (3, 40, 40), 5, 0, width=12)
    pairs = _in_execution_order(ours, theirs, draw(1, 3, 40, 40, dtype=torch.float32))
    with torch.no_grad():
        for mine, other in pairs:
            assert type(mine) is type(other)
            for (_, p), (_, q) in zip(mine.named_parameters(), other.named_parameters(), strict=True):
                q.copy_(p.add_(0.1 * torch.randn(p.shape, generator=torch.Generator().manual_seed(p.numel()))))
        x = draw(3, 3, 40, 40, seed=2, dtype=torch.float32)
        torch.testing.assert_close(ours.eval()(x), theirs.eval()(x).logits, rtol=1e-4, atol=1e-4)
    assert count(ours) == count(theirs) == sum(count(mine) for mine, _ in pairs)


def _in_execution_order(ours: nn.Module, theirs: nn.Module, x: torch.Tensor) -> list[tuple[nn.Module, nn.Module]]:
    """Layers with parameters in pairs: by when they run, the main path of a block before its shortcut."""
    found = []
    for model in (ours, theirs):
        order: list[tuple[bool, nn.Module]] = []
        hooks = [
            module.register_forward_hook(lambda m, *_, order=order, side=("shortcut" in name): order.append((side, m)))
            for name, module in model.named_modules()
            if isinstance(module, nn.Conv2d | nn.GroupNorm | nn.Linear)
        ]
        model.eval()(x)
        for hook in hooks:
            hook.remove()
        found.append([m for side, m in order if not side] + [m for side, m in order if side])
    return list(zip(*found, strict=True))


def test_a_transformer_block_is_pytorchs_encoder_layer() -> None:
    ours = Block(8, 2, 32).double()
    theirs = nn.TransformerEncoderLayer(8, 2, 32, 0.0, "gelu", batch_first=True, norm_first=True).double()
    attention = theirs.self_attn
    with torch.no_grad():
        for mine, other in [
            (ours.norm1.weight, theirs.norm1.weight),
            (ours.norm2.bias, theirs.norm2.bias),
            (ours.qkv.weight, attention.in_proj_weight),
            (ours.qkv.bias, attention.in_proj_bias),
            (ours.mix.weight, attention.out_proj.weight),
            (ours.mix.bias, attention.out_proj.bias),
            (ours.mlp[0].weight, theirs.linear1.weight),
            (ours.mlp[0].bias, theirs.linear1.bias),
            (ours.mlp[2].weight, theirs.linear2.weight),
            (ours.mlp[2].bias, theirs.linear2.bias),
        ]:
            mine.add_(draw(*mine.shape), alpha=0.3)
            other.copy_(mine)
    x = draw(3, 5, 8)
    torch.testing.assert_close(ours(x), theirs(x), rtol=1e-9, atol=1e-9)


def test_initial_weights_have_the_stated_spread() -> None:
    places = build("vit", (1, 28, 28), 10, 0).positions.weight
    residual, wide = build("resnet18", (3, 32, 32), 10, 0)[0], build("wrn-16-4", (3, 32, 32), 10, 0)[1].conv2
    spread = {places: 0.02, residual.weight: math.sqrt(2 / (64 * 49)), wide.weight: math.sqrt(1 / (64 * 9))}
    for weight, expected in spread.items():
        assert float(weight.detach().std()) == pytest.approx(expected, rel=0.05)
    assert not wide.bias.any()


def test_a_transformer_sees_where_a_patch_is() -> None:
    model = build("vit", (1, 4, 4), 3, 0, patch=2, width=8, heads=2).double()
    x = draw(1, 1, 4, 4)
    assert not torch.allclose(model(x), model(x.roll(2, 3)), rtol=1e-6)
    nn.init.zeros_(model.positions.weight)
    torch.testing.assert_close(model(x), model(x.roll(2, 3)))


def test_wide_blocks_are_activation_norm_convolution_by_hand() -> None:
    model = build("wrn-16-4", (3, 8, 8), 2, 0, width=1).double()
    conv, block, second = model[0], model[1], model[2]

    def group(x, norm):
        parts = x.reshape(len(x), 16, -1)
        parts = (parts - parts.mean(2, keepdim=True)) / (parts.var(2, keepdim=True, correction=0) + 1e-5).sqrt()
        return parts.reshape(x.shape) * norm.weight[:, None, None] + norm.bias[:, None, None]

    with torch.no_grad():
        for p in model.parameters():
            p.add_(draw(*p.shape), alpha=0.1)
        x = conv(draw(2, 3, 8, 8))
        out = block.conv2(group(block.conv1(group(x.relu(), block.norm1)).relu(), block.norm2))
        first = out + block.shortcut[2](group(x.relu(), block.shortcut[1]))
        torch.testing.assert_close(block(x), first)
        out = second.conv2(group(second.conv1(group(first.relu(), second.norm1)).relu(), second.norm2)) + first
        torch.testing.assert_close(second(first), out)
    assert model(draw(1, 3, 8, 8)).shape == (1, 2)


def test_standardized_weights_are_those_of_batch_norm_over_the_weights() -> None:
    """As timm's ScaledStdConv2d has it: a batch norm of [1, outputs, inputs] with weight gain / sqrt(fan_in)."""
    conv = StandardizedConv2d(3, 5, 3, 2, 1).double()
    with torch.no_grad():
        conv.weight.copy_(3 + 2 * draw(5, 3, 3, 3))
        conv.gain.copy_(draw(5, seed=1))
        conv.weight[4] = 7.0  # all alike: no spread to divide by
    flat, scale = conv.weight.reshape(1, 5, -1), conv.gain * 27**-0.5
    expected = F.batch_norm(flat, None, None, scale, training=True, momentum=0.0, eps=1e-15).reshape_as(conv.weight)
    torch.testing.assert_close(conv.standardized()[:4], expected[:4], rtol=1e-9, atol=1e-12)
    assert not conv.standardized()[4].any()
    x = draw(2, 3, 8, 8)
    torch.testing.assert_close(conv(x)[:, :4], F.conv2d(x, expected[:4], conv.bias[:4], 2, 1))


def test_gradients_of_standardized_weights_are_those_of_each_unit_alone() -> None:
    model = build("wrn-16-4", (3, 8, 8), 3, 0, width=1, standardized=True).double()
    x, y = draw(3, 3, 8, 8), torch.tensor([0, 1, 2])

    def loss(model, batch):
        return F.cross_entropy(model(batch[0]), batch[1], reduction="none")

    expected = {name: torch.zeros_like(p) for name, p in model.named_parameters()}
    for k in range(3):
        gradients = torch.autograd.grad(loss(model, (x[k : k + 1], y[k : k + 1])).sum(), list(model.parameters()))
        factor = min(1.0, 0.3 / math.sqrt(sum(float(g.square().sum()) for g in gradients)))
        for name, gradient in zip(expected, gradients, strict=True):
            expected[name] += factor * gradient
    sums = reveal(clipped_sum(model, loss, (x, y), Flat(0.3)).grads)
    for name, total in expected.items():
        torch.testing.assert_close(sums[name], total, rtol=1e-6, atol=1e-9)


def test_words_of_either_text_are_averaged_without_padding_and_separator() -> None:
    model = build("words", (6,), 2, 0, size=9, width=3).double()
    words = model.words.weight.detach()

    def by_hand(first, second):
        u, v = (words[ids].mean(0) if ids else torch.zeros(3, dtype=torch.float64) for ids in (first, second))
        return model.head(torch.cat([u, v, (u - v).abs(), u * v]))

    rows = torch.tensor([[5, 5, 2, 8, 1, 0], [3, 4, 0, 0, 0, 0], [8, 7, 6, 0, 0, 0], [0, 0, 0, 0, 0, 0]])
    expected = [by_hand([5, 5, 2], [1]), by_hand([3, 4], []), by_hand([], [7, 6]), by_hand([], [])]
    torch.testing.assert_close(model(rows), torch.stack(expected))


def test_scattering_features_are_normalised_by_unit_or_by_constants() -> None:
    x = 5 + 3 * draw(2, 81, 4, 4, dtype=torch.float32)
    by_unit = build("h-cnn-s", (81, 4, 4), 2, 0)[0](x).reshape(2, 27, -1)
    torch.testing.assert_close(by_unit.mean(2), torch.zeros(2, 27), rtol=0, atol=1e-5)
    torch.testing.assert_close(by_unit.var(2, correction=0), torch.ones(2, 27), rtol=1e-4, atol=0)
    mean, std = torch.arange(81.0), torch.linspace(1, 2, 81)
    model = build("h-cnn", (81, 4, 4), 2, 0, statistics=(mean, std))
    torch.testing.assert_close(model[0](x)[:, 80], (x[:, 80] - 80) / 2)
    assert count(model) == count(build("h-cnn", (81, 4, 4), 2, 0))
    batch = (x, torch.tensor([0, 1]))
    assert examine(model, cross_entropy, batch).fallback == frozenset()


def test_activations_are_the_ones_asked_for() -> None:
    for name, kind in {"tanh": nn.Tanh, "relu": nn.ReLU}.items():
        for model in (build("mlp", (3,), 2, 0, activation=name), build("lenet", (1, 28, 28), 2, 0, activation=name)):
            assert {type(m) for m in model if isinstance(m, nn.Tanh | nn.ReLU)} == {kind}


# ------------------------------------------------------------------------------------- the two-layer ReLU network


def test_the_two_layer_network_is_its_formula() -> None:
    m, d = 3, 5
    model = build("two-layer-cnn", (2, d), 2, 0, filters=m).double()
    x, w = draw(4, 2, d), model.filters.weight.detach().reshape(2, m, d)
    for i in range(4):
        for k in range(2):
            value = sum(max(float(w[k, r] @ x[i, p]), 0.0) for r in range(m) for p in range(2)) / m
            assert model(x)[i, k].item() == pytest.approx(value, rel=1e-9)


@pytest.mark.parametrize("outputs", [2, 3])
def test_gradient_norms_have_a_closed_form(outputs) -> None:
    model = build("two-layer-cnn", (2, 4), outputs, 0, filters=6).double()
    x, y = draw(20, 2, 4), torch.arange(20) % outputs
    (grads,) = unit_gradients(Setup(model, cross_entropy, (x, y))).values()
    expected = grads.flatten(1).norm(dim=1)
    torch.testing.assert_close(gradient_norms(model, x, y), expected, rtol=1e-9, atol=0)
    apart = x * torch.tensor([1.0, 0.0]).reshape(2, 1)  # one patch empty: no inner product between patches
    assert not torch.allclose(gradient_norms(model, apart, y), expected, rtol=0.01)


def test_a_filter_that_is_exactly_at_zero_is_inactive() -> None:
    model = build("two-layer-cnn", (2, 4), 2, 0).double()
    nn.init.zeros_(model.filters.weight)
    assert not gradient_norms(model, draw(3, 2, 4), torch.tensor([0, 1, 0])).any()


def test_initialisations_are_uniform_by_default_and_normal_by_option() -> None:
    d, filters = 400, 50
    default = build("two-layer-cnn", (2, d), 2, 0, filters=filters).filters.weight.detach() * math.sqrt(d)
    normal = build("two-layer-cnn", (2, d), 2, 0, filters=filters, start=0.01).filters.weight.detach() / 0.01
    assert float(default.abs().max()) <= 1
    assert float(default.std()) == pytest.approx(1 / math.sqrt(3), rel=0.02)
    assert float(normal.std()) == pytest.approx(1, rel=0.02)
    assert float(normal.abs().max()) > 3.5


# ------------------------------------------------------------------------------------------ the two-layer linear network

SIGNAL, DEVIATION, NOISE = torch.tensor([1.0, -2.0, 0.5], dtype=torch.float64), 0.7, 4


def population_loss(first: torch.Tensor, second: torch.Tensor) -> torch.Tensor:
    """`E (W2 W1 x - y)^2 / 2` from the moments of x and y, for the signal and noise inputs above."""
    mean = torch.cat([SIGNAL, torch.zeros(NOISE, dtype=torch.float64)])
    moments = torch.outer(mean, mean) + DEVIATION**2 * torch.eye(len(mean), dtype=torch.float64)
    row = (second @ first)[0]
    return (row @ moments @ row - 2 * row @ mean + 1) / 2


def test_the_minimum_in_closed_form_is_stationary_balanced_and_least_squares() -> None:
    first, second = linear_minimum(SIGNAL, DEVIATION, NOISE, draw(6))
    torch.testing.assert_close(second.T @ second, first @ first.T)
    assert not first[:, len(SIGNAL) :].any()
    grads = torch.func.grad(population_loss, (0, 1))(first, second)
    assert max(float(grad.abs().max()) for grad in grads) < 1e-12
    moved = torch.func.grad(population_loss, (0, 1))(1.01 * first, second)
    assert max(float(grad.abs().max()) for grad in moved) > 1e-3
    y = torch.arange(40_000, dtype=torch.float64) % 2 * 2 - 1
    x = DEVIATION * draw(len(y), len(SIGNAL) + NOISE)
    x[:, : len(SIGNAL)] += y[:, None] * SIGNAL
    solution = torch.linalg.lstsq(x, y[:, None]).solution[:, 0]
    torch.testing.assert_close((second @ first)[0], solution, rtol=0, atol=0.01)


def descend(model: nn.Sequential, rate: float, steps: int) -> tuple[torch.Tensor, torch.Tensor]:
    first, second = model[0].weight.detach().clone(), model[1].weight.detach().clone()
    for _ in range(steps):
        by_first, by_second = torch.func.grad(population_loss, (0, 1))(first, second)
        first, second = first - rate * by_first, second - rate * by_second
    return first, second


def test_a_balanced_start_is_the_same_function_and_ends_without_noise_columns() -> None:
    d = len(SIGNAL) + NOISE
    plain, balanced = (build("two-layer-linear", (d,), 1, 3, hidden=6, balanced=b).double() for b in (False, True))
    torch.testing.assert_close(
        balanced[1].weight @ balanced[0].weight, plain[1].weight @ plain[0].weight, atol=1e-6, rtol=0
    )

    def imbalance(first, second):
        return float((second.T @ second - first @ first.T).detach().norm())

    assert imbalance(balanced[0].weight, balanced[1].weight) < 1e-6 < 0.1 < imbalance(plain[0].weight, plain[1].weight)
    least = float(population_loss(*linear_minimum(SIGNAL, DEVIATION, NOISE, draw(6))))
    (first, second), (other, last) = (descend(model, 0.05, 800) for model in (balanced, plain))
    assert float(population_loss(first, second)) == pytest.approx(least, rel=1e-6)
    assert float(population_loss(other, last)) == pytest.approx(least, rel=1e-6)
    # gradient flow keeps the balance: what steps lose of it in the same time falls with their length
    assert imbalance(*descend(balanced, 0.005, 200)) < 0.15 * imbalance(*descend(balanced, 0.05, 20))
    assert float(first[:, len(SIGNAL) :].norm()) < 0.01 < 0.1 < float(other[:, len(SIGNAL) :].norm())


@pytest.mark.parametrize(("d", "hidden", "outputs"), [(5, 4, 3), (2, 6, 3), (5, 2, 3)])
def test_balance_holds_for_several_outputs_and_any_rank(d, hidden, outputs) -> None:
    model = build("two-layer-linear", (d,), outputs, 0, hidden=hidden, balanced=True)
    first, second = model[0].weight.detach(), model[1].weight.detach()
    torch.testing.assert_close(second.T @ second, first @ first.T, atol=1e-6, rtol=1e-5)
    plain = build("two-layer-linear", (d,), outputs, 0, hidden=hidden)
    torch.testing.assert_close(
        second @ first, plain[1].weight.detach() @ plain[0].weight.detach(), atol=1e-6, rtol=1e-5
    )


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"signal": torch.zeros(3)}, "not zero"),
        ({"direction": torch.zeros(3)}, "not zero"),
        ({"deviation": -1.0}, "deviation=-1.0"),
        ({"noise": -1}, "noise=-1"),
    ],
)
def test_minima_that_do_not_exist_are_refused(changes, message) -> None:
    settings = {"signal": torch.ones(3), "deviation": 1.0, "noise": 2, "direction": torch.ones(4), **changes}
    with pytest.raises(ConfigError, match=message):
        linear_minimum(**settings)


def test_models_can_be_copied() -> None:
    model = build("vit", (1, 28, 28), 10, 0)
    assert torch.equal(copy.deepcopy(model)(torch.ones(1, 1, 28, 28)), model(torch.ones(1, 1, 28, 28)))


# -------------------------------------------------------------------------------------------------- tables


def test_a_table_model_is_a_piecewise_linear_function_of_each_number() -> None:
    """Any values at the knots, 0 at 0, straight lines between: NumPy's interpolation."""
    model = build("table", (1,), 1, 0, knots=2).double()
    knots, values = [-1.0, -0.5, 0.0, 0.5, 1.0], [0.3, -2.0, 0.0, 1.0, 0.7]
    at = {round(float(place), 2): 1 + index for index, place in enumerate(model[1].places)}
    with torch.no_grad():
        for knot, value in zip(knots, values, strict=True):
            if knot:
                model[2].weight[0, at[knot]] = value
    x = torch.linspace(-1, 1, 41, dtype=torch.float64)
    expected = numpy.interp(x.numpy(), knots, values)
    assert model(x[:, None])[:, 0].tolist() == pytest.approx(expected.tolist(), abs=1e-6)


@pytest.mark.parametrize("hidden", [0, 3])
def test_a_table_model_starts_at_zero(hidden) -> None:
    model = build("table", (4,), 2, 0, knots=2, hidden=hidden)
    assert not model(draw(5, 4, dtype=torch.float32)).any()


@pytest.mark.parametrize("knots", [0, 1, 5])
def test_what_is_absent_stays_absent_and_no_row_is_longer_than_four(knots) -> None:
    hats = build("table", (30,), 2, 0, knots=knots)[1]
    assert not hats(torch.zeros(2, 30)).any()
    present = hats(torch.eye(30))  # one of a category: the feature, and the hat at 1
    assert (present > 1e-5).sum(1).tolist() == [1 + (knots > 0)] * 30
    lengths = hats(draw(50, 30, dtype=torch.float32).clamp(-1, 1)).norm(dim=1)
    assert float(lengths.max()) <= 4 + 1e-5
    short = torch.full((1, 30), 0.1)
    assert torch.equal(hats(short)[:, :30], short)

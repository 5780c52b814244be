"""Norms are rounded up, never down: at every scale, in every type, by every way, with factors cut to fewer bits.

What counts is the sum of a lone unit as it is handed out, against the bound that its factor was made for.
"""

import copy
import math
from contextlib import nullcontext

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

from helpers.in_float64 import in_float64, length
from helpers.oracles import Apply, lone, proven
from noisewise.batches import Views
from noisewise.clipping import Flat, Normalized, Samples
from noisewise.persample import clipped_sum, examine, formed, rounding
from noisewise.persample.convolution import Convolution
from noisewise.persample.formed import Again, Formed, Kept, measure_formed
from noisewise.persample.gradients import Outer, Rows, join
from noisewise.persample.layers import RULES
from noisewise.persample.rounding import lengths
from noisewise.runtime import Runtime
from noisewise.testing import reveal

pytestmark = pytest.mark.filterwarnings("ignore:Using padding='same' with even kernel:UserWarning")

CONV = {1: F.conv1d, 2: F.conv2d, 3: F.conv3d}


def random(*shape, seed, dtype):
    return torch.randn(shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed)).to(dtype)


def outer(time, rows, columns):
    return lambda seed, dtype: Outer(
        random(1, time, rows, seed=seed, dtype=dtype), random(1, time, columns, seed=seed + 1, dtype=dtype)
    )


def convolution(channels, out, size, kernel, **settings):
    def make(seed, dtype):
        function = CONV[len(size)]
        inputs = random(1, channels, *size, seed=seed, dtype=dtype)
        weight = torch.zeros(out, channels // settings.get("groups", 1), *kernel, dtype=dtype)
        grad = random(*function(inputs, weight, **settings).shape, seed=seed + 1, dtype=dtype)
        rule = RULES[function]
        return rule.gradients(rule.operands(inputs, weight, **settings), grad)["weight"]()

    return make


def embedding(seed, dtype):
    index = torch.randint(0, 4, (1, 9), generator=torch.Generator().manual_seed(seed))
    return Rows(index, random(1, 9, 5, seed=seed, dtype=dtype), 4)


def tied(seed, dtype):
    """A table used for a look-up and as a matrix: 9 look-ups and 3 products."""
    return join([embedding(seed, dtype), outer(3, 4, 5)(seed + 7, dtype)])


def viewed(make, views=3):
    """Several rows of a unit."""

    def unit(seed, dtype):
        rows = [make(seed + 10 * k, dtype) for k in range(views)]
        if isinstance(rows[0], Outer):
            both = Outer(torch.cat([r.left for r in rows]), torch.cat([r.right for r in rows]))
        else:
            one = rows[0]
            settings = (one.kernel, one.stride, one.padding, one.dilation, one.groups)
            both = Convolution(torch.cat([r.input for r in rows]), torch.cat([r.grad for r in rows]), *settings)
        return both.by_unit(views)

    return unit


WAYS = {
    "one position": outer(1, 30, 20),
    "Gram": outer(3, 30, 20),
    "Gram, many positions": outer(40, 200, 150),
    "formed": outer(60, 3, 4),
    "embedding": embedding,
    "tied": tied,
    "gradients as they are": lambda seed, dtype: Formed(random(1, 700, seed=seed, dtype=dtype)),
    "scalar": lambda seed, dtype: Formed(random(1, seed=seed, dtype=dtype)),
    "few channels": convolution(2, 3, (5, 6), (3, 3), padding=1),
    "shifted Gram": convolution(8, 8, (3, 3), (3, 3), padding=1),
    "shifted": convolution(8, 8, (13, 12), (3, 3), padding=1),
    "uneven padding": convolution(8, 4, (7,), (4,), padding="same"),
    "unfolded Gram": convolution(8, 8, (5, 5), (3, 3), stride=2, padding=1),
    "unfolded": convolution(8, 3, (21, 20), (2, 2), stride=2),
    "groups": convolution(6, 4, (5, 4), (3, 3), groups=2),
    "one axis": convolution(8, 6, (9,), (3,)),
    "three axes": convolution(8, 4, (3, 3, 4), (2, 2, 2)),
    "views": viewed(outer(2, 30, 20)),
    "views of images": viewed(convolution(8, 8, (3, 3), (3, 3), padding=1)),
}

SCALES = [(0, 0), (19, 0), (0, -30), (-30, 30), (36, -36), (-44, 35), (-24, -24), (-40, 4), (25, 12), (-6, 3), (38, -2)]

TYPES = {torch.float64: 1e-6, torch.float32: 1e-5}

EACH_WAY = pytest.mark.parametrize("way", WAYS)

EACH_TYPE = pytest.mark.parametrize("dtype", TYPES, ids=["float64", "float32"])

EACH_MEMORY = pytest.mark.parametrize("kept", [True, False], ids=["kept", "again"])


def times(tensor, exponent):
    """10^exponent x, in two steps: the power may be no float32."""
    half = exponent // 2
    return tensor * 10.0**half * 10.0 ** (exponent - half)


def at_scale(gradient, left, right):
    match gradient:
        case Outer():
            return Outer(times(gradient.left, left), times(gradient.right, right))
        case Convolution():
            settings = (gradient.kernel, gradient.stride, gradient.padding, gradient.dilation, gradient.groups)
            return Convolution(times(gradient.input, right), times(gradient.grad, left), *settings)
        case Rows():
            return Rows(gradient.index, times(gradient.rows, left), gradient.size)
        case Formed():
            return Formed(times(gradient.grads, left))
    raise NotImplementedError(gradient)


def contribution(gradient, rule, mask=None):
    """Norm, length of a lone unit's sum, and what is summed."""
    squares, rest = gradient.measure(mask)
    norm = squares.sqrt()
    if not bool(norm.isfinite()):  # such a unit is left out
        return float(norm), 0.0, rest
    return float(norm), length(rest.weighted_sum(rule.factors(Samples(norm[None]))[0])), rest


@EACH_MEMORY
@EACH_TYPE
@EACH_WAY
def test_a_lone_unit_stays_within_the_bound_at_every_scale(way, dtype, kept, monkeypatch):
    """Seeds 0..10, one for each pair of scales of the two factors, from 1e-44 to 1e38."""
    monkeypatch.setattr(formed, "KEPT", formed.KEPT if kept else 0)
    for seed, scales in enumerate(SCALES):
        gradient = at_scale(WAYS[way](seed, dtype), *scales)
        mask = torch.rand(gradient.formed()[0].numel(), generator=torch.Generator().manual_seed(seed)) < 0.7
        shape = (gradient.grad.shape[1], -1, *gradient.kernel) if isinstance(gradient, Convolution) else None
        shape = gradient.formed().shape[1:] if shape is None else shape
        for rule in (Flat(1e-30), Flat(1e-12), Flat(1.0), Normalized(1.0), Normalized(1e-12)):
            for choice in (None, mask.reshape(shape)):
                norm, summed, _ = contribution(gradient, rule, choice)
                assert summed <= rule.sensitivity * (1 + TYPES[dtype]), (scales, rule, choice is None)
                true = in_float64(gradient).formed().flatten()
                true = length(true if choice is None else true * choice.flatten())
                assert norm <= true * 1.01 + 1e-40 or (not math.isfinite(norm) and not true < 1e38), (scales, norm)
                if math.isfinite(norm) and 1e-30 < true < 1e30:
                    assert norm >= true * (1 - 1e-5), (scales, norm / true)


@EACH_TYPE
@pytest.mark.parametrize("way", ["Gram", "shifted Gram", "unfolded Gram", "formed", "unfolded", "groups", "shifted"])
def test_positions_of_unlike_scales_stay_within_the_bound(way, dtype):
    """Seeds 0..5. Where the output's gradient is large the input is tiny, and the other way round: squares vanish."""
    for seed in range(6):
        gradient = WAYS[way](seed, dtype)
        parts = [gradient.left, gradient.right] if isinstance(gradient, Outer) else [gradient.grad, gradient.input]
        axis = 1 if isinstance(gradient, Outer) else 2
        for part, (first, last) in zip(parts, [(0, -25), (-25, 0)], strict=True):
            half = part.shape[axis] // 2
            part.narrow(axis, 0, half).mul_(10.0**first)
            part.narrow(axis, half, part.shape[axis] - half).mul_(10.0**last)
        for rule in (Flat(1e-30), Normalized(1.0)):
            norm, summed, _ = contribution(gradient, rule)
            assert summed <= rule.sensitivity * (1 + TYPES[dtype]), seed
            assert summed >= rule.sensitivity * 0.98, seed
            assert norm <= length(in_float64(gradient).formed()) * 1.01


@EACH_WAY
def test_norms_of_ordinary_float32_gradients_are_hardly_too_long(way):
    """Seeds 0..9."""
    for seed in range(10):
        gradient = WAYS[way](seed, torch.float32)
        norm, _, _ = contribution(gradient, Flat(1.0))
        assert norm <= length(in_float64(gradient).formed()) * (1 + (5e-4 if "many" not in way else 1e-3))


def test_masked_coordinates_are_zero_even_where_the_sum_overflows():
    """What is kept is tiny and gets its bound; what is masked, large, overflows with the same factor."""
    left, right = torch.tensor([[[1e20, 1e-30]]]), torch.tensor([[[1e15, 1e-5]]])
    mask = torch.tensor([[False, False], [False, True]])
    total = Outer(left, right, mask).weighted_sum(torch.tensor([1e35], dtype=torch.float64))
    assert not total[~mask].any()
    assert 0 < total[mask].item() <= 1 + 1e-5
    assert 0.98 <= contribution(Outer(left, right), Normalized(1.0), mask)[1] <= 1 + 1e-5


def cut(tensor, bits, whole=torch.round):
    """Rounded to so many bits behind the leading one, or the others left out."""
    mantissa, exponent = torch.frexp(tensor)
    return torch.ldexp(whole(mantissa * 2.0 ** (bits + 1)) / 2.0 ** (bits + 1), exponent)


class Fewer(TorchDispatchMode):
    """Matrix products and convolutions on factors with fewer bits, as tensor cores compute them; `mv` is none of them."""

    def __init__(self, bits, whole=torch.round):
        super().__init__()
        self.whole = whole
        self.bits = bits

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        if function._schema.name.split("::")[1] in ("mm", "bmm", "addmm", "baddbmm", "convolution_backward"):
            args = [cut(a, self.bits, self.whole) if isinstance(a, torch.Tensor) and a.dim() > 1 else a for a in args]
        return function(*args, **(kwargs or {}))


@EACH_MEMORY
@pytest.mark.parametrize(("word", "bits"), [("tf32", 10), ("bf16", 7)])
@EACH_WAY
def test_a_lone_unit_stays_within_the_bound_with_fewer_bits(way, word, bits, kept, monkeypatch):
    """Seeds 0..9. Factors of TF32 are rounded, or, as Hopper reads them, cut off: every other time."""
    monkeypatch.setattr(rounding, "setting", lambda name: word)
    monkeypatch.setattr(formed, "KEPT", formed.KEPT if kept else 0)
    for seed in range(10):
        with Fewer(bits, torch.trunc if word == "tf32" and seed % 2 else torch.round):
            summed = contribution(WAYS[way](seed, torch.float32), Normalized(1.0))[1]
        assert summed <= 1 + 1e-5, seed
        assert summed >= 0.98, seed


def test_fewer_bits_that_nobody_allows_for_would_break_the_bound(monkeypatch):
    """Seeds 0..9: the test above has power. Rounded factors make some sum too long."""
    monkeypatch.setattr(rounding, "setting", lambda name: "ieee")
    with Fewer(10):
        worst = max(contribution(WAYS["shifted Gram"](seed, torch.float32), Normalized(1.0))[1] for seed in range(10))
    assert worst > 1 + 1e-5


NEW = {name: "none" for names in (*rounding.MATMUL.values(), *rounding.CONVOLUTION.values()) for name in names}

CUDA_CONV = "backends.cudnn.conv.fp32_precision"

CUDA_MATMUL = "backends.cuda.matmul.fp32_precision"


@pytest.mark.parametrize(
    ("settings", "convolution", "expected"),
    [
        (NEW, False, 0),
        (NEW, True, 0),
        (NEW | {CUDA_CONV: "tf32"}, False, 0),
        (NEW | {CUDA_CONV: "tf32"}, True, 2**-9),
        (NEW | {CUDA_MATMUL: "tf32"}, False, 2**-9),
        (NEW | {CUDA_MATMUL: "tf32", CUDA_CONV: "ieee"}, True, 2**-9),
        (NEW | {CUDA_MATMUL: "something new"}, False, 2**-7),
        ({"get_float32_matmul_precision": "highest", "backends.cudnn.allow_tf32": True}, True, 2**-9),
        ({"get_float32_matmul_precision": "highest", "backends.cudnn.allow_tf32": True}, False, 0),
        ({"get_float32_matmul_precision": "highest", "backends.cudnn.allow_tf32": False}, True, 0),
        ({"get_float32_matmul_precision": "high", "backends.cudnn.allow_tf32": False}, True, 2**-9),
        ({"get_float32_matmul_precision": "medium"}, False, 2**-7),
        ({"get_float32_matmul_precision": "highest"}, True, 2**-7),
        ({}, False, 2**-7),
    ],
)
def test_settings_of_cuda_are_read_and_what_is_unknown_is_taken_for_the_worst(
    settings, convolution, expected, monkeypatch
):
    monkeypatch.setattr(rounding, "setting", settings.get)

    class Cuda:
        dtype, device = torch.float32, torch.device("cuda")

    assert rounding.shortened(Cuda(), convolution) == expected


def test_double_precision_is_never_cut(monkeypatch):
    monkeypatch.setattr(rounding, "setting", lambda name: "bf16")
    assert rounding.shortened(torch.zeros(1, dtype=torch.float64), True) == 0
    assert rounding.shortened(torch.zeros(1), True) == 2**-7


def test_the_settings_of_this_version_are_found_under_their_names():
    assert all(any(rounding.setting(name) is not None for name in names) for names in rounding.MATMUL.values())
    assert all(any(rounding.setting(name) is not None for name in names) for names in rounding.CONVOLUTION.values())
    assert rounding.setting("backends.cudnn.no_such_setting") is None


def test_the_precision_of_matrix_products_is_read():
    before = torch.get_float32_matmul_precision()
    try:
        torch.set_float32_matmul_precision("medium")
        assert rounding.shortened(torch.zeros(1)) == 2**-7
    finally:
        torch.set_float32_matmul_precision(before)
    assert rounding.shortened(torch.zeros(1)) == 0


def normalised(kind):
    """Layers before a normalisation on inputs of mean 100: their gradients sum to nearly nothing over positions."""
    torch.manual_seed(0)
    if kind == "conv":
        body, norm, x = nn.Conv2d(8, 16, 3, padding=1), nn.GroupNorm(16, 16), 100 + torch.randn(4, 8, 8, 8)
    elif kind == "small conv":
        body, norm, x = nn.Conv2d(128, 128, 3), nn.GroupNorm(128, 128), 100 + torch.randn(4, 128, 4, 4)
    else:
        body = nn.Sequential(nn.Linear(512, 256), Apply(lambda m, x: x.transpose(1, 2)))
        norm, x = nn.InstanceNorm1d(256), 100 + torch.randn(4, 6, 512)
    return nn.Sequential(body, norm, nn.Flatten(), nn.LazyLinear(3)), x


@EACH_MEMORY
@pytest.mark.parametrize("kind", ["conv", "small conv", "linear"])
def test_a_layer_before_a_normalisation_gets_its_bound(kind, kept, monkeypatch):
    """Seed 0. The first layer alone learns, and gets all of the bound but rounding."""
    monkeypatch.setattr(formed, "KEPT", formed.KEPT if kept else 0)
    model, x = normalised(kind)
    model(x)
    first = next(name for name, _ in model.named_parameters())
    support = {name: name == first for name, _ in model.named_parameters()}
    for unit in range(4):
        batch = (x[unit : unit + 1], torch.tensor([unit % 3]))
        loss = lambda m, b: F.cross_entropy(m(b[0]), b[1], reduction="none")  # noqa: E731
        got = lone(model, loss, batch, Normalized(1.0), support).grads._values
        assert 0.98 <= length(got[first]) <= 1 + 1e-5


def test_gradients_that_are_formed_once_more_are_held_to_the_promised_norm():
    """Whatever comes out the second time: here ten times as much."""
    gradient = outer(5, 6, 7)(0, torch.float32)
    norms = rounding.lengths(gradient.form(slice(None), None).grads)
    louder = Outer(10 * gradient.left, gradient.right)
    assert length(Again(louder, None, norms).weighted_sum(1 / norms)) == pytest.approx(1.0, abs=1e-6)


def test_kept_gradients_are_the_ones_that_were_measured():
    squares, rest = WAYS["formed"](0, torch.float32).measure(None)
    assert isinstance(rest, Kept)
    assert 1 <= float(squares.sqrt()) / length(rest.formed()) < 1 + 5e-4  # as of those that are not kept


@pytest.mark.parametrize("engine", ["auto", "dense", "loop"])
@pytest.mark.parametrize("rule", [Flat(1e-30), Flat(1e-12), Flat(1.0), Normalized(1.0)], ids=repr)
@pytest.mark.parametrize("positions", [1, 3])
@pytest.mark.parametrize("size", [1e19, 1e-30, 1.0, 1e30])
def test_a_lone_unit_of_a_linear_model_on_inputs_of_any_size(size, positions, rule, engine):
    torch.manual_seed(0)
    model = nn.Linear(7, 3, bias=False)
    nn.init.zeros_(model.weight)
    x = torch.randn(1, positions, 7) * size
    loss = lambda m, b: F.cross_entropy(m(b).sum(1), torch.zeros(len(b)).long(), reduction="none")  # noqa: E731
    got = lone(model, loss, x, rule, runtime=Runtime(engine=engine)).grads._values
    assert length(got["weight"]) <= rule.sensitivity * (1 + 1e-5)


@pytest.mark.parametrize("engine", ["auto", "dense", "loop"])
@pytest.mark.parametrize("rule", [Flat(1e-30), Flat(1e-12), Normalized(1.0)], ids=repr)
@pytest.mark.parametrize("positions", [1, 3])
@pytest.mark.parametrize("scale", [1e-12, 1.0, 1e15, 1e30])
def test_a_lone_unit_of_a_saturated_softmax_stays_within_the_bound(scale, positions, rule, engine):
    """A softmax so sure of itself that output gradients are about 1e-30."""
    model = nn.Linear(4, 3, bias=False)
    with torch.no_grad():
        model.weight.copy_(torch.tensor([70.0, 0.0, 0.0])[:, None].expand(3, 4))
    x = torch.full((1, positions, 4), 0.25 / positions)
    loss = lambda m, b: F.cross_entropy(m(b).sum(1), torch.zeros(len(b)).long(), reduction="none") * scale  # noqa: E731
    got = lone(model, loss, x, rule, runtime=Runtime(engine=engine))
    assert 0 < float(got.norms) < 1e-25 * max(scale, 1.0)
    assert length(got.grads._values["weight"]) <= rule.sensitivity * (1 + 1e-5)


def small(kind, dtype):
    torch.manual_seed(1)
    models = {
        "linear": (nn.Sequential(nn.Linear(40, 30), nn.Tanh(), nn.Linear(30, 3)), (40,)),
        "over time": (nn.Sequential(nn.Linear(20, 30), nn.Flatten(), nn.Linear(150, 3)), (5, 20)),
        "conv": (nn.Sequential(nn.Conv2d(8, 8, 3), nn.Flatten(), nn.Linear(72, 3)), (8, 5, 5)),
        "norm": (nn.Sequential(nn.LayerNorm(30), nn.Linear(30, 3)), (30,)),
    }
    model, shape = models[kind]
    return model.to(dtype), torch.randn(3, *shape).to(dtype)


@pytest.mark.parametrize("engine", ["auto", "dense", "loop"])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32, torch.float64])
@pytest.mark.parametrize("kind", ["linear", "over time", "conv", "norm"])
@pytest.mark.parametrize("loud", [1e-4, 1.0, 1e3])
def test_models_in_every_type_are_measured_and_summed_in_float32_at_least(kind, dtype, engine, loud):
    """Seed 1. float16 cannot hold the squares of its own numbers: its norms must not be taken in it."""
    model, x = small(kind, dtype)
    loss = lambda m, b: m(b).float().square().sum(1) * loud  # noqa: E731
    exact = small(kind, torch.float64)[0].double()
    exact.load_state_dict({name: value.double() for name, value in model.state_dict().items()})
    for unit in range(3):
        row = x[unit : unit + 1]
        got = lone(model, loss, row, Normalized(1.0), runtime=Runtime(engine=engine))
        grads = torch.autograd.grad(exact(row.double()).square().sum() * loud, list(exact.parameters()))
        true = math.hypot(*(length(grad) for grad in grads))
        assert float(got.norms) == pytest.approx(true, rel=0.03 if dtype.itemsize == 2 else 1e-3)
        assert all(value.dtype == torch.promote_types(dtype, torch.float32) for value in got.grads._values.values())
        if dtype.itemsize == 2:  # sums that were rounded to the model's type on the way would all fit in it
            assert not any(torch.equal(value.to(dtype).float(), value) for value in got.grads._values.values())
        summed = math.hypot(*(length(value) for value in got.grads._values.values()))
        assert 0.98 <= summed <= 1 + 1e-5


@pytest.mark.parametrize("kind", ["over time", "conv"])
def test_an_autocast_around_everything_does_not_cut_norms_and_sums(kind):
    """Seed 1. The forward pass is the caller's; norms and sums are computed in full."""
    model, x = small(kind, torch.float32)
    loss = lambda m, b: m(b).float().square().sum(1)  # noqa: E731
    for unit in range(3):
        with torch.autocast("cpu", dtype=torch.bfloat16):
            got = lone(model, loss, x[unit : unit + 1], Normalized(1.0)).grads._values
        assert 0.999 <= math.hypot(*(length(value) for value in got.values())) <= 1 + 1e-5


def test_an_autocast_around_everything_is_fast_and_sees_weights_that_move():
    """Within one autocast PyTorch remembers the weights that it has cast, as they were."""
    model, x = small("over time", torch.float32)
    loss = lambda m, b: m(b).float().square().sum(1)  # noqa: E731
    totals = []
    for together in (True, False):
        torch.manual_seed(0)
        network, sums = copy.deepcopy(model), []
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=together):
            for _ in range(2):
                with nullcontext() if together else torch.autocast("cpu", dtype=torch.bfloat16):
                    layout = examine(network, loss, x)
                    assert not layout.fallback
                    network(x)  # somebody else's pass
                    found = clipped_sum(network, loss, x, Flat(1e6), runtime=Runtime(engine="ghost"), layout=layout)
                    sums.append(reveal(found.grads))
                with torch.no_grad():
                    for parameter in network.parameters():
                        parameter.mul_(2)
        totals.append(sums)
    for one, other in zip(*totals, strict=True):
        assert all(torch.equal(one[name], other[name]) for name in one)
    assert not all(torch.equal(totals[0][0][name], totals[0][1][name]) for name in totals[0][0])


def test_views_of_a_unit_stay_within_the_bound_at_every_scale():
    """Seed 1."""
    model, x = small("over time", torch.float32)
    loss = lambda m, b: m(b).square().sum(1)  # noqa: E731
    for scale in (1e-20, 1.0, 1e12):
        views = Views(x[None] * scale, torch.full((1, 3), 1 / 3))
        got = clipped_sum(model, loss, views, Normalized(1.0), layout=proven(model, loss, views.rows())).grads._values
        assert 0.98 <= math.hypot(*(length(value) for value in got.values())) <= 1 + 1e-5


@pytest.mark.parametrize("entries", [1, 511, 512, 513, 5000])
@pytest.mark.parametrize(("dtype", "scale"), [(torch.float32, 37), (torch.float64, 300)])
def test_lengths_are_rounded_up_at_every_scale(entries, dtype, scale):
    """Seed 0, against exact sums of Python's fractions of a few units."""
    from fractions import Fraction

    base = random(2, entries, seed=0, dtype=dtype)
    for exponent in (-scale - 7, -scale, -20, 0, 20, scale):
        rows = times(base, exponent)
        for row, found in zip(rows.tolist(), rounding.lengths(rows).tolist(), strict=True):
            square = sum(Fraction(value) ** 2 for value in row)
            assert square <= Fraction(found) ** 2 <= square * Fraction(1.0001) if math.isfinite(found) else exponent > 0


def test_squares_never_vanish():
    norms = torch.tensor([0.0, 1e-169, 1e-160, 1e-154, 1.0, 1e100], dtype=torch.float64)
    squares = rounding.squared(norms)
    assert squares[0] == 0
    assert bool((squares.sqrt() >= norms).all())
    assert torch.allclose(squares[4:], norms[4:].square(), rtol=1e-15)


def test_factors_are_rounded_towards_zero():
    """Seed 0."""
    factors = torch.cat(
        [random(1000, seed=0, dtype=torch.float64) * 10.0**e for e in (-320, -50, -40, -3, 0, 30, 38, 60)]
    )
    rounded = rounding.toward_zero(factors, torch.float32)
    assert bool(rounded.isfinite().all())
    assert bool((rounded.double().abs() <= factors.abs()).all())
    ordinary = (factors.abs() > 1e-37) & (factors.abs() < 1e38)
    assert torch.allclose(rounded[ordinary].double(), factors[ordinary], rtol=3e-7)
    assert torch.equal(rounding.toward_zero(factors, torch.float64), factors)


def test_scaling_is_exact():
    """Seed 0."""
    tensor = random(3, 5, seed=0, dtype=torch.float32) * torch.tensor([[1e-30], [1.0], [1e30]])
    exponent = rounding.exponents(rounding.magnitudes(tensor), torch.float32)
    small = rounding.scaled(tensor, exponent)
    assert bool(((small.abs().amax(1) < 1) & (small.abs().amax(1) >= 0.5)).all())
    assert torch.equal(rounding.scaled(small, -exponent), tensor)
    assert rounding.exponents(torch.tensor([0.1, 3.0]), torch.float32) is None


@pytest.mark.parametrize("odd", [0.0, math.nan, math.inf, 1e-30, 1e30])
def test_a_length_does_not_depend_on_the_other_rows(odd):
    rows = torch.randn(5, 1000, generator=torch.Generator().manual_seed(0))
    assert torch.equal(lengths(torch.cat([rows, torch.full((1, 1000), odd)]))[:5], lengths(rows))


def outer_of_many_positions(cancelling):
    generator = torch.Generator().manual_seed(0)
    left, right = torch.randn(6, 40, 300, generator=generator), torch.randn(6, 40, 200, generator=generator)
    if cancelling is not None:
        left[5], right[5] = cancelling, torch.ones(40, 1) * right[5, :1]
    return Outer(left, right)


@pytest.mark.parametrize("odd", ["cancelling", "not a number"])
@pytest.mark.parametrize("mask", [None, torch.rand(300, 200) < 0.5], ids=["whole", "masked"])
def test_a_norm_does_not_depend_on_the_other_units(odd, mask):
    """One whose positions cancel, or which is no number, must not send the others another way."""
    one = (
        torch.randn(1, 300, generator=torch.Generator().manual_seed(1)) * torch.tensor([1.0, -1.0]).repeat(20)[:, None]
    )
    ordinary = outer_of_many_positions(None).measure(mask)[0]
    beside = outer_of_many_positions(one if odd == "cancelling" else torch.full((40, 300), math.nan)).measure(mask)[0]
    assert torch.allclose(beside[:5], ordinary[:5], rtol=1e-9, atol=0)


def test_a_norm_does_not_depend_on_whether_gradients_are_kept(monkeypatch):
    gradient = outer_of_many_positions(None)
    kept = measure_formed(gradient, None, 60_000)[0]
    monkeypatch.setattr(formed, "KEPT", 1)
    assert torch.equal(measure_formed(gradient, None, 60_000)[0], kept)

"""On a CUDA device: the same sums, noise of the right scale, training, exact resuming. Run with `pytest -m gpu`."""

from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from helpers import tiny
from helpers.crashes import crashed
from helpers.fixed_shapes import CASES, compared
from helpers.halves import padded_under_autocast
from helpers.hostile import CAPTURED, FAMILIES, OURS, ROUNDING, carried, movement, variants
from helpers.oracles import PROBLEMS, lone
from helpers.self_seeding import SELF_SEEDING, Net, X, Y, cross_entropy, hidden, moved
from noisewise import Ledger, Mechanism, Poisson, Runtime, train
from noisewise.adaptive import Quantile
from noisewise.attacks.pgd import Space, pgd
from noisewise.batches import map_tensors
from noisewise.bounded import Bounded, release
from noisewise.clipping import Flat, Normalized
from noisewise.distributed import end, team_of
from noisewise.errors import ConfigError, DataError, NoisewiseError
from noisewise.noise import CUDA_CHUNK, Piece, standard_normal
from noisewise.persample import clipped_sum, examine, formed, kernels
from noisewise.persample.convolution import Convolution, HalfConvolution
from noisewise.persample.formed import Narrow
from noisewise.persample.gradients import Outer
from noisewise.persample.steady import steady
from noisewise.randomness import Entropy
from noisewise.repairs.random_sparsification import random_subset
from noisewise.reproduce.papers import names
from noisewise.reproduce.running import reproduce, result_path
from noisewise.sampling import FullBatch
from noisewise.testing import reveal
from noisewise.training import moves
from noisewise.training.captured import Captured
from noisewise.training.moves import Moves
from noisewise.training.state import State
from noisewise.training.step import private_step

pytestmark = pytest.mark.gpu


def to_cuda(setup):
    return setup.model.cuda(), setup.loss_fn, map_tensors(lambda tensor: tensor.cuda(), setup.batch)


@pytest.mark.filterwarnings("ignore::UserWarning")
@pytest.mark.parametrize("name", PROBLEMS)
def test_sums_equal_the_loop_over_units(name):
    setup = to_cuda(PROBLEMS[name].make())
    got, expected = (
        reveal(clipped_sum(*setup, Flat(0.1), runtime=Runtime(engine=engine)).grads) for engine in ("auto", "loop")
    )
    error = sum((got[k] - expected[k]).square().sum() for k in expected).sqrt()
    assert all(value.is_cuda for value in got.values())
    assert error <= 1e-9 * max(sum(value.square().sum() for value in expected.values()).sqrt().item(), 1e-12)


@pytest.mark.parametrize("precision", ["highest", "high"])
def test_a_lone_unit_stays_within_the_bound_in_float32_and_tf32(precision):
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision(precision)
    try:
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(256, 256), nn.Tanh(), nn.Linear(256, 256)).cuda()
        x = torch.randn(1, 64, 256, device="cuda")
        got = reveal(clipped_sum(model, lambda m, b: m(b).square().mean((1, 2)), x, Flat(1e-4)).grads)
        length = sum(value.double().square().sum() for value in got.values()).sqrt().item()
    finally:
        torch.set_float32_matmul_precision(before)
    assert 0.5e-4 < length <= 1e-4 * (1 + 1e-3)


LAYERS = {
    "linear": (lambda: nn.Linear(64, 48), (64,)),
    "linear over time": (lambda: nn.Linear(64, 48), (32, 64)),
    "conv1d": (lambda: nn.Conv1d(16, 24, 5, padding=2), (16, 40)),
    "conv2d": (lambda: nn.Conv2d(16, 24, 3, padding=1), (16, 12, 12)),
    "conv2d, few positions": (lambda: nn.Conv2d(64, 64, 3, padding=1), (64, 4, 4)),
    "conv2d, few channels": (lambda: nn.Conv2d(3, 24, 3), (3, 20, 20)),
    "conv2d, strided": (lambda: nn.Conv2d(16, 24, 3, stride=2), (16, 13, 13)),
    "conv2d, grouped": (lambda: nn.Conv2d(16, 24, 3, groups=4), (16, 12, 12)),
    "conv3d": (lambda: nn.Conv3d(8, 12, 3, padding=1), (8, 6, 6, 6)),
}


@pytest.mark.parametrize("kept", [True, False], ids=["kept", "again"])
@pytest.mark.parametrize("mean", [0.0, 100.0])
@pytest.mark.parametrize("name", LAYERS)
def test_a_lone_unit_stays_within_the_bound_with_the_settings_as_they_are(name, mean, kept, monkeypatch):
    """Seed 0. cuDNN's convolutions use TF32 unless told otherwise: norms must allow for it, and not eat the bound."""
    monkeypatch.setattr(formed, "KEPT", formed.KEPT if kept else 0)
    torch.manual_seed(0)
    make, shape = LAYERS[name]
    model = make().cuda()
    for _ in range(5):
        x = mean + torch.randn(1, *shape, device="cuda")
        target = torch.randn(model(x).shape, device="cuda")
        loss = lambda m, b, t=target: (m(b) * (t - t.mean())).flatten(1).sum(1)  # noqa: E731
        got = reveal(lone(model, loss, x, Normalized(1.0), {"bias": False}).grads)["weight"]
        assert 0.98 <= got.double().norm().item() <= 1 + 1e-5


@pytest.mark.parametrize("kernel", [3, 4])  # PyTorch fills up an even one on one side, by an operation of its own
@pytest.mark.parametrize("captured", [False, True])
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
def test_convolutions_that_keep_their_size_under_an_autocast_are_those_of_the_loop(dtype, captured, kernel):
    assert padded_under_autocast("cuda", dtype, kernel, captured=captured) < torch.finfo(dtype).eps


def test_a_product_of_a_matrix_and_a_vector_is_never_cut_to_tf32():
    """Seed 0. Sums of formed gradients rely on it."""
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("high")
    try:
        torch.manual_seed(0)
        for units in (1, 3, 64):
            grads, factors = torch.randn(units, 5000, device="cuda"), torch.rand(units, device="cuda")
            found, exact = torch.mv(grads.T, factors), torch.mv(grads.double().T, factors.double())
            assert (found - exact).norm().item() <= 1e-6 * exact.norm().item()
    finally:
        torch.set_float32_matmul_precision(before)


@pytest.mark.parametrize("secure", [False, True])
def test_noise_has_the_right_scale(secure):
    zeros = torch.zeros(200_000, device="cuda")
    part = {"gradient": (Bounded({"w": zeros}, 2.0), 1.5)}
    entropy = Entropy.insecure(0, secure=secure)
    noise = release(part, sampler=Poisson(10, 5), ledger=Ledger(), entropy=entropy, step=0)["gradient"]["w"]
    assert noise.is_cuda
    assert noise.std().item() == pytest.approx(3.0, rel=0.01)  # six standard deviations of the estimate


CPU_ONLY = {"memory: buffer, numpy view"}  # no such view of a GPU's memory
ON_CUDA = [
    replace(one, device="cuda", precision=torch.float32)
    for family in FAMILIES
    if family not in CPU_ONLY
    for one in variants(family, 0, 2)
]


@pytest.fixture
def tf32(monkeypatch):
    """Products of matrices and convolutions cut to TF32."""
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("high")
    monkeypatch.setattr(torch.backends.cudnn, "allow_tf32", True)
    yield
    torch.set_float32_matmul_precision(before)


@pytest.mark.filterwarnings("ignore::UserWarning", "ignore::DeprecationWarning")
@pytest.mark.parametrize("engine", [OURS, CAPTURED], ids=["ordinary", "captured"])
@pytest.mark.parametrize("hostile", ON_CUDA, ids=repr)
def test_one_unit_of_a_coupled_model_moves_the_sum_by_at_most_the_bound(hostile, engine, tf32):
    try:
        moved = movement(hostile, engine)
    except NoisewiseError:
        return
    assert moved <= 1 + ROUNDING[torch.float32]


@pytest.mark.filterwarnings("ignore::UserWarning", "ignore::DeprecationWarning")
@pytest.mark.parametrize("engine", [OURS, CAPTURED], ids=["ordinary", "captured"])
@pytest.mark.parametrize("hostile", [one for one in ON_CUDA if one.form == "carry"], ids=repr)
def test_nothing_is_carried_from_one_batch_to_the_next(hostile, engine, tf32):
    try:
        left = carried(hostile, engine)
    except NoisewiseError:
        return
    assert left <= ROUNDING[torch.float32]


def test_noise_follows_from_all_of_seed_and_offset():
    zeros, roots = torch.zeros(100_000, device="cuda"), [Entropy.insecure(seed) for seed in (0, 0, 1)]
    first, again, other = (standard_normal(zeros, root, (2, 0, 0)) for root in roots)
    seed, offset = roots[0].wide("noise", 2, 0, 0)
    plain = torch.Generator("cuda").manual_seed(seed)
    assert torch.equal(first, again)
    assert offset > 0
    for apart in (other, torch.randn(100_000, device="cuda", generator=plain)):
        assert abs(torch.corrcoef(torch.stack([first, apart]))[0, 1].item()) < 0.02  # six standard deviations


def test_training_learns_and_is_reproducible(tmp_path):
    results = [tiny.run(tiny.model().cuda(), insecure_seed=1, out=tmp_path / str(i)).model for i in range(2)]
    first, second = (tiny.weights(model) for model in results)
    assert torch.equal(first, second)
    assert not torch.equal(first.cpu(), tiny.weights(tiny.model()))


def test_a_convolutional_model_trains_privately():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(1, 8, 3, padding=1), nn.ReLU(inplace=True), nn.Flatten(), nn.Linear(512, 2)).cuda()
    x = torch.randn(40, 1, 8, 8)
    y = (x.mean((1, 2, 3)) > 0).long()
    before = F.cross_entropy(model(x.cuda()), y.cuda()).item()
    tiny.run(model, units=(x, y), plan=tiny.mechanism(noise_multiplier=0.1, steps=60), insecure_seed=0)
    assert F.cross_entropy(model(x.cuda()), y.cuda()).item() < before


def seeded_on_the_device(model, x):
    torch.cuda.manual_seed(0)
    return F.dropout(hidden(model, x), 0.5, model.training)


SEEDED = [*((one, device) for one in SELF_SEEDING[1:] for device in ("cpu", "cuda")), (seeded_on_the_device, "cuda")]


@pytest.mark.parametrize(("between", "device"), SEEDED)
@pytest.mark.parametrize("units", [2, 6, 40])
def test_draws_that_a_model_seeds_are_made_for_each_unit_alone(device, between, units):
    """Seeding all devices leaves the seed behind on those that a pass does not put back."""
    torch.zeros(1, device="cuda")
    model = Net(between).to(device)
    layout = examine(model, cross_entropy, (X[:0].to(device), Y[:0].to(device)))
    assert not layout.proven
    assert moved(model, layout, units) <= 1 + 1e-6


# --- captured steps ---------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("dtype", [None, torch.float64], ids=["float32", "float64"])
@pytest.mark.parametrize("name", CASES)
def test_graphs_make_the_ordinary_steps(name, dtype):
    assert compared(CASES[name], "cuda", dtype) < (1e-9 if dtype else 3e-3)


@pytest.mark.parametrize("name", ["linear", "convolutional"])
def test_without_kernels_of_its_own_the_portable_way_serves(name, monkeypatch):
    monkeypatch.setattr(kernels, "ENABLED", False)
    assert compared(CASES[name], "cuda") < 3e-3


def test_replays_never_share_noise_and_draw_that_of_ordinary_steps():
    """One tensor of gradients for each step, without any unit's part: clipped to next to nothing."""
    drawn = {}
    for capture in (True, False):
        seen = []
        network = tiny.model().cuda()
        optimizer = tiny.sgd(network, lr=0.0)
        optimizer.register_step_pre_hook(
            lambda *_, s=seen, n=network: s.append([p.grad.clone() for p in n.parameters()])
        )
        tiny.run(
            network, plan=tiny.mechanism(clip=Flat(1e-6)), optimizer=lambda _, o=optimizer: o, insecure_seed=3,
            runtime=Runtime(capture=capture),
        )  # fmt: skip
        drawn[capture] = torch.stack([torch.cat([part.flatten() for part in step]) for step in seen])
    torch.testing.assert_close(drawn[True], drawn[False], rtol=0.2, atol=1e-6)
    alike = torch.corrcoef(drawn[True]).fill_diagonal_(0).abs().max().item()
    assert alike < 0.7  # of 57 numbers each: seven standard deviations or more


@pytest.mark.parametrize("weight_decay", [0.0, 0.1])
def test_graphs_of_sgd_make_its_steps_bit_for_bit(weight_decay, monkeypatch):
    made, ends = [], []
    real = Moves._capture
    monkeypatch.setattr(Moves, "_capture", lambda self, *a: (made.append(1), real(self, *a)))
    for most in (1 << 24, 0):
        monkeypatch.setattr(moves, "MOST", most)
        network = tiny.model().cuda()
        sgd = torch.optim.SGD(network.parameters(), lr=0.2, momentum=0.9, weight_decay=weight_decay)
        ends.append(tiny.run(network, optimizer=lambda _, o=sgd: o, insecure_seed=3).model)
    assert tiny.same(*ends)
    assert len(made) == 1


def test_captured_runs_resume_bit_for_bit(tmp_path):
    crashed(tmp_path / "run", network=tiny.model().cuda(), insecure_seed=1, runtime=Runtime(capture=True))
    how = {"insecure_seed": 1, "runtime": Runtime(capture=True)}
    resumed = tiny.run(tiny.model().cuda(), out=tmp_path / "run", resume=True, **how)
    assert tiny.same(resumed.model, tiny.run(tiny.model().cuda(), **how).model)


def test_dropout_draws_anew_in_every_replay_and_again_when_resumed(tmp_path):
    how = {"insecure_seed": 1, "runtime": Runtime(capture=True), "plan": tiny.mechanism(noise_multiplier=0.0)}
    make = lambda: tiny.model(dropout=0.5).cuda()  # noqa: E731
    crashed(tmp_path / "run", network=make(), **how)
    resumed = tiny.run(make(), out=tmp_path / "run", resume=True, **how)
    assert tiny.same(resumed.model, tiny.run(make(), **how).model)
    norms = []
    plan = tiny.mechanism(sampler=FullBatch(tiny.N), noise_multiplier=0.0, steps=3)
    network = make()
    tiny.run(
        network, plan=plan, optimizer=lambda n: tiny.sgd(n, lr=0.0), insecure_seed=1, runtime=Runtime(capture=True),
        recorders=[lambda seen: norms.append(seen.norms.clone())],
    )  # fmt: skip
    assert not torch.equal(norms[0], norms[1])
    assert not torch.equal(norms[1], norms[2])


def test_what_cannot_be_captured_takes_the_ordinary_way():
    plan = tiny.mechanism(clip=Quantile(1.0))
    with pytest.raises(ConfigError, match="capture=True"):
        tiny.run(tiny.model().cuda(), plan=plan, insecure_seed=1, runtime=Runtime(capture=True))
    by_itself, ordinary = (
        tiny.run(tiny.model().cuda(), plan=plan, insecure_seed=1, runtime=Runtime(capture=capture)).model
        for capture in (None, False)
    )
    assert tiny.same(by_itself, ordinary)


def test_a_private_run_on_a_gpu_is_captured(monkeypatch):
    seen = []
    real = Captured.clipped
    monkeypatch.setattr(Captured, "clipped", lambda *a, **k: (seen.append(1), real(*a, **k))[1])
    assert tiny.run(tiny.model().cuda()).status.status == "private"
    assert len(seen) == tiny.STEPS


def test_random_state_and_model_are_as_before_a_captured_step():
    network = tiny.model(dropout=0.5).cuda()
    torch.manual_seed(7)
    before = torch.cuda.get_rng_state()
    tiny.run(network, insecure_seed=1, runtime=Runtime(capture=True))
    assert torch.equal(before, torch.cuda.get_rng_state())
    assert not any(module._forward_hooks or module._forward_pre_hooks for module in network.modules())


@pytest.mark.parametrize("bad", ["label", "token", "number"])
def test_a_row_that_the_loss_cannot_take_is_named_and_the_gpu_goes_on(bad):
    words = nn.Sequential(nn.Embedding(20, 4), nn.Flatten(), nn.Linear(20, 3))
    model = words if bad == "token" else nn.Linear(5, 3)
    x = torch.randint(0, 20, (60, 5)) if bad == "token" else torch.randn(60, 5)
    y = torch.randint(0, 3, (60,))
    (y if bad == "label" else x)[(7,) if bad == "label" else (7, 2)] = float("inf") if bad == "number" else 99
    plan = Mechanism(sampler=Poisson(60, 20), clip=Flat(1.0), noise_multiplier=1.0, steps=2)
    with pytest.raises(DataError, match="row 7 of the data holds"):
        train(model.cuda(), (x, y), cross_entropy, plan, torch.optim.SGD(model.parameters(), lr=0.1), progress=False)
    assert torch.ones(3, device="cuda").sum().item() == 3


@pytest.mark.parametrize("kernel", [False, True], ids=["portable", "kernels"])
def test_random_masks_are_the_same_on_any_device(kernel, monkeypatch):
    monkeypatch.setattr(kernels, "ENABLED", kernel)
    among = torch.rand(100_001) < 0.9
    here, there = (random_subset(among.to(device), 40_000, -77) for device in ("cpu", "cuda"))
    assert torch.equal(here, there.cpu())
    assert int(here.sum()) == 40_000


@pytest.mark.parametrize("norm", ["linf", "l2"])
def test_attacks_find_on_a_gpu_what_they_find_on_a_cpu(norm):
    torch.manual_seed(0)
    model, x = nn.Sequential(nn.Flatten(), nn.Linear(48, 5)).double(), torch.rand(40, 3, 4, 4).double()
    y = model(x).argmax(1)
    lost = []
    for device in ("cpu", "cuda"):
        here = x.to(device)
        space = Space.of(here, ([0.0, 0.0, 0.0], [1.0, 1.0, 1.0]), [1.0, 0.5, 1.0])
        answer = pgd(model.to(device), here, y.to(device), 0.2, norm, space, torch.Generator().manual_seed(3), steps=8)
        lost.append(answer.loss.cpu())
    torch.testing.assert_close(*lost)


@pytest.mark.parametrize("name", names())
def test_experiments_run_on_a_gpu(name, tmp_path):
    (result,) = reproduce([name], tmp_path, tier="quick", device="cuda", progress=False)
    assert result.measured.seeds
    assert result_path(tmp_path, *name.split("."), "quick").exists()


@pytest.mark.parametrize(("entries", "out"), [(5000, 72), (9000, 48)], ids=["tiles, one tap", "rows, three taps"])
def test_kernels_agree_with_plain_arithmetic(entries, out):
    torch.manual_seed(0)
    rows = torch.randn(300, entries, device="cuda")
    factors = torch.rand(300, device="cuda", dtype=torch.float64)
    rows[5], factors[5] = float("nan"), 0.0
    assert kernels.usable(rows)
    keep = torch.arange(300, device="cuda") != 5
    got = kernels.weighted_sum(rows.unsqueeze(0), factors)[0].double()
    exact = (rows[keep].double() * factors[keep].unsqueeze(1)).sum(0)
    assert ((got - exact).norm() / exact.norm()).item() < 1e-6
    lengths = kernels.squares(rows)[keep].sqrt()
    torch.testing.assert_close(lengths, rows[keep].double().norm(dim=1), rtol=1e-12, atol=0)
    given, grad = torch.randn(6, 40, 14, 14, device="cuda"), torch.randn(6, out, 14, 14, device="cuda")
    for cut, error in ((False, 1e-5), (True, 2e-3)):
        formed, squares = kernels.form_taps(grad, given, (3, 3), (1, 1), ((1, 1),) * 2, (1, 1), None, cut=cut)
        for unit in (0, 5):
            weight = torch.zeros(out, 40, 3, 3, dtype=torch.float64, device="cuda").requires_grad_()
            (F.conv2d(given[unit : unit + 1].double(), weight, padding=1) * grad[unit]).sum().backward()
            exact = weight.grad.flatten(2).permute(2, 0, 1)
            assert ((formed[:, unit] - exact).norm() / exact.norm()).item() < error
            assert abs(squares[unit].item() / formed[:, unit].double().square().sum().item() - 1) < 1e-12


@pytest.mark.parametrize(("channels", "out", "size", "stride"), [(512, 512, 4, 1), (256, 512, 8, 2), (512, 256, 4, 1)])
def test_norms_of_convolutions_of_few_positions_are_never_short(channels, out, size, stride):
    """By the kernel of Gram matrices, also of units all of one sign, whose factors are cut alike."""
    torch.manual_seed(0)
    given = torch.randn(12, channels, size, size, device="cuda")
    grad = torch.randn(12, out, size // stride, size // stride, device="cuda")
    given[:4], grad[:4] = given[:4].abs(), grad[:4].abs()
    layer = Convolution(given, grad, (3, 3), (stride,) * 2, ((1, 1),) * 2, (1, 1), 1)
    exact = replace(layer, input=given.double(), grad=grad.double()).formed().flatten(1).square().sum(1)
    with steady(12):
        assert layer._in_one_tile
        squares, _ = layer.measure(None)
    assert (squares >= exact).all()
    assert (squares <= 1.1 * exact).all()


@pytest.mark.parametrize("masked", [False, True], ids=["whole", "masked"])
@pytest.mark.parametrize(
    ("units", "time", "rows", "columns"), [(6, 128, 768, 768), (5, 33, 130, 70), (3, 1024, 256, 512)]
)
def test_gradients_kept_in_float16_are_those_that_were_measured(units, time, rows, columns, masked, tf32):
    """Linear layers over positions, also of units all of one sign, beside one that is a million times as large."""
    torch.manual_seed(0)
    left, right = torch.randn(units, time, rows, device="cuda"), torch.randn(units, time, columns, device="cuda")
    left[0], right[0], left[1] = left[0].abs(), right[0].abs(), 1e6 * left[1]
    mask = torch.rand(rows, columns, device="cuda") < 0.5 if masked else None
    exact = torch.einsum("bti,btj->bij", left.double(), right.double()).mul(1 if mask is None else mask).flatten(1)
    with steady(units):
        squares, rest = Outer(left, right).measure(mask)
    assert isinstance(rest, Narrow)
    stored = rest.grads.double() * rest.scales.unsqueeze(1)
    assert ((stored - exact).norm(dim=1) < 2.0**-9 * exact.norm(dim=1)).all()
    assert (squares >= stored.square().sum(1)).all()
    torch.testing.assert_close(squares, exact.square().sum(1), rtol=2e-3, atol=0)
    for unit in range(units):
        alone = torch.zeros(units, dtype=torch.float64, device="cuda")
        alone[unit] = 1 / squares[unit].sqrt()
        assert float(rest.weighted_sum(alone).double().norm()) <= 1


@pytest.mark.parametrize("masked", [False, True], ids=["whole", "masked"])
@pytest.mark.parametrize(("channels", "out", "size"), [(3, 32, 32), (32, 32, 32), (64, 64, 16), (64, 128, 8)])
def test_gradients_kept_in_bfloat16_are_those_that_were_measured(channels, out, size, masked):
    """Convolutions, also of units all of one sign: three taps at once or one, rounded before they are measured."""
    torch.manual_seed(0)
    given = torch.randn(9, channels, size, size, device="cuda").bfloat16()
    grad = torch.randn(9, out, size, size, device="cuda").bfloat16()
    given[:3], grad[:3] = given[:3].abs(), grad[:3].abs()
    mask = torch.rand(out, channels, 3, 3, device="cuda") < 0.5 if masked else None
    layer = Convolution(given, grad, (3, 3), (1, 1), ((1, 1),) * 2, (1, 1), 1)
    with steady(9):
        squares, rest = HalfConvolution(layer).measure(mask)
    (part,) = rest.chunks
    assert part.grads.dtype == torch.bfloat16
    kept = part.formed().double().flatten(1)
    exact = replace(layer, input=given.double(), grad=grad.double()).formed().flatten(1)
    exact = exact if mask is None else exact * mask.flatten()
    assert ((kept - exact).norm(dim=1) < 2.0**-8 * exact.norm(dim=1)).all()
    assert (squares >= kept.square().sum(1)).all()
    torch.testing.assert_close(
        squares, kept.square().sum(1), rtol=4 * kept.shape[1] * 2.0**-53, atol=0
    )  # of as many sums
    for unit in range(9):
        alone = torch.zeros(9, dtype=torch.float64, device="cuda")
        alone[unit] = 1 / squares[unit].sqrt()
        assert float(rest.weighted_sum(alone).double().norm()) <= 1 + 1e-7


def test_sums_of_linear_layers_are_those_of_float64_however_their_factors_lie(tf32):
    torch.manual_seed(0)
    left, right = torch.randn(70, 1, 130, device="cuda"), torch.randn(70, 1, 257, device="cuda") * 1e5
    left[3], right[5] = torch.inf, torch.nan
    factors = torch.rand(70, device="cuda", dtype=torch.float64) * 1e-5
    factors[[3, 5]] = 0
    with steady(70):
        _, rest = Outer(left, right).measure(None)
        total = rest.where(factors != 0).weighted_sum(factors)
    some = factors != 0
    expected = torch.einsum("b,bi,bj->ij", factors[some], left[some, 0].double(), right[some, 0].double())
    assert float((total - expected).norm()) < 2.0**-8 * float(expected.norm())


@pytest.mark.parametrize("units", [2000, 2016, 1023])
def test_a_unit_more_that_does_not_count_moves_nobody_else(units, tf32):
    """Units that are nearly alike, whose products are cut alike: another kernel for another number would move the sum."""
    torch.manual_seed(0)
    left, right = (
        torch.rand(1, 1, size, device="cuda") + 1e-3 * torch.rand(units + 1, 1, size, device="cuda")
        for size in (256, 300)
    )
    factors = torch.full((units + 1,), 1e-3, device="cuda", dtype=torch.float64)
    factors[-1] = 0
    sums = []
    for count in (units, units + 1):
        with steady(count):
            _, rest = Outer(left[:count].contiguous(), right[:count].contiguous()).measure(None)
            sums.append(rest.where(factors[:count] != 0).weighted_sum(factors[:count]))
    assert float((sums[0] - sums[1]).norm()) < 1e-5 * float(sums[0].norm())


def test_captured_steps_of_an_encoder_with_tf32_are_the_ordinary_ones_up_to_its_rounding(tf32):
    torch.manual_seed(0)
    layer = nn.TransformerEncoderLayer(64, 2, 128, dropout=0.0, batch_first=True)
    model = nn.Sequential(nn.Embedding(50, 64), layer, nn.Flatten(), nn.Linear(64 * 16, 2)).cuda()
    batch = torch.randint(0, 50, (20, 16), device="cuda"), torch.arange(20, device="cuda") % 2
    ordinary = clipped_sum(model, cross_entropy, batch, Flat(0.1))
    layout = examine(model, cross_entropy, batch)
    captured = Captured().clipped(
        model, cross_entropy, batch, Flat(0.1), {}, Runtime(), layout=layout, expected=20, seed=0, norms=True
    )
    torch.testing.assert_close(captured.norms, ordinary.norms, rtol=1e-2, atol=0)
    one, other = (torch.cat([v.flatten() for v in reveal(c.grads).values()]) for c in (captured, ordinary))
    assert float((one - other).norm()) < 1e-2 * float(other.norm())


def test_pieces_of_a_tensor_have_noise_that_does_not_depend_on_the_cut():
    entropy, count = Entropy.insecure(7), CUDA_CHUNK + 1000

    def cut(*places):
        ends = [*places, count]
        sizes = [(first, last - first) for first, last in zip([0, *places], ends, strict=True)]
        return torch.cat(
            [standard_normal(torch.empty(n, device="cuda"), entropy, (3, 0), Piece(k, count)) for k, n in sizes]
        )

    whole = cut()
    assert torch.equal(whole, cut(10, CUDA_CHUNK - 5, CUDA_CHUNK + 17))
    assert abs(float(whole.double().square().mean()) - 1) < 5 * (2 / count) ** 0.5
    assert len(whole.unique()) > 0.7 * count


def test_spread_parameters_of_one_rank_under_nccl(tmp_path):
    """The gradient without noise is that of whole parameters, and the model is fully_shard's afterwards."""
    import torch.distributed as dist
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    x, y = (part.cuda() for part in tiny.data())
    dist.init_process_group("cpu:gloo,cuda:nccl", f"file://{tmp_path}/meeting", rank=0, world_size=1)
    try:
        grads = []
        for spread in (False, True):
            network = tiny.model().cuda()
            if spread:
                fully_shard(network, mesh=init_device_mesh("cuda", (1,)))
            plan = replace(tiny.mechanism(), sampler=FullBatch(tiny.N), noise_multiplier=0.0, steps=2)
            state = State.start(plan, insecure_seed=0, team=team_of())
            for _ in range(2):
                private_step(network, (x, y), tiny.loss_fn, tiny.sgd(network), state)
            held = [getattr(p.grad, "_local_tensor", p.grad) for p in network.parameters()]
            grads.append(torch.cat([grad.flatten() for grad in held]))
        torch.testing.assert_close(*grads)
        assert network(x).shape == (tiny.N, 3)
    finally:
        end()

"""Lengths of rows and their squares in float16, in one pass; Triton's interpreter runs the kernel without a GPU."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from helpers.interpreted import interpret
from noisewise.clipping import Flat
from noisewise.persample import alike, clipped_sum, examine, kernels, replay, rounding
from noisewise.persample.formed import RecentSquares
from noisewise.persample.gradients import Outer
from noisewise.persample.rounding import longer_squares
from noisewise.persample.steady import steady

pytest.importorskip("triton")


@pytest.fixture(autouse=True)
def interpreted(monkeypatch):
    """Kernels on a CPU."""
    interpret(monkeypatch)


@pytest.mark.parametrize("width", [1, 130, 2048, 5000])
@pytest.mark.parametrize("scale", [1.0, 1e-30, 1e18, 1e-41, 3e37])
def test_lengths_and_squares_of_one_pass_are_never_short(width, scale):
    torch.manual_seed(0)
    rows, mask = torch.randn(5, width) * scale, torch.rand(width) < 0.5
    rows[1] = 0
    rows[2, :1] *= min(1e3, 1e38 / scale)
    for under in (None, mask):
        squares, some, halves = kernels.halved(rows, longer_squares(rows), under)
        exact = rows.double().square()
        for found, expected in ((squares, exact.sum(1)), (some, (exact if under is None else exact * mask).sum(1))):
            assert (found >= expected * (1 - 1e-15)).all()
            torch.testing.assert_close(found, expected, rtol=1e-11, atol=0)
        lengths = exact.sum(1).sqrt()
        scaled = exact * (128 / torch.exp2(torch.frexp(lengths)[1].double())).square().unsqueeze(1)
        assert (halves.double() >= scaled - 2.0**-24).all()
        assert (halves.double() <= scaled * (1 + 2.0**-9) + 2.0**-23).all()
        assert halves.max() < 2.0**14 * 1.002


@pytest.mark.parametrize("width", [1, 130, 5000])
def test_sums_are_longer_by_just_what_is_said(width):
    """Of a row with a single 1 a sum is the allowance itself."""
    rows, mask = F.one_hot(torch.tensor([0, width - 1]), width).float(), torch.ones(width, dtype=torch.bool)
    longer = longer_squares(rows)
    assert longer > 1
    squares, some, _ = kernels.halved(rows, longer, mask)
    outer = Outer(torch.ones(2, 1, 3), rows.unsqueeze(1))
    with steady(2):
        _, rest = outer.measure(torch.ones(3, width, dtype=torch.bool))
    for found in (squares, some, rest._squares[1]):
        assert found.tolist() == [longer, longer]


@pytest.mark.parametrize("cut", [0.0, 2.0**-9])
def test_masked_norms_are_longer_by_what_halves_and_later_sums_may_lose(cut, monkeypatch):
    """Where products are cut (TF32), the sum that these norms are for has factors that may be longer by it, on both sides."""
    given, masked_squares = [], kernels.masked_squares
    monkeypatch.setattr(kernels, "masked_squares", lambda *rest: (given.append(rest), masked_squares(*rest))[1])
    monkeypatch.setattr(rounding, "shortened", lambda *_: cut)
    left, right, mask = torch.randn(4, 1, 70), torch.randn(4, 1, 30), torch.rand(70, 30) < 0.5
    with steady(4):
        Outer(left, right).measure(mask)
    ((*_, more, longer, lost),) = given
    assert more == longer_squares(right.squeeze(1))
    assert longer >= (1 + cut) ** 2 * (1 + 2.0**-11) * (1 + 70 * 2.0**-23)
    assert longer < (1 + cut) ** 2 * (1 + 2.0**-9)
    assert (1 + cut) ** 2 * 70 * 2.0**-37 <= lost < (1 + cut) ** 2 * 80 * 2.0**-37


def test_allowances_are_rounded_up_on_their_way_into_a_kernel(monkeypatch):
    """They become float32 there."""
    given, module = [], kernels._triton("single")
    monkeypatch.setattr(module, "masked_squares", lambda *rest: given.append(rest[-2:]))
    rows, allowances = torch.randn(3, 4), (1 + 2.0**-30, 2.0**-37 * (1 + 2.0**-30))
    kernels.masked_squares(rows, rows, torch.ones(4, 4, dtype=torch.bool), rows[:, 0], 1.0, *allowances)
    for found, wanted in zip(given[0], allowances, strict=True):
        assert wanted <= float(torch.tensor(found, dtype=torch.float32)) < wanted * (1 + 2.0**-18)


def test_what_a_mask_leaves_out_does_not_matter():
    rows, mask = torch.randn(3, 40), torch.arange(40) > 2
    rows[0, 0], rows[1, 1] = float("inf"), float("nan")
    squares, some, _ = kernels.halved(rows, 1.0, mask)
    assert squares.isfinite().tolist() == [False, False, True]
    torch.testing.assert_close(some, rows[:, 3:].double().square().sum(1))


def test_lengths_that_were_measured_by_the_way_are_not_measured_again(monkeypatch):
    torch.manual_seed(0)
    rows, others, mask = torch.randn(4, 30), torch.randn(4, 30), torch.rand(30) < 0.5
    recent = RecentSquares()
    with steady(4):
        recent.expect(rows, mask)
        expected = recent.of(others, mask), recent.of(rows, ~mask)
        recent.halved(rows)
        with monkeypatch.context() as patch:
            patch.setattr(kernels, "squares", None)
            torch.testing.assert_close(recent.of(rows), rows.double().square().sum(1))
            torch.testing.assert_close(recent.of(rows, mask), (rows.double() * mask).square().sum(1))
        torch.testing.assert_close(expected[0], (others.double() * mask).square().sum(1))
        torch.testing.assert_close(expected[1], (rows.double() * ~mask).square().sum(1))
        rows.add_(1)
        torch.testing.assert_close(recent.of(rows, mask), (rows.double() * mask).square().sum(1))


@pytest.mark.parametrize("columns", [3, 2048, 4100])
def test_the_other_factor_is_measured_by_the_way(columns):
    torch.manual_seed(0)
    left, right = torch.randn(4, 1, 7), torch.randn(4, 1, columns) * 1e-20
    outer, mask = Outer(left, right), torch.rand(7, columns) < 0.5
    with steady(4):
        _, rest = outer.measure(mask)
    for found, factor in zip(rest._squares, (left, right), strict=True):
        exact = factor.double().square().sum((1, 2))
        assert (found >= exact * (1 - 1e-15)).all()
        torch.testing.assert_close(found, exact, rtol=1e-11, atol=0)


def test_squares_that_vanish_in_float16_are_allowed_for():
    torch.manual_seed(0)
    left, right, mask = torch.randn(4, 1, 7), torch.randn(4, 1, 30), torch.full((7, 30), True)
    left[:, :, 0], mask[0] = 1e7, False
    with steady(4):
        squares, _ = Outer(left, right).measure(mask)
    exact = left[:, 0, 1:].double().square().sum(1) * right.double().square().sum((1, 2))
    assert (squares >= exact).all()


@pytest.mark.parametrize("without", ["", "0.bias"])
def test_a_masked_bias_is_measured_with_its_weight(without, monkeypatch):
    """Norms are those of the portable way, and no kernel reads rows for the bias alone."""
    torch.manual_seed(0)
    monkeypatch.setattr(alike, "SMALL", 0)
    model = nn.Sequential(nn.Linear(6, 9), nn.Tanh(), nn.Linear(9, 5))
    batch = torch.randn(4, 6), torch.randint(0, 5, (4,))

    def losses(model, batch):
        return F.cross_entropy(model(batch[0]), batch[1], reduction="none")

    layout, live = examine(model, losses, batch), dict(model.named_parameters())
    masks = {name: torch.rand_like(p) < 0.5 for name, p in live.items() if name != without}
    masked, squares = [], kernels.squares
    monkeypatch.setattr(
        kernels, "squares", lambda *a, mask=None, **k: (masked.append(mask), squares(*a, mask=mask, **k))[1]
    )
    sums = replay.Sums(model, live, Flat(0.1), masks, 4)
    step = replay.Replay(model, losses, batch, 4, sums, layout, checked=True)
    step(list(batch), 0, 4)
    assert [mask for mask in masked if mask is not None] == []
    with monkeypatch.context() as patch:
        patch.setattr(kernels, "ENABLED", False)
        expected = clipped_sum(model, losses, batch, Flat(0.1), masks, layout=layout)
    torch.testing.assert_close(step.norms, expected.norms, rtol=3e-3, atol=0)
    assert (step.norms >= expected.norms * (1 - 1e-5)).all()
    for name, value in expected.grads._values.items():
        torch.testing.assert_close(sums.bounded()._values[name], value, rtol=5e-3, atol=1e-5)


@pytest.mark.parametrize("scale", [1e-41, 1e-37, 1.0, 3e37])
def test_masked_norms_of_any_size_are_neither_short_nor_lost(scale):
    """Of all that float32 holds: a unit whose gradient nearly vanishes in one layer keeps its place in the others."""
    torch.manual_seed(0)
    left, right, mask = torch.randn(4, 9) * scale, torch.randn(4, 70), torch.rand(9, 70) < 0.5
    left[1, ::2] = 0
    left[2] = F.pad(torch.tensor([11 * scale]), (0, 8))  # 3.3e38 at most: in one place
    halves, sizes = kernels.halved(left, 1.0, None)[2], left.double().square().sum(1)
    found, _ = kernels.masked_squares(halves, right, mask, sizes, 1.0, 1.0 + 2.0**-10, 2.0**-30)
    exact = torch.einsum("bj,jk,bk->b", left.double().square(), mask.double(), right.double().square())
    assert (found >= exact).all()
    torch.testing.assert_close(found, exact, rtol=5e-3, atol=0)


@pytest.mark.parametrize("given", [(True, True), (False, True), (True, False), (False, False)])
def test_halves_are_added_in_float32_whatever_is_allowed(given, monkeypatch):
    names = ("allow_fp16_reduced_precision_reduction", "allow_fp16_accumulation")
    settings, seen = torch.backends.cuda.matmul, []
    before = [getattr(settings, name) for name in names]
    module = kernels._triton("single")
    monkeypatch.setattr(
        module, "masked_squares", lambda *rest: seen.append([getattr(settings, name) for name in names])
    )
    rows = torch.randn(3, 4)
    try:
        for name, value in zip(names, given, strict=True):
            setattr(settings, name, value)
        kernels.masked_squares(rows, rows, torch.ones(4, 4, dtype=torch.bool), rows[:, 0], 1.0, 1.0, 0.0)
        assert tuple(getattr(settings, name) for name in names) == given
    finally:
        for name, value in zip(names, before, strict=True):
            setattr(settings, name, value)
    assert seen == [[False, False]]


def test_outside_of_captured_steps_no_rows_are_held_for_lengths_to_come(monkeypatch):
    asked = []
    monkeypatch.setattr(RecentSquares, "expect", lambda self, *given: asked.append(given))
    model, batch = nn.Linear(4, 3), (torch.randn(5, 4), torch.randint(0, 3, (5,)))

    def loss(model, batch):
        return F.cross_entropy(model(batch[0]), batch[1], reduction="none")

    masks = {name: torch.rand_like(weight) < 0.5 for name, weight in model.named_parameters()}
    monkeypatch.setattr(alike, "SMALL", 0)
    clipped_sum(model, loss, batch, Flat(1.0), masks)
    assert asked == []
    with steady(5):
        clipped_sum(model, loss, batch, Flat(1.0), masks)
    assert asked

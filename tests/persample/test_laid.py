"""Forms of masks: made once for a captured step, made anew when masks change."""

import math

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from helpers.interpreted import interpret
from noisewise.clipping import Flat
from noisewise.persample import clipped_sum, examine, kernels, laid, replay

pytest.importorskip("triton")


def test_forms_are_made_once_and_renewed_in_their_memory():
    mask, made = torch.rand(3, 4) < 0.5, []
    forms = laid.Forms()

    def numbers(*masks):
        made.append(len(masks))
        return torch.stack(masks).float()

    with laid.kept(forms):
        one, again, pair = laid.form(numbers, mask), laid.form(numbers, mask), laid.form(numbers, mask, mask[:, :])
        part, other = laid.form(numbers, mask[1:]), laid.form(numbers, ~mask)
    assert one is again
    assert made == [1, 2, 1, 1]
    assert torch.equal(other[0], 1 - one[0])
    mask.logical_not_()
    forms.renew()
    assert torch.equal(one[0], mask.float())
    assert torch.equal(pair[1], mask.float())
    assert torch.equal(part[0], mask[1:].float())
    assert laid.form(numbers, mask) is not one


def test_forms_are_what_kernels_read():
    mask = torch.rand(5, 4, 3, 2) < 0.5
    for columns in (1, 32, 70, 128, 150):
        one = torch.rand(5, columns, 2, 3) < 0.5
        for form, expected in (
            (laid.by_tap(one), one[:, :, 1, 2]),
            (laid.words(one.flatten(1)).unsqueeze(0), one.flatten(1)),
        ):
            assert form.is_contiguous()
            assert form.shape[1] == 4 * math.ceil(expected.shape[1] / 128)
            bits = (form[-1].T.unsqueeze(-1) >> torch.arange(32)) & 1
            found = bits.flatten(1).bool()
            assert torch.equal(found[:, : expected.shape[1]], expected)
            assert not found[:, expected.shape[1] :].any()
    assert torch.equal(laid.halves(mask), mask.half())
    assert torch.equal(laid.stacked(mask, ~mask)[1].bool(), ~mask.flatten())


def test_any_byte_but_zero_is_true(monkeypatch):
    """NumPy makes such masks of other programs' bytes; copies on a GPU keep them, those on a CPU do not."""
    monkeypatch.setattr(laid.F, "pad", lambda mask, _: mask)  # nothing to fill up: on a GPU a plain copy
    plain = torch.rand(5, 128) < 0.5
    odd = (plain.view(torch.uint8) * 255).view(torch.bool)
    assert odd.view(torch.uint8).max() == 255
    for form in (laid.words, laid.halves):
        assert torch.equal(form(odd), form(plain))


class Several(nn.Module):
    """Layers of every way in which a mask meets a norm."""

    def __init__(self):
        super().__init__()
        self.conv, self.deep = nn.Conv2d(8, 9, 3, padding=1), nn.Conv2d(9, 40, 3, stride=2)
        self.norm, self.time, self.out = nn.GroupNorm(5, 40), nn.Linear(4, 9), nn.Linear(360, 9)

    def forward(self, x):
        h = self.norm(self.deep(self.conv(x).tanh()))
        return self.out(self.time(h.flatten(2)).tanh().flatten(1))


@pytest.mark.parametrize("kernel", [False, True], ids=["portable", "kernels"])
@pytest.mark.parametrize("left_out", [(), ("conv.weight", "norm.bias")], ids=["all", "some"])
def test_captured_steps_under_masks_that_change_are_the_ordinary_ones(kernel, left_out, monkeypatch):
    """Masked coordinates are exactly zero, also where a sum there is no number."""
    if kernel:
        interpret(monkeypatch)
    torch.manual_seed(0)
    model, batch = Several(), (torch.randn(4, 8, 5, 5), torch.randint(0, 9, (4,)))
    batch[0][0, 0] = 3e38

    def losses(model, batch):
        return F.cross_entropy(model(batch[0]), batch[1], reduction="none")

    layout = examine(model, losses, (torch.randn(4, 8, 5, 5), batch[1]))
    live = dict(model.named_parameters())

    def support():
        return {name: torch.rand_like(p) < 0.5 for name, p in live.items() if name not in left_out}

    sums = replay.Sums(model, live, Flat(0.1), support(), 4)
    step = replay.Replay(model, losses, batch, 4, sums, layout)
    for _ in range(3):
        masks = support()
        assert sums.take_over(masks)
        step(list(batch), 0, 4)
        bounded = sums.bounded()
        with monkeypatch.context() as patch:
            patch.setattr(kernels, "ENABLED", False)
            expected = clipped_sum(model, losses, batch, Flat(0.1), masks, layout=layout)
        torch.testing.assert_close(step.norms, expected.norms, rtol=3e-3, atol=0, equal_nan=True)
        for name, value in expected.grads._values.items():
            torch.testing.assert_close(bounded._values[name], value, rtol=5e-3, atol=1e-5)
            if name in masks:
                assert torch.equal(bounded.support[name], masks[name])
                assert (bounded._values[name][~masks[name]] == 0).all()


def test_masks_are_laid_on_sums_that_are_no_numbers():
    layer = nn.Linear(3, 2)
    masks = {name: torch.rand_like(p) < 0.5 for name, p in layer.named_parameters()}
    sums = replay.Sums(layer, dict(layer.named_parameters()), Flat(1.0), masks, 4)
    for value in sums.values.values():
        value.fill_(float("nan"))
    sums.mask()
    for name, value in sums.values.items():
        assert torch.equal(value == 0, ~masks[name])

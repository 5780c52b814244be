"""A parameter whose rows are used apart: norms and sums of blocks are those of the whole."""

import pytest
import torch

from noisewise.persample.blocks import Blocks, measure_blocks
from noisewise.persample.formed import Formed
from noisewise.persample.gradients import Outer

torch.manual_seed(0)
LEFT, RIGHT = torch.randn(4, 3, 6).double(), torch.randn(4, 3, 5).double()
FACTORS = torch.rand(4).double()
SPLITS = {
    "separate": [slice(0, 2), slice(2, 6)],
    "with a gap": [slice(0, 1), slice(4, 6)],
    "overlapping": [slice(0, 4), slice(2, 6)],
    "twice": [slice(0, 2), slice(0, 2), slice(3, 6)],
    "beside the whole": [slice(1, 3), None],
}


def by_hand(rows, mask):
    grads = torch.zeros(4, 6, 5).double()
    for part in rows:
        part = part or slice(0, 6)
        grads[:, part] += torch.einsum("btr,btc->brc", LEFT[:, :, part], RIGHT)
    return grads if mask is None else grads * mask


@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("rows", SPLITS.values(), ids=SPLITS)
def test_blocks_are_the_whole(rows, masked):
    mask = torch.rand(6, 5) > 0.4 if masked else None
    pieces = [(part, Outer(LEFT[:, :, part or slice(0, 6)], RIGHT)) for part in rows]
    squares, gradients = measure_blocks(pieces, torch.zeros(6, 5), mask)
    expected = by_hand(rows, mask)
    assert torch.allclose(squares, expected.flatten(1).square().sum(1), rtol=1e-12)
    assert (squares >= expected.flatten(1).square().sum(1) * (1 - 1e-15)).all()
    total = gradients.weighted_sum(FACTORS).reshape(6, 5)
    assert torch.allclose(total, torch.einsum("b,brc->rc", FACTORS, expected), rtol=1e-12, atol=1e-14)


def test_a_unit_that_does_not_count_adds_nothing_whatever_it_was():
    grads = torch.ones(2, 4).double()
    grads[1, 0] = torch.inf
    keep = torch.tensor([True, False])
    blocks = Blocks(((0, 4, Formed(grads)), (6, 10, Formed(grads))), 12).where(keep)
    total = blocks.weighted_sum(keep.double())
    assert total.tolist() == [1.0] * 4 + [0.0] * 2 + [1.0] * 4 + [0.0] * 2
    assert blocks.formed()[0].tolist() == total.tolist()

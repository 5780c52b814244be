"""Tensors as pieces of one vector."""

import torch

from noisewise.pieces import lying_together, pieces, room_for

LIKE = [torch.zeros(3, 5), torch.zeros(7), torch.zeros(2, 2), torch.zeros(())]


def test_pieces_lie_one_behind_the_other_and_are_found_again():
    whole = torch.arange(float(room_for(LIKE)))
    parts = pieces(whole, LIKE)
    assert [part.shape for part in parts] == [one.shape for one in LIKE]
    assert all(part.storage_offset() % 4 == 0 for part in parts)
    assert torch.cat([part.flatten() for part in parts]).unique().numel() == sum(one.numel() for one in LIKE)
    assert lying_together(parts).data_ptr() == whole.data_ptr()
    assert torch.equal(lying_together(parts), whole)
    assert torch.equal(lying_together(parts[1:]), whole[16:])


def test_pieces_lie_in_their_order_whatever_they_are_like():
    like = [torch.zeros(2, 3, 2, 2).to(memory_format=torch.channels_last), torch.zeros(4, 3).t()]
    parts = pieces(torch.arange(float(room_for(like)) + 8)[8:], like)
    assert all(part.is_contiguous() for part in parts)
    assert [part.flatten().tolist() for part in parts] == [list(range(8, 32)), list(range(32, 44))]


def test_other_tensors_are_not_taken_for_pieces():
    parts = pieces(torch.zeros(room_for(LIKE)), LIKE)
    assert lying_together([parts[1], parts[0]]) is None
    assert lying_together([parts[0], parts[2]]) is None
    assert lying_together([parts[0].clone(), *parts[1:]]) is None
    assert lying_together([torch.zeros(4, 4).t(), parts[0]]) is None
    short = torch.zeros(3)  # its storage ends before the room of a piece does
    assert lying_together([short]) is None

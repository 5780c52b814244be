"""Secret randomness: a function of root and position, secret, and different everywhere."""

import itertools

import numpy as np
import pytest
import torch

from noisewise.errors import ConfigError
from noisewise.randomness import STREAMS, Entropy

POSITIONS = [(), (0,), (1,), (0, 0), (0, 1), (1, 0), (0, 0, 0), (2**40,), (2**40, 1)]


def first_draws(entropy, stream, *position):
    return tuple(entropy.generator(stream, *position).integers(0, 2**62, 4).tolist())


def test_every_stream_and_position_draws_something_else():
    entropy = Entropy.insecure(0)
    drawn = [first_draws(entropy, stream, *position) for stream in STREAMS for position in POSITIONS]
    assert len(set(drawn)) == len(STREAMS) * len(POSITIONS)


def test_integers_are_different_for_every_stream_and_position_and_fit_torch():
    entropy = Entropy.insecure(0)
    numbers = [entropy.integer(stream, *position) for stream in STREAMS for position in POSITIONS]
    assert len(set(numbers)) == len(numbers)
    assert all(0 <= number < 2**63 for number in numbers)
    assert all(torch.Generator().manual_seed(number) for number in numbers)


def test_seeds_for_gpus_are_wide_and_all_bits_of_the_root_and_position_matter():
    keys = [Entropy(root).wide("noise", *position) for root in (0, 1, 1 << 255) for position in POSITIONS]
    assert len(set(keys)) == len({seed for seed, _ in keys}) == len({offset for _, offset in keys}) == 27
    assert all(0 <= seed < 2**64 and 0 <= offset < 2**62 and offset % 4 == 0 for seed, offset in keys)
    assert max(seed for seed, _ in keys) >= 2**63  # not 63 bits: P(all below) < 1e-8
    assert max(offset for _, offset in keys) > 2**60
    assert all(torch.Generator().manual_seed(seed) for seed, _ in keys)


def test_bound_roots_differ_with_every_part_and_do_not_show_the_root():
    parts = [(), (b"",), (b"a",), (b"a", b""), (b"", b"a"), (b"a", b"b"), (b"ab",), (b"b", b"a")]
    root = Entropy(12345678901234567890, secure=True)
    made = [root.bound(*each) for each in parts]
    assert len({each.root for each in made} | {root.root}) == len(parts) + 1
    assert all(each.secure and not each.reproducible for each in made)
    assert root.bound(b"a") == root.bound(b"a") != Entropy(1, secure=True).bound(b"a")
    assert Entropy.insecure(3).bound(b"a") == Entropy.insecure(3)


def test_draws_depend_on_root_and_position_only():
    one, other = Entropy.insecure(5), Entropy.insecure(5)
    first_draws(one, "noise", 3)
    assert first_draws(one, "noise", 4) == first_draws(other, "noise", 4)
    assert one.integer("forward", 7) == other.integer("forward", 7)


def test_other_roots_draw_other_numbers():
    roots = [*range(50), 2**32, 2**64, 2**128, 2**255]
    assert len({first_draws(Entropy(root), "noise", 0) for root in roots}) == len(roots)


def test_all_bits_of_the_root_matter():
    roots = [0, *(1 << bit for bit in range(256))]
    assert len({first_draws(Entropy(root), "sampling", 0) for root in roots}) == 257


def test_fresh_roots_are_long_and_never_the_same():
    roots = [Entropy.fresh().root for _ in range(100)]
    assert len(set(roots)) == 100
    assert max(root.bit_length() for root in roots) > 248  # P(all below) < 1e-200
    assert not Entropy.fresh().reproducible


def test_fresh_roots_do_not_follow_public_seeds():
    roots = []
    for _ in range(2):
        np.random.seed(0)
        torch.manual_seed(0)
        roots.append(Entropy.fresh().root)
    assert roots[0] != roots[1]


def test_every_seed_and_phase_has_a_root_of_its_own():
    seeds, phases = (0, 1, 2, 3, 1000, 2**64), (0, 1, 2, 3, 1000)
    roots = {Entropy.insecure(seed, phase).root for seed in seeds for phase in phases}
    assert len(roots) == len(seeds) * len(phases)


def test_words_of_every_root_stream_and_position_differ():
    words = [
        tuple(Entropy(root).words(4, stream, *position).tolist())
        for root in (0, 1, 1 << 255)
        for stream in STREAMS
        for position in POSITIONS
    ]
    assert len(set(words)) == len(words)


@pytest.mark.parametrize("secure", [False, True])
def test_what_is_renewed_is_another_root_of_the_same_kind(secure):
    entropy = Entropy.fresh(secure=secure)
    renewed = entropy.renewed()
    assert renewed.root != entropy.root
    assert (renewed.secure, renewed.reproducible) == (secure, False)
    same = Entropy.insecure(3, secure=secure)
    assert same.renewed() == same


def test_an_insecure_root_is_marked():
    assert Entropy.insecure(3) == Entropy(3, reproducible=True)


@pytest.mark.parametrize("entropy", [Entropy(12345678901234567890), Entropy.insecure(12345678901234567890)])
def test_the_root_is_never_shown(entropy):
    shown = [repr(entropy), str(entropy), f"{entropy}", f"{[entropy]}"]
    assert not any("123456789" in text for text in shown)
    assert repr(Entropy(1)) == "Entropy(secret)"
    assert repr(Entropy.insecure(1)) == "Entropy(reproducible)"


@pytest.mark.parametrize("seed", [-1, 1.5, "0", None])
def test_an_insecure_seed_is_a_whole_number(seed):
    with pytest.raises(ConfigError, match=r"insecure_seed=.*whole number >= 0"):
        Entropy.insecure(seed)


def test_streams_have_numbers_of_their_own():
    assert all(a != b for a, b in itertools.combinations(STREAMS.values(), 2))

"""Secure noise: cryptographic bits, answers on a grid that does not depend on the data, the right distribution."""

import hashlib
import tracemalloc

import numpy as np
import pytest
import torch
from scipy import stats

from noisewise import Ledger, Poisson, Shuffle
from noisewise.bounded import Bounded, release
from noisewise.errors import PrivacyError
from noisewise.noise import GRID, MANY, NOISE_CHUNK, Piece, add_normals, draw_pairs, standard_normal
from noisewise.randomness import Entropy

SECURE = Entropy.insecure(7, secure=True)


def released(value, sigma=1.5, sensitivity=2.0, step=0, entropy=SECURE, support=None):
    part = {"gradient": (Bounded({"w": value}, sensitivity, support or {}), sigma)}
    return release(part, sampler=Poisson(10, 5), ledger=Ledger(), entropy=entropy, step=step)["gradient"]["w"]


def widened(count, sigma=1.5):
    return 1 / (1 - sigma * GRID * count**0.5)


def normal(sample, std):
    """Kolmogorov-Smirnov against N(0, std^2); false alarms 1 in 1000."""
    return stats.kstest(sample, "norm", (0, std)).pvalue > 1e-3


def test_noise_has_the_right_distribution_and_a_wrong_scale_shows():
    sample = released(torch.zeros(60_000, dtype=torch.float64)).numpy()
    assert normal(sample, 3.0)
    assert not normal(sample * 0.97, 3.0)
    assert not normal(np.abs(sample), 3.0)


def test_far_tails_are_there():
    sample = np.abs(released(torch.zeros(4_000_000, dtype=torch.float64)).numpy()) / 3.0
    expected = 4_000_000 * 2 * stats.norm.sf(4.0)  # 253
    assert abs((sample > 4.0).sum() - expected) < 4 * expected**0.5


@pytest.mark.parametrize("value", [0.0, 1 / 3, -1e-7, 12345.678])
def test_answers_lie_on_one_grid_whatever_the_data(value):
    count = 1000
    answers = released(torch.full((count,), value, dtype=torch.float64)).numpy()
    steps = answers / (3.0 * widened(count) * GRID)
    assert np.abs(steps - np.rint(steps)).max() < 1e-6 * max(1.0, abs(value))
    assert answers.mean() == pytest.approx(value, abs=5 * 3.0 / count**0.5)


def test_ordinary_noise_is_not_on_that_grid():
    answers = released(torch.full((1000,), 1 / 3, dtype=torch.float64), entropy=Entropy.insecure(7)).numpy()
    steps = answers / (3.0 * widened(1000) * GRID)
    assert np.abs(steps - np.rint(steps)).max() > 0.4


@pytest.mark.parametrize("sigma", [1e-3, 1.0, 1e3, 1e5, 2e5])
def test_the_grid_is_paid_for_exactly_by_its_definition(sigma):
    """Noise over true sensitivity is the stated multiplier: neighbours C apart, plus one grid step in every coordinate."""
    count, bound = 1000, 2.0
    answers = released(torch.zeros(count, dtype=torch.float64), sigma, bound).numpy()
    zero = released(torch.zeros(count, dtype=torch.float64), 1.5, bound).numpy()  # the same draws
    std = 1.5 * bound * widened(count) * np.median(answers / zero)
    assert std / (bound + GRID * std * count**0.5) == pytest.approx(sigma, rel=1e-9)


def test_noise_beside_which_the_grid_is_coarse_is_refused():
    most = 0.5 / (GRID * 1000**0.5)
    with pytest.raises(PrivacyError, match=r"on 1000 coordinates.*less noise.*support=.*secure=False"):
        released(torch.zeros(1000), 1.001 * most)
    assert released(torch.zeros(1000), 0.999 * most).isfinite().all()


def test_rounding_to_the_grid_is_paid_for_with_noise():
    assert widened(25_000_000) == pytest.approx(1.00045, abs=5e-5)  # a large model: below one part in a thousand


def test_steps_and_parameters_have_noise_of_their_own_and_positions_repeat():
    zeros = torch.zeros(5000, dtype=torch.float64)
    first, again, later = released(zeros), released(zeros), released(zeros, step=1)
    assert torch.equal(first, again)
    assert abs(np.corrcoef(first, later)[0, 1]) < 0.06  # four standard deviations


def test_masked_coordinates_stay_zero():
    mask = torch.arange(100) % 2 == 0
    answer = released(torch.zeros(100), support={"w": mask})
    assert torch.equal(answer != 0, mask)


def test_words_are_shake_128_of_root_and_position():
    key = b"".join(number.to_bytes(32, "little") for number in (7, 1, 3, 4))
    assert SECURE.words(5, "noise", 3, 4).tobytes() == hashlib.shake_128(key).digest(40)


@pytest.mark.parametrize("sampler", [Poisson(2000, 200), Shuffle(2000, 200)])
def test_batches_come_from_the_cryptographic_stream(sampler):
    secure = next(sampler.batches(SECURE, 0, 1))
    ordinary = next(sampler.batches(Entropy.insecure(7), 0, 1))
    assert not np.array_equal(secure, ordinary)
    assert abs(len(secure) - 200) < 60  # over four standard deviations


def test_a_secure_root_is_fresh_each_time():
    assert Entropy.fresh(secure=True).root != Entropy.fresh(secure=True).root
    assert Entropy.fresh(secure=True).secure


class Words:
    """Stands for a generator: hands out given 64-bit words, and then others that nothing may be made of."""

    def __init__(self, *words):
        self.words = np.concatenate([np.asarray(part, np.uint64) for part in words])
        self.read = 0

    def integers(self, low, high, count, dtype, endpoint):
        assert (low, high, dtype, endpoint) == (0, 2**64 - 1, np.uint64, True)
        part = self.words[self.read : self.read + count]
        self.read += count
        return np.concatenate([part, np.full(count - len(part), 3, np.uint64)])


@pytest.mark.parametrize("count", [2, 7, 1000, 1001])
def test_pairs_are_the_definition_in_double_precision(count):
    """Radius and angle from 32 bits each, 53 more where the radius is large; compared number by number."""
    pairs, rng = (count + 1) // 2, np.random.default_rng(count)
    words = rng.integers(0, 2**32, 2 * pairs, dtype=np.uint32)
    words[: pairs // 2] >>= np.arange(pairs // 2, dtype=np.uint32) % 32  # tails too
    small = words[:pairs] < 2**24
    more = rng.integers(0, 2**64, small.sum(), dtype=np.uint64)
    out = np.empty(count, np.float32)
    draw_pairs(Words(words.view(np.uint64), more), out)
    uniform = words[:pairs].astype(float)
    uniform[small] += ((more >> np.uint64(11)).astype(float) + 0.5) * 2.0**-53
    radius, angle = np.sqrt(-2 * np.log(uniform * 2.0**-32)), np.pi * words[pairs:].view(np.int32) / 2.0**31
    expected = np.concatenate([radius * np.cos(angle), radius * np.sin(angle)])[:count]
    np.testing.assert_allclose(out, expected, rtol=2e-6, atol=2e-6)
    assert count < 1000 or np.abs(out).max() > 4


def test_pairs_are_finite_whatever_the_bits():
    for radius, angle, farthest in ((0, 0, 10.92), (2**24 - 1, 5, 3.33), (2**24, 0, 3.33), (2**32 - 1, 9, 3e-4)):
        out = np.empty(2, np.float32)
        draw_pairs(Words([radius + (angle << 32)], [0] if radius < 2**24 else []), out)
        assert np.hypot(*out) == pytest.approx(farthest, abs=4e-3)


@pytest.mark.parametrize("count", [MANY - 1, MANY, MANY + 1, NOISE_CHUNK + 3])
def test_every_number_of_any_length_is_drawn(count):
    out = np.full(count, np.nan, np.float32)
    draw_pairs(np.random.Generator(np.random.SFC64(count)), out)
    assert np.isfinite(out).all()
    assert len(np.unique(out)) > 0.99 * count
    assert normal(out, 1.0)


def test_pairs_have_the_tails_of_the_normal_distribution():
    out = np.empty(4_000_000, np.float32)
    draw_pairs(np.random.Generator(np.random.SFC64(1)), out)
    for limit in (1.0, 3.0, 4.0):
        expected = out.size * stats.norm.sf(limit)
        for side in (out, -out):
            assert abs((side > limit).sum() - expected) < 4 * expected**0.5
    assert abs(np.corrcoef(out[0::2], out[1::2])[0, 1]) < 4 * (2 / out.size) ** 0.5
    pairs = out.reshape(2, -1)  # the first numbers of all pairs, and the second
    assert abs(np.corrcoef(pairs)[0, 1]) < 4 * (2 / out.size) ** 0.5
    assert abs(np.corrcoef(np.square(pairs))[0, 1]) < 4 * (2 / out.size) ** 0.5


@pytest.mark.parametrize(("kind", "count"), [(torch.float32, MANY - 1), (torch.float64, MANY), (torch.float64, 50)])
def test_few_numbers_and_double_precision_are_drawn_by_numpy(kind, count):
    noise = standard_normal(torch.zeros(count, dtype=kind), Entropy.insecure(4), (2, 0, 3))
    generator = Entropy.insecure(4).generator("noise", 2, 0, 3, 0)
    assert np.array_equal(noise.numpy(), generator.standard_normal(count, dtype=noise.numpy().dtype.type))


def drawn_in_order(read, count):
    """The definition of a stream: a word for each pair, then one more where the radius is large."""
    radius, angle = read((count + 1) // 2).view(np.uint32).reshape(2, -1)
    uniform = radius.astype(float)
    uniform[radius < 2**24] += ((read((radius < 2**24).sum()) >> np.uint64(11)).astype(float) + 0.5) * 2.0**-53
    length, turn = np.sqrt(-2 * np.log(uniform * 2.0**-32)), np.pi * angle.view(np.int32) / 2.0**31
    return np.concatenate([length * np.cos(turn), length * np.sin(turn)])[:count]


@pytest.mark.parametrize("count", [1, 2, MANY - 1, MANY, MANY + 1, 3 * MANY + 12345, NOISE_CHUNK + 1])
def test_a_stream_is_read_as_it_is_defined(count):
    """Word by word as the bit generator hands them out: no call of NumPy in between makes something else of them."""
    out = np.empty(count, np.float32)
    draw_pairs(np.random.Generator(np.random.SFC64(count)), out)
    expected = drawn_in_order(np.random.SFC64(count).random_raw, count)
    np.testing.assert_allclose(out, expected, rtol=2e-6, atol=4e-4)  # where u is nearly 1, its last bit is much


def test_room_for_more_pairs_than_there_are_changes_nothing():
    alone, within = (np.empty(MANY + 1, np.float32) for _ in range(2))
    draw_pairs(np.random.Generator(np.random.SFC64(5)), alone)
    draw_pairs(np.random.Generator(np.random.SFC64(5)), within, np.full((2, MANY), np.nan, np.float32))
    assert np.array_equal(alone, within)


def test_words_that_all_need_more_digits_are_read_twice():
    """Every radius is large: as many words again."""
    count = MANY + 500
    words = np.random.default_rng(0).integers(0, 2**64, 2 * count, dtype=np.uint64)
    words.view(np.uint32)[...] >>= 8
    out, given = np.empty(2 * count, np.float32), Words(words)
    draw_pairs(given, out)
    assert given.read == 2 * count
    parts = iter((words[:count], words[count:]))
    np.testing.assert_allclose(
        out, drawn_in_order(lambda number: next(parts)[:number], 2 * count), rtol=2e-6, atol=2e-6
    )


@pytest.mark.parametrize("threads", [1, 2, 3])
def test_tensors_that_are_drawn_together_have_the_noise_of_each_alone(threads):
    """Whatever the number of threads; large, small, empty, double and half precision."""
    sizes = [(7, torch.float32), (MANY, torch.float32), (NOISE_CHUNK * 9 + 5, torch.float32), (0, torch.float32)]
    sizes += [(NOISE_CHUNK + 3, torch.float64), (50, torch.bfloat16), (2 * MANY - 1, torch.bfloat16)]
    values = [torch.linspace(-3, 3, size, dtype=kind) for size, kind in sizes]
    places = [(4, 0, k) for k in range(len(values))]
    together = [value.clone() for value in values]
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        add_normals(together, 1.3, Entropy.insecure(3), places, [None] * len(values))
    finally:
        torch.set_num_threads(before)
    for value, place, noised in zip(values, places, together, strict=True):
        noise = standard_normal(value, Entropy.insecure(3), place)
        assert noise.dtype == value.dtype
        half = value.dtype == torch.bfloat16
        assert torch.equal(noised, torch.add(value, noise, alpha=1.3) if half else value + 1.3 * noise)
    assert not torch.equal(together[1][:7] - values[1][:7], together[0] - values[0])


def test_noise_is_never_in_memory_as_a_whole():
    value = torch.zeros(100 * NOISE_CHUNK)
    tracemalloc.start()
    try:
        add_normals([value], 1.0, Entropy.insecure(0), [(0, 0)], [None])
        assert tracemalloc.get_traced_memory()[1] < 15 * NOISE_CHUNK * 4 * torch.get_num_threads()
    finally:
        tracemalloc.stop()
    assert bool((value != 0).all())


def test_an_error_in_a_thread_is_not_lost():
    class Broken(Entropy):
        def generator(self, stream, *position):
            if position[-1] == 7:
                raise OSError("no bits")
            return super().generator(stream, *position)

    with pytest.raises(OSError, match="no bits"):
        standard_normal(torch.empty(NOISE_CHUNK * 9), Broken(1), (0, 0, 0))


def test_many_numbers_are_pairs_of_each_chunks_own_stream():
    noise = standard_normal(torch.zeros(NOISE_CHUNK + MANY), Entropy.insecure(4), (2, 0, 3))
    for chunk, part in enumerate(noise.split(NOISE_CHUNK)):
        expected = np.empty(len(part), np.float32)
        draw_pairs(Entropy.insecure(4).generator("noise", 2, 0, 3, chunk), expected)
        assert np.array_equal(part.numpy(), expected)


@pytest.mark.parametrize("count", [100, MANY + 3, 2 * NOISE_CHUNK + 7])
@pytest.mark.parametrize("kind", [torch.float32, torch.float64, "secure"])
def test_pieces_have_the_noise_of_the_whole(count, kind):
    """Wherever it is cut, also within what is drawn at once and into nothing; and the grid is paid for as a whole."""
    entropy = SECURE if kind == "secure" else Entropy.insecure(7)
    value = torch.linspace(-1, 1, count, dtype=torch.float64 if kind == "secure" else kind)
    whole, cuts = (
        released(value, entropy=entropy),
        [cut for cut in (0, 33, NOISE_CHUNK, NOISE_CHUNK + 50) if cut <= count],
    )
    parts = []
    for first, last in zip([0, *cuts], [*cuts, count], strict=True):
        part = Bounded({"w": value[first:last]}, 2.0, pieces={"w": Piece(first, count)})
        given = {"sampler": Poisson(10, 5), "ledger": Ledger(), "entropy": entropy, "step": 0}
        parts.append(release({"gradient": (part, 1.5)}, **given)["gradient"]["w"])
    assert torch.equal(torch.cat(parts)[:count], whole)

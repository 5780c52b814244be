"""Noise and the one door: scale, independence, support, the ledger. Each statistical check also rejects a wrong noise.

Every check raises a false alarm with probability at most 1e-6 (stated per check); seeds are fixed, so that a test that
passes once passes always.
"""

import math

import dp_accounting
import numpy as np
import pytest
import torch
from scipy import stats

from helpers.interpreted import interpret
from noisewise.accounting import Ledger
from noisewise.bounded import (
    Bounded,
    _mask_of_all,
    _with_noise,
    _with_noise_at_once,
    expose,
    joint_multiplier,
    merge,
    release,
)
from noisewise.errors import ConfigError, PrivacyError
from noisewise.noise import NOISE_CHUNK, add_noise, standard_normal
from noisewise.persample import kernels
from noisewise.pieces import pieces, room_for
from noisewise.randomness import Entropy
from noisewise.sampling import FullBatch, Poisson, Shuffle

FALSE_ALARM = 1e-6

SIZE = 20_000

SAMPLER = Poisson(n=100, batch_size=10)


def zeros(**sizes):
    return {name: torch.zeros(size) for name, size in sizes.items()}


def noise_of(values, multiplier=1.0, sensitivity=1.0, support=None, seed=0, step=0):
    """What release adds to a sum that is zero everywhere."""
    return released(Bounded(values, sensitivity, support or {}), multiplier, seed=seed, step=step)


def released(bounded, multiplier=1.0, ledger=None, sampler=SAMPLER, seed=0, step=0, first_step=0):
    return release(
        {"gradient": (bounded, multiplier)},
        sampler=sampler,
        ledger=ledger or Ledger(sampler.adjacencies[0]),
        entropy=Entropy.insecure(seed),
        step=step,
        first_step=first_step,
    )["gradient"]


def has_std(noise, std):
    """Two-sided chi-square test of the scale around mean 0; false alarms 1e-6. 20,000 values show 5 %."""
    statistic = float((noise.double() / std).square().sum())
    return 2 * min(stats.chi2.cdf(statistic, noise.numel()), stats.chi2.sf(statistic, noise.numel())) > FALSE_ALARM


def is_gaussian(noise, std):
    """Kolmogorov-Smirnov test against N(0, std^2); false alarms 1e-6."""
    return stats.kstest(noise.double().flatten().numpy() / std, "norm").pvalue > FALSE_ALARM


def are_independent(one, other):
    """Correlation of values and of squares, z-tests; false alarms 1e-6 together. 20,000 pairs show a correlation of 0.05."""
    one, other = one.double().flatten().numpy(), other.double().flatten().numpy()
    limit = stats.norm.isf(FALSE_ALARM / 4) / math.sqrt(one.size)
    pairs = ((one, other), (one**2, other**2))
    return all(abs(np.corrcoef(a, b)[0, 1]) < limit for a, b in pairs)


def has_independent_coordinates(noise, lags=(1, 2, 3, 10, 64, 1000)):
    """No correlation between coordinates at any of some distances; false alarms 6e-6."""
    noise = noise.flatten()
    return all(are_independent(noise[:-lag], noise[lag:]) for lag in lags)


def falls_on(noise, mask):
    """Exactly on the kept coordinates: a Gaussian is never 0."""
    return torch.equal(noise != 0, mask)


@pytest.mark.parametrize(("multiplier", "sensitivity"), [(1.0, 1.0), (0.5, 3.0), (4.0, 0.01), (1.3, 1.3)])
def test_noise_has_the_std_multiplier_times_sensitivity(multiplier, sensitivity):
    """Seed 0."""
    noise, std = noise_of(zeros(a=SIZE), multiplier, sensitivity)["a"], multiplier * sensitivity
    assert has_std(noise, std)
    assert is_gaussian(noise, std)
    for wrong in (0.9, 1.1):
        assert not has_std(noise * wrong, std)
        assert not is_gaussian(noise * wrong, std)


def test_every_parameter_has_the_same_std_whatever_its_shape_and_type():
    """Seed 1."""
    values = {"a": torch.zeros(SIZE), "b": torch.zeros(100, 200), "c": torch.zeros(2, 5, 40, 50, dtype=torch.float64)}
    noise = noise_of(values, 2.0, 0.5, seed=1)
    for name, value in values.items():
        assert noise[name].shape == value.shape
        assert noise[name].dtype == value.dtype
        assert has_std(noise[name], 1.0)
        assert not has_std(noise[name] * 0.9, 1.0)


def of_one_vector():
    """Values and masks as pieces of one vector each, and that of the masks."""
    torch.manual_seed(0)
    like = [torch.zeros(3, 5), torch.zeros(7), torch.zeros(2, 2)]
    mask = torch.zeros(room_for(like), dtype=torch.bool).bernoulli_()
    return pieces(torch.randn(room_for(like)), like), pieces(mask, like), mask


def test_masks_are_one_where_they_and_the_values_are_pieces_of_one_vector():
    values, laid, mask = of_one_vector()
    assert torch.equal(_mask_of_all(values, laid), mask)
    apart = [mask.clone() for mask in laid]
    odd, floats = [laid[0].view(5, 3), *laid[1:]], pieces(mask.float(), laid)
    for others in (apart, odd, floats, [True, *laid[1:]], [None, *laid[1:]], laid[::-1], laid[:2]):
        assert _mask_of_all(values, others) is None
    assert _mask_of_all([value.clone() for value in values], laid) is None


@pytest.mark.parametrize("kernel", [False, True], ids=["portable", "kernels"])
@pytest.mark.parametrize("together", [False, True])
@pytest.mark.parametrize("std", [0.5, np.float64(2.5)])
def test_on_a_gpu_answers_are_noised_where_the_mask_is_and_zero_elsewhere(kernel, together, std, monkeypatch):
    """Whatever was there, and the values stay as they are."""
    passes, noised = [], kernels.noised
    monkeypatch.setattr(kernels, "noised", lambda *given: (passes.append(given), noised(*given)))
    if kernel:
        pytest.importorskip("triton")
        interpret(monkeypatch)
    values, masks, _ = of_one_vector()
    if not together:
        masks = [mask.clone() for mask in masks]
    values[0][~masks[0]], values[1][~masks[1]] = float("inf"), float("nan")
    before, names = [value.clone() for value in values], "abc"
    bounded = Bounded(dict(zip(names, values, strict=True)), 1.0, dict(zip(names, masks, strict=True)))
    noise = _with_noise_at_once(Bounded(dict(zip(names, values, strict=True)), 1.0), std, Entropy(7), (0, 0))
    answers = _with_noise_at_once(bounded, std, Entropy(7), (0, 0))
    assert len(passes) == (kernel and together)
    for name, mask, value, was in zip(names, masks, values, before, strict=True):
        assert (answers[name][~mask] == 0).all()
        torch.testing.assert_close(answers[name][mask], noise[name][mask], rtol=1e-6, atol=1e-6)
        assert not (answers[name][mask] == value[mask]).any()
        assert torch.equal(value.nan_to_num(), was.nan_to_num())


@pytest.mark.parametrize("std", [0.0, 1.0])
def test_where_a_mask_is_nothing_leaves_be_it_no_number(std):
    """Whoever hands a sum to the door may not have cleared it."""
    masks, values = {"a": torch.tensor([True, False, False])}, torch.tensor([1.0, math.inf, math.nan])
    answer = _with_noise(Bounded({"a": values}, 1.0, masks), std, Entropy(7), (0, 0))["a"]
    assert answer.isfinite().all()
    assert (answer == 0).tolist() == [False, True, True]


def test_a_mask_of_other_tensors_is_not_left_out_in_silence():
    values, _, mask = of_one_vector()
    for others, wrong in (([value.clone() for value in values], mask), (values, mask[:1])):
        with pytest.raises(PrivacyError, match="`pieces`"):
            add_noise(others, 1.0, Entropy(7), (0,), wrong)


def test_bfloat16_sums_get_noise_of_the_right_scale():
    """Seed 2."""
    noise = noise_of({"a": torch.zeros(SIZE, dtype=torch.bfloat16)}, 1.0, 2.0, seed=2)["a"]
    assert noise.dtype == torch.bfloat16
    assert has_std(noise, 2.0)
    assert not has_std(noise * 0.9, 2.0)


def test_small_parameters_are_noised_too():
    """Seeds 0..1999: one number each."""
    noise = torch.stack([noise_of({"a": torch.zeros(())}, seed=seed)["a"] for seed in range(2000)])
    assert has_std(noise, 1.0)
    assert is_gaussian(noise, 1.0)
    assert not has_std(noise * 0.9, 1.0)


def test_noise_is_added_to_the_sum():
    bounded = Bounded({"a": torch.arange(6.0).view(2, 3)}, 1.0)
    noise = noise_of(zeros(a=(2, 3)), 0.7)["a"]
    assert torch.allclose(released(bounded, 0.7)["a"], bounded._values["a"] + noise)


def test_the_sum_itself_stays_as_it_is():
    bounded = Bounded({"a": torch.ones(5), "b": torch.ones(5)}, 1.0, {"b": torch.zeros(5, dtype=torch.bool)})
    for multiplier in (1.0, 0.0):
        answer = released(bounded, multiplier)
        for value in answer.values():
            value.add_(100)
        assert all(torch.equal(value, torch.ones(5)) for value in bounded._values.values())


@pytest.mark.parametrize("multiplier", [1.3, 0.0])
def test_sums_that_nobody_else_has_get_their_noise_in_place(multiplier):
    """The same answers, masks and all; what does not lie in its own order, and what is a constant, is not written to."""
    turned = torch.arange(6.0).view(2, 3).T
    values = {"a": torch.arange(5.0), "b": torch.ones(4), "c": turned, "d": torch.ones(2)}
    bounded = Bounded(values, 1.0, {"b": torch.tensor([True, False, True, False]), "d": False})
    given = {"sampler": SAMPLER, "entropy": Entropy.insecure(3), "step": 2}
    expected = release({"gradient": (bounded, multiplier)}, ledger=Ledger(), **given)["gradient"]
    kept = {name: value.clone() for name, value in values.items()}
    answer = release({"gradient": (bounded, multiplier)}, ledger=Ledger(), owned=True, **given)["gradient"]
    assert all(torch.equal(answer[name], expected[name]) for name in values)
    assert all(answer[name].data_ptr() == values[name].data_ptr() for name in "ab")
    assert all(torch.equal(values[name], kept[name]) for name in "cd")


@pytest.mark.parametrize(
    "views",
    [
        [lambda whole: whole[:20], lambda whole: whole[:20]],
        [lambda whole: whole[:20], lambda whole: whole[10:]],
        [lambda whole: whole[5:25].view(4, 5).T, lambda whole: whole[20:]],
    ],
    ids=["the same", "overlapping", "turned"],
)
def test_sums_that_share_memory_get_noise_of_their_own_all_the_same(views):
    """In one part, and in two."""
    given = {"sampler": SAMPLER, "entropy": Entropy.insecure(3), "step": 2}

    def answers(together, owned):
        whole = torch.zeros(30)
        one, other = (view(whole) for view in views)
        both = {"one": {"a": one, "b": other}} if together else {"one": {"a": one}, "two": {"b": other}}
        parts = {name: (Bounded(values, 1.0), 1.0) for name, values in both.items()}
        released = release(parts, ledger=Ledger(), owned=owned, **given)
        return [value for part in released.values() for value in part.values()]

    for together in (True, False):
        for here, expected in zip(answers(together, True), answers(together, False), strict=True):
            assert torch.equal(here, expected)


def test_coordinates_are_independent():
    """Seed 3."""
    noise = noise_of(zeros(a=SIZE), seed=3)["a"]
    assert has_independent_coordinates(noise)
    assert not has_independent_coordinates(noise[: SIZE // 2].repeat_interleave(2))
    assert not has_independent_coordinates(noise[:1000].repeat(20))


def test_parameters_are_independent():
    """Seed 4."""
    noise = noise_of(zeros(a=SIZE, b=SIZE, c=SIZE), seed=4)
    for one, other in (("a", "b"), ("a", "c"), ("b", "c")):
        assert are_independent(noise[one], noise[other])
    assert not are_independent(noise["a"], noise["a"])
    assert not are_independent(noise["a"], -noise["a"])
    assert not are_independent(noise["a"], 0.1 * noise["a"] + noise["b"])


def test_steps_are_independent():
    """Seed 5."""
    steps = [noise_of(zeros(a=SIZE), seed=5, step=step)["a"] for step in range(4)]
    for k in range(1, 4):
        assert are_independent(steps[0], steps[k])
    assert not are_independent(steps[0], noise_of(zeros(a=SIZE), seed=5, step=0)["a"])


def test_roots_are_independent():
    """Seeds 6 and 7."""
    one, other = (noise_of(zeros(a=SIZE), seed=seed)["a"] for seed in (6, 7))
    assert are_independent(one, other)
    assert not are_independent(one, noise_of(zeros(a=SIZE), seed=6)["a"])


def test_parts_of_one_release_are_independent():
    """Seed 8."""
    parts = {name: (Bounded(zeros(a=SIZE), 1.0), 1.0) for name in ("gradient", "clip")}
    answer = release(parts, sampler=SAMPLER, ledger=Ledger(), entropy=Entropy.insecure(8), step=0)
    assert are_independent(answer["gradient"]["a"], answer["clip"]["a"])
    assert not are_independent(answer["gradient"]["a"], answer["gradient"]["a"])


def test_a_second_phase_has_noise_of_its_own():
    """Seed 9: steps of a phase that starts at 10 continue those of the first."""
    bounded = Bounded(zeros(a=SIZE), 1.0)
    first, second = (released(bounded, seed=9, step=2, first_step=first) for first in (0, 10))
    assert are_independent(first["a"], second["a"])
    assert torch.equal(second["a"], released(bounded, seed=9, step=12)["a"])


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_chunks_of_a_large_parameter_are_independent(dtype):
    """Seed 10: four chunks, the last one of 17 values."""
    noise = standard_normal(torch.zeros(3 * NOISE_CHUNK + 17, dtype=dtype), Entropy.insecure(10), (0, 0, 0))
    chunks = noise.split(NOISE_CHUNK)
    assert [len(chunk) for chunk in chunks] == [NOISE_CHUNK] * 3 + [17]
    for k in range(3):
        assert has_std(chunks[k], 1.0)
        assert not has_std(chunks[k] * 0.9, 1.0)
        assert are_independent(chunks[k], chunks[(k + 1) % 3])
    assert not are_independent(chunks[0], chunks[0])
    assert has_independent_coordinates(noise, lags=(1, 1000, NOISE_CHUNK))
    assert not has_independent_coordinates(chunks[0].repeat(3), lags=(NOISE_CHUNK,))
    assert bool((chunks[3] != 0).all())


def test_noise_is_a_function_of_root_and_position_only():
    like = torch.zeros(2 * NOISE_CHUNK)
    one, other = (standard_normal(like, Entropy.insecure(11), (3, 0, 1)) for _ in range(2))
    assert torch.equal(one, other)


def test_noise_falls_on_kept_coordinates_only():
    """Seed 12."""
    mask = torch.rand(100, 200, generator=torch.Generator().manual_seed(0)) < 0.3
    noise = noise_of(zeros(a=(100, 200), b=SIZE), 1.5, support={"a": mask}, seed=12)
    assert falls_on(noise["a"], mask)
    assert has_std(noise["a"][mask], 1.5)
    assert not has_std(noise["a"][mask] * 0.9, 1.5)
    assert falls_on(noise["b"], torch.ones(SIZE, dtype=torch.bool))
    everywhere = noise_of(zeros(a=(100, 200)), 1.5, seed=12)["a"]
    assert not falls_on(everywhere, mask)
    assert not falls_on(noise["a"], ~mask)


@pytest.mark.parametrize("support", [{"a": False}, {"a": torch.zeros(5, dtype=torch.bool)}])
def test_frozen_parameters_get_no_noise(support):
    noise = noise_of(zeros(a=5, b=5), support=support)
    assert not noise["a"].any()
    assert bool((noise["b"] != 0).all())


def lines(ledger):
    return [(line.event, line.purpose, line.count, line.first_step) for line in ledger.lines]


def test_every_release_is_a_line_in_the_ledger():
    ledger, bounded = Ledger(), Bounded(zeros(a=3), 1.0)
    for step in range(5):
        released(bounded, 1.1, ledger, step=step)
    event = dp_accounting.PoissonSampledDpEvent(0.1, dp_accounting.GaussianDpEvent(1.1))
    assert lines(ledger) == [(event, "gradient", 5, 0)]


def test_other_noise_is_another_line():
    ledger, bounded = Ledger(), Bounded(zeros(a=3), 1.0)
    for step, multiplier in enumerate((1.0, 1.0, 2.0)):
        released(bounded, multiplier, ledger, step=step, first_step=10)
    assert [(line.count, line.first_step) for line in ledger.lines] == [(2, 10), (1, 12)]


def test_several_answers_from_one_batch_are_one_event():
    ledger = Ledger()
    parts = {"gradient": (Bounded(zeros(a=3), 1.0), 2.0), "clip": (Bounded(zeros(b=1), 5.0), 3.0)}
    answer = release(parts, sampler=FullBatch(n=10), ledger=ledger, entropy=Entropy.insecure(0), step=0)
    assert answer.keys() == parts.keys()
    joint = (2.0**-2 + 3.0**-2) ** -0.5
    ((event, *rest),) = lines(ledger)
    assert event.noise_multiplier == pytest.approx(joint, rel=1e-12)
    assert event.noise_multiplier <= joint  # rounded down, so that epsilon is never understated
    assert rest == ["gradient + clip", 1, 0]


def test_answers_from_one_batch_have_the_scale_of_their_own_sensitivity():
    """Seed 13."""
    parts = {"gradient": (Bounded(zeros(a=SIZE), 1.0), 2.0), "clip": (Bounded(zeros(b=SIZE), 5.0), 3.0)}
    answer = release(parts, sampler=SAMPLER, ledger=Ledger(), entropy=Entropy.insecure(13), step=0)
    assert has_std(answer["gradient"]["a"], 2.0)
    assert has_std(answer["clip"]["b"], 15.0)
    assert not has_std(answer["clip"]["b"], 15.0 * 0.9)


class Broken(Entropy):
    """Randomness that fails."""

    def generator(self, stream, *position):
        raise OSError("no randomness")


def test_the_ledger_is_written_before_anything_is_handed_out():
    ledger = Ledger()
    parts = {"gradient": (Bounded(zeros(a=3), 1.0), 1.0)}
    with pytest.raises(OSError, match="no randomness"):
        release(parts, sampler=SAMPLER, ledger=ledger, entropy=Broken(0), step=0)
    assert ledger.releases == 1


class Full(Ledger):
    """A ledger that cannot be written."""

    def record(self, event, purpose, step, *, reproducible=False):
        raise OSError("disk full")


def test_nothing_is_handed_out_if_the_ledger_cannot_be_written():
    with pytest.raises(OSError, match="disk full"):
        released(Bounded(zeros(a=3), 1.0), ledger=Full())


def test_without_noise_the_release_is_recorded_as_not_private():
    ledger = Ledger()
    answer = released(Bounded({"a": torch.ones(3)}, 1.0), 0.0, ledger)
    assert torch.equal(answer["a"], torch.ones(3))
    assert lines(ledger) == [(dp_accounting.NonPrivateDpEvent(), "gradient", 1, 0)]
    assert ledger.epsilon(1e-5) == math.inf


def test_one_answer_without_noise_makes_the_whole_release_not_private():
    ledger = Ledger()
    parts = {"gradient": (Bounded(zeros(a=3), 1.0), 2.0), "clip": (Bounded(zeros(b=1), 1.0), 0.0)}
    release(parts, sampler=SAMPLER, ledger=ledger, entropy=Entropy.insecure(0), step=0)
    assert not ledger.lines[0].event_is_private


def test_a_shuffled_epoch_is_one_event():
    sampler, ledger = Shuffle(n=10, batch_size=3), Ledger("zero-out")
    for step in range(8):
        released(Bounded(zeros(a=3), 1.0), 1.5, ledger, sampler, step=step)
    assert lines(ledger) == [(dp_accounting.GaussianDpEvent(1.5), "gradient", 2, 0)]


def test_the_steps_of_a_shuffled_epoch_have_noise_of_their_own():
    """Seed 14."""
    sampler, ledger, bounded = Shuffle(n=10, batch_size=5), Ledger("zero-out"), Bounded(zeros(a=SIZE), 1.0)
    one, other = (released(bounded, 1.0, ledger, sampler, seed=14, step=step)["a"] for step in range(2))
    assert are_independent(one, other)
    assert not are_independent(one, one)


@pytest.mark.parametrize("recorded", [None, 2.0])
def test_a_step_within_an_epoch_that_is_not_recorded_is_refused(recorded):
    sampler, ledger, bounded = Shuffle(n=10, batch_size=3), Ledger("zero-out"), Bounded(zeros(a=3), 1.0)
    if recorded:
        released(bounded, recorded, ledger, sampler, step=0)
    before = lines(ledger)
    with pytest.raises(PrivacyError, match=r"step 2 of an epoch whose release is not in the ledger.*multiples of 4"):
        released(bounded, 1.0, ledger, sampler, step=2)
    assert lines(ledger) == before


def test_expose_marks_everything_as_not_private():
    """Seed 15."""
    ledger = Ledger()
    mask = torch.arange(SIZE) % 2 == 0
    answer = expose(
        zeros(a=SIZE), 2.0, {"a": mask}, ledger=ledger, entropy=Entropy.insecure(15), step=4, purpose="noise-only"
    )
    assert lines(ledger) == [(dp_accounting.NonPrivateDpEvent(), "noise-only (not private)", 1, 4)]
    assert ledger.reproducible
    assert falls_on(answer["a"], mask)
    assert has_std(answer["a"][mask], 2.0)
    assert not has_std(answer["a"][mask], 2.2)


@pytest.mark.parametrize("sensitivity", [0.0, -1.0, math.inf, math.nan])
def test_a_bound_is_a_finite_number_above_0(sensitivity):
    with pytest.raises(PrivacyError, match="sensitivity"):
        Bounded(zeros(a=1), sensitivity)


def test_a_bounded_sum_does_not_show_its_values():
    assert repr(Bounded({"a": torch.tensor([123.0])}, 2.0)) == "Bounded(sensitivity=2.0)"


def test_merge_adds_sums_over_other_units():
    mask = {"a": torch.tensor([True, False])}
    parts = [Bounded({"a": torch.tensor([value, 0.0])}, 0.5, mask) for value in (1.0, 2.0, 4.0)]
    whole = merge(parts)
    assert whole._values["a"].tolist() == [7.0, 0.0]
    assert whole.sensitivity == 0.5
    assert whole.support == mask
    assert parts[0]._values["a"].tolist() == [1.0, 0.0]


def test_merge_of_one_part_is_that_part():
    part = Bounded(zeros(a=2), 0.5)
    assert merge([part]) == part


@pytest.mark.parametrize("other", [Bounded(zeros(a=2), 0.6), Bounded(zeros(b=2), 0.5), Bounded(zeros(a=2, b=1), 0.5)])
def test_merge_refuses_what_answers_another_question(other):
    with pytest.raises(PrivacyError, match="different sensitivity, tensors or support"):
        merge([Bounded(zeros(a=2), 0.5), other])


def test_merge_refuses_another_support():
    """Else what the second part has outside the first one's mask would leave without noise."""
    kept = Bounded({"a": torch.zeros(2)}, 1.0, {"a": torch.tensor([True, False])})
    for other in ({}, {"a": torch.tensor([False, True])}, {"a": torch.tensor([True, True])}, {"a": False}):
        with pytest.raises(PrivacyError):
            merge([kept, Bounded({"a": torch.ones(2)}, 1.0, other)])
    same = Bounded({"a": torch.tensor([1.0, 0.0])}, 1.0, {"a": torch.tensor([True, False])})
    assert merge([kept, same])._values["a"].tolist() == [1.0, 0.0]


def test_nothing_leaves_without_noise_outside_of_the_support():
    """A sum that is not zero where it says that nothing learns is refused, or what is there is left out."""
    bounded = Bounded({"a": torch.ones(4), "b": torch.ones(2)}, 1.0, {"a": torch.arange(4) < 2, "b": False})
    try:
        answer = released(bounded)
    except PrivacyError:
        return
    assert not answer["a"][2:].any()
    assert not answer["b"].any()


def test_a_joint_multiplier_is_below_each_of_its_parts():
    assert joint_multiplier([5.0, 0.8, 30.0]) < 0.8


@pytest.mark.parametrize("kind", [torch.float64, torch.float32])
def test_noise_has_all_digits_of_its_type(kind):
    """float64 sums get noise that float32 does not hold, or the last digits of an answer would be the data's own."""
    noise = standard_normal(torch.zeros(1000, dtype=kind), Entropy.insecure(1), (0, 0))
    assert noise.dtype == kind
    assert bool((noise == noise.float().double()).all()) == (kind == torch.float32)


def test_noise_of_a_step_is_given_out_once():
    """A loop of one's own that does not count its steps up would give two sums the same noise, and so their difference."""
    entropy, ledger, bounded = Entropy.fresh(), Ledger("add-remove"), Bounded(zeros(a=2), 1.0)
    release({"gradient": (bounded, 1.0)}, sampler=SAMPLER, ledger=ledger, entropy=entropy, step=0)
    with pytest.raises(PrivacyError, match=r"second release of step 0.*step \+ 1"):
        release({"gradient": (bounded, 1.0)}, sampler=SAMPLER, ledger=ledger, entropy=entropy, step=0)
    assert ledger.releases == 1
    release({"gradient": (bounded, 1.0)}, sampler=SAMPLER, ledger=ledger, entropy=entropy, step=1)
    assert ledger.releases == 2


@pytest.mark.parametrize(
    ("part", "words"), [(zeros(a=2), "must be a pair"), ((Bounded(zeros(a=2), 1.0), "1"), "must be a number")]
)
def test_parts_that_are_no_pairs_are_refused(part, words):
    with pytest.raises(ConfigError, match=words):
        release({"gradient": part}, sampler=SAMPLER, ledger=Ledger("add-remove"), entropy=Entropy.fresh(), step=0)

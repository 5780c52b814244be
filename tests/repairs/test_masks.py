"""Masks: exact counts, new when they should be, blind to data, and what they hold does not move by a bit."""

import itertools
import math
from dataclasses import replace
from functools import partial

import numpy as np
import pytest
import torch
from scipy import stats

from helpers import compose
from helpers.interpreted import interpret
from helpers.walking import Walk, mask_of
from noisewise.clipping import Flat
from noisewise.errors import ConfigError
from noisewise.randomness import Entropy
from noisewise.recipe import fit, with_support
from noisewise.repairs import MovingAverage, RandomSparsification, RankedSparsification, StagewiseFreezing, repaired
from noisewise.repairs.freezing import PruningStages, Stages, smallest
from noisewise.repairs.random_sparsification import (
    RandomMasks,
    counts,
    key_at,
    keys_of,
    keys_on_gpu,
    random_subset,
    subset_on_gpu,
)
from noisewise.repairs.ranked_sparsification import RankedMasks
from noisewise.support import Fixed, Observed, Released, together
from noisewise.training.course import Course

WEIGHTS = {
    "a": torch.randn(7, 9, generator=torch.Generator().manual_seed(0)),
    "b": torch.zeros(5),
    "c": torch.ones(2, 3),
}
P = sum(weight.numel() for weight in WEIGHTS.values())
P_MODEL = sum(parameter.numel() for parameter in compose.network().parameters())


def flat_mask(support, weights):
    return torch.cat([mask_of(support.get(name, True), weight).flatten() for name, weight in weights.items()])


def learnable(weights):
    return {name: weight.clone().requires_grad_() for name, weight in weights.items()}


def drawn(plan, steps, weights=WEIGHTS, seed=0):
    """Flat masks of each step by one course."""
    course, weights = Course(plan, seed), learnable(weights)
    return torch.stack([flat_mask(course.at(step, weights), weights) for step in range(steps)])


# --- random masks -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("periods", "final", "cooling"), [(4, 0.7, True), (5, 0.31, True), (3, 0.5, False), (1, 0.9, True)]
)
def test_random_masks_have_exactly_the_asked_count_and_are_new_every_period(periods, final, cooling):
    steps = 4 * periods
    masks = drawn(RandomMasks(final, steps, periods, cooling), steps)
    for period in range(periods):
        own = masks[4 * period : 4 * period + 4]
        rate = final * period / (periods - 1) if cooling and periods > 1 else final
        assert bool((own == own[0]).all())
        assert int((~own[0]).sum()) == round(rate * P)
        if period and rate:
            assert not torch.equal(own[0], masks[4 * period - 1])


def test_an_epoch_has_as_many_masks_as_asked():
    for refreshes in (1, 2, 5):
        plan = repaired(compose.recipe(), RandomSparsification(0.5, False, refreshes)).mechanism.support
        masks = drawn(plan, compose.STEPS)
        assert len({tuple(mask.tolist()) for mask in masks}) == 4 * refreshes


def test_more_masks_than_steps_are_refused():
    with pytest.raises(ConfigError, match=r"periods=24, steps=20\): from 1 to as many masks as steps"):
        repaired(compose.recipe(), RandomSparsification(refreshes=6))


@pytest.mark.parametrize("final", [-0.1, 1.0, 1.5, math.nan])
def test_shares_outside_of_0_to_1_are_refused(final):
    for repair in (RandomSparsification(final), RankedSparsification(final)):
        with pytest.raises(ConfigError, match="a share of masked coordinates"):
            repaired(compose.recipe(), repair)


def inclusion_p_value(masks, rate):
    """Are all coordinates masked equally often? Counts of a fixed size per mask: variance P/(P-1) larger than a binomial's."""
    draws, size = masks.shape
    counts = (~masks).sum(0).double().numpy()
    expected = draws * round(rate * size) / size
    statistic = ((counts - expected) ** 2).sum() / (expected * (1 - round(rate * size) / size)) * (size - 1) / size
    return stats.chi2.sf(statistic, size - 1)


def test_every_coordinate_is_masked_equally_often_and_a_bias_shows():
    draws = 600
    masks = drawn(RandomMasks(0.5, draws, draws, cooling=False), draws)
    assert inclusion_p_value(masks, 0.5) > 0.01
    biased = masks.clone()
    for mask in biased[:300]:  # in half of the masks, coordinate 0 is kept at another's cost
        if not mask[0]:
            mask[0], mask[int(mask.nonzero()[5])] = True, False
    assert inclusion_p_value(biased, 0.5) < 1e-3


def overlap_p_value(masks, rate):
    """Masked in both of two masks that follow one another: hypergeometric if they are independent."""
    size, chosen = masks.shape[1], round(rate * masks.shape[1])
    shared = (~masks[1:] & ~masks[:-1]).sum(1).double()
    mean = chosen**2 / size
    variance = chosen**2 * (size - chosen) ** 2 / (size**2 * (size - 1))
    return 2 * stats.norm.sf(abs(float(shared.mean()) - mean) / math.sqrt(variance / len(shared)))


def test_masks_of_different_epochs_are_independent_and_a_link_shows():
    draws = 600
    masks = drawn(RandomMasks(0.5, draws, draws, cooling=False), draws)
    assert overlap_p_value(masks, 0.5) > 0.01
    linked = masks.clone()
    linked[1::10] = masks[0::10]
    assert overlap_p_value(linked, 0.5) < 1e-6


def splitmix64(start):
    """As published (Steele, Lea & Flood 2014), one number at a time."""
    state = start % 2**64
    while True:
        state = (state + 0x9E3779B97F4A7C15) % 2**64
        z = state
        z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9 % 2**64
        z = (z ^ (z >> 27)) * 0x94D049BB133111EB % 2**64
        yield z ^ (z >> 31)


@pytest.mark.parametrize("start", [0, 5, -1, -(2**63), 2**63 - 2])
def test_keys_are_those_of_splitmix64_here_and_on_a_gpu(start):
    expected = list(itertools.islice(splitmix64(start), 50))
    assert keys_of(50, start).tolist() == expected
    signed = keys_on_gpu(50, start, torch.device("cpu"))
    assert [key % 2**64 for key in signed.tolist()] == expected
    among = torch.arange(50) % 3 > 0
    chosen = random_subset(among, 12, start)
    order = sorted(among.nonzero().squeeze(1).tolist(), key=lambda place: signed[place].item())
    assert chosen.nonzero().squeeze(1).tolist() == sorted(order[:12])


@pytest.mark.parametrize("size", [1, 7, 1000, 300_000])
@pytest.mark.parametrize("share", [0.0, 0.03, 0.5, 0.999, 1.0])
@pytest.mark.parametrize("excluded", [False, True])
@pytest.mark.parametrize("alike", [0, 16, 32, 48])
def test_the_key_at_a_place_is_that_of_sorting_all_of_them(size, share, excluded, alike):
    """Digit by digit; also where most keys begin alike, and with the smallest and the largest number."""
    among = (torch.arange(size) % 3 > 0) | (torch.arange(size) == size - 1) if excluded else torch.full((size,), True)
    keys = keys_on_gpu(size, 11, torch.device("cpu"))
    if alike:  # all but the last bits
        keys[size // 3 :] = (keys[0] & ~((1 << (64 - alike)) - 1)) | (keys[size // 3 :] & ((1 << (64 - alike)) - 1))
    keys[among.nonzero()[-1]], keys[among.nonzero()[0]] = 2**63 - 1, -(2**63)
    left = keys[among].numpy()
    count = max(1, round(share * len(left)))
    assert key_at(partial(counts, keys, among), count, keys.device) == np.sort(left)[count - 1]


@pytest.mark.parametrize("kernel", [False, True], ids=["portable", "kernels"])
@pytest.mark.parametrize(("size", "start"), [(1, 3), (2, 2**63 - 1), (1024, -(2**63)), (5000, 0), (70_000, -77)])
@pytest.mark.parametrize("excluded", [False, True])
def test_a_gpu_chooses_the_places_that_a_cpu_does(kernel, size, start, excluded, monkeypatch):
    if kernel:
        pytest.importorskip("triton")
        interpret(monkeypatch)
    among = torch.arange(size) % 7 != 3 if excluded else torch.full((size,), True)
    for count in {1, size // 3 or 1, int(among.sum())}:
        chosen = subset_on_gpu(among, count, start)
        assert torch.equal(chosen, random_subset(among, count, start))
        assert int(chosen.sum()) == count


def test_masks_follow_from_the_public_seed_alone():
    """Neither data nor weights, nor the secret randomness, matter; the seed does."""
    plan = RandomMasks(0.6, 8, 4, cooling=False)
    other = {name: weight + 1 for name, weight in WEIGHTS.items()}
    assert torch.equal(drawn(plan, 8), drawn(plan, 8, other))
    assert not torch.equal(drawn(plan, 8), drawn(plan, 8, seed=1))
    recipes = [
        repaired(compose.recipe(data), RandomSparsification(0.7)) for data in (compose.images(1), compose.images(8))
    ]
    walks = [Walk(recipe, 0, seed=5, insecure_seed=k).masks(20) for k, recipe in enumerate(recipes)]
    assert all(torch.equal(one[name], two[name]) for one, two in zip(*walks, strict=True) for name in one)
    assert sum(int((~mask).sum()) for mask in walks[0][-1].values()) == round(0.7 * P_MODEL)


def test_sparsity_counts_what_is_left_to_choose_among():
    frozen = Fixed({"a": torch.arange(63).view(7, 9) < 13, "c": False})
    masks = drawn(together(RandomMasks(0.5, 10, 10, cooling=False), frozen), 10)
    assert masks.sum(1).tolist() == [18 - round(0.5 * 18)] * 10
    assert not bool((masks & ~flat_mask(frozen.support, WEIGHTS)).any())


# --- Algorithms 1 to 4 of Zhu & Blaschko, written apart ---------------------------------------------------------------


def by_hand(recipe, steps, mask_of_step, *, clip=True, noise=True, seed=0, after=None):
    """One unit at a time: mask, norm, clip, sum, noise on what is kept, divide, heavy ball; float64."""
    model = compose.network().double()
    parameters, data, entropy = list(model.parameters()), recipe.data.train, Entropy.insecure(seed)
    sigma, velocity = recipe.mechanism.noise_multiplier, [torch.zeros_like(p) for p in parameters]
    for step in range(steps):
        masks = mask_of_step(step)
        total = [torch.zeros_like(p) for p in parameters]
        for i in np.flatnonzero(entropy.generator("sampling", step).random(compose.N) < compose.BATCH / compose.N):
            loss = compose.loss_fn(model, (data.x[i : i + 1].double(), data.y[i : i + 1])).sum()
            grads = [g * m for g, m in zip(torch.autograd.grad(loss, parameters), masks, strict=True)]
            norm = math.sqrt(sum(float(g.square().sum()) for g in grads))
            for t, g in zip(total, grads, strict=True):
                t += g * (min(1.0, compose.BOUND / norm) if clip else 1.0)
        released = []
        for k, (t, m) in enumerate(zip(total, masks, strict=True)):
            draws = entropy.generator("noise", step, 0, k, 0).standard_normal(t.numel())
            released.append(
                (t + noise * sigma * compose.BOUND * torch.from_numpy(draws).view_as(t) * m) / compose.BATCH
            )
        if after is not None:
            after(step, released, [t / compose.BATCH for t in total], masks)
        with torch.no_grad():
            for p, v, g in zip(parameters, velocity, released, strict=True):
                v.mul_(0.9).add_(g)
                p.sub_(0.05 * v)
    return model


def in_doubles(recipe):
    data = recipe.data.train
    return replace(
        recipe, model=recipe.model.double(), data=recipe.data._replace(train=replace(data, x=data.x.double()))
    )


def assert_same(model, reference):
    for one, other in zip(model.parameters(), reference.parameters(), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize(
    ("ablation", "parts"),
    [("private", {}), ("noise-only", {"clip": False}), ("clip-only", {"noise": False})],
)
def test_random_sparsification_and_its_two_ablations_are_the_papers_algorithms(ablation, parts):
    """Algorithms 1, 2 and 3; masked coordinates go on by their old velocity."""
    recipe = in_doubles(repaired(compose.recipe(), RandomSparsification(0.7)))
    weights = dict(recipe.model.named_parameters())
    course = Course(recipe.mechanism.support, 0)
    chosen = [
        [mask_of(course.at(step, weights).get(name, True), weight) for name, weight in weights.items()]
        for step in range(compose.STEPS)
    ]
    trained = fit(recipe, insecure_seed=0, progress=False, ablation=ablation).model
    assert_same(trained, by_hand(recipe, compose.STEPS, lambda step: chosen[step], **parts))


@pytest.mark.parametrize("unnoised", [False, True])
def test_ranked_sparsification_is_algorithm_4(unnoised):
    """z of an epoch: released gradients, with noise of their size where the mask is 0; the smallest |z| are masked next."""
    recipe = in_doubles(repaired(compose.recipe(), RankedSparsification(0.7, unnoised)))
    shapes = [p.shape for p in recipe.model.parameters()]
    size, std, per_epoch = sum(map(math.prod, shapes)), 50.0 * compose.BOUND / compose.BATCH, 5
    history = {"masks": [torch.ones(shape, dtype=torch.bool) for shape in shapes], "z": None, "all": []}

    def mask_of_step(step):
        epoch = step // per_epoch
        if step % per_epoch == 0:
            if epoch:
                z = torch.cat([part.flatten() for part in history["z"]]).abs()
                removed = sorted(range(size), key=lambda k: (float(z[k]), k))[: round(0.7 * epoch / 3 * size)]
                flat = torch.ones(size, dtype=torch.bool)
                flat[removed] = False
                parts = flat.split([math.prod(shape) for shape in shapes])
                history["masks"] = [part.view(shape) for part, shape in zip(parts, shapes, strict=True)]
            history["z"] = [torch.zeros(shape, dtype=torch.float64) for shape in shapes]
        history["all"].append(torch.cat([mask.flatten() for mask in history["masks"]]))
        return history["masks"]

    def after(step, released, clear, masks):
        seed = np.random.SeedSequence((0, 0, 1 + step, 1)).generate_state(1)[0]
        generator = torch.Generator().manual_seed(int(seed))
        for z, g, c, m in zip(history["z"], released, clear, masks, strict=True):
            if unnoised:
                z += c
            else:
                z += g if bool(m.all()) else torch.where(m, g, std * torch.randn(m.shape, generator=generator).double())

    reference = by_hand(recipe, compose.STEPS, mask_of_step, after=after)
    assert_same(fit(recipe, insecure_seed=0, progress=False).model, reference)
    masked = [int((~mask).sum()) for mask in history["all"][::per_epoch]]
    assert masked == [0, round(0.7 / 3 * size), round(1.4 / 3 * size), round(0.7 * size)]
    came_back = (~history["all"][10] & history["all"][15]).any()
    assert bool(came_back) != unnoised  # without noise on masked coordinates, nothing once masked comes back


def test_noise_in_the_ranking_has_the_size_of_the_released_noise():
    """Seed 1; masked coordinates only, compared with a normal law; half the size shows."""
    plan, mask = RankedMasks(0.5, 10, 2), torch.arange(4000) < 2000
    observed = Observed({"w": torch.where(mask, 7.0, 0.0)}, 0.3, {"w": mask})
    z = plan.observe({}, observed, torch.Generator().manual_seed(1))["sum w"]
    assert bool((z[:2000] == 7.0).all())
    assert stats.kstest(z[2000:].numpy() / 0.3, "norm").pvalue > 0.01
    assert stats.kstest(z[2000:].numpy() / 0.15, "norm").pvalue < 1e-6


def test_a_parameter_that_begins_to_learn_within_an_epoch_is_ranked_from_then_on():
    plan, generator = RankedMasks(0.5, 10, 2), torch.Generator()
    memory = plan.observe({}, Observed({"a": torch.ones(2)}, 0.1, {}), generator)
    memory = plan.observe(memory, Observed({"a": torch.ones(2), "b": torch.ones(3)}, 0.1, {}), generator)
    assert memory["sum a"].tolist() == [2.0, 2.0]
    assert memory["sum b"].tolist() == [1.0, 1.0, 1.0]


def test_ranked_masks_follow_from_releases_alone():
    plan = RankedMasks(0.5, 4, 4)
    gradient = {
        name: torch.randn(weight.shape, generator=torch.Generator().manual_seed(3)) for name, weight in WEIGHTS.items()
    }
    found = []
    for shift in (0.0, 1.0):  # other weights, the same releases
        weights, course = learnable({name: weight + shift for name, weight in WEIGHTS.items()}), Course(plan, 2)
        for step in range(4):
            support = course.at(step, weights)
            course.observe(step, gradient, None, 0.1)
        found.append(flat_mask(support, WEIGHTS))
    assert torch.equal(*found)
    assert int((~found[0]).sum()) == round(0.5 * P)


# --- stages -----------------------------------------------------------------------------------------------------------


def slowly(weights, frozen, share):
    """Freeze the smallest until a share of the tensor is frozen, one at a time."""
    flat, frozen = weights.abs().flatten().tolist(), set(frozen)
    while len(frozen) < round(share * len(flat)):
        frozen.add(min((k for k in range(len(flat)) if k not in frozen), key=lambda k: (flat[k], k)))
    return frozen


@pytest.mark.parametrize("kind", [Stages, PruningStages])
def test_stages_freeze_the_smallest_of_each_layer_and_what_is_frozen_stays_so(kind):
    plan, generator = kind((2, 5, 7), (0.3, 0.5, 0.77)), torch.Generator().manual_seed(4)
    course, frozen = Course(plan, 0), {"a": set(), "c": set()}
    for step in range(9):
        drawn_now = {name: torch.randn(weight.shape, generator=generator) for name, weight in WEIGHTS.items()}
        weights = learnable(drawn_now)
        support = course.at(step, weights)
        if step in (2, 5, 7):
            share = {2: 0.3, 5: 0.5, 7: 0.77}[step]
            frozen = {name: slowly(weights[name], frozen[name], share) for name in frozen}
        for name, expected in frozen.items():
            mask = mask_of(support.get(name, True), weights[name]).flatten()
            assert set((~mask).nonzero().flatten().tolist()) == expected, (step, name)
        assert support.get("b", True) is True  # biases learn on


def test_stages_over_the_whole_model_rank_all_layers_together():
    masks = smallest(
        {"a": torch.tensor([[5.0, 1.0]]), "b": torch.tensor([[3.0, 2.0, 4.0]])},
        {"a": torch.ones(2, dtype=torch.bool), "b": torch.ones(3, dtype=torch.bool)},
        0.6,
        "model",
    )
    assert masks["a"].tolist() == [[True, False]]
    assert masks["b"].tolist() == [[False, False, True]]


def test_ties_are_broken_by_position():
    masks = smallest({"a": torch.zeros(2, 3)}, {"a": torch.ones(6, dtype=torch.bool)}, 0.5, "layer")
    assert masks["a"].tolist() == [[False, False, False], [True, True, True]]


OPTIMIZERS = {
    "SGD momentum": lambda p: torch.optim.SGD(p, lr=0.05, momentum=0.9, weight_decay=0.1),
    "Nesterov": lambda p: torch.optim.SGD(p, lr=0.05, momentum=0.9, nesterov=True, weight_decay=0.1),
    "Adam": lambda p: torch.optim.Adam(p, lr=0.01, weight_decay=0.1),
    "AdamW": lambda p: torch.optim.AdamW(p, lr=0.01, weight_decay=0.5),
    "RMSprop": lambda p: torch.optim.RMSprop(p, lr=0.01, momentum=0.5, weight_decay=0.1),
}


@pytest.mark.parametrize("optimizer", OPTIMIZERS.values(), ids=OPTIMIZERS)
@pytest.mark.parametrize("mode", ["freeze", "prune"])
def test_what_is_frozen_does_not_move_by_a_bit(mode, optimizer):
    recipe = repaired(replace(compose.recipe(), optimizer=optimizer), StagewiseFreezing(mode=mode))
    walk, before, moved = Walk(recipe, 0), {}, 0
    for _ in range(compose.STEPS):
        support = walk.support
        values = {name: weight.detach().clone() for name, weight in walk.weights.items()}
        walk.step()
        for name, weight in walk.weights.items():
            frozen = ~mask_of(support.get(name, True), weight)
            expected = torch.zeros_like(weight) if mode == "prune" else values[name]
            assert torch.equal(weight[frozen], expected[frozen])
            moved += int((weight[~frozen] != values[name][~frozen]).sum())
            before[name] = frozen
    frozen = {name: int(mask.sum()) for name, mask in before.items() if mask.dim() > 1}
    assert frozen == {name: round(0.77 * walk.weights[name].numel()) for name in frozen}
    assert moved > 500


def test_pruned_weights_are_zero_in_the_moving_average_too():
    trained = fit(
        repaired(compose.recipe(), StagewiseFreezing(mode="prune"), MovingAverage(0.9)), insecure_seed=0, progress=False
    )
    for name, weight in trained.model.named_parameters():
        zero = weight == 0
        assert int(zero.sum()) == (round(0.77 * weight.numel()) if weight.dim() > 1 else 0)
        assert torch.equal(trained.averaged[name] == 0, zero)


def test_a_fixed_mask_holds_and_random_masks_drift():
    keep = torch.arange(40).view(5, 8) < 20
    for plan, still in ((Fixed({"3.weight": keep}), True), (RandomMasks(0.9, 20, 20, cooling=False), False)):
        walk = Walk(with_support(compose.recipe(), plan), 3)
        masked = ~mask_of(walk.support["3.weight"], walk.weights["3.weight"])
        before = walk.weights["3.weight"].detach().clone()
        walk.step()
        assert torch.equal(walk.weights["3.weight"][masked], before[masked]) is still


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"at": (0.5, 0.25, 0.75)}, "one growing step for each share"),
        ({"at": (0.25, 0.5)}, "one growing step for each share"),
        ({"at": (0.0, 0.5, 0.75)}, r"shares of the run in \(0, 1\)"),
        ({"shares": (0.5, 0.4, 0.6)}, "growing numbers in"),
        ({"shares": (0.5, 0.6, 1.0)}, "growing numbers in"),
        ({"mode": "melt"}, "'freeze' keeps the values, 'prune' sets them to zero"),
        ({"scope": "row"}, "'layer' ranks each tensor on its own"),
    ],
)
def test_stages_that_make_no_sense_are_refused(settings, message):
    with pytest.raises(ConfigError, match=message):
        repaired(compose.recipe(), StagewiseFreezing(**settings))


def test_masks_of_stages_follow_from_released_weights_alone():
    plan = Stages((0,), (0.5,))
    released = Released(WEIGHTS)
    one, two = (plan.at(0, released, torch.Generator().manual_seed(seed)) for seed in (0, 1))
    assert all(torch.equal(one[name], two[name]) for name in one)


def test_noise_falls_by_the_root_of_the_kept_share_and_kept_gradients_grow():
    """Zhu & Blaschko 2023, figure 1: ||m n|| / ||n|| = sqrt(1 - r); the bound is shared by fewer."""
    generator = torch.Generator().manual_seed(0)
    noise, gradient = torch.randn(2, 20_000, generator=generator)
    rates, kept = (0.2, 0.5, 0.8), []
    for rate in rates:
        keep = drawn(RandomMasks(rate, 1, 1), 1, {"w": noise})[0]
        assert float((noise * keep).norm() / noise.norm()) == pytest.approx(math.sqrt(1 - rate), rel=0.03)
        masked = gradient * keep
        kept.append(float((masked / masked.norm())[keep].abs().mean()))
    assert kept == sorted(kept)
    assert Flat(1.0).sensitivity == 1.0

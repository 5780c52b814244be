"""What each repair changes: pruning, LoRA, pretraining, fine-tuning, views, averages, rules, phases, rules of thumb."""

import copy
from dataclasses import replace

import dp_accounting as dp
import pytest
import torch
from torch import nn

from helpers import compose
from helpers.walking import Walk, mask_of
from noisewise import repairs as r
from noisewise.accounting import Ledger
from noisewise.adaptive import Quantile
from noisewise.batches import Views
from noisewise.clipping import Flat, Global
from noisewise.data import Data
from noisewise.data.scatter import scatter
from noisewise.errors import ConfigError, CoupledSamples, PrivacyError
from noisewise.persample import clipped_sum
from noisewise.recipe import fit
from noisewise.repairs.lora import LowRank
from noisewise.sampling import FullBatch, Poisson, Shuffle
from noisewise.schedule import Schedule
from noisewise.training.augmentation import check_augment
from noisewise.training.batches import batch_of
from noisewise.training.loop import train

LAYERS = {"0.weight": 18, "3.weight": 40, "5.weight": 15}


def trained(recipe, **settings):
    return fit(recipe, insecure_seed=0, progress=False, **settings)


def parameters(model):
    return {name: parameter.detach().clone() for name, parameter in model.named_parameters()}


# --- pruning ----------------------------------------------------------------------------------------------------------
def masks_of(recipe):
    support = recipe.mechanism.support.support
    return {name: support[name] for name in LAYERS}


def test_features_are_not_augmented_like_images():
    data = Data(torch.rand(20, 1, 12, 12), torch.arange(20) % 3, classes=("a", "b", "c"))
    base = compose.recipe()
    scattered = scatter(data.x)
    assert scattered.shape[1] == 81
    features = replace(base, data=base.data._replace(train=replace(data, x=scattered)))
    with pytest.raises(ConfigError, match="81 channels are features"):
        r.Augmentation().apply(features)
    chosen = r.Augmentation(function=lambda rows, generator: rows).apply(features)
    assert chosen.augment.views == 4
    for channels in (1, 3, 4):
        images = replace(base, data=base.data._replace(train=replace(data, x=data.x.expand(-1, channels, -1, -1))))
        assert r.Augmentation().apply(images).augment is not None


def test_a_mask_from_private_records_is_that_of_plain_gradient_descent():
    """The paper's SGD has no momentum; with all rows in each batch it is a loop over one mean."""
    before, steps = compose.recipe(), 12
    model, data = copy.deepcopy(before.model), before.data.train
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    for _ in range(steps):
        optimizer.zero_grad()
        before.loss_fn(model, (data.x, data.y)).mean().backward()
        optimizer.step()
    source = r.PrivateRecords(1.0, True, epochs=steps, batch_size=len(data), lr=0.5)
    found = masks_of(r.repaired(before, r.MagnitudePruning(source, 0.5)))
    trained = parameters(model)
    for name, mask in found.items():
        assert trained[name].abs()[mask].min() >= trained[name].abs()[~mask].max()


@pytest.mark.parametrize("source", ["public", "random", "model", "records"])
def test_pruning_removes_an_exact_share_of_each_layer_and_resets_the_rest(source):
    before = compose.recipe()
    other = parameters(compose.network(5))
    made = {
        "public": compose.public(classes=3),
        "random": r.AtRandom(),
        "model": r.PrivateModel(other, compose.other_ledger()),
        "records": r.PrivateRecords(0.5, True, epochs=1, batch_size=5),
    }[source]
    after = r.repaired(before, r.MagnitudePruning(made, 0.7))
    start, now = parameters(before.model), parameters(after.model)
    for name, mask in masks_of(after).items():
        assert int((~mask).sum()) == round(0.7 * LAYERS[name])
        assert torch.equal(now[name], start[name] * mask)
        if source == "model":
            smallest = sorted(range(mask.numel()), key=lambda k: abs(float(other[name].flatten()[k])))[
                : int((~mask).sum())
            ]
            assert set((~mask).flatten().nonzero().flatten().tolist()) == set(smallest)
    assert all(torch.equal(now[name], start[name]) for name in now if name not in LAYERS)
    end = parameters(trained(after).model)
    assert all(
        bool((end[name][~mask] == 0).all()) and bool((end[name][mask] != 0).all())
        for name, mask in masks_of(after).items()
    )


def test_a_random_mask_has_as_many_zeros_in_every_layer_and_another_seed_another_mask():
    one, two, again = (
        masks_of(r.repaired(compose.recipe(), r.MagnitudePruning(r.AtRandom(seed), 0.6))) for seed in (0, 1, 0)
    )
    for name in LAYERS:
        assert int((~one[name]).sum()) == int((~two[name]).sum()) == round(0.6 * LAYERS[name])
        assert not torch.equal(one[name], two[name])
        assert torch.equal(one[name], again[name])


def test_a_random_mask_knows_nothing_of_initial_weights_of_the_same_seed():
    for seed in range(3):
        with torch.random.fork_rng([]):
            torch.manual_seed(seed)
            model = nn.Sequential(nn.Flatten(), nn.Linear(16, 200), nn.Linear(200, 3))
        after = r.repaired(replace(compose.recipe(), model=model), r.MagnitudePruning(r.AtRandom(seed), 0.5))
        weight, kept = model[1].weight.detach(), after.model[1].weight.detach() != 0
        difference = float((weight[kept].mean() - weight[~kept].mean()) / weight.std())
        assert abs(difference) < 4 * (4 / weight.numel()) ** 0.5  # 0.14; of numbers of one kind 1.7


def test_masks_of_public_sources_never_see_private_data():
    for source in (compose.public(), r.AtRandom()):
        one, two = (
            r.repaired(compose.recipe(compose.images(seed)), r.MagnitudePruning(source)).mechanism.support
            for seed in (1, 8)
        )
        assert one == two


def test_a_mask_from_earlier_epochs_ranks_the_released_weights_and_resets_to_the_initial_ones():
    recipe = r.repaired(compose.recipe(), r.MagnitudePruning(r.EarlierEpochs(2), 0.5))
    first = parameters(Walk(replace(recipe, phases=(), mechanism=recipe.phases[0].mechanism), 10).model)
    walk = Walk(recipe, 0)
    start = parameters(compose.network())
    for name, size in LAYERS.items():
        mask = mask_of(walk.support[name], start[name])
        smallest = sorted(range(size), key=lambda k: abs(float(first[name].flatten()[k])))[: round(0.5 * size)]
        assert set((~mask).flatten().nonzero().flatten().tolist()) == set(smallest)
        assert torch.equal(walk.weights[name].detach(), start[name] * mask)
    assert [recipe.phases[0].mechanism.steps, recipe.mechanism.steps] == [10, 10]


def test_pruning_ranks_what_learns_only():
    recipe = r.repaired(compose.recipe(), r.FineTuning("last layer"), r.MagnitudePruning(r.AtRandom(), 0.6))
    support = recipe.mechanism.support.support
    assert support["0.weight"] is False
    assert int((~support["5.weight"]).sum()) == 9
    assert torch.equal(parameters(recipe.model)["3.weight"], parameters(compose.network())["3.weight"])


def test_pruned_weights_stay_zero_through_a_first_phase():
    recipe = r.repaired(compose.recipe(), r.MagnitudePruning(r.AtRandom(), 0.6), r.FirstPhase(1, clip=Flat(0.2)))
    end = parameters(trained(recipe).model)
    for name, size in LAYERS.items():
        assert int((end[name] == 0).sum()) == round(0.6 * size)


@pytest.mark.parametrize(
    ("source", "error", "message"),
    [
        (r.PrivateRecords(), PrivacyError, "no epsilon holds afterwards"),
        (r.PrivateRecords(0.0, True), ConfigError, r"a share of the records in \(0, 1\]"),
        (r.PublicTraining(compose.images()), PrivacyError, "not declared public"),
        (r.EarlierEpochs(4), ConfigError, "4 epochs are 20 of 20 steps"),
        (
            r.PrivateModel({"0.weight": torch.zeros(2, 1, 3, 3)}, Ledger()),
            ConfigError,
            r"knows no \['3.weight', '5.weight'\]",
        ),
        (r.PrivateModel({name: torch.zeros(2) for name in LAYERS}, Ledger()), ConfigError, "another shape"),
        ("elsewhere", ConfigError, "use PublicTraining, EarlierEpochs"),
    ],
)
def test_sources_that_are_not_allowed_or_do_not_fit_are_refused(source, error, message):
    with pytest.raises(error, match=message):
        r.repaired(compose.recipe(), r.MagnitudePruning(source))


def test_a_private_models_ledger_is_composed_with_this_one():
    """Against dp-accounting's own composition of both plans."""
    recipe = r.repaired(compose.recipe(), compose.ALL["pruning, private model"]())
    accountant = dp.pld.PLDAccountant()
    for sigma in (70.0, 50.0):
        accountant.compose(dp.PoissonSampledDpEvent(0.2, dp.GaussianDpEvent(sigma)), compose.STEPS)
    assert recipe.epsilon(1e-3) == pytest.approx(accountant.get_epsilon(1e-3), rel=1e-9)
    assert trained(recipe).ledger.epsilon(1e-3) == pytest.approx(recipe.epsilon(1e-3), rel=1e-12)
    assert recipe.epsilon(1e-3) > compose.recipe().epsilon(1e-3)


def test_a_private_model_of_other_neighbours_or_without_releases_is_refused():
    weights = parameters(compose.network(5))
    with pytest.raises(PrivacyError, match="counts zero-out neighbours, the mechanism add-remove"):
        r.repaired(compose.recipe(), r.MagnitudePruning(r.PrivateModel(weights, Ledger("zero-out"))))
    with pytest.raises(PrivacyError, match="it says that it spends, but the ledger is unchanged"):
        r.repaired(compose.recipe(), r.MagnitudePruning(r.PrivateModel(weights, Ledger())))


# --- LoRA -------------------------------------------------------------------------------------------------------------
def test_lora_starts_at_the_same_function_and_only_additions_move():
    before = compose.recipe()
    recipe = r.repaired(before, r.LoRA(2, alpha=3.0))
    x = before.data.train.x
    assert torch.equal(recipe.model(x), before.model(x))
    start, end = parameters(recipe.model), parameters(trained(recipe).model)
    additions = {name for name in start if name.endswith((".a", ".b"))}
    assert {name for name in start if not torch.equal(start[name], end[name])} == additions
    assert len(additions) == 6
    # r (inputs + outputs) in each layer: a 3 x 3 window of 1 channel to 2, 8 to 5, 5 to 3
    assert sum(start[name].numel() for name in additions) == 2 * ((9 + 2) + (8 + 5) + (5 + 3))


def test_a_merged_model_is_the_same_function_in_the_old_architecture():
    recipe = r.repaired(compose.recipe(), r.LoRA(2, alpha=3.0))
    model = trained(recipe).model
    merged, x = r.merged(model), recipe.data.train.x
    assert [type(module) for module in merged] == [type(module) for module in compose.network()]
    torch.testing.assert_close(merged(x), model(x), rtol=1e-5, atol=1e-5)
    assert not torch.allclose(merged(x), recipe.model(x))
    own = model[3]
    by_hand = own.base.weight + 3.0 / 2 * own.b @ own.a
    torch.testing.assert_close(merged[3].weight, by_hand)
    assert isinstance(model[3], LowRank)  # merging is done in a copy


def test_the_first_factor_has_variance_one_over_inputs():
    layer = LowRank(nn.Linear(400, 50), 25, 4.0, torch.Generator().manual_seed(0))
    assert layer.a.std().item() == pytest.approx(1 / 20, rel=0.03)
    assert bool((layer.b == 0).all())


def test_lora_holds_through_a_first_phase():
    recipe = r.repaired(compose.recipe(), r.LoRA(2), r.FirstPhase(1, clip=Flat(0.2)))
    end = parameters(trained(recipe).model)
    assert all(torch.equal(value, end[name]) for name, value in parameters(recipe.model).items() if ".base." in name)


def test_strided_convolutions_merge_too():
    torch.manual_seed(0)
    conv = nn.Conv2d(3, 4, 3, stride=2, padding=1, dilation=2)
    model = nn.Sequential(LowRank(conv, 2, 5.0, torch.Generator().manual_seed(0)))
    nn.init.normal_(model[0].b)
    x = torch.randn(2, 3, 9, 9)
    torch.testing.assert_close(r.merged(model)(x), model(x), rtol=1e-4, atol=1e-5)


class Tied(nn.Module):
    def __init__(self):
        super().__init__()
        self.one = nn.Linear(16, 16)
        self.two, self.flat = self.one, nn.Flatten()

    def forward(self, x):
        return self.two(self.one(self.flat(x)))


@pytest.mark.parametrize(
    ("model", "repair", "message"),
    [
        (compose.network(), r.LoRA(0), "a whole number above 0"),
        (compose.network(), r.LoRA(layers="fc*"), r"no nn.Linear or nn.Conv2d layer .* matches 'fc\*'"),
        (nn.Linear(16, 3), r.LoRA(), "the model is a single layer"),
        (Tied(), r.LoRA(), r"\['one.weight', 'two.weight'\] are one tensor"),
    ],
)
def test_lora_that_cannot_be_is_refused(model, repair, message):
    with pytest.raises(ConfigError, match=message):
        r.repaired(replace(compose.recipe(), model=model), repair)


# --- pretraining and fine-tuning --------------------------------------------------------------------------------------
def test_pretraining_on_another_number_of_classes_leaves_the_head_as_it_was():
    start, after = compose.recipe(), r.repaired(compose.recipe(), r.Pretraining(compose.public(classes=4)))
    before, now = parameters(start.model), parameters(after.model)
    assert all(torch.equal(before[name], now[name]) == name.startswith("5.") for name in before)
    same = parameters(r.repaired(compose.recipe(), r.Pretraining(compose.public(classes=3))).model)
    assert not any(torch.equal(before[name], same[name]) for name in before)


def test_pretraining_never_sees_private_data():
    one, two = (
        parameters(r.repaired(compose.recipe(compose.images(seed)), r.Pretraining(compose.public())).model)
        for seed in (1, 8)
    )
    assert all(torch.equal(one[name], two[name]) for name in one)


def test_given_weights_are_taken_and_others_refused():
    given = compose.network(9).state_dict()
    now = parameters(r.repaired(compose.recipe(), r.Pretraining(weights=given)).model)
    assert all(torch.equal(now[name], given[name]) for name in now)
    for wrong in ({"9.weight": torch.zeros(1)}, {"0.weight": torch.zeros(1)}, {}):
        with pytest.raises(ConfigError, match="public weights do not fit the model"):
            r.repaired(compose.recipe(), r.Pretraining(weights=wrong))
    for wrong in (r.Pretraining(), r.Pretraining(compose.public(), given)):
        with pytest.raises(ConfigError, match="give a source to train on, or weights"):
            r.repaired(compose.recipe(), wrong)


@pytest.mark.parametrize(
    ("what", "learners"),
    [
        ("last layer", {"5.weight", "5.bias"}),
        ("biases", {"0.bias", "3.bias", "5.bias"}),
        ("3.*", {"3.weight", "3.bias"}),
    ],
)
def test_only_the_named_part_learns(what, learners):
    recipe = r.repaired(compose.recipe(), r.FineTuning(what), r.FirstPhase(1, "plain"))
    start, end = parameters(recipe.model), parameters(trained(recipe).model)
    assert {name for name in start if not torch.equal(start[name], end[name])} == learners


# --- views and averages -----------------------------------------------------------------------------------------------
@pytest.mark.parametrize("bound", [0.1, 1000.0])
def test_views_are_the_averaged_gradient_definition(bound):
    """Mean over views of each unit's gradient, then one clip (or none that acts): a loop over units and views."""
    recipe = r.repaired(compose.recipe(), r.Augmentation(3))
    data, model = replace(recipe.data.train, x=recipe.data.train.x.double()), recipe.model.double()
    proof = check_augment(recipe.augment.function, (data.x[:0], data.y[:0]))
    batch = batch_of(data, torch.arange(6), recipe.augment, 5, proof)
    assert isinstance(batch, Views)
    assert proof is not None
    repeated = tuple(tensor[:6].repeat_interleave(3, 0) for tensor in (data.x, data.y))
    x, y = recipe.augment.function(repeated, torch.Generator().manual_seed(5))
    total, gaps = torch.zeros(sum(p.numel() for p in model.parameters()), dtype=torch.float64), []
    for unit in range(6):
        views = [compose.loss_fn(model, (x[k : k + 1], y[k : k + 1])).sum() for k in range(3 * unit, 3 * unit + 3)]
        found = [torch.autograd.grad(view, list(model.parameters())) for view in views]
        grads = torch.stack([torch.cat([g.flatten() for g in one]) for one in found])
        mean = grads.mean(0)
        gaps.append(float(grads.norm(dim=1).mean() - mean.norm()))
        total += mean * min(1.0, bound / float(mean.norm()))
    ours = clipped_sum(model, compose.loss_fn, batch, Flat(bound)).grads._values
    torch.testing.assert_close(torch.cat([v.flatten() for v in ours.values()]), total, rtol=1e-6, atol=1e-9)
    assert max(gaps) > 0.01  # views differ, so the mean's norm is not the norms' mean


def mixup(rows, generator):
    share = torch.rand(1, generator=generator)
    return share * rows[0] + (1 - share) * rows[0].roll(1, 0), rows[1]


def batch_statistics(rows, generator):
    return rows[0] - rows[0].mean(0), rows[1]


def cutmix(rows, generator):
    x = rows[0].clone()
    x[..., :2] = rows[0].flip(0)[..., :2]
    return x, rows[1]


def label_mixing(rows, generator):
    return rows[0], rows[1].roll(1, 0)


@pytest.mark.parametrize("function", [mixup, batch_statistics, cutmix, label_mixing])
def test_batch_level_mixing_is_refused_before_training(function):
    recipe = r.repaired(compose.recipe(), r.Augmentation(2, function))
    with pytest.raises(CoupledSamples, match="replacing one row changed the version of another"):
        trained(recipe)


def test_views_need_images_or_a_function():
    rows = replace(compose.images(), x=torch.zeros(40, 16))
    with pytest.raises(ConfigError, match="flips and crops need images"):
        r.repaired(compose.recipe(rows), r.Augmentation())
    for views in (0, 1.5, True):
        with pytest.raises(ConfigError, match="a whole number of versions of each row"):
            r.repaired(compose.recipe(), r.Augmentation(views))


def test_the_moving_average_is_its_definition():
    recipe = r.repaired(compose.recipe(), r.MovingAverage(0.8))
    walk = Walk(recipe, 0)
    average = parameters(walk.model)
    for step in range(1, compose.STEPS + 1):
        walk.step()
        decay = min(0.8, (1 + step) / (10 + step))
        average = {name: decay * average[name] + (1 - decay) * value for name, value in parameters(walk.model).items()}
    found = trained(recipe).averaged
    for name in average:
        torch.testing.assert_close(found[name], average[name], rtol=1e-5, atol=1e-6)


# --- rules ------------------------------------------------------------------------------------------------------------
def test_rules_keep_the_bound_and_the_noise():
    for name in ("global clipping", "local then global clipping", "global-adapt", "group bounds"):
        mechanism = r.repaired(compose.recipe(), compose.ALL[name]()).mechanism
        assert mechanism.noise_multiplier == 50.0
        assert all(mechanism.clip_at(step).sensitivity == compose.BOUND for step in (0, 19))
    mixed = r.repaired(compose.recipe(), r.LocalThenGlobal(10.0, 0.6)).mechanism.clip
    assert mixed == Schedule(((0, Flat(0.1)), (12, Global(0.1, 10.0))))


def test_the_learning_rate_of_global_clipping_is_multiplied():
    made = r.repaired(compose.recipe(), r.GlobalClipping(10.0, lr_factor=4.0)).optimizer(nn.Linear(1, 1).parameters())
    assert made.param_groups[0]["lr"] == pytest.approx(0.2)


def test_rules_that_cannot_be_are_refused():
    scheduled = compose.recipe(clip=Schedule(((0, Flat(1.0)), (5, Flat(0.5)))))
    with pytest.raises(ConfigError, match="already has a schedule of clipping rules"):
        r.repaired(scheduled, r.GlobalClipping())
    with pytest.raises(ConfigError, match="leaves no step on one side"):
        r.repaired(compose.recipe(), r.LocalThenGlobal(share=0.999))
    with pytest.raises(ConfigError, match=r"no groups 'age'; it has \['half'\]"):
        r.repaired(compose.recipe(), r.GroupBounds("age"))
    with pytest.raises(ConfigError, match="must be declared, not counted"):
        r.repaired(compose.recipe(replace(compose.images(), group_names={})), r.GroupBounds("half"))


# --- phases -----------------------------------------------------------------------------------------------------------
def test_a_first_phase_is_the_recipe_before_its_other_repairs():
    """Another rule, its learning rate and masks begin after it; what it names is its own."""
    recipe = r.repaired(
        compose.recipe(), r.GlobalClipping(10.0, lr_factor=4.0), r.RandomSparsification(0.5), r.FirstPhase(1)
    )
    (phase,) = recipe.phases
    assert phase.mechanism.clip == Flat(compose.BOUND)
    assert phase.optimizer(nn.Linear(1, 1).parameters()).param_groups[0]["lr"] == 0.05
    assert recipe.optimizer(nn.Linear(1, 1).parameters()).param_groups[0]["lr"] == 0.2
    assert recipe.mechanism.support.steps == recipe.mechanism.steps == 15
    assert recipe.mechanism.support.periods == 3


def test_a_run_that_prunes_itself_has_one_rule_throughout():
    recipe = r.repaired(compose.recipe(), r.MagnitudePruning(r.EarlierEpochs(1)), r.GlobalClipping(10.0, lr_factor=4.0))
    assert recipe.phases[0].mechanism.clip == recipe.mechanism.clip == Global(0.1, 10.0)


def test_phases_are_two_calls_of_train_that_pass_weights_and_ledger_on():
    recipe = r.repaired(compose.recipe(), r.FirstPhase(1, clip=Flat(0.2)))
    model, ledger = copy.deepcopy(recipe.model), None
    for plan in (recipe.phases[0].mechanism, recipe.mechanism):
        ledger = train(
            model, recipe.data.train, recipe.loss_fn, plan, compose.sgd(model.parameters()), ledger=ledger, insecure_seed=0,
            progress=False,
        ).ledger  # fmt: skip
    found = trained(recipe)
    assert all(torch.equal(a, b) for a, b in zip(found.model.parameters(), model.parameters(), strict=True))
    assert found.ledger == ledger
    assert found.ledger.lines == recipe.lines() == compose.recipe().lines()


def test_schedules_go_on_where_a_phase_ended():
    noise = Schedule(((0, 60.0), (3, 50.0), (12, 40.0)))
    clip = Schedule(((0, Flat(0.1)), (7, Flat(0.2))))
    whole = compose.recipe(noise_multiplier=noise, clip=clip)
    recipe = r.repaired(whole, r.FirstPhase(1))
    (phase,) = recipe.phases
    for step in range(20):
        part, at = (phase.mechanism, step) if step < 5 else (recipe.mechanism, step - 5)
        assert (part.noise_at(at), part.clip_at(at)) == (noise.at(step), clip.at(step))
    assert trained(recipe).ledger.epsilon(1e-3) == pytest.approx(whole.epsilon(1e-3), rel=1e-12)


def test_a_phase_under_an_adaptive_rule_is_paid():
    recipe = r.repaired(compose.recipe(), r.FirstPhase(1, clip=Quantile(0.1, noise=20.0)))
    assert [line.purpose for line in recipe.lines()] == ["gradient + bound", "gradient"]
    assert trained(recipe).ledger.lines == recipe.lines()


def test_a_phase_may_have_another_batch_size():
    """As many epochs in other steps, paid at its own rate; what follows begins where it would have begun."""
    recipe = r.repaired(compose.recipe(), r.FirstPhase(1, batch_size=4))
    (phase,) = recipe.phases
    assert (phase.mechanism.sampler, phase.mechanism.steps) == (Poisson(40, 4), 10)
    assert (recipe.mechanism.sampler, recipe.mechanism.steps) == (Poisson(40, 8), 15)
    (small, _), (usual, _) = [(line.event, line.count) for line in recipe.lines()]
    assert (small.sampling_probability, usual.sampling_probability) == (0.1, 0.2)
    assert [(line.count, line.first_step) for line in recipe.lines()] == [(10, 0), (15, 10)]
    accountant = dp.pld.PLDAccountant(dp.NeighboringRelation.ADD_OR_REMOVE_ONE)
    for rate, count in ((0.1, 10), (0.2, 15)):
        accountant.compose(dp.PoissonSampledDpEvent(rate, dp.GaussianDpEvent(50.0)), count)
    assert recipe.epsilon(1e-3) == pytest.approx(accountant.get_epsilon(1e-3), rel=1e-3, abs=1e-6)
    assert trained(recipe).ledger.lines == recipe.lines()


def test_a_plain_phase_of_other_batches_is_ordinary_sgd_and_not_private():
    recipe = r.repaired(compose.recipe(), r.FirstPhase(1, "plain", batch_size=4))
    assert [line.count for line in recipe.lines()] == [10, 15]
    assert not recipe.private


def test_a_cap_follows_the_batch_size_of_a_phase():
    recipe = r.repaired(compose.recipe(sampler=Poisson(40, 8, 30)), r.FirstPhase(1, batch_size=4))
    assert recipe.phases[0].mechanism.sampler == Poisson(40, 4, 16)


@pytest.mark.parametrize(
    ("settings", "size", "message"),
    [
        ({}, 8, "batch_size=8 is the recipe's own"),
        ({"sampler": Shuffle(40, 8), "adjacency": "zero-out"}, 4, "only Poisson batches"),
        ({"sampler": FullBatch(40)}, 4, "only Poisson batches"),
        ({"noise_multiplier": Schedule(((0, 60.0), (3, 50.0)))}, 4, "with a schedule over the steps"),
        ({}, 41, "batch_size=41 with n=40"),
    ],
)
def test_another_batch_size_that_has_no_meaning_is_refused(settings, size, message):
    epochs = 4 if isinstance(settings.get("sampler"), FullBatch) else 1
    with pytest.raises(ConfigError, match=message):
        r.repaired(compose.recipe(**settings), r.FirstPhase(epochs, batch_size=size))


def test_a_plan_over_the_whole_run_cannot_be_cut():
    recipe = compose.recipe(support=r.repaired(compose.recipe(), r.RandomSparsification()).mechanism.support)
    for repair in (r.FirstPhase(1), r.MagnitudePruning(r.EarlierEpochs(1))):
        with pytest.raises(ConfigError, match=r"is planned over the whole run.*give all repairs in one call"):
            r.repaired(recipe, repair)


def test_a_phase_that_leaves_nothing_is_refused():
    with pytest.raises(ConfigError, match="first phase: 4 epochs are 20 of 20 steps"):
        r.repaired(compose.recipe(), r.FirstPhase(4))


def test_half_of_a_shuffled_epoch_is_no_free_phase():
    """Each part of a cut epoch is a release of its own, so the ledger would grow."""
    shuffled = compose.recipe(sampler=Shuffle(40, 8), adjacency="zero-out")
    assert r.repaired(shuffled, r.FirstPhase(1)).lines() == shuffled.lines()
    with pytest.raises(PrivacyError, match="it says that it is free, but what is released changes"):
        r.repaired(shuffled, r.FirstPhase(0.5))


def test_a_models_copy_is_trained_not_the_model():
    recipe = compose.recipe()
    before = copy.deepcopy(recipe.model.state_dict())
    assert trained(recipe).model is not recipe.model
    assert all(torch.equal(value, before[name]) for name, value in recipe.model.state_dict().items())

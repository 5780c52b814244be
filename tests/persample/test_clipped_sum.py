"""clipped_sum as a whole: no trace on the model, padding, units that are not finite, empty batches, promises kept."""

import itertools
import weakref
from dataclasses import dataclass

import pytest
import torch
from torch import nn

from helpers.oracles import (
    PROBLEMS,
    clipped_sum_by_hand,
    cross_entropy,
    gradients_of,
    make_support,
    nested,
    proven,
    relative_error,
    rows,
    rules,
    typical_norm,
)
from noisewise import Ledger, Poisson, promises
from noisewise.adaptive import GroupBounds, Quantile
from noisewise.batches import Padded
from noisewise.bounded import release
from noisewise.clipping import Flat, Normalized, Samples, per_layer
from noisewise.errors import ConfigError, PrivacyError, UnsupportedLayer
from noisewise.persample import Layout, clipped_sum, live_parameters
from noisewise.persample.gradients import Outer
from noisewise.randomness import Entropy
from noisewise.runtime import Runtime

ENGINES = ("auto", "dense", "loop")
EACH_ENGINE = pytest.mark.parametrize("engine", ENGINES)
FLOAT_INPUTS = (
    "linear-2d",
    "linear-3d-gram",
    "conv-wide-gram",
    "in-place",
    "tied-linears",
    "bare-parameters",
    "flipped",
)


def noisy_model():
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(1, 4, 3, padding=1),
        nn.GroupNorm(2, 4),
        nn.ReLU(inplace=True),
        nn.Dropout(0.5),
        nn.Flatten(),
        nn.Linear(64, 8),
        nn.Dropout(0.3, inplace=True),
        nn.Linear(8, 3),
    )


IMAGES = torch.randn(5, 1, 4, 4, generator=torch.Generator().manual_seed(1))
LABELS = torch.tensor([0, 1, 2, 0, 1])


# ---------------------------------------------------------------------------------------------------- no trace


def traces(model):
    """Everything of a model that a computation could leave something on."""
    modules = dict(model.named_modules())
    return {
        "attributes": {name: sorted(vars(module)) for name, module in modules.items()},
        "types": {name: type(module) for name, module in modules.items()},
        "forwards": {name: module.forward for name, module in modules.items()},
        "hooks": {
            (name, key): len(value)
            for name, module in modules.items()
            for key, value in vars(module).items()
            if "hooks" in key
        },
        "parameters": {name: id(p) for name, p in model.named_parameters()},
        "parameter attributes": {name: sorted(vars(p)) for name, p in model.named_parameters()},
        "parameter hooks": {name: p._backward_hooks for name, p in model.named_parameters()},
        "needs gradient": {name: p.requires_grad for name, p in model.named_parameters()},
        "training": {name: module.training for name, module in modules.items()},
    }


@pytest.mark.parametrize("preset", [False, True], ids=["no-grad", "preset-grad"])
@pytest.mark.parametrize("seed", [None, 7])
@EACH_ENGINE
def test_the_model_is_as_before(engine, seed, preset):
    model = noisy_model()
    model[5].eval()
    model[1].weight.requires_grad_(False)
    model.register_buffer("table", torch.ones(2))
    if preset:
        for p in model.parameters():
            p.grad = torch.full_like(p, 3.0)
    grads = {name: p.grad for name, p in model.named_parameters()}
    values = {name: value.clone() for name, value in model.state_dict().items()}
    before, state = traces(model), torch.get_rng_state()
    clipped_sum(
        model, cross_entropy, (IMAGES, LABELS), Flat(1.0), runtime=Runtime(engine=engine, microbatch=2), seed=seed
    )
    assert traces(model) == before
    assert all(count == 0 for count in before["hooks"].values())
    assert torch.equal(torch.get_rng_state(), state)
    assert all(torch.equal(value, values[name]) for name, value in model.state_dict().items())
    assert all(p.grad is grads[name] for name, p in model.named_parameters())
    assert not preset or all(bool((p.grad == 3).all()) for p in model.parameters())


@EACH_ENGINE
def test_the_model_is_as_before_when_the_loss_fails(engine):
    model, calls = noisy_model(), itertools.count()

    def loss_fn(model, batch):
        if next(calls) >= 2:
            raise KeyError("no such column")
        return cross_entropy(model, batch)

    before, state = traces(model), torch.get_rng_state()
    with pytest.raises(KeyError):
        clipped_sum(
            model, loss_fn, (IMAGES, LABELS), Flat(1.0), runtime=Runtime(engine=engine, microbatch=1), layout=Layout()
        )
    assert traces(model) == before
    assert torch.equal(torch.get_rng_state(), state)


@EACH_ENGINE
def test_the_result_is_no_part_of_a_graph(engine):
    got = clipped_sum(noisy_model(), cross_entropy, (IMAGES, LABELS), Flat(1.0), runtime=Runtime(engine=engine))
    assert not any(value.requires_grad for value in got.grads._values.values())
    assert not got.norms.requires_grad


@EACH_ENGINE
def test_dropout_follows_the_seed(engine):
    def total(seed):
        runtime = Runtime(engine=engine)
        return clipped_sum(
            noisy_model(), cross_entropy, (IMAGES, LABELS), Flat(1.0), runtime=runtime, seed=seed
        ).grads._values

    assert relative_error(total(1), total(1)) == 0
    assert relative_error(total(1), total(2)) > 0.01


def test_without_a_seed_dropout_draws_from_the_current_state():
    def total(seed):
        torch.manual_seed(seed)
        return clipped_sum(model, cross_entropy, (IMAGES, LABELS), Flat(1.0), layout=layout).grads._values

    model = noisy_model()
    layout = proven(model, cross_entropy, (IMAGES, LABELS))
    assert relative_error(total(1), total(1)) == 0
    assert relative_error(total(1), total(2)) > 0.01


@EACH_ENGINE
@pytest.mark.parametrize("mode", [torch.no_grad, torch.enable_grad])
def test_gradients_do_not_depend_on_the_mode_of_the_caller(engine, mode):
    setup = PROBLEMS["linear-2d"].make()
    with mode():
        got = clipped_sum(*setup, Flat(0.5), runtime=Runtime(engine=engine))
    expected = clipped_sum_by_hand(gradients_of("linear-2d"), Flat(0.5), {})[0]
    assert relative_error(got.grads._values, expected) < 1e-9


# ------------------------------------------------------------------------------------------------------ padding


@EACH_ENGINE
@pytest.mark.parametrize("microbatch", [None, 2])
@pytest.mark.parametrize("filling", [0.0, 1e30, float("nan"), float("inf")])
def test_padding_contributes_nothing_whatever_it_holds(engine, microbatch, filling):
    setup = PROBLEMS["in-place"].make()
    x, weight = setup.batch
    padded = torch.cat([x[:2], torch.full_like(x[:2], filling), x[2:]])
    weights = torch.cat([weight[:2], torch.ones(2, dtype=weight.dtype), weight[2:]])
    batch = Padded((padded, weights), torch.tensor([1, 1, 0, 0, 1, 1]))
    got = clipped_sum(
        setup.model, setup.loss_fn, batch, Flat(1.0), runtime=Runtime(engine=engine, microbatch=microbatch)
    )
    expected = clipped_sum_by_hand(gradients_of("in-place"), Flat(1.0), {})[0]
    assert relative_error(got.grads._values, expected) < 1e-9


@pytest.mark.parametrize("kind", [torch.bool, torch.int64, torch.float32])
@pytest.mark.parametrize("name", ["linear-2d", "embedding", "dicts", "time-first"])
def test_padding_rows_are_dropped_for_every_rule(name, kind):
    (setup, layout), present = PROBLEMS[name].examined(), torch.tensor([1, 0, 1, 1])
    grads = gradients_of(name)
    kept = {parameter: grad[present.bool()] for parameter, grad in grads.items()}
    for rule, clip in rules(list(grads), typical_norm(grads)).items():
        padded = Padded(setup.batch, present.to(kind))
        got = clipped_sum(setup.model, setup.loss_fn, padded, clip, layout=layout)
        assert relative_error(got.grads._values, clipped_sum_by_hand(kept, clip, {})[0]) < 1e-9, rule


def test_a_batch_of_padding_alone_gives_zeros():
    setup = PROBLEMS["linear-2d"].make()
    got = clipped_sum(setup.model, setup.loss_fn, Padded(setup.batch, torch.zeros(4)), Normalized(1.0))
    assert all(not value.any() for value in got.grads._values.values())


# -------------------------------------------------------------------------------------- units that are not finite


@EACH_ENGINE
@pytest.mark.parametrize("poison", [float("nan"), float("inf"), -float("inf")])
@pytest.mark.parametrize("name", FLOAT_INPUTS)
def test_a_unit_that_is_not_finite_contributes_nothing_and_the_others_stay(name, poison, engine):
    (setup, layout), grads = PROBLEMS[name].examined(), gradients_of(name)
    x = setup.batch[0].clone()
    x[1] = poison
    others = {parameter: grad[[0, 2, 3]] for parameter, grad in grads.items()}
    for kind in ("everything", "masks"):
        support = make_support(kind, setup.model)
        for clip in (Flat(typical_norm(grads)), Normalized(1.0)):
            batch, runtime = (x, setup.batch[1]), Runtime(engine=engine)
            got = clipped_sum(setup.model, setup.loss_fn, batch, clip, support, runtime, layout=layout)
            expected, norms = clipped_sum_by_hand(others, clip, support)
            assert relative_error(got.grads._values, expected) < 1e-9
            assert got.norms.isfinite()[0].tolist() == [True, False, True, True]
            assert torch.allclose(got.norms[:, [0, 2, 3]], norms, rtol=1e-9)


@EACH_ENGINE
def test_one_entry_that_is_not_finite_is_enough(engine):
    setup = PROBLEMS["linear-3d-gram"].make()
    x = setup.batch[0].clone()
    x[2, 0, 0] = float("nan")
    got = clipped_sum(setup.model, setup.loss_fn, (x, setup.batch[1]), Flat(1.0), runtime=Runtime(engine=engine))
    assert got.norms.isfinite()[0].tolist() == [True, True, False, True]
    assert all(bool(value.isfinite().all()) for value in got.grads._values.values())


@EACH_ENGINE
def test_a_unit_whose_squares_overflow_float32_is_clipped_like_any_other(engine):
    setup = PROBLEMS["linear-4d"].make(torch.float32)
    batch = (setup.batch[0], torch.tensor([1e25, 1.0, 1.0, 1.0]))
    same = (setup.batch[0], torch.tensor([1e15, 1.0, 1.0, 1.0]))
    got, expected = (
        clipped_sum(setup.model, setup.loss_fn, b, Flat(1.0), runtime=Runtime(engine=engine)) for b in (batch, same)
    )
    assert got.norms.dtype == torch.float64
    assert got.norms[0, 0] / expected.norms[0, 0] == pytest.approx(1e10, rel=1e-4)
    assert relative_error(got.grads._values, expected.grads._values) < 1e-5


@EACH_ENGINE
def test_a_unit_whose_norm_overflows_contributes_nothing(engine):
    setup = PROBLEMS["linear-4d"].make()
    batch = (setup.batch[0], torch.tensor([1e200, 1.0, 1.0, 1.0], dtype=torch.float64))
    got = clipped_sum(setup.model, setup.loss_fn, batch, Flat(1.0), runtime=Runtime(engine=engine))
    rest = clipped_sum(setup.model, setup.loss_fn, rows(batch, slice(1, None)), Flat(1.0))
    assert got.norms.isfinite()[0].tolist() == [False, True, True, True]
    assert relative_error(got.grads._values, rest.grads._values) < 1e-5


# -------------------------------------------------------------------------------------------------- micro-batches


@EACH_ENGINE
@pytest.mark.parametrize("name", ["linear-2d", "conv-wide-formed", "tied-head", "time-first", "positions", "dicts"])
def test_micro_batches_give_the_same_as_one_batch(name, engine):
    (setup, layout), grads = PROBLEMS[name].examined(), gradients_of(name)
    support = make_support("masks", setup.model)
    clip = Flat(typical_norm(grads))
    whole = clipped_sum(*setup, clip, support, Runtime(engine=engine), layout=layout)
    for size in (1, 2, 3, 4, 100):
        part = clipped_sum(*setup, clip, support, Runtime(engine=engine, microbatch=size), layout=layout)
        assert relative_error(part.grads._values, whole.grads._values) < 1e-12
        assert torch.allclose(part.norms, whole.norms, rtol=1e-12)


@pytest.mark.parametrize("name", ["linear-2d", "conv-wide-gram", "embedding", "flipped", "sorted-by-length"])
def test_the_order_of_units_does_not_matter(name):
    setup, order = PROBLEMS[name].make(), [2, 0, 3, 1]
    first = clipped_sum(*setup, Flat(0.5))
    second = clipped_sum(setup.model, setup.loss_fn, rows(setup.batch, order), Flat(0.5))
    assert relative_error(second.grads._values, first.grads._values) < 1e-12
    assert torch.allclose(second.norms, first.norms[:, order], rtol=1e-12)


# ------------------------------------------------------------------------------------------------- empty batches


@EACH_ENGINE
@pytest.mark.parametrize("name", ["linear-2d", "conv-wide-gram", "embedding", "positions", "dicts", "module-attention"])
@pytest.mark.parametrize("support_kind", ["everything", "masks-and-frozen"])
def test_an_empty_batch_gives_zeros(name, support_kind, engine):
    setup = PROBLEMS[name].make()
    support = make_support(support_kind, setup.model)
    empty = nested(lambda tensor: tensor[:0], setup.batch)
    clip = per_layer(gradients_of(name), Flat(0.5))
    got = clipped_sum(setup.model, setup.loss_fn, empty, clip, support, Runtime(engine=engine, microbatch=2))
    live = live_parameters(setup.model, support)
    assert {n: v.shape for n, v in got.grads._values.items()} == {n: p.shape for n, p in live.items()}
    assert all(not value.any() for value in got.grads._values.values())
    assert got.norms.shape[1] == 0
    assert got.grads.sensitivity == clip.sensitivity


def form(bounded):
    return {name: (value.shape, value.dtype, value.device) for name, value in bounded._values.items()}


@EACH_ENGINE
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32, torch.float64])
@pytest.mark.parametrize("rule", [Quantile(0.5), GroupBounds("team", 2)], ids=["quantile", "groups"])
def test_a_batch_without_anybody_has_the_form_of_any_other(rule, dtype, engine):
    """Empty, all padding, nobody finite: shapes, types and places of sums and answers tell them from no other batch."""
    setup = PROBLEMS["linear-4d"].make(dtype)
    x, weights = setup.batch
    loss = lambda model, batch: model(batch[0]).float().square().flatten(1).mean(1) * batch[1].float()  # noqa: E731
    batches = {
        "full": (x, weights),
        "empty": (x[:0], weights[:0]),
        "padding": Padded((x, weights), torch.zeros(4)),
        "nobody finite": (x * float("nan"), weights),
    }
    groups = {"empty": torch.zeros(0, dtype=torch.long)}
    layout = proven(setup.model, loss, (x, weights))
    got = {}
    for name, batch in batches.items():
        labels = groups.get(name, torch.arange(4) % 2)
        runtime = Runtime(engine=engine, microbatch=3)
        got[name] = clipped_sum(setup.model, loss, batch, rule, runtime=runtime, layout=layout, groups=labels)
    for name, clipped in got.items():
        assert form(clipped.grads) == form(got["full"].grads), name
        assert form(clipped.query) == form(got["full"].query), name
        assert clipped.norms.dtype == torch.float64
        nobody = all(not value.any() for value in (*clipped.grads._values.values(), *clipped.query._values.values()))
        assert nobody == (name != "full")


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_the_release_of_an_empty_batch_is_as_fine_as_any_other(dtype):
    """Noise in bfloat16 has 8 bits: of thousands of coordinates some would be equal."""
    model = nn.Linear(60, 50).to(dtype)
    loss = lambda m, b: m(b).float().square().sum(1)  # noqa: E731
    answers = []
    for units in (0, 2):
        x = torch.ones(units, 60, dtype=dtype)
        layout = proven(model, loss, torch.ones(2, 60, dtype=dtype))
        grads = clipped_sum(model, loss, x, Flat(1.0), layout=layout).grads
        part = {"gradient": (grads, 1.0)}
        answers.append(release(part, sampler=Poisson(9, 3), ledger=Ledger(), entropy=Entropy.insecure(0), step=0))
    distinct = [answer["gradient"]["weight"].unique().numel() for answer in answers]
    assert min(distinct) > 2990


# ---------------------------------------------------------------------------------------- promises and refusals


@dataclass(frozen=True)
class Rule:
    """A rule of one's own, right or wrong."""

    name: str
    sensitivity: float = 1.0

    def blocks(self, names):
        return dict.fromkeys(names, 0)

    def factors(self, samples: Samples):
        return {
            "right": lambda n: (0.9 / n).clamp(max=1),
            "opposite": lambda n: -(0.9 / n).clamp(max=1),
            "in place": lambda n: n.clamp_(max=1.0) * 0 + 1,
            "by the median": lambda n: (n.median() / n).clamp(max=1) / n.median().clamp(min=1),
            "beyond what is tried": lambda n: torch.where(n > 1e13, 2 / n, (0.9 / n).clamp(max=1)),
            "none": lambda n: torch.ones_like(n),
            "double": lambda n: 2 / n,
            "negative": lambda n: -2 / n,
            "nan": lambda n: n * float("nan"),
            "wrong shape": lambda n: (1 / n)[0],
        }[self.name](samples.norms)


def test_a_rule_of_ones_own_is_used():
    setup = PROBLEMS["linear-2d"].make()
    got = clipped_sum(*setup, Rule("right"))
    assert relative_error(got.grads._values, clipped_sum(*setup, Flat(0.9)).grads._values) < 1e-12


def test_a_rule_with_negative_factors_is_used():
    setup = PROBLEMS["linear-2d"].make()
    got, other = (clipped_sum(*setup, Rule(name)).grads._values for name in ("right", "opposite"))
    assert relative_error({name: -value for name, value in got.items()}, other) < 1e-12


@pytest.mark.parametrize("inside", [False, True], ids=["alone", "per-layer"])
@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("none", "contributes .* more than the sensitivity"),
        ("double", r"not finite for norms \[0"),
        ("negative", r"not finite for norms \[0"),
        ("nan", "not finite"),
        ("in place", "changes the norms it is given"),
        ("by the median", "changes when the others are left out"),
    ],
)
def test_a_rule_of_ones_own_is_checked_before_it_is_used(name, message, inside):
    setup = PROBLEMS["linear-2d"].make()
    clip = per_layer(dict(setup.model.named_parameters()), Rule(name)) if inside else Rule(name)
    with pytest.raises(PrivacyError, match=message):
        clipped_sum(*setup, clip)


def test_factors_of_the_wrong_shape_are_refused():
    with pytest.raises(PrivacyError, match=r"factors have shape \[242\], norms \[1, 242\]"):
        clipped_sum(*PROBLEMS["linear-2d"].make(), Rule("wrong shape"))


def test_a_rule_that_exceeds_its_own_bound_beyond_what_was_tried_is_stopped():
    setup = PROBLEMS["linear-2d"].make()
    loud = lambda model, batch: setup.loss_fn(model, batch) * 1e15  # noqa: E731
    with pytest.raises(PrivacyError, match=r"more than its sensitivity 1.*check_clip"):
        clipped_sum(setup.model, loud, setup.batch, Rule("beyond what is tried"))


def test_a_rule_object_is_checked_once_and_forgotten_with_it(monkeypatch):
    calls = []
    monkeypatch.setattr(promises, "check_rule", lambda rule, names: calls.append(rule.name))
    setup, rule = PROBLEMS["linear-2d"].make(), Rule("right")
    for _ in range(3):
        clipped_sum(*setup, rule)
    assert calls == ["right"]
    clipped_sum(*setup, Rule("right"))
    assert calls == ["right", "right"]


def test_a_unit_has_no_company_in_front_of_a_rule_of_ones_own(monkeypatch):
    """Even a rule that looks at the batch, past the check, can look at one unit only."""
    monkeypatch.setattr(promises, "check_rule", lambda rule, names: None)
    setup = PROBLEMS["linear-2d"].make()
    whole = clipped_sum(*setup, Rule("by the median"))
    alone = [
        clipped_sum(setup.model, setup.loss_fn, rows(setup.batch, slice(i, i + 1)), Rule("by the median")).grads._values
        for i in range(4)
    ]
    summed = {name: sum(one[name] for one in alone) for name in alone[0]}
    assert relative_error(whole.grads._values, summed) < 1e-12
    assert bool((whole.norms > 0).all())


def test_norms_changed_in_place_do_not_fool_the_promise(monkeypatch):
    monkeypatch.setattr(promises, "check_rule", lambda rule, names: None)
    setup = PROBLEMS["linear-2d"].make()
    loud = lambda model, batch: setup.loss_fn(model, batch) * 1e5  # noqa: E731
    with pytest.raises(PrivacyError, match="more than its sensitivity"):
        clipped_sum(setup.model, loud, setup.batch, Rule("in place"))


@dataclass(frozen=True)
class Astray(Rule):
    """Places its parameters in a block that is in no norm."""

    def blocks(self, names):
        return dict.fromkeys(names, -1)


def test_a_parameter_in_no_block_is_refused():
    with pytest.raises(PrivacyError, match=r"places \['0.weight'.*whole number from 0"):
        clipped_sum(*PROBLEMS["linear-2d"].make(), Astray("right"))


@pytest.mark.parametrize("bound", [1e-31, 1e31])
def test_bounds_that_sums_cannot_hold_are_refused(bound):
    with pytest.raises(ConfigError, match=r"outside 1e-30 to 1e\+20"):
        clipped_sum(*PROBLEMS["linear-2d"].make(), Flat(bound))


def test_complex_parameters_are_refused_by_name():
    model = nn.Linear(2, 2, dtype=torch.complex64)
    with pytest.raises(UnsupportedLayer, match=r"\['weight', 'bias'\] are complex.*view_as_real"):
        clipped_sum(model, lambda m, b: m(b).abs().sum(1), torch.ones(2, 2, dtype=torch.complex64), Flat(1.0))


def test_a_parameter_without_a_per_layer_rule_is_refused():
    with pytest.raises(ConfigError, match=r"no rule for \['2.weight', '2.bias'\]"):
        clipped_sum(*PROBLEMS["linear-2d"].make(), per_layer(["0.weight", "0.bias"], Flat(1.0)))


def test_a_model_in_which_nothing_learns_is_refused():
    model = nn.Linear(2, 2).requires_grad_(False)
    with pytest.raises(ConfigError, match="no parameter learns"):
        clipped_sum(model, cross_entropy, (torch.ones(1, 2), torch.zeros(1, dtype=torch.long)), Flat(1.0))


@pytest.mark.parametrize(
    ("support", "message"),
    [
        ({"3.weight": True}, "'3.weight', which is no parameter"),
        ({"0.weight": torch.ones(6, 5)}, r"'0\.weight'\] is torch.float32.*mask.bool\(\)"),
        ({"0.weight": torch.ones(5, 6, dtype=torch.bool)}, r"shape \[5, 6\], the parameter \[6, 5\]"),
    ],
)
def test_a_support_that_does_not_fit_is_refused(support, message):
    with pytest.raises(ConfigError, match=message):
        clipped_sum(*PROBLEMS["linear-2d"].make(), Flat(1.0), support)


def test_a_mask_without_any_coordinate_gives_zeros():
    setup = PROBLEMS["linear-3d-gram"].make()
    support = {name: torch.zeros_like(p, dtype=torch.bool) for name, p in setup.model.named_parameters()}
    for clip in rules(list(support)).values():
        got = clipped_sum(*setup, clip, support)
        assert all(not value.any() for value in got.grads._values.values())
        assert not got.norms.any()


def test_the_bounded_sum_does_not_show_its_values():
    got = clipped_sum(*PROBLEMS["linear-2d"].make(), Flat(0.25))
    assert repr(got.grads) == "Bounded(sensitivity=0.25)"


@pytest.mark.parametrize("microbatch", [1, 2, 3, 4, 7, None])
@pytest.mark.parametrize("padded", [False, True])
@pytest.mark.parametrize(
    "rule", [GroupBounds("team", 3, bounds=(0.05, 0.2, 0.6)), Quantile(0.3)], ids=["groups", "quantile"]
)
def test_pieces_of_a_batch_have_their_own_groups_padding_and_answers(microbatch, padded, rule):
    """Units one by one, each with its own group: whoever is padding adds nothing, to the sum and to the answer."""
    torch.manual_seed(0)
    model, x, y = nn.Linear(5, 3).double(), torch.randn(7, 5).double(), torch.randint(0, 3, (7,))
    groups, present = torch.tensor([2, 0, 1, 1, 0, 2, 0]), torch.tensor([1, 0, 1, 1, 0, 0, 1]).bool()
    batch = Padded((x, y), present) if padded else (x, y)
    found = clipped_sum(model, cross_entropy, batch, rule, runtime=Runtime(microbatch=microbatch), groups=groups)
    alone = [
        clipped_sum(model, cross_entropy, (x[i : i + 1], y[i : i + 1]), rule, groups=groups[i : i + 1])
        for i in range(7)
        if present[i] or not padded
    ]
    for part in ("grads", "query"):
        for name, value in getattr(found, part)._values.items():
            expected = sum(getattr(one, part)._values[name] for one in alone)
            torch.testing.assert_close(value, expected, rtol=1e-9, atol=1e-12)


def test_gradients_go_as_soon_as_they_are_added_up(monkeypatch):
    """While a layer's gradients are summed, those of the layers before it are gone."""
    model = nn.Sequential(nn.Linear(6, 4), nn.Tanh(), nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 3))
    batch, seen, alive, add = (torch.randn(5, 6), torch.arange(5) % 3), [], [], Outer.weighted_sum

    def watched(self, *given, **named):
        seen.append(weakref.ref(self.left))
        alive.append(sum(left() is not None for left in seen))
        return add(self, *given, **named)

    monkeypatch.setattr(Outer, "weighted_sum", watched)
    clipped_sum(model, cross_entropy, batch, Flat(1.0))
    assert alive[-3:] == [1, 1, 1]


@pytest.mark.parametrize("masked", [False, True])
def test_microbatches_are_added_up_in_one_memory(masked, monkeypatch):
    """No second sum beside the first one where a product can be added to it; the sum is that of the whole batch."""
    model = nn.Sequential(nn.Linear(6, 4), nn.Tanh(), nn.Linear(4, 3)).double()
    batch = (torch.randn(5, 6).double(), torch.arange(5) % 3)
    support = {"0.weight": torch.rand(4, 6) < 0.5} if masked else {}
    whole = clipped_sum(model, cross_entropy, batch, Flat(0.3), support).grads._values
    given, add = [], Outer.weighted_sum
    monkeypatch.setattr(
        Outer,
        "weighted_sum",
        lambda self, *args, into=None, **more: given.append(into) or add(self, *args, into, **more),
    )
    parts = clipped_sum(model, cross_entropy, batch, Flat(0.3), support, Runtime(microbatch=2)).grads._values
    assert relative_error(parts, whole) < 1e-12
    assert sum(into is not None for into in given) >= 2
    assert {into.data_ptr() for into in given if into is not None} <= {value.data_ptr() for value in parts.values()}

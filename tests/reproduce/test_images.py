"""Runs on images: what is trained on, what is looked at, and what is measured."""

import pytest
import torch
from torch import nn
from torchmetrics.functional.classification import multiclass_calibration_error

from noisewise import Mechanism, Poisson
from noisewise.clipping import Flat, Global, PerLayer
from noisewise.data.scatter import scatter
from noisewise.data.statistics import noised_statistics
from noisewise.errors import ConfigError
from noisewise.recipe import train_openly
from noisewise.reproduce import images
from noisewise.reproduce.images import (
    _turned,
    calibration_errors,
    hard_images,
    parts_of,
    repairs_of,
    rule_of,
    scattered_of,
    train_images,
)
from noisewise.reproduce.tables import noise_for, release_of_statistics

QUICK = {
    "device": "cpu",
    "data": "digits",
    "model": "logistic",
    "batch": 64,
    "epochs": 1,
    "lr": 1.0,
    "valid": 60,
    "sigma": 1.0,
}


@pytest.fixture
def logits():
    generator = torch.Generator().manual_seed(0)
    return 3 * torch.randn(2000, 5, generator=generator).double(), torch.randint(0, 5, (2000,), generator=generator)


def test_calibration_errors_are_those_of_torchmetrics(logits):
    found = calibration_errors(*logits, smallest=1)
    scores, y = torch.softmax(logits[0], 1), logits[1]
    for name, norm in (("ece", "l1"), ("mce", "max"), ("mce_all", "max")):
        reference = multiclass_calibration_error(scores, y, 5, n_bins=15, norm=norm)
        assert found[name] == pytest.approx(float(reference), abs=1e-5)


def test_small_bins_are_left_out_of_mce():
    sure, unsure = torch.tensor([[5.0, 0.0]]).repeat(100, 1), torch.tensor([[0.5, 0.0]])
    found = calibration_errors(torch.cat([sure, unsure]).double(), torch.tensor([0] * 100 + [1]))
    assert found["mce_all"] > 0.5 > found["mce"]


def test_the_test_part_is_not_read_while_tuning(monkeypatch):
    """Held-out training images are looked at, and are not trained on."""
    final, tuned = train_images(seed=0, **QUICK), train_images(seed=0, tuning=True, **QUICK)
    assert final["n"] == tuned["n"] + 60
    assert len(parts_of("digits", 60, 0.0, "cpu").valid) == 60
    broken = parts_of("digits", 60, 0.0, "cpu")
    broken.test.x.fill_(float("nan"))
    try:
        assert train_images(seed=0, tuning=True, **QUICK)["loss"] == tuned["loss"]
    finally:
        parts_of.cache_clear()


def test_turned_images_that_are_trained_on_are_not_tested_on():
    parts = parts_of("digits", 0, 0.0, "cpu")
    train, test = _turned("digits", parts, {"degrees": 0.0, "rows": 200}, tuning=False)
    fitted, held = _turned("digits", parts, {"degrees": 0.0, "rows": 200}, tuning=True)
    assert (len(train), len(test), len(fitted), len(held)) == (200, 159, 160, 40)
    seen = {row.numpy().tobytes() for row in train.x}
    assert {row.numpy().tobytes() for row in held.x} <= seen
    assert {row.numpy().tobytes() for row in fitted.x} <= seen
    assert sum(row.numpy().tobytes() in seen for row in test.x) <= 2  # digits that occur twice
    with pytest.raises(ConfigError, match="some must be left"):
        _turned("digits", parts, {"degrees": 0.0, "rows": 359}, tuning=False)


def test_what_is_measured_fits_together():
    seen = train_images(seed=0, curve=2, members=True, radius={"linf": 0.1, "l2 0": 0.5}, attacked=50, **QUICK)
    assert seen["curve"][0]["step"] == 0
    assert seen["curve"][-1]["step"] == seen["steps"]
    assert seen["curve"][-1]["accuracy"] == pytest.approx(seen["accuracy"])
    assert seen["balanced"] == pytest.approx(sum(seen["classes"]) / 10)
    assert seen["linf"]["accuracy"] <= seen["accuracy"] + 0.2
    assert 0 <= seen["auc"]["logistic regression"] <= 1
    assert seen["epsilon"] > 0


def test_sizes_and_rows_are_met():
    sizes = {str(label): 30 for label in range(10)} | {"5": 10}
    assert train_images(seed=0, sizes=sizes, **QUICK)["n"] == 280
    assert train_images(seed=0, rows=77, **QUICK)["n"] == 77


def test_the_open_twin_has_no_epsilon_and_learns_more():
    given = {**QUICK, "epochs": 5, "sigma": None}
    private, twin = (train_images(seed=0, ablation=ablation, **given) for ablation in ("private", "plain"))
    assert "epsilon" not in twin
    assert private["epsilon"] == pytest.approx(3.0, abs=0.01)
    assert twin["loss"] < private["loss"]


def test_rules_and_repairs_by_name():
    model = nn.Sequential(nn.Linear(3, 2))
    assert rule_of({}, model) == Flat(1.0)
    assert rule_of({"kind": "global", "bound": 1.5, "screen": 75}, model) == Global(1.5, 75.0)
    layers = rule_of({"kind": "global layerwise", "bound": 1.5, "bias": 0.3, "screen": 75}, model)
    assert isinstance(layers, PerLayer)
    assert layers.rules == {"0.weight": Global(1.5, 75.0), "0.bias": Global(0.3, 75.0)}
    assert rule_of({"kind": "local layerwise", "bound": 1.5}, model).rules["0.bias"] == Flat(1.5)
    assert repairs_of(None, 0) == []
    (freeze,) = repairs_of({"kind": "prune", "at": [0.5], "shares": [0.77]}, 0)
    assert (freeze.mode, freeze.shares) == ("prune", (0.77,))
    (random,) = repairs_of({"kind": "random sparsification", "final": 0.7, "refreshes": 2}, 0)
    assert (random.final, random.refreshes) == (0.7, 2)
    mask = {"kind": "magnitude mask", "share": 0.7, "epochs": 1, "batch": 10, "lr": 0.1}
    (same,), (public,) = (repairs_of({**mask, "source": source}, 0) for source in ("same", "digits"))
    assert same.cost == "not-private"
    assert public.cost == "free"
    with pytest.raises(ConfigError, match="clipping rule 'round'"):
        rule_of({"kind": "round"}, model)
    with pytest.raises(ConfigError, match="repair"):
        repairs_of({"kind": "glue"}, 0)


def test_other_classes_are_the_public_set_and_are_neither_trained_on_nor_looked_at(monkeypatch):
    mask = {"kind": "magnitude mask", "share": 0.7, "epochs": 1, "batch": 10, "lr": 0.1, "source": "other classes"}
    with pytest.raises(ConfigError, match="`classes`"):
        repairs_of(mask, 0)
    kept = {}

    def spied(recipe, *made):
        kept["private"], kept["public"] = recipe.data, made[0].source.data
        return repaired(recipe, *made)

    repaired = images.repairs.repaired
    monkeypatch.setattr(images.repairs, "repaired", spied)
    seen = train_images(seed=0, classes=[2, 5, 7], repair=mask, **{**QUICK, "model": "cnn"})
    whole = parts_of("digits", 0, 0.0, "cpu")
    assert kept["private"].train.classes == ("2", "5", "7")
    for mine, all_of in ((kept["private"].train, whole.train), (kept["private"].test, whole.test)):
        assert torch.equal(mine.x, all_of.x[torch.isin(all_of.y, torch.tensor([2, 5, 7]))])
    assert torch.equal(kept["public"].x, whole.train.x[~torch.isin(whole.train.y, torch.tensor([2, 5, 7]))])
    assert (seen["n"], len(seen["classes"]), len(kept["public"].classes)) == (len(kept["private"].train), 3, 7)


def test_hard_images_are_hard_for_others_too():
    seen = hard_images(seed=0, ensemble=2, open_lr=0.5, open_epochs=3, parts=3, **{**QUICK, "epochs": 4})
    for which in ("private", "twin"):
        assert seen[which][0] > seen[which][2]


def test_several_repairs_and_shuffled_batches():
    several = {"kind": "several", "repairs": [{"kind": "average", "decay": 0.5}, {"kind": "random mask", "share": 0.5}]}
    average, mask = repairs_of(several, 0)
    assert (average.decay, mask.share) == (0.5, 0.5)
    few = {
        "kind": "magnitude mask",
        "share": 0.5,
        "source": "same",
        "records": 0.05,
        "epochs": 1,
        "batch": 10,
        "lr": 0.1,
    }
    assert repairs_of(few, 0)[0].source.share == 0.05
    (pretrained,) = repairs_of({"kind": "pretraining", "source": "digits", "epochs": 1, "batch": 50, "lr": 0.1}, 0)
    assert pretrained.cost == "free"
    (everyone,) = repairs_of({"kind": "global clipping", "screen": 25, "lr_factor": 0.5}, 0)
    assert everyone.screen == 25
    plain, averaged = (train_images(seed=0, repair=repair, **QUICK) for repair in (None, several["repairs"][0]))
    assert averaged["norm"] < plain["norm"]  # the noise is averaged out
    shuffled = train_images(seed=0, sampler="shuffle", **QUICK)
    assert shuffled["accuracy"] != plain["accuracy"]


def test_adam_takes_another_momentum():
    given = {**QUICK, "lr": 0.01, "adam": True}
    usual, same, other = (train_images(seed=0, beta=beta, **given)["loss"] for beta in (None, 0.9, 0.0))
    assert usual == same != other


def test_scattered_images_are_those_of_the_scattering():
    pixels, features = (of("digits", 60, 0.0, "cpu") for of in (parts_of, scattered_of))
    assert torch.equal(features.train.x, scatter(pixels.train.x))
    assert torch.equal(features.test.y, pixels.test.y)
    seen = train_images(seed=0, scattered=True, **QUICK)
    assert seen["loss"] != train_images(seed=0, **QUICK)["loss"]


def test_statistics_of_features_are_noised_and_paid_for():
    """What is shown is the epsilon of one ledger of both releases; what is asked for is met by both together."""
    given = {**QUICK, "model": "h-cnn", "scattered": True, "standardised": 2.0, "tuning": True}
    alone, seen, again, other = (
        train_images(seed=seed, **(given | more))
        for seed, more in ((0, {"standardised": None}), (0, {}), (0, {}), (0, {"standardised": 3.0}))
    )
    train = scattered_of("digits", 60, 0.0, "cpu").train
    told = noised_statistics(train, (1.0, 1.0), noise_multiplier=2.0)
    assert told.ledger.lines[0].event == release_of_statistics(len(train), 2.0)
    plan = Mechanism(
        sampler=Poisson(len(train), 64), clip=Flat(1.0), steps=seen["steps"], noise_multiplier=seen["noise_multiplier"]
    )
    for event, count in plan.events():
        for step in range(count):
            told.ledger.record(event, "gradient", step)
    assert seen["epsilon"] == pytest.approx(told.ledger.epsilon(1e-5), rel=1e-3)
    assert seen["epsilon"] > alone["epsilon"]
    assert seen["loss"] == again["loss"] != other["loss"]
    met = train_images(seed=0, **(given | {"sigma": None, "epsilon": 3.0}))
    assert 2.98 < met["epsilon"] <= 3.0
    assert met["noise_multiplier"] > noise_for(len(train), 64, met["steps"], 3.0)


def test_public_starts_are_trained_once(monkeypatch):
    """The same run from a start that was kept; another seed, another number of epochs or of images is another start."""
    made = []
    monkeypatch.setattr(
        images, "train_openly", lambda *args, **given: made.append(given) or train_openly(*args, **given)
    )
    given = {**QUICK, "turned": {"degrees": 90.0, "rows": 200}, "start": {"epochs": 1, "batch": 64, "lr": 0.5}}
    first, again = (train_images(seed=0, **given) for _ in range(2))
    assert len(made) == 1
    assert first["loss"] == again["loss"]
    scratch = train_images(seed=0, **{**given, "start": None})
    assert scratch["loss"] != first["loss"]
    assert train_images(seed=1, **given)["loss"] != first["loss"]
    assert train_images(seed=0, **{**given, "start": given["start"] | {"epochs": 2}})["loss"] != first["loss"]
    assert train_images(seed=0, tuning=True, **given)["n"] < first["n"]
    assert len(made) == 4


def test_parameters_of_a_public_start_lie_apart():
    """As those of any model: pieces of one memory would be one thing to whoever looks where tensors lie."""
    public = parts_of("digits", 0, 0.0, "cpu").train
    model = nn.Sequential(nn.Flatten(), nn.Linear(64, 8), nn.Linear(8, 10))
    began = nn.utils.parameters_to_vector(model.parameters()).clone()
    images._pretrained(model, "digits", public, {"epochs": 1, "batch": 64, "lr": 0.5}, 0)
    assert len({parameter.untyped_storage().data_ptr() for parameter in model.parameters()}) == 4
    assert not torch.equal(nn.utils.parameters_to_vector(model.parameters()), began)
    with pytest.raises(ConfigError, match="has buffers"):
        images._pretrained(nn.BatchNorm1d(3), "digits", public, {"epochs": 1, "batch": 64, "lr": 0.5}, 0)

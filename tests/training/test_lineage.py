"""One ledger for one protected thing: its unit, its data, its noise, and the models that came out of its runs."""

import copy
import json
import math
import shutil

import dp_accounting as dp
import pytest
import torch
import torch.nn.functional as F
from torch import nn

from helpers import tiny
from helpers.lineage import DELTA, SEED, Crash, fresh_model, interrupted, other_data
from noisewise.accounting import Identity, Ledger
from noisewise.data import Data, Splits
from noisewise.data.marks import mark_of
from noisewise.errors import PrivacyError, RunError
from noisewise.recipe import Phase, Recipe, fit, load_weights, train_openly
from noisewise.repairs import AtRandom, LoRA, MagnitudePruning, Pretraining, PrivateModel, PublicTraining, repaired
from noisewise.repairs.lora import merged
from noisewise.runs.files import read_json, write_json
from noisewise.runs.folder import RunFolder
from noisewise.runs.summary import read_ledger, read_summary
from noisewise.runs.tensors import save_weights
from noisewise.runtime import Runtime
from noisewise.sampling import Poisson, Shuffle
from noisewise.support import Fixed
from noisewise.training import lineage
from noisewise.training.augmentation import Augment
from noisewise.training.lineage import behaviour, same_behaviour
from noisewise.training.loop import train
from noisewise.training.state import State
from noisewise.training.step import private_step
from noisewise.training.summary import status_of


def test_an_identity_is_keyed_and_never_shown():
    mark = mark_of(tiny.data())
    one, other = Identity.of(mark, b"1" * 32), Identity.of(mark, b"2" * 32)
    assert one.digest != other.digest
    assert one.fits(mark)
    assert not one.fits(mark_of(other_data()))
    ledger = Ledger(identity=one)
    assert "identity" not in repr(ledger) + str(ledger.to_dict())
    assert Identity.from_dict(one.to_dict()) == one
    for wrong in (None, {}, {"key": "00", "digest": "00"}, {"key": "zz", "digest": one.digest.hex()}):
        with pytest.raises(RunError):
            Identity.from_dict(wrong)


# --- what a ledger belongs to -----------------------------------------------------------------------------------------
def test_units_are_not_mixed():
    rows = tiny.run(plan=tiny.mechanism(steps=2)).ledger
    assert (rows.unit, rows.reproducible) == ("row", False)
    with pytest.raises(PrivacyError, match=r"protects one row, the mechanism one person.*unit='row'"):
        tiny.run(plan=tiny.mechanism(unit="person"), ledger=rows)
    with pytest.raises(PrivacyError, match="protects one row"):
        State(tiny.mechanism(unit="person"), rows)
    with pytest.raises(PrivacyError, match="protects one person, the mechanism one row"):
        recipe(phases=(Phase(mechanism=tiny.mechanism(unit="person")),))
    with pytest.raises(PrivacyError, match="protects one row"):
        recipe(mechanism=tiny.mechanism(unit="person"), ledger=rows)
    with pytest.raises(PrivacyError, match="one adjacency and one unit"):
        rows.composed(Ledger(unit="person"))


def test_a_ledger_of_format_1_says_no_unit_until_somebody_does():
    written = tiny.run(plan=tiny.mechanism(steps=2)).ledger.to_dict()
    old = {"format": 1, "adjacency": written["adjacency"], "lines": written["lines"]}
    ledger = Ledger.from_dict(old)
    assert ledger.unit is None
    with pytest.raises(PrivacyError, match=r"does not say what it protects.*ledger.unit = 'row'"):
        tiny.run(ledger=ledger)
    ledger.unit = "row"
    assert tiny.run(ledger=ledger).ledger.releases == 2 + tiny.STEPS
    assert Ledger.from_dict(old, unit="person").unit == "person"
    assert Ledger.from_dict(written, unit="person").unit == "row"  # format 2 says it itself


@pytest.mark.parametrize("wrong", [{"unit": 3}, {"unit": ""}, {"reproducible": 1}, {"reproducible": None}])
def test_a_damaged_format_2_is_refused(wrong):
    with pytest.raises(RunError, match="ledger"):
        Ledger.from_dict({**Ledger(unit="row").to_dict(), **wrong})


def test_an_earlier_phase_with_reproducible_noise_makes_all_that_follows_not_private(tmp_path):
    first = tiny.run(plan=tiny.mechanism(steps=2), insecure_seed=SEED)
    assert first.ledger.reproducible
    second = tiny.run(first.model, ledger=Ledger.from_dict(first.ledger.to_dict()), out=tmp_path)
    assert (second.status.status, second.status.reason) == ("not-private", "noise reproducible: do not publish")
    third = tiny.run(second.model, ledger=second.ledger)
    assert third.status.status == "not-private"
    assert status_of(State.start(tiny.mechanism(), Ledger(reproducible=True)), "private").status == "not-private"


@pytest.mark.parametrize(
    ("edit", "message"), [({"reproducible": True}, "reproducible"), ({"unit": "person"}, "unit 'row' is not 'person'")]
)
def test_a_summary_that_does_not_fit_its_ledger_is_refused(edit, message, tmp_path):
    tiny.run(out=tmp_path)
    folder = RunFolder(tmp_path)
    assert read_summary(folder)["privacy"]["unit"] == "row"
    write_json(folder.ledger, {**read_json(folder.ledger), **edit})
    with pytest.raises(RunError, match=message):
        read_summary(folder)


def test_holding_is_by_counts():
    event, other = dp.GaussianDpEvent(1.0), dp.GaussianDpEvent(2.0)

    def ledger(*events):
        made = Ledger()
        for step, each in enumerate(events):
            made.record(each, "gradient", step)
        return made

    assert ledger(event, other, event).holds(ledger(event, event))
    assert not ledger(event, other).holds(ledger(event, event))
    assert not ledger(other).holds(ledger(event))
    assert not ledger().holds(Ledger(reproducible=True))


def test_the_identity_lies_under_sensitive_and_nowhere_else(tmp_path):
    trained = tiny.run(out=tmp_path)
    folder = RunFolder(tmp_path)
    kept = read_json(folder.identity)
    assert read_ledger(folder).identity == trained.ledger.identity == Identity.from_dict(kept)
    for path in tmp_path.rglob("*"):
        if path.is_file() and path != folder.identity:
            content = path.read_bytes()
            assert not any(kept[key].encode() in content or bytes.fromhex(kept[key]) in content for key in kept)


def test_a_copied_folder_is_resumed_on_the_same_data_only(tmp_path):
    interrupted(tmp_path / "a")
    shutil.copytree(tmp_path / "a", tmp_path / "b")
    before = RunFolder(tmp_path / "b").checkpoint.read_bytes()
    with pytest.raises(RunError, match=r"a run on other data.*give both away.*same data"):
        tiny.run(units=other_data(), out=tmp_path / "b", resume=True)
    one_more = {"units": tiny.data(tiny.N + 1), "plan": tiny.mechanism(sampler=Poisson(tiny.N + 1, tiny.BATCH))}
    with pytest.raises(RunError, match=r"a run on other data \(n: 40 became 41\).*resume with the same data"):
        tiny.run(out=tmp_path / "b", resume=True, **one_more)
    assert RunFolder(tmp_path / "b").checkpoint.read_bytes() == before
    assert tiny.same(*(tiny.run(out=tmp_path / name, resume=True).model for name in ("a", "b")))


@pytest.mark.parametrize("secure", [False, True])
@pytest.mark.parametrize("sampler", [Poisson(tiny.N, tiny.BATCH), Shuffle(tiny.N, tiny.BATCH)], ids=lambda s: s.kind)
def test_with_a_secret_root_too_a_resumed_run_is_the_run_that_did_not_stop(sampler, secure, tmp_path):
    """Stopped before its first step, at once or in the middle of its second epoch again."""

    def stop_at(step):
        def recorder(observation):
            if observation.step == step:
                raise Crash

        return {"recorders": [recorder], "checkpoint_seconds": 0}

    plan = tiny.mechanism(sampler=sampler, adjacency="zero-out")
    how = {"plan": plan, "secure": secure, "scheduler": lambda o: torch.optim.lr_scheduler.StepLR(o, 3, 0.5)}
    with pytest.raises(Crash):
        tiny.run(out=tmp_path / "a", **how, **stop_at(0))
    shutil.copytree(tmp_path / "a", tmp_path / "b")
    whole = tiny.run(out=tmp_path / "a", resume=True, **how)
    with pytest.raises(Crash):
        tiny.run(out=tmp_path / "b", resume=True, **how, **stop_at(7))
    assert tiny.same(tiny.run(out=tmp_path / "b", resume=True, **how).model, whole.model)


# --- the code of a resumed run ----------------------------------------------------------------------------------------
def smoothed(network, batch):
    return F.cross_entropy(network(batch[0]), batch[1], reduction="none", label_smoothing=0.1)


class Wider(nn.Sequential):
    """The same parameters, another function."""

    def forward(self, x):
        return super().forward(2 * x)


@pytest.mark.parametrize("how", ["loss", "model", "dropout", "augment"])
def test_another_loss_or_model_does_not_resume_a_run(how, tmp_path):
    network = Wider(*tiny.model()) if how == "model" else tiny.model(dropout=0.2 if how == "dropout" else 0.0)
    augment = Augment(lambda rows, _: (rows[0] * 1.1, rows[1])) if how == "augment" else None
    start = tiny.model(dropout=0.5) if how == "dropout" else tiny.model()
    interrupted(tmp_path, network=start)
    loss = smoothed if how == "loss" else tiny.loss_fn
    with pytest.raises(RunError, match=r"another model, loss_fn or augment.*same code"):
        train(
            network, tiny.data(), loss, tiny.mechanism(), tiny.sgd(network), out=tmp_path, resume=True, augment=augment,
            progress=False,
        )  # fmt: skip


def test_behaviour_depends_on_code_alone_and_leaves_no_trace():
    network = tiny.model(dropout=0.5)
    network[2].eval()
    before, state = copy.deepcopy(network.state_dict()), torch.get_rng_state()
    versions = [parameter._version for parameter in network.parameters()]
    first = behaviour(network, tiny.loss_fn, tiny.data())
    assert all(torch.equal(before[name], value) for name, value in network.state_dict().items())
    assert [parameter._version for parameter in network.parameters()] == versions
    assert [parameter.grad for parameter in network.parameters()] == [None] * 4
    assert torch.equal(torch.get_rng_state(), state)
    assert network.training
    assert not network[2].training
    with torch.no_grad():
        for parameter in network.parameters():
            parameter.add_(1)
    assert same_behaviour(first, behaviour(network, tiny.loss_fn, other_data()), network)
    assert not same_behaviour(first, behaviour(network, smoothed, tiny.data()), network)
    assert len(set(first["evaluated"].tolist())) == 3


@pytest.mark.parametrize("first", [False, True])
def test_secure_is_kept_on_resuming(first, tmp_path):
    interrupted(tmp_path, secure=first)
    with pytest.raises(RunError, match=rf"made with secure={first}.*Resume with secure={first}"):
        tiny.run(out=tmp_path, resume=True, secure=not first)
    assert tiny.run(out=tmp_path, resume=True, secure=first).ledger.releases == tiny.STEPS


# --- models that came out of a run ------------------------------------------------------------------------------------
CAME = r"came out of a run on the same data.*ledger=result.ledger.*fresh model"


def recipe(**changed):
    data = Data(*tiny.data())
    parts = {
        "model": tiny.model(), "data": Splits(data, data, data), "loss_fn": tiny.loss_fn,
        "mechanism": tiny.mechanism(), "optimizer": lambda parameters: torch.optim.SGD(parameters, lr=0.2),
    }  # fmt: skip
    return Recipe(**{**parts, **changed})


def copied(trained):
    return copy.deepcopy(trained.model)


def by_state_dict(trained):
    network = fresh_model()
    network.load_state_dict(trained.model.state_dict())
    return network


def with_a_new_head(trained):
    network = by_state_dict(trained)
    network[2] = nn.Linear(6, 3)
    return network


def averages(trained):
    network = fresh_model()
    network.load_state_dict(trained.averaged)
    return network


HANDS = [lambda trained: trained.model, copied, by_state_dict, with_a_new_head, averages]


@pytest.mark.parametrize(
    "how", [{}, {"insecure_seed": SEED}, {"ablation": "plain"}, {"ablation": "noise-only"}], ids=repr
)
@pytest.mark.parametrize("hand", HANDS, ids=["itself", "copy", "state dict", "trunk", "averages"])
def test_a_trained_model_goes_on_with_its_ledger_or_not_at_all(hand, how):
    first = tiny.run(fresh_model(), ema=0.9, **how)
    with pytest.raises(PrivacyError, match=CAME):
        tiny.run(hand(first))
    with pytest.raises(PrivacyError, match=CAME):
        tiny.run(hand(first), ledger=Ledger(unit="row"))
    second = tiny.run(hand(first), ledger=copy.deepcopy(first.ledger))
    assert second.ledger.releases == 2 * tiny.STEPS
    assert second.status.status == ("not-private" if how else "private")
    with pytest.raises(PrivacyError, match=CAME):
        tiny.run(second.model, ledger=first.ledger)  # which lacks the second run


def test_four_calls_do_not_cost_as_much_as_one():
    network, ledger = fresh_model(), None
    for call in range(4):
        if call:
            with pytest.raises(PrivacyError, match=CAME):
                tiny.run(network)
        ledger = tiny.run(network, ledger=ledger).ledger
    assert ledger.epsilon(DELTA) == tiny.mechanism(steps=4 * tiny.STEPS).epsilon(DELTA)


def test_fresh_weights_are_a_new_run_and_other_data_too():
    network = fresh_model()
    start = copy.deepcopy(network.state_dict())
    first = tiny.run(network)
    tiny.run(fresh_model())
    tiny.run(copy.deepcopy(network), units=other_data())
    tiny.run(network, ledger=first.ledger)
    network.load_state_dict(start)
    assert tiny.run(network).ledger.releases == tiny.STEPS


def test_a_model_remembers_every_data_set_that_it_came_from():
    network = fresh_model()
    first = tiny.run(network)
    tiny.run(network, units=other_data())
    for again in (network, copy.deepcopy(network)):
        with pytest.raises(PrivacyError, match=CAME):
            tiny.run(again)
    assert tiny.run(network, ledger=first.ledger).ledger.releases == 2 * tiny.STEPS


def test_frozen_layers_do_not_give_a_fresh_model_a_past():
    network = fresh_model()
    start = copy.deepcopy(network)
    tiny.run(network, plan=tiny.mechanism(support=Fixed({"0.weight": False, "0.bias": False})))
    assert tiny.run(start).ledger.releases == tiny.STEPS


def test_a_loop_of_ones_own_is_known_too():
    network, plan = fresh_model(), tiny.mechanism(steps=2)
    optimizer, state = tiny.sgd(network), State.start(plan)
    private_step(network, tiny.data(), tiny.loss_fn, optimizer, state)
    with pytest.raises(PrivacyError, match=CAME):
        private_step(network, tiny.data(), tiny.loss_fn, optimizer, State.start(plan))
    private_step(network, tiny.data(), tiny.loss_fn, optimizer, state)
    with pytest.raises(PrivacyError, match=CAME):
        tiny.run(copy.deepcopy(network))


def test_open_training_on_the_private_rows_is_not_public_training():
    rows = Data(*tiny.data(), public=True)
    trained = train_openly(fresh_model(), rows, tiny.loss_fn, epochs=2, batch_size=8, lr=0.1)
    with pytest.raises(PrivacyError, match=CAME):
        tiny.run(trained)
    base = recipe(model=fresh_model())
    source = PublicTraining(rows, epochs=2, batch_size=8)
    with pytest.raises(PrivacyError, match=CAME):
        fit(repaired(base, Pretraining(source)), progress=False)
    elsewhere = PublicTraining(Data(*other_data(), public=True), epochs=2, batch_size=8)
    assert fit(repaired(base, Pretraining(elsewhere)), progress=False).status.status == "private"


def test_weights_that_were_made_of_a_run_s_weights_have_its_past():
    first = fit(repaired(recipe(model=fresh_model()), LoRA(rank=1)), progress=False)
    plain = merged(first.model)
    for model in (plain, copy.deepcopy(plain)):
        with pytest.raises(PrivacyError, match=CAME):
            tiny.run(model)
    assert tiny.run(plain, ledger=first.ledger).ledger.releases == 2 * tiny.STEPS
    rows = Data(*tiny.data(), public=True)
    opened = train_openly(fresh_model(), rows, tiny.loss_fn, epochs=2, batch_size=8, lr=0.1)
    pruned = MagnitudePruning(AtRandom(0), share=0.1)
    with pytest.raises(PrivacyError, match=CAME):
        fit(repaired(recipe(model=fresh_model()), Pretraining(weights=opened.state_dict()), pruned), progress=False)
    assert fit(repaired(recipe(model=fresh_model()), pruned), progress=False).status.status == "private"


def test_tensors_that_stay_as_they_were_give_a_fresh_model_no_past(tmp_path, monkeypatch):
    fit(repaired(recipe(model=fresh_model()), LoRA(rank=1, layers="2")), out=tmp_path, progress=False)
    monkeypatch.setattr("noisewise.training.lineage._CONTENTS", {})  # as in another process
    with_additions, _ = LoRA(rank=1, layers="2").added(fresh_model())
    merged(load_weights(with_additions, RunFolder(tmp_path).model))
    assert tiny.run(fresh_model()).status.status == "private"


def test_a_mask_from_a_model_is_paid_by_the_ledger_of_that_model():
    first = tiny.run(fresh_model())
    rows = Data(*tiny.data(), public=True)
    opened = train_openly(fresh_model(), rows, tiny.loss_fn, epochs=2, batch_size=8, lr=0.1)

    def masked(weights):
        source = PrivateModel(dict(weights.state_dict()), first.ledger)
        return fit(repaired(recipe(model=fresh_model()), MagnitudePruning(source, share=0.3)), progress=False)

    assert masked(first.model).ledger.releases == 2 * tiny.STEPS
    with pytest.raises(PrivacyError, match=CAME):
        masked(opened)


def test_weights_from_a_folder_bring_its_ledger(tmp_path, monkeypatch):
    first = tiny.run(fresh_model(), out=tmp_path)
    monkeypatch.setattr("noisewise.training.lineage._CONTENTS", {})  # as in another process
    folder = RunFolder(tmp_path)
    for network in (
        load_weights(fresh_model(), folder.model),
        copy.deepcopy(load_weights(fresh_model(), folder.model)),
    ):
        with pytest.raises(PrivacyError, match=CAME):
            tiny.run(network)
        assert tiny.run(network, ledger=read_ledger(folder)).ledger.releases == 2 * tiny.STEPS
    assert read_ledger(folder) == first.ledger


def test_a_twin_from_a_folder_is_known_as_not_private(tmp_path):
    tiny.run(fresh_model(), out=tmp_path)
    twin = tiny.run(fresh_model(), ablation="plain", units=other_data()).model  # known, but not for this data
    folder = RunFolder(tmp_path)
    save_weights(folder.sensitive / "twin.safetensors", twin.state_dict())
    network = load_weights(fresh_model(), folder.sensitive / "twin.safetensors")
    with pytest.raises(PrivacyError, match=CAME):
        tiny.run(network, ledger=read_ledger(folder))


def test_an_interrupted_model_goes_on_from_its_folder_only(tmp_path):
    network = fresh_model()
    interrupted(tmp_path, network=network)
    with pytest.raises(PrivacyError, match=CAME):
        tiny.run(network)
    assert tiny.run(network, out=tmp_path, resume=True).ledger.releases == tiny.STEPS


def test_there_is_nothing_to_resume_for_a_recipe_either(tmp_path):
    for phases in ((), (Phase(mechanism=tiny.mechanism(steps=2)),)):
        with pytest.raises(RunError, match="holds no run to go on with"):
            fit(recipe(phases=phases), out=tmp_path / "new", resume=True, progress=False)


# --- nothing that shows a batch's size --------------------------------------------------------------------------------
def test_public_files_do_not_depend_on_the_batches_that_were_drawn(tmp_path):
    """Same plan, other batches, of which some are computed in many parts: run, metrics and summary are the same."""
    sizes = []
    for number, microbatch in ((1, None), (2, 2)):
        seen = []
        tiny.run(
            out=tmp_path / str(number), insecure_seed=number, runtime=Runtime(microbatch=microbatch),
            recorders=[lambda o, seen=seen: seen.append(len(o.units))],
        )  # fmt: skip
        sizes.append(seen)
    assert sizes[0] != sizes[1]
    about = [json.loads((tmp_path / number / "run.json").read_text()) for number in ("1", "2")]
    models = {one["files"].pop("model.safetensors") for one in about}  # a digest of what is released anyway
    assert len(models) == 2
    assert about[0] == about[1]
    for name in ("metrics.jsonl", "summary.json", "ledger.json"):
        assert (tmp_path / "1" / name).read_bytes() == (tmp_path / "2" / name).read_bytes(), name


NAN, INF = math.nan, math.inf


@pytest.mark.parametrize(
    ("one", "other", "same"),
    [
        ([1.0, 2.0], [1.0, 2.0], True),
        ([1.0, 2.0], [1.0, 2.1], False),
        ([1.0, NAN], [1.0, NAN], True),
        ([1.0, NAN], [1.0, 2.0], False),
        ([NAN, NAN], [NAN, NAN], True),
        ([1.0, INF], [1.0, INF], True),
        ([1.0, INF], [1.0, -INF], False),
        ([1.0, INF], [2.0, INF], False),
        ([1.0], [1.0, 1.0], False),
        (None, None, True),
        (None, [1.0], False),
    ],
)
def test_answers_are_the_same_where_they_are_the_same_numbers_or_none(one, other, same):
    first, second = (None if answer is None else torch.tensor(answer).double() for answer in (one, other))
    answers = [{"evaluated": answer, "trained": answer, "device": "cpu"} for answer in (first, second)]
    assert same_behaviour(*answers, nn.Linear(1, 1)) == same
    assert same_behaviour(*reversed(answers), nn.Linear(1, 1)) == same


@pytest.mark.parametrize("varied", [False, True])
def test_what_a_run_ended_with_is_known_unless_any_fresh_model_may_hold_it(varied):
    """A tensor of equal entries, such as a bias of zeros, says nothing about where it comes from."""
    network, ledger, data = fresh_model(), Ledger(unit="row"), b"the data"
    ledger.claim_data(data, b"key")
    lineage.begin(lineage.marks_of(network), ledger)
    ledger.record(dp.GaussianDpEvent(1.0), "gradient", 0)
    ends = {name: torch.full_like(p, 0.25) for name, p in network.named_parameters()}
    if varied:
        ends["2.bias"] = torch.tensor([0.1, 0.2, 0.3])
    lineage.end(network, ends)
    other = fresh_model()
    with torch.no_grad():
        other[2].bias.copy_(ends["2.bias"])
    if varied:
        with pytest.raises(PrivacyError, match="came out of a run"):
            lineage.check_origin(lineage.marks_of(other), data, Ledger(unit="row"))
    else:
        lineage.check_origin(lineage.marks_of(other), data, Ledger(unit="row"))

"""Every option of the functions that train acts: a table of options and proofs, checked to be complete.

An option is shown by two calls that differ in it alone. `watched_training` (and its like for the other functions) says all
that can be seen of a call: weights, ledger, files, what the loss and recorders were given. The table names what must differ.
A new option without an entry fails `test_no_option_is_without_a_proof`. How right each option is, other tests say.
"""

import copy
import inspect
import json
import os
import signal
from dataclasses import replace

import pytest
import torch

from helpers import tiny
from helpers.notes import Notes
from noisewise.accounting import Ledger
from noisewise.adaptive import GroupBounds
from noisewise.batches import length
from noisewise.clipping import Flat
from noisewise.data import Data, Splits
from noisewise.errors import Interrupted, NoisewiseError
from noisewise.mechanism import Mechanism
from noisewise.persample import clipped_sum, examine
from noisewise.rates import LearningRate
from noisewise.recipe import Phase, Recipe, fit
from noisewise.repairs.random_sparsification import RandomMasks
from noisewise.runs.folder import RunFolder
from noisewise.runs.states import Keep
from noisewise.runtime import Runtime
from noisewise.sampling import FullBatch, Poisson
from noisewise.support import Fixed
from noisewise.training.ablation import ablated_step, step_of
from noisewise.training.augmentation import Augment
from noisewise.training.loop import train
from noisewise.training.paid import PaidAccuracy
from noisewise.training.state import State
from noisewise.training.step import private_step

SEED = 5
EARLIER = Ledger("add-remove", tiny.mechanism(noise_multiplier=90.0).lines(), unit="row")
SMALL = (tiny.data()[0].clamp(-0.5, 0.5), tiny.data()[1])


def shrunk(rows, generator):
    """An augmentation: each row times a random number."""
    x, y = rows
    return x * torch.rand(len(x), 1, generator=generator), y


def only_small(model, batch):
    """A loss that digests small inputs only: random ones, which a model is examined with, are too large for it."""
    if bool((batch[0].abs() > 0.5).any()):
        raise RuntimeError("inputs above a half")
    return tiny.loss_fn(model, batch)


def doubled(model, batch):
    return 2 * tiny.loss_fn(model, batch)


def at_once(told):
    """A callback that stops at the end of the first epoch."""
    return True


def paid(readings):
    return PaidAccuracy(Data(*tiny.data(n=30)), epsilon=1, readings=readings, insecure_seed=SEED)


def decaying(optimizer):
    return torch.optim.lr_scheduler.StepLR(optimizer, 3, 0.5)


def random_masks(steps=tiny.STEPS):
    return tiny.mechanism(support=RandomMasks(0.5, steps, 3, cooling=False), steps=steps)


def digest(model):
    return [parameter.detach().double().sum().item() for parameter in model.parameters()]


class Watch:
    """A loss and a recorder that remember what they were given, and how many checkpoints there were."""

    def __init__(self, loss_fn, folder=None):
        self.sizes, self.observations, self.checkpoints = Notes(), [], set()
        self._loss_fn, self._folder = loss_fn, folder

    def loss_fn(self, model, batch):
        self.sizes.append(length(batch))
        return self._loss_fn(model, batch)

    def record(self, observation):
        self.observations.append(observation)
        for path in [] if self._folder is None else self._folder.path.rglob("checkpoint.safetensors"):
            self.checkpoints.add(path.stat().st_ino)


def content(folder):
    """Every file that is the same in a repeated run."""
    if folder is None:
        return {}
    paths = [path for path in folder.path.rglob("*") if path.is_file() and path.name not in ("lock", "run.json")]
    return {str(path.relative_to(folder.path)): path.read_bytes() for path in sorted(paths)}


def both(one, other, *differ, **common):
    """Settings of two calls, and what must differ between them."""
    return {**common, **one}, {**common, **other}, differ


def differences(look, table, option):
    one, other, differ = table[option]
    first, second = look(**one), look(**other)
    assert differ
    for key in differ:
        assert first[key] != second[key], f"{option} changes nothing of {key}"
    return first, second


# --- train


def fresh(settings):
    """A copy for one run; paid readings cannot be copied, and are made anew."""
    return copy.deepcopy(settings) | ({"paid": paid(3)} if "paid" in settings else {})


def watched_training(tmp_path, capsys, **given):
    """`train` on the tiny problem, with dropout, and all that can be seen of it."""
    network = given.pop("model", lambda: tiny.model(dropout=0.3))()
    folder = RunFolder(tmp_path / str(len(list(tmp_path.iterdir())))) if given.pop("out", False) else None
    watch = Watch(given.pop("loss_fn", tiny.loss_fn), folder)
    optimizer = given.pop("optimizer", tiny.sgd)(network)
    scheduler = given.pop("scheduler", lambda _: None)(optimizer)
    recorders = [watch.record] if given.pop("recorders", True) else []
    data, plan = given.pop("data", tiny.data()), given.pop("mechanism", tiny.mechanism())
    settings = {"insecure_seed": SEED, "progress": False, **fresh(given), "out": folder and folder.path}
    capsys.readouterr()
    seen = {"error": None}
    try:
        trained = train(
            network, data, watch.loss_fn, plan, optimizer, scheduler=scheduler, recorders=recorders, **settings
        )
    except (NoisewiseError, RuntimeError) as error:
        return seen | {"error": str(error)}
    averaged = trained.averaged and {name: value.sum().item() for name, value in trained.averaged.items()}
    return seen | {
        "weights": digest(network),
        "averaged": averaged,
        "ledger": trained.ledger.to_dict(),
        "history": trained.history,
        "status": trained.status,
        "states": [step for step, _ in trained.states],
        "sizes": watch.sizes,
        "recorded": len(watch.observations),
        "checkpoints": len(watch.checkpoints),
        "files": content(folder),
        "summary": json.loads(folder.summary.read_text()) if folder else None,
        "shown": capsys.readouterr().err,
    }


ABOUT = {"task": "regression", "data": {"name": "tiny"}, "model": "two layers"}
SPENT = {"out": True, "progress": True, "insecure_seed": None}
TRAIN = {
    "keep": both({}, {"keep": Keep(frozenset({2}))}, "states"),
    "model": both({}, {"model": lambda: tiny.model(dropout=0.6)}, "weights"),
    "data": both({}, {"data": SMALL}, "weights"),
    "loss_fn": both({}, {"loss_fn": doubled}, "weights"),
    "mechanism": both({}, {"mechanism": tiny.mechanism(noise_multiplier=30.0)}, "weights", "ledger"),
    "optimizer": both({}, {"optimizer": lambda network: tiny.sgd(network, lr=0.1)}, "weights"),
    "scheduler": both({}, {"scheduler": decaying}, "weights"),
    "runtime": both({}, {"runtime": Runtime(microbatch=2)}, "sizes"),
    "valid": both({}, {"valid": tiny.data(n=9)}, "history"),
    "delta": both({"delta": 1e-3}, {"delta": 1e-4}, "history", "summary", "shown", **SPENT),
    "seed": both({"seed": 1}, {"seed": 2}, "weights", "summary", mechanism=random_masks(), out=True),
    "insecure_seed": both({"insecure_seed": 1}, {"insecure_seed": 2}, "weights"),
    "secure": both({"secure": False}, {"secure": True}, "weights"),
    "out": both({}, {"out": True}, "files"),
    "recorders": both({"recorders": False}, {"recorders": True}, "recorded"),
    "callbacks": both({}, {"callbacks": [at_once]}, "weights", "recorded"),
    "paid": both({}, {"paid": "three readings"}, "history", "files", out=True),
    "ledger": both({}, {"ledger": EARLIER}, "ledger"),
    "ablation": both({}, {"ablation": "clip-only"}, "weights", "ledger", "status"),
    "ema": both({"ema": 0.9}, {"ema": 0.5}, "averaged", "files", out=True),
    "example": both({}, {"example": (SMALL[0][:3], SMALL[1][:3])}, "error", loss_fn=only_small, data=SMALL),
    "augment": both({}, {"augment": Augment(shrunk, 2)}, "weights", "sizes"),
    "about": both({}, {"about": ABOUT}, "summary", out=True),
    "progress": both({"progress": False}, {"progress": True}, "shown"),
    "checkpoint_seconds": both({}, {"checkpoint_seconds": 0.0}, "checkpoints", out=True),
}


@pytest.mark.parametrize("option", TRAIN)
def test_every_option_of_train_acts(option, tmp_path, capsys):
    differences(lambda **given: watched_training(tmp_path, capsys, **given), TRAIN, option)


def test_resume_goes_on_where_a_run_was_stopped(tmp_path):
    def stop(observation):
        if observation.step == 6:
            os.kill(os.getpid(), signal.SIGINT)

    settings = {"out": tmp_path / "run", "insecure_seed": SEED}
    with pytest.raises(Interrupted):
        tiny.run(recorders=[stop], **settings)
    with pytest.raises(NoisewiseError, match="resume=True"):
        tiny.run(**settings)
    steps = []
    resumed = tiny.run(resume=True, recorders=[lambda observation: steps.append(observation.step)], **settings)
    assert steps == [*range(7, tiny.STEPS)]
    assert tiny.same(resumed.model, tiny.run(insecure_seed=SEED).model)


def test_delta_is_that_of_every_epsilon_that_is_shown(tmp_path, capsys):
    for delta in (1e-3, 1e-4):
        run, epsilon = watched_training(tmp_path, capsys, delta=delta, **SPENT), tiny.mechanism().epsilon(delta)
        assert run["summary"]["privacy"]["delta"] == delta
        assert run["summary"]["privacy"]["epsilon"] == run["history"][-1]["epsilon"] == epsilon
        assert f"epsilon ≤ {epsilon:.2f}" in run["shown"]


def test_what_is_said_about_a_run_is_in_its_summary(tmp_path, capsys):
    summary = watched_training(tmp_path, capsys, about=ABOUT, out=True)["summary"]
    assert {key: summary[key] for key in ("task", "model")} == {"task": "regression", "model": "two layers"}
    assert summary["data"] == {"name": "tiny", "n": tiny.N}


def test_a_runtime_changes_no_result(tmp_path, capsys):
    plan = tiny.mechanism(sampler=Poisson(tiny.N, tiny.BATCH, 20))
    for runtime in (Runtime(microbatch=2), Runtime(padded=True), Runtime(engine="loop"), Runtime(engine="dense")):
        runs = [
            watched_training(tmp_path, capsys, mechanism=plan, model=tiny.model, runtime=r) for r in (None, runtime)
        ]
        assert runs[1]["weights"] == pytest.approx(runs[0]["weights"], abs=1e-4)


# --- Runtime and Mechanism, by what a run with them shows

ROOMY = tiny.mechanism(sampler=Poisson(tiny.N, tiny.BATCH, 20))
RUNTIME = {
    "engine": both({}, {"runtime": Runtime(engine="loop")}, "sizes"),
    "microbatch": both({"runtime": Runtime(microbatch=3)}, {"runtime": Runtime(microbatch=2)}, "sizes"),
    "padded": both({}, {"runtime": Runtime(padded=True)}, "sizes", mechanism=ROOMY),
    "memory": both({}, {"runtime": Runtime(memory="small")}, "sizes"),
}
MECHANISM = {
    "sampler": both({}, {"mechanism": tiny.mechanism(sampler=Poisson(tiny.N, 20))}, "sizes", "ledger"),
    "clip": both({}, {"mechanism": tiny.mechanism(clip=Flat(0.5))}, "weights"),
    "steps": both({}, {"mechanism": tiny.mechanism(steps=13)}, "weights", "ledger"),
    "noise_multiplier": both({}, {"mechanism": tiny.mechanism(noise_multiplier=30.0)}, "weights", "ledger"),
    "support": both({}, {"mechanism": tiny.mechanism(support=Fixed({"0.bias": False}))}, "weights"),
    "adjacency": both({}, {"mechanism": tiny.mechanism(adjacency="replace-one")}, "ledger", "summary", out=True),
    "unit": both({}, {"mechanism": tiny.mechanism(unit="person")}, "summary", out=True),
}


@pytest.mark.parametrize("option", RUNTIME)
def test_every_option_of_a_runtime_acts(option, tmp_path, capsys):
    differences(lambda **given: watched_training(tmp_path, capsys, **given), RUNTIME, option)


@pytest.mark.parametrize("option", MECHANISM)
def test_every_option_of_a_mechanism_acts(option, tmp_path, capsys):
    one, other = differences(lambda **given: watched_training(tmp_path, capsys, **given), MECHANISM, option)
    if option == "unit":
        assert [run["summary"]["privacy"]["unit"] for run in (one, other)] == ["row", "person"]


def test_sizes_of_batches_are_those_that_were_asked_for(tmp_path, capsys):
    plan = tiny.mechanism(sampler=FullBatch(tiny.N), noise_multiplier=60.0, steps=2)

    def last(count, **given):
        return watched_training(tmp_path, capsys, **{"mechanism": plan, **given})["sizes"][-count:]

    assert last(2) == [tiny.N] * 2
    assert last(2 * 4, runtime=Runtime(microbatch=12)) == [12, 12, 12, 4] * 2
    assert last(2 * tiny.N, runtime=Runtime(engine="loop")) == [1] * (2 * tiny.N)
    assert set(last(tiny.STEPS, mechanism=ROOMY, runtime=Runtime(padded=True))) == {20}


# --- private_step and State.start


def watched_steps(**given):
    """Three steps of `private_step` or of an ablation, and all that can be seen of them."""
    make_step = step_of(given.pop("ablation", "private"))
    network, start = given.pop("model", lambda: tiny.model(dropout=0.3))(), given.pop("state", {})
    watch, optimizer = Watch(given.pop("loss_fn", tiny.loss_fn)), given.pop("optimizer", tiny.sgd)(network)
    recorders = [watch.record] if given.pop("recorders", True) else []
    start = {"insecure_seed": SEED, "mechanism": tiny.mechanism(), **start}
    state = State.start(**{**start, "ledger": copy.deepcopy(start.get("ledger"))})
    data = given.pop("data", tiny.data())
    try:
        for _ in range(3):
            make_step(network, data, watch.loss_fn, optimizer, state, recorders=recorders, **given)
    except (NoisewiseError, RuntimeError) as error:
        return {"error": str(error)}
    return {
        "error": None,
        "weights": digest(network),
        "ledger": state.ledger.to_dict(),
        "sizes": watch.sizes,
        "recorded": len(watch.observations),
        "secret": state.entropy.reproducible,
    }


STEP = {
    "model": TRAIN["model"],
    "data": TRAIN["data"],
    "loss_fn": TRAIN["loss_fn"],
    "optimizer": TRAIN["optimizer"],
    "state": both({}, {"state": {"insecure_seed": 6}}, "weights"),
    "runtime": TRAIN["runtime"],
    "recorders": TRAIN["recorders"],
    "example": TRAIN["example"],
    "augment": TRAIN["augment"],
}
ABLATED = {
    **STEP,
    "loss_fn": both({}, {"loss_fn": doubled}, "weights", ablation="plain"),
    "ablation": both({}, {"ablation": "noise-only"}, "weights", "ledger"),
}
START = {
    "mechanism": both({}, {"state": {"mechanism": tiny.mechanism(clip=Flat(0.5))}}, "weights"),
    "ledger": both({}, {"state": {"ledger": EARLIER}}, "ledger", "weights"),
    "seed": both(
        {"state": {"mechanism": random_masks()}}, {"state": {"mechanism": random_masks(), "seed": 2}}, "weights"
    ),
    "insecure_seed": both({}, {"state": {"insecure_seed": None}}, "weights", "secret"),
    "secure": both({}, {"state": {"secure": True}}, "weights"),
}


@pytest.mark.parametrize("option", STEP)
def test_every_option_of_a_private_step_acts(option):
    differences(watched_steps, STEP, option)


@pytest.mark.parametrize("option", ABLATED)
def test_every_option_of_an_ablated_step_acts(option):
    differences(lambda **given: watched_steps(**{"ablation": "clip-only", **given}), ABLATED, option)


@pytest.mark.parametrize("option", START)
def test_every_option_of_a_state_acts(option):
    differences(watched_steps, START, option)


# --- fit: what it hands on to every phase


def watched_fit(tmp_path, capsys, **given):
    """A recipe with a phase of six steps before its last three, and what can be seen of both."""
    units, after = Data(*given.pop("data", tiny.data())), []
    folder = RunFolder(tmp_path / str(len(list(tmp_path.iterdir())))) if given.pop("out", False) else None
    watch = Watch(given.pop("loss_fn", tiny.loss_fn), folder)
    recorders = [watch.record] if given.pop("recorders", True) else []

    def remember(recipe, model):
        after.append(digest(model))
        return replace(recipe, model=model)

    plan = random_masks(6)
    recipe = Recipe(
        **{
            "model": tiny.model(dropout=0.3),
            "data": Splits(units, units, units),
            "loss_fn": watch.loss_fn,
            "mechanism": tiny.mechanism(steps=3),
            "optimizer": lambda parameters: torch.optim.SGD(parameters, lr=0.2),
            "phases": (Phase(mechanism=plan, after=remember),),
            **given.pop("recipe", {}),
        }
    )
    settings = {"insecure_seed": SEED, "progress": False, **given, "out": folder and folder.path}
    capsys.readouterr()
    try:
        trained = fit(recipe, recorders=recorders, **settings)
    except (NoisewiseError, RuntimeError) as error:
        return {"error": str(error)}
    return {
        "error": None,
        "weights": digest(trained.model),
        "first phase": after,
        "averaged": trained.averaged and {name: value.sum().item() for name, value in trained.averaged.items()},
        "ledger": trained.ledger.to_dict(),
        "history": trained.history,
        "status": trained.status,
        "states": [step for step, _ in trained.states],
        "sizes": watch.sizes,
        "steps": [observation.step for observation in watch.observations],
        "checkpoints": len(watch.checkpoints) > 2,  # more than the first of each phase
        "files": content(folder),
        "summary": json.loads(folder.summary.read_text()) if folder else None,
        "bars": capsys.readouterr().err.count("training"),
    }


FIT = {
    "recipe": both({}, {"recipe": {"model": tiny.model(dropout=0.6)}}, "weights", "first phase"),
    "out": both({}, {"out": True}, "files"),
    "about": both({}, {"about": ABOUT}, "summary", out=True),
    "ablation": both({}, {"ablation": "plain"}, "weights", "first phase", "status"),
    "keep_states": both({}, {"keep_states": 3}, "states"),
}
HANDED_ON = {
    "runtime": both({}, {"runtime": Runtime(microbatch=2)}, "sizes"),
    "valid": both({}, {"valid": tiny.data(n=9)}, "history"),
    "delta": both({"delta": 1e-3}, {"delta": 1e-4}, "history", insecure_seed=None),
    "seed": both({"seed": 1}, {"seed": 2}, "first phase"),
    "insecure_seed": both({"insecure_seed": 1}, {"insecure_seed": 2}, "first phase", "weights"),
    "secure": both({"secure": False}, {"secure": True}, "first phase"),
    "recorders": both({"recorders": False}, {"recorders": True}, "steps"),
    "callbacks": both({}, {"callbacks": [at_once]}, "steps"),
    "paid": both({}, {"paid": paid(3)}, "history"),
    "example": both({}, {"example": (SMALL[0][:3], SMALL[1][:3])}, "error", loss_fn=only_small, data=SMALL),
    "progress": both({"progress": False}, {"progress": True}, "bars"),
    "checkpoint_seconds": both({}, {"checkpoint_seconds": 0.0}, "checkpoints", out=True),
}
OF_THE_RECIPE = {
    "model", "data", "loss_fn", "mechanism", "optimizer", "scheduler", "ledger", "ablation", "ema", "augment",
}  # fmt: skip
RECIPE = {
    "model": FIT["recipe"],
    "data": both({}, {"data": SMALL}, "weights", "first phase"),
    "loss_fn": both({}, {"loss_fn": doubled}, "weights", "first phase"),
    "mechanism": both({}, {"recipe": {"mechanism": tiny.mechanism(steps=4)}}, "weights", "ledger"),
    "optimizer": both({}, {"recipe": {"optimizer": lambda p: torch.optim.SGD(p, lr=0.1)}}, "weights", "first phase"),
    "augment": both({}, {"recipe": {"augment": Augment(shrunk, 2)}}, "weights", "first phase"),
    "ema": both({"recipe": {"ema": 0.1}}, {"recipe": {"ema": 0.15}}, "averaged", "files", out=True),
    "ledger": both({}, {"recipe": {"ledger": EARLIER}}, "ledger"),
    "schedule": both({}, {"recipe": {"schedule": LearningRate("linear")}}, "weights", "first phase"),
    "phases": both({}, {"recipe": {"phases": ()}}, "weights", "ledger"),
}
PHASE = {
    "mechanism": both({}, {"recipe": {"phases": (Phase(mechanism=tiny.mechanism(steps=5)),)}}, "ledger"),
    "ablation": both(
        {"recipe": {"phases": (Phase(mechanism=tiny.mechanism()),)}},
        {"recipe": {"phases": (Phase(mechanism=tiny.mechanism(), ablation="plain"),)}},
        "weights",
        "status",
    ),
    "optimizer": both(
        {"recipe": {"phases": (Phase(mechanism=tiny.mechanism()),)}},
        {"recipe": {"phases": (Phase(mechanism=tiny.mechanism(), optimizer=torch.optim.Adam),)}},
        "weights",
    ),
    "after": both({}, {"recipe": {"phases": (Phase(mechanism=random_masks(6)),)}}, "first phase"),
}


@pytest.mark.parametrize(
    ("table", "option"),
    [(table, option) for table in (FIT, HANDED_ON, RECIPE, PHASE) for option in table],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_every_setting_of_fit_reaches_every_phase(table, option, tmp_path, capsys):
    one, other = differences(lambda **given: watched_fit(tmp_path, capsys, **given), table, option)
    if option == "runtime":
        assert {1, 2} & set(other["sizes"][-4:])
    if option == "recorders":
        assert other["steps"] == [*range(6), *range(3)]
    if option == "checkpoint_seconds":
        assert (one["checkpoints"], other["checkpoints"]) == (False, True)


def test_fit_says_about_a_run_what_it_was_told_and_which_repairs_it_has(tmp_path, capsys):
    class Named:
        def describe(self):
            return {"name": "by hand"}

    summary = watched_fit(tmp_path, capsys, about=ABOUT, out=True, recipe={"repairs": (Named(),)})["summary"]
    assert (summary["task"], summary["data"]["name"]) == ("regression", "tiny")
    assert summary["repairs"] == [{"name": "by hand"}]


# --- clipped_sum

X, Y = tiny.data(n=6)


def watched_sum(**given):
    """The clipped sum of six units."""
    network, watch = given.pop("model", tiny.model)(), Watch(given.pop("loss_fn", tiny.loss_fn))
    settings = {"batch": (X, Y), "clip": Flat(1.0), **given}
    batch, clip = settings.pop("batch"), settings.pop("clip")
    if settings.pop("layout", False):
        settings["layout"] = examine(network, watch.loss_fn, (X, Y))
        watch.sizes.clear()
    torch.manual_seed(1)
    found = clipped_sum(network, watch.loss_fn, batch, clip, **settings)
    sums = {name: value.sum().item() for name, value in found.grads._values.items()}
    return {"sums": sums, "norms": found.norms.tolist(), "sizes": watch.sizes}


TWO_BOUNDS = GroupBounds("half", 2, bounds=(0.1, 1.0))
SUM = {
    "model": both({}, {"model": lambda: tiny.model(dropout=0.5)}, "sums"),
    "loss_fn": both({}, {"loss_fn": doubled}, "norms"),
    "batch": both({}, {"batch": (X[:4], Y[:4])}, "sums", "norms"),
    "clip": both({}, {"clip": Flat(0.1)}, "sums"),
    "support": both({}, {"support": {"0.bias": False}}, "sums", "norms"),
    "runtime": both({}, {"runtime": Runtime(microbatch=2)}, "sizes"),
    "layout": both({}, {"layout": True}, "sizes"),  # with one, the model is not examined anew
    "groups": both({"groups": torch.arange(6) % 2}, {"groups": (torch.arange(6) + 1) % 2}, "sums", clip=TWO_BOUNDS),
    "seed": both({"seed": 1}, {"seed": 2}, "sums", model=lambda: tiny.model(dropout=0.5)),
}


@pytest.mark.parametrize("option", SUM)
def test_every_option_of_a_clipped_sum_acts(option):
    differences(watched_sum, SUM, option)


# --- complete


def test_without_another_option_nothing_differs(tmp_path, capsys):
    """So what differs above comes from the option."""
    for look in (watched_steps, watched_sum):
        assert look() == look()
    for look in (watched_training, watched_fit):
        assert look(tmp_path, capsys, out=True) == look(tmp_path, capsys, out=True)


def options_of(function):
    skipped = (inspect.Parameter.VAR_KEYWORD, inspect.Parameter.VAR_POSITIONAL)
    return {name for name, parameter in inspect.signature(function).parameters.items() if parameter.kind not in skipped}


@pytest.mark.parametrize(
    ("function", "shown"),
    [
        (train, {*TRAIN, "resume", "team"}),  # a team is shown by training/test_together.py, on several processes
        (private_step, {*STEP}),
        (ablated_step, {*ABLATED}),
        (State.start, {*START, "team"}),
        (fit, {*FIT, "resume", "team", "sharded"}),  # and spread parameters by distributed/test_sharding.py
        (Recipe, {*RECIPE, "repairs"}),
        (Phase, {*PHASE}),
        (Mechanism, {*MECHANISM}),
        (Runtime, {*RUNTIME, "capture"}),  # shown by training/test_captured.py: a graph repeats no look at a pass
        (clipped_sum, {*SUM}),
    ],
    ids=lambda value: getattr(value, "__qualname__", ""),
)
def test_no_option_is_without_a_proof(function, shown):
    assert options_of(function) == shown, f"{function.__qualname__}: show that its new option acts, in a table above"


def test_fit_hands_on_every_option_of_train_that_a_recipe_does_not_have():
    assert options_of(train) == {*HANDED_ON, *FIT, *OF_THE_RECIPE, "resume", "team", "keep"} - {"recipe", "keep_states"}

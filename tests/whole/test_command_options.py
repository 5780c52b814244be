"""Every option of every command acts: what the library is asked for changes as the option says, and in nothing else.

`train` is stopped at its door: what reaches `noisewise.training.loop.train` is compared. That it acts from there on is shown by
the tests of the library.
"""

from __future__ import annotations

import importlib
import json
import math
import shutil
import sys
from collections.abc import Callable
from functools import cache
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import typer

from helpers import tiny
from noisewise import cli
from noisewise.audits import AUDITS
from noisewise.cli import train as family
from noisewise.errors import RunError
from noisewise.jobs import Local, Ray
from noisewise.mechanism import Mechanism
from noisewise.runs.folder import RunFolder, Status
from noisewise.sampling import FullBatch, Poisson, Shuffle, steps_for
from noisewise.workflow.config import configure
from noisewise.workflow.execution import execute
from noisewise.workflow.settings import Config


@pytest.fixture
def noisewise(monkeypatch, capsys, tmp_path) -> Callable[..., tuple[int, str]]:
    """Runs the command line in this process, in an empty folder; gives its exit code and all that it printed."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "120")

    def call(*arguments: str) -> tuple[int, str]:
        monkeypatch.setattr(sys, "argv", ["noisewise", *arguments])
        with pytest.raises(SystemExit) as stopped:
            cli.main()
        captured = capsys.readouterr()
        return int(stopped.value.code or 0), captured.out + captured.err

    return call


# --- epsilon and calibrate


PLANS: dict[str, tuple[tuple[str, ...], Callable[[], Mechanism], float]] = {  # option: arguments, the plan, delta
    "--n": (("--n", "2000"), lambda: planned(Poisson(2000, 100)), 1e-5),
    "--batch-size": (("--batch-size", "50"), lambda: planned(Poisson(1000, 50)), 1e-4),
    "--epochs": (("--epochs", "3"), lambda: planned(steps=steps_for(3, 1000, 100)), 1e-4),
    "--steps": (("--steps", "7"), lambda: planned(steps=7), 1e-4),
    "--delta": (("--delta", "1e-7"), lambda: planned(), 1e-7),
    "--sampler": (("--sampler", "shuffle"), lambda: planned(Shuffle(1000, 100), adjacency="zero-out"), 1e-4),
    "--adjacency": (("--adjacency", "replace-one"), lambda: planned(adjacency="replace-one"), 1e-4),
}
STARTED = {"--n": "1000", "--batch-size": "100", "--steps": "5"}


def planned(sampler: Any = None, steps: int = 5, adjacency: str = "add-remove") -> Mechanism:
    return Mechanism(sampler=sampler or Poisson(1000, 100), steps=steps, adjacency=adjacency, noise_multiplier=2.0)


def with_option(base: dict[str, str], option: str, *given: str) -> list[str]:
    """The base's arguments, those of the option in place of what they stand for."""
    instead = {"--epochs": "--steps", "--epsilon": "--noise-multiplier"}.get(option, option)
    return [part for name, value in base.items() if name != instead for part in (name, value)] + list(given)


@cache
def without_options(command: str) -> tuple[float | None, Any]:
    """Epsilon and noise multiplier of the plan that the options change."""
    plan = planned() if command == "epsilon" else planned().calibrated(1.5, 1e-4)
    return plan.epsilon(1e-4), plan.noise_multiplier


@pytest.mark.parametrize("option", PLANS)
@pytest.mark.parametrize("command", ["epsilon", "calibrate"])
def test_options_of_a_plan(noisewise, command: str, option: str) -> None:
    given, plan, delta = PLANS[option]
    budget = ["--noise-multiplier", "2"] if command == "epsilon" else ["--epsilon", "1.5"]
    code, printed = noisewise(command, *with_option(STARTED, option, *given), *budget, "--json")
    expected = plan() if command == "epsilon" else plan().calibrated(1.5, delta)
    facts, spent = json.loads(printed), expected.spent(delta)
    assert code == 0
    assert (facts["epsilon"], facts["rdp_epsilon"]) == (spent.epsilon, spent.rdp_epsilon)
    assert (facts["noise_multiplier"], facts["steps"]) == (expected.noise_multiplier, expected.steps)
    assert (facts["rate"], facts["delta"]) == (expected.sampler.rate, delta)
    assert (facts["sampler"], facts["adjacency"]) == (expected.sampler.kind, expected.adjacency)
    assert (facts["epsilon"], facts["noise_multiplier"]) != without_options(command)


def test_full_batches_need_no_batch_size(noisewise) -> None:
    plan = ("--n", "50", "--sampler", "full-batch", "--steps", "2", "--noise-multiplier", "2")
    facts = json.loads(noisewise("epsilon", *plan, "--json")[1])
    assert (facts["rate"], facts["epsilon"]) == (1.0, planned(FullBatch(50), 2).epsilon(1e-3))


def test_noise_multiplier_and_epsilon_are_what_is_asked(noisewise) -> None:
    base = [part for pair in STARTED.items() for part in pair]
    found = [json.loads(noisewise("epsilon", *base, "--noise-multiplier", z, "--json")[1]) for z in ("2", "3")]
    assert [facts["noise_multiplier"] for facts in found] == [2.0, 3.0]
    assert found[0]["epsilon"] > found[1]["epsilon"]
    for budget in (0.5, 4.0):
        facts = json.loads(noisewise("calibrate", *base, "--epsilon", str(budget), "--json")[1])
        assert 0.99 * budget < facts["epsilon"] <= budget


@pytest.mark.parametrize("command", [("epsilon", "--noise-multiplier"), ("calibrate", "--epsilon")])
def test_json_is_one_object_and_nothing_else(noisewise, command) -> None:
    base = [command[0], *(part for pair in STARTED.items() for part in pair), command[1], "2"]
    assert set(json.loads(noisewise(*base, "--json")[1])) >= {"epsilon", "delta"}
    assert "the guarantee" in noisewise(*base)[1]


# --- train


def _sum(model: torch.nn.Module) -> float:
    weights = torch.cat([p.detach().flatten() for p in model.parameters()])
    return 0.0 if weights.is_meta else weights.sum().item()


class Door:
    """Stands in for `train`: notes what it was asked for and leaves what a finished training leaves to the next step."""

    def __init__(self) -> None:
        self.asked: list[dict[str, Any]] = []

    def __call__(self, model, data, loss_fn, mechanism, optimizer, **how) -> None:
        settings = optimizer.param_groups[0]
        runtime = how["runtime"]
        self.asked.append(
            {
                "n": len(data), "task": data.task, "data": how["about"]["data"]["name"], "model": how["about"]["model"],
                "weights": {name: tuple(p.shape) for name, p in model.named_parameters()},
                "start": _sum(model),
                "first row": data.x[0].sum().item(),
                "sampler": (mechanism.sampler.kind, mechanism.sampler.batch_size), "clip": mechanism.clip,
                "steps": mechanism.steps, "noise": mechanism.noise_multiplier, "adjacency": mechanism.adjacency,
                "optimizer": type(optimizer).__name__, "lr": settings["lr"], "momentum": settings.get("momentum"),
                "engine": runtime.engine, "microbatch": runtime.microbatch, "memory": runtime.memory,
                "valid": 0 if how["valid"] is None else len(how["valid"]),
                **{name: how[name] for name in ("delta", "seed", "insecure_seed", "secure", "resume", "ema", "progress")},
                "ablation": how.get("ablation", "private"), "out": Path(how["out"]), "repairs": how["about"]["repairs"],
                "device": next(model.parameters()).device.type,
                "kept": sorted(how["keep"].steps),
                "rates": [round(rate(step), 6) for rate in how["scheduler"].lr_lambdas for step in range(3)]
                if "scheduler" in how else None,
            }
        )  # fmt: skip
        folder = RunFolder(how["out"])
        folder.create()
        folder.model.write_bytes(b"")


@pytest.fixture
def door(monkeypatch) -> Door:
    standing = Door()
    monkeypatch.setattr("noisewise.recipe.train", standing)
    monkeypatch.setattr("noisewise.workflow.execution.readme", lambda *_: "")
    monkeypatch.setattr("noisewise.runs.folder.RunFolder.seal", lambda *_: None)
    return standing


@pytest.fixture(scope="module")
def unchanged(tmp_path_factory) -> list[dict[str, Any]]:
    """What is asked for without the option: of the private model and of its twin."""
    standing = Door()
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(tmp_path_factory.mktemp("base"))
        patch.setattr("noisewise.recipe.train", standing)
        patch.setattr("noisewise.workflow.execution.readme", lambda *_: "")
        patch.setattr("noisewise.runs.folder.RunFolder.seal", lambda *_: None)
        patch.setattr(sys, "argv", ["noisewise", "train", *with_option(BASE, ""), "--quiet"])
        with pytest.raises(SystemExit):
            cli.main()
    return standing.asked


BASE = {"--data": "digits", "--noise-multiplier": "4", "--steps": "3", "--batch-size": "64", "--out": "a"}
EPOCHS = {"steps": math.ceil(2 * 1258 / 64)}


def clip_of(name: str) -> Any:
    from noisewise import adaptive, clipping

    return {
        "flat": clipping.Flat(0.5), "global": clipping.Global(0.5), "automatic": clipping.Automatic(0.5),
        "normalized": clipping.Normalized(0.5), "per-sample": clipping.PerSampleAdaptive(0.5),
        "quantile": adaptive.Quantile(0.5), "global-adapt": adaptive.GlobalAdapt(0.5),
    }[name]  # fmt: skip


def changed(option: str) -> dict[str, Any]:
    """What `train` is asked for differently because of the option's arguments in `TRAIN`; the twin likewise but for TWIN."""
    from noisewise import clipping

    return {
        "--seed": {"seed": 5, "start": ..., "first row": ...},
        "--insecure-seed": {"insecure_seed": 7},
        "--valid": {"valid": 100, "n": 1338, "first row": ...},
        "--noise-multiplier": {"noise": 5.0},
        "--delta": {"delta": 1e-6},
        "--batch-size": {"sampler": ("poisson", 32)},
        "--epochs": EPOCHS,
        "--steps": {"steps": 4},
        "--sampler": {"sampler": ("shuffle", 64), "adjacency": "zero-out"},
        "--adjacency": {"adjacency": "replace-one"},
        "--bound": {"clip": clipping.Flat(2.0)},
        "--screen": {"clip": clipping.Global(0.5, 3.0)},
        "--optimizer": {"optimizer": "RMSprop", "lr": 0.01},
        "--lr": {"lr": 0.125},
        "--momentum": {"momentum": 0.25},
        "--ema": {"ema": 0.75},
        "--schedule": {"rates": [1.0, 0.7, 0.4]},
        "--keep-states": {"kept": [0, 2]},
        "--engine": {"engine": "loop"},
        "--microbatch": {"microbatch": 8},
        "--memory": {"memory": "small"},
        "--model": {"model": "logistic", "weights": {"1.weight": (10, 64), "1.bias": (10,)}, "start": ...},
        "--out": {"out": Path("b")},
        "--twin-lr": {},
        "--no-twin": {},
        "--secure": {"secure": True},
        "--set": {"noise": 6.0},
    }[option]


TRAIN: dict[str, tuple[str, ...]] = {
    "--seed": ("--seed", "5"),
    "--insecure-seed": ("--insecure-seed", "7"),
    "--valid": ("--valid", "100"),
    "--noise-multiplier": ("--noise-multiplier", "5"),
    "--delta": ("--delta", "1e-6"),
    "--batch-size": ("--batch-size", "32"),
    "--epochs": ("--epochs", "2"),
    "--steps": ("--steps", "4"),
    "--sampler": ("--sampler", "shuffle"),
    "--adjacency": ("--adjacency", "replace-one"),
    "--bound": ("--bound", "2"),
    "--screen": ("--clip", "global", "--screen", "3"),
    "--optimizer": ("--optimizer", "rmsprop"),
    "--lr": ("--lr", "0.125"),
    "--momentum": ("--momentum", "0.25"),
    "--ema": ("--ema", "0.75"),
    "--schedule": ("--schedule", "linear:last=0.1"),
    "--keep-states": ("--keep-states", "2"),
    "--engine": ("--engine", "loop"),
    "--microbatch": ("--microbatch", "8"),
    "--memory": ("--memory", "small"),
    "--model": ("--model", "logistic"),
    "--out": ("--out", "b"),
    "--twin-lr": ("--twin-lr", "0.0625"),
    "--no-twin": ("--no-twin",),
    "--secure": ("--secure",),
    "--set": ("--set", "noise-multiplier=6"),
}
TWIN = {"lr": 0.3, "ablation": "plain"}  # what the twin is trained with, beside its place


@pytest.mark.parametrize("option", TRAIN)
def test_options_of_train(noisewise, door: Door, unchanged: list[dict[str, Any]], option: str) -> None:
    before, twin_before = unchanged
    code, printed = noisewise("train", *with_option(BASE, option, *TRAIN[option]), "--quiet")
    assert (code, printed) == (0, "")
    private, *twins = door.asked
    expected = changed(option)
    assert private | {name: ... for name, value in expected.items() if value is ...} == before | expected
    assert all(private[name] != before[name] for name in expected)
    if option == "--no-twin":
        assert twins == []
        return
    (twin,) = twins
    of_twin = {
        "--lr": {},
        "--optimizer": {"optimizer": "RMSprop", "lr": 0.01},
        "--twin-lr": {"lr": 0.0625},
        "--keep-states": {},
    }.get(option, expected)
    of_twin = of_twin | ({"out": Path("b/sensitive/twin")} if option == "--out" else {})
    assert twin | {name: ... for name, value in of_twin.items() if value is ...} == twin_before | of_twin
    assert twin_before == before | TWIN | {"out": Path("a/sensitive/twin")}


@pytest.mark.parametrize(
    "name", ["flat", "global", "automatic", "normalized", "per-sample", "per-layer", "quantile", "global-adapt"]
)
def test_clipping_rules_of_train(noisewise, door: Door, name: str) -> None:
    assert noisewise("train", *with_option(BASE, ""), "--clip", name, "--quiet", "--no-twin")[0] == 0
    (asked,) = door.asked
    if name == "per-layer":
        blocks = asked["clip"].blocks(list(asked["weights"]))
        assert len(set(blocks.values())) == len(asked["weights"])
        assert asked["clip"].sensitivity == pytest.approx(0.5)
    else:
        assert asked["clip"] == clip_of(name)


@pytest.mark.parametrize(
    ("name", "kind"), [("sgd", "SGD"), ("adam", "Adam"), ("adamw", "AdamW"), ("rmsprop", "RMSprop")]
)
def test_optimizers_of_train(noisewise, door: Door, name: str, kind: str) -> None:
    given = ("--optimizer", name, "--lr", "0.02", "--momentum", "0.5")
    assert noisewise("train", *with_option(BASE, ""), *given, "--quiet", "--no-twin")[0] == 0
    (asked,) = door.asked
    assert (asked["optimizer"], asked["lr"]) == (kind, 0.02)
    assert asked["momentum"] == (0.5 if name in ("sgd", "rmsprop") else None)


def test_epsilon_of_train_is_a_budget(noisewise, door: Door) -> None:
    arguments = with_option(BASE, "--epsilon", "--epsilon", "0.75")
    assert noisewise("train", *arguments, "--quiet", "--no-twin")[0] == 0
    (asked,) = door.asked
    plan = Mechanism(sampler=Poisson(1258, 64), steps=3, noise_multiplier=asked["noise"])
    assert 0.74 < plan.epsilon(1e-5) <= 0.75


def test_data_of_train(noisewise, door: Door) -> None:
    arguments = with_option(BASE, "--data", "--data", "two_patch")
    assert noisewise("train", *arguments, "--quiet", "--no-twin")[0] == 0
    (asked,) = door.asked
    assert asked["data"] == "two_patch"
    assert asked["n"] != 1258


def test_config_of_train_is_the_plan_again(noisewise, door: Door) -> None:
    Path("c.toml").write_text(
        configure(data="digits", noise_multiplier=7.0, steps=2, batch_size=32, twin=False).to_toml()
    )
    assert noisewise("train", "--config", "c.toml", "--out", "a", "--quiet")[0] == 0
    (asked,) = door.asked
    assert (asked["noise"], asked["steps"], asked["sampler"]) == (7.0, 2, ("poisson", 32))
    assert noisewise("train", "--config", "c.toml", "--out", "b", "--quiet", "--twin")[0] == 0
    assert [asked["ablation"] for asked in door.asked[1:]] == ["private", "plain"]


def test_processes_of_train(noisewise, monkeypatch):
    asked = []
    module = importlib.import_module("noisewise.cli.train")
    monkeypatch.setattr(module, "spread", lambda count: asked.append(count) or 5)
    assert noisewise("train", *with_option(BASE, ""), "--processes", "3")[0] == 5
    assert asked == [3]
    assert noisewise("train", *with_option(BASE, ""), "--processes", "0")[0] == 2


def test_sharded_of_train(noisewise, monkeypatch):
    module = importlib.import_module("noisewise.cli.train")
    execution = importlib.import_module("noisewise.workflow.execution")
    importlib.import_module("noisewise.workflow.sweep")  # which would keep the function below if it were imported later
    asked = []

    def execute(*_, **how):
        asked.append(how["sharded"])
        raise RunError("seen")

    assert noisewise("train", *with_option(BASE, ""), "--sharded")[0] == 2  # one process
    monkeypatch.setattr(execution, "execute", execute)
    monkeypatch.setattr(module, "rank", lambda: 0)
    monkeypatch.setattr(module, "together", lambda: None)
    for given in ((), ("--sharded",)):
        assert noisewise("train", *with_option(BASE, ""), *given)[0] == 2
    assert asked == [False, True]


def test_resume_of_train(noisewise, door: Door) -> None:
    assert noisewise("train", *with_option(BASE, ""), "--quiet", "--no-twin")[0] == 0
    begun = RunFolder("a")
    begun.create()
    begun.checkpoint.write_bytes(b"")  # what is not begun is not resumed
    assert noisewise("train", "--out", "a", "--resume", "--quiet")[0] == 0
    first, second = door.asked
    assert not first["resume"]
    assert second == first | {"resume": True}


def test_quiet_of_train(noisewise, monkeypatch) -> None:
    """Asked for: no bar, no word. Not asked for: the plan is printed, and a bar is wanted."""
    bars = []

    def stop(*_: Any, progress: bool, **__: Any) -> None:
        bars.append(progress)
        raise RunError("seen.")

    monkeypatch.setattr("noisewise.recipe.train", stop)
    printed = [
        noisewise("train", *with_option(BASE, "--out", "--out", name), *more)[1]
        for name, more in (("a", ["--quiet"]), ("b", []))
    ]
    assert bars == [False, True]
    silent, told = (" ".join(text.split()) for text in printed)
    assert silent == "error: seen."
    for words in (
        "cnn on digits", "epsilon 0.0835. Whoever sees", "delta 1e-05", "protects one row of 1,258 (add-remove)",
        "noise multiplier 4, bound 0.5 (flat clipping)", "steps 3 of about 64 rows (poisson)", "twin included error: seen.",
    ):  # fmt: skip
        assert words in told


def test_json_of_train(noisewise) -> None:
    code, printed = noisewise(
        "train", *with_option(BASE, "--data", "--data", "digits"), "--model", "logistic", "--no-twin", "--json"
    )
    assert code == 0
    assert json.loads(printed) == {"a": json.loads(Path("a/summary.json").read_text())}


def test_device_of_train(noisewise, door: Door) -> None:
    for out, given in (("a", ()), ("b", ("--device", "cpu"))):
        assert noisewise("train", *with_option(BASE, "--out", "--out", out), *given, "--quiet", "--no-twin")[0] == 0
    assert [Config.read(f"{out}/config.toml").device for out in ("a", "b")] == [None, "cpu"]
    assert noisewise("train", *with_option(BASE, "--out", "--out", "c"), "--device", "meta")[0] == 2


def test_secure_of_train(noisewise, door: Door) -> None:
    assert noisewise("train", *with_option(BASE, ""), "--secure", "--quiet", "--no-twin")[0] == 0
    assert [asked["secure"] for asked in door.asked] == [True]


def test_repairs_of_train(noisewise, door: Door) -> None:
    given = ("--repair", "moving-average:decay=0.75", "--repair", "stage-wise-freezing:at=0.5,shares=0.4")
    assert noisewise("train", *with_option(BASE, ""), *given, "--quiet")[0] == 0
    private, twin = door.asked
    assert [repair["name"] for repair in private["repairs"]] == ["stage-wise freezing", "moving average"]
    assert private["ema"] == 0.75
    assert twin["repairs"] == []


def test_seeds_of_train(noisewise, door: Door, monkeypatch) -> None:
    privacy = {"epsilon": 1.0, "status": "private"}  # behind the door nothing is written
    monkeypatch.setattr("noisewise.workflow.sweep.read_summary", lambda folder: {"privacy": privacy})
    assert noisewise("train", *with_option(BASE, ""), "--seeds", "3", "--seed", "4", "--quiet", "--no-twin")[0] == 0
    assert [(asked["seed"], asked["out"]) for asked in door.asked] == [
        (4 + number, Path(f"a/seed-{number}")) for number in range(3)
    ]
    assert len({asked["start"] for asked in door.asked}) == 3


def test_recipe_of_train(noisewise) -> None:
    line = ("--data", "digits", "--noise-multiplier", "5", "--steps", "1", "--no-twin", "--quiet", "--out", "a")
    assert noisewise("train", *line, "--recipe", "scattering-linear:scales=1,angles=2")[0] == 0
    config = Path("a/config.toml").read_text()
    assert 'recipe = "scattering-linear:' in config
    assert ",scales=1,angles=2," in config
    assert 'model = "linear-head' in config


def test_jobs_and_ray_of_train(noisewise, monkeypatch) -> None:
    asked = []

    def trained(configs: Any, out: Path, where: Any, **how: Any) -> None:
        asked.append((list(configs), out, where, how))

    monkeypatch.setattr("noisewise.workflow.seeds.train_seeds", trained)
    line = ("train", *with_option(BASE, ""), "--no-twin", "--quiet")
    assert noisewise(*line, "--seeds", "2", "--jobs", "2")[0] == 0
    assert noisewise(*line, "--seeds", "2", "--ray", "local", "--per-gpu", "4")[0] == 0
    how = {"schema": None, "progress": False}
    assert asked == [(["seed-0", "seed-1"], Path("a"), where, how) for where in (Local(2), Ray("local", None, 4))]
    assert "give --seeds too" in noisewise(*line, "--jobs", "2")[1]
    assert "give one" in noisewise(*line, "--seeds", "2", "--jobs", "2", "--processes", "2")[1]


@pytest.fixture
def table(tmp_path) -> None:
    """A table with what its options are about: people, labels that are missing, another file."""
    rows = [
        f"p{k // 2},{k % 70},{'f' if k % 3 else 'm'},{'' if k % 10 == 9 else 'yes' if k % 4 else 'no'}"
        for k in range(300)
    ]
    (tmp_path / "t.csv").write_text("\n".join(["who,age,sex,hired", *rows]) + "\n")
    (tmp_path / "other.csv").write_text("\n".join(["who,age,sex,hired", "q1,3,f,yes", "q2,4,m,no"]) + "\n")


TABLE = ("--data", "t.csv", "--label", "hired=no,yes", "--noise-multiplier", "4", "--steps", "2", "--batch-size", "50",
         "--out", "a", "--quiet", "--no-twin", "--drop-unlabelled")  # fmt: skip
COLUMNS = ("--column", "who=ignore", "--column", "age=0:100", "--column", "sex=f,m")


def test_columns_of_train(noisewise, table, door: Door) -> None:
    """--label, --column, --group, --unit and --schema: what becomes of the columns is in the run's schema."""
    assert noisewise("train", *TABLE, *COLUMNS)[0] == 0
    known = json.loads(Path("a/schema.json").read_text())
    assert (known["label"]["name"], [column["name"] for column in known["columns"]]) == ("hired", ["who", "age", "sex"])
    given = ("--group", "sex=f,m", "--unit", "who", "--column", "age=0:100")
    assert noisewise("train", *TABLE, *given, "--out", "b")[0] == 0
    other = json.loads(Path("b/schema.json").read_text())
    assert ([group["name"] for group in other["groups"]], other["unit"]) == (["sex"], "who")
    Path("s.json").write_text(json.dumps(other))
    assert noisewise("train", *TABLE, "--schema", "s.json", "--out", "c")[0] == 0
    assert json.loads(Path("c/schema.json").read_text()) == other


def test_test_and_drop_unlabelled_of_train(noisewise, table, door: Door) -> None:
    for out, share, n in (("a", "0.2", 0.8), ("b", "0.5", 0.5), ("c", "other.csv", 1.0)):
        assert noisewise("train", *TABLE, *COLUMNS, "--test", share, "--out", out, "--valid", "0")[0] == 0
        assert door.asked[-1]["n"] == pytest.approx(270 * n, abs=120 * n * (1 - n))
    code, printed = noisewise("train", *(part for part in TABLE if part != "--drop-unlabelled"), *COLUMNS, "--out", "d")
    assert code == 2
    assert "--drop-unlabelled" in printed


def test_yes_public_and_schema_epsilon_of_train(noisewise, table, door: Door) -> None:
    """Rows that are published may be read; otherwise --yes spends, as --schema-epsilon does."""
    assert noisewise("train", *TABLE)[0] == 2
    assert noisewise("train", *TABLE, "--public")[0] == 0
    assert json.loads(Path("a/schema.json").read_text())["origin"] == "rows"
    spending = [part for part in TABLE if part not in ("--noise-multiplier", "4")]
    declared = ("--column", "who=ignore", "--column", "sex=f,m")
    for out, given, spent in (("b", ("--yes",), 4.0), ("c", ("--schema-epsilon", "5"), 5.0)):
        code, printed = noisewise("train", *spending, *declared, "--epsilon", "40", *given, "--out", out)
        assert code == 0, printed
        from noisewise.data.tables.schema import read

        assert 0.9 * spent < read(f"{out}/schema.json").ledger.epsilon(1e-4) <= 1.3 * spent


# --- audit and report


class Answer:
    """A result of which nothing is printed but its name."""

    status = Status("private", "every release is in the ledger")

    def __init__(self, name: str):
        self.name = name

    def tables(self) -> list[Any]:
        return []

    def sentences(self) -> list[str]:
        return [f"answer {self.name}"]


@pytest.fixture(scope="module")
def runs(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("runs")
    config = configure(data="digits", model="logistic", noise_multiplier=4.0, steps=2, batch_size=64, twin=False)
    execute(config, folder / "digits", progress=False)
    return folder


@pytest.mark.parametrize(
    ("options", "asked"),
    [
        ((), [name for name, audit in AUDITS.items() if audit.usual]),
        (("--all",), list(AUDITS)),
        (("--only", "ntk"), ["ntk"]),
        (("--only", "ntk", "--only", "disparity"), ["ntk", "disparity"]),
    ],
)
def test_options_of_audit(noisewise, monkeypatch, runs: Path, options, asked) -> None:
    monkeypatch.setattr("noisewise.workflow.opened.audit", lambda run, name, **_: Answer(name))
    code, printed = noisewise("audit", str(runs / "digits"), *options)
    assert code == 0
    assert [line.removeprefix("• answer ") for line in printed.splitlines() if line.startswith("• answer ")] == asked
    assert set(asked) != set(AUDITS) or "--all" in options


def test_json_of_audit(noisewise, runs: Path) -> None:
    code, printed = noisewise("audit", str(runs / "digits"), "--only", "calibration", "--json")
    assert code == 0
    stored = json.loads((runs / "digits/sensitive/audits/calibration.json").read_text())
    assert json.loads(printed) == {"calibration": stored}


def test_model_and_data_of_a_run_made_in_python(noisewise) -> None:
    """Without a config a run says neither; both are the user's own."""
    import noisewise as nw
    from noisewise.losses import cross_entropy

    Path("mine.py").write_text(
        "import torch, noisewise\ndef net(): return torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(64, 10))\n"
        "def parts(): return noisewise.load('digits')\n"
    )
    model = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(64, 10))
    data = nw.load("digits")
    plan = Mechanism(sampler=Poisson(len(data.train), 100), steps=2, noise_multiplier=4.0)
    nw.train(
        model, data.train, cross_entropy, plan, torch.optim.SGD(model.parameters(), lr=0.1), out="a", progress=False
    )
    code, printed = noisewise("audit", "a")
    assert (code, "--model FILE.py:FUNCTION" in " ".join(printed.split())) == (2, True)
    assert noisewise("audit", "a", "--model", "mine.py:net")[0] == 2
    code, printed = noisewise("audit", "a", "--model", "mine.py:net", "--data", "mine.py:parts")
    assert code == 0, printed
    written = {path.stem for path in Path("a/sensitive/audits").iterdir()}
    assert {"calibration", "membership", "clipping"} <= written | {name.replace("-bias", "") for name in written}


def test_options_of_predict(noisewise, table) -> None:
    assert noisewise("train", *TABLE, *COLUMNS)[0] == 0
    code, printed = noisewise("predict", "a", "other.csv", "--out", "scores.csv", "--keep", "who", "--json")
    assert code == 0, printed
    assert json.loads(printed)["rows"] == 2
    lines = Path("scores.csv").read_text().splitlines()
    assert lines[0] == "row,who,prediction,probability of no,probability of yes"
    assert [line.split(",")[:2] for line in lines[1:]] == [["1", "q1"], ["2", "q2"]]
    assert noisewise("predict", "a", "other.csv", "--out", "unsure.csv", "--temperature", "1e6")[0] == 0
    chances = [line.split(",")[-1] for line in Path("unsure.csv").read_text().splitlines()[1:]]
    assert all(abs(float(chance) - 0.5) < 1e-3 for chance in chances)
    code, printed = noisewise("temperature", "a", "--json")
    assert (code, "no temperature between" in printed or json.loads(printed)["part"] == "test") in (
        (0, True),
        (2, True),
    )


@pytest.mark.parametrize("command", ["datasets", "models", "recipes", "repairs", "audits", "clips"])
def test_json_of_lists(noisewise, command: str) -> None:
    assert len(json.loads(noisewise(command, "--json")[1])) > (2 if command == "recipes" else 5)


def test_list_of_audit_says_which_are_usual(noisewise) -> None:
    code, printed = noisewise("audit", "--list")
    assert code == 0
    for name, audit in AUDITS.items():
        (line,) = [line for line in printed.splitlines() if line.split()[:1] == [name]]
        assert (line.split()[1] == "yes") == audit.usual


def test_out_of_report_and_its_default(noisewise, runs: Path) -> None:
    assert noisewise("report", str(runs / "digits"), "--out", "page.html")[0] == 0
    assert Path("page.html").stat().st_size > 5_000
    assert not (runs / "digits/sensitive/report.html").exists()
    assert noisewise("report", str(runs / "digits"))[0] == 0
    assert (runs / "digits/sensitive/report.html").read_text() == Path("page.html").read_text()


def test_by_of_report_and_several_runs(noisewise, runs: Path) -> None:
    folder = str(runs / "digits")
    assert noisewise("report", folder, "--out", "named.html", "--by", "Ada & Co")[0] == 0
    assert "reported by Ada &amp; Co." in Path("named.html").read_text()
    copy = shutil.copytree(folder, "other")
    assert noisewise("report", folder, str(copy), "--out", "both.html", "--by", "Ada")[0] == 0
    page = Path("both.html").read_text()
    assert "2 runs side by side" in page
    assert "Reported by Ada." in page
    assert noisewise("report", folder, str(copy))[0] == 2


def test_out_of_demo(noisewise, monkeypatch) -> None:
    where = []
    monkeypatch.setattr(family, "_train", lambda planned, folder, **_: where.append(folder))
    monkeypatch.setattr(family, "print_plan", lambda planned: None)
    monkeypatch.setattr(family, "ask", lambda folder, *_, **__: where.append(folder))
    monkeypatch.setattr(family, "write_page", lambda folders, *_, **__: where.extend(folders))
    monkeypatch.setattr("noisewise.workflow.config.plan", lambda **_: SimpleNamespace(config=None))
    assert noisewise("demo", "--out", "elsewhere")[0] == 0
    assert noisewise("demo")[0] == 0
    assert where == [Path("elsewhere")] * 3 + [Path("runs/demo")] * 3


# --- schema


@pytest.fixture
def people(tmp_path) -> Path:
    path = tmp_path / "people.csv"
    rows = [
        f"{k % 40};{20 + k % 50};{'Ulm' if k % 3 else 'Bonn'};{'f' if k % 2 else 'm'};{'yes' if k % 5 else 'no'}"
        for k in range(600)
    ]
    path.write_text("\n".join(["who;age;town, or city;sex;hired", *rows]))
    return path


KNOWN = ("--label", "hired=no,yes", "--group", "sex=f,m")


def proposed(noisewise, *options: str) -> Any:
    from noisewise.data.tables.schema import read

    code, printed = noisewise("schema", "people.csv", *options, "--out", "s.toml")
    assert code == 0, printed
    return read("s.toml")


def test_label_group_unit_and_out_of_schema(noisewise, people) -> None:
    found = proposed(noisewise, "--label", "town, or city", "--group", "sex", "--group", "hired", "--unit", "who")
    assert (found.label, list(found.groups), found.unit, list(found.columns)) == (
        "town, or city",
        ["sex", "hired"],
        "who",
        ["age"],
    )
    assert not Path("people.schema.toml").exists()
    assert noisewise("schema", "people.csv", "--label", "hired")[0] == 0
    assert Path("people.schema.toml").exists()


def test_column_of_schema(noisewise, people) -> None:
    from noisewise.data.tables.kinds import Ignore, Number

    found = proposed(noisewise, *KNOWN, "--column", "age=0:120", "--column", "who=ignore")
    assert found.columns["age"] == Number(0, 120, fill=60)
    assert found.columns["who"] == Ignore()


def test_separator_of_schema(noisewise, people) -> None:
    """A comma in a name: the header could be read in two ways."""
    people.write_text("a;b,c\n1;2,yes\n2;3,no\n")
    assert proposed(noisewise, "--label", "b,c", "--separator", ";").separator == ";"
    Path("s.toml").unlink()
    assert proposed(noisewise, "--label", "c", "--separator", ",").separator == ","


def test_encoding_of_schema(noisewise, people) -> None:
    people.write_bytes("größe;hired\n1;no\n2;yes\n".encode("utf-16-le"))
    assert proposed(noisewise, "--label", "hired", "--encoding", "utf-16-le").encoding == "utf-16-le"
    people.write_bytes("größe;hired\n1;no\n2;yes\n".encode("latin-1"))
    Path("s.toml").unlink()
    assert proposed(noisewise, "--label", "hired", "--encoding", "latin-1").encoding == "latin-1"


def test_json_of_schema(noisewise, people) -> None:
    code, printed = noisewise("schema", "people.csv", *KNOWN, "--json")
    assert code == 0
    assert json.loads(printed[printed.index("{") : printed.rindex("}") + 1])["label"]["name"] == "hired"
    assert [path.name for path in people.parent.iterdir()] == ["people.csv"]


def test_header_only_of_schema(noisewise, people) -> None:
    assert proposed(noisewise, *KNOWN, "--header-only").origin == "declared"
    Path("s.toml").unlink()
    assert proposed(noisewise, *KNOWN).origin == "rows"


@pytest.mark.parametrize("adjacency", ["add-remove", "replace-one"])
@pytest.mark.parametrize(("epsilon", "delta"), [(3, 1e-5), (2.5, 1e-5), (3, 1e-3)])
def test_budget_of_schema(noisewise, people, epsilon: float, delta: float, adjacency: str) -> None:
    options = ("--epsilon", str(epsilon), "--delta", str(delta), "--adjacency", adjacency)
    ledger = proposed(noisewise, *KNOWN, *options).ledger
    assert ledger.adjacency == adjacency
    assert 0.97 * epsilon < ledger.epsilon(delta) <= epsilon


# --- check


def test_shape_and_outputs_of_check(noisewise) -> None:
    Path("m.py").write_text(
        "from torch import nn\n"
        "def make(shape, outputs):\n"
        "    return nn.Sequential(nn.Flatten(), nn.Linear(shape[0] * shape[1], outputs))\n"
    )
    code, printed = noisewise("check", "m.py:make", "--shape", "3,4", "--outputs", "5", "--json")
    assert code == 0
    assert [one["shape"] for one in json.loads(printed)["parameters"]] == [[5, 12], [5]]


def test_example_and_loss_of_check(noisewise) -> None:
    """Each names another object of the user's file: a batch that fits, or a loss that couples units."""
    Path("m.py").write_text(
        "import torch\nmodel = torch.nn.Linear(3, 2)\nbatch = (torch.zeros(4, 5), torch.zeros(4).long())\n"
        "fits = (torch.zeros(4, 3), torch.zeros(4).long())\n"
        "def coupled(model, batch):\n    y = model(batch[0])\n    return (y - y.mean(0)).square().sum(1)\n"
    )
    assert noisewise("check", "m.py:model")[0] == 3
    assert noisewise("check", "m.py:model", "--example", "m.py:fits")[0] == 0
    code, printed = noisewise("check", "m.py:model", "--example", "m.py:fits", "--loss", "m.py:coupled")
    assert code == 3
    assert "cannot be trained privately" in printed
    facts = json.loads(noisewise("check", "m.py:model", "--example", "m.py:fits", "--json")[1])
    assert facts["trainable"]
    assert [one["name"] for one in facts["parameters"]] == ["weight", "bias"]


# --- several runs, and what is shared


@pytest.fixture(scope="module")
def two(tmp_path_factory) -> Path:
    """Two runs on data of two names."""
    folder = tmp_path_factory.mktemp("two")
    for name in ("people", "others"):
        tiny.run(out=folder / name, delta=1e-3, about={"task": "classification", "data": {"name": name, "classes": 3}})
    return folder


def test_options_of_budget(noisewise, two) -> None:
    def groups(*options: str) -> list[dict[str, Any]]:
        return json.loads(noisewise("budget", str(two), "--json", *options)[1])["groups"]

    assert [(len(group["runs"]), group["delta"]) for group in groups()] == [(1, 1e-3), (1, 1e-3)]
    assert [(len(group["runs"]), group["delta"]) for group in groups("--same-people")] == [(2, 1e-3)]
    assert [group["delta"] for group in groups("--delta", "1e-6")] == [1e-6, 1e-6]


def test_options_of_compare(noisewise, two) -> None:
    code, printed = noisewise("compare", str(two), "--json")
    assert (code, len(json.loads(printed)["runs"])) == (0, 2)
    code, printed = noisewise("compare", str(two), "--plot", "out.png")
    assert (code, "nothing to draw" in printed) == (2, True)  # asked for, and there is no audit yet


def test_json_of_verify(noisewise, two, monkeypatch) -> None:
    monkeypatch.setattr("noisewise.workflow.verification._engine", lambda *_, **__: "")
    assert json.loads(noisewise("verify", str(two / "people"), "--json")[1])["holds"]


def test_options_of_sweep(noisewise, monkeypatch) -> None:
    asked: list[Any] = []

    def carried_out(whole: Any, out: Path, where: Any, **how: Any) -> dict[str, Any]:
        asked.append((len(whole.plans), out, where, how))
        out.mkdir()
        (out / "sweep.json").write_text("{}")
        return {}

    monkeypatch.setattr("noisewise.workflow.sweep.carry_out_sweep", carried_out)
    train = '[train]\ndata = "digits"\nmodel = "logistic"\nnoise_multiplier = 9\nsteps = 2\n'
    Path("s.toml").write_text(f"{train}[sweep]\nlr = [1, 2]\n")
    line = ("sweep", "--config", "s.toml", "--out")
    code, printed = noisewise(*line, "dry", "--dry-run")
    assert (code, asked, "together" in printed) == (0, [], True)
    assert noisewise(*line, "a", "--jobs", "3", "--quiet") == (0, "")
    assert noisewise(*line, "c", "--ray", "auto", "--per-gpu", "2", "--quiet") == (0, "")
    assert noisewise(*line, "b", "--json") == (0, "{}")
    assert asked == [
        (2, Path("a"), Local(3), {"progress": False}),
        (2, Path("c"), Ray("auto", None, 2), {"progress": False}),
        (2, Path("b"), Local(), {"progress": False}),
    ]


def test_shareable_contact_and_license_of_report(noisewise, two, monkeypatch) -> None:
    asked: list[Any] = []
    monkeypatch.setattr("noisewise.workflow.released_score.release_score", lambda *given: asked.append(given))
    options = ("--shareable", "--out", "out", "--contact", "Ms Weber", "--license", "mit", "--score-epsilon", "0.5")
    assert noisewise("report", str(two / "people"), *options)[0] == 0
    assert asked == [(two / "people", 0.5)]
    assert sorted(path.name for path in Path("out").iterdir()) == ["PRIVACY.md", "README.md", "report.html"]
    assert "Ms Weber" in Path("out/PRIVACY.md").read_text()
    assert 'license: "mit"' in Path("out/README.md").read_text()
    assert noisewise("report", str(two / "people"), "--shareable", "--dry-run", "--out", "none")[0] == 0
    assert not Path("none").exists()
    assert len(asked) == 1


# --- all of them


SHOWN_ELSEWHERE = {
    "reproduce": ("cli/test_reproduce.py", "test_every_option_reaches_the_library"),
    "plan": ("cli/test_forecast.py", "test_every_option_reaches_the_library"),
    "pretrain": ("cli/test_pretrain.py", "test_every_option_reaches_the_library"),
    "suggest": ("cli/test_suggest.py", "test_advice_is_printed_kept_and_can_be_followed"),
}
SHOWN: dict[str, dict[str, Callable[..., None]]] = {
    "epsilon": {
        **dict.fromkeys(PLANS, test_options_of_a_plan),
        "--noise-multiplier": test_noise_multiplier_and_epsilon_are_what_is_asked,
        "--json": test_json_is_one_object_and_nothing_else,
    },
    "calibrate": {
        **dict.fromkeys(PLANS, test_options_of_a_plan),
        "--epsilon": test_noise_multiplier_and_epsilon_are_what_is_asked,
        "--json": test_json_is_one_object_and_nothing_else,
    },
    "train": {
        **dict.fromkeys(TRAIN, test_options_of_train),
        "--clip": test_clipping_rules_of_train,
        "--epsilon": test_epsilon_of_train_is_a_budget,
        "--data": test_data_of_train,
        "--config": test_config_of_train_is_the_plan_again,
        "--twin": test_config_of_train_is_the_plan_again,
        "--resume": test_resume_of_train,
        "--processes": test_processes_of_train,
        "--sharded": test_sharded_of_train,
        "--quiet": test_quiet_of_train,
        "--device": test_device_of_train,
        "--json": test_json_of_train,
        "--secure": test_secure_of_train,
        "--repair": test_repairs_of_train,
        "--recipe": test_recipe_of_train,
        "--seeds": test_seeds_of_train,
        **dict.fromkeys(("--jobs", "--ray", "--per-gpu"), test_jobs_and_ray_of_train),
        **dict.fromkeys(("--label", "--group", "--unit", "--column", "--schema"), test_columns_of_train),
        **dict.fromkeys(("--test", "--drop-unlabelled"), test_test_and_drop_unlabelled_of_train),
        **dict.fromkeys(("--yes", "-y", "--public", "--schema-epsilon"), test_yes_public_and_schema_epsilon_of_train),
    },
    "audit": {
        "--only": test_options_of_audit,
        "--all": test_options_of_audit,
        "--list": test_list_of_audit_says_which_are_usual,
        "--json": test_json_of_audit,
        **dict.fromkeys(("--model", "--data"), test_model_and_data_of_a_run_made_in_python),
    },
    "predict": dict.fromkeys(("--out", "--keep", "--temperature", "--json"), test_options_of_predict),
    "temperature": {"--json": test_options_of_predict},
    **{
        name: {"--json": test_json_of_lists} for name in ("datasets", "models", "recipes", "repairs", "audits", "clips")
    },
    "report": {
        "--out": test_out_of_report_and_its_default,
        "--by": test_by_of_report_and_several_runs,
        **dict.fromkeys(
            ("--shareable", "--contact", "--license", "--score-epsilon", "--dry-run"),
            test_shareable_contact_and_license_of_report,
        ),
    },
    "compare": dict.fromkeys(("--plot", "--json"), test_options_of_compare),
    "budget": dict.fromkeys(("--delta", "--same-people", "--json"), test_options_of_budget),
    "verify": {"--json": test_json_of_verify},
    "sweep": dict.fromkeys(
        ("--config", "--out", "--jobs", "--ray", "--per-gpu", "--dry-run", "--quiet", "--json"), test_options_of_sweep
    ),
    "demo": {"--out": test_out_of_demo},
    "schema": {
        "--label": test_label_group_unit_and_out_of_schema,
        "--group": test_label_group_unit_and_out_of_schema,
        "--unit": test_label_group_unit_and_out_of_schema,
        "--out": test_label_group_unit_and_out_of_schema,
        "--column": test_column_of_schema,
        "--separator": test_separator_of_schema,
        "--encoding": test_encoding_of_schema,
        "--json": test_json_of_schema,
        "--header-only": test_header_only_of_schema,
        "--epsilon": test_budget_of_schema,
        "--delta": test_budget_of_schema,
        "--adjacency": test_budget_of_schema,
    },
    "check": dict.fromkeys(("--example", "--loss", "--json"), test_example_and_loss_of_check)
    | dict.fromkeys(("--shape", "--outputs"), test_shape_and_outputs_of_check),
}


def test_no_option_is_left_out() -> None:
    commands = typer.main.get_command(cli.app).commands
    options = {
        name: {
            option
            for parameter in command.params
            if parameter.param_type_name == "option"
            for option in (*parameter.opts, *parameter.secondary_opts)
            if option not in ("-h", "--help")
        }
        for name, command in commands.items()
    }
    for command, (place, name) in SHOWN_ELSEWHERE.items():
        text = (Path(__file__).parents[1] / place).read_text()
        assert f"def {name}(" in text
        assert {option for option in options.pop(command) if option not in text} == set(), command
    assert options == {name: set(shown) for name, shown in SHOWN.items()}

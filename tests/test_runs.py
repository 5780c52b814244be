"""The run folder: what it holds, who may read it, what it refuses, and that a run survives any end."""

import copy
import importlib.metadata
import itertools
import json
import os
import re
import shutil
import signal
import socket
import stat
import subprocess
import sys
from pathlib import Path

import dp_accounting
import pytest
import tomli_w
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import load_file
from torch import nn
from torch.optim import lr_scheduler

from helpers import tiny
from noisewise.accounting import Ledger, pld_epsilon
from noisewise.clipping import Flat
from noisewise.data import Data
from noisewise.errors import Interrupted, RunError
from noisewise.runs import tensors as files_of_tensors
from noisewise.runs.files import read_json, write_atomically, write_json
from noisewise.runs.folder import RunFolder
from noisewise.runs.summary import read_summary
from noisewise.runs.tensors import load_tensors, save_tensors

DELTA = 1e-3
SEED = 5
HERE = Path(__file__).parent
ROOT = 0x1234567890ABCDEF1234567890ABCDEF1234567890ABCDEF1234567890ABCDEF


class Crash(Exception):
    pass


def interrupt_at(step):
    def recorder(observation):
        if observation.step == step:
            signal.raise_signal(signal.SIGINT)

    return recorder


def crashing(optimizer, step):
    """Builds an optimizer that fails in one of its steps, after the release."""

    def fail(*_):
        if next(calls) == step:
            raise Crash

    def build(network):
        chosen = optimizer(network)
        chosen.register_step_pre_hook(fail)
        return chosen

    calls = itertools.count()
    return build


def crashed(folder, step=6, optimizer=tiny.sgd, **how):
    """A run that ended with an error in the middle; its last checkpoint is of the steps before."""
    with pytest.raises(Crash):
        tiny.run(out=folder, checkpoint_seconds=0, optimizer=crashing(optimizer, step), **how)
    return RunFolder(folder)


def files(folder):
    return sorted(str(path.relative_to(folder)) for path in Path(folder).rglob("*") if path.is_file())


def mode(path):
    return stat.S_IMODE(path.stat().st_mode)


# --- contents ---------------------------------------------------------------------------------------------------------


def test_a_finished_folder_holds_these_files_and_no_more(tmp_path):
    tiny.run(out=tmp_path)
    released = ["ledger.json", "metrics.jsonl", "model.safetensors", "run.json", "summary.json"]
    assert files(tmp_path) == sorted([*released, "sensitive/identity.json", "sensitive/lock"])
    assert mode(tmp_path / "sensitive") == 0o700
    assert RunFolder(tmp_path).complete


def test_sensitive_is_closed_even_if_it_was_open(tmp_path):
    (tmp_path / "sensitive").mkdir(mode=0o755)
    tiny.run(out=tmp_path)
    assert mode(tmp_path / "sensitive") == 0o700


def test_the_weights_are_the_models(tmp_path):
    trained = tiny.run(out=tmp_path)
    saved = load_file(tmp_path / "model.safetensors")
    assert saved.keys() == trained.model.state_dict().keys()
    assert all(torch.equal(saved[name], value) for name, value in trained.model.state_dict().items())


class Tied(nn.Module):
    """Two names for one weight."""

    def __init__(self):
        super().__init__()
        self.first, self.second, self.head = nn.Linear(5, 5), nn.Linear(5, 5), nn.Linear(5, 3)
        self.second.weight = self.first.weight

    def forward(self, x):
        return self.head(torch.tanh(self.second(torch.tanh(self.first(x)))))


def test_the_weights_are_the_average_where_one_was_asked_for(tmp_path):
    trained = tiny.run(Tied(), ema=0.9, out=tmp_path)
    saved = load_file(tmp_path / "model.safetensors")
    assert saved.keys() == trained.model.state_dict().keys()
    assert all(torch.equal(saved[name], average) for name, average in trained.averaged.items())
    assert torch.equal(saved["second.weight"], trained.averaged["first.weight"])
    assert not torch.equal(saved["first.weight"], trained.model.first.weight)


def test_the_ledger_can_be_read_back(tmp_path):
    trained = tiny.run(out=tmp_path)
    assert Ledger.from_dict(read_json(tmp_path / "ledger.json")) == trained.ledger


def test_run_json_names_versions_and_hardware_but_no_place(tmp_path):
    tiny.run(out=tmp_path)
    about = read_json(tmp_path / "run.json")
    assert about.keys() == {"format", "state", "status", "reason", "versions", "hardware"}
    assert (about["format"], about["state"], about["status"]) == (1, "complete", "private")
    assert about["versions"]["torch"] == importlib.metadata.version("torch")
    text = (tmp_path / "run.json").read_text()
    assert "/" not in text
    assert not re.search(rf"\b{re.escape(socket.gethostname())}\b", text)


SUMMARY = {"format", "privacy", "task", "data", "model", "repairs", "seed"}
PRIVACY = {
    "epsilon", "delta", "adjacency", "unit", "sampler", "accountant", "noise_multiplier", "steps", "rate", "rdp_epsilon",
    "gdp_epsilon", "status", "reason",
}  # fmt: skip


def test_summary_json_is_the_contract(tmp_path):
    plan = tiny.mechanism(unit="person")
    tiny.run(plan=plan, out=tmp_path, delta=DELTA, seed=9, about={"task": "toy", "model": "mlp", "data": {"name": "x"}})
    summary = read_json(tmp_path / "summary.json")
    privacy = summary["privacy"]
    assert summary.keys() >= SUMMARY
    assert privacy.keys() >= PRIVACY
    readings = plan.spent(DELTA)
    assert {key: privacy[key] for key in PRIVACY} == {
        "epsilon": readings.epsilon,
        "delta": DELTA,
        "adjacency": "add-remove",
        "unit": "person",
        "sampler": "poisson",
        "accountant": "pld",
        "noise_multiplier": plan.noise_multiplier,
        "steps": tiny.STEPS,
        "rate": tiny.BATCH / tiny.N,
        "rdp_epsilon": readings.rdp_epsilon,
        "gdp_epsilon": readings.gdp_epsilon,
        "status": "private",
        "reason": "every release is in the ledger",
    }
    assert (summary["task"], summary["model"], summary["seed"]) == ("toy", "mlp", 9)
    assert summary["data"] == {"name": "x", "n": tiny.N}


def test_summary_of_a_second_phase_counts_both(tmp_path):
    first, second = tiny.mechanism(steps=3), tiny.mechanism(steps=4, noise_multiplier=30.0)
    ledger = tiny.run(plan=first).ledger
    tiny.run(plan=second, ledger=ledger, out=tmp_path, delta=DELTA)
    privacy = read_json(tmp_path / "summary.json")["privacy"]
    assert privacy["epsilon"] == pld_epsilon([*first.events(), *second.events()], DELTA, "add-remove")
    assert privacy["epsilon"] > privacy["plan_epsilon"]
    assert privacy["rdp_epsilon"] > privacy["epsilon"]


def test_replace_one_has_no_rdp_reading(tmp_path):
    tiny.run(plan=tiny.mechanism(adjacency="replace-one"), out=tmp_path)
    privacy = read_json(tmp_path / "summary.json")["privacy"]
    assert (privacy["rdp_epsilon"], privacy["gdp_epsilon"]) == (None, None)
    assert privacy["epsilon"] > 0


@pytest.mark.parametrize(
    "how",
    [{"ablation": "plain"}, {"ablation": "clip-only"}, {"ablation": "noise-only"}, {"insecure_seed": SEED}],
    ids=repr,
)
def test_what_is_not_private_says_so_in_every_file(how, tmp_path):
    tiny.run(out=tmp_path, **how)
    privacy, about = read_json(tmp_path / "summary.json")["privacy"], read_json(tmp_path / "run.json")
    assert about["status"] == privacy["status"] == "not-private"
    assert about["reason"] == privacy["reason"]
    assert {privacy[key] for key in ("epsilon", "rdp_epsilon", "gdp_epsilon")} == {"inf"}
    metrics = [json.loads(line) for line in (tmp_path / "metrics.jsonl").read_text().splitlines()]
    assert {line["epsilon"] for line in metrics} == {"inf"}


def test_metrics_of_private_people_stay_under_sensitive(tmp_path):
    history = tiny.run(out=tmp_path, valid=tiny.data(n=15)).history
    public = [json.loads(line) for line in (tmp_path / "metrics.jsonl").read_text().splitlines()]
    secret = [json.loads(line) for line in (tmp_path / "sensitive" / "metrics.jsonl").read_text().splitlines()]
    assert secret == history
    assert public == [{"step": line["step"], "epsilon": line["epsilon"]} for line in history]
    losses = {repr(line["valid_loss"]) for line in history}
    for name in files(tmp_path):
        if not name.startswith("sensitive/"):
            assert not any(loss.encode() in (tmp_path / name).read_bytes() for loss in losses)


def test_metrics_of_public_data_are_public(tmp_path):
    history = tiny.run(out=tmp_path, valid=Data(*tiny.data(n=15), public=True)).history
    assert [json.loads(line) for line in (tmp_path / "metrics.jsonl").read_text().splitlines()] == history
    assert all("valid_loss" in line for line in history)
    assert not (tmp_path / "sensitive" / "metrics.jsonl").exists()


def test_private_data_objects_are_not_public_by_themselves(tmp_path):
    tiny.run(out=tmp_path, valid=Data(*tiny.data(n=15)))
    assert "valid_loss" not in (tmp_path / "metrics.jsonl").read_text()


# --- secrets ----------------------------------------------------------------------------------------------------------


def where_the_root_is(folder):
    forms = [str(ROOT), f"{ROOT:x}", f"{ROOT:X}"]
    forms = [form.encode() for form in forms] + [ROOT.to_bytes(32, "little"), ROOT.to_bytes(32, "big")]
    return [name for name in files(folder) if any(form in (Path(folder) / name).read_bytes() for form in forms)]


def test_the_secret_root_is_in_the_checkpoint_while_it_is_needed_and_nowhere_afterwards(tmp_path, monkeypatch):
    monkeypatch.setattr("secrets.randbits", lambda bits: ROOT)
    folder = crashed(tmp_path)
    assert where_the_root_is(tmp_path) == ["sensitive/checkpoint.safetensors"]
    folder.checkpoint.with_name(".checkpoint.safetensors.tmp").write_bytes(
        folder.checkpoint.read_bytes()[:-7]
    )  # a kill
    tiny.run(out=tmp_path, resume=True, checkpoint_seconds=1000)
    assert where_the_root_is(tmp_path) == []
    assert not [name for name in files(tmp_path) if "checkpoint" in name]


# --- who may write ----------------------------------------------------------------------------------------------------


def test_a_second_process_is_refused(tmp_path):
    RunFolder(tmp_path).create()
    hold = "import fcntl, sys; f = open(sys.argv[1], 'w'); fcntl.flock(f, fcntl.LOCK_EX); print('held', flush=True); input()"
    command = [sys.executable, "-c", hold, str(tmp_path / "sensitive" / "lock")]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as other:
        assert other.stdout.readline() == b"held\n"
        with pytest.raises(RunError, match="in use by another process"):
            tiny.run(out=tmp_path)
        other.communicate(b"\n")
    assert tiny.run(out=tmp_path).ledger.releases == tiny.STEPS


def test_runs_can_be_imported_where_there_is_no_fcntl():
    """As on Windows; there the lock is another one, here filelock says that it has none as good."""
    code = "import sys; sys.modules['fcntl'] = None; import noisewise.runs; print(noisewise.runs.RunFolder('a').lock)"
    asked = [sys.executable, "-W", "ignore", "-c", code]
    assert subprocess.run(asked, capture_output=True, text=True, check=True).stdout == f"{Path('a/sensitive/lock')}\n"


def test_a_killed_process_leaves_no_lock_behind(tmp_path):
    hold = (
        "import sys; from noisewise.runs import RunFolder\n"
        "with RunFolder(sys.argv[1]).locked(): print('held', flush=True); input()"
    )
    command = [sys.executable, "-c", hold, str(tmp_path)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as other:
        assert other.stdout.readline() == b"held\n"
        with pytest.raises(RunError, match="in use by another process"), RunFolder(tmp_path).locked():
            pass
        other.kill()
    with RunFolder(tmp_path).locked():
        assert RunFolder(tmp_path).lock.read_bytes() == b""


def test_the_lock_is_given_back_after_an_error(tmp_path):
    crashed(tmp_path)
    assert tiny.run(out=tmp_path, resume=True).ledger.releases == tiny.STEPS


@pytest.mark.parametrize("resume", [False, True])
def test_a_finished_folder_is_never_overwritten(tmp_path, resume):
    tiny.run(out=tmp_path)
    before = {name: (tmp_path / name).read_bytes() for name in files(tmp_path)}
    with pytest.raises(RunError, match="finished run"):
        tiny.run(out=tmp_path, resume=resume)
    assert {name: (tmp_path / name).read_bytes() for name in files(tmp_path)} == before


def test_an_unfinished_folder_needs_resume(tmp_path):
    before = crashed(tmp_path).checkpoint.read_bytes()
    assert not RunFolder(tmp_path).complete
    with pytest.raises(RunError, match=r"unfinished run.*resume=True"):
        tiny.run(out=tmp_path)
    assert RunFolder(tmp_path).checkpoint.read_bytes() == before


def test_there_is_nothing_to_resume_in_an_empty_folder(tmp_path):
    with pytest.raises(RunError, match=r"new holds no run to go on with.*without resume"):
        tiny.run(out=tmp_path / "new", resume=True)
    assert tiny.run(out=tmp_path / "new").ledger.releases == tiny.STEPS


@pytest.mark.parametrize("place", ["file", "file/run", "x" * 300])
def test_folders_that_cannot_be_made_are_said(place, tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(RunError, match=r"cannot be used as a run folder.*choose another"):
        tiny.run(out=tmp_path / place)


def test_a_lock_that_cannot_be_opened_is_said(tmp_path):
    (tmp_path / "sensitive" / "lock").mkdir(parents=True)
    with pytest.raises(RunError, match="lock cannot be opened"):
        tiny.run(out=tmp_path)


# --- resuming ---------------------------------------------------------------------------------------------------------

PARTS = {
    "momentum": {},
    "adam": {"optimizer": lambda network: torch.optim.Adam(network.parameters(), lr=0.05)},
    "adamw": {"optimizer": lambda network: torch.optim.AdamW(network.parameters(), lr=0.05)},
    "rmsprop": {"optimizer": lambda network: torch.optim.RMSprop(network.parameters(), lr=0.01, momentum=0.5)},
    "step": {"scheduler": lambda optimizer: lr_scheduler.StepLR(optimizer, 3, 0.5)},
    "cosine": {"scheduler": lambda optimizer: lr_scheduler.CosineAnnealingLR(optimizer, tiny.STEPS)},
    "lambda": {"scheduler": lambda optimizer: lr_scheduler.LambdaLR(optimizer, lambda step: 1 / (1 + step))},
    "one cycle": {"scheduler": lambda optimizer: lr_scheduler.OneCycleLR(optimizer, 0.5, total_steps=tiny.STEPS + 1)},
    "sequential": {
        "scheduler": lambda optimizer: lr_scheduler.SequentialLR(
            optimizer, [lr_scheduler.LinearLR(optimizer), lr_scheduler.ExponentialLR(optimizer, 0.9)], milestones=[4]
        )
    },
    "average": {"ema": 0.9},
    "plain": {"ablation": "plain"},
    "noise-only": {"ablation": "noise-only"},
    "valid": {"valid": tiny.data(n=15)},
}


@pytest.mark.parametrize("how", PARTS.values(), ids=PARTS)
@pytest.mark.parametrize("dropout", [0.0, 0.5])
def test_a_resumed_run_is_the_run_that_did_not_stop(how, dropout, tmp_path):
    crashed(tmp_path / "crashed", network=tiny.model(dropout=dropout), insecure_seed=SEED, **how)
    resumed = tiny.run(tiny.model(dropout=dropout), out=tmp_path / "crashed", resume=True, insecure_seed=SEED, **how)
    whole = tiny.run(tiny.model(dropout=dropout), out=tmp_path / "whole", insecure_seed=SEED, **how)
    assert tiny.same(resumed.model, whole.model)
    assert resumed.ledger == whole.ledger
    assert resumed.history == whole.history
    assert files(tmp_path / "crashed") == files(tmp_path / "whole")
    for name in files(tmp_path / "whole"):
        assert (tmp_path / "crashed" / name).read_bytes() == (tmp_path / "whole" / name).read_bytes(), name


def test_interrupting_saves_says_how_to_go_on_and_loses_nothing(tmp_path):
    before = signal.getsignal(signal.SIGINT)  # ignored where a shell started the tests in the background
    network = tiny.model(dropout=0.5)
    with pytest.raises(Interrupted, match=r"after step 5 of 12.*resume=True.*--resume") as caught:
        tiny.run(network, out=tmp_path, recorders=[interrupt_at(4)], insecure_seed=SEED, checkpoint_seconds=1000)
    assert caught.value.exit_code == 130
    assert str(tmp_path) in str(caught.value)
    assert read_json(tmp_path / "run.json")["state"] == "interrupted"
    assert signal.getsignal(signal.SIGINT) is before
    resumed = tiny.run(tiny.model(dropout=0.5), out=tmp_path, resume=True, insecure_seed=SEED)
    assert tiny.same(resumed.model, tiny.run(tiny.model(dropout=0.5), insecure_seed=SEED).model)


def test_the_same_model_and_ledger_can_go_on_in_the_same_process(tmp_path):
    network, ledger = tiny.model(), Ledger("add-remove")
    with pytest.raises(Interrupted):
        tiny.run(network, out=tmp_path, ledger=ledger, recorders=[interrupt_at(4)], insecure_seed=SEED)
    resumed = tiny.run(network, out=tmp_path, ledger=ledger, resume=True, insecure_seed=SEED)
    assert resumed.ledger is ledger
    assert tiny.same(network, tiny.run(insecure_seed=SEED).model)


def test_interrupting_the_last_step_only_leaves_the_end_to_do(tmp_path):
    with pytest.raises(Interrupted, match="after step 12 of 12"):
        tiny.run(out=tmp_path, recorders=[interrupt_at(11)])
    assert tiny.run(out=tmp_path, resume=True).ledger.releases == tiny.STEPS
    assert RunFolder(tmp_path).complete


def test_without_a_folder_ctrl_c_is_ctrl_c():
    with pytest.raises(KeyboardInterrupt):
        tiny.run(recorders=[interrupt_at(4)])


def test_a_second_ctrl_c_stops_at_once(tmp_path):
    def impatient(observation):
        if observation.step == 4:
            signal.raise_signal(signal.SIGINT)
            signal.raise_signal(signal.SIGINT)

    with pytest.raises(KeyboardInterrupt):
        tiny.run(out=tmp_path, recorders=[impatient], checkpoint_seconds=0, insecure_seed=SEED)
    resumed = tiny.run(out=tmp_path, resume=True, insecure_seed=SEED)
    assert tiny.same(resumed.model, tiny.run(insecure_seed=SEED).model)


def test_sigterm_is_an_interruption_too(tmp_path):
    with pytest.raises(Interrupted):
        tiny.run(out=tmp_path, recorders=[lambda observation: os.kill(os.getpid(), signal.SIGTERM)])


def test_a_resumed_insecure_run_keeps_its_stamp(tmp_path):
    crashed(tmp_path, insecure_seed=SEED)
    assert tiny.run(out=tmp_path, resume=True).status.status == "not-private"
    assert read_json(tmp_path / "summary.json")["privacy"]["reason"] == "noise reproducible: do not publish"


def test_a_second_phase_can_be_resumed(tmp_path):
    def two_phases(out, **how):
        phase = tiny.run(plan=tiny.mechanism(steps=3), insecure_seed=SEED)
        return tiny.run(phase.model, ledger=phase.ledger, out=out, insecure_seed=SEED + 1, **how)

    with pytest.raises(Crash):
        two_phases(tmp_path / "crashed", optimizer=crashing(tiny.sgd, 6), checkpoint_seconds=0)
    resumed, whole = two_phases(tmp_path / "crashed", resume=True), two_phases(tmp_path / "whole")
    assert tiny.same(resumed.model, whole.model)
    assert resumed.ledger == whole.ledger
    assert resumed.ledger.releases == 3 + tiny.STEPS


def other_ledger():
    return tiny.run(plan=tiny.mechanism(steps=2, noise_multiplier=30.0), insecure_seed=1).ledger


@pytest.mark.parametrize(
    ("other", "message"),
    [
        (lambda: {"plan": tiny.mechanism(noise_multiplier=4.0)}, "its mechanism is"),
        (lambda: {"plan": tiny.mechanism(steps=13)}, "its mechanism is"),
        (lambda: {"plan": tiny.mechanism(clip=Flat(2.0))}, "its mechanism is"),
        (lambda: {"ablation": "plain"}, "its ablation is"),
        (lambda: {"seed": 1}, "its seed is"),
        (lambda: {"ema": 0.9}, "its ema is"),
        (lambda: {"optimizer": lambda network: torch.optim.Adam(network.parameters())}, "its kinds is"),
        (lambda: {"scheduler": lambda optimizer: lr_scheduler.StepLR(optimizer, 3)}, "its kinds is"),
        (lambda: {"insecure_seed": SEED + 1}, "not made with this insecure_seed"),
        (lambda: {"ledger": other_ledger()}, "does not continue this ledger"),
        (lambda: {"network": nn.Linear(5, 3)}, "does not fit this run"),
    ],
)
def test_checkpoints_of_another_run_are_refused_and_kept(other, message, tmp_path):
    folder = crashed(tmp_path, insecure_seed=SEED)
    before = folder.checkpoint.read_bytes()
    with pytest.raises(RunError, match=message) as caught:
        tiny.run(out=tmp_path, resume=True, **{"insecure_seed": SEED, **other()})
    assert folder.checkpoint.read_bytes() == before
    assert "damaged" not in str(caught.value)


def test_a_refused_resume_leaves_the_given_ledger_alone(tmp_path):
    crashed(tmp_path)
    ledger = other_ledger()
    with pytest.raises(RunError):
        tiny.run(out=tmp_path, resume=True, ledger=ledger)
    assert ledger == other_ledger()


def test_refusals_never_show_the_secret_root(tmp_path, monkeypatch):
    monkeypatch.setattr("secrets.randbits", lambda bits: ROOT)
    crashed(tmp_path)
    with pytest.raises(RunError, match="insecure_seed") as caught:
        tiny.run(out=tmp_path, resume=True, insecure_seed=SEED)
    assert str(ROOT) not in str(caught.value)


# --- damage -----------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory):
    """The bytes of a checkpoint in the middle of a run."""
    folder = crashed(tmp_path_factory.mktemp("damage"), insecure_seed=SEED)
    return folder.checkpoint.read_bytes()


def resume_from(content, folder):
    run = RunFolder(folder)
    run.create()
    run.checkpoint.write_bytes(content)
    return tiny.run(out=folder, resume=True, insecure_seed=SEED)


@pytest.mark.parametrize("share", [0.0, 0.001, 0.3, 0.9, 0.999])
def test_truncated_checkpoints_are_refused(share, checkpoint, tmp_path):
    with pytest.raises(RunError, match="damaged"):
        resume_from(checkpoint[: int(share * len(checkpoint))], tmp_path)


@settings(max_examples=60, deadline=None, derandomize=True)
@given(st.data())
def test_one_changed_byte_is_refused(checkpoint, tmp_path_factory, data):
    content = bytearray(checkpoint)
    content[data.draw(st.integers(0, len(content) - 1))] ^= data.draw(st.integers(1, 255))
    with pytest.raises(RunError):
        resume_from(bytes(content), tmp_path_factory.mktemp("byte"))


@pytest.mark.parametrize("content", [b"", b"no checkpoint", b"\x80\x04pickle", b"\0" * 100])
def test_other_files_are_refused(content, tmp_path):
    with pytest.raises(RunError, match="damaged"):
        resume_from(content, tmp_path)


@pytest.mark.parametrize(
    "edit",
    [
        {"step": 3},
        {"step": -1},
        {"step": 99},
        {"step": "6"},
        {"step": True},
        {"ledger": {"format": 1, "adjacency": "add-remove", "lines": []}},
        {"ledger": None},
        {"before": {"format": 1}},
        {"entropy": {}},
        {"entropy": {"root": "x", "reproducible": True}},
        {"mechanism": None},
        {"model": {}},
        {"optimizer": {}},
        {"history": 3},
    ],
    ids=repr,
)
def test_edited_checkpoints_are_refused(edit, tmp_path):
    """Edited by someone who knows the format, digest included: a plan and a ledger that disagree are found out."""
    folder = crashed(tmp_path)
    save_tensors(folder.checkpoint, {**load_tensors(folder.checkpoint), **edit})
    with pytest.raises(RunError):
        tiny.run(out=tmp_path, resume=True)


@pytest.mark.parametrize(
    "key", ["step", "mechanism", "ledger", "before", "entropy", "model", "optimizer", "kinds", "history"]
)
def test_checkpoints_with_a_part_missing_are_refused(key, tmp_path):
    folder = crashed(tmp_path)
    tree = load_tensors(folder.checkpoint)
    del tree[key]
    save_tensors(folder.checkpoint, tree)
    with pytest.raises(RunError, match="does not fit"):
        tiny.run(out=tmp_path, resume=True)


def test_a_metrics_line_that_a_kill_cut_short_is_dropped(tmp_path):
    crashed(tmp_path / "crashed", insecure_seed=SEED)
    with (tmp_path / "crashed" / "metrics.jsonl").open("a") as file:
        file.write('{"step": 6, "eps')
    tiny.run(out=tmp_path / "crashed", resume=True, insecure_seed=SEED)
    tiny.run(out=tmp_path / "whole", insecure_seed=SEED)
    assert (tmp_path / "crashed" / "metrics.jsonl").read_text() == (tmp_path / "whole" / "metrics.jsonl").read_text()


# --- files ------------------------------------------------------------------------------------------------------------

leaves = st.one_of(
    st.none(), st.booleans(), st.integers(-(2**70), 2**70), st.floats(allow_nan=False), st.text(max_size=4)
)
trees = st.recursive(
    leaves,
    lambda inner: st.one_of(
        st.lists(inner, max_size=3),
        st.lists(inner, max_size=3).map(tuple),
        st.dictionaries(st.one_of(st.integers(0, 5), st.text(max_size=3)), inner, max_size=3),
    ),
    max_leaves=8,
)


@settings(max_examples=60, deadline=None, derandomize=True)
@given(trees)
def test_trees_round_trip_with_their_types(tmp_path_factory, tree):
    path = tmp_path_factory.mktemp("tree") / "file"
    save_tensors(path, tree)
    read = load_tensors(path)
    assert read == tree
    assert repr(read) == repr(tree)  # 1 is not True, a tuple no list


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16, torch.float16, torch.int64, torch.bool, torch.uint8])
@pytest.mark.parametrize("shape", [(), (0,), (3, 2)])
def test_tensors_round_trip_with_type_and_shape(dtype, shape, tmp_path):
    tensor = (torch.arange(6)[: int(torch.tensor(shape).prod())].reshape(shape) if shape else torch.tensor(3)).to(dtype)
    save_tensors(tmp_path / "file", {"here": [tensor, tensor.clone()]})
    read = load_tensors(tmp_path / "file")["here"][1]
    assert read.dtype == dtype
    assert torch.equal(read, tensor)


def test_what_has_no_form_is_refused_before_training(tmp_path):
    class Odd(torch.optim.SGD):
        def state_dict(self):
            return {"object": object()}

    with pytest.raises(RunError, match="object cannot be saved"):
        tiny.run(optimizer=lambda network: Odd(network.parameters(), lr=0.1), out=tmp_path)


def test_infinity_is_written_as_text_and_json_stays_json(tmp_path):
    write_json(tmp_path / "file", {"a": [float("inf"), float("-inf")], "b": (1.5, None)})
    text = (tmp_path / "file").read_text()
    assert json.loads(text, parse_constant=pytest.fail) == {"a": ["inf", "-inf"], "b": [1.5, None]}


@pytest.mark.parametrize("content", [b"", b"{", b"\xff"])
def test_damaged_json_names_the_file(content, tmp_path):
    (tmp_path / "run.json").write_bytes(content)
    with pytest.raises(RunError, match=r"run\.json cannot be read"):
        read_json(tmp_path / "run.json")


def test_missing_files_are_said(tmp_path):
    with pytest.raises(RunError, match="does not exist"):
        read_json(tmp_path / "run.json")
    with pytest.raises(RunError, match="does not exist"):
        load_tensors(tmp_path / "checkpoint")


def test_a_file_that_cannot_be_replaced_keeps_its_content(tmp_path):
    (tmp_path / "folder").mkdir()
    with pytest.raises(RunError, match="folder could not be written"):
        write_atomically(tmp_path / "folder", b"new")
    assert files(tmp_path) == []


# --- other processes --------------------------------------------------------------------------------------------------


def python(code, *arguments, **how):
    """A process that can import the tests' helpers."""
    command = [sys.executable, "-W", "error", "-c", code, *map(str, arguments)]
    return subprocess.Popen(command, cwd=HERE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, **how)


FULL_DISK = """
import resource, sys, tiny
from noisewise.errors import RunError

def train_until_the_disk_is_full(folder, limit):
    def fill(observation):
        if observation.step == 4:
            resource.setrlimit(resource.RLIMIT_FSIZE, (limit, resource.RLIM_INFINITY))

    try:
        tiny.run(out=folder, checkpoint_seconds=0, recorders=[fill], insecure_seed=5)
    except RunError as error:
        resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
        print(error)

train_until_the_disk_is_full(sys.argv[1], limit=2000)
train_until_the_disk_is_full(sys.argv[2], limit=10)
"""


def test_a_full_disk_keeps_the_last_good_checkpoint(tmp_path):
    """The checkpoint no longer fits in the first run, not even a line of metrics in the second."""
    folders = [tmp_path / "checkpoint.safetensors", tmp_path / "metrics.jsonl"]
    said, errors = python(FULL_DISK, *folders).communicate(timeout=60)
    assert errors == ""
    for folder, message in zip(folders, said.splitlines(), strict=True):
        assert re.match(rf"{re.escape(folder.name)} could not be written \(File too large\).*resume", message)
        assert files(folder / "sensitive") == ["checkpoint.safetensors", "lock"]
        assert load_tensors(folder / "sensitive" / "checkpoint.safetensors")["step"] == 4
        resumed = tiny.run(out=folder, resume=True, insecure_seed=SEED)
        assert tiny.same(resumed.model, tiny.run(insecure_seed=SEED).model)


CTRL_C = """
import sys, time, tiny
from noisewise.errors import Interrupted

def slow(observation):
    print("step", observation.step, flush=True)
    time.sleep(0.1)

try:
    tiny.run(tiny.model(dropout=0.5), out=sys.argv[1], recorders=[slow], insecure_seed=5)
except Interrupted as error:
    print(error)
    sys.exit(error.exit_code)
"""


def test_ctrl_c_from_outside(tmp_path):
    process = python(CTRL_C, tmp_path)
    while process.stdout.readline() != "step 3\n":
        assert process.poll() is None
    process.send_signal(signal.SIGINT)
    said, errors = process.communicate(timeout=60)
    assert (process.returncode, errors) == (130, "")
    assert re.search(r"stopped after step \d+ of 12; nothing is lost\. Resume with resume=True", said)
    resumed = tiny.run(tiny.model(dropout=0.5), out=tmp_path, resume=True, insecure_seed=SEED)
    assert tiny.same(resumed.model, tiny.run(tiny.model(dropout=0.5), insecure_seed=SEED).model)


def kills(*arguments, timeout):
    command = [sys.executable, HERE / "kills.py", *arguments]
    return subprocess.run(command, check=False, capture_output=True, text=True, timeout=timeout)


def test_killed_anywhere_and_resumed_a_run_ends_the_same_bit_for_bit():
    result = kills("--every-replacement", "--kills", "8", "--seed", "0", timeout=120)
    assert result.returncode == 0, result.stderr
    assert "each of 9 replacements: the same end every time" in result.stdout
    assert re.search(
        r"^8 kills, \d+ while a checkpoint was written: the same end every time$", result.stdout, re.MULTILINE
    )


@pytest.mark.slow
def test_two_hundred_kills():
    result = kills("--kills", "200", "--seed", "1", timeout=1800)
    assert result.returncode == 0, result.stderr
    assert "200 kills" in result.stdout


def test_a_resumed_run_keeps_the_lines_up_to_its_step_and_no_others(tmp_path):
    folder = RunFolder(tmp_path)
    folder.create()
    for public in (True, False):
        for step in (0, 4, 5, 6):
            folder.append_metrics({"step": step}, public=public)
    folder.truncate_metrics(5)
    for path in (folder.metrics, folder.sensitive / "metrics.jsonl"):
        assert [json.loads(line)["step"] for line in path.read_text().splitlines()] == [0, 4, 5]


def test_a_second_phase_is_resumed_with_the_ledger_that_it_began_with(tmp_path):
    """With another one some releases would be lost."""
    first = tiny.run(insecure_seed=SEED)
    other = Ledger(unit="row")
    other.record(dp_accounting.GaussianDpEvent(1.0), "another", 0, reproducible=True)
    crashed(tmp_path, network=copy.deepcopy(first.model), ledger=copy.deepcopy(first.ledger), insecure_seed=SEED)
    with pytest.raises(RunError, match="does not continue this ledger"):
        tiny.run(copy.deepcopy(first.model), out=tmp_path, resume=True, ledger=other, insecure_seed=SEED)
    resumed = tiny.run(
        copy.deepcopy(first.model), out=tmp_path, resume=True, ledger=copy.deepcopy(first.ledger), insecure_seed=SEED
    )
    assert resumed.ledger.releases == 2 * first.ledger.releases


def test_every_name_of_a_tied_tensor_is_released_as_its_average(tmp_path):
    class Tied(nn.Module):
        def __init__(self):
            super().__init__()
            self.body, self.again, self.head = nn.Linear(5, 5), nn.Linear(5, 5), nn.Linear(5, 3)
            self.again.weight = self.body.weight

        def forward(self, x):
            return self.head(self.again(torch.tanh(self.body(x))))

    trained = tiny.run(Tied(), out=tmp_path, ema=0.9, insecure_seed=SEED)
    released = load_file(tmp_path / "model.safetensors")
    assert torch.equal(released["again.weight"], released["body.weight"])
    assert all(torch.equal(released[name], average) for name, average in trained.averaged.items())
    assert not torch.equal(released["body.weight"], trained.model.body.weight)


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """A private run with the config.toml that the command line would write."""
    folder = RunFolder(tmp_path_factory.mktemp("finished"))
    tiny.run(out=folder.path, delta=1e-3)
    privacy = read_json(folder.summary)["privacy"]
    settings = {key: privacy[key] for key in ("delta", "adjacency", "sampler", "noise_multiplier", "steps")}
    folder.config.write_text(tomli_w.dumps({**settings, "epsilon": 1.001 * privacy["plan_epsilon"]}))
    return folder


EDITS = {
    "epsilon": lambda value: 0.95 * value,
    "rdp_epsilon": lambda value: 0.95 * value,
    "gdp_epsilon": lambda value: 0.95 * value,
    "plan_epsilon": lambda value: 1.01 * value,
    "delta": lambda value: value / 2,
    "adjacency": lambda value: "zero-out",
    "unit": lambda value: "person",
    "sampler": lambda value: "shuffle",
    "noise_multiplier": lambda value: 2 * value,
    "steps": lambda value: value + 1,
    "strength": lambda value: "none",
    "status": lambda value: "not-proven",
}


@pytest.mark.parametrize("entry", EDITS)
def test_an_edited_figure_of_a_summary_is_not_shown(entry, finished, tmp_path):
    shutil.copytree(finished.path, tmp_path / "run")
    folder = RunFolder(tmp_path / "run")
    summary = read_summary(folder)
    summary["privacy"][entry] = EDITS[entry](summary["privacy"][entry])
    write_json(folder.summary, summary)
    with pytest.raises(RunError, match=r"edited or\s+damaged"):
        read_summary(folder)


@pytest.mark.parametrize("ending", ["whole", "failed"])
def test_signals_are_handled_as_before_once_a_run_is_over(ending, tmp_path):
    def mine(*_):
        """Somebody's own handler."""

    before = {number: signal.signal(number, mine) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        if ending == "whole":
            tiny.run()
        else:
            crashed(tmp_path)
        assert {signal.getsignal(number) for number in before} == {mine}
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def test_names_types_shapes_and_bytes_of_tensors_are_in_a_checkpoints_digest():
    base = torch.arange(6, dtype=torch.float32)
    trees = [
        {"a": base}, {"b": base}, {"a": base.view(2, 3)}, {"a": base.view(3, 2)}, {"a": base.view(torch.int32)},
        {"a": base + 1}, {"a": base, "b": base},
    ]  # fmt: skip
    digests = {files_of_tensors._digest(tree, tensors) for tree in ("x", "y") for tensors in trees}
    assert len(digests) == 2 * len(trees)

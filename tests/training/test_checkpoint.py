"""Checkpoints: a run survives any end, and goes on as itself or not at all."""

import copy
import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import dp_accounting
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from torch.optim import lr_scheduler

from helpers import tiny
from helpers.crashes import ROOT, SEED, Crash, crashed, crashing, files
from noisewise.accounting import Ledger
from noisewise.clipping import Flat
from noisewise.errors import Interrupted, RunError
from noisewise.runs.files import read_json
from noisewise.runs.folder import RunFolder
from noisewise.runs.tensors import load_tensors, save_tensors

TESTS = Path(__file__).parents[1]


def interrupt_at(step):
    def recorder(observation):
        if observation.step == step:
            signal.raise_signal(signal.SIGINT)

    return recorder


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
        (lambda: {"plan": tiny.mechanism(noise_multiplier=4.0)}, r"\(mechanism\.noise_multiplier: 20\.0 became 4\.0\)"),
        (lambda: {"plan": tiny.mechanism(steps=13)}, r"\(mechanism\.steps: 12 became 13\)"),
        (lambda: {"plan": tiny.mechanism(clip=Flat(2.0))}, r"\(mechanism\.clip\.bound: 1\.0 became 2\.0\)"),
        (lambda: {"ablation": "plain"}, "ablation: 'private' became 'plain'"),
        (lambda: {"seed": 1}, "seed: 0 became 1"),
        (lambda: {"ema": 0.9}, "ema: None became 0.9"),
        (
            lambda: {"optimizer": lambda network: torch.optim.Adam(network.parameters())},
            "kinds.optimizer: 'SGD' became 'Adam'",
        ),
        (
            lambda: {"scheduler": lambda optimizer: lr_scheduler.StepLR(optimizer, 3)},
            "kinds.scheduler: 'NoneType' became 'StepLR'",
        ),
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


def test_what_has_no_form_is_refused_before_training(tmp_path):
    class Odd(torch.optim.SGD):
        def state_dict(self):
            return {"object": object()}

    with pytest.raises(RunError, match="object cannot be saved"):
        tiny.run(optimizer=lambda network: Odd(network.parameters(), lr=0.1), out=tmp_path)


# --- other processes --------------------------------------------------------------------------------------------------
def python(code, *arguments, **how):
    """A process that can import the tests' helpers."""
    command = [sys.executable, "-W", "error", "-c", code, *map(str, arguments)]
    return subprocess.Popen(command, cwd=TESTS, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, **how)


FULL_DISK = """
import resource, sys
from helpers import tiny
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
    said, errors = python(FULL_DISK, *folders).communicate(timeout=300)
    assert errors == ""
    for folder, message in zip(folders, said.splitlines(), strict=True):
        assert re.search(rf"{re.escape(folder.name)} could not be written \(File too large\).*resume", message)
        assert files(folder / "sensitive") == ["checkpoint.safetensors", "lock"]
        assert load_tensors(folder / "sensitive" / "checkpoint.safetensors")["step"] == 4
        resumed = tiny.run(out=folder, resume=True, insecure_seed=SEED)
        assert tiny.same(resumed.model, tiny.run(insecure_seed=SEED).model)


CTRL_C = """
import sys
from helpers import tiny
from noisewise.errors import Interrupted

def wait(observation):
    print("step", observation.step, flush=True)
    if observation.step == 3:
        sys.stdin.readline()  # until the signal was sent, however long that takes

try:
    tiny.run(tiny.model(dropout=0.5), out=sys.argv[1], recorders=[wait], insecure_seed=5)
except Interrupted as error:
    print(error)
    sys.exit(error.exit_code)
"""


def test_ctrl_c_from_outside(tmp_path):
    process = python(CTRL_C, tmp_path, stdin=subprocess.PIPE)
    while process.stdout.readline() != "step 3\n":
        assert process.poll() is None
    process.send_signal(signal.SIGINT)
    said, errors = process.communicate("go on\n", timeout=300)
    assert (process.returncode, errors) == (130, "")
    assert re.search(r"stopped after step 4 of 12; nothing is lost\. Resume with resume=True", said)
    resumed = tiny.run(tiny.model(dropout=0.5), out=tmp_path, resume=True, insecure_seed=SEED)
    assert tiny.same(resumed.model, tiny.run(tiny.model(dropout=0.5), insecure_seed=SEED).model)


def kills(*arguments, timeout):
    command = [sys.executable, TESTS / "kills.py", *arguments]
    return subprocess.run(command, check=False, capture_output=True, text=True, timeout=timeout)


def test_killed_anywhere_and_resumed_a_run_ends_the_same_bit_for_bit():
    result = kills("--every-replacement", "--kills", "8", "--seed", "0", timeout=600)
    assert result.returncode == 0, result.stderr
    assert "each of 10 replacements: the same end every time" in result.stdout
    assert re.search(
        r"^8 kills, \d+ while a checkpoint was written: the same end every time$", result.stdout, re.MULTILINE
    )


@pytest.mark.slow
def test_two_hundred_kills():
    result = kills("--kills", "200", "--seed", "1", timeout=1800)
    assert result.returncode == 0, result.stderr
    assert "200 kills" in result.stdout


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

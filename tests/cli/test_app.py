"""The command line as a whole: exit codes, help, and that planning needs no torch."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch
import typer

from noisewise.cli.app import app
from noisewise.workflow.config import configure


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ("epsilon --n 10 --batch-size 5 --noise-multiplier 1", "--epochs or --steps"),
        ("epsilon --n 10 --batch-size 5 --noise-multiplier 1 --epochs 1 --steps 2", "--epochs or --steps"),
        ("epsilon --n 10 --epochs 1 --noise-multiplier 1", "--batch-size"),
        ("epsilon --n 10 --batch-size 50 --epochs 1 --noise-multiplier 1", "outside (0, 1]"),
        ("epsilon --n 10 --batch-size 5 --epochs 0 --noise-multiplier 1", "above 0"),
        ("epsilon --n 10 --batch-size 5 --epochs 1 --noise-multiplier nan", "noise_multiplier=nan"),
        ("epsilon --n 10 --batch-size 5 --epochs 1 --noise-multiplier 1 --delta 1", "delta=1.0: must be in (0, 1)"),
        ("epsilon --n 10 --sampler full-batch --batch-size 5 --epochs 1 --noise-multiplier 1", "sees all 10"),
        ("epsilon --n ten", "--n"),
        ("calibrate --n 10 --batch-size 5 --epochs 1 --epsilon -3", "epsilon=-3.0: must be a finite number above 0"),
        ("calibrate --n 0 --batch-size 5 --epochs 1 --epsilon 3", "n=0"),
        ("calibrate --n 0 --batch-size 5 --epochs 1 --epsilon 3 --delta 1e-5", "n=0"),
        ("train --out a", "how private?"),
        ("train --out a --epsilon 3 --data nope", "known data set (digits, mnist"),
        ("train --out a --epsilon 3 --model nope", "Known models: cnn"),
        ("train --out a --epsilon 3 --noise-multiplier 1", "one follows from the other"),
        ("train --out a --resume", "no run to go on with"),
        ("train --out a --config nowhere.toml", "nowhere.toml does not exist"),
        ("train --out a --noise-multiplier 1 --steps 0", "steps=0"),
        ("train --out a --noise-multiplier 1 --steps 2 --delta 2", "delta=2.0: must be in (0, 1)"),
        ("train --out a --noise-multiplier 1 --steps 2 --ema 1", "ema=1.0"),
        ("train --out a --noise-multiplier 1 --steps 2 --microbatch 0", "microbatch=0"),
        ("train --out a --noise-multiplier 1 --steps 2 --insecure-seed -1", "insecure_seed=-1"),
        ("train --out a --noise-multiplier 1 --steps 2 --clip oval", "oval"),
        ("audit a", "is no run folder"),
        ("audit a --only astrology", "audit 'astrology': unknown"),
        ("report a", "no finished run"),
        ("frobnicate", "No such command"),
    ],
)
def test_mistakes_end_with_2_and_a_remedy(noisewise, arguments: str, message: str) -> None:
    found = noisewise(*arguments.split())
    assert found.code == 2
    assert message in found.words
    assert "Traceback" not in found.err
    assert found.out == ""
    assert list(Path.cwd().iterdir()) == []


def test_refusals_for_privacy_end_with_3(noisewise, tmp_path) -> None:
    config = configure(data="digits", noise_multiplier=4.0, steps=3, batch_size=64)
    text = config.to_toml() + "epsilon = 0.01\n"
    (tmp_path / "c.toml").write_text(text)
    found = noisewise("train", "--config", "c.toml", "--out", "a")
    assert found.code == 3
    assert "more than the epsilon=0.01" in found.words


def test_a_bug_ends_with_1_and_says_so(noisewise, monkeypatch) -> None:
    monkeypatch.setattr("noisewise.cli.audit.ask", lambda *_, **__: 1 / 0)
    found = noisewise("audit", "a")
    assert found.code == 1
    assert "ZeroDivisionError" in found.err
    assert "bug in noisewise" in found.words


@pytest.mark.parametrize(
    "error",
    [
        MemoryError("a row of somebody's"),
        torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 486.00 MiB: a row of somebody's."),
        RuntimeError("CUDA error: out of memory, a row of somebody's"),
        RuntimeError("CUBLAS_STATUS_ALLOC_FAILED when calling cublasCreate, a row of somebody's"),
    ],
    ids=str,
)
def test_full_memory_is_no_bug(noisewise, monkeypatch, error) -> None:
    def fill(*_, **__):
        raise error

    monkeypatch.setattr("noisewise.cli.audit.ask", fill)
    found = noisewise("audit", "a")
    assert (found.code, "bug" in found.words, "Traceback" in found.err) == (2, False, False)
    assert f"memory is full ({type(error).__name__} at " in found.words
    assert "test_app.py:" in found.words
    assert "--jobs" in found.words
    assert "somebody" not in found.words + found.err


# --- help
@pytest.mark.parametrize("command", ["epsilon", "calibrate", "train", "audit", "report", "demo"])
def test_help_teaches_by_example(noisewise, command: str) -> None:
    found = noisewise(command, "--help")
    assert found.code == 0
    assert f"Example: noisewise {command}" in found.words


def test_help_lists_commands_and_exit_codes(noisewise) -> None:
    found = noisewise("--help")
    for text in ("epsilon", "calibrate", "train", "audit", "report", "demo", "130 interrupted", "3 refused"):
        assert text in found.words
    assert noisewise("--version").out.startswith("noisewise ")


@pytest.mark.parametrize(
    "arguments",
    [
        ["--help"],
        ["train", "--help"],
        ["epsilon", "--n", "100", "--sampler", "full-batch", "--steps", "2", "--noise-multiplier", "5"],
        ["calibrate", "--n", "100", "--sampler", "full-batch", "--steps", "2", "--epsilon", "5", "--json"],
    ],
)
def test_planning_needs_no_torch(arguments: list[str]) -> None:
    code = (
        "import sys; from noisewise import cli\n"
        f"sys.argv = ['noisewise', *{arguments!r}]\n"
        "try: cli.main()\n"
        "except SystemExit as stopped: assert not stopped.code, stopped.code\n"
        "heavy = {'torch', 'matplotlib', 'sklearn', 'noisewise.audits', 'noisewise.workflow.config'} & set(sys.modules)\n"
        "assert not heavy, heavy\n"
        "assert '--help' not in sys.argv or not {'numpy', 'scipy', 'dp_accounting'} & set(sys.modules)\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, timeout=300)


def bracketed(text: str) -> set[str]:
    """What stands in brackets in a help text, without styles such as [bold] and their ends."""
    found = {"".join(words.split()) for words in re.findall(r"\[([^\[\]]+)\]", text.replace("\\[", "["))}
    return {words for words in found if words not in ("bold", "dim") and not words.startswith("/")}


def test_brackets_of_help_texts_are_shown(noisewise, monkeypatch) -> None:
    """Rich takes what stands in brackets for a style, and drops it; a backslash before them keeps them."""
    monkeypatch.setenv("COLUMNS", "200")
    seen = set()
    for name, command in typer.main.get_command(app).commands.items():
        shown = re.sub(r"[\s│]", "", noisewise(name, "--help").out)
        options = (text for option in command.params for text in (option.help, option.metavar))
        for text in (command.help, command.epilog, *options):
            for words in bracketed(text or ""):
                seen.add(words)
                assert f"[{words}]" in shown, f"{name} --help swallows [{words}]"
    assert {"n,channels,height,width", "stand_in"} <= seen


def test_a_reader_that_leaves_is_no_bug() -> None:
    """`noisewise ... | head -1`: the pipe closes before anything is written; 141 is what shells say of it, 1 would be a bug."""
    for arguments in (
        ["--help"],
        ["epsilon", "--n", "100", "--sampler", "full-batch", "--steps", "2", "--noise-multiplier", "5"],
    ):
        reader, writer = os.pipe()
        os.close(reader)
        done = subprocess.run(
            [sys.executable, "-c", "from noisewise import cli; cli.main()", *arguments],
            stdout=writer, stderr=subprocess.PIPE, timeout=300,
        )  # fmt: skip
        os.close(writer)
        assert done.returncode == 141
        assert b"bug" not in done.stderr

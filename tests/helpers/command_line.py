"""The command line, run in this process."""

from __future__ import annotations

import sys
from collections.abc import Callable

import pytest

from noisewise import cli


class Outcome:
    """Exit code and what was printed."""

    def __init__(self, code: int, out: str, err: str):
        self.code, self.out, self.err = code, out, err

    @property
    def words(self) -> str:
        """Both streams in one line, however they were wrapped."""
        return " ".join(f"{self.out} {self.err}".split())


def command_line(monkeypatch, capsys, folder, columns: int) -> Callable[..., Outcome]:
    """What runs the command line in this process, in a folder, with a terminal of so many columns."""
    monkeypatch.chdir(folder)
    monkeypatch.setenv("OMP_WAIT_POLICY", "passive")
    monkeypatch.setenv("COLUMNS", str(columns))

    def call(*arguments: str) -> Outcome:
        monkeypatch.setattr(sys, "argv", ["noisewise", *arguments])
        with pytest.raises(SystemExit) as stopped:
            cli.main()
        captured = capsys.readouterr()
        return Outcome(int(stopped.value.code or 0), captured.out, captured.err)

    return call

"""The command line, run in this process."""

from __future__ import annotations

import sys

import pytest

from noisewise import cli


class Outcome:
    def __init__(self, code: int, out: str, err: str):
        self.code, self.out, self.err = code, out, err

    @property
    def words(self) -> str:
        """Both streams in one line, however they were wrapped."""
        return " ".join((self.out + self.err).split())


@pytest.fixture
def noisewise(monkeypatch, capsys, tmp_path):
    """Runs the command line in this process, in an empty folder."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("OMP_WAIT_POLICY", "passive")
    monkeypatch.setenv("COLUMNS", "120")

    def call(*arguments: str) -> Outcome:
        monkeypatch.setattr(sys, "argv", ["noisewise", *arguments])
        with pytest.raises(SystemExit) as stopped:
            cli.main()
        captured = capsys.readouterr()
        return Outcome(int(stopped.value.code or 0), captured.out, captured.err)

    return call

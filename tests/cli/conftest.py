"""The command line, run in this process."""

from __future__ import annotations

import pytest

from helpers.command_line import command_line


@pytest.fixture
def noisewise(monkeypatch, capsys, tmp_path):
    """Runs the command line in this process, in an empty folder."""
    return command_line(monkeypatch, capsys, tmp_path, columns=120)

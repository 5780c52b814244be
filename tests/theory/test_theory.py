"""The room as a whole: papers' formulas are light and know nothing of models, results and reports."""

from __future__ import annotations

import ast
import json
import pkgutil
import subprocess
import sys
from pathlib import Path

import pytest

import noisewise.theory

NAMES = [module.name for module in pkgutil.iter_modules(noisewise.theory.__path__)]
LOOK = """
import importlib, json, sys
importlib.import_module(sys.argv[1])
print(json.dumps([heavy for heavy in ("torch", "matplotlib", "scipy", "sklearn", "pandas", "rich") if heavy in sys.modules]))
"""


@pytest.mark.parametrize("name", NAMES)
def test_nothing_heavy_is_imported(name: str) -> None:
    asked = [sys.executable, "-c", LOOK, f"noisewise.theory.{name}"]
    assert json.loads(subprocess.run(asked, capture_output=True, text=True, check=True).stdout) == []


@pytest.mark.parametrize("name", NAMES)
def test_only_errors_and_estimates_are_known(name: str) -> None:
    tree = ast.parse(Path(noisewise.theory.__path__[0], f"{name}.py").read_text(encoding="utf-8"))
    rooms = {
        node.module.split(".")[1]
        for node in ast.walk(tree)
        if isinstance(node, ast.ImportFrom) and node.module and node.module.startswith("noisewise.")
    }
    assert rooms <= {"errors", "estimates"}


@pytest.mark.parametrize("name", NAMES)
def test_every_paper_has_its_tests(name: str) -> None:
    assert Path(__file__).with_name(f"test_{name}.py").is_file()

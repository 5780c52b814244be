from __future__ import annotations

import json
import pkgutil
import subprocess
import sys

import noisewise.attacks
import noisewise.audits

HEAVY = ("torch", "matplotlib", "scipy", "sklearn", "pandas", "rich")
LOOK = """
import importlib, json, sys
found = {}
for name in sys.argv[1:]:
    importlib.import_module(name)
    found[name] = [heavy for heavy in %r if heavy in sys.modules]
print(json.dumps(found))
"""


def test_no_audit_imports_anything_heavy() -> None:
    names = [f"noisewise.audits.{module.name}" for module in pkgutil.iter_modules(noisewise.audits.__path__)]
    assert {"noisewise.audits.disparity", "noisewise.audits.people"} <= set(names)
    asked = [sys.executable, "-c", LOOK % (HEAVY,), *names]
    found = json.loads(subprocess.run(asked, capture_output=True, text=True, check=True).stdout)
    assert found == {name: [] for name in names}


def test_no_attack_imports_anything_heavy_nor_an_audit() -> None:
    names = [f"noisewise.attacks.{module.name}" for module in pkgutil.iter_modules(noisewise.attacks.__path__)]
    assert {"noisewise.attacks.pgd", "noisewise.attacks.inversion", "noisewise.attacks.distinguishing"} <= set(names)
    asked = [sys.executable, "-c", LOOK % ((*HEAVY, "noisewise.audits"),), *names]
    found = json.loads(subprocess.run(asked, capture_output=True, text=True, check=True).stdout)
    assert found == {name: [] for name in names}


def test_a_heavy_import_would_be_seen() -> None:
    asked = [sys.executable, "-c", LOOK % (HEAVY,), "noisewise.repairs.temperature"]
    found = json.loads(subprocess.run(asked, capture_output=True, text=True, check=True).stdout)
    assert "torch" in found["noisewise.repairs.temperature"]

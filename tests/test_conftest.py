"""NOISEWISE_REQUIRE_ALL=1 turns skipped tests into failures."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

CASES = {
    "skipped by mark": "import pytest\n@pytest.mark.skip(reason='no data')\ndef test_a(): assert True\n",
    "skipped inside": "import pytest\ndef test_a(): pytest.skip('no data')\n",
    "whole file": "import pytest\npytest.skip('no data', allow_module_level=True)\n",
    "missing package": "import pytest\nno_data = pytest.importorskip('no_data')\n",
    "passes": "def test_a(): assert True\n",
    "expected failure": "import pytest\n@pytest.mark.xfail(strict=True)\ndef test_a(): assert False\n",
}


def outcome(folder, cases, **environment):
    """Exit status of a pytest run on these files."""
    for name in cases:
        (folder / f"test_{name.replace(' ', '_')}.py").write_text(CASES[name])
    shutil.copy(Path(__file__).with_name("conftest.py"), folder)
    kept = {key: value for key, value in os.environ.items() if not key.startswith(("PYTEST_", "NOISEWISE_"))}
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-q",
        "-p",
        "no:cacheprovider",
        "-c",
        os.devnull,
        "--rootdir",
        folder,
        folder,
    ]
    done = subprocess.run(command, env=kept | environment, capture_output=True, text=True, cwd=folder)
    return done.returncode, done.stdout


SKIPS = ["skipped by mark", "skipped inside", "whole file", "missing package"]


def test_skips_pass_by_default(tmp_path):
    assert outcome(tmp_path, CASES)[0] == 0


@pytest.mark.parametrize("case", SKIPS)
def test_a_skip_is_a_failure_when_everything_is_required(tmp_path, case):
    status, output = outcome(tmp_path, [case, "passes"], NOISEWISE_REQUIRE_ALL="1")
    assert status != 0
    assert "NOISEWISE_REQUIRE_ALL=1 requires every test" in output
    assert "no data" in output or "no_data" in output


def test_what_is_not_skipped_is_not_touched(tmp_path):
    assert outcome(tmp_path, ["passes", "expected failure"], NOISEWISE_REQUIRE_ALL="1")[0] == 0

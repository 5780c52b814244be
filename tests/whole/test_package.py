"""The package as a whole: what an import costs, and that every public name is there."""

import importlib
import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

import noisewise
from helpers import tiny
from noisewise import _moved


def python(code):
    """Run code in a process that has imported nothing yet; what it prints."""
    result = subprocess.run([sys.executable, "-W", "error", "-c", code], check=False, capture_output=True, text=True)
    assert result.returncode == 0, result.stderr
    return result.stdout.strip()


LIGHT = [
    "import noisewise",
    "import noisewise; dir(noisewise); noisewise.__version__",
    "from noisewise.data.catalog import CATALOG; import noisewise; noisewise.data.CATALOG",
    "import noisewise.mechanism, noisewise.accounting, noisewise.sampling, noisewise.clipping, noisewise.support",
    "from noisewise import Ledger, Mechanism, Poisson, Runtime, Schedule; "
    "Mechanism(sampler=Poisson(600, 10), steps=20).calibrated(3, 1e-5).spent(1e-5)",
]


@pytest.mark.parametrize("code", LIGHT)
def test_accounting_does_not_import_torch(code):
    assert python(f"{code}; import sys; print('torch' in sys.modules)") == "False"


def test_importing_the_package_imports_nothing_heavy():
    heavy = "{'torch', 'numpy', 'scipy', 'sklearn', 'matplotlib', 'dp_accounting'}"
    assert python(f"import noisewise, sys; print({heavy} & set(sys.modules))") == "set()"


@pytest.mark.parametrize("name", noisewise.__all__)
def test_every_public_name_resolves(name):
    assert getattr(noisewise, name) is not None
    assert name in dir(noisewise)


def test_unknown_names_are_attribute_errors():
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        noisewise.nothing  # noqa: B018


def test_train_is_a_function_whatever_was_imported_before():
    code = (
        "import noisewise, noisewise.training.loop; from noisewise import train; print(train is noisewise.train, train)"
    )
    assert python(code).startswith("True <function train")


OLD_PATHS = """
import importlib, json, os, sys, warnings
import torch, torch._dynamo, scipy.stats, sklearn.linear_model, pandas, matplotlib.pyplot, dp_accounting, rich, typer

for old, new in json.loads(sys.argv[1]).items():
    if os.fork():
        assert os.wait()[1] == 0, old
        continue
    assert not [name for name in sys.modules if name.startswith("noisewise")]
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        was = importlib.import_module("noisewise." + old)
    homes = [importlib.import_module("noisewise." + home) for home in new.split(", ")]
    names = {name: home for home in reversed(homes) for name in vars(home) if not name.startswith("__")}
    same = all(getattr(was, name) is getattr(home, name) for name, home in names.items())
    print(json.dumps([old, [same, len(names) > 1, str(seen[0].message)]]), flush=True)
    os._exit(0)
"""


def test_old_paths_still_work_and_say_where_things_are_now():
    """What each old path gives to whoever imports it first: processes that share the libraries, but not noisewise."""
    command = [sys.executable, "-W", "error", "-W", "ignore:This process:DeprecationWarning", "-c", OLD_PATHS]
    result = subprocess.run([*command, json.dumps(_moved.MOVED)], check=False, capture_output=True, text=True)
    assert result.returncode == 0, result.stderr
    wheres = {old: new.replace(", ", " and noisewise.") for old, new in _moved.MOVED.items()}
    assert dict(map(json.loads, result.stdout.splitlines())) == {
        old: [True, True, f"noisewise.{old} is noisewise.{where} now; the old path goes with the next version."]
        for old, where in wheres.items()
    }


def test_the_old_module_train_trains_when_it_is_called():
    with pytest.warns(DeprecationWarning, match="noisewise.train is noisewise.training now"):
        module = importlib.import_module("noisewise.train")
    try:
        network = tiny.model()
        trained = module(
            network, tiny.data(), tiny.loss_fn, tiny.mechanism(), tiny.sgd(network), insecure_seed=1, progress=False
        )
    finally:
        del sys.modules["noisewise.train"], noisewise.train
    assert trained.ledger.releases == tiny.STEPS
    assert tiny.same(network, tiny.run(insecure_seed=1).model)


OLD_NAMES = [
    (module, home, name)
    for module, homes in _moved.NAMES.items()
    for home, names in homes.items()
    for name in names.split()
]


@pytest.mark.parametrize(("module", "home", "name"), OLD_NAMES)
def test_old_names_still_work_and_say_where_they_are_now(module, home, name):
    was, now = (importlib.import_module(f"noisewise.{path}") for path in (module, home))
    assert name in vars(now), "name the home itself, not one that hands it on"
    assert name not in vars(was)
    words = f"noisewise.{module}.{name} is noisewise.{home}.{name} now; the old path goes with the next version."
    with pytest.warns(DeprecationWarning, match=re.escape(words)) as seen:
        assert getattr(was, name) is getattr(now, name)
    assert [warning.filename for warning in seen] == [__file__]


def test_modules_whose_names_moved_have_the_hook_and_no_others():
    source = Path(noisewise.__file__).parent
    hooked = {
        path.relative_to(source).with_suffix("").as_posix().removesuffix("/__init__").replace("/", ".")
        for path in source.rglob("*.py")
        if "__getattr__ = old_names(__name__)" in path.read_text()
    }
    assert hooked == set(_moved.NAMES)


@pytest.mark.parametrize("module", _moved.NAMES)
def test_names_that_were_never_there_are_attribute_errors(module):
    with pytest.raises(AttributeError, match=f"module 'noisewise.{module}' has no attribute 'nothing'"):
        importlib.import_module(f"noisewise.{module}").nothing  # noqa: B018


def test_a_name_is_imported_from_its_old_module():
    with pytest.warns(DeprecationWarning, match=r"noisewise.mechanism.Runtime is noisewise.runtime.Runtime now"):
        from noisewise.mechanism import Runtime
    assert Runtime is noisewise.Runtime

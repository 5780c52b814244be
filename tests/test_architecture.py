"""The house in order, read off the source: short files, imports at the top, a test for each module.

What is not so yet is listed; each list may only get shorter: an entry that is not needed any more fails as well.
"""

import ast
from pathlib import Path

PROJECT = Path(__file__).parent.parent
SOURCE, TESTS = PROJECT / "src" / "noisewise", PROJECT / "tests"
MODULES = {path.relative_to(SOURCE).as_posix(): path for path in sorted(SOURCE.rglob("*.py"))}

MOST_LINES = 500
TOO_LONG = {
    "audits/calibration.py",
    "audits/clipping_bias.py",
    "audits/convergence.py",
    "audits/disparity.py",
    "audits/empirical.py",
    "audits/feature_noise.py",
    "audits/feature_story.py",
    "audits/landscape.py",
    "audits/membership.py",
    "audits/ntk.py",
    "audits/reconstruction.py",
    "audits/robustness.py",
    "cli/commands.py",
    "data/tables/schema.py",
    "persample/examine.py",
    "persample/gradients.py",
    "persample/operations.py",
    "persample/proof.py",
    "training/loop.py",
    "workflow/config.py",
}

HEAVY = {"torch", "numpy", "scipy", "matplotlib", "sklearn", "pandas", "rich", "dp_accounting", "pooch"}
LATE_IMPORTS = {  # file: imports inside functions of what is not heavy
    "audits/attribution.py": 3,
    "audits/clipping_bias.py": 11,
    "audits/convergence.py": 12,
    "audits/empirical.py": 12,
    "audits/feature_noise.py": 4,
    "audits/feature_story.py": 10,
    "audits/landscape.py": 4,
    "audits/ntk.py": 3,
    "audits/outputs.py": 1,
    "audits/reconstruction.py": 7,
    "audits/recorder.py": 13,
    "audits/result.py": 1,
    "cli/commands.py": 27,
    "data/tables/schema.py": 1,
    "recipe.py": 2,
    "runs/folder.py": 6,
    "training/loop.py": 2,
    "workflow/config.py": 1,
}

COMMON_SUITES = {"models": "test_models.py", "repairs": "repairs/test_repairs_all.py"}  # run over the room's list
TESTED_ELSEWHERE = {  # module: the file that tests it, under another name
    "__init__.py": "test_package.py",
    "_moved.py": "test_package.py",
    "accounting/defaults.py": "test_words.py",
    "accounting/events.py": "accounting/test_ledger.py",
    "attacks/shadows.py": "audits/test_membership.py",
    "audits/__init__.py": "audits/test_audit_options.py",
    "audits/codec.py": "audits/test_result.py",
    "audits/recorder.py": "test_recorders.py",
    "batches.py": "test_nest.py",
    "cli/commands.py": "test_cli.py",
    "data/base.py": "test_data.py",
    "data/marks.py": "test_lineage.py",
    "data/tables/propose.py": "test_proposal.py",
    "data/tables/rows.py": "test_table.py",
    "errors.py": "test_mishaps.py",
    "estimates/estimate.py": "audits/test_intervals.py",
    "estimates/roc.py": "audits/test_membership.py",
    "noise.py": "test_secure.py",
    "persample/__init__.py": "persample/test_clipped_sum.py",
    "randomness.py": "test_entropy.py",
    "report/__init__.py": "report/test_page.py",
    "report/figures.py": "report/test_page.py",
    "runs/folder.py": "test_runs.py",
    "runtime.py": "test_private_step.py",
    "testing/checks.py": "test_testing.py",
    "training/augmentation.py": "repairs/test_repairs_changes.py",
    "training/loop.py": "test_train.py",
    "wording.py": "test_words.py",
}


def late_imports(tree):
    """Names of modules that functions import, heavy ones left out."""
    functions = [node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)]
    inside = {node: None for function in functions for node in ast.walk(function)}  # functions lie within functions
    names = []
    for node in inside:
        if isinstance(node, ast.Import):
            names += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            names.append(node.module or ".")
    return [name for name in names if name.partition(".")[0] not in HEAVY]


def defines(tree):
    """Does a module hold code of its own, not only names from elsewhere?"""
    return any(isinstance(node, ast.FunctionDef | ast.ClassDef) for node in tree.body)


def names_of_tests(module):
    """test_disk.py or test_data_disk.py for data/disk.py; a package by its folder."""
    parts = module.removesuffix(".py").removesuffix("/__init__").split("/")
    return {f"test_{parts[-1]}.py", f"test_{'_'.join(parts[-2:])}.py"}


def without_test():
    """Modules with code of their own that neither a file of their name nor their room's common suite tests."""
    there = {path.name for path in TESTS.rglob("test_*.py")}
    return {
        module
        for module, path in MODULES.items()
        if module.partition("/")[0] not in COMMON_SUITES
        and not names_of_tests(module) & there
        and defines(ast.parse(path.read_text()))
    }


def test_there_are_modules_to_look_at():
    assert {"errors.py", "bounded.py", "accounting/ledger.py"} <= set(MODULES)


def test_no_file_is_long():
    assert {module for module, path in MODULES.items() if path.read_text().count("\n") > MOST_LINES} == TOO_LONG


def test_functions_import_heavy_libraries_only():
    late = {module: len(late_imports(ast.parse(path.read_text()))) for module, path in MODULES.items()}
    assert {module: count for module, count in late.items() if count} == LATE_IMPORTS


def test_late_imports_are_seen_wherever_they_hide():
    source = (
        "import json\ndef f():\n  import torch.nn, csv\n  def g():\n    from noisewise import data\n    import scipy"
    )
    assert late_imports(ast.parse(source)) == ["csv", "noisewise"]


def test_every_module_has_a_test_of_its_name():
    assert without_test() == set(TESTED_ELSEWHERE)


def test_tests_under_other_names_are_there():
    named = {*TESTED_ELSEWHERE.values(), *COMMON_SUITES.values()}
    assert {name for name in named if not (TESTS / name).is_file()} == set()

"""The house in order, read off the source: short files, imports at the top, a test for each module.

What is not so yet is listed; each list may only get shorter: an entry that is not needed any more fails as well.
"""

import ast
from pathlib import Path

PROJECT = Path(__file__).parent.parent
SOURCE, TESTS = PROJECT / "src" / "noisewise", PROJECT / "tests"
MODULES = {path.relative_to(SOURCE).as_posix(): path for path in sorted(SOURCE.rglob("*.py"))}

MOST_LINES = 500

HEAVY = {"torch", "numpy", "scipy", "matplotlib", "sklearn", "pandas", "rich", "dp_accounting", "pooch", "pyarrow"}
LATE_IMPORTS = {  # file: imports inside functions of what is not heavy
    "attacks/canaries.py": 7,
    "attacks/distinguishing.py": 1,
    "attacks/inversion.py": 4,
    "audits/attribution.py": 3,
    "audits/convergence.py": 6,
    "audits/engine_epsilon.py": 5,
    "audits/exact_ratio.py": 1,
    "audits/feature_scene.py": 2,
    "audits/feature_story.py": 5,
    "audits/gradients.py": 11,
    "audits/landscape.py": 1,
    "audits/ntk.py": 2,
    "audits/one_run.py": 2,
    "audits/outputs.py": 1,
    "audits/part_gradients.py": 1,
    "audits/reconstruction.py": 3,
    "audits/recorder.py": 5,
    "audits/result.py": 1,
    "audits/states.py": 1,
    "cli/account.py": 6,
    "cli/audit.py": 6,
    "cli/check.py": 2,
    "cli/report.py": 1,
    "cli/tables.py": 4,
    "cli/train.py": 11,
    "data/tables/schema.py": 1,
    "report/__init__.py": 5,
    "runs/folder.py": 1,
    "runs/tensors.py": 5,
    "workflow/config.py": 1,
}

COMMON_SUITES = {"models": "test_models.py", "repairs": "repairs/test_repairs_all.py"}  # run over the room's list
TESTED_ELSEWHERE = {  # module: the file that tests it, under another name
    "__init__.py": "test_package.py",
    "_moved.py": "test_package.py",
    "accounting/defaults.py": "test_words.py",
    "accounting/events.py": "accounting/test_ledger.py",
    "attacks/campaign.py": "audits/test_robustness.py",
    "attacks/canaries.py": "audits/test_empirical.py",
    "attacks/distinguishing.py": "audits/test_empirical.py",
    "attacks/inversion.py": "audits/test_reconstruction.py",
    "attacks/members.py": "audits/test_membership.py",
    "attacks/pgd.py": "audits/test_robustness.py",
    "attacks/shadows.py": "audits/test_membership.py",
    "audits/__init__.py": "audits/test_audit_options.py",
    "audits/audit.py": "audits/test_conformance.py",
    "audits/confidence.py": "audits/test_calibration.py",
    "audits/difficulty.py": "audits/test_disparity.py",
    "audits/engine_epsilon.py": "audits/test_empirical.py",
    "audits/error_disparity.py": "audits/test_disparity.py",
    "audits/fairness.py": "audits/test_disparity.py",
    "audits/one_run.py": "audits/test_empirical.py",
    "audits/price.py": "report/test_page.py",
    "audits/recorder.py": "test_recorders.py",
    "audits/show.py": "audits/test_people.py",
    "batches.py": "test_nest.py",
    "cli/account.py": "test_cli.py",
    "cli/app.py": "test_cli.py",
    "cli/audit.py": "test_cli.py",
    "cli/check.py": "test_modelcheck.py",
    "cli/report.py": "test_cli.py",
    "cli/shared.py": "test_cli.py",
    "cli/tables.py": "test_proposal.py",
    "data/base.py": "test_data.py",
    "data/marks.py": "test_lineage.py",
    "data/tables/__init__.py": "data/tables/test_tables_end_to_end.py",
    "data/tables/checks.py": "test_schema.py",
    "data/tables/declare.py": "test_proposal.py",
    "data/tables/encode.py": "test_schema.py",
    "data/tables/guess.py": "data/tables/test_tables_survey.py",
    "data/tables/propose.py": "test_proposal.py",
    "data/tables/rows.py": "test_table.py",
    "errors.py": "test_mishaps.py",
    "estimates/estimate.py": "audits/test_intervals.py",
    "estimates/roc.py": "audits/test_membership.py",
    "evaluation.py": "audits/test_outputs.py",
    "noise.py": "test_secure.py",
    "persample/behaviour.py": "persample/test_examine.py",
    "persample/bounds.py": "persample/test_gradients.py",
    "persample/choosing.py": "persample/test_operations.py",
    "persample/conditions.py": "persample/test_operations.py",
    "persample/convolution.py": "persample/test_gradients.py",
    "persample/dispatched.py": "persample/test_proof.py",
    "persample/formed.py": "persample/test_gradients.py",
    "persample/labels.py": "persample/test_proof.py",
    "persample/layout.py": "persample/test_examine.py",
    "persample/made_up.py": "persample/test_examine.py",
    "persample/rules.py": "persample/test_operations.py",
    "persample/trace.py": "persample/test_proof.py",
    "persample/units_alone.py": "persample/test_engines.py",
    "persample/watch.py": "persample/test_held.py",
    "randomness.py": "test_entropy.py",
    "report/__init__.py": "report/test_page.py",
    "report/figures.py": "report/test_page.py",
    "runs/files.py": "test_write_order.py",
    "runs/folder.py": "test_runs.py",
    "runs/summary.py": "test_runs.py",
    "runs/tensors.py": "test_runs.py",
    "runtime.py": "test_private_step.py",
    "testing/auditcheck.py": "audits/test_conformance.py",
    "testing/checks.py": "test_testing.py",
    "training/ablation.py": "test_private_step.py",
    "training/augmentation.py": "repairs/test_repairs_changes.py",
    "training/batches.py": "test_units.py",
    "training/checkpoint.py": "test_runs.py",
    "training/course.py": "test_support.py",
    "training/loop.py": "test_train.py",
    "training/memory.py": "test_mishaps.py",
    "training/run.py": "test_train.py",
    "training/start.py": "test_lineage.py",
    "training/state.py": "test_lineage.py",
    "training/step.py": "test_private_step.py",
    "training/summary.py": "test_communication.py",
    "wording.py": "test_words.py",
    "workflow/__init__.py": "test_config.py",
    "workflow/choices.py": "test_config.py",
    "workflow/defaults.py": "test_config.py",
    "workflow/execution.py": "test_config.py",
    "workflow/opened.py": "test_config.py",
    "workflow/plan.py": "test_config.py",
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
    assert {module for module, path in MODULES.items() if path.read_text().count("\n") > MOST_LINES} == set()


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

"""The house in order, read off the source: short files, imports at the top, a test for each module.

What is not so yet is listed; each list may only get shorter: an entry that is not needed any more fails as well.
"""

import ast
from pathlib import Path

PROJECT = Path(__file__).parent.parent
SOURCE, TESTS = PROJECT / "src" / "noisewise", PROJECT / "tests"
MODULES = {path.relative_to(SOURCE).as_posix(): path for path in sorted(SOURCE.rglob("*.py"))}

MOST_LINES = 500

HEAVY = {
    "torch",
    "numpy",
    "scipy",
    "matplotlib",
    "sklearn",
    "pandas",
    "rich",
    "dp_accounting",
    "pooch",
    "safetensors",
    "pyarrow",
    "ray",
}
LATE_IMPORTS = {  # file: imports inside functions of what is not heavy
    "attacks/canaries.py": 2,
    "attacks/inversion.py": 2,
    "audits/engine_epsilon.py": 1,
    "audits/exact_ratio.py": 1,
    "audits/feature_scene.py": 1,
    "audits/feature_story.py": 4,
    "audits/gradients.py": 2,
    "audits/landscape.py": 1,
    "audits/one_run.py": 1,
    "audits/retrained.py": 2,
    "cli/account.py": 4,
    "cli/audit.py": 8,
    "cli/check.py": 2,
    "cli/compare.py": 1,
    "cli/forecast.py": 1,
    "cli/lists.py": 7,
    "cli/planned.py": 3,
    "cli/processes.py": 3,
    "cli/predict.py": 2,
    "cli/pretrain.py": 3,
    "cli/report.py": 1,
    "cli/reproduce.py": 3,
    "cli/seeds.py": 2,
    "cli/share.py": 3,
    "cli/sweep.py": 2,
    "cli/suggest.py": 1,
    "cli/table_schema.py": 4,
    "cli/tables.py": 4,
    "cli/temperature.py": 1,
    "cli/train.py": 13,
    "cli/verify.py": 1,
    "data/tables/propose.py": 1,
    "data/tables/schema.py": 4,
    "workflow/settings.py": 1,
}

COMMON_SUITES = {"models": "models/test_models.py", "repairs": "repairs/test_repairs.py"}  # run over the room's list
TESTED_ELSEWHERE = {  # module: the file that tests it, where another name is better
    "__init__.py": "whole/test_package.py",  # the package as its users see it
    "_moved.py": "whole/test_package.py",
    "workflow/__init__.py": "whole/test_package.py",  # old paths lead there
    "errors.py": "whole/test_mishaps.py",  # every error, provoked for real
    "estimators/classifier.py": "estimators/test_checks.py",  # scikit-learn's checks ask both kinds
    "estimators/regressor.py": "estimators/test_checks.py",
    "training/given.py": "whole/test_wrong_uses.py",  # each thing of the wrong kind, handed to what users call
    "cli/shared.py": "cli/test_app.py",  # options, notes and terminal of all commands
    "estimates/estimate.py": "estimates/test_intervals.py",  # an Estimate is what an interval gives
    "persample/choosing.py": "persample/test_operations.py",  # rules are asked through the table that names them
    "persample/conditions.py": "persample/test_operations.py",
    "persample/rules.py": "persample/test_operations.py",
    "persample/dispatched.py": "persample/test_proof.py",  # seen through a pass that is followed
    "persample/labels.py": "persample/test_proof.py",
    "persample/replay.py": "training/test_captured.py",  # a replay is part of a captured step
    "persample/triton_kernels.py": "persample/test_kernels.py",  # asked through the portable ways
    "data/cached.py": "data/test_scatter.py",  # asked through the features that it keeps
    "recipes/base.py": "recipes/test_recipes.py",  # over the room's list
    "recipes/encoder.py": "recipes/test_pretraining.py",  # what is pretrained
    "recipes/learned.py": "recipes/test_pretraining.py",  # features of what was pretrained
    "recipes/made_up_linear.py": "recipes/test_recipes.py",
    "recipes/patches_linear.py": "recipes/test_recipes.py",
    "recipes/scattering_cnn.py": "recipes/test_recipes.py",
    "recipes/scattering_linear.py": "recipes/test_recipes.py",
    "data/tables/__init__.py": "data/tables/test_end_to_end.py",  # names that lead into the room
    "data/tables/checks.py": "data/tables/test_kinds.py",  # what kinds refuse
    "data/tables/guess.py": "data/tables/test_survey.py",  # what a survey is taken for
    "workflow/released_score.py": "report/test_shareable.py",  # a score is released to be shared
    "runs/scores.py": "report/test_shareable.py",
    "recipes/named.py": "recipes/test_recipes.py",  # the list that these tests go through
    "workflow/public_results.py": "report/test_shareable.py",  # what is measured openly is what is shared
    "report/figures.py": "report/test_report.py",  # figures of a run's page
    "reproduce/bu2022/images.py": "reproduce/test_papers.py",  # quick tiers, and what their claims say of known numbers
    "reproduce/bu2022/protocols.py": "reproduce/test_papers.py",
    "reproduce/bu2022/text.py": "reproduce/test_papers.py",
    "reproduce/bu2022/theory.py": "reproduce/test_papers.py",
    "reproduce/questions/reasons.py": "reproduce/test_papers.py",
    "reproduce/questions/repaired.py": "reproduce/test_papers.py",
    "reproduce/watson2023/gradients.py": "reproduce/test_papers.py",
    "reproduce/watson2023/landscapes.py": "reproduce/test_papers.py",
    "reproduce/watson2023/pruned.py": "reproduce/test_papers.py",
    "reproduce/watson2023/theory.py": "reproduce/test_papers.py",
    "reproduce/watson2023/training.py": "reproduce/test_papers.py",
    "reproduce/zhu2023/grids.py": "reproduce/test_papers.py",
    "reproduce/zhu2023/looks.py": "reproduce/test_papers.py",
    "reproduce/zhu2023/theory.py": "reproduce/test_papers.py",
    "reproduce/zhu2023/training.py": "reproduce/test_papers.py",
    "reproduce/xu2026/images.py": "reproduce/test_papers.py",
    "reproduce/xu2026/noise.py": "reproduce/test_papers.py",
    "reproduce/xu2026/padding.py": "reproduce/test_papers.py",
    "reproduce/xu2026/people.py": "reproduce/test_papers.py",
    "reproduce/xu2026/rotation.py": "reproduce/test_papers.py",
    "reproduce/xu2026/shared.py": "reproduce/test_papers.py",
    "reproduce/xu2026/theory.py": "reproduce/test_papers.py",
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


def name_of_tests(module):
    """data/test_disk.py for data/disk.py; data/test_data.py for the package itself."""
    path = Path(module)
    return (path.parent / f"test_{path.parent.name if path.stem == '__init__' else path.stem}.py").as_posix()


def without_test():
    """Modules with code of their own that neither a file of their name nor their room's common suite tests."""
    return {
        module
        for module, path in MODULES.items()
        if module.partition("/")[0] not in COMMON_SUITES
        and not (TESTS / name_of_tests(module)).is_file()
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


def test_names_of_tests():
    names = {"disk.py": "test_disk.py", "data/disk.py": "data/test_disk.py", "data/__init__.py": "data/test_data.py"}
    assert {module: name_of_tests(module) for module in names} == names


def test_every_module_has_a_test_of_its_name():
    assert without_test() == set(TESTED_ELSEWHERE)


def test_tests_under_other_names_are_there():
    named = {*TESTED_ELSEWHERE.values(), *COMMON_SUITES.values()}
    assert {name for name in named if not (TESTS / name).is_file()} == set()

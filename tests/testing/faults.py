"""Faults in noisewise.testing that the tests must notice; `tests/mutants.py` plants them."""

from helpers.planting import Mutant

FAULTS = [
    # options of the command line
    Mutant(
        "fresh: check: the slowest engine is said of all",
        "testing/modelcheck.py",
        "    if name not in layout.fallback:\n",
        "    if not layout.fallback:\n",
        ("testing/test_modelcheck.py::test_the_engine_of_each_parameter_is_told",),
    ),
    Mutant(
        "check: units without a proof are said to be proven",
        "testing/modelcheck.py",
        'Parameter(name, shape, "each unit alone", "dense"',
        'Parameter(name, shape, "proven row by row", "dense"',
        ("testing/test_modelcheck.py::test_each_parameter_is_proven_or_alone_with_the_reason",),
    ),
    Mutant(
        "check: parameters of a refused model are not shown",
        "testing/modelcheck.py",
        'Parameter(name, tuple(p.shape), "refused")',
        'Parameter(name, tuple(p.shape), "each unit alone")',
        ("cli/test_check.py::test_a_refused_model_gives_exit_code_3_and_what_to_change",),
    ),
    Mutant(
        "fresh: check: private and plain costs exchanged",
        "testing/modelcheck.py",
        "return Cost(units, statistics.median(seconds[0]), statistics.median(seconds[1]), plain_bytes, private_bytes)",
        "return Cost(units, statistics.median(seconds[1]), statistics.median(seconds[0]), private_bytes, plain_bytes)",
        ("testing/test_modelcheck.py::test_the_dense_engine_is_seen_to_hold_a_gradient_for_each_unit",),
    ),
    Mutant(
        "fresh: check: memory that was freed still counts",
        "testing/modelcheck.py",
        "            self._now -= size\n",
        "",
        ("testing/test_modelcheck.py::test_allocations_are_added_up_while_they_are_held",),
    ),
]

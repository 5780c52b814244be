"""Faults in noisewise.advice that the tests must notice; `tests/mutants.py` plants them."""

from helpers.planting import Mutant

FAULTS = [
    Mutant(
        "advice: momentum does not gather noise",
        "advice/noise.py",
        "later + share, momentum * (share + fading)",
        "later + share, 0.0 * (share + fading)",
        ("advice/test_noise.py::test_gathered_noise_is_what_torchs_sgd_gathers",),
    ),
    Mutant(
        "advice: the warm-up of an average begins a step early",
        "advice/noise.py",
        "(2 + step) / (11 + step)",
        "(1 + step) / (10 + step)",
        ("advice/test_noise.py::test_gathered_noise_is_what_torchs_sgd_gathers",),
    ),
    Mutant(
        "advice: the noise of all weights is not counted",
        "advice/noise.py",
        "(noise_multiplier * math.sqrt(coordinates))",
        "noise_multiplier",
        ("advice/test_noise.py::test_the_voice_of_a_class_is_its_gradients_over_the_noise",),
    ),
    Mutant(
        "advice: more passes with larger batches",
        "advice/rules.py",
        '-(-settings["steps"] * settings["batch_size"] // batch)',
        'settings["steps"]',
        ("advice/test_rules.py::test_larger_batches_are_as_many_passes_and_at_most_half_the_people",),
    ),
    Mutant(
        "advice: a twin that chance puts behind is called badly tuned",
        "advice/rules.py",
        "change is None or change.low <= 0",
        "change is None or change.value <= 0",
        ("advice/test_rules.py::test_nothing_is_diagnosed_without_its_evidence",),
    ),
    Mutant(
        "advice: clipping is blamed where nobody is clipped",
        "advice/rules.py",
        "over.low < MISJUDGED or clipped.value < 0.1",
        "over.low < MISJUDGED",
        ("advice/test_rules.py::test_clipping_is_blamed_only_where_people_are_clipped",),
    ),
    Mutant(
        "advice: a rerun of a plan with fixed noise keeps its noise",
        "advice/advice.py",
        '() if evidence.settings.get("epsilon") else',
        "() if evidence.settings else",
        ("advice/test_advice.py::test_a_rerun_keeps_the_budget",),
    ),
]

"""Faults in noisewise.theory that the tests must notice; `tests/mutants.py` plants them."""

from helpers.planting import Mutant

FAULTS = [
    # audits: the reason
    Mutant(
        "reason: corrected bound is the printed one",
        "theory/watson2023.py",
        "return bound * (1 - ratio) / (1 + ratio) if",
        "return bound * (1 - ratio / 2) if",
        ("audits/test_clipping_bias.py::test_the_corrected_bound_is_attained_by_the_second",),
    ),
    Mutant(
        "reason: factors of units go to outputs of others",
        "theory/bu2022.py",
        "np.repeat(of_units, len(kernel) // len(of_units))",
        "np.tile(of_units, len(kernel) // len(of_units))",
        ("audits/test_ntk.py::test_prediction_and_measurement_agree",),
    ),
    Mutant(
        "reason: P_t within C",
        "theory/zhu2023.py",
        "apart < 0.75 * bound",
        "apart < bound",
        ("theory/test_zhu2023.py::test_deviations_are_those_of_the_definition",),
    ),
    Mutant(
        "reason: deviations mirrored at 0",
        "theory/zhu2023.py",
        "* (2 * square - along)).mean()",
        "* (-along)).mean()",
        ("theory/test_zhu2023.py::test_deviations_are_those_of_the_definition",),
    ),
    Mutant(
        "reason: noise of a sum",
        "theory/xu2026.py",
        "return noise_multiplier * sensitivity / batch_size",
        "return noise_multiplier * sensitivity",
        ("audits/test_exact_ratio.py::test_sigma_n_is_the_noise_that_training_adds",),
    ),
    Mutant(
        "reason: mean cosine of random directions",
        "theory/watson2023.py",
        "float(cosines.max())",
        "float(cosines.mean())",
        ("theory/test_watson2023.py::test_the_largest_cosine_is_that_of_the_directions_that_were_gone",),
    ),
    Mutant(
        "reason: instability above the first end",
        "theory/watson2023.py",
        "middle = (losses[0] + losses[-1]) / 2",
        "middle = losses[0]",
        ("audits/test_landscape.py::test_a_quadratic_loss_runs_as_its_formula_says",),
    ),
    # options of the command line
    Mutant(
        "fresh: audit: the general bound with its halves",
        "theory/watson2023.py",
        "((2 * signal - lengths) * mean_norms)",
        "((signal - lengths) * mean_norms)",
        ("audits/test_gradients.py::test_the_general_form_always_holds",),
    ),
    Mutant(
        "fresh: audit: layers share C without the root",
        "theory/bu2022.py",
        "np.full(len(norms), bound / math.sqrt(len(norms)))",
        "np.full(len(norms), bound / len(norms))",
        ("theory/test_bu2022.py::test_rules_by_their_formulas",),
    ),
    Mutant(
        "fresh: audit: a learning rate missing in the clip term",
        "theory/zhu2023.py",
        "self.lr * self.smoothness * self.bound**2 / 2",
        "self.smoothness * self.bound**2 / 2",
        ("theory/test_zhu2023.py::test_constants_by_their_formulas",),
    ),
    Mutant(
        "fresh: audit: the noisy bound for C = 1",
        "theory/zhu2023.py",
        "(c.noise * c.bound / c.batch) ** 2",
        "(c.noise / c.batch) ** 2",
        ("theory/test_zhu2023.py::test_noise_counts_by_its_size_whatever_the_bound",),
    ),
    Mutant(
        "fresh: audit: equal losses count as ordered",
        "theory/xu2026.py",
        "(losses[b] - losses[a]) > 0 for a, b in pairs)",
        "(losses[b] - losses[a]) >= 0 for a, b in pairs)",
        ("theory/test_xu2026.py::test_pairs_are_ordered_where_more_signal_has_less_loss",),
    ),
]

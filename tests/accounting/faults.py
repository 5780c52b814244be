"""Faults in noisewise.accounting that the tests must notice; `tests/mutants.py` plants them."""

from helpers.planting import Mutant

FAULTS = [
    # ledger and plan
    Mutant(
        "an odd release is lost when releases are doubled",
        "accounting/along.py",
        "return twice.compose(one) if count % 2 else twice",
        "return twice",
        ("accounting/test_along.py::test_few_releases_are_composed_by_doubling_with_the_same_result",),
    ),
    Mutant(
        "answers of one batch counted as one",
        "accounting/events.py",
        "    return least / (math.sqrt(",
        "    return max(multipliers) or (math.sqrt(",
        ("accounting/test_events.py::test_joint_multiplier",),
    ),
    Mutant(
        "release without noise called private",
        "accounting/events.py",
        "if noise_multiplier == 0:",
        "if False:",
        ("test_bounded.py::test_without_noise_the_release_is_recorded_as_not_private",),
    ),
    # clipping
    Mutant(
        "noise that accountants cannot square",
        "accounting/events.py",
        "if sigma and not LEAST_NOISE <= sigma <= MOST_NOISE:",
        "if False:",
        ("test_mechanism.py::test_noise_that_accountants_cannot_square_is_refused",),
    ),
    Mutant(
        "the joint multiplier rounded up",
        "accounting/events.py",
        "* (1 + 2**-50))",
        "* (1 - 2**-50))",
        ("test_mechanism.py::test_the_joint_multiplier_is_never_overstated",),
    ),
    # words and what is released
    Mutant(
        "words: delta 1/n passes",
        "accounting/defaults.py",
        "if delta < 1 / n:",
        "if delta <= 1 / n:",
        ("test_wording.py::test_tiers",),
    ),
    # options of the command line
    Mutant(
        "a ledger forgets its unit",
        "accounting/ledger.py",
        "if self.unit is not None and self.unit != unit:",
        "if False:",
        ("training/test_lineage.py::test_units_are_not_mixed",),
    ),
    Mutant(
        "a ledger without a unit is continued",
        "accounting/ledger.py",
        "if self.unit is None and self.lines:",
        "if False:",
        ("training/test_lineage.py::test_a_ledger_of_format_1_says_no_unit_until_somebody_does",),
    ),
    Mutant(
        "a ledger is continued on other data",
        "accounting/ledger.py",
        "elif not self.identity.fits(mark):",
        "elif False:",
        ("training/test_start.py::test_other_data_do_not_continue_a_ledger",),
    ),
    Mutant(
        "the data's digest has no key",
        "accounting/ledger.py",
        "hashlib.blake2b(mark, key=key, digest_size=32)",
        "hashlib.blake2b(mark, digest_size=32)",
        ("training/test_lineage.py::test_an_identity_is_keyed_and_never_shown",),
    ),
    Mutant(
        "reproducible noise is not written down",
        "accounting/ledger.py",
        "self.reproducible = self.reproducible or reproducible",
        "pass",
        ("training/test_lineage.py::test_an_earlier_phase_with_reproducible_noise_makes_all_that_follows_not_private",),
    ),
    Mutant(
        "a ledger holds what it does not",
        "accounting/ledger.py",
        "return theirs <= ours and",
        "return set(theirs) <= set(ours) and",
        ("training/test_lineage.py::test_holding_is_by_counts",),
    ),
    Mutant(
        "fresh: releases of another purpose joined",
        "accounting/ledger.py",
        "if last and (last.event, last.purpose) == (event, purpose):",
        "if last and last.event == event:",
        ("accounting/test_ledger.py::test_recording_only_appends",),
    ),
    Mutant(
        "fresh: a composed ledger forgets reproducible noise",
        "accounting/ledger.py",
        "reproducible=self.reproducible or other.reproducible",
        "reproducible=self.reproducible",
        ("accounting/test_ledger.py::test_two_ledgers_together_hold_all_that_either_holds",),
    ),
    Mutant(
        "fresh: the unit that the reader knows is not used",
        "accounting/ledger.py",
        'unit if raw["unit"] is None else raw["unit"]',
        'raw["unit"]',
        ("accounting/test_ledger.py::test_what_the_reader_knows_of_the_unit_counts_where_the_file_says_nothing",),
    ),
    Mutant(
        "fresh: ledger lines of no release are read",
        "accounting/ledger.py",
        "count <= 0 or first < 0",
        "count < 0 or first < 0",
        ("accounting/test_ledger.py::test_damaged_ledgers_are_refused",),
    ),
    Mutant(
        "fresh: ledger: size and cap exchanged",
        "accounting/events.py",
        'dp.TruncatedSubsampledGaussianDpEvent(n, number("rate", 1.0), cap,',
        'dp.TruncatedSubsampledGaussianDpEvent(cap, number("rate", 1.0), n,',
        ("accounting/test_ledger.py::test_json_round_trip",),
    ),
    Mutant(
        "fresh: GDP without sampling by the sampled formula",
        "accounting/accountants.py",
        "sigma**-2 if rate == 1 else",
        "sigma**-2 if rate > 1 else",
        ("accounting/test_accountants.py::test_gdp_is_exact_without_sampling",),
    ),
    Mutant(
        "fresh: PLD ends at a coarse reading",
        "accounting/accountants.py",
        "left * (coarser - epsilon) / (1e-3 * epsilon)",
        "left * (coarser - epsilon) / (1e-1 * epsilon)",
        ("accounting/test_accountants.py::test_coarse_readings_end_where_the_finest_would",),
    ),
    Mutant(
        "fresh: one private release makes all private",
        "accounting/accountants.py",
        "return any(isinstance(event, dp_accounting.NonPrivateDpEvent)",
        "return all(isinstance(event, dp_accounting.NonPrivateDpEvent)",
        ("accounting/test_accountants.py::test_no_release_costs_nothing",),
    ),
    # privacy losses on a grid
    Mutant(
        "losses: the loss of a sample is taken for that of the release",
        "accounting/losses.py",
        "np.maximum(np.expm1(small) / rate, -1)",
        "np.maximum(np.expm1(small), -1)",
        ("accounting/test_losses.py::test_epsilons_are_those_of_the_library",),
    ),
    Mutant(
        "losses: nothing lies below the least loss",
        "accounting/losses.py",
        "-np.expm1(np.minimum(losses, 0))",
        "0.0",
        ("accounting/test_losses.py::test_epsilons_are_those_of_the_library",),
    ),
    Mutant(
        "losses: equal releases count once",
        "accounting/losses.py",
        ".self_compose(count)",
        ".self_compose(1)",
        ("accounting/test_losses.py::test_several_releases_are_composed",),
    ),
]

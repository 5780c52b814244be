"""Faults in noisewise.reproduce that the tests must notice; `tests/mutants.py` plants them."""

from helpers.planting import Mutant

FAULTS = [
    Mutant(
        "texts: settings are chosen on the test part",
        "reproduce/texts.py",
        "parts.valid if tuning else parts.test",
        "parts.test",
        ("reproduce/test_texts.py::test_the_test_part_is_not_read_while_tuning",),
    ),
    Mutant(
        "texts: an ending begins with a new optimizer",
        "reproduce/texts.py",
        "        optimizer.load_state_dict(state)\n",
        "        pass\n",
        ("reproduce/test_texts.py::test_the_optimizer_goes_on",),
    ),
    Mutant(
        "claims: the value decides, not the interval",
        "reproduce/claims.py",
        'return self.ours.low > self.low if self.side == "above" else self.ours.high < self.low',
        'return self.ours.value > self.low if self.side == "above" else self.ours.value < self.low',
        ("reproduce/test_claims.py::test_an_interval_holds_contradicts_or_leaves_open",),
    ),
    Mutant(
        "claims: several are not corrected together",
        "reproduce/claims.py",
        "level = each(LEVEL, max(1, len(claims)))",
        "level = LEVEL",
        ("reproduce/test_claims.py::test_more_claims_have_wider_intervals",),
    ),
    Mutant(
        "claims: quick tiers give verdicts",
        "reproduce/claims.py",
        "if smoke and not claim.theory:",
        "if False:",
        ("reproduce/test_running.py::test_quick_gives_no_verdict_but_on_theory",
         "reproduce/test_claims.py::test_verdicts_and_their_reasons"),
    ),
    Mutant(
        "claims: three seeds are enough",
        "reproduce/claims.py",
        "LEAST_SEEDS = 5",
        "LEAST_SEEDS = 3",
        ("reproduce/test_claims.py::test_verdicts_and_their_reasons",),
    ),
    Mutant(
        "measured: seeds that one arm lacks count",
        "reproduce/measured.py",
        "return sorted(set.intersection(*of_arms)) if of_arms else []",
        "return sorted(max(of_arms, key=len)) if of_arms else []",
        ("reproduce/test_measured.py::test_only_seeds_that_all_arms_have_count",),
    ),
    Mutant(
        "experiment: another seed has the same key",
        "reproduce/experiment.py",
        'return {**self.settings, "seed": self.seed, "device": device}',
        'return {**self.settings, "seed": 0, "device": device}',
        ("reproduce/test_running.py::test_a_result_has_what_the_contract_asks_for",
         "reproduce/test_experiment.py::test_equal_settings_have_equal_keys_whoever_asks"),
    ),
    Mutant(
        "running: what was done is thrown away at Ctrl-C",
        "reproduce/running.py",
        "            stopped = error\n            measured = _with(measured, wanted, config, cells)\n",
        "            stopped = error\n",
        ("reproduce/test_running.py::test_ctrl_c_loses_nothing_and_what_is_there_is_judged",),
    ),
    Mutant(
        "images: settings are chosen on the test part",
        "reproduce/images.py",
        "train, look = parts.train, parts.valid if tuning else parts.test",
        "train, look = parts.train, parts.test",
        ("reproduce/test_images.py::test_the_test_part_is_not_read_while_tuning",),
    ),
    Mutant(
        "images: small bins count in MCE",
        "reproduce/images.py",
        "large = count >= smallest",
        "large = count >= 1",
        ("reproduce/test_images.py::test_small_bins_are_left_out_of_mce",),
    ),
    Mutant(
        "tables: the valid part is the test part",
        "reproduce/tables.py",
        "look = split.valid if tuning else split.test",
        "look = split.test",
        ("reproduce/test_tables.py::test_an_open_regression_fits_and_looks_at_the_part_it_is_told",),
    ),
]  # fmt: skip

"""Faults in noisewise.estimates that the tests must notice; `tests/mutants.py` plants them."""

from helpers.planting import Mutant

FAULTS = [
    Mutant(
        "level: a percentage is taken for a confidence",
        "estimates/estimate.py",
        "not number or not 0 < level < 1:",
        "not number or not 0 < level:",
        ("audits/test_audit_options.py::test_a_level_that_is_no_confidence_is_refused[disparity]",),
    ),
    # audits: the price
    Mutant(
        "price: rows of one person are independent",
        "estimates/intervals.py",
        "sums = off if owners is None else np.bincount(owners, off)",
        "sums = off",
        ("estimates/test_intervals.py::test_copies_of_a_persons_row_add_nothing",),
    ),
    Mutant(
        "price: a share by rows, not by people",
        "estimates/intervals.py",
        "return min(worth * (z_score(level) / _t(level, people)) ** 2, rows)",
        "return float(rows)",
        ("estimates/test_intervals.py::test_intervals_by_person_hold_and_intervals_by_row_do_not",),
    ),
    Mutant(
        "price: rows that end alike are all counted",
        "estimates/intervals.py",
        "float(rows if alone > 0 else people)",
        "float(rows)",
        ("estimates/test_intervals.py::test_rows_that_all_end_alike_count_as_one_for_each_person",),
    ),
    # options of the command line
    Mutant(
        "fresh: audit: Wilson's interval by the share alone",
        "estimates/intervals.py",
        "half = z * math.sqrt(p * (1 - p) / n + z**2 / (4 * n**2)) / (1 + z**2 / n)",
        "half = z * math.sqrt(p * (1 - p) / n) / (1 + z**2 / n)",
        ("estimates/test_intervals.py::test_share_is_scipys_wilson_interval",),
    ),
    Mutant(
        "fresh: audit: differences of bounds taken end by end",
        "estimates/intervals.py",
        "low, high = first.low - second.high, first.high - second.low",
        "low, high = first.low - second.low, first.high - second.high",
        ("estimates/test_intervals.py::test_spread_and_difference_add_up_the_worst_cases",),
    ),
    Mutant(
        "fresh: audit: Bonferroni forgets the count",
        "estimates/intervals.py",
        "return 1 - (1 - level) / count",
        "return 1 - (1 - level) / min(count, 2)",
        ("estimates/test_intervals.py::test_extremes_cover_the_truth_although_they_were_picked",),
    ),
    Mutant(
        "fresh: audit: ties are wins",
        "estimates/roc.py",
        "above = (ranks[: len(inside)] - rankdata(inside)) / len(outside)",
        'above = np.searchsorted(np.sort(outside), inside, side="right") / len(outside)',
        ("estimates/test_roc.py::test_auc_is_scikit_learns_and_its_interval_delongs",),
    ),
    Mutant(
        "fresh: audit: thresholds a place too low",
        "estimates/roc.py",
        "return float(scores[place - 1]) if place else None",
        "return float(scores[min(place, len(scores) - 1)]) if place else None",
        ("estimates/test_roc.py::test_thresholds_keep_the_false_positive_rate_on_new_people",),
    ),
]

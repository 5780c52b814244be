"""Faults in noisewise.estimators that the tests must notice; `tests/mutants.py` plants them."""

from helpers.planting import Mutant

BASE = "estimators/test_base.py::"
FAULTS = [
    Mutant(
        "lists: one entry says how all are read",
        "estimators/columns.py",
        "if not isinstance(X, list | tuple):",
        "if True:",
        ("estimators/test_base.py::test_one_entry_of_a_list_does_not_change_how_others_are_read",),
    ),
    Mutant(
        "estimator: what choosing ranges spent is left out",
        "estimators/base.py",
        "ledger=None if data.schema is None else data.schema.ledger,",
        "ledger=None,",
        (f"{BASE}test_the_whole_of_epsilon_is_the_total_also_where_ranges_are_chosen_with_noise",),
    ),
    Mutant(
        "estimator: the identity of the data is kept",
        "estimators/base.py",
        "self.ledger_ = replace(trained.ledger, identity=None)",
        "self.ledger_ = replace(trained.ledger)",
        (f"{BASE}test_nothing_private_stays_in_a_fitted_estimator",),
    ),
    Mutant(
        "estimator: people are protected as rows",
        "estimators/base.py",
        'unit=protected(None if data.unit is None else "unit"),',
        'unit="row",',
        (f"{BASE}test_people_are_protected_where_rows_have_owners",),
    ),
    Mutant(
        "estimator: an audit forgets whose rows they are",
        "estimators/base.py",
        "            return columns[self.unit_]\n",
        "            return None\n",
        (f"{BASE}test_an_audit_counts_the_people_that_fit_was_told_of",),
    ),
    Mutant(
        "estimator: rows of nobody are audited as people",
        "estimators/base.py",
        "        if self.unit_ is None:\n",
        "        if self.unit_ not in columns:\n",
        (f"{BASE}test_rows_of_nobody_are_not_audited_where_people_are_protected",),
    ),
    Mutant(
        "estimator: unit and groups count as features",
        "estimators/base.py",
        "validate_data(self, X=without(X, table.left_out), skip_check_array=True)",
        "validate_data(self, X=X, skip_check_array=True)",
        (f"{BASE}test_unit_and_groups_are_no_features_and_need_not_be_there_later",),
    ),
    Mutant(
        "estimator: classes are read off the labels",
        "estimators/classifier.py",
        "        seen = unique_labels(labels)\n        raise",
        "        seen = unique_labels(labels)\n        return seen\n        raise",
        (f"{BASE}test_what_is_published_is_not_read_off_the_rows",),
    ),
    Mutant(
        "estimator: groups are features",
        "estimators/columns.py",
        "if key not in left_out}",
        "if key != unit}",
        (f"{BASE}test_an_audit_splits_by_group_and_compares_with_a_twin", "estimators/test_columns.py"),
    ),
    Mutant(
        "estimator: columns that were declared are paid for too",
        "estimators/columns.py",
        "rest = [name for name in table.columns if name not in kinds]",
        "rest = list(table.columns)",
        ("estimators/test_columns.py::test_only_what_is_not_declared_is_chosen_with_noise",),
    ),
    Mutant(
        "estimator: every fit stands alone",
        "estimators/spending.py",
        "    _FITS.append(fit)\n",
        "",
        (f"{BASE}test_cross_validation_warns_at_each_fold_and_counts_what_folds_spend_together",),
    ),
    Mutant(
        "estimator: a pickle tells which fits shared people",
        "estimators/base.py",
        'if name != "_histories"}',
        'if name != "model"}',
        (f"{BASE}test_who_was_in_earlier_fits_does_not_leave_the_process",),
    ),
    Mutant(
        "estimator: people are known by their rows alone",
        "estimators/base.py",
        "owners = None if table.unit is None else owner_digests(table.owners)",
        "owners = None",
        (f"{BASE}test_people_who_come_back_with_other_rows_pay_again",),
    ),
    Mutant(
        "estimator: the whole story is told at every fit",
        "estimators/spending.py",
        "        other.warned = True",
        "        other.warned = False",
        ("estimators/test_spending.py::test_every_further_fit_says_the_total",),
    ),
    Mutant(
        "estimator: rows and people add up",
        "estimators/spending.py",
        "        return math.inf\n",
        "        return ledgers[0].epsilon(delta)\n",
        ("estimators/test_spending.py::test_rows_and_people_do_not_add_up",),
    ),
    Mutant(
        "estimator: the last weights instead of their average",
        "estimators/base.py",
        "            parameter.copy_(averages[name])",
        "            parameter.copy_(parameter)",
        (f"{BASE}test_predictions_are_those_of_the_average",),
    ),
]

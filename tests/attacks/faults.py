"""Faults in noisewise.attacks that the tests must notice; `tests/mutants.py` plants them."""

from helpers.planting import Mutant

FAULTS = [
    Mutant(
        "canaries: all in one block of a rule by layer",
        "attacks/canaries.py",
        "of_canaries = blocks if len(blocks) == len(names) else [largest] * len(names)",
        "of_canaries = [largest] * len(names)",
        ("audits/test_one_run.py::test_canaries_of_a_rule_by_layer_use_its_whole_bound",),
    ),
    # audits, option by option
    Mutant(
        "seen: shadows, all from one seed",
        "attacks/shadows.py",
        "_train(fit, data, shadows, seed, where or Local(), progress)",
        "_train(fit, data, shadows, 0, where or Local(), progress)",
        ("audits/test_audit_options.py::test_every_option_of_training_shadows_acts",),
    ),
    Mutant(
        "seen: shadows, the rows stay behind",
        "attacks/shadows.py",
        "    finally:\n        _forget_rows(shadows.folder)",
        "    finally:\n        pass",
        ("jobs/test_cluster.py::test_what_ray_is_sent_holds_no_row",),
    ),
    # audits: the price
    Mutant(
        "price: the attack leaves its ball",
        "attacks/pgd.py",
        "moved = space.move(start, rule.project(change, radius))",
        "moved = space.move(start, change)",
        ("attacks/test_pgd.py::test_adversarial_points_stay_in_the_ball_and_the_box",),
    ),
    Mutant(
        "price: an attack without gradients passes",
        "attacks/campaign.py",
        '"gradients are not masked": (flat <= STUCK,',
        '"gradients are not masked": (flat <= 1,',
        ("audits/test_robustness.py::test_masked_gradients_are_found",),
    ),
    Mutant(
        "price: early stopping forgets who was misled",
        "attacks/pgd.py",
        "                worst = _worse(worst, seen, rows)\n",
        "                worst = worst if stop else _worse(worst, seen, rows)\n",
        ("attacks/test_pgd.py::test_stopping_at_misled_rows_changes_no_verdict",),
    ),
    Mutant(
        "price: false alarms counted on those who set the threshold",
        "attacks/members.py",
        "return self.outside[len(self.outside) // 2 :]",
        "return self.outside[: len(self.outside) // 2]",
        ("audits/test_membership.py::test_rates_are_met_on_people_who_did_not_set_the_threshold",),
    ),
    Mutant(
        "price: regression judged on the people it was fitted to",
        "attacks/members.py",
        ".fit(_features(first), first.inside)",
        ".fit(_features(second), second.inside)",
        ("audits/test_membership.py::test_regression_is_judged_on_people_it_was_not_fitted_to",),
    ),
    Mutant(
        "price: RMIA compares with shadows that saw the row",
        "attacks/shadows.py",
        "    without = ~inside\n",
        "    without = inside\n",
        ("attacks/test_shadows.py::test_rmia_is_its_double_loop",),
    ),
    Mutant(
        "price: variances row by row from few shadows",
        "attacks/shadows.py",
        "if len(values) >= PER_ROW:",
        "if len(values) >= 2:",
        ("attacks/test_shadows.py::test_lira_is_the_ratio_of_two_scipy_densities",),
    ),
    Mutant(
        "price: shadows of other rows",
        "attacks/shadows.py",
        "if digest_of(data) != self.data:",
        "if not data:",
        (
            "audits/test_membership.py::test_people_that_do_not_fit_are_refused",
            "attacks/test_shadows.py::test_damaged_or_foreign_shadows_are_refused",
        ),
    ),
    Mutant(
        "price: shadows open to everybody",
        "attacks/shadows.py",
        "path.chmod(0o700)",
        "path.chmod(0o755)",
        ("attacks/test_shadows.py::test_shadows_are_trained_once_and_kept_for_the_owner_only",),
    ),
    Mutant(
        "price: bound from the canaries that chose the guesses",
        "attacks/distinguishing.py",
        "return attempt(scores[half:], coins[half:], best)",
        "return attempt(scores[:half], coins[:half], best)",
        ("attacks/test_canaries.py::test_the_bound_is_that_of_canaries_which_did_not_choose_the_guesses",),
    ),
    Mutant(
        "price: one-run p-value forgets delta",
        "attacks/distinguishing.py",
        "float(tails[0]) + 2 * canaries * delta * alpha",
        "float(tails[0]) + 0 * canaries * delta * alpha",
        ("attacks/test_canaries.py::test_the_p_value_is_its_definition",),
    ),
    # options of the command line
    Mutant(
        "fresh: audit: false alarms on the threshold",
        "attacks/distinguishing.py",
        "cls(int((outside > threshold).sum()), len(outside), int((inside <= threshold).sum()), len(inside))",
        "cls(int((outside >= threshold).sum()), len(outside), int((inside < threshold).sum()), len(inside))",
        ("attacks/test_distinguishing.py::test_only_what_is_above_a_threshold_counts_as_there",),
    ),
    Mutant(
        "fresh: audit: an L2 ball with all its points outside the middle",
        "attacks/pgd.py",
        "** (1 / like[0].numel())",
        "** 1",
        ("attacks/test_pgd.py::test_starts_and_noise_have_the_sizes_they_should",),
    ),
    Mutant(
        "fresh: audit: the worse of two answers by the first loss",
        "attacks/pgd.py",
        "torch.where(_per_row(larger, first.x), second.x, first.x)",
        "torch.where(_per_row(larger, first.x), first.x, second.x)",
        ("attacks/test_pgd.py::test_adversarial_points_stay_in_the_ball_and_the_box",),
    ),
    Mutant(
        "fresh: audit: LiRA exchanges in and out",
        "attacks/shadows.py",
        "for mask in (inside, ~inside))",
        "for mask in (~inside, inside))",
        ("attacks/test_shadows.py::test_lira_is_the_ratio_of_two_scipy_densities",),
    ),
    Mutant(
        "fresh: audit: total variation of columns twice",
        "attacks/inversion.py",
        "for axis in (3, 2))",
        "for axis in (3, 3))",
        ("attacks/test_inversion.py::test_total_variation_is_torchmetrics_per_difference",),
    ),
    Mutant(
        "fresh: audit: the bound of a mask forgets its share",
        "attacks/inversion.py",
        "return sigma**2 / (share * float(np.square(k).sum()))",
        "return sigma**2 / float(np.square(k).sum())",
        ("audits/test_reconstruction.py::test_simulation_equals_the_formula_and_exceeds_the_bound",),
    ),
]

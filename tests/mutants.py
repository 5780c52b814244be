"""Plant one deliberate fault after another into a copy of the package and see whether the tests notice.

    python tests/mutants.py [--jobs 2] [--only WORD]

First the chosen tests run on an unchanged copy and must pass. Then each fault is one replacement of a text that occurs
exactly once; a fault is caught if its tests fail. Exit code 0: all caught; 1: one survived, or could not be judged.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console
from rich.markup import escape
from rich.table import Table

ROOT = Path(__file__).resolve().parent.parent
SECONDS = 300


@dataclass(frozen=True)
class Mutant:
    """A fault: in `file` under src/noisewise, `old` becomes `new`; `tests` (node ids under tests/) should fail."""

    name: str
    file: str
    old: str
    new: str
    tests: tuple[str, ...]


ENGINES = "persample/test_engines.py::test_every_rule_equals_the_oracle"
STEP, BOUNDED, EXAMINE = "test_private_step.py", "test_bounded.py", "persample/test_examine.py"
REPAIRS, MASKS, CHANGES = (f"repairs/test_repairs_{part}.py" for part in ("all", "masks", "changes"))

MUTANTS = [
    # noise
    Mutant(
        "noise x 0.9",
        "bounded.py",
        "_with_noise(bounded, sigma * bounded.sensitivity,",
        "_with_noise(bounded, 0.9 * sigma * bounded.sensitivity,",
        (f"{BOUNDED}::test_noise_has_the_std_multiplier_times_sensitivity",),
    ),
    Mutant(
        "noise not scaled to the sensitivity",
        "bounded.py",
        "_with_noise(bounded, sigma * bounded.sensitivity,",
        "_with_noise(bounded, sigma,",
        (f"{BOUNDED}::test_noise_has_the_std_multiplier_times_sensitivity",),
    ),
    Mutant(
        "noise reused across steps",
        "bounded.py",
        "entropy, (first_step + step, part))",
        "entropy, (0, part))",
        (f"{BOUNDED}::test_steps_are_independent", f"{STEP}::test_every_step_has_noise_of_its_own"),
    ),
    Mutant(
        "noise reused across parameters",
        "bounded.py",
        "noise = standard_normal(value, entropy, (*position, k))",
        "noise = standard_normal(value, entropy, (*position, 0))",
        (f"{BOUNDED}::test_parameters_are_independent",),
    ),
    Mutant(
        "noise reused across chunks",
        "bounded.py",
        'entropy.generator("noise", *position, chunk)',
        'entropy.generator("noise", *position)',
        (f"{BOUNDED}::test_chunks_of_a_large_parameter_are_independent",),
    ),
    Mutant(
        "noise reused across answers",
        "bounded.py",
        "entropy, (first_step + step, part))",
        "entropy, (first_step + step, 0))",
        (f"{BOUNDED}::test_parts_of_one_release_are_independent",),
    ),
    Mutant(
        "noise on masked coordinates",
        "bounded.py",
        "answers[name].mul_(mask.to(value.device))",
        "pass",
        (f"{BOUNDED}::test_noise_falls_on_kept_coordinates_only",),
    ),
    Mutant(
        "no noise on an empty batch",
        "persample/__init__.py",
        "return ClippedBatch(Bounded(zeros, clip.sensitivity, support), norms",
        "return ClippedBatch(Bounded(zeros, clip.sensitivity, dict.fromkeys(live, False)), norms",
        ("test_guarantees.py::test_an_empty_batch_is_released_with_noise",),
    ),
    # ledger and plan
    Mutant(
        "ledger line dropped",
        "bounded.py",
        "ledger.record(event, purpose, first_step + step)",
        "pass",
        (f"{BOUNDED}::test_every_release_is_a_line_in_the_ledger", f"{STEP}::test_the_ledger_equals_the_plan"),
    ),
    Mutant(
        "answers of one batch counted as one",
        "mechanism.py",
        "sum(sigma**-2 for sigma in multipliers) ** -0.5",
        "max(multipliers)",
        (f"{BOUNDED}::test_joint_multiplier",),
    ),
    Mutant(
        "sums of different bounds merged",
        "bounded.py",
        "if other.sensitivity != first.sensitivity or ",
        "if ",
        (f"{BOUNDED}::test_merge_refuses_what_answers_another_question",),
    ),
    Mutant(
        "a step in an epoch that is not recorded",
        "bounded.py",
        "elif not ledger.lines or ledger.lines[-1].event != event:",
        "elif False:",
        (f"{BOUNDED}::test_a_step_within_an_epoch_that_is_not_recorded_is_refused",),
    ),
    Mutant(
        "release without noise called private",
        "mechanism.py",
        "if noise_multiplier == 0:",
        "if False:",
        (f"{BOUNDED}::test_without_noise_the_release_is_recorded_as_not_private",),
    ),
    Mutant(
        "calibrated exceeds the budget",
        "mechanism.py",
        "return self.scaled(smallest_noise(",
        "return self.scaled(0.98 * smallest_noise(",
        ("test_guarantees.py::test_a_calibrated_plan_never_exceeds_its_budget",),
    ),
    # sampling
    Mutant(
        "sampler rate off by 10 %",
        "sampling.py",
        '"sampling", step) < self.rate',
        '"sampling", step) < 1.1 * self.rate',
        (
            "test_sampling.py::test_every_unit_is_included_at_the_stated_rate",
            "test_sampling.py::test_batch_sizes_are_binomial",
        ),
    ),
    Mutant(
        "the same batch at every step",
        "sampling.py",
        '"sampling", step) < self.rate',
        '"sampling", 0) < self.rate',
        ("test_sampling.py::test_steps_are_drawn_independently_of_each_other",),
    ),
    Mutant(
        "the same order in every epoch",
        "sampling.py",
        'entropy.uniforms(self.n, "sampling", epoch)',
        'entropy.uniforms(self.n, "sampling", 0)',
        ("test_sampling.py::test_shuffled_epochs_differ",),
    ),
    Mutant(
        "shuffle drops the last batch",
        "sampling.py",
        "return -(-self.n // self.batch_size)",
        "return self.n // self.batch_size",
        ("test_sampling.py::test_a_shuffled_epoch_takes_each_unit_exactly_once",),
    ),
    Mutant(
        "steps in floating point",
        "sampling.py",
        "return math.ceil(exact * n / batch_size)",
        "return int(float(epochs) / (batch_size / n))",
        ("test_sampling.py::test_steps_are_exact",),
    ),
    Mutant(
        "noise and sampling from one stream",
        "entropy.py",
        "spawn_key=(STREAMS[stream], *position)",
        "spawn_key=position",
        ("test_entropy.py::test_every_stream_and_position_draws_something_else",),
    ),
    Mutant(
        "secret root that is no secret",
        "entropy.py",
        "cls(secrets.randbits(256), secure=secure)",
        "cls(0, secure=secure)",
        ("test_entropy.py::test_fresh_roots_are_long_and_never_the_same",),
    ),
    # the step
    Mutant(
        "divide by the realised batch",
        "train.py",
        "size = mechanism.expected_batch_size\n    for name",
        "size = max(len(index), 1)\n    for name",
        (f"{STEP}::test_the_sum_is_divided_by_the_expected_not_the_realised_batch_size",),
    ),
    Mutant(
        "skip empty batches",
        "train.py",
        "    device = next(model.parameters()).device\n    index = ",
        "    if not next(mechanism.sampler.batches(state.entropy, step, step + 1)).size:\n"
        "        state.step += 1\n"
        "        return\n"
        "    device = next(model.parameters()).device\n    index = ",
        (f"{STEP}::test_an_empty_batch_is_a_step_with_noise_and_a_line",),
    ),
    Mutant(
        "train past the plan",
        "train.py",
        "if step >= mechanism.steps:",
        "if False:",
        (f"{STEP}::test_training_past_the_plan_stops",),
    ),
    Mutant(
        "data of another size than planned",
        "train.py",
        "if _count(data) != planned:",
        "if False:",
        (f"{STEP}::test_data_of_another_size_than_planned_is_refused",),
    ),
    # clipping
    Mutant(
        "mask applied after the norm",
        "persample/engines.py",
        "join(pieces[name]).measure(masks.get(name))",
        "(join(pieces[name]).measure(None)[0], join(pieces[name]).measure(masks.get(name))[1])",
        (f"{ENGINES}[linear-2d-auto-masks]",),
    ),
    Mutant(
        "mask left out of the sum",
        "persample/engines.py",
        "join(pieces[name]).measure(masks.get(name))",
        "(join(pieces[name]).measure(masks.get(name))[0], join(pieces[name]).measure(None)[1])",
        (f"{ENGINES}[linear-2d-auto-masks]",),
    ),
    Mutant(
        "only the last call of a reused module counted",
        "persample/engines.py",
        "gradient = gradients[role]()",
        "gradient = (pieces[name].clear(), gradients[role]())[1]",
        (f"{ENGINES}[several-calls-auto-everything]",),
    ),
    Mutant(
        "tied cross term dropped",
        "persample/engines.py",
        "join(pieces[name]).measure(masks.get(name))",
        "(sum(piece.measure(masks.get(name))[0] for piece in pieces[name]),"
        " join(pieces[name]).measure(masks.get(name))[1])",
        (f"{ENGINES}[tied-linears-auto-everything]",),
    ),
    Mutant(
        "rows that are not units taken for units",
        "persample/engines.py",
        "(layout.fallback | found)",
        "found",
        (f"{ENGINES}[flipped-auto-everything]",),
    ),
    Mutant(
        "functional uses of a weight overlooked",
        "persample/tape.py",
        "found.add(names[id(variable)])",
        "pass",
        ("persample/test_tape.py::test_uses_that_no_rule_explains_are_found",),
    ),
    Mutant(
        "ghost gradients not compared with the plain ones",
        "persample/examine.py",
        "            found.add(name)\n",
        "            pass\n",
        (f"{EXAMINE}::test_wrong_ghost_gradients_are_found_out",),
    ),
    Mutant(
        "dense gradients not compared with the loop",
        "persample/examine.py",
        "ROUNDING * grad.double().norm() + 1e-5 * scale",
        "9 * grad.double().norm() + 1e-5 * scale",
        (f"{EXAMINE}::test_wrong_dense_gradients_are_found_out",),
    ),
    Mutant(
        "reentrant checkpoints unnoticed",
        "persample/tape.py",
        '"CheckpointFunction" in node.name()',
        "False",
        ("persample/test_situations.py::test_reentrant_checkpoints_are_refused_and_leave_no_gradient",),
    ),
    Mutant(
        "broadcast rows taken for units",
        "persample/tape.py",
        "for call in calls if call.units != units for",
        "for call in calls if False for",
        (f"{ENGINES}[positions-auto-everything]",),
    ),
    Mutant(
        "input changed in place unnoticed",
        "persample/tape.py",
        "if self.operands.input._version != self.version:",
        "if False:",
        ("persample/test_tape.py::test_a_changed_input_is_refused_with_the_remedy",),
    ),
    Mutant(
        "non-finite unit kept",
        "persample/__init__.py",
        "keep = norms.isfinite().all(0)",
        "keep = torch.ones_like(norms[0], dtype=torch.bool)",
        ("persample/test_clipped_sum.py::test_one_entry_that_is_not_finite_is_enough",),
    ),
    Mutant(
        "padding row counted",
        "persample/__init__.py",
        "keep = keep & present.to(keep.device).bool()",
        "pass",
        ("persample/test_clipped_sum.py::test_padding_contributes_nothing_whatever_it_holds",),
    ),
    Mutant(
        "a rule's promise not checked",
        "persample/__init__.py",
        "_check_promise(clip, factors, norms_kept)",
        "pass",
        ("persample/test_clipped_sum.py::test_a_rule_that_exceeds_its_own_bound_is_stopped",),
    ),
    Mutant(
        "sensitivity of per-layer rules: the largest",
        "clipping.py",
        "math.sqrt(math.fsum(rule.sensitivity**2 for rule in self.rules.values()))",
        "max(rule.sensitivity for rule in self.rules.values())",
        (
            "test_clipping.py::test_the_sensitivity_of_per_layer_clipping_is_the_root_of_the_sum_of_squares",
            "test_guarantees.py::test_every_rule_keeps_its_promise_for_norms_from_0_to_1e12",
        ),
    ),
    Mutant(
        "flat clipping does not clip",
        "clipping.py",
        "(self.bound / samples.norms).clamp(max=1.0)",
        "(self.bound / samples.norms).clamp(min=1.0)",
        ("test_guarantees.py::test_every_rule_keeps_its_promise_for_norms_from_0_to_1e12",),
    ),
    Mutant(
        "global clipping keeps everybody",
        "clipping.py",
        "(samples.norms <= self.limit)",
        "(samples.norms >= 0)",
        ("test_guarantees.py::test_every_rule_keeps_its_promise_for_norms_from_0_to_1e12",),
    ),
    Mutant(
        "the scaled form of global clipping is not scaled",
        "clipping.py",
        " * (self.bound / self.limit)",
        "",
        ("test_guarantees.py::test_every_rule_keeps_its_promise_for_norms_from_0_to_1e12",),
    ),
    # per-sample gradients
    Mutant(
        "Gram norm without a tap",
        "persample/gradients.py",
        "for offset in offsets[1:]:",
        "for offset in offsets[2:]:",
        (f"{ENGINES}[conv-wide-gram-auto-everything]",),
    ),
    Mutant(
        "norm too short: Gram matrices not rounded up",
        "persample/gradients.py",
        "((lefts * rights).sum((1, 2)) + error.flatten())",
        "((lefts * rights).sum((1, 2)) + 0 * error.flatten())",
        ("persample/test_gradients.py::test_norms_are_never_too_short[cancelling_outer-200]",),
    ),
    Mutant(
        "bias sees one position only",
        "persample/layers.py",
        "Formed(left.sum(1))",
        "Formed(left[:, 0])",
        (f"{ENGINES}[linear-3d-gram-auto-everything]",),
    ),
    Mutant(
        "padding token counted",
        "persample/layers.py",
        'if operands.settings["padding_idx"] is not None:',
        "if False:",
        (f"{ENGINES}[embedding-padding-auto-everything]",),
    ),
    Mutant(
        "repeated tokens counted apart",
        "persample/gradients.py",
        "index_add_(0, keys // self.size, sums.square().sum(1))",
        "add_(self.rows.square().sum((1, 2)))",
        (f"{ENGINES}[embedding-auto-everything]",),
    ),
    # looking at the model
    Mutant(
        "coupled units unnoticed",
        "persample/examine.py",
        "_check_coupling(model, loss_fn, units, others)",
        "pass",
        (
            f"{EXAMINE}::test_losses_that_look_at_other_units_are_refused",
            "test_guarantees.py::test_a_planted_batch_norm_is_refused",
        ),
    ),
    Mutant(
        "running statistics unnoticed",
        "persample/examine.py",
        "    if changed:\n        raise self_changing(changed)\n\n\ndef",
        "    if False:\n        raise self_changing(changed)\n\n\ndef",
        (f"{EXAMINE}::test_running_statistics_are_refused_and_put_back[in place]",),
    ),
    Mutant(
        "buffers not put back",
        "persample/examine.py",
        "tensor.copy_(copy)",
        "pass",
        (f"{EXAMINE}::test_a_refused_model_is_as_before",),
    ),
    Mutant(
        "order of rows not asked about",
        "persample/examine.py",
        "found.update(call.names.values())",
        "pass",
        (f"{EXAMINE}::test_the_parameters_without_a_ghost_rule_are_found[flipped]",),
    ),
    # adaptive rules, units, views, secure noise
    Mutant(
        "an adaptive rule's question is not paid for",
        "mechanism.py",
        "asked = {} if self.question is None else {QUESTION: self.question}",
        "asked: dict[str, float] = {}",
        ("test_adaptive.py::test_the_ledger_pays_for_gradient_and_question_together",),
    ),
    Mutant(
        "a question more sensitive than stated",
        "adaptive.py",
        "(samples.norms <= self.bound).to(samples.norms.dtype) - 0.5",
        "(samples.norms <= self.bound).to(samples.norms.dtype) - 0.0",
        ("test_adaptive.py::test_one_unit_moves_the_question_by_its_sensitivity_at_most",),
    ),
    Mutant(
        "truncated batches accounted as Poisson",
        "sampling.py",
        "if self.max_batch is None or self.max_batch >= self.n:",
        "if True:",
        ("test_units.py::test_truncation_costs_what_dp_accounting_says",),
    ),
    Mutant(
        "a cut batch keeps the first units",
        "sampling.py",
        'np.argsort(entropy.uniforms(drawn.size, "sampling", step, 1))',
        "np.arange(drawn.size)",
        ("test_units.py::test_a_cut_batch_keeps_everybody_alike",),
    ),
    Mutant(
        "views clipped one by one",
        "persample/engines.py",
        "gradient if views == 1 else gradient.by_unit(views)",
        "gradient",
        ("persample/test_views.py::test_a_unit_is_the_mean_of_its_rows_clipped_once",),
    ),
    Mutant(
        "views added up instead of averaged",
        "nest.py",
        "mask / mask.sum(1, keepdim=True).clamp(min=1)",
        "mask",
        ("persample/test_views.py::test_a_unit_is_the_mean_of_its_rows_clipped_once",),
    ),
    Mutant(
        "secure noise off the grid",
        "bounded.py",
        "np.rint(value.detach()",
        "(value.detach()",
        ("test_secure.py::test_answers_lie_on_one_grid_whatever_the_data",),
    ),
    Mutant(
        "secure noise with one half missing",
        "bounded.py",
        "np.where(words & np.uint64(1), tail, -tail)",
        "tail",
        ("test_secure.py::test_noise_has_the_right_distribution_and_a_wrong_scale_shows",),
    ),
    # repairs
    Mutant(
        "repair: random masks ignore the seed",
        "support.py",
        "np.random.SeedSequence((self.seed, *position))",
        "np.random.SeedSequence((0, *position))",
        (f"{MASKS}::test_masks_follow_from_the_public_seed_alone",),
    ),
    Mutant(
        "repair: the mask is never drawn anew",
        "support.py",
        "if standing.support is None or period != standing.period:",
        "if standing.support is None:",
        (f"{MASKS}::test_random_masks_have_exactly_the_asked_count_and_are_new_every_period",),
    ),
    Mutant(
        "repair: counts are cut off, not rounded",
        "repairs/random_sparsification.py",
        "[: round(rate * len(places))]]",
        "[: int(rate * len(places))]]",
        (f"{MASKS}::test_random_masks_have_exactly_the_asked_count_and_are_new_every_period",),
    ),
    Mutant(
        "repair: random masks ask for what is frozen",
        "repairs/random_sparsification.py",
        "keep = torch.cat(list(learning(weights, released.within).values()))",
        "keep = torch.cat(list(learning(weights, {}).values()))",
        (f"{MASKS}::test_sparsity_counts_what_is_left_to_choose_among",),
    ),
    Mutant(
        "repair: masks are biased to the first coordinates",
        "repairs/random_sparsification.py",
        "places[torch.randperm(len(places), generator=generator)[: round(rate * len(places))]]",
        "places[torch.rand(len(places), generator=generator).mul(1.2 - places / len(places)).argsort()[: round(rate * "
        "len(places))]]",
        (f"{MASKS}::test_every_coordinate_is_masked_equally_often_and_a_bias_shows",),
    ),
    Mutant(
        "repair: no noise on masked coordinates in the ranking",
        "repairs/ranked_sparsification.py",
        "seen = torch.where(mask.to(seen.device), seen, observed.std * noise)",
        "seen = torch.where(mask.to(seen.device), seen, 0 * noise)",
        (f"{MASKS}::test_ranked_sparsification_is_algorithm_4",),
    ),
    Mutant(
        "repair: the ranking sums over all epochs",
        "repairs/ranked_sparsification.py",
        "fresh = counted == 0 or self.period(counted) != self.period(counted - 1)",
        "fresh = counted == 0",
        (f"{MASKS}::test_ranked_sparsification_is_algorithm_4",),
    ),
    Mutant(
        "repair: the ranking is noised but its control sees noise too",
        "support.py",
        "Observed(clear, 0.0, support) if plan.unnoised and clear is not None else Observed(noised, std, support)",
        "Observed(noised, std, support)",
        (f"{MASKS}::test_ranked_sparsification_is_algorithm_4",),
    ),
    Mutant(
        "repair: frozen weights move with momentum",
        "train.py",
        "    state.course.hold(weights, held)\n",
        "",
        (f"{MASKS}::test_what_is_frozen_does_not_move_by_a_bit",),
    ),
    Mutant(
        "repair: pruned weights stay in the moving average",
        "train.py",
        "            self.state.course.prune(self.averaged)\n",
        "",
        (f"{MASKS}::test_pruned_weights_are_zero_in_the_moving_average_too",),
    ),
    Mutant(
        "repair: stages forget what they froze",
        "repairs/freezing.py",
        "learning(weights, {**dict.fromkeys(weights, True), **before})",
        "learning(weights, dict.fromkeys(weights, True))",
        (f"{MASKS}::test_stages_freeze_the_smallest_of_each_layer_and_what_is_frozen_stays_so",),
    ),
    Mutant(
        "repair: the largest weights are pruned",
        "repairs/freezing.py",
        "score[places].argsort(stable=True)",
        "score[places].argsort(stable=True, descending=True)",
        (f"{CHANGES}::test_pruning_removes_an_exact_share_of_each_layer_and_resets_the_rest",),
    ),
    Mutant(
        "repair: pruning keeps the trained weights",
        "repairs/pruning.py",
        "return self._pruned(before, {",
        "return self._pruned(replace(before, model=model), {",
        (f"{CHANGES}::test_a_mask_from_earlier_epochs_ranks_the_released_weights_and_resets_to_the_initial_ones",),
    ),
    Mutant(
        "repair: the other model's ledger is forgotten",
        "repairs/pruning.py",
        "[*before, *other.lines]",
        "[*before]",
        (f"{CHANGES}::test_a_private_models_ledger_is_composed_with_this_one",),
    ),
    Mutant(
        "repair: stated costs are not checked",
        "repairs/base.py",
        "        _check_cost(repair, before, recipe)\n",
        "",
        (f"{REPAIRS}::test_a_repair_that_lies_about_its_cost_is_refused",),
    ),
    Mutant(
        "repair: claims of earlier calls are forgotten",
        "repairs/base.py",
        "check_compatible((*recipe.repairs, *repairs))",
        "check_compatible(repairs)",
        (f"{REPAIRS}::test_claims_hold_over_several_calls",),
    ),
    Mutant(
        "repair: mixing rows is not looked for",
        "train.py",
        "if a.shape != b.shape or not torch.equal(a[others], b[others]):",
        "if False:",
        (f"{CHANGES}::test_batch_level_mixing_is_refused_before_training",),
    ),
    Mutant(
        "repair: views are summed, not averaged",
        "train.py",
        "weights = views.weights.repeat_interleave(augment.views, 1) / augment.views",
        "weights = views.weights.repeat_interleave(augment.views, 1)",
        (f"{CHANGES}::test_views_are_the_averaged_gradient_definition",),
    ),
    Mutant(
        "repair: a phase without privacy leaves no line",
        "recipe.py",
        'if self.ablation == "private":',
        "if True:",
        ("test_recipe.py::test_one_open_phase_makes_epsilon_infinite",),
    ),
    Mutant(
        "repair: what phases spent is left out of the calibration",
        "recipe.py",
        "for part in [*self.phases, Phase(mechanism=self.mechanism)]:",
        "for part in [Phase(mechanism=self.mechanism)]:",
        ("test_recipe.py::test_calibration_meets_the_budget_for_everything_together",),
    ),
    Mutant(
        "repair: pruned weights learn in a first phase",
        "recipe.py",
        "phases=phases if everywhere else recipe.phases",
        "phases=recipe.phases",
        (f"{CHANGES}::test_pruned_weights_stay_zero_through_a_first_phase",),
    ),
    Mutant(
        "repair: a resumed run forgets its memory of gradients",
        "support.py",
        'period, support, memory = raw["period"], raw["support"], dict(raw["memory"])',
        'period, support, memory = raw["period"], raw["support"], {}',
        (f"{REPAIRS}::test_a_killed_run_goes_on_bit_for_bit[ranked sparsification]",),
    ),
    Mutant(
        "repair: LoRA's base learns",
        "repairs/lora.py",
        "return with_support(replace(recipe, model=model), Fixed(frozen))",
        "return replace(recipe, model=model)",
        (f"{CHANGES}::test_lora_starts_at_the_same_function_and_only_additions_move",),
    ),
    Mutant(
        "repair: what is sent counts frozen coordinates",
        "support.py",
        "self.values += self._kept",
        "self.values += sum(standing.support is not None for standing in self.standing) and self._kept + 1",
        ("test_communication.py::test_with_cooling_the_share_is_about_one_minus_half_of_the_final_rate",),
    ),
    # data and models
    Mutant(
        "data: counts of all columns are taken for one",
        "proposal.py",
        "bounded = Bounded(counts, math.sqrt(columns))",
        "bounded = Bounded(counts, 1.0)",
        ("test_proposal.py::test_the_noise_is_the_ledgers_times_the_sensitivity_of_all_columns",),
    ),
    Mutant(
        "data: every row of a person is counted",
        "proposal.py",
        "if owner not in known:",
        "if owner is not None:",
        ("test_proposal.py::test_a_person_of_many_rows_counts_once",),
    ),
    Mutant(
        "data: a choice that asks nothing more costs less",
        "proposal.py",
        "answers, std = noised(_counted(",
        "answers, std = (answers, std) if not ranges else noised(_counted(",
        ("test_proposal.py::test_what_is_spent_does_not_depend_on_what_is_found",),
    ),
    Mutant(
        "data: a choice by rows is used for people",
        "schema.py",
        "if self.spent is not None and self.counted != self.unit:",
        "if False:",
        ("test_schema.py::test_a_noised_choice_holds_for_those_it_counted",),
    ),
    Mutant(
        "data: ranges read off private rows are used",
        "schema.py",
        'if self.origin == "rows" and not self.confirmed and not public:',
        'if self.origin == "rows" and not self.confirmed and not public and self.unit == "":',
        ("test_schema.py::test_a_schema_read_off_private_rows_is_refused_until_it_is_confirmed",),
    ),
    Mutant(
        "data: private rows are called public",
        "schema.py",
        "            public=public,\n",
        "            public=True,\n",
        ("data/test_load.py::test_a_csv_file_is_read_by_its_schema",),
    ),
    Mutant(
        "data: private rows of a long file are called public",
        "schema.py",
        "public=first.public,",
        "public=True,",
        ("test_schema.py::test_a_long_file_is_joined",),
    ),
    Mutant(
        "data: private rows come back from disk as public",
        "data/disk.py",
        'public=about["public"],',
        "public=True,",
        ("data/test_load.py::test_nothing_that_is_asked_for_is_passed_over",),
    ),
    Mutant(
        "data: one public part opens the folder",
        "data/disk.py",
        'if all(part["public"] for part in about.values()):',
        'if any(part["public"] for part in about.values()):',
        ("data/test_data_disk.py::test_private_data_is_for_its_owner_only",),
    ),
    Mutant(
        "data: a person is in two parts",
        "data/base.py",
        "    if data.unit is None:\n        return [data.take",
        "    if data.units:\n        return [data.take",
        ("test_data.py::test_nobody_is_in_two_parts",),
    ),
    Mutant(
        "data: groups are taken from other rows",
        "data/base.py",
        "groups = {name: labels[index] for",
        "groups = {name: labels[: len(index)] for",
        ("test_data.py::test_take_keeps_groups_and_flags",),
    ),
    Mutant(
        "data: test and held-out part exchanged",
        "data/tabular.py",
        "return Splits(train, held, tested)",
        "return Splits(train, tested, held)",
        ("test_tabular.py::test_any_csv_file_is_split_by_people",),
    ),
    Mutant(
        "data: two groups of one name",
        "schema.py",
        "while rest in self.values:",
        "while not rest:",
        ("test_schema.py::test_everything_else_has_a_name_of_its_own",),
    ),
    Mutant(
        "data: targets are not clipped",
        "schema.py",
        "clipped = np.clip(values, self.target.low, self.target.high) / self.target.scale",
        "clipped = values / self.target.scale",
        ("test_schema.py::test_huge_numbers_are_clipped",),
    ),
    Mutant(
        "data: the mark of UTF-8 is part of a name",
        "table.py",
        'with path.open(encoding="utf-8-sig", newline="") as file:',
        'with path.open(encoding="utf-8", newline="") as file:',
        ("test_table.py::test_a_byte_order_mark_and_spaces_do_not_count",),
    ),
    Mutant(
        "data: cached features for everybody's eyes",
        "scatter.py",
        "new.chmod(0o600)",
        "new.chmod(0o644)",
        ("test_scatter.py::test_the_cache_is_for_its_owners_eyes_and_where_the_user_says",),
    ),
    Mutant(
        "data: cached features of other settings",
        "scatter.py",
        'f"scattering {VERSION} {scales} {angles}"',
        'f"scattering {VERSION} {scales}"',
        ("test_scatter.py::test_other_images_settings_types_and_versions_are_other_files",),
    ),
    Mutant(
        "data: the digest of private images is shown",
        "scatter.py",
        "if not data.public and place.stat().st_mode & 0o077:",
        "if not data.public and place.stat().st_mode & 0o007 == 7:",
        ("test_scatter.py::test_nobody_else_sees_the_digest_of_private_images",),
    ),
    Mutant(
        "data: two classes of one name",
        "data/base.py",
        "if len(set(names)) < len(names):",
        "if len(set(names)) < 0:",
        ("test_data.py::test_no_name_is_given_twice",),
    ),
    Mutant(
        "data: a download is taken from under another process",
        "data/files.py",
        "    with _scratch(cache()) as folder:\n        archive",
        "    with _scratch(cache()) as folder:\n        folder = cache()\n        archive",
        ("data/test_data_files.py::test_an_archive_is_fetched_once_and_only_the_named_members_are_written",),
    ),
    Mutant(
        "data: every seed starts alike",
        "models/__init__.py",
        "torch.default_generator.manual_seed(seed)",
        "torch.default_generator.manual_seed(0)",
        ("test_models.py::test_the_seed_is_the_initialisation_and_the_global_state_is_left_alone[mlp]",),
    ),
    Mutant(
        "data: people with label -100 are skipped",
        "losses.py",
        ", ignore_index=NO_CLASS)",
        ")",
        ("test_task_losses.py::test_no_label_means_nobody",),
    ),
    # audits: the price
    Mutant(
        "price: rows of one person are independent",
        "audits/intervals.py",
        "sums = off if owners is None else np.bincount(owners, off)",
        "sums = off",
        ("audits/test_intervals.py::test_copies_of_a_persons_row_add_nothing",),
    ),
    Mutant(
        "price: a share by rows, not by people",
        "audits/intervals.py",
        "return min(worth * (z_score(level) / _t(level, people)) ** 2, rows)",
        "return float(rows)",
        ("audits/test_intervals.py::test_intervals_by_person_hold_and_intervals_by_row_do_not",),
    ),
    Mutant(
        "price: rows that end alike are all counted",
        "audits/intervals.py",
        "float(rows if alone > 0 else people)",
        "float(rows)",
        ("audits/test_intervals.py::test_rows_that_all_end_alike_count_as_one_for_each_person",),
    ),
    Mutant(
        "price: rows are called people",
        "audits/parts.py",
        'Part(by, name, accuracy["private"].n, accuracy,',
        "Part(by, name, len(rows), accuracy,",
        ("audits/test_parts.py::test_people_with_several_rows_are_described_as_people",),
    ),
    Mutant(
        "price: the worst part without allowance for the choice",
        "audits/parts.py",
        "single, both = intervals.each(level, len(rows)), intervals.each(level, 2 * len(rows))",
        "single, both = level, level",
        ("audits/test_parts.py::test_extremes_hold_for_all_parts_together",),
    ),
    Mutant(
        "price: parity of the other class",
        "audits/disparity.py",
        "labels = [1] if width == 2 else list(range(width))",
        "labels = [0]",
        ("audits/test_disparity.py::test_fairness_measures_are_fairlearns",),
    ),
    Mutant(
        "price: a model that diverged is judged",
        "audits/disparity.py",
        '        raise DataError("a model gives outputs that are not finite: it decides nothing. Did training diverge?")',
        "        pass",
        ("audits/test_disparity.py::test_a_model_that_diverged_decides_nothing",),
    ),
    Mutant(
        "price: a twin's result is called private",
        "audits/outputs.py",
        '        return Status("not-private", "shows the non-private twin: no ledger covers it")',
        "        pass",
        ("audits/test_outputs.py::test_only_a_released_model_on_public_data_may_be_shown",),
    ),
    Mutant(
        "price: bins closed on the left",
        "audits/calibration.py",
        'np.searchsorted(edges, confidence, side="left")',
        'np.searchsorted(edges, confidence, side="right")',
        (
            "audits/test_calibration.py::test_bins_hold_their_upper_edge",
            "audits/test_calibration.py::test_errors_are_torchmetrics",
        ),
    ),
    Mutant(
        "price: MCE of small bins",
        "audits/calibration.py",
        "if answers.has(rows := np.flatnonzero(bin_of == b), smallest)",
        "if answers.has(rows := np.flatnonzero(bin_of == b), 1)",
        (
            "audits/test_calibration.py::test_small_bins_are_counted_not_shown",
            "audits/test_calibration.py::test_the_audit_reports_these_numbers",
            "audits/test_calibration.py::test_too_few_people_for_any_bin_have_no_mce",
        ),
    ),
    Mutant(
        "price: errors not seen are impossible",
        "audits/calibration.py",
        "alike = right.value in (0.0, 1.0)",
        "alike = False",
        ("audits/test_calibration.py::test_a_model_that_is_always_right_or_wrong_is_not_known_to_be",),
    ),
    Mutant(
        "price: a temperature from private people is private",
        "audits/calibration.py",
        'if status.status == "private" and given.status != "private":',
        "if not status:",
        ("audits/test_calibration.py::test_a_temperature_from_private_people_makes_the_result_private",),
    ),
    Mutant(
        "price: temperature from private people is free",
        "repairs/temperature.py",
        "    if data.public:\n",
        "    if len(data):\n",
        ("repairs/test_temperature.py::test_temperature_of_private_people_is_marked_and_refused",),
    ),
    Mutant(
        "price: the attack leaves its ball",
        "audits/robustness.py",
        "moved = space.move(start, rule.project(change, radius))",
        "moved = space.move(start, change)",
        ("audits/test_robustness.py::test_adversarial_points_stay_in_the_ball_and_the_box",),
    ),
    Mutant(
        "price: an attack without gradients passes",
        "audits/robustness.py",
        '"passed": flat <= STUCK,',
        '"passed": flat <= 1,',
        ("audits/test_robustness.py::test_masked_gradients_are_found",),
    ),
    Mutant(
        "price: early stopping forgets who was misled",
        "audits/robustness.py",
        "                worst = _worse(worst, seen, rows)\n",
        "                worst = worst if stop else _worse(worst, seen, rows)\n",
        ("audits/test_robustness.py::test_stopping_at_misled_rows_changes_no_verdict",),
    ),
    Mutant(
        "price: false alarms counted on those who set the threshold",
        "audits/membership.py",
        "return self.outside[len(self.outside) // 2 :]",
        "return self.outside[: len(self.outside) // 2]",
        ("audits/test_membership.py::test_rates_are_met_on_people_who_did_not_set_the_threshold",),
    ),
    Mutant(
        "price: regression judged on the people it was fitted to",
        "audits/membership.py",
        ".fit(_features(first), first.inside)",
        ".fit(_features(second), second.inside)",
        ("audits/test_membership.py::test_regression_is_judged_on_people_it_was_not_fitted_to",),
    ),
    Mutant(
        "price: the strongest attack without allowance",
        "audits/membership.py",
        "together = intervals.each(level, len(found))",
        "together = level",
        ("audits/test_membership.py::test_the_strongest_attack_has_an_interval_that_allows_for_the_choice",),
    ),
    Mutant(
        "price: RMIA compares with shadows that saw the row",
        "audits/shadows.py",
        "    without = ~inside\n",
        "    without = inside\n",
        ("audits/test_membership.py::test_rmia_is_its_double_loop",),
    ),
    Mutant(
        "price: variances row by row from few shadows",
        "audits/shadows.py",
        "if len(values) >= PER_ROW:",
        "if len(values) >= 2:",
        ("audits/test_membership.py::test_lira_is_the_ratio_of_two_scipy_densities",),
    ),
    Mutant(
        "price: shadows of other rows",
        "audits/shadows.py",
        "if digest_of(data) != self.data:",
        "if not data:",
        (
            "audits/test_membership.py::test_people_that_do_not_fit_are_refused",
            "audits/test_membership.py::test_damaged_or_foreign_shadows_are_refused",
        ),
    ),
    Mutant(
        "price: shadows open to everybody",
        "audits/shadows.py",
        "path.chmod(0o700)",
        "path.chmod(0o755)",
        ("audits/test_membership.py::test_shadows_are_trained_once_and_kept_for_the_owner_only",),
    ),
    Mutant(
        "price: bound from the canaries that chose the guesses",
        "audits/empirical.py",
        "return attempt(scores[half:], coins[half:], best)",
        "return attempt(scores[:half], coins[:half], best)",
        ("audits/test_empirical.py::test_the_bound_is_that_of_canaries_which_did_not_choose_the_guesses",),
    ),
    Mutant(
        "price: no allowance for several statistics",
        "audits/empirical.py",
        "each = 1 - (1 - level) / len(STATISTICS)",
        "each = level",
        ("audits/test_empirical.py::test_intervals_of_the_statistics_hold_together",),
    ),
    Mutant(
        "price: one-run p-value forgets delta",
        "audits/empirical.py",
        "float(tails[0]) + 2 * canaries * delta * alpha",
        "float(tails[0]) + 0 * canaries * delta * alpha",
        ("audits/test_empirical.py::test_the_p_value_is_its_definition",),
    ),
    Mutant(
        "price: records shown as private",
        "audits/reconstruction.py",
        'else Status("not-private", "shows records',
        'else Status("private", "shows records',
        ("audits/test_reconstruction.py::test_pictures_of_records_are_sensitive",),
    ),
    # audits: the reason
    Mutant(
        "reason: corrected bound is the printed one",
        "audits/clipping_bias.py",
        "return bound * (1 - ratio) / (1 + ratio) if",
        "return bound * (1 - ratio / 2) if",
        ("audits/test_clipping_bias.py::test_the_corrected_bound_is_attained_by_the_second",),
    ),
    Mutant(
        "reason: a sample's R is not debiased",
        "audits/clipping_bias.py",
        "- (1 - b / self.population) * trace / b",
        "- 0 * trace / b",
        ("audits/test_clipping_bias.py::test_debiasing_is_right_on_average_and_the_plain_figure_is_not",),
    ),
    Mutant(
        "reason: an angle where nothing passes",
        "audits/clipping_bias.py",
        "if not math.isnan(e.value)}",
        "if True}",
        ("audits/test_clipping_bias.py::test_where_nothing_passes_there_is_no_angle",),
    ),
    Mutant(
        "reason: factors of units go to outputs of others",
        "audits/ntk.py",
        "np.repeat(mine, len(kernel) // len(mine))",
        "np.tile(mine, len(kernel) // len(mine))",
        ("audits/test_ntk.py::test_prediction_and_measurement_agree",),
    ),
    Mutant(
        "reason: a Jacobian of one output",
        "audits/ntk.py",
        "LARGEST // (outputs * widest)",
        "LARGEST // widest",
        ("audits/test_ntk.py::test_as_many_rows_as_there_are_and_fit",),
    ),
    Mutant(
        "reason: momentum is free",
        "audits/convergence.py",
        "lr=lr / (1 - momentum),",
        "lr=float(lr),",
        ("audits/test_convergence.py::test_momentum_counts_as_a_longer_step_and_is_said",),
    ),
    Mutant(
        "reason: P_t within C",
        "audits/convergence.py",
        "apart < 0.75 * bound",
        "apart < bound",
        ("audits/test_convergence.py::test_deviations_are_those_of_the_definition",),
    ),
    Mutant(
        "reason: deviations mirrored at 0",
        "audits/convergence.py",
        "* (2 * square - along)).mean()",
        "* (-along)).mean()",
        ("audits/test_convergence.py::test_deviations_are_those_of_the_definition",),
    ),
    Mutant(
        "reason: padding is recorded",
        "audits/feature_noise.py",
        "norms = observation.norms[:, : len(units)]",
        "norms = observation.norms",
        ("audits/test_feature_noise.py::test_padding_is_not_recorded",),
    ),
    Mutant(
        "reason: every part counts as everyone",
        "audits/feature_noise.py",
        "ratio = _ratio(found, place, shares[place] / sigma, level)",
        "ratio = _ratio(found, place, 1 / sigma, level)",
        ("audits/test_feature_noise.py::test_ratios_are_those_of_gradients_taken_one_by_one",),
    ),
    Mutant(
        "reason: noise of a sum",
        "audits/feature_noise.py",
        "* rule.sensitivity / mechanism.expected_batch_size",
        "* rule.sensitivity",
        ("audits/test_feature_noise.py::test_sigma_n_is_the_noise_that_training_adds",),
    ),
    Mutant(
        "reason: random directions move frozen weights",
        "audits/landscape.py",
        "names = learning or _names(scratch)",
        "names = _names(scratch)",
        ("audits/test_landscape.py::test_frozen_weights_are_not_moved_by_random_directions",),
    ),
    Mutant(
        "reason: mean cosine of random directions",
        "audits/landscape.py",
        "float(cosines.max())",
        "float(cosines.mean())",
        ("audits/test_landscape.py::test_the_largest_cosine_is_that_of_the_directions_that_were_gone",),
    ),
    Mutant(
        "reason: instability above the first end",
        "audits/landscape.py",
        "middle = (losses[0] + losses[-1]) / 2",
        "middle = losses[0]",
        ("audits/test_landscape.py::test_a_quadratic_loss_runs_as_its_formula_says",),
    ),
    Mutant(
        "reason: clipping and noise exchanged",
        "audits/attribution.py",
        "clipping, noise, total = plain - clipped, plain - noisy, plain - private",
        "clipping, noise, total = plain - noisy, plain - clipped, plain - private",
        ("audits/test_attribution.py::test_the_split_is_that_of_a_table_by_hand",),
    ),
    Mutant(
        "reason: other batches in each of the four runs",
        "audits/attribution.py",
        "seed=seed, insecure_seed=seed, ablation=run",
        "seed=seed, insecure_seed=seed + len(run), ablation=run",
        ("audits/test_attribution.py::test_runs_share_start_batches_and_noise",),
    ),
    Mutant(
        "reason: the second run starts where the first ended",
        "audits/attribution.py",
        "model = copy.deepcopy(start)",
        "model = start",
        ("audits/test_attribution.py::test_a_given_model_is_left_as_it_was_and_so_is_the_random_state",),
    ),
    Mutant(
        "reason: a resumed run keeps lines of steps to come",
        "recorders.py",
        '_lines(path) if line["step"] < step]',
        "_lines(path)]",
        ("test_recorders.py::test_a_resumed_run_writes_every_step_once",),
    ),
    Mutant(
        "reason: recordings can be read by others",
        "recorders.py",
        "path.parent.chmod(0o700)",
        "path.parent.chmod(0o755)",
        ("test_recorders.py::test_nothing_leaves_the_sensitive_folder",),
    ),
    Mutant(
        "reason: one refused audit stops all",
        "cli.py",
        "            if only:\n                raise\n",
        "            raise\n",
        ("test_cli.py::test_an_audit_that_a_run_does_not_allow_is_named_and_the_others_go_on",),
    ),
    Mutant(
        "reason: tables are cut",
        "cli.py",
        "+ GAP * len(wanted) > width:",
        "+ GAP * len(wanted) > 10_000:",
        ("test_cli.py::test_tables_are_never_cut",),
    ),
    Mutant(
        "reason: the start is the end",
        "config.py",
        "return (_built(run.config, run.data).eval(),)",
        "return (run.model,)",
        ("test_cli.py::test_convergence_is_about_gradient_steps_from_the_start",),
    ),
    Mutant(
        "reason: audits lie in the open",
        "config.py",
        'folder = run.folder.sensitive / "audits"',
        'folder = run.folder.path / "audits"',
        ("test_config.py::test_an_audit_is_saved_among_the_secrets",),
    ),
    Mutant(
        "reason: sections by name",
        "report/__init__.py",
        "(order.get(path.stem, len(order)), path.stem)",
        "path.stem",
        ("report/test_page.py::test_sections_come_in_the_order_of_the_audits_and_folded",),
    ),
    # proof: rows, operations, traces
    Mutant(
        "rows: a place is shifted",
        "persample/places.py",
        "place = Place(dim, count // (inner * units), inner)",
        "place = Place(dim, count // (inner * units), 1)",
        ("persample/test_places.py::test_a_place_that_is_found_is_right",),
    ),
    Mutant(
        "rows: entries may reach into the next unit",
        "persample/places.py",
        "and within + size <= rows.stride else None",
        "else None",
        (
            "persample/test_places.py::test_views_without_all_units_in_their_order_have_no_place",
            "persample/test_places.py::test_a_place_that_is_found_is_right",
        ),
    ),
    Mutant(
        "rows: units need not begin with the first",
        "persample/places.py",
        "within = start % period",
        "within = start % rows.stride",
        ("persample/test_places.py::test_units_that_do_not_count_from_the_first_on_have_no_place",),
    ),
    Mutant(
        "rows: two dimensions may change the unit",
        "persample/places.py",
        "if place is not None or rest or count % (inner * units):",
        "if rest or count % (inner * units):",
        ("persample/test_places.py::test_units_that_do_not_count_from_the_first_on_have_no_place",),
    ),
    Mutant(
        "rows: memory behind the batch is theirs",
        "persample/proof.py",
        "rows = rows_of(tensor, FRONT)._replace(end=_last_byte(tensor))",
        "rows = rows_of(tensor, FRONT)",
        ("persample/test_proof.py::test_memory_behind_the_batch_is_nobodys",),
    ),
    Mutant(
        "rows: reductions over the units",
        "persample/operations.py",
        '    if place.dim in dims:\n        raise _fail(call, "goes over the units")\n',
        "",
        ("persample/test_operations.py::test_what_is_not_row_by_row_is_not_proven",),
    ),
    Mutant(
        "rows: constants that differ by row",
        "persample/operations.py",
        "if place.dim >= 0 and tensor.numel() and not call.alike(tensor, place):",
        "if False:",
        ("persample/test_operations.py::test_what_is_not_row_by_row_is_not_proven",),
    ),
    Mutant(
        "rows: losses with mean by default",
        "persample/proof.py",
        "self.args = {**operation.defaults, **args}",
        "self.args = args",
        ("persample/test_operations.py::test_what_is_not_row_by_row_is_not_proven",),
    ),
    Mutant(
        "rows: contraction over the units",
        "persample/operations.py",
        '        if given.dim == contracted:\n            raise _fail(call, "adds up over the units")\n',
        "",
        ("persample/test_operations.py::test_what_is_not_row_by_row_is_not_proven",),
    ),
    Mutant(
        "rows: units times units",
        "persample/operations.py",
        "if first != second or first.dim >= ndim - 2:",
        "if first != second:",
        ("persample/test_operations.py::test_what_is_not_row_by_row_is_not_proven",),
    ),
    Mutant(
        "rows: batch norm over units",
        "persample/operations.py",
        "if training and place.dim != 1:",
        "if False:",
        ("persample/test_operations.py::test_what_is_not_row_by_row_is_not_proven",),
    ),
    Mutant(
        "rows: any offsets of bags",
        "persample/operations.py",
        "or call.row_numbers(offsets, place.inner) != FRONT",
        "",
        ("persample/test_operations.py::test_what_is_not_row_by_row_is_not_proven",),
    ),
    Mutant(
        "rows: chosen by any index",
        "persample/operations.py",
        "place = call.row_numbers(numbers, 1)",
        "place = call.row_numbers(numbers, 1) or FRONT",
        ("persample/test_operations.py::test_what_is_not_row_by_row_is_not_proven",),
    ),
    Mutant(
        "rows: attention over units",
        "persample/operations.py",
        'raise _fail(call, "attends over the units")',
        "pass",
        ("persample/test_operations.py::test_what_is_not_row_by_row_is_not_proven",),
    ),
    Mutant(
        "rows: masks select",
        "persample/operations.py",
        "if any(index.dtype in (torch.bool, torch.uint8) for index in tensors):",
        "if False:",
        ("persample/test_operations.py::test_what_is_not_row_by_row_is_not_proven",),
    ),
    Mutant(
        "rows: padding of units",
        "persample/operations.py",
        "if any(pads[2 * axis : 2 * axis + 2]):",
        "if False:",
        ("persample/test_operations.py::test_what_is_not_row_by_row_is_not_proven",),
    ),
    Mutant(
        "rows: cumulated along units",
        "persample/operations.py",
        'raise _fail(call, "goes along the units")',
        "pass",
        ("persample/test_operations.py::test_what_is_not_row_by_row_is_not_proven",),
    ),
    Mutant(
        "rows: an output that counts bags",
        "persample/operations.py",
        "return [FRONT, *[None] * (len(call.outputs) - 1)]",
        "return [place] * len(call.outputs)",
        (
            "persample/test_operations.py::test_moving_one_unit_moves_its_row_alone",
            "persample/test_operations.py::test_what_is_not_row_by_row_is_not_proven",
        ),
    ),
    Mutant(
        "proof: traces are not compared",
        "persample/proof.py",
        "            raise NotProven(reason)\n",
        "            pass\n",
        ("persample/test_proof.py::test_thresholds_on_the_size_are_not_proven_where_they_act",),
    ),
    Mutant(
        "proof: constants are not compared",
        "persample/proof.py",
        "if one.constants != two.constants:",
        "if False:",
        (
            "persample/test_proof.py::test_what_depends_on_the_size_is_not_proven",
            "persample/test_proof.py::test_traces_say_what_differs",
        ),
    ),
    Mutant(
        "proof: sources are not compared",
        "persample/proof.py",
        "if one.sources != two.sources:",
        "if False:",
        ("persample/test_proof.py::test_traces_say_what_differs",),
    ),
    Mutant(
        "proof: views are not in the trace",
        "persample/proof.py",
        "            self._record_view(operation, named, tensors, known, outputs)\n",
        "",
        ("persample/test_proof.py::test_honest_models_are_proven_at_every_size",),
    ),
    Mutant(
        "proof: views of a step are one",
        "persample/proof.py",
        "self._views[_memory(out)] = (number, part)",
        "self._views[_memory(out)] = number",
        ("persample/test_proof.py::test_traces_say_what_differs",),
    ),
    Mutant(
        "proof: the last view is not looked at",
        "persample/proof.py",
        '        self._compare(Step("losses", (), (source,), (self._made(losses, label),)))\n',
        "",
        (
            "persample/test_proof.py::test_traces_say_what_differs",
            "persample/test_proof.py::test_what_depends_on_the_size_is_not_proven",
        ),
    ),
    Mutant(
        "proof: values that follow the size",
        "persample/proof.py",
        "        if self.strict:\n                self._check_size",
        "        if False:\n                self._check_size",
        ("persample/test_proof.py::test_what_depends_on_the_size_is_not_proven",),
    ),
    Mutant(
        "proof: numbers of rows as values",
        "persample/proof.py",
        "        if self.strict:\n            self._check_numbers",
        "        if False:\n            self._check_numbers",
        ("persample/test_proof.py::test_what_depends_on_the_size_is_not_proven",),
    ),
    Mutant(
        "proof: sums over as many columns as units",
        "persample/proof.py",
        "allowed = 1 if label.even else 0",
        "allowed = 9 if label.even else 0",
        ("persample/test_proof.py::test_what_depends_on_the_size_is_not_proven",),
    ),
    Mutant(
        "proof: widened constants",
        "persample/proof.py",
        "and (made or step == 0) for size, step in sizes)",
        "and made for size, step in sizes)",
        ("persample/test_proof.py::test_what_depends_on_the_size_is_not_proven",),
    ),
    Mutant(
        "proof: chance around anything",
        "persample/proof.py",
        "if bare in CHANCE and same:",
        "if bare in CHANCE:",
        ("persample/test_operations.py::test_what_is_not_row_by_row_is_not_proven",),
    ),
    Mutant(
        "proof: types are not compared",
        "persample/proof.py",
        "(one.kind, one.place, one.dtype, len(one.shape)) !=",
        "(one.kind, one.place, two.dtype, len(one.shape)) !=",
        ("persample/test_proof.py::test_traces_say_that_types_differ",),
    ),
    Mutant(
        "proof: any part may follow the size",
        "persample/proof.py",
        "a == b or (free and too and a % units",
        "a == b or (a % units",
        ("persample/test_proof.py::test_what_depends_on_the_size_is_not_proven",),
    ),
    Mutant(
        "proof: writes into the model",
        "persample/proof.py",
        "                if isinstance(label, Shared) and not label.made:\n",
        "                if False:\n",
        ("persample/test_proof.py::test_writes_into_what_the_model_holds_are_refused",),
    ),
    Mutant(
        "proof: writes into the batch",
        "persample/proof.py",
        "in self._inputs and not self.copied:",
        "in self._inputs and False:",
        ("persample/test_operations.py::test_the_batch_itself_is_not_written_without_a_copy",),
    ),
    Mutant(
        "proof: writes into rows of others",
        "persample/proof.py",
        "if place is None or not (same or",
        "if False and not (same or",
        ("persample/test_operations.py::test_what_is_not_row_by_row_is_not_proven",),
    ),
    Mutant(
        "proof: units beside positions",
        "persample/proof.py",
        "if not (had.alike or had.chance or label.stride in had.even):",
        "if False:",
        ("persample/test_operations.py::test_what_is_not_row_by_row_is_not_proven",),
    ),
    Mutant(
        "proof: blank memory is read",
        "persample/proof.py",
        "if not all(map(self._is_written, read)) and not self._moves_within(operation, named):",
        "if False:",
        ("persample/test_operations.py::test_what_is_not_row_by_row_is_not_proven",),
    ),
    Mutant(
        "proof: half-blank memory is read",
        "persample/proof.py",
        "bool(_entries(entries, tensor).all())",
        "True",
        ("persample/test_operations.py::test_what_is_not_row_by_row_is_not_proven",),
    ),
    Mutant(
        "proof: written on the way and read",
        "persample/proof.py",
        "if tensor.untyped_storage()._cdata not in returned:",
        "if False:",
        ("persample/test_operations.py::test_what_is_not_row_by_row_is_not_proven",),
    ),
    Mutant(
        "proof: values read into Python",
        "persample/proof.py",
        'if operation.bare == "_local_scalar_dense" and holds:',
        "if False:",
        ("persample/test_proof.py::test_values_read_into_python_are_named",),
    ),
    Mutant(
        "proof: failures that are caught",
        "persample/proof.py",
        "            raise NotProven(self.failure)\n",
        "            pass\n",
        ("persample/test_proof.py::test_a_failure_that_the_model_catches_stays_a_failure",),
    ),
    Mutant(
        "proof: losses in another order",
        "persample/proof.py",
        "if self.units > 1 and self.place(losses) not in (FRONT, None):",
        "if False:",
        ("persample/test_proof.py::test_losses_in_another_order_are_not_proven",),
    ),
    Mutant(
        "proof: addresses used again",
        "persample/proof.py",
        "            self.trace.references.append(StorageWeakRef(storage))\n",
        "",
        ("persample/test_proof.py::test_a_foreign_tensor_keeps_its_address",),
    ),
    Mutant(
        "proof: subclasses",
        "persample/proof.py",
        "if type(tensor) not in (Tensor, torch.nn.Parameter):\n                raise NotProven(",
        "if False:\n                raise NotProven(",
        ("persample/test_proof.py::test_what_the_dispatcher_does_not_see_is_not_proven",),
    ),
    Mutant(
        "proof: saved tensors through hooks",
        "persample/proof.py",
        'if hooks is not None and getattr(hooks[0], "__module__", None) != "torch.utils.checkpoint":',
        "if False:",
        ("persample/test_proof.py::test_what_the_dispatcher_does_not_see_is_not_proven",),
    ),
    Mutant(
        "proof: foreign operators",
        "persample/proof.py",
        'if operation.space not in ("aten", "prims") and (tensors or outputs):',
        "if False:",
        ("persample/test_proof.py::test_what_the_dispatcher_does_not_see_is_not_proven",),
    ),
    Mutant(
        "proof: a batch of one is another model",
        "persample/examine.py",
        "            if len(fewer) == count:\n",
        "            if False:\n",
        ("persample/test_proof.py::test_a_unit_alone_is_evaluated_as_in_a_batch",),
    ),
]


@dataclass(frozen=True)
class Outcome:
    """What became of a fault."""

    verdict: str
    seconds: float
    output: str = ""

    @property
    def failed(self) -> str:
        """The test that failed, without its folder."""
        lines = [line.split(" - ")[0] for line in self.output.splitlines() if line.startswith("FAILED ")]
        return lines[0].rpartition("/")[2] if lines else ""


def copy_of_the_package(folder: Path) -> Path:
    shutil.copytree(ROOT / "src", folder / "src", ignore=shutil.ignore_patterns("__pycache__"))
    return folder / "src"


def environment(source: Path) -> dict[str, str]:
    """The copy comes first on the path, before the installed package."""
    return os.environ | {"PYTHONPATH": str(source), "PYTHONDONTWRITEBYTECODE": "1", "OMP_NUM_THREADS": "1"}


def check_import(source: Path) -> None:
    """The copy must be what is imported, or every fault would survive."""
    code = "import noisewise, noisewise.bounded as b; print(noisewise.__file__, b.__file__, sep='\\n')"
    found = subprocess.run(
        [sys.executable, "-c", code], env=environment(source), text=True, capture_output=True, check=True
    )
    for path in found.stdout.split():
        if not Path(path).resolve().is_relative_to(source.resolve()):
            raise SystemExit(f"{path} is imported instead of the copy in {source}: no fault would be seen.")


def run(source: Path, tests: tuple[str, ...]) -> tuple[int, str]:
    command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "-x", "-q", "--tb=line"]
    command += [str(ROOT / "tests" / test) for test in tests]
    try:
        done = subprocess.run(
            command, env=environment(source), cwd=ROOT, text=True, capture_output=True, timeout=SECONDS, check=False
        )
    except subprocess.TimeoutExpired:
        return 1, f"stopped after {SECONDS} s"
    return done.returncode, done.stdout + done.stderr


def plant(source: Path, mutant: Mutant) -> None:
    path = source / "noisewise" / mutant.file
    text = path.read_text(encoding="utf-8")
    if text.count(mutant.old) != 1:
        raise ValueError(f"{mutant.old!r} occurs {text.count(mutant.old)} times in {mutant.file}, not once")
    path.write_text(text.replace(mutant.old, mutant.new), encoding="utf-8")


def judge(mutant: Mutant) -> Outcome:
    """Plant the fault in a fresh copy and run its tests: pytest's exit code 1 means that a test failed."""
    start = time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        source = copy_of_the_package(Path(folder))
        try:
            plant(source, mutant)
        except ValueError as error:
            return Outcome("not planted", 0.0, str(error))
        status, output = run(source, mutant.tests)
    verdict = {0: "survived", 1: "caught"}.get(status, f"not judged (pytest exit code {status})")
    return Outcome(verdict, time.monotonic() - start, output)


def unchanged(mutants: list[Mutant], console: Console) -> bool:
    """All chosen tests pass on a copy without a fault."""
    tests = tuple(sorted({test for mutant in mutants for test in mutant.tests}))
    with tempfile.TemporaryDirectory() as folder:
        source = copy_of_the_package(Path(folder))
        check_import(source)
        status, output = run(source, tests)
    if status:
        console.print(output[-3000:], markup=False)
    return status == 0


def main() -> int:
    parser = argparse.ArgumentParser(description="Plant deliberate faults and see whether the tests notice.")
    parser.add_argument("--jobs", type=int, default=2, help="faults judged at a time")
    parser.add_argument("--only", default="", help="faults whose name contains this")
    options = parser.parse_args()
    console = Console() if sys.stdout.isatty() else Console(width=160)
    chosen = [mutant for mutant in MUTANTS if options.only in mutant.name]
    console.print(f"{len(chosen)} faults; their tests on the unchanged package first")
    if not unchanged(chosen, console):
        console.print("the tests fail without any fault: nothing can be judged")
        return 1
    with ThreadPoolExecutor(options.jobs) as pool:
        outcomes = list(pool.map(judge, chosen))
    table = Table("fault", "file", "verdict", "seconds", "by")
    for mutant, outcome in zip(chosen, outcomes, strict=True):
        style = None if outcome.verdict == "caught" else "bold red"
        table.add_row(
            mutant.name, mutant.file, outcome.verdict, f"{outcome.seconds:.1f}", escape(outcome.failed), style=style
        )
    console.print(table)
    missed = [(m, o) for m, o in zip(chosen, outcomes, strict=True) if o.verdict != "caught"]
    for mutant, outcome in missed:
        console.print(f"\n{mutant.name}: {outcome.verdict}\n{outcome.output[-1500:]}", markup=False)
    console.print(f"{len(chosen) - len(missed)} of {len(chosen)} caught")
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())

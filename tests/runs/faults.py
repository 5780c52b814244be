"""Faults in noisewise.runs that the tests must notice; `tests/mutants.py` plants them."""

from helpers.planting import Mutant

FAULTS = [
    # options, crossings, draws and files of a run
    Mutant(
        "seen: no fsync of a file",
        "runs/files.py",
        "    _sync(finished)\n",
        "",
        ("whole/test_write_order.py::test_every_file_of_a_run_is_on_the_disk_before_it_has_its_name",),
    ),
    Mutant(
        "seen: no fsync of the folder",
        "runs/files.py",
        "    _sync(path.parent)\n",
        "",
        ("whole/test_write_order.py::test_every_file_of_a_run_is_on_the_disk_before_it_has_its_name",),
    ),
    # audits: the reason
    Mutant(
        "reason: audits lie in the open",
        "runs/folder.py",
        'self.audits = self.sensitive / "audits"',
        'self.audits = self.path / "audits"',
        ("workflow/test_opened.py::test_an_audit_is_saved_among_the_secrets",),
    ),
    # words and what is released
    Mutant(
        "words: a false strength is read",
        "runs/summary.py",
        "        _check_strength(summary)\n",
        "",
        ("whole/test_words.py::test_a_strength_that_the_numbers_contradict_is_refused",),
    ),
    # options of the command line
    Mutant(
        "an edited status of reproducible noise is read",
        "runs/summary.py",
        'if ledger.reproducible and status.status != "not-private":',
        "if False:",
        ("training/test_lineage.py::test_a_summary_that_does_not_fit_its_ledger_is_refused",),
    ),
    Mutant(
        "fresh: a summary of another unit is read",
        "runs/summary.py",
        'if ledger.unit is not None and privacy["unit"] != ledger.unit:',
        "if False:",
        ("runs/test_summary.py::test_an_edited_figure_of_a_summary_is_not_shown",),
    ),
    Mutant(
        "fresh: an epsilon edited by 9 % is read",
        "runs/summary.py",
        "math.isclose(float(written), expected, rel_tol=1e-3)",
        "math.isclose(float(written), expected, rel_tol=1e-1)",
        ("runs/test_summary.py::test_an_edited_figure_of_a_summary_is_not_shown",),
    ),
    Mutant(
        "fresh: a plan above its budget is read",
        "runs/summary.py",
        "if budget is not None and cost is not None and not float(cost) <= budget:",
        "if False:",
        ("runs/test_summary.py::test_an_edited_figure_of_a_summary_is_not_shown",),
    ),
    Mutant(
        "fresh: the sampler of a summary is not compared",
        "runs/summary.py",
        'SHARED = ("delta", "adjacency", "sampler", ',
        'SHARED = ("delta", "adjacency", ',
        ("runs/test_summary.py::test_an_edited_figure_of_a_summary_is_not_shown",),
    ),
    Mutant(
        "fresh: shapes are not in a checkpoint's digest",
        "runs/tensors.py",
        'digest.update(f"{key} {tensors[key].dtype} {list(tensors[key].shape)}".encode())',
        'digest.update(f"{key} {tensors[key].dtype}".encode())',
        ("runs/test_tensors.py::test_names_types_shapes_and_bytes_of_tensors_are_in_a_checkpoints_digest",),
    ),
    Mutant(
        "fresh: two processes share a folder",
        "runs/files.py",
        "filelock.FileLock(path, ",
        'filelock.FileLock(path.with_name(f"lock-{os.urandom(8).hex()}"), ',
        ("whole/test_mishaps.py::test_the_message_names_value_reason_and_remedy",),
    ),
    Mutant(
        "fresh: the last step's metrics are forgotten",
        "runs/folder.py",
        "if _step_of(line) <= step]",
        "if _step_of(line) < step]",
        ("runs/test_folder.py::test_a_resumed_run_keeps_the_lines_up_to_its_step_and_no_others",),
    ),
    Mutant(
        "fresh: a folder that others can read stays open",
        "runs/folder.py",
        "            self.sensitive.chmod(0o700)\n",
        "",
        ("runs/test_folder.py::test_sensitive_is_closed_even_if_it_was_open",),
    ),
    Mutant(
        "fresh: a half-written checkpoint stays",
        "runs/folder.py",
        "        temporary(self.checkpoint).unlink(missing_ok=True)\n",
        "",
        ("runs/test_folder.py::test_the_secret_root_is_in_the_checkpoint_while_it_is_needed_and_nowhere_afterwards",),
    ),
    Mutant(
        "house: the lock outlives its process",
        "runs/files.py",
        "filelock.FileLock(path, timeout=0, fallback_to_soft=False)",
        "filelock.SoftFileLock(path, timeout=0)",
        ("runs/test_folder.py::test_a_killed_process_leaves_no_lock_behind",),
    ),
    Mutant(
        "together: a run that is not private costs nothing",
        "runs/together.py",
        'if any(run.privacy["status"] != "private" for run in self.runs):',
        "if False:",
        ("runs/test_together.py::test_one_run_that_is_not_private_leaves_no_total",),
    ),
    Mutant(
        "together: equal events count once",
        "runs/together.py",
        "counts[event] += count",
        "counts[event] = count",
        ("runs/test_together.py::test_people_said_to_be_the_same_are_added_up",),
    ),
    Mutant(
        "together: the largest delta counts",
        "runs/together.py",
        'return min(run.privacy["delta"]',
        'return max(run.privacy["delta"]',
        ("runs/test_together.py::test_the_smallest_delta_counts_where_runs_differ",),
    ),
    Mutant(
        "together: other units are added",
        "runs/together.py",
        '(name, run.privacy["unit"], run.privacy["adjacency"])',
        '(name, run.privacy["adjacency"])',
        ("runs/test_together.py::test_other_people_units_and_neighbours_are_apart_with_the_reason",),
    ),
    Mutant(
        "sealed: digests are of the run's beginning",
        "runs/folder.py",
        "later = {path.name: digests[path.name] for path in paths if path.name in digests}",
        "later: dict[str, str] = {}",
        ("workflow/test_verification.py::test_a_run_without_its_data_and_secrets_holds",),
    ),
    Mutant(
        "sealed: what was changed before is blessed",
        "runs/folder.py",
        '"files": {**about["files"], **later}',
        '"files": {**digests, **later}',
        ("workflow/test_verification.py::test_what_is_sealed_later_does_not_bless_what_was_changed_before",),
    ),
    Mutant(
        "together: a noised score costs nothing",
        "runs/together.py",
        "        ledger = ledger.composed(score.ledger)\n",
        "        pass\n",
        ("report/test_shareable.py::test_a_noised_score_is_released_once_shown_with_its_price_and_counted",),
    ),
]

"""Faults in noisewise.cli that the tests must notice; `tests/mutants.py` plants them."""

from helpers.planting import Mutant

FAULTS = [
    # audits: the reason
    Mutant(
        "reason: one refused audit stops all",
        "cli/audit.py",
        "            if only:\n                raise\n",
        "            raise\n",
        ("cli/test_audit.py::test_an_audit_that_a_run_does_not_allow_is_named_and_the_others_go_on",),
    ),
    Mutant(
        "reason: tables are cut",
        "cli/audit.py",
        "+ GAP * len(wanted) > width:",
        "+ GAP * len(wanted) > 10_000:",
        ("cli/test_audit.py::test_tables_are_never_cut",),
    ),
    # words and what is released
    Mutant(
        "words: runs that are not private have a total",
        "cli/seeds.py",
        "    if math.isfinite(epsilon):",
        "    if True:",
        ("cli/test_train.py::test_runs_whose_noise_repeats_have_no_total",),
    ),
    Mutant(
        "words: the total leaves out further runs of the folder",
        "cli/seeds.py",
        "spent_together(folders, before, every[len(folders) :])",
        "spent_together(folders, before)",
        ("cli/test_seeds.py::test_the_total_counts_every_run_in_the_folder",),
    ),
    Mutant(
        "words: all may be published",
        "cli/train.py",
        "{'may' if promise.publishable else 'should not'} be published",
        "may be published",
        ("whole/test_words.py::test_terminal_and_page_follow_the_number",),
    ),
    Mutant(
        "words: audits forget the strength",
        "cli/audit.py",
        "{badge(status, strength)} (",
        "{status} (",
        ("whole/test_words.py::test_terminal_and_page_follow_the_number",),
    ),
    # options of the command line
    Mutant(
        "option: --momentum ignored",
        "cli/train.py",
        'HOW = {"out", "config",',
        'HOW = {"momentum", "out", "config",',
        ("whole/test_command_options.py::test_options_of_train[--momentum]",),
    ),
    Mutant(
        "option: --adjacency of a plan ignored",
        "cli/account.py",
        "adjacency=adjacency or default_adjacency(sampler)",
        "adjacency=default_adjacency(sampler)",
        ("whole/test_command_options.py::test_options_of_a_plan[epsilon---adjacency]",),
    ),
    Mutant(
        "option: --all ignored",
        "cli/audit.py",
        "if everything or AUDITS[name].usual]",
        "if AUDITS[name].usual]",
        ("whole/test_command_options.py::test_options_of_audit",),
    ),
    Mutant(
        "option: --adjacency of a schema ignored",
        "cli/tables.py",
        'adjacency=adjacency or "add-remove"',
        'adjacency="add-remove"',
        ("whole/test_command_options.py::test_budget_of_schema",),
    ),
    Mutant(
        "option: --delta of a schema ignored",
        "cli/tables.py",
        "delta=delta, adjacency",
        "delta=None, adjacency",
        ("whole/test_command_options.py::test_budget_of_schema",),
    ),
    Mutant(
        "option: --unit of a schema ignored",
        "cli/tables.py",
        "            unit=unit,\n",
        "            unit=None,\n",
        ("whole/test_command_options.py::test_label_group_unit_and_out_of_schema",),
    ),
    Mutant(
        "option: --separator ignored",
        "cli/tables.py",
        "look(file, separator, encoding",
        "look(file, None, encoding",
        ("whole/test_command_options.py::test_separator_of_schema",),
    ),
    Mutant(
        "option: --resume lost",
        "cli/train.py",
        "begun = resume and _begun(folder)",
        "begun = False",
        ("whole/test_command_options.py::test_resume_of_train",),
    ),
    Mutant(
        "option: --out of a report ignored",
        "cli/report.py",
        "    write_page(runs, out, by)\n",
        "    write_page(runs, None, by)\n",
        ("whole/test_command_options.py::test_out_of_report_and_its_default",),
    ),
    Mutant(
        "option: --loss of a check ignored",
        "cli/check.py",
        "check_user_files(model, example, loss)",
        "check_user_files(model, example)",
        ("whole/test_command_options.py::test_example_and_loss_of_check",),
    ),
    Mutant(
        "option: one that nobody tests",
        "cli/train.py",
        '    quiet: Annotated[bool, option(RUN, "No progress bar, no plan, no summary.", "--quiet")] = False,',
        '    quiet: Annotated[bool, option(RUN, "No progress bar, no plan, no summary.", "--quiet", "--silent")] = False,',
        ("whole/test_command_options.py::test_no_option_is_left_out",),
    ),
    Mutant(
        "front: a script confirms what was read off the rows",
        "cli/table_schema.py",
        "    if not sys.stdin.isatty():\n",
        "    if False:\n",
        ("cli/test_table_schema.py::test_a_script_is_never_taken_for_a_person",),
    ),
    Mutant(
        "front: --yes confirms what was read off the rows",
        "cli/table_schema.py",
        "    if unread:\n        return _noised(file, asked, epsilon, adjacency)\n",
        "    if unread:\n        return replace(proposal.schema, confirmed=True)\n",
        ("cli/test_table_schema.py::test_yes_never_confirms_but_spends",),
    ),
    Mutant(
        "front: a schema of another label is taken",
        "cli/table_schema.py",
        'if wanted is not None and wanted.partition("=")[0] != known:',
        "if False:",
        ("cli/test_table_schema.py::test_a_schema_file_is_used_and_must_agree",),
    ),
    # several processes
    Mutant(
        "ranks: the schema is chosen by each process",
        "cli/processes.py",
        "chosen = choose() if team.first else None",
        "chosen = choose()",
        ("cli/test_processes.py::test_schema_and_config_are_the_first_ones",),
    ),
    Mutant(
        "cli: what cannot be run is not listed",
        "cli/reproduce.py",
        "for missing in paper.unrun:",
        "for missing in ():",
        ("cli/test_reproduce.py::test_the_list_names_every_experiment",),
    ),
]

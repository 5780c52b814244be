"""Faults in noisewise.report that the tests must notice; `tests/mutants.py` plants them."""

from helpers.planting import Mutant

FAULTS = [
    # audits: the reason
    Mutant(
        "reason: sections by name",
        "report/__init__.py",
        "(order.get(path.stem, len(order)), path.stem)",
        "path.stem",
        ("report/test_report.py::test_sections_come_in_the_order_of_the_audits_and_folded",),
    ),
    # words and what is released
    Mutant(
        "words: the title of weak runs",
        "report/subject.py",
        '"with weak differential privacy"',
        '"with differential privacy"',
        ("whole/test_words.py::test_terminal_and_page_follow_the_number",),
    ),
    # numbers on the page
    Mutant(
        "page: ledger columns swapped",
        "report/page.html",
        "<td>{{ line.noise }}</td><td>{{ line.rate }}</td>",
        "<td>{{ line.rate }}</td><td>{{ line.noise }}</td>",
        ("report/test_numbers.py::test_the_ledger_is_the_file",),
    ),
    Mutant(
        "page: steps and counts swapped",
        "report/subject.py",
        "f\"{line['count']:,}\"",
        "f\"{line['first_step']:,}\"",
        ("report/test_numbers.py::test_the_ledger_is_the_file",),
    ),
    Mutant(
        "page: an accountant's figure in another row",
        "report/subject.py",
        'row("RDP", "rdp_epsilon", RDP)',
        'row("RDP", "gdp_epsilon", RDP)',
        ("report/test_numbers.py::test_accountants_have_their_own_numbers",),
    ),
    Mutant(
        "page: the gauge",
        "report/subject.py",
        "200 * (certainty(",
        "100 * (certainty(",
        ("report/test_numbers.py::test_cards_hold_the_numbers_of_their_files",),
    ),
    Mutant(
        "page: another run's settings",
        "report/__init__.py",
        '(name.replace("_", " "), subject.setting(value)) for name, value',
        '(name.replace("_", " "), subject.setting(len(name))) for name, value',
        ("report/test_numbers.py::test_settings_and_versions_are_those_of_the_files",),
    ),
    Mutant(
        "page: labels of figures of another part",
        "report/parts.html",
        'aria-label="A guess can be right at most {{ of.certainty }} percent',
        'aria-label="A guess can be right at most {{ of.gauge }} percent',
        ("report/test_numbers.py::test_cards_hold_the_numbers_of_their_files",),
    ),
    # options of the command line
    Mutant(
        "fresh: page: sampling rate and noise exchanged",
        "report/subject.py",
        '"noise": number(event.get("noise_multiplier"), 4),\n        "rate": number(event.get("rate"), 3),',
        '"noise": number(event.get("rate"), 4),\n        "rate": number(event.get("noise_multiplier"), 3),',
        ("report/test_numbers.py::test_the_ledger_is_the_file",),
    ),
    Mutant(
        "fresh: page: powers of ten of any delta",
        "report/subject.py",
        'return f"10{raised}" if mantissa == "1" else f"{mantissa} · 10{raised}"',
        'return f"10{raised}"',
        ("report/test_subject.py::test_deltas_are_powers_of_ten_where_they_are",),
    ),
    Mutant(
        "fresh: page: a setting that is off is on",
        "report/subject.py",
        '("yes" if value else "no")',
        '("yes")',
        ("report/test_report.py::test_settings_are_written_as_they_are",),
    ),
    # what the page shows, and of whom
    Mutant(
        "page: a twin that is not there",
        "report/subject.py",
        'if any(getattr(result, "has_twin", False) for result in results):\n        return "This page',
        'if results:\n        return "This page',
        ("report/test_subject.py::test_the_banner_names_what_the_page_shows",),
    ),
    Mutant(
        "page: training loss without its label",
        "report/course.py",
        "Course(name, _points(private, name), sensitive=True)",
        "Course(name, _points(private, name), sensitive=False)",
        ("report/test_course.py::test_released_values_come_first_and_secret_ones_say_so",),
    ),
    Mutant(
        "page: runs on the same data do not add up",
        "report/several.py",
        "[line for ledger in ledgers for line in ledger.lines]",
        "[line for ledger in ledgers[:1] for line in ledger.lines]",
        ("report/test_several.py::test_what_runs_on_the_same_data_spent_together_is_said",),
    ),
    Mutant(
        "page: an exceeded claim looks kept",
        "report/measured.py",
        "                not result.exceeds,",
        "                True,",
        ("report/test_measured.py::test_more_than_claimed_is_said_loudly",),
    ),
    Mutant(
        "page: wide tables push the page aside",
        "report/style.css",
        ".scroll { overflow-x: auto; }",
        ".scroll { overflow-x: visible; }",
        ("report/test_browser.py::test_no_page_scrolls_sideways_on_a_phone",),
    ),
    Mutant(
        "page: a request",
        "report/page.html",
        "<style>\n",
        '<style>\n@import "other.css";\n',
        ("report/test_browser.py::test_the_page_complains_of_nothing_and_asks_for_nothing",),
    ),
    Mutant(
        "share: results that are not private",
        "report/shareable.py",
        'if result.status.status != "private":',
        "if False:",
        ("report/test_shareable.py::test_results_with_the_twin_or_of_private_rows_are_refused",),
    ),
    Mutant(
        "share: runs without a guarantee",
        "report/shareable.py",
        'if promise.strength == "none":',
        "if False:",
        ("report/test_shareable.py::test_what_is_not_private_is_refused",),
    ),
    Mutant(
        "share: paths are shown",
        "report/shareable.py",
        'LOCAL = ("data", "test",',
        'LOCAL = ("test",',
        ("report/test_shareable.py::test_settings_show_names_and_no_paths",),
    ),
    Mutant(
        "cards: a weak guarantee is not labelled",
        "report/cards.py",
        "warning = [] if promise.publishable else",
        "warning = [] if promise else",
        ("report/test_cards.py::test_words_of_both_cards_follow_the_number",),
    ),
    Mutant(
        "cards: names break tables",
        "report/cards.py",
        "[\\\\`*_{}\\[\\]<>#|~]",
        "[\\\\`*_{}\\[\\]<>#~]",
        ("report/test_cards.py::test_names_cannot_break_out_of_the_card",),
    ),
    Mutant(
        "compare: the worst of classes although there are groups",
        "report/comparison.py",
        'candidates = {by: worst for by, worst in extremes.items() if by != "class"} or extremes',
        "candidates = extremes",
        ("report/test_comparison.py::test_numbers_are_those_of_the_audits",),
    ),
]

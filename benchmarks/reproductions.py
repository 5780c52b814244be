"""The page of reproductions, and whether its results come out again.

    python benchmarks/reproductions.py page       # writes docs/reproductions.md from benchmarks/results/reproductions
    python benchmarks/reproductions.py draw       # the figures of all results again, from their files
    python benchmarks/reproductions.py verify     # reruns two random small results and compares them (make verify-results)
    python benchmarks/reproductions.py keep OUT   # adds runs in OUT/cells to those of unfinished experiments that are committed
    python benchmarks/reproductions.py bring OUT  # lays committed runs out in OUT/cells, where `noisewise reproduce` goes on

Results come from `noisewise reproduce NAME --tier TIER --out benchmarks/results/reproductions`. For each claim the page takes
the full tier where it has a verdict, else the standard one; quick results are never committed. Experiments that need hours are
carried out piece by piece: their runs are kept in `unfinished.jsonl` until their result is there.
"""

from __future__ import annotations

import argparse
import json
import random
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from noisewise.estimates.estimate import Estimate
from noisewise.jobs import Local
from noisewise.reproduce.claims import VERDICTS, Finding
from noisewise.reproduce.experiment import Config, Experiment, Paper, config_from
from noisewise.reproduce.measured import Measured
from noisewise.reproduce.papers import PAPERS, find
from noisewise.reproduce.running import jobs_of, reproduce, result_path, save
from noisewise.runs.files import read_json, write_atomically, write_json
from noisewise.wording import number

PROJECT = Path(__file__).parents[1]
RESULTS = PROJECT / "benchmarks" / "results" / "reproductions"
UNFINISHED = RESULTS / "unfinished.jsonl"
PAGE = PROJECT / "docs" / "reproductions.md"
TIERS = ("full", "standard")  # the first that has a verdict counts
SMALL = 200.0  # seconds that a result may take to be run again
NONE_YET = "no result yet"
WORDS = {verdict: verdict.replace("-", " ") for verdict in VERDICTS}
ANSWERS = {**WORDS, "reproduced": "yes", "not-reproduced": "not shown"}  # to questions of our own


class Row(NamedTuple):
    """A claim on the page; `tier` is None where no result is committed, `otherwise` what another tier says if it differs."""

    name: str
    says: str
    published: str
    verdict: str
    reason: str
    control: bool
    tier: str | None
    findings: list[Finding]
    otherwise: str = ""


def committed(paper: str, experiment: str) -> dict[str, dict[str, Any]]:
    """Results of an experiment by tier, the better one first."""
    paths = {tier: result_path(RESULTS, paper, experiment, tier) for tier in TIERS}
    return {tier: read_json(path) for tier, path in paths.items() if path.exists()}


def finding_of(raw: dict[str, Any]) -> Finding:
    """Read the JSON form."""
    return Finding(raw["what"], Estimate.from_dict(raw["ours"]), raw["side"], raw["low"], raw["high"])


def rows_of(paper: Paper, experiment: Experiment) -> list[Row]:
    """What the page says of each claim of an experiment."""
    results, rows = committed(paper.name, experiment.name), []
    for claim in experiment.claims:
        of_tiers = {
            tier: entry
            for tier, result in results.items()
            for entry in result["claims"]
            if entry["claim"] == claim.name
        }
        tier = next((t for t, e in of_tiers.items() if e["verdict"] != "not-run"), next(iter(of_tiers), None))
        entry = (
            of_tiers[tier] if tier else {"verdict": "not-run", "reason": experiment.cannot or NONE_YET, "findings": []}
        )
        differs = {
            other: found for other, raw in of_tiers.items()
            if other != tier and raw["verdict"] != "not-run" and (found := in_words(raw)) != in_words(entry)
        }  # fmt: skip
        rows.append(
            Row(
                claim.name, claim.says, claim.published, entry["verdict"], entry["reason"], claim.control, tier,
                [finding_of(raw) for raw in entry["findings"]],
                "; ".join(f"{other}: {found}" for other, found in differs.items()),
            )
        )  # fmt: skip
    return rows


def in_words(entry: dict[str, Any]) -> str:
    """The verdict on a claim; of one that is not reproduced why."""
    return WORDS[entry["verdict"]] if entry["verdict"] != "not-reproduced" else entry["reason"].partition(":")[0]


def counts(rows: list[Row]) -> Counter[str]:
    """Verdicts on the papers' own claims, and how many were checked."""
    counted = Counter(row.verdict for row in rows if not row.control)
    counted["checked"] = counted["reproduced"] + counted["not-reproduced"]
    return counted


def page() -> str:
    """The whole page."""
    every = {
        name: [row for experiment in paper.experiments for row in rows_of(paper, experiment)]
        + [Row(u.name, u.says, u.published, "not-run", u.reason, False, None, []) for u in paper.unrun]
        for name, paper in PAPERS.items()
    }
    columns = ("checked", *VERDICTS)
    lines = [
        "# Reproductions",
        "",
        "What papers on DP-SGD's side effects claim, and what came out here. Written by "
        "`python benchmarks/reproductions.py page` from "
        "[benchmarks/results/reproductions](../benchmarks/results/reproductions); "
        "`noisewise reproduce --list` shows what can be run.",
        "",
        "| paper | claims | checked | reproduced | not reproduced | not comparable | not run | controls |",
        "|---|---|---|---|---|---|---|---|",
    ]
    total: Counter[str] = Counter()
    ours = []
    for name, rows in every.items():
        counted, claims = counts(rows), sum(not row.control for row in rows)
        controls = sum(row.control for row in rows)
        shown = " | ".join(str(counted[column]) for column in columns)
        line = f"| [{PAPERS[name].reference}](#{name}) | {claims} | {shown} | {controls} |"
        if PAPERS[name].ours:
            ours.append(line)
            continue
        total.update(counted)
        total.update(claims=claims, controls=controls)
        lines.append(line)
    shown = " | ".join(str(total[column]) for column in columns)
    lines += [
        f"| **together** | {total['claims']} | {shown} | {total['controls']} |",
        *ours,
        "",
        "## How to read it",
        "",
        "- A claim is made of findings: a number of ours with its interval, and where it must lie. **Reproduced**: "
        "all intervals lie there. **Not reproduced**: *contradicted* if one lies wholly elsewhere, *undecided* if one"
        " cannot be told. **Not comparable**: the published number speaks of something else, or its settings are "
        "missing; ours is shown. **Not run**: why.",
        "- Intervals are Student's t over seeds, paired where arms share seeds (equal initial weights, batches and "
        "noise), of level 1 - 0.05/k for the k claims and controls of an experiment (Bonferroni). Test images are the"
        " same in all seeds, so intervals speak of training, not of other images. With fewer than five seeds nothing "
        "is said of what chance decides.",
        "- Simulated, these intervals cover as they promise for accuracies and differences (95 to 96 % at level 95 %, five and "
        "ten seeds). Of losses with a long upper tail they cover less (82 to 84 % where the logarithm deviates by 1), but miss "
        "upwards in less than 1 %: that something is *above* a limit is not said too often "
        "(`tests/reproduce/test_measured.py`).",
        "- *Controls* are not the papers': the same without privacy, with a matched step, with a random mask. They are "
        "counted apart. *Questions between the papers* are ours and counted apart too; a statement there is answered *yes*, or "
        "*not shown*. What it all says, without the tables: [what we learned](what_we_learned.md).",
        "- Settings were chosen on held-out training data, never on test data. Noise is drawn by seed, so that runs "
        "can be repeated: no model of these runs is private.",
        "- Epsilons are PLD's at delta 1e-5 for adding or removing one record, with real Poisson batches, unless said.",
        "",
    ]
    for name, paper in PAPERS.items():
        lines += [f'<a id="{name}"></a>', "", f"## {paper.reference}", "", f"*{paper.title}*", ""]
        for experiment in paper.experiments:
            lines += section(paper, experiment)
        if paper.unrun:
            lines += ["### Not run", ""]
            lines += [
                f"- **{u.name}**: {u.says} ({u.published}). {u.reason[0].upper()}{u.reason[1:]}." for u in paper.unrun
            ]
            lines.append("")
        if paper.errata:
            lines += ["### Errata", "", *(f"- {erratum}" for erratum in paper.errata), ""]
    return "\n".join(lines).rstrip() + "\n"


def section(paper: Paper, experiment: Experiment) -> list[str]:
    """One experiment."""
    rows, results = rows_of(paper, experiment), committed(paper.name, experiment.name)
    lines = [f"### {experiment.title}", "", f"`{paper.name}.{experiment.name}`, {experiment.where.rstrip('.')}.", ""]
    lines += ["| claim | says | paper | ours | verdict |", "|---|---|---|---|---|"]
    for row in rows:
        tier = "" if row.tier is None else f" ({row.tier}{'; ' if row.otherwise else ''}{row.otherwise})"
        name = f"*{row.name}* (control)" if row.control else row.name
        reason = row.reason.partition(":")[0] if row.verdict == "not-reproduced" else row.reason
        lines.append(
            f"| {name} | {_cell(row.says)} | {_cell(row.published)} | {_ours(row.findings)} | "
            f"**{(ANSWERS if paper.ours else WORDS)[row.verdict]}**{tier}: {_cell(reason)} |"
        )
    lines.append("")
    for tier, result in results.items():
        picture = result_path(RESULTS, paper.name, experiment.name, tier).with_suffix(".png")
        seeds = len(result["seeds"])
        lines += (
            [f"![{experiment.title}](../{picture.relative_to(PROJECT).as_posix()})", ""]
            if tier == next(iter(results))
            else []
        )
        lines += [f"`{result['command']}`: {seeds} seed{'s' if seeds > 1 else ''}, commit {result['commit']}.", ""]
    lines += [f"Settings. {experiment.settings}", ""]
    lines += [line for tier in results if tier != "full" for line in (smaller(experiment, tier), "")]
    if experiment.left_out:
        lines += [f"Left out: {experiment.left_out}.", ""]
    return lines


def smaller(experiment: Experiment, tier: str) -> str:
    """Settings of the tier that was run which are not those of the full one; what the text says of sizes is the full one's."""
    ran, full = (experiment.tiers[name].to_dict() for name in (tier, "full"))
    changed = [
        f"`{name}` {_setting(name, ran[name])} ({_setting(name, full[name])})"
        for name in ran
        if ran[name] != full[name]
    ]
    if not changed:
        return f"The {tier} tier has the settings of the full one."
    return f"The {tier} tier has other settings than the full one (in brackets): {', '.join(changed)}."


def _setting(name: str, value: Any) -> str:
    """As a reader would write it.

    >>> _setting("rates", [0.5, 10000])
    '0.5/10,000'
    """
    match value:
        case None:
            return "all" if name in ("rows", "chosen_at") else "none"
        case bool() | str():
            return str(value)
        case int() | float():
            return f"{value:,.4g}" if value < 1e4 else f"{value:,.0f}"
        case _:
            return "/".join(_setting(name, each) for each in value) or "none"


def _cell(text: str) -> str:
    return text.replace("|", "\\|").replace("*", "\\*")


def _ours(findings: list[Finding]) -> str:
    """Each finding with its interval; those that do not hold in italics."""
    return "<br>".join(f"{_cell(_words(f))}" if f.holds else f"*{_cell(_words(f))}*" for f in findings) or "–"


def _words(finding: Finding) -> str:
    return f"{finding.what}: {finding.value}, claimed {finding.wanted}"


# Do results come out again? --------------------------------------------------------------------------------------------


def differences(before: dict[str, Any], after: dict[str, Any]) -> list[str]:
    """What came out differently: findings whose new value is outside of the committed interval (5 % of it allowed)."""
    again = {entry["claim"]: entry for entry in after["claims"]}
    off = []
    for entry in before["claims"]:
        for old, new in zip(entry["findings"], again[entry["claim"]]["findings"], strict=True):
            was, now = finding_of(old).ours, finding_of(new).ours
            slack = 0.05 * (was.high - was.low) + 1e-6 * (1 + abs(was.value))
            if not was.low - slack <= now.value <= was.high + slack:
                off.append(f"{entry['claim']}: {old['what']} was {number(was.value)}, is {number(now.value)}")
    return off


def small() -> list[tuple[str, str]]:
    """Committed results that can be rerun in a few minutes on a CPU, as (name, tier).

    Seconds of a result leave out runs that it shares with another one: so the experiment itself must be said to be short, too.
    """
    results = [
        (
            f"{paper.name}.{experiment.name}",
            tier,
            max(result["seconds"], 60 * experiment.minutes[tier]),
            result["config"],
        )
        for paper in PAPERS.values()
        for experiment in paper.experiments
        for tier, result in committed(paper.name, experiment.name).items()
    ]
    return [(name, tier) for name, tier, seconds, config in results if seconds <= SMALL and config["device"] == "cpu"]


def verify(count: int, jobs: int) -> list[str]:
    """Rerun some small results with their own seeds in an empty folder, and say what is different."""
    off = []
    for name, tier in random.sample(small(), min(count, len(small()))):
        paper, experiment = find(name)
        before = read_json(result_path(RESULTS, paper.name, experiment.name, tier))
        with tempfile.TemporaryDirectory() as folder:
            (after,) = reproduce([name], Path(folder), tier=tier, seeds=len(before["seeds"]), where=Local(jobs))
            found = differences(before, after.to_dict())
        print(f"{name} ({tier}): {'as committed' if not found else 'different'}")
        off += [f"{name}: {words}" for words in found]
    return off


def draw() -> int:
    """Draw the figures of all committed results again, where drawing has changed; how many there are."""
    count = 0
    for paper in PAPERS.values():
        for experiment in paper.experiments:
            for tier, result in committed(paper.name, experiment.name).items():
                config = config_from(type(experiment.tiers[tier]), result["config"])
                figure = experiment.draw(config, Measured.from_dict(result["measured"]))
                save(figure, result_path(RESULTS, paper.name, experiment.name, tier))
                count += 1
    return count


# Runs of experiments that are not finished -----------------------------------------------------------------------------


def used() -> dict[str, dict[str, Any]]:
    """All runs that committed results are made of, by key, as they lie in `cells`."""
    runs = {}
    for paper in PAPERS.values():
        for experiment in paper.experiments:
            for tier, result in committed(paper.name, experiment.name).items():
                runs.update(runs_of(experiment, config_from(type(experiment.tiers[tier]), result["config"]), result))
    return runs


def runs_of(experiment: Experiment, config: Config, result: dict[str, Any]) -> Iterator[tuple[str, dict[str, Any]]]:
    """The runs of one result; how each was made is known where all of them were made alike."""
    measured, made = Measured.from_dict(result["measured"]), result.get("made", [])
    note = {key: value for key, value in made[0].items() if key != "runs"} if len(made) == 1 else {}
    for cell in (cell for stage in experiment.stages for cell in stage(config, measured)):
        seen = (measured.tuning if cell.tuning else measured.arms).get(cell.arm, {})
        if cell.seed in seen:
            (job,) = jobs_of([cell], config)
            yield job.key, {"format": 1, "digest": job.digest, "result": seen[cell.seed], "note": note}


def unfinished() -> dict[str, dict[str, Any]]:
    """Committed runs that are part of no committed result yet."""
    lines = UNFINISHED.read_text().splitlines() if UNFINISHED.exists() else []
    return {entry.pop("key"): entry for entry in map(json.loads, lines)}


def keep(out: Path) -> int:
    """Add runs of a folder, and forget those that a committed result has; how many are kept."""
    runs = unfinished() | {path.stem: read_json(path) for path in (out / "cells").glob("*.json")}
    left = {key: runs[key] for key in sorted(runs.keys() - used().keys())}
    lines = [json.dumps({"key": key, **run}, separators=(",", ":")) + "\n" for key, run in left.items()]
    write_atomically(UNFINISHED, "".join(lines).encode())
    return len(left)


def bring(out: Path) -> int:
    """Lay all committed runs out where `noisewise reproduce --out` looks for them; how many."""
    (out / "cells").mkdir(parents=True, exist_ok=True)
    runs = used() | unfinished()
    for key, run in runs.items():
        write_json(out / "cells" / f"{key}.json", run)
    return len(runs)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("page", "draw", "verify", "keep", "bring"))
    parser.add_argument("out", nargs="?", type=Path, default=RESULTS)
    parser.add_argument("--count", type=int, default=2)
    parser.add_argument("--jobs", type=int, default=2)
    given = parser.parse_args()
    if given.what == "page":
        PAGE.write_text(page())
        return
    if given.what == "draw":
        print(draw(), "figures")
        return
    if given.what in ("keep", "bring"):
        print((keep if given.what == "keep" else bring)(given.out), "runs")
        return
    if off := verify(given.count, given.jobs):
        sys.exit("\n".join(off))


if __name__ == "__main__":
    main()

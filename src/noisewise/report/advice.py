"""What to do next: suggestions that were made for a run, or the command that comes next."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from noisewise.errors import RunError
from noisewise.runs.files import read_json

if TYPE_CHECKING:
    from noisewise.audits import Result
    from noisewise.runs.folder import RunFolder
    from noisewise.wording import Promise


class Step(NamedTuple):
    """A piece of advice, the evidence for it, the command to try it; where known what it gained elsewhere and costs."""

    advice: str
    evidence: str
    command: str
    gain: str = ""
    privacy: str = ""


def next_steps(
    folder: RunFolder, results: Sequence[Result], promise: Promise, suggested: Sequence[Mapping[str, Any]] | None = None
) -> list[Step]:
    """What to do next, most urgent first: what is missing, then `suggested`, by default those of sensitive/suggestions.json.

    The file holds a list of `{"advice", "evidence", "command"}`, if known with `gain` (what to expect) and `privacy` (what
    trying it costs), alone or under `suggestions`. Without one the command that makes it is named.
    """
    steps = []
    if not promise.publishable:
        steps.append(
            Step(
                "Do not publish this model.",
                f"{promise.verdict} A smaller epsilon needs more noise or more people.",
                "noisewise calibrate --help",
            )
        )
    if not results:
        steps.append(
            Step(
                "Measure what privacy cost, and who pays.",
                "No audit has been asked of this run yet.",
                "noisewise audit DIR",
            )
        )
        return steps
    steps += _about_the_twin(folder, results)
    made = _suggested(folder) if suggested is None else [_step(entry) for entry in suggested]
    if made is not None:
        return steps + made or [Step("Nothing to repair was found.", "No rule fits what the audits have measured.", "")]
    ask = "It reads the audits and says which repair fits, with the evidence and the command to try it."
    return [*steps, Step("Ask which repair fits this run.", ask, "noisewise suggest DIR")]


def _about_the_twin(folder: RunFolder, results: Sequence[Result]) -> list[Step]:
    """What is missing for a comparison with the twin, at the least price: the folder says what there is, not the audits."""
    compared = [result.has_twin for result in results if hasattr(result, "has_twin")]
    if folder.twin_weights.exists():
        if all(compared):
            return []
        return [
            Step(
                "Ask the audits again: the twin is newer than they are.",
                "Some were asked before this run had its twin, so that what privacy cost is not known from them. Asking again "
                "costs no privacy.",
                "noisewise audit DIR",
            )
        ]
    if any(compared):
        return []
    if folder.config.exists():
        return [
            Step(
                "Train a non-private twin beside it.",
                "Without a twin what privacy cost is not known. The private model stays as it is: no more privacy is spent.",
                "noisewise train --resume --twin --out DIR",
            )
        ]
    return [
        Step(
            "Train it again with a non-private twin beside it.",
            "Without a twin what privacy cost is not known. Another run on the same data adds to its epsilon.",
            "",
        )
    ]  # a run of Python, which knows neither model nor data


def _suggested(folder: RunFolder) -> list[Step] | None:
    path = folder.suggestions
    if not path.exists():
        return None
    raw = read_json(path)
    entries = raw.get("suggestions") if isinstance(raw, dict) else raw
    if not isinstance(entries, list):
        raise RunError(f"{path} holds no list of suggestions: make it anew with `noisewise suggest DIR`.")
    return [_step(entry) for entry in entries]


def _step(entry: Any) -> Step:
    try:
        needed = {name: entry[name] for name in ("advice", "evidence", "command")}
        step = Step(**needed, gain=entry.get("gain", ""), privacy=entry.get("privacy", ""))
    except (KeyError, TypeError, AttributeError) as error:
        raise RunError(
            f"a suggestion lacks {error}: it needs advice, evidence and command. Make it anew with `noisewise suggest DIR`."
        ) from None
    if not all(isinstance(text, str) for text in step):
        raise RunError("a suggestion holds something other than text: make it anew with `noisewise suggest DIR`.")
    return step

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
    if not any(getattr(result, "has_twin", False) for result in results):
        steps.append(
            Step(
                "Train it again with a non-private twin beside it.",
                "Without a twin what privacy cost is not known. Another run on the same data adds to its epsilon.",
                "noisewise train --config DIR/config.toml --set twin=true --out NEW",
            )
        )
    made = _suggested(folder) if suggested is None else [_step(entry) for entry in suggested]
    if made is not None:
        return steps + made or [Step("Nothing to repair was found.", "No rule fits what the audits have measured.", "")]
    ask = "It reads the audits and says which repair fits, with the evidence and the command to try it."
    return [*steps, Step("Ask which repair fits this run.", ask, "noisewise suggest DIR")]


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

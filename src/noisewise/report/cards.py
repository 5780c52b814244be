"""A model card (Markdown with Hugging Face's metadata) and a privacy card for the people in the data, in plain words.

Both are made of `Subject`, which holds what is released or public and nothing else.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

from noisewise.sampling import SAMPLERS
from noisewise.wording import NEIGHBOURS, Promise, at_most, percent_at_most, several_units, without_folders

ASK = "**[to be filled in: name and address of whoever is responsible; `--contact` puts it here]**"
TAGS = ("differential-privacy", "dp-sgd", "pytorch", "noisewise")


@dataclass(frozen=True)
class Metric:
    """A number of the released model on public rows, or one that the ledger holds."""

    name: str
    kind: str  # as Hugging Face calls it
    value: float
    words: str  # with its interval


@dataclass(frozen=True)
class Bought:
    """A score of held-out units that was released with noise: in words, of how many, its epsilon, and that of all together."""

    words: str
    units: int
    epsilon: float
    together: float
    share: str


@dataclass(frozen=True)
class Subject:
    """What may be said of a run: by its released files, by public rows, by its user."""

    summary: Mapping[str, Any]
    settings: Mapping[str, Any]
    versions: Mapping[str, str]
    ledger: Sequence[Mapping[str, str]]
    promise: Promise
    columns: Sequence[tuple[str, str]]
    origin: str
    code: str
    metrics: Sequence[Metric]
    left_out: Sequence[tuple[str, str]]
    noised: Bought | None
    files: Sequence[str]  # of the run folder, which the code reads
    contact: str | None
    license: str | None

    @property
    def privacy(self) -> Mapping[str, Any]:
        """What was promised."""
        return self.summary["privacy"]

    @property
    def epsilon(self) -> float:
        """Of all that is shared: the model, and a score where one was bought."""
        return self.model_epsilon if self.noised is None else self.noised.together

    @property
    def model_epsilon(self) -> float:
        """Of the run."""
        return float(self.privacy["epsilon"])

    @property
    def split(self) -> str:
        """What model and score cost by themselves; nothing to say without a score."""
        if self.noised is None:
            return ""
        return f"{at_most(self.model_epsilon)} for the model, {at_most(self.noised.epsilon)} for the score"

    @property
    def covers(self) -> str:
        """What the promise is about, and what adds to it."""
        what = "this model alone" if self.noised is None else "this model and its noised score, and nothing else"
        return f"It covers {what}: other models trained on the same people add up with it."

    @property
    def unit(self) -> str:
        """What one of the protected is."""
        return self.privacy["unit"]

    @property
    def n(self) -> int:
        """How many were trained on, a number declared public."""
        return self.summary["data"]["n"]

    @property
    def data(self) -> str:
        """Name of the data set."""
        return str(self.summary["data"].get("name") or "data without a name")

    @property
    def model(self) -> str:
        """Name of the model."""
        return without_folders(str(self.summary["model"] or "model")).partition(":")[0]

    @property
    def title(self) -> str:
        """Model and data."""
        return f"{self.model} on {self.data}"

    @property
    def pipeline(self) -> str | None:
        """Hugging Face's word for the task; none where the form of the inputs is not known."""
        shape = self.summary["data"].get("shape")
        form = (
            "tabular" if self.columns or (shape and len(shape) == 1) else "image" if shape and len(shape) == 3 else None
        )
        task = self.summary["task"]
        if form is None or task not in ("classification", "regression") or (form, task) == ("image", "regression"):
            return None
        return f"{form}-{task}"


# --- model card --------------------------------------------------------------------------------------------------------


def model_card(subject: Subject) -> str:
    """README.md of a model: metadata in front, then what it is, what it promises, what it was measured on, what is left out."""
    privacy, promise = subject.privacy, subject.promise
    either = NEIGHBOURS[privacy["adjacency"]].format(unit=subject.unit)
    warning = [] if promise.publishable else [f"> **Not to be called publishable:** {promise.verdict}", ""]
    lines = [
        *_metadata(subject),
        f"# {_plain(subject.title)}",
        "",
        *warning,
        f"A {subject.summary['task'] or 'model'} model "
        f"({_plain(without_folders(str(subject.summary['model'] or 'of its own code')))}), trained "
        f"with differential privacy (DP-SGD) on {subject.n:,} {several_units(subject.unit)} of {_plain(subject.data)}.",
        "",
        "## What is promised",
        "",
        "| | |",
        "|---|---|",
        f"| epsilon | {at_most(subject.epsilon)} (PLD accountant){f': {subject.split}' if subject.split else ''} |",
        f"| delta | {at_most(privacy['delta'])} |",
        f"| strength | {promise.strength} |",
        f"| protects | one {subject.unit}: {either} ({privacy['adjacency']}) |",
        f"| noise multiplier | {_noise(privacy['noise_multiplier'])} |",
        f"| steps | {privacy['steps']:,}, {_sampler(privacy['sampler'])}, rate {privacy['rate']:.4g} |",
        "",
        f"{promise.meaning}",
        "",
        *_bullets(
            subject.covers,
            f"The number of {several_units(subject.unit)}, the settings and the list of columns count as public.",
            "The ledger below lists every release; `noisewise verify` checks a run folder without the data. That folder is not "
            "part of what is shared here: ask whoever made the model.",
        ),
        "",
        "| released | how | noise | rate | times |",
        "|---|---|---|---|---|",
        *(f"| {_plain(line['purpose'])} | {line['how']} | {line['noise']} | {line['rate']} | {line['count']} |"
          for line in subject.ledger),
        "",
        "## Use it",
        "",
        *_code(subject),
        "",
        *_inputs(subject),
        "## How good it is",
        "",
        *_evaluation(subject),
        "",
        "## What it is not for",
        "",
        *_bullets(
            "Decisions about single people without somebody who answers for them: it was trained with noise, and small groups "
            "are served worst by that.",
            "Statements about the people it was trained on: the guarantee is that it tells little of any one of them.",
        ),
        "",
        "## What is left out here, and why",
        "",
        *_bullets(*(f"{what}: {why}" for what, why in subject.left_out)),
        "",
        "## How it was made",
        "",
        "| setting | value |",
        "|---|---|",
        *(f"| {_plain(name.replace('_', ' '))} | {_plain(str(value))} |" for name, value in subject.settings.items()),
        "",
        "Made with " + ", ".join(f"{name} {version}" for name, version in subject.versions.items()) + ".",
        "",
        f"Contact: {subject.contact or ASK}",
    ]  # fmt: skip
    return "\n".join(lines) + "\n"


def _metadata(subject: Subject) -> list[str]:
    """Front matter: YAML whose texts are quoted as JSON, which YAML reads too."""
    lines = ["---"]
    if subject.license is not None:
        lines.append(f"license: {_quoted(subject.license)}")
    if subject.pipeline is not None:
        lines.append(f"pipeline_tag: {subject.pipeline}")
    lines += ["tags:", *(f"- {tag}" for tag in TAGS)]
    if subject.metrics:
        task = subject.pipeline or f"tabular-{subject.summary['task']}"
        lines += ["metrics:", *(f"- {kind}" for kind in dict.fromkeys(metric.kind for metric in subject.metrics))]
        lines += ["model-index:", f"- name: {_quoted(subject.title)}", "  results:", "  - task:", f"      type: {task}"]
        lines += ["    dataset:", f"      type: {_quoted(subject.data)}", f"      name: {_quoted(subject.data)}"]
        lines += ["      split: test", "    metrics:"]
        for metric in subject.metrics:
            lines += [
                f"    - type: {metric.kind}",
                f"      value: {metric.value!r}",
                f"      name: {_quoted(metric.name)}",
            ]
    return [*lines, "---", ""]


def _quoted(text: str) -> str:
    return json.dumps(text, ensure_ascii=True)


def _plain(text: str) -> str:
    """Text that Markdown takes as it is."""
    return re.sub(r"([\\`*_{}\[\]<>#|~])", r"\\\1", " ".join(text.split()))


def _noise(noise: Any) -> str:
    return f"{noise:.4g}" if isinstance(noise, float | int) else "changes over the run, see the ledger"


def _sampler(kind: str) -> str:
    return SAMPLERS[kind].words if kind in SAMPLERS else kind


def _bullets(*sentences: str) -> list[str]:
    return [f"- {sentence}" for sentence in sentences]


def _code(subject: Subject) -> list[str]:
    """How the model is loaded, and which files that needs: they are not beside the card."""
    if not subject.code:
        return ["As the code that defines the model says."]
    files = " and ".join(f"`{name}`" for name in subject.files)
    needed = f"This needs {files} of the run folder. Put what is to be published beside this card." if files else ""
    return ["```python", *subject.code.splitlines(), "```", *(["", needed] if needed else [])]


def _inputs(subject: Subject) -> list[str]:
    if not subject.columns:
        shape = subject.summary["data"].get("shape")
        return [f"Inputs are tensors `[rows, {', '.join(map(str, shape))}]`.", ""] if shape else []
    rows = [f"| {_plain(name)} | {_plain(kind)} |" for name, kind in subject.columns]
    return [subject.origin, "", "| column | what it is |", "|---|---|", *rows, ""]


def _evaluation(subject: Subject) -> list[str]:
    noised = [] if subject.noised is None else [subject.noised.words]
    if not subject.metrics:
        return noised or [
            "Not told: exact figures of people who were held out would expose them, and none was released with noise."
        ]
    rows = [f"| {metric.name} | {metric.words} |" for metric in subject.metrics]
    return [*noised, *([""] if noised else []), "On rows that are public:", "", "| | |", "|---|---|", *rows]


# --- privacy card ------------------------------------------------------------------------------------------------------


def privacy_card(subject: Subject) -> str:
    """For the people whose records were used: what was done, what it means for one of them, what was not protected."""
    privacy, word = subject.privacy, subject.unit
    person = word == "person"
    you = "you were in the data" if person else f"one {word} about you was in the data"
    share = percent_at_most(subject.epsilon, privacy["delta"])
    lines = [
        "# What was done with your records",
        "",
        f"This page is for the people whose records are in **{_plain(subject.data)}**. It says what was done with them and "
        "what others can find out about you from the result.",
        "",
        "## What was done",
        "",
        f"A computer model was trained on {subject.n:,} {several_units(word)}. It learned rules that hold for "
        "many people at once. While it learned, two things were done so that little of any single one can be found in it:",
        "",
        "1. The influence of each single "
        + ("person" if person else word)
        + " on each step of learning was limited to a fixed size, the same for all.",
        "2. Random noise, matched to that size, was added each time something was learned. It hides single influences as far "
        "as the next section says.",
        "",
        *_shared_score(subject),
        (
            "This page speaks of the model alone. "
            if subject.noised is None
            else "This page speaks of the model and this figure. "
        )
        + (
            "Its data are a public data set, which stands in for private records here."
            if subject.summary["data"].get("public")
            else "The records themselves are not part of what is shared with it."
        ),
        "",
        "## What this means for you",
        "",
        _meaning(subject, you, share),
        "",
        *_table_of_guesses(subject, share),
        f"In numbers for specialists: epsilon {at_most(subject.epsilon)}{f' ({subject.split})' if subject.split else ''}, "
        f"delta {at_most(privacy['delta'])}, {privacy['adjacency']} neighbours, unit: one {word}.",
        "",
        "## What was not protected",
        "",
        *_bullets(
            "What holds for many people. If the model learns that something is common among people like you, it can say so "
            "about you too, whether or not you took part.",
            *(
                []
                if person
                else [
                    f"People with several {several_units(word)}. Each {word} is protected alone; several of them together "
                    "are protected less."
                ]
            ),
            "What else is done with the same records. Each further model or statistic made from them adds to what can be found "
            "out. This page speaks of one model" + (" and one figure." if subject.noised else "."),
            f"That these records exist, how many there are ({_counted(subject)}), and which columns they have.",
            f"A small rest: with a probability of about {_one_in(privacy['delta'])} the promise may fail.",
            "Those who hold the records. The promise is about people who see the model, not about those who made it.",
        ),
        "",
        "## Whom to ask",
        "",
        f"{_plain(subject.contact) if subject.contact else ASK}",
        "",
        "Ask there whether your records were used, what else they are used for, and which rights you have. A model that is "
        "published cannot be called back; the promise above goes on to hold for it.",
    ]
    return "\n".join(lines) + "\n"


def _counted(subject: Subject) -> str:
    """Numbers that were declared public: of those who were trained on, and of those who were asked for a figure."""
    held = "" if subject.noised is None else f" to learn from, {subject.noised.units:,} to ask for the figure"
    return f"{subject.n:,}{held}"


def _shared_score(subject: Subject) -> list[str]:
    """That a score was bought: from whom, for how much, and what it adds up to."""
    score = subject.noised
    if score is None:
        return []
    return [
        f"One figure is shared with the model: how often it is right, about {score.share}. The model did not learn from the "
        f"{score.units:,} {several_units(subject.unit)} that were asked for it; they were held out. Random noise was added to "
        "the figure too, so that little of any one of them can be found in it. It was bought once, with a privacy "
        f"price of its own: epsilon {at_most(score.epsilon)}, besides {at_most(subject.model_epsilon)} for the model. Together "
        f"that is at most {at_most(score.together)}, and the next section counts with it.",
        "",
    ]


def _meaning(subject: Subject, you: str, share: str) -> str:
    """What epsilon is for one person; words follow the number."""
    judgement = {
        "strong": "That is a strong protection by the usual measure.",
        "reasonable": "That is a reasonable protection by the usual measure, not the strongest.",
        "weak": "**That is a weak protection: a determined person may well find out.**",
    }[subject.promise.strength]
    return (
        f"Think of somebody who knows all other records, has {_what(subject)}, and wants to find out whether {you}. By tossing "
        f"a coin they would be right 50 % of the time. With {_what(subject)} they can be right at most **{share} %** of the "
        f"time, however clever they are. {judgement}"
    )


def _what(subject: Subject) -> str:
    return "the model" if subject.noised is None else "the model and the figure"


def _table_of_guesses(subject: Subject, share: str) -> list[str]:
    rows = [
        ("tossing a coin", "50 %"),
        (f"{_what(subject)}, at most", f"{share} %"),
        ("your record lies open", "100 %"),
    ]
    return ["| who guesses by | is right |", "|---|---|", *(f"| {who} | {right} |" for who, right in rows), ""]


def _one_in(delta: float) -> str:
    """A small probability as people say it, never a smaller one.

    >>> _one_in(1e-5), _one_in(0.00025), _one_in(0.00029)
    ('1 in 100,000', '1 in 4,000', '1 in 3,448')
    """
    return f"1 in {int(1 / Decimal(repr(delta))):,}"

"""Model card and privacy card: read by Hugging Face's own parser, and words that follow the number."""

import re
from dataclasses import replace

import pytest
from huggingface_hub import ModelCard

from noisewise.report.cards import ASK, Metric, Subject, model_card, privacy_card
from noisewise.wording import percent_at_most, promised

PRIVACY = {
    "epsilon": 2.0, "delta": 1e-5, "adjacency": "add-remove", "unit": "row", "sampler": "poisson", "noise_multiplier": 3.0,
    "steps": 30, "rate": 0.25, "status": "private", "reason": "every release is in the ledger",
}  # fmt: skip
NASTY = 'a|b `x` <script>: "no" #1 [link](x)\n---\nevil: yes'


def subject(summary=None, **changes):
    whole = {"privacy": PRIVACY, "task": "classification", "data": {"name": "clinic.csv", "n": 4000, "shape": [7]},
             "model": "table:knots=6", **(summary or {})}  # fmt: skip
    given = {
        "summary": whole,
        "settings": {"lr": 0.5, "data": "clinic.csv"},
        "versions": {"noisewise": "0.1.0"},
        "ledger": [{"purpose": "gradient", "how": "Gaussian noise", "noise": "3", "rate": "0.25", "count": "30"}],
        "promise": promised(whole),
        "columns": [("age", "number, 0 to 120"), ("ill", "classes: no, yes; predicted")],
        "origin": "Declared.",
        "code": "import torch",
        "metrics": [Metric("accuracy", "accuracy", 0.875, "87.5 % (95 % interval 85–90 %)")],
        "noised": None,
        "files": ["model.safetensors"],
        "left_out": [("The twin", "no ledger covers it")],
        "contact": None,
        "license": None,
    }
    return Subject(**{**given, **changes})


def test_hugging_face_reads_the_metadata():
    card = ModelCard(model_card(subject(license="apache-2.0")))
    assert card.data.license == "apache-2.0"
    assert card.data.pipeline_tag == "tabular-classification"
    assert {"differential-privacy", "dp-sgd"} <= set(card.data.tags)
    (result,) = card.data.eval_results
    assert (result.metric_type, result.metric_value, result.dataset_name) == ("accuracy", 0.875, "clinic.csv")
    assert card.data.model_name == "table on clinic.csv"
    assert "epsilon" in card.text


def test_names_cannot_break_out_of_the_card():
    named = {"data": {"name": NASTY, "n": 10_000}, "model": NASTY}
    text = model_card(subject(named, license=NASTY, settings={"data": NASTY}, columns=[(NASTY, NASTY)]))
    card = ModelCard(text)
    assert "evil" not in card.data.to_dict()
    assert card.data.license == NASTY
    assert card.data.eval_results[0].dataset_name == NASTY
    assert not re.search(r"(?<!\\)<script", card.text)
    rows = [line for line in card.text.splitlines() if line.startswith("| a")]
    assert rows
    assert all(len(re.findall(r"(?<!\\)\|", row)) == 3 for row in rows)


@pytest.mark.parametrize(
    ("data", "columns", "task", "tag"),
    [
        ({"shape": [1, 8, 8]}, [], "classification", "image-classification"),
        ({"shape": [5]}, [], "regression", "tabular-regression"),
        ({}, [("a", "number")], "regression", "tabular-regression"),
        ({"shape": [1, 8, 8]}, [], "regression", None),
        ({}, [], "classification", None),
        ({"shape": [5]}, [], None, None),
    ],
)
def test_the_task_is_hugging_faces_word_or_none(data, columns, task, tag):
    text = model_card(subject({"data": {"n": 9000, **data}, "task": task}, columns=columns, metrics=[]))
    assert ModelCard(text).data.pipeline_tag == tag


def test_without_metrics_it_says_so_and_holds_no_number():
    text = model_card(subject(metrics=[]))
    assert "Not told: exact figures" in text
    assert "model-index" not in text
    assert ModelCard(text).data.eval_results is None


def test_everything_that_is_left_out_is_named():
    assert "- The twin: no ledger covers it" in model_card(subject())


@pytest.mark.parametrize("epsilon", [0.5, 3.0, 20.0])
def test_words_of_both_cards_follow_the_number(epsilon):
    known = subject({"privacy": {**PRIVACY, "epsilon": epsilon}})
    model, people = model_card(known), privacy_card(known)
    word = known.promise.strength
    assert f"| strength | {word} |" in model
    assert ("Not to be called publishable" in model) is (epsilon > 10)
    assert f"a {word} protection" in people
    assert f"at most **{percent_at_most(epsilon, 1e-5)} %**" in people
    assert "publishable" not in people


def test_the_privacy_card_says_what_was_not_protected_and_whom_to_ask():
    rows, people = privacy_card(subject()), privacy_card(subject({"privacy": {**PRIVACY, "unit": "person"}}))
    for text in ("What holds for many people", "What else is done with the same records", "1 in 100,000", "4,000"):
        assert text in rows
    assert "People with several rows" in rows
    assert "People with several" not in people
    assert ASK in rows
    assert "4,000 people" in people
    assert ASK not in (asked := privacy_card(subject(contact="Ms Weber, office@example.org")))
    assert "Ms Weber, office@example.org" in asked


def test_a_public_data_set_is_called_a_stand_in():
    public = {"data": {"name": "digits", "n": 9000, "public": True}}
    assert "stands in for private records" in privacy_card(subject(public))
    assert "stands in" not in privacy_card(subject())
    assert "are not part of what is shared" in privacy_card(subject())


def test_noise_that_changes_is_not_called_a_number():
    schedule = subject({"privacy": {**PRIVACY, "noise_multiplier": {"schedule": [[0, 1.0]]}}})
    assert "changes over the run" in model_card(schedule)
    assert replace(schedule, code="").code == ""
    assert "As the code that defines the model says" in model_card(replace(schedule, code=""))

"""Free text: words by a public hash, bounded whatever its length."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.feature_extraction.text import CountVectorizer

from noisewise.data.tables.kinds import Target
from noisewise.data.tables.schema import Schema
from noisewise.data.tables.words import Words, bucket, words_of
from noisewise.errors import ConfigError

TEXTS = ["No pain, no GAIN!", "pain", "", "Schmerzen im Fuß, no fever"]


def encoded(kind: Words, texts: list[str]) -> np.ndarray:
    return Schema(label="y", target=Target(0, 1), columns={"t": kind}).inputs({"t": texts}).numpy()


@pytest.mark.parametrize("counts", [False, True])
def test_scikit_learn_counts_the_same_words(counts) -> None:
    vectors = CountVectorizer(token_pattern=r"(?u)\w+", binary=not counts).fit(TEXTS)
    table = vectors.transform(TEXTS).toarray()
    expected = np.zeros((len(TEXTS), 1 << 14))
    for word, place in vectors.vocabulary_.items():
        expected[:, bucket(word, 1 << 14)] += table[:, place]
    expected /= np.maximum(np.linalg.norm(expected, axis=1, keepdims=True), 1)
    np.testing.assert_allclose(encoded(Words(1 << 14, counts), TEXTS), expected, atol=1e-6)


@settings(max_examples=60, deadline=None)
@given(st.lists(st.text(st.characters(exclude_categories=["Cs"]), max_size=60), min_size=1, max_size=5), st.booleans())
def test_a_row_is_at_most_one_long(texts, counts) -> None:
    lengths = np.linalg.norm(encoded(Words(8, counts), texts), axis=1)
    assert (lengths <= 1 + 1e-6).all()
    assert all((length > 0.99) == bool(words_of(text.strip())) for length, text in zip(lengths, texts, strict=True))


def test_letters_in_two_forms_are_one() -> None:
    assert words_of("Caf\u00e9") == words_of("CAFE\u0301") == ["café"]


@pytest.mark.parametrize("wrong", [lambda: Words(1), lambda: Words(8, counts=1)])  # type: ignore[arg-type]
def test_impossible_words_are_refused(wrong) -> None:
    with pytest.raises(ConfigError):
        wrong()

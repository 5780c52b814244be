"""Texts by a public hash: whole texts, or the words of free text."""

from __future__ import annotations

import hashlib
import re
import unicodedata
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache

import numpy as np

from noisewise.data.tables.checks import check_buckets, check_type

WORD = re.compile(r"\w+")


def bucket(text: str, buckets: int) -> int:
    """Public hash of a text: the same on every machine."""
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "little") % buckets


def words_of(text: str) -> list[str]:
    """Words in small letters, in the composed form of Unicode; what stands between them is left out.

    >>> words_of("No pain, no GAIN!")
    ['no', 'pain', 'no', 'gain']
    """
    return WORD.findall(unicodedata.normalize("NFC", text).lower())


@dataclass(frozen=True)
class Words:
    """Free text: its words by a public hash, as a vector of length 1 (0 where there is none).

    `bucket = blake2b(word) mod buckets`. `v = 1` for every bucket with a word of the text, with `counts` the number of
    such words; `x = v / |v|`, so that a long text weighs no more than a short one. The order of words is lost, and two
    words may share a bucket.
    """

    buckets: int
    counts: bool = False

    def __post_init__(self) -> None:
        """A sensible number of buckets."""
        check_buckets(self.buckets)
        check_type("counts", self.counts, bool)

    def labels(self, name: str) -> tuple[str, ...]:
        """Names of the encoded columns."""
        return tuple(f"{name}~{place}" for place in range(self.buckets))

    def words(self) -> str:
        """For people."""
        return f"free text, words hashed into {self.buckets} buckets{', counted' if self.counts else ''}"

    def encoded(self, texts: Sequence[str]) -> np.ndarray:
        """A row of length 1 for each text, 0 for a text without words."""
        x = np.zeros((len(texts), self.buckets), np.float32)
        place_of = cache(lambda word: bucket(word, self.buckets))
        for row, text in enumerate(texts):
            for place, count in Counter(map(place_of, words_of(text))).items():
                x[row, place] = count if self.counts else 1
        lengths = np.sqrt(np.square(x, dtype=np.float64).sum(1, keepdims=True))
        return (x / np.maximum(lengths, 1)).astype(np.float32)

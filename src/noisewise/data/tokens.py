"""Texts as rows of whole numbers: words by a public hash, or the pieces of a published vocabulary.

`tokens.encode(texts, second, length)` gives `[n, length]`, filled up with 0. What a text becomes is a fixed function of that
text, known without the data: nothing is learnt from records, so it costs no privacy. A text longer than `length` loses its
end; of a pair, the longer one does.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cache, cached_property
from pathlib import Path
from typing import Protocol

import torch
from torch import Tensor

from noisewise.data.tables.words import bucket, words_of
from noisewise.errors import ConfigError, DataError

PADDING = 0
LENGTH = 64


class Tokens(Protocol):
    """How texts become numbers from 1 to `size` - 1; 0 is padding, `separator` stands behind the first of two texts."""

    @property
    def size(self) -> int:
        """How many numbers there are, padding included."""
        ...

    @property
    def separator(self) -> int:
        """What ends the first text of a pair."""
        ...

    def encode(self, texts: Sequence[str], second: Sequence[str] | None = None, length: int = LENGTH) -> Tensor:
        """Numbers `[n, length]` of texts, or of pairs of texts."""
        ...


@dataclass(frozen=True)
class HashedWords:
    """Words by a public hash, `1 + blake2b(word) mod buckets`; of a pair, the separator `buckets + 1` is in between."""

    buckets: int = 1 << 13

    def __post_init__(self) -> None:
        """At least one bucket."""
        if type(self.buckets) is not int or self.buckets < 1:
            raise ConfigError(f"buckets={self.buckets!r}: must be a whole number above 0, e.g. {1 << 13}.")

    @property
    def size(self) -> int:
        """Padding, buckets, separator."""
        return self.buckets + 2

    @property
    def separator(self) -> int:
        """The last number."""
        return self.buckets + 1

    def encode(self, texts: Sequence[str], second: Sequence[str] | None = None, length: int = LENGTH) -> Tensor:
        """Numbers `[n, length]`."""
        _check(texts, second, length, least=3)
        return _rows(
            [
                first if other is None else [*first, self.separator, *other]
                for first, other in _fitting(self._reader(), texts, second, length, marks=0 if second is None else 1)
            ],
            length,
        )

    def _reader(self) -> Callable[[str], list[int]]:
        """Numbers of a text's words; words are hashed once."""
        of_word = cache(lambda word: 1 + bucket(word, self.buckets))
        return lambda text: [of_word(word) for word in words_of(text)]


@dataclass(frozen=True)
class WordPieces:
    """BERT's pieces of words in small letters: `[CLS] text [SEP]`, or `[CLS] first [SEP] second [SEP]`.

    Text in small letters without accents is cut at white space and around punctuation; a word is the longest piece of the
    vocabulary that begins it, then the longest `##` piece that goes on, and so on; `[UNK]` if that fails, or if it has more
    than 100 letters. Reference: Devlin et al. 2019, arXiv:1810.04805; equal to Hugging Face's BertTokenizer.
    """

    vocabulary: tuple[str, ...] = field(repr=False)

    def __post_init__(self) -> None:
        """The marks that texts are framed by are there, and padding is 0."""
        missing = [mark for mark in ("[PAD]", "[UNK]", "[CLS]", "[SEP]") if mark not in self._numbers]
        if missing or self._numbers["[PAD]"] != PADDING:
            raise DataError(
                f"a vocabulary of word pieces without {missing or '[PAD] as its first'}: not one of BERT's."
            )

    @classmethod
    def read(cls, path: Path) -> WordPieces:
        """A publisher's `vocab.txt`: one piece in a line."""
        try:
            return cls(tuple(path.read_text(encoding="utf-8").rstrip("\n").split("\n")))
        except (OSError, UnicodeDecodeError) as error:
            raise DataError(f"vocabulary {path}: {error}. Give the publisher's vocab.txt.") from None

    @cached_property
    def _numbers(self) -> dict[str, int]:
        return {piece: number for number, piece in enumerate(self.vocabulary)}

    @property
    def size(self) -> int:
        """Of the vocabulary."""
        return len(self.vocabulary)

    @property
    def separator(self) -> int:
        """`[SEP]`."""
        return self._numbers["[SEP]"]

    def encode(self, texts: Sequence[str], second: Sequence[str] | None = None, length: int = LENGTH) -> Tensor:
        """Numbers `[n, length]`."""
        _check(texts, second, length, least=5)
        start, end = self._numbers["[CLS]"], self.separator
        return _rows(
            [
                [start, *first, end] if other is None else [start, *first, end, *other, end]
                for first, other in _fitting(self._reader(), texts, second, length, marks=2 if second is None else 3)
            ],
            length,
        )

    def _reader(self) -> Callable[[str], list[int]]:
        """Pieces of a text; words are looked up once."""
        of_word = cache(self._of_word)
        return lambda text: [piece for word in basic_words(text) for piece in of_word(word)]

    def _of_word(self, word: str) -> list[int]:
        pieces, start = [], 0
        while start < len(word) <= 100:
            prefix = "##" if start else ""
            ends = range(len(word), start, -1)
            end = next((end for end in ends if prefix + word[start:end] in self._numbers), None)
            if end is None:
                return [self._numbers["[UNK]"]]
            pieces.append(self._numbers[prefix + word[start:end]])
            start = end
        return pieces or [self._numbers["[UNK]"]]


def basic_words(text: str) -> list[str]:
    """Small letters without accents, cut at white space and around punctuation and Chinese characters.

    >>> basic_words("Naïve,  isn't it?")
    ['naive', ',', 'isn', "'", 't', 'it', '?']
    """
    letters = []
    for letter in unicodedata.normalize("NFD", text.lower()):
        kind = unicodedata.category(letter)
        if letter.isspace() or kind == "Zs":
            letters.append(" ")
        elif kind == "Mn" or kind.startswith("C") or letter == "\ufffd":
            continue
        else:
            letters.append(f" {letter} " if _stands_alone(letter, kind) else letter)
    return "".join(letters).split()


def _stands_alone(letter: str, kind: str) -> bool:
    code = ord(letter)
    ascii_mark = 33 <= code <= 47 or 58 <= code <= 64 or 91 <= code <= 96 or 123 <= code <= 126
    return ascii_mark or kind.startswith("P") or any(low <= code <= high for low, high in CHINESE)


CHINESE = (
    (0x4E00, 0x9FFF), (0x3400, 0x4DBF), (0x20000, 0x2A6DF), (0x2A700, 0x2B73F), (0x2B740, 0x2B81F), (0x2B820, 0x2CEAF),
    (0xF900, 0xFAFF), (0x2F800, 0x2FA1F),
)  # fmt: skip


def _check(texts: Sequence[str], second: Sequence[str] | None, length: int, least: int) -> None:
    if type(length) is not int or length < least:
        raise ConfigError(f"length={length!r}: must be a whole number of at least {least} tokens.")
    if second is not None and len(second) != len(texts):
        raise DataError(f"{len(texts)} first texts and {len(second)} second ones: a pair needs both.")


def _fitting(
    numbers: Callable[[str], list[int]], texts: Sequence[str], second: Sequence[str] | None, length: int, marks: int
) -> Iterator[tuple[list[int], list[int] | None]]:
    """Numbers of each text or pair, without the ends that do not fit beside so many marks."""
    room = length - marks
    if second is None:
        yield from ((numbers(text)[:room], None) for text in texts)
        return
    for first, other in zip(map(numbers, texts), map(numbers, second), strict=True):
        kept, of_other = _shares(len(first), len(other), room)
        yield first[:kept], other[:of_other]


def _shares(first: int, second: int, room: int) -> tuple[int, int]:
    """How much of two lengths is kept: the longer one loses until both fit.

    >>> _shares(10, 3, 8), _shares(10, 9, 8), _shares(2, 3, 8)
    ((5, 3), (4, 4), (2, 3))
    """
    if first + second <= room:
        return first, second
    small = min(first, second, room // 2)
    return (room - small, small) if first > second else (small, room - small)


def _rows(rows: list[list[int]], length: int) -> Tensor:
    return torch.tensor([[*row, *[PADDING] * (length - len(row))] for row in rows], dtype=torch.int64).view(-1, length)

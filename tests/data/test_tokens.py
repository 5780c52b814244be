"""Texts as numbers: BERT's pieces against Hugging Face's tokenizer, hashed words by hand, pairs that do not fit."""

from __future__ import annotations

import hashlib

import pytest
from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, processors

from noisewise.data.tokens import HashedWords, WordPieces, basic_words
from noisewise.errors import ConfigError, DataError

PIECES = (
    "[PAD]", "[unused0]", "[UNK]", "[CLS]", "[SEP]", "a", "b", "c", "##b", "##c", "##bc", "un", "##aff", "##able", ",", "!",
    "the", "man", "plays", "##ing", "play", "e", "##e", "你", "$", "naive", "'", "t", "isn", "x",
)  # fmt: skip
ODD = [
    "", "   ", "unaffable", "The man, playing!", "Naïve isn't ＄", "abc abbc cba", "你你a b", "a\u200bb a\ufffdb \x00c",
    "x" * 101, "a\u2028b\tc\nA\u00a0B", "é È ß ﬁ", "$a^b`c", "un​able",
]  # fmt: skip


def theirs(length):
    """BERT's tokenizer as Hugging Face publishes it, with the same vocabulary."""
    numbers = {piece: number for number, piece in enumerate(PIECES)}
    tokenizer = Tokenizer(models.WordPiece(numbers, unk_token="[UNK]", max_input_chars_per_word=100))
    tokenizer.normalizer = normalizers.BertNormalizer(lowercase=True)
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.post_processor = processors.BertProcessing(("[SEP]", 4), ("[CLS]", 3))
    tokenizer.enable_truncation(length, strategy="longest_first")
    tokenizer.enable_padding(length=length)
    return tokenizer


@pytest.mark.parametrize("length", [5, 6, 9, 40])
def test_pieces_are_those_of_hugging_face(length):
    ours, published = WordPieces(PIECES), theirs(length)
    assert ours.encode(ODD, None, length).tolist() == [row.ids for row in published.encode_batch(ODD)]
    pairs = [(first, second) for first in ODD for second in ODD]
    first, second = zip(*pairs, strict=True)
    assert ours.encode(first, second, length).tolist() == [row.ids for row in published.encode_batch(pairs)]
    assert (ours.size, ours.separator) == (len(PIECES), 4)


def test_words_are_cut_as_bert_cuts_them():
    assert basic_words("Don't  STOP—now") == ["don", "'", "t", "stop", "—", "now"]


def test_words_are_hashed_and_pairs_are_separated():
    def place(word):
        return 1 + int.from_bytes(hashlib.blake2b(word.encode(), digest_size=8).digest(), "little") % 50

    tokens = HashedWords(50)
    one = tokens.encode(["No pain, no GAIN!", "", "a b c d e"], None, 4)
    assert one.tolist() == [
        [place("no"), place("pain"), place("no"), place("gain")],
        [0, 0, 0, 0],
        [place(word) for word in "abcd"],
    ]
    two = tokens.encode(["a b c", "a"], ["d e", ""], 5)
    assert two.tolist() == [
        [place("a"), place("b"), 51, place("d"), place("e")],
        [place("a"), 51, 0, 0, 0],
    ]
    assert (tokens.size, tokens.separator) == (52, 51)


def test_a_text_is_encoded_alike_whatever_is_beside_it():
    for tokens in (HashedWords(), WordPieces(PIECES)):
        together = tokens.encode(ODD, ODD[::-1], 12)
        for row, (first, second) in enumerate(zip(ODD, ODD[::-1], strict=True)):
            assert tokens.encode([first], [second], 12)[0].tolist() == together[row].tolist()
        assert tokens.encode([], None, 12).shape == (0, 12)


def test_a_vocabulary_is_read(tmp_path):
    path = tmp_path / "vocab.txt"
    path.write_text("\n".join(PIECES) + "\n")
    assert WordPieces.read(path) == WordPieces(PIECES)
    with pytest.raises(DataError, match=r"vocab.txt"):
        WordPieces.read(tmp_path / "nowhere" / "vocab.txt")


@pytest.mark.parametrize("pieces", [PIECES[1:], PIECES[::-1], ("a", "b")])
def test_a_vocabulary_of_another_kind_is_refused(pieces):
    with pytest.raises(DataError, match="not one of BERT's"):
        WordPieces(pieces)


def test_sizes_that_hold_nothing_are_refused():
    with pytest.raises(ConfigError, match="length=2"):
        HashedWords().encode(["a"], None, 2)
    with pytest.raises(ConfigError, match="length=4"):
        WordPieces(PIECES).encode(["a"], None, 4)
    with pytest.raises(ConfigError, match="buckets=0"):
        HashedWords(0)
    with pytest.raises(DataError, match="2 first texts and 1 second"):
        HashedWords().encode(["a", "b"], ["c"])

"""What helps where noise would drown a choice, in the words of whoever asked for it: remedies that the caller has."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Ways:
    """How a caller is given a larger epsilon (`{}` stands for it), what columns are, and the wish to look at nothing."""

    epsilon: str
    declare: str
    blind: str


PROPOSE = Ways("epsilon={}", "columns={'age': Number(0, 120)}", "or look at nothing: header_only=True")
SCHEMA = Ways("--epsilon {}", "--column NAME=LOW:HIGH or NAME=A,B,C", "or look at nothing: --header-only")
TRAIN = Ways(
    "--schema-epsilon {} (a part of --epsilon, which must be larger)",
    "--column NAME=LOW:HIGH or NAME=A,B,C",
    "or look at nothing: `noisewise schema FILE ... --header-only` writes a file for --schema",
)
FIT = Ways(
    "schema_epsilon={} (a part of epsilon, which must be larger)",
    "ranges=(low, high) for all columns, ranges={'age': (0, 120), 'city': ['A', 'B']} for some",
    "or say ranges='public' if everybody may know which values the columns hold",
)

"""The three sizes of an experiment, by name; nothing else is imported, so that `noisewise --help` stays instant."""

from __future__ import annotations

from typing import Literal, get_args

Tier = Literal["quick", "standard", "full"]
TIERS: tuple[Tier, ...] = get_args(Tier)

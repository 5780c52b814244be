"""Training on several processes: who they are, how they speak, and how their sums become one before the one release."""

from __future__ import annotations

from noisewise.distributed.joining import Part, join
from noisewise.distributed.sharding import Sharded, shard
from noisewise.distributed.team import ALONE, Team, begin, end, team_of

__all__ = ["ALONE", "Part", "Sharded", "Team", "begin", "end", "join", "shard", "team_of"]

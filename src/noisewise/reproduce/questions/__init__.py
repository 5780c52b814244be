"""Questions between the documents that no paper asks."""

from __future__ import annotations

from noisewise.reproduce.experiment import Paper
from noisewise.reproduce.questions.reasons import FEATURES, MASKS, RATIO
from noisewise.reproduce.questions.repaired import BEST, CALIBRATION, EVERYONE, GROUPS, RULES

PAPER = Paper(
    name="questions",
    title="What the papers leave open between them",
    reference="Questions between the papers",
    experiments=(GROUPS, RULES, MASKS, RATIO, CALIBRATION, FEATURES, EVERYONE, BEST),
    ours=True,
)

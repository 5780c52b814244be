"""Accuracy of a finished run on held-out people, released with noise, once."""

from __future__ import annotations

import os
import warnings

from noisewise.errors import ConfigError, OddRows, RunError
from noisewise.runs.folder import RunFolder
from noisewise.runs.scores import NoisedScore, read_score, write_score
from noisewise.runs.summary import read_status, read_summary
from noisewise.workflow.config import Config
from noisewise.workflow.opened import stored_schema
from noisewise.workflow.plan import Planned
from noisewise.workflow.scores import noised_scores, right_answers, trained_model


def release_score(path: str | os.PathLike[str], epsilon: float) -> NoisedScore:
    """The noised share of right answers on the test part, for `epsilon` more; kept in `scores.json` with its ledger.

    Guarantee: drawn once. A second call is refused, since the mean of two answers tells more than one.
    """
    folder = RunFolder(path)
    if not folder.complete or not folder.config.exists():
        raise RunError(f"{folder.path} holds no finished run of the command line, so that its people cannot be asked.")
    if not isinstance(epsilon, int | float) or not 0 < epsilon < 100:
        raise ConfigError(f"score epsilon {epsilon!r}: must be a number above 0, e.g. 0.1.")
    with folder.locked():
        if read_score(folder) is not None:
            raise ConfigError(
                f"{folder.scores} holds a score already: asking again would cost again. Without --score-epsilon it is used."
            )
        if read_status(folder).status != "private":
            raise ConfigError(
                f"{folder.path} is not private: a noised score would not make it so. Train a private run."
            )
        config = Config.read(folder.config)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", OddRows)
            planned = Planned.of(config, stored_schema(folder))
        privacy, people = read_summary(folder)["privacy"], planned.data.test
        scores = noised_scores(
            [right_answers(trained_model(planned, folder), people)],
            [people.units],
            epsilon=epsilon,
            delta=privacy["delta"],
            adjacency=privacy["adjacency"],
            unit=privacy["unit"],
        )
        score = NoisedScore(scores.shares[0], scores.deviation, people.units, scores.ledger)
        write_score(folder, score)
    return score

"""Accuracy of a finished run on held-out people, released with noise, once, and only where it says something."""

from __future__ import annotations

import os
import warnings
from dataclasses import dataclass

from dp_accounting import GaussianDpEvent

from noisewise.accounting import Ledger
from noisewise.errors import ConfigError, OddRows, PrivacyError, RunError
from noisewise.runs.folder import RunFolder
from noisewise.runs.scores import NoisedScore, read_score, write_score
from noisewise.runs.summary import read_ledger, read_status, read_summary
from noisewise.wording import at_most, rounded_up, several_units, strength
from noisewise.workflow.config import Config
from noisewise.workflow.opened import check_same_data, stored_schema
from noisewise.workflow.plan import Planned
from noisewise.workflow.scores import NOT_A_SHARE, PURPOSE, noised_scores, price_of_scores, right_answers, trained_model

MOST = 0.10  # standard deviation of the noise on a share; one that is drowned is not bought


@dataclass(frozen=True)
class Offer:
    """A score before it is bought: its price, the total with the model, the noise's deviation, how many are asked.

    `epsilon` and `together` are upper bounds; `unit` is what one of the asked is.
    """

    epsilon: float
    together: float
    deviation: float
    units: int
    unit: str

    @property
    def words(self) -> str:
        """What it would cost and say."""
        return (
            f"A score would cost epsilon {at_most(self.epsilon)}, with the model at most {at_most(self.together)}. It is the "
            f"share of right answers of {self.units:,} held-out {several_units(self.unit)}, with noise of standard deviation "
            f"{100 * self.deviation:.1f} points: 95 % of the time within {196 * self.deviation:.1f} points of the truth."
        )


def offered(path: str | os.PathLike[str], epsilon: float) -> Offer:
    """What a score would cost and say; refused where `release_score` would refuse it. Nothing is spent."""
    return _offered(RunFolder(path), epsilon)[0]


def release_score(path: str | os.PathLike[str], epsilon: float) -> NoisedScore:
    """The noised share of right answers on the test part, for `epsilon` more; kept in `scores.json` with its ledger.

    Guarantee: drawn once. A second call is refused, since the mean of two answers tells more than one. Refused before
    anything is spent where the noise would drown the answer (a standard deviation above 10 points).
    """
    folder = RunFolder(path)
    if not folder.complete:
        raise _unfinished(folder)
    with folder.locked():
        offer, planned = _offered(folder, epsilon)
        privacy, people = read_summary(folder)["privacy"], planned.data.test
        scores = noised_scores(
            [right_answers(trained_model(planned, folder), people)],
            [people.units],
            epsilon=epsilon,
            delta=privacy["delta"],
            adjacency=privacy["adjacency"],
            unit=privacy["unit"],
            secure=planned.config.secure,
        )
        score = NoisedScore(scores.shares[0], scores.deviation, offer.units, scores.ledger)
        write_score(folder, score)
    return score


def _unfinished(folder: RunFolder) -> RunError:
    return RunError(f"{folder.path} holds no finished run of the command line, so that its people cannot be asked.")


def _offered(folder: RunFolder, epsilon: float) -> tuple[Offer, Planned]:
    if not folder.complete or not folder.config.exists():
        raise _unfinished(folder)
    if not isinstance(epsilon, int | float) or not 0 < epsilon < 100:
        raise ConfigError(f"score epsilon {epsilon!r}: must be a number above 0, e.g. 0.1.")
    if read_score(folder) is not None:
        raise ConfigError(
            f"{folder.scores} holds a score already: asking again would cost again. Without --score-epsilon it is used."
        )
    if read_status(folder).status != "private":
        raise ConfigError(f"{folder.path} is not private: a noised score would not make it so. Train a private run.")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", OddRows)
        planned = Planned.of(Config.read(folder.config), stored_schema(folder), folder.features)
    check_same_data(folder, planned)
    summary, people = read_summary(folder), planned.data.test
    privacy = summary["privacy"]
    if people.task != "classification":
        raise ConfigError(NOT_A_SHARE)
    ledger, deviation = price_of_scores(
        1, people.units, epsilon=epsilon, delta=privacy["delta"], adjacency=privacy["adjacency"], unit=privacy["unit"]
    )
    together = read_ledger(folder, unit=privacy["unit"]).composed(ledger).epsilon(privacy["delta"])
    if strength(together, privacy["delta"], summary["data"]["n"]) == "none":
        raise PrivacyError(
            f"score epsilon {epsilon:g}: model and score together would cost epsilon {at_most(together)}, which rules nothing "
            "out. Take a smaller one."
        )
    offer = Offer(ledger.epsilon(privacy["delta"]), together, deviation, people.units, privacy["unit"])
    if deviation > MOST:
        plain = Ledger(privacy["adjacency"], unit=privacy["unit"])
        plain.record(GaussianDpEvent(0.99 * MOST * people.units), PURPOSE, 0)
        raise ConfigError(_useless(epsilon, offer, plain.epsilon(privacy["delta"])))
    return offer, planned


def _useless(epsilon: float, offer: Offer, enough: float) -> str:
    """Why a score is not sold, and what would be enough."""
    many, more = several_units(offer.unit), f"{rounded_up(offer.units * offer.deviation / MOST, 2):,.0f}"
    return (
        f"score epsilon {epsilon:g} with {offer.units:,} held-out {many}: the noise would have a standard deviation of "
        f"{100 * offer.deviation:.1f} points, more than {100 * MOST:.0f}, and drown the score. Nothing was spent. Give a "
        f"larger --score-epsilon ({rounded_up(enough, 2):g} is enough), or train with more test {many} ({more} at this "
        "epsilon)."
    )

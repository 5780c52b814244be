"""The papers, and their experiments by name. No torch here: what trains is imported when it is asked for."""

from __future__ import annotations

from noisewise.errors import ConfigError
from noisewise.reproduce import bu2022, questions, watson2023, xu2026, zhu2023
from noisewise.reproduce.experiment import Experiment, Paper

PAPERS: dict[str, Paper] = {
    paper.name: paper for paper in (xu2026.PAPER, bu2022.PAPER, zhu2023.PAPER, watson2023.PAPER, questions.PAPER)
}


def names() -> list[str]:
    """All experiments, as `paper.experiment`."""
    return [f"{paper.name}.{experiment.name}" for paper in PAPERS.values() for experiment in paper.experiments]


def find(name: str) -> tuple[Paper, Experiment]:
    """An experiment by name."""
    paper, _, wanted = name.partition(".")
    for experiment in PAPERS[paper].experiments if paper in PAPERS else ():
        if experiment.name == wanted:
            return PAPERS[paper], experiment
    raise ConfigError(f"experiment {name!r}: unknown. There are {', '.join(names())} (noisewise reproduce --list).")

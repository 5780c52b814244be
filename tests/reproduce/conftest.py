"""A toy paper among the others."""

import pytest

from helpers import toy_paper
from noisewise.reproduce.papers import PAPERS


@pytest.fixture
def toy(monkeypatch):
    monkeypatch.setitem(PAPERS, "toy", toy_paper.PAPER)
    return toy_paper.COIN

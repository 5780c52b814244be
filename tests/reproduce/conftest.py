"""A toy paper among the others; what experiments keep in the user's cache is kept elsewhere."""

import pytest

from helpers import toy_paper
from noisewise.reproduce.papers import PAPERS


@pytest.fixture
def toy(monkeypatch):
    monkeypatch.setitem(PAPERS, "toy", toy_paper.PAPER)
    return toy_paper.COIN


@pytest.fixture(autouse=True)
def own_cache(tmp_path_factory, monkeypatch):
    monkeypatch.setenv("NOISEWISE_CACHE", str(tmp_path_factory.mktemp("cache")))

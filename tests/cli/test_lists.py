"""What there is, one line each."""

import json

import pytest

from noisewise.audits import AUDITS
from noisewise.data.catalog import CATALOG
from noisewise.models import MODELS
from noisewise.workflow.choices import CLIPS, REPAIR_NAMES

LISTS = {"datasets": CATALOG, "models": MODELS, "repairs": REPAIR_NAMES, "audits": AUDITS, "clips": CLIPS}


@pytest.mark.parametrize("command", LISTS)
def test_every_thing_is_named_with_what_it_is(noisewise, command):
    found = noisewise(command, "--json")
    lines = json.loads(found.out)
    assert [name.partition(":")[0] for name in lines] == list(LISTS[command])
    assert all(len(words) > 15 for words in lines.values())
    shown = noisewise(command)
    assert shown.code == 0
    assert all(name.split(":")[0] in shown.words for name in lines)


@pytest.mark.parametrize("command", LISTS)
def test_lists_fit_eighty_columns(noisewise, monkeypatch, command):
    monkeypatch.setenv("COLUMNS", "80")
    assert max(map(len, noisewise(command).out.splitlines())) <= 80

"""The catalog names what there is, where it is, and settings that a run takes."""

import ast
from dataclasses import fields
from pathlib import Path

import pytest

import noisewise.data
from noisewise.data.catalog import CATALOG
from noisewise.workflow.config import DEFAULTS, Config

HOME = Path(noisewise.data.__file__).parent


@pytest.mark.parametrize("name", CATALOG)
def test_the_loader_is_where_the_catalog_says(name):
    tree = ast.parse((HOME / f"{CATALOG[name].home}.py").read_text())
    assert name in {node.name for node in tree.body if isinstance(node, ast.FunctionDef)}


@pytest.mark.parametrize("name", CATALOG)
def test_settings_are_those_of_a_config(name):
    assert set(CATALOG[name].settings) <= {field.name for field in fields(Config)} - {"data"} | {"epochs"}


def test_the_settings_are_the_defaults_of_runs():
    assert {name: entry.settings for name, entry in CATALOG.items() if entry.settings} == DEFAULTS

"""The catalog names what there is, where it is, and settings that a run takes."""

import ast
from dataclasses import fields
from pathlib import Path

import pytest

import noisewise.data
from noisewise.data.catalog import CATALOG
from noisewise.sampling import steps_for
from noisewise.workflow.config import Config
from noisewise.workflow.defaults import filled_in

HOME = Path(noisewise.data.__file__).parent


@pytest.mark.parametrize("name", CATALOG)
def test_the_loader_is_where_the_catalog_says(name):
    tree = ast.parse((HOME / f"{CATALOG[name].home}.py").read_text())
    assert name in {node.name for node in tree.body if isinstance(node, ast.FunctionDef)}


@pytest.mark.parametrize("name", CATALOG)
def test_settings_are_those_of_a_config(name):
    assert set(CATALOG[name].settings) <= {field.name for field in fields(Config)} - {"data"} | {"epochs"}


def test_the_settings_are_the_defaults_of_runs():
    settings, splits = filled_in({"epsilon": 3.0, "data": "digits"}, None)
    stated = dict(CATALOG["digits"].settings)
    assert settings["steps"] == steps_for(stated.pop("epochs"), len(splits.train), stated["batch_size"])
    assert {name: settings[name] for name in stated} == stated

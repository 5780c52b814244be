"""What is told before torch is imported is what the parts themselves would say."""

from dataclasses import fields
from typing import get_type_hints

import pytest

from noisewise import load
from noisewise.data.catalog import CATALOG
from noisewise.errors import ConfigError, DataError
from noisewise.workflow import early
from noisewise.workflow.early import CODE, SETTINGS, check_groups, check_length, check_repairs, check_sizes
from noisewise.workflow.repair_specs import BY_SLUG, EXAMPLES, FROM_OWN_FILES, parse

ELSEWHERE = {"magnitude-pruning", "public-pretraining"}  # whose settings follow from their source


@pytest.mark.parametrize("name", BY_SLUG)
def test_settings_are_those_of_the_repairs(name):
    if name in ELSEWHERE:
        assert name not in SETTINGS
        return
    hints = get_type_hints(BY_SLUG[name])
    known = [item.name for item in fields(BY_SLUG[name]) if item.name not in FROM_OWN_FILES]
    assert list(SETTINGS[name]) == known
    for key, hint in SETTINGS[name].items():
        assert hint is CODE or hint == hints[key]


@pytest.mark.parametrize("text", [*EXAMPLES.values(), "first-phase:epochs=1,clip=global", "lora:also=head/body"])
def test_what_is_right_passes(text):
    check_repairs([text, "mine.py:Repair", "mine.py:Repair"], 3.0)
    check_repairs(["first-phase:epochs=1,ablation=plain"], None)


@pytest.mark.parametrize(
    "text", ["lora:rank=x", "lora:colour=1", "lora:rank=1,rank=2", "stage-wise-freezing:mode=melt"]
)
def test_a_mistake_is_said_in_the_same_words(text):
    with pytest.raises(ConfigError) as late:
        parse(text)
    with pytest.raises(ConfigError) as at_once:
        check_repairs([text], None)
    assert str(at_once.value) == str(late.value)


@pytest.mark.parametrize(
    "name", ["digits", *(pytest.param(name, marks=pytest.mark.slow) for name in CATALOG if name != "digits")]
)
def test_rows_and_groups_are_those_of_the_data(name):
    entry = CATALOG[name]
    try:
        splits = load(name)
    except DataError as error:
        pytest.skip(f"not here: {error}")
    assert entry.rows in (None, len(splits.train) + len(splits.valid))
    assert entry.groups == tuple(splits.train.groups)


def test_what_fits_is_not_refused(tmp_path):
    for data in ("digits", "two_patch", None, str(tmp_path), "nowhere.csv"):
        check_sizes(data, 1438, None)
        check_sizes(data, None, 1437)
    table = tmp_path / "table.csv"
    table.write_text('a,b\n1,"2\n3"\n4,5\n')
    check_sizes(str(table), 3, None)
    check_sizes(str(table), 2, 1)
    for batch_size, valid in ((4, None), (3, 1), (None, 3)):
        with pytest.raises(ConfigError):
            check_sizes(str(table), batch_size, valid)


def test_large_tables_are_not_counted(tmp_path, monkeypatch):
    monkeypatch.setattr(early, "LARGEST", 3)
    (tmp_path / "table.csv").write_text("a\n1\n2\n")
    check_sizes(str(tmp_path / "table.csv"), 1000, None)
    assert early._rows(str(tmp_path / "table.csv"))[0] is None


def test_groups_of_the_data_may_be_named(tmp_path):
    bounds = ["group-bounds:group=sex"]
    (tmp_path / "table.csv").write_text("a\n1\n")
    check_groups("adult", bounds, (), None)
    check_groups(str(tmp_path / "table.csv"), bounds, ("sex=F,M",), None)
    check_groups(str(tmp_path / "table.csv"), bounds, (), "a schema says it")
    for data in ("digits", str(tmp_path / "table.csv")):
        with pytest.raises(ConfigError, match="has no groups 'sex'; it has none"):
            check_groups(data, bounds, (), None)


@pytest.mark.parametrize(
    "given",
    [
        (None, 1e6, None, None, None),
        ("digits", 1e6, None, None, "poisson"),
        ("adult", 2e4, None, 64, None),
        (None, None, 1_000_001, None, "poisson"),
        (None, 1_000_001, None, None, "shuffle"),
        (None, 1_000_001, None, None, "full-batch"),
    ],
)
def test_a_plan_of_a_million_epochs_is_refused_at_once(given):
    with pytest.raises(ConfigError, match=r"at least [\d,]+ releases: more than 1,000,000 .* Train for fewer steps"):
        check_length(*given)


@pytest.mark.parametrize(
    "given",
    [
        (None, None, None, None, None),
        ("digits", 300.0, None, 256, "poisson"),
        ("adult", 1e4, None, 256, None),
        ("not a set", 9e5, None, 1, None),
        (None, None, 1_000_000, None, None),
        (None, None, 50_000_000, None, "shuffle"),
        (None, 1e6, None, None, "shuffle"),
        (None, 1e6, None, None, "full-batch"),
    ],
)
def test_plans_that_may_be_composed_pass(given):
    check_length(*given)


@pytest.mark.parametrize(
    "name", [name for name, entry in CATALOG.items() if entry.rows and name in ("digits", "two-patch")]
)
def test_half_of_the_rows_train_at_least(name):
    assert len(load(name)[0]) >= CATALOG[name].rows / 2

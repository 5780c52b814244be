"""Data by name, from a CSV file with its schema, from a folder; what a schema spent is in every ledger."""

import pytest
import torch
from torch import nn

from noisewise import data as sets
from noisewise.accounting import Ledger
from noisewise.audits import disparity
from noisewise.clipping import Flat
from noisewise.data import disk
from noisewise.data.tables.kinds import Category, Classes, Number
from noisewise.data.tables.propose import propose
from noisewise.data.tables.schema import Schema
from noisewise.errors import ConfigError, DataError, PrivacyError
from noisewise.losses import cross_entropy
from noisewise.mechanism import Mechanism
from noisewise.sampling import Poisson
from noisewise.training.loop import train
from noisewise.training.state import State
from noisewise.training.step import private_step

SCHEMA = Schema(
    label="paid",
    target=Classes(("no", "yes")),
    columns={"age": Number(18, 90), "town": Category(("A", "B"))},
    groups={"sex": Category(("f", "m"), other=False)},
)


@pytest.fixture
def csv(tmp_path):
    path = tmp_path / "people.csv"
    generator = torch.Generator().manual_seed(0)
    ages = torch.randint(18, 91, (100,), generator=generator).tolist()
    rows = [f"{age},{'ABC'[i % 3]},{'fm'[i % 2]},{'yes' if age > 50 else 'no'}" for i, age in enumerate(ages)]
    path.write_text("\n".join(["age,town,sex,paid", *rows]) + "\n")
    return path


def test_a_csv_file_is_read_by_its_schema(csv, tmp_path):
    split = sets.load(csv, 1, 10, schema=SCHEMA)
    assert len(split.valid) == 10
    assert sum(map(len, split)) == 100
    assert 5 <= len(split.test) <= 35
    assert split.train.group_names == {"sex": ("f", "m")}
    assert not split.train.public
    written = tmp_path / "schema.toml"
    written.write_text(SCHEMA.to_toml())
    again = sets.load(str(csv), 1, 10, schema=written, public=True)
    assert torch.equal(again.train.x, split.train.x)
    assert again.test.public


def test_a_folder_on_disk_is_read(csv, tmp_path):
    split = sets.load(csv, schema=SCHEMA)
    disk.save(split, tmp_path / "stored")
    assert torch.equal(sets.load(tmp_path / "stored").train.x, split.train.x)
    disk.save(split.train, tmp_path / "part")
    with pytest.raises(DataError, match="one part only"):
        sets.load(tmp_path / "part")


def test_what_is_missing_is_said(csv):
    with pytest.raises(ConfigError, match=r"noisewise schema people\.csv"):
        sets.load(csv)
    with pytest.raises(ConfigError, match=r"'nowhere\.csv': unknown\. Known data sets: digits"):
        sets.load("nowhere.csv")


def test_nothing_that_is_asked_for_is_passed_over(csv, tmp_path):
    """A folder's rows stay as private as they were saved, whatever is said of them later."""
    disk.save(sets.load(csv, valid=10, schema=SCHEMA), tmp_path / "stored")
    assert not sets.load(tmp_path / "stored").test.public
    for name in ("digits", tmp_path / "stored"):
        for asked in ({"public": True}, {"schema": SCHEMA}):
            with pytest.raises(ConfigError, match="for a CSV file"):
                sets.load(name, **asked)
    assert len(sets.load(tmp_path / "stored", valid=10).valid) == 10
    with pytest.raises(ConfigError, match=r"valid=11: .* was saved with 10 held-out rows"):
        sets.load(tmp_path / "stored", valid=11)
    with pytest.raises(ConfigError, match="schema=5: must be a"):
        sets.load(csv, schema=5)


def test_people_of_several_rows_from_a_file_to_an_audit(tmp_path):
    path = tmp_path / "visits.csv"
    rows = [f"p{k % 150},{18 + k % 70},{('f', 'm', 'other', 'x')[k % 150 % 4]},{'yes' if k % 70 > 30 else 'no'}"
            for k in range(400)]  # fmt: skip
    path.write_text("\n".join(["who,age,sex,paid", *rows]) + "\n")
    schema = Schema(
        label="paid",
        target=SCHEMA.target,
        columns={"age": Number(18, 90)},
        groups={"sex": Category(("f", "m", "other"))},
        unit="who",
    )
    data = sets.load(path, schema=schema, valid=0)
    model = nn.Linear(1, 2)
    people = Mechanism(
        sampler=Poisson(data.train.units, 20), clip=Flat(1.0), noise_multiplier=4.0, steps=2, unit="person"
    )
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    assert train(model, data.train, cross_entropy, people, optimizer, progress=False).status.status == "private"
    with pytest.raises(PrivacyError, match="single rows"):
        train(model, data.train, cross_entropy, plan(data.train), optimizer, progress=False)
    shown = [part.name for part in disparity(model, data.train).parts("sex")]
    assert shown == ["f", "m", "other", "any other"]


def noised(csv):
    """The table by ranges that were chosen with noise, and what that spent."""
    schema = propose(
        csv, label="paid", groups=["sex"], columns={"paid": SCHEMA.target, "sex": SCHEMA.groups["sex"]}, epsilon=6.0
    ).schema
    assert schema.ledger.lines
    return sets.load(csv, schema=schema, valid=0).train, schema.ledger


def plan(data):
    return Mechanism(sampler=Poisson(len(data), 10), clip=Flat(1.0), noise_multiplier=4.0, steps=3)


def test_training_continues_the_ledger_of_the_schema(csv):
    data, spent = noised(csv)
    model = nn.Linear(data.x.shape[1], 2)
    trained = train(model, data, cross_entropy, plan(data), torch.optim.SGD(model.parameters(), 0.1), progress=False)
    assert trained.ledger.lines[: len(spent.lines)] == spent.lines
    assert trained.ledger.epsilon(1e-4) > Ledger(lines=plan(data).lines()).epsilon(1e-4)


def test_a_ledger_without_what_the_schema_spent_is_refused(csv):
    data, spent = noised(csv)
    model = nn.Linear(data.x.shape[1], 2)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    with pytest.raises(PrivacyError, match=r"data\.schema\.ledger"):
        private_step(model, data, cross_entropy, optimizer, State.start(plan(data)))
    with pytest.raises(PrivacyError, match=r"data\.schema\.ledger"):
        train(model, data, cross_entropy, plan(data), optimizer, ledger=Ledger(), progress=False)
    private_step(model, data, cross_entropy, optimizer, State.start(plan(data), spent))
    assert spent.lines[-1].purpose == "gradient"

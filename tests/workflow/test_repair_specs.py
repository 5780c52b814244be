"""Repairs as they are written on the command line."""

from dataclasses import fields

import pytest

from noisewise import repairs
from noisewise.errors import ConfigError
from noisewise.workflow import choices
from noisewise.workflow.repair_specs import BY_SLUG, EXAMPLES, example, parse, slug
from noisewise.workflow.written import converted


def test_every_repair_has_a_name_on_the_command_line():
    assert tuple(BY_SLUG) == choices.REPAIR_NAMES
    assert set(BY_SLUG) == set(EXAMPLES)
    assert [slug(name) for name in repairs.REPAIRS] == list(BY_SLUG)


@pytest.mark.parametrize("name", [name for name in BY_SLUG if "source=" not in EXAMPLES[name]])
def test_every_example_makes_its_repair(name):
    assert type(parse(example(BY_SLUG[name]))) is BY_SLUG[name]


@pytest.mark.parametrize(
    ("text", "made"),
    [
        ("random-sparsification", repairs.RandomSparsification()),
        ("random-sparsification:final=0.5,cooling=no,refreshes=2", repairs.RandomSparsification(0.5, False, 2)),
        ("stage-wise-freezing:at=0.5,shares=0.4", repairs.StagewiseFreezing(at=(0.5,), shares=(0.4,))),
        ("stage-wise-freezing:at=0.2/0.6,shares=0.1/0.3,mode=prune", repairs.StagewiseFreezing((0.2, 0.6), (0.1, 0.3), "prune")),  # noqa: E501
        ("moving-average:decay=0.99", repairs.MovingAverage(0.99)),
        ("global-adapt:noise=none", repairs.GlobalAdapt(noise=None)),
        ("lora:rank=2,also=fc.bias/head.bias", repairs.LoRA(rank=2, also=("fc.bias", "head.bias"))),
        ("magnitude-pruning:source=random,seed=3,share=0.5", repairs.MagnitudePruning(repairs.AtRandom(3), 0.5)),
        ("magnitude-pruning:source=earlier-epochs,epochs=2", repairs.MagnitudePruning(repairs.EarlierEpochs(2.0))),
        ("group-bounds:group=sex,limit=4", repairs.GroupBounds("sex", 4.0)),
    ],
)  # fmt: skip
def test_settings_reach_the_repair(text, made):
    assert parse(text) == made


def test_public_sources_are_loaded_by_name():
    repair = parse("public-pretraining:source=digits,epochs=2,lr=0.3,batch_size=64")
    assert isinstance(repair.source, repairs.PublicTraining)
    assert (repair.source.epochs, repair.source.lr, repair.source.batch_size) == (2.0, 0.3, 64)
    assert repair.source.data.public
    assert len(repair.source.data) > 1000


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("sparsify", "Known repairs: global-clipping"),
        ("random-sparsification:", None),
        ("random-sparsification:final", "no key=value"),
        ("random-sparsification:final=", "no key=value"),
        ("random-sparsification:final=lots", "final=lots: must be a number"),
        ("random-sparsification:final=0.5,final=0.6", "given twice"),
        ("random-sparsification:speed=3", "no 'speed'"),
        ("random-sparsification:cooling=perhaps", "true or false"),
        ("stage-wise-freezing:mode=melt", "one of freeze, prune"),
        ("magnitude-pruning:share=0.3", "needs source"),
        ("magnitude-pruning:source=random,lr=0.1", "no 'lr' for source=random"),
        ("public-pretraining:source=random", "needs public data"),
        ("public-pretraining:source=nowhere", "unknown"),
        ("group-bounds", "needs group"),
        ("first-phase", "needs epochs"),
        ("first-phase:epochs=2,optimizer=sgd", "no 'optimizer'"),
    ],
)
def test_mistakes_are_named_with_the_remedy(text, words):
    if words is None:
        assert isinstance(parse(text), repairs.RandomSparsification)
        return
    with pytest.raises(ConfigError, match=words):
        parse(text)


def test_a_repair_of_ones_own_file(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine.py").write_text(
        "from noisewise.repairs import MovingAverage\naverage = MovingAverage(0.9)\ndef make(): return average\nnumber = 3\n"
    )
    assert parse("mine.py:average") == parse("mine.py:make") == repairs.MovingAverage(0.9)
    with pytest.raises(ConfigError, match="must be a noisewise"):
        parse("mine.py:number")


@pytest.mark.parametrize("kind", BY_SLUG.values(), ids=lambda kind: kind.name)
def test_every_plain_setting_can_be_written(kind):
    """Every default of a repair that is a number, a word or a list of them comes back from its text."""
    plain = {
        item.name: item.default for item in fields(kind) if isinstance(item.default, bool | int | float | str | tuple)
    }
    hints = __import__("typing").get_type_hints(kind)
    for name, value in plain.items():
        if value == ():
            continue
        text = "/".join(map(str, value)) if isinstance(value, tuple) else str(value)
        assert converted(name, text, hints[name]) == value


def test_a_repair_of_ones_own_takes_no_settings_in_its_name():
    with pytest.raises(ConfigError, match=r"takes no settings here\. NAME may be an instance"):
        parse("falling.py:Falling:factor=0.3")

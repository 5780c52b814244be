"""docs/repairs.md says what is so, and its example of a repair of one's own works."""

import importlib.util
import re

import pytest
import torch

from helpers import compose
from helpers.walking import Walk
from noisewise import repairs
from noisewise.errors import ConfigError, PrivacyError
from noisewise.recipe import fit
from noisewise.repairs import MovingAverage, repaired
from noisewise.repairs.base import CLAIMS
from noisewise.testing import check_support

SPEC = importlib.util.spec_from_file_location("own_repair", compose.EXAMPLE)
own = importlib.util.module_from_spec(SPEC)
SPEC.loader.exec_module(own)


@pytest.mark.slow
def test_the_page_is_what_every_pair_does():
    """Applies and trains all pairs."""
    assert compose.PAGE.read_text() == compose.page(compose.verdicts())


def test_every_repair_is_on_the_page():
    kinds = {
        kind.__name__ for kind in vars(repairs).values() if isinstance(kind, type) and issubclass(kind, repairs.Repair)
    }
    listed = {repair.__name__ for repair in repairs.REPAIRS.values()}
    assert kinds - {"Repair"} == listed == {type(make()).__name__ for make in compose.ALL.values()}
    for name in listed:
        assert f"| `{name}` |" in compose.PAGE.read_text()


def test_every_claim_is_made_and_explained():
    made = {claim for make in compose.ALL.values() for claim in make().claims}
    assert made == set(CLAIMS)


def test_an_own_repair_freezes_all_but_the_head_and_then_lets_everything_learn():
    recipe = repaired(compose.recipe(), own.Unfreezing("5"), MovingAverage(0.9))
    check_support(recipe.mechanism.support, dict(recipe.model.named_parameters()), steps=20)
    start = {name: weight.detach().clone() for name, weight in recipe.model.named_parameters()}
    walk = Walk(recipe, 10)
    moved = {name for name, weight in walk.weights.items() if not torch.equal(weight, start[name])}
    assert moved == {"5.weight", "5.bias"}
    walk.step()
    assert all(not torch.equal(weight, start[name]) for name, weight in walk.weights.items())
    assert recipe.lines() == compose.recipe().lines()


def test_an_own_repair_is_in_the_summary_and_survives_a_stop(tmp_path):
    settings = {"insecure_seed": 0, "progress": False, "checkpoint_seconds": 0}

    class Stop:
        left = 13

        def __call__(self, observation):
            self.left -= 1
            if not self.left:
                raise KeyboardInterrupt

    recipe = repaired(compose.recipe(), own.Unfreezing("5"))
    whole = fit(recipe, **settings)
    with pytest.raises(KeyboardInterrupt):
        fit(recipe, out=tmp_path / "run", recorders=[Stop()], **settings)
    resumed = fit(recipe, out=tmp_path / "run", resume=True, **settings)
    assert all(torch.equal(a, b) for a, b in zip(whole.model.parameters(), resumed.model.parameters(), strict=True))
    assert '"name": "gradual unfreezing"' in (tmp_path / "run" / "summary.json").read_text()


def test_the_example_on_the_page_is_the_file_and_short():
    blocks = re.findall(r"^```python\n(.*?)^```", compose.PAGE.read_text(), re.MULTILINE | re.DOTALL)
    assert blocks[1].strip() == compose.EXAMPLE.read_text().strip()
    statements = re.sub(r'""".*?"""', "", blocks[1], flags=re.DOTALL).splitlines()
    lines = [line for line in statements if line.strip() and not line.startswith(("from ", "@"))]
    assert len(lines) <= 15


def test_a_careless_plan_and_a_lie_about_the_cost_are_found():
    class Careless(own.HeadFirst):
        def at(self, step, released, generator):
            return {"0.bias": torch.rand(2) < 0.5}

    class Spending(own.Unfreezing):
        cost = "ledger"

    with pytest.raises(PrivacyError, match="gives different masks for the same public inputs"):
        check_support(Careless("5", 3), dict(compose.network().named_parameters()))
    with pytest.raises(PrivacyError, match="it says that it spends, but the ledger is unchanged"):
        repaired(compose.recipe(), Spending("5"))


def test_two_that_claim_the_same_are_refused_with_the_reason():
    for claim, reason in CLAIMS.items():
        kind = type("Claiming", (own.Unfreezing,), {"claims": (claim,)})
        with pytest.raises(ConfigError, match=re.escape(reason)):
            repaired(compose.recipe(), kind("5"), kind("3"))

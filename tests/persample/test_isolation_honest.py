"""Honest models stay served: none is refused that was accepted, none has a slower engine, and every sum is the loop's.

The collection is `helpers/honest.py`; what was accepted before, and by which engine, lies in `honest_baseline.json`.
"""

import pytest
import torch

from helpers.honest import ENGINES, HONEST, baseline, behaviour, learning, losses
from helpers.oracles import clipped_sum_by_hand, flat, relative_error, rows, typical_norm, unit_gradients
from noisewise.clipping import Flat
from noisewise.persample import clipped_sum
from noisewise.testing import reveal

pytestmark = [
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
    pytest.mark.filterwarnings("ignore::FutureWarning"),
    pytest.mark.filterwarnings("ignore::UserWarning"),
]

BOUND = 1e-2
REORDERED = "rows are put in another order: row i of a layer is not unit i's, so the whole batch cannot be followed"
ASKS = "asks a question about all rows and branches on the answer (to warn, to check a range, to skip a mask)"
CHOOSES = "how many rows a layer sees depends on the data"
SLOWER: dict[str, str] = {  # model -> why it has a slower engine than before; no reason excuses a refusal
    "problem: flipped": REORDERED,
    "problem: sorted-by-length": REORDERED,
    "problem: coupled-gradients-only": "forms the mean over the batch, though it cancels",
    "user: packed LSTM": REORDERED,
    "user: valid positions only": CHOOSES,
    "user: mixture of experts, routed": CHOOSES,
    "float32: Mixtral": CHOOSES,
    "user: CTC": "the fused loss lays out its work by the longest label of the batch",
    "user: Gaussian likelihood": ASKS,
    "face: BERT, attention mask": ASKS,
    "face: BERT, eager attention": ASKS,
    "face: RoBERTa, attention mask": ASKS,
    "face: DeBERTa-v2": ASKS,
    "face: SqueezeBERT": ASKS,
    "face: ConvBERT": ASKS,
    "face: RoFormer": ASKS,
    "face: GPT-2 classifier": ASKS,
    "face: BLOOM": "a custom autograd function, whose backward pass cannot be followed",
    "face: BART": "counts the entries of a mask of ones, which depends on the number of units",
    "face: Marian": "counts the entries of a mask of ones, which depends on the number of units",
}
BEFORE = baseline()
ACCEPTED = [name for name in HONEST if "refused" not in BEFORE[name]]


def test_the_baseline_covers_the_collection():
    assert list(BEFORE) == list(HONEST)
    assert len(ACCEPTED) >= 150
    assert SLOWER.keys() <= HONEST.keys()


def by_turns(names):
    """Of models from Hugging Face, which take seconds each, one in five; the others by hand."""
    faces = [name for name in names if name.startswith("face: ")]
    slow = {name for place, name in enumerate(faces) if place % 5}
    return [pytest.param(name, marks=pytest.mark.slow if name in slow else ()) for name in names]


@pytest.mark.parametrize("name", by_turns(HONEST))
def test_none_loses_what_it_had(name):
    lost = losses(BEFORE[name], behaviour(HONEST[name]))
    assert not any(loss.startswith("refused") for loss in lost)
    assert bool(lost) == (name in SLOWER), lost


SETTLED = [name for name in ACCEPTED if not HONEST[name].random]


@pytest.mark.parametrize("name", by_turns(SETTLED))
def test_sums_equal_the_loop_over_units(name):
    setup, layout = HONEST[name].examined()
    grads = unit_gradients(setup)
    clip = Flat(typical_norm(grads))
    got = reveal(clipped_sum(*setup, clip, layout=layout).grads)
    assert relative_error(got, clipped_sum_by_hand(grads, clip, {})[0]) < HONEST[name].rounding


@pytest.mark.parametrize("name", [name for name in ACCEPTED if HONEST[name].random])
def test_whatever_chance_does_a_lone_unit_keeps_the_bound(name):
    """Draws are each row's own, so a unit's law is that of a batch of one: its length is what clipping must bound."""
    (model, loss_fn, batch), layout = HONEST[name].examined()
    for seed in range(5):
        one = rows(batch, slice(seed % 4, seed % 4 + 1))
        got = reveal(clipped_sum(model, loss_fn, one, Flat(BOUND), layout=layout, seed=seed).grads)
        assert 0 < flat(got).norm() <= BOUND * (1 + 1e-6)


# ------------------------------------------------------------------------------------------------------ the yardstick


@pytest.mark.parametrize(
    ("before", "now", "lost"),
    [
        ({}, {}, []),
        ({}, {"dense": ["a"]}, ["a: ghost -> dense"]),
        ({}, {"loop": ["a"]}, ["a: ghost -> loop"]),
        ({"dense": ["a", "b"]}, {"dense": ["a"], "loop": ["b"]}, ["b: dense -> loop"]),
        ({"dense": ["a"]}, {}, []),
        ({"loop": ["a"]}, {"dense": ["a"]}, []),
        ({}, {"refused": "CoupledSamples"}, ["refused (CoupledSamples)"]),
        ({"refused": "CoupledSamples"}, {"loop": ["a"]}, []),
        ({"refused": "CoupledSamples"}, {"refused": "PrivacyError"}, []),
    ],
)
def test_a_loss_is_seen(before, now, lost):
    assert losses(before, now) == lost


def test_engines_are_named_from_fast_to_slow():
    assert ENGINES == ("ghost", "dense", "loop")


@pytest.mark.parametrize("name", ["problem: linear-2d", "user: LSTM, batch first", "user: U-Net"])
def test_models_are_the_same_every_time(name):
    first, second = HONEST[name].make(), HONEST[name].make()
    assert learning(first.model) == learning(second.model)
    assert all(torch.equal(a, b) for a, b in zip(first.model.parameters(), second.model.parameters(), strict=True))

"""Models judged by what they do on made-up units: coupling, batch statistics, state."""

from contextlib import nullcontext

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from helpers.looks import Running, X, Y, batch_mean_subtracted, look, mlp
from helpers.oracles import PROBLEMS, Apply, clipped_sum_by_hand, cross_entropy, gradients_of, relative_error
from noisewise.clipping import Flat
from noisewise.errors import CoupledSamples, NoisewiseError, PrivacyError
from noisewise.persample import clipped_sum
from noisewise.persample.behaviour import check_state
from noisewise.runtime import Runtime


class Counting(nn.Module):
    """Counts units that are positive; `sign` says of which."""

    def __init__(self, sign):
        super().__init__()
        self.head, self.count, self.sign = nn.Linear(3, 2), 0, sign

    def forward(self, x):
        self.count += int((self.sign * x[:, 0] > 0).sum())
        return self.head(x)


@pytest.mark.parametrize("sign", [-1, 1])
def test_a_count_of_what_is_seen_is_refused_whether_it_grows_faster_or_slower(sign):
    y, like = torch.tensor([0, 1, 0]), (torch.zeros(0, 3), torch.zeros(0, dtype=torch.long))
    units, others = (torch.ones(3, 3), y), (-torch.ones(3, 3), y)
    with pytest.raises(PrivacyError, match="count"):
        check_state(Counting(sign), cross_entropy, units, others, like)


def in_batch_negatives(model, batch):
    embedded = F.normalize(model(batch[0]), dim=1)
    return F.cross_entropy(embedded @ embedded.T, torch.arange(len(embedded)), reduction="none")


def focal_by_batch(model, batch):
    losses = cross_entropy(model, batch)
    return losses * (losses / losses.max()).detach()


def shifted_labels(model, batch):
    return F.cross_entropy(model(batch[0]), batch[1].roll(1), reduction="none")


def divided_by_the_batch(model, batch):
    return cross_entropy(model, batch) / len(batch[0])


COUPLED_LOSSES = [batch_mean_subtracted, in_batch_negatives, focal_by_batch, shifted_labels]


@pytest.mark.parametrize("loss_fn", COUPLED_LOSSES)
def test_losses_that_look_at_other_units_are_refused(loss_fn):
    with pytest.raises(CoupledSamples, match=r"moved by .* when another unit .* was replaced"):
        clipped_sum(mlp(), loss_fn, (X, Y), Flat(1.0))


def test_a_loss_divided_by_the_realised_batch_size_is_refused():
    """Every unit's share then depends on how many others there are: one unit more moves all contributions."""
    with pytest.raises(CoupledSamples):
        clipped_sum(mlp(), divided_by_the_batch, (X, Y), Flat(1.0))


@pytest.mark.parametrize("settings", [{}, {"track_running_stats": False}, {"affine": False}], ids=repr)
def test_batch_norm_in_training_mode_is_refused(settings):
    model = nn.Sequential(nn.Linear(6, 5), nn.BatchNorm1d(5, **settings), nn.Linear(5, 2))
    with pytest.raises(CoupledSamples, match="GroupNorm"):
        clipped_sum(model, cross_entropy, (X, Y), Flat(1.0))


class Whitening(nn.Module):
    """Batch statistics under a name that no list would know."""

    def forward(self, x):
        return (x - x.mean(0)) / (x.std(0) + 1e-3)


def test_batch_statistics_are_known_by_behaviour_not_by_name():
    model = nn.Sequential(nn.Linear(6, 5), Whitening(), nn.Linear(5, 2))
    with pytest.raises(CoupledSamples):
        clipped_sum(model, cross_entropy, (X, Y), Flat(1.0))


def test_batch_norm_in_eval_mode_is_accepted():
    setup, grads = PROBLEMS["batch-norm-in-eval-mode"].make(), gradients_of("batch-norm-in-eval-mode")
    expected = clipped_sum_by_hand(grads, Flat(0.5), {})[0]
    assert relative_error(clipped_sum(*setup, Flat(0.5)).grads._values, expected) < 1e-9


def test_attention_over_the_batch_is_refused():
    def forward(m, x):
        hidden = m.body(x)[None]
        return m.head(F.scaled_dot_product_attention(hidden, hidden, hidden)[0])

    with pytest.raises(CoupledSamples):
        clipped_sum(Apply(forward, body=nn.Linear(6, 5), head=nn.Linear(5, 2)), cross_entropy, (X, Y), Flat(1.0))


def _centred(h):
    return h - h.mean(0)


def _at_times(m, h):
    """In training mode, and in some draws: in the third that is made, not in the first."""
    firsts = [float(torch.rand((), generator=torch.Generator().manual_seed(seed))) for seed in (1, 3)]
    drawn, middle = float(torch.rand(())), sum(firsts) / 2
    return _centred(h) if m.training and (drawn < middle) == (firsts[1] < middle) else h


SECOND_NET = {
    "always": (lambda m, h: _centred(h), "another unit of the batch was replaced"),
    "behind a head of zeros": (lambda m, h: _centred(h), "another unit of the batch was replaced"),
    "in some draws": (_at_times, "another unit of the batch was replaced"),
    "by the number of units": (lambda m, h: h / len(h), "another unit was left out"),
    "where they are many": (lambda m, h: _centred(h) if len(h) >= 32 else h, "more units were in the batch"),
    "where one is extreme": (
        lambda m, h: h / max(20.0, float(h.detach().abs().max())),
        "another unit of the batch became extreme",
    ),
    "by their order": (
        lambda m, h: h * torch.arange(1, len(h) + 1)[:, None],
        "the order of the units was reversed|left out",
    ),
}


@pytest.mark.parametrize("name", SECOND_NET)
def test_models_that_mean_to_mix_units_are_refused_where_a_look_can_see_it(name):
    """Nothing here is proven, so the guarantee holds anyway: but the model would quietly be another one."""
    mix, event = SECOND_NET[name]
    torch.manual_seed(0)
    model = Apply(lambda m, x: m.head(mix(m, m.body(x))), body=nn.Linear(6, 5), head=nn.Linear(5, 2))
    if name == "behind a head of zeros":
        nn.init.zeros_(model.head.weight)
    with pytest.raises(CoupledSamples, match=event):
        look(model, size=64)


def _moves_by_size(by, only_cast):
    """Logits of a unit that is alone are others by so much; in half precision only, as its rounding would have it."""

    def forward(m, x):
        moved = by if len(x) == 1 and (torch.is_autocast_enabled("cpu") or not only_cast) else 0.0
        return m.body(x).float() + moved * torch.tensor([1.0, -1.0])

    return Apply(forward, body=nn.Linear(6, 2))


def test_rounding_of_bfloat16_in_batches_of_other_sizes_is_no_coupling():
    """A loss of a deep encoder moved by 0.047 when its unit was alone: other kernels, 8 bits."""
    with torch.autocast("cpu", torch.bfloat16):
        assert look(_moves_by_size(0.04, only_cast=True)).examined


@pytest.mark.parametrize("cast", [False, True])
def test_mixing_that_bfloat16_would_hide_is_seen_without_it(cast):
    with torch.autocast("cpu", torch.bfloat16, enabled=cast), pytest.raises(CoupledSamples, match="all other units"):
        look(_moves_by_size(0.04, only_cast=False))


@pytest.mark.parametrize(("by", "refused"), [(0.0, False), (0.04, True)])
def test_a_model_that_needs_its_autocast_is_compared_within_it(by, refused):
    """Weights of bfloat16 and inputs of float32: without the autocast it does not run, and nothing is excused."""
    model = _moves_by_size(by, only_cast=False).to(torch.bfloat16)
    with torch.autocast("cpu", torch.bfloat16), pytest.raises(CoupledSamples) if refused else nullcontext():
        assert look(model).examined


def test_mixing_under_an_autocast_alone_is_refused():
    with torch.autocast("cpu", torch.bfloat16), pytest.raises(CoupledSamples, match="all other units"):
        look(_moves_by_size(1.0, only_cast=True))


def test_dropout_is_no_coupling():
    model = nn.Sequential(nn.Linear(6, 5), nn.Dropout(0.5), nn.Linear(5, 2))
    assert not look(model).fallback


@pytest.mark.parametrize("how", ["in place", "through data", "by assignment"])
def test_running_statistics_are_refused_and_put_back(how):
    model = Running(how)
    with pytest.raises(PrivacyError, match=r"changes \['seen'\].*running statistics"):
        clipped_sum(model, cross_entropy, (X, Y), Flat(1.0))
    assert torch.equal(model.seen, torch.zeros(6))


def test_buffers_that_stay_as_they_are_do_not_matter():
    assert not look(Running("not at all")).fallback


@pytest.mark.parametrize("engine", ["auto", "dense", "loop"])
def test_weights_that_a_forward_pass_rescales_by_what_it_sees_stay_as_they_are(engine):
    """nn.Embedding(max_norm=...) rewrites the rows of the tokens it looks up: that shows which tokens a batch has."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Embedding(5, 4, max_norm=0.5), nn.Flatten(), nn.Linear(12, 2))
    before = model[0].weight.detach().clone()
    tokens = torch.tensor([[1, 1, 2], [2, 3, 3], [0, 1, 4], [4, 4, 4]])
    with pytest.raises(NoisewiseError):
        clipped_sum(model, cross_entropy, (tokens, Y[:4]), Flat(1.0), runtime=Runtime(engine=engine))
    assert torch.equal(model[0].weight, before)


@pytest.mark.parametrize("units", [3, 4, 6])
def test_coupling_is_found_on_examples_of_any_size(units):
    generator = torch.Generator().manual_seed(1)
    example = (torch.randn(units, 6, generator=generator), torch.zeros(units, dtype=torch.long))
    with pytest.raises(CoupledSamples):
        look(mlp(), batch_mean_subtracted, example=example)

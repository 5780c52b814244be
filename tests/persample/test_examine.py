"""Looking at a model before it sees a record: coupled units, running statistics, parameters without a ghost rule."""

import importlib
import sys

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from helpers.oracles import PROBLEMS, Apply, clipped_sum_by_hand, cross_entropy, gradients_of, relative_error
from noisewise.clipping import Flat
from noisewise.errors import CoupledSamples, NoisewiseError, PrivacyError
from noisewise.persample import clipped_sum, dispatched, engines, examine, operations, units_alone
from noisewise.persample.behaviour import check_state
from noisewise.persample.layers import Operands
from noisewise.persample.made_up import synthetic
from noisewise.persample.tape import Call
from noisewise.runtime import Runtime

X, Y = torch.randn(5, 6, generator=torch.Generator().manual_seed(0)), torch.tensor([0, 1, 0, 1, 1])


def look(model, loss_fn=cross_entropy, like=(X, Y), **kwargs):
    return examine(model, loss_fn, like, **kwargs)


@pytest.mark.filterwarnings("ignore:Using padding='same' with even kernel:UserWarning")
@pytest.mark.parametrize("name", PROBLEMS)
def test_the_parameters_without_a_ghost_rule_are_found(name):
    setup = PROBLEMS[name].make()
    layout = look(*setup)
    assert layout.fallback == PROBLEMS[name].fallback
    assert layout.vectorises == PROBLEMS[name].vectorises
    assert layout.proven == PROBLEMS[name].proven


def test_wrong_ghost_gradients_are_found_out(monkeypatch):
    """A rule with a mistake (here: one of two calls is forgotten) sends its parameters to another engine."""
    setup = PROBLEMS["several-conv-calls"].make()
    monkeypatch.setattr(engines, "join", lambda pieces: pieces[0])
    layout = look(*setup)
    assert layout.fallback == {"conv.weight", "conv.bias"}
    expected = clipped_sum_by_hand(gradients_of("several-conv-calls"), Flat(0.5), {})[0]
    assert relative_error(clipped_sum(*setup, Flat(0.5), layout=layout).grads._values, expected) < 1e-9


def test_wrong_dense_gradients_are_found_out(monkeypatch):
    def doubled(*args):
        return {name: 2 * grad for name, grad in units_alone.dense(*args).items()}

    setup = PROBLEMS["bare-parameters"].make()
    monkeypatch.setattr(importlib.import_module("noisewise.persample.examine"), "dense", doubled)
    layout = look(*setup)
    assert not layout.vectorises
    expected = clipped_sum_by_hand(gradients_of("bare-parameters"), Flat(0.5), {})[0]
    assert relative_error(clipped_sum(*setup, Flat(0.5), layout=layout).grads._values, expected) < 1e-9


@pytest.mark.parametrize("name", ["linear-2d", "time-first", "bare-parameters"])
def test_all_learning_parameters_are_looked_at_whatever_a_step_freezes(name):
    setup = PROBLEMS[name].make()
    layout = examine(*setup)
    assert layout.covers(dict(setup.model.named_parameters()))
    assert not layout.covers(["another.weight"])


def test_a_parameter_that_was_not_looked_at_is_looked_at_when_it_learns():
    setup = PROBLEMS["flipped"].make()
    for parameter in setup.model.parameters():
        parameter.requires_grad_(False)
    next(iter(setup.model.parameters())).requires_grad_(True)
    stale = examine(*setup)
    for parameter in setup.model.parameters():
        parameter.requires_grad_(True)
    assert not stale.covers(dict(setup.model.named_parameters()))
    fresh, used = (clipped_sum(*setup, Flat(0.1), layout=layout).grads._values for layout in (None, stale))
    assert all(torch.equal(fresh[name], used[name]) for name in fresh)


def test_the_second_net_sees_rows_in_another_order_where_the_table_is_wrong(monkeypatch):
    """A wrong row of the table: flipping would be taken for an operation that acts row by row."""
    monkeypatch.setitem(operations.RULES, "flip", operations.RULES["neg"])
    dispatched.about.cache_clear()
    try:
        layout = examine(*PROBLEMS["flipped"].make())
    finally:
        dispatched.about.cache_clear()
    assert layout.proven
    assert layout.fallback >= {"inner.weight", "inner.bias"}


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


def twice(model, batch):
    return 2 * cross_entropy(model, batch)


@pytest.mark.parametrize("change", ["nothing", "autocast", "shape", "type", "mode of a part", "loss"])
def test_whatever_an_examination_depends_on_makes_it_anew(change, monkeypatch):
    asked = []
    monkeypatch.setattr(
        sys.modules["noisewise.persample.clipped_sum"], "examine", lambda *args: asked.append(args) or examine(*args)
    )
    model = nn.Sequential(nn.Conv1d(1, 2, 3), nn.Dropout(0.0), nn.AdaptiveAvgPool1d(1), nn.Flatten(), nn.Linear(2, 2))
    x, loss_fn = X[:, None], cross_entropy
    layout = examine(model, loss_fn, (x, Y))
    match change:
        case "shape":
            x = torch.cat([x, x], 2)
        case "type":
            model, x = model.double(), x.double()
        case "mode of a part":
            model[1].eval()
        case "loss":
            loss_fn = twice
    with torch.autocast("cpu", torch.bfloat16, enabled=change == "autocast"):
        clipped_sum(model, loss_fn, (x, Y), Flat(1.0), layout=layout)
    assert len(asked) == (change != "nothing")


@pytest.mark.parametrize("turned", [False, True])
def test_rows_that_serve_other_losses_are_found_whatever_the_proof_says(turned, monkeypatch):
    """A pass that is called proven although its layer sees the units in another order."""
    look = importlib.import_module("noisewise.persample.examine")
    weight = nn.Parameter(torch.randn(2, 6))

    def turn(tensor):
        return tensor.flip(0) if turned else tensor

    def follow(*args, **kwargs):
        given = turn(X[:3])
        output = F.linear(given, weight)
        edge = torch.autograd.graph.get_gradient_edge(output)
        call = Call(F.linear, Operands(given, weight, None, {}), {"weight": "weight"}, edge, True, given._version)
        return engines.Followed(turn(output).square().sum(1), [call], set(), None)

    monkeypatch.setattr(look, "follow", follow)
    found = look._unaligned(nn.Module(), None, X[:3], {"weight": weight}, look.Layout())
    assert found == ({"weight"} if turned else set())


# ------------------------------------------------------------------------------------------------- coupled units


def batch_mean_subtracted(model, batch):
    hidden = model[0](batch[0])
    return F.cross_entropy(model[2](torch.tanh(hidden - hidden.mean(0))), batch[1], reduction="none")


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


def mlp():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(6, 5), nn.Tanh(), nn.Linear(5, 2))


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


def test_made_up_labels_come_from_all_classes_and_tokens_do_not():
    like = (torch.zeros(0, 4), torch.zeros(0, 7).long(), torch.zeros(0).long(), torch.zeros(0).bool())
    torch.manual_seed(0)
    numbers, tokens, labels, truth = synthetic(like, 400, classes=10)
    assert set(labels.tolist()) == set(range(10))
    assert set(tokens.flatten().tolist()) == {0, 1}
    assert (truth.dtype, numbers.shape, tokens.shape) == (torch.bool, (400, 4), (400, 7))
    assert set(synthetic(like, 400)[2].tolist()) == {0, 1}


@pytest.mark.parametrize("units", [1, 2, 3, 4])
def test_an_example_needs_three_different_units(units):
    if units >= 3:
        assert look(mlp(), example=(X[:units], Y[:units])).proven
    else:
        with pytest.raises(PrivacyError, match="at least 3 different"):
            look(mlp(), example=(X[:units], Y[:units]))


def test_dropout_is_no_coupling():
    model = nn.Sequential(nn.Linear(6, 5), nn.Dropout(0.5), nn.Linear(5, 2))
    assert not look(model).fallback


def test_a_model_whose_synthetic_losses_are_not_numbers_is_not_waved_through():
    """All losses are NaN for negative inputs, so the check learns nothing, and these units are coupled."""

    def forward(m, x):
        hidden = torch.log(x)
        return m.head(hidden - hidden.mean(0))

    with pytest.raises(PrivacyError):
        look(Apply(forward, head=nn.Linear(6, 2)))


# ------------------------------------------------------------------------------------------- running statistics


class Running(nn.Module):
    """Keeps the mean of what it sees in a buffer, without using it."""

    def __init__(self, how):
        super().__init__()
        self.how = how
        self.head = nn.Linear(6, 2)
        self.register_buffer("seen", torch.zeros(6))

    def forward(self, x):
        if self.how == "not at all":
            return self.head(x)
        mean = x.detach().mean(0)
        if self.how == "in place":
            self.seen.mul_(0.9).add_(mean, alpha=0.1)
        elif self.how == "through data":
            self.seen.data.add_(mean)
        elif self.how == "by assignment":
            self.seen = 0.9 * self.seen + 0.1 * mean
        return self.head(x)


@pytest.mark.parametrize("how", ["in place", "through data", "by assignment"])
def test_running_statistics_are_refused_and_put_back(how):
    model = Running(how)
    with pytest.raises(PrivacyError, match=r"changes \['seen'\].*running statistics"):
        clipped_sum(model, cross_entropy, (X, Y), Flat(1.0))
    assert torch.equal(model.seen, torch.zeros(6))


def test_buffers_that_stay_as_they_are_do_not_matter():
    assert not look(Running("not at all")).fallback


@pytest.mark.parametrize("model", [Running("in place"), nn.Sequential(nn.BatchNorm1d(6), nn.Linear(6, 2))])
def test_a_refused_model_is_as_before(model):
    before = {name: value.clone() for name, value in model.state_dict().items()}
    with pytest.raises(PrivacyError):
        look(model)
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())


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


# --------------------------------------------------------------------------------------------- synthetic inputs


def test_synthetic_units_have_the_shapes_and_types_of_the_batch_and_none_of_its_values():
    like = {"x": torch.full((2, 3), 7.0), "ids": torch.full((2, 4), 9), "flag": torch.ones(2, dtype=torch.bool)}
    units = synthetic(like, 6)
    assert {key: (value.shape, value.dtype) for key, value in units.items()} == {
        "x": ((6, 3), torch.float32),
        "ids": ((6, 4), torch.int64),
        "flag": ((6,), torch.bool),
    }
    assert set(units["ids"].flatten().tolist()) <= {0, 1}
    assert not (units["x"] == 7).any()


def test_the_answer_does_not_depend_on_the_records(tmp_path):
    """What the loss is asked is written to a file: a list of it would be refused as a memory."""
    log, kept = tmp_path / "log", []

    def keeping(model, batch):
        kept.append(batch[0].detach().abs().sum())
        return cross_entropy(model, batch)

    with pytest.raises(PrivacyError, match="a forward pass changes"):
        look(mlp(), keeping, (X, Y))

    def writing(model, batch):
        with log.open("a") as file:
            file.write(f"{batch[0].double().sum().item()}\n")
        return cross_entropy(model, batch)

    answers = []
    for records in (X, X * 100 + 5):
        log.write_text("")
        look(mlp(), writing, (records, Y))
        answers.append(log.read_text())
    assert answers[0]
    assert answers[0] == answers[1]


def test_a_model_that_cannot_run_on_random_numbers_asks_for_an_example():
    def loss_fn(model, batch):
        if batch[0].min() < 0:
            raise ValueError("pixels must not be negative")
        return cross_entropy(model, batch)

    with pytest.raises(PrivacyError, match=r"pixels must not be negative.*Pass example="):
        look(mlp(), loss_fn)
    for example in ((torch.rand(6, 6), Y[:1].repeat(6)), (torch.rand(3, 6), Y[:3])):
        layout = look(mlp(), loss_fn, example=example)
        assert "goes over the units" in layout.reason
        assert not layout.proven


def test_an_example_of_two_units_is_too_small():
    with pytest.raises(PrivacyError, match="example has 2 units: the check needs at least 3"):
        look(mlp(), example=(X[:2], Y[:2]))


@pytest.mark.parametrize("units", [3, 4, 6])
def test_coupling_is_found_on_examples_of_any_size(units):
    generator = torch.Generator().manual_seed(1)
    example = (torch.randn(units, 6, generator=generator), torch.zeros(units, dtype=torch.long))
    with pytest.raises(CoupledSamples):
        look(mlp(), batch_mean_subtracted, example=example)


def test_an_example_of_equal_units_shows_nothing_and_is_refused():
    with pytest.raises(PrivacyError):
        look(mlp(), batch_mean_subtracted, example=(torch.zeros(6, 6), torch.zeros(6, dtype=torch.long)))

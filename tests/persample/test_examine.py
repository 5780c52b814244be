"""Looking at a model before it sees a record: coupled units, running statistics, parameters without a ghost rule."""

import importlib

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from helpers.looks import Running, X, Y, batch_mean_subtracted, look, mlp
from helpers.oracles import PROBLEMS, Apply, clipped_sum_by_hand, cross_entropy, gradients_of, relative_error
from noisewise.clipping import Flat
from noisewise.errors import PrivacyError
from noisewise.persample import blocks, clipped_sum, dispatched, engines, examine, operations, units_alone
from noisewise.persample.layers import Operands
from noisewise.persample.places import FRONT
from noisewise.persample.tape import Call


@pytest.mark.filterwarnings("ignore:Using padding='same' with even kernel:UserWarning")
@pytest.mark.parametrize("name", PROBLEMS)
def test_the_parameters_without_a_ghost_rule_are_found(name):
    setup = PROBLEMS[name].make()
    layout = look(*setup)
    assert layout.fallback == PROBLEMS[name].fallback
    assert layout.vectorises == (PROBLEMS[name].vectorises or not layout.fallback)
    assert layout.proven == PROBLEMS[name].proven


def test_wrong_ghost_gradients_are_found_out(monkeypatch):
    """A rule with a mistake (here: one of two calls is forgotten) sends its parameters to another engine."""
    setup = PROBLEMS["several-conv-calls"].make()
    monkeypatch.setattr(blocks, "join", lambda pieces: pieces[0])
    layout = look(*setup)
    assert layout.fallback == {"conv.weight", "conv.bias"}
    expected = clipped_sum_by_hand(gradients_of("several-conv-calls"), Flat(0.5), {})[0]
    assert relative_error(clipped_sum(*setup, Flat(0.5), layout=layout).grads._values, expected) < 1e-9


@pytest.mark.parametrize("mistaken", [False, True], ids=["right", "one-call-forgotten"])
def test_what_rounding_in_half_precision_moves_is_no_mistake(mistaken, monkeypatch):
    """Rounding is measured where gradients differ: without any room for it, bfloat16 passes and a mistake does not."""
    look_again = importlib.import_module("noisewise.persample.examine")
    torch.manual_seed(0)
    layer = nn.Linear(6, 6)
    model = Apply(lambda m, x: m.head(m.head(x).tanh() - m.head(x).mean(1, keepdim=True)), head=layer)
    batch = torch.randn(7, 6), torch.randint(0, 6, (7,))
    monkeypatch.setattr(look_again, "ROUNDING", 0.0)
    with torch.autocast("cpu", torch.bfloat16):
        if mistaken:
            monkeypatch.setattr(blocks, "join", lambda pieces: pieces[0])
        assert bool(look(model, cross_entropy, batch).fallback) == mistaken


@pytest.mark.parametrize("mistaken", [False, True], ids=["right", "one-call-forgotten"])
def test_a_mistake_is_none_of_rounding_where_rounding_cannot_be_measured(mistaken, monkeypatch):
    """Gradients near the largest number of float16: 1.7 times as much is infinite."""
    layer = nn.Linear(2, 2, bias=False).half()
    model = Apply(lambda m, x: m.head(x) + m.head(x), head=layer)
    if mistaken:
        monkeypatch.setattr(blocks, "join", lambda pieces: pieces[0])

    def losses(model, batch):
        return model(batch[0]).sum(1) * 8000

    batch = (torch.ones(3, 2, dtype=torch.float16),)
    example = (torch.tensor([[1.0, 1.0], [1.0, 0.9], [0.9, 1.0]], dtype=torch.float16),)
    assert bool(examine(model, losses, batch, example).fallback) == mistaken


def test_wrong_dense_gradients_are_found_out(monkeypatch):
    def doubled(*args):
        return {name: 2 * grad for name, grad in units_alone.dense(*args).items()}

    setup = PROBLEMS["layers-without-rules"].make()
    monkeypatch.setattr(importlib.import_module("noisewise.persample.examine"), "dense", doubled)
    layout = look(*setup)
    assert not layout.vectorises
    expected = clipped_sum_by_hand(gradients_of("layers-without-rules"), Flat(0.5), {})[0]
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
        call = Call(F.linear, Operands(given, weight, None, {}), {"weight": "weight"}, edge, FRONT, given._version)
        return engines.Followed(turn(output).square().sum(1), [call], set(), None)

    monkeypatch.setattr(look, "follow", follow)
    found = look._unaligned(nn.Module(), None, X[:3], {"weight": weight}, look.Layout())
    assert found == ({"weight"} if turned else set())


@pytest.mark.parametrize("units", [1, 2, 3, 4])
def test_an_example_needs_three_different_units(units):
    if units >= 3:
        assert look(mlp(), example=(X[:units], Y[:units])).proven
    else:
        with pytest.raises(PrivacyError, match="at least 3 different"):
            look(mlp(), example=(X[:units], Y[:units]))


def test_a_model_whose_synthetic_losses_are_not_numbers_is_not_waved_through():
    """All losses are NaN for negative inputs, so the check learns nothing, and these units are coupled."""

    def forward(m, x):
        hidden = torch.log(x)
        return m.head(hidden - hidden.mean(0))

    with pytest.raises(PrivacyError):
        look(Apply(forward, head=nn.Linear(6, 2)))


@pytest.mark.parametrize("model", [Running("in place"), nn.Sequential(nn.BatchNorm1d(6), nn.Linear(6, 2))])
def test_a_refused_model_is_as_before(model):
    before = {name: value.clone() for name, value in model.state_dict().items()}
    with pytest.raises(PrivacyError):
        look(model)
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())


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

    with pytest.raises(PrivacyError, match=r"pixels must not be negative.*pass example="):
        look(mlp(), loss_fn)
    for example in ((torch.rand(6, 6), Y[:1].repeat(6)), (torch.rand(3, 6), Y[:3])):
        layout = look(mlp(), loss_fn, example=example)
        assert "goes over the units" in layout.reason
        assert not layout.proven


def test_an_example_of_two_units_is_too_small():
    with pytest.raises(PrivacyError, match="example has 2 units: the check needs at least 3"):
        look(mlp(), example=(X[:2], Y[:2]))


def test_an_example_of_equal_units_shows_nothing_and_is_refused():
    with pytest.raises(PrivacyError):
        look(mlp(), batch_mean_subtracted, example=(torch.zeros(6, 6), torch.zeros(6, dtype=torch.long)))

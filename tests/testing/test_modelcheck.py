"""check_model: verdict, engines, cost and remedies in words; nothing raised about a bad model, nothing left on a good one."""

import dataclasses

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from helpers.oracles import PROBLEMS, Apply, cross_entropy
from helpers.users_file import FILE
from noisewise.errors import ConfigError
from noisewise.losses import default_loss
from noisewise.testing import ModelCheck, check_model
from noisewise.testing.modelcheck import _Allocations, check_user_files

X, Y = torch.randn(8, 6, generator=torch.Generator().manual_seed(0)), torch.tensor([0, 1] * 4)


def mlp():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(6, 5), nn.Dropout(0.5), nn.Tanh(), nn.Linear(5, 2))


def with_batch_norm():
    return nn.Sequential(nn.Linear(6, 32), nn.BatchNorm1d(32), nn.Linear(32, 2))


@pytest.mark.parametrize(
    "name", ["linear-2d", "bare-parameters", "positions", "lstm", "dicts", "frozen", "layers-without-rules"]
)
def test_the_engine_of_each_parameter_is_told(name):
    problem = PROBLEMS[name]
    model, loss_fn, batch = problem.make()
    found = check_model(model, batch, loss_fn)
    other = "dense" if problem.vectorises else "loop"
    learning = [key for key, p in model.named_parameters() if p.requires_grad]
    assert found.trainable
    assert found.engines == {key: other if key in problem.fallback else "ghost" for key in learning}
    assert set(found.frozen) == {key for key, p in model.named_parameters() if not p.requires_grad}
    assert found.sentences[0].startswith("This model can be trained privately: ")


class Doubled(torch.autograd.Function):
    """An operation of one's own: nobody can see whether its gradient mixes units."""

    generate_vmap_rule = True

    @staticmethod
    def forward(x):
        return 2 * x

    @staticmethod
    def setup_context(ctx, inputs, output):
        pass

    @staticmethod
    def backward(ctx, grad):
        return 2 * grad


def test_each_parameter_is_proven_or_alone_with_the_reason():
    model = mlp()
    proven = check_model(model, (X, Y), cross_entropy).parameters
    assert {one.isolation for one in proven} == {"proven row by row"}
    assert [(one.name, one.shape, one.held, one.reason) for one in proven] == [
        (name, tuple(p.shape), 0, "") for name, p in model.named_parameters()
    ]
    own = Apply(lambda m, x: Doubled.apply(x @ m.matrix), matrix=nn.Parameter(torch.randn(6, 2)))
    found = check_model(own, (X, Y), cross_entropy)
    (formed,) = found.parameters
    assert (formed.isolation, formed.engine, formed.held) == ("each unit alone", "dense", 4 * own.matrix.numel())
    assert "custom autograd function" in formed.reason
    assert f"Not faster because {formed.reason}: matrix." in found.sentences


def test_time_and_memory_are_measured_for_a_batch_of_that_size():
    found = check_model(mlp(), (X, Y), cross_entropy)
    assert found.cost.units == 8
    assert found.cost.time_ratio > 0
    assert found.cost.plain_bytes > 0
    assert found.cost.private_bytes > 0
    words = str(found)
    assert "times as long as a plain one" in words
    assert "times the memory" in words


def test_the_dense_engine_is_seen_to_hold_a_gradient_for_each_unit():
    model = Apply(lambda m, x: F.linear(x, m.matrix * 1), matrix=nn.Parameter(torch.randn(4000, 6)))
    found = check_model(model, (X, Y), lambda m, b: m(b[0]).square().mean(1))
    assert found.engines == {"matrix": "dense"}
    assert found.cost.private_bytes >= 8 * model.matrix.numel() * 4


def test_allocations_are_added_up_while_they_are_held():
    with _Allocations() as seen:
        first = torch.zeros(1000)
        second = first + 1
        first.add_(1)
        second.view(10, 100)
        del first
        third = second * 2
        del second, third
        torch.zeros(10)
    assert seen.peak == 8000


def test_the_loop_comes_with_advice():
    found = check_model(*_reordered(PROBLEMS["learned-state"].make()))
    assert "Each unit alone by the loop, one after another, which is slow: start, cell." in str(found)
    assert "To be faster, write cell, start with layers that have ghost rules" in found.changes[0]


def _reordered(setup):
    return setup.model, setup.batch, setup.loss_fn


def test_batch_norm_is_refused_with_a_remedy_that_works():
    model = with_batch_norm()
    found = check_model(model, (X, Y), cross_entropy)
    assert not found.trainable
    assert "cannot be trained privately: the loss of one unit moved" in found.sentences[0]
    assert "noisewise.models.convert.batchnorm_to_groupnorm(model)" in found.changes[0]
    assert "1: BatchNorm1d(32) became GroupNorm(2 groups" in found.changes[0]
    assert found.changes[1] == "With that change the model can be trained privately."
    assert isinstance(model[1], nn.BatchNorm1d)


def test_a_remedy_that_is_not_enough_is_said_to_be_so():
    def coupled(model, batch):
        return cross_entropy(model, batch) / len(batch[0])

    found = check_model(with_batch_norm(), (X, Y), coupled)
    assert found.changes[1].startswith("That alone does not do: the loss of one unit moved")


@pytest.mark.parametrize(
    ("model", "batch", "loss_fn", "reason"),
    [
        (mlp(), (X, Y), lambda m, b: cross_entropy(m, b).mean(), "loss_fn returned one number for the whole batch"),
        (mlp(), (X, Y), lambda m, b: F.cross_entropy(m(b[0]), b[1], reduction="none")[:2], "must be"),
        (mlp(), (X[:, :4], Y), cross_entropy, "could not be checked on synthetic inputs"),
        (mlp(), (X, Y[:3]), cross_entropy, "first dimensions"),
        (mlp().requires_grad_(False), (X, Y), cross_entropy, "no parameter learns"),
        (nn.ReLU(), (X, Y), cross_entropy, "no parameter learns"),
        (mlp(), None, cross_entropy, "first dimensions"),
    ],
)
def test_a_bad_model_is_described_not_raised_about(model, batch, loss_fn, reason):
    found = check_model(model, batch, loss_fn)
    assert not found.trainable
    assert found.engines == {}
    assert found.cost is None
    assert reason in found.sentences[0]


@pytest.mark.filterwarnings("ignore:.*is deprecated:FutureWarning")
@pytest.mark.parametrize("norm", [nn.utils.parametrizations.spectral_norm, nn.utils.spectral_norm])
def test_a_model_that_changes_itself_is_not_said_to_mix_units(norm):
    """Power iteration in every pass moves all losses; no unit is in that of another."""
    model = nn.Sequential(norm(nn.Linear(6, 5)), nn.Tanh(), nn.Linear(5, 2))
    found = check_model(model, (X, Y), cross_entropy)
    assert "a forward pass changes ['0." in found.reason
    assert found.changes == ()
    assert check_model(model.eval(), (X, Y), cross_entropy).trainable


@pytest.mark.filterwarnings("ignore:.*is deprecated:FutureWarning")
def test_a_refused_model_that_cannot_be_copied_is_described():
    found = check_model(nn.Sequential(nn.utils.weight_norm(nn.Linear(6, 5)), nn.BatchNorm1d(5)), (X, Y), cross_entropy)
    assert "the loss of one unit moved" in found.reason
    assert "with GroupNorm in place of BatchNorm" in found.changes[0]


def test_layers_that_read_time_first_are_named_as_a_reason():
    class Read(nn.Module):
        def __init__(self):
            super().__init__()
            self.read, self.say = nn.LSTM(6, 4), nn.Linear(4, 2)

        def forward(self, x):
            return self.say(self.read(x)[0][:, -1])

    found = check_model(Read(), (X[:, None].repeat(1, 3, 1), Y), cross_entropy)
    assert "batch_first=True" in found.reason


def test_an_example_helps_models_that_cannot_run_on_random_numbers():
    def picky(model, batch):
        if batch[0].min() < 0:
            raise ValueError("pixels must not be negative")
        return cross_entropy(model, batch)

    assert not check_model(mlp(), (X, Y), picky).trainable
    assert check_model(mlp(), (X, Y), picky, example=(X.abs(), Y)).trainable


def test_the_model_the_gradients_and_the_random_state_are_as_before():
    model = mlp()
    model[0].weight.grad = torch.ones(5, 6)
    before, state = {name: p.clone() for name, p in model.named_parameters()}, torch.get_rng_state()
    check_model(model, (X, Y), cross_entropy)
    assert torch.equal(torch.get_rng_state(), state)
    assert torch.equal(model[0].weight.grad, torch.ones(5, 6))
    assert model[3].weight.grad is None
    assert all(torch.equal(p, before[name]) for name, p in model.named_parameters())
    assert model.training


def test_the_answer_is_frozen():
    with pytest.raises(dataclasses.FrozenInstanceError):
        ModelCheck(True, "").trainable = False


@pytest.mark.parametrize(
    ("shape", "y"),
    [((6,), torch.randn(4)), ((6,), torch.randn(4, 2)), ((6,), torch.tensor([0, 1, 1, 0])),
     ((3, 6), torch.zeros(4, 3, dtype=torch.long))],
)  # fmt: skip
def test_the_default_loss_is_one_number_per_unit(shape, y):
    width = 1 if y.is_floating_point() and y.dim() == 1 else 2
    assert default_loss(nn.Linear(6, width), (torch.randn(4, *shape), y)).shape == (4,)


def test_user_files_can_be_checked_from_python(tmp_path):
    (tmp_path / "other.py").write_text(FILE)
    assert check_user_files(f"{tmp_path}/other.py:model").trainable
    with pytest.raises(ConfigError, match="no file"):
        check_user_files(f"{tmp_path}/missing.py:model")

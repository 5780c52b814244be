"""Units one by one: nothing of one of them reaches another."""

import pytest
import torch
from torch import nn

from helpers.oracles import Apply, cross_entropy
from noisewise.clipping import Flat
from noisewise.errors import CoupledSamples, PrivacyError
from noisewise.persample import clipped_sum, examine
from noisewise.persample.dispatched import StateChanged
from noisewise.persample.watch import Watch
from noisewise.runtime import Runtime

X, Y = torch.randn(5, 6, generator=torch.Generator().manual_seed(0)), torch.tensor([0, 1, 0, 1, 1])


def test_a_memory_that_begins_later_in_a_model_without_a_proof_is_refused_too():
    def forward(m, x):
        order = x[:, 0].argsort()
        if m.keep:
            m.memory.append(float(x.sum()))
        return m.head(x[order])[order.argsort()]

    model = Apply(forward, head=nn.Linear(6, 2))
    model.keep, model.memory = False, []
    layout = examine(model, cross_entropy, (X, Y))
    assert not layout.proven
    clipped_sum(model, cross_entropy, (X, Y), Flat(1.0), layout=layout)
    model.keep = True
    for engine in ("auto", "loop"):
        with pytest.raises(PrivacyError, match="memory"):
            clipped_sum(model, cross_entropy, (X, Y), Flat(1.0), layout=layout, runtime=Runtime(engine=engine))


def test_new_tensors_are_not_taken_for_weights_that_were_given_other_memory():
    """As cuDNN's recurrent layers do: the address of the old memory is free then, and the next tensor gets it."""
    weights = {"layer.weight": torch.ones(3)}
    watch = Watch(weights)
    weights["layer.weight"].data = torch.ones(3)
    watch.begin([X])
    with watch:
        sums = [torch.zeros(3).add_(row[:3]) for row in X]
    assert torch.equal(torch.stack(sums), X[:, :3])
    with watch, pytest.raises(StateChanged, match="not the model's own"):
        weights["layer.weight"].add_(1)


class AfterAWarmUp(nn.Module):
    """Keeps what it computed from the batch, from some pass on."""

    def __init__(self, using):
        super().__init__()
        self.body, self.head, self.memory, self.warm, self.using = nn.Linear(6, 4), nn.Linear(4, 2), None, False, using

    def forward(self, x):
        hidden = torch.tanh(self.body(x))
        if self.warm and self.memory is None:
            self.memory = hidden.detach()
        return self.head(hidden - self.memory.mean(0) if self.using and self.memory is not None else hidden)


@pytest.mark.parametrize("using", [False, True])
@pytest.mark.parametrize("units", [1, 5])
def test_activations_that_are_kept_after_the_examination_are_refused(using, units):
    model = AfterAWarmUp(using)
    layout = examine(model, cross_entropy, (X, Y))
    assert layout.proven
    clipped_sum(model, cross_entropy, (X, Y), Flat(1.0), layout=layout)
    model.warm = True
    with pytest.raises(PrivacyError, match="a forward pass changes"):
        clipped_sum(model, cross_entropy, (X[:units], Y[:units]), Flat(1.0), layout=layout)


@pytest.mark.parametrize("engine", ["auto", "dense", "loop"])
@pytest.mark.parametrize(
    "keep", [lambda x: x, lambda x: x[1:], lambda x: x.detach()], ids=["it", "a part", "its values"]
)
def test_the_batch_itself_that_is_kept_after_the_examination_is_refused(keep, engine):
    kept = []

    class Hook:
        def __init__(self):
            self.warm = False

        def __call__(self, module, given):
            if self.warm:
                kept.append(keep(given[0]))

    model, hook, batch = nn.Linear(6, 2), Hook(), (X.clone(), Y.clone())
    model.register_forward_pre_hook(hook)
    layout = examine(model, cross_entropy, (X, Y))
    clipped_sum(model, cross_entropy, batch, Flat(1.0), runtime=Runtime(engine=engine), layout=layout)
    hook.warm = True
    with pytest.raises(PrivacyError, match="a forward pass changes"):
        clipped_sum(model, cross_entropy, batch, Flat(1.0), runtime=Runtime(engine=engine), layout=layout)


def test_a_loss_that_computes_with_the_records_is_refused():
    records = (torch.randn(30, 6), torch.randint(0, 2, (30,)))

    def nearest(model, batch):
        return cross_entropy(model, batch) + torch.cdist(batch[0], records[0]).amin(1)

    model = nn.Linear(6, 2)
    with pytest.raises(CoupledSamples, match="the records themselves"):
        examine(model, nearest, tuple(part[:0] for part in records))
    public = tuple(part.clone() for part in records)
    assert examine(model, nearest, tuple(part[:0] for part in public)).proven

"""Runs to compare captured steps with ordinary ones, on any device."""

from dataclasses import dataclass, field

import torch
from torch import nn

from helpers import tiny
from noisewise import Runtime
from noisewise.batches import map_tensors
from noisewise.clipping import Automatic, Flat, Global, Normalized, per_layer
from noisewise.data import Data
from noisewise.repairs.random_sparsification import RandomMasks
from noisewise.sampling import FullBatch, Poisson
from noisewise.schedule import Schedule
from noisewise.support import Fixed
from noisewise.training.augmentation import Augment
from noisewise.training.loop import train

SEED = 5


@dataclass
class Case:
    """A model, its data and a plan."""

    make: object = tiny.model
    units: object = None
    plan: dict = field(default_factory=dict)
    loss_fn: object = staticmethod(tiny.loss_fn)
    settings: dict = field(default_factory=dict)


def convolutional():
    torch.manual_seed(2)
    return nn.Sequential(
        nn.Conv2d(8, 12, 3, padding=1), nn.GroupNorm(3, 12), nn.ReLU(), nn.Conv2d(12, 16, 3, stride=2), nn.Tanh(),
        nn.Flatten(), nn.Linear(64, 3),
    )  # fmt: skip


class Words(nn.Module):
    """Embedding, LayerNorm, linear layers over positions."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(2)
        self.table, self.norm, self.mix, self.head = (
            nn.Embedding(7, 6),
            nn.LayerNorm(6),
            nn.Linear(6, 6),
            nn.Linear(6, 3),
        )

    def forward(self, x):
        return self.head(torch.tanh(self.mix(self.norm(self.table(x)))).mean(1))


def images():
    generator = torch.Generator().manual_seed(1)
    return torch.randn(tiny.N, 8, 6, 6, generator=generator), torch.randint(0, 3, (tiny.N,), generator=generator)


def sentences():
    generator = torch.Generator().manual_seed(1)
    return (
        torch.randint(0, 7, (tiny.N, 5), generator=generator), torch.randint(0, 3, (tiny.N,), generator=generator)
    )  # fmt: skip


def people():
    x, y = tiny.data()
    return Data(x, y, unit=torch.arange(tiny.N) // 2)


def shaken(rows, generator):
    x, y = rows
    return x + 0.1 * torch.randn(x.shape, generator=generator, dtype=x.dtype), y


def endless_for_some(model, batch):
    return tiny.loss_fn(model, batch) * torch.where(batch[0][:, 0] > 1, float("inf"), 1.0)


def halves(model):
    """Masks of half of the coordinates."""
    generator = torch.Generator().manual_seed(3)
    return {name: torch.rand(p.shape, generator=generator) < 0.5 for name, p in model.named_parameters()}


HALF = torch.arange(30).view(6, 5) % 2 == 0
NAMES = [name for name, _ in tiny.model().named_parameters()]
CASES = {
    "linear": Case(),
    "convolutional": Case(convolutional, images),
    "embedding": Case(Words, sentences),
    "automatic": Case(plan={"clip": Automatic(0.5)}),
    "global": Case(plan={"clip": Global(0.5, 1.0)}),
    "normalized": Case(convolutional, images, {"clip": Normalized(0.5)}),
    "per layer": Case(plan={"clip": per_layer(NAMES, Flat(0.3))}),
    "scheduled bounds": Case(plan={"clip": Schedule(((0, Flat(1.0)), (5, Flat(0.3))))}),
    "masked": Case(plan={"support": Fixed({"0.weight": HALF, "2.bias": False})}),
    "masked convolutions": Case(convolutional, images, {"support": Fixed(halves(convolutional()))}),
    "masked sentences": Case(Words, sentences, {"support": Fixed(halves(Words()))}),
    "masks that change": Case(plan={"support": RandomMasks(0.6, tiny.STEPS, 3)}),
    "convolutions under masks that change": Case(convolutional, images, {"support": RandomMasks(0.6, tiny.STEPS, 3)}),
    "sentences under masks that change": Case(Words, sentences, {"support": RandomMasks(0.6, tiny.STEPS, 3)}),
    "full batch": Case(plan={"sampler": FullBatch(tiny.N), "steps": 3}),
    "batches that may be empty": Case(plan={"sampler": Poisson(tiny.N, 1), "steps": 20}),
    "views": Case(settings={"augment": Augment(shaken, 2)}),
    "moving average": Case(settings={"ema": 0.9}),
    "units that are not finite": Case(loss_fn=endless_for_some),
}


def run(case, device="cpu", dtype=None, **settings):
    """Train; the weights, and the norms that a recorder saw."""
    network = case.make()
    network = network.to(device) if dtype is None else network.to(device, dtype)
    units = (case.units or tiny.data)()
    if dtype is not None and not isinstance(units, Data):
        units = map_tensors(lambda t: t.to(dtype) if t.is_floating_point() else t, units)
    seen = []
    plan = tiny.mechanism(**{"noise_multiplier": 0.5, **case.plan})
    result = train(
        network, units, case.loss_fn, plan, tiny.sgd(network), insecure_seed=SEED, progress=False,
        recorders=[lambda o: seen.append(o.norms.double().cpu())], **{**case.settings, **settings},
    )  # fmt: skip
    return tiny.weights(network).double().cpu(), seen, result


def compared(case, device="cpu", dtype=None, microbatch=None):
    """Captured and ordinary: largest difference of weights and of norms, relative to the largest of each."""
    one, two = (run(case, device, dtype, runtime=Runtime(capture=c, microbatch=microbatch)) for c in (True, False))
    norms = [torch.cat([part.flatten() for part in seen]).nan_to_num(0, 0, 0) for seen in (one[1], two[1])]
    assert [part.shape for part in one[1]] == [part.shape for part in two[1]]
    apart = [(a - b).abs().max().item() / b.abs().max().item() for a, b in ((one[0], two[0]), (norms[0], norms[1]))]
    return max(apart)

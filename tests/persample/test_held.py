"""What a model or a loss keeps between passes is found wherever it lies, and refused."""

import functools
from collections import deque
from dataclasses import dataclass, field

import numpy as np
import pytest
import torch
from torch import nn

from helpers.oracles import cross_entropy
from noisewise.clipping import Flat
from noisewise.errors import PrivacyError
from noisewise.persample import clipped_sum, examine
from noisewise.persample.held import changes, held
from noisewise.runtime import Runtime

X, Y = torch.randn(5, 6, generator=torch.Generator().manual_seed(0)), torch.tensor([0, 1, 0, 1, 1])


@dataclass
class Box:
    items: list = field(default_factory=list)


class Keeping(nn.Module):
    """Keeps something of what it sees, in one of many ways; the outputs do not depend on it."""

    def __init__(self, how):
        super().__init__()
        self.how, self.head = how, nn.Linear(6, 2)
        self.register_buffer("seen", torch.zeros(6))
        self.plain, self.list, self.dict, self.box = torch.zeros(6), [], {}, Box()
        self.array, self.number, self.count = np.zeros(6), 0.0, 0

    def forward(self, x):
        what = x.detach()[0]
        match self.how:
            case "buffer in place":
                self.seen.add_(what)
            case "buffer through data":
                self.seen.data.add_(what)
            case "buffer by assignment":
                self.seen = self.seen + what
            case "buffer by copy":
                self.seen.copy_(what)
            case "plain attribute in place":
                self.plain.add_(what)
            case "plain attribute by assignment":
                self.plain = what.clone()
            case "list":
                self.list.append(what.clone())
            case "dict":
                self.dict[len(self.dict)] = what.clone()
            case "object":
                self.box.items.append(what.clone())
            case "array":
                self.array[:] = what.numpy()
            case "number":
                self.number += float(what.sum())
            case "numbers in a list":
                self.list.append(float(what.sum()))
            case "texts in a list":
                self.list.append(f"{float(what.sum()):.3f}")
            case "a count by the data":
                self.count += int(what.sum() * 1000)
            case "parameter":
                with torch.no_grad():
                    self.head.weight.add_(what)
            case "a count of calls":
                self.count += 1
        return self.head(x)


WAYS = [
    "buffer in place", "buffer through data", "buffer by assignment", "buffer by copy", "plain attribute in place",
    "plain attribute by assignment", "list", "dict", "object", "array", "number", "numbers in a list", "texts in a list",
    "a count by the data", "parameter",
]  # fmt: skip


@pytest.mark.parametrize("how", WAYS)
@pytest.mark.parametrize("engine", ["auto", "dense", "loop"])
def test_what_a_model_keeps_is_refused_wherever_it_is(how, engine):
    with pytest.raises(PrivacyError, match="a forward pass changes"):
        clipped_sum(Keeping(how), cross_entropy, (X, Y), Flat(1.0), runtime=Runtime(engine=engine))


@pytest.mark.parametrize("kind", [torch.float64, torch.int64, torch.float32, torch.int32, torch.uint8, "array"])
@pytest.mark.parametrize("change", ["one", "rolled by a word", "exchanged", "another type", "another shape"])
def test_any_change_of_values_shape_or_type_is_seen(kind, change):
    """The last two leave every byte as it is, the two before them every byte at another place."""
    model, values = nn.Module(), torch.arange(1, 33)
    model.held = values.numpy().astype(np.float32) if kind == "array" else values.to(kind)
    before = held(model, None)
    one = torch.as_tensor(model.held).clone()
    match change:
        case "one":
            one[7] += 1
        case "rolled by a word":
            one = one.roll(8 // one.element_size())
        case "exchanged":
            one[[3, 20]] = one[[20, 3]]
        case "another type":
            one = one.view(torch.bool if one.dtype == torch.uint8 else torch.uint8)
        case "another shape":
            one = one.view(4, 8)
    model.held = one.numpy() if kind == "array" else one
    assert changes(before, held(model, None)) == ["held"]


def test_numbers_may_count_on_and_lists_may_not_grow():
    assert changes({"calls": 1}, {"calls": 2}) == []
    assert changes({"len(bank)": 1}, {"len(bank)": 2}) == ["len(bank)"]


@pytest.mark.parametrize("how", ["nothing", "a count of calls"])
def test_what_does_not_follow_the_data_is_no_memory(how):
    assert examine(Keeping(how), cross_entropy, (X, Y)).proven


def bank_in_a_closure():
    bank = []

    def loss_fn(model, batch):
        bank.append(model(batch[0]).detach())
        return cross_entropy(model, batch)

    return loss_fn


def bank_in_a_default():
    def loss_fn(model, batch, bank=[torch.zeros(2)]):  # noqa: B006  that is the point
        bank[0] = model(batch[0]).detach().mean(0)
        return cross_entropy(model, batch)

    return loss_fn


class Bound:
    def __init__(self):
        self.bank = torch.zeros(2)

    def loss_fn(self, model, batch):
        self.bank = model(batch[0]).detach().mean(0)
        return cross_entropy(model, batch)


class Hidden:
    """Where no walk over attributes finds it."""

    __slots__ = ("bank",)

    def __call__(self, model, batch):
        self.bank = model(batch[0])
        return cross_entropy(model, batch)


BANK, BY_NAME = [torch.zeros(2)], {"mean": 0.0}


def bank_in_a_global(model, batch):
    BANK[0] = model(batch[0]).detach().mean(0)
    return cross_entropy(model, batch)


def bank_in_a_global_dict(model, batch):
    BY_NAME["mean"] = float(model(batch[0]).detach().mean())  # a number: no tensor is left behind
    return cross_entropy(model, batch)


def bank_in_a_keyword():
    def loss_fn(model, batch, *, bank=[0.0]):  # noqa: B006  that is the point
        bank[0] = float(model(batch[0]).detach().mean())
        return cross_entropy(model, batch)

    return loss_fn


def with_a_bank(model, batch, bank):
    bank.append(model(batch[0]))
    return cross_entropy(model, batch)


LOSSES = {
    "closure": bank_in_a_closure,
    "default": bank_in_a_default,
    "object": lambda: Bound().loss_fn,
    "slots": Hidden,
    "global": lambda: bank_in_a_global,
    "global dict": lambda: bank_in_a_global_dict,
    "keyword": bank_in_a_keyword,
    "partial": lambda: functools.partial(with_a_bank, bank=[]),
}  # fmt: skip


@pytest.mark.parametrize("where", LOSSES)
def test_what_a_loss_keeps_is_refused_wherever_it_is(where):
    with pytest.raises(PrivacyError, match="a forward pass changes"):
        examine(nn.Linear(6, 2), LOSSES[where](), (X, Y))


def test_a_memory_that_begins_later_is_refused_when_it_begins():
    """Not seen when the model was examined: every pass is watched."""
    for way in ("buffer in place", "buffer through data", "plain attribute in place"):
        model = Keeping("nothing")
        layout = examine(model, cross_entropy, (X, Y))
        model.how = way
        with pytest.raises(PrivacyError, match="a forward pass changes"):
            clipped_sum(model, cross_entropy, (X, Y), Flat(1.0), layout=layout)


def test_what_is_held_is_compared_by_content():
    model = Keeping("nothing")
    before = held(model, cross_entropy)
    assert not changes(before, held(model, cross_entropy))
    model.array[2] = 1.0
    model.plain[1] = float("nan")
    model.number = float("nan")
    after = held(model, cross_entropy)
    assert set(changes(before, after)) == {"array", "plain", "number"}
    assert not changes(after, held(model, cross_entropy))


@pytest.mark.parametrize("entry", range(7))
def test_every_entry_of_a_tensor_is_in_its_content(entry):
    model = nn.Module()
    model.memory = torch.zeros(7)
    before = held(model, None)
    model.memory[entry] = 1e-40
    assert changes(before, held(model, None)) == ["memory"]
    model.memory[entry], model.memory[(entry + 1) % 7] = 0.0, 1e-40
    assert changes(before, held(model, None)) == ["memory"]


HISTORY: list = []


class Slots:
    """An object without a dictionary."""

    __slots__ = ("count",)

    def __init__(self):
        self.count = 0.0


@functools.cache
def remembered(key):
    """Anything."""
    return key


def helper(x):
    """Writes where a function that is only called writes."""
    HISTORY.append(float(x.sum()))


class Elsewhere(nn.Module):
    """Reads values, so that units are evaluated one by one, and leaves a number behind after some of them."""

    shared = 0.0

    def __init__(self, how):
        super().__init__()
        self.how, self.head = how, nn.Linear(6, 2)
        self.queue, self.slots, self.text, self.bytes = deque(maxlen=9), Slots(), "", bytearray()
        self.whole, self.generator, self.asked = 0, torch.Generator(), functools.partial(max, [0.0])
        self.head.register_forward_hook(functools.partial(self.hook, []))

    def hook(self, kept, module, args, output):
        if self.how == "hook" and self.rare(args[0]):
            kept.append(1.0)

    def rare(self, x):
        return bool(((x > 20) & (x < 25)).any())

    def forward(self, x):
        if self.rare(x):
            match self.how:
                case "global of forward":
                    HISTORY.append(1.0)
                case "global of a helper":
                    helper(x)
                case "queue":
                    self.queue.append(1.0)
                case "class":
                    type(self).shared += 1.0
                case "slots":
                    self.slots.count += 1.0
                case "text":
                    self.text += "x"
                case "bytes":
                    self.bytes.append(1)
                case "partial":
                    self.asked.args[0].append(1.0)
                case "cache":
                    remembered(float(x.sum()))
                case "whole number":
                    self.whole += 1
                case "generator":
                    torch.rand(1, generator=self.generator)
        return self.head(x)


PLACES = ["global of forward", "global of a helper", "queue", "class", "slots", "text", "bytes", "partial", "cache",
          "whole number", "generator", "hook"]  # fmt: skip


@pytest.mark.parametrize("how", PLACES)
def test_what_a_rare_unit_leaves_behind_is_found_wherever_it_lies(how):
    model = Elsewhere(how)
    layout = examine(model, cross_entropy, (X, Y))
    clipped_sum(model, cross_entropy, (X, Y), Flat(1.0), layout=layout)
    rare = X.clone()
    rare[2, 3] = 22.0
    with pytest.raises(PrivacyError, match="a forward pass changes"):
        clipped_sum(model, cross_entropy, (rare, Y), Flat(1.0), layout=layout)


def test_whole_numbers_may_count_passes_and_rows():
    model = Elsewhere("nothing")
    model.register_forward_hook(lambda module, args, output: setattr(module, "whole", module.whole + len(output)))
    layout = examine(model, cross_entropy, (X, Y))
    assert not layout.proven
    clipped_sum(model, cross_entropy, (X, Y), Flat(1.0), layout=layout)
    assert model.whole > 5

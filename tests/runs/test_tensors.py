"""Weights and trees of tensors: written and read back with type and shape."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import load_file
from torch import nn

from helpers import tiny
from helpers.crashes import SEED
from noisewise.runs import tensors as files_of_tensors
from noisewise.runs.tensors import load_tensors, save_tensors


def test_the_weights_are_the_models(tmp_path):
    trained = tiny.run(out=tmp_path)
    saved = load_file(tmp_path / "model.safetensors")
    assert saved.keys() == trained.model.state_dict().keys()
    assert all(torch.equal(saved[name], value) for name, value in trained.model.state_dict().items())


class Tied(nn.Module):
    """Two names for one weight."""

    def __init__(self):
        super().__init__()
        self.first, self.second, self.head = nn.Linear(5, 5), nn.Linear(5, 5), nn.Linear(5, 3)
        self.second.weight = self.first.weight

    def forward(self, x):
        return self.head(torch.tanh(self.second(torch.tanh(self.first(x)))))


def test_the_weights_are_the_average_where_one_was_asked_for(tmp_path):
    trained = tiny.run(Tied(), ema=0.9, out=tmp_path)
    saved = load_file(tmp_path / "model.safetensors")
    assert saved.keys() == trained.model.state_dict().keys()
    assert all(torch.equal(saved[name], average) for name, average in trained.averaged.items())
    assert torch.equal(saved["second.weight"], trained.averaged["first.weight"])
    assert not torch.equal(saved["first.weight"], trained.model.first.weight)


# --- files ------------------------------------------------------------------------------------------------------------
leaves = st.one_of(
    st.none(), st.booleans(), st.integers(-(2**70), 2**70), st.floats(allow_nan=False), st.text(max_size=4)
)

trees = st.recursive(
    leaves,
    lambda inner: st.one_of(
        st.lists(inner, max_size=3),
        st.lists(inner, max_size=3).map(tuple),
        st.dictionaries(st.one_of(st.integers(0, 5), st.text(max_size=3)), inner, max_size=3),
    ),
    max_leaves=8,
)


@settings(max_examples=60, deadline=None, derandomize=True)
@given(trees)
def test_trees_round_trip_with_their_types(tmp_path_factory, tree):
    path = tmp_path_factory.mktemp("tree") / "file"
    save_tensors(path, tree)
    read = load_tensors(path)
    assert read == tree
    assert repr(read) == repr(tree)  # 1 is not True, a tuple no list


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16, torch.float16, torch.int64, torch.bool, torch.uint8])
@pytest.mark.parametrize("shape", [(), (0,), (3, 2)])
def test_tensors_round_trip_with_type_and_shape(dtype, shape, tmp_path):
    tensor = (torch.arange(6)[: int(torch.tensor(shape).prod())].reshape(shape) if shape else torch.tensor(3)).to(dtype)
    save_tensors(tmp_path / "file", {"here": [tensor, tensor.clone()]})
    read = load_tensors(tmp_path / "file")["here"][1]
    assert read.dtype == dtype
    assert torch.equal(read, tensor)


def test_every_name_of_a_tied_tensor_is_released_as_its_average(tmp_path):
    class Tied(nn.Module):
        def __init__(self):
            super().__init__()
            self.body, self.again, self.head = nn.Linear(5, 5), nn.Linear(5, 5), nn.Linear(5, 3)
            self.again.weight = self.body.weight

        def forward(self, x):
            return self.head(self.again(torch.tanh(self.body(x))))

    trained = tiny.run(Tied(), out=tmp_path, ema=0.9, insecure_seed=SEED)
    released = load_file(tmp_path / "model.safetensors")
    assert torch.equal(released["again.weight"], released["body.weight"])
    assert all(torch.equal(released[name], average) for name, average in trained.averaged.items())
    assert not torch.equal(released["body.weight"], trained.model.body.weight)


def test_names_types_shapes_and_bytes_of_tensors_are_in_a_checkpoints_digest():
    base = torch.arange(6, dtype=torch.float32)
    trees = [
        {"a": base}, {"b": base}, {"a": base.view(2, 3)}, {"a": base.view(3, 2)}, {"a": base.view(torch.int32)},
        {"a": base + 1}, {"a": base, "b": base},
    ]  # fmt: skip
    digests = {files_of_tensors._digest(tree, tensors) for tree in ("x", "y") for tensors in trees}
    assert len(digests) == 2 * len(trees)

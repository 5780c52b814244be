from __future__ import annotations

import gzip
import os

import numpy as np
import pytest
import torch

from noisewise.data import DATASETS, Data, digits, load, mnist, split
from noisewise.errors import ConfigError, DataError

needs_data = pytest.mark.skipif(not os.environ.get("NOISEWISE_DATA"), reason="NOISEWISE_DATA is not set")


def rows(data: Data) -> set[bytes]:
    return {x.numpy().tobytes() for x in data.x}


def test_digits_are_three_disjoint_parts_of_1797() -> None:
    parts = digits()
    assert [len(part) for part in parts] == [1258, 180, 359]
    assert len(set.union(*map(rows, parts))) == sum(len(rows(part)) for part in parts)
    assert all(part.public and part.classes == tuple("0123456789") for part in parts)
    assert parts.train.x.shape[1:] == (1, 8, 8)
    assert parts.train.x.min() == 0
    assert parts.train.x.max() == 1


def test_the_seed_is_the_split() -> None:
    assert torch.equal(digits(3).test.x, digits(3).test.x)
    assert not torch.equal(digits(3).test.y, digits(4).test.y)


def test_the_held_out_part_leaves_the_test_part_alone() -> None:
    assert torch.equal(digits(0, valid=0).test.x, digits(0).test.x)
    assert len(load("digits", valid=0).train) == 1438
    assert len(load("digits", valid=0).valid) == 0


@pytest.mark.parametrize("sizes", [(10,), (6, 4), (-1,), (2.5,)])
def test_impossible_parts_are_refused(sizes: tuple[int, ...]) -> None:
    with pytest.raises(ConfigError, match="rows"):
        split(Data(torch.zeros(10, 2), torch.zeros(10)), 0, *sizes)


def test_unknown_names_are_refused_with_the_known_ones() -> None:
    with pytest.raises(ConfigError, match=r"'imagenet': unknown.*digits"):
        load("imagenet")
    assert set(DATASETS) >= {"digits", "mnist"}


def test_take_keeps_groups_and_flags() -> None:
    data = Data(torch.arange(4.0), torch.arange(4), {"sex": torch.tensor([0, 1, 0, 1])}, ("a", "b"), public=True)
    part = data.take(torch.tensor([1, 3]))
    assert part.groups["sex"].tolist() == [1, 1]
    assert part.public
    assert part.classes == ("a", "b")


@pytest.mark.parametrize("wrong", [{"y": torch.zeros(3)}, {"groups": {"sex": torch.zeros(5)}}])
def test_lengths_must_agree(wrong: dict) -> None:
    with pytest.raises(DataError, match="same length"):
        Data(**({"x": torch.zeros(4, 1), "y": torch.zeros(4)} | wrong))


def idx(values: np.ndarray) -> bytes:
    return gzip.compress(bytes([0, 0, 8, values.ndim]) + np.array(values.shape, ">u4").tobytes() + values.tobytes())


@pytest.fixture
def small_mnist(tmp_path, monkeypatch):
    """Official layout, five and three made-up images."""
    folder = tmp_path / "mnist"
    folder.mkdir()
    generator = np.random.default_rng(0)
    for part, count in (("train", 5), ("t10k", 3)):
        images = generator.integers(0, 256, (count, 28, 28), dtype=np.uint8)
        (folder / f"{part}-images-idx3-ubyte.gz").write_bytes(idx(images))
        (folder / f"{part}-labels-idx1-ubyte.gz").write_bytes(idx(np.arange(count, dtype=np.uint8)))
    monkeypatch.setenv("NOISEWISE_DATA", str(tmp_path))
    return folder


def test_mnist_reads_the_idx_files(small_mnist) -> None:
    parts = mnist(valid=2)
    assert [len(part) for part in parts] == [3, 2, 3]
    assert sorted([*parts.train.y.tolist(), *parts.valid.y.tolist()]) == [0, 1, 2, 3, 4]
    raw = gzip.decompress((small_mnist / "t10k-images-idx3-ubyte.gz").read_bytes())[16 : 16 + 784]
    expected = (np.frombuffer(raw, np.uint8).reshape(28, 28) / 255 - 0.1307) / 0.3081
    np.testing.assert_allclose(parts.test.x[0, 0].numpy(), expected, rtol=1e-5)
    assert len(mnist(valid=0).train) == 5


def test_a_missing_file_is_named(small_mnist, monkeypatch) -> None:
    (small_mnist / "t10k-labels-idx1-ubyte.gz").unlink()
    with pytest.raises(DataError, match=r"\$NOISEWISE_DATA/mnist/t10k-labels-idx1-ubyte.gz does not exist"):
        mnist(valid=0)
    monkeypatch.delenv("NOISEWISE_DATA")
    with pytest.raises(DataError, match=r"NOISEWISE_DATA is not set.*train-images-idx3-ubyte.gz"):
        mnist()


@pytest.mark.parametrize("content", [b"", b"no gzip", idx(np.zeros(4, np.uint8))[:-3], idx(np.zeros((2, 2), np.uint8))])
def test_a_damaged_file_is_named(small_mnist, content: bytes) -> None:
    (small_mnist / "train-labels-idx1-ubyte.gz").write_bytes(content)
    with pytest.raises(DataError, match=r"train-labels-idx1-ubyte.gz"):
        mnist(valid=0)


@needs_data
def test_the_real_mnist_is_the_published_one() -> None:
    parts = mnist()
    assert [len(part) for part in parts] == [55_000, 5_000, 10_000]
    labels = torch.cat([parts.train.y, parts.valid.y])
    assert labels.bincount().tolist() == [5923, 6742, 5958, 6131, 5842, 5421, 5918, 6265, 5851, 5949]
    pixels = torch.cat([parts.train.x, parts.valid.x])
    assert abs(float(pixels.mean())) < 1e-3  # so the constants are the set's own mean and deviation
    assert float(pixels.std()) == pytest.approx(1, abs=1e-3)

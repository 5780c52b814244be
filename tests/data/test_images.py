from __future__ import annotations

import gzip
import hashlib
import os
from dataclasses import replace

import numpy as np
import pytest
import torch
from sklearn.datasets import load_digits

from noisewise.data import Data, cifar10, digits, fashion_mnist, images, mnist
from noisewise.data.files import FILES, Download
from noisewise.errors import ConfigError, DataError

needs_data = pytest.mark.skipif(not os.environ.get("NOISEWISE_DATA"), reason="NOISEWISE_DATA is not set")


def rows(data: Data) -> set[bytes]:
    return {x.numpy().tobytes() for x in data.x}


def test_digits_are_those_of_scikit_learn() -> None:
    bunch = load_digits()
    parts = digits(valid=100)
    rows = torch.cat(
        [torch.cat([part.x.flatten(1), part.y[:, None]], 1) for part in (parts.train, parts.valid, parts.test)]
    )
    expected = torch.cat([torch.tensor(bunch.images).flatten(1) / 16, torch.tensor(bunch.target)[:, None]], 1).float()
    assert sorted(rows.tolist()) == sorted(expected.tolist())


def test_digits_are_three_disjoint_parts_of_1797() -> None:
    parts = digits()
    assert [len(part) for part in parts] == [1258, 180, 359]
    assert len(set.union(*map(rows, parts))) == sum(len(rows(part)) for part in parts)
    assert all(part.public and part.classes == tuple("0123456789") for part in parts)
    assert parts.train.x.shape[1:] == (1, 8, 8)
    assert parts.train.x.min() == 0
    assert parts.train.x.max() == 1


def idx(values: np.ndarray) -> bytes:
    return gzip.compress(bytes([0, 0, 8, values.ndim]) + np.array(values.shape, ">u4").tobytes() + values.tobytes())


@pytest.fixture
def put(tmp_path, monkeypatch):
    """Give a made-up file, with its own checksum and nothing to download it from."""
    monkeypatch.setenv("NOISEWISE_DATA", str(tmp_path))
    monkeypatch.setenv("NOISEWISE_CACHE", str(tmp_path / "cache"))

    def give(name: str, content: bytes):
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
        nowhere = Download(("http://127.0.0.1:9/file",), f"sha256:{'0' * 64}")
        given = replace(FILES[name], sha256=hashlib.sha256(content).hexdigest(), download=nowhere)
        monkeypatch.setitem(FILES, name, given)
        return path

    return give


@pytest.fixture(params=[("mnist", mnist), ("fashion_mnist", fashion_mnist)])
def small(request, put):
    """Official layout, five and three made-up images."""
    folder, loader = request.param
    generator = np.random.default_rng(0)
    raw = {}
    for part, count in (("train", 5), ("t10k", 3)):
        raw[part] = generator.integers(0, 256, (count, 28, 28), dtype=np.uint8)
        images = put(f"{folder}/{part}-images-idx3-ubyte.gz", idx(raw[part]))
        put(f"{folder}/{part}-labels-idx1-ubyte.gz", idx(np.arange(count, dtype=np.uint8)))
    return folder, loader, raw, images.parent


def test_idx_files_are_read(small) -> None:
    folder, loader, raw, _ = small
    parts = loader(valid=2)
    assert [len(part) for part in parts] == [3, 2, 3]
    assert sorted([*parts.train.y.tolist(), *parts.valid.y.tolist()]) == [0, 1, 2, 3, 4]
    mean, std = {"mnist": (0.1307, 0.3081), "fashion_mnist": (0.2860, 0.3530)}[folder]
    expected = (raw["t10k"] / 255 - mean) / std
    np.testing.assert_allclose(parts.test.x[:, 0].numpy(), expected, rtol=1e-5, atol=1e-6)
    for image, label in zip(parts.train.x, parts.train.y, strict=True):
        np.testing.assert_allclose(image[0].numpy(), (raw["train"][label] / 255 - mean) / std, rtol=1e-5, atol=1e-6)
    assert len(loader(valid=0).train) == 5


def test_a_missing_file_is_named(small, monkeypatch) -> None:
    folder, loader, _, path = small
    (path / "t10k-labels-idx1-ubyte.gz").unlink()
    with pytest.raises(DataError, match=rf"\$NOISEWISE_DATA/{folder}/t10k-labels-idx1-ubyte.gz does not exist"):
        loader(valid=0)
    monkeypatch.delenv("NOISEWISE_DATA")
    with pytest.raises(DataError, match=r"NOISEWISE_DATA is not set.*train-images-idx3-ubyte.gz"):
        loader()


WRONG = [
    b"",
    b"no gzip",
    idx(np.zeros(4, np.uint8))[:-3],
    idx(np.zeros((2, 2), np.uint8)),
    gzip.compress(b"\0\0\x08\1\0"),
]


@pytest.mark.parametrize("content", WRONG, ids=["empty", "no gzip", "cut short", "another shape", "no numbers"])
def test_a_damaged_file_is_named(small, put, content: bytes) -> None:
    folder, loader, _, path = small
    name = "train-labels-idx1-ubyte.gz"
    (path / name).write_bytes(content)
    with pytest.raises(DataError, match=rf"{name} is not the published file"):
        loader(valid=0)
    put(f"{folder}/{name}", content)  # even if it were the published one
    with pytest.raises(DataError, match=rf"{name} (cannot be read|is no idx file)"):
        loader(valid=0)


def test_cifar_batches_are_read(put) -> None:
    generator = np.random.default_rng(1)
    pixels = generator.integers(0, 256, (6, 4, 3, 32, 32), dtype=np.uint8)
    labels = np.arange(24, dtype=np.uint8).reshape(6, 4) % 10
    names = [*(f"data_batch_{number}" for number in range(1, 6)), "test_batch"]
    for name, x, y in zip(names, pixels, labels, strict=True):
        raw = b"".join(bytes([label]) + image.tobytes() for image, label in zip(x, y, strict=True))
        put(f"cifar10/cifar-10-batches-bin/{name}.bin", raw)
    parts = cifar10(valid=0)
    assert [len(part) for part in parts] == [20, 0, 4]
    mean, std = (np.array(v).reshape(3, 1, 1) for v in ((0.4914, 0.4822, 0.4465), (0.2023, 0.1994, 0.2010)))
    np.testing.assert_allclose(parts.test.x.numpy(), (pixels[5] / 255 - mean) / std, rtol=1e-4, atol=1e-6)
    assert parts.test.y.tolist() == labels[5].tolist()
    back = np.rint((parts.train.x.numpy() * std + mean) * 255).astype(np.uint8)
    pairs = {(x.tobytes(), int(y)) for x, y in zip(back, parts.train.y, strict=True)}
    given = zip(pixels[:5].reshape(20, 3, 32, 32), labels[:5].flatten(), strict=True)
    assert pairs == {(x.tobytes(), int(y)) for x, y in given}
    assert parts.train.classes[8] == "ship"


@pytest.mark.parametrize("content", [b"", b"\0" * 3072, b"\x0a" + b"\0" * 3072])
def test_what_is_no_cifar_batch_is_refused(put, content: bytes) -> None:
    put("cifar10/cifar-10-batches-bin/data_batch_1.bin", content)
    with pytest.raises(DataError, match=r"data_batch_1.bin is no batch"):
        cifar10()


def test_black_is_what_a_black_pixel_becomes(small) -> None:
    folder, loader, raw, _ = small
    x = loader(valid=0).test.x[:, 0]
    assert (raw["t10k"] == 0).any()
    np.testing.assert_allclose(x[torch.from_numpy(raw["t10k"] == 0)].numpy(), images.black(folder)[0], rtol=1e-6)
    assert len(images.black("cifar10")) == 3
    assert images.black("digits") == (0,)
    with pytest.raises(ConfigError, match="'adult': unknown"):
        images.black("adult")


def moments(parts) -> tuple[torch.Tensor, torch.Tensor]:
    """Of each channel over all images of two parts."""
    sums = [[x.double().pow(k).sum((0, 2, 3)) for k in (0, 1, 2)] for part in parts[:2] for x in part.x.split(1000)]
    count, total, squares = (sum(column) for column in zip(*sums, strict=True))
    return total / count, (squares / count - (total / count) ** 2).sqrt()


@needs_data
def test_the_real_mnist_is_the_published_one() -> None:
    parts = mnist()
    assert [len(part) for part in parts] == [55_000, 5_000, 10_000]
    labels = torch.cat([parts.train.y, parts.valid.y])
    assert labels.bincount().tolist() == [5923, 6742, 5958, 6131, 5842, 5421, 5918, 6265, 5851, 5949]
    mean, std = moments(parts)  # so the constants are the set's own mean and deviation
    assert abs(float(mean)) < 1e-3
    assert float(std) == pytest.approx(1, abs=1e-3)


@needs_data
def test_the_real_fashion_mnist_is_the_published_one() -> None:
    parts = fashion_mnist()
    assert [len(part) for part in parts] == [55_000, 5_000, 10_000]
    assert torch.cat([parts.train.y, parts.valid.y]).bincount().tolist() == [6000] * 10
    assert parts.test.y[:5].tolist() == [9, 2, 1, 1, 6]  # the official test part begins so
    assert parts.test.classes[9] == "Ankle boot"
    mean, std = moments(parts)
    assert abs(float(mean)) < 1e-3
    assert float(std) == pytest.approx(1, abs=1e-3)


@needs_data
def test_the_real_cifar10_is_the_published_one() -> None:
    parts = cifar10()
    assert [len(part) for part in parts] == [45_000, 5_000, 10_000]
    assert torch.cat([parts.train.y, parts.valid.y]).bincount().tolist() == [5000] * 10
    mean, std = moments((parts.valid, parts.test))
    assert mean.abs().max() < 0.02
    used = torch.tensor(images.SCALES["cifar10"].std)
    torch.testing.assert_close((std * used).float(), torch.tensor([0.2470, 0.2435, 0.2616]), atol=2e-3, rtol=0)
    own = parts.test.x.std((2, 3)).mean(0)  # the constants are the mean of images' own deviations
    torch.testing.assert_close(own, torch.ones(3), atol=0.01, rtol=0)
    raw = (parts.test.x * used.view(3, 1, 1) + torch.tensor(images.SCALES["cifar10"].mean).view(3, 1, 1)) * 255
    pixels = raw.round_().byte().permute(0, 2, 3, 1).contiguous()
    assert hashlib.md5(pixels.numpy()).hexdigest() == "6d2714505047e13831cd876923568712"  # NHWC bytes as published

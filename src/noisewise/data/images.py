"""Sets of images: bundled, or read from their publishers' files."""

from __future__ import annotations

import gzip
import importlib.util
import zlib
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from noisewise.data.base import Data, Splits, split
from noisewise.data.files import find
from noisewise.data.transforms import normalize
from noisewise.errors import ConfigError, DataError


class Scale(NamedTuple):
    """Mean and standard deviation of each channel by which pixels in [0, 1] are normalised: published, so public."""

    mean: tuple[float, ...]
    std: tuple[float, ...]


SCALES = {
    "digits": Scale((0.0,), (1.0,)),
    "mnist": Scale((0.1307,), (0.3081,)),
    "fashion_mnist": Scale((0.2860,), (0.3530,)),
    "cifar10": Scale((0.4914, 0.4822, 0.4465), (0.2023, 0.1994, 0.2010)),
}

DIGITS = tuple("0123456789")
CLOTHES = (
    "T-shirt/top", "Trouser", "Pullover", "Dress", "Coat", "Sandal", "Shirt", "Sneaker", "Bag", "Ankle boot",
)  # fmt: skip
OBJECTS = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")


def black(name: str) -> tuple[float, ...]:
    """What a black pixel of a set has become, for each channel: (0 - mean)/std; the `fill` of `noisewise.data.transforms`."""
    if name not in SCALES:
        raise ConfigError(f"images {name!r}: unknown. Known sets of images: {', '.join(SCALES)}.")
    return tuple(-mean / std for mean, std in zip(*SCALES[name], strict=True))


def digits(seed: int = 0, valid: int = 180) -> Splits:
    """Handwritten digits, 1797 images of 8x8 pixels in [0, 1], 10 classes: bundled with scikit-learn, a public set.

    A fifth (359) is the test part, `valid` more are held out for choosing settings; the rest, 1258, is trained on.
    Reference: E. Alpaydin, C. Kaynak 1998, UCI Optical Recognition of Handwritten Digits.
    """
    package = importlib.util.find_spec("sklearn")  # importing scikit-learn takes longer than reading its file
    if package is None or package.origin is None:
        raise DataError("digits: scikit-learn, which carries them, is not installed.")
    rows = np.loadtxt(Path(package.origin).parent / "datasets" / "data" / "digits.csv.gz", delimiter=",")
    x = torch.from_numpy(rows[:, :-1].reshape(-1, 1, 8, 8)).float() / 16
    y = torch.from_numpy(rows[:, -1]).long()
    test, held, train = split(Data(x, y, classes=DIGITS, public=True), seed, 359, valid)
    return Splits(train, held, test)


def mnist(seed: int = 0, valid: int = 5000) -> Splits:
    """MNIST: 60,000 + 10,000 grey images of 28x28 pixels, 10 classes; a public set.

    Pixels in [0, 1], normalised by the published mean 0.1307 and standard deviation 0.3081. The test part is the
    official one; `valid` of the 60,000 are held out for choosing settings (0: train on all of them).
    Reads the official idx files, from `$NOISEWISE_DATA/mnist/` or downloaded. Reference: LeCun, Cortes, Burges 1998.
    """
    train, test = (_idx_part("mnist", part, DIGITS) for part in ("train", "t10k"))
    return _official(train, test, seed, valid)


def fashion_mnist(seed: int = 0, valid: int = 5000) -> Splits:
    """Fashion-MNIST: 60,000 + 10,000 grey images of 28x28 pixels, 10 kinds of clothes; a public set.

    Pixels in [0, 1], normalised by the published mean 0.2860 and standard deviation 0.3530; parts as in `mnist`.
    Reads the official idx files, from `$NOISEWISE_DATA/fashion_mnist/` or downloaded.
    Reference: Xiao, Rasul, Vollgraf 2017, arXiv:1708.07747.
    """
    train, test = (_idx_part("fashion_mnist", part, CLOTHES) for part in ("train", "t10k"))
    return _official(train, test, seed, valid)


def cifar10(seed: int = 0, valid: int = 5000) -> Splits:
    """CIFAR-10: 50,000 + 10,000 colour images of 32x32 pixels, 10 classes; a public set.

    Pixels in [0, 1], normalised for each channel by the mean .4914 .4822 .4465 and the deviation .2023 .1994 .2010 (the
    mean over images of an image's own deviation; over all pixels it is .2470 .2435 .2616) that DP-SGD papers use. The
    test part is the official one; `valid` of the 50,000 are held out for choosing settings (0: train on all of them).
    Reads the official binary version, from `$NOISEWISE_DATA/cifar10/cifar-10-batches-bin/` or downloaded.
    Reference: Krizhevsky 2009, Learning Multiple Layers of Features from Tiny Images; constants: Zhu, Blaschko 2023.
    """
    train = _cifar_part(*(f"data_batch_{number}" for number in range(1, 6)))
    return _official(train, _cifar_part("test_batch"), seed, valid)


def _official(train: Data, test: Data, seed: int, valid: int) -> Splits:
    """The official test part, and the official training part without what is held out."""
    held, rest = split(train, seed, valid)
    return Splits(rest, held, test)


def _idx_part(folder: str, part: str, classes: tuple[str, ...]) -> Data:
    images = _idx(f"{folder}/{part}-images-idx3-ubyte.gz", 3).unsqueeze(1)
    labels = _idx(f"{folder}/{part}-labels-idx1-ubyte.gz", 1).long()
    return Data(_scaled(images, SCALES[folder]), labels, classes=classes, public=True)


def _cifar_part(*names: str) -> Data:
    """Batches of the binary version: for each image a label and 3 x 32 x 32 pixels, one byte each."""
    files = [f"cifar10/cifar-10-batches-bin/{name}.bin" for name in names]
    raw = torch.cat([_records(name, find(name)) for name in files])
    images = raw[:, 1:].unflatten(1, (3, 32, 32))
    return Data(_scaled(images, SCALES["cifar10"]), raw[:, 0].long(), classes=OBJECTS, public=True)


def _records(name: str, path: Path) -> Tensor:
    raw = np.fromfile(path, np.uint8)
    if not raw.size or raw.size % 3073 or raw[::3073].max() > 9:
        raise DataError(f"{name} is no batch of CIFAR-10's binary version. Put the publisher's file there.")
    return torch.from_numpy(raw).unflatten(0, (-1, 3073))


def _scaled(images: Tensor, scale: Scale) -> Tensor:
    """Bytes in [0, 1], normalised."""
    return normalize(images.float().div_(255), scale.mean, scale.std)


def _idx(name: str, dimensions: int) -> Tensor:
    """An idx file of bytes: 0, 0, type 8 (unsigned byte), number of dimensions, big-endian sizes, values."""
    try:
        raw = gzip.decompress(find(name).read_bytes())
    except (OSError, EOFError, zlib.error) as error:
        raise DataError(f"{name} cannot be read ({error}). Put the publisher's file there.") from None
    start = 4 + 4 * dimensions
    sizes = np.frombuffer(raw[4:start].ljust(start - 4, b"\0"), ">u4")
    if raw[:4] != bytes([0, 0, 8, dimensions]) or len(raw) != start + int(np.prod(sizes, dtype=np.int64)):
        raise DataError(f"{name} is no idx file of {dimensions}-dimensional bytes. Put the publisher's file there.")
    return torch.from_numpy(np.frombuffer(raw, np.uint8, offset=start).reshape(tuple(sizes)).copy())

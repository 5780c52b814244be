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
from noisewise.data.files import find, member
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
    "cifar100": Scale((0.5071, 0.4865, 0.4409), (0.2673, 0.2564, 0.2762)),
    "svhn": Scale((0.4377, 0.4438, 0.4728), (0.1980, 0.2010, 0.1970)),
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


def cifar100(seed: int = 0, valid: int = 5000) -> Splits:
    """CIFAR-100: 50,000 + 10,000 colour images of 32x32 pixels, 100 classes in 20 superclasses (groups); a public set.

    Pixels in [0, 1], normalised for each channel by the mean .5071 .4865 .4409 and the deviation .2673 .2564 .2762; parts as
    in `cifar10`. Reads the publisher's binary version as it is, `$NOISEWISE_DATA/cifar100/cifar-100-binary.tar.gz` or
    downloaded. Reference: Krizhevsky 2009, Learning Multiple Layers of Features from Tiny Images.
    """
    archive = find("cifar100/cifar-100-binary.tar.gz")
    fine, coarse = (
        tuple(member(f"cifar-100-binary/{kind}_label_names.txt")(archive).decode().split())
        for kind in ("fine", "coarse")
    )
    train, test = (_fine_part(f"cifar-100-binary/{part}.bin", archive, fine, coarse) for part in ("train", "test"))
    return _official(train, test, seed, valid)


def svhn(seed: int = 0, valid: int = 5000, *, extra: bool = False) -> Splits:
    """SVHN, cropped house numbers: 73,257 + 26,032 colour images of 32x32 pixels, 10 digits; a public set.

    Pixels in [0, 1], normalised for each channel by the mean .4377 .4438 .4728 and the deviation .1980 .2010 .1970; parts as
    in `cifar10`. `extra`: 531,131 easier images more to train on. Reads the publisher's `train_32x32.mat`, `test_32x32.mat`
    (and `extra_32x32.mat`) from `$NOISEWISE_DATA/svhn/` or downloaded.
    Reference: Netzer et al. 2011, Reading Digits in Natural Images with Unsupervised Feature Learning.
    """
    parts = [_house_numbers(f"svhn/{name}_32x32.mat") for name in (("train", "extra") if extra else ("train",))]
    train = Data(torch.cat([x for x, _ in parts]), torch.cat([y for _, y in parts]), classes=DIGITS, public=True)
    return _official(train, Data(*_house_numbers("svhn/test_32x32.mat"), classes=DIGITS, public=True), seed, valid)


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


def _fine_part(name: str, archive: Path, fine: tuple[str, ...], coarse: tuple[str, ...]) -> Data:
    """A part of CIFAR-100's binary version: for each image its superclass, its class and 3 x 32 x 32 pixels."""
    raw = np.frombuffer(member(name)(archive), np.uint8)
    fits = raw.size and raw.size % 3074 == 0 and raw[::3074].max() < len(coarse) and raw[1::3074].max() < len(fine)
    if not fits:
        raise DataError(f"{name} is no part of CIFAR-100's binary version. Put the publisher's archive there.")
    rows = torch.from_numpy(raw.reshape(-1, 3074).copy())
    return Data(
        _scaled(rows[:, 2:].unflatten(1, (3, 32, 32)), SCALES["cifar100"]), rows[:, 1].long(), classes=fine, public=True,
        groups={"superclass": rows[:, 0].long()}, group_names={"superclass": coarse},
    )  # fmt: skip


def _house_numbers(name: str) -> tuple[Tensor, Tensor]:
    """Images and digits of a MATLAB file: `X [32, 32, 3, n]`, `y [n, 1]` from 1 to 10, where 10 stands for the digit 0."""
    from scipy.io import loadmat

    try:
        held = loadmat(find(name), variable_names=["X", "y"])
        pixels, labels = held["X"], held["y"].reshape(-1)
    except (KeyError, ValueError, TypeError, NotImplementedError, zlib.error, OSError) as error:
        raise DataError(f"{name} cannot be read ({error}). Put the publisher's file there.") from None
    fits = pixels.dtype == np.uint8 and pixels.shape == (32, 32, 3, len(labels)) and len(labels)
    if not fits or labels.min() < 1 or labels.max() > 10:
        raise DataError(
            f"{name} holds no house numbers of 32x32 pixels, labelled 1 to 10. Put the publisher's file there."
        )
    images = torch.from_numpy(np.ascontiguousarray(pixels.transpose(3, 2, 0, 1)))
    return _scaled(images, SCALES["svhn"]), torch.from_numpy(labels.astype(np.int64)) % 10


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

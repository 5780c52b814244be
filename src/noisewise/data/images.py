"""Sets of images: bundled, or read from their publishers' files."""

from __future__ import annotations

import gzip
import os
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from noisewise.data.base import Data, Splits, split
from noisewise.errors import DataError


def digits(seed: int = 0, valid: int = 180) -> Splits:
    """Handwritten digits, 1797 images of 8x8 pixels in [0, 1], 10 classes: bundled with scikit-learn, a public set.

    A fifth (359) is the test part, `valid` more are held out for choosing settings; the rest, 1258, is trained on.
    Reference: E. Alpaydin, C. Kaynak 1998, UCI Optical Recognition of Handwritten Digits.
    """
    from sklearn.datasets import load_digits

    bunch = load_digits()
    x = torch.from_numpy(bunch.images).float().unsqueeze(1) / 16
    y = torch.from_numpy(bunch.target).long()
    test, held, train = split(Data(x, y, classes=tuple("0123456789"), public=True), seed, 359, valid)
    return Splits(train, held, test)


def mnist(seed: int = 0, valid: int = 5000) -> Splits:
    """MNIST: 60,000 + 10,000 grey images of 28x28 pixels, 10 classes; a public set.

    Pixels in [0, 1], normalised by the published mean 0.1307 and standard deviation 0.3081. The test part is the
    official one; `valid` of the 60,000 are held out for choosing settings (0: train on all of them).
    Reads the official idx files from `$NOISEWISE_DATA/mnist/`. Reference: LeCun, Cortes, Burges 1998.
    """
    train, test = (
        Data(
            ((_idx("mnist", f"{part}-images-idx3-ubyte.gz", 3).float() / 255 - 0.1307) / 0.3081).unsqueeze(1),
            _idx("mnist", f"{part}-labels-idx1-ubyte.gz", 1).long(),
            classes=tuple("0123456789"),
            public=True,
        )
        for part in ("train", "t10k")
    )
    held, rest = split(train, seed, valid)
    return Splits(rest, held, test)


def _idx(folder: str, name: str, dimensions: int) -> Tensor:
    """An idx file of bytes: 0, 0, type 8 (unsigned byte), number of dimensions, big-endian sizes, values."""
    root = os.environ.get("NOISEWISE_DATA")
    wanted = f"{folder}/{name}"
    if not root:
        raise DataError(
            f"{folder}: NOISEWISE_DATA is not set. Put {name} and the other files of the official distribution into a "
            f"folder {folder}/, and set NOISEWISE_DATA to the folder above it: it must hold {wanted}."
        )
    try:
        raw = gzip.decompress((Path(root) / folder / name).read_bytes())
    except FileNotFoundError:
        raise DataError(
            f"{folder}: $NOISEWISE_DATA/{wanted} does not exist. Put {name} of the official distribution there."
        ) from None
    except (OSError, EOFError) as error:
        raise DataError(
            f"{folder}: $NOISEWISE_DATA/{wanted} cannot be read ({error}). Put the original file there."
        ) from None
    sizes = np.frombuffer(raw[4 : 4 + 4 * dimensions], ">u4")
    if raw[:4] != bytes([0, 0, 8, dimensions]) or len(raw) != 4 + 4 * dimensions + int(np.prod(sizes, dtype=np.int64)):
        raise DataError(
            f"{folder}: $NOISEWISE_DATA/{wanted} is no idx file of {dimensions}-dimensional bytes. Put the original "
            "file there."
        )
    return torch.from_numpy(np.frombuffer(raw, np.uint8, offset=4 + 4 * dimensions).reshape(tuple(sizes)).copy())

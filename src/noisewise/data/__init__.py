"""Data: tensors with the unit in front, labels, groups; loaders are functions that split by a public seed.

Everything is imported when it is first used: the names in `catalog` are known without torch.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from noisewise.data.catalog import CATALOG

if TYPE_CHECKING:
    from noisewise.data.base import Data as Data
    from noisewise.data.base import Splits as Splits
    from noisewise.data.base import split as split
    from noisewise.data.images import cifar10 as cifar10
    from noisewise.data.images import cifar100 as cifar100
    from noisewise.data.images import digits as digits
    from noisewise.data.images import fashion_mnist as fashion_mnist
    from noisewise.data.images import mnist as mnist
    from noisewise.data.images import svhn as svhn
    from noisewise.data.loading import DATASETS as DATASETS
    from noisewise.data.loading import load as load
    from noisewise.data.synthetic import signal_noise as signal_noise
    from noisewise.data.synthetic import two_patch as two_patch
    from noisewise.data.texts import load_texts as load_texts
    from noisewise.data.texts import sick as sick
    from noisewise.data.texts import snli as snli
    from noisewise.data.texts import sst2 as sst2

_HOMES = {
    "DATASETS": "loading",
    "Data": "base",
    "Splits": "base",
    "load": "loading",
    "load_texts": "texts",
    "split": "base",
    **{name: entry.home for name, entry in CATALOG.items()},
}
_MODULES = ("base", "disk", "files", "images", "statistics", "synthetic", "tabular", "texts", "tokens")

__all__ = [*_HOMES]


def __getattr__(name: str) -> Any:
    if name in _HOMES:
        return getattr(importlib.import_module(f"noisewise.data.{_HOMES[name]}"), name)
    if name in _MODULES:
        return importlib.import_module(f"noisewise.data.{name}")
    raise AttributeError(f"module 'noisewise.data' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*__all__, *_MODULES})

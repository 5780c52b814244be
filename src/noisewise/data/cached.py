"""Features that were computed once, kept in files of their owner: named by a digest of what they were made of.

They are as private as what they were made of, so files are readable by their owner only, and of records that are not public
not even the digest is shown: a folder that others can look into is refused.
"""

from __future__ import annotations

import hashlib
import os
import tempfile
import warnings
from collections.abc import Callable
from pathlib import Path

from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from noisewise.errors import ConfigError, NoisewiseWarning, PrivacyError
from noisewise.runs.files import settle


def kept(
    x: Tensor,
    about: str,
    make: Callable[[], Tensor],
    *,
    public: bool,
    folder: str | os.PathLike[str] | None = None,
    name: str = "features",
) -> Tensor:
    """What `make` makes of `x`: computed once, then read from a cache; on the device of `x`.

    The cache is `folder`, else `$NOISEWISE_CACHE/NAME`, else NAME in the user's cache folder. Files are named by a SHA-256
    digest of `x` and of `about`, which says how features are made, and hold the digest of their contents: a damaged file is
    noticed, said so (`NoisewiseWarning`), and computed again.
    """
    place = _folder(folder, name)
    if not public and place.stat().st_mode & 0o077:
        raise PrivacyError(
            f"cache folder {place} is open to other users: names of files there are digests of the images, which tell whoever "
            f"knows all images but one which one it is. Close it (chmod 700 {place}) or choose another folder."
        )
    path = place / f"{_digest(x, about)}.safetensors"
    values = _read(path, name)
    if values is None:
        values = make()
        _write(path, values)
    return values.to(x.device)


def _folder(folder: str | os.PathLike[str] | None, name: str) -> Path:
    if folder is None:
        import pooch

        folder = Path(os.environ.get("NOISEWISE_CACHE") or pooch.os_cache("noisewise")) / name
    place = Path(folder)
    try:
        place.mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError as error:
        raise ConfigError(
            f"cache folder {place}: {error.strerror}. Set NOISEWISE_CACHE to a folder that can be written."
        ) from None
    return place


def _digest(values: Tensor, about: str) -> str:
    """SHA-256 of a description, type, shape and contents."""
    array = values.detach().cpu().contiguous().numpy()
    digest = hashlib.sha256(f"{about} {array.dtype.str} {array.shape} ".encode())
    digest.update(array.reshape(-1).view("u1").data)
    return digest.hexdigest()


def _read(path: Path, name: str) -> Tensor | None:
    """Features of a cache file; None if there is none or, with a warning, if it is damaged."""
    if not path.exists():
        return None
    try:
        with safe_open(path, framework="pt") as file:
            values, promised = file.get_tensor("features"), (file.metadata() or {}).get("sha256")
    except (SafetensorError, OSError, ValueError) as error:
        reason = str(error)
    else:
        if promised == _digest(values, path.stem):
            return values
        reason = "its contents do not have the digest it states"
    warnings.warn(
        f"cached {name} {path} are damaged ({reason}): they are computed again.",
        NoisewiseWarning,
        stacklevel=4,
    )
    return None


def _write(path: Path, values: Tensor) -> None:
    try:
        with tempfile.TemporaryDirectory(dir=path.parent) as folder:  # mode 700, and of this process alone
            new = Path(folder) / path.name
            values = values.cpu().contiguous()
            save_file({"features": values}, new, metadata={"sha256": _digest(values, path.stem)})
            new.chmod(0o600)
            settle(new, path)
    except OSError as error:
        raise ConfigError(
            f"cache folder {path.parent}: {error.strerror or error}. Set NOISEWISE_CACHE to a folder that can be written."
        ) from None

"""Tensors in safetensors files: nests of them with a digest, and weights of models. Never pickle."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from safetensors import SafetensorError, safe_open

from noisewise.errors import RunError
from noisewise.runs.files import write_atomically

if TYPE_CHECKING:
    from torch import Tensor


def save_tensors(path: Path, tree: Any) -> None:
    """A nest of tensors, numbers, strings, lists, tuples and dicts in one safetensors file."""
    from safetensors.torch import save

    tensors: dict[str, Any] = {}
    skeleton = json.dumps(_pack(tree, tensors))
    write_atomically(path, save(tensors, metadata={"tree": skeleton, "digest": _digest(skeleton, tensors)}))


def load_tensors(path: Path) -> Any:
    """Inverse of `save_tensors`; a damaged file is an error, and nothing in it is executed."""
    try:
        with safe_open(path, framework="pt") as file:
            tensors = {key: file.get_tensor(key) for key in file.keys()}  # noqa: SIM118  not a dict
            metadata = file.metadata() or {}
        if metadata["digest"] != _digest(metadata["tree"], tensors):
            raise ValueError("its content does not fit its digest")
        return _unpack(json.loads(metadata["tree"]), tensors)
    except FileNotFoundError:
        raise RunError(f"{path} does not exist.") from None
    except (SafetensorError, json.JSONDecodeError, KeyError, TypeError, OSError, ValueError) as error:
        raise RunError(
            f"{path} is damaged ({error}): it cannot be used. Start the run anew, or restore a copy."
        ) from None


def _digest(skeleton: str, tensors: Mapping[str, Any]) -> str:
    """Shows damage, such as a flipped bit that would go unnoticed in the weights."""
    import torch

    digest = hashlib.sha256(skeleton.encode())
    for key in sorted(tensors):
        digest.update(f"{key} {tensors[key].dtype} {list(tensors[key].shape)}".encode())
        digest.update(tensors[key].reshape(-1).view(torch.uint8).numpy())
    return digest.hexdigest()


def _pack(tree: Any, tensors: dict[str, Any]) -> Any:
    import torch

    match tree:
        case torch.Tensor():
            key = str(len(tensors))
            tensors[key] = tree.detach().cpu().contiguous().clone()
            return {"tensor": key}
        case dict():
            return {"dict": [[_pack(key, tensors), _pack(value, tensors)] for key, value in tree.items()]}
        case list() | tuple():
            return {type(tree).__name__: [_pack(value, tensors) for value in tree]}
        case None | bool() | int() | float() | str():
            return {"value": tree}
    raise RunError(
        f"a {type(tree).__name__} cannot be saved in a checkpoint: only tensors, numbers, text and containers."
    )


def _unpack(skeleton: Any, tensors: Mapping[str, Any]) -> Any:
    ((kind, content),) = skeleton.items()
    match kind:
        case "tensor":
            return tensors[content]
        case "dict":
            return {_unpack(key, tensors): _unpack(value, tensors) for key, value in content}
        case "list":
            return [_unpack(value, tensors) for value in content]
        case "tuple":
            return tuple(_unpack(value, tensors) for value in content)
        case "value":
            return content
    raise KeyError(kind)


def save_weights(path: Path, weights: Mapping[str, Tensor]) -> None:
    """A state dict as safetensors; tied tensors are written once each."""
    from safetensors.torch import save

    write_atomically(path, save({name: t.detach().cpu().contiguous().clone() for name, t in weights.items()}))


def read_weights(path: Path) -> dict[str, Tensor]:
    """The state dict that `save_weights` wrote; `noisewise.recipe.load_weights` gives it to a model."""
    from safetensors.torch import load

    try:
        return load(path.read_bytes())
    except FileNotFoundError:
        raise RunError(f"{path} does not exist.") from None
    except (SafetensorError, RuntimeError, OSError) as error:
        raise RunError(f"{path} does not hold the weights of this run's model ({error}).") from None

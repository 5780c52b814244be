"""Objects from a user's own file, named as `path.py:name`."""

from __future__ import annotations

import importlib.util
import inspect
import sys
import traceback
from collections.abc import Callable
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any

from noisewise.errors import ConfigError, NoisewiseError


def load(reference: str) -> Any:
    """The object `name` of the file in `path.py:name`. The file is run, once, as an import would."""
    path, _, name = reference.rpartition(":")
    if not path or not name:
        raise ConfigError(f"{reference!r}: say which object of which file, e.g. models.py:model.")
    file = Path(path)
    if not file.is_file():
        raise ConfigError(f"{reference!r}: there is no file {path!r}. Give its path from the current folder.")
    module = _run(file.resolve())
    if not hasattr(module, name):
        known = sorted(key for key, value in vars(module).items() if not key.startswith("_") and _own(value, module))
        raise ConfigError(f"{reference!r}: {path} has no {name!r}. It has: {', '.join(known) or 'nothing'}.")
    return getattr(module, name)


def model_maker(reference: str) -> tuple[Callable[..., Any], int]:
    """What makes a model, and how many arguments it needs: (shape, outputs), or none. A module counts, as one that is made."""
    made = load(reference)
    if not callable(made):
        raise ConfigError(
            f"model {reference!r} is a {type(made).__name__}: must be a function that makes a torch.nn.Module."
        )
    free = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    needed = [p for p in inspect.signature(made).parameters.values() if p.default is p.empty and p.kind not in free]
    if len(needed) not in (0, 2):
        raise ConfigError(
            f"model {reference!r} needs {len(needed)} arguments: must be a function of nothing, or of (shape, outputs), the "
            "sizes of one input and the number of outputs."
        )
    if not needed and "torch" not in sys.modules and not is_module(built := called(reference, made)):
        raise ConfigError(f"model {reference!r} gives a {type(built).__name__}: must be a torch.nn.Module.")
    return made, len(needed)


def called(reference: str, function: Callable[..., Any], /, *arguments: Any, **options: Any) -> Any:
    """What a function of a user's file gives; an error in it is the file's, and said to be, with its line."""
    try:
        return function(*arguments, **options)
    except NoisewiseError:
        raise
    except Exception as error:
        file = reference.rpartition(":")[0]
        frames = traceback.extract_tb(error.__traceback__)
        lines = [frame.lineno for frame in frames if Path(frame.filename) == Path(file).resolve()]
        where = f" ({file}, line {lines[-1]})" if lines else ""
        raise ConfigError(
            f"{reference!r} failed with {type(error).__name__}: {error}{where}. Correct it there."
        ) from error


def last_line(error: BaseException) -> str:
    """Where a user's file went wrong: `FILE.py, line N`, if the error came out of one; else nothing."""
    ours = str(Path(__file__).parent)
    files = {module.__file__: module for name, module in sys.modules.items() if name.startswith("noisewise_user_")}
    frames = traceback.extract_tb(error.__traceback__)
    places = [number for number, frame in enumerate(frames) if frame.filename in files]
    if not places or any(frame.filename.startswith(ours) for frame in frames[places[-1] + 1 :]):
        return ""  # none of theirs, or it went on in ours
    frame = frames[places[-1]]
    return f"{Path(frame.filename).name}, line {frame.lineno}"


def is_module(value: Any) -> bool:
    """Is it a torch.nn.Module? Asked without importing torch."""
    return any(
        (kind.__module__, kind.__name__) == ("torch.nn.modules.module", "Module") for kind in type(value).__mro__
    )


def _own(value: Any, module: ModuleType) -> bool:
    """Made there: no module, and no class or function from elsewhere."""
    imported = hasattr(value, "__name__") and getattr(value, "__module__", None) != module.__name__
    return not isinstance(value, ModuleType) and not imported


@cache
def _run(file: Path) -> ModuleType:
    """The file as a module; files next to it can be imported by it."""
    name = f"noisewise_user_{file.stem}"
    spec = importlib.util.spec_from_file_location(name, file)
    if spec is None or spec.loader is None:
        raise ConfigError(f"{file.name}: not a Python file. Its name must end in .py.")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # pickling and dataclasses look it up
    sys.path.insert(0, str(file.parent))
    try:
        spec.loader.exec_module(module)
    except Exception as error:
        del sys.modules[name]
        raise ConfigError(f"{file.name} could not be run: {type(error).__name__}: {error}") from error
    finally:
        sys.path.remove(str(file.parent))
    return module

"""What an audit says of itself: the function, what it needs of a run, and how long it takes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from types import ModuleType

from noisewise.audits.result import Result


@dataclass(frozen=True)
class Audit:
    """An audit of a finished run: its name, its function, how long it takes, and what it needs beside model, data and twin.

    takes: whether it retrains, and how long it takes. needs: members (training rows), mechanism, loss_fn, lr and momentum
    of SGD, start (the model before training), path (models along the run: the start), delta (of the run's epsilon). usual:
    `noisewise audit DIR` asks it unless told otherwise. classes: only for classification. twin: it compares with one.
    model: it looks at the run's model and data, not only at its mechanism.
    """

    name: str
    run: Callable[..., Result]
    takes: str
    needs: tuple[str, ...] = ()
    usual: bool = False
    classes: bool = False
    twin: bool = True
    model: bool = True

    @property
    def asks(self) -> str:
        """The first line of what its function says of itself."""
        return (self.run.__doc__ or "").strip().splitlines()[0]


def results_in(module: ModuleType) -> list[type[Result]]:
    """The kinds of results that a module gives."""
    classes = [kind for kind in vars(module).values() if isinstance(kind, type) and issubclass(kind, Result)]
    return [kind for kind in classes if "kind" in vars(kind)]

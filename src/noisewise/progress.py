"""One progress bar for everything that takes a while: on the error stream, and silent where nobody asked for it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from rich.progress import Progress

T = TypeVar("T")


class Bar:
    """What is done of how much, an extra word, the time that went by and the time that is left.

    `with Bar("shadow models", 64) as bar: bar.advance()`. With `show=False` nothing is imported and nothing printed.
    """

    def __init__(self, label: str, total: int, *, done: int = 0, show: bool = True):
        self.label, self.total, self.done, self.show = label, total, done, show
        self._extra = ""
        self._progress: Progress | None = None

    def __enter__(self) -> Bar:
        if not self.show:
            return self
        from rich.console import Console
        from rich.progress import (
            BarColumn,
            MofNCompleteColumn,
            Progress,
            TextColumn,
            TimeElapsedColumn,
            TimeRemainingColumn,
        )

        self._progress = Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TextColumn("{task.fields[extra]}"),
            TimeElapsedColumn(),
            TextColumn("left"),
            TimeRemainingColumn(),
            console=Console(stderr=True),
        )
        self._progress.start()
        self._task = self._progress.add_task(self.label, total=self.total, completed=self.done, extra=self._extra)
        return self

    def __exit__(self, *_: object) -> None:
        if self._progress is not None:
            self._progress.stop()
            self._progress = None

    def advance(self, count: int = 1, *, label: str | None = None, extra: str | None = None) -> None:
        """So many more are done; another label or extra word, if given, stays until the next one."""
        self.done += count
        self.label, self._extra = label or self.label, self._extra if extra is None else extra
        if self._progress is not None:
            self._progress.update(self._task, completed=self.done, description=self.label, extra=self._extra)

    def note(self, text: str) -> None:
        """A line above the bar."""
        if self._progress is not None:
            self._progress.console.print(text)


def tracked(items: Iterable[T], label: str, total: int, *, show: bool = True) -> Iterator[T]:
    """The items, with a bar that moves on after each.

    >>> list(tracked("abc", "letters", 3, show=False))
    ['a', 'b', 'c']
    """
    with Bar(label, total, show=show) as bar:
        for item in items:
            yield item
            bar.advance()

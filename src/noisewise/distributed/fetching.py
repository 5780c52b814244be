"""Rows of many parameters travel together: whole weights are fetched in bundles and ahead of time, sums divided in bundles.

A step asks for the same weights in the same order as the last one. So `Fetching` gathers several at once, as many as
`BUNDLE` bytes hold, and the next bundle while the present one is computed with; a weight that alone is larger is a bundle by
itself. Where a pass asks for something else, weights come one by one until it ends. What is fetched ahead follows from what was
asked for before, which is the same on all ranks; so all of them speak of the same bundle. Nothing is kept from one pass to
the next, between which parameters change.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from noisewise.distributed.team import Team

BUNDLE = 1 << 23  # bytes of whole tensors that travel together


@dataclass(frozen=True)
class Rows:
    """The rows of a tensor that are here, and the shape of the whole; each rank has as many, the last ones perhaps fewer."""

    here: Tensor
    shape: torch.Size

    @property
    def nbytes(self) -> int:
        """Of the whole."""
        return self.shape.numel() * self.here.itemsize


def gathered(rows: Rows, team: Team) -> Tensor:
    """The whole of one tensor, from all ranks."""
    return team.all_parts(filled(rows.here, -(-rows.shape[0] // team.size)))[: rows.shape[0]]


def filled(tensor: Tensor, rows: int) -> Tensor:
    """With empty rows behind it, so that all ranks have as many."""
    if len(tensor) == rows:
        return tensor.contiguous()
    return torch.cat([tensor, tensor.new_zeros(rows - len(tensor), *tensor.shape[1:])])


class _Bundle:
    """Some tensors on their way from all ranks; `until` is the number of the question for which it has no answer any more."""

    def __init__(self, tensors: Mapping[str, Rows], team: Team, until: int):
        self.until, self._team, self._tensors = until, team, tensors
        parts = [
            filled(rows.here, -(-rows.shape[0] // team.size)).view(-1).view(torch.uint8) for rows in tensors.values()
        ]
        self._lengths = [len(part) for part in parts]
        self._arriving: Callable[[], Tensor] | None = team.all_parts_later(
            parts[0] if len(parts) == 1 else torch.cat(parts)
        )
        self._arrived: dict[str, Tensor] = {}

    def whole(self, name: str, *, last: bool) -> Tensor:
        """One of them; with the last one the bundle is empty."""
        if self._arriving is not None:
            received = self._arriving().view(self._team.size, -1)
            self._arriving = None
            self._arrived = dict(zip(self._tensors, received.split(self._lengths, dim=1), strict=True))
        rows, flat = self._tensors[name], self._arrived[name]
        if last:
            self._arrived.clear()
        # rows of other tensors lie between those of this one, unless it came alone; each has memory of its own
        flat = flat if len(self._tensors) == 1 else flat.clone(memory_format=torch.contiguous_format)
        each = -(-rows.shape[0] // self._team.size)
        whole = flat.reshape(-1).view(rows.here.dtype).view(self._team.size * each, *rows.shape[1:])
        return whole[: rows.shape[0]].detach()

    def drop(self) -> None:
        """Wait for it all the same: what was begun is ended, on all ranks."""
        if self._arriving is not None:
            self._arriving()


class Fetching:
    """Whole weights for one pass after the other, from the rows of all ranks."""

    def __init__(self, rows: Callable[[str], Rows], team: Team):
        self._rows, self._team = rows, team
        self._expected: Sequence[str] = ()  # what an earlier pass asked for
        self._ends = {0}  # after so many questions a pass has ended; the last one is there too
        self._asked: list[str] = []
        self._follows = True
        self._now: _Bundle | None = None
        self._next: _Bundle | None = None

    def whole(self, name: str) -> Tensor:
        """A weight as one tensor."""
        here = len(self._asked)
        self._asked.append(name)
        if not self._follows or here >= len(self._expected) or self._expected[here] != name:
            self._forget()
            self._follows = False
            return gathered(self._rows(name), self._team)
        bundle = self._now
        if bundle is None:
            bundle = self._next or self._bundle(here)
            self._next = None if bundle.until in self._ends else self._bundle(bundle.until)
        last = here + 1 == bundle.until
        self._now = None if last else bundle
        return bundle.whole(name, last=last)

    def end(self, *, whole: bool) -> None:
        """A pass is over: `whole`, or by an error. Parameters may change now."""
        if not whole:
            self._now = self._next = None
        self._forget()
        if whole and self._follows:
            self._ends.add(len(self._asked))
        elif whole:
            self._expected, self._ends = self._asked, {len(self._asked)}
        self._asked, self._follows = [], True

    def _forget(self) -> None:
        for bundle in (self._now, self._next):
            if bundle is not None:
                bundle.drop()
        self._now = self._next = None

    def _bundle(self, first: int) -> _Bundle:
        """All that is asked for from question `first` on, as far as there is room and passes went on."""
        chosen: dict[str, Rows] = {}
        until = first
        for name in self._expected[first:]:
            room = BUNDLE - sum(rows.nbytes for rows in chosen.values())
            if chosen and ((name not in chosen and self._rows(name).nbytes > room) or until in self._ends):
                break
            chosen.setdefault(name, self._rows(name))
            until += 1
        return _Bundle(chosen, self._team, until)


class Dividing:
    """Sums over all ranks of whole tensors, of which each rank keeps its rows; they travel in bundles as they are made."""

    def __init__(self, team: Team):
        self._team = team
        self._waiting: dict[str, Tensor] = {}
        self._under_way: Callable[[], dict[str, Tensor]] | None = None
        self._parts: dict[str, Tensor] = {}

    def add(self, name: str, total: Tensor) -> None:
        """Give a sum over this rank's units away."""
        kinds = {other.dtype for other in self._waiting.values()} | {total.dtype}
        if self._waiting and (len(kinds) > 1 or sum(t.nbytes for t in (*self._waiting.values(), total)) > BUNDLE):
            self._send()
        self._waiting[name] = total

    def parts(self) -> dict[str, Tensor]:
        """This rank's rows of all that was given away, added up."""
        if self._waiting:
            self._send()
        self._receive()
        return self._parts

    def _send(self) -> None:
        self._receive()
        size, totals, self._waiting = self._team.size, self._waiting, {}
        shapes = {name: (-(-len(total) // size), *total.shape[1:]) for name, total in totals.items()}
        flat = [filled(total, size * shapes[name][0]).view(size, -1) for name, total in totals.items()]
        lengths = [part.shape[1] for part in flat]
        counts = {name: self._here(len(total)) for name, total in totals.items()}
        arriving = self._team.add_in_parts_later(flat[0] if len(flat) == 1 else torch.cat(flat, 1))
        del flat, totals

        def receive() -> dict[str, Tensor]:
            pieces = arriving().view(-1).split(lengths)
            return {name: piece.view(shapes[name])[: counts[name]] for name, piece in zip(shapes, pieces, strict=True)}

        self._under_way = receive

    def _receive(self) -> None:
        if self._under_way is not None:
            self._parts |= self._under_way()
            self._under_way = None

    def _here(self, rows: int) -> int:
        """How many of a tensor's rows are this rank's."""
        each = -(-rows // self._team.size)
        return max(0, min(each, rows - self._team.rank * each))

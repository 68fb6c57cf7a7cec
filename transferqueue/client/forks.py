"""Forked children that may look at memory which their parent has mapped.

A fork shares the parent's tensors with the child, and the leases behind them are the parent's. So
what was leased at the moment of a fork is given back only when the parent and that child are both
done with it. Whether a child is: it inherits the writing end of a pipe, of which the kernel closes
the last copy when the last process that inherited it ends, or becomes another program.

This matters to anyone who hands tensors that were got to forked data loaders. A child that outlives
its parent is on its own: with the parent the leases end.
"""

from __future__ import annotations

import os
import select
import threading
import weakref
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable


class Forks:
    """The children of one owner of leases that are still there."""

    def __init__(self) -> None:
        self.num_leases = 0
        """Leases given out so far: a lease is known by its number, from 1 on."""
        self.num_live = 0
        """Of them, those that have not ended. A fork without any needs no watching."""
        self._children: list[_Children] = []
        self._pipe: tuple[int, int] | None = None
        self._lock = threading.Lock()
        _watch_forks()
        _all.add(self)

    def may_be_seen(self, number: int) -> bool:
        """Whether a child that is still there was forked when lease ``number`` had been given."""
        with self._lock:
            self._forget_ended()
            return any(number <= children.newest_lease for children in self._children)

    def _forget_ended(self) -> None:
        if not self._children:
            return
        poll = select.poll()
        for children in self._children:
            poll.register(children.reading, select.POLLIN)
        ended = {reading for reading, _ in poll.poll(0)}
        for reading in ended:
            os.close(reading)
        self._children = [c for c in self._children if c.reading not in ended]

    def before_fork(self) -> None:
        self._lock.acquire()
        self._pipe = os.pipe() if self.num_live else None

    def in_parent(self) -> None:
        if self._pipe is not None:
            reading, writing = self._pipe
            os.close(writing)
            self._children.append(_Children(reading, self.num_leases))
        self._lock.release()

    def in_child(self) -> None:
        self._lock = threading.Lock()
        if self._pipe is not None:
            os.close(self._pipe[0])  # the writing end stays open for as long as this process lives
        for children in self._children:
            os.close(children.reading)
        self._children.clear()


@dataclass(frozen=True, slots=True)
class _Children:
    """Whoever was forked at one moment, and their own children."""

    reading: int
    """Turns readable when the last of them is gone."""
    newest_lease: int


_all: weakref.WeakSet[Forks] = weakref.WeakSet()


@lru_cache(maxsize=1)
def _watch_forks() -> None:
    """Once a process: from the first lease owner on, not from the import of this module."""

    def tell(what: Callable[[Forks], None]) -> None:
        for forks in list(_all):
            what(forks)

    os.register_at_fork(
        before=lambda: tell(Forks.before_fork),
        after_in_parent=lambda: tell(Forks.in_parent),
        after_in_child=lambda: tell(Forks.in_child),
    )

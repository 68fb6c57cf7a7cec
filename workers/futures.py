"""Calls that have not been answered yet.

A call with ``blocking=False`` gives a `CallFuture` at once. It can be waited for, awaited, or
given to the next call as it is: whoever needs the value waits for it, and a failure of the first
call is the failure of the next.
"""

from __future__ import annotations

import asyncio
import threading
from abc import ABC, abstractmethod
from copy import copy
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from transferqueue.errors import WrongOutput
from workers.errors import WorkerError
from workers.pending import Pending, PendingBatch

if TYPE_CHECKING:
    from collections.abc import Generator, Sequence

    from transferqueue.handle import BatchHandle
    from transferqueue.view.lazy_dataproto import LazyDataProto
    from workers.calls import Dispatched


class Answers(ABC):
    """The answers of one call's ranks, under way."""

    @abstractmethod
    def values(self, timeout_s: float) -> list[Any]:
        """All of them, by rank. ``WorkerFailed`` or ``WorkerDied`` of the first rank that has
        none, when the others have finished or a grace period is over; ``CallTimedOut``."""

    @abstractmethod
    def is_done(self) -> bool:
        """Whether `values` would not wait."""

    @property
    @abstractmethod
    def refs(self) -> list[Any] | None:
        """Ray object refs of the answers, by rank; ``None`` where there are none."""


FAILURE_GRACE_S = 10.0
"""How long a call that has failed waits for the ranks that are still at it."""


def raise_first(
    failures: Sequence[tuple[int, BaseException | None]], *, still_at_it: Sequence[int]
) -> None:
    """Raise the failure of the lowest rank, with a note of what happened on the others.

    ``failures``: of the ranks that have finished; ``None`` for those that have not failed.
    """
    failed = [(rank, error) for rank, error in failures if error is not None]
    if not failed:
        return
    _, error = failed[0]
    notes = [f"rank {rank} failed too: {str(other).splitlines()[0]}" for rank, other in failed[1:]]
    if still_at_it:
        notes.append(
            f"ranks {sorted(still_at_it)} were still at it {FAILURE_GRACE_S:.0f} s later; the next "
            f"call waits behind them"
        )
    raise _another(error, notes)


def _another(error: BaseException, notes: Sequence[str]) -> BaseException:
    """To be raised in place of it: the one that an answer keeps must not come to refer to frames
    that have the answer. Without the frames of the thread that ran it."""
    found = copy(error) if isinstance(error, WorkerError | WrongOutput) else error
    found.__cause__ = error.__cause__
    for note in [*getattr(error, "__notes__", []), *notes]:
        if note not in getattr(found, "__notes__", []):  # an answer may be asked for twice
            found.add_note(note)
    return found.with_traceback(None)


class CallFuture(PendingBatch):
    """The answer of one call. `get` may be called from any thread, and again and again."""

    def __init__(self, answers: Answers, dispatched: Dispatched, timeout_s: float) -> None:
        self.answers = answers
        self.timeout_s = timeout_s
        self._dispatched = dispatched
        self._lock = threading.Lock()
        self._value: list[Any] = []

    def get(self, timeout_s: float | None = None) -> Any:
        """Wait for the answer. Raises what a rank raised, or ``CallTimedOut``."""
        with self._lock:
            if not self._value:
                limit_s = self.timeout_s if timeout_s is None else timeout_s
                self._value.append(self._dispatched.collect(self.answers.values(limit_s)))
            return self._value[0]

    def done(self) -> bool:
        """Whether `get` would not wait."""
        return self.answers.is_done()

    def resolve(self) -> Any:
        return self.get()

    def chunk(self, chunks: int) -> list[Any]:
        """The answer, a batch, as ``chunks`` arguments that are cut when they arrive."""
        refs, ranks = self.answers.refs, self._dispatched.concat_ranks
        if refs is not None and ranks is not None:
            # So that each worker pulls its own rows only.
            from transferqueue.view import DataProtoFuture

            return list(DataProtoFuture.concat([refs[rank] for rank in ranks]).chunk(chunks))
        return [FutureChunk(future=self, index=index, chunks=chunks) for index in range(chunks)]

    def __await__(self) -> Generator[Any, None, Any]:
        return asyncio.to_thread(self.get).__await__()

    @property
    def is_portable(self) -> bool:
        """Whether another process can wait for the answer."""
        return self.answers.refs is not None and self._dispatched.is_portable

    def __reduce__(self) -> tuple[Any, ...]:
        without_arguments = replace(self._dispatched, calls=())
        return type(self), (self.answers, without_arguments, self.timeout_s)


class HandleFuture(CallFuture):
    """A handle whose new fields are still being written.

    Its rows are known already, so it can be split and dispatched again before it is ready.
    """

    @property
    def handle(self) -> BatchHandle:
        """The rows, with the fields they had before the call."""
        assert self._dispatched.handle is not None
        return self._dispatched.handle

    @property
    def batch(self) -> BatchHandle | LazyDataProto:
        """The rows as they were given."""
        split = self._dispatched.split
        return self.handle if split is None else split.given

    @property
    def history(self) -> tuple[Answers, ...]:
        """The calls that must be answered before all fields are there, oldest first."""
        return (*self._dispatched.history, self.answers)

    def __len__(self) -> int:
        return len(self.handle)


@dataclass(frozen=True, slots=True, kw_only=True)
class FutureChunk(Pending):
    """One part of a batch to come."""

    future: CallFuture
    index: int
    chunks: int

    def resolve(self) -> Any:
        from workers.batches import cut

        return cut(self.future.get(), self.chunks, what="the future")[self.index]

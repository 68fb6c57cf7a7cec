"""What goes wrong in a worker, as its caller sees it.

::

    TransferQueueError
    └── WorkerError
        ├── WorkerFailed    a method raised, or what it reads or returned could not be moved
        ├── WorkerDied      the process of a rank is gone
        ├── CallTimedOut    ranks did not answer in time
        └── NoRoom          a cluster has no room for the ranks of a pool
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from transferqueue.errors import TransferQueueError

if TYPE_CHECKING:
    from collections.abc import Sequence


class WorkerError(TransferQueueError):
    """Something is wrong with a worker. ``args``: the message."""


class WorkerFailed(WorkerError):
    """A method of a worker raised, or something did before or after it on its behalf.

    The message has the frames of the method, if it was the method that raised. They are not shown a
    second time: ``cause`` is what was raised, where that can be carried between processes, else
    ``None``, and is not the ``__cause__``.
    """

    def __init__(self, method: str, rank: int, what: str, traceback_text: str) -> None:
        """``what``: type and message of the exception, and when it was, unless in the method.
        ``traceback_text``: "" where it was not in the method."""
        super().__init__(method, rank, what, traceback_text)
        self.cause: BaseException | None = None

    def caused_by(self, cause: BaseException | None) -> WorkerFailed:
        self.cause = cause
        return self

    @property
    def method(self) -> str:
        return str(self.args[0])

    @property
    def rank(self) -> int:
        return int(self.args[1])

    def __str__(self) -> str:
        method, rank, what, traceback_text = self.args
        return f"{method} failed on rank {rank}: {what}\n\n{traceback_text}".rstrip()

    def __reduce__(self) -> tuple[Any, ...]:
        return _rebuild, (self.args, self.cause)


def _rebuild(args: tuple[Any, ...], cause: BaseException | None) -> WorkerFailed:
    return WorkerFailed(*args).caused_by(cause)


class WorkerDied(WorkerError):
    """The process of a rank ended. Calls that reach this rank fail at once; other ranks go on."""

    def __init__(self, method: str, rank: int, reason: str) -> None:
        super().__init__(method, rank, reason)

    @property
    def rank(self) -> int:
        return int(self.args[1])

    def __str__(self) -> str:
        method, rank, reason = self.args
        return f"rank {rank} died before it answered {method}: {reason}"


class CallTimedOut(WorkerError, TimeoutError):
    """Ranks did not answer in time. They are still at it: later calls wait behind this one."""

    def __init__(self, method: str, ranks: Sequence[int], waited_s: float) -> None:
        TimeoutError.__init__(self)  # an OSError takes two arguments for errno and text
        self.args = (method, list(ranks), waited_s)

    def __str__(self) -> str:
        method, ranks, waited_s = self.args
        return (
            f"{method}: no answer from ranks {ranks} after {waited_s:.1f} s; they are still at it. "
            f"Raise call_timeout_s if the work takes that long."
        )


class NoRoom(WorkerError):
    """A cluster has no room for the ranks of a pool. Nothing was reserved."""

    def __init__(
        self,
        ranks_on_nodes: Sequence[int],
        asked: dict[str, float],
        there: dict[str, float],
        free: dict[str, float],
        way_out: str,
        waited_s: float,
    ) -> None:
        """Resources by name, those that are asked for alone. ``waited_s``: 0 where it was no use
        to wait."""
        super().__init__(
            list(ranks_on_nodes), dict(asked), dict(there), dict(free), way_out, waited_s
        )

    def __str__(self) -> str:
        ranks, asked, there, free, way_out, waited_s = self.args
        amounts = ", ".join(
            f"{name}: {asked[name]:g} asked for, {there.get(name, 0):g} in all, "
            f"{free.get(name, 0):g} free"
            for name in asked
        )
        waited = f" after {waited_s:g} s" if waited_s else ""
        return (
            f"the cluster has no room for {ranks} ranks by node{waited} ({amounts}); {way_out}. "
            f"`ray status` shows who has what."
        )

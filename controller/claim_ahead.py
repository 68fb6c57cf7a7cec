"""The samples of the next update, taken in a thread: a claim waits for them, and the driver waits
for the present update meanwhile."""

from __future__ import annotations

import threading
from concurrent import futures
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import TYPE_CHECKING

from transferqueue.closing import Closing
from transferqueue.errors import NotReady
from workers.errors import WorkerError

if TYPE_CHECKING:
    from collections.abc import Callable

    import transferqueue as tq
    from controller.stage_run import StageRun


@dataclass(frozen=True, slots=True, kw_only=True)
class Taken:
    """A batch that was claimed."""

    claim: tq.Claim
    run: StageRun | None
    """Its first stages, where they were begun with it."""


class ClaimAhead(Closing):
    """One claim at a time. All its methods are for one thread, the driver's."""

    def __init__(self) -> None:
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="claim-ahead")
        self._stop = threading.Event()
        self._coming: Future[Taken | None] | None = None
        self.not_ready: NotReady | None = None
        """Why the last attempt came to nothing."""

    @property
    def is_begun(self) -> bool:
        """Whether a batch is coming or there."""
        return self._coming is not None

    def begin(
        self,
        claim: Callable[[], tq.Claim],
        start: Callable[[tq.BatchHandle], StageRun] | None = None,
    ) -> None:
        """Let samples be claimed. ``claim``: called again and again while it raises ``NotReady``.
        ``start``: called with them at once, in the thread."""
        assert not self.is_begun, "one at a time"
        self._stop.clear()
        self._coming = self._thread.submit(self._take, claim, start)

    def _take(
        self,
        claim: Callable[[], tq.Claim],
        start: Callable[[tq.BatchHandle], StageRun] | None,
    ) -> Taken | None:
        while not self._stop.is_set():
            try:
                claimed = claim()
            except NotReady as error:
                self.not_ready = error
                continue
            return Taken(claim=claimed, run=None if start is None else _started(start, claimed))
        return None

    def wait(self, timeout_s: float) -> Taken | None:
        """The batch, which is the caller's from then on; ``None``: not yet. Raises what the claim
        raised; another can be begun then."""
        assert self._coming is not None, "begun"
        if not futures.wait([self._coming], timeout_s).done:
            return None
        coming, self._coming = self._coming, None
        return coming.result()

    def pause(self) -> None:
        """Nothing more is claimed and no role called, until another is begun. What has been
        claimed stays to be waited for."""
        self._stop.set()
        if self._coming is not None and not self._coming.exception() and not self._coming.result():
            self._coming = None

    def take_back(self) -> tq.Claim | None:
        """Do without: what has been claimed already, to be given back."""
        self.pause()
        coming, self._coming = self._coming, None
        taken = None if coming is None or coming.exception() else coming.result()
        return None if taken is None else taken.claim

    def close(self) -> None:
        self._stop.set()
        self._thread.shutdown(wait=True)


def _started(start: Callable[[tq.BatchHandle], StageRun], claim: tq.Claim) -> StageRun | None:
    """A role that is dead is found out by whoever waits for it; the samples are not lost."""
    try:
        return start(claim.handle)
    except WorkerError:
        return None

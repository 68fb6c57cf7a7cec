"""Claims taken ahead of need, for `AsyncClient.stream`.

Invariant: at most ``depth`` claims are granted or asked for beyond the one in the consumer's hands.
Those that wait here are extended while they wait, so that a slow step does not use up their lease.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque
from copy import copy
from typing import TYPE_CHECKING

from transferqueue.errors import ClaimError, DeadlineExceeded, TransferQueueError

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable
    from types import TracebackType

    from transferqueue.client.claims import AsyncClaim


class ClaimsAhead:
    """An async context manager; leaving it gives back what was not taken."""

    def __init__(
        self, claim: Callable[[], Awaitable[AsyncClaim]], *, depth: int, lease_s: float
    ) -> None:
        self._claim = claim
        self._lease_s = lease_s
        self._room = asyncio.Semaphore(depth)
        self._waiting: deque[AsyncClaim] = deque()
        self._changed = asyncio.Event()
        self._failure: TransferQueueError | None = None
        self._tasks: list[asyncio.Task[None]] = []

    async def __aenter__(self) -> ClaimsAhead:
        self._tasks = [asyncio.create_task(self._fill()), asyncio.create_task(self._keep())]
        return self

    async def next(self) -> AsyncClaim:
        """The oldest claim; when there is none and none can be had, what the claim raised."""
        while not self._waiting:
            if self._failure is not None:
                raise copy(self._failure)  # not itself: it would refer to this frame
            self._changed.clear()
            await self._changed.wait()
        self._room.release()
        return self._waiting.popleft()

    async def _fill(self) -> None:
        while self._failure is None:
            await self._room.acquire()
            try:
                self._waiting.append(await self._claim())
            except TransferQueueError as error:
                self._failure = copy(error)
            self._changed.set()

    async def _keep(self) -> None:
        while True:
            await asyncio.sleep(self._lease_s / 3)
            for claim in list(self._waiting):
                await self._extend(claim)

    async def _extend(self, claim: AsyncClaim) -> None:
        try:
            await claim.extend(self._lease_s)
        except ClaimError:  # its samples are being given again
            with contextlib.suppress(ValueError):  # or it has just been taken
                self._waiting.remove(claim)
                self._room.release()
        except DeadlineExceeded:  # the next round asks again, or the lease runs out
            return

    async def __aexit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self._tasks = []  # what they ended with refers to their frames, and those to this
        while self._waiting:
            with contextlib.suppress(ClaimError, DeadlineExceeded):
                await self._waiting.popleft().give_back()

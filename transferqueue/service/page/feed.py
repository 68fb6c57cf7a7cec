"""Asks the service once for all browsers that look, and not at all when none does."""

from __future__ import annotations

import asyncio
import time
from collections import deque
from typing import TYPE_CHECKING, Any

from transferqueue.errors import TransferQueueError
from transferqueue.service.page.frames import event, failure, frame, packed

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from transferqueue.client.async_client import AsyncClient

MAX_WATCHERS = 64
MAX_WAITS = 30
PICTURE_FRESH_S = 0.5

RATES_OVER_S = 10.0
"""Training goes in bursts of a step, and a rate over a second of it says 0 most of the time."""

MAX_PICTURES = 32


class Feed:
    """Everything runs on one event loop."""

    def __init__(self, client: AsyncClient, *, interval_s: float) -> None:
        self._client = client
        self._interval_s = interval_s
        self._latest = b""
        self._number = 0
        self._changed = asyncio.Condition()
        self._num_watchers = 0
        self._has_ended = False
        self._asking: asyncio.Task[None] | None = None
        self._pictures: dict[tuple[str, int], tuple[float, bytes]] = {}
        self._one_picture = asyncio.Lock()

    @property
    def is_full(self) -> bool:
        """Whether no more browsers are let in."""
        return self._num_watchers >= MAX_WATCHERS

    async def watch(self) -> AsyncIterator[bytes]:
        """An event whenever the service was asked. Who reads slowly misses some."""
        self._num_watchers += 1
        if self._asking is None or self._asking.done():
            self._asking = asyncio.create_task(self._ask())
        try:
            seen = 0
            while True:
                async with self._changed:
                    while not self._has_ended and self._number == seen:
                        await self._changed.wait()
                if self._has_ended:
                    return
                seen = self._number
                yield self._latest
        finally:
            self._num_watchers -= 1

    async def _ask(self) -> None:
        past: deque[dict[str, Any]] = deque()
        while self._num_watchers and not self._has_ended:
            started_s = time.monotonic()
            try:
                after = await self._client.status()
                waits = await self._client.waits(limit=MAX_WAITS)
                past.append(after)
                while after["time_s"] - past[0]["time_s"] > RATES_OVER_S:
                    past.popleft()
                self._latest = event(frame(past[0], after, waits))
            except TransferQueueError as error:
                self._latest = event(failure(error))
            async with self._changed:
                self._number += 1
                self._changed.notify_all()
            # However long an answer takes, the service has as long without a question.
            took_s = time.monotonic() - started_s
            await asyncio.sleep(max(self._interval_s - took_s, took_s))

    async def picture(self, partition: str, columns: int) -> bytes:
        """As `packed`, at most so old: many browsers cost the coordinator as much as one."""
        async with self._one_picture:
            known = self._pictures.get((partition, columns))
            if known is not None and time.monotonic() - known[0] < PICTURE_FRESH_S:
                return known[1]
            made = packed(await self._client.picture(partition, columns=columns))
            if len(self._pictures) >= MAX_PICTURES:
                self._pictures.clear()
            self._pictures[partition, columns] = (time.monotonic(), made)
            return made

    async def end(self) -> None:
        """Let all browsers go."""
        self._has_ended = True
        async with self._changed:
            self._changed.notify_all()
        if self._asking is not None:
            self._asking.cancel()
            await asyncio.gather(self._asking, return_exceptions=True)

"""What a coordinator and a shard have in common for the process around them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Callable

    from transferqueue.errors import TransferQueueError
    from transferqueue.tracing.base import RequestSpans


class Runnable(Protocol):
    """A coordinator or a shard."""

    endpoints: list[str]
    failure: TransferQueueError | None

    def watch(self, readable: int, callback: Callable[[], None]) -> None: ...
    def run(self) -> None: ...
    def stop(self) -> None: ...
    def close(self, *, keep: bool = False) -> None: ...
    def drain(self) -> None: ...
    def trace(self, spans: RequestSpans) -> None: ...

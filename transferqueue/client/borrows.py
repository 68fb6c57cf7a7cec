"""A borrow of device memory: the block of both faces around it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from transferqueue.errors import TransferQueueError
from transferqueue.net.sync_channel import run_blocking

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine
    from types import TracebackType

    from tensordict import TensorDict

    from transferqueue.client.borrowed import Borrowed

    Opening = Callable[[], Coroutine[Any, Any, Borrowed]]


class _Borrow:
    def __init__(self, opening: Opening) -> None:
        self._opening = opening
        self._borrowed: Borrowed | None = None

    @property
    def fields(self) -> list[str]:
        """The fields that are memory of a shard, rather than copies. Within the block."""
        return [] if self._borrowed is None else list(self._borrowed.fields)

    async def _begin(self) -> TensorDict:
        if self._borrowed is not None:
            raise RuntimeError("a borrow is one block; call borrow() again for another")
        self._borrowed = await self._opening()
        return self._borrowed.tensors

    async def _end(self, exc: BaseException | None) -> None:
        assert self._borrowed is not None
        try:
            await self._borrowed.end()
        except TransferQueueError as error:
            if exc is None:
                raise
            exc.add_note(f"what was borrowed may have been anything by then: {error}")


class Borrow(_Borrow):
    """See `Client.borrow`."""

    def __enter__(self) -> TensorDict:
        return run_blocking(self._begin())

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        run_blocking(self._end(exc))


class AsyncBorrow(_Borrow):
    """As `Borrow`, awaited."""

    async def __aenter__(self) -> TensorDict:
        return await self._begin()

    async def __aexit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self._end(exc)

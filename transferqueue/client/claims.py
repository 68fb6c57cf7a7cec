"""A batch that was claimed: what it holds, and how it ends."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from transferqueue.errors import ClaimError, DeadlineExceeded
from transferqueue.net.sync_channel import run_blocking

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Generator, Mapping, Sequence
    from types import TracebackType

    import numpy as np

    from transferqueue.client.control_operations import ControlOperations
    from transferqueue.client.granted import Granted
    from transferqueue.handle import BatchHandle


class _Claim:
    """What both faces of a claim have in common."""

    def __init__(
        self, granted: Granted, control: ControlOperations, get: Callable[..., Any]
    ) -> None:
        """``get``: of the client that claimed."""
        self._granted = granted
        self._control = control
        self._get = get
        self._ended = False

    @property
    def claim_id(self) -> int:
        return self._granted.claim_id

    @property
    def handle(self) -> BatchHandle:
        """The samples, with the fields that were asked for."""
        return self._granted.handle

    @property
    def tags(self) -> Mapping[str, Any]:
        """Tag values of the samples, in the handle's order."""
        return self._granted.tags

    @property
    def deliveries(self) -> np.ndarray:
        """How often each sample has been given to this task, this time included."""
        return self._granted.deliveries

    def __len__(self) -> int:
        return len(self._granted.handle)

    def __repr__(self) -> str:
        state = "ended" if self._ended else "held"
        return f"<claim {self.claim_id} {len(self)} samples {state}>"


class Claim(_Claim):
    """Samples that are this worker's until the lease ends.

    Leaving the block acks: the task has consumed them. An exception gives them back instead, and
    the task's next claim may have them.
    """

    def get(self, fields: Sequence[str] | None = None, **options: Any) -> Any:
        """As `Client.get` of the claim's handle."""
        return self._get(self.handle, fields=fields, **options)

    def ack(self, *, drop: BatchHandle | None = None) -> None:
        """The task has consumed the samples. LeaseExpired when the lease ended before.

        ``drop``: those of them that no other task needs either, as after a filter; see
        `Client.discard`.
        """
        run_blocking(self._control.ack(self.claim_id, drop=drop))
        self._ended = True

    def give_back(self) -> None:
        """Let another claim of the task have the samples, now."""
        run_blocking(self._control.give_back(self.claim_id))
        self._ended = True

    def extend(self, lease_s: float) -> float:
        """Hold the samples for ``lease_s`` seconds from now on; returns the seconds granted."""
        return run_blocking(self._control.extend(self.claim_id, lease_s))

    def __enter__(self) -> Claim:
        return self

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if self._ended:
            return
        if exc is None:
            self.ack()
            return
        try:
            self.give_back()
        except (ClaimError, DeadlineExceeded) as error:
            exc.add_note(f"the samples could not be given back: {error}")


class AsyncClaim(_Claim):
    """As `Claim`, awaited."""

    async def get(self, fields: Sequence[str] | None = None, **options: Any) -> Any:
        """As `AsyncClient.get` of the claim's handle."""
        return await self._get(self.handle, fields=fields, **options)

    async def ack(self, *, drop: BatchHandle | None = None) -> None:
        """See `Claim.ack`."""
        await self._control.ack(self.claim_id, drop=drop)
        self._ended = True

    async def give_back(self) -> None:
        """See `Claim.give_back`."""
        await self._control.give_back(self.claim_id)
        self._ended = True

    async def extend(self, lease_s: float) -> float:
        """See `Claim.extend`."""
        return await self._control.extend(self.claim_id, lease_s)

    async def __aenter__(self) -> AsyncClaim:
        return self

    async def __aexit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if self._ended:
            return
        if exc is None:
            await self.ack()
            return
        try:
            await self.give_back()
        except (ClaimError, DeadlineExceeded) as error:
            exc.add_note(f"the samples could not be given back: {error}")


class PendingClaim:
    """A claim not yet granted: ``await`` it, or enter it with ``async with``."""

    def __init__(self, claiming: Callable[[], Coroutine[Any, Any, AsyncClaim]]) -> None:
        self._claiming = claiming
        self._claim: AsyncClaim | None = None

    def __await__(self) -> Generator[Any, None, AsyncClaim]:
        return self._claiming().__await__()

    async def __aenter__(self) -> AsyncClaim:
        self._claim = await self._claiming()
        return self._claim

    async def __aexit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        assert self._claim is not None
        await self._claim.__aexit__(exc_type, exc, traceback)

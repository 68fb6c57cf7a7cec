"""One rank as a Ray actor."""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import ray

from transferqueue.dispatch import HandlePart, StageReply
from transferqueue.wire.format import pack_plain, unpack_own
from workers.errors import WorkerError
from workers.host import HostCall, HostSetup, WorkerHost

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

TURN_TIMEOUT_S = 30.0


def free_address() -> tuple[str, int]:
    """This node's address and a port that was free just now, for rendezvous."""
    with socket.socket() as probe:
        probe.bind(("", 0))
        port: int = probe.getsockname()[1]
    return str(ray.util.get_node_ip_address()), port


def make_host(setup: HostSetup) -> WorkerHost:
    """The roles of this rank; the environment says which rank it is, as launchers have it."""
    os.environ.update(
        RANK=str(setup.rank),
        WORLD_SIZE=str(setup.world_size),
        LOCAL_RANK=str(setup.local_rank),
        MASTER_ADDR=setup.master_address,
        MASTER_PORT=str(setup.master_port),
    )
    return WorkerHost(setup)


def pack_call(call: HostCall, number: int) -> tuple[bytes, tuple[Any, ...]]:
    """``(head, arguments)`` of a remote call. ``number``: how many calls this rank got before.

    Everything of it that is plain goes into one value of bytes: Ray passes bytes on as they are,
    and pickles each other argument by itself, which for a handle takes 0.2 ms.
    """
    part = call.part.to_plain() if isinstance(call.part, HandlePart) else None
    is_pending = part is None and call.part is not None
    head = pack_plain([number, call.role, call.method, call.place, part, is_pending])
    return head, (call.part, *call.args) if is_pending else call.args


def unpack_call(
    head: bytes, args: tuple[Any, ...], kwargs: Mapping[str, Any]
) -> tuple[HostCall, int]:
    """Inverse of `pack_call`."""
    number, role, method, place, plain, is_pending = unpack_own(head)
    part = None if plain is None else HandlePart.of_plain(plain)
    if is_pending:
        part, *rest = args
        args = tuple(rest)
    call = HostCall(role=role, method=method, args=args, kwargs=kwargs, part=part, place=place)
    return call, number


def packed_answer(answer: Any) -> Any:
    """As bytes, where it is a reply of a HANDLE method."""
    return answer.packed() if isinstance(answer, StageReply) else answer


def _made(host: WorkerHost | None) -> WorkerHost:
    if host is None:
        raise WorkerError(
            "Ray has restarted this rank, which has lost its workers; make the group again"
        )
    return host


class RayRank:
    """The body of the actor. Calls run one at a time, in the order in which they were made."""

    def __init__(self) -> None:
        self._host: WorkerHost | None = None

    def free_address(self) -> tuple[str, int]:
        return free_address()

    def make(self, setup: HostSetup) -> None:
        self._host = make_host(setup)

    def call(self, head: bytes, /, *args: Any, **kwargs: Any) -> Any:
        """Arguments stand here as they are, so that Ray waits for object refs among them."""
        call, _ = unpack_call(head, args, kwargs)
        return packed_answer(_made(self._host).run(call))

    def query(self, method: str, args: Sequence[Any]) -> Any:
        """Ask the host."""
        return getattr(_made(self._host), method)(*args)

    def close(self) -> None:
        if self._host is not None:
            self._host.close()


class Turns:
    """Lets calls begin in the order of their numbers.

    Ray may start the tasks of an actor with an event loop in another order than they were sent in.
    A call that waits for the answer of an earlier one would then keep it from running.
    """

    def __init__(self) -> None:
        self._next = 0
        self._waiting: dict[int, asyncio.Event] = {}

    async def come(self, number: int) -> None:
        """Wait for all before, but not for ever: one whose arguments could not be unpickled here
        never comes."""
        if number > self._next:
            event = self._waiting[number] = asyncio.Event()
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(event.wait(), TURN_TIMEOUT_S)
            self._waiting.pop(number, None)
        self._next = max(self._next, number + 1)
        following = self._waiting.get(self._next)
        if following is not None:
            following.set()


class AsyncRayRank:
    """The body of the actor of a worker that has coroutine methods: those overlap. The others run
    one at a time in one thread. All begin in the order in which they were made."""

    def __init__(self) -> None:
        self._host: WorkerHost | None = None
        self._thread = ThreadPoolExecutor(max_workers=1)
        self._turns = Turns()

    async def free_address(self) -> tuple[str, int]:
        return free_address()

    async def make(self, setup: HostSetup) -> None:
        self._host = await self._in_thread(make_host, setup)

    async def call(self, head: bytes, /, *args: Any, **kwargs: Any) -> Any:
        host = _made(self._host)
        call, number = unpack_call(head, args, kwargs)
        await self._turns.come(number)
        if host.is_async(call):
            return packed_answer(await host.run_async(call))
        return packed_answer(await self._in_thread(host.run, call))

    async def query(self, method: str, args: Sequence[Any]) -> Any:
        return await self._in_thread(getattr(_made(self._host), method), *args)

    async def close(self) -> None:
        if self._host is not None:
            await self._in_thread(self._host.close)

    async def _in_thread(self, function: Any, *args: Any) -> Any:
        return await asyncio.get_running_loop().run_in_executor(self._thread, function, *args)

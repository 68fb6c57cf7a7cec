"""The channel of the async client: one DEALER a peer, shared by every task of the loop.

Plain sockets watched by the loop, rather than ``zmq.asyncio``, which makes a future for every
frame sent and received and never gives up on a socket that lost its connection for good.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import time
from typing import TYPE_CHECKING, TypeVar

import zmq

from transferqueue.errors import Closed, ConfigError, ForkedClient
from transferqueue.net.calls import CANCEL, RESUME, Call, Flow, Outcome, Whereabouts
from transferqueue.net.contexts import Contexts
from transferqueue.net.pending import Pending, PendingCalls, PendingFlows
from transferqueue.net.sockets import (
    WireBytes,
    connect_dealer,
    descriptor,
    receive_or_none,
    said_where_it_was,
    send_or_drop,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from transferqueue.net.keys import ClientKeys
    from transferqueue.wire.format import Message

T = TypeVar("T")

MAX_BURST = 16
"""Messages taken before other tasks of the loop get their turn: the chunks of a large get may come
as fast as they are copied."""


class _Exchange:
    """Calls that one task waits for."""

    def __init__(self, pending: Pending) -> None:
        self.pending = pending
        self.progress = asyncio.Event()


class AsyncChannel:
    """Belongs to the event loop that it is first used in."""

    def __init__(self, keys: ClientKeys | None = None) -> None:
        self._contexts = Contexts()
        self._keys = keys
        self.wire_bytes = WireBytes()
        self._sockets: dict[str, zmq.Socket[bytes]] = {}
        self._waiting: dict[int, _Exchange] = {}
        self._loop: asyncio.AbstractEventLoop | None = None
        self._pid = os.getpid()
        self._closed = False

    async def exchange(
        self, calls: Sequence[Call], *, timeout_s: float, whereabouts: Whereabouts | None = None
    ) -> list[Outcome]:
        """See `Channel`. A cancelled task cancels its calls at their peers."""
        pending = PendingCalls(calls, whereabouts)
        await self._carry_out(pending, timeout_s)
        return pending.outcomes()

    async def flow(
        self, flows: Sequence[Flow], *, timeout_s: float, whereabouts: Whereabouts | None = None
    ) -> None:
        """See `Channel`. Chunks are taken on the loop, between other things."""
        pending = PendingFlows(flows, whereabouts)
        await self._carry_out(pending, timeout_s)
        pending.raise_failure()

    async def apart(self, works: Sequence[Callable[[], T]]) -> list[T]:
        """See `Channel`. A thread that is at work goes on when its task is cancelled."""
        return list(await asyncio.gather(*(asyncio.to_thread(work) for work in works)))

    async def to_its_end(self, work: Callable[[], T]) -> T:
        """See `Channel`."""
        at_work = asyncio.ensure_future(asyncio.to_thread(work))
        try:
            return await asyncio.shield(at_work)
        except asyncio.CancelledError:
            while not at_work.done():
                with contextlib.suppress(asyncio.CancelledError):
                    await asyncio.wait([at_work])
            raise

    async def _carry_out(self, pending: Pending, timeout_s: float) -> None:
        exchange = _Exchange(pending)
        start_s = time.monotonic()
        try:
            for call in pending.first(start_s):
                self._send(call, exchange)
            await self._wait(exchange, start_s + timeout_s)
        except BaseException:
            self._cancel(pending.broken_off())
            raise
        self._cancel(pending.under_way())
        if pending:
            pending.give_up(time.monotonic() - start_s)

    def _cancel(self, calls: Sequence[Call]) -> None:
        for call in calls:
            self._waiting.pop(call.request_id, None)
            self._control(call, CANCEL)

    async def _wait(self, exchange: _Exchange, deadline_s: float) -> None:
        pending = exchange.pending
        while pending:
            now_s = time.monotonic()
            if now_s >= deadline_s:
                return
            self._cancel(pending.give_up_silent(now_s))
            if not pending:
                return
            for call in pending.look(now_s):
                self._send(call, exchange)
            for call in pending.quiet(now_s):
                self._control(call, RESUME)
            for call in pending.held_back(now_s):
                self._send(call, exchange)
            exchange.progress.clear()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(min(deadline_s, pending.next_ask_s()) - now_s):
                    await exchange.progress.wait()
            if self._closed:
                raise Closed("the client")

    def _control(self, call: Call, op: str) -> None:
        socket = self._sockets.get(call.endpoint)
        if socket is not None:
            send_or_drop(socket, call.control(op), self.wire_bytes)
            self._look_again(call.endpoint)

    def _send(self, call: Call, exchange: _Exchange) -> None:
        """Send on the peer's socket, or on a new one where that has been refused for good."""
        self._waiting[call.request_id] = exchange
        message = said_where_it_was(call, self._sockets).message()
        if not send_or_drop(self._socket(call.endpoint), message, self.wire_bytes):
            self._forget(call.endpoint)
            send_or_drop(self._socket(call.endpoint), message, self.wire_bytes)
        self._look_again(call.endpoint)

    def _look_again(self, endpoint: str) -> None:
        """A send may take up the one signal that libzmq's descriptor gives for what arrived."""
        assert self._loop is not None
        self._loop.call_soon(self._receive, endpoint)

    def _receive(self, endpoint: str) -> None:
        for _ in range(MAX_BURST):
            socket = self._sockets.get(endpoint)
            message = None if socket is None else receive_or_none(socket, self.wire_bytes)
            if message is None:
                return
            exchange = self._waiting.get(message.request_id)
            if exchange is not None:  # else it was given up
                self._settle(exchange, message)
        self._look_again(endpoint)

    def _settle(self, exchange: _Exchange, message: Message) -> None:
        for call in exchange.pending.settle(message, time.monotonic()):
            self._send(call, exchange)
        if not exchange.pending.waits_for(message.request_id):
            del self._waiting[message.request_id]
        exchange.progress.set()

    def _socket(self, endpoint: str) -> zmq.Socket[bytes]:
        if self._closed:
            raise Closed("the client")
        if os.getpid() != self._pid:
            raise ForkedClient(self._pid)
        socket = self._sockets.get(endpoint)
        if socket is None:
            try:
                context = self._contexts.of(endpoint)
                socket = connect_dealer(context, endpoint, self._keys)
            except zmq.ZMQError as error:
                raise ConfigError(f"cannot connect to {endpoint!r}: {error}") from error
            self._sockets[endpoint] = self._contexts.keep(socket)
            self._loop = asyncio.get_running_loop()
            self._loop.add_reader(descriptor(socket), self._receive, endpoint)
        return socket

    def _forget(self, endpoint: str) -> None:
        socket = self._sockets.pop(endpoint)
        if self._loop is not None and not self._loop.is_closed():
            self._loop.remove_reader(descriptor(socket))
        socket.close()

    async def close(self) -> None:
        """Wake every waiting task with `Closed`, then close the sockets. Idempotent."""
        if self._closed or os.getpid() != self._pid:
            return  # a forked child shares even the parent's event loop
        self._closed = True
        for exchange in self._waiting.values():
            exchange.progress.set()
        for endpoint in list(self._sockets):
            self._forget(endpoint)
        self._contexts.close()

"""The channel of the async client: one DEALER a peer, shared by every task of the loop.

Plain sockets watched by the loop, rather than ``zmq.asyncio``, which makes a future for every
frame sent and received and never gives up on a socket that lost its connection for good.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from typing import TYPE_CHECKING

import zmq

from transferqueue.errors import Closed, ConfigError
from transferqueue.net.calls import ASK_AGAIN_S, CANCEL, RESUME, Call, Outcome
from transferqueue.net.pending import PendingCalls
from transferqueue.net.sockets import (
    WireBytes,
    connect_dealer,
    descriptor,
    receive_or_none,
    send_or_drop,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

    from transferqueue.net.keys import ClientKeys


class _Exchange:
    """Calls that one task waits for."""

    def __init__(self, calls: Sequence[Call]) -> None:
        self.pending = PendingCalls(calls)
        self.progress = asyncio.Event()


class AsyncChannel:
    """Belongs to the event loop that it is first used in."""

    def __init__(self, keys: ClientKeys | None = None) -> None:
        self._context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        self._keys = keys
        self.wire_bytes = WireBytes()
        self._sockets: dict[str, zmq.Socket[bytes]] = {}
        self._waiting: dict[int, _Exchange] = {}
        self._loop: asyncio.AbstractEventLoop | None = None
        self._closed = False

    async def exchange(self, calls: Sequence[Call], *, timeout_s: float) -> list[Outcome]:
        """See `Channel`. A cancelled task cancels its calls at their peers."""
        exchange = _Exchange(calls)
        for call in calls:
            self._send(call)
            self._waiting[call.request_id] = exchange
        start_s = time.monotonic()
        try:
            await self._wait(exchange, start_s + timeout_s)
        finally:
            for call in calls:
                del self._waiting[call.request_id]
            self._control(exchange, CANCEL)
        exchange.pending.give_up(time.monotonic() - start_s)
        return exchange.pending.outcomes()

    async def _wait(self, exchange: _Exchange, deadline_s: float) -> None:
        ask_s = time.monotonic() + ASK_AGAIN_S
        while exchange.pending:
            now_s = time.monotonic()
            if now_s >= deadline_s:
                return
            if now_s >= ask_s:
                self._control(exchange, RESUME)
                ask_s = now_s + ASK_AGAIN_S
            exchange.progress.clear()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(min(deadline_s, ask_s) - now_s):
                    await exchange.progress.wait()
            if self._closed:
                raise Closed("the client")

    def _control(self, exchange: _Exchange, op: str) -> None:
        if self._closed:
            return
        for call in exchange.pending.unsettled():
            send_or_drop(self._socket(call.endpoint), call.control(op), self.wire_bytes)
            self._look_again(call.endpoint)

    def _send(self, call: Call) -> None:
        """Send on the peer's socket, or on a new one where that has been refused for good."""
        message = call.message()
        if not send_or_drop(self._socket(call.endpoint), message, self.wire_bytes):
            self._forget(call.endpoint)
            send_or_drop(self._socket(call.endpoint), message, self.wire_bytes)
        self._look_again(call.endpoint)

    def _look_again(self, endpoint: str) -> None:
        """A send may take up the one signal that libzmq's descriptor gives for what arrived."""
        assert self._loop is not None
        self._loop.call_soon(self._receive, endpoint)

    def _receive(self, endpoint: str) -> None:
        socket = self._sockets.get(endpoint)
        while (
            socket is not None and (message := receive_or_none(socket, self.wire_bytes)) is not None
        ):
            exchange = self._waiting.get(message.request_id)
            if exchange is None:
                continue  # given up
            for call in exchange.pending.settle(message):
                send_or_drop(socket, call.message(), self.wire_bytes)
            exchange.progress.set()

    def _socket(self, endpoint: str) -> zmq.Socket[bytes]:
        if self._closed:
            raise Closed("the client")
        socket = self._sockets.get(endpoint)
        if socket is None:
            try:
                socket = connect_dealer(self._context, endpoint, self._keys)
            except zmq.ZMQError as error:
                raise ConfigError(f"cannot connect to {endpoint!r}: {error}") from error
            self._sockets[endpoint] = socket
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
        if self._closed:
            return
        self._closed = True
        for exchange in self._waiting.values():
            exchange.progress.set()
        for endpoint in list(self._sockets):
            self._forget(endpoint)
        self._context.destroy(linger=None)

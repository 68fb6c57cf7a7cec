"""The channel of the sync client: plain blocking sockets, no event loop, no thread.

Measured: a 12 KB round trip takes 0.27 ms so, 0.61 ms through asyncio and a thread hop.
"""

from __future__ import annotations

import threading
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, TypeVar

import zmq

from transferqueue.errors import Closed, ConfigError
from transferqueue.net.calls import ASK_AGAIN_S, CANCEL, RESUME, Call, Outcome
from transferqueue.net.pending import PendingCalls
from transferqueue.net.sockets import (
    WireBytes,
    connect_dealer,
    milliseconds,
    receive_or_none,
    send_or_drop,
)

if TYPE_CHECKING:
    from collections.abc import Coroutine, Iterator, Sequence

    from transferqueue.net.keys import ClientKeys


T = TypeVar("T")


def run_blocking(operation: Coroutine[Any, Any, T]) -> T:
    """Run an operation over a blocking channel, in which it never suspends."""
    try:
        operation.send(None)
    except StopIteration as stop:
        result: T = stop.value
        return result
    operation.close()
    raise RuntimeError("an operation of the sync client tried to suspend")


class SyncChannel:
    """One DEALER a peer, used by one thread at a time (`SyncChannelPool` sees to that)."""

    def __init__(
        self,
        context: zmq.Context[zmq.Socket[bytes]],
        keys: ClientKeys | None = None,
        count: WireBytes | None = None,
    ) -> None:
        self._context = context
        self._count = count
        self._keys = keys
        self._sockets: dict[str, zmq.Socket[bytes]] = {}

    async def exchange(self, calls: Sequence[Call], *, timeout_s: float) -> list[Outcome]:
        """See `Channel`. Blocks the thread and never suspends, whatever the ``async`` says."""
        pending = PendingCalls(calls)
        for call in calls:
            self._send(call)
        sockets = {call.endpoint: self._sockets[call.endpoint] for call in calls}
        start_s = time.monotonic()
        try:
            self._wait(pending, list(sockets.values()), start_s, start_s + timeout_s)
        except BaseException:
            self._cancel(pending)
            raise
        if pending:
            self._cancel(pending)
            pending.give_up(time.monotonic() - start_s)
        return pending.outcomes()

    def _wait(
        self,
        pending: PendingCalls,
        sockets: list[zmq.Socket[bytes]],
        start_s: float,
        deadline_s: float,
    ) -> None:
        poller = zmq.Poller()
        for socket in sockets:
            poller.register(socket, zmq.POLLIN)
        ask_s = start_s + ASK_AGAIN_S
        while pending:
            now_s = time.monotonic()
            if now_s >= deadline_s:
                return
            if now_s >= ask_s:
                for call in pending.unsettled():
                    self._send_control(call, RESUME)
                ask_s = now_s + ASK_AGAIN_S
            ready = poller.poll(milliseconds(min(deadline_s, ask_s) - now_s))
            for socket, _ in ready:
                self._receive(socket, pending)

    def _receive(self, socket: zmq.Socket[bytes], pending: PendingCalls) -> None:
        """Settle what has arrived; answers to calls that were given up are dropped here."""
        while (message := receive_or_none(socket, self._count)) is not None:
            for call in pending.settle(message):
                send_or_drop(socket, call.message(), self._count)

    def _send(self, call: Call) -> None:
        """Send on the peer's socket, or on a new one where that has been refused for good."""
        message = call.message()
        if not send_or_drop(self._socket(call.endpoint), message, self._count):
            self._sockets.pop(call.endpoint).close()
            send_or_drop(self._socket(call.endpoint), message, self._count)

    def _send_control(self, call: Call, op: str) -> None:
        send_or_drop(self._socket(call.endpoint), call.control(op), self._count)

    def _cancel(self, pending: PendingCalls) -> None:
        for call in pending.unsettled():
            self._send_control(call, CANCEL)

    def _socket(self, endpoint: str) -> zmq.Socket[bytes]:
        socket = self._sockets.get(endpoint)
        if socket is None:
            try:
                socket = connect_dealer(self._context, endpoint, self._keys)
            except zmq.ZMQError as error:
                raise ConfigError(f"cannot connect to {endpoint!r}: {error}") from error
            self._sockets[endpoint] = socket
        return socket

    def close(self) -> None:
        for socket in self._sockets.values():
            socket.close()
        self._sockets.clear()


class SyncChannelPool:
    """As many channels as there are calls at once; each goes back when its call is done.

    A parked claim in one thread thereby holds up nobody else, and no socket is ever used by two
    threads at a time (the lock of the pool is the barrier that libzmq asks for).
    """

    def __init__(self, keys: ClientKeys | None = None) -> None:
        self._context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        self._keys = keys
        self.wire_bytes = WireBytes()
        self._lock = threading.Lock()
        self._idle: list[SyncChannel] = []
        self._closed = False

    async def exchange(self, calls: Sequence[Call], *, timeout_s: float) -> list[Outcome]:
        """See `Channel`."""
        with self._channel() as channel:
            return await channel.exchange(calls, timeout_s=timeout_s)

    @contextmanager
    def _channel(self) -> Iterator[SyncChannel]:
        with self._lock:
            if self._closed:
                raise Closed("the client")
            channel = (
                self._idle.pop()
                if self._idle
                else SyncChannel(self._context, self._keys, self.wire_bytes)
            )
        try:
            yield channel
        finally:
            self._put_back(channel)

    def _put_back(self, channel: SyncChannel) -> None:
        with self._lock:
            if self._closed:
                channel.close()
            else:
                self._idle.append(channel)

    def close(self) -> None:
        """Close every idle channel; one in use closes when its call ends. Idempotent."""
        with self._lock:
            if self._closed:
                return
            self._closed = True
            idle, self._idle = self._idle, []
        for channel in idle:
            channel.close()
        self._context.destroy(linger=None)

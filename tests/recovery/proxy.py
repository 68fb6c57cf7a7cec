"""A proxy between clients and one server that loses, repeats, delays, swaps and cuts messages.

It speaks for each client under the client's own name, so that the server sees the same peer. A
fault hits the first message of the operation that it is set for, on its way there or back.
"""

from __future__ import annotations

import threading
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

import zmq

from transferqueue.wire.format import decode_message

POLL_MS = 20
DELAYED_TURNS = 25
"""Turns of the loop by which a delayed message is late: long enough to be asked for again."""


class Fault(StrEnum):
    LOSE_REQUEST = "lose the request"
    LOSE_ANSWER = "lose the answer"
    REPEAT_REQUEST = "send the request twice"
    REPEAT_ANSWER = "send the answer twice"
    DELAY_REQUEST = "delay the request"
    DELAY_ANSWER = "delay the answer"
    SWAP_REQUEST = "let the next message overtake the request"
    CUT_BEFORE = "cut the connection before the request"
    CUT_AFTER = "cut the connection after the request"


@dataclass
class _Late:
    socket: zmq.Socket[bytes]
    frames: list[bytes]
    turns: int


class Proxy:
    """Runs in a thread from its construction to `close`."""

    def __init__(self, context: zmq.Context[zmq.Socket[bytes]], endpoint: str, server: str) -> None:
        self.endpoint = endpoint
        self.num_faults = 0
        """How often the fault that was set has hit."""
        self._context = context
        self._server = server
        self._fault: tuple[str, Fault] | None = None
        self._hit: tuple[bytes, int] | None = None
        self._swapped: tuple[bytes, list[bytes]] | None = None
        self._late: list[_Late] = []
        self._backends: dict[bytes, zmq.Socket[bytes]] = {}
        self._front = context.socket(zmq.ROUTER)
        self._front.linger = 0
        self._front.bind(endpoint)
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._run, name="proxy")
        self._thread.start()

    def set(self, op: str, fault: Fault) -> None:
        """Hit the next request of this operation."""
        self.num_faults = 0
        self._hit = None
        self._fault = (op, fault)

    def close(self) -> None:
        self._closing.set()
        self._thread.join()
        for socket in (self._front, *self._backends.values()):
            socket.close(linger=0)
        Path(self.endpoint.removeprefix("ipc://")).unlink()  # as a service that ends does

    # -- the thread -----------------------------------------------------------------------------

    def _run(self) -> None:
        while not self._closing.is_set():
            poller = zmq.Poller()
            poller.register(self._front, zmq.POLLIN)
            for socket in self._backends.values():
                poller.register(socket, zmq.POLLIN)
            ready = dict(poller.poll(POLL_MS))
            if self._front in ready:
                peer, *frames = self._front.recv_multipart()
                self._request(peer, frames)
            for peer, socket in list(self._backends.items()):
                if socket in ready and self._backends.get(peer) is socket:
                    self._answer(peer, socket.recv_multipart())
            self._send_late()

    def _send_late(self) -> None:
        for late in self._late:
            late.turns -= 1
        due = [late for late in self._late if late.turns <= 0]
        self._late = [late for late in self._late if late.turns > 0]
        for late in due:
            if not late.socket.closed:
                late.socket.send_multipart(late.frames)

    def _backend(self, peer: bytes) -> zmq.Socket[bytes]:
        if peer not in self._backends:
            socket = self._context.socket(zmq.DEALER)
            socket.linger = 100
            socket.routing_id = peer
            socket.connect(self._server)
            self._backends[peer] = socket
        return self._backends[peer]

    def _cut(self, peer: bytes) -> None:
        """The connection to the server breaks; what is on the way back is lost."""
        self._backends.pop(peer).close(linger=100)

    def _request(self, peer: bytes, frames: list[bytes]) -> None:
        message = decode_message(frames)
        backend = self._backend(peer)
        fault = None
        if self._fault is not None and self._fault[0] == message.op:
            fault, self._fault = self._fault[1], None
            self._hit = (peer, message.request_id)
            self._hit_by = fault
        if fault in (Fault.LOSE_REQUEST, Fault.CUT_BEFORE):
            self.num_faults += 1
            if fault is Fault.CUT_BEFORE:
                self._cut(peer)
            return
        if fault is Fault.DELAY_REQUEST:
            self.num_faults += 1
            self._late.append(_Late(backend, frames, DELAYED_TURNS))
            return
        if fault is Fault.SWAP_REQUEST:
            self.num_faults += 1
            self._swapped = (peer, frames)
            return
        backend.send_multipart(frames)
        if self._swapped is not None and self._swapped[0] == peer:
            backend.send_multipart(self._swapped[1])
            self._swapped = None
        if fault is Fault.REPEAT_REQUEST:
            self.num_faults += 1
            backend.send_multipart(frames)
        if fault is Fault.CUT_AFTER:
            self.num_faults += 1
            self._cut(peer)

    def _answer(self, peer: bytes, frames: list[bytes]) -> None:
        message = decode_message(frames)
        is_hit = self._hit == (peer, message.request_id) and message.op in ("ok", "error")
        fault = self._hit_by if is_hit else None
        if fault in (Fault.LOSE_ANSWER, Fault.REPEAT_ANSWER, Fault.DELAY_ANSWER):
            self._hit = None
            self.num_faults += 1
        if fault is Fault.LOSE_ANSWER:
            return
        if fault is Fault.DELAY_ANSWER:
            self._late.append(_Late(self._front, [peer, *frames], DELAYED_TURNS))
            return
        self._front.send_multipart([peer, *frames])
        if fault is Fault.REPEAT_ANSWER:
            self._front.send_multipart([peer, *frames])

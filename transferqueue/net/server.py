"""The poll loop under a shard and a coordinator: one thread, one ROUTER, a table of handlers."""

from __future__ import annotations

import contextlib
import errno
import logging
import math
import os
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import zmq

from transferqueue.errors import InvalidInput, Malformed, TransferQueueError, WireError
from transferqueue.net.access import Access
from transferqueue.net.calls import CANCEL, RESUME, UNKNOWN, WORKING
from transferqueue.net.contexts import Contexts
from transferqueue.net.door import Door
from transferqueue.net.latencies import Latencies
from transferqueue.net.peer_names import peer_name
from transferqueue.net.replies import AnswerLog
from transferqueue.net.sockets import (
    bind_to,
    may_receive,
    milliseconds,
    new_router,
    receive_with_key,
    send_frames,
)
from transferqueue.wire.format import (
    ERROR_OP,
    OK_OP,
    Buffer,
    Message,
    decode_message,
    encode_error,
    encode_message,
)
from transferqueue.wire.ops import TRACE, WAS

if TYPE_CHECKING:
    from transferqueue.net.keys import ServiceKeys
    from transferqueue.net.stream import StreamSender
    from transferqueue.tracing.base import RequestSpans

log = logging.getLogger(__name__)

MAX_BURST = 256
"""Requests served before timers and other sockets get their turn."""

MAX_SECONDS = 1e9

_AFTER_FAILURE_S = 0.05
_STOP = b"x"

_BAD_BODY = (KeyError, TypeError, ValueError, IndexError, AttributeError, OverflowError)


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """One request of one peer. Its answer goes to ``peer`` under ``request_id``."""

    peer: bytes
    request_id: int
    op: str
    body: Mapping[str, Any]
    frames: Sequence[Buffer]
    received_s: float
    key_name: str | None = None
    """Of the key that its connection showed; ``None``: it came over a socket of this host."""
    is_reader: bool = False
    """Whether that is a key that only reads."""

    @property
    def key(self) -> tuple[bytes, int]:
        """What names this request among all of this server's."""
        return self.peer, self.request_id

    @property
    def peer_name(self) -> str:
        """How to name the peer to others."""
        return peer_name(self.peer)

    def number(self, name: str) -> int:
        """An int of the body. `Malformed` for anything else."""
        value = self.body[name]
        if type(value) is not int:
            raise Malformed(f"{name} must be an int, got {value!r:.40}")
        return value

    def seconds(self, name: str = "timeout_s") -> float:
        """A span of time of the body, 0 to `MAX_SECONDS`. `Malformed` for what is none: NaN in a
        queue of deadlines would be a deadline that never comes and hides those behind it."""
        value = self.body[name]
        if type(value) not in (int, float) or math.isnan(value):
            raise Malformed(f"{name} must be a number, got {value!r:.40}")
        return min(max(0.0, float(value)), MAX_SECONDS)


@dataclass(frozen=True, slots=True, kw_only=True)
class Reply:
    """An answer: plain values and buffers."""

    body: Mapping[str, Any]
    frames: Sequence[Buffer] = ()


Handler = Callable[[Request], Reply | None]
"""Answers a request, or returns ``None``: it is parked and `Server.reply` is called later."""


class Server:
    """Binds, receives, refuses what is not ours, calls the handlers, and repeats lost answers.

    ``mutating`` names the operations that must not be carried out twice. Nothing that a peer
    sends ends the loop: a refusal is counted in ``refusals`` and the next request is served.
    ``on_cancel`` hears of every request whose peer stopped waiting, answered or not: what an
    answer has lent is then nobody's.
    """

    def __init__(
        self,
        *,
        endpoints: Sequence[str],
        keys: ServiceKeys | None,
        handlers: Mapping[str, Handler],
        mutating: frozenset[str],
        on_cancel: Callable[[tuple[bytes, int]], None],
    ) -> None:
        self._handlers = dict(handlers)
        self._mutating = mutating
        self._on_cancel = on_cancel
        self._answers = AnswerLog()
        self.with_every_answer: dict[str, Any] = {}
        """Goes along with the body of every answer, but refusals and those of earlier processes."""
        self.refusals: Counter[str] = Counter()
        self.requests: Counter[str] = Counter()
        self.latencies = Latencies()
        self.spans: RequestSpans | None = None
        """Where requests that carry a trace are noted; ``None``: nowhere."""
        self._contexts = Contexts()
        self._context = self._contexts.of(endpoints[0])
        self._poller = zmq.Poller()
        self._on_readable: dict[object, Callable[[], None]] = {}
        self._door: Door | None = None
        self._access = Access(keys.grants if keys else {})
        self._router = self._contexts.keep(new_router(self._context))
        self._pipe_read, self._pipe_write = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
        self._pipe_lock = threading.RLock()
        self._stopping = False
        try:
            self.endpoints = self._bind(endpoints, keys)
        except BaseException:
            self.close()
            raise
        self.watch(self._pipe_read, self._hear_self)
        self.watch(self._router, self._serve_burst)

    def _bind(self, endpoints: Sequence[str], keys: ServiceKeys | None) -> list[str]:
        """Bind all; the ones that CURVE guards last, since its options hold for later binds."""
        bound: list[str] = []
        for endpoint in sorted(endpoints, key=lambda name: name.startswith("tcp://")):
            if endpoint.startswith("tcp://") and self._door is None:
                if keys is None:
                    raise ValueError(f"a TCP endpoint needs keys: {endpoint}")
                self._door = Door(self._contexts, self._context, self._router, keys, self.refusals)
                for readable, callback in self._door.sockets():
                    self.watch(readable, callback)
            bound.append(bind_to(self._router, endpoint))
        return bound

    @property
    def num_keys_refused(self) -> int:
        """TCP connections without the key, or with another service's."""
        return self._door.num_keys_refused if self._door else 0

    def add_handlers(self, handlers: Mapping[str, Handler]) -> None:
        """Serve more operations; before `run`."""
        self._handlers.update(handlers)

    def watch(self, readable: Any, callback: Callable[[], None]) -> None:
        """Call ``callback`` whenever a socket or file descriptor can be read."""
        key = (
            readable.fileno()
            if hasattr(readable, "fileno") and not isinstance(readable, zmq.Socket)
            else readable
        )
        self._on_readable[key] = callback
        self._poller.register(key, zmq.POLLIN)

    def unwatch(self, readable: Any) -> None:
        self._on_readable.pop(readable, None)
        with contextlib.suppress(KeyError):
            self._poller.unregister(readable)

    def open_stream(self, endpoint: str, keys: ServiceKeys | None) -> StreamSender:
        """A long-lived socket to another server, on this server's loop."""
        from transferqueue.net.stream import StreamSender

        return StreamSender(self._contexts, endpoint, keys.for_processes() if keys else None)

    def run(self, tick: Callable[[float], float]) -> None:
        """Serve until `stop`. ``tick(now_s)`` does what is due and returns the seconds until the
        next thing will be."""
        while not self._stopping:
            try:
                wait_s = tick(time.monotonic())
                for key, _ in self._poller.poll(milliseconds(wait_s)):
                    callback = self._on_readable.get(key)
                    if callback is not None:
                        callback()
            except Exception:
                # Nobody's request: a timer, a process that ended, a stream of our own. Whoever
                # depends on it sees a deadline pass; everybody else is served.
                log.exception("a step of the loop failed")
                time.sleep(_AFTER_FAILURE_S)

    def stop(self) -> None:
        """End `run` soon. Safe from signal handlers and other threads; idempotent."""
        self._tell_loop(_STOP)

    def wake(self) -> None:
        """Have ``tick`` called soon. Safe from other threads, also after `close`."""
        self._tell_loop(b"w")

    def _tell_loop(self, what: bytes) -> None:
        # A signal handler may come while this very thread holds the lock.
        with self._pipe_lock:
            if not self._router.closed:
                with contextlib.suppress(OSError):  # full: it is awake
                    os.write(self._pipe_write, what)

    def _hear_self(self) -> None:
        self._stopping = self._stopping or _STOP in os.read(self._pipe_read, 1 << 16)

    def _serve_burst(self) -> None:
        for _ in range(MAX_BURST):
            if not may_receive(self._router):
                return
            may_have_key = self._door is not None
            self._take(*receive_with_key(self._router, may_have_key=may_have_key))

    def _take(self, frames: list[memoryview], key_name: str | None) -> None:
        peer = bytes(frames[0])
        try:
            message = decode_message(frames[1:])
        except WireError as error:
            self.refusals[type(error).__name__] += 1
            log.debug("refused a message: %s", error)
            return
        if message.op in (RESUME, CANCEL):
            self._control(peer, message)
        elif not self._repeat_answer(peer, message.request_id, message.body.get(WAS)):
            self._handle(
                Request(
                    peer=peer,
                    request_id=message.request_id,
                    op=message.op,
                    body=message.body,
                    frames=message.frames,
                    received_s=time.monotonic(),
                    key_name=key_name,
                    is_reader=self._access.is_reader(key_name),
                )
            )

    def _control(self, peer: bytes, message: Message) -> None:
        request_id = message.request_id
        if message.op == CANCEL:
            self._answers.abandon(peer, request_id)
            if self.spans is not None:
                self.spans.end((peer, request_id), "cancelled")
            self._on_cancel((peer, request_id))
        elif not self._repeat_answer(peer, request_id):
            self._send_state(peer, request_id, UNKNOWN)

    def _repeat_answer(self, peer: bytes, request_id: int, was: object = None) -> bool:
        """Whether the request is known: then its answer or its state has been sent."""
        if self._answers.is_in_progress(peer, request_id):
            self._send_state(peer, request_id, WORKING)
            return True
        answer = self._answers.answer_to(peer, request_id, was)
        if answer is not None:
            self._send(peer, answer)
        return answer is not None

    def _send_state(self, peer: bytes, request_id: int, state: str) -> bool:
        return self._send(
            peer, Message(op=RESUME, request_id=request_id, body={"state": state}, frames=[])
        )

    def probe(self, request: Request) -> bool:
        """Tell whoever waits for a parked request that it is being worked on. Whether its
        connection is there: a process that ended has none, one whose link broke comes back."""
        return self._send_state(request.peer, request.request_id, WORKING)

    def forget(self, request: Request) -> None:
        """The request was never seen: a peer that asks for it again is to send it again."""
        self._answers.forget(*request.key)

    def _handle(self, request: Request) -> None:
        self._answers.begin(*request.key)
        if self.spans is not None:
            self.spans.begin(request.key, request.op, request.body.get(TRACE))
        with self.answering(request):
            self._access.check(request.key_name, request.op, request.body, request.received_s)
            handler = self._handlers.get(request.op)
            if handler is None:
                raise InvalidInput(f"no operation {request.op!r}")
            self.requests[request.op] += 1
            try:
                reply = handler(request)
            finally:
                self.latencies.handled(request.op, time.monotonic() - request.received_s)
            if reply is not None:
                self.reply(request, reply)

    @contextlib.contextmanager
    def answering(self, request: Request) -> Iterator[None]:
        """What the block raises is the answer to this request, and to no other.

        For whoever answers a parked request on another one's occasion.
        """
        try:
            yield
        except TransferQueueError as error:
            self.refuse(request, error)
        except _BAD_BODY as error:
            # A body of the wrong shape ends up here; only a peer that is not ours sends one.
            self.refusals["BadBody"] += 1
            log.info("bad %s request", request.op, exc_info=True)
            self.refuse(request, InvalidInput(f"bad {request.op} request: {error!r}"))
        except Exception as error:
            log.exception("%s failed", request.op)
            self.refuse(request, error)

    def reply(self, request: Request, reply: Reply) -> bool:
        """Answer a request, now or after it was parked. False: its peer is not connected."""
        return self._finish(
            request,
            Message(
                op=OK_OP,
                request_id=request.request_id,
                body={**reply.body, **self.with_every_answer},
                frames=list(reply.frames),
            ),
        )

    def remember(self, key: tuple[bytes, int], reply: Reply) -> None:
        """What an earlier process answered to a request, which may come again."""
        peer, request_id = key
        message = Message(
            op=OK_OP, request_id=request_id, body=dict(reply.body), frames=list(reply.frames)
        )
        self._answers.finish(peer, request_id, message, keep=True)

    def refuse(self, request: Request, error: Exception) -> None:
        """Answer a request with an error, rebuilt on the other side as the same class."""
        self.refusals[type(error).__name__] += 1
        if isinstance(error, TransferQueueError) and self._access.sees_some_only(request.key_name):
            error = error.for_some_partitions()
        self._finish(
            request,
            Message(
                op=ERROR_OP, request_id=request.request_id, body=encode_error(error), frames=[]
            ),
        )

    def _finish(self, request: Request, answer: Message) -> bool:
        if request.op in self._handlers:  # not what a peer has made up: there is no end of those
            self.latencies.answered(request.op, time.monotonic() - request.received_s)
        try:
            frames = encode_message(answer)
        except TransferQueueError as error:  # too much for a header
            self.refusals[type(error).__name__] += 1
            answer = Message(op=ERROR_OP, request_id=answer.request_id, body=encode_error(error))
            frames = encode_message(answer)
        if self.spans is not None:
            self.spans.end(request.key, answer.body["cls"] if answer.op == ERROR_OP else "")
        self._answers.finish(*request.key, answer, keep=request.op in self._mutating)
        return self._send_frames(request.peer, frames)

    def send(self, peer: bytes, message: Message) -> None:
        """Send something that no request asked for, e.g. an order on a stream."""
        self._send(peer, message)

    def _send(self, peer: bytes, message: Message) -> bool:
        return self._send_frames(peer, encode_message(message))

    def _send_frames(self, peer: bytes, frames: Sequence[Buffer]) -> bool:
        # What goes to a peer that left is dropped: whoever lost an answer asks again.
        try:
            send_frames(self._router, [peer, *frames])
        except zmq.ZMQError as error:
            if error.errno != errno.EHOSTUNREACH:
                raise
            return False
        return True

    def close(self) -> None:
        """Close every socket. Idempotent."""
        if self._router.closed:
            return
        if self.spans is not None:
            self.spans.close()
        if self._door is not None:
            self._door.close()
        with self._pipe_lock:
            self._router.close()
            os.close(self._pipe_read)
            os.close(self._pipe_write)
        self._contexts.close_sockets()
        self._contexts.close()

"""Which libzmq context a socket belongs to.

Sockets over ``ipc://`` and ``tcp://`` belong to a context of whoever opened them, which goes with
them. Those over ``inproc://`` find one another in one context only: the servers and clients of a
service that runs within one process share it, and it goes with the last of them.

Terminating a context waits for its sockets, for ever. Those of a client that nobody closed, and
that is collected as part of a cycle (an exception's traceback makes one), are not closed by pyzmq:
it knows them by weak references, which are cleared before anything of a cycle is finalized. So
`Contexts` keeps its sockets itself, and closes them when it is forgotten.
"""

from __future__ import annotations

import os
import threading
import warnings
import weakref
from dataclasses import dataclass, field
from typing import Any

import zmq

from transferqueue.errors import Closed, ConfigError
from transferqueue.net.sockets import new_context

INPROC = "inproc://"


class _CopyingSocket(zmq.Socket[bytes]):
    """Within one process a frame that is sent without a copy is the sender's own memory: of a
    shard, bytes that it gives out again. Between processes the kernel copies."""

    def send(self, data: Any, flags: int = 0, copy: bool = True, **more: Any) -> Any:  # type: ignore[override] # noqa: FBT001, FBT002
        del copy
        return super().send(data, flags, copy=True, **more)


class _SharedContext(zmq.Context[_CopyingSocket]):
    _socket_class = _CopyingSocket


@dataclass(slots=True)
class _Shared:
    """The context of one service. It outlives the service while a client still has sockets."""

    context: zmq.Context[Any]
    pid: int
    num_users: int = 1
    is_served: bool = True


_lock = threading.RLock()  # a client may be collected, and so leave, while one is here
_shared: dict[str, _Shared] = {}
_ended: set[str] = set()
"""Services of this process that are no more, so that whoever comes late hears that."""


def open_inproc(name: str) -> None:
    """Make ``inproc://name/…`` addresses of this process, until `close_inproc`."""
    with _lock:
        _shared[name] = _Shared(_SharedContext(1), os.getpid())


def close_inproc(name: str) -> None:
    """The servers of these addresses are closed."""
    with _lock:
        _shared[name].is_served = False
        _ended.add(name)
    _leave(name)


def _join(name: str) -> zmq.Context[Any]:
    with _lock:
        shared = _shared.get(name)
        if name in _ended and (shared is None or not shared.is_served):
            raise Closed(f"the service at {INPROC}{name}")
        if shared is None or shared.pid != os.getpid():
            raise ConfigError(
                f"{INPROC}{name} is a service within the process that started it; serve without "
                f"in_process=True for other processes, forked ones among them"
            )
        shared.num_users += 1
        return shared.context


def _leave(name: str) -> None:
    """One user fewer; the context goes with the last."""
    with _lock:
        shared = _shared[name]
        shared.num_users -= 1
        if shared.num_users:
            return
        del _shared[name]
    shared.context.destroy(linger=0)


def inproc_name(endpoint: str) -> str | None:
    """The service of an ``inproc://`` endpoint; ``None`` for any other endpoint."""
    if not endpoint.startswith(INPROC):
        return None
    return endpoint.removeprefix(INPROC).partition("/")[0]


@dataclass(slots=True)
class _Opened:
    """What one `Contexts` has opened."""

    pid: int = field(default_factory=os.getpid)
    own: zmq.Context[Any] | None = None
    joined: dict[str, zmq.Context[Any]] = field(default_factory=dict)
    sockets: list[zmq.Socket[bytes]] = field(default_factory=list)

    def close_sockets(self, *, linger_ms: int | None) -> None:
        for socket in self.sockets:
            socket.close(linger=linger_ms)

    def end(self, *, linger_ms: int | None) -> None:
        """Terminate one's own context, and be one user fewer of the others. Once."""
        own, self.own = self.own, None
        joined, self.joined = self.joined, {}
        self.sockets = []
        if own is not None:
            own.destroy(linger=linger_ms)
        for name in joined:
            _leave(name)

    def forgotten(self) -> None:
        """Nobody has the `Contexts` any more, so no thread uses a socket of it. Whichever thread
        collects it is here, so nothing may be waited for."""
        if os.getpid() != self.pid or not (self.own or self.joined):
            return  # closed, or a forked child's copy, which is not the child's to close
        self.close_sockets(linger_ms=0)
        self.end(linger_ms=0)
        warnings.warn("a client was never closed", ResourceWarning, stacklevel=2)


class Contexts:
    """Those that one server or client needs. Any thread may ask and close.

    One that is forgotten closes by itself, but not at the end of the interpreter: other threads may
    be in a call then, and the kernel closes everything.
    """

    def __init__(self) -> None:
        self._opened = _Opened()
        self._lock = threading.Lock()
        self._closed = False
        weakref.finalize(self, self._opened.forgotten).atexit = False

    def of(self, endpoint: str) -> zmq.Context[Any]:
        """The one for a socket to or at this endpoint. ConfigError for an ``inproc://`` endpoint
        of another process, Closed for one that has been closed."""
        name, opened = inproc_name(endpoint), self._opened
        with self._lock:
            if self._closed:
                raise Closed("the client")
            if name is None:
                if opened.own is None:
                    opened.own = new_context()
                return opened.own
            if name not in opened.joined:
                opened.joined[name] = _join(name)
            elif name in _ended:
                raise Closed(f"the service at {INPROC}{name}")
            return opened.joined[name]

    def keep(self, socket: zmq.Socket[bytes]) -> zmq.Socket[bytes]:
        """Every socket that was made in a context of these, so that none is left open."""
        with self._lock:
            held = [one for one in self._opened.sockets if not one.closed]
            self._opened.sockets = [*held, socket]
        return socket

    def close_sockets(self) -> None:
        """For whoever is the only thread that uses them."""
        self._opened.close_sockets(linger_ms=None)

    def close(self) -> None:
        """Close what sockets of one's own are left. Idempotent; those that are shared are closed by
        whoever opened them, before this."""
        with self._lock:
            self._closed = True
            self._opened.end(linger_ms=None)

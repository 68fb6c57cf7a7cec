"""Which libzmq context a socket belongs to.

Sockets over ``ipc://`` and ``tcp://`` belong to a context of whoever opened them, which goes with
them. Those over ``inproc://`` find one another in one context only: the servers and clients of a
service that runs within one process share it, and it goes with the last of them.
"""

from __future__ import annotations

import os
import threading
from dataclasses import dataclass
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


_lock = threading.Lock()
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


class Contexts:
    """Those that one server or client needs. Any thread may ask and close."""

    def __init__(self) -> None:
        self._own: zmq.Context[Any] | None = None
        self._joined: dict[str, zmq.Context[Any]] = {}
        self._lock = threading.Lock()
        self._closed = False

    def of(self, endpoint: str) -> zmq.Context[Any]:
        """The one for a socket to or at this endpoint. ConfigError for an ``inproc://`` endpoint
        of another process, Closed for one that has been closed."""
        name = inproc_name(endpoint)
        with self._lock:
            if self._closed:
                raise Closed("the client")
            if name is None:
                if self._own is None:
                    self._own = new_context()
                return self._own
            if name not in self._joined:
                self._joined[name] = _join(name)
            elif name in _ended:
                raise Closed(f"the service at {INPROC}{name}")
            return self._joined[name]

    def close(self) -> None:
        """Close what sockets of one's own are left. Idempotent; those that are shared are closed by
        whoever opened them, before this."""
        with self._lock:
            self._closed = True
            own, self._own = self._own, None
            joined, self._joined = self._joined, {}
        if own is not None:
            own.destroy(linger=None)
        for name in joined:
            _leave(name)

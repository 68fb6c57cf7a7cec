"""How a view reaches the service that holds its columns, here and in another process.

A view keeps the client that made it. A pickle of it carries what `connect` needs to get one like
it and no key: the process that unpickles finds the key as any client of its own does. It makes
one client a service, at the first touch, and shares it among all views that came by pickle. So
does a forked process, a data loader's worker say, for the views that it inherited.
"""

from __future__ import annotations

import asyncio
import atexit
import os
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

from transferqueue.errors import NoService, WrongService

if TYPE_CHECKING:
    from collections.abc import Sequence

    from transferqueue.client.async_client import AsyncClient
    from transferqueue.client.operations import Operations
    from transferqueue.client.sync_client import Client
    from transferqueue.handle import BatchHandle

Columns: TypeAlias = "dict[str, Any]"
"""Field -> tensor or array, as `Client.get_columns` gives them."""

_IPC = "ipc://"


class Connection:
    """A client of one service, or what it takes to have one."""

    __slots__ = ("_awaited", "_blocking", "_pid", "_way", "service_id")

    def __init__(
        self,
        service_id: str,
        way: Mapping[str, Any] | Operations,
        *,
        blocking: Client | None = None,
        awaited: AsyncClient | None = None,
    ) -> None:
        """``way``: arguments of `connect`, plain values, or who has them when they are wanted; see
        `Operations.connect_arguments`."""
        self.service_id = service_id
        self._way = way
        self._blocking = blocking
        self._awaited = awaited
        self._pid = os.getpid()

    @classmethod
    def of_client(cls, client: Client, operations: Operations) -> Connection:
        """For views that fetch through ``client``."""
        return cls(operations.service_id, operations, blocking=client)

    @classmethod
    def of_async_client(cls, client: AsyncClient, operations: Operations) -> Connection:
        """For views that are awaited. A touch of what was not awaited before blocks the event
        loop while a client of this process, made for that, fetches it."""
        return cls(operations.service_id, operations, awaited=client)

    def client(self) -> Client:
        """A client whose calls block. The first call may connect, with `connect`'s errors."""
        if self._blocking is not None and self._is_mine:
            return self._blocking
        return _process_clients.get(self.service_id, tuple(sorted(self._arguments.items())))

    @property
    def _arguments(self) -> Mapping[str, Any]:
        way = self._way
        return way if isinstance(way, Mapping) else way.connect_arguments

    @property
    def _is_mine(self) -> bool:
        """Whether this process, not one that it was forked from, made the client given."""
        return self._pid == os.getpid()

    async def get_columns(
        self, handle: BatchHandle, fields: Sequence[str], **where: Any
    ) -> Columns:
        """As `Client.get_columns`, awaited, whichever client there is. ``where``: its ``device``,
        if it is not that of the client."""
        if self._awaited is not None and self._is_mine:
            return await self._awaited.get_columns(handle, fields=fields, **where)
        get = self.client().get_columns
        return await asyncio.to_thread(get, handle, fields=fields, **where)

    async def put(self, columns: Columns, handle: BatchHandle, *, overwrite: bool) -> BatchHandle:
        """As `Client.put`, awaited, whichever client there is."""
        if self._awaited is not None and self._is_mine:
            return await self._awaited.put(columns, handle=handle, overwrite=overwrite)
        put = self.client().put
        return await asyncio.to_thread(put, columns, handle=handle, overwrite=overwrite)

    def __reduce__(self) -> tuple[Any, ...]:
        return Connection, (self.service_id, dict(self._arguments))


class _ProcessClients:
    """The clients that views from elsewhere share, one a service, until the process ends."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._watches_forks = False
        self._clients: dict[tuple[Any, ...], Client] = {}

    def get(self, service_id: str, arguments: tuple[tuple[str, Any], ...]) -> Client:
        key = (os.getpid(), service_id, arguments)  # sockets do not survive a fork
        with self._lock:
            if not self._watches_forks:  # a thread that does not live on may hold the lock
                os.register_at_fork(after_in_child=self._renew_lock)
                self._watches_forks = True
            if not self._clients:
                atexit.register(self.close)
            if key not in self._clients:
                self._clients[key] = _connect(service_id, dict(arguments))
            return self._clients[key]

    def _renew_lock(self) -> None:
        self._lock = threading.Lock()

    def close(self) -> None:
        with self._lock:
            atexit.unregister(self.close)
            clients, self._clients = self._clients, {}
        for (pid, *_), client in clients.items():
            if pid == os.getpid():
                client.close()


_process_clients = _ProcessClients()


def close_process_clients() -> None:
    """Close the clients made for views that came by pickle. A later touch connects again."""
    _process_clients.close()


def _connect(service_id: str, arguments: dict[str, Any]) -> Client:
    """A client of that very service: at the address it had where the view was made, or, where
    that is a Unix socket of another host, at the address this process is configured with."""
    from transferqueue.client.connecting import connect

    address = str(arguments.pop("address"))
    is_elsewhere = address.startswith(_IPC) and not Path(address[len(_IPC) :]).exists()
    try:
        client = connect(None if is_elsewhere else address, **arguments)
    except NoService as error:
        raise NoService([f"{address} (not on this host)", *error.args[0]]) from error
    if client.service_id != service_id:
        client.close()
        raise WrongService(service_id, client.service_id)
    return client

"""Memory that a shard has opened to the transports of clients, by the put or get that it is for."""

from __future__ import annotations

import contextlib
import logging
import secrets
from typing import TYPE_CHECKING, Any, Self

from transferqueue.closing import Closing
from transferqueue.errors import TransportFailed
from transferqueue.transports.base import EndConfig
from transferqueue.transports.registry import load_transport
from transferqueue.wire.window import OpenWindow

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from transferqueue.backends.several import SeveralBackends
    from transferqueue.shard.store import Reservation
    from transferqueue.transports.base import ShardEnd
    from transferqueue.wire.chunks import Runs

    Opened = list[Any] | str | None
    """As it is answered: an `OpenWindow`, or why the transport has failed, or nothing."""

MAX_PIECES = 4096
"""Bytes in more pieces go in chunks, which bring them together first."""

_log = logging.getLogger(__name__)


class Windows(Closing):
    """The shard's ends of all transports that its service was started with, by name."""

    def __init__(self, ends: Mapping[str, ShardEnd], backend: SeveralBackends) -> None:
        self._ends = dict(ends)
        self._backend = backend
        self._process = secrets.token_hex(8)
        self._tickets: dict[tuple[str, int], tuple[ShardEnd, bytes]] = {}

    @classmethod
    def opened(
        cls,
        backend: SeveralBackends,
        transports: Mapping[str, Mapping[str, Any]],
        *,
        service_id: str,
        slot: int,
        endpoints: Sequence[str],
        encrypt: bool,
    ) -> Self:
        """``transports``: options by name. `ConfigError` for one that cannot be; none is left open
        then."""
        windows = cls({}, backend)
        try:
            for name, options in transports.items():
                config = EndConfig(
                    service_id=service_id,
                    slot=slot,
                    host=_host_of(endpoints),
                    directory=_directory_of(endpoints),
                    encrypt=encrypt,
                    options=options,
                )
                windows._ends[name] = load_transport(name).open_shard_end(config)
        except BaseException:
            windows.close()
            raise
        return windows

    @property
    def facts(self) -> dict[str, dict[str, Any]]:
        """What clients are told of each transport."""
        return {name: dict(end.facts) for name, end in self._ends.items()}

    def to_read(self, transport: object, lease_id: int, columns: Iterable[Runs]) -> Opened:
        """One to all these bytes, which a lease holds, one column after the other. ``None``:
        they do not lie in memory, or not in few pieces, or the transport is not there."""
        runs = list(columns)
        num_pieces = sum(len(column.starts) for column in runs)
        if transport not in self._ends or num_pieces > MAX_PIECES:
            return None
        if not all(self._backend.lies_in_memory(column.starts) for column in runs):
            return None
        pieces = [
            self._backend.readable(start, size)
            for column in runs
            for start, size in zip(column.starts.tolist(), column.sizes.tolist(), strict=True)
        ]
        return self._open(str(transport), ("get", lease_id), pieces, writable=False)

    def to_write(self, transport: object, reservation: Reservation) -> Opened:
        """One to the place of all columns of a put, one after the other."""
        if transport not in self._ends:
            return None
        if not self._backend.lies_in_memory(reservation.addresses):
            return None
        sizes = [column.nbytes for column in reservation.plan.columns]
        pieces = [
            self._backend.writable(address, size)
            for address, size in zip(reservation.addresses.tolist(), sizes, strict=True)
            if size
        ]
        return self._open(str(transport), ("put", reservation.put_id), pieces, writable=True)

    def _open(
        self, name: str, key: tuple[str, int], pieces: Sequence[memoryview], *, writable: bool
    ) -> Opened:
        end = self._ends[name]
        if key not in self._tickets:  # else the first answer was lost
            try:
                self._tickets[key] = end, end.open_window(pieces, writable=writable)
            except TransportFailed as error:
                _log.warning("%s", error)
                return str(error.args[1])
        ticket = self._tickets[key][1]
        return OpenWindow(ticket=ticket, process=self._process, facts=end.facts).to_plain()

    def has_put(self, put_id: int) -> bool:
        """Whether the bytes of a put may come through a window."""
        return ("put", put_id) in self._tickets

    def settle_put(self, put_id: int) -> None:
        """All that was written is in its place, and nothing is from here on. `TransportFailed`."""
        self._close(("put", put_id))

    def close_put(self, put_id: int) -> None:
        """Nothing writes to its memory from here on."""
        self._let_go(("put", put_id))

    def close_get(self, lease_id: int) -> None:
        """Nothing reads what its lease held from here on."""
        self._let_go(("get", lease_id))

    def _let_go(self, key: tuple[str, int]) -> None:
        with contextlib.suppress(TransportFailed):  # what was written is of no interest
            self._close(key)

    def _close(self, key: tuple[str, int]) -> None:
        found = self._tickets.pop(key, None)
        if found is not None:
            found[0].close_window(found[1])

    def close(self) -> None:
        for key in list(self._tickets):
            self._let_go(key)
        for end in self._ends.values():
            end.close()


def _host_of(endpoints: Iterable[str]) -> str | None:
    for endpoint in endpoints:
        if endpoint.startswith("tcp://"):
            return endpoint.removeprefix("tcp://").rpartition(":")[0].strip("[]")
    return None


def _directory_of(endpoints: Iterable[str]) -> str | None:
    for endpoint in endpoints:
        if endpoint.startswith("ipc://"):
            return endpoint.removeprefix("ipc://").rpartition("/")[0]
    return None

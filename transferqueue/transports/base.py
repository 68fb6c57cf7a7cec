"""The contract of a way for bytes between a shard and clients of other hosts. For implementers.

Where it stands. A pair of client and shard takes the first of these that it can::

    mapped memory   >   the transport of the highest ``quality``   >   chunks over a socket

A transport moves the bytes of puts and gets of more than 1 MiB, and nothing else: who may do what,
deadlines, leases, readiness and small columns stay with the requests. So it cannot lose a row. It
may fail at any time: the same bytes then go in chunks, over the socket of the requests, and
`Client.links` says why. ``tq.connect(transport="mine")`` makes it an error instead.

A **window** is some memory of a shard, opened for one put or one get. The shard's end opens it and
gives a **ticket**; the ticket reaches the client in the answer to its request, over the encrypted
socket; the client's end reads or writes any part of the window with it. Offsets count through the
pieces of a window, end to end. The shard closes the window when the put is committed or given up,
or the get is done with or given up, and only then uses the memory for anything else. RDMA, a
user-space stack or a second network have all of it already: a memory region, its key, one-sided
reads and writes.

::

    shard:   open_shard_end ──> open_window ──────────────────────────> close_window ──> close
    client:           open_client_end ──> read / write, any part, any order, again ──> close

What must hold:

=========================  =======================================================================
``open_shard_end`` raised  nothing is left: no file, no descriptor, no thread. `ConfigError` names
                           the package, device or port that is missing
``facts``                  plain values of at most 4 KiB, that name no secret: every client sees
                           them. They do not change
``why_not``                says in one sentence why this process cannot; quick, without side
                           effects, never raises
``open_window``            a ticket of at most 256 bytes that cannot be guessed: whoever has it has
                           the memory. `TransportFailed` when there is none to be had
``close_window`` returned  no byte of the memory is read or written through this window ever after,
                           whatever the client does; what ``write`` has reported done is there. It
                           returns within a second though a client hangs in the middle, and does
                           nothing for a ticket that is not known
``close_window`` raised    `TransportFailed`: the same, but what ``write`` has reported done may not
                           be there, and the put fails
``read`` returned          ``out`` is full of the window's bytes. Never fewer, never others
``write`` returned         the bytes are in the window, once it is closed
``read``, ``write`` raised `TransportFailed`, at the latest ``timeout_s`` after the call. ``out`` or
                           that part of the window hold anything; a later call may work again
a window that is closed,   `TransportFailed`, and not a byte has moved
never was, is only to be
read, or ends before
a client was killed        its windows stay, other clients are served
the shard's end closed     every call of clients that is under way raises
=========================  =======================================================================

The thread of the shard makes all calls of its end, and they return within milliseconds: bytes are
moved by threads of the transport's own, or by hardware. The client's end is called from any thread,
several at a time. Neither end survives a fork.

`transferqueue.testing.check_transport` runs all of this, with a client that is killed among it.
``examples/own_transport.py`` is a whole one. A package makes its transport known by an entry point,
``tq.serve(transports={"mine": {}})`` has every shard open its end, and clients that have the
package find it::

    [project.entry-points."transferqueue.transports"]
    mine = "mypackage.transport:MyTransport"

What is not pluggable, and why. *Mapped memory* is not a way for bytes but the absence of one: a get
hands out the shard's own pages, so leases, copy-on-write and the kernel's page tables are its
contract, and `transferqueue.backends` says which memory can be mapped. *Ways to a device* are
chosen by facts of two drivers (`transferqueue.devices.ladder`), and the device is the plug point
there. *Chunks over a socket* share the requests' order, credit and encryption, and are what all
others fall back to. One interface over all four would be the union of what each needs.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from transferqueue.closing import Closing

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

MAX_TICKET_BYTES = 256
MAX_FACTS_BYTES = 4096


@dataclass(frozen=True, slots=True, kw_only=True)
class EndConfig:
    """What a shard tells its end of a transport."""

    service_id: str
    slot: int
    host: str | None = None
    """The interface on which other hosts reach the service; ``None``: it serves this host only."""
    directory: str | None = None
    """A folder that only this user can enter, for sockets; ``None``: there is none."""
    encrypt: bool = True
    """Whether bytes must not go over a network in the clear. One that cannot encrypt refuses to
    open with ``host``: `ConfigError`."""
    options: Mapping[str, Any] = field(default_factory=dict)
    """Settings of one transport alone, by name."""


class ShardEnd(Closing):
    """A shard's end."""

    @property
    @abstractmethod
    def facts(self) -> Mapping[str, Any]:
        """What a client needs to know to reach it."""

    @abstractmethod
    def open_window(self, pieces: Sequence[memoryview], *, writable: bool) -> bytes:
        """Show this memory to whoever has the ticket that is returned. ``pieces``: format ``B``,
        contiguous, end to end; they stay valid and, unless ``writable``, unchanged until
        ``close_window``."""

    @abstractmethod
    def close_window(self, ticket: bytes) -> None:
        """Let go of its memory. `TransportFailed` when what was written is not there."""


class ClientEnd(Closing):
    """A client's end, to one shard."""

    @abstractmethod
    def read(self, ticket: bytes, offset: int, out: memoryview, *, timeout_s: float) -> None:
        """Fill ``out`` (format ``B``, contiguous) from the window's byte ``offset`` on."""

    @abstractmethod
    def write(self, ticket: bytes, offset: int, data: memoryview, *, timeout_s: float) -> None:
        """Copy ``data`` (format ``B``, contiguous) to the window's byte ``offset`` on."""


class WindowTransport(ABC):
    """A way for bytes: both of its ends. Never instantiated."""

    quality: int = 50
    """Of several that a pair has in common the highest is taken. From 0, which is chunks over a
    socket, to 100, mapped memory, neither included."""

    @classmethod
    @abstractmethod
    def open_shard_end(cls, config: EndConfig) -> ShardEnd:
        """`ConfigError` when that cannot be."""

    @classmethod
    @abstractmethod
    def why_not(cls, facts: Mapping[str, Any]) -> str:
        """Why this process cannot reach a shard's end with these ``facts``; "" when it can."""

    @classmethod
    @abstractmethod
    def open_client_end(cls, facts: Mapping[str, Any]) -> ClientEnd:
        """Ready to read and write. `TransportFailed`."""

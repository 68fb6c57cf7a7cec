"""Who may ask for what: the keys of a service by name, and the requests that each may make.

Three kinds of key. A **client** key may do everything that a client does. A **reader** key looks
and never changes anything, at all partitions or at some. The **process** key is the service's own:
only with it one is a shard towards the coordinator.

Keys are asked for over TCP. A peer on this host comes by a socket in a folder that only this user
can enter, and may do everything: it could as well read the keys there.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Any, Final

from transferqueue.errors import NotAllowed, TooManyRequests
from transferqueue.net.request_rate import RequestRate
from transferqueue.wire import ops

if TYPE_CHECKING:
    from collections.abc import Mapping


class Role(StrEnum):
    """What a key is for."""

    CLIENT = "client"
    READER = "reader"
    PROCESS = "process"


@dataclass(frozen=True, slots=True, kw_only=True)
class Grant:
    """One key of a service: a CURVE pair in Z85, and what its holder may do."""

    name: str
    role: Role
    public: str
    secret: str
    partitions: tuple[str, ...] | None = None
    """Those that a reader may look at; ``None``: all."""

    def __repr__(self) -> str:
        return f"Grant({self.name!r}, {self.role})"


_OF_SHARDS: Final = frozenset(
    {
        ops.REGISTER,
        ops.EVENT,
        ops.ADMIT,
        ops.RETURN_ROOM,
        ops.JOIN,
        ops.STEP_DONE,
        ops.WHERE_COPY,
        ops.COPY,
        ops.FETCH_COPY,
    }
)
_LOOKING_AT_ALL: Final = frozenset({ops.STATUS, ops.HELD, ops.STORED, ops.WAITS})
_LOOKING_AT_ONE: Final = frozenset(
    {ops.GET, ops.WAIT, ops.SELECT, ops.POLICY, ops.DEAD_LETTERS, ops.DESCRIBE, ops.PICTURE}
)
_GOING_ON: Final = frozenset({ops.HELLO, ops.READ, ops.READ_DONE})
"""``read`` and ``read_done`` name a lease, which is there for the key alone that asked for it."""


READER_REQUESTS_PER_S = 200.0
"""Of one read key, at one process of the service. To describe a partition of 1,000,000 samples
holds the coordinator for milliseconds, and whoever only looks is not to stop those who train. The
chunks of a get are part of it."""
READER_BURST = 400.0


class Access:
    """The keys of one service, by name. A peer without a name is of this host."""

    def __init__(self, grants: Mapping[str, Grant]) -> None:
        self._grants = dict(grants)
        self._rates = {
            name: RequestRate(per_s=READER_REQUESTS_PER_S, burst=READER_BURST)
            for name, grant in grants.items()
            if grant.role is Role.READER
        }

    def is_reader(self, name: str | None) -> bool:
        """Whether the holder of a key may look and no more."""
        return name is not None and self._grants[name].role is Role.READER

    def sees_some_only(self, name: str | None) -> bool:
        """Whether the holder of a key may know of some partitions, and of no others."""
        return name is not None and self._grants[name].partitions is not None

    def check(self, name: str | None, op: str, body: Mapping[str, Any], now_s: float) -> None:
        """`NotAllowed` unless the holder of this key may ask for this; `TooManyRequests` when it
        may not so soon."""
        if name is None:
            return
        grant = self._grants[name]
        if grant.role is Role.PROCESS:
            return
        if op in _OF_SHARDS:
            raise NotAllowed(name, op, "only the service's own processes")
        if grant.role is Role.READER:
            _check_reader(grant, op, body)
            if op not in _GOING_ON and not self._rates[name].take(now_s):
                raise TooManyRequests(name, READER_REQUESTS_PER_S)


def _check_reader(grant: Grant, op: str, body: Mapping[str, Any]) -> None:
    if op in _GOING_ON:
        return
    if op in _LOOKING_AT_ONE:
        partition = body.get("partition")
        if grant.partitions is not None and partition not in grant.partitions:
            raise NotAllowed(grant.name, op, f"reads {', '.join(grant.partitions)} only")
        return
    if op not in _LOOKING_AT_ALL:
        raise NotAllowed(grant.name, op, "reads only")
    if grant.partitions is not None:
        raise NotAllowed(grant.name, op, f"it tells of more than {', '.join(grant.partitions)}")

"""Bytes over a plain socket beside that of the requests: the built-in transport.

A thread of the shard sends straight from the arena, and the client receives straight into the
tensor, without messages between. Over a network they are encrypted (`sealing`), unless the service
was started with ``encrypt=False``; on one host, for processes that cannot map the arena, it is a
Unix socket.

Whoever does not show that it has a ticket of an open window is refused and cut off, and so is who
says nothing for `STRANGER_S` before it has.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from transferqueue.errors import ConfigError
from transferqueue.process_id import boot_id
from transferqueue.transports import sealing
from transferqueue.transports.base import ClientEnd, EndConfig, ShardEnd, WindowTransport
from transferqueue.transports.socket_client import SocketClientEnd
from transferqueue.transports.socket_shard import NAME, SocketShardEnd

if TYPE_CHECKING:
    from collections.abc import Mapping


class SocketTransport(WindowTransport):
    """Option: ``port``, 0 for any."""

    quality = 10

    @classmethod
    def open_shard_end(cls, config: EndConfig) -> ShardEnd:
        unknown = set(config.options) - {"port"}
        if unknown:
            raise ConfigError(f"transport {NAME!r} has no options {sorted(unknown)}")
        return SocketShardEnd(config)

    @classmethod
    def why_not(cls, facts: Mapping[str, Any]) -> str:
        path = facts.get("path")
        if path is None:
            if "host" not in facts:
                return "the shard says nothing of where it listens"
            return sealing.why_not() if facts.get("sealed") else ""
        if facts.get("boot_id") != boot_id():
            return "the shard serves its own host only"
        return "" if Path(str(path)).exists() else f"{path} is not here"

    @classmethod
    def open_client_end(cls, facts: Mapping[str, Any]) -> ClientEnd:
        return SocketClientEnd(facts)

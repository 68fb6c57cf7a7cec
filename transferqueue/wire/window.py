"""A way to bytes of a put or get that a shard has opened for one of a client's transports."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from transferqueue.errors import Malformed

if TYPE_CHECKING:
    from collections.abc import Mapping


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenWindow:
    """As a shard answers it. A client may not have heard yet that the shard was started again, and
    so elsewhere: what it needs to get there comes along."""

    ticket: bytes = field(repr=False)
    process: str
    """Of the shard, unlike any other."""
    facts: Mapping[str, Any]
    """Of its end, as the transport has them."""

    def to_plain(self) -> list[Any]:
        return [self.ticket, self.process, dict(self.facts)]

    @classmethod
    def from_plain(cls, plain: Any) -> OpenWindow:
        """`Malformed` for anything else."""
        match plain:
            case [bytes() | memoryview() as ticket, str() as process, dict() as facts]:
                return cls(ticket=bytes(ticket), process=process, facts=facts)
        raise Malformed("a window is a ticket, a process and facts")

"""A long-lived one-way stream of numbered events from one server to another."""

from __future__ import annotations

from typing import TYPE_CHECKING

from transferqueue.net.sockets import connect_dealer, receive_or_none, send_or_drop

if TYPE_CHECKING:
    from transferqueue.net.contexts import Contexts
    from transferqueue.net.keys import ClientKeys
    from transferqueue.wire.format import Message


class StreamSender:
    """The sending end: a DEALER on the sender's own poll loop. Order and resending are decided
    by the sender's outbox; this only carries messages both ways."""

    def __init__(
        self,
        contexts: Contexts,
        endpoint: str,
        keys: ClientKeys | None,
    ) -> None:
        self.socket = contexts.keep(connect_dealer(contexts.of(endpoint), endpoint, keys))

    def send(self, message: Message) -> None:
        """Send, or drop it when there is no connection left: the outbox sends it again."""
        send_or_drop(self.socket, message)

    def receive(self) -> Message | None:
        """The next message that has arrived, or ``None``."""
        return receive_or_none(self.socket)

    def close(self) -> None:
        self.socket.close()

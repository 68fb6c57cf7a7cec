"""Clients that ask who is here, and wait until every shard that was started has come."""

from __future__ import annotations

from typing import TYPE_CHECKING

from transferqueue.net.server import Reply, Request, Server
from transferqueue.wire.format import VERSION

if TYPE_CHECKING:
    from transferqueue.coordinator.shard_links import ShardLinks
    from transferqueue.homes import Homes


class Greetings:
    """Answers with the directory of the service."""

    def __init__(
        self,
        *,
        service_id: str,
        incarnation: str,
        num_shards: int,
        links: ShardLinks,
        homes: Homes,
    ) -> None:
        self._service_id = service_id
        self._incarnation = incarnation
        self._num_shards = num_shards
        self._links = links
        self._homes = homes
        self._waiting: list[Request] = []

    @property
    def are_all_here(self) -> bool:
        """Whether every shard that was started has come and told what it holds."""
        return self._links.are_settled(self._num_shards)

    def hello(self, request: Request) -> Reply | None:
        if not self.are_all_here:
            self._waiting.append(request)
            return None
        return self._directory(request)

    def cancel(self, key: tuple[bytes, int]) -> None:
        """The client gave the request up."""
        self._waiting = [request for request in self._waiting if request.key != key]

    def answer(self, server: Server) -> None:
        """All are here."""
        waiting, self._waiting = self._waiting, []
        for request in waiting:
            server.reply(request, self._directory(request))

    def _directory(self, request: Request) -> Reply:
        shards = self._links.directory()
        if request.is_reader:  # it is lent no memory
            shards = [{**shard, "arena": None} for shard in shards]
        return Reply(
            body={
                "service_id": self._service_id,
                "version": VERSION,
                "incarnation": self._incarnation,
                "homes": self._homes.to_plain(),
                "shards": shards,
            }
        )

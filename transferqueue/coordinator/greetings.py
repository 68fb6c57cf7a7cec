"""Clients that ask who is here, and wait until every shard that was started has come, or until
what they know is not the newest any more."""

from __future__ import annotations

from typing import TYPE_CHECKING

from transferqueue.coordinator.parked import ParkedRequests
from transferqueue.net.server import Reply, Request, Server
from transferqueue.wire.format import VERSION

if TYPE_CHECKING:
    from collections.abc import Callable

    from transferqueue.coordinator.shard_links import ShardLinks
    from transferqueue.homes import Homes


class Greetings:
    """Answers with the directory of the service. ``probe``: see `ParkedRequests`."""

    def __init__(
        self,
        *,
        service_id: str,
        incarnation: str,
        num_shards: int,
        links: ShardLinks,
        homes: Homes,
        probe: Callable[[Request], bool],
    ) -> None:
        self._service_id = service_id
        self._incarnation = incarnation
        self._num_shards = num_shards
        self._links = links
        self._homes = homes
        self._parked = ParkedRequests(probe)

    @property
    def are_all_here(self) -> bool:
        """Whether every shard that was started has come and told what it holds."""
        return self._links.are_settled(self._num_shards)

    def hello(self, request: Request) -> Reply | None:
        """Body: ``unless``: the epoch of the directory that the client has; there is no answer
        while that is the newest."""
        if self._is_due(request):
            return self._directory(request)
        self._parked.add(request)
        return None

    def _is_due(self, request: Request) -> bool:
        return self.are_all_here and request.body.get("unless") != self._links.epoch

    def cancel(self, key: tuple[bytes, int]) -> None:
        """The client gave the request up."""
        self._parked.pop(key)

    def answer(self, server: Server) -> None:
        """Something is new: a shard has come, is gone or is to be reached in another way."""
        for request in [one for one in self._parked if self._is_due(one)]:
            self._parked.pop(request.key)
            server.reply(request, self._directory(request))

    def gone(self, now_s: float) -> list[Request]:
        """See `ParkedRequests.gone`."""
        return self._parked.gone(now_s)

    def next_s(self) -> float | None:
        """When `gone` has something to do."""
        return self._parked.next_s()

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
                "lost": sorted(self._links.lost),
            }
        )

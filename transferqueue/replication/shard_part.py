"""All that a shard does for second copies: of its own rows, as their home, and as a guard."""

from __future__ import annotations

import logging
import math
import time
from typing import TYPE_CHECKING, Any

from transferqueue.net.listening import ListeningProbe
from transferqueue.process_id import boot_id, this_process
from transferqueue.replication.guard_link import Guard, GuardLink
from transferqueue.replication.home import TwoCopies
from transferqueue.replication.keeper import Keeper
from transferqueue.replication.mirror_gets import MirrorGets
from transferqueue.replication.on_record import OnRecord
from transferqueue.replication.settings import GuardAddress

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from transferqueue.backends.several import SeveralBackends
    from transferqueue.net.keys import ServiceKeys
    from transferqueue.net.server import Handler, Server
    from transferqueue.net.stream import StreamSender
    from transferqueue.replication.changes import Key
    from transferqueue.replication.settings import CopySettings
    from transferqueue.shard.peers import MappingPeers
    from transferqueue.shard.store import Committed, Store

ASK_AGAIN_S = 0.1
"""While there is no guard yet, or the coordinator lets its reads end first (`ReliedOn`)."""

_log = logging.getLogger(__name__)


class ShardPart:
    """``copies`` is what the shard's changes pass through. ``untold``: see `TwoCopies`.
    ``on_free`` hears that space came free, ``on_news`` that the coordinator is to be told soon what
    `beat` says."""

    def __init__(
        self,
        settings: CopySettings,
        *,
        server: Server,
        keys: ServiceKeys | None,
        store: Store,
        backend: SeveralBackends,
        peers: MappingPeers,
        epoch: int,
        answers: Mapping[Key, list[Any]],
        unsent: Callable[[], Sequence[Committed]],
        num_unsent: Callable[[], int],
        on_free: Callable[[], None],
        on_news: Callable[[], None],
    ) -> None:
        self._server = server
        self._keys = keys
        self._epoch = epoch
        self._on_free = on_free
        self._on_news = on_news
        self._ask_s = math.inf
        """When to ask the coordinator again."""
        self._has_freed = False
        self._address: GuardAddress | None = None
        self._stream: StreamSender | None = None
        self._record = OnRecord(on_news)
        self.copies = TwoCopies(
            store,
            answers=lambda: answers,
            tagged=unsent,
            send=lambda: self._link.send(),
            on_free=self._note_free,
            lost_sight=lambda: self._link.lost_sight(),
            completed=lambda: self._link.complete(),
        )
        self._link = GuardLink(
            slot=store.slot,
            epoch=epoch,
            backend=backend,
            copies=self.copies,
            arena=backend.client_access(),
            owner=this_process().to_plain(),
            bytes_per_s=settings.bytes_per_s,
            silence_s=settings.silence_s,
            num_untold=num_unsent,
            on_record=self._record,
        )
        self._keeper = Keeper(backend=backend, choice=store.choice, epoch=epoch, on_free=on_free)
        self._gets = MirrorGets(
            self._keeper,
            server=server,
            backend=backend,
            peers=peers,
            on_free=on_free,
            on_asked=on_news,
        )

    def kept_bytes(self, number: int) -> int:
        """What mirrors take of the backend of this number."""
        return self._keeper.used_bytes(number)

    def handlers(self, own: Mapping[str, Handler]) -> dict[str, Handler]:
        """``own``: those for gets of the shard's own rows."""
        return {**self._keeper.handlers, **self._gets.beside(own)}

    def cancel(self, key: Key) -> None:
        """A client gave a request up."""
        self._gets.cancel(key)

    # -- the coordinator ------------------------------------------------------------------------

    def beat(self) -> dict[str, Any]:
        """What a heartbeat says of second copies."""
        return {
            "epoch": self._epoch,
            "record": self._record.to_plain(),
            "relied_on": self._gets.asked_for(),
        }

    def hear(self, said: Mapping[str, Any], asked_s: float) -> None:
        """What the coordinator says: who the guard is, what it has on record, which mirrors may be
        read, and which are to be kept. ``asked_s``: when the heartbeat was sent that it answers."""
        guard = said["guard"]
        if guard is None or guard["endpoints"]:  # else it has not come to a coordinator that is new
            self._attach(None if guard is None else self._address_of(guard))
        if said["recorded"] is not None:
            self._record.hear(int(said["recorded"]))
        self._gets.hear(said["relied_on"], asked_s)
        self._keeper.keep_only(said["kept"])
        is_waiting = guard is None or self._record.is_asking_for_none
        self._ask_s = asked_s + ASK_AGAIN_S if is_waiting else math.inf

    def _address_of(self, guard: Mapping[str, Any]) -> GuardAddress | None:
        try:
            return GuardAddress.from_plain(guard, boot_id=boot_id())
        except LookupError as error:
            _log.error("no way to the shard that is to keep second copies: %s", error)
            return None

    def _attach(self, address: GuardAddress | None) -> None:
        if address == self._address:
            return
        self._detach()
        self._address = address
        if address is None:
            self._link.attach(None, time.monotonic())
            return
        stream = self._stream = self._server.open_stream(address.endpoint, self._keys)
        probe = ListeningProbe(address.endpoint)
        guard = Guard(slot=address.slot, stream=stream, is_there=probe.is_there)
        self._link.attach(guard, time.monotonic())
        self._server.watch(stream.socket, self._link.hear)
        self._link.tick(time.monotonic())

    def _detach(self) -> None:
        if self._stream is not None:
            self._server.unwatch(self._stream.socket)
            self._stream.close()
            self._stream = None

    # -- time -----------------------------------------------------------------------------------

    def tick(self, now_s: float) -> None:
        self._link.tick(now_s)
        self._gets.tick(now_s)
        if now_s >= self._ask_s:
            self._ask_s = math.inf
            self._on_news()
        if self._has_freed:
            self._has_freed = False
            self._on_free()

    def _note_free(self) -> None:
        """A change was made, perhaps on the occasion of a put that had waited: others are let in
        after it, by `tick`, which is called before the loop waits."""
        self._has_freed = True

    def next_s(self) -> float:
        """When `tick` is due."""
        due, own = self._gets.next_s(), min(self._link.next_s(), self._ask_s)
        return own if due is None else min(due, own)

    def report(self) -> dict[str, Any]:
        """For `status`."""
        return {**self._link.report(), "kept": self._keeper.report()}

    def close(self) -> None:
        self._detach()
        self._keeper.close()

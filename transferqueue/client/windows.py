"""The transports that this process and its shards have in common, and the bytes that go by them."""

from __future__ import annotations

import threading
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from transferqueue.closing import Closing
from transferqueue.errors import ConfigError, TransportFailed
from transferqueue.transports.registry import load_transport, transport_names
from transferqueue.wire.window import OpenWindow

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from transferqueue.client.counted_copies import Moved
    from transferqueue.client.session import ShardAddress
    from transferqueue.transports.base import ClientEnd

AGAIN_S = 30.0
"""A transport that failed is left alone for so long, and bytes go in chunks meanwhile."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Move:
    """Bytes that go to or come from a window of one shard."""

    slot: int
    transport: str
    window: OpenWindow
    is_write: bool
    num_bytes: int
    pieces: Iterable[tuple[int, memoryview]]
    """Offsets in the window, and the memory that is read from or filled. May be a generator."""


class WindowTries:
    """Whose windows the bytes of one operation were to go through. A shard that has been started
    again is another process, and worth another attempt."""

    def __init__(self) -> None:
        self._asked: set[str] = set()
        self._failed: set[str] = set()

    def note(self, moves: Iterable[Move]) -> None:
        """These are about to be carried out."""
        self._asked = {move.window.process for move in moves}

    def failed(self) -> bool:
        """One of them was not. Whether it may be tried again."""
        is_new = not self._asked <= self._failed
        self._failed |= self._asked
        return is_new


@dataclass(slots=True, kw_only=True)
class _Known:
    """What was found out of one shard."""

    transports: Mapping[str, Mapping[str, Any]]
    """What it said then."""
    ranked: list[str]
    """Those that can be used, best first."""
    why_not: str
    """Of the others, in one line."""


class ClientWindows(Closing):
    """Safe to use from several threads."""

    def __init__(self, *, is_on: bool, required: str | None) -> None:
        """``required``: the one that must be taken by bytes that a shard opens a window to, which
        are not those on a disk or in thousands of pieces; ``None``: the best, or chunks."""
        self._is_on = is_on
        self.required = required
        self._known: dict[int, _Known] = {}
        self._ends: dict[tuple[int, str], tuple[Mapping[str, Any], ClientEnd]] = {}
        self._failed: dict[tuple[int, str], tuple[float, str]] = {}  # when, and why
        self._lock = threading.Lock()

    def transport_to(self, shard: ShardAddress) -> str | None:
        """By which large bytes go now; ``None``: in chunks over the socket."""
        if not self._is_on or not shard.transports:
            return None
        now_s = time.monotonic()
        for name in self._look_at(shard).ranked:
            failed = self._failed.get((shard.slot, name))
            if name == self.required or failed is None or now_s - failed[0] > AGAIN_S:
                return name
        return None

    def why_not(self, shard: ShardAddress) -> str:
        """Why none of the shard's transports is taken, or not a better one; "" when there is
        nothing to say."""
        if not self._is_on or not shard.transports:
            return ""
        failed = [
            f"transport {name!r} failed: {why}"
            for (slot, name), (_, why) in list(self._failed.items())
            if slot == shard.slot and name != self.transport_to(shard)
        ]
        return "; ".join(filter(None, [self._look_at(shard).why_not, *failed]))

    def check(self, shards: Iterable[ShardAddress]) -> None:
        """`ConfigError` when a shard cannot be reached by the one that is required."""
        if self.required is None:
            return
        load_transport(self.required)
        for shard in shards:
            if self.transport_to(shard) is None:
                why = self.why_not(shard) or (
                    f"it was not started with it; tq.serve(transports={{{self.required!r}: {{}}}})"
                )
                raise ConfigError(f"transport={self.required!r}: shard {shard.slot}: {why}")

    def carry_out(
        self, shard: ShardAddress, move: Move, timeout_s: float, moved: Moved | None = None
    ) -> bool:
        """Whether all of it has moved. `TransportFailed` where this transport is required. One that
        lets an error of the operating system through has failed as well."""
        deadline_s = time.monotonic() + timeout_s
        try:
            end = self._end(move)
            for offset, memory in move.pieces:
                act = end.write if move.is_write else end.read
                left_s = deadline_s - time.monotonic()
                if left_s <= 0:
                    raise TransportFailed(move.transport, f"not done in {timeout_s:.1f} s")
                act(move.window.ticket, offset, memory, timeout_s=left_s)
                if moved is not None:
                    moved(memory.nbytes)
        except (TransportFailed, OSError) as error:
            why = str(error.args[1]) if isinstance(error, TransportFailed) else repr(error)
            self.has_failed(shard.slot, TransportFailed(move.transport, why))
            return False
        return True

    def has_failed(self, slot: int, error: TransportFailed) -> None:
        """What had gone by it did not arrive. Raises the error where it is required."""
        transport, why = error.args
        self._failed[slot, str(transport)] = time.monotonic(), str(why)
        if self.required is not None:
            raise error

    def opened(self, transport: str | None, plain: Any) -> OpenWindow | None:
        """What a shard has answered. `TransportFailed` where it could not open one by the transport
        that is required. ``None``: there is none, and bytes go in chunks."""
        if isinstance(plain, str):
            if transport is not None and transport == self.required:
                raise TransportFailed(transport, plain)
            return None
        return None if plain is None else OpenWindow.from_plain(plain)

    def _end(self, move: Move) -> ClientEnd:
        key, facts = (move.slot, move.transport), move.window.facts
        with self._lock:
            known = self._ends.get(key)
            if known is not None and known[0] == facts:
                return known[1]
            end = load_transport(move.transport).open_client_end(facts)
            self._ends[key] = facts, end
        if known is not None:
            known[1].close()
        return end

    def _look_at(self, shard: ShardAddress) -> _Known:
        known = self._known.get(shard.slot)
        if known is None or known.transports != shard.transports:
            known = self._known[shard.slot] = self._looked_at(shard)
            for key in [key for key in list(self._failed) if key[0] == shard.slot]:
                self._failed.pop(key, None)  # that was another process
        return known

    def _looked_at(self, shard: ShardAddress) -> _Known:
        qualities: dict[str, int] = {}
        why_not: dict[str, str] = {}
        installed = transport_names()
        for name, facts in shard.transports.items():
            if self.required not in (None, name):
                continue
            if name not in installed:
                why_not[name] = "not installed here"
                continue
            try:
                transport = load_transport(name)
            except ConfigError as error:
                why_not[name] = str(error)
                continue
            why_not[name] = transport.why_not(facts)
            if not why_not[name]:
                qualities[name] = transport.quality
        return _Known(
            transports=dict(shard.transports),
            ranked=sorted(qualities, key=lambda name: (-qualities[name], name)),
            why_not="; ".join(f"transport {n!r}: {why}" for n, why in why_not.items() if why),
        )

    def close(self) -> None:
        with self._lock:
            ends, self._ends = self._ends, {}
        for _, end in ends.values():
            end.close()

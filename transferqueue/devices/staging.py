"""A bounded ring of host memory between ordinary memory and a device, page-locked where it can be.

Drivers copy at full speed, and beside other work, only from and to page-locked memory; page-locking
takes long and its amount is limited. So bytes go through a few chunks that are locked once: while
the device copies one, the next is filled. One event a chunk is made and waited for, however many
tensors are in it.

Where page-locking is refused the ring is ordinary memory: slower, never wrong. That is logged once,
with the remedy.
"""

from __future__ import annotations

import logging
import mmap
from collections import deque
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from transferqueue.closing import Closing
from transferqueue.devices.base import WAIT_S
from transferqueue.errors import Closed, PinningRefused
from transferqueue.memory.copying import as_bytes, copy_into

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from numpy.typing import NDArray

    from transferqueue.devices.base import Device, DeviceBlock, Event, Registration

    Bytes = NDArray[np.uint8]

CHUNK_BYTES = 1 << 20
NUM_CHUNKS = 4

_log = logging.getLogger(__name__)


@dataclass(slots=True)
class _Chunk:
    memory: Bytes
    event: Event | None = None
    """Of the copy that is under way from or to it."""

    def is_free(self) -> bool:
        """Whether it may be used again, without waiting."""
        if self.event is not None and self.event.is_done():
            self.event = None
        return self.event is None

    def wait(self, timeout_s: float) -> None:
        """Until it may be used again. A copy that is stuck keeps it."""
        if self.event is not None:
            self.event.wait(timeout_s)
            self.event = None


class Staging(Closing):
    """Copies between one thread's memory and one device, in order, on a stream of its own.

    ``stream`` takes copies that need no ring; `flush` and `record` are of them too.
    """

    def __init__(
        self,
        device: Device,
        *,
        chunk_bytes: int = CHUNK_BYTES,
        num_chunks: int = NUM_CHUNKS,
        timeout_s: float = WAIT_S,
    ) -> None:
        """``timeout_s``: for each wait for the device."""
        self.timeout_s = timeout_s
        self._chunk_bytes = chunk_bytes
        self.stream = device.stream()
        ring: Bytes = np.frombuffer(_unshared(chunk_bytes * num_chunks), np.uint8)
        self._registration, self.why_not_pinned = _pinned(device, ring)
        self._ring = deque(_Chunk(part) for part in ring.reshape(num_chunks, chunk_bytes))
        self._filling: _Chunk | None = None
        """The last of the ring, while there is room in it: its event comes when it is full."""
        self._filled = 0  # bytes of it

    @property
    def is_pinned(self) -> bool:
        return not self.why_not_pinned

    def copy_in(self, block: DeviceBlock, offset: int, source: memoryview) -> None:
        """When this returns, ``source`` may change; `flush` tells when the device has it."""
        self.copy_ranges_in(block, [(offset, source.nbytes)], source)

    def copy_ranges_in(
        self, block: DeviceBlock, ranges: Iterable[tuple[int, int]], source: memoryview
    ) -> None:
        """As `copy_in`: the bytes of ``source``, in order, to these offsets, so many each."""
        data, at = as_bytes(source), 0
        for start, nbytes in ranges:
            offset, end = start, at + nbytes
            while at < end:
                memory = self._room(end - at)
                copy_into(memory, data[at : at + len(memory)])
                self.stream.copy_in(block, offset, memory.data)
                at, offset = at + len(memory), offset + len(memory)

    def _room(self, nbytes: int) -> Bytes:
        """Memory of the ring that no copy is under way from, uint8[up to nbytes]."""
        if self._filled == self._chunk_bytes:
            self._settle()
        if self._filling is None:
            self._filling, self._filled = self._next(), 0
        start = self._filled
        self._filled = min(start + nbytes, self._chunk_bytes)
        return self._filling.memory[start : self._filled]

    def _settle(self, event: Event | None = None) -> None:
        """Nothing more goes into the chunk that was filled last. ``event``: after its copies."""
        filled, self._filling, self._filled = self._filling, None, 0
        if filled is not None:
            filled.event = event or self.stream.record()

    @property
    def has_room(self) -> bool:
        """Whether up to a chunk can be copied in without waiting for the device."""
        return self._ring[0].is_free()

    @contextmanager
    def chunk(self, nbytes: int) -> Iterator[Bytes]:
        """Memory of the ring, uint8[nbytes], to be filled and copied in until the block ends."""
        chunk = self._next()
        try:
            yield chunk.memory[:nbytes]
        finally:
            chunk.event = self.stream.record()

    def copy_chunk_in(
        self, block: DeviceBlock, ranges: Iterable[tuple[int, int]], memory: Bytes
    ) -> int:
        """`copy_ranges_in` from memory of the ring. Returns how many bytes."""
        at = 0
        for offset, nbytes in ranges:
            self.stream.copy_in(block, offset, memory[at : at + nbytes].data)
            at += nbytes
        return at

    def copy_out(self, block: DeviceBlock, offset: int, out: memoryview) -> None:
        """When this returns, ``out`` is filled, with what was copied in before."""
        self.copy_ranges_out(block, [(offset, out.nbytes)], out)

    def copy_ranges_out(
        self, block: DeviceBlock, ranges: Iterable[tuple[int, int]], out: memoryview
    ) -> None:
        """Offsets and sizes, one after the other into ``out``."""
        self.copy_each_out(_side_by_side(block, ranges, as_bytes(out)))

    def copy_each_out(self, copies: Iterable[tuple[DeviceBlock, int, Bytes]]) -> None:
        """As `copy_out`, of several: blocks, offsets, and memory to be filled, uint8[bytes]."""
        under_way: deque[tuple[_Chunk, list[Bytes]]] = deque()
        for pieces in _packed(copies, self._chunk_bytes):
            if len(under_way) == len(self._ring):
                self._land(*under_way.popleft())
            chunk, at = self._next(), 0
            for block, offset, part in pieces:
                self.stream.copy_out(block, offset, chunk.memory[at : at + len(part)].data)
                at += len(part)
            chunk.event = self.stream.record()
            under_way.append((chunk, [part for _, _, part in pieces]))
        while under_way:
            self._land(*under_way.popleft())

    def pieces_out(
        self, block: DeviceBlock, pieces: Iterable[Sequence[tuple[int, int]]]
    ) -> Iterator[Bytes | None]:
        """The bytes of each piece (ranges as above, at most a chunk in all), in memory of its own,
        while the device copies the next ones; ``None`` while the next piece is not there yet. The
        ring is for this alone until it ends.

        Not the ring's memory itself: whoever sends a piece may hold it for longer than it needs
        it, and a socket that sends it once more would send what is there by then.
        """
        for chunk, nbytes in self._ahead(block, pieces):
            while not chunk.is_free():
                yield None
            out = np.empty(nbytes, np.uint8)
            copy_into(out, chunk.memory[:nbytes])
            yield out

    def lent_out(
        self, block: DeviceBlock, pieces: Iterable[Sequence[tuple[int, int]]]
    ) -> Iterator[Bytes]:
        """As `pieces_out`, each waited for, in memory of the ring: of use until the next one is
        asked for."""
        for chunk, nbytes in self._ahead(block, pieces):
            chunk.wait(self.timeout_s)
            yield chunk.memory[:nbytes]

    def _ahead(
        self, block: DeviceBlock, pieces: Iterable[Sequence[tuple[int, int]]]
    ) -> Iterator[tuple[_Chunk, int]]:
        """The chunk that the device copies each piece to, and how much that is: given out when the
        rest of the ring is for the pieces after it. It is another's when the next is asked for."""
        under_way: deque[tuple[_Chunk, int]] = deque()
        for ranges in pieces:
            if len(under_way) == len(self._ring):
                yield under_way.popleft()
            chunk, at = self._next(), 0
            for offset, nbytes in ranges:
                self.stream.copy_out(block, offset, chunk.memory[at : at + nbytes].data)
                at += nbytes
            chunk.event = self.stream.record()
            under_way.append((chunk, at))
        yield from under_way

    def wait_for(self, event: Event) -> None:
        """What is copied from now on is copied after the event."""
        self.stream.wait_for(event)

    def record(self) -> Event:
        """An event that is done when all that was given to the device so far is."""
        return self.stream.record()

    def flush(self, timeout_s: float | None = None) -> None:
        """Wait until the device has made all copies so far. `DeviceStuck`."""
        event = self.record()
        self._settle(event)
        event.wait(self.timeout_s if timeout_s is None else timeout_s)

    def close(self) -> None:
        """The ring is kept locked, and lost, where the device may still write to it."""
        ring, self._ring = self._ring, deque()
        if ring:
            self.stream.close()
            if self._registration is not None:
                self._registration.close()

    def _next(self) -> _Chunk:
        """The chunk that was used longest ago, when it may be used again."""
        if not self._ring:
            raise Closed("the staging of this device")
        self._settle()
        chunk = self._ring[0]
        chunk.wait(self.timeout_s)
        self._ring.rotate(-1)
        return chunk

    def _land(self, chunk: _Chunk, targets: Sequence[Bytes]) -> None:
        chunk.wait(self.timeout_s)
        at = 0
        for target in targets:
            copy_into(target, chunk.memory[at : at + len(target)])
            at += len(target)


def _side_by_side(
    block: DeviceBlock, ranges: Iterable[tuple[int, int]], out: Bytes
) -> Iterator[tuple[DeviceBlock, int, Bytes]]:
    at = 0
    for offset, nbytes in ranges:
        yield block, offset, out[at : at + nbytes]
        at += nbytes


def _packed(
    copies: Iterable[tuple[DeviceBlock, int, Bytes]], chunk_bytes: int
) -> Iterator[list[tuple[DeviceBlock, int, Bytes]]]:
    """Copies in groups of a chunk in all, the last of fewer."""
    pieces: list[tuple[DeviceBlock, int, Bytes]] = []
    room = chunk_bytes
    for block, offset, target in copies:
        low = 0
        while low < len(target):
            part = target[low : low + room]
            pieces.append((block, offset + low, part))
            low, room = low + len(part), room - len(part)
            if not room:
                yield pieces
                pieces, room = [], chunk_bytes
    if pieces:
        yield pieces


def _unshared(nbytes: int) -> mmap.mmap:
    """Memory that a forked child does not get: else the first write after a fork may go to a copy
    of the page, while the device still reads and writes the page that was locked."""
    memory = mmap.mmap(-1, nbytes)
    memory.madvise(mmap.MADV_DONTFORK)
    return memory


def _pinned(device: Device, ring: Bytes) -> tuple[Registration | None, str]:
    try:
        return device.register(ring.data), ""
    except PinningRefused as refused:
        why = str(refused)
    _log.warning("%s: copies go through ordinary memory: %s", device.name, why)
    return None, why

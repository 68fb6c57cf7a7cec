"""Columns of a put whose bytes are in memory of a device of this process."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np

from transferqueue.client.column_bytes import Column, ColumnRows, HostRows
from transferqueue.client.device_layout import MAX_PIECES
from transferqueue.wire.chunks import Runs

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from transferqueue.client.device_bytes import DeviceBytes, Ranges
    from transferqueue.client.device_side import DeviceSide


@dataclass(frozen=True, slots=True, kw_only=True)
class InObject:
    """A tensor inside an object of a column, which is bytes of the host."""

    field: str
    place: np.ndarray  # uint8[bytes]: where they belong
    side: DeviceSide
    source: DeviceBytes


def bring(tensors: Sequence[InObject]) -> None:
    """Have the devices copy them to their places, by page-locked memory, and wait for that.
    `DeviceStuck`."""
    of_side: dict[DeviceSide, list[InObject]] = {}
    for tensor in tensors:
        of_side.setdefault(tensor.side, []).append(tensor)
    for side, there in of_side.items():
        side.copy_each_out([(tensor.source, tensor.place) for tensor in there])


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceColumn(Column):
    """On a device."""

    side: DeviceSide
    source: DeviceBytes

    @property
    def num_bytes(self) -> int:
        return self.source.block.nbytes

    def rows(self, lengths: np.ndarray | None, runs: Runs) -> ColumnRows:
        kind = DeviceRows if len(runs.starts) <= MAX_PIECES else ScatteredRows
        return kind(lengths=lengths, runs=runs, side=self.side, source=self.source)


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceRows(ColumnRows):
    """Of a column on a device. What is wanted on the host comes there by page-locked memory."""

    side: DeviceSide
    source: DeviceBytes

    def cut(self, offset: int, nbytes: int) -> np.ndarray:
        out = np.empty(nbytes, np.uint8)
        self.side.copy_out(self.source, self.ranges(offset, nbytes), out)
        return out

    def cuts(self, pieces: Sequence[tuple[int, int]]) -> Iterator[np.ndarray | None]:
        """The device copies ahead of who takes them."""
        return self.side.pieces_out(self.source, [self.ranges(*piece) for piece in pieces])

    def lent(self, pieces: Sequence[tuple[int, int]]) -> Iterator[np.ndarray]:
        """As `cuts`."""
        return self.side.lent_out(self.source, [self.ranges(*piece) for piece in pieces])

    def copy_to(self, out: np.ndarray, offset: int = 0) -> None:
        self.side.copy_out(self.source, self.ranges(offset, len(out)), out)

    def ranges(self, offset: int, nbytes: int) -> Ranges:
        """Where part of the bytes is in the tensor: offsets and sizes, in order."""
        starts, sizes = self.runs.cut(offset, nbytes)
        return list(zip(starts.tolist(), sizes.tolist(), strict=True))


@dataclass(frozen=True, kw_only=True)
class ScatteredRows(DeviceRows):
    """In more pieces than are copied to the host one by one: for there the stretch that they lie in
    is fetched, once, and sorted out. To memory of another device they go as any others do."""

    @cached_property
    def _on_host(self) -> HostRows:
        runs, low = self.runs, int(self.runs.starts.min())
        stretch = np.empty(int((runs.starts + runs.sizes).max()) - low, np.uint8)
        self.side.copy_out(self.source, [(low, len(stretch))], stretch)
        return HostRows(
            lengths=self.lengths, runs=Runs(runs.starts - low, runs.sizes), source=stretch
        )

    def get_ready(self) -> None:
        _ = self._on_host

    def cut(self, offset: int, nbytes: int) -> np.ndarray:
        return self._on_host.cut(offset, nbytes)

    def cuts(self, pieces: Sequence[tuple[int, int]]) -> Iterator[np.ndarray | None]:
        return self._on_host.cuts(pieces)

    def lent(self, pieces: Sequence[tuple[int, int]]) -> Iterator[np.ndarray]:
        return self._on_host.lent(pieces)

    def copy_to(self, out: np.ndarray, offset: int = 0) -> None:
        self._on_host.copy_to(out, offset)

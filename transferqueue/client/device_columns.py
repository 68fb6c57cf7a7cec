"""Columns of a get that land on a device: which bytes go where, and the tensors made of them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from transferqueue.client.assembly import (
    ColumnBytes,
    JoinedColumn,
    common_spec,
    expand_rows,
    join_lengths,
    join_present,
    present_rows,
)
from transferqueue.client.device_access import DeviceAccess
from transferqueue.client.device_copies import Copy, Source
from transferqueue.errors import Malformed

if TYPE_CHECKING:
    from collections.abc import Sequence

    import torch

    from transferqueue.client.assembly import GotPart
    from transferqueue.client.borrowed import Borrowed
    from transferqueue.client.device_side import DeviceSide
    from transferqueue.fields import FieldSpec

MAX_COPIES = 1024
"""Of one column. A copy costs some 5 µs of calls; more pieces are put in order by the shards."""


class TooScattered(Exception):
    """The rows lie in too many pieces to be copied one by one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceColumnBytes:
    """One column as bytes on a device."""

    spec: FieldSpec
    lengths: np.ndarray | None  # int64[rows] in units; None: one unit each
    payload: torch.Tensor  # uint8[bytes of the rows, in order]
    present: np.ndarray | None = None


class DeviceColumn:
    """As `JoinedColumn`, of which some parts lie in device memory of shards."""

    def __init__(
        self,
        field: str,
        num_rows: int,
        parts: Sequence[GotPart],
        inverse: np.ndarray | None,
        *,
        side: DeviceSide,
        timeout_s: float,
        borrowed: Borrowed | None = None,
    ) -> None:
        """``inverse``: int64[rows asked for], which of the ``num_rows`` each is; ``None``: all.
        ``borrowed``: the column may look at memory of a shard, and this is told."""
        self._borrowed, self._timeout_s = borrowed, timeout_s
        self._field, self._num_rows, self._inverse, self._side = field, num_rows, inverse, side
        self._parts = list(parts)
        is_on_host = all(part.lent is None for part in parts)
        self._on_host = JoinedColumn(field, num_rows, parts) if is_on_host else None
        self._blocks = [part.payload for part in parts]

    def target(self, number: int) -> np.ndarray:
        """Where the bytes of a part that are still to come are to be put, uint8[bytes]."""
        if self._on_host is not None:
            return self._on_host.target(number)
        part = self._parts[number]
        block = np.empty(part.column.num_bytes(part.num_rows), dtype=np.uint8)
        self._blocks[number] = block
        return block

    def finish(self) -> DeviceColumnBytes:
        """The column on the device, in the order that was asked for. `TooScattered`."""
        return self._from_host(self._on_host) if self._on_host is not None else self._mixed()

    def _from_host(self, joined: JoinedColumn) -> DeviceColumnBytes:
        column = joined.finish()
        if self._inverse is not None:
            column = expand_rows(column, self._inverse, self._num_rows)
        nbytes = len(column.payload)
        copies = [Copy(source=0, start=0, target=0, nbytes=nbytes)] if nbytes else []
        return DeviceColumnBytes(
            spec=column.spec,
            lengths=column.lengths,
            payload=self._side.filled(nbytes, [column.payload], copies, self._timeout_s),
            present=column.present,
        )

    def _mixed(self) -> DeviceColumnBytes:
        spec = common_spec(self._field, self._parts)
        present = join_present(self._num_rows, self._parts)
        lengths = join_lengths(spec, self._num_rows, self._parts)
        shape = ColumnBytes(spec=spec, lengths=lengths, payload=_NO_BYTES)
        sizes = shape.sizes(self._num_rows)
        source, starts, sources = self._places(sizes)
        if self._inverse is not None:
            sizes, source, starts = (x[self._inverse] for x in (sizes, source, starts))
            lengths = None if lengths is None else lengths[self._inverse]
            present = None if present is None else present[self._inverse]
        copies = copies_of(source, starts, sizes)
        payload = self._viewed(spec, sources, copies)
        if payload is None:
            nbytes = int(sizes.sum())
            payload = self._side.filled(nbytes, sources, copies, self._timeout_s)
        return DeviceColumnBytes(spec=spec, lengths=lengths, payload=payload, present=present)

    def _viewed(
        self, spec: FieldSpec, sources: Sequence[Source], copies: Sequence[Copy]
    ) -> torch.Tensor | None:
        """The bytes where they are, if they may be borrowed and lie together on this device."""
        if self._borrowed is None or len(copies) != 1:
            return None
        (only,) = copies
        access = sources[only.source]
        is_here = isinstance(access, DeviceAccess) and access.uuid == self._side.device.uuid
        if not is_here or only.start % spec.itemsize:
            return None
        assert isinstance(access, DeviceAccess)
        keep = self._borrowed.mark(self._field)
        return self._side.viewed(access, only.start, only.nbytes, keep)

    def _places(self, sizes: np.ndarray) -> tuple[np.ndarray, np.ndarray, list[Source]]:
        """Of each row the source, and where it begins there. Rows that are not there are zeros."""
        source = np.full(self._num_rows, len(self._parts), dtype=np.int64)
        starts = np.zeros(self._num_rows, dtype=np.int64)
        sources: list[Source] = []
        for number, part in enumerate(self._parts):
            rows = present_rows(part)
            source[rows] = number
            if part.lent is not None:
                starts[rows] = part.lent.row_starts(sizes[rows])
                sources.append(part.lent.access)
                continue
            block = self._blocks[number]
            if block is None:
                raise Malformed("an answer without bytes")
            starts[rows] = np.cumsum(sizes[rows]) - sizes[rows]
            sources.append(block)
        absent = source == len(self._parts)
        sources.append(np.zeros(int(sizes[absent].max(initial=0)), np.uint8))
        return source, starts, sources


def copies_of(source: np.ndarray, starts: np.ndarray, sizes: np.ndarray) -> list[Copy]:
    """One copy for rows that follow one another in their source as in the target, where each row
    comes right after the one before. int64[rows] each. `TooScattered`."""
    targets = np.cumsum(sizes) - sizes
    filled = np.flatnonzero(sizes > 0)
    if len(filled) == 0:
        return []
    source, starts, sizes, targets = (x[filled] for x in (source, starts, sizes, targets))
    follows = (source[1:] == source[:-1]) & (starts[1:] == starts[:-1] + sizes[:-1])
    first = np.concatenate(([0], np.flatnonzero(~follows) + 1))
    if len(first) > MAX_COPIES:
        raise TooScattered(f"{len(first)} pieces")
    nbytes = np.add.reduceat(sizes, first)
    columns = (source[first], starts[first], targets[first], nbytes)
    return [
        Copy(source=int(which), start=int(start), target=int(target), nbytes=int(size))
        for which, start, target, size in zip(*columns, strict=True)
    ]


_NO_BYTES = np.empty(0, dtype=np.uint8)

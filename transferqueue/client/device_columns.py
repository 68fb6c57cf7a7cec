"""Columns of a get that land on a device: which bytes go where, and the tensors made of them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from transferqueue.client.assembly import (
    JoinedColumn,
    common_spec,
    expand_rows,
    join_lengths,
    join_present,
    present_rows,
    sizes_of,
)
from transferqueue.client.device_access import DeviceAccess
from transferqueue.client.device_copies import Copy, Source
from transferqueue.client.landings import DeviceTarget, HostTarget
from transferqueue.errors import Malformed
from transferqueue.wire.chunks import Runs

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    import torch

    from transferqueue.client.assembly import GotPart
    from transferqueue.client.borrowed import Borrowed
    from transferqueue.client.landings import Landings, Target
    from transferqueue.devices.staging import Staging
    from transferqueue.fields import FieldSpec

MAX_COPIES = 1024
"""Of one column. A copy costs some 5 µs of calls; more pieces are put in order by the shards."""


LANDED = -1
"""The source of rows that are in their place."""


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
    """As `JoinedColumn`, on a device.

    Parts lie in memory that the device copies from by itself, or they come: then to their place on
    the device, where each goes to a few stretches of the column; else by way of the host, where
    rows are brought into their order.

    `target` says where what comes is to go, `get_ready` makes the tensor on the caller's thread,
    when all that goes by the host is there, and `copy_rest` has the device copy that, and what lies
    elsewhere; when it is done `finished` is right.
    """

    def __init__(
        self,
        field: str,
        num_rows: int,
        parts: Sequence[GotPart],
        inverse: np.ndarray | None,
        *,
        landings: Landings,
        coming: Collection[int] = (),
        borrowed: Borrowed | None = None,
    ) -> None:
        """``inverse``: int64[rows asked for], which of the ``num_rows`` each is; ``None``: all.
        ``coming``: numbers of the parts whose bytes come piece by piece. ``borrowed``: the column
        may look at memory of a shard, and this is told."""
        self._borrowed, self._landings = borrowed, landings
        self._field, self._num_rows, self._inverse = field, num_rows, inverse
        self._parts = list(parts)
        self._blocks = [part.payload for part in parts]
        self._spec = common_spec(field, parts)
        self._present = join_present(num_rows, parts)
        self._lengths = join_lengths(self._spec, num_rows, parts)
        self._landed = self._stretches(coming) if coming and inverse is None else {}
        is_on_host = not self._landed and all(part.lent is None for part in parts)
        self._on_host = JoinedColumn(field, num_rows, parts) if is_on_host else None
        if self._landed:
            self._tensor, self._block = landings.new_tensor(int(self._sizes().sum()))

    def _sizes(self) -> np.ndarray:
        """Bytes of each row. int64[rows]."""
        return sizes_of(self._spec, self._lengths, self._num_rows)

    def _stretches(self, coming: Collection[int]) -> dict[int, Runs]:
        """Where the bytes of parts that come are on the device. None of them where one is in too
        many pieces, or some rows are not there, and zeros."""
        if self._present is not None:
            return {}
        sizes = self._sizes()
        starts = np.cumsum(sizes) - sizes
        rows = {number: present_rows(self._parts[number]) for number in coming}
        found = {number: Runs.of(starts[at], sizes[at]) for number, at in rows.items()}
        return found if all(len(runs.starts) <= MAX_COPIES for runs in found.values()) else {}

    def target(self, number: int) -> Target:
        """Where the bytes of a part that are still to come are to be put."""
        if number in self._landed:
            return DeviceTarget(self._landings, self._block, self._landed[number])
        if self._on_host is not None:
            return HostTarget(self._on_host.target(number))
        part = self._parts[number]
        block = np.empty(part.column.num_bytes(part.num_rows), dtype=np.uint8)
        self._blocks[number] = block
        return HostTarget(block)

    def get_ready(self) -> None:
        """`TooScattered`."""
        if self._on_host is not None:
            self._join_on_host(self._on_host)
            return
        sizes = self._sizes()
        source, starts, self._sources = self._places(sizes)
        if self._inverse is not None:
            sizes, source, starts = (x[self._inverse] for x in (sizes, source, starts))
            if self._lengths is not None:
                self._lengths = self._lengths[self._inverse]
            if self._present is not None:
                self._present = self._present[self._inverse]
        self._copies = copies_of(source, starts, sizes)
        viewed = self._viewed(self._spec, self._sources, self._copies)
        if viewed is not None:
            self._tensor, self._copies = viewed, []
        elif not self._landed:
            self._tensor, self._block = self._landings.new_tensor(int(sizes.sum()))

    def _join_on_host(self, joined: JoinedColumn) -> None:
        column = joined.finish()
        if self._inverse is not None:
            column = expand_rows(column, self._inverse, self._num_rows)
        self._lengths, self._present = column.lengths, column.present
        nbytes = len(column.payload)
        self._sources = [column.payload]
        self._copies = [Copy(source=0, start=0, target=0, nbytes=nbytes)] if nbytes else []
        self._tensor, self._block = self._landings.new_tensor(nbytes)

    def copy_rest(self, lane: Staging) -> None:
        """`OwnerLost`, `HandleRefused`."""
        if self._copies:
            self._landings.side.copy_all(lane, self._block, self._sources, self._copies)

    def finished(self) -> DeviceColumnBytes:
        """The column on the device, in the order that was asked for."""
        return DeviceColumnBytes(
            spec=self._spec, lengths=self._lengths, payload=self._tensor, present=self._present
        )

    def _viewed(
        self, spec: FieldSpec, sources: Sequence[Source], copies: Sequence[Copy]
    ) -> torch.Tensor | None:
        """The bytes where they are, if they may be borrowed and lie together on this device."""
        if self._borrowed is None or self._landed or len(copies) != 1:
            return None
        (only,) = copies
        access = sources[only.source]
        side = self._landings.side
        is_here = isinstance(access, DeviceAccess) and access.uuid == side.device.uuid
        if not is_here or only.start % spec.itemsize:
            return None
        assert isinstance(access, DeviceAccess)
        keep = self._borrowed.mark(self._field)
        return side.viewed(access, only.start, only.nbytes, keep)

    def _places(self, sizes: np.ndarray) -> tuple[np.ndarray, np.ndarray, list[Source]]:
        """Of each row the source, and where it begins there. Rows that are not there are zeros,
        and those that have landed have no source."""
        source = np.full(self._num_rows, len(self._parts), dtype=np.int64)
        starts = np.zeros(self._num_rows, dtype=np.int64)
        sources: list[Source] = []
        for number, part in enumerate(self._parts):
            rows = present_rows(part)
            source[rows] = number
            if number in self._landed:
                source[rows] = LANDED
                sources.append(_NO_BYTES)
                continue
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
    comes right after the one before; none for rows that are `LANDED`. int64[rows] each.
    `TooScattered`."""
    targets = np.cumsum(sizes) - sizes
    filled = np.flatnonzero((sizes > 0) & (source != LANDED))
    if len(filled) == 0:
        return []
    source, starts, sizes, targets = (x[filled] for x in (source, starts, sizes, targets))
    follows = (source[1:] == source[:-1]) & (starts[1:] == starts[:-1] + sizes[:-1])
    follows &= targets[1:] == targets[:-1] + sizes[:-1]
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

"""Columns of a get that land on a device: which bytes go where, and the tensors made of them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from transferqueue.client.assembly import common_spec, join_lengths, join_present, present_rows
from transferqueue.client.column_bytes import sizes_of
from transferqueue.client.device_access import DeviceAccess
from transferqueue.client.device_gather import RowOrder
from transferqueue.client.device_layout import PartRows, lay_out
from transferqueue.client.landings import DeviceTarget
from transferqueue.errors import Malformed

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy as np
    import torch

    from transferqueue.client.assembly import GotPart
    from transferqueue.client.borrowed import Borrowed
    from transferqueue.client.landings import Landings
    from transferqueue.devices.staging import Staging
    from transferqueue.fields import FieldSpec


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceColumnBytes:
    """One column as bytes on a device."""

    spec: FieldSpec
    lengths: np.ndarray | None  # int64[rows] in units; None: one unit each
    payload: torch.Tensor  # uint8[bytes of the rows, in order]
    present: np.ndarray | None = None


class DeviceColumn:
    """As `JoinedColumn`, on a device.

    Parts lie in memory that the device copies from by itself, have come with an answer, or come
    piece by piece; all of them go to where `lay_out` says, and nothing of the size of the column
    is made in memory of the host.

    `target` says where what comes is to go, `get_ready` makes the memory for the rest on the
    caller's thread, and `copy_rest` has the device copy that. When that is done `put_in_order`, on
    the caller's thread too, makes the column of it, which is `finished` when torch has done that.
    """

    def __init__(
        self,
        field: str,
        num_rows: int,
        parts: Sequence[GotPart],
        inverse: np.ndarray | None,
        *,
        landings: Landings,
        borrowed: Borrowed | None = None,
    ) -> None:
        """``inverse``: int64[rows asked for], which of the ``num_rows`` each is; ``None``: all.
        ``borrowed``: the column may look at memory of a shard, and this is told."""
        self._borrowed, self._landings = borrowed, landings
        self._field, self._parts = field, list(parts)
        self._spec = common_spec(field, parts)
        self._present = join_present(num_rows, parts)
        self._lengths = join_lengths(self._spec, num_rows, parts)
        sizes = sizes_of(self._spec, self._lengths, num_rows)
        self._layout = lay_out(
            sizes,
            self._spec.unit_bytes,
            [_rows_of(part, sizes) for part in parts],
            inverse,
            is_complete=self._present is None,
        )
        if inverse is not None:
            self._lengths = None if self._lengths is None else self._lengths[inverse]
            self._present = None if self._present is None else self._present[inverse]
            sizes = sizes[inverse]
        self._num_bytes = int(sizes.sum())
        self._order: RowOrder | None = None
        self._tensor: torch.Tensor | None = None
        if any(part.is_to_come for part in parts):
            self._make_room()

    def _make_room(self) -> None:
        layout = self._layout
        self._tensor, self._block = self._landings.new_tensor(layout.nbytes)
        if layout.zeros[0] < layout.zeros[1]:
            self._tensor[slice(*layout.zeros)].zero_()
        if layout.first_units is not None and self._num_bytes:
            self._order = RowOrder(layout.first_units, self._lengths)
            made = self._landings.new_tensor(self._order.plain.nbytes)
            self._order_tensor, self._order_block = made

    def target(self, number: int) -> DeviceTarget:
        """Where the bytes of a part that are still to come are to be put."""
        return DeviceTarget(self._landings, self._block, self._layout.runs[number])

    def get_ready(self) -> None:
        """`HandleRefused`, `OwnerLost` of what is looked at."""
        if self._tensor is None:
            self._tensor = self._viewed()
        if self._tensor is None:
            self._make_room()

    def copy_rest(self, lane: Staging) -> None:
        """`OwnerLost`, `HandleRefused`."""
        if self._is_viewed:
            return
        for number, part in enumerate(self._parts):
            if part.payload is not None:
                self._copy_in(lane, number, part.payload)
        if self._order is not None:
            lane.copy_in(self._order_block, 0, self._order.plain.data)
        sources = [None if part.lent is None else part.lent.access for part in self._parts]
        self._landings.keep(sources)
        self._landings.side.copy_all(lane, self._block, sources, self._layout.copies)

    def _copy_in(self, lane: Staging, number: int, payload: np.ndarray) -> None:
        runs = self._layout.runs[number]
        if len(payload) != runs.total_bytes:
            raise Malformed(f"{len(payload)} bytes came for {runs.total_bytes}")
        if len(payload):
            places = zip(runs.starts.tolist(), runs.sizes.tolist(), strict=True)
            lane.copy_ranges_in(self._block, places, payload.data)

    def put_in_order(self) -> bool:
        """When the device has made all copies, on the caller's thread. Whether torch has anything
        to do now: the column is right when that is done."""
        if self._layout.first_units is None:
            return False
        assert self._tensor is not None
        laid, (self._tensor, _) = self._tensor, self._landings.new_tensor(self._num_bytes)
        if self._order is None:
            return False
        index = self._order_tensor.view(_int64())
        self._order.gather(self._tensor, laid, index, self._spec.unit_bytes)
        return True

    def finished(self) -> DeviceColumnBytes:
        """The column on the device, in the order that was asked for."""
        assert self._tensor is not None
        return DeviceColumnBytes(
            spec=self._spec, lengths=self._lengths, payload=self._tensor, present=self._present
        )

    _is_viewed = False

    def _viewed(self) -> torch.Tensor | None:
        """The bytes where they are, if they may be borrowed and lie together on this device."""
        layout = self._layout
        if self._borrowed is None or layout.num_copies != 1 or layout.first_units is not None:
            return None
        (only,) = (copies for copies in layout.copies if len(copies.starts))
        lent = self._parts[only.part].lent
        start, nbytes = int(only.starts[0]), int(only.sizes[0])
        side = self._landings.side
        if nbytes < layout.nbytes or start % self._spec.itemsize or lent is None:
            return None
        access = lent.access
        if not isinstance(access, DeviceAccess) or access.uuid != side.device.uuid:
            return None
        self._is_viewed = True
        keep = self._borrowed.mark(self._field)
        return side.viewed(access, start, nbytes, keep)


def _rows_of(part: GotPart, sizes: np.ndarray) -> PartRows:
    rows = present_rows(part)
    if part.lent is None:
        return PartRows(rows=rows, starts=None)
    return PartRows(
        rows=rows,
        starts=part.lent.row_starts(sizes[rows]),
        spans_gaps=isinstance(part.lent.access, DeviceAccess),
    )


def _int64() -> torch.dtype:
    import torch

    return torch.int64

"""Rows of a put copied by a device of this process to where a shard has reserved room for them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from transferqueue.client.device_puts import DeviceRows
from transferqueue.client.device_side import BATCH
from transferqueue.devices.base import WAIT_S
from transferqueue.devices.staging import CHUNK_BYTES

if TYPE_CHECKING:
    from collections.abc import Sequence

    from transferqueue.client.column_bytes import ColumnRows
    from transferqueue.client.device_access import DeviceAccess
    from transferqueue.client.device_side import DeviceSide
    from transferqueue.client.locked_arena import LockedArena
    from transferqueue.devices.base import DeviceBlock
    from transferqueue.devices.staging import Staging


def fill(
    side: DeviceSide,
    access: DeviceAccess,
    columns: Sequence[tuple[int, ColumnRows]],
    timeout_s: float = WAIT_S,
) -> None:
    """Copy rows to the addresses that a shard has reserved for them in its device memory.

    The device has made all of the copies when this returns. `OwnerLost`, `HandleRefused`;
    after any other error some copies may come still: see `Postponed`.
    """
    with side.lanes.lane(timeout_s, keep=columns) as lane:
        block = side.block(access)
        side.check_owner(access)
        for address, column in columns:
            if isinstance(column, DeviceRows) and column.side is side:
                lane.wait_for(column.source.ready)
                _copy_rows(lane, block, address, column)
            else:
                _stage_rows(lane, block, address, column)
        lane.flush()
    side.check(access)


def place(
    side: DeviceSide,
    arena: LockedArena,
    columns: Sequence[tuple[int, DeviceRows]],
    timeout_s: float = WAIT_S,
) -> None:
    """As `fill`, to page-locked shared memory of a shard."""
    with side.lanes.lane(timeout_s, keep=(arena, columns)) as lane:
        for address, column in columns:
            lane.wait_for(column.source.ready)
            _place_rows(lane, arena, address, column)
        lane.flush()


def _place_rows(lane: Staging, arena: LockedArena, address: int, rows: DeviceRows) -> None:
    for start, nbytes in rows.ranges(0, rows.num_bytes):
        at = start
        for piece in arena.pieces(address, nbytes):
            lane.stream.copy_out(rows.source.block, at, piece)
            at += piece.nbytes
        address += nbytes


def _copy_rows(lane: Staging, block: DeviceBlock, address: int, rows: DeviceRows) -> None:
    for number, (start, nbytes) in enumerate(rows.ranges(0, rows.num_bytes), 1):
        lane.stream.copy_across(block, address, rows.source.block, start, nbytes)
        address += nbytes
        if number % BATCH == 0:
            lane.flush()


def _stage_rows(lane: Staging, block: DeviceBlock, address: int, rows: ColumnRows) -> None:
    """Of the host, or of another device."""
    lows = range(0, rows.num_bytes, CHUNK_BYTES)
    pieces = [(low, min(CHUNK_BYTES, rows.num_bytes - low)) for low in lows]
    for low, data in zip(lows, rows.lent(pieces), strict=True):
        lane.copy_in(block, address + low, data.data)

"""Sample uids: how they are made up, and how an array of them is written in few bytes.

A uid is an int64: 15 bits of shard slot (the sign bit stays clear) above 48 bits of sequence. A
handle is mostly a list of uids, so their coding decides what a handle weighs. Two codings, the
shorter wins:

    runs     ``(first, count)`` pairs of one common step: rows as they were put, slices, every
             k-th row. 12 bytes a run.
    columns  for rows in any order: a table of the slots, one small index a row, and the sequence
             above the slot's lowest, in as many whole bytes as the largest needs. 1,024 shuffled
             rows of 4 shards take 3 KiB (as int64 they take 8).

Layout, little-endian: coding (u8), number of rows (u32), then

    runs     step (i64), number of runs (u32), firsts (i64 each), counts (u32 each)
    columns  slot bytes (u8: 0, 1 or 2), sequence bytes (u8: 0 to 6), number of slots (u16),
             slots (u16 each), lowest sequence of each (u64 each),
             index into the slots (slot bytes each row), sequences (sequence bytes each row)
"""

from __future__ import annotations

import struct
from typing import Any, Final

import numpy as np

from transferqueue.errors import InvalidInput, Malformed

Uids = np.ndarray[Any, np.dtype[np.int64]]

SEQUENCE_BITS: Final = 48
SEQUENCE_MASK: Final = (1 << SEQUENCE_BITS) - 1
MAX_SLOT: Final = (1 << 15) - 1

MAX_ROWS: Final = 1 << 24
"""Rows of one handle. Runs say many rows in few bytes, so what is read needs a bound of its own."""

_RUNS: Final = 0
_COLUMNS: Final = 1
_HEAD: Final = struct.Struct("<BI")
_RUNS_HEAD: Final = struct.Struct("<qI")
_ONE_RUN: Final = struct.Struct("<qI")
_COLUMNS_HEAD: Final = struct.Struct("<BBH")
_MAX_STEP: Final = 1 << 32


def make_uids(slot: int, first_sequence: int, num_rows: int) -> Uids:
    """``num_rows`` consecutive uids of a shard slot. Shape ``[num_rows]``."""
    if not 0 <= slot <= MAX_SLOT:
        raise ValueError(f"slot must be in 0..{MAX_SLOT}, got {slot}")
    if first_sequence < 0 or num_rows < 0 or first_sequence + num_rows > SEQUENCE_MASK + 1:
        raise ValueError(f"no {num_rows} sequences of {SEQUENCE_BITS} bits from {first_sequence}")
    first = (slot << SEQUENCE_BITS) + first_sequence
    return np.arange(first, first + num_rows, dtype=np.int64)


def slots_of(uids: Uids) -> Uids:
    """The shard slot of each uid."""
    return uids >> SEQUENCE_BITS


def sequences_of(uids: Uids) -> Uids:
    """The sequence of each uid on its shard."""
    return uids & SEQUENCE_MASK


def as_uids(values: object) -> Uids:
    """A read-only one-dimensional int64 array of valid uids, not copied if it is one already.

    Raises `InvalidInput`.
    """
    array = np.asarray(values)
    if array.size == 0:
        array = array.reshape(-1).astype(np.int64)
    if array.ndim != 1 or array.dtype.kind not in "iu":
        raise InvalidInput(f"uids must be one row of ints, got {array.dtype} of {array.shape}")
    if array.dtype != np.int64 or array.flags.writeable:
        array = array.astype(np.int64)
        array.flags.writeable = False
    if array.size and array.min() < 0:
        raise InvalidInput(f"a uid is not negative, got {int(array.min())}")
    return array


def encode_uids(uids: Uids) -> bytes:
    """The shortest coding of up to `MAX_ROWS` valid uids, in their order."""
    if len(uids) > MAX_ROWS:
        raise InvalidInput(f"a handle has at most {MAX_ROWS:,} rows, got {len(uids):,}")
    runs = _encode_runs(uids)
    # A run costs 12 bytes, a row at most 8: below one run in four rows columns cannot be shorter.
    if len(runs) <= 64 or len(runs) <= len(uids):
        return runs
    return min(runs, _encode_columns(uids), key=len)


def decode_uids(data: bytes | memoryview) -> Uids:
    """Inverse of `encode_uids`: a read-only array. Raises `Malformed`."""
    view = memoryview(data)
    if view.nbytes < _HEAD.size:
        raise Malformed("uids: too short")
    coding, num_rows = _HEAD.unpack_from(view)
    if num_rows > MAX_ROWS or coding not in (_RUNS, _COLUMNS):
        raise Malformed(f"uids: coding {coding} of {num_rows} rows")
    rest = view[_HEAD.size :]
    uids = _decode_runs(rest, num_rows) if coding == _RUNS else _decode_columns(rest, num_rows)
    uids.flags.writeable = False
    return uids


def _is_one_run(uids: Uids) -> bool:
    step = int(uids[1] - uids[0])
    if abs(step) >= _MAX_STEP or int(uids[-1] - uids[0]) != step * (len(uids) - 1):
        return False
    return bool((uids[1:] - uids[:-1] == step).all())


def _common_step(uids: Uids) -> int:
    """The median of the steps: with it rows in order are few runs whatever their stride."""
    if len(uids) < 2:
        return 1
    steps = np.diff(uids)
    step = int(np.partition(steps, len(steps) // 2)[len(steps) // 2])
    return step if abs(step) < _MAX_STEP else 1


def _encode_runs(uids: Uids) -> bytes:
    # Rows as they were put, or a part of them: a fifth of the time that the general way takes.
    if len(uids) > 1 and _is_one_run(uids):
        return b"".join(
            (
                _HEAD.pack(_RUNS, len(uids)),
                _RUNS_HEAD.pack(int(uids[1] - uids[0]), 1),
                _ONE_RUN.pack(int(uids[0]), len(uids)),
            )
        )
    step = _common_step(uids)
    starts = np.flatnonzero(np.diff(uids, prepend=uids[:1] - step) != step)
    if len(uids):
        starts = np.concatenate([[0], starts])
    counts = np.diff(starts, append=len(uids)).astype("<u4")
    return b"".join(
        (
            _HEAD.pack(_RUNS, len(uids)),
            _RUNS_HEAD.pack(step, len(starts)),
            uids[starts].astype("<i8").tobytes(),
            counts.tobytes(),
        )
    )


def _decode_runs(data: memoryview, num_rows: int) -> Uids:
    if data.nbytes < _RUNS_HEAD.size:
        raise Malformed("uids: too short")
    step, num_runs = _RUNS_HEAD.unpack_from(data)
    data = data[_RUNS_HEAD.size :]
    if data.nbytes != 12 * num_runs or abs(step) >= _MAX_STEP:
        raise Malformed("uids: the runs do not fill their bytes")
    if num_runs == 1:
        return _decode_one_run(data, num_rows, step)
    firsts = np.frombuffer(data[: 8 * num_runs], dtype="<i8").astype(np.int64)
    counts = np.frombuffer(data[8 * num_runs :], dtype="<u4").astype(np.int64)
    if int(counts.sum()) != num_rows or (num_runs and int(counts.min()) == 0):
        raise Malformed(f"uids: the runs are not {num_rows} rows")
    # |step| * count < 2**56, so a last uid that left the range shows as a negative number.
    if num_runs and min(int(firsts.min()), int((firsts + step * (counts - 1)).min())) < 0:
        raise Malformed("uids: a uid out of range")
    within = np.arange(num_rows, dtype=np.int64)
    within -= np.repeat(np.cumsum(counts) - counts, counts)
    within *= step
    within += np.repeat(firsts, counts)
    return within


def _decode_one_run(data: memoryview, num_rows: int, step: int) -> Uids:
    """As `_decode_runs` in general, in a third of the time."""
    first, count = _ONE_RUN.unpack(data)
    if count != num_rows or count == 0:
        raise Malformed(f"uids: the runs are not {num_rows} rows")
    if min(first, first + step * (count - 1)) < 0 or first + step * (count - 1) >= 1 << 63:
        raise Malformed("uids: a uid out of range")
    run: Uids = np.arange(num_rows, dtype=np.int64) * step + first
    return run


def _encode_columns(uids: Uids) -> bytes:
    sequences = sequences_of(uids)
    slots, index = np.unique(slots_of(uids), return_inverse=True)
    lowest = np.full(len(slots), SEQUENCE_MASK, dtype=np.int64)
    np.minimum.at(lowest, index, sequences)
    above = sequences - lowest[index]
    slot_bytes = _bytes_for(len(slots) - 1)
    sequence_bytes = _bytes_for(int(above.max(initial=0)))
    return b"".join(
        (
            _HEAD.pack(_COLUMNS, len(uids)),
            _COLUMNS_HEAD.pack(slot_bytes, sequence_bytes, len(slots)),
            slots.astype("<u2").tobytes(),
            lowest.astype("<u8").tobytes(),
            _low_bytes(index.astype(np.int64), slot_bytes),
            _low_bytes(above, sequence_bytes),
        )
    )


def _decode_columns(data: memoryview, num_rows: int) -> Uids:
    if data.nbytes < _COLUMNS_HEAD.size:
        raise Malformed("uids: too short")
    slot_bytes, sequence_bytes, num_slots = _COLUMNS_HEAD.unpack_from(data)
    data = data[_COLUMNS_HEAD.size :]
    row_bytes = slot_bytes + sequence_bytes
    if slot_bytes > 2 or sequence_bytes > 6 or data.nbytes != 10 * num_slots + row_bytes * num_rows:
        raise Malformed("uids: the columns do not fill their bytes")
    slots = np.frombuffer(data[: 2 * num_slots], dtype="<u2").astype(np.int64)
    lowest = np.frombuffer(data[2 * num_slots : 10 * num_slots], dtype="<u8")
    data = data[10 * num_slots :]
    index = _from_low_bytes(data[: slot_bytes * num_rows], slot_bytes, num_rows)
    above = _from_low_bytes(data[slot_bytes * num_rows :], sequence_bytes, num_rows)
    if num_rows and int(index.max()) >= num_slots:
        raise Malformed("uids: a slot index out of range")
    if num_slots and (int(slots.max()) > MAX_SLOT or int(lowest.max()) > SEQUENCE_MASK):
        raise Malformed("uids: a slot or sequence out of range")
    sequences = lowest.astype(np.int64)[index] + above
    if num_rows and int(sequences.max()) > SEQUENCE_MASK:
        raise Malformed("uids: a sequence out of range")
    return (slots[index] << SEQUENCE_BITS) | sequences


def _bytes_for(value: int) -> int:
    return (value.bit_length() + 7) // 8 if value > 0 else 0


def _low_bytes(values: Uids, width: int) -> bytes:
    """The ``width`` low bytes of each value."""
    return values.astype("<i8").view(np.uint8).reshape(-1, 8)[:, :width].tobytes()


def _from_low_bytes(data: memoryview, width: int, num_rows: int) -> Uids:
    wide = np.zeros((num_rows, 8), dtype=np.uint8)
    wide[:, :width] = np.frombuffer(data, dtype=np.uint8).reshape(num_rows, width)
    return wide.view("<i8").reshape(num_rows).astype(np.int64)

"""What a shard's rows and cells are, as records beside the file of the cells' bytes. No file.

The bytes of a column lie in its file from ``offset`` on, cell by cell in the order of the rows'
uids. Cells that were put together stay one slab when they are restored, so that what a reader maps
keeps as much memory from being reused as before.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from transferqueue.fields import FieldSpec
from transferqueue.journal.codes import read_runs, read_sizes, write_runs, write_sizes
from transferqueue.journal.records import Record
from transferqueue.uids import decode_uids, encode_uids
from transferqueue.wire.arrays import ArrayReader, ArrayWriter

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

ROWS, COLUMN, SUMS = "rows", "column", "sums"

MAX_UIDS = 1 << 24
"""Of one record: a code of uids holds no more."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SavedColumn:
    """One field of one partition."""

    field: str
    present: np.ndarray  # bool[rows of the partition]
    slabs: np.ndarray  # int64[cells], which of the column's slabs
    lengths: np.ndarray  # int64[cells], in units of the slab's spec
    specs: Sequence[FieldSpec]
    spec_of_slab: np.ndarray  # int32[slabs], index into specs
    offset: int

    @property
    def sizes(self) -> np.ndarray:
        """int64[cells], in bytes."""
        units = np.array([spec.unit_bytes for spec in self.specs], dtype=np.int64)
        if not len(units):
            return self.lengths
        sizes: np.ndarray = self.lengths * units[self.spec_of_slab[self.slabs]]
        return sizes


@dataclass(frozen=True, slots=True, kw_only=True)
class SavedPartition:
    """One partition's rows on one shard."""

    name: str
    uids: np.ndarray  # int64[rows], rising
    columns: Sequence[SavedColumn]
    backends: Mapping[str, str] = field(default_factory=dict)
    """Which backend its fields go to, as it was declared."""


def to_records(partitions: Iterable[SavedPartition], sums: np.ndarray) -> Iterator[Record]:
    """``sums``: of the file's chunks, uint32[chunks]."""
    for partition in partitions:
        yield _rows(partition)
        for column in partition.columns:
            yield _column(column)
    arrays = ArrayWriter()
    yield Record(kind=SUMS, body={"sums": arrays.add(sums.astype(np.int64))}, frames=arrays.frames)


def from_records(records: Iterable[Record]) -> tuple[list[SavedPartition], np.ndarray]:
    """Inverse of `to_records`. ``LookupError``, ``ValueError`` or `Malformed` for others."""
    found: list[tuple[dict[str, Any], np.ndarray, list[SavedColumn]]] = []
    sums = np.empty(0, dtype=np.int64)
    for record in records:
        arrays = ArrayReader(record.frames)
        if record.kind == ROWS:
            codes = [decode_uids(arrays.get_bytes(frame).data) for frame in record.body["uids"]]
            uids = np.concatenate([np.empty(0, np.int64), *codes])
            found.append((record.body, uids, []))
        elif record.kind == COLUMN:
            _, uids, columns = found[-1]
            columns.append(_read_column(record.body, len(uids), arrays))
        elif record.kind == SUMS:
            sums = arrays.int64s(record.body["sums"])
    partitions = [
        SavedPartition(
            name=str(body["partition"]),
            uids=uids,
            columns=columns,
            backends=dict(body.get("backends", {})),
        )
        for body, uids, columns in found
    ]
    return partitions, sums


def _rows(partition: SavedPartition) -> Record:
    arrays = ArrayWriter()
    codes = []
    for start in range(0, len(partition.uids), MAX_UIDS):
        code = encode_uids(partition.uids[start : start + MAX_UIDS])
        codes.append(arrays.add_bytes(np.frombuffer(code, np.uint8)))
    body = {"partition": partition.name, "uids": codes, "backends": dict(partition.backends)}
    return Record(kind=ROWS, body=body, frames=arrays.frames)


def _column(column: SavedColumn) -> Record:
    arrays = ArrayWriter()
    body = {
        "field": column.field,
        "present": None if bool(column.present.all()) else arrays.add(np.packbits(column.present)),
        "count": len(column.slabs),
        "slabs": write_runs(column.slabs, None, arrays),
        "lengths": write_sizes(column.lengths, arrays),
        "specs": [list(spec.to_wire()) for spec in column.specs],
        "spec_of_slab": arrays.add(column.spec_of_slab),
        "offset": column.offset,
    }
    return Record(kind=COLUMN, body=body, frames=arrays.frames)


def _read_column(body: dict[str, Any], num_rows: int, arrays: ArrayReader) -> SavedColumn:
    count = int(body["count"])
    present = np.ones(num_rows, dtype=bool)
    if body["present"] is not None:
        present = np.unpackbits(arrays.get(body["present"]), count=num_rows).view(bool)
    return SavedColumn(
        field=str(body["field"]),
        present=present,
        slabs=read_runs(body["slabs"], None, count, arrays),
        lengths=read_sizes(body["lengths"], count, arrays),
        specs=[FieldSpec.from_wire(spec) for spec in body["specs"]],
        spec_of_slab=arrays.get(body["spec_of_slab"]),
        offset=int(body["offset"]),
    )

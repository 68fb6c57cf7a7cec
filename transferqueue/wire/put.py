"""The body of a put: everything about it but its bytes."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from transferqueue.errors import Malformed
from transferqueue.fields import FieldSpec, check_name
from transferqueue.wire.tags import TAG_TYPES, read_tags, write_tags

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    import numpy as np

    from transferqueue.wire.arrays import ArrayReader, ArrayWriter

MAX_LENGTH = 1 << 38
"""Units of one cell; with at most 2**24 rows a column stays below 2**62 units."""

MAX_ROWS_PER_PUT = 1 << 24

MAX_PART_NAME_CHARS = 64

BY_WRITE = -1
"""In place of the address of a column: its bytes come in chunks."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ColumnPlan:
    """One field of a put: how its bytes divide into cells."""

    name: str
    spec: FieldSpec
    lengths: np.ndarray | None  # int64[rows] in units of the spec; None: one unit each
    nbytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class PutPlan:
    """One shard's part of a put."""

    partition: str
    num_rows: int
    uids: np.ndarray | None  # int64[rows]; None: new rows
    columns: Sequence[ColumnPlan]
    tags: Mapping[str, Any] = field(default_factory=dict)
    overwrite: bool = False
    part_of: str = ""
    """Names the put, in a way of its client's, when it goes to several shards."""

    @property
    def nbytes(self) -> int:
        return sum(column.nbytes for column in self.columns)

    def write(self, arrays: ArrayWriter) -> dict[str, Any]:
        """As plain values; arrays go beside the body."""
        return {
            "partition": self.partition,
            "num_rows": self.num_rows,
            "uids": arrays.add_optional(self.uids),
            "columns": [
                [
                    column.name,
                    list(column.spec.to_wire()),
                    arrays.add_optional(column.lengths),
                    column.nbytes,
                ]
                for column in self.columns
            ],
            "tags": write_tags(self.tags, arrays),
            "overwrite": self.overwrite,
            "part_of": self.part_of,
        }

    @classmethod
    def read(cls, body: Mapping[str, Any], arrays: ArrayReader) -> PutPlan:
        """Inverse of `write`. Raises Malformed when sizes do not add up; nothing of a claimed size
        is allocated before."""
        num_rows = body["num_rows"]
        if type(num_rows) is not int or not 0 <= num_rows <= MAX_ROWS_PER_PUT:
            raise Malformed(f"num_rows must be 0 to {MAX_ROWS_PER_PUT}, got {num_rows!r:.40}")
        uids = None if body["uids"] is None else arrays.int64s(body["uids"])
        if uids is not None and len(uids) != num_rows:
            raise Malformed(f"{len(uids)} uids for {num_rows} rows")
        tags = read_tags(body["tags"], arrays)
        for name, value in tags.items():
            if not isinstance(value, TAG_TYPES) and len(value) != num_rows:
                raise Malformed(f"tag {name!r:.80}: {len(value)} values for {num_rows} rows")
        return cls(
            partition=check_name(body["partition"], what="partition"),
            num_rows=num_rows,
            uids=uids,
            columns=[_read_column(column, num_rows, arrays) for column in body["columns"]],
            tags=tags,
            overwrite=bool(body["overwrite"]),
            part_of=_part_name(body.get("part_of", "")),
        )


def _part_name(name: object) -> str:
    if type(name) is not str or len(name) > MAX_PART_NAME_CHARS:
        raise Malformed(f"part_of is a short name, got {name!r:.40}")
    return name


def _read_column(column: Sequence[Any], num_rows: int, arrays: ArrayReader) -> ColumnPlan:
    name, spec_plain, lengths_reference, nbytes = column
    spec = FieldSpec.from_wire(spec_plain)
    if not spec.is_concrete:
        raise Malformed(f"field {name!r:.80}: the shape of a put is known, got {spec}")
    lengths = None if lengths_reference is None else arrays.int64s(lengths_reference)
    if (lengths is not None) != spec.has_lengths:
        raise Malformed(f"field {name!r:.80}: lengths go with ragged and object columns only")
    num_units = num_rows
    if lengths is not None:
        # The bound on one length keeps the sum of all far from the end of int64.
        if len(lengths) != num_rows or (
            num_rows and not 0 <= int(lengths.min()) <= int(lengths.max()) <= MAX_LENGTH
        ):
            raise Malformed(f"field {name!r:.80}: not a length for each of {num_rows} rows")
        num_units = int(lengths.sum())
    if type(nbytes) is not int or num_units * spec.unit_bytes != nbytes:
        raise Malformed(f"field {name!r:.80}: {num_units} units of {spec} are not {nbytes} bytes")
    return ColumnPlan(
        name=check_name(name, what="field"), spec=spec, lengths=lengths, nbytes=nbytes
    )

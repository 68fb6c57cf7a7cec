"""The answer to a get: where the cells of each field lie, or the bytes themselves."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from transferqueue.errors import Malformed
from transferqueue.fields import FieldSpec
from transferqueue.wire.slot_ref import SlotRef

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from transferqueue.wire.arrays import ArrayReader, ArrayWriter


@dataclass(frozen=True, slots=True, kw_only=True)
class GotColumn:
    """One field of one shard's answer. Rows that lack the field are left out of every array."""

    specs: Sequence[FieldSpec]
    """The distinct specs among the cells: one, unless puts of different shapes were mixed."""
    spec_of_row: np.ndarray | None  # int64[rows present], index into specs; None: all the first
    present: np.ndarray | None  # bool[rows asked for]; None: all
    lengths: np.ndarray | None  # int64[rows present], in units; None: one unit each
    sent: slice | None = None
    """Where in the payload of the answer the bytes of the cells are, in order."""
    mapped: slice | None = None
    """Which ranges of the answer they are in the shard's arena, in order. Neither this nor
    ``sent``: they come in chunks."""

    def sizes(self, num_rows: int) -> np.ndarray:
        """Bytes of each row present, of ``num_rows`` asked for. int64[rows present]."""
        num_present = num_rows if self.present is None else int(np.count_nonzero(self.present))
        units = np.array([spec.unit_bytes for spec in self.specs], dtype=np.int64)
        sizes = (
            np.full(num_present, units[0]) if self.spec_of_row is None else units[self.spec_of_row]
        )
        return sizes if self.lengths is None else sizes * self.lengths

    def num_bytes(self, num_rows: int) -> int:
        """Bytes of all rows present, of ``num_rows`` asked for."""
        return int(self.sizes(num_rows).sum())

    def write(self, arrays: ArrayWriter) -> list[Any]:
        """As plain values; arrays go beside the body."""
        return [
            [spec.to_wire() for spec in self.specs],
            None if self.spec_of_row is None else arrays.add(self.spec_of_row),
            None if self.present is None else arrays.add(self.present),
            None if self.lengths is None else arrays.add(self.lengths),
            None if self.sent is None else _ends(self.sent),
            None if self.mapped is None else _ends(self.mapped),
        ]

    @classmethod
    def read(cls, plain: object, arrays: ArrayReader) -> GotColumn:
        """Inverse of `write`. Raises `Malformed`."""
        if not isinstance(plain, list | tuple) or len(plain) != 6:
            raise Malformed("a column of an answer has 6 parts")
        specs, spec_of_row, present, lengths, sent, mapped = plain
        return cls(
            specs=[FieldSpec.from_wire(spec) for spec in specs],
            spec_of_row=None if spec_of_row is None else arrays.get(spec_of_row),
            present=None if present is None else arrays.get(present),
            lengths=None if lengths is None else arrays.get(lengths),
            sent=None if sent is None else _slice(sent),
            mapped=None if mapped is None else _slice(mapped),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class GetAnswer:
    """What a shard answers to a get."""

    columns: Mapping[str, GotColumn]
    payload: np.ndarray
    """uint8[bytes]: all that goes with the answer, as one frame: for a single sample a frame a
    field would cost more than its bytes."""
    ranges: np.ndarray
    """int64[2, ranges]: starts and sizes in the arena, of all columns that are mapped. Cells that
    follow one another are one range, so that the rows of a put are one a column."""
    lease_id: int | None
    """Holds what is mapped or comes in chunks; ``None`` when there is nothing of the kind."""
    loan_id: int | None = None
    """Holds what is lent of device memory, whose columns are among those that are mapped: a lease
    is of one kind of memory."""
    refs: Sequence[SlotRef] = ()
    """The slots that these lie in."""

    def write(self, arrays: ArrayWriter) -> dict[str, Any]:
        """As plain values; arrays and payload go beside the body."""
        columns = {name: column.write(arrays) for name, column in self.columns.items()}
        payload = arrays.add_bytes(self.payload) if len(self.payload) else None
        ranges = arrays.add(self.ranges) if self.ranges.size else None
        return {
            "columns": columns,
            "payload": payload,
            "ranges": ranges,
            "lease_id": self.lease_id,
            **({} if self.loan_id is None else self._loan()),
        }

    def _loan(self) -> dict[str, Any]:
        return {"loan_id": self.loan_id, "refs": [ref.to_plain() for ref in self.refs]}

    @classmethod
    def read(cls, body: Mapping[str, Any], arrays: ArrayReader) -> GetAnswer:
        """Inverse of `write`. Raises `Malformed`."""
        frame, ranges = body["payload"], arrays.get_optional(body["ranges"])
        if ranges is None:
            ranges = _NO_RANGES
        if ranges.ndim != 2 or len(ranges) != 2 or ranges.dtype != np.int64:
            raise Malformed(f"ranges are int64[2, n], not {ranges.dtype}{list(ranges.shape)}")
        return cls(
            columns={
                str(name): GotColumn.read(plain, arrays) for name, plain in body["columns"].items()
            },
            payload=_NO_BYTES if frame is None else arrays.get_bytes(frame),
            ranges=ranges,
            lease_id=body["lease_id"],
            loan_id=body.get("loan_id"),
            refs=[SlotRef.from_plain(ref) for ref in body.get("refs", ())],
        )


def _ends(part: slice) -> list[int]:
    return [part.start, part.stop]


def _slice(ends: Any) -> slice:
    return slice(int(ends[0]), int(ends[1]))


_NO_BYTES = np.empty(0, dtype=np.uint8)
_NO_RANGES = np.empty((2, 0), dtype=np.int64)

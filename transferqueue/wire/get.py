"""The answer to a get: where the cells of each field lie, or the bytes themselves."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from transferqueue.errors import Malformed
from transferqueue.fields import FieldSpec

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
    starts: np.ndarray | None  # int64[rows present], arena addresses; None: the bytes are here
    place: slice | None
    """Where in the payload of the answer the bytes of the cells are, in order; ``None``: they are
    mapped, or come in chunks."""

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
            [list(spec.to_wire()) for spec in self.specs],
            arrays.add_optional(self.spec_of_row),
            arrays.add_optional(self.present),
            arrays.add_optional(self.lengths),
            arrays.add_optional(self.starts),
            None if self.place is None else [self.place.start, self.place.stop],
        ]

    @classmethod
    def read(cls, plain: object, arrays: ArrayReader) -> GotColumn:
        """Inverse of `write`. Raises `Malformed`."""
        if not isinstance(plain, list | tuple) or len(plain) != 6:
            raise Malformed("a column of an answer has 6 parts")
        specs, spec_of_row, present, lengths, starts, place = plain
        return cls(
            specs=[FieldSpec.from_wire(spec) for spec in specs],
            spec_of_row=arrays.get_optional(spec_of_row),
            present=arrays.get_optional(present),
            lengths=arrays.get_optional(lengths),
            starts=arrays.get_optional(starts),
            place=None if place is None else slice(int(place[0]), int(place[1])),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class GetAnswer:
    """What a shard answers to a get."""

    columns: Mapping[str, GotColumn]
    payload: np.ndarray
    """uint8[bytes]: all that goes with the answer, as one frame: for a single sample a frame a
    field would cost more than its bytes."""
    lease_id: int | None
    """Holds what is mapped or comes in chunks; ``None`` when there is nothing of the kind."""

    def write(self, arrays: ArrayWriter) -> dict[str, Any]:
        """As plain values; arrays and payload go beside the body."""
        columns = {name: column.write(arrays) for name, column in self.columns.items()}
        payload = arrays.add_bytes(self.payload) if len(self.payload) else None
        return {"columns": columns, "payload": payload, "lease_id": self.lease_id}

    @classmethod
    def read(cls, body: Mapping[str, Any], arrays: ArrayReader) -> GetAnswer:
        """Inverse of `write`. Raises `Malformed`."""
        frame = body["payload"]
        return cls(
            columns={
                str(name): GotColumn.read(plain, arrays) for name, plain in body["columns"].items()
            },
            payload=_NO_BYTES if frame is None else arrays.get_bytes(frame),
            lease_id=body["lease_id"],
        )


_NO_BYTES = np.empty(0, dtype=np.uint8)

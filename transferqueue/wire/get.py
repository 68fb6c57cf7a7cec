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
    payload: np.ndarray | None
    """uint8[bytes of the cells, in order]; ``None``: they are mapped, or come in chunks."""

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
        """As plain values; arrays and payload go beside the body."""
        return [
            [list(spec.to_wire()) for spec in self.specs],
            arrays.add_optional(self.spec_of_row),
            arrays.add_optional(self.present),
            arrays.add_optional(self.lengths),
            arrays.add_optional(self.starts),
            None if self.payload is None else arrays.add_bytes(self.payload),
        ]

    @classmethod
    def read(cls, plain: object, arrays: ArrayReader) -> GotColumn:
        """Inverse of `write`. Raises `Malformed`."""
        if not isinstance(plain, list | tuple) or len(plain) != 6:
            raise Malformed("a column of an answer has 6 parts")
        specs, spec_of_row, present, lengths, starts, payload = plain
        return cls(
            specs=[FieldSpec.from_wire(spec) for spec in specs],
            spec_of_row=arrays.get_optional(spec_of_row),
            present=arrays.get_optional(present),
            lengths=arrays.get_optional(lengths),
            starts=arrays.get_optional(starts),
            payload=None if payload is None else arrays.get_bytes(payload),
        )


def read_columns(body: Mapping[str, Any], arrays: ArrayReader) -> dict[str, GotColumn]:
    """The columns of an answer by field."""
    return {str(name): GotColumn.read(plain, arrays) for name, plain in body["columns"].items()}

"""A column on its way out."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy as np
    import torch

    from transferqueue.fields import FieldSpec


@dataclass(frozen=True, slots=True, kw_only=True)
class Hole:
    """Bytes inside objects that are on a device yet."""

    offset: int
    """Where they belong in the payload, which has zeros there and is writable."""
    block: torch.Tensor  # uint8[bytes]


@dataclass(frozen=True, slots=True, kw_only=True)
class EncodedColumn:
    """One field of a put as bytes.

    Invariant: the payload is as long as ``unit_bytes`` times the sum of ``lengths`` (or the number
    of rows). It shares the memory of what was put wherever that was contiguous, so it must be sent
    before the caller changes that.
    """

    spec: FieldSpec
    num_rows: int
    lengths: np.ndarray[Any, np.dtype[np.int64]] | None  # [rows] in units; None: one unit each
    payload: np.ndarray[Any, np.dtype[np.uint8]] | torch.Tensor
    """uint8[bytes of the rows, in order]; a tensor where they stay on their device."""
    holes: Sequence[Hole] = ()
    """Of an object column."""

    @property
    def unit_bytes(self) -> int:
        """Bytes of one unit, see `FieldSpec.unit_bytes`."""
        return self.spec.unit_bytes

    @property
    def nbytes(self) -> int:
        """Bytes of all rows."""
        return self.payload.nbytes

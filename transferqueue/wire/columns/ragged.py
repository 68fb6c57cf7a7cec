"""Columns whose rows differ in length along one dimension: nested tensors of the jagged layout.

A row is stored with its ragged dimension first, so that its bytes are ``length`` equal steps and
rows can be cut, joined and reordered without knowing their shape. Which dimension it was is in the
spec, never guessed from the values: rows that happen to be of one length come back jagged too.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from transferqueue.fields import VARIES, FieldSpec
from transferqueue.wire.columns.encoded import EncodedColumn
from transferqueue.wire.tensors import (
    Bytes,
    Stays,
    dtype_name,
    nowhere,
    pick,
    tensor_block,
    tensor_from_bytes,
)

Lengths = np.ndarray[Any, np.dtype[np.int64]]


def encode_jagged(nested: torch.Tensor, stays: Stays = nowhere) -> EncodedColumn:
    """A nested tensor ``[rows, *shape]`` of the jagged layout, wherever its ragged dimension is.

    Holes between the rows (``nested.lengths()`` given) and values outside of them are left out.
    Not copied when the values are contiguous in the order in which they are stored.
    """
    plain: Any = nested.detach()
    ragged_dim = plain._ragged_idx - 1
    steps = plain.values().movedim(ragged_dim, 0)  # [all steps, *the other dimensions]
    starts, lengths = _starts_and_lengths(plain)
    steps = _only_rows(steps, starts, lengths)
    shape = list(steps.shape[1:])
    shape.insert(ragged_dim, VARIES)
    spec = FieldSpec.of(dtype_name(steps), tuple(shape), ragged_dim=ragged_dim)
    return EncodedColumn(
        spec=spec, num_rows=len(lengths), lengths=lengths, payload=tensor_block(steps, stays)
    )


def _starts_and_lengths(nested: Any) -> tuple[Lengths, Lengths]:
    offsets = nested.offsets().cpu().numpy().astype(np.int64)
    given = nested.lengths()
    lengths = np.diff(offsets) if given is None else given.cpu().numpy().astype(np.int64)
    return offsets[:-1], lengths


def _only_rows(steps: torch.Tensor, starts: Lengths, lengths: Lengths) -> torch.Tensor:
    """The steps of the rows alone, one row after another."""
    if len(lengths) == 0:
        return steps[:0]
    ends = starts + lengths
    if (ends[:-1] == starts[1:]).all():
        return steps[int(starts[0]) : int(ends[-1])]
    index = np.arange(int(lengths.sum()), dtype=np.int64)
    index += np.repeat(starts - (np.cumsum(lengths) - lengths), lengths)
    return pick(steps, 0, torch.from_numpy(index).to(steps.device))


def decode_jagged(
    spec: FieldSpec, payload: Bytes | torch.Tensor, lengths: Lengths, num_rows: int
) -> torch.Tensor:
    """Inverse of `encode_jagged`; the values share the memory of ``payload``."""
    assert spec.ragged_dim is not None
    offsets = np.zeros(num_rows + 1, dtype=np.int64)
    np.cumsum(lengths, out=offsets[1:])
    steps = tensor_from_bytes(payload, spec.dtype, (int(offsets[-1]), *spec.unit_shape))
    nested: torch.Tensor = torch.nested.nested_tensor_from_jagged(
        steps.movedim(0, spec.ragged_dim),
        torch.from_numpy(offsets).to(steps.device),
        jagged_dim=spec.ragged_dim + 1,
        # Known here for nothing; an operation that needs them would read the offsets again.
        min_seqlen=int(lengths.min()) if num_rows else None,
        max_seqlen=int(lengths.max()) if num_rows else None,
    )
    return nested

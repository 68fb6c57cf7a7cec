"""What of a get lies in files that a client of this host reads itself, in place of asking for it in
chunks."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from transferqueue.backends.several import ADDRESS_BITS

if TYPE_CHECKING:
    from collections.abc import Mapping

    from transferqueue.backends.several import SeveralBackends
    from transferqueue.shard.store import FoundColumn
    from transferqueue.wire.arrays import ArrayWriter

RUN_BYTES = 64 << 10
"""Columns whose stretches are shorter on average go in chunks: a read costs the client as much as
it costs the shard, and is another loop over rows."""


def in_files(
    backend: SeveralBackends, columns: Mapping[str, FoundColumn], arrays: ArrayWriter
) -> dict[str, Any]:
    """``files`` of an answer: by column the number of a file, and how many of the ranges, int64[2,
    ranges] of offsets and sizes, are the column's; ``access`` to each file by its number as text.
    Nothing where there is none."""
    chosen: dict[str, list[int]] = {}
    ranges: list[np.ndarray] = []
    for name, column in columns.items():
        starts, sizes = column.runs.starts, column.runs.sizes
        number = backend.in_one_file(starts)
        if number is not None and column.num_bytes >= RUN_BYTES * len(starts):
            chosen[name] = [number, len(starts)]
            ranges.append(np.array([starts - (number << ADDRESS_BITS), sizes]))
    if not chosen:
        return {}
    access = backend.files()
    used = {str(number): access[str(number)] for number, _ in chosen.values()}
    return {
        "files": {
            "columns": chosen,
            "ranges": arrays.add(np.concatenate(ranges, axis=1)),
            "access": used,
        }
    }

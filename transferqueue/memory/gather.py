"""Bringing scattered byte ranges of one memory together, without a Python step per range.

Where ranges lie one after the other there is nothing to bring together and the answer is a view.
Otherwise the choice is by the length of the runs, measured on rows of 1 KiB to 64 KiB:

* few long runs: one slice copy a run; the copies dominate, the loop does not;
* equal ranges on one grid: one `numpy.take` of whole rows, which copies each with memcpy;
* anything else: one index over units of up to 8 bytes, about 5 ns a unit.
"""

from __future__ import annotations

import numpy as np

LONG_RUN_BYTES = 32 << 10
"""A slice copy costs about 0.3 µs of interpreter, as much as copying 3 KiB: at this mean run
length the loop is a tenth of the copy."""


def merge_runs(starts: np.ndarray, sizes: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Join ranges that follow one another in memory. int64[n], int64[n] -> the same, shorter."""
    if len(starts) == 1 and sizes[0] > 0:
        return starts, sizes  # one sample: ten calls of numpy would cost more than its bytes
    ends = starts + sizes
    if len(starts) and (starts[1:] == ends[:-1]).all() and ends[-1] > starts[0]:
        return starts[:1], ends[-1:] - starts[0]  # rows of one put: a third of what follows
    filled = sizes > 0
    if not filled.all():
        starts, sizes = starts[filled], sizes[filled]
    if len(starts) == 0:
        return starts, sizes
    breaks = np.flatnonzero(starts[1:] != starts[:-1] + sizes[:-1]) + 1
    first = np.concatenate(([0], breaks))
    return starts[first], np.add.reduceat(sizes, first)


def gather(memory: np.ndarray, starts: np.ndarray, sizes: np.ndarray) -> np.ndarray:
    """Bytes of the ranges in order, as one uint8[total] array.

    ``memory``: uint8[n]. ``starts``, ``sizes``: int64[ranges], byte positions in ``memory``.
    A view of ``memory`` when the ranges are one run, else a fresh array.
    """
    run_starts, run_sizes = merge_runs(starts, sizes)
    if len(run_starts) == 0:
        return memory[:0]
    if len(run_starts) == 1:
        first = int(run_starts[0])
        return memory[first : first + int(run_sizes[0])]
    out = np.empty(int(run_sizes.sum()), dtype=np.uint8)
    gather_into(out, memory, run_starts, run_sizes)
    return out


def gather_into(out: np.ndarray, memory: np.ndarray, starts: np.ndarray, sizes: np.ndarray) -> None:
    """Copy the ranges, none of them empty, one after the other into ``out``: uint8[sum(sizes)]."""
    if len(out) >= LONG_RUN_BYTES * len(starts):
        _copy_runs(out, memory, starts.tolist(), sizes.tolist())
    elif not _take_rows(out, memory, starts, sizes):
        _take_units(out, memory, starts, sizes)


def _copy_runs(out: np.ndarray, memory: np.ndarray, starts: list[int], sizes: list[int]) -> None:
    position = 0
    for start, size in zip(starts, sizes, strict=True):
        out[position : position + size] = memory[start : start + size]
        position += size


def _take_rows(out: np.ndarray, memory: np.ndarray, starts: np.ndarray, sizes: np.ndarray) -> bool:
    """The case of equal ranges on one grid; whether it was the case."""
    size = int(sizes[0])
    if not (sizes == size).all():
        return False
    origin = int(starts.min())
    rows, rest = np.divmod(starts - origin, size)
    if rest.any():
        return False
    num_rows = int(rows.max()) + 1
    grid = memory[origin : origin + num_rows * size].reshape(num_rows, size)
    np.take(grid, rows, axis=0, out=out.reshape(len(starts), size), mode="clip")
    return True


def _take_units(out: np.ndarray, memory: np.ndarray, starts: np.ndarray, sizes: np.ndarray) -> None:
    unit = _common_unit(starts, sizes)
    origin = int(starts.min())
    end = int((starts + sizes).max())
    units = memory[origin:end].view(f"u{unit}")
    counts = sizes // unit
    ends = np.cumsum(counts)
    # Position of each unit in the source: its place in the output, moved by its range's offset.
    shift = (starts - origin) // unit - (ends - counts)
    index = np.arange(int(ends[-1]), dtype=np.int64)
    index += np.repeat(shift, counts)
    np.take(units, index, out=out.view(f"u{unit}"), mode="clip")


def _common_unit(starts: np.ndarray, sizes: np.ndarray) -> int:
    """The largest of 8, 4, 2, 1 that divides every size and every distance between starts."""
    mixed = int(np.bitwise_or.reduce(starts - starts.min()) | np.bitwise_or.reduce(sizes))
    return next(unit for unit in (8, 4, 2, 1) if mixed % unit == 0)

"""What tells whether pages of a slab came back as they went: the sum of the 64-bit words of each
page of 4 KiB.

It finds what a store or a wire does to bytes: cut off, zeroed, flipped, shifted, of another slab or
of an earlier time. It does not find words of one page that changed places, which nothing on the way
does. CRC-32 would; it takes 7.7 ms for 16 MiB here, this takes 0.3 ms, and a read of as much from a
store of this host takes 2.
"""

from __future__ import annotations

import numpy as np

PAGE_BYTES = 4096
_WORDS = PAGE_BYTES // 8


def digests_of(data: np.ndarray) -> np.ndarray:
    """uint64[pages] of uint8[bytes], the last page filled up with zeros."""
    whole = len(data) // PAGE_BYTES
    words = data[: whole * PAGE_BYTES].view(np.uint64).reshape(whole, _WORDS)
    found = np.empty(-(-len(data) // PAGE_BYTES), np.uint64)
    np.add.reduce(words, axis=1, out=found[:whole])
    rest = data[whole * PAGE_BYTES :]
    if len(rest):
        last = np.zeros(PAGE_BYTES, np.uint8)
        last[: len(rest)] = rest
        found[whole] = np.add.reduce(last.view(np.uint64))
    return found


def first_wrong(expected: np.ndarray, data: np.ndarray) -> int | None:
    """The first page of ``data`` that is not what was expected; also when there are too few."""
    found = digests_of(data)
    if len(found) != len(expected):
        return min(len(found), len(expected))
    wrong = np.flatnonzero(found != expected)
    return int(wrong[0]) if len(wrong) else None

"""What tells whether pages of a slab came back as they went: two words a page of 4 KiB.

The sum and the exclusive or of its 64-bit words. Both find what a store or a wire does to bytes:
cut off, zeroed, flipped, shifted, of another slab or of an earlier time. They do not find words of
one page that changed places, which nothing on the way does. CRC-32 would; it takes 7.7 ms for
16 MiB here, these take 0.6 ms, and a read of as much from a store of this host takes 2.
"""

from __future__ import annotations

import numpy as np

PAGE_BYTES = 4096
_WORDS = PAGE_BYTES // 8


def digests_of(data: np.ndarray) -> np.ndarray:
    """uint64[pages, 2] of uint8[bytes], the last page filled up with zeros."""
    whole = len(data) // PAGE_BYTES
    words = data[: whole * PAGE_BYTES].view(np.uint64).reshape(whole, _WORDS)
    found = np.empty((-(-len(data) // PAGE_BYTES), 2), np.uint64)
    np.add.reduce(words, axis=1, out=found[:whole, 0])
    np.bitwise_xor.reduce(words, axis=1, out=found[:whole, 1])
    rest = data[whole * PAGE_BYTES :]
    if len(rest):
        last = np.zeros(PAGE_BYTES, np.uint8)
        last[: len(rest)] = rest
        found[whole] = digests_of(last)[0]
    return found


def first_wrong(expected: np.ndarray, data: np.ndarray) -> int | None:
    """The first page of ``data`` that is not what was expected; also when there are too few."""
    found = digests_of(data)
    if len(found) != len(expected):
        return min(len(found), len(expected))
    wrong = np.flatnonzero((found != expected).any(axis=1))
    return int(wrong[0]) if len(wrong) else None

"""Text cells of a whole column at once: every row a ``str``.

A cell is what msgpack writes for a string: 1 to 5 bytes of header, then UTF-8, in which a lone
surrogate takes the three bytes that it would have there. Two ways write and read the same cells:

* short strings (below `LONG_BYTES` on average) by msgpack's parser, all in one call;
* long ones by a copy each, from where CPython keeps them into the payload and back, driven by C
  loops. 1,024 strings of 32 KiB: 3 ms to write where msgpack takes 40, as it grows its buffer
  while it goes and hands out a copy.
"""

from __future__ import annotations

import ctypes
from collections import deque
from itertools import repeat
from typing import TYPE_CHECKING, Any, Final

import msgpack
import numpy as np

from transferqueue.wire.format import guarded_unpack

if TYPE_CHECKING:
    from collections.abc import Sequence

Lengths = np.ndarray[Any, np.dtype[np.int64]]
Bytes = np.ndarray[Any, np.dtype[np.uint8]]

LONG_BYTES: Final = 1 << 10
"""A copy by itself costs 0.5 µs a string, as much as parsing that many bytes."""

_ERRORS: Final = "surrogatepass"
_FIXSTR, _FIXSTR_MAX, _STR8, _STR16, _STR32 = 0xA0, 31, 0xD9, 0xDA, 0xDB

# Where CPython keeps the UTF-8 of a string: of an ASCII one that is the string itself, no copy.
_utf8_address: Any = ctypes.PYFUNCTYPE(ctypes.c_void_p, ctypes.py_object, ctypes.c_void_p)(
    ("PyUnicode_AsUTF8AndSize", ctypes.pythonapi)
)


def pack_text(values: Sequence[str]) -> tuple[Bytes, Lengths]:
    """The cells of some strings end to end, and the bytes of each."""
    is_ascii = all(map(str.isascii, values))
    encoded = None if is_ascii else list(map(str.encode, values, repeat("utf-8"), repeat(_ERRORS)))
    sizes = np.fromiter(map(len, encoded or values), dtype=np.int64, count=len(values))
    lengths = sizes + _header_sizes(sizes)
    if _are_long(sizes):
        sources = map(_utf8_address, values, repeat(None)) if encoded is None else encoded
        return _copied(sources, sizes, lengths), lengths
    packed = msgpack.packb(values, unicode_errors=_ERRORS)
    return np.frombuffer(packed, np.uint8)[len(packed) - int(lengths.sum()) :], lengths


def read_text(payload: Bytes, starts: Lengths, ends: Lengths) -> list[str] | None:
    """Inverse of `pack_text`: cells at ``[starts, ends)`` of the payload, none empty.

    ``None`` when they are short, or one of them is no well-formed text cell: whoever reads them
    one by one finds out what it is. Raises `Malformed` for bytes that are not UTF-8.
    """
    if not _are_long(ends - starts):
        return None
    text_starts = _text_starts(payload, starts, ends)
    if text_starts is None:
        return None
    cut = map(payload.data.__getitem__, map(slice, text_starts.tolist(), ends.tolist()))
    texts: list[str] = guarded_unpack(lambda: list(map(str, cut, repeat("utf-8"), repeat(_ERRORS))))
    return texts


def _are_long(sizes: Lengths) -> bool:
    return len(sizes) > 0 and int(sizes.sum()) >= LONG_BYTES * len(sizes)


def _header_sizes(sizes: Lengths) -> Lengths:
    """Bytes of the header before a text of so many bytes."""
    return 1 + (sizes > _FIXSTR_MAX) + (sizes > 0xFF) + 2 * (sizes > 0xFFFF)


def _copied(sources: Any, sizes: Lengths, lengths: Lengths) -> Bytes:
    """``sources``: an address or ``bytes`` for each text."""
    payload = np.empty(int(lengths.sum()), np.uint8)
    starts = np.cumsum(lengths) - lengths
    heads = lengths - sizes
    _write_headers(payload, starts, sizes, heads)
    targets = (starts + heads + payload.ctypes.data).tolist()
    deque(map(ctypes.memmove, targets, sources, sizes.tolist()), maxlen=0)
    return payload


def _write_headers(payload: Bytes, starts: Lengths, sizes: Lengths, heads: Lengths) -> None:
    codes = np.array([0, 0, _STR8, _STR16, 0, _STR32], np.uint8)[heads]
    payload[starts] = np.where(heads == 1, _FIXSTR + sizes, codes)
    for width in (2, 3, 5):
        rows = np.flatnonzero(heads == width)
        for place in range(1, width):
            shift = 8 * (width - 1 - place)
            payload[starts[rows] + place] = (sizes[rows] >> shift) & 0xFF


def _text_starts(payload: Bytes, starts: Lengths, ends: Lengths) -> Lengths | None:
    """Where the text of each cell begins; ``None`` unless every header says what is there."""
    codes = payload[starts].astype(np.int64)
    widths = np.select(
        [(codes >> 5) == _FIXSTR >> 5, codes == _STR8, codes == _STR16, codes == _STR32],
        [1, 2, 3, 5],
    )
    if (widths == 0).any() or (widths > ends - starts).any():
        return None
    claimed = np.where(widths == 1, codes & _FIXSTR_MAX, 0)
    for width in (2, 3, 5):
        rows = np.flatnonzero(widths == width)
        for place in range(1, width):
            claimed[rows] = (claimed[rows] << 8) | payload[starts[rows] + place]
    return starts + widths if (claimed == ends - starts - widths).all() else None

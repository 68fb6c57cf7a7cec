"""The format of a journal, and telling a torn record from a damaged file. No file, no clock.

::

    file      "TQJ" version (1 byte, 1), then records
    record    size (u32)  checksum of the content (u32)  checksum of those two (u32)  content
    content   size of its head (u32)  head: msgpack [kind, body, sizes of the frames]  frames

Records are appended by one ``write`` each, so a kill leaves a whole record or the beginning of one
at the very end of the file. That one was never acted upon and is dropped. Anything else that does
not fit together is damage: what follows may have undone what came before, so no part of such a
journal can be used.
"""

from __future__ import annotations

import struct
import zlib
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from transferqueue.errors import JournalDamaged, Malformed
from transferqueue.wire.format import Buffer, pack_plain, unpack_plain

if TYPE_CHECKING:
    from collections.abc import Sequence

FILE_HEAD: Final = b"TQJ\x01"

_SIZES: Final = struct.Struct("<II")
_CHECK: Final = struct.Struct("<I")
_PREFIX_BYTES: Final = _SIZES.size + _CHECK.size


@dataclass(frozen=True, slots=True, kw_only=True)
class Record:
    """One thing that happened. Arrays of the body are frames, as in a message."""

    kind: str
    body: dict[str, Any] = field(default_factory=dict)
    frames: Sequence[Buffer] = ()


def encode_record(record: Record) -> list[Buffer]:
    """The pieces of a record, to be written one after the other. Frames are not copied."""
    sizes = [memoryview(frame).nbytes for frame in record.frames]
    head = pack_plain([record.kind, record.body, sizes])
    start = _CHECK.pack(len(head)) + head
    checksum = zlib.crc32(start)
    for frame in record.frames:
        checksum = zlib.crc32(frame, checksum)
    prefix = _SIZES.pack(len(start) + sum(sizes), checksum)
    return [prefix + _CHECK.pack(zlib.crc32(prefix)) + start, *record.frames]


def read_records(data: Buffer, where: str = "") -> list[Record]:
    """Every whole record of a file. `JournalDamaged` names ``where`` and the byte."""
    view = memoryview(data).cast("B")
    if len(view) < len(FILE_HEAD) or bytes(view[: len(FILE_HEAD)]) != FILE_HEAD:
        raise JournalDamaged(where, 0, "it does not begin as a journal")
    records: list[Record] = []
    at = len(FILE_HEAD)
    while at < len(view):
        found = _content_at(view, at, where)
        if found is None:
            break
        records.append(_parsed(found, at, where))
        at += _PREFIX_BYTES + len(found)
    return records


def _content_at(view: memoryview, at: int, where: str) -> memoryview | None:
    """The content of the record that begins here; ``None`` when it is the torn last one."""
    if len(view) - at < _PREFIX_BYTES:
        return None
    prefix = view[at : at + _SIZES.size]
    size, checksum = _SIZES.unpack(prefix)
    (prefix_checksum,) = _CHECK.unpack(view[at + _SIZES.size : at + _PREFIX_BYTES])
    if prefix_checksum != zlib.crc32(prefix):
        if not any(view[at:]):  # a file system that lost power may leave zeros
            return None
        raise JournalDamaged(where, at, "a record's size does not match its checksum")
    content = view[at + _PREFIX_BYTES : at + _PREFIX_BYTES + size]
    if len(content) == size and zlib.crc32(content) == checksum:
        return content
    if at + _PREFIX_BYTES + size >= len(view):
        return None
    raise JournalDamaged(where, at, "a record does not match its checksum, and others follow it")


def _parsed(content: memoryview, at: int, where: str) -> Record:
    try:
        (head_size,) = _CHECK.unpack(content[: _CHECK.size])
        end = _CHECK.size + head_size
        kind, body, sizes = unpack_plain(content[_CHECK.size : end])
        frames = []
        for size in sizes:
            frames.append(content[end : end + size])
            end += size
    except (Malformed, ValueError, TypeError, struct.error) as error:
        raise JournalDamaged(where, at, f"not a record: {error}") from error
    return Record(kind=kind, body=body, frames=frames)

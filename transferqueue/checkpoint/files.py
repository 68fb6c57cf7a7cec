"""Files of a checkpoint: written and synced, read and checked."""

from __future__ import annotations

import os
import platform
import zlib
from typing import TYPE_CHECKING

from transferqueue.checkpoint.manifest import SavedFile
from transferqueue.errors import CheckpointDamaged, CheckpointUnreachable, JournalDamaged
from transferqueue.journal.records import FILE_HEAD, encode_record, read_records

if TYPE_CHECKING:
    from collections.abc import Iterable

    from transferqueue.journal.records import Record

TEMPORARY_FLAGS = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC | os.O_NOFOLLOW


def refuse_unseen(folder: str, where: str) -> None:
    """`CheckpointUnreachable` when this host does not see the folder at all."""
    try:
        os.scandir(folder).close()
    except OSError as error:
        raise CheckpointUnreachable(where, platform.node(), str(error)) from error


def write_all(fd: int, view: memoryview) -> None:
    """All of it, or ``OSError``."""
    while view.nbytes:
        view = view[os.write(fd, view) :]


def write_records(path: str, records: Iterable[Record]) -> SavedFile:
    """A synced file of records, in the format of a journal. ``OSError``."""
    fd = os.open(path, TEMPORARY_FLAGS, 0o600)
    try:
        write_all(fd, memoryview(FILE_HEAD))
        nbytes, checksum = len(FILE_HEAD), zlib.crc32(FILE_HEAD)
        for record in records:
            for piece in encode_record(record):
                view = memoryview(piece).cast("B")
                write_all(fd, view)
                nbytes, checksum = nbytes + view.nbytes, zlib.crc32(view, checksum)
        os.fsync(fd)
    finally:
        os.close(fd)
    return SavedFile(name=os.path.basename(path), nbytes=nbytes, crc32=checksum)


def read_saved_records(folder: str, file: SavedFile, where: str) -> list[Record]:
    """Inverse of `write_records`. `CheckpointDamaged` unless it is to the byte what was written."""
    data = read_saved(folder, file, where)
    try:
        return read_records(data, file.name)
    except JournalDamaged as error:
        raise CheckpointDamaged(where, file.name, str(error)) from error


def read_saved(folder: str, file: SavedFile, where: str) -> bytes:
    try:
        with open(os.path.join(folder, file.name), "rb") as opened:
            data = opened.read()
    except OSError as error:
        raise CheckpointDamaged(where, file.name, f"cannot be read: {error}") from error
    if len(data) != file.nbytes or zlib.crc32(data) != file.crc32:
        raise CheckpointDamaged(
            where,
            file.name,
            f"{len(data):,} bytes do not match the checksum of the {file.nbytes:,} written",
        )
    return data


def sync_folder(path: str) -> None:
    """What was made, renamed or deleted in the folder is on the disk."""
    fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)

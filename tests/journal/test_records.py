"""A journal says what was written, whole, or says that it is damaged."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from transferqueue.errors import JournalDamaged, ServiceFailed
from transferqueue.journal.codes import read_runs, read_sizes, write_runs, write_sizes
from transferqueue.journal.file import FileLock, JournalFile, read_journal
from transferqueue.journal.records import FILE_HEAD, Record, encode_record, read_records
from transferqueue.wire.arrays import ArrayReader, ArrayWriter

if TYPE_CHECKING:
    from pathlib import Path

RECORDS = [
    Record(kind="put", body={"id": 1, "at": [0, 64]}, frames=[b"lengths", b""]),
    Record(kind="clear", body={"partition": "p"}, frames=[bytes(range(200))]),
    Record(kind="last", body={"name": "ß", "key": [b"\x01\x00", 7]}, frames=[b"abc", b"defg"]),
]


def journal_of(records: list[Record]) -> bytes:
    return FILE_HEAD + b"".join(bytes(p) for r in records for p in encode_record(r))


def plain(records: list[Record]) -> list[object]:
    return [(r.kind, r.body, [bytes(frame) for frame in r.frames]) for r in records]


def test_records_come_back_as_they_were_written() -> None:
    assert plain(read_records(journal_of(RECORDS))) == plain(RECORDS)
    assert read_records(FILE_HEAD) == []


def test_a_last_record_cut_at_any_byte_is_dropped_and_those_before_it_are_kept() -> None:
    whole, kept = journal_of(RECORDS), journal_of(RECORDS[:-1])
    for end in range(len(kept), len(whole)):
        assert plain(read_records(whole[:end])) == plain(RECORDS[:-1]), end


def test_a_last_record_with_any_byte_of_its_content_changed_is_dropped() -> None:
    whole, kept = bytearray(journal_of(RECORDS)), len(journal_of(RECORDS[:-1]))
    for at in range(kept + 12, len(whole)):
        changed = bytearray(whole)
        changed[at] ^= 0x40
        assert plain(read_records(bytes(changed))) == plain(RECORDS[:-1]), at


def test_zeros_after_the_last_record_are_no_record() -> None:
    assert plain(read_records(journal_of(RECORDS) + bytes(100))) == plain(RECORDS)


def test_any_byte_changed_in_a_record_that_others_follow_is_damage() -> None:
    whole = bytearray(journal_of(RECORDS))
    for at in range(len(journal_of(RECORDS[:-1]))):
        changed = bytearray(whole)
        changed[at] ^= 0x01
        with pytest.raises(JournalDamaged, match=r"here is damaged at byte \d+"):
            read_records(bytes(changed), "here")


@given(st.binary(max_size=200))
def test_bytes_that_are_no_journal_are_never_half_taken(data: bytes) -> None:
    with pytest.raises(JournalDamaged):
        read_records(b"TQX" + data)
    for record in _read_or_none(FILE_HEAD + data):
        raise AssertionError(f"made of nothing: {record}")


def _read_or_none(data: bytes) -> list[Record]:
    try:
        return read_records(data)
    except JournalDamaged:
        return []


# -- the file -------------------------------------------------------------------------------------


def test_a_file_is_of_its_user_alone_and_rewriting_keeps_the_last_word(tmp_path: Path) -> None:
    path = str(tmp_path / "journal")
    assert read_journal(path) is None
    file = JournalFile(path)
    for record in RECORDS:
        file.append(record)
    assert os.stat(path).st_mode & 0o777 == 0o600
    assert os.stat(path).st_size == file.num_bytes
    assert plain(read_journal(path) or []) == plain(RECORDS)
    file.rewrite(RECORDS[:1])
    file.append(RECORDS[2])
    assert plain(read_journal(path) or []) == plain([RECORDS[0], RECORDS[2]])
    assert os.stat(path).st_size == file.num_bytes
    file.close()
    file.close()
    assert [p.name for p in tmp_path.iterdir()] == ["journal"]


def test_a_rewrite_that_fails_leaves_the_old_file(tmp_path: Path) -> None:
    path = str(tmp_path / "journal")
    file = JournalFile(path, RECORDS)

    def failing() -> object:
        yield RECORDS[0]
        raise OSError("no room")

    with pytest.raises(OSError, match="no room"):
        file.rewrite(failing())  # type: ignore[arg-type]
    file.append(RECORDS[0])
    assert plain(read_journal(path) or []) == plain([*RECORDS, RECORDS[0]])
    file.close()
    assert [p.name for p in tmp_path.iterdir()] == ["journal"]


def test_a_lock_is_held_by_one_and_free_when_it_ends(tmp_path: Path) -> None:
    path = str(tmp_path / "lock")
    lock = FileLock.take(path, timeout_s=0)
    with pytest.raises(ServiceFailed, match="still holds"):
        FileLock.take(path, timeout_s=0.05)
    lock.close()
    FileLock.take(path, timeout_s=0).close()


# -- columns --------------------------------------------------------------------------------------


@given(st.lists(st.integers(0, 3), max_size=40), st.lists(st.integers(0, 2), max_size=40))
def test_columns_come_back_from_their_runs(values: list[int], sizes: list[int]) -> None:
    count = min(len(values), len(sizes))
    column = np.array(values[:count], dtype=np.int64)
    growth = np.array(sizes[:count], dtype=np.int64)
    for step in (None, growth):
        arrays = ArrayWriter()
        code = write_runs(column, step, arrays)
        assert read_runs(code, step, count, ArrayReader(arrays.frames)).tolist() == values[:count]
    arrays = ArrayWriter()
    code = write_sizes(growth, arrays)
    assert read_sizes(code, count, ArrayReader(arrays.frames)).tolist() == sizes[:count]


def test_cells_that_follow_one_another_are_one_run() -> None:
    sizes = np.arange(1, 1001)
    starts = 4096 + np.cumsum(sizes) - sizes
    arrays = ArrayWriter()
    write_runs(starts, sizes, arrays)
    assert sum(memoryview(frame).nbytes for frame in arrays.frames) == 16

"""The disk backend: what it takes of the disk, and what it does when the disk fails."""

from __future__ import annotations

import errno
import os
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from transferqueue.backends.base import BackendConfig
from transferqueue.backends.checked_file import BLOCK_BYTES
from transferqueue.backends.disk import DiskBackend
from transferqueue.backends.disk_file import DiskFile
from transferqueue.backends.piece_sums import PieceSums, SavedSums
from transferqueue.backends.pieces import PIECE_BYTES, Pieces
from transferqueue.errors import ArenaTooSmall, BytesDamaged, ConfigError, ServiceFailed
from transferqueue.memory.allocator import PAGE_BYTES
from transferqueue.testing.leaks import no_leaks

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

MIB = 1 << 20


@pytest.fixture(autouse=True)
def nothing_leaks(tmp_path: Path) -> Iterator[None]:
    with no_leaks(str(tmp_path)):
        yield


def config(directory: Path, **changes: Any) -> BackendConfig:
    plain = BackendConfig(service_id="svc", slot=0, budget_bytes=4 * MIB, directory=str(directory))
    return replace(plain, **changes)


def put(backend: DiskBackend, data: bytes) -> int:
    addresses = backend.reserve([len(data)])
    assert addresses is not None
    backend.write(int(addresses[0]), memoryview(data))
    backend.seal(addresses, np.array([len(data)]))
    return int(addresses[0])


def stored(backend: DiskBackend) -> int:
    stored_bytes: int = backend.facts()["stored_bytes"]
    return stored_bytes


def file_of(directory: Path) -> Path:
    (file,) = directory.glob("transferqueue-svc-0-*.000000")
    return file


def test_its_files_are_private_and_in_the_folder_that_was_named(tmp_path: Path) -> None:
    with DiskBackend.open(config(tmp_path)):
        assert {path.stat().st_mode & 0o777 for path in tmp_path.iterdir()} == {0o600}
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"directory": None}, "needs arena_dir="),
        ({"directory": "/no/such/folder"}, "cannot be used: .*No such file"),
        ({"options": {"sync": "always"}}, "sync must be 'never' or 'seal', got 'always'"),
        ({"options": {"prefault": True}}, r"has no options \['prefault'\]"),
        ({"options": {"keep_s": -1}}, "keep_s must be 0 or more seconds, got -1"),
        ({"options": {"keep_s": "soon"}}, "keep_s must be 0 or more seconds, got 'soon'"),
    ],
)
def test_settings_that_cannot_work_are_refused(
    tmp_path: Path, changes: dict[str, Any], message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        DiskBackend.open(replace(config(tmp_path), **changes))


def test_a_budget_that_the_disk_cannot_hold_is_refused_with_the_numbers(tmp_path: Path) -> None:
    with pytest.raises(ArenaTooSmall, match=f"the budget needs {1 << 60:,}"):
        DiskBackend.open(config(tmp_path, budget_bytes=1 << 60))


def test_the_disk_gets_back_what_was_cleared_however_it_was_cleared(tmp_path: Path) -> None:
    """Rows of a quarter page: no single call empties a piece."""
    row_bytes, rows = PAGE_BYTES // 4, 1024
    with DiskBackend.open(config(tmp_path, options={"keep_s": 0})) as backend:
        at = put(backend, os.urandom(rows * row_bytes))
        whole = stored(backend)
        assert whole >= rows * row_bytes
        starts = at + np.arange(rows) * row_bytes
        odd = np.arange(rows) % 2 == 1
        backend.free(starts[odd], np.full(rows // 2, row_bytes))
        assert stored(backend) == whole, "each piece still holds a row"
        left = np.flatnonzero(~odd)[:-2]
        backend.free(starts[left], np.full(len(left), row_bytes))
        assert backend.used_bytes == 2 * row_bytes
        assert whole - stored(backend) == rows * row_bytes - PIECE_BYTES
        assert backend.facts()["kept_bytes"] == 0


def test_room_that_was_freed_serves_what_is_put_next(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with DiskBackend.open(config(tmp_path, budget_bytes=16 * MIB)) as backend:
        first = put(backend, os.urandom(2 * MIB))
        backend.tick(10.0)
        backend.free(np.array([first]), np.array([2 * MIB]))
        assert (backend.used_bytes, backend.facts()["kept_bytes"]) == (0, 2 * MIB)
        assert stored(backend) >= 2 * MIB
        with monkeypatch.context() as patch:
            patch.setattr(os, "posix_fallocate", no_room)
            assert backend.reserve([2 * MIB + 1]) is None
            assert backend.facts()["kept_bytes"] == 0, "a full disk has it back"
        again = put(backend, os.urandom(2 * MIB))
        backend.free(np.array([again]), np.array([2 * MIB]))
        with monkeypatch.context() as patch:
            patch.setattr(os, "posix_fallocate", no_room)
            put(backend, b"x" * MIB)
        assert backend.facts()["kept_bytes"] == MIB
        assert backend.tick(11.0) == 12.0
        assert stored(backend) >= 2 * MIB
        assert backend.tick(12.0) is None
        assert stored(backend) <= MIB + 64 * 1024


def no_room(*_: Any) -> None:
    raise OSError(errno.ENOSPC, "No space left on device")


def test_a_device_that_gives_no_room_fails_the_put_and_nothing_is_taken(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_: Any) -> None:
        raise OSError(errno.EIO, "Input/output error")

    with DiskBackend.open(config(tmp_path)) as backend:
        with monkeypatch.context() as patch:
            patch.setattr(os, "posix_fallocate", broken)
            with pytest.raises(ServiceFailed, match=r"no room to be had: .*Input/output error"):
                backend.reserve([MIB])
        assert (backend.used_bytes, stored(backend)) == (0, 0)
        put(backend, os.urandom(MIB))


def test_a_quarter_of_the_budget_is_kept_at_most_and_no_more_than_the_disk_has_left(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with DiskBackend.open(config(tmp_path)) as backend:
        at = put(backend, os.urandom(3 * MIB))
        backend.free(np.array([at]), np.array([3 * MIB]))
        assert backend.facts()["kept_bytes"] == MIB
        monkeypatch.setattr(DiskFile, "room_beside", 300_000)
        at = put(backend, os.urandom(MIB))
        backend.free(np.array([at]), np.array([MIB]))
        assert backend.facts()["kept_bytes"] == 300_000 // PAGE_BYTES * PAGE_BYTES


def test_nothing_is_left_to_see_of_what_was_there_before(tmp_path: Path) -> None:
    """Bytes that a put did not write are zeros, in room that was kept as in new room."""
    size = 5 * PAGE_BYTES
    with DiskBackend.open(config(tmp_path)) as backend:
        for is_staged in (False, True):
            old = put(backend, b"secret" * 10_000)
            backend.free(np.array([old]), backend.extents([60_000]))
            found = backend.reserve([size])
            assert found is not None
            at = int(found[0])
            assert at == old
            new = at + PAGE_BYTES + 100
            if is_staged:
                assert bytes(backend.writable(at, size)) == bytes(size)
                backend.writable(new, 3)[:] = b"new"
            else:
                backend.write(new, memoryview(b"new"))
            backend.seal(found, np.array([size]))
            expected = bytearray(size)
            expected[PAGE_BYTES + 100 : PAGE_BYTES + 103] = b"new"
            assert bytes(backend.readable(at, size)) == expected
            assert file_of(tmp_path).read_bytes()[at : at + size] == expected
            backend.free(np.array([at]), backend.extents([size]))


@pytest.mark.parametrize("is_damaged", [False, True])
def test_rows_stay_what_they_were_when_room_in_their_piece_is_given_out(
    tmp_path: Path, *, is_damaged: bool
) -> None:
    """And those of a piece that the disk has changed stay damaged."""
    row = PAGE_BYTES
    with DiskBackend.open(config(tmp_path, budget_bytes=12 * row)) as backend:
        data = os.urandom(12 * row)
        at = put(backend, data)
        if is_damaged:
            with file_of(tmp_path).open("r+b") as file:
                file.seek(at + 5 * row)
                file.write(b"other")
        backend.free(np.array([at + 4 * row]), np.array([3 * row]))
        other = put(backend, b"x" * 2 * row)
        assert at < other < at + 7 * row
        rest = [(0, 4 * row), (7 * row, 12 * row)]
        for low, high in rest:
            if is_damaged:
                with pytest.raises(BytesDamaged):
                    backend.readable(at + low, high - low)
            else:
                assert bytes(backend.readable(at + low, high - low)) == data[low:high]
        assert bytes(backend.readable(other, 2 * row)) == b"x" * 2 * row
        backend.close(keep=True)
    with DiskBackend.open(config(tmp_path, recover=True)) as backend:
        starts = np.array([at, other, at + 7 * row])
        backend.adopt(starts, np.array([4 * row, 2 * row, 5 * row]))
        assert bytes(backend.readable(other, 2 * row)) == b"x" * 2 * row
        if not is_damaged:
            assert bytes(backend.readable(at + 8 * row, 100)) == data[8 * row : 8 * row + 100]


def test_a_shorter_life_of_a_page_does_not_spoil_its_neighbours(tmp_path: Path) -> None:
    """A new slab never shares a page with the rest of an old one."""
    with DiskBackend.open(config(tmp_path, budget_bytes=8 * PAGE_BYTES)) as backend:
        data = os.urandom(8 * PAGE_BYTES - 100)
        at = put(backend, data)
        backend.free(np.array([at + 100]), np.array([4 * PAGE_BYTES]))
        assert backend.reserve([4 * PAGE_BYTES]) is None
        other = put(backend, b"x" * 3 * PAGE_BYTES)
        assert bytes(backend.readable(at, 100)) == data[:100]
        rest = at + 100 + 4 * PAGE_BYTES
        assert bytes(backend.readable(rest, 1000)) == data[rest - at : rest - at + 1000]
        assert bytes(backend.readable(other, 3 * PAGE_BYTES)) == b"x" * 3 * PAGE_BYTES


def test_a_file_that_was_cut_off_is_noticed(tmp_path: Path) -> None:
    with DiskBackend.open(config(tmp_path)) as backend:
        first, second = put(backend, os.urandom(MIB)), put(backend, os.urandom(MIB))
        os.truncate(file_of(tmp_path), second + 100)
        assert len(backend.readable(first, MIB)) == MIB
        with pytest.raises(BytesDamaged, match="the file ends before them"):
            backend.readable(second, MIB)


def test_what_changed_while_the_shard_was_away_is_noticed(tmp_path: Path) -> None:
    backend = DiskBackend.open(config(tmp_path))
    first, second = put(backend, os.urandom(MIB)), put(backend, os.urandom(1000))
    backend.close(keep=True)
    with file_of(tmp_path).open("r+b") as file:
        file.seek(first + 5000)
        file.write(b"other")
    with DiskBackend.open(config(tmp_path, recover=True)) as backend:
        backend.adopt(np.array([first, second]), backend.extents([MIB, 1000]))
        assert len(backend.readable(second, 1000)) == 1000
        with pytest.raises(BytesDamaged, match="not the bytes that were written"):
            backend.readable(first, MIB)


def test_a_successor_gives_back_what_nobody_wants_any_more(tmp_path: Path) -> None:
    backend = DiskBackend.open(config(tmp_path))
    put(backend, os.urandom(MIB))
    kept = put(backend, os.urandom(MIB))
    put(backend, os.urandom(MIB))
    backend.close(keep=True)
    with DiskBackend.open(config(tmp_path, recover=True)) as backend:
        assert stored(backend) >= 3 * MIB
        backend.adopt(np.array([kept]), np.array([MIB]))
        assert stored(backend) <= MIB + 64 * 1024


def test_the_page_that_a_successor_adopted_a_part_of_goes_back_with_that_part(
    tmp_path: Path,
) -> None:
    backend = DiskBackend.open(config(tmp_path, options={"keep_s": 0}))
    kept = put(backend, bytes(PAGE_BYTES // 2))
    backend.close(keep=True)
    with DiskBackend.open(config(tmp_path, recover=True, options={"keep_s": 0})) as backend:
        part = np.array([kept]), np.array([PAGE_BYTES // 2])
        backend.adopt(*part)
        assert stored(backend) == PAGE_BYTES
        backend.free(*part)
        assert stored(backend) == 0


def test_a_device_that_cannot_write_fails_the_put_where_that_was_asked_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(fd: int) -> None:
        raise OSError(errno.EIO, "Input/output error")

    monkeypatch.setattr(os, "fdatasync", broken)
    message = r"cannot be written: .*Input/output error"
    with (
        DiskBackend.open(config(tmp_path, options={"sync": "seal"})) as backend,
        pytest.raises(ServiceFailed, match=message),
    ):
        put(backend, b"abc")
    with DiskBackend.open(config(tmp_path, options={"sync": "never"})) as backend:
        put(backend, b"abc")


def test_a_device_that_cannot_read_fails_the_get(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_: Any) -> int:
        raise OSError(errno.EIO, "Input/output error")

    with DiskBackend.open(config(tmp_path)) as backend:
        at = put(backend, b"abc")
        with monkeypatch.context() as patch:
            patch.setattr(os, "preadv", broken)
            with pytest.raises(BytesDamaged, match="Input/output error"):
                backend.readable(at, 3)
        assert bytes(backend.readable(at, 3)) == b"abc"


def test_sums_are_of_pieces_and_outlive_their_process(tmp_path: Path) -> None:
    path = str(tmp_path / "sums")
    with PieceSums(path, 64) as sums:
        sums.take_room(40)
        sums.lay_out(2, 40)
        assert sums.unknown(3, 30) == [(2, 18), (18, 34)]
        sums.note(Pieces(starts=[2, 18], ends=[18, 34], sums=[7, 8]))
        assert sums.unknown(2, 40) == [(34, 40)]
        sums.forget(20, 21)
        assert sums.unknown(2, 34) == [(18, 34)]
        sums.save(3, 4)
        sums.save(20, 21)
    for again in (PieceSums(path, 64), SavedSums.open(path)):
        with again:
            found = again.around(10, 36)
            assert found is not None
            assert (found.starts, found.ends, found.sums) == ([2, 18, 34], [18, 34, 40], [7, 8, 0])
    os.unlink(path)


def test_what_another_version_has_left_is_refused(tmp_path: Path) -> None:
    """By the shard, and by a client that would read the file itself."""
    backend = DiskBackend.open(config(tmp_path))
    put(backend, os.urandom(MIB))
    backend.close(keep=True)
    (sums,) = tmp_path.glob("*.sums")
    sums.write_bytes(os.urandom(1024))
    with pytest.raises(ServiceFailed, match="of another version"):
        DiskBackend.open(config(tmp_path, recover=True))
    with pytest.raises(OSError, match="no sums of this version"):
        SavedSums.open(str(sums))
    DiskBackend.open(config(tmp_path)).close()


def test_any_part_of_a_slab_is_read_where_it_belongs_and_checked(tmp_path: Path) -> None:
    """Over ends of pages, of pieces and of what is read at once."""
    data = np.random.default_rng(1).integers(0, 256, BLOCK_BYTES + 3 * PAGE_BYTES + 5, np.uint8)
    with DiskBackend.open(config(tmp_path)) as backend:
        address = put(backend, data.tobytes())
        ends = [0, 1, PAGE_BYTES - 1, PAGE_BYTES, PIECE_BYTES, BLOCK_BYTES, BLOCK_BYTES + 7]
        ends.append(len(data))
        for low in ends:
            for high in (end for end in ends if end > low):
                out = np.zeros(high - low, np.uint8)
                backend.read_into(address + low, out.data)
                assert (out == data[low:high]).all()
        with file_of(tmp_path).open("r+b") as file:
            file.seek(address + BLOCK_BYTES + 9)
            file.write(bytes([data[BLOCK_BYTES + 9] ^ 1]))
        out = np.zeros(BLOCK_BYTES, np.uint8)
        backend.read_into(address, out.data)
        with pytest.raises(BytesDamaged):
            backend.read_into(address + PAGE_BYTES, out.data)


def test_a_large_slab_is_checked_all_over(tmp_path: Path) -> None:
    size = 4 * BLOCK_BYTES + PIECE_BYTES + 100
    with DiskBackend.open(config(tmp_path, budget_bytes=8 * MIB)) as backend:
        data = np.random.default_rng(1).integers(0, 256, size, np.uint8)
        found = backend.reserve([size])
        assert found is not None
        backend.write(int(found[0]), data.data)
        backend.seal(found, np.array([size]))
        assert (backend.read_ranges(found, np.array([size])) == data).all()
        for at in (1, BLOCK_BYTES * 4 - 1, size - 1):
            overwrite(file_of(tmp_path), int(found[0]) + at, data[at] ^ 1)
            piece = f"from byte {at // PIECE_BYTES * PIECE_BYTES:,}"
            with pytest.raises(BytesDamaged, match=piece):
                backend.read_ranges(found, np.array([size]))
            overwrite(file_of(tmp_path), int(found[0]) + at, data[at])
        assert (backend.read_ranges(found, np.array([size])) == data).all()


def overwrite(path: Path, at: int, byte: int) -> None:
    with path.open("r+b") as file:
        file.seek(at)
        file.write(bytes([byte]))

"""The disk backend: what it takes of the disk, and what it does when the disk fails."""

from __future__ import annotations

import errno
import os
import zlib
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from transferqueue.backends.base import BackendConfig
from transferqueue.backends.checked_file import BLOCK_BYTES
from transferqueue.backends.disk import DiskBackend
from transferqueue.backends.holes import emptied_pages
from transferqueue.backends.page_sums import PageSums, sums_of
from transferqueue.errors import ArenaTooSmall, BytesDamaged, ConfigError, ServiceFailed
from transferqueue.shard.allocator import PAGE_BYTES
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
    """Rows of a quarter page: no single call empties a page."""
    row_bytes, rows = PAGE_BYTES // 4, 256
    with DiskBackend.open(config(tmp_path)) as backend:
        at = put(backend, os.urandom(rows * row_bytes))
        whole = stored(backend)
        assert whole >= rows * row_bytes
        starts = at + np.arange(rows) * row_bytes
        odd = np.arange(rows) % 2 == 1
        backend.free(starts[odd], np.full(rows // 2, row_bytes))
        assert stored(backend) == whole, "each page still holds a row"
        left = np.flatnonzero(~odd)[:-2]
        backend.free(starts[left], np.full(len(left), row_bytes))
        assert backend.used_bytes == 2 * row_bytes
        assert whole - stored(backend) == (rows // 4 - 1) * PAGE_BYTES


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


def test_sums_are_of_pages_and_outlive_their_process(tmp_path: Path) -> None:
    path = str(tmp_path / "sums")
    pages = os.urandom(3 * PAGE_BYTES)
    sums = PageSums(path, 8)
    sums.take_room(2, 5)
    assert sums.unknown(2, 5) == [2, 3, 4]
    sums.note(2, memoryview(pages))
    sums.save(2, 5)
    sums.close()
    again = PageSums(path, 8)
    assert again.first_wrong(2, memoryview(pages)) is None
    other = bytearray(pages)
    other[PAGE_BYTES + 7] ^= 4
    assert again.first_wrong(2, memoryview(other)) == 3
    again.close()
    os.unlink(path)


@given(st.lists(st.sampled_from("UFN"), min_size=1, max_size=40))
def test_a_page_is_empty_when_its_last_byte_is_freed(quarters: list[str]) -> None:
    """Quarters of pages: used, free before, or freed now."""
    quarter = PAGE_BYTES // 4
    quarters += "U" * (-len(quarters) % 4)

    def ranges(of: str) -> tuple[np.ndarray, np.ndarray]:
        at = np.flatnonzero([q in of for q in quarters]) * quarter
        return at, at + quarter

    def merged(starts: np.ndarray, ends: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        gaps = starts[1:] != ends[:-1]
        return starts[np.r_[True, gaps]], ends[np.r_[gaps, True]]

    free = ranges("FN")
    dropped = emptied_pages(ranges("N"), merged(*free) if len(free[0]) else free)
    pages = ["".join(quarters[at : at + 4]) for at in range(0, len(quarters), 4)]
    expected = [n for n, page in enumerate(pages) if "U" not in page and "N" in page]
    assert [n for a, b in dropped for n in range(a // PAGE_BYTES, b // PAGE_BYTES)] == expected


def test_sums_are_those_of_zlib_whatever_computes_them() -> None:
    """So a shard finds what another one has left that was installed otherwise."""
    pages = np.random.default_rng(0).integers(0, 256, 8 * PAGE_BYTES, dtype=np.uint8)
    expected = [zlib.crc32(page) for page in pages.reshape(8, -1)]
    assert sums_of(pages.data).tolist() == expected


def test_any_part_of_a_slab_is_read_where_it_belongs_and_checked(tmp_path: Path) -> None:
    """Over ends of pages and of what is read at once."""
    data = np.random.default_rng(1).integers(0, 256, BLOCK_BYTES + 3 * PAGE_BYTES + 5, np.uint8)
    with DiskBackend.open(config(tmp_path)) as backend:
        address = put(backend, data.tobytes())
        ends = [0, 1, PAGE_BYTES - 1, PAGE_BYTES, BLOCK_BYTES, BLOCK_BYTES + 7, len(data)]
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

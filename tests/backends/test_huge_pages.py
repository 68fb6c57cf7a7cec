"""Huge pages under an arena."""

from __future__ import annotations

import os
import re
import subprocess
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import psutil
import pytest

from transferqueue.backends import segments
from transferqueue.backends.base import BackendConfig
from transferqueue.backends.huge_pages import REST_STEPS, HugePages, gives_huge_pages
from transferqueue.backends.mapping import (
    HUGE_PAGE_BYTES,
    MADV_COLLAPSE,
    MADV_DONTNEED,
    Access,
    ArenaMapping,
)
from transferqueue.backends.segments import STEP_BYTES, SegmentFiles
from transferqueue.backends.shm import ShmBackend
from transferqueue.backends.shm_reader import ShmReader

if TYPE_CHECKING:
    from collections.abc import Iterator

    from transferqueue.backends.arena_address import ArenaAddress

MIB = 1 << 20


@pytest.fixture
def folder() -> Iterator[str]:
    """In memory, mounted as it comes."""
    with tempfile.TemporaryDirectory(prefix="huge-", dir="/dev/shm") as path:
        yield path


@pytest.fixture
def huge_folder(folder: str) -> str:
    if not gives_huge_pages(folder):
        pytest.skip("this host has no huge pages for memory files")
    return folder


def config(directory: str, budget_bytes: int = 32 * MIB, **options: object) -> BackendConfig:
    return BackendConfig(
        service_id="s", slot=0, budget_bytes=budget_bytes, directory=directory, options=options
    )


def test_an_arena_gets_them_and_its_readers_map_them_as_such(huge_folder: str) -> None:
    with ShmBackend.open(config(huge_folder)) as backend:
        (address,) = backend.reserve([16 * MIB])
        assert backend.facts()["huge_bytes"] == STEP_BYTES
        backend.write(int(address), np.full(16 * MIB, 7, np.uint8).data)
        reader = ShmReader(backend.address)
        view, _ = reader.view(int(address), 16 * MIB)
        assert int(view.sum(dtype=np.int64)) == 7 * 16 * MIB
        assert _bytes_in_huge_pages(view.ctypes.data) == 16 * MIB
        del view
        reader.close()


def test_what_a_reader_edits_is_its_own_and_is_gone_with_its_view(huge_folder: str) -> None:
    with ShmBackend.open(config(huge_folder)) as backend:
        (address,) = backend.reserve([16 * MIB])
        backend.write(int(address), np.full(16 * MIB, 7, np.uint8).data)
        reader, other = ShmReader(backend.address), ShmReader(backend.address)
        for _ in range(2):
            mine, view = reader.view(int(address), 16 * MIB)
            theirs, their_view = other.view(int(address), 16 * MIB)
            assert (mine == 7).all()
            mine[3 * MIB : 9 * MIB] = 1
            mine[-1] = 2
            assert (theirs == 7).all()
            assert (np.frombuffer(backend.readable(int(address), 16 * MIB), np.uint8) == 7).all()
            assert (mine[: 3 * MIB] == 7).all()
            del mine, theirs
            reader.end([view])
            other.end([their_view])
        reader.close()
        other.close()


def test_room_that_was_taken_does_not_count_as_memory_of_the_process(huge_folder: str) -> None:
    before = psutil.Process().memory_info().shared
    with ShmBackend.open(config(huge_folder, 64 * MIB)) as backend:
        assert backend.reserve([64 * MIB]) is not None
        assert backend.facts()["huge_bytes"] == 64 * MIB
        assert psutil.Process().memory_info().shared - before < 4 * MIB


def test_they_can_be_declined(folder: str) -> None:
    with ShmBackend.open(config(folder, huge_pages=False)) as backend:
        assert backend.reserve([16 * MIB]) is not None
        assert backend.facts()["huge_bytes"] == 0
        assert backend.facts()["backed_bytes"] == STEP_BYTES


@pytest.mark.skipif(os.geteuid() != 0, reason="mounts a tmpfs")
@pytest.mark.parametrize("option", ["huge=within_size", "huge=never"])
def test_a_folder_gives_them_however_it_is_mounted(folder: str, option: str) -> None:
    if not gives_huge_pages(folder):
        pytest.skip("this host has no huge pages for memory files")
    mount = ["mount", "-t", "tmpfs", "-o", f"{option},size=64m", "tmpfs", folder]
    if subprocess.run(mount, check=False, capture_output=True).returncode:
        pytest.skip("may not mount")
    try:
        assert gives_huge_pages(folder)
        assert os.listdir(folder) == []
        with ShmBackend.open(config(folder)) as backend:
            assert backend.reserve([16 * MIB]) is not None
            assert backend.facts()["huge_bytes"] == STEP_BYTES
    finally:
        subprocess.run(["umount", "--lazy", folder], check=True)


def test_a_folder_that_cannot_have_them_gives_none(tmp_path: Path) -> None:
    assert not gives_huge_pages(str(tmp_path / "missing"))
    assert not gives_huge_pages("/proc")


class Kernel(ArenaMapping):
    """One that says whether it has huge pages; notes the ranges for which it was asked."""

    def __init__(self, arena: ArenaAddress, *, gives: bool) -> None:
        super().__init__(arena, Access.WRITE)
        self.gives = gives
        self.asked: list[tuple[int, int]] = []

    def advise(self, address: int, nbytes: int, advice: int) -> bool:
        if advice == MADV_DONTNEED:
            assert self.asked[-1] == (address, nbytes)
            return True
        assert advice == MADV_COLLAPSE
        self.asked.append((address, nbytes))
        return self.gives


@pytest.fixture
def address(folder: str) -> Iterator[ArenaAddress]:
    """Of an arena of 300 MiB, whose files are in memory as far as they are written."""
    with ShmBackend.open(config(folder, 300 * MIB)) as backend:
        yield backend.address


def test_after_a_refusal_the_kernel_is_left_alone_for_a_while(
    address: ArenaAddress, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "posix_fallocate", lambda *_: None)  # 300 MiB are not needed for this
    kernel = Kernel(address, gives=False)
    pages = HugePages(kernel)
    files = SegmentFiles(address, huge_pages=pages)
    assert files.back(STEP_BYTES)
    assert files.backed_bytes == STEP_BYTES
    assert files.back((REST_STEPS + 1) * STEP_BYTES)
    assert kernel.asked == [(0, STEP_BYTES)]
    kernel.gives = True
    assert files.back(300 * MIB)
    first = (REST_STEPS + 1) * STEP_BYTES
    assert kernel.asked[1:] == [(first, STEP_BYTES), (first + STEP_BYTES, 12 * MIB)]
    assert pages.taken_bytes == 28 * MIB


def test_only_whole_huge_pages_are_asked_for(folder: str) -> None:
    for segment_bytes, expected in (
        (MIB, []),
        (3 * MIB, [(0, 2 * MIB)]),  # the second does not begin where a huge page may
        (4 * MIB, [(0, 4 * MIB)]),
    ):
        wanted = config(folder, 5 * MIB, segment_bytes=segment_bytes, huge_pages=False)
        with ShmBackend.open(wanted) as backend:
            kernel = Kernel(backend.address, gives=True)
            assert SegmentFiles(backend.address, huge_pages=HugePages(kernel)).back(5 * MIB)
            assert kernel.asked == expected


def test_one_request_waits_for_them_only_so_long(
    address: ArenaAddress, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(segments, "HUGE_PAGES_FOR_S", 0.0)
    kernel = Kernel(address, gives=True)
    files = SegmentFiles(address, huge_pages=HugePages(kernel))
    assert files.back(2 * STEP_BYTES)
    assert kernel.asked == []
    assert files.backed_bytes == 2 * STEP_BYTES


def test_a_successor_fills_the_holes_of_a_step_that_was_cut_short(address: ArenaAddress) -> None:
    assert SegmentFiles(address).back(STEP_BYTES)
    path = address.segment_path(0)
    with open(path, "r+b") as file:
        file.write(b"as it was")
        for at in range(STEP_BYTES, 2 * STEP_BYTES, HUGE_PAGE_BYTES):  # and there it was killed
            os.posix_fallocate(file.fileno(), at, 4096)
    found_bytes = os.stat(path).st_blocks * 512
    assert found_bytes > STEP_BYTES
    pages = HugePages(ArenaMapping(address, Access.WRITE))
    files = SegmentFiles(address, found_bytes=found_bytes, huge_pages=pages)
    assert files.backed_bytes == STEP_BYTES
    assert files.back(STEP_BYTES + 1)
    assert os.stat(path).st_blocks * 512 == 2 * STEP_BYTES
    assert Path(path).read_bytes()[:9] == b"as it was"


def test_what_was_found_whole_is_taken_as_it_is(address: ArenaAddress) -> None:
    assert SegmentFiles(address, found_bytes=300 * MIB).back(300 * MIB)
    assert not Path(address.segment_path(0)).exists()


def _bytes_in_huge_pages(at: int) -> int | None:
    """Of the mapping that an address lies in, as the kernel counts them; ``None`` if it doesn't."""
    inside = False
    for line in Path("/proc/self/smaps").read_text().splitlines():
        if found := re.match(r"([0-9a-f]+)-([0-9a-f]+) ", line):
            inside = int(found[1], 16) <= at < int(found[2], 16)
        elif inside and line.startswith("ShmemPmdMapped:"):
            return int(line.split()[1]) << 10
    return None

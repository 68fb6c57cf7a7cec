"""Copy-on-write views: edits are the reader's own, and gone when its lease is."""

from __future__ import annotations

import gc
import json
import os
import subprocess
import sys
import time
import weakref
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pytest

from transferqueue.backends.base import BackendConfig
from transferqueue.backends.mapping import Access, ArenaMapping
from transferqueue.backends.private_views import _PageMap
from transferqueue.backends.shm import ShmBackend
from transferqueue.backends.shm_reader import ShmReader
from transferqueue.errors import Closed, ServiceFailed
from transferqueue.testing.leaks import no_leaks

if TYPE_CHECKING:
    from collections.abc import Iterator

PAGE = 4096
SEGMENT = 256 << 10


@pytest.fixture(autouse=True)
def nothing_leaks(tmp_path: Path) -> Iterator[None]:
    with no_leaks(str(tmp_path)):
        yield


@pytest.fixture
def backend(tmp_path: Path) -> Iterator[ShmBackend]:
    config = BackendConfig(
        service_id="views",
        slot=3,
        budget_bytes=16 * SEGMENT,
        directory=str(tmp_path),
        options={"segment_bytes": SEGMENT},
    )
    with ShmBackend.open(config) as opened:
        yield opened


@pytest.fixture
def reader(backend: ShmBackend) -> Iterator[ShmReader]:
    opened = ShmReader(backend.address)
    yield opened
    opened.close()


@pytest.fixture(params=["page map", "no page map"])
def page_map(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """With and without a kernel that tells which pages were written."""
    if request.param == "no page map":
        monkeypatch.setattr(_PageMap, "_read", lambda *_: None)


def put(backend: ShmBackend, value: int, nbytes: int) -> int:
    addresses = backend.reserve([nbytes])
    assert addresses is not None
    address = int(addresses[0])
    backend.array(address, nbytes)[:] = value
    return address


def test_a_view_shows_the_bytes_without_copying_them(
    backend: ShmBackend, reader: ShmReader
) -> None:
    address = put(backend, 7, 3 * SEGMENT + 100)  # over four segments
    array, view = reader.view(address, 3 * SEGMENT + 100)
    assert array.dtype == np.uint8
    assert (array == 7).all()
    backend.array(address, 1)[0] = 8  # no reader is ever shown this; it proves that none copied
    assert array[0] == 8
    del array
    reader.end([view])


@pytest.mark.usefixtures("page_map")
def test_edits_are_seen_by_nobody_else(backend: ShmBackend, reader: ShmReader) -> None:
    address = put(backend, 7, SEGMENT)
    array, view = reader.view(address, SEGMENT)
    array += 1
    assert (array == 8).all()
    assert (backend.array(address, SEGMENT) == 7).all()
    assert (reader.readable(address, address + SEGMENT) == 7).all()
    del array
    reader.end([view])


@pytest.mark.usefixtures("page_map")
def test_edits_of_an_ended_lease_never_show_in_a_later_one(
    backend: ShmBackend, reader: ShmReader
) -> None:
    address = put(backend, 7, SEGMENT)
    for _ in range(3):
        array, view = reader.view(address, SEGMENT)
        assert view.in_kept_mapping
        assert (array == 7).all()
        array[PAGE : 3 * PAGE] = 1
        array[-1] = 2
        del array
        reader.end([view])


@pytest.mark.usefixtures("page_map")
def test_bytes_put_where_a_reader_had_edited_are_seen(
    backend: ShmBackend, reader: ShmReader
) -> None:
    address = put(backend, 7, SEGMENT)
    array, view = reader.view(address, SEGMENT)
    array[:] = 1
    del array
    reader.end([view])
    backend.free(np.array([address]), backend.extents([SEGMENT]))
    assert put(backend, 9, SEGMENT) == address
    array, view = reader.view(address, SEGMENT)
    assert (array == 9).all()
    del array
    reader.end([view])


@pytest.mark.usefixtures("page_map")
def test_one_gets_edits_do_not_show_in_another_of_the_same_field(
    backend: ShmBackend, reader: ShmReader
) -> None:
    address = put(backend, 7, SEGMENT)
    first, first_view = reader.view(address, SEGMENT)
    second, second_view = reader.view(address + 100, SEGMENT - 200)
    assert first_view.in_kept_mapping
    assert not second_view.in_kept_mapping
    first[:] = 1
    assert (second == 7).all()
    second[:] = 2
    assert (first == 1).all()
    del first
    reader.end([first_view])
    assert (second == 2).all()
    del second
    reader.end([second_view])


@pytest.mark.usefixtures("page_map")
def test_rows_that_share_a_page_keep_their_own_edits(
    backend: ShmBackend, reader: ShmReader
) -> None:
    address = put(backend, 7, SEGMENT)
    cut = address + SEGMENT // 2 + 100
    low, low_view = reader.view(address, cut - address)
    high, high_view = reader.view(cut, address + SEGMENT - cut)
    high[:] = 2
    low[:] = 1
    assert (high == 2).all()
    del low
    reader.end([low_view])
    assert (high == 2).all()  # the page they share was not dropped under it
    low, low_view = reader.view(address, cut - address)
    assert (low == 7).all()
    del low, high
    reader.end([high_view, low_view])
    whole, view = reader.view(address, SEGMENT)
    assert (whole == 7).all()
    del whole
    reader.end([view])


@pytest.mark.usefixtures("page_map")
def test_a_page_copied_before_its_other_half_was_put_is_not_shown(
    backend: ShmBackend, reader: ShmReader
) -> None:
    first = put(backend, 7, 1000)
    array, view = reader.view(first, 1000)
    array[:] = 1  # the whole page is this process's own now
    second = put(backend, 9, 1000)
    assert second // PAGE == first // PAGE
    late, late_view = reader.view(second, 1000)
    assert (late == 9).all()
    assert not late_view.in_kept_mapping
    del array, late
    reader.end([view, late_view])


def test_what_was_edited_in_many_places_is_dropped_too(
    backend: ShmBackend, reader: ShmReader
) -> None:
    nbytes = 8 * SEGMENT
    address = put(backend, 7, nbytes)
    array, view = reader.view(address, nbytes)
    array[:: 2 * PAGE] = 1
    del array
    reader.end([view])
    array, view = reader.view(address, nbytes)
    assert (array == 7).all()
    del array
    reader.end([view])


def test_unedited_pages_stay_mapped_when_a_lease_ends(
    backend: ShmBackend, reader: ShmReader
) -> None:
    address = put(backend, 7, SEGMENT)
    array, view = reader.view(address, SEGMENT)
    array[0] = 1
    assert array.sum() > 0
    start = array.__array_interface__["data"][0]
    present = PageStates(start, SEGMENT).present
    assert present.all()
    del array
    reader.end([view])
    after = PageStates(start, SEGMENT).present
    assert not after[0]
    assert after[1:].all()


class PageStates:
    def __init__(self, start: int, nbytes: int) -> None:
        with Path("/proc/self/pagemap").open("rb") as pages:
            pages.seek(start // PAGE * 8)
            entries = np.frombuffer(pages.read(nbytes // PAGE * 8), np.uint64)
        self.present = (entries >> np.uint64(63)).astype(np.bool_)


class Token:
    """Stands for a lease."""


def test_a_lease_is_kept_alive_by_everything_made_from_its_arrays(
    backend: ShmBackend, reader: ShmReader
) -> None:
    address = put(backend, 7, SEGMENT)
    for nbytes in (SEGMENT, 0):
        token = Token()
        ended = weakref.ref(token)
        array, view = reader.view(address, nbytes, keep=token)
        del token
        part = array[5:50].view(np.int8)[1:].reshape(-1)
        block = memoryview(part)
        del array, part
        gc.collect()
        assert ended() is not None
        block.release()
        del block
        gc.collect()
        assert ended() is None
        reader.end([view])


def test_arrays_outlive_the_reader_and_the_service(backend: ShmBackend) -> None:
    address = put(backend, 7, SEGMENT)
    reader = ShmReader(backend.address)
    kept, view = reader.view(address, SEGMENT)
    own, _ = reader.view(address, SEGMENT)
    plain = reader.readable(address, address + 10)
    reader.close()
    reader.close()
    backend.close()
    assert (kept == 7).all()
    assert (own == 7).all()
    assert (plain == 7).all()
    reader.end([view])
    with pytest.raises(Closed):
        reader.view(address, SEGMENT)


def test_address_space_comes_back_with_the_last_array(backend: ShmBackend) -> None:
    address = put(backend, 7, SEGMENT)
    mapping = ArenaMapping(backend.address, Access.PRIVATE)
    part = mapping.array(address, SEGMENT)[10:20]
    first = mapping.virtual_address(0)
    mapping.close()
    assert f"{first:x}-" in Path("/proc/self/maps").read_text()
    del part
    gc.collect()
    assert f"{first:x}-" not in Path("/proc/self/maps").read_text()


def test_a_read_only_array_cannot_be_written(backend: ShmBackend, reader: ShmReader) -> None:
    address = put(backend, 7, 100)
    with pytest.raises(ValueError, match="read-only"):
        reader.readable(address, address + 100)[0] = 1


def test_ranges_outside_the_arena_are_refused(backend: ShmBackend, reader: ShmReader) -> None:
    for address, nbytes in ((-1, 10), (0, -1), (backend.capacity_bytes - 5, 10), (1 << 60, 1)):
        with pytest.raises(ValueError, match="outside"):
            reader.writable(address, nbytes)


def test_a_segment_that_is_gone_or_cut_short_is_an_error(
    backend: ShmBackend, reader: ShmReader
) -> None:
    put(backend, 7, SEGMENT)
    path = backend.address.segment_path(0)
    os.truncate(path, SEGMENT - 1)
    with pytest.raises(ServiceFailed, match="expected 262,144"):
        reader.readable(0, 10)
    os.unlink(path)
    with pytest.raises(ServiceFailed, match="No such file"):
        reader.view(0, SEGMENT)


READ_EDIT_AND_TELL = """
import sys, json
from transferqueue.backends.arena_address import ArenaAddress
from transferqueue.backends.shm_reader import ShmReader
plain, address, nbytes = json.loads(sys.argv[1])
reader = ShmReader(ArenaAddress.from_plain(plain))
array, view = reader.view(address, nbytes)
print(int(array.min()), int(array.max()), flush=True)
array[:] = 200
sys.stdin.readline()
print(int(array.min()), int(array.max()), flush=True)
"""


def test_processes_do_not_see_one_anothers_edits(backend: ShmBackend, reader: ShmReader) -> None:
    address = put(backend, 7, SEGMENT)
    mine, view = reader.view(address, SEGMENT)
    mine[:] = 100
    argument = json.dumps([backend.client_access(), address, SEGMENT])
    command = [sys.executable, "-c", READ_EDIT_AND_TELL, argument]
    children = []
    for _ in range(2):  # the second starts when the first has edited
        child = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=Path.cwd()
        )
        children.append(child)
        assert child.stdout is not None
        assert child.stdout.readline() == "7 7\n"
    assert (mine == 100).all()
    assert (backend.array(address, SEGMENT) == 7).all()
    for child in children:
        assert child.communicate("\n", timeout=30)[0] == "200 200\n"
        assert child.returncode == 0
    del mine
    reader.end([view])


@pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="read ahead takes a second core")
def test_the_pages_of_a_large_view_are_mapped_before_anybody_reads_them(tmp_path: Path) -> None:
    config = BackendConfig(
        service_id="views",
        slot=3,
        budget_bytes=32 << 20,
        directory=str(tmp_path),
        options={"segment_bytes": 8 << 20},
    )
    with ShmBackend.open(config) as backend:
        reader = ShmReader(backend.address)
        address = put(backend, 7, 20 << 20)
        array, view = reader.view(address, 20 << 20)
        ahead = reader._views._ahead
        assert ahead is not None
        while ahead._thread is not None:
            time.sleep(0.001)
        entries = reader._views._page_map._read(array.ctypes.data // PAGE, (20 << 20) // PAGE)
        if entries is None:
            pytest.skip("this kernel hides the page map")
        assert int((entries >> 63).sum()) >= (16 << 20) // PAGE
        del array
        reader.end([view])
        reader.close()

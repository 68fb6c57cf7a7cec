"""Several backends as one."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import numpy as np
import pytest

from transferqueue.backends.base import BackendConfig
from transferqueue.backends.disk import DiskBackend
from transferqueue.backends.heap import HeapBackend
from transferqueue.backends.several import ADDRESS_BITS, Member, SeveralBackends
from transferqueue.errors import ServiceFailed

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

MIB = 1 << 20
DISK = 1 << ADDRESS_BITS


@pytest.fixture
def backend(tmp_path: Path) -> Iterator[SeveralBackends]:
    config = BackendConfig(service_id="svc", slot=0, budget_bytes=2 * MIB, directory=str(tmp_path))
    two = {"heap": HeapBackend.open(config), "disk": DiskBackend.open(config)}
    members = [
        Member(name=name, backend=backend, budget_bytes=2 * MIB) for name, backend in two.items()
    ]
    with SeveralBackends(members) as backend:
        yield backend


def put(backend: SeveralBackends, data: bytes) -> int:
    found = backend.reserve([len(data)])
    assert found is not None
    backend.write(int(found[0]), memoryview(data))
    return int(found[0])


def ints(*values: int) -> np.ndarray:
    return np.array(values, np.int64)


def test_a_slab_is_copied_packed_and_the_original_is_left(backend: SeveralBackends) -> None:
    data = os.urandom(100_000)
    at = put(backend, data)
    slabs = [(ints(at + 10, at + 50_000), ints(20, 40_000)), (ints(at), ints(7))]
    moved = backend.copy_to(1, slabs)
    assert moved is not None
    addresses, extents = moved
    assert (addresses >= DISK).all()
    assert bytes(backend.readable(int(addresses[0]), 40_020)) == (data[10:30] + data[50_000:90_000])
    assert bytes(backend.readable(int(addresses[1]), 7)) == data[:7]
    assert bytes(backend.readable(at, len(data))) == data
    assert backend.members[1].backend.used_bytes == extents.sum()
    backend.free(np.append(addresses, at), np.append(extents, backend.extents([len(data)])))
    assert (backend.used_bytes, backend.members[1].backend.used_bytes) == (0, 0)


def test_ranges_of_both_are_read_in_the_order_asked_for(backend: SeveralBackends) -> None:
    data, other = os.urandom(50_000), os.urandom(50_000)
    at, other_at = put(backend, data), put(backend, other)
    moved = backend.copy_to(1, [(ints(at), ints(len(data)))])
    assert moved is not None
    on_disk = int(moved[0][0])
    got = backend.read_ranges(
        ints(on_disk + 5, other_at, on_disk, other_at + 9), ints(10, 20, 5, 1)
    )
    assert got.tobytes() == data[5:15] + other[:20] + data[:5] + other[9:10]
    assert backend.read_ranges(ints(on_disk + 1, on_disk), ints(1, 1)).tobytes() == (
        data[1:2] + data[:1]
    )
    assert backend.lies_in_memory(ints(other_at))
    assert not backend.lies_in_memory(ints(other_at, on_disk))


def test_a_full_disk_takes_nothing_and_changes_nothing(backend: SeveralBackends) -> None:
    at = put(backend, bytes(MIB))
    whole = (ints(at), ints(MIB))
    assert backend.copy_to(1, [whole, whole]) is not None
    assert backend.copy_to(1, [whole]) is None
    assert backend.members[1].backend.used_bytes == 2 * MIB


def test_a_disk_that_cannot_write_keeps_nothing(
    backend: SeveralBackends, monkeypatch: pytest.MonkeyPatch
) -> None:
    at = put(backend, bytes(MIB))

    def broken(*_: object) -> None:
        raise OSError(5, "Input/output error")

    with monkeypatch.context() as patch:
        patch.setattr(os, "pwrite", broken)
        with pytest.raises(ServiceFailed, match="Input/output error"):
            backend.copy_to(1, [(ints(at), ints(MIB))])
    assert backend.members[1].backend.used_bytes == 0
    assert backend.copy_to(1, [(ints(at), ints(MIB))]) is not None


def test_a_put_of_several_backends_reserves_in_all_or_in_none(backend: SeveralBackends) -> None:
    sizes = [1_000, 1_000_000, 30, 500_000]
    found = backend.reserve_in(sizes, ints(0, 1, 0, 1))
    assert found is not None
    assert (found >> ADDRESS_BITS).tolist() == [0, 1, 0, 1]
    extents = backend.extents_at(found, sizes)
    used = [member["used_bytes"] for member in backend.report().values()]
    assert used == [extents[[0, 2]].sum(), extents[[1, 3]].sum()]
    assert backend.reserve_in([1_000, 2 * MIB], ints(0, 1)) is None
    assert backend.reserve_in([2 * MIB, 1_000], ints(0, 1)) is None
    assert [member["used_bytes"] for member in backend.report().values()] == used
    backend.free(found, extents)
    assert [member["used_bytes"] for member in backend.report().values()] == [0, 0]


def test_what_is_moved_comes_back_the_same_way(backend: SeveralBackends) -> None:
    data = os.urandom(10_000)
    at = put(backend, data)
    there = backend.copy_to(1, [(ints(at), ints(len(data)))])
    assert there is not None
    back = backend.copy_to(0, [(there[0], ints(len(data)))])
    assert back is not None
    assert backend.read_ranges(back[0], ints(len(data))).tobytes() == data


def test_an_address_of_no_backend_is_refused(backend: SeveralBackends) -> None:
    for address in (-1, 2 * DISK):
        with pytest.raises(ValueError, match="of no backend"):
            backend.readable(address, 1)

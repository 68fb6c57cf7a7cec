"""Memory and a disk as one backend."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import numpy as np
import pytest

from transferqueue.backends.base import BackendConfig
from transferqueue.backends.disk import DiskBackend
from transferqueue.backends.heap import HeapBackend
from transferqueue.backends.tiered import DISK, TieredBackend
from transferqueue.errors import ServiceFailed

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

MIB = 1 << 20


@pytest.fixture
def backend(tmp_path: Path) -> Iterator[TieredBackend]:
    config = BackendConfig(service_id="svc", slot=0, budget_bytes=2 * MIB, directory=str(tmp_path))
    with TieredBackend(HeapBackend.open(config), DiskBackend.open(config)) as backend:
        yield backend


def put(backend: TieredBackend, data: bytes) -> int:
    found = backend.reserve([len(data)])
    assert found is not None
    backend.write(int(found[0]), memoryview(data))
    return int(found[0])


def ints(*values: int) -> np.ndarray:
    return np.array(values, np.int64)


def test_a_slab_is_copied_packed_and_the_original_is_left(backend: TieredBackend) -> None:
    data = os.urandom(100_000)
    at = put(backend, data)
    moved = backend.spill([(ints(at + 10, at + 50_000), ints(20, 40_000)), (ints(at), ints(7))])
    assert moved is not None
    addresses, extents = moved
    assert (addresses >= DISK).all()
    assert bytes(backend.readable(int(addresses[0]), 40_020)) == (data[10:30] + data[50_000:90_000])
    assert bytes(backend.readable(int(addresses[1]), 7)) == data[:7]
    assert bytes(backend.readable(at, len(data))) == data
    assert backend.disk.used_bytes == extents.sum()
    backend.free(np.append(addresses, at), np.append(extents, backend.extents([len(data)])))
    assert (backend.used_bytes, backend.disk.used_bytes) == (0, 0)


def test_ranges_of_both_are_read_in_the_order_asked_for(backend: TieredBackend) -> None:
    data, other = os.urandom(50_000), os.urandom(50_000)
    at, other_at = put(backend, data), put(backend, other)
    moved = backend.spill([(ints(at), ints(len(data)))])
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


def test_a_full_disk_takes_nothing_and_changes_nothing(backend: TieredBackend) -> None:
    at = put(backend, bytes(MIB))
    whole = (ints(at), ints(MIB))
    assert backend.spill([whole, whole]) is not None
    assert backend.spill([whole]) is None
    assert backend.disk.used_bytes == 2 * MIB


def test_a_disk_that_cannot_write_keeps_nothing(
    backend: TieredBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    at = put(backend, bytes(MIB))

    def broken(*_: object) -> None:
        raise OSError(5, "Input/output error")

    with monkeypatch.context() as patch:
        patch.setattr(os, "pwrite", broken)
        with pytest.raises(ServiceFailed, match="Input/output error"):
            backend.spill([(ints(at), ints(MIB))])
    assert backend.disk.used_bytes == 0
    assert backend.spill([(ints(at), ints(MIB))]) is not None

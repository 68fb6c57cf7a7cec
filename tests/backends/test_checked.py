"""What comes back from a store is compared with what went there."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pytest

from tests.backends.object_store import DictBackend
from transferqueue.backends.base import BackendConfig
from transferqueue.backends.checked import CheckedBackend, checked
from transferqueue.backends.heap import HeapBackend
from transferqueue.backends.page_digests import digests_of, first_wrong
from transferqueue.errors import BytesDamaged
from transferqueue.testing.backend_contract import CHECKS, Faults, check_backend

if TYPE_CHECKING:
    from collections.abc import Callable

    from transferqueue.backends.base import Backend
    from transferqueue.testing.backend_contract import Check

CONFIG = BackendConfig(service_id="svc", slot=0, budget_bytes=8 << 20)


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)
def test_objects_of_a_store_keep_the_contract(check: Check) -> None:
    check(lambda config: checked(DictBackend.open(config)))


def test_without_checks_of_its_own_it_keeps_the_contract_too() -> None:
    check_backend(DictBackend.open, Faults(damage=flip_a_bit))


def flip_a_bit(backend: Backend, address: int) -> None:
    assert isinstance(backend, CheckedBackend)
    store = backend.inner
    assert isinstance(store, DictBackend)
    start, slab = store._slabs.find(address, 1)
    store.objects[slab.stored][address - start] ^= 1


def cut_off(stored: np.ndarray) -> np.ndarray:
    return stored[:-1]


def empty(stored: np.ndarray) -> np.ndarray:
    return stored[:0]


def shifted(stored: np.ndarray) -> np.ndarray:
    return np.roll(stored, 8)


def zeroed(stored: np.ndarray) -> np.ndarray:
    return np.concatenate([stored[:5000], np.zeros(len(stored) - 5000, np.uint8)])


def pages_changed_places(stored: np.ndarray) -> np.ndarray:
    return np.concatenate([stored[4096:8192], stored[:4096], stored[8192:]])


@pytest.mark.parametrize("spoil", [cut_off, empty, shifted, zeroed, pages_changed_places])
def test_a_store_that_changes_what_it_was_given_is_caught(
    spoil: Callable[[np.ndarray], np.ndarray],
) -> None:
    store = DictBackend.open(CONFIG)
    with checked(store, "fake") as backend:
        data = np.random.default_rng(1).integers(1, 255, 20_001, dtype=np.uint8)
        found = backend.reserve([len(data), 100])
        assert found is not None
        backend.write(int(found[0]), data.data)
        backend.write(int(found[1]), data[:100].data)
        backend.seal(found, np.array([len(data), 100]))
        store.objects[1] = spoil(store.objects[1])
        with pytest.raises(BytesDamaged, match="fake, from byte"):
            backend.read_ranges(found[:1], np.array([len(data)]))
        with pytest.raises(BytesDamaged):
            backend.readable(int(found[0]), len(data))
        with pytest.raises(BytesDamaged):
            backend.read_into(int(found[0]), memoryview(bytearray(len(data))))
        assert backend.read_ranges(found[1:], np.array([100])).tobytes() == data[:100].tobytes()


def test_a_chunk_that_comes_twice_is_counted_once() -> None:
    with checked(DictBackend.open(CONFIG)) as backend:
        found = backend.reserve([10_000])
        assert found is not None
        at = int(found[0])
        for data in (b"a" * 7_000, b"b" * 7_000):
            backend.write(at, memoryview(data))
            backend.write(at + 3_000, memoryview(data))
        backend.seal(found, np.array([10_000]))
        assert bytes(backend.readable(at, 10_000)) == b"b" * 10_000


def test_what_does_not_leave_the_process_is_not_checked() -> None:
    backend = HeapBackend.open(CONFIG)
    assert checked(backend) is backend


def test_a_digest_is_of_its_page_alone() -> None:
    data = np.random.default_rng(2).integers(0, 256, 3 * 4096 + 5, dtype=np.uint8)
    expected = digests_of(data)
    assert len(expected) == 4
    assert first_wrong(expected, data) is None
    assert first_wrong(expected[1:3], data[4096 : 3 * 4096]) is None
    for at in (0, 4096, 9000, len(data) - 1):
        spoilt = data.copy()
        spoilt[at] ^= 128
        assert first_wrong(expected, spoilt) == at // 4096
    assert first_wrong(expected, data[:8192]) == 2
    assert digests_of(data[:0]).shape == (0,)

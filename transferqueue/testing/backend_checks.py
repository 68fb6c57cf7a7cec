"""What must hold while nothing goes wrong: see the text of `transferqueue.backends.base`."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from transferqueue.testing.backend_probe import (
    BUDGET_BYTES,
    Check,
    Maker,
    expect_bytes,
    free_in_pieces,
    opened,
    pattern,
    put,
    reserve,
    seal,
)
from transferqueue.testing.broken import expect

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Bytes = NDArray[np.uint8]


def a_new_backend_is_empty_and_offers_the_budget(maker: Maker) -> None:
    with opened(maker) as backend:
        expect(backend.used_bytes == 0, f"{backend.used_bytes} bytes used at start")
        expect(backend.capacity_bytes >= BUDGET_BYTES, f"capacity {backend.capacity_bytes}")
        expect(backend.largest_free >= BUDGET_BYTES // 2, f"largest free {backend.largest_free}")
        expect(not backend.recovered, "says that it recovered something")


def what_was_written_is_read(maker: Maker) -> None:
    with opened(maker) as backend:
        data = pattern(1, 300_001)
        address = put(backend, data)
        expect_bytes(backend, address, data)
        for low, high in ((0, 1), (4095, 4097), (7, 299_999), (300_000, 300_001), (5, 5)):
            expect_bytes(backend, address + low, data[low:high])


def a_slab_is_filled_in_any_pieces_and_order(maker: Maker) -> None:
    with opened(maker) as backend:
        data = pattern(2, 100_000)
        address = reserve(backend, [len(data)])[0]
        pieces = [(low, min(low + 7_777, len(data))) for low in range(0, len(data), 7_777)]
        for turn, (low, high) in enumerate(reversed(pieces)):
            if turn % 2:
                backend.write(address + low, data[low:high].data)
            else:
                backend.writable(address + low, high - low)[:] = data[low:high].data
        seal(backend, address, len(data))
        expect_bytes(backend, address, data)


def slabs_do_not_touch_one_another(maker: Maker) -> None:
    with opened(maker) as backend:
        sizes = [1, 63, 64, 65, 4095, 4096, 4097, 70_000, 262_144, 300_000, 3]
        slabs = [pattern(seed, size) for seed, size in enumerate(sizes)]
        addresses = reserve(backend, sizes)
        for address, data in zip(addresses, slabs, strict=True):
            backend.write(address, data.data)
        backend.seal(np.array(addresses), np.array(sizes))
        for address, data in zip(addresses, slabs, strict=True):
            expect_bytes(backend, address, data)
        extents = [int(n) for n in backend.extents(sizes)]
        expect(all(e >= n for e, n in zip(extents, sizes, strict=True)), f"extents {extents}")
        expect(backend.used_bytes == sum(extents), f"{backend.used_bytes} used, not {sum(extents)}")


def a_put_reserves_all_or_nothing(maker: Maker) -> None:
    with opened(maker) as backend:
        used = backend.used_bytes
        too_much = [1 << 20, backend.capacity_bytes, 1 << 20]
        expect(backend.reserve(too_much) is None, "reserved more than there is")
        expect(backend.used_bytes == used, "kept part of a reservation that did not fit")
        expect(backend.reserve([backend.capacity_bytes + 1]) is None, "reserved too large a slab")
        expect(backend.reserve([1 << 20, 1 << 20]) is not None, "no room left after a refusal")


def all_room_can_be_used_again_and_again(maker: Maker) -> None:
    with opened(maker) as backend:
        sizes = [BUDGET_BYTES // 4] * 3
        for turn in range(8):
            addresses = reserve(backend, sizes)
            for address, size in zip(addresses, sizes, strict=True):
                backend.write(address, pattern(turn, size).data)
            backend.seal(np.array(addresses), np.array(sizes))
            expect_bytes(backend, addresses[-1], pattern(turn, sizes[-1]))
            backend.free(np.array(addresses), backend.extents(sizes))
            expect(backend.used_bytes == 0, f"{backend.used_bytes} used after all was freed")


def freeing_some_rows_leaves_the_others(maker: Maker) -> None:
    with opened(maker) as backend:
        rows, row_bytes = 64, 5_000
        data = pattern(3, rows * row_bytes)
        address = put(backend, data)
        held = backend.used_bytes
        keep = 17
        starts = np.array([address + r * row_bytes for r in range(rows) if r != keep], np.int64)
        backend.free(starts[::-1], np.full(rows - 1, row_bytes, np.int64))
        if not backend.capabilities.whole_slabs:
            freed = held - backend.used_bytes
            expect(freed == (rows - 1) * row_bytes, f"63 of 64 rows freed {freed} bytes")
        low = keep * row_bytes
        expect_bytes(backend, address + low, data[low : low + row_bytes])
        rest = int(backend.extents([len(data)])[0]) - len(data)
        backend.free(
            np.array([address + low, address + len(data)]), np.array([row_bytes, rest], np.int64)
        )
        expect(backend.used_bytes == 0, f"{backend.used_bytes} used after all was freed")


def slabs_without_bytes_take_no_room(maker: Maker) -> None:
    with opened(maker) as backend:
        addresses = reserve(backend, [0, 10, 0])
        backend.write(addresses[0], memoryview(b""))
        backend.seal(np.array(addresses), np.array([0, 10, 0]))
        expect(len(backend.readable(addresses[2], 0)) == 0, "read bytes where there are none")
        backend.free(np.array([addresses[0], addresses[2]]), np.zeros(2, np.int64))
        backend.free(np.array(addresses[1:2]), backend.extents([10]))
        expect(backend.used_bytes == 0, f"{backend.used_bytes} used")


def sealed_bytes_cannot_be_changed_by_reading_them(maker: Maker) -> None:
    with opened(maker) as backend:
        data = pattern(6, 5_000)
        address = put(backend, data)
        view = backend.readable(address, len(data))
        expect(view.readonly, "readable() can be written to")
        out = bytearray(len(data))
        backend.read_into(address, memoryview(out))
        out[:] = bytes(len(out))
        expect_bytes(backend, address, data)


def scattered_ranges_are_read_in_the_order_asked_for(maker: Maker) -> None:
    with opened(maker) as backend:
        data = pattern(13, 200_000)
        address = put(backend, data)
        at = np.array([150_000, 0, 4_096, 8_192, 77, 199_999], np.int64)
        sizes = np.array([10_000, 4_096, 4_096, 0, 3, 1], np.int64)
        want = b"".join(data[a : a + n].tobytes() for a, n in zip(at, sizes, strict=True))
        got = backend.read_ranges(address + at, sizes)
        expect(got.tobytes() == want, "read_ranges: other bytes")
        got[:] = 0
        expect_bytes(backend, address, data)
        expect(len(backend.read_ranges(at[:0], sizes[:0])) == 0, "no ranges gave bytes")


def what_says_that_it_lies_in_memory_does(maker: Maker) -> None:
    with opened(maker) as backend:
        address = put(backend, pattern(14, 300_000))
        if backend.lies_in_memory(np.array([address], np.int64)):
            one, two = (np.frombuffer(backend.readable(address, 300_000), np.uint8) for _ in "ab")
            same = one.__array_interface__["data"] == two.__array_interface__["data"]
            expect(same, "readable() copies what is said to lie in memory")
        else:
            expect(not backend.capabilities.mappable, "clients map what is not in memory")


def a_long_random_life_matches_a_model(maker: Maker) -> None:
    """Puts, partial frees and reads, against a dict that says what must be there."""
    random = np.random.default_rng(0)
    with opened(maker) as backend:
        rows_of: dict[int, tuple[int, Bytes]] = {}  # key -> (address, bytes)
        next_key = 0
        for turn in range(400):
            backend.tick(float(turn))
            sizes = random.integers(1, 60_000, random.integers(1, 6)).tolist()
            addresses = backend.reserve(sizes)
            if addresses is None:
                expect(len(rows_of) > 0, "no room in an empty backend")
            else:
                for address, size in zip(addresses.tolist(), sizes, strict=True):
                    data = pattern(turn, size)
                    backend.write(address, data.data)
                    rows_of[next_key] = (address, data)
                    next_key += 1
                backend.seal(addresses, np.array(sizes))
            keys = list(rows_of)
            doomed = [keys[i] for i in random.permutation(len(keys))[: random.integers(0, 5)]]
            if addresses is None:
                doomed = keys[: len(keys) // 2 + 1]
            free_in_pieces(backend, [rows_of.pop(key) for key in doomed], random)
            for key in keys[:3]:
                if key in rows_of:
                    expect_bytes(backend, *rows_of[key])
        expected = sum(int(backend.extents([len(data)])[0]) for _, data in rows_of.values())
        expect(backend.used_bytes == expected, f"{backend.used_bytes} used, not {expected}")
        for address, data in rows_of.values():
            expect_bytes(backend, address, data)


LIFE_CHECKS: list[Check] = [
    a_new_backend_is_empty_and_offers_the_budget,
    what_was_written_is_read,
    a_slab_is_filled_in_any_pieces_and_order,
    slabs_do_not_touch_one_another,
    a_put_reserves_all_or_nothing,
    all_room_can_be_used_again_and_again,
    freeing_some_rows_leaves_the_others,
    slabs_without_bytes_take_no_room,
    sealed_bytes_cannot_be_changed_by_reading_them,
    scattered_ranges_are_read_in_the_order_asked_for,
    what_says_that_it_lies_in_memory_does,
    a_long_random_life_matches_a_model,
]

"""The backend contract as checks that any implementation can run.

::

    from transferqueue.testing.backend_contract import check_backend

    def test_my_backend() -> None:
        check_backend(MyBackend.open)

Each check opens backends of its own through ``maker`` and closes them. With pytest,
``@pytest.mark.parametrize("check", CHECKS)`` makes each a test of its own.
"""

from __future__ import annotations

import contextlib
import secrets
from collections.abc import Callable
from typing import TYPE_CHECKING

import numpy as np

from transferqueue.backends.base import Backend, BackendConfig
from transferqueue.errors import Closed
from transferqueue.testing.broken import ContractBroken, expect
from transferqueue.testing.leaks import Leaked, no_leaks

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from numpy.typing import NDArray

    Bytes = NDArray[np.uint8]
    Int64s = NDArray[np.int64]

Maker = Callable[[BackendConfig], Backend]
Check = Callable[[Maker], None]

BUDGET_BYTES = 8 << 20


def check_backend(maker: Maker) -> None:
    """Run every check. `ContractBroken` names the first that fails.

    ``maker`` is called with configurations whose budgets are at most 8 MiB; a service id and slot
    come again only to recover what an earlier backend of that name kept.
    """
    for check in CHECKS:
        try:
            with no_leaks():
                check(maker)
        except (ContractBroken, Leaked) as broken:
            raise ContractBroken(f"{check.__name__}: {broken}") from broken


def a_new_backend_is_empty_and_offers_the_budget(maker: Maker) -> None:
    with _opened(maker) as backend:
        expect(backend.used_bytes == 0, f"{backend.used_bytes} bytes used at start")
        expect(backend.capacity_bytes >= BUDGET_BYTES, f"capacity {backend.capacity_bytes}")
        expect(backend.largest_free >= BUDGET_BYTES // 2, f"largest free {backend.largest_free}")
        expect(not backend.recovered, "says that it recovered something")


def what_was_written_is_read(maker: Maker) -> None:
    with _opened(maker) as backend:
        data = _pattern(1, 300_001)
        address = _put(backend, data)
        _expect_bytes(backend, address, data)
        for low, high in ((0, 1), (4095, 4097), (7, 299_999), (300_000, 300_001), (5, 5)):
            _expect_bytes(backend, address + low, data[low:high])


def a_slab_is_filled_in_any_pieces_and_order(maker: Maker) -> None:
    with _opened(maker) as backend:
        data = _pattern(2, 100_000)
        address = _reserve(backend, [len(data)])[0]
        pieces = [(low, min(low + 7_777, len(data))) for low in range(0, len(data), 7_777)]
        for turn, (low, high) in enumerate(reversed(pieces)):
            if turn % 2:
                backend.write(address + low, data[low:high].data)
            else:
                backend.writable(address + low, high - low)[:] = data[low:high].data
        _seal(backend, address, len(data))
        _expect_bytes(backend, address, data)


def slabs_do_not_touch_one_another(maker: Maker) -> None:
    with _opened(maker) as backend:
        sizes = [1, 63, 64, 65, 4095, 4096, 4097, 70_000, 262_144, 300_000, 3]
        slabs = [_pattern(seed, size) for seed, size in enumerate(sizes)]
        addresses = _reserve(backend, sizes)
        for address, data in zip(addresses, slabs, strict=True):
            backend.write(address, data.data)
        backend.seal(np.array(addresses), np.array(sizes))
        for address, data in zip(addresses, slabs, strict=True):
            _expect_bytes(backend, address, data)
        extents = [int(n) for n in backend.extents(sizes)]
        expect(all(e >= n for e, n in zip(extents, sizes, strict=True)), f"extents {extents}")
        expect(backend.used_bytes == sum(extents), f"{backend.used_bytes} used, not {sum(extents)}")


def a_put_reserves_all_or_nothing(maker: Maker) -> None:
    with _opened(maker) as backend:
        used = backend.used_bytes
        too_much = [1 << 20, backend.capacity_bytes, 1 << 20]
        expect(backend.reserve(too_much) is None, "reserved more than there is")
        expect(backend.used_bytes == used, "kept part of a reservation that did not fit")
        expect(backend.reserve([backend.capacity_bytes + 1]) is None, "reserved too large a slab")
        expect(backend.reserve([1 << 20, 1 << 20]) is not None, "no room left after a refusal")


def all_room_can_be_used_again_and_again(maker: Maker) -> None:
    with _opened(maker) as backend:
        sizes = [BUDGET_BYTES // 4] * 3
        for turn in range(8):
            addresses = _reserve(backend, sizes)
            for address, size in zip(addresses, sizes, strict=True):
                backend.write(address, _pattern(turn, size).data)
            backend.seal(np.array(addresses), np.array(sizes))
            _expect_bytes(backend, addresses[-1], _pattern(turn, sizes[-1]))
            backend.free(np.array(addresses), backend.extents(sizes))
            expect(backend.used_bytes == 0, f"{backend.used_bytes} used after all was freed")


def freeing_some_rows_leaves_the_others(maker: Maker) -> None:
    with _opened(maker) as backend:
        rows, row_bytes = 64, 5_000
        data = _pattern(3, rows * row_bytes)
        address = _put(backend, data)
        held = backend.used_bytes
        keep = 17
        starts = np.array([address + r * row_bytes for r in range(rows) if r != keep], np.int64)
        backend.free(starts[::-1], np.full(rows - 1, row_bytes, np.int64))
        if not backend.capabilities.shared_between_hosts:
            freed = held - backend.used_bytes
            expect(freed == (rows - 1) * row_bytes, f"63 of 64 rows freed {freed} bytes")
        low = keep * row_bytes
        _expect_bytes(backend, address + low, data[low : low + row_bytes])
        rest = int(backend.extents([len(data)])[0]) - len(data)
        backend.free(
            np.array([address + low, address + len(data)]), np.array([row_bytes, rest], np.int64)
        )
        expect(backend.used_bytes == 0, f"{backend.used_bytes} used after all was freed")


def a_put_that_is_given_up_leaves_nothing(maker: Maker) -> None:
    with _opened(maker) as backend:
        addresses = _reserve(backend, [100_000, 200_000])
        backend.write(addresses[0], _pattern(4, 50_000).data)
        backend.free(np.array(addresses), backend.extents([100_000, 200_000]))
        expect(backend.used_bytes == 0, f"{backend.used_bytes} used after the put was given up")


def slabs_without_bytes_take_no_room(maker: Maker) -> None:
    with _opened(maker) as backend:
        addresses = _reserve(backend, [0, 10, 0])
        backend.write(addresses[0], memoryview(b""))
        backend.seal(np.array(addresses), np.array([0, 10, 0]))
        expect(len(backend.readable(addresses[2], 0)) == 0, "read bytes where there are none")
        backend.free(np.array([addresses[0], addresses[2]]), np.zeros(2, np.int64))
        backend.free(np.array(addresses[1:2]), backend.extents([10]))
        expect(backend.used_bytes == 0, f"{backend.used_bytes} used")


def freeing_what_is_not_in_use_is_refused(maker: Maker) -> None:
    with _opened(maker) as backend:
        data = _pattern(5, 10_000)
        address = _put(backend, data)
        used = backend.used_bytes
        backend.free(np.array([address + 100]), np.array([100]))
        for starts, sizes in (
            ([address + 150], [10]),
            ([address, address + 50, address + 199], [10, 10, 10]),
            ([address, address + 5], [10, 10]),
            ([-64], [64]),
            ([backend.capacity_bytes + (1 << 40)], [64]),
        ):
            with contextlib.suppress(ValueError):
                backend.free(np.array(starts), np.array(sizes))
                expect(False, f"freed {starts} {sizes}")
            expect(backend.used_bytes == used - 100, "a refused free changed something")
        _expect_bytes(backend, address + 200, data[200:])


def sealed_bytes_cannot_be_changed_by_reading_them(maker: Maker) -> None:
    with _opened(maker) as backend:
        data = _pattern(6, 5_000)
        address = _put(backend, data)
        view = backend.readable(address, len(data))
        expect(view.readonly, "readable() can be written to")
        out = bytearray(len(data))
        backend.read_into(address, memoryview(out))
        out[:] = bytes(len(out))
        _expect_bytes(backend, address, data)


def views_stay_valid_after_close(maker: Maker) -> None:
    data = _pattern(7, 50_000)
    backend = maker(_config())
    view = backend.readable(_put(backend, data), len(data))
    backend.close()
    expect(bytes(view) == data.tobytes(), "a view changed when its backend was closed")
    view.release()


def a_closed_backend_says_so(maker: Maker) -> None:
    backend = maker(_config())
    address = _put(backend, _pattern(8, 100))
    backend.close()
    backend.close()
    calls: list[Callable[[], object]] = [
        lambda: backend.reserve([1]),
        lambda: backend.writable(address, 1),
        lambda: backend.write(address, memoryview(b"x")),
        lambda: backend.readable(address, 1),
        lambda: backend.free(np.array([address]), np.array([1])),
    ]
    for number, call in enumerate(calls):
        try:
            call()
        except Closed:
            continue
        expect(False, f"call {number} after close() did not raise Closed")


def a_long_random_life_matches_a_model(maker: Maker) -> None:
    """Puts, partial frees and reads, against a dict that says what must be there."""
    random = np.random.default_rng(0)
    with _opened(maker) as backend:
        rows_of: dict[int, tuple[int, Bytes]] = {}  # key -> (address, bytes)
        next_key = 0
        for turn in range(400):
            sizes = random.integers(1, 60_000, random.integers(1, 6)).tolist()
            addresses = backend.reserve(sizes)
            if addresses is None:
                expect(len(rows_of) > 0, "no room in an empty backend")
            else:
                for address, size in zip(addresses.tolist(), sizes, strict=True):
                    data = _pattern(turn, size)
                    backend.write(address, data.data)
                    rows_of[next_key] = (address, data)
                    next_key += 1
                backend.seal(addresses, np.array(sizes))
            keys = list(rows_of)
            doomed = [keys[i] for i in random.permutation(len(keys))[: random.integers(0, 5)]]
            if addresses is None:
                doomed = keys[: len(keys) // 2 + 1]
            _free_in_pieces(backend, [rows_of.pop(key) for key in doomed], random)
            for key in keys[:3]:
                if key in rows_of:
                    _expect_bytes(backend, *rows_of[key])
        expected = sum(int(backend.extents([len(data)])[0]) for _, data in rows_of.values())
        expect(backend.used_bytes == expected, f"{backend.used_bytes} used, not {expected}")
        for address, data in rows_of.values():
            _expect_bytes(backend, address, data)


def what_was_kept_is_recovered(maker: Maker) -> None:
    """For backends that outlive their process: the next one finds the sealed bytes."""
    config = _config()
    first = maker(config)
    if not first.capabilities.outlives_process:
        first.close()
        return
    keep, drop = _pattern(9, 300_000), _pattern(10, 1_000)
    kept_at, _ = _put(first, keep), _put(first, drop)
    first.close(keep=True)
    with maker(_recovering(config)) as second:
        expect(second.recovered, "found nothing to recover")
        second.adopt(np.array([kept_at]), second.extents([len(keep)]))
        _expect_bytes(second, kept_at, keep)
        expect(
            second.used_bytes == int(second.extents([len(keep)])[0]), f"{second.used_bytes} used"
        )
        more = _pattern(11, 2_000_000)
        _expect_bytes(second, _put(second, more), more)
        _expect_bytes(second, kept_at, keep)
    with maker(_recovering(config)) as third:
        expect(not third.recovered, "close() left something to recover")


CHECKS: list[Check] = [
    a_new_backend_is_empty_and_offers_the_budget,
    what_was_written_is_read,
    a_slab_is_filled_in_any_pieces_and_order,
    slabs_do_not_touch_one_another,
    a_put_reserves_all_or_nothing,
    all_room_can_be_used_again_and_again,
    freeing_some_rows_leaves_the_others,
    a_put_that_is_given_up_leaves_nothing,
    slabs_without_bytes_take_no_room,
    freeing_what_is_not_in_use_is_refused,
    sealed_bytes_cannot_be_changed_by_reading_them,
    views_stay_valid_after_close,
    a_closed_backend_says_so,
    a_long_random_life_matches_a_model,
    what_was_kept_is_recovered,
]


def _config() -> BackendConfig:
    return BackendConfig(
        service_id=f"contract-{secrets.token_hex(4)}", slot=0, budget_bytes=BUDGET_BYTES
    )


def _recovering(config: BackendConfig) -> BackendConfig:
    return BackendConfig(
        service_id=config.service_id,
        slot=config.slot,
        budget_bytes=config.budget_bytes,
        recover=True,
    )


@contextlib.contextmanager
def _opened(maker: Maker) -> Iterator[Backend]:
    with maker(_config()) as backend:
        yield backend


def _pattern(seed: int, nbytes: int) -> Bytes:
    return np.random.default_rng(seed).integers(0, 256, nbytes, dtype=np.uint8)


def _reserve(backend: Backend, nbytes: Sequence[int]) -> list[int]:
    addresses = backend.reserve(nbytes)
    if addresses is None:
        raise ContractBroken(f"no room for {nbytes} with {backend.used_bytes} bytes used")
    return [int(address) for address in addresses]


def _seal(backend: Backend, address: int, nbytes: int) -> None:
    backend.seal(np.array([address], np.int64), np.array([nbytes], np.int64))


def _put(backend: Backend, data: Bytes) -> int:
    address = _reserve(backend, [len(data)])[0]
    backend.write(address, data.data)
    _seal(backend, address, len(data))
    return address


def _expect_bytes(backend: Backend, address: int, data: Bytes) -> None:
    out = np.empty(len(data), np.uint8)
    backend.read_into(address, out.data)
    expect(bool((out == data).all()), f"read_into({address}) of {len(data)} bytes: other bytes")
    view = backend.readable(address, len(data))
    expect(bytes(view) == data.tobytes(), f"readable({address}, {len(data)}): other bytes")


def _free_in_pieces(
    backend: Backend, slabs: Sequence[tuple[int, Bytes]], random: np.random.Generator
) -> None:
    """Free whole slabs, each cut in two somewhere, pieces shuffled."""
    starts: list[int] = []
    sizes: list[int] = []
    for address, data in slabs:
        extent = int(backend.extents([len(data)])[0])
        cut = int(random.integers(0, extent + 1))
        starts += [address, address + cut]
        sizes += [cut, extent - cut]
    order = random.permutation(len(starts))
    backend.free(np.array(starts, np.int64)[order], np.array(sizes, np.int64)[order])

"""What must hold after each failure: see the text of `transferqueue.backends.base`."""

from __future__ import annotations

import contextlib
import os
import signal
import warnings
from dataclasses import dataclass
from typing import TYPE_CHECKING, NoReturn

import numpy as np

from transferqueue.errors import BytesDamaged, Closed
from transferqueue.testing.backend_probe import (
    BUDGET_BYTES,
    Check,
    Maker,
    expect_bytes,
    fresh_config,
    opened,
    pattern,
    put,
    recovering,
    reserve,
)
from transferqueue.testing.broken import expect

if TYPE_CHECKING:
    from collections.abc import Callable
    from contextlib import AbstractContextManager

    from numpy.typing import NDArray

    from transferqueue.backends.base import Backend, BackendConfig

    Bytes = NDArray[np.uint8]


@dataclass(frozen=True, slots=True, kw_only=True)
class Faults:
    """What the author of a backend can break under it. What is ``None`` is not checked."""

    full: Callable[[], AbstractContextManager[None]] | None = None
    """While the block runs, what lies under the backend has no room for anything new."""
    damage: Callable[[Backend, int], None] | None = None
    """Changes the sealed byte at an address behind the backend's back."""

    def checks(self) -> list[Check]:
        """Those for what is given."""
        found: list[Check] = []
        if self.full is not None:
            found.append(NoRoomBelow(self.full))
        if self.damage is not None:
            found.append(DamagedBytes(self.damage))
        return found


class NoRoomBelow:
    """A full disk or memory is "no space now", like a full budget, and passes."""

    __name__ = "no_room_below_is_no_space_now"

    def __init__(self, full: Callable[[], AbstractContextManager[None]]) -> None:
        self._full = full

    def __call__(self, maker: Maker) -> None:
        with opened(maker) as backend:
            with self._full():
                expect(backend.reserve([1 << 20, 100]) is None, "reserved room that is not there")
                expect(backend.used_bytes == 0, f"{backend.used_bytes} used after a refusal")
            data = pattern(19, 1 << 20)
            address = put(backend, data)
            with self._full():
                expect_bytes(backend, address, data)
            backend.free(np.array([address]), backend.extents([len(data)]))
            expect(backend.used_bytes == 0, f"{backend.used_bytes} used after all was freed")


class DamagedBytes:
    """Bytes that changed since they were sealed are an error, and only they are."""

    __name__ = "damaged_bytes_are_never_given_out"

    def __init__(self, damage: Callable[[Backend, int], None]) -> None:
        self._damage = damage

    def __call__(self, maker: Maker) -> None:
        with opened(maker) as backend:
            data, other = pattern(20, 300_000), pattern(21, 1_000)
            address, other_at = put(backend, data), put(backend, other)
            self._damage(backend, address + 200_000)
            for low, high in ((0, 300_000), (199_990, 200_010)):
                self._expect_refused(backend, address + low, high - low)
            expect_bytes(backend, other_at, other)
            expect_bytes(backend, address, data[:100_000])
            backend.free(np.array([address]), backend.extents([len(data)]))
            again = put(backend, data)
            expect_bytes(backend, again, data)

    @staticmethod
    def _expect_refused(backend: Backend, address: int, nbytes: int) -> None:
        at, size = np.array([address], np.int64), np.array([nbytes], np.int64)
        for read in (
            lambda: backend.read_into(address, memoryview(bytearray(nbytes))),
            lambda: backend.readable(address, nbytes),
            lambda: backend.read_ranges(at, size),
        ):
            try:
                read()
            except BytesDamaged:
                continue
            expect(False, "bytes that were damaged were given out")


def a_put_that_is_given_up_leaves_nothing(maker: Maker) -> None:
    with opened(maker) as backend:
        addresses = reserve(backend, [100_000, 200_000])
        backend.write(addresses[0], pattern(4, 50_000).data)
        backend.free(np.array(addresses), backend.extents([100_000, 200_000]))
        expect(backend.used_bytes == 0, f"{backend.used_bytes} used after the put was given up")


def freeing_what_is_not_in_use_is_refused(maker: Maker) -> None:
    with opened(maker) as backend:
        data = pattern(5, 10_000)
        address = put(backend, data)
        backend.free(np.array([address + 100]), np.array([100]))
        used = backend.used_bytes
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
            expect(backend.used_bytes == used, "a refused free changed something")
        expect_bytes(backend, address + 200, data[200:])


def views_stay_valid_after_close(maker: Maker) -> None:
    data = pattern(7, 50_000)
    backend = maker(fresh_config())
    view = backend.readable(put(backend, data), len(data))
    backend.close()
    expect(bytes(view) == data.tobytes(), "a view changed when its backend was closed")
    view.release()


def bytes_that_were_never_given_out_are_refused(maker: Maker) -> None:
    with opened(maker) as backend:
        data = pattern(12, 5_000)
        address = put(backend, data)
        beyond = backend.capacity_bytes + (1 << 40)
        calls: list[Callable[[], object]] = [
            lambda: backend.write(beyond, memoryview(b"x")),
            lambda: backend.writable(beyond, 1),
            lambda: backend.read_into(beyond, memoryview(bytearray(1))),
            lambda: backend.readable(beyond, 1),
            lambda: backend.write(-1, memoryview(b"x")),
        ]
        for number, call in enumerate(calls):
            with contextlib.suppress(ValueError):
                call()
                expect(False, f"call {number} with an address outside did not raise ValueError")
        expect_bytes(backend, address, data)


def a_closed_backend_says_so(maker: Maker) -> None:
    backend = maker(fresh_config())
    address = put(backend, pattern(8, 100))
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


def what_was_kept_is_recovered(maker: Maker) -> None:
    """For backends that outlive their process: the next one finds the sealed bytes."""
    config = fresh_config()
    first = maker(config)
    if not first.capabilities.outlives_process:
        first.close()
        return
    keep, drop = pattern(9, 300_000), pattern(10, 1_000)
    kept_at, _ = put(first, keep), put(first, drop)
    first.close(keep=True)
    with maker(recovering(config)) as second:
        expect(second.recovered, "found nothing to recover")
        second.adopt(np.array([kept_at]), second.extents([len(keep)]))
        expect_bytes(second, kept_at, keep)
        expect(
            second.used_bytes == int(second.extents([len(keep)])[0]), f"{second.used_bytes} used"
        )
        more = pattern(11, 2_000_000)
        expect_bytes(second, put(second, more), more)
        expect_bytes(second, kept_at, keep)
    with maker(recovering(config)) as third:
        expect(not third.recovered, "close() left something to recover")


def recovering_nothing_begins_anew(maker: Maker) -> None:
    with maker(recovering(fresh_config())) as backend:
        expect(not backend.recovered, "recovered what was never there")
        data = pattern(15, 1_000)
        expect_bytes(backend, put(backend, data), data)


def adopting_what_cannot_be_is_refused(maker: Maker) -> None:
    config = fresh_config()
    first = maker(config)
    if not first.capabilities.outlives_process:
        first.close()
        return
    data = pattern(16, 10_000)
    address = put(first, data)
    first.close(keep=True)
    with maker(recovering(config)) as second:
        for starts, sizes in (([address, address + 10], [100, 100]), ([1 << 50], [64])):
            with contextlib.suppress(ValueError):
                second.adopt(np.array(starts), np.array(sizes))
                expect(False, f"adopted {starts} {sizes}")
        second.adopt(np.array([address]), second.extents([len(data)]))
        expect_bytes(second, address, data)


def a_kill_takes_no_sealed_byte_and_leaves_nothing_else(maker: Maker) -> None:
    """``kill -9`` with one put sealed, one half written and one in the middle of its seal."""
    config = fresh_config()
    sealed = pattern(17, 300_000)
    reading, writing = os.pipe()
    pid = _fork()
    if pid == 0:
        _live_until_killed(maker, config, sealed, writing)
    os.close(writing)
    with os.fdopen(reading, "rb") as pipe:
        told = pipe.read()
    os.waitpid(pid, 0)
    expect(len(told) == 8, "the backend could not be used in a process of its own")
    address = int.from_bytes(told, "little")
    with maker(recovering(config)) as second:
        if not second.recovered:
            expect(second.used_bytes == 0, "bytes in use, and nothing recovered")
            return
        second.adopt(np.array([address]), second.extents([len(sealed)]))
        expect_bytes(second, address, sealed)
        more = pattern(18, BUDGET_BYTES // 2)
        expect_bytes(second, put(second, more), more)
        expect_bytes(second, address, sealed)


def _fork() -> int:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # threads of the parent: none is used
        return os.fork()


def _live_until_killed(
    maker: Maker, config: BackendConfig, sealed: Bytes, writing: int
) -> NoReturn:
    try:
        backend = maker(config)
        address = put(backend, sealed)
        for written in (50_000, 100_000):
            (unsealed,) = reserve(backend, [100_000])
            backend.write(unsealed, pattern(written, written).data)
        os.write(writing, address.to_bytes(8, "little"))
    finally:
        os.kill(os.getpid(), signal.SIGKILL)
    raise AssertionError("killed")


FAILURE_CHECKS: list[Check] = [
    a_put_that_is_given_up_leaves_nothing,
    freeing_what_is_not_in_use_is_refused,
    views_stay_valid_after_close,
    bytes_that_were_never_given_out_are_refused,
    a_closed_backend_says_so,
    what_was_kept_is_recovered,
    recovering_nothing_begins_anew,
    adopting_what_cannot_be_is_refused,
    a_kill_takes_no_sealed_byte_and_leaves_nothing_else,
]

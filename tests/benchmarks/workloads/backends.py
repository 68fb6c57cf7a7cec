"""What index, ranges and checks of each backend cost on top of the raw store that lies under it."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import numpy as np

from tests.benchmarks.raw_stores import File, Memory, Mooncake, RawStore, Ray
from tests.benchmarks.report import Missing, Row, Samples, Unit, at_most
from tests.benchmarks.stores_under import MIB, store_under
from transferqueue.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from tests.benchmarks.report import Cell
    from tests.benchmarks.stage import Stage
    from transferqueue.backends.base import Backend

RAW = "raw store"

RAW_STORES: Mapping[str, Callable[[Backend, int], RawStore]] = {
    "shm": Memory,
    "heap": Memory,
    "disk": File,
    "mooncake": Mooncake,
    "ray": Ray,
}


class Backends:
    """One slab in, and out again with every byte read once, in turns with the raw store. Each ratio
    is of two that followed one another."""

    name = "backends"
    title = "each backend beside the raw store under it, in one process, medians"

    def run(self, stage: Stage) -> list[Row]:
        sizes = (MIB,) if stage.is_quick else (64 << 10, MIB, 16 * MIB)
        rounds = 5 if stage.is_quick else 8 * stage.rounds
        return [row for name in RAW_STORES for row in self._rows(name, sizes, rounds)]

    def _rows(self, name: str, sizes: tuple[int, ...], rounds: int) -> list[Row]:
        try:
            with (
                store_under(name, room_bytes=512 * MIB) as store,
                store.backend(128 * MIB) as backend,
            ):
                return [row for nbytes in sizes for row in _measured(name, backend, nbytes, rounds)]
        except (ConfigError, ImportError, AssertionError) as error:
            cells: dict[str, Cell] = {"ours": Missing(reason=str(error)[:100])}
            return [Row(workload=self.name, what=name, unit=Unit.SECONDS, cells=cells)]


def _measured(name: str, backend: Backend, nbytes: int, rounds: int) -> list[Row]:
    raw = RAW_STORES[name](backend, nbytes)
    data = np.random.default_rng(0).integers(0, 256, nbytes, dtype=np.uint8)
    seconds: dict[tuple[str, str], list[float]] = {
        (step, whose): [] for step in ("put", "get and read") for whose in ("ours", RAW)
    }
    for number in range(rounds + 3):
        for whose in ("ours", RAW) if number % 2 else (RAW, "ours"):
            timed = _ours(backend, data) if whose == "ours" else _raw(raw, data)
            if number >= 3:  # the first touch of memory is another thing
                for step, taken in timed.items():
                    seconds[step, whose].append(taken)
    size = f"{nbytes >> 20} MiB" if nbytes >= MIB else f"{nbytes >> 10} KiB"
    return [
        _row(f"{name}, {size}, {step}", seconds[step, "ours"], seconds[step, RAW], nbytes)
        for step in ("put", "get and read")
    ]


def _ours(backend: Backend, data: np.ndarray) -> dict[str, float]:
    sizes = np.array([len(data)], np.int64)
    begun_s = time.perf_counter()
    found = backend.reserve([len(data)])
    assert found is not None
    backend.write(int(found[0]), data.data)
    backend.seal(found, sizes)
    put_s = time.perf_counter()
    if backend.lies_in_memory(found):
        got = np.frombuffer(backend.readable(int(found[0]), len(data)), np.uint8)
    else:
        got = backend.read_ranges(found, sizes)
    _read(got)
    read_s = time.perf_counter()
    del got
    backend.free(found, backend.extents([len(data)]))
    return {"put": put_s - begun_s, "get and read": read_s - put_s}


def _raw(raw: RawStore, data: np.ndarray) -> dict[str, float]:
    begun_s = time.perf_counter()
    raw.put(data)
    put_s = time.perf_counter()
    _read(raw.get())
    return {"put": put_s - begun_s, "get and read": time.perf_counter() - put_s}


def _read(got: np.ndarray) -> int:
    """As whoever wants the bytes does."""
    return int(got.view(np.uint64).sum())


def _row(what: str, ours: list[float], raw: list[float], nbytes: int) -> Row:
    cells: dict[str, Cell] = {"ours": Samples(values=tuple(ours)), RAW: Samples(values=tuple(raw))}
    ratio = float(np.median([a / b for a, b in zip(ours, raw, strict=True)]))
    figures = (at_most(ratio, 1.15, f"x the {RAW}"),) if nbytes == 16 * MIB else ()
    return Row(workload="backends", what=what, unit=Unit.SECONDS, cells=cells, figures=figures)

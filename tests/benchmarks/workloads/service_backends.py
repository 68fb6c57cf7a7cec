"""The main table's rows for a service on each backend, and for the raw store that lies under it."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

import transferqueue as tq
from tests.benchmarks.columns import dense, mixed
from tests.benchmarks.report import Missing, Row, Unit
from tests.benchmarks.stage import Tally
from tests.benchmarks.stores_under import MIB, store_under
from tests.benchmarks.workloads.backends import RAW, RAW_STORES
from transferqueue.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from tests.benchmarks.columns import Columns
    from tests.benchmarks.raw_stores import RawStore
    from tests.benchmarks.report import Cell
    from tests.benchmarks.stage import Stage
    from tests.benchmarks.stores_under import StoreUnder

ROOM_BYTES = 1 << 30
WARM_UPS = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class _Case:
    what: str
    columns: Columns
    times: int = 1
    """How often it is done a round: a single sample is over before a clock has moved much."""

    @property
    def payloads(self) -> list[np.ndarray]:
        """The bytes of each column, as they go to a store."""
        return [_bytes_of(values) for values in self.columns.values()]


def _cases(*, is_quick: bool) -> list[_Case]:
    rows = 64 if is_quick else 1024
    shape = {"rows": rows, "length": 2048 if is_quick else 8192}
    size = f"{rows * shape['length'] * 10 >> 18} MiB"
    one = dense(rows=1, length=1024, fields=3)
    return [
        _Case(
            what=f"dense, {size}",
            columns=dense(**shape, fields=10),
        ),
        _Case(what="dense + ragged + strings", columns=mixed(**shape, fields=6)),
        _Case(what="one sample, 12 KiB", columns=one, times=1 if is_quick else 20),
    ]


class ServiceBackends:
    """A service with one shard and a client in this process; a get reads every byte once. The raw
    store has the same bytes, a column at a time, in this process as well."""

    name = "service-backends"
    title = "a service on each backend beside the raw store under it, medians"

    def run(self, stage: Stage) -> list[Row]:
        cases = _cases(is_quick=stage.is_quick)
        return [row for name in RAW_STORES for row in self._rows(name, cases, stage)]

    def _rows(self, name: str, cases: list[_Case], stage: Stage) -> list[Row]:
        stage.say(f"  {name}")
        tally = Tally()
        try:
            with store_under(name, room_bytes=3 * ROOM_BYTES) as store:
                self._measure(store, cases, stage.rounds + WARM_UPS, tally)
        except (ConfigError, ImportError, AssertionError) as error:
            cells: Mapping[str, Cell] = {"ours": Missing(reason=str(error)[:100])}
            return [Row(workload=self.name, what=name, unit=Unit.SECONDS, cells=cells)]
        return [
            tally.row(self.name, f"{name}, {case.what}, {step}", ["ours", RAW])
            for case in cases
            for step in ("put", "get and read")
        ]

    def _measure(self, store: StoreUnder, cases: list[_Case], rounds: int, tally: Tally) -> None:
        with (
            tq.serve(
                budget_bytes=ROOM_BYTES,
                backend=store.name,
                backend_options=store.options,
                arena_dir=store.directory,
            ) as service,
            tq.connect(service.address, timeout_s=60.0) as client,
            store.backend(MIB) as backend,
        ):
            for case in cases:
                payloads = case.payloads
                raws = [RAW_STORES[store.name](backend, len(data)) for data in payloads]
                for number in range(rounds):
                    timed = {
                        "ours": _ours(client, case),
                        RAW: _raw(raws, payloads, case.times),
                    }
                    for whose, steps in timed.items() if number >= WARM_UPS else ():
                        for step, taken_s in steps.items():
                            tally.add(f"{store.name}, {case.what}, {step}", whose, taken_s)


def _ours(client: tq.Client, case: _Case) -> dict[str, float]:
    seconds = {"put": 0.0, "get and read": 0.0}
    for _ in range(case.times):
        begun_s = time.perf_counter()
        handle = client.put(case.columns, partition="bench")
        put_s = time.perf_counter()
        _read_all(client.get_columns(handle))
        seconds["put"] += (put_s - begun_s) / case.times
        seconds["get and read"] += (time.perf_counter() - put_s) / case.times
        client.clear(handle)
    return seconds


def _raw(raws: list[RawStore], payloads: list[np.ndarray], times: int) -> dict[str, float]:
    seconds = {"put": 0.0, "get and read": 0.0}
    for _ in range(times):
        begun_s = time.perf_counter()
        for raw, data in zip(raws, payloads, strict=True):
            raw.put(data)
        put_s = time.perf_counter()
        for raw in raws:
            _sum(raw.get())
        seconds["put"] += (put_s - begun_s) / times
        seconds["get and read"] += (time.perf_counter() - put_s) / times
    return seconds


def _read_all(columns: Mapping[str, Any]) -> None:
    for value in columns.values():
        if isinstance(value, torch.Tensor):
            _sum(_bytes_of(value))


def _bytes_of(value: torch.Tensor | list[str]) -> np.ndarray:
    """Of a whole column, one row after the other. uint8[bytes]"""
    if isinstance(value, list):
        return np.frombuffer("".join(value).encode(), np.uint8)
    values = value.values() if value.is_nested else value
    found: np.ndarray = values.contiguous().numpy().reshape(-1).view(np.uint8)
    return found


def _sum(got: np.ndarray) -> int:
    return int(got[: len(got) // 8 * 8].view(np.uint64).sum())

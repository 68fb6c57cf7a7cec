"""What it costs to write down what a shard holds, and how soon a killed shard answers again."""

from __future__ import annotations

import os
import shutil
import signal
import tempfile
import time
from typing import TYPE_CHECKING, Any, ClassVar

import torch

import transferqueue as tq
from tests.benchmarks.report import Cell, Figure, Row, Samples, Sense, Unit, at_most

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.benchmarks.stage import Stage

GIB = 1 << 30

Columns = dict[str, object]


class _PutCost:
    """The same puts to two services side by side, in turns. Each ratio is of two puts next to each
    other."""

    name = ""
    target = 1.0
    text = ""
    dear: ClassVar[dict[str, Any]] = {}
    cheap: ClassVar[dict[str, Any]] = {}
    """What each service is started with."""

    def run(self, stage: Stage) -> list[Row]:
        repeats = 10 if stage.is_quick else 60
        with (
            tq.serve(budget_bytes=GIB, **self.dear) as costly,
            tq.serve(budget_bytes=GIB, **self.cheap) as plain,
            tq.connect(costly.address) as one,
            tq.connect(plain.address) as other,
        ):
            self.wait_until_ready(one)
            return [
                self._row(what, self._ratios(one, other, make(), times))
                for what, make, times in (
                    ("one sample, 3 × 1,024", _one_sample, repeats * 5),
                    ("256 × 512 × 10, 5 MB", _small, repeats),
                    ("1,024 × 8,192 × 10, 320 MB", _large, max(5, repeats // 5)),
                    ("512 ragged, strings, dense", _mixed, repeats),
                )
            ]

    def wait_until_ready(self, client: tq.Client) -> None:
        """The dear service is what it is measured as."""

    def _ratios(
        self, dear: tq.Client, cheap: tq.Client, columns: Columns, times: int
    ) -> list[float]:
        ratios = []
        for number in range(times + 2):
            order = (dear, cheap) if number % 2 else (cheap, dear)
            seconds = {client: _put_once(client, columns) for client in order}
            if number >= 2:  # the first touch of the memory is another thing
                ratios.append(seconds[dear] / seconds[cheap])
        return ratios

    def _row(self, what: str, ratios: list[float]) -> Row:
        cells: dict[str, Cell] = {"ours": Samples(values=tuple(ratios))}
        row = Row(workload=self.name, what=what, unit=Unit.RATIO, cells=cells)
        return _with_figure(row, self.target, self.text)


class JournalCost(_PutCost):
    """One that would be restarted, and so keeps a journal, and one that would not."""

    name = "journal"
    title = "put with a journal ÷ put without one, medians of ratios of neighbouring puts"
    target, text = 1.1, "x without a journal"
    cheap: ClassVar[dict[str, Any]] = {"restart": False}


class ReplicaCost(_PutCost):
    """One that keeps two copies of every row, and one that keeps one."""

    name = "replicas"
    title = "put on two copies ÷ put on one, medians of ratios of neighbouring puts"
    target, text = 2.2, "x on one copy"
    dear: ClassVar[dict[str, Any]] = {"shards": 2, "replicas": 2}
    cheap: ClassVar[dict[str, Any]] = {"shards": 2}

    def wait_until_ready(self, client: tq.Client) -> None:
        while not all(s["copies"]["is_complete"] for s in client.status()["shards"]):
            time.sleep(0.01)


class Recovery:
    """A shard full of samples is killed; until a get of one of them is answered again: the new
    process, the replay of its journal, and the client's asking again are all in it."""

    name = "recovery"
    title = "kill -9 of a full shard to the first get answered"

    def run(self, stage: Stage) -> list[Row]:
        free = shutil.disk_usage("/dev/shm").free
        size = GIB // 4 if stage.is_quick else min(8 * GIB, int(free * 0.6) // GIB * GIB)
        rows = [self._row(f"{size / GIB:g} GiB in puts of 64 MiB", size, 64 << 20, stage.rounds)]
        few = min(size, GIB)
        rows.append(self._row(f"{few / GIB:g} GiB in puts of 1 MiB", few, 1 << 20, stage.rounds))
        return rows

    def _row(self, what: str, size: int, put_bytes: int, rounds: int) -> Row:
        columns = {f"f{n}": torch.ones(64, put_bytes // 4 // 10 // 64) for n in range(10)}
        with (
            tq.serve(budget_bytes=size + GIB // 4) as service,
            tq.connect(service.address, timeout_s=120) as client,
        ):
            handles = [client.put(columns, tags={"v": n}) for n in range(size // put_bytes)]
            seconds = []
            for _ in range(rounds):
                start_s = time.perf_counter()
                os.kill(service.pids["shard-0"], signal.SIGKILL)
                client.get(handles[0], fields=["f0"])
                seconds.append(time.perf_counter() - start_s)
            client.get(handles[-1])
        cells: dict[str, Cell] = {"ours": Samples(values=tuple(seconds))}
        row = Row(workload=self.name, what=what, unit=Unit.SECONDS, cells=cells)
        return _with_figure(row, 2.0, "s")


class Checkpoint:
    """A service is written to a disk while nobody uses it, and begun with again. Beside it the same
    bytes as one file, written and synced, in turns; each ratio is of two that followed one
    another."""

    name = "checkpoint"
    title = "a checkpoint of 2 shards, and a service restored from it"

    def run(self, stage: Stage) -> list[Row]:
        size = (256 << 20) if stage.is_quick else 2 * GIB
        columns = _large() if not stage.is_quick else _dense(1024, 1024, 4)()
        rounds = max(5, stage.rounds)
        with tempfile.TemporaryDirectory(prefix="transferqueue-benchmark-") as folder:
            path = os.path.join(folder, "checkpoint")
            with (
                tq.serve(shards=2, budget_bytes=size) as service,
                tq.connect(service.address, timeout_s=120) as client,
            ):
                nbytes, made = 0, 0
                while nbytes < size:
                    handle = client.put(columns, partition="p", tags={"n": made})
                    made += 1
                    nbytes += sum(4 * c.numel() for c in columns.values())  # type: ignore[attr-defined]
                saved = [
                    self._turn(client, path, folder, nbytes, turn) for turn in range(rounds + 1)
                ]
            restored = [self._restore(path, size, handle) for _ in range(3)]
        what = f"{nbytes / GIB:.2g} GiB"
        return [
            self._saved(what, [turn[0] for turn in saved[1:]], [turn[1] for turn in saved[1:]]),
            self._restored(what, restored),
        ]

    def _turn(
        self, client: tq.Client, path: str, folder: str, nbytes: int, turn: int
    ) -> tuple[float, float]:
        """Seconds of a checkpoint, and of a file of as many bytes."""
        steps = [lambda: client.checkpoint(path), lambda: _write_synced(folder, nbytes)]
        seconds = {which: _seconds_of(steps[which]) for which in ((0, 1), (1, 0))[turn % 2]}
        return seconds[0], seconds[1]

    def _saved(self, what: str, ours: list[float], disk: list[float]) -> Row:
        cells: dict[str, Cell] = {
            "ours": Samples(values=tuple(ours)),
            "disk": Samples(values=tuple(disk)),
        }
        ratios = sorted(theirs / mine for mine, theirs in zip(ours, disk, strict=True))
        figure = Figure(
            got=ratios[len(ratios) // 2],
            target=0.7,
            sense=Sense.AT_LEAST,
            text="x the disk's speed",
        )
        return Row(
            workload=self.name,
            what=f"{what}, save",
            unit=Unit.SECONDS,
            cells=cells,
            figures=(figure,),
        )

    def _restored(self, what: str, seconds: list[float]) -> Row:
        cells: dict[str, Cell] = {"ours": Samples(values=tuple(seconds))}
        return Row(
            workload=self.name,
            what=f"{what}, restore onto 3 shards, first get",
            unit=Unit.SECONDS,
            cells=cells,
        )

    def _restore(self, path: str, size: int, handle: tq.BatchHandle) -> float:
        start_s = time.perf_counter()
        with (
            tq.serve(shards=3, budget_bytes=size, restore=path) as service,
            tq.connect(service.address, timeout_s=120) as client,
        ):
            client.get(handle)
            return time.perf_counter() - start_s


def _seconds_of(step: Callable[[], object]) -> float:
    start_s = time.perf_counter()
    step()
    return time.perf_counter() - start_s


def _write_synced(folder: str, nbytes: int) -> None:
    """As ``dd conv=fsync`` does, from memory that is warm. The last one stays until the next is
    there, as of a checkpoint."""
    block = memoryview(bytes(8 << 20))
    path = os.path.join(folder, "plain")
    new_path = f"{path}.new"
    fd = os.open(new_path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    try:
        for _ in range(nbytes // len(block)):
            os.write(fd, block)
        os.fsync(fd)
    finally:
        os.close(fd)
    os.rename(new_path, path)


def _with_figure(row: Row, target: float, text: str) -> Row:
    return Row(
        workload=row.workload,
        what=row.what,
        unit=row.unit,
        cells=row.cells,
        figures=(at_most(row.number("ours"), target, text),),
    )


def _put_once(client: tq.Client, columns: Columns) -> float:
    start_s = time.perf_counter()
    handle = client.put(columns, partition="p")
    seconds = time.perf_counter() - start_s
    client.clear(handle)
    return seconds


def _dense(rows: int, width: int, fields: int) -> Callable[[], Columns]:
    return lambda: {f"f{n}": torch.ones(rows, width) for n in range(fields)}


_one_sample, _small, _large = _dense(1, 1024, 3), _dense(256, 512, 10), _dense(1024, 8192, 10)


def _mixed() -> Columns:
    rows = [torch.ones(n % 700 + 1) for n in range(512)]
    return {
        "ragged": torch.nested.nested_tensor(rows, layout=torch.jagged),
        "text": [f"prompt {n}" for n in range(512)],
        "dense": torch.ones(512, 64),
    }

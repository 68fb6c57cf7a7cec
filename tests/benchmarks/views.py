"""What operations on a lazy view cost, and the eager ones beside them.

    python -m tests.benchmarks.views

4,096 rows of 20 fields, uids in no order. No service runs: these operations ask it for nothing.
"""

from __future__ import annotations

import pickle
import statistics
import time
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from tensordict import TensorDict

from transferqueue.fields import FieldKind, FieldSpec
from transferqueue.handle import BatchHandle
from transferqueue.uids import make_uids
from transferqueue.view.dataproto import DataProto
from transferqueue.view.lazy_connection import Connection
from transferqueue.view.lazy_dataproto import LazyDataProto

if TYPE_CHECKING:
    from collections.abc import Callable

ROWS, TENSORS, OBJECTS, WIDTH = 4096, 17, 3, 8
ROUNDS = 15


def main() -> None:
    torch.set_num_threads(1)
    handle, connection = make_handle(), Connection("no-service", {})
    view, eager = LazyDataProto.over(handle, connection), make_eager()
    print(f"{ROWS:,} rows x {TENSORS + OBJECTS} fields, median of {ROUNDS}, ms")
    print(f"{'':24}{'view':>10}{'eager':>10}")
    print_row("construction", lambda: LazyDataProto.over(handle, connection), None)
    for name, operation in OPERATIONS.items():
        print_row(name, lambda do=operation: do(view), lambda do=operation: do(eager))
    print_row("pickle", lambda: pickle.dumps(view), lambda: pickle.dumps(eager))
    sizes = [len(pickle.dumps(batch)) for batch in (view, eager)]
    print(f"{'pickled, KiB':24}{sizes[0] / 1024:10.1f}{sizes[1] / 1024:10.1f}")


ORDER = torch.from_numpy(np.random.default_rng(0).permutation(ROWS))

OPERATIONS: dict[str, Callable[[DataProto], Any]] = {
    "chunk(32)": lambda batch: batch.chunk(32),
    "concat of 32 chunks": lambda batch: DataProto.concat(batch.chunk(32)),
    "union": lambda batch: batch.select(["f0"]).union(batch.select(["f1", "f2"], [])),
    "reorder": lambda batch: batch.reorder(ORDER),
    "select_idxs": lambda batch: batch.select_idxs(ORDER),
    "repeat(4)": lambda batch: batch.repeat(4),
}
"""``concat`` counts the chunking before it."""


def make_handle() -> BatchHandle:
    tensors = {f"f{i}": FieldSpec(dtype="float32", shape=(WIDTH,)) for i in range(TENSORS)}
    objects = {f"o{i}": FieldSpec(dtype="object", kind=FieldKind.OBJECT) for i in range(OBJECTS)}
    uids = np.random.default_rng(1).permutation(make_uids(0, 0, ROWS))
    return BatchHandle(
        service_id="no-service", partition="train", uids=uids, fields={**tensors, **objects}
    )


def make_eager() -> DataProto:
    tensors = {f"f{i}": torch.zeros(ROWS, WIDTH) for i in range(TENSORS)}
    objects = {f"o{i}": np.arange(ROWS).astype(object) for i in range(OBJECTS)}
    return DataProto(TensorDict(tensors, batch_size=[ROWS]), objects)


def print_row(name: str, view: Callable[[], Any], eager: Callable[[], Any] | None) -> None:
    times = [median_ms(call) if call else float("nan") for call in (view, eager)]
    print(f"{name:24}{times[0]:10.3f}{times[1]:10.3f}")


def median_ms(call: Callable[[], Any]) -> float:
    times = []
    for _ in range(ROUNDS):
        start_s = time.perf_counter()
        call()
        times.append((time.perf_counter() - start_s) * 1e3)
    return statistics.median(times)


if __name__ == "__main__":
    main()

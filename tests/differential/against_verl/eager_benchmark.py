"""How long eager operations take, ours over verl's, on the same data in one run.

::

    PYTHONPATH=.:tests/differential .venv-verl/bin/python -m against_verl.eager_benchmark

4,096 rows of 16 tensor columns and 4 arrays; both sides in turn, the median of each.
"""

from __future__ import annotations

import argparse
import pickle
import statistics
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
import verl.protocol as verl_side

import transferqueue.view as our_side

ROWS, TENSORS, ARRAYS = 4096, 16, 4

Operation = Callable[[], Any]


def make(side: Any, width: int) -> Any:
    generator = torch.Generator().manual_seed(0)
    numbers = [torch.rand(ROWS, width, generator=generator) for _ in range(TENSORS)]
    tensors = {f"t{i}": n if i % 2 else n.mul(99).long() for i, n in enumerate(numbers)}
    names = np.array([f"row {row}" for row in range(ROWS)], dtype=object)
    arrays = {f"a{i}": names.copy() if i % 2 else np.arange(ROWS) for i in range(ARRAYS)}
    return side.DataProto.from_dict(tensors, arrays, {"step": 1})


def fresh(side: Any, batch: Any) -> Any:
    """The same columns in containers that may be changed."""
    return side.DataProto(batch.batch.copy(), dict(batch.non_tensor_batch), dict(batch.meta_info))


def operations(side: Any, width: int) -> dict[str, Operation]:
    batch, twin = make(side, width), make(side, width)
    parts, order = batch.chunk(32), torch.randperm(ROWS, generator=torch.Generator().manual_seed(1))
    shared = twin.select(["t0", "t1"], ["a0"])
    others = side.DataProto.from_dict({f"new{i}": torch.rand(ROWS, width) for i in range(4)})
    keep = [f"t{i}" for i in range(8)]
    return {
        "chunk(32)": lambda: batch.chunk(32),
        "split(128)": lambda: batch.split(128),
        "slice": lambda: batch[10:1000],
        "one row": lambda: batch[5],
        "select": lambda: batch.select(keep, ["a0"]),
        "select_idxs": lambda: batch.select_idxs(order),
        "reorder": lambda: fresh(side, batch).reorder(order),
        "concat 32": lambda: side.DataProto.concat(parts),
        "repeat(4)": lambda: batch.repeat(4),
        "repeat(4, False)": lambda: batch.repeat(4, interleave=False),
        "sample_level_repeat": lambda: batch.sample_level_repeat([2] * ROWS),
        "union, new columns": lambda: fresh(side, batch).union(others),
        "union, equal columns": lambda: fresh(side, batch).union(shared),
        "pad to a divisor": lambda: side.pad_dataproto_to_divisor(batch, 4100),
        "pickle and back": lambda: pickle.loads(pickle.dumps(batch, 5)),
        "make_iterator(256)": lambda: list(batch.make_iterator(256, 1)),
    }


def median_ms(times_s: list[float]) -> float:
    return statistics.median(times_s) * 1e3


def measure(theirs: Operation, ours: Operation, repeats: int) -> tuple[float, float]:
    taken: list[list[float]] = [[], []]
    for turn in range(repeats + 1):
        for side, operation in enumerate((theirs, ours)):
            start = time.perf_counter()
            operation()
            if turn:  # the first pays for what is made once
                taken[side].append(time.perf_counter() - start)
    return median_ms(taken[0]), median_ms(taken[1])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--width", type=int, default=64, help="cells a row and tensor column")
    parser.add_argument("--repeats", type=int, default=15)
    options = parser.parse_args()
    torch.set_num_threads(1)
    theirs, ours = (operations(side, options.width) for side in (verl_side, our_side))
    print(f"{'operation':22} {'verl ms':>10} {'ours ms':>10} {'ratio':>6}")
    for name, operation in theirs.items():
        verl_ms, our_ms = measure(operation, ours[name], options.repeats)
        print(f"{name:22} {verl_ms:10.3f} {our_ms:10.3f} {our_ms / verl_ms:6.2f}")


if __name__ == "__main__":
    main()

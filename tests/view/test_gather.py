"""All ranks' rows on every rank, with gloo processes."""

from __future__ import annotations

import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from transferqueue.view import all_gather_data_proto

ROOT = Path(__file__).parents[2]

SCRIPT = """
    import os, sys, time
    import numpy as np, torch, torch.distributed as dist
    from tensordict import TensorDict
    from transferqueue.view import DataProto, all_gather_data_proto

    rank, world, path = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3]
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{path}", rank=rank, world_size=world)
    group = dist.group.WORLD

    def make(rank, rows):
        lengths = [torch.full((row + 1,), rank * 10 + row) for row in range(rows)]
        return DataProto(
            TensorDict({
                "x": torch.full((rows, 2), float(rank)),
                "j": torch.nested.as_nested_tensor(lengths, layout=torch.jagged),
                "t": torch.arange(rows).expand(3, rows).t(),
                "b": torch.full((rows,), rank % 2 == 0),
            }, [rows]),
            {"o": np.array([f"r{rank}"] * rows, dtype=object), "n": np.full(rows, rank)},
            {"rank": rank},
        )

    for sizes in ((2,) * world, tuple(range(1, world + 1))):
        mine = make(rank, sizes[rank])
        names = list(mine.batch.keys())
        parts = [make(r, n).select(None, None, []) for r, n in enumerate(sizes)]
        expected = DataProto.concat(parts)
        assert all_gather_data_proto(mine, group) is None
        assert mine.select(None, None, []) == expected, rank
        assert list(mine.batch.keys()) == names
        assert mine.meta_info == {"rank": rank}
        assert mine.batch.device is None

    bare = DataProto(None, {"n": np.arange(rank + 1)})
    all_gather_data_proto(bare, group)
    assert bare.non_tensor_batch["n"].tolist() == [0, 0, 1][: world * 2 - 1]
    placed = make(rank, 2).to("cpu")
    all_gather_data_proto(placed, None)
    assert placed.batch.device == torch.device("cpu")
    dist.barrier()
    print("checked", flush=True)
    time.sleep(0.2)  # the other rank is through the barrier too
    os._exit(0)  # Gloo's threads now and then abort a process that ends in the usual way
"""


@pytest.mark.parametrize("world", [1, 2])
def test_rows_of_all_ranks_come_in_rank_order(world: int, tmp_path: Path) -> None:
    command = [sys.executable, "-W", "ignore", "-c", textwrap.dedent(SCRIPT)]
    ranks = [
        subprocess.Popen(
            [*command, str(rank), str(world), str(tmp_path / "store")],
            cwd=ROOT,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        for rank in range(world)
    ]
    outputs = [rank.communicate(timeout=120)[0] for rank in ranks]
    assert [rank.returncode for rank in ranks] == [0] * world, outputs
    assert all("checked" in output for output in outputs)


def test_only_batches_are_gathered() -> None:
    with pytest.raises(AssertionError, match="int"):
        all_gather_data_proto(3, None)  # type: ignore[arg-type]

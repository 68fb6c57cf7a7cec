"""Ascend TransferQueue 0.1.11 (PyPI ``TransferQueue``) with its default storage, two units.

Used as its own benchmark uses it: ``kv_batch_put`` and ``kv_batch_get`` of a TensorDict, keys made
beforehand, writer and reader two processes of one Ray.
"""

from __future__ import annotations

import json
import time
from typing import TYPE_CHECKING, Any, ClassVar

import ray
import torch
import transfer_queue
from omegaconf import OmegaConf
from tensordict import NonTensorStack, TensorDict

from tests.benchmarks.adapter import Adapter
from tests.benchmarks.peers.ray_object_store import join_ray, start_ray

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from tests.benchmarks.columns import Columns

STORAGE_UNITS = 2


class AscendTransferQueue(Adapter):
    """``settings``: ``polling_mode``, as its controller's."""

    def __init__(self, settings: Mapping[str, Any]) -> None:
        super().__init__(settings)
        self._num_puts = 0
        self._keys: list[str] = []
        self._has_started = False

    def start(self) -> str:
        address = start_ray()
        begun_s = time.perf_counter()
        self.init()
        self.start_seconds = time.perf_counter() - begun_s
        self._has_started = True
        return address

    def init(self) -> None:
        """Start its controller and storage on the Ray that runs."""
        transfer_queue.init(
            OmegaConf.create(
                {
                    "controller": {"polling_mode": bool(self.settings.get("polling_mode", False))},
                    "backend": {
                        "storage_backend": "SimpleStorage",
                        "SimpleStorage": {"num_data_storage_units": STORAGE_UNITS},
                    },
                }
            )
        )

    def join(self, address: str) -> None:
        join_ray(address)
        transfer_queue.init()

    def prepare(self, columns: Columns) -> TensorDict:
        rows = _num_rows(columns)
        self._keys = [f"sample_{k}" for k in range(rows)]
        batch = TensorDict(batch_size=[rows])
        for name, value in columns.items():
            batch.set(name, NonTensorStack.from_list(value) if isinstance(value, list) else value)
        return batch

    def put(self, prepared: TensorDict) -> tuple[str, list[str]]:
        self._num_puts += 1
        partition = f"{id(self)}-{self._num_puts}"
        transfer_queue.kv_batch_put(keys=self._keys, partition_id=partition, fields=prepared)
        return partition, self._keys

    def token(self, reference: tuple[str, list[str]]) -> str:
        return json.dumps([reference[0], len(reference[1])])

    def reference(self, token: str) -> tuple[str, list[str]]:
        partition, rows = json.loads(token)
        return partition, [f"sample_{k}" for k in range(rows)]

    def get(
        self,
        reference: tuple[str, list[str]],
        *,
        fields: Sequence[str] | None,
        rows: Sequence[int] | None,
    ) -> Mapping[str, Any]:
        partition, keys = reference
        if rows is not None:
            keys = [keys[row] for row in rows]
        got: Mapping[str, Any] = transfer_queue.kv_batch_get(
            keys=keys,
            partition_id=partition,
            select_fields=None if fields is None else list(fields),
        )
        return got

    def clear(self, reference: tuple[str, list[str]]) -> None:
        partition, keys = reference
        transfer_queue.kv_clear(keys=keys, partition_id=partition)

    def close(self) -> None:
        if self._has_started:
            transfer_queue.close()
        ray.shutdown()

    # -- measured for it alone -------------------------------------------------------------------

    def drive_handle_algebra(
        self, *, rows: int, fields: int, parts: int, times: int
    ) -> dict[str, Any]:
        """Chunk, concat, reorder and union of its metadata; seconds of each, by name."""
        from transfer_queue.metadata import BatchMeta, extract_field_schema

        def meta(prefix: str) -> BatchMeta:
            columns = {f"{prefix}_{k}": torch.zeros(rows, 1) for k in range(fields)}
            return BatchMeta(
                global_indexes=list(range(rows)),
                partition_ids=["train"] * rows,
                field_schema=extract_field_schema(TensorDict(columns, batch_size=[rows])),
            )

        whole, other = meta("field"), meta("more")
        order = torch.randperm(rows).tolist()
        chunks = whole.chunk(parts)
        steps = {
            "chunk": lambda: whole.chunk(parts),
            "concat": lambda: BatchMeta.concat(chunks),
            "union": lambda: whole.union(other),
            "reorder": lambda: whole.reorder(order),
        }
        return {name: _seconds(step, times) for name, step in steps.items()}

    def drive_fill(self, *, rows: int, fields: int, batch: int) -> dict[str, Any]:
        """Put ``rows`` of one-byte cells into the partition ``full``; how long it took."""
        client = transfer_queue.get_client()
        started_s = time.perf_counter()
        for _ in range(0, rows, batch):
            columns = {
                f"field_{k:02d}": torch.zeros(batch, 1, dtype=torch.uint8) for k in range(fields)
            }
            client.put(TensorDict(columns, batch_size=[batch]), partition_id="full")
        return {"seconds": time.perf_counter() - started_s}

    def drive_claims(
        self, *, num_tasks: int, fields: int, num_fields: int, n: int, times: int
    ) -> dict[str, Any]:
        """Its nearest thing to a claim: ready samples are named and marked as consumed."""
        client = transfer_queue.get_client()
        seconds = []
        for k in range(times):
            task = k % num_tasks
            wanted = [f"field_{(3 * task + j) % fields:02d}" for j in range(num_fields)]
            started_s = time.perf_counter()
            meta = client.get_meta(
                data_fields=wanted, batch_size=n, partition_id="full", task_name=f"task_{task}"
            )
            seconds.append(time.perf_counter() - started_s)
            if len(meta) != n:
                raise RuntimeError(f"asked for {n} samples, got {len(meta)}")
        return {"seconds": seconds}

    def drive_wait_for_samples(self, *, times: int, pause_s: float) -> dict[str, Any]:
        """Poll for one sample, ``times`` times; when each had come. Its controller pushes nothing,
        so the caller asks again after ``pause_s`` (with ``polling_mode``)."""
        client = transfer_queue.get_client()
        got_s = []
        for _ in range(times):
            while not len(
                client.get_meta(
                    data_fields=["field_0"], batch_size=1, partition_id="wake", task_name="task"
                )
            ):
                time.sleep(pause_s)
            got_s.append(time.monotonic())
        return {"got_s": got_s}

    def drive_put_samples(self, *, times: int, gaps_s: list[float]) -> dict[str, Any]:
        """Put one sample after each gap; when each put began and ended."""
        client = transfer_queue.get_client()
        begun_s, ended_s = [], []
        for k in range(times):
            time.sleep(gaps_s[k % len(gaps_s)])
            begun_s.append(time.monotonic())
            client.put(
                TensorDict({"field_0": torch.zeros(1, 8)}, batch_size=[1]), partition_id="wake"
            )
            ended_s.append(time.monotonic())
        return {"begun_s": begun_s, "ended_s": ended_s}

    drives: ClassVar[Mapping[str, Callable[..., Any]]] = {
        "handle_algebra": drive_handle_algebra,
        "fill": drive_fill,
        "claims": drive_claims,
        "wait_for_samples": drive_wait_for_samples,
        "put_samples": drive_put_samples,
    }


def _num_rows(columns: Columns) -> int:
    first = next(iter(columns.values()))
    return len(first) if isinstance(first, list) else int(first.shape[0])


def _seconds(step: Any, times: int) -> list[float]:
    seconds = []
    for _ in range(times):
        started_s = time.perf_counter()
        step()
        seconds.append(time.perf_counter() - started_s)
    return seconds

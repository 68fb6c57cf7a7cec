"""The five stages of a PPO step by handle, with our whole batches, and with verl's, beside each
other on one Ray: the adapter of the workload ``dispatch``.

A mode does a step of five dispatches. What is added to a batch between them is not timed; joining
what a stage wrote to the batch is.
"""

from __future__ import annotations

import contextlib
import importlib.util
import os
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Protocol

import torch

from tests.benchmarks.adapter import Adapter, Unsupported
from tests.benchmarks.peers.five_stages import FORWARD, UPDATES, driver_columns, rollout_columns

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    import transferqueue as tq
    from workers import RayWorkerGroup

REPOSITORY = Path(__file__).resolve().parents[3]

Columns = dict[str, torch.Tensor]


class Mode(Protocol):
    """One way to get a batch to the stages."""

    def make(self, columns: Columns) -> Any:
        """The batch in the form that the mode dispatches. Not timed."""

    def add(self, batch: Any, columns: Columns) -> Any:
        """The batch with what the driver computed. Not timed."""

    def run(self, stage: str, batch: Any) -> Any:
        """One stage: the batch with what it wrote. Updates answer with metrics."""

    def clear(self, batch: Any) -> None:
        """Not timed."""

    def bytes_through(self) -> int:
        """Through the process of the controller so far."""


class ByHandle:
    """Ranks fetch and put fields; the controller passes handles."""

    def __init__(self, group: RayWorkerGroup, client: tq.Client) -> None:
        self._group, self._client = group, client

    def make(self, columns: Columns) -> tq.BatchHandle:
        return self._client.put(columns, partition="train")

    def add(self, batch: tq.BatchHandle, columns: Columns) -> tq.BatchHandle:
        return self._client.put(columns, handle=batch)

    def run(self, stage: str, batch: tq.BatchHandle) -> tq.BatchHandle:
        written = getattr(self._group, stage)(batch)
        return batch if isinstance(written, list) else written

    def clear(self, batch: tq.BatchHandle) -> None:
        self._client.clear(batch)

    def bytes_through(self) -> int:
        return self._group.report().controller_bytes


class WholeBatches:
    """The same workers, whole batches through the controller by ``DP_COMPUTE_PROTO``."""

    def __init__(self, group: RayWorkerGroup) -> None:
        self._group = group

    def make(self, columns: Columns) -> tq.DataProto:
        from transferqueue import DataProto

        return DataProto.from_single_dict(columns)

    def add(self, batch: tq.DataProto, columns: Columns) -> tq.DataProto:
        return batch.union(self.make(columns))

    def run(self, stage: str, batch: tq.DataProto) -> tq.DataProto:
        written = getattr(self._group, stage)(batch)
        return batch if isinstance(written, list) else batch.union(written)

    def clear(self, batch: tq.DataProto) -> None:
        pass

    def bytes_through(self) -> int:
        return self._group.report().controller_bytes


class VerlsOwn:
    """verl's group, workers and batches."""

    def __init__(self, group: Any) -> None:
        self._group = group
        self._bytes = 0

    def make(self, columns: Columns) -> Any:
        from verl.protocol import DataProto

        return DataProto.from_dict(tensors=columns)

    def add(self, batch: Any, columns: Columns) -> Any:
        return batch.union(self.make(columns))

    def run(self, stage: str, batch: Any) -> Any:
        written = getattr(self._group, stage)(batch)
        self._bytes += batch.batch.bytes()
        if written.batch is None:
            return batch
        self._bytes += written.batch.bytes()
        return batch.union(written)

    def clear(self, batch: Any) -> None:
        pass

    def bytes_through(self) -> int:
        return self._bytes


class StageModes(Adapter):
    """All modes that this environment has."""

    def start(self) -> str:
        import ray

        import transferqueue as tq
        from tests.benchmarks.peers import five_stages, stage_worker
        from workers import RayWorkerGroup, ResourcePool

        torch.set_num_threads(1)
        _send_by_value(five_stages, stage_worker)
        ranks = int(self.settings["ranks"])
        self._stack = contextlib.ExitStack()
        _start_ray(num_cpus=4 * ranks + 2)
        self._stack.callback(ray.shutdown)
        enter = self._stack.enter_context
        service = enter(tq.serve(budget_bytes=1 << 30))
        self._client = enter(tq.connect(service.address))
        pool = enter(ResourcePool([ranks], max_groups=2))
        self._by_handle = enter(RayWorkerGroup(pool, stage_worker.StageWorker, service=service))
        fat = enter(RayWorkerGroup(pool, stage_worker.StageWorker, fat=True))
        self._modes: dict[str, Mode] = {
            "ours": ByHandle(self._by_handle, self._client),
            "ours, whole batches": WholeBatches(fat),
        }
        if importlib.util.find_spec("verl") is not None:
            from tests.benchmarks.peers import verl_stage_group

            _send_by_value(verl_stage_group)
            self._modes["verl"] = VerlsOwn(verl_stage_group.make_group(ranks))
        self._empty_actors = [_empty_actor() for _ in range(ranks)]
        return ""

    def drive_modes(self) -> dict[str, Any]:
        return {"labels": list(self._modes)}

    def drive_step(self, *, label: str, rows: int, prompt: int, response: int) -> dict[str, Any]:
        """Seconds of the five dispatches, what of them is arithmetic, and bytes through here."""
        mode = self._modes[label]
        before = mode.bytes_through()
        batch = mode.make(rollout_columns(rows, prompt, response))
        extra = driver_columns(rows, response)
        seconds = 0.0
        for stages in (FORWARD, UPDATES):
            started_s = time.perf_counter()
            for stage in stages:
                batch = mode.run(stage.name, batch)
            seconds += time.perf_counter() - started_s
            if stages is FORWARD:
                batch = mode.add(batch, extra)
        mode.clear(batch)
        return {"seconds": seconds, "controller_bytes": mode.bytes_through() - before}

    def drive_computing(self, *, rows: int, prompt: int, response: int) -> dict[str, Any]:
        """Seconds of the arithmetic of a step on the slowest rank, all at once."""
        ranks = int(self.settings["ranks"])
        return {"seconds": max(self._by_handle.computing_seconds(rows // ranks, prompt, response))}

    def drive_many_steps(
        self, *, steps: int, rows: int, prompt: int, response: int
    ) -> dict[str, Any]:
        """Steps of samples that the ranks make, by handle; this process's memory after each."""
        from transferqueue import BatchHandle

        mode, ranks = self._modes["ours"], int(self.settings["ranks"])
        extra = driver_columns(rows, response)
        resident_bytes = []
        for _ in range(steps):
            made = self._by_handle.roll_out(rows // ranks, prompt, response)
            batch = BatchHandle.concat(made)
            for stage in FORWARD:
                batch = mode.run(stage.name, batch)
            batch = mode.add(batch, extra)
            for stage in UPDATES:
                batch = mode.run(stage.name, batch)
            mode.clear(batch)
            resident_bytes.append(_resident_bytes())
        return {"resident_bytes": resident_bytes}

    def drive_empty_calls(self, *, calls: int, rows: int) -> dict[str, Any]:
        """Seconds of calls of a HANDLE method that does nothing, and of plain Ray calls, in turn;
        on all ranks each."""
        import ray

        handle = self._client.put(rollout_columns(rows, 1, 1), partition="empty")
        actors = self._empty_actors
        by_handle, plain = [], []
        for number in range(calls + 5):
            started_s = time.perf_counter()
            self._by_handle.nothing(handle)
            middle_s = time.perf_counter()
            ray.get([actor.nothing.remote() for actor in actors])
            ended_s = time.perf_counter()
            if number >= 5:
                by_handle.append(middle_s - started_s)
                plain.append(ended_s - middle_s)
        self._client.clear(handle)
        return {"by_handle": by_handle, "plain": plain}

    drives: ClassVar[Mapping[str, Callable[..., Any]]] = {
        "modes": drive_modes,
        "step": drive_step,
        "computing": drive_computing,
        "many_steps": drive_many_steps,
        "empty_calls": drive_empty_calls,
    }

    def join(self, address: str) -> None:
        raise Unsupported("one process alone")

    def put(self, prepared: Any) -> Any:
        raise Unsupported("whole steps alone")

    def token(self, reference: Any) -> str:
        raise Unsupported("whole steps alone")

    def reference(self, token: str) -> Any:
        raise Unsupported("whole steps alone")

    def get(
        self, reference: Any, *, fields: Sequence[str] | None, rows: Sequence[int] | None
    ) -> Mapping[str, Any]:
        raise Unsupported("whole steps alone")

    def clear(self, reference: Any) -> None:
        raise Unsupported("whole steps alone")

    def close(self) -> None:
        self._stack.close()


def _send_by_value(*modules: Any) -> None:
    """Ray's workers cannot import these: verl installs a package of its own named ``tests``."""
    import ray

    for module in modules:
        ray.cloudpickle.register_pickle_by_value(module)


def _empty_actor() -> Any:
    import ray

    class Empty:
        def nothing(self) -> None: ...

    return ray.remote(num_cpus=0)(Empty).remote()


def _start_ray(num_cpus: int) -> None:
    import ray

    path = os.pathsep.join(filter(None, [str(REPOSITORY), os.environ.get("PYTHONPATH")]))
    ray.init(
        address="local",
        num_cpus=num_cpus,
        include_dashboard=False,
        log_to_driver=False,
        object_store_memory=2 << 30,
        runtime_env={"env_vars": {"PYTHONPATH": path, "OMP_NUM_THREADS": "1"}},
    )


def _resident_bytes() -> int:
    """All memory of this process that is there, shared too."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")

"""The stages inside verl's own worker group. Needs verl."""

from __future__ import annotations

from typing import TYPE_CHECKING

import ray
from verl.protocol import DataProto
from verl.single_controller.base import Worker
from verl.single_controller.base.decorator import Dispatch, register
from verl.single_controller.ray import RayClassWithInitArgs, RayResourcePool, RayWorkerGroup

from examples.stages.arithmetic import forward, loss

if TYPE_CHECKING:
    from types import TracebackType


class VerlStageWorker(Worker):
    """verl's decorator, verl's batches."""

    @register(dispatch_mode=Dispatch.DP_COMPUTE_PROTO)
    def compute_log_prob(self, data: DataProto) -> DataProto:
        log_probs = forward(data.batch)
        return DataProto.from_dict(tensors={"old_log_probs": log_probs, "entropys": -log_probs})

    @register(dispatch_mode=Dispatch.DP_COMPUTE_PROTO)
    def compute_values(self, data: DataProto) -> DataProto:
        return DataProto.from_dict(tensors={"values": forward(data.batch)})

    @register(dispatch_mode=Dispatch.DP_COMPUTE_PROTO)
    def update_actor(self, data: DataProto) -> DataProto:
        return DataProto(meta_info={"metrics": {"loss": loss(data.batch)}})


class VerlSteps:
    """A verl worker group that runs the three stages. A context manager."""

    def __init__(self, num_workers: int) -> None:
        pool = RayResourcePool([num_workers], use_gpu=False, max_colocate_count=1)
        worker = RayClassWithInitArgs(ray.remote(VerlStageWorker))
        self._group = RayWorkerGroup(resource_pool=pool, ray_cls_with_init=worker, use_gpu=False)
        self._pool = pool
        self.controller_bytes = 0
        """Bytes of the tensors that the controller has sent and received."""

    def step(self, data: DataProto) -> None:
        old = self._call("compute_log_prob", data)
        values = self._call("compute_values", data.union(old))
        self._call("update_actor", data.union(values))

    def _call(self, method: str, data: DataProto) -> DataProto:
        output: DataProto = getattr(self._group, method)(data)
        for batch in (data.batch, output.batch):
            self.controller_bytes += 0 if batch is None else batch.bytes()
        return output

    def __enter__(self) -> VerlSteps:
        return self

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        for worker in self._group.workers:
            ray.kill(worker)
        for group in self._pool.get_placement_groups():
            ray.util.remove_placement_group(group)

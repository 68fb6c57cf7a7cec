"""The five stages in verl's own worker group, with verl's whole-batch dispatch."""

from __future__ import annotations

from typing import Any

import ray
import torch
from verl.protocol import DataProto
from verl.single_controller.base import Worker
from verl.single_controller.base.decorator import Dispatch, register
from verl.single_controller.ray import RayClassWithInitArgs, RayResourcePool, RayWorkerGroup

from tests.benchmarks.peers.five_stages import FIELDS, run_stage


class VerlStageWorker(Worker):
    """verl's decorator, verl's batches."""

    def __init__(self) -> None:
        super().__init__()
        torch.set_num_threads(1)

    def _run(self, name: str, data: DataProto) -> DataProto:
        written = run_stage(FIELDS[name], data.batch)
        if written:
            return DataProto.from_dict(tensors=written)
        return DataProto(meta_info={"metrics": {"loss": 0.0}})

    @register(dispatch_mode=Dispatch.DP_COMPUTE_PROTO)
    def old_log_prob(self, data: DataProto) -> DataProto:
        return self._run("old_log_prob", data)

    @register(dispatch_mode=Dispatch.DP_COMPUTE_PROTO)
    def ref_log_prob(self, data: DataProto) -> DataProto:
        return self._run("ref_log_prob", data)

    @register(dispatch_mode=Dispatch.DP_COMPUTE_PROTO)
    def values(self, data: DataProto) -> DataProto:
        return self._run("values", data)

    @register(dispatch_mode=Dispatch.DP_COMPUTE_PROTO)
    def update_critic(self, data: DataProto) -> DataProto:
        return self._run("update_critic", data)

    @register(dispatch_mode=Dispatch.DP_COMPUTE_PROTO)
    def update_actor(self, data: DataProto) -> DataProto:
        return self._run("update_actor", data)


def make_group(num_ranks: int) -> Any:
    """verl's worker group of so many ranks."""
    pool = RayResourcePool([num_ranks], use_gpu=False, max_colocate_count=1)
    worker = RayClassWithInitArgs(ray.remote(VerlStageWorker))
    return RayWorkerGroup(resource_pool=pool, ray_cls_with_init=worker, use_gpu=False)

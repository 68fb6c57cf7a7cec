"""The five stages as methods of a `workers.Worker`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from tests.benchmarks.peers.five_stages import (
    FIELDS,
    resident_columns,
    rollout_columns,
    run_stage,
    seconds_on_resident,
)
from workers import Dispatch, Worker, register

if TYPE_CHECKING:
    import transferqueue as tq


def _declared(name: str) -> dict[str, Any]:
    return {"reads": FIELDS[name].reads, "writes": FIELDS[name].writes}


class StageWorker(Worker):
    """By handle, or with whole batches in a group that is ``fat``."""

    def __init__(self) -> None:
        torch.set_num_threads(1)
        self._resident: dict[str, torch.Tensor] = {}

    @register(Dispatch.HANDLE, **_declared("old_log_prob"))
    def old_log_prob(self, data: tq.DataProto) -> dict[str, Any]:
        return run_stage(FIELDS["old_log_prob"], data.batch)

    @register(Dispatch.HANDLE, **_declared("ref_log_prob"))
    def ref_log_prob(self, data: tq.DataProto) -> dict[str, Any]:
        return run_stage(FIELDS["ref_log_prob"], data.batch)

    @register(Dispatch.HANDLE, **_declared("values"))
    def values(self, data: tq.DataProto) -> dict[str, Any]:
        return run_stage(FIELDS["values"], data.batch)

    @register(Dispatch.HANDLE, **_declared("update_critic"))
    def update_critic(self, data: tq.DataProto) -> dict[str, float]:
        run_stage(FIELDS["update_critic"], data.batch)
        return {"loss": 0.0}

    @register(Dispatch.HANDLE, **_declared("update_actor"))
    def update_actor(self, data: tq.DataProto) -> dict[str, float]:
        run_stage(FIELDS["update_actor"], data.batch)
        return {"loss": 0.0}

    @register(Dispatch.HANDLE)
    def nothing(self, data: tq.DataProto) -> None: ...

    @register(Dispatch.ONE_TO_ALL)
    def roll_out(self, rows: int, prompt: int, response: int) -> Any:
        """This rank's share of a batch of new samples."""
        return self.client.put(rollout_columns(rows, prompt, response), partition="train")

    @register(Dispatch.ONE_TO_ALL)
    def computing_seconds(self, rows: int, prompt: int, response: int) -> float:
        """Of the five stages, all ranks at once, on what lies in this rank's own memory."""
        if not self._resident:
            self._resident = resident_columns(rows, prompt, response)
            seconds_on_resident(self._resident)
        return seconds_on_resident(self._resident)

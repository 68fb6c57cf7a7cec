"""The stages as methods of a `workers.Worker`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from examples.stages.arithmetic import (
    FORWARD_READS,
    UPDATE_READS,
    forward,
    loss,
    seconds_of_a_step,
)
from workers import Dispatch, Worker, register

if TYPE_CHECKING:
    import transferqueue as tq


class StageWorker(Worker):
    """Dispatched by handle, or with whole batches in a group that is ``fat``."""

    @register(Dispatch.HANDLE, reads=FORWARD_READS, writes=["old_log_probs", "entropys"])
    def compute_log_prob(self, data: tq.DataProto) -> dict[str, Any]:
        log_probs = forward(data.batch)
        return {"old_log_probs": log_probs, "entropys": -log_probs}

    @register(Dispatch.HANDLE, reads=FORWARD_READS, writes=["values"])
    def compute_values(self, data: tq.DataProto) -> dict[str, Any]:
        return {"values": forward(data.batch)}

    @register(Dispatch.HANDLE, reads=UPDATE_READS)
    def update_actor(self, data: tq.DataProto) -> dict[str, float]:
        return {"loss": loss(data.batch)}

    @register(Dispatch.ONE_TO_ALL)
    def seconds_of_a_step(self, rows: int, prompt: int, response: int) -> float:
        """Without any moving of data; all ranks at once."""
        return seconds_of_a_step(rows, prompt, response)

    @register(Dispatch.ONE_TO_ALL)
    def wire_bytes(self) -> dict[str, int]:
        """Of this rank's client."""
        return self.client.wire_bytes()

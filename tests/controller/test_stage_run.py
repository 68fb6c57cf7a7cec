"""The order of calls when stages run over a batch."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import torch

from controller.dataflow import Stage
from controller.stage_run import StageRun
from controller.transports import FatTransporter
from transferqueue.view import DataProto

STAGES = [
    Stage(name="values", role="critic", method="values", reads=("x",), writes=("v",)),
    Stage(name="log_probs", role="actor", method="log_probs", reads=("x",), writes=("p",)),
    Stage(name="update", role="actor", method="update", reads=("v", "p")),
]


@dataclass
class Recorder:
    """Roles that answer when asked, and say when they were."""

    events: list[str] = field(default_factory=list)

    def run(self, role: str, method_name: str, batch: Any) -> Recorded:
        del role, batch
        self.events.append(f"{method_name} begins")
        return Recorded(self, method_name)


@dataclass
class Recorded:
    roles: Recorder
    method: str

    def get(self) -> Any:
        self.roles.events.append(f"{self.method} is waited for")
        if self.method == "update":
            return {"loss": 0.5}
        written = {"values": "v", "log_probs": "p"}[self.method]
        return DataProto.from_dict({written: torch.zeros(2)})


def stage_run(roles: Recorder) -> StageRun:
    batch = DataProto.from_dict({"x": torch.zeros(2)})
    return StageRun(STAGES, batch, roles, FatTransporter())  # type: ignore[arg-type]  # only `run`


AS_IT_GOES_ON = [
    "values is waited for",
    "log_probs is waited for",
    "update begins",
    "update is waited for",
]


def test_what_is_done_meanwhile_costs_no_stage_its_time() -> None:
    roles = Recorder()
    _, metrics = stage_run(roles).finish(meanwhile=lambda: roles.events.append("meanwhile"))
    assert metrics == {"loss": 0.5}
    assert roles.events == ["values begins", "log_probs begins", "meanwhile", *AS_IT_GOES_ON]


def test_what_was_begun_ahead_is_not_begun_again() -> None:
    roles = Recorder()
    run = stage_run(roles)
    run.begin()
    assert roles.events == ["values begins", "log_probs begins"], "and nothing was waited for"
    batch, _ = run.finish(meanwhile=lambda: roles.events.append("meanwhile"))
    assert roles.events == ["values begins", "log_probs begins", "meanwhile", *AS_IT_GOES_ON]
    assert {"x", "v", "p"} == set(batch.batch.keys())  # type: ignore[union-attr]

"""The order of calls when stages run over a batch."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import torch

from controller.dataflow import Stage
from controller.role_calls import run_stages
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


def test_what_is_done_meanwhile_costs_no_stage_its_time() -> None:
    roles = Recorder()
    batch = DataProto.from_dict({"x": torch.zeros(2)})
    _, metrics = run_stages(
        STAGES,
        batch,
        roles,  # type: ignore[arg-type]  # only `run` is asked of it
        FatTransporter(),
        meanwhile=lambda: roles.events.append("meanwhile"),
    )
    assert metrics == {"loss": 0.5}
    assert roles.events == [
        "values begins",
        "log_probs begins",
        "meanwhile",
        "values is waited for",
        "log_probs is waited for",
        "update begins",
        "update is waited for",
    ]

"""The order of calls when stages run over a batch."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch

from controller.course import Lines
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
    batches: list[Any] = field(default_factory=list)

    def run(self, role: str, method_name: str, batch: Any) -> Recorded:
        del role
        self.batches.append(batch)
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
    batch = DataProto.from_dict({"x": torch.arange(2)})
    return StageRun(STAGES, batch, roles, FatTransporter(), Lines())  # type: ignore[arg-type]


def finish(roles: Recorder, run: StageRun, **more: Any) -> dict[str, float]:
    return run.finish(
        preparing=lambda: roles.events.append("preparing"),
        updating=lambda: roles.events.append("updating"),
        **more,
    )


ALL = [
    "values begins",
    "log_probs begins",
    "preparing",
    "values is waited for",
    "log_probs is waited for",
    "update begins",
    "updating",
    "update is waited for",
]


def test_what_is_done_meanwhile_costs_no_stage_its_time() -> None:
    roles = Recorder()
    assert finish(roles, stage_run(roles)) == {"loss": 0.5}
    assert roles.events == ALL


def test_what_was_begun_ahead_is_not_begun_again() -> None:
    roles = Recorder()
    run = stage_run(roles)
    run.prepare()
    assert roles.events == ["values begins", "log_probs begins"], "and nothing was waited for"
    finish(roles, run)
    assert roles.events == ALL


def test_updates_get_what_was_written_of_the_rows_that_are_trained_on() -> None:
    roles = Recorder()
    finish(roles, stage_run(roles), trained=np.array([False, True]))
    assert [len(batch) for batch in roles.batches] == [2, 2, 1]
    assert roles.batches[-1].batch["x"].tolist() == [1]
    assert {"x", "v", "p"} == set(roles.batches[-1].batch.keys())

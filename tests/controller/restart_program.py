"""A run that is to be killed: the driver is a child process, and so are its roles.

Every update is a line of ``FOLDER/trained.jsonl``, written by the actor while it trains: the number
of the weights that come of it, and the samples. The last line of a number is the one that counts.
"""

from __future__ import annotations

import json
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

import torch

import transferqueue as tq
from controller.advantage_stage import AdvantageStage, Algorithm
from controller.checkpoints import CheckpointFolder
from controller.driver import PpoDriver
from controller.driver_config import DriverConfig, Mode
from controller.ppo_settings import PpoSettings
from controller.score_summary import ScoreSummary
from tests.controller.tiny_roles import (
    FakeActor,
    FakeEngine,
    FakeReference,
    FakeReward,
    Trained,
    prompt,
    rollout,
)
from workers import LocalWorkerGroup
from workers.role_groups import RoleGroups

if TYPE_CHECKING:
    from multiprocessing.connection import Connection
    from pathlib import Path

    from controller.dataflow import Dataflow

SETTINGS = PpoSettings(algorithm=Algorithm.GRPO)


def pause() -> None:
    """What a role's work takes: long enough to be killed in."""
    torch.randn(400, 400).matmul(torch.randn(400, 400))


class LoggedTraining(Trained):
    """Writes each update down."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.path = path
        self.uids = self  # type: ignore[assignment]
        self.actor: FakeActor | None = None

    def append(self, uids: list[str]) -> None:
        assert self.actor is not None
        with self.path.open("a") as file:
            file.write(json.dumps({"weight": self.actor.weight, "uids": uids}) + "\n")


def make_rollout() -> dict[str, Any]:
    return {"rollout": rollout(FakeEngine(slow=pause))}


def make_scorers() -> dict[str, Any]:
    return {"reward": FakeReward(), "reference": FakeReference()}


def make_trainer(path: Path) -> dict[str, Any]:
    training = LoggedTraining(path)
    actor = FakeActor(training)
    training.actor = actor
    return {
        "actor": actor,
        "evaluation": actor,
        "advantages": AdvantageStage(SETTINGS.advantage_config()),
        "scores": ScoreSummary(),
    }


def table() -> Dataflow:
    flow = SETTINGS.dataflow()
    last = replace(flow.stages[-1], reads=(*flow.stages[-1].reads, "token_versions", "uid"))
    return replace(flow, stages=(*flow.stages[:-1], last))


def config(steps: int, mode: Mode) -> DriverConfig:
    return DriverConfig(
        num_steps=steps,
        prompts_per_step=3,
        samples_per_prompt=2,
        mode=mode,
        evaluate_every=0,
        checkpoint_every=3,
        lease_s=1.5,
        claim_timeout_s=60.0,
    )


def role_groups(address: str, folder: Path, *, processes: bool) -> RoleGroups:
    factories = {
        "rollout": make_rollout,
        "scorers": make_scorers,
        "trainer": partial(make_trainer, folder / "trained.jsonl"),
    }
    return RoleGroups(
        factories,
        lambda _, worker: LocalWorkerGroup(worker, 1, service=address, processes=processes),
    )


def driver(client: tq.Client, roles: RoleGroups, folder: Path, steps: int, mode: Mode) -> PpoDriver:
    return PpoDriver(
        client,
        roles,
        prompt,
        table(),
        config(steps, mode),
        checkpoints=CheckpointFolder(folder / "checkpoints"),
    )


def run(
    pipe: Connection, *, address: str, folder: Path, steps: int, mode: Mode, resume: bool
) -> None:
    """The program of the child. Sends the number of each update."""
    with (
        pipe,
        tq.connect(address) as client,
        role_groups(address, folder, processes=False) as roles,
        driver(client, roles, folder, steps, mode) as running,
    ):
        for report in running.run(resume=resume):
            pipe.send(report.step)

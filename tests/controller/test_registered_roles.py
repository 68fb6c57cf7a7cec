"""Roles that are workers with registered methods, as they are in a worker group, in the driver."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest
import torch

import transferqueue as tq
from controller.advantage_stage import AdvantageStage, Algorithm
from controller.dataflow import DataflowError
from controller.driver import PpoDriver
from controller.driver_config import DriverConfig, Mode, Transport
from controller.ppo_settings import PpoSettings
from controller.score_summary import ScoreSummary
from tests.controller.tiny_roles import RESPONSE, FakeEngine, num_rows, prompt, rollout, threads
from tests.waiting import wait_until
from workers import Dispatch, Worker, WorkerSpec, register
from workers.role_groups import RoleGroups

if TYPE_CHECKING:
    from collections.abc import Iterator

    from transferqueue.view import DataProto

SETTINGS = PpoSettings(algorithm=Algorithm.GRPO)
IDS = ["input_ids", "attention_mask", "position_ids", "responses"]


class Judge(Worker):
    """A reward model as a user of worker groups writes it."""

    def __init__(self, scale: float) -> None:
        self.scale = scale
        self.place = (self.rank, self.world_size, self.role)

    @register(
        Dispatch.HANDLE, reads=["responses", "response_mask", "reward_model"], writes=["rm_scores"]
    )
    def compute_scores(self, data: DataProto) -> DataProto:
        scores = torch.zeros(len(data), RESPONSE)
        wanted = data.non_tensor_batch["reward_model"]
        scores[:, -1] = torch.tensor([self.scale * one["score"] for one in wanted])
        data.batch["rm_scores"] = scores
        return data


class Frozen(Worker):
    @register(Dispatch.HANDLE, reads=IDS, writes=["ref_log_prob"])
    async def compute_ref_log_prob(self, data: DataProto) -> dict[str, Any]:
        return {"ref_log_prob": torch.zeros(data.batch["responses"].shape)}


class Learner(Worker):
    def __init__(self) -> None:
        self.weight = 0
        self.seen: list[list[str]] = []

    def state_dict(self) -> dict[str, Any]:
        return {"w": torch.tensor([float(self.weight)])}

    @register(Dispatch.HANDLE, reads=IDS, writes=["old_log_probs", "entropys"])
    def compute_log_prob(self, data: DataProto) -> dict[str, Any]:
        zeros = torch.zeros(data.batch["responses"].shape)
        return {"old_log_probs": zeros, "entropys": zeros}

    @register(
        Dispatch.HANDLE,
        reads=[*IDS, "response_mask", "old_log_probs", "advantages", "ref_log_prob"],
        optional=["uid", "rollout_log_probs"],
    )
    def update_actor(self, data: DataProto) -> dict[str, Any]:
        self.weight += 1
        self.seen.append(data.non_tensor_batch["uid"].tolist())
        return {"actor/weight": torch.tensor(float(self.weight)), "actor/rows": len(data)}

    @register(Dispatch.ONE_TO_ALL)
    def accuracy(self) -> float:
        return self.weight / 10


@pytest.fixture
def service() -> Iterator[tq.Service]:
    with tq.serve(budget_bytes=64 << 20) as service:
        yield service


def role_groups(service: tq.Service) -> RoleGroups:
    def trainer() -> dict[str, Any]:
        learner = Learner()
        return {
            "actor": learner,
            "evaluation": learner,
            "advantages": AdvantageStage(SETTINGS.advantage_config()),
            "scores": ScoreSummary(),
        }

    factories = {
        "rollout": lambda: {"rollout": rollout(FakeEngine())},
        "judge": lambda: {"reward": WorkerSpec(Judge, scale=1.0), "reference": Frozen},
        "trainer": trainer,
    }
    return RoleGroups(factories, threads(service))


def config(**changes: Any) -> DriverConfig:
    settings = {"num_steps": 3, "prompts_per_step": 3, "samples_per_prompt": 2, "lease_s": 5.0}
    return DriverConfig(**{**settings, "evaluate_every": 1, **changes})


@pytest.mark.parametrize(
    ("mode", "transport"),
    [
        (Mode.SYNC, Transport.HANDLES),
        (Mode.SYNC, Transport.FAT),
        (Mode.ONE_STEP_OFF, Transport.HANDLES),
        (Mode.FULLY_ASYNC, Transport.HANDLES),
    ],
)
def test_registered_methods_are_stages_of_the_driver(
    service: tq.Service, mode: Mode, transport: Transport
) -> None:
    flow = SETTINGS.dataflow()
    last = replace(flow.stages[-1], reads=(*flow.stages[-1].reads, "uid"))
    flow = replace(flow, stages=(*flow.stages[:-1], last))
    with (
        tq.connect(service.address) as client,
        role_groups(service) as roles,
        PpoDriver(client, roles, prompt, flow, config(mode=mode, transport=transport)) as driver,
    ):
        reports = list(driver.run())
        wait_until(lambda: num_rows(client, "train") == 0)
        stages = roles.reports()["trainer"]["stages"]
    assert [report.held_out_accuracy for report in reports] == [0.1, 0.2, 0.3]
    assert [report.metrics["actor/weight"] for report in reports] == [1.0, 2.0, 3.0]
    assert all(0.0 < report.reward < 1.0 for report in reports)
    update = stages["actor.update_actor"]
    assert update["rows"] == 18
    if transport is Transport.HANDLES:
        assert 0 < update["read_bytes"] - update["unread_bytes"] < 300, "it looks at uids alone"


def test_a_table_is_checked_against_registered_methods_too(service: tq.Service) -> None:
    flow = SETTINGS.dataflow()

    def refused(**changes: Any) -> str:
        last = replace(flow.stages[-1], **changes)
        wrong = replace(flow, stages=(*flow.stages[:-1], last))
        with pytest.raises(DataflowError) as caught:
            PpoDriver(client, roles, prompt, wrong, config())
        return str(caught.value)

    with tq.connect(service.address) as client, role_groups(service) as roles:
        assert "did you mean 'update_actor'" in refused(method="update_actr")
        lacking = tuple(name for name in flow.stages[-1].reads if name != "advantages")
        assert "needs 'advantages'" in refused(reads=lacking)
        extra = (*flow.stages[-1].reads, "token_versions")
        assert "does not read 'token_versions'" in refused(reads=extra)
        assert roles.call("actor", "accuracy").get() == 0.0


def test_a_worker_knows_its_place_among_the_roles(service: tq.Service) -> None:
    class Asking(Judge):
        def where(self) -> tuple[int, int, str]:
            assert self.client.service_id == service.service_id
            return self.place

    with RoleGroups(
        {"judge": lambda: {"reward": WorkerSpec(Asking, scale=1.0)}}, threads(service)
    ) as roles:
        assert roles.call("reward", "where").get() == (0, 1, "reward")

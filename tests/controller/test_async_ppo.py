"""The asynchronous driver, with roles of this process over a real service."""

from __future__ import annotations

import contextlib
import itertools
import threading
from typing import TYPE_CHECKING, Any

import pytest
import torch

import transferqueue as tq
from controller.async_ppo import PROMPTS, TRAIN, WEIGHTS, AsyncPpoConfig, AsyncPpoDriver
from controller.score_summary import ScoreSummary
from workers.roles.fields import stage
from workers.stage_runner import StageLoop, StageRunner

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

LENGTH = 4


class FakeRollout:
    version = 0

    @stage(reads=("raw_prompt",), writes=("responses", "response_mask"))
    def generate_sequences(self, data: Mapping[str, Any]) -> dict[str, Any]:
        rows = len(data["raw_prompt"])
        return {
            "responses": torch.ones(rows, LENGTH, dtype=torch.int64),
            "response_mask": torch.ones(rows, LENGTH, dtype=torch.int64),
        }


class FakeReward:
    @stage(reads=("responses",), writes=("rm_scores",))
    def compute_scores(self, data: Mapping[str, Any]) -> dict[str, Any]:
        scores = torch.zeros(len(data["responses"]), LENGTH)
        scores[:, -1] = 0.5
        return {"rm_scores": scores}


class FakeActor:
    def __init__(self) -> None:
        self.version = 0
        self.trained_on: list[int] = []

    def state_dict(self) -> dict[str, Any]:
        return {"w": torch.full((2,), float(self.version))}

    @stage(reads=("responses",), writes=("old_log_probs",))
    def compute_log_prob(self, data: Mapping[str, Any]) -> dict[str, Any]:
        return {"old_log_probs": torch.zeros(len(data["responses"]), LENGTH)}

    @stage(reads=("advantages",))
    def update_actor(self, data: Mapping[str, Any]) -> dict[str, float]:
        self.version += 1
        self.trained_on.append(len(data["advantages"]))
        return {"actor/loss": 1.0}

    def accuracy(self) -> float:
        return self.version / 10


class FakeAdvantages:
    @stage(reads=("rm_scores", "old_log_probs"), writes=("advantages",))
    def compute_advantages(self, data: Mapping[str, Any]) -> dict[str, Any]:
        return {"advantages": data["rm_scores"]}


class Done:
    def __init__(self, value: Any) -> None:
        self._value = value

    def result(self) -> Any:
        return self._value


class LocalRoles:
    """Every role in this process; calls run at once."""

    def __init__(self, client: tq.Client, roles: Mapping[str, Any]) -> None:
        self._client = client
        self._runners = {name: StageRunner(role, client) for name, role in roles.items()}
        self.failure: Exception | None = None

    def run(self, role: str, method_name: str, handle: tq.BatchHandle) -> Done:
        return Done(self._runners[role].run(method_name, handle))

    def call(self, role: str, method_name: str) -> Done:
        return Done(getattr(self._runners[role].role, method_name)())

    def publish(self, role: str, name: str) -> Done:
        trained = self._runners[role].role
        self._client.publish(name, trained.state_dict(), version=trained.version)
        return Done(trained.version)

    def check(self) -> None:
        if self.failure is not None:
            raise self.failure


@pytest.fixture
def client() -> Iterator[tq.Client]:
    with tq.serve(budget_bytes=64 << 20) as service, tq.connect(service.address) as client:
        yield client


def driver_over(client: tq.Client, config: AsyncPpoConfig) -> tuple[AsyncPpoDriver, Any, Any]:
    actor = FakeActor()
    hosted = {
        "actor": actor,
        "evaluation": actor,
        "advantages": FakeAdvantages(),
        "scores": ScoreSummary(),
    }
    roles = LocalRoles(client, hosted)
    prompts = ({"raw_prompt": f"p{i}", "uid": f"u{i}"} for i in itertools.count())
    return AsyncPpoDriver(client, roles, prompts, config), actor, roles


class Streaming:
    """Rollout and reward in threads, slowed down as told."""

    def __init__(self, client: tq.Client, rollout: FakeRollout, refresh: Any) -> None:
        self._stop = threading.Event()
        generate = StageLoop(
            task="rollout", partition=PROMPTS, batch_rows=3, target_partition=TRAIN
        )
        reward = StageLoop(task="reward", partition=TRAIN, batch_rows=5)
        self._threads = [
            threading.Thread(
                target=StageRunner(rollout, client).serve,
                args=("generate_sequences", generate, self._stop),
                kwargs={"tags": lambda: {"policy_version": rollout.version}, "before": refresh},
            ),
            threading.Thread(
                target=StageRunner(FakeReward(), client).serve,
                args=("compute_scores", reward, self._stop),
            ),
        ]

    def __enter__(self) -> None:
        for thread in self._threads:
            thread.start()

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        for thread in self._threads:
            thread.join()


def config(**changes: Any) -> AsyncPpoConfig:
    settings = {
        "num_steps": 4,
        "batch_rows": 6,
        "with_reference": False,
        "with_critic": False,
        "evaluate_every": 2,
    }
    return AsyncPpoConfig(**{**settings, **changes})


def test_every_update_trains_on_a_batch_within_the_staleness_allowed(client: tq.Client) -> None:
    driver, actor, _ = driver_over(client, config())
    rollout = FakeRollout()

    def refresh() -> None:
        with contextlib.suppress(tq.errors.NotReady):
            rollout.version = client.fetch(
                WEIGHTS, newer_than=rollout.version, timeout_s=0.0
            ).version

    driver.create_partitions()
    with Streaming(client, rollout, refresh):
        reports = list(driver.run())
    assert [report.version for report in reports] == [1, 2, 3, 4]
    assert actor.trained_on == [6, 6, 6, 6]
    assert all(report.staleness_max <= 2 for report in reports)
    assert [report.held_out_accuracy for report in reports] == [None, 0.2, None, 0.4]
    assert reports[0].reward == pytest.approx(0.5)
    assert client.status()["partitions"][TRAIN]["rows"] == 0, "consumed samples are freed"
    assert driver.handle_bytes < 4 * 4096


def test_samples_of_a_rollout_that_never_gets_new_weights_are_dropped_not_trained_on(
    client: tq.Client,
) -> None:
    driver, _, _ = driver_over(client, config(num_steps=6, max_staleness=1))
    rollout = FakeRollout()
    driver.create_partitions()
    seen: list[int] = []

    def refresh() -> None:
        # Stuck at version 0 until samples were dropped for it, then healthy.
        status = client.status()["partitions"].get(TRAIN, {})
        if status.get("stale_rows_dropped", 0):
            rollout.version = driver.version

    with Streaming(client, rollout, refresh):
        for report in driver.run():
            seen.append(report.staleness_max)
    assert len(seen) == 6
    assert max(seen) <= 1
    assert client.status()["partitions"][TRAIN]["stale_rows_dropped"] > 0


def test_the_failure_of_a_streaming_stage_ends_the_run(client: tq.Client) -> None:
    driver, _, roles = driver_over(client, config())
    roles.failure = RuntimeError("the reward broke")
    driver.create_partitions()
    with pytest.raises(RuntimeError, match="the reward broke"):
        next(driver.run())


def test_a_batch_that_tears_groups_apart_is_refused() -> None:
    with pytest.raises(ValueError, match="no multiple of samples_per_prompt=4"):
        config(batch_rows=6, samples_per_prompt=4)

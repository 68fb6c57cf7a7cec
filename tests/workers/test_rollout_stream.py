"""A rollout that streams: what it does with claims, weights and samples nobody wants any more."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any

import pytest
import torch

import transferqueue as tq
from tests.controller.tiny_roles import FakeEngine, rollout
from tests.waiting import wait_until
from workers.rollout_stream import RolloutStream
from workers.stage_runner import StageLoop, StageRunner

if TYPE_CHECKING:
    from collections.abc import Iterator

    from workers.roles.models import Generation

LOOP = StageLoop(task="rollout", partition="train", batch_rows=8, lease_s=1.0, poll_s=0.05)


@pytest.fixture
def client() -> Iterator[tq.Client]:
    with tq.serve(budget_bytes=32 << 20) as service, tq.connect(service.address) as client:
        client.create_partition("train", tasks=["rollout", "update"], retention="consumed")
        client.publish("policy", {"w": torch.zeros(1)}, version=4)
        yield client


class Running:
    """The stream in a thread, for as long as the block."""

    def __init__(
        self,
        client: tq.Client,
        engine: FakeEngine,
        *,
        runner: StageRunner | None = None,
        **more: Any,
    ) -> None:
        runner = runner or StageRunner(rollout(engine), client, name="rollout")
        self.stream = RolloutStream(runner, LOOP, weights="policy", **more)
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self.stream.run, args=(self._stop,))

    def __enter__(self) -> RolloutStream:
        self._thread.start()
        return self.stream

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()


class CountingEngine(FakeEngine):
    """Knows how many rows each of its calls had."""

    def __init__(self) -> None:
        super().__init__()
        self.rows: list[int] = []

    def generate(self, prompts: Any, prompt_mask: Any, **options: Any) -> Generation:
        self.rows.append(len(prompts))
        return super().generate(prompts, prompt_mask, **options)


def put_prompts(client: tq.Client, count: int) -> tq.BatchHandle:
    return client.put({"raw_prompt": ["x"] * count}, partition="train")


def test_every_prompt_gets_its_response_and_the_version_as_a_tag(client: tq.Client) -> None:
    handle = put_prompts(client, 20)  # more than there are slots
    with Running(client, FakeEngine()):
        with client.claim(
            task="update", partition="train", fields=["responses"], n=20, timeout_s=20
        ) as claim:
            assert sorted(claim.handle.uids) == sorted(handle.uids)
            assert set(claim.tags["policy_version"]) == {4}
        wait_until(lambda: not client.status()["partitions"]["train"]["rows"], 20.0)


def test_a_rollout_that_waited_answers_all_prompts_that_came_together_and_puts_them_at_once(
    client: tq.Client,
) -> None:
    engine = CountingEngine()
    puts = 0

    class Counted(StageRunner):
        def store(self, *args: Any, **options: Any) -> tq.BatchHandle:
            nonlocal puts
            puts += 1
            return super().store(*args, **options)

    with Running(client, engine, runner=Counted(rollout(engine), client, name="rollout")):
        wait_until(lambda: client.status()["partitions"]["train"]["waiting"]["claims"] == 1, 20.0)
        put_prompts(client, 3)  # woken by the first of them
        with client.claim(
            task="update", partition="train", fields=["responses"], n=3, timeout_s=20
        ):
            pass
    assert set(engine.rows) == {3}
    assert puts == 1


def test_what_is_under_way_is_given_back_when_the_stream_ends(client: tq.Client) -> None:
    put_prompts(client, 3)
    drawing, ended = threading.Event(), threading.Event()

    def slow() -> None:
        drawing.set()
        ended.wait(0.2)

    running = Running(client, FakeEngine(slow=slow))
    with running:
        assert drawing.wait(20)
    with client.claim(
        task="rollout", partition="train", fields=["raw_prompt"], n=3, timeout_s=0.0
    ) as claim:
        assert claim.deliveries.tolist() == [2, 2, 2]


def test_prompts_stay_with_a_rollout_that_takes_longer_than_the_lease(client: tq.Client) -> None:
    put_prompts(client, 2)
    pause = threading.Event()
    with (
        Running(client, FakeEngine(slow=lambda: pause.wait(0.6) and None)) as stream,
        client.claim(task="update", partition="train", fields=["responses"], n=2, timeout_s=20),
    ):
        pass
    assert stream.counts()["finished"] == 2


def test_samples_answered_by_a_rollout_that_died_are_not_answered_again(
    client: tq.Client,
) -> None:
    handle = put_prompts(client, 2)
    dead = client.claim(task="rollout", partition="train", fields=["raw_prompt"], n=2, lease_s=0.3)
    columns = rollout(FakeEngine()).generate_sequences({"raw_prompt": ["x"]})
    first = dead.handle[:1]
    client.put(columns, handle=first, tags={"policy_version": 1})
    with (
        Running(client, FakeEngine()),
        client.claim(
            task="update", partition="train", fields=["responses"], n=2, timeout_s=20
        ) as claim,
    ):
        versions = dict(zip(claim.handle.uids, claim.tags["policy_version"], strict=True))
    assert versions[first.uids[0]] == 1
    assert len(versions) == len(handle)


def test_a_sample_that_was_cleared_meanwhile_does_not_stop_the_others(client: tq.Client) -> None:
    handle = put_prompts(client, 3)
    begun, cleared = threading.Event(), threading.Event()

    def slow() -> None:
        begun.set()
        cleared.wait(20)

    with Running(client, FakeEngine(slow=slow)) as stream:
        assert begun.wait(20)
        client.clear(handle[1:2])
        cleared.set()
        with client.claim(
            task="update", partition="train", fields=["responses"], n=2, timeout_s=20
        ) as claim:
            assert sorted(claim.handle.uids) == sorted(handle.uids[[0, 2]])
    assert stream.counts()["finished"] == 3


def test_newer_weights_are_used_between_segments_and_too_old_tokens_drawn_again(
    client: tq.Client,
) -> None:
    put_prompts(client, 1)
    segments = 0

    def publish_in_the_middle() -> None:
        nonlocal segments
        segments += 1
        if segments == 1:
            client.publish("policy", {"w": torch.ones(1)}, version=9)

    engine = FakeEngine(slow=publish_in_the_middle)
    with (
        Running(client, engine, max_staleness=2) as stream,
        client.claim(
            task="update", partition="train", fields=["token_versions"], n=1, timeout_s=20
        ) as claim,
    ):
        assert claim.get()["token_versions"].tolist() == [[9, 9, 9, 9]]
        assert list(claim.tags["policy_version"]) == [9]
    assert engine.weight == 1.0
    assert stream.counts()["dropped"] == 1
    assert {*stream.first_token_at_s} == {4, 9}

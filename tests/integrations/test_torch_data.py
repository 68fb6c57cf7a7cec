"""Training loops over claimed batches, with workers of both kinds, and their ends."""

from __future__ import annotations

import os
import signal
import time
from collections import Counter
from typing import TYPE_CHECKING, Any

import psutil
import pytest
import torch

import transferqueue as tq
from transferqueue import errors
from transferqueue.integrations.torch_data import ClaimedBatches, ClaimedLoader

if TYPE_CHECKING:
    from collections.abc import Iterator

# Worker processes hold descriptors and multiprocessing's own helper process outlives them.
pytestmark = [
    pytest.mark.slow,
    pytest.mark.may_leak,
    pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning"),
]

WORKERS: list[dict[str, Any]] = [
    {"num_workers": 0},
    {"num_workers": 2, "multiprocessing_context": "fork"},
    {"num_workers": 2, "multiprocessing_context": "spawn"},
]


@pytest.fixture(scope="module")
def service() -> Iterator[tq.Service]:
    with tq.serve(shards=2, budget_bytes=64 << 20) as service:
        yield service


@pytest.fixture
def client(service: tq.Service) -> Iterator[tq.Client]:
    with tq.connect(service.address, timeout_s=20) as client:
        yield client


def fill(client: tq.Client, partition: str, count: int) -> None:
    columns = {"x": torch.arange(count), "text": [f"row {i}" for i in range(count)]}
    client.wait(client.put(columns, partition=partition))


def batches(client: tq.Client, partition: str, **options: Any) -> ClaimedBatches:
    options = {"n": 4, "fields": ["x", "text"], "idle_s": 0.5, **options}
    return ClaimedBatches(client, task="t", partition=partition, **options)


def counts(client: tq.Client, partition: str) -> dict[str, int]:
    found: dict[str, int] = client.status()["partitions"][partition]["tasks"]["t"]
    return found


@pytest.mark.parametrize("workers", WORKERS, ids=str)
def test_every_sample_is_consumed_once(client: tq.Client, workers: dict[str, Any]) -> None:
    name = f"all {workers}"
    fill(client, name, 40)
    seen: list[int] = []
    for columns in ClaimedLoader(batches(client, name), **workers):
        assert list(columns["text"]) == [f"row {i}" for i in columns["x"].tolist()]
        assert columns.deliveries.tolist() == [1] * 4
        seen.extend(columns["x"].tolist())
    assert sorted(seen) == list(range(40))
    assert counts(client, name) == {"free": 0, "claimed": 0, "acked": 40, "dead_letter": 0}


@pytest.mark.parametrize("workers", WORKERS, ids=str)
def test_what_was_read_ahead_is_not_acked_and_comes_again(
    client: tq.Client, workers: dict[str, Any]
) -> None:
    name = f"left {workers}"
    fill(client, name, 40)
    loader = ClaimedLoader(batches(client, name, idle_s=20), **workers)
    seen: list[int] = []
    for columns in loader:
        seen.extend(columns["x"].tolist())
        if len(seen) == 12:
            loader.ack()
            break
    assert counts(client, name) == {"free": 28, "claimed": 0, "acked": 12, "dead_letter": 0}
    for columns in ClaimedLoader(batches(client, name), **workers):
        seen.extend(columns["x"].tolist())
    assert sorted(seen) == list(range(40))


def test_a_batch_in_hand_when_the_loop_fails_comes_again(client: tq.Client) -> None:
    fill(client, "fails", 8)

    def train() -> None:
        for columns in ClaimedLoader(batches(client, "fails")):
            raise RuntimeError(f"cannot train on {columns['x'].tolist()}")

    with pytest.raises(RuntimeError, match=r"\[0, 1, 2, 3\]"):
        train()
    again = list(ClaimedLoader(batches(client, "fails")))
    assert [columns["x"].tolist() for columns in again] == [[0, 1, 2, 3], [4, 5, 6, 7]]
    assert again[0].deliveries.tolist() == [2] * 4


@pytest.mark.parametrize("context", ["fork", "spawn"])
def test_a_worker_that_is_killed_costs_no_sample_and_doubles_none(
    client: tq.Client, context: str
) -> None:
    name = f"killed {context}"
    fill(client, name, 80)
    workers = {"num_workers": 2, "multiprocessing_context": context}
    seen: Counter[int] = Counter()
    num_kills = 0
    while num_kills < 2:
        started_s = time.monotonic()
        loader = ClaimedLoader(batches(client, name, idle_s=20), **workers)
        with pytest.raises(RuntimeError, match="worker"):
            for columns in loader:
                seen.update(columns["x"].tolist())
                loader.ack()  # torch raises in the middle of the loop's own work
                if len(seen) >= 12 * (num_kills + 1):
                    os.kill(worker_pids()[0], signal.SIGKILL)
                    time.sleep(0.1)
        num_kills += 1
        assert time.monotonic() - started_s < 15
    for columns in ClaimedLoader(batches(client, name), **workers):
        seen.update(columns["x"].tolist())
    assert seen == Counter(range(80))
    assert counts(client, name)["acked"] == 80


OTHER_CHILDREN = ("transferqueue.service", "resource_tracker", "forkserver")


def worker_pids() -> list[int]:
    commands = {child.pid: " ".join(child.cmdline()) for child in psutil.Process().children()}
    return [
        pid
        for pid, command in commands.items()
        if not any(other in command for other in OTHER_CHILDREN)
    ]


def test_ranks_of_one_task_share_the_samples_out(client: tq.Client) -> None:
    fill(client, "ranks", 24)
    ranks = [iter(ClaimedLoader(batches(client, "ranks"))) for _ in range(2)]
    seen = [next(ranks[turn % 2])["x"].tolist() for turn in range(6)]
    for rank in ranks:
        assert next(rank, None) is None
    assert sorted(x for columns in seen for x in columns) == list(range(24))


@pytest.mark.parametrize("workers", [{"num_workers": 0}, WORKERS[1] | {"num_workers": 1}], ids=str)
def test_replicas_see_the_same_batches_in_the_same_order(
    client: tq.Client, workers: dict[str, Any]
) -> None:
    name = f"replicas {workers}"
    fill(client, name, 24)
    sampler = tq.samplers.RankAware(dp_size=1, replicas=2)

    def of_rank(rank: int) -> list[list[int]]:
        chosen = batches(client, name, sampler=sampler.for_rank(rank))
        return [columns["x"].tolist() for columns in ClaimedLoader(chosen, **workers)]

    assert of_rank(0) == of_rank(1) == [list(range(i, i + 4)) for i in range(0, 24, 4)]
    with pytest.raises(errors.ConfigError, match="num_workers of 0 or 1"):
        ClaimedLoader(batches(client, name, sampler=sampler.for_rank(0)), num_workers=2)


def test_an_epoch_can_be_bounded(client: tq.Client) -> None:
    fill(client, "bounded", 40)
    workers = {"num_workers": 2, "multiprocessing_context": "fork"}
    assert len(list(ClaimedLoader(batches(client, "bounded", max_batches=5), **workers))) == 5
    assert counts(client, "bounded")["acked"] == 20
    with pytest.raises(errors.ConfigError, match="batch_size has no meaning"):
        ClaimedLoader(batches(client, "bounded"), batch_size=4)

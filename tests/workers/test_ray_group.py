"""Ranks as Ray actors: one Ray for all tests of this file."""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING

import pytest
import torch

import transferqueue as tq
from tests.test_readme import block
from tests.workers.stage_workers import Critic, Plain, Unpicklable
from transferqueue.client.own_services import running_service
from transferqueue.errors import ConfigError, UndeclaredWrite
from transferqueue.view import DataProto
from workers import (
    LocalWorkerGroup,
    Mesh,
    NoRoom,
    RayWorkerGroup,
    ResourcePool,
    WorkerDied,
    WorkerFailed,
    WorkerSpec,
)

if TYPE_CHECKING:
    from collections.abc import Iterator

ray = pytest.importorskip("ray")

# Ray leaves threads and descriptors in the driver, and warns of what it will do in the future.
pytestmark = [
    pytest.mark.may_leak,
    pytest.mark.slow,
    pytest.mark.filterwarnings("ignore::FutureWarning"),
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]


@pytest.fixture(scope="module")
def pool() -> Iterator[ResourcePool]:
    ray.init(
        address="local",
        num_cpus=4,
        include_dashboard=False,
        log_to_driver=False,
        object_store_memory=80 << 20,
    )
    try:
        with ResourcePool([2], cpus_per_rank=0.5, max_groups=3) as pool:
            yield pool
    finally:
        ray.shutdown()


@pytest.fixture(scope="module")
def client() -> Iterator[tq.Client]:
    with tq.serve(budget_bytes=64 << 20) as service, tq.connect(service.address) as client:
        yield client


@pytest.fixture(scope="module")
def group(pool: ResourcePool, client: tq.Client) -> Iterator[RayWorkerGroup]:
    """Two ranks of two co-located roles."""
    del client  # the service of this process, which the group finds
    roles = {"critic": WorkerSpec(Critic, scale=3.0), "plain": Plain}
    with RayWorkerGroup(pool, roles, call_timeout_s=60) as group:
        yield group


def put_ids(client: tq.Client, num_rows: int) -> tq.BatchHandle:
    return client.put({"ids": torch.arange(num_rows * 2).reshape(num_rows, 2)})


def proto(num_rows: int) -> DataProto:
    return DataProto.from_single_dict({"x": torch.arange(num_rows)})


def test_a_handle_goes_around(client: tq.Client, group: RayWorkerGroup) -> None:
    handle = put_ids(client, 5)
    after = group["critic"].compute_values(handle, shift=1.0)
    assert torch.equal(client.get(after)["values"], client.get(handle)["ids"].float() * 3.0 + 1.0)
    assert after.meta_info["metrics"] == {"rank": [0, 1]}
    assert [one["rows"] for one in group["critic"].update(after)] == [3, 2]
    report = group.report()
    assert report.of_method("compute_values", "critic")["ids"].read_bytes == 5 * 2 * 8
    assert 0 < report.controller_bytes < 4096


def test_a_future_handle_is_dispatched_before_it_is_ready(
    client: tq.Client, group: RayWorkerGroup
) -> None:
    critic = group["critic"]
    handle = put_ids(client, 5)
    after = critic.write_after(critic.write_slowly(handle)).get()
    assert list(after.fields) == ["ids", "slow", "slower"]
    assert torch.equal(client.get(after)["slower"], client.get(handle)["ids"].float() + 1)
    with pytest.raises(WorkerFailed, match=r"critic.write_slowly failed on rank 1.*no luck"):
        critic.write_after(critic.write_slowly(put_ids(client, 4), fails=True)).get()


def test_a_shipped_batch_goes_around(group: RayWorkerGroup) -> None:
    plain = group["plain"]
    assert plain.double(proto(5)).batch["x"].tolist() == [0, 2, 4, 6, 8]
    future = plain.double_later(proto(4))
    assert plain.double(future).batch["x"].tolist() == [0, 4, 8, 12]


def test_a_future_of_threads_is_waited_for_before_it_goes_to_ray(group: RayWorkerGroup) -> None:
    with LocalWorkerGroup(Plain, 2) as threads:
        future = threads.double_later(proto(4))
        assert group["plain"].double(future).batch["x"].tolist() == [0, 4, 8, 12]
        there = group["plain"].double_later(proto(4))
        assert threads.double(there).batch["x"].tolist() == [0, 4, 8, 12]


def test_coroutine_methods_overlap_and_ranks_know_their_place(group: RayWorkerGroup) -> None:
    first, second = group["plain"].overlap(1, 2), group["plain"].overlap(2, 1)
    assert [first.get(), second.get()] == [[[0, 1], [1, 1]], [[0, 2], [1, 2]]]
    assert group["plain"].where() == [(0, 2, 0, "plain"), (1, 2, 1, "plain")]
    assert [rank for _, rank in group["plain"].process()] == ["0", "1"]


async def test_calls_begin_in_the_order_in_which_they_were_made() -> None:
    from workers.ray_worker import Turns

    turns, begun = Turns(), []

    async def call(number: int) -> None:
        await turns.come(number)
        begun.append(number)

    await asyncio.gather(*(call(number) for number in (3, 0, 2, 4, 1)))
    assert begun == [0, 1, 2, 3, 4]


def test_a_failure_names_rank_and_method_and_the_group_goes_on(
    client: tq.Client, group: RayWorkerGroup
) -> None:
    with pytest.raises(WorkerFailed, match=r"plain.fail failed on rank 1: ValueError") as error:
        group["plain"].fail(1)
    assert isinstance(error.value.cause, ValueError)
    assert 'raise ValueError("no luck")' in str(error.value)
    with pytest.raises(WorkerFailed, match="Unpicklable: 1 and 2"):
        group["plain"].fail(0, picklable=False)
    with pytest.raises(UndeclaredWrite, match=r"critic.write_wrongly on rank 1"):
        group["critic"].write_wrongly(put_ids(client, 4), "undeclared", on_rank=1)
    with pytest.raises(WorkerFailed, match=r"plain.take failed on rank 0: before it ran: .*second"):
        group["plain"].take(Unpicklable(1, 2))
    with pytest.raises(
        WorkerFailed, match=r"plain.unpicklable failed on rank 0: Ray lost .*second"
    ):
        group["plain"].unpicklable()
    assert group["plain"].fail(99) == [0, 1]


def test_a_keyword_may_have_any_name(group: RayWorkerGroup) -> None:
    assert group["plain"].keywords(head=1, call=2, role=3) == [["call", "head", "role"]] * 2


def test_ranks_that_share_a_pool_share_its_places(
    pool: ResourcePool, group: RayWorkerGroup
) -> None:
    with RayWorkerGroup(pool, Plain, mesh=Mesh.of(tp=2), name="second") as second:
        assert second.double(proto(3)).batch["x"].tolist() == [0, 2, 4]
        assert ray.get_actor("second-1") is not None
        with pytest.raises(WorkerDied, match=r"rank 1 died before it answered Plain.die"):
            second.die(1)
        with pytest.raises(WorkerDied, match="rank 1 died"):
            second.where()
        assert second.on_rank_zero() == (0, ())
    assert group["plain"].on_rank_zero() == (0, ())


def test_what_cannot_be_made_leaves_nothing_behind(pool: ResourcePool) -> None:
    with pytest.raises(WorkerFailed, match=r"Plain.__init__ failed on rank 0.*cannot be made"):
        RayWorkerGroup(1, WorkerSpec(Plain, fail_on=0), name="failing")
    with pytest.raises(ValueError, match="failing-0"):
        ray.get_actor("failing-0")
    with pytest.raises(ConfigError, match="the mesh has 4 ranks, the pool 2"):
        RayWorkerGroup(pool, Plain, mesh=Mesh.of(dp=4))


def test_a_pool_that_does_not_fit_says_what_there_is_and_at_once_where_it_never_will(
    pool: ResourcePool,
) -> None:
    pool.places()
    started_s = time.monotonic()
    with pytest.raises(NoRoom, match=r"CPU: 16 asked for, 4 in all, .*num_cpus=16") as never:
        RayWorkerGroup(16, Plain)
    assert time.monotonic() - started_s < 5
    assert "ResourcePool([16], cpus_per_rank=0.25)" in str(never.value)
    assert "object_store_memory" not in str(never.value)
    with (
        ResourcePool([4], ready_timeout_s=0.5) as busy,
        pytest.raises(NoRoom, match=r"after 0.5 s .*4 asked for, 4 in all, .*end what"),
    ):
        busy.places()


def test_a_cluster_that_may_get_nodes_is_waited_for(
    pool: ResourcePool, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    del pool
    monkeypatch.setattr("workers.ray_pool._started_here", lambda: False)
    with pytest.raises(NoRoom, match="after 1 s"):
        ResourcePool([2], cpus_per_rank=64.0, ready_timeout_s=1.0).places()
    assert "waits 1 s for nodes" in caplog.text


def test_without_a_connected_ray_it_says_what_to_call(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ray, "is_initialized", lambda: False)
    with pytest.raises(ConfigError, match=r"call ray\.init\(\) first"):
        RayWorkerGroup(2, Critic)


def test_the_pool_of_the_readme_runs_as_it_is_printed(
    pool: ResourcePool, client: tq.Client, capsys: pytest.CaptureFixture[str]
) -> None:
    del pool  # Ray is there
    batch = client.view(put_ids(client, 4))
    exec(block("pool"), {"Critic": Critic, "service": running_service(), "batch": batch})
    assert "values: (4, 2) (torch.float32), not fetched" in capsys.readouterr().out

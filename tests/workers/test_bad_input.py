"""Awkward batches and workers that fail, the same for threads, child processes and Ray actors."""

from __future__ import annotations

import re
import traceback
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

import pytest
import torch

import transferqueue as tq
from tests.waiting import wait_until
from tests.workers.stage_workers import Critic, Plain
from transferqueue.errors import FieldExists, FieldsMissing, InvalidInput
from workers import LocalWorkerGroup, RayWorkerGroup, WorkerDied, WorkerFailed

if TYPE_CHECKING:
    from collections.abc import Iterator

    from workers import WorkerGroup

RANKS = 3
ROLES = {"critic": Critic, "plain": Plain}

# Ray leaves threads and descriptors in the driver, and warns of what it will do in the future.
ON_RAY = pytest.param(
    "ray",
    marks=[
        pytest.mark.slow,
        pytest.mark.may_leak,
        pytest.mark.filterwarnings("ignore::FutureWarning"),
        pytest.mark.filterwarnings("ignore::ResourceWarning"),
        pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
    ],
)
IN_PROCESSES = pytest.param("processes", marks=pytest.mark.slow)


def make(kind: str, service: tq.Service) -> WorkerGroup:
    if kind == "ray":
        return RayWorkerGroup(RANKS, ROLES, service=service)
    return LocalWorkerGroup(ROLES, RANKS, service=service, processes=kind == "processes")


@pytest.fixture(scope="module", params=["threads", IN_PROCESSES, ON_RAY])
def kind(request: pytest.FixtureRequest) -> Iterator[str]:
    with ExitStack() as stack:
        if request.param == "ray":
            ray = pytest.importorskip("ray")
            ray.init(
                address="local",
                num_cpus=2 * RANKS,
                include_dashboard=False,
                log_to_driver=False,
                object_store_memory=80 << 20,
            )
            stack.callback(ray.shutdown)
        yield request.param


@pytest.fixture(scope="module")
def service() -> Iterator[tq.Service]:
    with tq.serve(budget_bytes=32 << 20) as service:
        yield service


@pytest.fixture(scope="module")
def group(kind: str, service: tq.Service) -> Iterator[WorkerGroup]:
    with make(kind, service) as group, tq.connect(service.address) as client:
        group["critic"].compute_values(put_ids(client, 8))  # every rank connects, for good
        yield group


@pytest.fixture
def client(service: tq.Service) -> Iterator[tq.Client]:
    with tq.connect(service.address, timeout_s=20) as client:
        yield client


def put_ids(client: tq.Client, num_rows: int) -> tq.BatchHandle:
    return client.put({"ids": torch.arange(num_rows * 2).reshape(num_rows, 2)})


def doubled(client: tq.Client, handle: tq.BatchHandle) -> torch.Tensor:
    ids: torch.Tensor = client.get(handle, fields=["ids"])["ids"]
    return ids.float() * 2


@pytest.mark.parametrize("num_rows", [7, 2, 1])
def test_rows_that_do_not_divide_and_fewer_rows_than_ranks(
    group: WorkerGroup, client: tq.Client, num_rows: int
) -> None:
    handle = put_ids(client, num_rows)
    after = group["critic"].compute_values(handle)
    assert after.uids.tolist() == handle.uids.tolist()
    assert torch.equal(client.get(after)["values"], doubled(client, handle))
    assert sum(answer["rows"] for answer in group["critic"].update(after)) >= num_rows


def test_an_empty_batch_is_a_batch(group: WorkerGroup, client: tq.Client) -> None:
    after = group["critic"].compute_values(put_ids(client, 4)[:0])
    assert len(after) == 0
    assert list(after.fields) == ["ids", "values"]
    assert client.get(after)["values"].shape[0] == 0


def test_keywords_alone_and_what_is_no_handle(group: WorkerGroup, client: tq.Client) -> None:
    handle = put_ids(client, 5)
    after = group["critic"].compute_values(shift=1.0, data=handle)
    assert torch.equal(client.get(after)["values"], doubled(client, handle) + 1)
    with pytest.raises(InvalidInput, match="takes a handle"):
        group["critic"].compute_values(data=None, shift=1.0)


def test_a_worker_that_raises_is_named_with_its_traceback_and_the_group_goes_on(
    group: WorkerGroup, client: tq.Client
) -> None:
    handle = put_ids(client, 7)
    with pytest.raises(WorkerFailed, match=r"critic.end_badly failed on rank 1") as caught:
        group["critic"].end_badly(handle, 1, killed=False)
    assert isinstance(caught.value.cause, ValueError)
    assert 'raise ValueError("no luck")' in str(caught.value)
    with pytest.raises(FieldsMissing, match="2 of 7"):
        client.get(handle, fields=["doomed"])
    after = group["critic"].compute_values(handle)
    assert torch.equal(client.get(after)["values"], doubled(client, handle))


def test_a_failure_before_or_after_a_method_is_a_sentence(
    group: WorkerGroup, client: tq.Client
) -> None:
    handle = put_ids(client, 4)
    with pytest.raises(WorkerFailed, match="before it ran, when what it reads") as before:
        group["critic"].read_what_is_not_there(handle)
    group["critic"].compute_values(handle)
    with pytest.raises(WorkerFailed, match="after it ran, when what it returned") as after:
        group["critic"].compute_values(handle)
    for caught, cause in ((before, FieldsMissing), (after, FieldExists)):
        assert isinstance(caught.value.cause, cause)
        assert str(caught.value).count("\n") == 0
        text = "".join(traceback.format_exception(caught.value))
        assert text.count("Traceback") == 1
        assert "During handling" not in text
        assert "direct cause" not in text
        frames = re.findall(r'File ".*/(\w+/\w+\.py)"', text)
        assert frames == ["workers/test_bad_input.py", "workers/group.py"]


@pytest.mark.parametrize(
    ("how", "last"),
    [
        ("own", "ValueError: no luck"),
        ("ours", "FieldsMissing: missing: 'idz'"),
        ("exit", "SystemExit: 2"),
        ("cancelled", "CancelledError"),
    ],
)
def test_a_failure_within_a_method_shows_its_own_frames_once(
    group: WorkerGroup, client: tq.Client, how: str, last: str
) -> None:
    with pytest.raises(WorkerFailed) as caught:
        group["critic"].fail_within(put_ids(client, 4), how)
    text = "".join(traceback.format_exception(caught.value))
    frames = re.findall(r'File ".*/(\w+/\w+\.py)", line \d+, in (\w+)', text)
    assert [name for _, name in frames][-2:] == ["__call__", "fail_within"]
    assert len(frames) == 3
    assert text.count("fail_within(put_ids") == 1
    assert f"{last}" in text[text.rindex("in fail_within") :]


def test_a_worker_that_is_killed_in_a_call_is_named_and_the_others_go_on(
    kind: str, service: tq.Service, client: tq.Client
) -> None:
    if kind == "threads":
        pytest.skip("a thread cannot be killed")
    handle = put_ids(client, 7)
    with make(kind, service) as group:
        critic: Any = group["critic"]
        with pytest.raises(WorkerDied, match=r"rank 2 died before it answered critic.end_badly"):
            critic.end_badly(handle, 2, killed=True)
        with pytest.raises(FieldsMissing, match="2 of 7"):  # the others have stored theirs
            client.get(handle, fields=["doomed"])
        with pytest.raises(WorkerDied, match="rank 2"):
            critic.compute_values(handle)
        assert group["plain"].on_rank_zero(5) == (0, (5,))
    with make(kind, service) as another:
        after = another["critic"].compute_values(put_ids(client, 7))
        assert client.get(after)["values"].shape == (7, 2)
    client.clear(partition="default")
    wait_until(lambda: client.status()["shards"][0]["leases"] == 0, timeout_s=20.0)
